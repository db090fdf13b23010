//! Tests canisters with the published `pocket-ic` as documented. `POCKET_IC_BIN` names the server,
//! `POCKET_MODULES` the folder of modules.

use std::{path::PathBuf, time::Duration};

use candid::{Principal, decode_one, encode_args, encode_one};
use pocket_ic::{
    ErrorCode, PocketIc, PocketIcBuilder, PocketIcState, RejectCode, TickConfigs,
    common::rest::{BlobCompression, RawEffectivePrincipal},
    query_candid_as, update_candid, update_candid_as,
};

const INIT_CYCLES: u128 = 2_000_000_000_000;

fn module(name: &str) -> Vec<u8> {
    let folder = std::env::var("POCKET_MODULES").expect("POCKET_MODULES names the modules");
    std::fs::read(PathBuf::from(folder).join(name)).expect("a module")
}

fn install(pic: &PocketIc, name: &str) -> Principal {
    let canister = pic.create_canister();
    pic.add_cycles(canister, INIT_CYCLES);
    pic.install_canister(canister, module(name), vec![], None);
    canister
}

fn call(pic: &PocketIc, canister: Principal, method: &str) -> Vec<u8> {
    pic.update_call(canister, Principal::anonymous(), method, encode_one(()).unwrap())
        .expect("the counter answers")
}

fn get(pic: &PocketIc, canister: Principal, method: &str) -> u64 {
    let reply = pic.query_call(canister, Principal::anonymous(), method, encode_one(()).unwrap());
    decode_one(&reply.unwrap()).unwrap()
}

#[test]
fn a_counter_counts() {
    let pic = PocketIc::new();
    let canister = install(&pic, "counter-c.wasm");
    assert_eq!(canister.to_text(), "lxzze-o7777-77777-aaaaa-cai");
    for expected in 1..=3u64 {
        assert_eq!(call(&pic, canister, "inc"), expected.to_le_bytes());
    }
    assert_eq!(get(&pic, canister, "get_candid"), 3);
    pic.upgrade_canister(canister, module("counter-c.wasm"), vec![], None).unwrap();
    assert_eq!(get(&pic, canister, "get_candid"), 3);
    pic.reinstall_canister(canister, module("counter-c.wasm"), vec![], None).unwrap();
    assert_eq!(get(&pic, canister, "get_candid"), 0);
    assert!(pic.canister_exists(canister));
    assert!(PocketIc::list_instances().iter().any(|instance| instance == "Available"));
}

#[test]
fn rejects_have_their_names() {
    let pic = PocketIc::new();
    let canister = install(&pic, "workbench.wasm");
    let trapped = update_candid::<_, ()>(&pic, canister, "trap_with", ("on purpose",)).unwrap_err();
    assert_eq!(trapped.reject_code, RejectCode::CanisterError);
    assert_eq!(trapped.error_code, ErrorCode::CanisterCalledTrap);
    assert!(trapped.certified && trapped.reject_message.contains("on purpose"), "{trapped:?}");
    let rejected =
        update_candid::<_, ()>(&pic, canister, "reject_with", ("not today",)).unwrap_err();
    assert_eq!(rejected.reject_code, RejectCode::CanisterReject);
    assert_eq!(rejected.error_code, ErrorCode::CanisterRejectedMessage);
    let absent = pic
        .update_call(canister, Principal::anonymous(), "absent", encode_one(()).unwrap())
        .unwrap_err();
    assert_eq!(absent.error_code, ErrorCode::CanisterMethodNotFound);
    let nobody = Principal::from_text("mf7xa-laaaa-aaaar-qaaaa-cai").unwrap();
    let nobody = pic.update_call(nobody, Principal::anonymous(), "inc", vec![]).unwrap_err();
    assert_eq!(nobody.error_code, ErrorCode::CanisterNotFound);
    assert!(!nobody.certified);
    // An update that inspection refuses is not taken in.
    let refused = update_candid::<_, (String,)>(&pic, canister, "forbidden", ()).unwrap_err();
    assert!(!refused.certified, "{refused:?}");
    let other = Principal::self_authenticating([1]);
    let controller = pic.upgrade_canister(canister, module("workbench.wasm"), vec![], Some(other));
    assert_eq!(controller.unwrap_err().error_code, ErrorCode::CanisterInvalidController);
}

