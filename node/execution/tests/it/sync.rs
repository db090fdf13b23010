//! State sync: manifests that agree whatever else nodes do, snapshots that are shown while their
//! node continues, and states built from chunks, over crashes, invalid chunks and full disks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use disk::{RealDisk, SharedDisk, SimulatedDisk};
use ic_management_canister_types::{CanisterInstallMode, UploadChunkArgs};
use limits::Limits;
use pages::{PAGE_BYTES, read_pages};
use sha2::{Digest, Sha256};
use state::manifest::{Body, CHUNK_BYTES_MAX, Header, LEAF_BYTES, encode_leaf, piece_hash};
use state::{Batch, CanisterId, ChunkId, Height, ObjectId, Randomness};
use statesync::{
    InstallError, LocalState, OfferError, ServeError, SnapshotSource, StateInstaller,
    complete_install, complete_install_on,
};
use testing::SmallDisk;

use crate::common::{self, CallOp, Node, Op, Spec, limits, subnet_config, user};

const MIB: u64 = 1 << 20;

fn sync_limits() -> Limits {
    let mut limits = limits();
    limits.pages.checkpoint_interval_rounds = 10;
    limits.pages.manifest_interval_rounds = 10;
    limits.pages.manifest_lag_rounds = 3;
    limits.pages.manifest_lease_rounds = 25;
    limits
}

/// A node with a state worth fetching: canisters with heap, stable memory with holes, history, a
/// log, chunks, messages under way.
fn populated(limits: Limits) -> (Node, Vec<CanisterId>) {
    let mut node = Node::of_subnet(limits);
    let ids: Vec<_> = (0..4)
        .map(|number| {
            node.deploy(&Spec {
                name: format!("canister {number}"),
                heartbeat: (number == 3).then(|| vec![Op::Spend(1_000)]),
                ..Spec::default()
            })
        })
        .collect();
    for (number, id) in (1u64..).zip(&ids) {
        node.call(*id, &[Op::Grow(number * 100), Op::Reply(vec![])]).unwrap();
        for part in 0..number {
            // Two leaves full of pages, then one with a few, then a hole.
            let at = part * 1_000;
            let program = [
                Op::Write(at, 130, part + 10),
                Op::Write(at + 140, 1, 7),
                Op::Note(vec![7; 3_000]),
                Op::Reply(vec![1; 500]),
            ];
            node.call(*id, &program).unwrap();
        }
        node.call(*id, &[Op::Print(b"hello".to_vec()), Op::Reply(vec![])]).unwrap();
    }
    for number in 0..3u8 {
        let chunk = UploadChunkArgs {
            canister_id: ids[0],
            chunk: vec![number; 300_000 + usize::from(number)],
        };
        node.manage(user(1), ids[0], "upload_chunk", &chunk).unwrap();
    }
    (node, ids)
}

/// Rounds until a snapshot of a later height than `after` can be fetched.
fn until_newer(node: &mut Node, after: Height) -> (Height, [u8; 32]) {
    for _ in 0..200 {
        node.round();
        if let Some((height, root)) = node.executor.snapshots().newest()
            && height > after
        {
            return (height, root);
        }
    }
    panic!("no manifest after height {}", after.0);
}

fn begin(dir: &Path, height: Height, root: [u8; 32], local: Option<LocalState>) -> StateInstaller {
    let disk = RealDisk::shared();
    StateInstaller::begin_on(disk, dir, height, root, Arc::new(sync_limits()), local).unwrap()
}

/// Fetches up to `chunks` chunks.
fn fetch(installer: &mut StateInstaller, source: &SnapshotSource, chunks: usize) {
    let mut left = chunks;
    while left > 0 && !installer.is_complete() {
        for chunk in installer.missing(left.min(16)).unwrap() {
            let bytes = source.chunk(installer.height(), chunk).unwrap();
            assert!(bytes.len() <= CHUNK_BYTES_MAX && CHUNK_BYTES_MAX <= 1 << 20);
            installer.offer(chunk, &bytes).unwrap();
            left -= 1;
        }
    }
}

/// Batches of a node behind a height.
fn after(node: &Node, height: Height) -> Vec<(Batch, [u8; 32])> {
    let log = node.log.iter().filter(|(batch, ..)| batch.height > height);
    log.map(|(batch, _, root)| (batch.clone(), *root)).collect()
}

/// Checks that the node in `dir` is at `height` and continues as the source did.
fn check_installed(dir: &Path, source: &mut Node, height: Height) -> Node {
    let mut node = Node::at(dir.to_path_buf(), source.config.clone(), None);
    assert_eq!(node.executor.height(), height);
    let root = source.log.iter().find(|(batch, ..)| batch.height == height).unwrap().2;
    assert_eq!(node.executor.root(), root);
    for _ in 0..25 {
        source.round();
    }
    for (batch, root) in after(source, height) {
        let result = node.execute(batch, &[]);
        assert_eq!(result.root, root, "height {}", node.executor.height().0);
    }
    assert_eq!(content(&node), content(source));
    node
}

