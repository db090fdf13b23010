#![allow(clippy::unwrap_used)]

use std::{fs, sync::Arc};

use disk::SimulatedDisk;
use ic_principal::Principal;
use state::{Randomness, Time};

use super::*;

fn block(height: u64) -> FinalisedBlock {
    FinalisedBlock {
        height: Height(height),
        time: Time(height),
        randomness: Randomness::Drawn([height as u8; 32]),
        ingress: vec![],
        key: None,
        agreed: None,
        queries: None,
    }
}

fn heights(log: &BlockLog, above: u64) -> Vec<u64> {
    let mut replay = log.read_from(Height(above));
    let mut heights = vec![];
    while let Some(logged) = replay.next_block().unwrap() {
        heights.push(logged.block.height.0);
    }
    heights
}

fn write(folder: &Path, segment_bytes: u64, from: u64, to: u64) -> BlockLog {
    let mut log = BlockLog::open(folder, segment_bytes).unwrap();
    for height in from..=to {
        log.append_block(&block(height)).unwrap();
        log.append_outcome(Height(height), [height as u8; 32], &[]).unwrap();
    }
    log
}

#[test]
fn replay_returns_blocks_with_recorded_outcomes() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = write(folder.path(), 1 << 20, 1, 3);
    let fault = Fault { canister_id: Principal::management_canister(), ordinal: 2 };
    log.append_block(&block(4)).unwrap();
    log.append_outcome(Height(4), [1; 32], std::slice::from_ref(&fault)).unwrap();
    log.append_block(&block(5)).unwrap();
    drop(log);
    let log = BlockLog::open(folder.path(), 1 << 20).unwrap();
    assert_eq!(log.last(), Some(Height(5)));
    let mut replay = log.read_from(Height(2));
    let third = replay.next_block().unwrap().unwrap();
    assert_eq!(third.recorded, Some(RecordedOutcome { root: [3; 32], faults: vec![] }));
    let fourth = replay.next_block().unwrap().unwrap();
    assert_eq!(fourth.recorded.unwrap().faults, [fault]);
    let fifth = replay.next_block().unwrap().unwrap();
    assert_eq!((fifth.block.height, fifth.recorded), (Height(5), None));
    assert!(replay.next_block().unwrap().is_none());
}

#[test]
fn segments_roll_and_are_pruned_only_when_wholly_below() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = write(folder.path(), 300, 1, 20);
    assert!(log.segments.len() > 3);
    let before = log.disk_bytes();
    for below in 0..=20 {
        log.prune(Height(below)).unwrap();
        assert_eq!(heights(&log, below), (below + 1..=20).collect::<Vec<_>>());
    }
    assert!(log.disk_bytes() < before);
    drop(log);
    let log = write(folder.path(), 300, 21, 22);
    assert_eq!(heights(&log, 20), [21, 22]);
}

#[test]
fn pruning_to_a_size_keeps_the_newest_segment() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = write(folder.path(), 300, 1, 20);
    let all = log.disk_bytes();
    assert_eq!(log.height_beyond(all), Height(0));
    for bytes in (600..all).rev().step_by(100) {
        log.prune(log.height_beyond(bytes)).unwrap();
        assert!(log.disk_bytes() <= bytes, "{bytes}");
        assert_eq!(log.last(), Some(Height(20)));
    }
    log.prune(log.height_beyond(0)).unwrap();
    assert_eq!(log.segments.len(), 1);
}

#[test]
fn cleared_log_accepts_any_first_height() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = write(folder.path(), 300, 1, 20);
    assert_eq!(log.first(), Some(Height(1)));
    log.clear().unwrap();
    assert_eq!((log.first(), log.last(), log.disk_bytes()), (None, None, 0));
    log.append_block(&block(70)).unwrap();
    drop(log);
    let log = write(folder.path(), 300, 71, 90);
    assert_eq!((log.first(), log.last()), (Some(Height(70)), Some(Height(90))));
    assert_eq!(heights(&log, 69), (70..=90).collect::<Vec<_>>());
}

