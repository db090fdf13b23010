#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use disk::{RealDisk, SimulatedDisk};

use super::*;

fn store(dir: &Path) -> PayloadStore {
    PayloadStore::open_on(RealDisk::shared(), dir).unwrap()
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64 / 1000 + number) as u8).collect()
}

fn files(store: &PayloadStore) -> BTreeSet<u64> {
    let names = fs::read_dir(&store.dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| parse_name(name.to_str().unwrap()).unwrap()).collect()
}

// Promise: P3 - A payload is read back verified, leaf by leaf.
#[test]
fn a_payload_comes_back_verified_and_leaf_by_leaf() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = store(dir.path());
    for (number, bytes) in [(1, 9_000), (2, LEAF_BYTES), (3, LEAF_BYTES + 1), (4, 1 << 20)] {
        let rest = content(number, bytes);
        for name in [&b""[..], b"method", &content(9, LEAF_BYTES)] {
            let stored = payloads.write(number, [name, &rest]).unwrap();
            assert!(stored.is_sound(number));
            let whole = [name, &rest].concat();
            assert_eq!(payloads.read(&stored).unwrap(), whole);
            for (index, (leaf, hash)) in (0..).zip(whole.chunks(LEAF_BYTES).zip(&stored.leaves)) {
                assert_eq!(payloads.read_leaf(&stored, index).unwrap().unwrap(), leaf);
                assert_eq!(LeafHash::from(Sha256::digest(leaf)), *hash);
            }
            let end = stored.leaves.len() as u32;
            assert_eq!(payloads.read_leaf(&stored, end).unwrap(), None);
        }
    }
    payloads.sync().unwrap();
}

// Promise: P6 - A damaged payload is reported and never delivered.
#[test]
fn damage_is_said_in_words_and_never_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = store(dir.path());
    let stored = payloads.write(7, [b"name", &content(7, 400_000)]).unwrap();
    let path = payloads.path(7);
    let mut bytes = fs::read(&path).unwrap();
    bytes[300_000] ^= 1;
    let live = BTreeMap::from([(7, stored.bytes)]);
    let expect = |reason: &str, is_found_at_start: bool| {
        let error = payloads.read(&stored).unwrap_err();
        assert!(!error.can_heal() && error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(payloads.keep_only(&live, 8).is_err(), is_found_at_start, "{reason}");
        error.to_string()
    };
    fs::write(&path, &bytes).unwrap();
    // Once it was of a checkpoint, a start brings it no more.
    assert!(expect("another hash", false).ends_with("which executes the message anew"));
    assert!(expect("another hash", false).ends_with("\"When the disk was damaged\""));
    fs::write(&path, &bytes[..399_999]).unwrap();
    expect("it has 399999 bytes and should have 400004", true);
    fs::remove_file(&path).unwrap();
    expect("it is missing", true);
}

// Promise: P3 - A payload file is deleted when no checkpoint and no snapshot refers to it.
#[test]
fn a_file_goes_when_no_checkpoint_and_no_snapshot_refers_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = store(dir.path());
    let write = |number| drop(payloads.write(number, [b"", &content(number, 10_000)]).unwrap());
    let checkpoint = |below| {
        payloads.sync().unwrap();
        payloads.begin_saving(below);
        payloads.saved();
    };
    (0..6).for_each(write);
    // It came and went between two checkpoints.
    payloads.release(0, 10_000);
    assert!(payloads.sweep(10));
    assert_eq!(files(&payloads), (1..6).collect());
    // The newest checkpoint refers to it, or one whose outcome is not known.
    payloads.begin_saving(6);
    payloads.release(1, 10_000);
    assert!(payloads.sweep(10));
    assert!(files(&payloads).contains(&1));
    checkpoint(6);
    payloads.sweep(10);
    assert_eq!(files(&payloads), (2..6).collect());
    // Snapshots hold what they were made of, and nothing that came later.
    let first = payloads.pin();
    write(6);
    payloads.release(2, 10_000);
    checkpoint(7);
    let second = payloads.pin();
    payloads.release(3, 10_000);
    payloads.release(6, 10_000);
    checkpoint(8);
    payloads.release(4, 10_000);
    checkpoint(9);
    payloads.sweep(10);
    assert_eq!(files(&payloads), (2..7).collect());
    assert_eq!(payloads.pinned_bytes(), 4 * 12_288);
    drop(first);
    payloads.sweep(10);
    assert_eq!(files(&payloads), (3..7).collect());
    assert_eq!(payloads.pinned_bytes(), 3 * 12_288);
    drop(second);
    assert!(!payloads.sweep(2), "a few at a time");
    assert!(payloads.sweep(2));
    assert_eq!((files(&payloads), payloads.pinned_bytes()), ([5].into(), 0));
}