/// Every memory as it reads now, up to its size.
fn content(node: &Node) -> BTreeMap<u64, [u8; 32]> {
    let executions =
        node.executor.state().canisters().filter_map(|canister| canister.execution.as_ref());
    let memories = executions.flat_map(|execution| [&execution.heap, &execution.stable]);
    let memories = memories.map(|memory| (memory.id, memory.bytes()));
    let snapshots =
        node.executor.state().canisters().flat_map(|canister| canister.snapshots.iter());
    let of_snapshots = snapshots.flat_map(|(_, snapshot)| {
        [snapshot.heap, snapshot.stable].map(|memory| (memory.id, memory.bytes()))
    });
    memories
        .chain(of_snapshots)
        .map(|(id, size)| {
            let mut bytes = vec![0; size as usize];
            read_pages(&node.pages.layout(id).unwrap(), 0, &mut bytes).unwrap();
            (id.0, Sha256::digest(&bytes).into())
        })
        .collect()
}

/// Heights and roots of manifests as they entered the tree.
fn certified_manifests(node: &Node, seen: &mut Vec<(Height, [u8; 32])>) {
    let shown = node.executor.reader().latest().and_then(|state| state.manifest());
    if let Some(shown) = shown
        && seen.last() != Some(&shown)
    {
        seen.push(shown);
    }
}

/// The work of a subnet: batches that are the same for every node.
fn work(node: &mut Node, ids: &[CanisterId], step: u64) {
    for (number, id) in (1u64..).zip(ids) {
        let at = (step * 37 * number) % (number * 1_600 - 40);
        node.send(
            *id,
            &[
                Op::Write(at, 1 + step % 30, step + 100),
                Op::Note(vec![step as u8; 20]),
                Op::Reply(vec![2; 100]),
            ],
        );
    }
    if step % 9 == 4 {
        // A leaf that becomes zero again.
        node.send(ids[1], &[Op::Write(0, 130, 0), Op::Reply(vec![])]);
    }
    if step == 21 {
        // One heap goes and another comes.
        let spec = Spec { name: "again".into(), ..Spec::default() };
        node.install(ids[2], CanisterInstallMode::Reinstall, &spec).unwrap();
    }
}

#[test]
fn manifests_agree_whatever_else_the_nodes_do() {
    let (mut plain, ids) = populated(sync_limits());
    let mut seen = vec![];
    for step in 0..60 {
        work(&mut plain, &ids, step);
        plain.round();
        certified_manifests(&plain, &mut seen);
    }
    assert!(seen.len() >= 5, "only {} manifests", seen.len());
    // Another node, given the same batches, which checkpoints at other times and dies now and then.
    let mut limits = sync_limits();
    limits.execution.threads = 4;
    let mut other = Node::of_subnet(limits);
    let mut shown = vec![];
    let mut restarts = 0;
    for (batch, _, root) in plain.log.clone() {
        let height = batch.height.0;
        assert_eq!(other.execute(batch, &[]).root, root, "height {height}");
        certified_manifests(&other, &mut shown);
        if height % 7 == 3 {
            other.executor.checkpoint().unwrap();
        }
        if height % 11 == 5
            || other.executor.state().subnet.manifest.pending() == Some(Height(height))
                && height % 2 == 0
        {
            other = other.restart();
            restarts += 1;
        }
    }
    assert!(restarts > 8);
    let shown: BTreeSet<_> = shown.into_iter().collect();
    assert!(seen.iter().all(|manifest| shown.contains(manifest)));
}

/// Computes the body of the manifest anew, from what can be read, and compares.
fn check_from_scratch(node: &Node, height: Height) {
    let source = node.executor.snapshots();
    let header = Header::from_bytes(&source.chunk(height, ChunkId::Manifest(0)).unwrap()).unwrap();
    let pieces: Vec<Vec<u8>> = (1..=header.pieces.len() as u32)
        .map(|index| source.chunk(height, ChunkId::Manifest(index)).unwrap())
        .collect();
    for (piece, hash) in pieces.iter().zip(&header.pieces) {
        assert_eq!(piece_hash(piece), *hash);
    }
    let body = pieces.concat();
    let mut rows = Body::new(body.as_slice(), header.body_bytes);
    let (mut memories, mut records) = (0, 0);
    while let Some(object) = rows.object().unwrap() {
        let mut listed = BTreeMap::new();
        while let Some((index, hash)) = rows.row().unwrap() {
            let bytes = source.chunk(height, ChunkId::Leaf(object.id, index)).unwrap();
            assert_eq!(piece_hash(&bytes), hash);
            listed.insert(index, hash);
        }
        match object.id {
            ObjectId::Memory(id) => {
                memories += 1;
                let layout = node.pages.layout(id).unwrap();
                // Beyond that nothing was ever written.
                for index in 0..(40 * MIB).min(object.length) / LEAF_BYTES as u64 {
                    let mut leaf = vec![0; LEAF_BYTES];
                    read_pages(&layout, index * LEAF_BYTES as u64 / PAGE_BYTES, &mut leaf).unwrap();
                    let mut encoded = vec![];
                    let hash = encode_leaf(&leaf, &mut encoded).then(|| piece_hash(&encoded));
                    assert_eq!(
                        listed.get(&(index as u32)).copied(),
                        hash,
                        "leaf {index} of memory {}",
                        id.0
                    );
                }
            }
            ObjectId::Records => records += 1,
            ObjectId::Blob(_) | ObjectId::Payload(_) => {}
        }
    }
    assert_eq!((memories, records), (8, 1));
}

#[test]
fn an_incremental_manifest_is_one_from_scratch() {
    let mut limits = sync_limits();
    limits.pages.manifest_lag_rounds = 1;
    let (mut node, ids) = populated(limits);
    let mut checked = 0;
    let mut before = None;
    for step in 0..60 {
        work(&mut node, &ids, step);
        node.round();
        // Right after the round in which the root entered nothing but that round was executed: one
        // without work.
        let pending = node.executor.state().subnet.manifest.pending();
        if pending == Some(node.executor.height()) {
            node.waiting.clear();
            node.round();
            let newest = node.executor.snapshots().newest().map(|(height, _)| height);
            assert_eq!(newest, pending);
            assert_ne!(newest, before);
            before = newest;
            check_from_scratch(&node, pending.unwrap());
            checked += 1;
        }
    }
    assert!(checked >= 4);
}

