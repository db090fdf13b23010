//! Chapter "The IC management canister": snapshots of canisters.

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_agent::Agent;
use ic_management_canister_types::*;
use serde::Deserialize;
use serde_bytes::ByteBuf;

use super::{
    fixture::*,
    harness::{self, management},
    management::{info, no_settings, set, status},
    program::*,
};

/// Most bytes of one part.
const PART_BYTES: u64 = 1_000_000;

async fn by(agent: &Agent, canister: Principal, method: &str, argument: Vec<u8>) -> Outcome {
    outcome(harness::manage(agent, canister, method, argument).await)
}

async fn take_as(world: &World, arguments: &TakeCanisterSnapshotArgs) -> Result<Snapshot, Reject> {
    let method = "take_canister_snapshot";
    let told = world.manage(arguments.canister_id, method, Encode!(arguments).unwrap()).await?;
    Ok(Decode!(&told, Snapshot).unwrap())
}

async fn take(world: &World, canister_id: Principal) -> Snapshot {
    take_as(world, &TakeCanisterSnapshotArgs { canister_id, ..taking() }).await.unwrap()
}

fn taking() -> TakeCanisterSnapshotArgs {
    TakeCanisterSnapshotArgs {
        canister_id: management(),
        replace_snapshot: None,
        uninstall_code: None,
        sender_canister_version: None,
    }
}

async fn load(world: &World, canister_id: Principal, snapshot: &[u8]) -> Outcome {
    let arguments = LoadCanisterSnapshotArgs {
        canister_id,
        snapshot_id: snapshot.to_vec(),
        sender_canister_version: None,
    };
    world.manage(canister_id, "load_canister_snapshot", Encode!(&arguments).unwrap()).await
}

fn named(canister_id: Principal, snapshot: &[u8]) -> Vec<u8> {
    let snapshot_id = snapshot.to_vec();
    Encode!(&DeleteCanisterSnapshotArgs { canister_id, snapshot_id }).unwrap()
}

async fn list(world: &World, canister: Principal) -> Vec<Snapshot> {
    let told = world.about(canister, "list_canister_snapshots").await.unwrap();
    Decode!(&told, Vec<Snapshot>).unwrap()
}

async fn keep(canister: Universal, text: &[u8]) {
    canister.update(program().bytes(text).keep().then(reply(b""))).await.unwrap();
}

// Promise: P9 - A snapshot restores the state of its canister.
#[test]
fn a_snapshot_brings_back_the_state_of_its_canister() {
    run(async |world| {
        let canister = world.canister().await;
        keep(canister, b"before").await;
        let before = status(world, canister.id).await;
        let snapshot = take(world, canister.id).await;
        assert_eq!(list(world, canister.id).await, std::slice::from_ref(&snapshot));
        let taken = status(world, canister.id).await;
        assert_eq!(taken.version, before.version, "taking one changes no version");
        assert_eq!(taken.memory_metrics.snapshots_size, Nat::from(snapshot.total_size));
        assert!(taken.memory_size > before.memory_size);
        assert!(taken.idle_cycles_burned_per_day > before.idle_cycles_burned_per_day);

        keep(canister, b"after").await;
        world.about(canister.id, "uninstall_code").await.unwrap();
        let version = status(world, canister.id).await.version;
        load(world, canister.id, &snapshot.id).await.unwrap();
        assert_eq!(canister.kept().await, b"before");
        let loaded = status(world, canister.id).await;
        assert_eq!(loaded.version, version + 1);
        assert_eq!(loaded.module_hash, before.module_hash);
    });
}

#[test]
fn loading_stands_in_the_history() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let snapshot = take(world, canister.id).await;
        let version = status(world, canister.id).await.version;
        for (onto, from) in [(canister.id, None), (other.id, Some(canister.id))] {
            load(world, onto, &snapshot.id).await.unwrap();
            let told = info(other, onto, Some(1)).await;
            let change = told.recent_changes.last().unwrap();
            let expected = ChangeDetails::LoadSnapshot(LoadSnapshotRecord {
                from_canister_id: from,
                snapshot_id: snapshot.id.clone(),
                canister_version: version,
                taken_at_timestamp: snapshot.taken_at_timestamp,
                source: SnapshotSource::TakenFromCanister(candid::Reserved),
            });
            assert_eq!(change.details, Some(expected));
        }
    });
}

