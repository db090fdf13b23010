//! Chapter "The IC management canister".

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_management_canister_types::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    fixture::*,
    harness::{self, management},
    program::*,
};

/// The status of a canister, as its controller gets it.
pub(crate) async fn status(world: &World, canister: Principal) -> CanisterStatusResult {
    let told = world.about(canister, "canister_status").await.unwrap();
    Decode!(&told, CanisterStatusResult).unwrap()
}

pub(crate) async fn set(
    world: &World,
    canister_id: Principal,
    settings: CanisterSettings,
) -> Outcome {
    let arguments = UpdateSettingsArgs { canister_id, settings, sender_canister_version: None };
    world.manage(canister_id, "update_settings", Encode!(&arguments).unwrap()).await
}

fn two_to(exponent: u32) -> Nat {
    Nat(num(2).0.pow(exponent))
}

fn num(number: u64) -> Nat {
    Nat::from(number)
}

pub(crate) fn no_settings() -> CanisterSettings {
    CanisterSettings::default()
}

/// `largest` must be taken, and one more refused, by update_settings and at creation.
async fn bounded(
    world: &World,
    largest: Option<Nat>,
    beyond: Nat,
    put: fn(Nat) -> CanisterSettings,
) {
    let canister = world.empty().await;
    let refused = set(world, canister, put(beyond.clone())).await;
    assert!(refused.is_err(), "{beyond} is taken by update_settings");
    let made = harness::create_with(&world.agent, Some(put(beyond.clone()))).await;
    assert!(made.is_err(), "{beyond} is taken at creation");
    if let Some(largest) = largest {
        set(world, canister, put(largest)).await.unwrap();
    }
}

// Settings.

#[test]
fn a_new_canister_has_the_settings_by_default() {
    run(async |world| {
        let told = status(world, world.empty().await).await;
        let settings = told.settings;
        assert_eq!(settings.controllers, [world.agent.get_principal().unwrap()]);
        assert_eq!(settings.compute_allocation, num(0));
        assert_eq!(settings.memory_allocation, num(0));
        assert_eq!(settings.freezing_threshold, num(2_592_000));
        assert_eq!(settings.reserved_cycles_limit, num(5_000_000_000_000));
        assert_eq!(settings.wasm_memory_limit, num(0));
        assert_eq!(settings.wasm_memory_threshold, num(0));
        assert_eq!(settings.log_visibility, LogVisibility::Controllers);
        assert_eq!(settings.snapshot_visibility, SnapshotVisibility::Controllers);
        assert!(settings.environment_variables.is_empty());
        assert_eq!((told.version, told.module_hash), (0, None));
        assert_eq!(told.status, CanisterStatusType::Running);
    });
}

#[test]
fn a_setting_that_is_not_named_stays() {
    run(async |world| {
        let canister = world.canister().await;
        let freezing_threshold = Some(num(1234));
        set(world, canister.id, CanisterSettings { freezing_threshold, ..no_settings() })
            .await
            .unwrap();
        let wasm_memory_limit = Some(num(1 << 30));
        set(world, canister.id, CanisterSettings { wasm_memory_limit, ..no_settings() })
            .await
            .unwrap();
        let settings = status(world, canister.id).await.settings;
        assert_eq!(settings.freezing_threshold, num(1234));
        assert_eq!(settings.wasm_memory_limit, num(1 << 30));
        assert_eq!(settings.environment_variables.len(), 1);
        assert_eq!(settings.controllers, [world.agent.get_principal().unwrap()]);
    });
}

#[test]
fn compute_allocation_is_at_most_100() {
    run(async |world| {
        bounded(world, None, num(101), |value| CanisterSettings {
            compute_allocation: Some(value),
            ..no_settings()
        })
        .await;
    });
}

#[test]
fn memory_allocation_is_less_than_2_to_the_64() {
    run(async |world| {
        bounded(world, Some(num(1 << 20)), two_to(64), |value| CanisterSettings {
            memory_allocation: Some(value),
            ..no_settings()
        })
        .await;
    });
}

#[test]
fn freezing_threshold_is_less_than_2_to_the_64() {
    run(async |world| {
        bounded(world, Some(num(u64::MAX)), two_to(64), |value| CanisterSettings {
            freezing_threshold: Some(value),
            ..no_settings()
        })
        .await;
    });
}

#[test]
fn reserved_cycles_limit_is_less_than_2_to_the_128() {
    run(async |world| {
        bounded(world, Some(Nat::from(u128::MAX)), two_to(128), |value| CanisterSettings {
            reserved_cycles_limit: Some(value),
            ..no_settings()
        })
        .await;
    });
}

#[test]
fn wasm_memory_limit_is_at_most_2_to_the_48() {
    run(async |world| {
        bounded(world, Some(two_to(48)), num((1 << 48) + 1), |value| CanisterSettings {
            wasm_memory_limit: Some(value),
            ..no_settings()
        })
        .await;
    });
}

