//! Stories about snapshots of canisters.

use candid::{CandidType, Nat};
use ic_management_canister_types as ic;
use ic_management_canister_types::CanisterInstallMode as Mode;
use ic_principal::Principal;
use serde::Deserialize;
use serde_bytes::ByteBuf;
use state::{CanisterId, CanisterStatus, ChangeDetails, Reject, SnapshotSource};

use crate::common::{CallOp, Node, Op, Spec, decode, limits, user};

const WASM_PAGE: u64 = 65_536;

fn note(text: &str) -> Op {
    Op::Note(text.as_bytes().to_vec())
}

fn record(id: CanisterId) -> ic::CanisterIdRecord {
    ic::CanisterIdRecord { canister_id: id }
}

/// A canister with something in every part that a snapshot has.
fn deployed(node: &mut Node) -> CanisterId {
    let id = node.deploy(&Spec { name: "first".into(), ..Spec::default() });
    let program = [
        note("kept"),
        Op::Grow(3),
        Op::Write(5, 2, 77),
        Op::Certify(b"certified".to_vec()),
        Op::Reply(vec![]),
    ];
    node.call(id, &program).unwrap();
    let chunk = ic::UploadChunkArgs { canister_id: id, chunk: vec![9; 1_000] };
    node.manage(user(1), id, "upload_chunk", &chunk).unwrap();
    id
}

/// Makes of it what no snapshot before shows.
fn change(node: &mut Node, id: CanisterId) {
    let program = [note("lost"), Op::Write(5, 4, 78), Op::Certify(vec![]), Op::Reply(vec![])];
    node.call(id, &program).unwrap();
    node.manage(user(1), id, "clear_chunk_store", &record(id)).unwrap();
    node.install(id, Mode::Upgrade(None), &Spec { name: "second".into(), ..Spec::default() })
        .unwrap();
}

fn take_with(
    node: &mut Node,
    id: CanisterId,
    replace_snapshot: Option<Vec<u8>>,
    uninstall_code: Option<bool>,
) -> Result<ic::Snapshot, Reject> {
    let argument = ic::TakeCanisterSnapshotArgs {
        canister_id: id,
        replace_snapshot,
        uninstall_code,
        sender_canister_version: None,
    };
    let reply = node.manage(user(1), id, "take_canister_snapshot", &argument)?;
    Ok(decode(&reply))
}

fn take(node: &mut Node, id: CanisterId) -> ic::Snapshot {
    take_with(node, id, None, None).unwrap()
}

fn load(node: &mut Node, id: CanisterId, snapshot_id: &[u8]) -> Result<Vec<u8>, Reject> {
    let argument = ic::LoadCanisterSnapshotArgs {
        canister_id: id,
        snapshot_id: snapshot_id.to_vec(),
        sender_canister_version: None,
    };
    node.manage(user(1), id, "load_canister_snapshot", &argument)
}

fn list(node: &mut Node, id: CanisterId) -> Vec<ic::Snapshot> {
    decode(&node.manage(user(1), id, "list_canister_snapshots", &record(id)).unwrap())
}

fn named(id: CanisterId, snapshot_id: &[u8]) -> ic::DeleteCanisterSnapshotArgs {
    ic::DeleteCanisterSnapshotArgs { canister_id: id, snapshot_id: snapshot_id.to_vec() }
}

/// Everything that a snapshot brings back.
fn content(node: &mut Node, id: CanisterId) -> impl PartialEq + std::fmt::Debug + use<> {
    let canister = node.canister(id).clone();
    let execution = canister.execution.unwrap();
    let mut pages = vec![0; 12 << 12];
    pages::read_pages(&node.pages.layout(execution.stable.id).unwrap(), 0, &mut pages).unwrap();
    let module = execution.module.hash;
    (module, execution.stable.wasm_pages, pages, canister.certified_data, canister.chunks)
}