#[test]
fn code_may_be_uninstalled_as_its_snapshot_is_taken() {
    run(async |world| {
        let canister = world.canister().await;
        keep(canister, b"kept").await;
        let before = status(world, canister.id).await;
        let arguments = TakeCanisterSnapshotArgs {
            canister_id: canister.id,
            uninstall_code: Some(true),
            ..taking()
        };
        let snapshot = take_as(world, &arguments).await.unwrap();
        let after = status(world, canister.id).await;
        assert_eq!((after.module_hash, after.version), (None, before.version + 1));
        let again = take_as(world, &arguments).await.unwrap_err();
        assert_eq!(again.error, "IC0406", "an empty canister has none");
        load(world, canister.id, &snapshot.id).await.unwrap();
        assert_eq!(canister.kept().await, b"kept");
    });
}

#[test]
fn a_new_snapshot_may_take_the_place_of_another() {
    run(async |world| {
        let canister = world.canister().await;
        let first = take(world, canister.id).await;
        let replace = |id: &[u8]| TakeCanisterSnapshotArgs {
            canister_id: canister.id,
            replace_snapshot: Some(id.to_vec()),
            ..taking()
        };
        let second = take_as(world, &replace(&first.id)).await.unwrap();
        assert_ne!(first.id, second.id);
        assert_eq!(list(world, canister.id).await, [second]);
        assert_eq!(take_as(world, &replace(&first.id)).await.unwrap_err().code, 3);
    });
}

#[test]
fn at_most_ten_are_kept() {
    run(async |world| {
        let canister = world.canister().await;
        for _ in 0..10 {
            take(world, canister.id).await;
        }
        let arguments = TakeCanisterSnapshotArgs { canister_id: canister.id, ..taking() };
        let refused = take_as(world, &arguments).await.unwrap_err();
        assert_eq!((refused.code, refused.error.as_str()), (4, "IC0406"), "{}", refused.text);
        assert_eq!(list(world, canister.id).await.len(), 10);
    });
}

#[test]
fn a_snapshot_that_was_deleted_is_not_found() {
    run(async |world| {
        let canister = world.canister().await;
        let snapshot = take(world, canister.id).await;
        let named = named(canister.id, &snapshot.id);
        world.manage(canister.id, "delete_canister_snapshot", named.clone()).await.unwrap();
        assert!(list(world, canister.id).await.is_empty());
        for method in ["delete_canister_snapshot", "read_canister_snapshot_metadata"] {
            let gone = world.manage(canister.id, method, named.clone()).await.unwrap_err();
            assert_eq!((gone.code, gone.error.as_str()), (3, "IC0305"), "{method}");
        }
        assert_eq!(load(world, canister.id, &snapshot.id).await.unwrap_err().code, 3);
        assert_eq!(load(world, canister.id, b"anything").await.unwrap_err().code, 3);
    });
}

#[test]
fn only_controllers_take_load_and_delete_snapshots() {
    run(async |world| {
        let canister = world.canister().await;
        let snapshot = take(world, canister.id).await;
        let taking = TakeCanisterSnapshotArgs { canister_id: canister.id, ..taking() };
        let named = named(canister.id, &snapshot.id);
        for (method, argument) in [
            ("take_canister_snapshot", Encode!(&taking).unwrap()),
            ("load_canister_snapshot", named.clone()),
            ("delete_canister_snapshot", named),
        ] {
            let refused = by(&world.stranger, canister.id, method, argument).await.unwrap_err();
            assert_eq!(refused.error, "IC0512", "{method}: {}", refused.text);
        }
    });
}