#[test]
fn wasm_memory_threshold_is_at_most_2_to_the_48() {
    run(async |world| {
        bounded(world, Some(two_to(48)), num((1 << 48) + 1), |value| CanisterSettings {
            wasm_memory_threshold: Some(value),
            ..no_settings()
        })
        .await;
    });
}

/// This number of principals, including the controller.
fn crowd(world: &World, many: u8) -> Vec<Principal> {
    let others = (1..many).map(|number| Principal::from_slice(&[number; 5]));
    others.chain([world.agent.get_principal().unwrap()]).collect()
}

#[test]
fn a_canister_has_at_most_10_controllers() {
    run(async |world| {
        let canister = world.empty().await;
        let with =
            |many| CanisterSettings { controllers: Some(crowd(world, many)), ..no_settings() };
        set(world, canister, with(11)).await.unwrap_err();
        assert!(harness::create_with(&world.agent, Some(with(11))).await.is_err());
        set(world, canister, with(10)).await.unwrap();
        let mut told = status(world, canister).await.settings.controllers;
        let mut expected = crowd(world, 10);
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected);
    });
}

#[test]
fn who_is_no_controller_any_more_has_lost_the_right() {
    run(async |world| {
        let canister = world.canister().await;
        let controllers = Some(vec![world.stranger.get_principal().unwrap()]);
        set(world, canister.id, CanisterSettings { controllers, ..no_settings() }).await.unwrap();
        world.about(canister.id, "canister_status").await.unwrap_err();
        let told =
            harness::manage(&world.stranger, canister.id, "canister_status", record(canister.id));
        told.await.unwrap();
    });
}

#[test]
fn a_list_of_viewers_has_at_most_10() {
    run(async |world| {
        let canister = world.empty().await;
        for (many, taken) in [(11, false), (10, true)] {
            let logs = CanisterSettings {
                log_visibility: Some(LogVisibility::AllowedViewers(crowd(world, many))),
                ..no_settings()
            };
            assert_eq!(set(world, canister, logs).await.is_ok(), taken, "logs {many}");
            let snapshots = CanisterSettings {
                snapshot_visibility: Some(SnapshotVisibility::AllowedViewers(crowd(world, many))),
                ..no_settings()
            };
            assert_eq!(set(world, canister, snapshots).await.is_ok(), taken, "snapshots {many}");
        }
    });
}

#[test]
fn log_visibility_says_who_may_fetch_the_logs() {
    run(async |world| {
        let canister = world.canister().await;
        let viewer = world.stranger.get_principal().unwrap();
        let fetch = async |agent: &ic_agent::Agent| {
            let call = agent.query(&management(), "fetch_canister_logs");
            let call = call.with_effective_canister_id(canister.id);
            call.with_arg(record(canister.id)).call().await.is_ok()
        };
        for (visibility, stranger, anonymous) in [
            (LogVisibility::Controllers, false, false),
            (LogVisibility::AllowedViewers(vec![viewer]), true, false),
            (LogVisibility::Public, true, true),
        ] {
            let settings =
                CanisterSettings { log_visibility: Some(visibility.clone()), ..no_settings() };
            set(world, canister.id, settings).await.unwrap();
            assert!(fetch(&world.agent).await);
            assert_eq!(fetch(&world.stranger).await, stranger, "{visibility:?}");
            assert_eq!(fetch(&world.anonymous).await, anonymous, "{visibility:?}");
        }
    });
}

#[derive(CandidType)]
#[allow(non_camel_case_types)]
enum StatusVisibility {
    public,
    allowed_viewers(Vec<Principal>),
}

#[derive(CandidType)]
struct OfStatus {
    status_visibility: Option<StatusVisibility>,
}

#[derive(CandidType)]
struct SetStatus {
    canister_id: Principal,
    settings: OfStatus,
}

#[test]
fn status_visibility_says_who_may_ask_for_the_status() {
    run(async |world| {
        let canister = world.canister().await;
        let ask = async |agent: &ic_agent::Agent| {
            let argument = record(canister.id);
            harness::manage(agent, canister.id, "canister_status", argument).await.is_ok()
        };
        assert!(!ask(&world.stranger).await);
        let viewers = vec![world.stranger.get_principal().unwrap()];
        for (visibility, anonymous) in
            [(StatusVisibility::allowed_viewers(viewers), false), (StatusVisibility::public, true)]
        {
            let settings = OfStatus { status_visibility: Some(visibility) };
            let arguments = Encode!(&SetStatus { canister_id: canister.id, settings }).unwrap();
            world.manage(canister.id, "update_settings", arguments).await.unwrap();
            assert!(ask(&world.stranger).await);
            assert_eq!(ask(&world.anonymous).await, anonymous);
        }
    });
}