// Promise: P9 - A loaded snapshot restores memories, module and certified data.
#[test]
fn a_snapshot_brings_back_what_was() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let before = content(&mut node, id);
    let version = node.canister(id).version;
    let snapshot = take(&mut node, id);
    assert_eq!(node.canister(id).version, version, "taking changes nothing");
    assert_eq!(snapshot.taken_at_timestamp, node.canister(id).snapshots.get(0).unwrap().taken_at.0);
    assert_eq!(list(&mut node, id), std::slice::from_ref(&snapshot));
    let execution = node.canister(id).execution.clone().unwrap();
    let memory = execution.heap.bytes() + execution.stable.bytes();
    let rest = execution.module.bytes + 8 + (1 << 20) + 9;
    assert_eq!(snapshot.total_size, memory + rest);
    let status = node.status_of(id);
    assert_eq!(status.memory_metrics.snapshots_size, Nat::from(snapshot.total_size));
    assert_eq!(status.memory_size, Nat::from(node.canister(id).memory_usage().total()));

    change(&mut node, id);
    assert_ne!(content(&mut node, id), before);
    let version = node.canister(id).version;
    load(&mut node, id, &snapshot.id).unwrap();
    assert_eq!(content(&mut node, id), before);
    assert_eq!(node.canister(id).version, version + 1);
    assert_eq!(node.notes(id), ["kept"]);
    let last = node.canister(id).history.changes().next_back().unwrap().clone();
    assert_eq!(last.version, version + 1);
    let expected = ChangeDetails::LoadSnapshot {
        from: None,
        snapshot_id: snapshot.id.clone(),
        canister_version: version - 2,
        taken_at: state::Time(snapshot.taken_at_timestamp),
        source: SnapshotSource::Taken,
    };
    assert_eq!(last.details, expected);

    node.manage(user(1), id, "delete_canister_snapshot", &named(id, &snapshot.id)).unwrap();
    assert_eq!(list(&mut node, id), []);
    assert_eq!(load(&mut node, id, &snapshot.id).unwrap_err().error_code.0, 305);
    let again = take(&mut node, id);
    assert_ne!(again.id, snapshot.id, "no id is given twice");
    node.restart();
}

// Promise: P5 - Snapshots survive checkpoints and restarts, and deleted ones leave no memory,
//   module or chunk.
#[test]
fn snapshots_survive_checkpoints_and_restarts_and_what_is_not_named_goes() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let before = content(&mut node, id);
    let snapshot = take(&mut node, id);
    let second = take(&mut node, id);
    node = node.restart();
    change(&mut node, id);
    node.manage(user(1), id, "delete_canister_snapshot", &named(id, &second.id)).unwrap();
    for round in 0..40 {
        node.round();
        if round % 9 == 4 {
            node = node.restart();
        }
    }
    let of_canister = |node: &Node| {
        let canister = node.canister(id);
        let execution = canister.execution.clone().unwrap();
        let snapshots = canister.snapshots.iter().flat_map(|(_, snapshot)| snapshot.memories());
        let mut all: Vec<_> = snapshots.chain([execution.heap.id, execution.stable.id]).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(node.pages.ids(), of_canister(&node));
    load(&mut node, id, &snapshot.id).unwrap();
    assert_eq!(content(&mut node, id), before, "module and chunk are there still");
    node = node.restart();
    assert_eq!(content(&mut node, id), before);
    for _ in 0..20 {
        node.round();
    }
    assert_eq!(node.pages.ids(), of_canister(&node));
}

#[test]
fn code_may_go_as_its_snapshot_is_taken() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let before = content(&mut node, id);
    let memories = node.canister(id).execution.clone().unwrap();
    let version = node.canister(id).version;
    let usage = node.canister(id).memory_usage().total();
    let snapshot = take_with(&mut node, id, None, Some(true)).unwrap();
    let canister = node.canister(id);
    assert!(canister.execution.is_none() && canister.chunks.is_empty());
    assert_eq!(canister.version, version + 1);
    let last = canister.history.changes().next_back().unwrap();
    assert_eq!(last.details, ChangeDetails::CodeUninstall);
    let taken = canister.snapshots.get(0).unwrap();
    assert_eq!((taken.heap.id, taken.stable.id), (memories.heap.id, memories.stable.id));
    assert!(canister.memory_usage().total() <= usage + 200);
    assert_eq!(node.call(id, &[Op::Reply(vec![])]).unwrap_err().error_code.0, 537);
    assert_eq!(take_with(&mut node, id, None, None).unwrap_err().error_code.0, 406);
    for _ in 0..10 {
        node.round();
    }
    let mut node = node.restart();
    load(&mut node, id, &snapshot.id).unwrap();
    assert_eq!(content(&mut node, id), before);
    assert_eq!(node.notes(id), ["kept"]);
}

