//! Stories about `aaaaa-aa`.

use candid::Nat;
use ic_management_canister_types as ic;
use ic_management_canister_types::CanisterInstallMode as Mode;
use ic_principal::Principal;
use state::{
    Batch, CanisterId, CanisterStatus, Randomness, RejectCode, RequestId, SignedRandomness, Status,
};

use crate::common::{self, CallOp, Node, Op, SECOND, Spec, decode, encode, user};

fn named(name: &str) -> Spec {
    Spec { name: name.into(), ..Spec::default() }
}

fn record(id: Principal) -> ic::CanisterIdRecord {
    ic::CanisterIdRecord { canister_id: id }
}

fn aaaaa() -> Principal {
    Principal::management_canister()
}

fn settings(id: Principal, settings: ic::CanisterSettings) -> ic::UpdateSettingsArgs {
    ic::UpdateSettingsArgs { canister_id: id, settings, sender_canister_version: None }
}

#[test]
fn a_new_canister_is_empty_rich_and_controlled_by_its_creator() {
    let mut node = Node::new();
    let id = node.create();
    assert_eq!(id, execution::ExecutorConfig::canister_id(0x100));
    let status = node.status_of(id);
    assert_eq!(status.status, ic::CanisterStatusType::Running);
    assert_eq!(status.settings.controllers, [user(1)]);
    assert_eq!(status.module_hash, None);
    assert!(status.cycles > 99_000_000_000_000u64);
    assert_eq!(status.settings.freezing_threshold, Nat::from(2_592_000u32));
    let stranger = node.manage(user(2), id, "canister_status", &record(id)).unwrap_err();
    assert_eq!(stranger.error_code.0, 512);
}

#[test]
fn canisters_are_made_under_an_id_of_ones_own() {
    let mut node = Node::new();
    let wanted = execution::ExecutorConfig::canister_id(5);
    let argument = |id| ic::ProvisionalCreateCanisterWithCyclesArgs {
        amount: Some(Nat::from(7u8)),
        settings: None,
        specified_id: Some(id),
        sender_canister_version: None,
    };
    let reply = node
        .manage(user(1), aaaaa(), "provisional_create_canister_with_cycles", &argument(wanted))
        .unwrap();
    assert_eq!(decode::<ic::CanisterIdRecord>(&reply).canister_id, wanted);
    assert_eq!(node.canister(wanted).cycles, 7);
    let again = node
        .manage(user(1), aaaaa(), "provisional_create_canister_with_cycles", &argument(wanted))
        .unwrap_err();
    assert_eq!(again.error_code.0, 538);
    // Those that are given to others are not to be had.
    let theirs = execution::ExecutorConfig::canister_id(0x105);
    let theirs = node
        .manage(user(1), aaaaa(), "provisional_create_canister_with_cycles", &argument(theirs))
        .unwrap_err();
    assert_eq!(theirs.error_code.0, 408);
    let outside = execution::ExecutorConfig::canister_id(1 << 40);
    let outside = node
        .manage(user(1), aaaaa(), "provisional_create_canister_with_cycles", &argument(outside))
        .unwrap_err();
    assert_eq!(outside.error_code.0, 405);
    let top_up = ic::ProvisionalTopUpCanisterArgs { canister_id: wanted, amount: Nat::from(100u8) };
    node.manage(user(9), wanted, "provisional_top_up_canister", &top_up).unwrap();
    assert_eq!(node.canister(wanted).cycles, 107);
}

#[test]
fn code_comes_goes_and_is_upgraded() {
    let mut node = Node::new();
    let id = node.create();
    let first =
        Spec { init: vec![Op::Note(b"first".to_vec()), Op::Print(b"hi".to_vec())], ..named("a") };
    node.install(id, Mode::Install, &first).unwrap();
    assert_eq!(node.notes(id), ["first"]);
    assert_eq!(node.install(id, Mode::Install, &first).unwrap_err().error_code.0, 514);
    let version = node.canister(id).version;

    let second = Spec { post_upgrade: vec![Op::Note(b"second".to_vec())], ..named("b") };
    node.install(id, Mode::Upgrade(None), &second).unwrap();
    assert_eq!(node.canister(id).version, version + 1);
    assert_eq!(node.notes(id), ["second"], "the heap is new");

    node.call(id, &[Op::Grow(3), Op::Reply(vec![])]).unwrap();
    node.install(id, Mode::Upgrade(None), &second).unwrap();
    assert_eq!(node.status_of(id).memory_metrics.stable_memory_size, Nat::from(3u64 * 65536));
    node.install(id, Mode::Reinstall, &first).unwrap();
    assert_eq!(node.status_of(id).memory_metrics.stable_memory_size, Nat::from(0u8));

    let uninstall = ic::UninstallCodeArgs { canister_id: id, sender_canister_version: None };
    node.manage(user(1), id, "uninstall_code", &uninstall).unwrap();
    assert!(node.canister(id).execution.is_none());
    assert_eq!(node.call(id, &[Op::Reply(vec![])]).unwrap_err().error_code.0, 537);
    assert_eq!(node.install(id, Mode::Upgrade(None), &second).unwrap_err().error_code.0, 537);
    let changes = node.canister(id).history.total();
    assert_eq!(changes, 6, "creation, install, two upgrades, reinstall, uninstall");
}