#[test]
fn the_names_of_environment_variables_are_unique() {
    run(async |world| {
        let canister = world.empty().await;
        let variable = |name: &str| EnvironmentVariable { name: name.into(), value: "v".into() };
        let with = |names: &[&str]| CanisterSettings {
            environment_variables: Some(names.iter().map(|name| variable(name)).collect()),
            ..no_settings()
        };
        set(world, canister, with(&["a", "b", "a"])).await.unwrap_err();
        set(world, canister, with(&["a", "b"])).await.unwrap();
        let told = status(world, canister).await.settings.environment_variables;
        assert_eq!(told, [variable("a"), variable("b")]);
    });
}

#[test]
fn wasm_memory_limit_stops_updates_and_not_queries() {
    run(async |world| {
        let canister = world.canister().await;
        let wasm_memory_limit = Some(num(20 << 16));
        set(world, canister.id, CanisterSettings { wasm_memory_limit, ..no_settings() })
            .await
            .unwrap();
        let grow = program().int(100).heap_grow().drop_top().then(reply(b"grown"));
        assert_eq!(code(canister.update(grow.clone()).await), 5);
        assert_eq!(canister.query(grow).await.unwrap(), b"grown");
    });
}

#[test]
fn the_hook_for_low_memory_does_not_run_above_the_threshold() {
    run(async |world| {
        let canister = world.canister().await;
        let settings = CanisterSettings {
            wasm_memory_limit: Some(num(100 << 16)),
            wasm_memory_threshold: Some(num(50 << 16)),
            ..no_settings()
        };
        set(world, canister.id, settings).await.unwrap();
        let hook = program().hook(Hook::LowMemory, program().keep_more(b"low"));
        let grow = |pages| program().int(pages).heap_grow().drop_top().then(reply(b""));
        canister.update(hook.then(grow(10))).await.unwrap();
        // It would run before this message.
        canister.update(reply(b"")).await.unwrap();
        assert_eq!(canister.kept().await, b"");
        canister.update(grow(50)).await.unwrap();
        canister.keeps(b"low").await;
        // And it does not run twice while memory stays low.
        canister.update(grow(1)).await.unwrap();
        canister.update(reply(b"")).await.unwrap();
        assert_eq!(canister.kept().await, b"low");
    });
}

// Who may.

#[test]
fn only_controllers_may_manage_a_canister() {
    run(async |world| {
        let canister = world.canister().await;
        let canister_id = canister.id;
        let settings = UpdateSettingsArgs {
            canister_id,
            settings: no_settings(),
            sender_canister_version: None,
        };
        let install = InstallCodeArgs {
            mode: CanisterInstallMode::Reinstall,
            canister_id,
            wasm_module: module(),
            arg: vec![],
            sender_canister_version: None,
        };
        let methods = [
            ("update_settings", Encode!(&settings).unwrap()),
            ("install_code", Encode!(&install).unwrap()),
            ("upload_chunk", Encode!(&UploadChunkArgs { canister_id, chunk: vec![1] }).unwrap()),
            ("clear_chunk_store", record(canister_id)),
            ("stored_chunks", record(canister_id)),
            ("canister_status", record(canister_id)),
            ("canister_metrics", record(canister_id)),
            ("start_canister", record(canister_id)),
            ("uninstall_code", record(canister_id)),
            ("stop_canister", record(canister_id)),
            ("delete_canister", record(canister_id)),
        ];
        for (method, arguments) in methods.clone() {
            let done = harness::manage(&world.stranger, canister_id, method, arguments).await;
            assert!(done.is_err(), "a stranger may {method}");
        }
        // The last one works for the controller because all before it did.
        for (method, arguments) in methods {
            let done = world.manage(canister_id, method, arguments).await;
            assert!(done.is_ok(), "{method}: {done:?}");
        }
    });
}

#[test]
fn a_canister_may_see_its_own_status_and_fill_its_own_chunk_store() {
    run(async |world| {
        let canister = world.canister().await;
        let canister_id = canister.id;
        let upload = Encode!(&UploadChunkArgs { canister_id, chunk: vec![1] }).unwrap();
        for (method, arguments) in [
            ("canister_status", record(canister_id)),
            ("upload_chunk", upload),
            ("stored_chunks", record(canister_id)),
            ("clear_chunk_store", record(canister_id)),
        ] {
            let call = Call::to(management(), method).argument(arguments);
            let told = canister.update(program().call_must(call)).await.unwrap();
            assert!(told.starts_with(b"DIDL"), "{method}: {}", String::from_utf8_lossy(&told));
        }
    });
}

#[test]
fn methods_for_canisters_alone_are_not_taken_from_users() {
    run(async |world| {
        let canister = world.canister().await;
        for method in ["deposit_cycles", "canister_info", "canister_metadata", "create_canister"] {
            let argument = if method == "create_canister" {
                Encode!(&CreateCanisterArgs::default()).unwrap()
            } else {
                record(canister.id)
            };
            let done = harness::manage(&world.agent, canister.id, method, argument).await;
            assert!(done.is_err(), "{method}");
        }
        let done = harness::manage(&world.agent, canister.id, "raw_rand", Encode!().unwrap()).await;
        assert!(done.is_err(), "raw_rand");
    });
}