#[test]
fn a_canister_has_at_most_ten_snapshots_and_can_replace_one() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let all: Vec<_> = (0..10).map(|_| take(&mut node, id)).collect();
    let error = take_with(&mut node, id, None, None).unwrap_err();
    assert_eq!(error.error_code.0, 406);
    assert!(error.message.contains("maximum number of snapshots allowed: 10"), "{}", error.message);
    let size = node.status_of(id).memory_metrics.snapshots_size;
    let new = take_with(&mut node, id, Some(all[3].id.clone()), None).unwrap();
    let ids: Vec<_> = list(&mut node, id).into_iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(ids.len(), 10);
    assert!(ids.contains(&new.id) && !ids.contains(&all[3].id));
    assert_eq!(node.status_of(id).memory_metrics.snapshots_size, size);
    let gone = take_with(&mut node, id, Some(all[3].id.clone()), None).unwrap_err();
    assert_eq!(gone.error_code.0, 305);
    // All go with the canister.
    node.manage(user(1), id, "stop_canister", &record(id)).unwrap();
    assert_eq!(node.canister(id).status, CanisterStatus::Stopped);
    node.manage(user(1), id, "delete_canister", &record(id)).unwrap();
    for _ in 0..20 {
        node.round();
    }
    assert_eq!(node.pages.ids(), []);
    node.restart();
}

#[test]
fn a_snapshot_is_loaded_onto_another_canister_by_who_controls_both() {
    let mut node = Node::new();
    let (id, other) = (deployed(&mut node), node.create());
    let before = content(&mut node, id);
    let snapshot = take(&mut node, id);
    load(&mut node, other, &snapshot.id).unwrap();
    assert_eq!(content(&mut node, other), before);
    assert_eq!(node.notes(other), ["kept"]);
    let last = node.canister(other).history.changes().next_back().unwrap().clone();
    assert!(
        matches!(last.details, ChangeDetails::LoadSnapshot { from: Some(from), .. } if from == id)
    );
    // The copy is a copy.
    node.call(other, &[note("more"), Op::Reply(vec![])]).unwrap();
    assert_eq!((node.notes(id).len(), node.notes(other).len()), (1, 2));

    for method in ["delete_canister_snapshot", "read_canister_snapshot_metadata"] {
        let error = node.manage(user(1), other, method, &named(other, &snapshot.id)).unwrap_err();
        assert_eq!(error.error_code.0, 406, "{method}");
    }
    let settings = ic::CanisterSettings { controllers: Some(vec![user(2)]), ..Default::default() };
    let change =
        ic::UpdateSettingsArgs { canister_id: id, settings, sender_canister_version: None };
    node.manage(user(1), id, "update_settings", &change).unwrap();
    assert_eq!(load(&mut node, other, &snapshot.id).unwrap_err().error_code.0, 406);
    for unknown in [vec![], vec![1; 3], vec![0; 60], [&[7; 8][..], other.as_slice()].concat()] {
        assert_eq!(load(&mut node, other, &unknown).unwrap_err().error_code.0, 305);
    }
    node.restart();
}

#[test]
fn snapshot_access_requires_controller_or_visibility() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let snapshot = take(&mut node, id);
    let asks = |node: &mut Node, sender: u8| {
        let data = ic::ReadCanisterSnapshotDataArgs {
            canister_id: id,
            snapshot_id: snapshot.id.clone(),
            kind: ic::SnapshotDataKind::WasmModule { offset: 0, size: 1 },
        };
        let named = named(id, &snapshot.id);
        let sender = user(sender);
        let listed = node.manage(sender, id, "list_canister_snapshots", &record(id));
        let metadata = node.manage(sender, id, "read_canister_snapshot_metadata", &named);
        let data = node.manage(sender, id, "read_canister_snapshot_data", &data);
        assert_eq!(listed.is_ok(), metadata.is_ok());
        assert_eq!(listed.is_ok(), data.is_ok());
        listed.is_ok()
    };
    assert!(asks(&mut node, 1) && !asks(&mut node, 2));
    let refused = node.manage(user(2), id, "list_canister_snapshots", &record(id)).unwrap_err();
    assert_eq!(refused.error_code.0, 512);
    let viewers = ic::SnapshotVisibility::AllowedViewers(vec![user(2)]);
    for (visibility, expected) in
        [(viewers, [true, false]), (ic::SnapshotVisibility::Public, [true, true])]
    {
        let settings = ic::CanisterSettings {
            snapshot_visibility: Some(visibility),
            ..ic::CanisterSettings::default()
        };
        let change =
            ic::UpdateSettingsArgs { canister_id: id, settings, sender_canister_version: None };
        node.manage(user(1), id, "update_settings", &change).unwrap();
        assert_eq!([asks(&mut node, 2), asks(&mut node, 3)], expected);
    }
    for method in ["delete_canister_snapshot", "load_canister_snapshot"] {
        let error = node.manage(user(2), id, method, &named(id, &snapshot.id)).unwrap_err();
        assert_eq!(error.error_code.0, 512, "{method}");
    }
    assert_eq!(
        node.manage(user(2), id, "take_canister_snapshot", &record(id)).unwrap_err().error_code.0,
        512
    );
}