#[test]
fn a_failed_upgrade_leaves_everything_as_it_was() {
    let mut node = Node::new();
    let old = Spec {
        init: vec![Op::Note(b"old".to_vec()), Op::Grow(2), Op::Certify(b"old".to_vec())],
        pre_upgrade: Some(vec![
            Op::Note(b"leaving".to_vec()),
            Op::Dirty(5),
            Op::Certify(b"pre".to_vec()),
        ]),
        ..named("old")
    };
    let id = node.deploy(&old);
    let (hash, version) = (node.canister(id).module().unwrap().hash, node.canister(id).version);
    let broken = Spec {
        post_upgrade: vec![Op::Print(b"trying".to_vec()), Op::Trap("cannot".into())],
        ..named("new")
    };
    for _ in 0..3 {
        let error = node.install(id, Mode::Upgrade(None), &broken).unwrap_err();
        assert!(error.message.contains("cannot"), "{}", error.message);
    }
    let stable = node.canister(id).execution.as_ref().unwrap().stable.clone();
    let mut page = vec![1; 4096];
    pages::read_pages(&stable.layout.unwrap(), 0, &mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 0), "pre_upgrade's stable writes are gone");
    assert_eq!(node.canister(id).module().unwrap().hash, hash);
    assert_eq!(node.canister(id).version, version);
    assert_eq!(node.canister(id).certified_data, b"old");
    assert_eq!(node.notes(id), ["old"]);

    // What pre_upgrade wrote to stable memory is kept when all goes well.
    node.install(id, Mode::Upgrade(None), &named("new")).unwrap();
    let stable = node.canister(id).execution.as_ref().unwrap().stable.clone();
    pages::read_pages(&stable.layout.unwrap(), 4, &mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 5));
    assert_eq!(node.canister(id).certified_data, b"pre");
    // And skipped when asked for.
    let skipping = ic::UpgradeFlags { skip_pre_upgrade: Some(true), wasm_memory_persistence: None };
    let id =
        node.deploy(&Spec { pre_upgrade: Some(vec![Op::Trap("never".into())]), ..named("stuck") });
    assert!(node.install(id, Mode::Upgrade(None), &named("x")).is_err());
    node.install(id, Mode::Upgrade(Some(skipping)), &named("x")).unwrap();
}

#[test]
fn orthogonal_persistence_keeps_the_heap_when_both_modules_know_it() {
    let mut node = Node::new();
    let persistent =
        |name: &str, post: Vec<Op>| Spec { persistent: true, post_upgrade: post, ..named(name) };
    let old =
        Spec { pre_upgrade: Some(vec![Op::Note(b"pre".to_vec())]), ..persistent("a", vec![]) };
    let id = node.deploy(&old);
    node.call(id, &[Op::Note(b"kept".to_vec()), Op::Reply(vec![])]).unwrap();
    let next = persistent("b", vec![Op::Note(b"post".to_vec())]);
    assert_eq!(node.install(id, Mode::Upgrade(None), &next).unwrap_err().error_code.0, 504);
    let keep = Mode::Upgrade(Some(ic::UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(ic::WasmMemoryPersistence::Keep),
    }));
    assert_eq!(node.install(id, keep, &named("plain")).unwrap_err().error_code.0, 504);
    node.install(id, keep, &next).unwrap();
    assert_eq!(node.notes(id), ["kept", "pre", "post"]);
    let replace = Mode::Upgrade(Some(ic::UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(ic::WasmMemoryPersistence::Replace),
    }));
    node.install(id, replace, &named("plain")).unwrap();
    assert!(node.notes(id).is_empty());
}

#[test]
fn large_modules_come_in_chunks() {
    let mut node = Node::new();
    let id = node.create();
    let wasm = named("chunked").wasm();
    let (left, right) = wasm.split_at(wasm.len() / 2);
    let mut chunk_hashes_list = vec![];
    for chunk in [left, right] {
        let upload = ic::UploadChunkArgs { canister_id: id, chunk: chunk.to_vec() };
        chunk_hashes_list.push(decode::<ic::ChunkHash>(
            &node.manage(user(1), id, "upload_chunk", &upload).unwrap(),
        ));
    }
    let stored: Vec<ic::ChunkHash> =
        decode(&node.manage(user(1), id, "stored_chunks", &record(id)).unwrap());
    assert_eq!(stored.len(), 2);
    let hash = |bytes: &[u8]| <sha2::Sha256 as sha2::Digest>::digest(bytes).to_vec();
    let mut install = ic::InstallChunkedCodeArgs {
        mode: Mode::Install,
        target_canister: id,
        store_canister: None,
        chunk_hashes_list,
        wasm_module_hash: hash(b"something else"),
        arg: vec![],
        sender_canister_version: None,
    };
    assert_eq!(
        node.manage(user(1), id, "install_chunked_code", &install).unwrap_err().error_code.0,
        504
    );
    install.wasm_module_hash = hash(&wasm);
    node.manage(user(1), id, "install_chunked_code", &install).unwrap();
    assert_eq!(node.call(id, &[Op::Reply(b"up".to_vec())]).unwrap(), b"up");
    node.manage(user(1), id, "clear_chunk_store", &record(id)).unwrap();
    assert!(node.canister(id).chunks.is_empty());
    // The module outlives its chunks, also over checkpoints and a restart.
    for _ in 0..20 {
        node.round();
    }
    let mut node = node.restart();
    assert_eq!(node.call(id, &[Op::Reply(b"up".to_vec())]).unwrap(), b"up");
}

#[test]
fn settings_change_what_is_named_and_are_shown() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let change = ic::CanisterSettings {
        controllers: Some(vec![user(1), user(2)]),
        compute_allocation: Some(Nat::from(10u8)),
        memory_allocation: Some(Nat::from(50_000_000u32)),
        freezing_threshold: Some(Nat::from(1_000u32)),
        reserved_cycles_limit: Some(Nat::from(1u8)),
        log_visibility: Some(ic::LogVisibility::Public),
        wasm_memory_limit: Some(Nat::from(1_000_000_000u32)),
        wasm_memory_threshold: Some(Nat::from(5u8)),
        environment_variables: Some(vec![ic::EnvironmentVariable {
            name: "B".into(),
            value: "2".into(),
        }]),
        ..ic::CanisterSettings::default()
    };
    let version = node.canister(id).version;
    node.manage(user(1), id, "update_settings", &settings(id, change)).unwrap();
    let status = node.status_of(id);
    assert_eq!(status.version, version + 1);
    assert_eq!(status.settings.controllers.len(), 2);
    assert_eq!(status.settings.compute_allocation, Nat::from(10u8));
    assert_eq!(status.settings.memory_allocation, Nat::from(50_000_000u32));
    assert_eq!(status.settings.log_visibility, ic::LogVisibility::Public);
    assert_eq!(status.settings.environment_variables.len(), 1);
    assert_eq!(node.executor.state().totals().memory_taken, 50_000_000);

    let refused = |change: ic::CanisterSettings, node: &mut Node| {
        node.manage(user(2), id, "update_settings", &settings(id, change)).unwrap_err()
    };
    let too_much =
        ic::CanisterSettings { compute_allocation: Some(Nat::from(101u8)), ..Default::default() };
    assert_eq!(refused(too_much, &mut node).error_code.0, 504);
    let everything =
        ic::CanisterSettings { memory_allocation: Some(Nat::from(u64::MAX)), ..Default::default() };
    let reject = refused(everything, &mut node);
    assert_eq!(reject.error_code.0, 101);
    assert!(reject.message.contains("memory_capacity_bytes"));
    let crowd = ic::CanisterSettings {
        controllers: Some((0..20).map(user).collect()),
        ..Default::default()
    };
    assert_eq!(refused(crowd, &mut node).error_code.0, 408);
    let stranger = settings(id, ic::CanisterSettings::default());
    assert_eq!(
        node.manage(user(3), id, "update_settings", &stranger).unwrap_err().error_code.0,
        512
    );
}