#[test]
fn a_method_that_does_not_exist_is_rejected() {
    run(async |world| {
        let canister = world.canister().await;
        world.about(canister.id, "no_such_method").await.unwrap_err();
        let call = Call::to(management(), "no_such_method").argument(record(canister.id));
        told_reject(canister.update(program().call_must(call)).await);
    });
}

// Code.

#[test]
fn install_needs_an_empty_canister_and_upgrade_one_with_a_module() {
    run(async |world| {
        let empty = world.empty().await;
        let upgrade = CanisterInstallMode::Upgrade(None);
        world.install(empty, upgrade, module(), vec![]).await.unwrap_err();
        world.install(empty, CanisterInstallMode::Install, module(), vec![]).await.unwrap();
        let again = world.install(empty, CanisterInstallMode::Install, module(), vec![]).await;
        assert_eq!(code(again), 5);
        world.install(empty, upgrade, module(), vec![]).await.unwrap();
    });
}

#[test]
fn reinstall_takes_an_empty_canister_too() {
    run(async |world| {
        let empty = world.empty().await;
        world.install(empty, CanisterInstallMode::Reinstall, module(), vec![]).await.unwrap();
        assert_eq!(Universal { id: empty }.update(reply(b"runs")).await.unwrap(), b"runs");
    });
}

#[test]
fn skip_pre_upgrade_skips_it() {
    run(async |world| {
        let canister = world.canister().await;
        let broken = program().hook(Hook::PreUpgrade, trap("before")).then(reply(b""));
        canister.update(broken).await.unwrap();
        let flags =
            |skip| UpgradeFlags { skip_pre_upgrade: Some(skip), wasm_memory_persistence: None };
        let mode = |skip| CanisterInstallMode::Upgrade(Some(flags(skip)));
        world.install(canister.id, mode(false), module(), vec![]).await.unwrap_err();
        world.install(canister.id, mode(true), module(), vec![]).await.unwrap();
    });
}

#[test]
fn an_upgrade_discards_memory() {
    run(async |world| {
        let canister = world.canister().await;
        canister.update(program().bytes(b"old").keep().then(reply(b""))).await.unwrap();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        assert_eq!(canister.kept().await, b"");
    });
}

#[test]
fn uninstall_code_takes_code_and_state_and_leaves_the_rest() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[1]).drop_top().then(reply(b""));
        canister.update(grow).await.unwrap();
        let before = status(world, canister.id).await;
        world.about(canister.id, "uninstall_code").await.unwrap();
        let after = status(world, canister.id).await;
        assert_eq!(after.module_hash, None);
        assert_eq!(after.memory_metrics.stable_memory_size, num(0));
        assert_eq!(after.memory_metrics.wasm_memory_size, num(0));
        assert_eq!(after.settings, before.settings);
        assert_eq!(after.status, CanisterStatusType::Running);
        assert!(after.version > before.version);
        assert_eq!(code(canister.update(reply(b"")).await), 5);
        let mode = CanisterInstallMode::Install;
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
    });
}

#[test]
fn uninstall_code_takes_the_chunk_store() {
    run(async |world| {
        let canister = world.canister().await;
        upload(world, canister.id, b"a chunk").await.unwrap();
        world.about(canister.id, "uninstall_code").await.unwrap();
        assert!(chunks(world, canister.id).await.is_empty());
    });
}

#[test]
fn the_status_tells_the_hash_and_the_sizes_of_what_was_installed() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[3]).drop_top();
        let pages = grow.heap_pages().reply_int();
        let pages = number(canister.update(pages).await) as u64;
        let told = status(world, canister.id).await;
        assert_eq!(told.module_hash.unwrap(), Sha256::digest(module()).to_vec());
        assert_eq!(told.memory_metrics.wasm_binary_size, num(module().len() as u64));
        assert_eq!(told.memory_metrics.stable_memory_size, num(3 << 16));
        assert_eq!(told.memory_metrics.wasm_memory_size, num(pages << 16));
        assert!(told.memory_size >= num((pages + 3) << 16));
        assert!(told.idle_cycles_burned_per_day > num(0));
        assert!(!told.ready_for_migration);
    });
}

// Chunks.

async fn upload(world: &World, canister_id: Principal, chunk: &[u8]) -> Outcome {
    let arguments = UploadChunkArgs { canister_id, chunk: chunk.to_vec() };
    world.manage(canister_id, "upload_chunk", Encode!(&arguments).unwrap()).await
}

async fn chunks(world: &World, canister: Principal) -> Vec<Vec<u8>> {
    let told = world.about(canister, "stored_chunks").await.unwrap();
    let mut hashes: Vec<_> =
        Decode!(&told, Vec<ChunkHash>).unwrap().into_iter().map(|chunk| chunk.hash).collect();
    hashes.sort();
    hashes
}