/// The metadata as the specification's types have them.
#[derive(CandidType, Deserialize, Clone, Debug)]
struct Metadata {
    source: ic::SnapshotSource,
    wasm_module_size: u64,
    globals: Vec<ic::SnapshotMetadataGlobal>,
    wasm_memory_size: u64,
    stable_memory_size: u64,
    wasm_chunk_store: Vec<ic::ChunkHash>,
    canister_version: u64,
    certified_data: ByteBuf,
    global_timer: Option<ic::CanisterTimer>,
    on_low_wasm_memory_hook_status: Option<ic::OnLowWasmMemoryHookStatus>,
}

fn metadata(node: &mut Node, id: CanisterId, snapshot_id: &[u8]) -> Metadata {
    let named = named(id, snapshot_id);
    decode(&node.manage(user(1), id, "read_canister_snapshot_metadata", &named).unwrap())
}

fn read(
    node: &mut Node,
    id: CanisterId,
    snapshot_id: &[u8],
    kind: ic::SnapshotDataKind,
) -> Result<Vec<u8>, Reject> {
    let snapshot_id = snapshot_id.to_vec();
    let argument = ic::ReadCanisterSnapshotDataArgs { canister_id: id, snapshot_id, kind };
    let reply = node.manage(user(1), id, "read_canister_snapshot_data", &argument)?;
    Ok(decode::<ic::ReadCanisterSnapshotDataResult>(&reply).chunk)
}

fn upload_metadata(
    node: &mut Node,
    id: CanisterId,
    change: impl FnOnce(&mut ic::UploadCanisterSnapshotMetadataArgs),
) -> Result<Vec<u8>, Reject> {
    let mut argument = ic::UploadCanisterSnapshotMetadataArgs {
        canister_id: id,
        replace_snapshot: None,
        wasm_module_size: 1,
        globals: vec![ic::SnapshotMetadataGlobal::I64(0)],
        wasm_memory_size: WASM_PAGE,
        stable_memory_size: 0,
        certified_data: vec![],
        global_timer: None,
        on_low_wasm_memory_hook_status: None,
    };
    change(&mut argument);
    let reply = node.manage(user(1), id, "upload_canister_snapshot_metadata", &argument)?;
    Ok(decode::<ic::UploadCanisterSnapshotMetadataResult>(&reply).snapshot_id)
}

fn upload(
    node: &mut Node,
    id: CanisterId,
    snapshot_id: &[u8],
    kind: ic::SnapshotDataOffset,
    chunk: Vec<u8>,
) -> Result<Vec<u8>, Reject> {
    let snapshot_id = snapshot_id.to_vec();
    let argument = ic::UploadCanisterSnapshotDataArgs { canister_id: id, snapshot_id, kind, chunk };
    node.manage(user(1), id, "upload_canister_snapshot_data", &argument)
}