#[test]
fn stopping_waits_for_open_calls() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    // Each uses up a round, and work that is left over may come before the stop in one of them.
    let mut slow = vec![Op::Spend(3_999_999_000), Op::Reply(vec![])];
    for _ in 0..4 {
        slow = vec![Op::Spend(3_999_999_000), CallOp::new(b, &slow).op()];
    }
    let open = node.send(a, &[CallOp::new(b, &slow).op()]);
    node.round();
    let arg = candid::encode_one(record(a)).unwrap();
    let stop = node.ingress(user(1), aaaaa(), a, "stop_canister", arg);
    let rounds = (1..=3).take_while(|_| {
        node.round();
        node.canister(a).status == CanisterStatus::Running
    });
    assert!(rounds.count() < 3, "neither side waits for longer than a round");
    assert!(matches!(node.canister(a).status, CanisterStatus::Stopping(_)));
    assert_eq!(node.call(a, &[Op::Reply(vec![])]).unwrap_err().error_code.0, 509);
    node.settle();
    assert!(node.result(&open).is_ok());
    assert!(node.result(&stop).is_ok());
    assert_eq!(node.canister(a).status, CanisterStatus::Stopped);
    assert_eq!(node.call(a, &[Op::Reply(vec![])]).unwrap_err().error_code.0, 508);
    node.manage(user(1), a, "start_canister", &record(a)).unwrap();
    assert!(node.call(a, &[Op::Reply(vec![])]).is_ok());
}

#[test]
fn a_stop_that_takes_too_long_is_told_so_and_goes_on() {
    let mut node = Node::new();
    let a = node.deploy(&Spec::default());
    // A canister that asks another to stop while that one waits for it: neither moves.
    let b = node.create();
    let controllers =
        ic::CanisterSettings { controllers: Some(vec![user(1), a]), ..Default::default() };
    node.manage(user(1), b, "update_settings", &settings(b, controllers)).unwrap();
    node.install(b, Mode::Install, &Spec::default()).unwrap();
    let mut stop = CallOp::new(aaaaa(), &[]);
    stop.method = "stop_canister".into();
    stop.arg = candid::encode_one(record(b)).unwrap();
    stop.on_reject = vec![Op::ReplyReject];
    let request = node.send(b, &[CallOp::new(a, &[stop.op()]).op()]);
    for _ in 0..3 {
        node.round();
    }
    assert_eq!(node.status(&request), Status::Processing);
    node.seconds_per_round = 301;
    node.round();
    node.seconds_per_round = 1;
    node.settle();
    let text = String::from_utf8(node.result(&request).unwrap()).unwrap();
    assert!(text.starts_with("2: "), "{text}");
    assert_eq!(node.canister(b).status, CanisterStatus::Stopped);
}

#[test]
fn starting_again_cancels_a_stop() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let slow = [
        Op::Spend(3_999_999_000),
        CallOp::new(b, &[Op::Spend(3_999_999_000), Op::Reply(vec![])]).op(),
    ];
    node.send(a, &[CallOp::new(b, &slow).op()]);
    node.round();
    let arg = candid::encode_one(record(a)).unwrap();
    let stop = node.ingress(user(1), aaaaa(), a, "stop_canister", arg.clone());
    let start = node.ingress(user(1), aaaaa(), a, "start_canister", arg);
    node.settle();
    assert_eq!(node.result(&stop).unwrap_err().error_code.0, 511);
    assert!(node.result(&start).is_ok());
    assert_eq!(node.canister(a).status, CanisterStatus::Running);
}

#[test]
fn only_stopped_canisters_are_deleted_and_their_ids_never_come_back() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    assert_eq!(
        node.manage(user(1), id, "delete_canister", &record(id)).unwrap_err().error_code.0,
        510
    );
    node.manage(user(1), id, "stop_canister", &record(id)).unwrap();
    node.manage(user(1), id, "delete_canister", &record(id)).unwrap();
    assert!(!node.executor.state().contains(&id));
    assert_eq!(node.call(id, &[]).unwrap_err().error_code.0, 301);
    assert_ne!(node.create(), id);
    assert_eq!(node.pages.ids().len(), 0);
    node.check_conservation();
}

#[test]
fn uninstalling_answers_everyone_who_waits() {
    let mut node = Node::new();
    let (a, b, c) = (
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
        node.deploy(&Spec::default()),
    );
    let busy = CallOp::new(
        c,
        &[
            Op::Spend(3_999_999_000),
            CallOp::new(c, &[Op::Spend(3_999_999_000), Op::Reply(vec![])]).op(),
        ],
    );
    let mut outer = CallOp::new(b, &[busy.op()]);
    outer.cycles = 1_000_000;
    let request = node.send(a, &[outer.op()]);
    node.round();
    let uninstall =
        candid::encode_one(ic::UninstallCodeArgs { canister_id: b, sender_canister_version: None })
            .unwrap();
    node.ingress(user(1), aaaaa(), b, "uninstall_code", uninstall);
    node.settle();
    let text = String::from_utf8(node.result(&request).unwrap()).unwrap();
    assert!(text.starts_with("4: "), "{text}");
    assert!(node.canister(b).calls.has_no_contexts());
    assert_eq!(node.canister(b).calls.callbacks_open(), 0);
}