/// Installs the module made of these chunks.
async fn install_chunks(
    world: &World,
    target_canister: Principal,
    store_canister: Option<Principal>,
    parts: &[&[u8]],
    hash: Vec<u8>,
) -> Outcome {
    let hash_of = |part: &&[u8]| ChunkHash { hash: Sha256::digest(part).to_vec() };
    let arguments = InstallChunkedCodeArgs {
        mode: CanisterInstallMode::Reinstall,
        target_canister,
        store_canister,
        chunk_hashes_list: parts.iter().map(hash_of).collect(),
        wasm_module_hash: hash,
        arg: vec![],
        sender_canister_version: None,
    };
    let arguments = Encode!(&arguments).unwrap();
    world.manage(target_canister, "install_chunked_code", arguments).await
}

#[test]
fn upload_chunk_returns_the_hash_and_stored_chunks_lists_it() {
    run(async |world| {
        let canister = world.empty().await;
        let hash = Sha256::digest(b"one").to_vec();
        for _ in 0..2 {
            let told = upload(world, canister, b"one").await.unwrap();
            assert_eq!(Decode!(&told, ChunkHash).unwrap().hash, hash);
        }
        upload(world, canister, b"two").await.unwrap();
        let mut expected = vec![hash, Sha256::digest(b"two").to_vec()];
        expected.sort();
        assert_eq!(chunks(world, canister).await, expected);
        world.about(canister, "clear_chunk_store").await.unwrap();
        assert!(chunks(world, canister).await.is_empty());
    });
}

#[test]
fn a_chunk_has_at_most_1_mib() {
    run(async |world| {
        let canister = world.empty().await;
        upload(world, canister, &vec![1; 1 << 20]).await.unwrap();
        upload(world, canister, &vec![1; (1 << 20) + 1]).await.unwrap_err();
        assert_eq!(chunks(world, canister).await.len(), 1);
    });
}

#[test]
fn install_chunked_code_installs_what_the_chunks_make() {
    run(async |world| {
        let [target, store] = [world.empty().await, world.empty().await];
        let module = module();
        let (one, two) = module.split_at(module.len() / 2);
        for part in [one, two] {
            upload(world, store, part).await.unwrap();
        }
        let hash = || Sha256::digest(&module).to_vec();
        let elsewhere = install_chunks(world, target, None, &[one, two], hash()).await;
        elsewhere.unwrap_err();
        let wrong = install_chunks(world, target, Some(store), &[two, one], hash()).await;
        wrong.unwrap_err();
        let wrong = install_chunks(world, target, Some(store), &[one, two], vec![0; 32]).await;
        wrong.unwrap_err();
        install_chunks(world, target, Some(store), &[one, two], hash()).await.unwrap();
        assert_eq!(Universal { id: target }.update(reply(b"runs")).await.unwrap(), b"runs");
        assert_eq!(status(world, target).await.module_hash, Some(hash()));
    });
}

// Starting, stopping, deleting.

#[test]
fn starting_and_stopping_twice_is_as_once() {
    run(async |world| {
        let canister = world.canister().await;
        for (method, expected) in [
            ("start_canister", CanisterStatusType::Running),
            ("stop_canister", CanisterStatusType::Stopped),
            ("stop_canister", CanisterStatusType::Stopped),
            ("start_canister", CanisterStatusType::Running),
        ] {
            world.about(canister.id, method).await.unwrap();
            assert_eq!(status(world, canister.id).await.status, expected, "{method}");
        }
        assert_eq!(canister.update(reply(b"runs")).await.unwrap(), b"runs");
    });
}

#[test]
fn only_a_stopped_canister_can_be_deleted() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(code(world.about(canister.id, "delete_canister").await), 5);
        world.about(canister.id, "stop_canister").await.unwrap();
        world.about(canister.id, "delete_canister").await.unwrap();
        world.about(canister.id, "canister_status").await.unwrap_err();
    });
}

// Versions.

#[test]
fn canister_version_grows_with_every_change() {
    run(async |world| {
        let canister = world.canister().await;
        let mut last = status(world, canister.id).await.version;
        let mode = CanisterInstallMode::Upgrade(None);
        for step in 0..6 {
            match step {
                0 => drop(canister.update(reply(b"")).await.unwrap()),
                1 => drop(set(world, canister.id, no_settings()).await.unwrap()),
                2 => drop(world.install(canister.id, mode, module(), vec![]).await.unwrap()),
                3 => drop(world.about(canister.id, "stop_canister").await.unwrap()),
                4 => drop(world.about(canister.id, "start_canister").await.unwrap()),
                _ => drop(world.about(canister.id, "uninstall_code").await.unwrap()),
            }
            let now = status(world, canister.id).await.version;
            assert!(now > last, "step {step}: {now} after {last}");
            last = now;
        }
    });
}

#[test]
fn canister_version_grows_with_a_replicated_query() {
    run(async |world| {
        let canister = world.canister().await;
        let before = status(world, canister.id).await.version;
        canister.replicated_query(reply(b"")).await.unwrap();
        let after = status(world, canister.id).await.version;
        assert!(after > before, "{after} after {before}");
    });
}