#[test]
fn a_subnet_of_one_makes_no_manifests() {
    let mut node = Node::with(sync_limits());
    node.deploy(&Spec::default());
    for _ in 0..30 {
        node.round();
    }
    assert_eq!(node.executor.snapshots().newest(), None);
    assert!(!node.executor.manifest_owed());
}

#[test]
fn a_batch_is_not_executed_over_a_state_that_is_owed_a_manifest() {
    let mut node = Node::of_subnet(sync_limits());
    let mut batch = None;
    for number in 1..=11u64 {
        let next = Batch {
            height: Height(number),
            time: state::Time(1_700_000_000_000_000_000 + number),
            randomness: Randomness::Drawn([1; 32]),
            ingress: vec![],
            outcalls: vec![],
            key: None,
            agreed: None,
            queries: None,
        };
        match node.executor.execute(&next, &[]) {
            Ok(result) => {
                assert_eq!(result.manifest, number == 10);
                node.executor.certify(next.height, vec![0; 48]).unwrap();
            }
            Err(error) => {
                assert_eq!(number, 11);
                assert!(matches!(error, execution::FatalError::ManifestOwed(10)), "{error}");
                batch = Some(next);
            }
        }
    }
    node.executor.checkpoint().unwrap();
    node.executor.execute(&batch.unwrap(), &[]).unwrap();
}

#[test]
fn the_root_is_in_the_certificate() {
    let (mut node, _) = populated(sync_limits());
    let (height, root) = until_newer(&mut node, Height(0));
    let state = node.executor.reader().latest().unwrap();
    assert_eq!(state.manifest(), Some((height, root)));
    let certificate = state.certificate(&[vec![b"state_manifest".to_vec()]]);
    assert!(certificate.windows(32).any(|window| window == root));
}

#[test]
fn a_state_is_put_together_in_an_empty_directory() {
    let (mut source, ids) = populated(sync_limits());
    for step in 0..10 {
        work(&mut source, &ids, step);
        source.round();
    }
    let now = source.executor.height();
    let (height, root) = until_newer(&mut source, now);
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    assert_eq!(installer.missing(10).unwrap(), [ChunkId::Manifest(0)]);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    let progress = installer.progress();
    assert_eq!(progress.bytes_done, progress.bytes_total);
    assert_eq!(progress.chunks_done, progress.chunks_total);
    assert_eq!(progress.bytes_reused, 0);
    assert!(progress.bytes_total > 4 * MIB);
    assert_eq!(installer.finish().unwrap(), height);
    assert!(!dir.path().join("sync").exists());
    // It comes up as a node that shows the same snapshot itself once it has executed the rounds up
    // to its certificate.
    let node = check_installed(dir.path(), &mut source, height);
    assert_eq!(node.executor.snapshots().newest(), source.executor.snapshots().newest());
}

// Promise: P19 - A fetched state includes the snapshots of canisters.
#[test]
fn snapshots_of_canisters_come_with_a_state_that_is_fetched() {
    let (mut source, ids) = populated(sync_limits());
    let record = ic_management_canister_types::CanisterIdRecord { canister_id: ids[2] };
    let taken = source.manage(user(1), ids[2], "take_canister_snapshot", &record).unwrap();
    let taken: ic_management_canister_types::Snapshot = common::decode(&taken);
    let notes = source.notes(ids[2]);
    let first = source.canister(ids[0]).id;
    let record = ic_management_canister_types::TakeCanisterSnapshotArgs {
        canister_id: first,
        replace_snapshot: None,
        uninstall_code: Some(true),
        sender_canister_version: None,
    };
    source.manage(user(1), first, "take_canister_snapshot", &record).unwrap();
    source.call(ids[2], &[Op::Note(vec![1]), Op::Reply(vec![])]).unwrap();
    let now = source.executor.height();
    let (height, root) = until_newer(&mut source, now);
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    installer.finish().unwrap();
    let mut node = check_installed(dir.path(), &mut source, height);
    node.number_calls_after(&source);
    let load = ic_management_canister_types::LoadCanisterSnapshotArgs {
        canister_id: ids[2],
        snapshot_id: taken.id,
        sender_canister_version: None,
    };
    node.manage(user(1), ids[2], "load_canister_snapshot", &load).unwrap();
    assert_eq!(node.notes(ids[2]), notes);
    let chunks = node.canister(first).snapshots.get(0).unwrap().chunks.len();
    assert_eq!((chunks, node.canister(first).chunks.len()), (3, 0));
}

#[test]
fn an_installed_state_can_be_fetched_from_at_once() {
    let (mut source, _) = populated(sync_limits());
    let (height, root) = until_newer(&mut source, Height(0));
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut installer = begin(dirs[0].path(), height, root, None);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    installer.finish().unwrap();
    let mut node = Node::at(dirs[0].path().to_path_buf(), source.config.clone(), None);
    for (batch, root) in after(&source, height) {
        assert_eq!(node.execute(batch, &[]).root, root);
    }
    assert_eq!(node.executor.snapshots().newest(), Some((height, root)));
    let mut installer = begin(dirs[1].path(), height, root, None);
    fetch(&mut installer, &node.executor.snapshots(), usize::MAX);
    installer.finish().unwrap();
    check_installed(dirs[1].path(), &mut source, height);
}