#[test]
fn time_and_rounds_go_as_they_are_told() {
    let pic = PocketIc::new();
    let canister = install(&pic, "workbench.wasm");
    let start = pic.get_time();
    pic.tick();
    assert_eq!(pic.get_time(), start + Duration::from_nanos(1));
    update_candid::<_, ()>(&pic, canister, "start_timer", (60_000_000_000u64,)).unwrap();
    pic.advance_time(Duration::from_secs(61));
    assert_eq!(get(&pic, canister, "timer_count"), 0);
    for _ in 0..3 {
        pic.tick();
    }
    assert_eq!(get(&pic, canister, "timer_count"), 1);
    let certified = pic.get_time() + Duration::from_secs(1_000_000);
    pic.set_certified_time(certified);
    assert_eq!(pic.get_time(), certified);
    assert_eq!(get(&pic, canister, "time"), certified.as_nanos_since_unix_epoch());
    pic.tick_with_configs(TickConfigs::default());

    // A call that is submitted is executed in a round.
    let message = pic
        .submit_call(canister, Principal::anonymous(), "inc", encode_one(()).unwrap())
        .unwrap();
    assert!(pic.ingress_status(message.clone()).is_none());
    pic.tick();
    assert!(pic.ingress_status(message.clone()).unwrap().is_ok());
    let stranger = Principal::self_authenticating([3]);
    let forbidden = pic.ingress_status_as(message.clone(), stranger);
    assert!(matches!(forbidden, pocket_ic::IngressStatusResult::Forbidden(_)), "{forbidden:?}");
    assert_eq!(pic.await_call(message).unwrap(), encode_one(1u64).unwrap());
}

#[test]
fn subnets_have_their_ids_and_canisters_call_across() {
    let pic = PocketIcBuilder::new()
        .with_nns_subnet()
        .with_sns_subnet()
        .with_ii_subnet()
        .with_fiduciary_subnet()
        .with_bitcoin_subnet()
        .with_system_subnet()
        .with_application_subnet()
        .with_application_subnet()
        .with_verified_application_subnet()
        .build();
    let topology = pic.topology();
    assert_eq!(topology.subnet_configs.len(), 9);
    assert_eq!(topology.get_app_subnets().len(), 2);
    let ledger = Principal::from_text("ryjl3-tyaaa-aaaaa-aaaba-cai").unwrap();
    assert_eq!(topology.get_subnet(ledger), topology.get_nns());
    assert_eq!(pic.create_canister_with_id(None, None, ledger).unwrap(), ledger);
    assert!(pic.create_canister_with_id(None, None, ledger).is_err());
    assert_eq!(pic.get_subnet(ledger), topology.get_nns());
    // A subnet is made for an id of the public network that none hosts.
    let elsewhere = Principal::from_text("i3flu-baaaa-aaaai-aaaaa-cai").unwrap();
    pic.create_canister_with_id(None, None, elsewhere).unwrap();
    assert_eq!(pic.topology().subnet_configs.len(), 10);
    let mut canisters = vec![ledger, elsewhere];
    for subnet in topology.subnet_configs.keys() {
        let canister = pic.create_canister_on_subnet(None, None, *subnet);
        assert_eq!(pic.get_subnet(canister), Some(*subnet));
        canisters.push(canister);
    }
    for canister in &canisters {
        pic.install_canister(*canister, module("workbench.wasm"), vec![], None);
    }
    for (caller, callee) in canisters.iter().zip(canisters.iter().cycle().skip(1)) {
        let (counted,): (u64,) = update_candid(&pic, *caller, "call_inc", (*callee,)).unwrap();
        assert_eq!(counted, 1);
    }
    // Cycles cross as well.
    let (accepted,): (candid::Nat,) =
        update_candid(&pic, canisters[2], "send_cycles", (canisters[3], candid::Nat::from(1_000u64)))
            .unwrap();
    assert_eq!(accepted, 1_000u64);
    assert_eq!(pic.root_key().unwrap().len(), 133);
}