#[test]
fn canister_version_is_the_old_one_in_pre_upgrade_and_the_new_one_in_post_upgrade() {
    run(async |world| {
        let canister = world.canister().await;
        // The old module writes the version it sees to stable memory.
        let write = program().int(0).import("canister_version").eight_bytes().split();
        let write = write.import("stable64_write");
        let set = program().import_of("stable64_grow", &[1]).drop_top();
        let set = set.hook(Hook::PreUpgrade, write).import("canister_version").reply_int();
        let at_update = number(canister.update(set).await) as u64;
        let post = program().import("canister_version").eight_bytes().keep().encoded();
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), post).await.unwrap();
        let read = program().int(8).room().copy(0).split().drop_top();
        let read = read.import_of("stable64_read", &[0, 8]).reply();
        let old = number(canister.query(read).await) as u64;
        let new = u64::from_le_bytes(canister.kept().await.try_into().unwrap());
        assert_eq!(old, at_update + 1, "after the update that set the hook");
        assert!(new > old, "{new} after {old}");
        assert_eq!(status(world, canister.id).await.version, new);
    });
}

#[test]
fn sender_canister_version_must_be_the_callers_version() {
    run(async |world| {
        let canister = world.canister().await;
        let create = |version| {
            let arguments =
                CreateCanisterArgs { settings: None, sender_canister_version: Some(version) };
            let call = Call::to(management(), "create_canister");
            call.argument(Encode!(&arguments).unwrap()).cycles(10_000_000_000_000)
        };
        let version = status(world, canister.id).await.version;
        told_reject(canister.update(program().call_must(create(version + 100))).await);
        let version = status(world, canister.id).await.version;
        let made = canister.update(program().call_must(create(version))).await.unwrap();
        assert!(made.starts_with(b"DIDL"), "{}", String::from_utf8_lossy(&made));
    });
}

// What canisters ask for.

#[test]
fn a_canister_that_creates_one_is_its_only_controller() {
    run(async |world| {
        let canister = world.canister().await;
        let create = Call::to(management(), "create_canister")
            .argument(Encode!(&CreateCanisterArgs::default()).unwrap())
            .cycles(10_000_000_000_000);
        let made = canister.update(program().call_must(create)).await.unwrap();
        let made = Decode!(&made, CanisterIdRecord).unwrap().canister_id;
        world.about(made, "canister_status").await.unwrap_err();
        let ask = Call::to(management(), "canister_status").argument(record(made));
        let told = canister.update(program().call_must(ask)).await.unwrap();
        let told = Decode!(&told, CanisterStatusResult).unwrap();
        assert_eq!(told.settings.controllers, [canister.id]);
    });
}

#[test]
fn raw_rand_gives_32_other_bytes_each_time() {
    run(async |world| {
        let canister = world.canister().await;
        let mut seen = Vec::new();
        for _ in 0..2 {
            let call = Call::to(management(), "raw_rand").argument(Encode!().unwrap());
            let told = canister.update(program().call_must(call)).await.unwrap();
            seen.push(Decode!(&told, Vec<u8>).unwrap());
        }
        assert_eq!((seen[0].len(), seen[1].len()), (32, 32));
        assert_ne!(seen[0], seen[1]);
    });
}

// Promise: P15 - Arguments beyond the bounds are refused with the bound, and rounds continue.
#[test]
fn arguments_beyond_the_bounds_are_refused_and_rounds_continue() {
    run(async |world| {
        let canister = world.canister().await;
        let hostile = [
            // `vec null` of 2^60 elements.
            ("4449444c016d7f0100808080808080808010", "more than 10000 values"),
            // 2^28 elements, and a record that contains itself.
            ("4449444c016d7f010080808001", "more than 10000 values"),
            ("4449444c016c0100000100", "nested more than 32 levels deep"),
        ];
        let nested = format!("4449444c016e000100{}00", "01".repeat(3_004));
        let nested = (nested.as_str(), "nested more than 32 levels deep");
        for (argument, text) in hostile.into_iter().chain([nested]) {
            let argument = hex::decode(argument).unwrap();
            let call = Call::to(management(), "raw_rand").argument(argument);
            let (_, told) = told_reject(canister.update(program().call_must(call)).await);
            assert!(told.contains(text), "{told}");
        }
        let call = Call::to(management(), "raw_rand").argument(Encode!().unwrap());
        canister.update(program().call_must(call)).await.unwrap();
    });
}

/// The newest changes of a canister, as another canister gets them.
pub(crate) async fn info(
    canister: Universal,
    of: Principal,
    changes: Option<u64>,
) -> CanisterInfoResult {
    let arguments = CanisterInfoArgs { canister_id: of, num_requested_changes: changes };
    let call = Call::to(management(), "canister_info").argument(Encode!(&arguments).unwrap());
    let told = canister.update(program().call_must(call)).await.unwrap();
    Decode!(&told, CanisterInfoResult).unwrap()
}