// Promise: P6 - A torn tail of the block log is cut at every length without loss.
#[test]
fn a_torn_tail_is_cut_wherever_the_tear_is() {
    let source = tempfile::tempdir().unwrap();
    drop(write(source.path(), 1 << 20, 1, 3));
    let name = "00000000000000000001.blocks";
    let whole = fs::read(source.path().join(name)).unwrap();
    for cut in 0..whole.len() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), &whole[..cut]).unwrap();
        let mut log = BlockLog::open(folder.path(), 1 << 20).unwrap();
        let next = log.last().map_or(1, |height| height.0 + 1);
        log.append_block(&block(next)).unwrap();
        assert_eq!(heights(&log, 0), (1..=next).collect::<Vec<_>>());
    }
}

#[test]
fn damage_in_the_middle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(write(folder.path(), 200, 1, 20));
    let first = folder.path().join("00000000000000000001.blocks");
    let mut bytes = fs::read(&first).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&first, bytes).unwrap();
    let log = BlockLog::open(folder.path(), 200).unwrap();
    let mut replay = log.read_from(Height(0));
    let error = loop {
        match replay.next_block() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("damage went unnoticed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
}

#[test]
fn unwritable_folder_error_names_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = BlockLog::open(&file.join("log"), 100).err().unwrap();
    assert!(error.to_string().contains("creating the folder"), "{error}");
}

/// Opens, compares with what was certified, and reads everything. On a simulated disk, where
/// syncing costs nothing.
fn recover(folder: &Path) -> Result<Vec<u64>, LogError> {
    let disk = Arc::new(SimulatedDisk::new(folder, 0).unwrap());
    let log = BlockLog::open_on(disk, folder, 1 << 20)?;
    log.check_complete(Height(0))?;
    let mut replay = log.read_from(Height(0));
    let mut heights = vec![];
    while let Some(logged) = replay.next_block()? {
        heights.push(logged.block.height.0);
    }
    Ok(heights)
}