#[test]
fn a_start_removes_what_the_checkpoint_does_not_refer_to() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = store(dir.path());
    for number in 0..5 {
        payloads.write(number, [b"", &content(number, 10_000)]).unwrap();
    }
    fs::write(dir.path().join("tmp-0000000000000003"), b"half").unwrap();
    drop(payloads);
    let payloads = store(dir.path());
    payloads.keep_only(&BTreeMap::from([(1, 10_000), (3, 10_000)]), 4).unwrap();
    assert_eq!(files(&payloads), [1, 3].into());
    // They are of the checkpoint that was loaded, and stay until the next.
    payloads.release(3, 10_000);
    payloads.sweep(10);
    assert_eq!(files(&payloads), [1, 3].into());
    // A replay writes the same again.
    payloads.write(4, [b"", &content(4, 10_000)]).unwrap();
    payloads.saved();
    payloads.sweep(10);
    assert_eq!(files(&payloads), [1, 4].into());
}

// Promise: P6 - Synced payloads survive a power cut at every operation.
#[test]
fn what_was_synced_survives_every_cut_and_a_failed_sync_is_not_believed() {
    for seed in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        let dir = root.join("messages");
        let payloads = PayloadStore::open_on(Arc::new(simulated.clone()), &dir).unwrap();
        let mut durable = Vec::new();
        for number in 0..6 {
            let bytes = 9_000 + 70_000 * number as usize;
            durable.push(payloads.write(number, [b"name", &content(number, bytes)]).unwrap());
            if number == 4 {
                simulated.fail_syncs(1 + seed % 3);
                payloads.sync().unwrap_err();
                while payloads.sync().is_err() {}
            }
        }
        payloads.sync().unwrap();
        payloads.write(6, [b"", &content(6, 50_000)]).unwrap();
        drop(payloads);
        simulated.cut_power().unwrap();
        let payloads = PayloadStore::open_on(Arc::new(simulated.clone()), &dir).unwrap();
        let live = durable.iter().map(|payload| (payload.number, payload.bytes)).collect();
        payloads.keep_only(&live, 6).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for payload in &durable {
            payloads.read(payload).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert_eq!(files(&payloads).len(), 6);
    }
}

// Promise: P6 - After a failed sync payloads are durable only when all were written again.
#[test]
fn after_a_failed_sync_nothing_is_durable_until_all_of_it_was_written_anew() {
    for seed in 0..40 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        let dir = root.join("messages");
        let payloads = PayloadStore::open_on(Arc::new(simulated.clone()), &dir).unwrap();
        let write = |number| payloads.write(number, [b"", &content(number, 50_000)]).unwrap();
        let kept: Vec<_> = (0..5).map(write).collect();
        // The kernel reports the error once, in either way; then there is room for one file.
        if seed % 2 == 0 {
            simulated.fail_syncs(1);
        } else {
            simulated.fail_writeback();
        }
        simulated.limit_growth(Some(60_000));
        payloads.sync().unwrap_err();
        let error = payloads.sync().unwrap_err();
        assert!(matches!(error, PayloadError::DiskFull { .. }), "{error}");
        // A released payload needs no file, and one that is written again is valid.
        payloads.release(4, 50_000);
        simulated.limit_growth(None);
        write(3);
        payloads.sync().unwrap();
        drop(payloads);
        simulated.cut_power().unwrap();
        let payloads = PayloadStore::open_on(Arc::new(simulated.clone()), &dir).unwrap();
        for payload in kept.iter().filter(|payload| payload.number != 4) {
            payloads.read(payload).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

#[test]
fn removals_keep_up_with_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let payloads = store(dir.path());
    let turn_over = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            payloads.write(number, [b"", &content(number, 10_000)]).unwrap();
            payloads.release(number, 10_000);
        }
    };
    turn_over(0..20);
    assert!(payloads.sweep(2), "as many as were written");
    (20..40).for_each(|number| drop(payloads.write(number, [b"", &[1; 10_000]]).unwrap()));
    payloads.sweep(2);
    (20..40).for_each(|number| payloads.release(number, 10_000));
    assert!(!payloads.sweep(2));
    assert_eq!(files(&payloads).len(), 18, "a few, where nothing was written");
    turn_over(40..45);
    payloads.sweep(2);
    assert_eq!(files(&payloads).len(), 18);
}

// Promise: P7 - A payload write on a full disk leaves nothing and succeeds later.
#[test]
fn a_full_disk_keeps_nothing_and_the_same_write_succeeds_later() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("disk");
    let simulated = SimulatedDisk::new(&root, 1).unwrap();
    let payloads = PayloadStore::open_on(Arc::new(simulated.clone()), &root.join("m")).unwrap();
    simulated.limit_growth(Some(300_000));
    let large = content(1, 700_000);
    let error = payloads.write(1, [b"", &large]).unwrap_err();
    assert!(matches!(error, PayloadError::DiskFull { .. }) && error.can_heal(), "{error}");
    assert!(files(&payloads).is_empty());
    simulated.limit_growth(None);
    let stored = payloads.write(1, [b"", &large]).unwrap();
    payloads.sync().unwrap();
    assert_eq!(payloads.read(&stored).unwrap(), large);
}