#[test]
fn canister_info_tells_everyone_the_history() {
    run(async |world| {
        let [asking, asked] = world.canisters().await;
        world.about(asked.id, "uninstall_code").await.unwrap();
        let controllers = Some(vec![world.agent.get_principal().unwrap()]);
        set(world, asked.id, CanisterSettings { controllers, ..no_settings() }).await.unwrap();
        let told = info(asking, asked.id, Some(100)).await;
        assert_eq!((told.total_num_changes, told.module_hash), (4, None));
        assert_eq!(told.controllers, [world.agent.get_principal().unwrap()]);
        let kinds: Vec<_> = told
            .recent_changes
            .iter()
            .map(|change| match change.details.as_ref().unwrap() {
                ChangeDetails::Creation(_) => "creation",
                ChangeDetails::CodeDeployment(_) => "deployment",
                ChangeDetails::CodeUninstall => "uninstall",
                ChangeDetails::ControllersChange(_) => "controllers",
                _ => "other",
            })
            .collect();
        assert_eq!(kinds, ["creation", "deployment", "uninstall", "controllers"]);
        let user_id = world.agent.get_principal().unwrap();
        let origin = ChangeOrigin::FromUser(FromUserRecord { user_id });
        assert!(told.recent_changes.iter().all(|change| change.origin == origin));
        let last = info(asking, asked.id, Some(1)).await.recent_changes;
        assert_eq!(last, told.recent_changes[3..]);
        assert!(info(asking, asked.id, None).await.recent_changes.is_empty());
    });
}

#[test]
fn canister_metadata_is_public_or_for_controllers() {
    run(async |world| {
        let [asking, asked] = world.canisters().await;
        let metadata = async |from: Universal, of: Principal, name: &str| {
            let arguments = CanisterMetadataArgs { canister_id: of, name: name.into() };
            let call = Call::to(management(), "canister_metadata");
            let call = call.argument(Encode!(&arguments).unwrap());
            from.update(program().call_must(call)).await.unwrap()
        };
        let told = metadata(asking, asked.id, "candid:service").await;
        let value = Decode!(&told, CanisterMetadataResult).unwrap().value;
        assert_eq!(value, std::fs::read(harness::fixture("universal-c.did")).unwrap());
        let told = metadata(asking, asked.id, "no such section").await;
        assert!(told.starts_with(b"rejected"));
    });
}

#[derive(CandidType, Deserialize)]
struct SubnetInfo {
    replica_version: String,
    registry_version: u64,
}

fn subnet(world: &World) -> Principal {
    Principal::self_authenticating(world.agent.read_root_key())
}

#[test]
fn subnet_info_tells_the_version() {
    run(async |world| {
        let canister = world.canister().await;
        let argument = Encode!(&SubnetInfoArgs { subnet_id: subnet(world) }).unwrap();
        let call = Call::to(management(), "subnet_info").argument(argument);
        let told = canister.update(program().call_must(call)).await.unwrap();
        let told = Decode!(&told, SubnetInfo).unwrap();
        assert!(!told.replica_version.is_empty() && told.registry_version > 0);
    });
}

#[test]
fn node_metrics_history_lists_the_nodes_of_the_subnet() {
    run(async |world| {
        let canister = world.canister().await;
        let metrics = async |subnet_id, start_at_timestamp_nanos| {
            let argument = NodeMetricsHistoryArgs { subnet_id, start_at_timestamp_nanos };
            let argument = Encode!(&argument).unwrap();
            let call = Call::to(management(), "node_metrics_history").argument(argument);
            canister.update(program().call_must(call)).await
        };
        let told = metrics(subnet(world), 0).await.unwrap();
        let told = Decode!(&told, NodeMetricsHistoryResult).unwrap();
        // Two if midnight has passed.
        assert!([1, 2].contains(&told.len()), "{told:?}");
        for sample in &told {
            let [node] = &sample.node_metrics[..] else { panic!("{sample:?}") };
            assert!(node.num_blocks_proposed_total > 0, "{sample:?}");
            assert_eq!(node.num_block_failures_total, 0);
        }
        let later = told.last().unwrap().timestamp_nanos + 600_000_000_000;
        let told = metrics(subnet(world), later).await.unwrap();
        assert_eq!(Decode!(&told, NodeMetricsHistoryResult).unwrap(), []);
        let (code, text) = told_reject(metrics(canister.id, 0).await);
        assert_eq!(code, 4, "{text}");
    });
}

// Texts that published clients and test suites compare.

/// The reject of what must have been rejected: implementation's code and text.
#[track_caller]
fn rejected(outcome: Outcome) -> (String, String) {
    let reject = outcome.map(hex::encode).unwrap_err();
    (reject.error, reject.text)
}

#[track_caller]
fn texts(found: (String, String), code: &str, text: &str, canister: Principal) {
    assert_eq!(found, (code.to_owned(), text.replace("{id}", &canister.to_text())));
}