#[test]
fn canisters_create_look_at_and_pay_for_others() {
    let mut node = Node::new();
    let a = node.deploy(&Spec {
        sections: vec![
            (true, "open".into(), b"yes".to_vec()),
            (false, "shut".into(), b"no".to_vec()),
        ],
        ..named("a")
    });
    let manage = |method: &str, arg: Vec<u8>, cycles: u128| {
        let mut call = CallOp::new(aaaaa(), &[]);
        call.method = method.into();
        call.arg = arg;
        call.cycles = cycles;
        vec![call.op()]
    };
    let empty = candid::encode_one(ic::CreateCanisterArgs::default()).unwrap();
    let poor = node.call(a, &manage("create_canister", empty.clone(), 5)).unwrap();
    assert!(
        String::from_utf8(poor).unwrap().starts_with("4: Creating a canister requires a fee of ")
    );
    let reply = node.call(a, &manage("create_canister", empty, 1_500_000_000_000)).unwrap();
    let b = decode::<ic::CanisterIdRecord>(&reply).canister_id;
    assert_eq!(node.canister(b).cycles, 1_000_000_000_000);
    assert_eq!(node.canister(b).controllers, [a]);
    node.call(a, &manage("deposit_cycles", candid::encode_one(record(b)).unwrap(), 7)).unwrap();
    assert_eq!(node.canister(b).cycles, 1_000_000_000_007);

    let ask = ic::CanisterInfoArgs { canister_id: a, num_requested_changes: Some(1) };
    let mut info = manage("canister_info", candid::encode_one(ask).unwrap(), 0);
    let reply = node.call(a, &info).unwrap();
    let read: ic::CanisterInfoResult = decode(&reply);
    assert_eq!((read.total_num_changes, read.recent_changes.len()), (2, 1));
    // The interface's `details` is not an option: a reader that expects none can decode it.
    #[derive(candid::CandidType, candid::Deserialize)]
    struct Strict {
        recent_changes: Vec<StrictChange>,
    }
    #[derive(candid::CandidType, candid::Deserialize)]
    struct StrictChange {
        details: ic::ChangeDetails,
    }
    let strict: Strict = decode(&reply);
    assert!(matches!(strict.recent_changes[0].details, ic::ChangeDetails::CodeDeployment(_)));

    // The subnet's own id names the management canister too.
    if let [Op::Call(call)] = &mut info[..] {
        call.callee = node.config.subnet.subnet_id;
    }
    assert_eq!(node.call(a, &info).unwrap(), reply);
    let metadata = |name: &str| {
        candid::encode_one(ic::CanisterMetadataArgs { canister_id: a, name: name.into() }).unwrap()
    };
    let open: ic::CanisterMetadataResult =
        decode(&node.call(a, &manage("canister_metadata", metadata("open"), 0)).unwrap());
    assert_eq!(open.value, b"yes");
    let shut = node.call(a, &manage("canister_metadata", metadata("shut"), 0)).unwrap();
    assert!(String::from_utf8(shut).unwrap().starts_with("4: "));

    let nothing = candid::encode_args(()).unwrap();
    let first: serde_bytes::ByteBuf =
        decode(&node.call(a, &manage("raw_rand", nothing.clone(), 0)).unwrap());
    let second: serde_bytes::ByteBuf =
        decode(&node.call(a, &manage("raw_rand", nothing, 0)).unwrap());
    assert_eq!(first.len(), 32);
    assert_ne!(first, second);
    let unknown = node.call(a, &manage("make_tea", vec![], 9)).unwrap();
    assert!(String::from_utf8(unknown).unwrap().contains("make_tea"));
}

#[test]
fn unsupported_methods_are_rejected_with_standard_codes() {
    let mut node = Node::new();
    let a = node.deploy(&Spec::default());
    for (method, code) in [
        ("http_request", RejectCode::CanisterError),
        ("sign_with_schnorr", RejectCode::DestinationInvalid),
        ("bitcoin_get_balance", RejectCode::DestinationInvalid),
        ("list_canisters", RejectCode::CanisterReject),
        ("make_tea", RejectCode::CanisterError),
    ] {
        let mut call = CallOp::new(aaaaa(), &[]);
        call.method = method.into();
        call.on_reject = vec![Op::ReplyReject];
        let told = String::from_utf8(node.call(a, &[call.op()]).unwrap()).unwrap();
        assert!(told.starts_with(&format!("{}: ", code as u64)), "{method}: {told}");
        assert!(told.contains(method), "{told}");
    }
}

#[test]
fn a_creation_that_is_refused_costs_no_id() {
    let mut node = Node::new();
    let a = node.deploy(&Spec::default());
    let too_much =
        ic::CanisterSettings { compute_allocation: Some(Nat::from(101u8)), ..Default::default() };
    // The settings are checked before the fee, which this call does not bring.
    let mut call = CallOp::new(aaaaa(), &[]);
    call.method = "create_canister".into();
    call.arg = candid::encode_one(ic::CreateCanisterArgs {
        settings: Some(too_much.clone()),
        sender_canister_version: None,
    })
    .unwrap();
    call.on_reject = vec![Op::ReplyReject];
    let told = String::from_utf8(node.call(a, &[call.op()]).unwrap()).unwrap();
    assert!(told.starts_with("5: ") && told.contains("compute_allocation"), "{told}");
    let promised =
        ic::CanisterSettings { memory_allocation: Some(Nat::from(u64::MAX)), ..Default::default() };
    for (settings, code) in [(too_much, 504), (promised, 101)] {
        let argument = ic::ProvisionalCreateCanisterWithCyclesArgs {
            settings: Some(settings),
            ..Default::default()
        };
        let refused = node
            .manage(user(1), aaaaa(), "provisional_create_canister_with_cycles", &argument)
            .unwrap_err();
        assert_eq!(refused.error_code.0, code);
    }
    let number = execution::ExecutorConfig::canister_number(&a).unwrap();
    assert_eq!(node.create(), execution::ExecutorConfig::canister_id(number + 1));
}

#[test]
fn uninstalling_clears_the_chunk_store() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let chunk = ic::UploadChunkArgs { canister_id: id, chunk: vec![7; 10] };
    node.manage(user(1), id, "upload_chunk", &chunk).unwrap();
    assert_eq!(node.canister(id).chunks.len(), 1);
    node.manage(user(1), id, "uninstall_code", &record(id)).unwrap();
    assert!(node.canister(id).chunks.is_empty());
}