/// A log of blocks that were all certified.
fn write_certified(folder: &Path, segment_bytes: u64, to: u64) {
    let mut log = BlockLog::open(folder, segment_bytes).unwrap();
    for height in 1..=to {
        log.append_block(&block(height)).unwrap();
        log.append_outcome(Height(height), [height as u8; 32], &[]).unwrap();
        log.record_certified(Height(height)).unwrap();
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = files.filter(|path| path.extension().is_some()).collect();
    segments.sort();
    segments
}

/// In place of `folder`'s, so that what opening it changes is undone.
fn copy_folder(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

// Promise: P6 - Each flipped bit of the block log is harmless or refused with the heights.
#[test]
fn flipped_bit_is_harmless_or_reported() {
    let source = tempfile::tempdir().unwrap();
    write_certified(source.path(), 400, 8);
    assert_eq!(recover(copy_folder(source.path()).path()).unwrap(), (1..=8).collect::<Vec<_>>());
    let files = segments(source.path());
    assert!(files.len() > 1);
    let (mut refused, mut named) = (0, 0);
    for file in &files {
        let whole = fs::read(file).unwrap();
        for bit in 0..whole.len() * 8 {
            let copy = copy_folder(source.path());
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(copy.path().join(file.file_name().unwrap()), &bytes).unwrap();
            match recover(copy.path()) {
                Ok(heights) => {
                    assert_eq!(heights, (1..=8).collect::<Vec<_>>(), "{file:?} bit {bit}")
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!error.can_heal() && text.contains("docs/operating.md"), "{text}");
                    refused += 1;
                    named += u32::from(text.contains("block"));
                }
            }
        }
    }
    assert!(
        refused > 1_000 && named == refused,
        "{refused} refused, {named} named what is missing"
    );
}

// Promise: P6 - A log that ends below the certified height is refused by height.
#[test]
fn a_log_that_ends_below_what_was_certified_is_refused_by_height() {
    let source = tempfile::tempdir().unwrap();
    write_certified(source.path(), 1 << 20, 5);
    let file = segments(source.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut complete = 0;
    for cut in 0..whole.len() {
        let copy = copy_folder(source.path());
        fs::write(copy.path().join(file.file_name().unwrap()), &whole[..cut]).unwrap();
        match recover(copy.path()) {
            Ok(heights) => {
                assert_eq!(heights, (1..=5).collect::<Vec<_>>(), "cut at {cut}");
                complete += 1;
            }
            Err(LogError::Missing { last, first_missing, certified: 5, .. }) => {
                assert_eq!(first_missing, last + 1);
            }
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
    assert!(complete > 0, "without its last outcome the log is complete");
    let copy = copy_folder(source.path());
    fs::remove_file(copy.path().join(file.file_name().unwrap())).unwrap();
    let text = recover(copy.path()).unwrap_err().to_string();
    assert!(text.contains("blocks 1 to 5 were acknowledged and are missing"), "{text}");
    assert!(
        BlockLog::open(copy.path(), 100).unwrap().check_complete(Height(5)).is_ok(),
        "a checkpoint stands for them"
    );
}

#[test]
fn a_missing_segment_in_the_middle_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_certified(folder.path(), 300, 20);
    let files = segments(folder.path());
    fs::remove_file(&files[1]).unwrap();
    let text = recover(folder.path()).unwrap_err().to_string();
    assert!(text.contains("does not follow") && text.contains("cannot be read"), "{text}");
}

#[test]
fn uncertified_tail_block_may_be_torn() {
    let folder = tempfile::tempdir().unwrap();
    write_certified(folder.path(), 1 << 20, 5);
    let mut log = BlockLog::open(folder.path(), 1 << 20).unwrap();
    log.append_block(&block(6)).unwrap();
    drop(log);
    let file = segments(folder.path()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 3] ^= 1;
    bytes.extend_from_slice(&[0; 5_000]);
    fs::write(&file, &bytes).unwrap();
    assert_eq!(recover(folder.path()).unwrap(), (1..=5).collect::<Vec<_>>());
}

/// A block of this height that says in which try it was made.
fn block_of_attempt(height: u64, attempt: u8) -> FinalisedBlock {
    FinalisedBlock { randomness: Randomness::Drawn([attempt; 32]), ..block(height) }
}

/// The try of each block of a log, by height.
fn attempts_in(log: &BlockLog, seed: u64) -> Vec<u8> {
    let mut replay = log.read_from(Height(0));
    let mut found = vec![];
    while let Some(logged) =
        replay.next_block().unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    {
        assert_eq!(logged.block.height.0, found.len() as u64 + 1);
        let Randomness::Drawn(drawn) = logged.block.randomness else {
            panic!("seed {seed}: a block that this test did not make")
        };
        found.push(drawn[0]);
    }
    found
}

// Promise: P6 - The block log loses no synced block in 300 histories of failed syncs and power
//   cuts.
#[test]
fn failed_syncs_and_power_cuts_lose_nothing_that_was_acknowledged() {
    let (mut failures, mut cuts, mut certified_cuts) = (0, 0, 0);
    for seed in 0..300_u64 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let disk = SimulatedDisk::new(&root, seed).unwrap();
        let shared: SharedDisk = Arc::new(disk.clone());
        let path = root.join("blocks");
        // The try of each acknowledged block, by height.
        let mut acknowledged: Vec<u8> = vec![];
        let mut certified = 0;
        for life in 0..3_u64 {
            let mut log = BlockLog::open_on(shared.clone(), &path, 600)
                .unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
            log.check_complete(Height(0)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let found = attempts_in(&log, seed);
            assert!(
                found.starts_with(&acknowledged),
                "seed {seed}: {found:?}, acknowledged {acknowledged:?}"
            );
            assert!(found.len() as u64 >= certified);
            acknowledged = found;
            disk.end_after(10 + (seed * 31 + life * 17) % 90, seed.is_multiple_of(2));
            let mut attempt = life as u8 * 80;
            'blocks: loop {
                let height = acknowledged.len() as u64 + 1;
                if (height + seed).is_multiple_of(3) {
                    disk.fail_syncs(1 + seed % 2);
                }
                // The block maker makes another block when one could not be made durable.
                for tries in 0.. {
                    attempt = attempt.wrapping_add(1);
                    match log.append_block(&block_of_attempt(height, attempt)) {
                        Ok(()) => break,
                        Err(error) => {
                            assert!(error.can_heal(), "seed {seed}: {error}");
                            failures += 1;
                            if tries > 6 {
                                break 'blocks;
                            }
                        }
                    }
                }
                acknowledged.push(attempt);
                let noted = log.append_outcome(Height(height), [1; 32], &[]);
                if noted.and_then(|()| log.record_certified(Height(height))).is_err() {
                    break;
                }
                certified = height;
            }
            drop(log);
            disk.cut_power().unwrap();
            cuts += 1;
            certified_cuts += u32::from(certified > 0);
        }
    }
    assert!(
        failures > 500 && certified_cuts * 2 > cuts,
        "{failures} failures, {certified_cuts} of {cuts} cuts"
    );
}

// Promise: P6 - Blocks that are synced later are in the block log up to the height it reports, in
//   200 histories of failed syncs and power cuts.
#[test]
fn blocks_synced_later_are_durable_up_to_the_reported_height() {
    let (mut failures, mut lost) = (0, 0);
    for seed in 0..200_u64 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let disk = SimulatedDisk::new(&root, seed).unwrap();
        let shared: SharedDisk = Arc::new(disk.clone());
        let path = root.join("blocks");
        // The try of each block, by height, and how many are durable.
        let (mut blocks, mut durable) = (Vec::<u8>::new(), 0);
        for life in 0..3_u64 {
            let mut log = BlockLog::open_on(shared.clone(), &path, 900)
                .unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
            let found = attempts_in(&log, seed);
            assert!(found.starts_with(&blocks[..durable]), "seed {seed}: {found:?}, {blocks:?}");
            assert_eq!(log.durable().0, found.len() as u64);
            lost += blocks.len().saturating_sub(found.len());
            (blocks, durable) = (found.clone(), found.len());
            disk.end_after(10 + (seed * 31 + life * 17) % 90, seed.is_multiple_of(2));
            let mut attempt = life as u8 * 80;
            while attempt < life as u8 * 80 + 70 {
                attempt += 1;
                let height = blocks.len() as u64 + 1;
                disk.fail_syncs((u64::from(attempt) * 7 + seed) % 5 / 4);
                let block = block_of_attempt(height, attempt);
                let appended = match (height + seed) % 7 {
                    0 => log.append_block(&block),
                    1 => log.sync().and_then(|()| log.append_block_later(&block)),
                    _ => log.append_block_later(&block),
                };
                match appended {
                    Ok(()) => blocks.push(attempt),
                    Err(error) => {
                        assert!(error.can_heal(), "seed {seed}: {error}");
                        failures += 1;
                        continue;
                    }
                }
                assert!(log.durable().0 + UNSYNCED_BLOCKS_MAX as u64 > height);
                let _ = log.append_outcome(Height(height), [1; 32], &[]);
                durable = log.durable().0 as usize;
            }
            drop(log);
            disk.cut_power().unwrap();
        }
    }
    assert!(failures > 200 && lost > 100, "{failures} failures, {lost} blocks lost");
}

#[test]
fn full_disk_error_can_heal() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("disk");
    let disk = SimulatedDisk::new(&root, 1).unwrap();
    let mut log = BlockLog::open_on(Arc::new(disk.clone()), &root.join("blocks"), 1 << 20).unwrap();
    log.append_block(&block(1)).unwrap();
    disk.limit_growth(Some(20));
    let error = log.append_block(&block(2)).unwrap_err();
    assert!(error.can_heal(), "{error}");
    disk.limit_growth(None);
    log.append_block(&block(2)).unwrap();
    assert_eq!(heights(&log, 0), [1, 2]);
}