#[test]
fn only_controllers_may_manage_and_the_text_names_the_method() {
    run(async |world| {
        let canister = world.empty().await;
        for method in ["start_canister", "stop_canister", "canister_status", "delete_canister"] {
            let done = harness::manage(&world.stranger, canister, method, record(canister)).await;
            let text = format!("Only controllers of canister {{id}} can call ic00 method {method}");
            texts(rejected(outcome(done)), "IC0512", &text, canister);
        }
        let done = harness::manage(&world.agent, canister, "raw_rand", Encode!().unwrap()).await;
        let text = "Only canisters can call ic00 method raw_rand";
        texts(rejected(outcome(done)), "IC0406", text, canister);
    });
}

#[test]
fn calls_of_stopped_and_deleted_canisters_are_rejected_with_the_texts_clients_compare() {
    run(async |world| {
        let canister = world.canister().await;
        world.about(canister.id, "stop_canister").await.unwrap();
        let found = rejected(canister.update(reply(b"")).await);
        texts(found, "IC0508", "Canister {id} is stopped", canister.id);
        let text = "Canister {id} is stopped and therefore does not have a CallContextManager";
        texts(rejected(canister.query(reply(b"")).await), "IC0508", text, canister.id);
        world.about(canister.id, "delete_canister").await.unwrap();
        for found in [canister.update(reply(b"")).await, canister.query(reply(b"")).await] {
            texts(rejected(found), "IC0301", "Canister {id} not found", canister.id);
        }
    });
}

#[test]
fn an_installation_over_code_is_rejected_with_the_text_clients_compare() {
    run(async |world| {
        let canister = world.canister().await;
        let done = world
            .install(canister.id, CanisterInstallMode::Install, super::fixture::module(), vec![])
            .await;
        let text = "Canister {id} cannot be installed because the canister is not empty. Try \
                    installing with mode='reinstall' instead.";
        texts(rejected(done), "IC0514", text, canister.id);
        let taken = ProvisionalCreateCanisterWithCyclesArgs {
            specified_id: Some(canister.id),
            ..Default::default()
        };
        let method = "provisional_create_canister_with_cycles";
        let done = world.manage(canister.id, method, Encode!(&taken).unwrap()).await;
        texts(rejected(done), "IC0538", "Canister {id} is already installed.", canister.id);
    });
}

/// Traps two calls deep, in a module with names.
const NAMED_TRAPS: &str = r#"(module
    (import "ic0" "trap" (func $ic0_trap (param i32 i32)))
    (memory 1)
    (func $inner unreachable)
    (func $outer (call $inner))
    (func $update_go (export "canister_update go") (call $outer))
    (func $query_go (export "canister_query ask") (call $outer))
    (func $update_quiet (export "canister_update quiet")
        (call $ic0_trap (i32.const 0) (i32.const 0))))"#;

async fn log_lines(world: &World, canister: Principal) -> Vec<String> {
    let call = world.agent.query(&management(), "fetch_canister_logs");
    let call = call.with_effective_canister_id(canister).with_arg(record(canister));
    let told = call.call().await;
    let records = Decode!(&told.unwrap(), FetchCanisterLogsResult).unwrap().canister_log_records;
    let text = |record: CanisterLogRecord| String::from_utf8_lossy(&record.content).into_owned();
    records.into_iter().map(text).collect()
}

// Promise: P9 - A backtrace is shown in the log and to callers that may read the log.
#[test]
fn a_trap_shows_its_backtrace_to_those_who_may_read_the_log_and_in_the_log() {
    run(async |world| {
        let canister = world.empty().await;
        let module = wat::parse_str(NAMED_TRAPS).unwrap();
        world.install(canister, CanisterInstallMode::Install, module, vec![]).await.unwrap();
        let go = async |agent| {
            let updated = outcome(harness::update(agent, canister, "go", vec![]).await);
            let asked = outcome(harness::query(agent, canister, "ask", vec![]).await);
            [updated, asked].map(|done| rejected(done).1)
        };
        let front = format!("Error from Canister {canister}: Canister trapped: unreachable");
        let traced =
            |function: &str| format!("{front}\nCanister Backtrace:\ninner\nouter\n{function}\n");
        assert_eq!(go(&world.agent).await, [traced("update_go"), traced("query_go")]);
        assert_eq!(go(&world.stranger).await, [front.clone(), front.clone()]);
        let public =
            CanisterSettings { log_visibility: Some(LogVisibility::Public), ..no_settings() };
        set(world, canister, public).await.unwrap();
        assert_eq!(go(&world.stranger).await, [traced("update_go"), traced("query_go")]);
        outcome(harness::update(&world.agent, canister, "quiet", vec![]).await).unwrap_err();
        let logged = "[TRAP]: unreachable\nCanister Backtrace:\ninner\nouter\nupdate_go\n";
        let empty = "[TRAP]: (no message)\nCanister Backtrace:\nupdate_quiet\n";
        assert_eq!(log_lines(world, canister).await, [logged, logged, logged, empty]);
    });
}