#[test]
fn what_is_read_out_of_one_can_be_uploaded_to_another_canister_and_loaded() {
    use ic::{SnapshotDataKind as Kind, SnapshotDataOffset as To};
    let mut node = Node::new();
    let (id, other) = (deployed(&mut node), node.create());
    let before = content(&mut node, id);
    let taken = take(&mut node, id).id;
    let all = metadata(&mut node, id, &taken);
    assert!(matches!(all.source, ic::SnapshotSource::TakenFromCanister(_)));
    assert_eq!(all.stable_memory_size, 3 * WASM_PAGE);
    assert_eq!((all.globals.len(), all.certified_data.as_slice()), (1, &b"certified"[..]));
    assert!(matches!(all.global_timer, Some(ic::CanisterTimer::Inactive)));

    let uploaded = upload_metadata(&mut node, other, |argument| {
        argument.wasm_module_size = all.wasm_module_size;
        argument.globals.clone_from(&all.globals);
        argument.wasm_memory_size = all.wasm_memory_size;
        argument.stable_memory_size = all.stable_memory_size;
        argument.certified_data = all.certified_data.to_vec();
        argument.global_timer = Some(ic::CanisterTimer::Active(u64::MAX));
        argument.on_low_wasm_memory_hook_status.clone_from(&all.on_low_wasm_memory_hook_status);
    })
    .unwrap();
    let sizes = list(&mut node, id)[0].total_size - (1 << 20);
    assert_eq!(list(&mut node, other)[0].total_size, sizes, "all but the chunk, at once");
    let error = load(&mut node, other, &uploaded).unwrap_err();
    assert_eq!(error.error_code.0, 505, "zeros are no module");

    // In pieces that are not aligned to pages.
    let piece = 10_007;
    let whole =
        |bytes: u64| (0..bytes).step_by(piece).map(move |at| (at, (piece as u64).min(bytes - at)));
    for (offset, size) in whole(all.wasm_module_size) {
        let chunk = read(&mut node, id, &taken, Kind::WasmModule { offset, size }).unwrap();
        upload(&mut node, other, &uploaded, To::WasmModule { offset }, chunk).unwrap();
    }
    for (offset, size) in whole(all.wasm_memory_size) {
        let chunk = read(&mut node, id, &taken, Kind::WasmMemory { offset, size }).unwrap();
        upload(&mut node, other, &uploaded, To::WasmMemory { offset }, chunk).unwrap();
    }
    for (offset, size) in whole(all.stable_memory_size) {
        let chunk = read(&mut node, id, &taken, Kind::StableMemory { offset, size }).unwrap();
        upload(&mut node, other, &uploaded, To::StableMemory { offset }, chunk).unwrap();
    }
    let hash = all.wasm_chunk_store[0].hash.clone();
    let chunk = read(&mut node, id, &taken, Kind::WasmChunk { hash }).unwrap();
    assert_eq!(chunk, [9; 1_000]);
    upload(&mut node, other, &uploaded, To::WasmChunk, chunk).unwrap();
    let mut node = node.restart();
    load(&mut node, other, &uploaded).unwrap();
    assert_eq!(content(&mut node, other), before);
    assert_eq!(node.notes(other), ["kept"]);
    assert_eq!(node.canister(other).global_timer, state::Time(u64::MAX));
    let told = metadata(&mut node, other, &uploaded);
    assert!(matches!(told.source, ic::SnapshotSource::MetadataUpload(_)));
    assert_eq!(told.wasm_chunk_store.len(), 1);
    for _ in 0..15 {
        node.round();
    }
    let mut node = node.restart();
    assert_eq!(content(&mut node, other), before);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    use ic::{SnapshotDataKind as Kind, SnapshotDataOffset as To};
    let mut node = Node::new();
    let id = deployed(&mut node);
    let taken = take(&mut node, id).id;
    let uploaded = upload_metadata(&mut node, id, |_| {}).unwrap();
    let before = node.canister(id).snapshots.clone();
    let code = |result: Result<Vec<u8>, Reject>| result.unwrap_err().error_code.0;
    let end = metadata(&mut node, id, &taken).stable_memory_size;
    for (offset, size) in [(end, 1), (0, end + 1), (u64::MAX, 1), (1, u64::MAX)] {
        let kind = Kind::StableMemory { offset, size };
        assert_eq!(code(read(&mut node, id, &taken, kind)), 408);
    }
    assert_eq!(code(read(&mut node, id, &taken, Kind::WasmChunk { hash: vec![1; 32] })), 408);
    assert_eq!(code(read(&mut node, id, &taken, Kind::WasmChunk { hash: vec![1; 3] })), 408);
    let large = upload_metadata(&mut node, id, |argument| {
        argument.stable_memory_size = 100 * WASM_PAGE;
    })
    .unwrap();
    let kind = Kind::StableMemory { offset: 0, size: 2_000_001 };
    assert_eq!(code(read(&mut node, id, &large, kind)), 408);
    let kind = Kind::StableMemory { offset: 1, size: 2_000_000 };
    assert!(read(&mut node, id, &large, kind).unwrap().iter().all(|byte| *byte == 0));

    let zero = || vec![0; 2];
    assert_eq!(code(upload(&mut node, id, &taken, To::WasmMemory { offset: 0 }, zero())), 409);
    for offset in [WASM_PAGE - 1, u64::MAX] {
        let kind = To::WasmMemory { offset };
        assert_eq!(code(upload(&mut node, id, &uploaded, kind, zero())), 408);
    }
    let kind = To::StableMemory { offset: 0 };
    assert_eq!(code(upload(&mut node, id, &uploaded, kind, zero())), 408);
    let too_large = vec![1; (1 << 20) + 1];
    assert_eq!(code(upload(&mut node, id, &uploaded, To::WasmChunk, too_large)), 504);
    assert_eq!(node.canister(id).snapshots.get(1), before.get(1));

    let limits = limits().module;
    type Change = Box<dyn Fn(&mut ic::UploadCanisterSnapshotMetadataArgs)>;
    let wrong: [Change; 6] = [
        Box::new(move |argument| argument.wasm_module_size = limits.wasm_bytes + 1),
        Box::new(|argument| argument.wasm_memory_size = 1),
        Box::new(|argument| argument.wasm_memory_size = u64::MAX),
        Box::new(|argument| argument.stable_memory_size = 1 << 63),
        Box::new(|argument| argument.certified_data = vec![0; 33]),
        Box::new(|argument| argument.globals = vec![ic::SnapshotMetadataGlobal::I32(1); 1_001]),
    ];
    for change in wrong {
        assert_eq!(code(upload_metadata(&mut node, id, change)), 504);
    }
    node.restart();
}