#[test]
fn who_lists_and_reads_follows_from_snapshot_visibility() {
    run(async |world| {
        let canister = world.canister().await;
        let snapshot = take(world, canister.id).await;
        let data = ReadCanisterSnapshotDataArgs {
            canister_id: canister.id,
            snapshot_id: snapshot.id.clone(),
            kind: SnapshotDataKind::WasmModule { offset: 0, size: 4 },
        };
        let calls = [
            ("list_canister_snapshots", record(canister.id)),
            ("read_canister_snapshot_metadata", named(canister.id, &snapshot.id)),
            ("read_canister_snapshot_data", Encode!(&data).unwrap()),
        ];
        let viewer = world.stranger.get_principal().unwrap();
        for (visibility, stranger, anonymous) in [
            (SnapshotVisibility::Controllers, false, false),
            (SnapshotVisibility::AllowedViewers(vec![viewer]), true, false),
            (SnapshotVisibility::Public, true, true),
        ] {
            let snapshot_visibility = Some(visibility.clone());
            set(world, canister.id, CanisterSettings { snapshot_visibility, ..no_settings() })
                .await
                .unwrap();
            for (method, argument) in &calls {
                for (agent, may) in [
                    (&world.agent, true),
                    (&world.stranger, stranger),
                    (&world.anonymous, anonymous),
                ] {
                    let told = by(agent, canister.id, method, argument.clone()).await;
                    assert_eq!(told.is_ok(), may, "{method} with {visibility:?}");
                }
            }
        }
    });
}

#[test]
fn a_snapshot_is_loaded_onto_another_canister_only_by_who_controls_both() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        keep(canister, b"first").await;
        let snapshot = take(world, canister.id).await;
        load(world, other.id, &snapshot.id).await.unwrap();
        assert_eq!(other.kept().await, b"first");
        let controllers = Some(vec![world.stranger.get_principal().unwrap()]);
        set(world, canister.id, CanisterSettings { controllers, ..no_settings() }).await.unwrap();
        let refused = load(world, other.id, &snapshot.id).await.unwrap_err();
        assert_eq!((refused.code, refused.error.as_str()), (4, "IC0406"), "{}", refused.text);
    });
}

#[test]
fn snapshots_go_with_their_canister() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let snapshot = take(world, canister.id).await;
        world.about(canister.id, "stop_canister").await.unwrap();
        world.about(canister.id, "delete_canister").await.unwrap();
        assert_eq!(load(world, other.id, &snapshot.id).await.unwrap_err().error, "IC0305");
    });
}

#[test]
fn a_canister_manages_the_snapshots_of_canisters_it_controls() {
    run(async |world| {
        let [asking, asked] = world.canisters().await;
        let call = |method: &str, argument: Vec<u8>| {
            program().call_must(Call::to(management(), method).argument(argument))
        };
        let arguments = TakeCanisterSnapshotArgs { canister_id: asked.id, ..taking() };
        let taking = call("take_canister_snapshot", Encode!(&arguments).unwrap());
        let (code, text) = told_reject(asking.update(taking.clone()).await);
        assert_eq!(code, 5, "it is no controller: {text}");
        let controllers = Some(vec![world.agent.get_principal().unwrap(), asking.id]);
        set(world, asked.id, CanisterSettings { controllers, ..no_settings() }).await.unwrap();
        keep(asked, b"before").await;
        let told = asking.update(taking).await.unwrap();
        let snapshot = Decode!(&told, Snapshot).unwrap();
        keep(asked, b"after").await;
        let loading = |sender_canister_version| {
            let snapshot_id = snapshot.id.clone();
            let canister_id = asked.id;
            let arguments =
                LoadCanisterSnapshotArgs { canister_id, snapshot_id, sender_canister_version };
            call("load_canister_snapshot", Encode!(&arguments).unwrap())
        };
        let (code, text) = told_reject(asking.update(loading(Some(1 << 40))).await);
        assert_eq!(code, 5, "another version than its: {text}");
        assert!(asking.update(loading(None)).await.unwrap().starts_with(b"DIDL"));
        assert_eq!(asked.kept().await, b"before");
    });
}

/// What of the metadata is uploaded again.
#[derive(Clone, CandidType, Deserialize, Debug)]
struct Metadata {
    source: SnapshotSource,
    taken_at_timestamp: u64,
    wasm_module_size: u64,
    globals: Vec<SnapshotMetadataGlobal>,
    wasm_memory_size: u64,
    stable_memory_size: u64,
    wasm_chunk_store: Vec<ChunkHash>,
    canister_version: u64,
    certified_data: ByteBuf,
    global_timer: Option<CanisterTimer>,
    on_low_wasm_memory_hook_status: Option<OnLowWasmMemoryHookStatus>,
}

async fn metadata(world: &World, canister: Principal, snapshot: &[u8]) -> Metadata {
    let method = "read_canister_snapshot_metadata";
    let told = world.manage(canister, method, named(canister, snapshot)).await.unwrap();
    Decode!(&told, Metadata).unwrap()
}