#[test]
fn a_stale_state_is_brought_up_to_date_with_what_it_has() {
    let (mut source, ids) = populated(sync_limits());
    let mut stale = Node::of_subnet(sync_limits());
    for (batch, ..) in source.log.clone() {
        stale.execute(batch, &[]);
    }
    let stopped_at = stale.executor.height();
    for step in 0..6 {
        work(&mut source, &ids, step);
        source.round();
    }
    let (height, root) = until_newer(&mut source, stopped_at);
    let dir = stale.dir.clone();
    // While its executor still answers queries.
    let local = stale.executor.local_state().unwrap();
    let mut installer = begin(&dir, height, root, local);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    let progress = installer.progress();
    assert_eq!(progress.bytes_done, progress.bytes_total);
    assert!(progress.bytes_reused * 3 > progress.bytes_total, "{progress:?}");
    assert!(progress.bytes_reused < progress.bytes_total);
    assert!(
        matches!(installer.finish(), Err(InstallError::InUse { .. })),
        "the executor has the stores open"
    );
    let keep = close(stale);
    // And again, from the closed stores: everything is in the staging directory by now.
    let local = LocalState::open(&dir, &sync_limits()).unwrap();
    let mut installer = begin(&dir, height, root, local);
    while !installer.is_complete() {
        assert_eq!(installer.missing(100).unwrap(), []);
    }
    assert_eq!(installer.progress().bytes_reused, installer.progress().bytes_total);
    installer.finish().unwrap();
    check_installed(&dir, &mut source, height);
    drop(keep);
}

/// Ends a node and keeps its directory.
fn close(node: Node) -> Option<tempfile::TempDir> {
    let Node { temporary, executor, pages, .. } = node;
    drop((executor, pages));
    temporary
}

#[test]
fn wrong_chunks_are_refused_and_cost_nothing() {
    let (mut source, _) = populated(sync_limits());
    let (height, root) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    let (mut refused, mut kinds) = (0, BTreeSet::new());
    while !installer.is_complete() {
        for chunk in installer.missing(8).unwrap() {
            let bytes = snapshots.chunk(height, chunk).unwrap();
            kinds.insert(match chunk {
                ChunkId::Manifest(0) => 0,
                ChunkId::Manifest(_) => 1,
                ChunkId::Leaf(ObjectId::Records, _) => 2,
                ChunkId::Leaf(ObjectId::Memory(_), _) => 3,
                ChunkId::Leaf(ObjectId::Blob(_), _) => 4,
                ChunkId::Leaf(ObjectId::Payload(_), _) => 5,
            });
            let mut flipped = bytes.clone();
            let at = (refused * 7919) % flipped.len();
            flipped[at] ^= 1;
            let longer = [bytes.as_slice(), &[0]].concat();
            let wrong: [&[u8]; 4] = [&flipped, &longer, &bytes[..bytes.len() - 1], &[]];
            for wrong in wrong {
                let error = installer.offer(chunk, wrong).unwrap_err();
                assert!(matches!(error, OfferError::Wrong(_)), "{error}");
                refused += 1;
            }
            let elsewhere = match chunk {
                ChunkId::Manifest(index) => ChunkId::Manifest(index + 1_000),
                ChunkId::Leaf(object, index) => ChunkId::Leaf(object, index + 1_000_000),
            };
            let error = installer.offer(elsewhere, &bytes).unwrap_err();
            assert!(matches!(error, OfferError::NotWanted(_)), "{error}");
            installer.offer(chunk, &bytes).unwrap();
            let again = installer.offer(chunk, &bytes).unwrap_err();
            let is_fault = matches!(again, OfferError::Wrong(_));
            assert!(!is_fault, "a chunk that came twice is not a fault");
        }
    }
    assert_eq!(kinds.len(), 5);
    installer.finish().unwrap();
    check_installed(dir.path(), &mut source, height);
}

#[test]
fn an_installation_goes_on_after_every_interruption() {
    let (mut source, ids) = populated(sync_limits());
    let (height, root) = until_newer(&mut source, Height(0));
    let dir = tempfile::tempdir().unwrap();
    let sync = dir.path().join("sync");
    let mut done = 0;
    for attempt in 0u64.. {
        let mut installer = begin(dir.path(), height, root, None);
        // What was there is found again, whatever is missing of it.
        while installer.missing(1).unwrap().is_empty() && !installer.is_complete() {}
        fetch(&mut installer, &source.executor.snapshots(), 5);
        while !installer.is_complete() && installer.progress().bytes_done < done {
            installer.missing(1_000).unwrap();
        }
        assert!(installer.progress().bytes_done >= done);
        done = installer.progress().bytes_done;
        if installer.is_complete() {
            break;
        }
        assert!(matches!(installer.finish(), Err(InstallError::Incomplete { .. })));
        // Files cut short, overwritten and added by whatever happened to the disk.
        if attempt % 4 == 1 {
            let files: Vec<PathBuf> = ["header", "body", "records"]
                .iter()
                .map(|name| sync.join(name))
                .filter(|path| path.exists())
                .collect();
            let path = &files[attempt as usize / 4 % files.len()];
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            fs::write(sync.join("pages").join("999.base"), [1; 5_000]).unwrap();
            fs::write(sync.join("state").join("state.redb"), b"half a store").unwrap();
            done = 0;
        }
    }
    // A newer manifest: what did not change is kept.
    work(&mut source, &ids, 1);
    let (height, root) = until_newer(&mut source, height);
    let mut installer = begin(dir.path(), height, root, None);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    let progress = installer.progress();
    assert!(progress.bytes_reused * 2 > progress.bytes_total, "{progress:?}");
    assert!(progress.bytes_reused < progress.bytes_total);
    installer.finish().unwrap();
    check_installed(dir.path(), &mut source, height);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            // Sparse files stay sparse.
            let done = Command::new("cp")
                .arg("--sparse=always")
                .arg(entry.path())
                .arg(&target)
                .status()
                .unwrap();
            assert!(done.success());
        }
    }
}