#[test]
fn an_upload_must_fit_its_module() {
    use ic::SnapshotDataOffset as To;
    let mut node = Node::new();
    let id = node.create();
    let wasm = Spec { name: "uploaded".into(), ..Spec::default() }.wasm();
    let mut load_with = |change: &dyn Fn(&mut ic::UploadCanisterSnapshotMetadataArgs)| {
        let uploaded = upload_metadata(&mut node, id, |argument| {
            argument.wasm_module_size = wasm.len() as u64;
            change(argument);
        })
        .unwrap();
        let to = To::WasmModule { offset: 0 };
        upload(&mut node, id, &uploaded, to, wasm.clone()).unwrap();
        let version = node.canister(id).version;
        let loaded = load(&mut node, id, &uploaded);
        assert_eq!(node.canister(id).version, version + u64::from(loaded.is_ok()));
        node.manage(user(1), id, "delete_canister_snapshot", &named(id, &uploaded)).unwrap();
        loaded.map(|_| ()).map_err(|reject| reject.error_code.0)
    };
    assert_eq!(load_with(&|argument| argument.globals = vec![]), Err(408));
    let other_type = vec![ic::SnapshotMetadataGlobal::F64(1.0)];
    assert_eq!(load_with(&|argument| argument.globals.clone_from(&other_type)), Err(408));
    assert_eq!(load_with(&|argument| argument.wasm_memory_size = 0), Err(408));
    let ready = ic::OnLowWasmMemoryHookStatus::Ready;
    let hook = Some(ready);
    assert_eq!(
        load_with(&|argument| argument.on_low_wasm_memory_hook_status.clone_from(&hook)),
        Err(408)
    );
    assert_eq!(load_with(&|_| ()), Ok(()));
    assert_eq!(node.call(id, &[Op::Reply(b"up".to_vec())]).unwrap(), b"up");
}

// Promise: P4 - Snapshots count in the disk of their canister and are deleted with it.
#[test]
fn snapshots_cost_cycles_and_room_and_go_when_there_are_none() {
    let mut node = Node::new();
    let id = deployed(&mut node);
    let cycles = node.canister(id).cycles;
    let snapshot = take(&mut node, id);
    let spent = cycles - node.canister(id).cycles;
    let least = 2_000_000_000 + u128::from(snapshot.total_size);
    assert!((least..least + 100_000_000).contains(&spent), "{spent}");

    let poor = node.create_with(1_000_000_000);
    let error = load(&mut node, poor, &snapshot.id).unwrap_err();
    assert_eq!(error.error_code.0, 207);
    let large = limits().module.stable_bytes / WASM_PAGE * WASM_PAGE;
    let error =
        upload_metadata(&mut node, id, |argument| argument.stable_memory_size = large).unwrap_err();
    assert!([101, 532].contains(&error.error_code.0), "{}", error.message);

    // A month of storage is more than is left.
    let rich = node.create_with(50_000_000_000);
    let size = 4_000 * WASM_PAGE;
    let error = upload_metadata(&mut node, rich, |argument| argument.stable_memory_size = size)
        .unwrap_err();
    assert_eq!(error.error_code.0, 532, "{}", error.message);

    let freezing = ic::CanisterSettings {
        freezing_threshold: Some(Nat::from(0u8)),
        ..ic::CanisterSettings::default()
    };
    let settings = ic::UpdateSettingsArgs {
        canister_id: id,
        settings: freezing,
        sender_canister_version: None,
    };
    node.manage(user(1), id, "update_settings", &settings).unwrap();
    let rest = node.canister(id).cycles - 100_000_000;
    node.call(id, &[Op::Burn(rest), Op::Reply(vec![])]).unwrap();
    node.seconds_per_round = 1_000_000_000;
    for _ in 0..3 {
        node.round();
    }
    assert!(node.canister(id).execution.is_none());
    assert!(node.canister(id).snapshots.is_empty());
}