#[test]
fn users_may_not_call_what_only_canisters_may() {
    let mut node = Node::new();
    let id = node.create();
    for method in [
        "raw_rand",
        "deposit_cycles",
        "canister_info",
        "create_canister",
        "http_request",
        "sign_with_ecdsa",
        "fetch_canister_logs",
    ] {
        let error = node.manage(user(1), id, method, &record(id)).unwrap_err();
        assert_eq!(error.error_code.0, 406, "{method}");
    }
    let error = node.manage(user(1), id, "nonsense", &record(id)).unwrap_err();
    assert_eq!(error.error_code.0, 536);
    // Whatever the argument is.
    let error = node.manage(user(1), id, "deposit_cycles", &7u8).unwrap_err();
    assert_eq!(error.error_code.0, 406);
    // The effective canister id must be the one in the argument.
    let other = node.create();
    let arg = candid::encode_one(record(id)).unwrap();
    let crossed = node.ingress(user(1), aaaaa(), other, "canister_status", arg);
    node.settle();
    assert_eq!(node.result(&crossed).unwrap_err().error_code.0, 408);
}

// Promise: P7 - An installation waits while its module cannot be compiled.
#[test]
fn a_module_that_cannot_be_compiled_now_is_waited_for() {
    let mut node = Node::new();
    let id = node.create();
    let bad = ic::InstallCodeArgs {
        mode: Mode::Install,
        canister_id: id,
        wasm_module: b"\0asm nonsense".to_vec(),
        arg: vec![],
        sender_canister_version: None,
    };
    assert_eq!(node.manage(user(1), id, "install_code", &bad).unwrap_err().error_code.0, 505);
    assert_eq!(node.retry.troubles(), []);
    node.sandbox.compile_failures.store(5, std::sync::atomic::Ordering::Relaxed);
    node.install(id, Mode::Install, &Spec::default()).unwrap();
    assert_eq!(node.retry.troubles().len(), 5);
    let mut node = node.restart();
    assert_eq!(node.call(id, &[Op::Reply(b"up".to_vec())]).unwrap(), b"up");
}

// Promise: P14 - Nothing is compiled for a canister that cannot prepay.
#[test]
fn nothing_is_compiled_for_a_canister_that_cannot_pay() {
    let mut node = Node::new();
    let poor = node.create_with(50_000_000_000);
    let error = node.install(poor, Mode::Install, &Spec::default()).unwrap_err();
    assert_eq!(error.error_code.0, 207);
    assert!(error.message.contains("prepaying the installation of code"), "{}", error.message);
    let compiled = node.sandbox.preparations.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(compiled, 0, "nothing was compiled");
}

// Promise: P14 - A refused module is charged.
#[test]
fn a_refused_module_is_paid_for() {
    let mut node = Node::new();
    let id = node.create();
    let before = node.canister(id).cycles;
    let bad = b"\0asm nonsense".to_vec();
    assert_eq!(node.install_wasm(id, Mode::Install, bad, vec![]).unwrap_err().error_code.0, 505);
    let induction = before - node.canister(id).cycles;
    // The same call about a canister that has code is refused before the module is examined.
    let other = node.deploy(&Spec::default());
    let before = node.canister(other).cycles;
    let bad = b"\0asm nonsense".to_vec();
    assert_eq!(node.install_wasm(other, Mode::Install, bad, vec![]).unwrap_err().error_code.0, 514);
    let judged = 5_000_000 + 500 * 13;
    assert_eq!(induction, before - node.canister(other).cycles + judged);
}

/// Sends an install and waits for nothing.
fn send_install(node: &mut Node, id: CanisterId, spec: &Spec) -> RequestId {
    let argument = ic::InstallCodeArgs {
        mode: Mode::Install,
        canister_id: id,
        wasm_module: spec.wasm(),
        arg: vec![],
        sender_canister_version: None,
    };
    node.ingress(user(1), aaaaa(), id, "install_code", candid::encode_one(argument).unwrap())
}

// Promise: P13 - Canisters run at least every second round while installations wait.
#[test]
fn compilations_use_up_rounds_and_canisters_run_in_between() {
    let mut node = Node::new();
    let busy = node.deploy(&Spec::default());
    let round = node.config.limits.execution.instructions_per_round;
    let targets: Vec<_> = (0..8).map(|_| node.create()).collect();
    let mut installs = Vec::new();
    for (n, id) in targets.iter().enumerate() {
        let spec = Spec { name: n.to_string(), compile_instructions: round, ..Spec::default() };
        installs.push(send_install(&mut node, *id, &spec));
    }
    let before = node.sandbox.preparations.load(std::sync::atomic::Ordering::Relaxed);
    let (mut rounds, mut answered) = (0, Vec::new());
    while installs.iter().any(|id| node.result_if_any(id).is_none()) {
        let call = node.send(busy, &[Op::Reply(vec![])]);
        answered.push(call);
        node.round();
        rounds += 1;
        assert!(rounds <= 20, "installs progress too");
        let compiled =
            node.sandbox.preparations.load(std::sync::atomic::Ordering::Relaxed) - before;
        assert!(compiled <= rounds, "{compiled} compilations in {rounds} rounds");
        // Every second round at least, whatever is asked of the management canister.
        let waiting = answered.iter().filter(|id| node.result_if_any(id).is_none()).count();
        assert!(waiting <= 2, "{waiting} calls wait in round {rounds}");
    }
    assert!(installs.iter().all(|id| node.result(id).is_ok()));
}