#[test]
fn a_crash_within_the_swap_leaves_the_old_state_or_the_new_one() {
    let (mut source, ids) = populated(sync_limits());
    let (first, _) = until_newer(&mut source, Height(0));
    let mut stale = Node::of_subnet(sync_limits());
    for (batch, ..) in source.log.clone() {
        stale.execute(batch, &[]);
    }
    stale.executor.checkpoint().unwrap();
    let old_height = stale.executor.height();
    work(&mut source, &ids, 3);
    let (height, root) = until_newer(&mut source, first);
    let old = close(stale).unwrap();
    // A complete installation, taken apart again: the new state under sync/, the old one next to
    // it.
    let ready = tempfile::tempdir().unwrap();
    let mut installer = begin(ready.path(), height, root, None);
    fetch(&mut installer, &source.executor.snapshots(), usize::MAX);
    installer.finish().unwrap();
    for steps in 0..=6usize {
        let dir = tempfile::tempdir().unwrap();
        let (data, sync) = (dir.path(), dir.path().join("sync"));
        copy_tree(old.path(), data);
        copy_tree(&ready.path().join("pages"), &sync.join("pages"));
        copy_tree(&ready.path().join("state"), &sync.join("state"));
        let moves: [(PathBuf, PathBuf); 4] = [
            (data.join("pages"), sync.join("old-pages")),
            (sync.join("pages"), data.join("pages")),
            (data.join("state"), sync.join("old-state")),
            (sync.join("state"), data.join("state")),
        ];
        if steps > 0 {
            fs::write(sync.join("complete"), b"").unwrap();
        }
        for (from, to) in moves.iter().take(steps.saturating_sub(1)) {
            fs::rename(from, to).unwrap();
        }
        if steps == 6 {
            fs::remove_file(sync.join("complete")).unwrap();
        }
        assert_eq!(complete_install(data).unwrap(), (1..6).contains(&steps), "after {steps} steps");
        assert!(!complete_install(data).unwrap(), "twice is once");
        let node = Node::at(data.to_path_buf(), source.config.clone(), None);
        assert_eq!(node.executor.height(), if steps == 0 { old_height } else { height });
        drop(node);
        if steps > 0 {
            check_installed(data, &mut source, height);
        }
    }
}

/// Fetches a state into a data folder on this disk, until it counts.
fn install_on(
    disk: &SimulatedDisk,
    data: &Path,
    (height, root): (Height, [u8; 32]),
    source: &SnapshotSource,
) -> Result<(), OfferError> {
    let disk: SharedDisk = Arc::new(disk.clone());
    let mut installer =
        StateInstaller::begin_on(disk, data, height, root, Arc::new(sync_limits()), None)?;
    while !installer.is_complete() {
        for chunk in installer.missing(16)? {
            installer.offer(chunk, &source.chunk(height, chunk).unwrap())?;
        }
    }
    installer.prepare()?;
    Ok(())
}

// Promise: P6 - A power cut during state installation leaves the old state or the new one.
#[test]
fn a_power_cut_at_any_operation_of_an_installation_leaves_the_old_state_or_the_new_one() {
    let (mut source, ids) = populated(sync_limits());
    let mut stale = Node::of_subnet(sync_limits());
    for (batch, ..) in source.log.clone() {
        stale.execute(batch, &[]);
    }
    stale.executor.checkpoint().unwrap();
    let (old_height, old_content) = (stale.executor.height(), content(&stale));
    work(&mut source, &ids, 3);
    let goal = until_newer(&mut source, old_height);
    let snapshots = source.executor.snapshots();
    let old = close(stale).unwrap();
    let machine = |seed: u64| {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        copy_tree(old.path(), &data);
        let disk = SimulatedDisk::new(dir.path(), seed).unwrap();
        (dir, data, disk)
    };
    let state_in = |data: &Path| {
        let node = Node::at(data.to_path_buf(), source.config.clone(), None);
        let log = source.log.iter().find(|(batch, ..)| batch.height == node.executor.height());
        assert_eq!(log.unwrap().2, node.executor.root());
        (node.executor.height(), content(&node))
    };
    let (_dir, data, disk) = machine(0);
    install_on(&disk, &data, goal, &snapshots).unwrap();
    let fetched = disk.operations();
    assert!(complete_install_on(&disk, &data).unwrap());
    let operations = disk.operations();
    let (new_height, new_content) = state_in(&data);
    assert!(new_height == goal.0 && new_height > old_height);
    // Fetching is many operations like each other.
    let looked_at = (1..fetched)
        .step_by(1 + fetched as usize / 40)
        .chain(fetched.saturating_sub(30)..=operations);
    let (mut old_ones, mut new_ones) = (0, 0);
    for operation in looked_at {
        let (dir, data, disk) = machine(operation);
        disk.end_after(operation, operation.is_multiple_of(2));
        let counts = install_on(&disk, &data, goal, &snapshots).is_ok();
        let _ = counts && complete_install_on(&disk, &data).is_ok();
        disk.cut_power().unwrap();
        // The next start is cut short as well.
        disk.end_after(operation % 13, operation.is_multiple_of(3));
        let _ = complete_install_on(&disk, &data);
        disk.cut_power().unwrap();
        complete_install_on(&disk, &data).unwrap();
        let (height, content) = state_in(&data);
        if height == new_height {
            assert_eq!(content, new_content, "operation {operation} of {operations}");
            new_ones += 1;
            continue;
        }
        assert!(
            !counts && height == old_height,
            "operation {operation} of {operations}: height {}",
            height.0
        );
        assert_eq!(content, old_content, "operation {operation} of {operations}");
        old_ones += 1;
        // Remaining chunks of the earlier fetch are used, or fetched again. (The node that was
        // checked did not use the simulated disk, so it begins anew.)
        let disk = SimulatedDisk::new(dir.path(), operation).unwrap();
        install_on(&disk, &data, goal, &snapshots).unwrap();
        disk.cut_power().unwrap();
        complete_install_on(&disk, &data).unwrap();
        assert_eq!(
            state_in(&data),
            (new_height, new_content.clone()),
            "operation {operation} of {operations}"
        );
    }
    println!("{operations} operations: {old_ones} cuts left the old state, {new_ones} the new one");
    assert!(old_ones > 30 && new_ones > 10);
}