async fn read(
    world: &World,
    canister_id: Principal,
    snapshot: &[u8],
    kind: SnapshotDataKind,
) -> Result<Vec<u8>, Reject> {
    let snapshot_id = snapshot.to_vec();
    let arguments = ReadCanisterSnapshotDataArgs { canister_id, snapshot_id, kind };
    let method = "read_canister_snapshot_data";
    let told = world.manage(canister_id, method, Encode!(&arguments).unwrap()).await?;
    Ok(Decode!(&told, ReadCanisterSnapshotDataResult).unwrap().chunk)
}

async fn begin_upload(world: &World, canister_id: Principal, of: &Metadata) -> Vec<u8> {
    let arguments = UploadCanisterSnapshotMetadataArgs {
        canister_id,
        replace_snapshot: None,
        wasm_module_size: of.wasm_module_size,
        globals: of.globals.clone(),
        wasm_memory_size: of.wasm_memory_size,
        stable_memory_size: of.stable_memory_size,
        certified_data: of.certified_data.to_vec(),
        global_timer: of.global_timer.clone(),
        on_low_wasm_memory_hook_status: of.on_low_wasm_memory_hook_status.clone(),
    };
    let method = "upload_canister_snapshot_metadata";
    let told = world.manage(canister_id, method, Encode!(&arguments).unwrap()).await.unwrap();
    Decode!(&told, UploadCanisterSnapshotMetadataResult).unwrap().snapshot_id
}

async fn upload(
    world: &World,
    canister_id: Principal,
    snapshot: &[u8],
    kind: SnapshotDataOffset,
    chunk: Vec<u8>,
) -> Outcome {
    let snapshot_id = snapshot.to_vec();
    let arguments = UploadCanisterSnapshotDataArgs { canister_id, snapshot_id, kind, chunk };
    let method = "upload_canister_snapshot_data";
    world.manage(canister_id, method, Encode!(&arguments).unwrap()).await
}

fn parts(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.div_ceil(PART_BYTES))
        .map(move |part| (part * PART_BYTES, PART_BYTES.min(bytes - part * PART_BYTES)))
}

#[test]
fn a_snapshot_that_is_read_out_can_be_uploaded_and_loaded_elsewhere() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        keep(canister, b"carried over").await;
        let grow = program().import_of("stable64_grow", &[1]).drop_top().then(reply(b""));
        canister.update(grow).await.unwrap();
        let chunk = UploadChunkArgs { canister_id: canister.id, chunk: vec![5; 100] };
        world.manage(canister.id, "upload_chunk", Encode!(&chunk).unwrap()).await.unwrap();
        let taken = take(world, canister.id).await.id;
        let all = metadata(world, canister.id, &taken).await;
        assert!(matches!(all.source, SnapshotSource::TakenFromCanister(_)));
        assert_eq!(all.wasm_module_size, module().len() as u64);
        assert_eq!(all.stable_memory_size, 65_536);
        assert!(all.wasm_memory_size.is_multiple_of(65_536) && all.wasm_memory_size > 0);
        assert!(!all.globals.is_empty());
        assert_eq!(all.wasm_chunk_store.len(), 1);

        let uploaded = begin_upload(world, other.id, &all).await;
        for (offset, size) in parts(all.wasm_module_size) {
            let kind = SnapshotDataKind::WasmModule { offset, size };
            let part = read(world, canister.id, &taken, kind).await.unwrap();
            let to = SnapshotDataOffset::WasmModule { offset };
            upload(world, other.id, &uploaded, to, part).await.unwrap();
        }
        for (offset, size) in parts(all.wasm_memory_size) {
            let kind = SnapshotDataKind::WasmMemory { offset, size };
            let part = read(world, canister.id, &taken, kind).await.unwrap();
            let to = SnapshotDataOffset::WasmMemory { offset };
            upload(world, other.id, &uploaded, to, part).await.unwrap();
        }
        let kind = SnapshotDataKind::WasmChunk { hash: all.wasm_chunk_store[0].hash.clone() };
        let chunk = read(world, canister.id, &taken, kind).await.unwrap();
        assert_eq!(chunk, [5; 100]);
        upload(world, other.id, &uploaded, SnapshotDataOffset::WasmChunk, chunk).await.unwrap();

        load(world, other.id, &uploaded).await.unwrap();
        assert_eq!(other.kept().await, b"carried over");
        let told = world.about(other.id, "stored_chunks").await.unwrap();
        assert_eq!(Decode!(&told, Vec<ChunkHash>).unwrap().len(), 1);
        let told = info(canister, other.id, Some(1)).await;
        let Some(ChangeDetails::LoadSnapshot(loaded)) = &told.recent_changes[0].details else {
            panic!("{told:?}");
        };
        assert!(matches!(loaded.source, SnapshotSource::MetadataUpload(_)));
    });
}