#[test]
fn a_canister_is_managed() {
    let pic = PocketIc::new();
    let canister = install(&pic, "counter-c.wasm");
    let owner = Principal::self_authenticating([7]);
    pic.set_controllers(canister, None, vec![owner]).unwrap();
    assert_eq!(pic.get_controllers(canister), [owner]);
    assert!(pic.stop_canister(canister, None).is_err());
    pic.stop_canister(canister, Some(owner)).unwrap();
    let stopped = pic.update_call(canister, owner, "inc", vec![]).unwrap_err();
    assert_eq!(stopped.error_code, ErrorCode::CanisterStopped);
    pic.start_canister(canister, Some(owner)).unwrap();
    call(&pic, canister, "inc");
    let snapshot = pic.take_canister_snapshot(canister, Some(owner), None).unwrap();
    call(&pic, canister, "inc");
    pic.stop_canister(canister, Some(owner)).unwrap();
    pic.load_canister_snapshot(canister, Some(owner), snapshot.id).unwrap();
    pic.start_canister(canister, Some(owner)).unwrap();
    assert_eq!(get(&pic, canister, "get_candid"), 1);
    let status = pic.canister_status(canister, Some(owner)).unwrap();
    assert!(status.module_hash.is_some());
    let balance = pic.cycle_balance(canister);
    assert_eq!(pic.add_cycles(canister, 5), balance + 5);
    assert_eq!(pic.cycle_balance(canister), balance + 5);
    pic.uninstall_canister(canister, Some(owner)).unwrap();
    pic.stop_canister(canister, Some(owner)).unwrap();
    pic.delete_canister(canister, Some(owner)).unwrap();
    assert!(!pic.canister_exists(canister));
}

#[test]
fn the_status_has_queries_of_the_first_two_of_four_periods_of_sixty_rounds() {
    let pic = PocketIc::new();
    let canister = install(&pic, "counter-c.wasm");
    let stats = || pic.canister_status(canister, None).unwrap().query_stats;
    for _ in 0..4 {
        for _ in 0..13 {
            assert_eq!(get(&pic, canister, "get_candid"), 0);
        }
        for _ in 0..60 {
            pic.tick();
        }
    }
    let stats = pic.canister_status(canister, None).unwrap().query_stats;
    assert_eq!(stats.num_calls_total, 26u8);
    assert_eq!(stats.request_payload_bytes_total, 26 * encode_one(()).unwrap().len());
    assert_eq!(stats.response_payload_bytes_total, 26 * encode_one(0u64).unwrap().len());
    assert!(stats.num_instructions_total > 0u8);
}

#[test]
fn a_large_module_goes_by_chunks() {
    let pic = PocketIc::new();
    // Twice the bytes of a message, as a meaningless custom section.
    let mut wasm = module("counter-c.wasm");
    let content = vec![b'x'; 3 << 20];
    let mut section = vec![4];
    section.extend_from_slice(b"fill");
    section.extend_from_slice(&content);
    wasm.push(0);
    let mut length = section.len();
    while length >= 0x80 {
        wasm.push((length & 0x7f | 0x80) as u8);
        length >>= 7;
    }
    wasm.push(length as u8);
    wasm.extend_from_slice(&section);
    let canister = pic.create_canister();
    pic.install_canister(canister, wasm, vec![], None);
    assert_eq!(call(&pic, canister, "inc"), 1u64.to_le_bytes());
}

#[test]
fn stable_memory_comes_from_blobs() {
    let pic = PocketIc::new();
    let canister = install(&pic, "workbench.wasm");
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    pic.set_stable_memory(canister, content.clone(), BlobCompression::NoCompression);
    assert!(pic.get_stable_memory(canister) == content);
    let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
    let (read,): (u64,) =
        update_candid(&pic, canister, "stable_read_sum_update", (0u64, 3u64 << 20)).unwrap();
    assert_eq!(read, sum);
}