const CHILD_DIR: &str = "SYNC_CHILD_DIR";
const CHILD_CHUNKS: &str = "SYNC_CHILD_CHUNKS";
const CHILD_GOAL: &str = "SYNC_CHILD_GOAL";

fn chunk_file(dir: &Path, chunk: ChunkId) -> PathBuf {
    dir.join(chunk.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Not a test by itself: the process that is killed by the one below.
#[test]
fn child_installs() {
    let (Some(dir), Some(chunks), Ok(goal)) =
        (std::env::var_os(CHILD_DIR), std::env::var_os(CHILD_CHUNKS), std::env::var(CHILD_GOAL))
    else {
        return;
    };
    let (dir, chunks) = (PathBuf::from(dir), PathBuf::from(chunks));
    complete_install(&dir).unwrap();
    let (height, root) = goal.split_once(':').unwrap();
    let height = Height(height.parse().unwrap());
    let root: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&root[2 * at..2 * at + 2], 16).unwrap()).collect();
    if let Some(local) = LocalState::open(&dir, &sync_limits()).unwrap() {
        // Opened before, to see that it can be; an installed state has the height.
        drop(local);
        let node = Node::at(dir.clone(), subnet_config(sync_limits()), None);
        if node.executor.height() == height {
            return;
        }
    }
    let local = LocalState::open(&dir, &sync_limits()).unwrap();
    let mut installer = begin(&dir, height, root.try_into().unwrap(), local);
    while !installer.is_complete() {
        for chunk in installer.missing(4).unwrap() {
            installer.offer(chunk, &fs::read(chunk_file(&chunks, chunk)).unwrap()).unwrap();
        }
    }
    installer.finish().unwrap();
}

#[test]
fn an_installer_that_is_killed_again_and_again_gets_there() {
    let (mut source, ids) = populated(sync_limits());
    let mut stale = Node::of_subnet(sync_limits());
    for (batch, ..) in source.log.clone() {
        stale.execute(batch, &[]);
    }
    stale.executor.checkpoint().unwrap();
    let old_height = stale.executor.height();
    for step in 0..12 {
        work(&mut source, &ids, step);
        source.round();
    }
    let (height, root) = until_newer(&mut source, old_height);
    let snapshots = source.executor.snapshots();
    // Every chunk as a file, taken from an installation that is thrown away.
    let chunks = tempfile::tempdir().unwrap();
    let thrown_away = tempfile::tempdir().unwrap();
    let mut installer = begin(thrown_away.path(), height, root, None);
    while !installer.is_complete() {
        for chunk in installer.missing(16).unwrap() {
            let bytes = snapshots.chunk(height, chunk).unwrap();
            fs::write(chunk_file(chunks.path(), chunk), &bytes).unwrap();
            installer.offer(chunk, &bytes).unwrap();
        }
    }
    drop(installer);
    let dir = close(stale).unwrap();
    let hex: String = root.iter().map(|byte| format!("{byte:02x}")).collect();
    let (mut kills, mut wait) = (0u32, Duration::from_millis(5));
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sync::child_installs", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .env(CHILD_CHUNKS, chunks.path())
            .env(CHILD_GOAL, format!("{}:{hex}", height.0))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(wait);
        match child.try_wait().unwrap() {
            Some(status) => {
                let output = child.wait_with_output().unwrap();
                assert!(status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                break;
            }
            None => {
                // SIGKILL, wherever it is.
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
                // By a part of itself, so that a slow machine is not given hundreds of them.
                wait += wait / 10 + Duration::from_millis(u64::from(1 + kills % 5));
            }
        }
        assert!(kills < 500, "it never gets there");
    }
    println!("killed {kills} times");
    assert!(kills > 3, "it was never interrupted");
    check_installed(dir.path(), &mut source, height);
}