#[test]
fn parts_must_lie_within_the_sizes_of_the_metadata() {
    run(async |world| {
        let canister = world.canister().await;
        let taken = take(world, canister.id).await.id;
        let all = metadata(world, canister.id, &taken).await;
        let uploaded = begin_upload(world, canister.id, &all).await;
        let bytes = all.wasm_memory_size;
        for (offset, size) in [(bytes, 1), (0, bytes + 1), (u64::MAX, 2)] {
            let kind = SnapshotDataKind::WasmMemory { offset, size };
            let refused = read(world, canister.id, &taken, kind).await.unwrap_err();
            assert_eq!(refused.error, "IC0408", "{}", refused.text);
        }
        for offset in [bytes, bytes - 1, u64::MAX] {
            let kind = SnapshotDataOffset::WasmMemory { offset };
            let refused =
                upload(world, canister.id, &uploaded, kind, vec![1; 2]).await.unwrap_err();
            assert_eq!(refused.error, "IC0408", "{}", refused.text);
        }
        let kind = SnapshotDataOffset::WasmMemory { offset: 0 };
        let refused = upload(world, canister.id, &taken, kind, vec![1]).await.unwrap_err();
        assert_eq!(refused.error, "IC0409", "one that was taken is not written to");
        let kind = SnapshotDataOffset::WasmChunk;
        let chunk = vec![1; (1 << 20) + 1];
        assert!(upload(world, canister.id, &uploaded, kind, chunk).await.is_err());
    });
}

#[test]
fn an_upload_whose_globals_do_not_fit_its_module_is_not_loaded() {
    run(async |world| {
        let canister = world.canister().await;
        let taken = take(world, canister.id).await.id;
        let mut all = metadata(world, canister.id, &taken).await;
        let kind = SnapshotDataKind::WasmModule { offset: 0, size: all.wasm_module_size };
        let module = read(world, canister.id, &taken, kind).await.unwrap();
        all.globals.push(SnapshotMetadataGlobal::I64(1));
        let uploaded = begin_upload(world, canister.id, &all).await;
        let to = SnapshotDataOffset::WasmModule { offset: 0 };
        upload(world, canister.id, &uploaded, to, module).await.unwrap();
        let refused = load(world, canister.id, &uploaded).await.unwrap_err();
        assert_eq!(refused.error, "IC0408", "{}", refused.text);
    });
}

#[test]
fn an_upload_whose_heap_its_module_cannot_have_is_not_loaded() {
    run(async |world| {
        let canister = world.canister().await;
        let taken = take(world, canister.id).await.id;
        let of_canister = metadata(world, canister.id, &taken).await;
        for (memory, pages, fits) in [
            ("(memory 1 2)", 0, false),
            ("(memory 1 2)", 2, true),
            ("(memory 1 2)", 3, false),
            ("", 1, false),
            ("", 0, true),
        ] {
            let module = wat::parse_str(format!("(module {memory})")).unwrap();
            let all = Metadata {
                wasm_module_size: module.len() as u64,
                wasm_memory_size: pages * 65_536,
                globals: Vec::new(),
                ..of_canister.clone()
            };
            let uploaded = begin_upload(world, canister.id, &all).await;
            let to = SnapshotDataOffset::WasmModule { offset: 0 };
            upload(world, canister.id, &uploaded, to, module).await.unwrap();
            let loaded = load(world, canister.id, &uploaded).await;
            let case = format!("{memory} with {pages} pages: {loaded:?}");
            assert_eq!(
                loaded.map_err(|refused| refused.error).err(),
                match fits {
                    true => None,
                    false => Some("IC0408".into()),
                },
                "{case}"
            );
            let gone = named(canister.id, &uploaded);
            world.manage(canister.id, "delete_canister_snapshot", gone).await.unwrap();
        }
    });
}