// Promise: P13 - A new installation in every block does not stop other canisters.
#[test]
fn a_new_install_in_every_block_keeps_no_canister_from_running() {
    let mut node = Node::new();
    let busy = node.deploy(&Spec::default());
    let round = node.config.limits.execution.instructions_per_round;
    let targets: Vec<_> = (0..6).map(|_| node.create()).collect();
    let mut waiting = Vec::new();
    for (n, id) in targets.iter().enumerate() {
        let spec = Spec { name: n.to_string(), compile_instructions: round, ..Spec::default() };
        let install = send_install(&mut node, *id, &spec);
        waiting.push((n, node.send(busy, &[Op::Reply(vec![])])));
        node.round();
        // The client waits for one before it sends the next: nothing of them is left over between
        // rounds.
        if node.result_if_any(&install).is_none() {
            node.round();
        }
        assert!(node.result(&install).is_ok());
        waiting.retain(|(_, call)| node.result_if_any(call).is_none());
        assert!(
            waiting.iter().all(|(sent, _)| *sent == n),
            "calls {waiting:?} wait at install {n}"
        );
    }
}

#[test]
fn logs_are_kept_bounded_and_purged_with_the_code() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    for _ in 0..100 {
        node.send(id, &[Op::Print(vec![b'x'; 100]), Op::Reply(vec![])]);
    }
    node.settle();
    assert!(node.canister(id).log.bytes() <= 4096 && node.canister(id).log.bytes() >= 3900);
    assert!(node.call(id, &[Op::Trap("noted".into())]).is_err());
    let last = node.canister(id).log.records().last().unwrap().content.clone();
    assert_eq!(last, b"trap: noted");
    let uninstall = ic::UninstallCodeArgs { canister_id: id, sender_canister_version: None };
    node.manage(user(1), id, "uninstall_code", &uninstall).unwrap();
    assert_eq!(node.canister(id).log.bytes(), 0);
}

#[test]
fn the_low_memory_hook_runs_once_when_memory_gets_low() {
    let mut node = Node::new();
    let spec = Spec { low_memory: Some(vec![Op::Note(b"low".to_vec())]), ..Spec::default() };
    let id = node.deploy(&spec);
    let change = ic::CanisterSettings {
        wasm_memory_limit: Some(Nat::from(10u64 * 65536)),
        wasm_memory_threshold: Some(Nat::from(9u64 * 65536 + 1)),
        ..Default::default()
    };
    node.manage(user(1), id, "update_settings", &settings(id, change)).unwrap();
    node.settle();
    for _ in 0..3 {
        node.call(id, &[Op::Reply(vec![])]).unwrap();
    }
    assert_eq!(node.notes(id), ["low"]);
}

#[test]
fn the_minimum_of_cycles_holds_for_other_canisters_only() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    #[derive(candid::CandidType)]
    struct Settings {
        minimum_incoming_canister_call_cycles: Option<Nat>,
    }
    #[derive(candid::CandidType)]
    struct Argument {
        canister_id: Principal,
        settings: Settings,
    }
    let argument = Argument {
        canister_id: b,
        settings: Settings { minimum_incoming_canister_call_cycles: Some(Nat::from(1_000u32)) },
    };
    node.manage(user(1), b, "update_settings", &argument).unwrap();
    let mut call = CallOp::new(b, &[Op::Reply(b"in".to_vec())]);
    let refused = node.call(a, &[call.clone().op()]).unwrap();
    assert!(String::from_utf8(refused).unwrap().starts_with("5: "));
    call.cycles = 1_000;
    assert_eq!(node.call(a, &[call.clone().op()]).unwrap(), b"in");
    call.cycles = 0;
    assert_eq!(node.call(b, &[call.op()]).unwrap(), b"in");
    assert_eq!(node.call(b, &[Op::Reply(encode(&[]))]).unwrap(), encode(&[]));
    let _ = SECOND;
}

#[test]
fn subnet_admins_make_canisters_for_nothing_and_manage_those_of_others() {
    let mut config = common::config(common::limits());
    config.subnet_admins = vec![user(8)];
    let mut node = Node::with_config(config, None);
    let nothing = ic::CreateCanisterArgs { settings: None, sender_canister_version: None };
    let refused = node.manage(user(1), aaaaa(), "create_canister", &nothing).unwrap_err();
    assert_eq!(refused.error_code.0, 406);
    let reply = node.manage(user(8), aaaaa(), "create_canister", &nothing).unwrap();
    let made = decode::<ic::CanisterIdRecord>(&reply).canister_id;
    assert_eq!(
        (node.canister(made).cycles, &node.canister(made).controllers[..]),
        (0, &[user(8)][..])
    );

    let others = node.deploy(&Spec::default());
    node.manage(user(8), others, "canister_status", &record(others)).unwrap();
    node.manage(user(8), others, "stop_canister", &record(others)).unwrap();
    let settings = settings(others, ic::CanisterSettings::default());
    assert_eq!(
        node.manage(user(8), others, "update_settings", &settings).unwrap_err().error_code.0,
        512
    );
    node.manage(user(8), others, "delete_canister", &record(others)).unwrap();
    assert!(node.executor.state().get(&others).is_none());

    let list = |node: &Node, sender: u8| {
        let query = state::QueryRequest {
            sender: user(sender),
            canister_id: aaaaa(),
            method_name: "list_canisters".into(),
            arg: candid::encode_args(()).unwrap(),
            sender_info: None,
        };
        node.executor.queries().query(query)
    };
    assert_eq!(list(&node, 1).unwrap_err().error_code.0, 406);
    let listed = list(&node, 8).unwrap();
    let listed: ic::ListCanistersResult = decode(&listed.bytes);
    let range = ic::CanisterIdRange { start: made, end: made };
    assert_eq!(format!("{:?}", listed.canisters), format!("{:?}", [range]));
}

/// Every method of the management canister that decodes an argument, and how a canister calls it.
const METHODS: [&str; 29] = [
    "create_canister",
    "provisional_create_canister_with_cycles",
    "provisional_top_up_canister",
    "update_settings",
    "install_code",
    "install_chunked_code",
    "upload_chunk",
    "stored_chunks",
    "clear_chunk_store",
    "start_canister",
    "stop_canister",
    "uninstall_code",
    "delete_canister",
    "take_canister_snapshot",
    "load_canister_snapshot",
    "list_canister_snapshots",
    "delete_canister_snapshot",
    "read_canister_snapshot_metadata",
    "read_canister_snapshot_data",
    "upload_canister_snapshot_metadata",
    "upload_canister_snapshot_data",
    "deposit_cycles",
    "canister_status",
    "canister_metrics",
    "canister_info",
    "canister_metadata",
    "subnet_info",
    "node_metrics_history",
    "http_request",
];