#[test]
fn a_full_disk_stops_an_installation_until_there_is_room() {
    let (mut source, _) = populated(sync_limits());
    let (height, root) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "3m") else { return };
    let mut installer = begin(dir.path(), height, root, None);
    let failed = loop {
        let chunk = installer.missing(1).unwrap()[0];
        match installer.offer(chunk, &snapshots.chunk(height, chunk).unwrap()) {
            Ok(()) => {}
            Err(error) => break error,
        }
        assert!(!installer.is_complete(), "3 MiB cannot be enough");
    };
    match failed {
        OfferError::Install(error) => assert!(error.can_heal(), "{error}"),
        rejected => panic!("{rejected}"),
    }
    disk.resize("200m");
    // The same installer continues, and so would another.
    fetch(&mut installer, &snapshots, usize::MAX);
    installer.finish().unwrap();
    check_installed(dir.path(), &mut source, height);
}

#[test]
fn a_snapshot_stays_what_it_was_while_its_node_writes_and_folds() {
    let (mut source, ids) = populated(sync_limits());
    let (height, root) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    let lease = snapshots.lease(height).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    let mut step = 0;
    while !installer.is_complete() {
        for chunk in installer.missing(3).unwrap() {
            installer.offer(chunk, &snapshots.chunk(height, chunk).unwrap()).unwrap();
        }
        if step < 20 {
            work(&mut source, &ids, step);
            source.round();
            source.executor.checkpoint().unwrap();
            source.pages.fold(8 * MIB).unwrap();
            step += 1;
        }
    }
    assert!(snapshots.newest().unwrap().0 > height, "a newer one came meanwhile");
    assert_eq!(snapshots.heights().len(), 2);
    installer.finish().unwrap();
    assert!(source.executor.height().0 > height.0 + 15);
    check_installed(dir.path(), &mut source, height);
    // The lease is bounded: enough rounds, and it is of no use.
    for _ in 0..60 {
        source.round();
    }
    assert_eq!(
        snapshots.chunk(height, ChunkId::Manifest(0)),
        Err(ServeError::NotKept {
            asked: height,
            newest: snapshots.newest().map(|(height, _)| height)
        })
    );
    drop(lease);
    assert!(snapshots.lease(height).is_none());
    // Unread, everything can be folded.
    source.executor.checkpoint().unwrap();
}

#[test]
fn many_threads_read_a_snapshot_at_once() {
    let (mut source, _) = populated(sync_limits());
    let (height, _) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    let header =
        Header::from_bytes(&snapshots.chunk(height, ChunkId::Manifest(0)).unwrap()).unwrap();
    let body = snapshots.chunk(height, ChunkId::Manifest(1)).unwrap();
    let mut rows = Body::new(body.as_slice(), header.body_bytes);
    let mut leaves = vec![];
    while let Some(object) = rows.object().unwrap() {
        while let Some((index, hash)) = rows.row().unwrap() {
            leaves.push((ChunkId::Leaf(object.id, index), hash));
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (snapshots, leaves) = (snapshots.clone(), &leaves);
            scope.spawn(move || {
                for (chunk, hash) in leaves.iter().skip(thread).step_by(2) {
                    assert_eq!(piece_hash(&snapshots.chunk(height, *chunk).unwrap()), *hash);
                }
            });
        }
    });
    assert!(matches!(
        snapshots.chunk(height, ChunkId::Leaf(ObjectId::Records, 1_000_000)),
        Err(ServeError::NoChunk { .. })
    ));
}

#[test]
fn a_full_delta_log_costs_the_snapshot_and_not_the_node() {
    let mut limits = sync_limits();
    limits.pages.delta_capacity_bytes = 3 * MIB;
    limits.pages.delta_reserve_bytes = MIB;
    limits.pages.checkpoint_delta_bytes = 1 << 40;
    limits.pages.checkpoint_interval_rounds = 40;
    limits.pages.manifest_interval_rounds = 40;
    let mut node = Node::of_subnet(limits);
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Grow(200), Op::Reply(vec![])]).unwrap();
    let (height, _) = until_newer(&mut node, Height(0));
    let snapshots = node.executor.snapshots();
    let lease = snapshots.lease(height).unwrap();
    for step in 0..53 {
        node.send(id, &[Op::Write(step * 60, 60, step + 1), Op::Reply(vec![])]);
        node.round();
        if snapshots.newest().is_none() {
            break;
        }
    }
    assert_eq!(snapshots.newest(), None, "the delta log was never nearly full");
    assert!(matches!(
        snapshots.chunk(height, ChunkId::Manifest(0)),
        Err(ServeError::NotKept { .. })
    ));
    assert_eq!(node.retry.troubles(), [], "no round had to wait");
    drop(lease);
    // The next manifest brings another.
    until_newer(&mut node, height);
}

#[test]
fn the_source_of_a_node_that_stopped_is_empty() {
    let (mut source, _) = populated(sync_limits());
    let (height, _) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    drop(source);
    assert_eq!(snapshots.newest(), None);
    assert!(matches!(
        snapshots.chunk(height, ChunkId::Manifest(0)),
        Err(ServeError::NotKept { newest: None, .. })
    ));
}

#[test]
fn two_installations_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = begin(dir.path(), Height(5), [1; 32], None);
    let (disk, limits) = (RealDisk::shared(), Arc::new(sync_limits()));
    let second = StateInstaller::begin_on(disk, dir.path(), Height(5), [1; 32], limits, None);
    assert!(matches!(second, Err(InstallError::InUse { .. })));
    drop(first);
    begin(dir.path(), Height(5), [1; 32], None);
}

