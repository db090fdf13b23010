//! A node that is killed at any moment loses no checkpoint that was reported durable to it.
//!
//! A child process writes checkpoints as fast as it can and says each height once its write has
//! returned. The parent kills it (SIGKILL) at changing moments, opens what is left, and compares
//! all of it with what that height must hold.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use ic_principal::Principal;
use pages::{MemoryId, MemoryIndex, Run, SegmentId};
use state::{
    BlobStore, CanisterId, CheckpointDelta, Height, RequestId, StateStore, tree::leaf_digest,
};

const CACHE_BYTES: u64 = 1 << 20;
const DIRECTORY: &str = "STATE_CRASH_TEST_DIRECTORY";

fn canister(number: u64) -> CanisterId {
    Principal::from_slice(&[number as u8, 1, 1])
}

/// Record of a canister that last changed at this height: sizes from a few bytes to several parts.
fn canister_record(number: u64, height: u64) -> Vec<u8> {
    let bytes = (number * 31 + height * 7919) % 150_000;
    (0..bytes).map(|at| (at + height) as u8).collect()
}

fn request(height: u64) -> RequestId {
    RequestId(leaf_digest(&height.to_le_bytes()))
}

fn index(height: u64) -> (MemoryIndex, u64) {
    let run = |number| Run {
        start_page: number * 4,
        pages: 2,
        segment: SegmentId(height),
        offset_page: number * 2,
    };
    let runs = (0..height % 3_000).map(run).collect();
    (MemoryIndex { runs, ..MemoryIndex::default() }, height * 4096)
}

fn blob(height: u64) -> Vec<u8> {
    height.to_le_bytes().repeat(1_000)
}

/// Changes at a height.
struct Changes {
    canisters: Vec<(CanisterId, Option<Vec<u8>>)>,
    history: Vec<(RequestId, Option<Vec<u8>>)>,
    memories: Vec<(MemoryId, Option<(MemoryIndex, u64)>)>,
    metadata: Vec<u8>,
}

fn changes(height: u64) -> Changes {
    let change = |number: u64| match height % (number + 2) {
        0 if height % 5 == 4 => Some((canister(number), None)),
        0 => Some((canister(number), Some(canister_record(number, height)))),
        _ => None,
    };
    Changes {
        canisters: (0..12).filter_map(change).collect(),
        history: [(request(height), Some(vec![height as u8; 300]))]
            .into_iter()
            .chain(height.checked_sub(20).map(|old| (request(old), None)))
            .collect(),
        memories: vec![
            (MemoryId(height % 4), Some(index(height))),
            (MemoryId((height + 2) % 4), None),
        ],
        metadata: leaf_digest(&blob(height)).into_iter().chain(blob(height)).collect(),
    }
}

fn apply<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: Vec<(K, Option<V>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}

/// The child. Runs until it is killed.
#[test]
#[ignore = "started by the test below"]
fn writes_until_killed() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let dir = Path::new(&dir);
    let store = StateStore::open(&dir.join("state"), CACHE_BYTES).unwrap();
    let blobs = BlobStore::open(&dir.join("blobs"), 1 << 20).unwrap();
    let newest = store.load().unwrap().map_or(0, |checkpoint| checkpoint.height.0);
    let mut out = std::io::stdout();
    for height in newest + 1.. {
        blobs.put(&blob(height)).unwrap();
        blobs.sync().unwrap();
        let Changes { canisters, history, memories, metadata } = changes(height);
        store
            .write(CheckpointDelta {
                height: Height(height),
                metadata,
                canisters: Box::new(canisters.into_iter().map(Ok)),
                messages: Box::new(std::iter::empty()),
                history: Box::new(history.into_iter().map(Ok)),
                memories,
                written: vec![],
            })
            .unwrap();
        writeln!(out, "durable {height}").unwrap();
        out.flush().unwrap();
    }
}

/// Everything in the store is what the checkpoint of its height must hold. Returns the height.
fn check(dir: &Path) -> u64 {
    let store = StateStore::open(&dir.join("state"), CACHE_BYTES).unwrap();
    let blobs = BlobStore::open(&dir.join("blobs"), 1 << 20).unwrap();
    let Some(checkpoint) = store.load().unwrap() else { return 0 };
    let height = checkpoint.height.0;
    let (mut canisters, mut history, mut memories) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for height in 1..=height {
        let changes = changes(height);
        apply(&mut canisters, changes.canisters);
        apply(&mut history, changes.history);
        apply(&mut memories, changes.memories);
    }
    assert_eq!(checkpoint.metadata, changes(height).metadata);
    let loaded: BTreeMap<_, _> = checkpoint.canisters().unwrap().map(Result::unwrap).collect();
    assert!(loaded == canisters, "the canisters of checkpoint {height}");
    let loaded: BTreeMap<_, _> = checkpoint.history().unwrap().map(Result::unwrap).collect();
    assert!(loaded == history, "the history of checkpoint {height}");
    let loaded: BTreeMap<_, _> = checkpoint.memories().unwrap().map(Result::unwrap).collect();
    assert!(loaded == memories, "the memories of checkpoint {height}");
    let name = blobs.put(&blob(height)).unwrap();
    assert_eq!(blobs.get(&name).unwrap().unwrap(), blob(height));
    blobs.retain(|live| *live == name).unwrap();
    height
}

// Promise: P5 - Durable checkpoint records survive `kill -9` at any moment.
#[test]
fn a_kill_at_any_moment_loses_no_durable_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut moment = 12345u64;
    for round in 0..25u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store_crash::writes_until_killed",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut durable = 0;
        let mut read = |line: Option<Result<String, _>>| {
            let line: String = line?.unwrap();
            let height = line
                .split_once("durable ")
                .and_then(|(_, height)| height.trim().parse::<u64>().ok());
            durable = height.unwrap_or(durable);
            Some(())
        };
        // A number of checkpoints, then some part of the next one: the moment differs each time.
        moment = moment.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        for _ in 0..(moment >> 33) % 12 + round / 5 {
            read(lines.next()).unwrap();
        }
        std::thread::sleep(Duration::from_micros((moment >> 40) % 30_000));
        child.kill().unwrap();
        child.wait().unwrap();
        while read(lines.next()).is_some() {}
        let newest = check(dir.path());
        assert!(
            newest >= durable,
            "checkpoint {durable} was durable, and {newest} is the newest there is"
        );
        assert!(newest <= durable + 1 || durable == 0, "{newest} was never acknowledged");
    }
    assert!(check(dir.path()) > 50);
}