/// A call of the management canister by a canister, with these bytes as its argument; the answer
/// is noted.
fn calling(method: &str, arg: Vec<u8>) -> Op {
    CallOp {
        method: method.into(),
        arg,
        on_reply: vec![Op::NoteArgument],
        on_reject: vec![Op::NoteReject],
        ..CallOp::new(aaaaa(), &[])
    }
    .op()
}

// Promise: P15 - `raw_rand` refuses elements without bytes, and the round ends.
#[test]
fn raw_rand_refuses_elements_without_bytes_and_the_round_ends() {
    let mut node = Node::new();
    let id = node.deploy(&named("caller"));
    let bomb = hex::decode("4449444c016d7f0100808080808080808010").unwrap();
    let call = CallOp { method: "raw_rand".into(), arg: bomb, ..CallOp::new(aaaaa(), &[]) };
    let told = String::from_utf8(node.call(id, &[call.op()]).unwrap()).unwrap();
    assert!(told.contains("more than 10000 values"), "{told}");
    let nested = envelope::candid_wire::hostile::nested_options(3_004);
    let call = CallOp { method: "raw_rand".into(), arg: nested, ..CallOp::new(aaaaa(), &[]) };
    let told = String::from_utf8(node.call(id, &[call.op()]).unwrap()).unwrap();
    assert!(told.contains("nested more than 32 levels deep"), "{told}");
    // Arguments that a method does not take have no effect, as in all of Candid.
    let call = CallOp {
        method: "raw_rand".into(),
        arg: candid::encode_args((1u8, "text")).unwrap(),
        ..CallOp::new(aaaaa(), &[])
    };
    assert_eq!(decode::<Vec<u8>>(&node.call(id, &[call.op()]).unwrap()).len(), 32);
}

// Promise: P9 - `raw_rand` waits for the signature on the state of its own round, within a limit.
#[test]
fn raw_rand_is_answered_by_the_signature_on_the_state_of_its_round() {
    let mut limits = common::limits();
    limits.execution.raw_rand_waiting = 2;
    let mut node = Node::with_config(common::config(limits), None);
    let id = node.deploy(&named("caller"));
    let ask = |node: &mut Node| {
        let mut call = CallOp::new(aaaaa(), &[]);
        call.method = "raw_rand".into();
        call.arg = candid::encode_args(()).unwrap();
        call.on_reject = vec![Op::ReplyReject];
        node.send(id, &[call.op()])
    };
    let round = |node: &mut Node, signed: &[SignedRandomness]| {
        let randomness = Randomness::Signed(signed.to_vec());
        let batch = Batch { randomness, ..node.batch() };
        node.execute(batch, &[]).awaited
    };
    let first = ask(&mut node);
    assert_eq!(round(&mut node, &[]).iter().count(), 1);
    let second = ask(&mut node);
    let awaited: Vec<_> = round(&mut node, &[]).iter().collect();
    assert_eq!(awaited.len(), 2);
    let third = ask(&mut node);
    for _ in 0..2 {
        round(&mut node, &[]);
    }
    let told = String::from_utf8(node.result(&third).unwrap()).unwrap();
    assert!(told.contains("execution.raw_rand_waiting = 2"), "{told}");
    let signed = |root, value: u8| SignedRandomness { root, value: [value; 32] };
    // A state that nothing waits for, then the later of the two.
    round(&mut node, &[signed([9; 32], 1)]);
    round(&mut node, &[signed(awaited[1].root, 2)]);
    round(&mut node, &[]);
    assert!(node.result_if_any(&first).is_none());
    assert_eq!(decode::<Vec<u8>>(&node.result(&second).unwrap()).len(), 32);
    let left = round(&mut node, &[signed(awaited[0].root, 3), signed(awaited[1].root, 4)]);
    assert!(left.is_empty());
    round(&mut node, &[]);
    assert_ne!(node.result(&first).unwrap(), node.result(&second).unwrap());
}

/// Sends every hostile message to every method, from a client and from a canister. Returns the
/// roots of all rounds, and what the canister was answered.
fn hostile_history(limits: limits::Limits, threads: u64) -> (Vec<[u8; 32]>, Vec<String>) {
    let mut limits = limits;
    limits.execution.threads = threads;
    let mut config = common::config(limits);
    config.outcalls = true;
    let mut node = Node::with_config(config, None);
    let id = node.deploy(&named("caller"));
    let hostile = envelope::candid_wire::hostile::messages();
    for method in METHODS.into_iter().chain(["raw_rand"]) {
        for (_, message) in &hostile {
            if message.len() < 100_000 {
                node.send(id, &[calling(method, message.clone())]);
            }
            node.ingress(user(1), aaaaa(), id, method, message.clone());
        }
        node.settle();
    }
    let variables = envelope::candid_wire::hostile::empty_variables(id.as_slice(), 980_000);
    let refused = node.ingress(user(1), aaaaa(), id, "update_settings", variables);
    node.settle();
    let refused = node.result(&refused).unwrap_err();
    let text = "980000 environment variables, the most is 20";
    assert!(refused.message.contains(text), "{refused:?}");
    let notes = node.notes(id);
    let roots = node.log.iter().map(|(_, _, root)| *root).collect();
    // Throws the executor away, executes the log again, and compares roots.
    drop(node.restart());
    (roots, notes)
}

// Promise: P8 - Hostile arguments have one result on stacks of 1, 2 and 8 MiB and with 1, 2 and 4
//   threads.
#[test]
fn hostile_arguments_have_one_result_on_every_stack_and_number_of_threads() {
    let on_stack = |bytes: usize, limits: limits::Limits, threads: u64| {
        let run = move || hostile_history(limits, threads);
        let thread = std::thread::Builder::new().stack_size(bytes).spawn(run).unwrap();
        thread.join().unwrap()
    };
    let (roots, notes) = on_stack(8 << 20, common::limits(), 1);
    assert!(notes.len() > METHODS.len() && roots.len() > METHODS.len());
    for note in &notes {
        // Texts of the Candid library.
        for foreign in ["Recursion", "Subtyp", "Fail to decode", "Cannot parse", "cost exceeds"] {
            assert!(!note.contains(foreign), "{note}");
        }
    }
    for (stack, threads) in [(1 << 20, 2), (2 << 20, 4)] {
        let other = on_stack(stack, common::limits(), threads);
        assert!(other.0 == roots && other.1 == notes, "{stack} bytes of stack, {threads} threads");
    }
    // Another `--memory` has other limits, which these calls do not reach.
    for memory in [256 << 20, 1 << 30] {
        let mut limits = limits::Limits::derive(memory).unwrap();
        limits.pages = common::limits().pages;
        let other = on_stack(2 << 20, limits, 2);
        assert!(other.1 == notes, "{memory} bytes of memory");
    }
}