#[test]
fn messages_that_wait_come_with_a_fetched_state() {
    let mut limits = sync_limits();
    limits.subnet.guaranteed_response_message_bytes = 1 << 30;
    let mut source = Node::of_subnet(limits);
    let (caller, callee) = (source.deploy(&Spec::default()), source.deploy(&Spec::default()));
    // One runs in a round: the others wait, some of them with records of their own.
    let call = |number: usize| {
        let note = vec![number as u8; if number.is_multiple_of(3) { 100_000 } else { 100 }];
        let program = [Op::Spend(3_990_000_000), Op::Note(note), Op::Reply(vec![])];
        let mut call = CallOp::new(callee, &program);
        (call.on_reply, call.on_reject) = (vec![], vec![]);
        call.op()
    };
    let program: Vec<Op> = (0..60).map(call).chain([Op::Reply(vec![])]).collect();
    source.send(caller, &program);
    source.round();
    let sent = source.executor.height();
    let (height, root) = until_newer(&mut source, sent);
    let apart = source.canister(callee).queues.apart().count();
    assert!(apart > 5, "{apart} messages have records of their own");
    let waiting = source.payloads();
    assert!(waiting.len() > 5, "{waiting:?}");
    let snapshots = source.executor.snapshots();
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    fetch(&mut installer, &snapshots, usize::MAX);
    installer.finish().unwrap();
    let mut node = check_installed(dir.path(), &mut source, height);
    assert!(!node.payloads().is_empty(), "some still wait");
    // What this node has itself is not fetched again.
    let local = node.executor.local_state().unwrap();
    let (newer, root) = until_newer(&mut source, height);
    assert!(!source.payloads().is_empty());
    let beside = tempfile::tempdir().unwrap();
    let mut installer = begin(beside.path(), newer, root, local);
    let mut fetched = vec![];
    while !installer.is_complete() {
        for chunk in installer.missing(16).unwrap() {
            fetched.push(chunk);
            installer
                .offer(chunk, &source.executor.snapshots().chunk(newer, chunk).unwrap())
                .unwrap();
        }
    }
    let is_payload = |chunk: &&ChunkId| matches!(chunk, ChunkId::Leaf(ObjectId::Payload(_), _));
    assert_eq!(fetched.iter().find(is_payload), None);
    installer.finish().unwrap();
    node.settle();
    check_installed(beside.path(), &mut source, newer);
}

// Promise: P3 - Payload files of a leased snapshot stay until the lease ends.
#[test]
fn payloads_of_a_leased_snapshot_stay_when_their_messages_are_over() {
    let mut source = Node::of_subnet(sync_limits());
    let (caller, callee) = (source.deploy(&Spec::default()), source.deploy(&Spec::default()));
    let call = |number: u8| {
        let program =
            [Op::Spend(3_990_000_000), Op::Note(vec![number; 100_000]), Op::Reply(vec![])];
        let mut call = CallOp::new(callee, &program);
        (call.on_reply, call.on_reject) = (vec![], vec![]);
        call.op()
    };
    let program: Vec<Op> = (0..15).map(call).chain([Op::Reply(vec![])]).collect();
    source.send(caller, &program);
    source.round();
    let sent = source.executor.height();
    let (height, root) = until_newer(&mut source, sent);
    let snapshots = source.executor.snapshots();
    let lease = snapshots.lease(height).unwrap();
    let held = {
        let dir = tempfile::tempdir().unwrap();
        let mut installer = begin(dir.path(), height, root, None);
        let mut held = BTreeSet::new();
        while !installer.is_complete() {
            for chunk in installer.missing(16).unwrap() {
                if let ChunkId::Leaf(ObjectId::Payload(number), _) = chunk {
                    held.insert(number);
                }
                installer.offer(chunk, &snapshots.chunk(height, chunk).unwrap()).unwrap();
            }
        }
        held
    };
    assert!(held.len() > 5, "{held:?}");
    let (newer, _) = until_newer(&mut source, height);
    assert_eq!(snapshots.heights(), [newer, height]);
    source.executor.checkpoint().unwrap();
    let over: BTreeSet<_> = held.difference(&source.payloads()).copied().collect();
    assert!(!over.is_empty(), "some are over");
    assert!(source.payload_files().is_superset(&held));
    // It is fetched whole all the same.
    let dir = tempfile::tempdir().unwrap();
    let mut installer = begin(dir.path(), height, root, None);
    fetch(&mut installer, &snapshots, usize::MAX);
    installer.finish().unwrap();
    // With the lease, and the next manifest, they go.
    drop(lease);
    let (last, _) = until_newer(&mut source, newer);
    until_newer(&mut source, last);
    source.executor.checkpoint().unwrap();
    source.round();
    assert!(source.payload_files().is_disjoint(&over), "{over:?}");
    check_installed(dir.path(), &mut source, height);
}

#[test]
fn messages_written_beside_a_leased_snapshot_end_it() {
    let (mut source, _) = populated(sync_limits());
    let (height, _) = until_newer(&mut source, Height(0));
    let snapshots = source.executor.snapshots();
    let lease = snapshots.lease(height).unwrap();
    snapshots.wrote_messages(1_000, 100);
    assert_eq!(snapshots.heights(), [height], "the newest stays");
    let (newer, _) = until_newer(&mut source, height);
    assert_eq!(snapshots.heights(), [newer, height]);
    snapshots.wrote_messages(60, 100);
    assert_eq!(snapshots.heights(), [newer, height]);
    snapshots.wrote_messages(60, 100);
    assert_eq!(snapshots.heights(), [newer]);
    drop(lease);
}
