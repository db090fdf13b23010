//! A power cut at any operation of the disk loses no checkpoint that was reported durable, and no
//! blob that it refers to.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use disk::{SharedDisk, SimulatedDisk};
use ic_principal::Principal;
use state::{BlobHash, BlobStore, CanisterId, CheckpointDelta, Height, StateStore};

const SEEDS: u64 = 60;
const LIVES: u64 = 3;

fn canister(number: u64) -> CanisterId {
    Principal::from_slice(&[number as u8, 1, 1])
}

/// Record of a canister that last changed at this height: sizes from a few bytes to several pages.
fn record(number: u64, height: u64) -> Vec<u8> {
    let bytes = (number * 31 + height * 7919) % 20_000;
    (0..bytes).map(|at| (at + height) as u8).collect()
}

/// The last height at or below `height` that changed this canister.
fn changed(number: u64, height: u64) -> Option<u64> {
    let last = height - height % (number + 2);
    (last > 0).then_some(last)
}

fn blob(height: u64) -> Vec<u8> {
    height.to_le_bytes().repeat(1_000)
}

/// Writes the checkpoint of a height with the blob it refers to.
fn checkpoint(store: &StateStore, blobs: &BlobStore, height: u64) -> Result<(), String> {
    let hash = blobs.put(&blob(height)).map_err(|error| error.to_string())?;
    blobs.sync().map_err(|error| error.to_string())?;
    let canisters = (0..6)
        .filter(|number| changed(*number, height) == Some(height))
        .map(|number| (canister(number), Some(record(number, height))));
    let delta = CheckpointDelta {
        height: Height(height),
        metadata: hash.to_vec(),
        canisters: Box::new(canisters.map(Ok)),
        messages: Box::new(std::iter::empty()),
        history: Box::new(std::iter::empty()),
        memories: vec![],
        written: vec![],
    };
    store.write(delta).map_err(|error| error.to_string())
}

fn open(disk: &SharedDisk, root: &Path) -> Result<(StateStore, BlobStore), String> {
    let store = StateStore::open_on(disk.clone(), &root.join("state"), 1 << 20);
    let blobs = BlobStore::open_on(disk.clone(), &root.join("blobs"), 1 << 20);
    Ok((store.map_err(|error| error.to_string())?, blobs.map_err(|error| error.to_string())?))
}

/// Height of the newest checkpoint, which must be whole.
fn verify(store: &StateStore, blobs: &BlobStore) -> u64 {
    let Some(loaded) = store.load().unwrap() else { return 0 };
    let height = loaded.height.0;
    let hash: BlobHash = loaded.metadata.as_slice().try_into().unwrap();
    assert_eq!(blobs.get(&hash).unwrap().unwrap(), blob(height), "the blob of height {height}");
    let found: BTreeMap<_, _> = loaded.canisters().unwrap().map(Result::unwrap).collect();
    let expected: BTreeMap<_, _> = (0..6)
        .filter_map(|number| Some((canister(number), record(number, changed(number, height)?))))
        .collect();
    assert_eq!(found, expected, "height {height}");
    height
}

// Promise: P6 - Checkpoint records and blobs survive power cuts in 60 histories.
#[test]
fn a_power_cut_loses_no_checkpoint_and_no_blob() {
    let mut durable = 0;
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        let disk: SharedDisk = Arc::new(simulated.clone());
        let mut acknowledged = 0;
        for life in 0..LIVES {
            simulated.end_after(20 + (seed * 37 + life * 101) % 400, seed.is_multiple_of(2));
            let mut sent = acknowledged;
            if let Ok((store, blobs)) = open(&disk, &root) {
                acknowledged = verify_at_least(&store, &blobs, acknowledged, seed);
                sent = acknowledged;
                loop {
                    sent += 1;
                    if checkpoint(&store, &blobs, sent).is_err() {
                        break;
                    }
                    acknowledged = sent;
                }
            }
            simulated.cut_power().unwrap();
            let (store, blobs) = open(&disk, &root)
                .unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
            let found = verify_at_least(&store, &blobs, acknowledged, seed);
            assert!(found <= sent, "seed {seed}: {sent} sent, {found} there");
            acknowledged = found;
            durable += found;
        }
    }
    assert!(durable > SEEDS, "the cuts left hardly any checkpoint: {durable}");
}

fn verify_at_least(store: &StateStore, blobs: &BlobStore, acknowledged: u64, seed: u64) -> u64 {
    let found = verify(store, blobs);
    assert!(found >= acknowledged, "seed {seed}: {acknowledged} durable, {found} there");
    found
}

// Promise: P6 - A blob whose sync failed is durable after the next sync.
#[test]
fn a_blob_whose_sync_failed_is_durable_after_the_next() {
    for seed in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        let disk: SharedDisk = Arc::new(simulated.clone());
        let blobs = BlobStore::open_on(disk.clone(), &root.join("blobs"), 1 << 20).unwrap();
        let hash = blobs.put(&blob(seed)).unwrap();
        simulated.fail_syncs(1);
        blobs.sync().unwrap_err();
        blobs.sync().unwrap();
        simulated.cut_power().unwrap();
        let blobs = BlobStore::open_on(disk, &root.join("blobs"), 1 << 20).unwrap();
        assert_eq!(blobs.get(&hash).unwrap().unwrap(), blob(seed), "seed {seed}");
    }
}