// Promise: P15 - Values of an argument count as instructions of the round.
#[test]
fn an_argument_counts_with_its_values_and_chunks_with_what_is_hashed_in_the_round() {
    let mut limits = common::limits();
    // As much as one call that installs three chunks whose hash is another.
    let chunk = vec![7u8; 1 << 20];
    limits.execution.instructions_per_round = 30_000_000;
    limits.execution.instructions_per_slice = 10_000_000;
    limits.execution.instructions_per_message = 10_000_000;
    let mut node = Node::with(limits);
    let id = node.create();
    #[derive(candid::CandidType)]
    struct Upload {
        canister_id: Principal,
        chunk: serde_bytes::ByteBuf,
    }
    let upload = Upload { canister_id: id, chunk: chunk.into() };
    let hash = decode::<ic::ChunkHash>(&node.manage(user(1), id, "upload_chunk", &upload).unwrap());
    let install = ic::InstallChunkedCodeArgs {
        mode: Mode::Install,
        target_canister: id,
        store_canister: None,
        chunk_hashes_list: vec![hash; 3],
        wasm_module_hash: vec![0; 32],
        arg: vec![],
        sender_canister_version: None,
    };
    let calls: Vec<_> =
        (0..20).map(|_| common::manage(&mut node, id, "install_chunked_code", &install)).collect();
    let before = node.log.len();
    node.settle();
    for call in calls {
        assert_eq!(node.result(&call).unwrap_err().error_code.0, 504);
    }
    // Twenty calls of 12 million instructions and more each.
    assert!(node.log.len() - before >= 6, "{} rounds", node.log.len() - before);
}

#[test]
fn subnet_info_reports_the_rules_that_members_compare() {
    let mut node = Node::new();
    let id = node.deploy(&named("caller"));
    let subnet_id = node.config.subnet.subnet_id;
    let call = CallOp {
        method: "subnet_info".into(),
        arg: candid::encode_one(ic::SubnetInfoArgs { subnet_id }).unwrap(),
        ..CallOp::new(aaaaa(), &[])
    };
    let told: ic::SubnetInfoResult = decode(&node.call(id, &[call.op()]).unwrap());
    assert_eq!(told.replica_version, format!("thimble-rules-{}", execution::RULES_VERSION));
}

/// Constructors of what becomes part of the state: rejects, failures of canisters, judgements of
/// modules, answers to outcalls.
const CONSTRUCTORS: [&str; 7] = [
    "reject::",
    "Reject {",
    "Failure::",
    "ModuleError::",
    "OutcallAnswer::reject",
    "Refused(",
    "contract(",
];

/// Uses of a constructor in whose arguments an error is formatted.
fn formatted_errors(source: &str) -> Vec<String> {
    let code: String = source
        .split("#[cfg(test)]")
        .next()
        .unwrap()
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut found = Vec::new();
    for constructor in CONSTRUCTORS {
        for (at, _) in code.match_indices(constructor) {
            let Some(open) = code[at..].find(['(', '{']).filter(|open| *open < 60) else {
                continue;
            };
            let mut depth = 0_i32;
            let end = code[at + open..].find(|character| {
                depth += match character {
                    '(' | '{' => 1,
                    ')' | '}' => -1,
                    _ => 0,
                };
                depth == 0
            });
            let used = &code[at..at + open + end.unwrap_or_default()];
            let formats = ["{error", "{err}", "{e}", "error.to_string()", "{error:"];
            // Of queries alone: a fault of one machine, which is not a result.
            let is_local = used.contains("trouble_of_the_machine");
            if !is_local && formats.iter().any(|text| used.contains(text)) {
                found.push(used.to_owned());
            }
        }
    }
    found
}

// Promise: P8 - No reject text contains the text of a library error.
#[test]
fn no_reject_is_made_of_the_text_of_an_error() {
    let sample = "let a = reject::invalid_payload(format!(\"It fails: {error}\"));";
    assert_eq!(formatted_errors(sample).len(), 1);
    assert!(formatted_errors("let a = reject::invalid_payload(\"It fails\");").is_empty());
    // Errors whose texts are of the node's own making: `ModuleError` and what a child says of it;
    // and failures of queries, which are not replicated.
    let own = ["compile.rs", "child.rs", "prepare.rs", "compiling.rs"];
    let node = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders: Vec<_> =
        ["execution/src", "sandbox/src", "outcalls/src", "envelope/src/candid_wire"]
            .map(|folder| node.join(folder))
            .into();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.ends_with(".rs") || name.contains("tests") || own.contains(&&*name) {
                continue;
            }
            files += 1;
            let found = formatted_errors(&std::fs::read_to_string(&path).unwrap());
            assert!(found.is_empty(), "{}: {found:#?}", path.display());
        }
    }
    assert!(files > 60, "{files} files");
}

#[test]
fn the_candid_library_decodes_nothing_but_what_the_reader_of_candid_gives_it() {
    const DECODERS: [&str; 5] =
        ["decode_args", "decode_one", "Decode!", "IDLDeserialize", "IDLArgs::from_bytes"];
    let node = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = std::fs::read_dir(node).unwrap();
    let mut folders: Vec<_> = crates.map(|entry| entry.unwrap().path().join("src")).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(node).unwrap().to_str().unwrap().to_owned();
            if !name.ends_with(".rs") || name.contains("tests") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]").next().unwrap();
            let mut code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.any(|line| DECODERS.iter().any(|decoder| line.contains(decoder))) {
                found.push(name);
            }
        }
    }
    assert_eq!(found, ["envelope/src/candid_wire/mod.rs"]);
}