#[test]
fn an_instance_is_kept_and_copied() {
    let state = PocketIcState::new();
    let pic = PocketIcBuilder::new()
        .with_application_subnet()
        .with_nns_subnet()
        .with_state(state)
        .build();
    let canister = install(&pic, "counter-c.wasm");
    call(&pic, canister, "inc");
    let (topology, time) = (pic.topology(), pic.get_time());
    let state = pic.drop_and_take_state().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    std::fs::create_dir(&path).unwrap();
    let state = PocketIcState::new_from_path(state.into_path()).into_path();
    // Two copies of it at once, neither of which changes it.
    let copies: Vec<_> = (0..2)
        .map(|_| {
            let read_only = PocketIcState::new_from_path(state.clone());
            PocketIcBuilder::new().with_read_only_state(&read_only).build()
        })
        .collect();
    for copy in &copies {
        assert_eq!(copy.topology(), topology);
        assert!(copy.get_time() >= time);
        assert_eq!(call(copy, canister, "inc"), 2u64.to_le_bytes());
    }
    let again = PocketIcBuilder::new().with_state_dir(state.clone()).build();
    assert_eq!(call(&again, canister, "inc"), 2u64.to_le_bytes());
    drop(again);
    let again = PocketIcBuilder::new().with_state_dir(state.clone()).build();
    assert_eq!(call(&again, canister, "inc"), 3u64.to_le_bytes());
    drop(again);
    std::fs::remove_dir_all(state).unwrap();
}

#[test]
fn an_instance_goes_by_the_machines_clock() {
    let mut pic = PocketIcBuilder::new().with_nns_subnet().with_application_subnet().build();
    let canister = install(&pic, "workbench.wasm");
    assert!(!pic.auto_progress_enabled());
    let url = pic.make_live(None);
    assert!(pic.auto_progress_enabled());
    let default = pocket_ic::get_default_effective_canister_id(pic.get_server_url().join(
        &format!("instances/{}/", pic.instance_id())).unwrap().to_string(),
    );
    assert_eq!(default.unwrap(), canister);
    assert!(url.as_str().starts_with("http://localhost:"), "{url}");
    update_candid::<_, ()>(&pic, canister, "start_timer", (100_000_000u64,)).unwrap();
    let message = pic
        .submit_call(canister, Principal::anonymous(), "inc", encode_one(()).unwrap())
        .unwrap();
    assert_eq!(pic.await_call_no_ticks(message).unwrap(), encode_one(1u64).unwrap());
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while get(&pic, canister, "timer_count") == 0 {
        assert!(std::time::Instant::now() < until, "the timer has not fired");
    }
    let metrics = pic.get_subnet_metrics(pic.topology().get_nns().unwrap()).unwrap();
    assert_eq!(metrics.num_canisters, 1);
    pic.stop_live();
    let time = pic.get_time();
    assert_eq!(pic.get_time(), time, "it stands still again");
}

#[test]
fn callers_are_who_they_say() {
    let pic = PocketIc::new();
    let canister = install(&pic, "workbench.wasm");
    let who = Principal::self_authenticating([9]);
    let (found,): (Principal,) = update_candid_as(&pic, canister, who, "whoami", ()).unwrap();
    assert_eq!(found, who);
    let (found,): (Principal,) = query_candid_as(&pic, canister, who, "whoami_query", ()).unwrap();
    assert_eq!(found, who);
    let subnet = pic.get_subnet(canister).unwrap();
    let reply = pic.update_call_with_effective_principal(
        Principal::management_canister(),
        RawEffectivePrincipal::SubnetId(subnet.as_slice().to_vec()),
        who,
        "provisional_create_canister_with_cycles",
        encode_args((Empty {},)).unwrap(),
    );
    assert!(reply.is_ok(), "{reply:?}");
    let logs = pic.fetch_canister_logs(canister, Principal::anonymous()).unwrap();
    assert!(logs.is_empty());
}

#[derive(candid::CandidType)]
struct Empty {}