#[test]
fn a_snapshot_is_loaded_and_taken_where_the_subnet_has_room_for_it_once_more() {
    let mut limits = limits();
    // Little by little: the rest is divided among the executing canisters.
    let grow = |node: &mut Node, id| {
        for _ in 0..8 {
            node.call(id, &[Op::Grow(250), Op::Reply(vec![])]).unwrap();
        }
    };
    let mut node = Node::with(limits.clone());
    let id = deployed(&mut node);
    grow(&mut node, id);
    take(&mut node, id);
    let taken = node.executor.state().totals().memory_taken;
    drop(node);
    // Twice its memory fits, with little room to spare.
    limits.subnet.memory_capacity_bytes = taken + 1_000 * WASM_PAGE;
    let mut node = Node::with(limits);
    let id = deployed(&mut node);
    grow(&mut node, id);
    let snapshot = take(&mut node, id);
    let before = content(&mut node, id);
    let refused = [
        load(&mut node, id, &snapshot.id).unwrap_err(),
        take_with(&mut node, id, Some(snapshot.id.clone()), None).unwrap_err(),
    ];
    for reject in refused {
        assert!(reject.message.contains("memory_capacity_bytes"), "{}", reject.message);
    }
    assert_eq!(content(&mut node, id), before);
    assert_eq!(list(&mut node, id), std::slice::from_ref(&snapshot));
    // Taking the memories over copies nothing.
    take_with(&mut node, id, Some(snapshot.id), Some(true)).unwrap();
}

#[test]
fn a_canister_takes_and_loads_snapshots_of_another() {
    let mut node = Node::new();
    let (a, b) = (deployed(&mut node), deployed(&mut node));
    let settings =
        ic::CanisterSettings { controllers: Some(vec![user(1), a]), ..Default::default() };
    let change = ic::UpdateSettingsArgs { canister_id: b, settings, sender_canister_version: None };
    node.manage(user(1), b, "update_settings", &change).unwrap();
    let manage = |method: &str, arg: Vec<u8>| {
        let mut call = CallOp::new(Principal::management_canister(), &[]);
        (call.method, call.arg) = (method.into(), arg);
        call.on_reject = vec![Op::ReplyReject];
        [call.op()]
    };
    let arg = candid::encode_one(record(b)).unwrap();
    let reply = node.call(a, &manage("take_canister_snapshot", arg)).unwrap();
    let snapshot: ic::Snapshot = decode(&reply);
    node.call(b, &[note("lost"), Op::Reply(vec![])]).unwrap();
    let load = |version| {
        candid::encode_one(ic::LoadCanisterSnapshotArgs {
            canister_id: b,
            snapshot_id: snapshot.id.clone(),
            sender_canister_version: Some(version),
        })
        .unwrap()
    };
    let version = node.canister(a).version;
    let told = node.call(a, &manage("load_canister_snapshot", load(version + 10))).unwrap();
    assert!(told.starts_with(b"5: "), "{}", String::from_utf8_lossy(&told));
    let version = node.canister(a).version;
    node.call(a, &manage("load_canister_snapshot", load(version))).unwrap();
    assert_eq!(node.notes(b), ["kept"]);
    let arg = candid::encode_one(record(a)).unwrap();
    let told = node.call(b, &manage("take_canister_snapshot", arg)).unwrap();
    assert!(told.starts_with(b"5: "), "no controller: {}", String::from_utf8_lossy(&told));
}
