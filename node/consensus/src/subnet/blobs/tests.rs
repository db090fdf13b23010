#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, sync::Arc};

use commonware_runtime::{
    Blob as _, DEFAULT_BLOB_VERSION, Error, ReadOptions, Runner as _, Supervisor as _,
    WriteOptions, deterministic,
};
use disk::{RealDisk, SimulatedDisk, records::HEAD_BYTES};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    SEGMENTS_MIN,
    index::Key,
    log::Log,
    record::Record,
    storage::{BlobLog, LogBlob},
};

const SEGMENT: u64 = 8 << 10;

/// Contents of blobs, by partition and name.
type Contents = BTreeMap<(String, Vec<u8>), Vec<u8>>;

fn read(log: &Log, key: Key, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
    let mut read = vec![0; bytes];
    for part in log.locate(key, offset, bytes)? {
        disk::read_exact(part.file.as_ref(), &mut read[part.range], part.at)?;
    }
    Ok(read)
}

fn contents(log: &Log) -> Contents {
    log.index.check();
    let named = log.index.blobs.iter().filter_map(|(key, blob)| Some((key, blob.name.clone()?)));
    named
        .map(|(key, name)| {
            let length = log.index.blobs[key].length as usize;
            (name, read(log, *key, 0, length).unwrap())
        })
        .collect()
}

fn open_blob(log: &mut Log, partition: &str, name: &[u8]) -> Result<Key, Error> {
    let versions = DEFAULT_BLOB_VERSION..=DEFAULT_BLOB_VERSION;
    log.open_blob(partition, name, &versions).map(|(key, ..)| key)
}

/// A change of one blob, closed again, and what blobs hold after each step of it.
fn change(log: &mut Log, rng: &mut StdRng, states: &mut Vec<Contents>) -> Result<(), Error> {
    let mut now = states.last().unwrap().clone();
    let (partition, name) = (format!("p{}", rng.gen_range(0..3)), vec![rng.gen_range(0..6_u8)]);
    let blob = (partition.clone(), name.clone());
    match rng.gen_range(0..20) {
        0 => {
            let names: Vec<_> = now.keys().filter(|(of, _)| *of == partition).cloned().collect();
            for name in names {
                now.remove(&name);
                states.push(now.clone());
            }
            match log.remove(&partition, None) {
                Err(Error::PartitionMissing(_)) => Ok(()),
                removed => removed,
            }
        }
        1 | 2 => {
            now.remove(&blob);
            states.push(now);
            match log.remove(&partition, Some(&name)) {
                Err(Error::PartitionMissing(_) | Error::BlobMissing(..)) => Ok(()),
                removed => removed,
            }
        }
        kind => {
            let content = now.entry(blob.clone()).or_default();
            let length = content.len();
            let from = rng.gen_range(0..=length.min(2_000) + 50);
            let bytes = vec![rng.r#gen::<u8>(); rng.gen_range(0..600)];
            states.push(now.clone());
            let key = open_blob(log, &partition, &name)?;
            let content = now.entry(blob).or_default();
            let changed = if kind == 3 {
                content.resize(from, 0);
                states.push(now);
                log.resize(key, from as u64)
            } else {
                let end = from + bytes.len();
                if !bytes.is_empty() {
                    content.resize(length.max(end), 0);
                    content[from..end].copy_from_slice(&bytes);
                }
                states.push(now);
                log.write(key, from as u64, &bytes).map(drop)
            };
            log.close_blob(key);
            changed
        }
    }
}

// Promise: P6 - Votes and blocks of the engine that a sync returned for survive power cuts and
//   failed syncs in 60 histories.
#[test]
fn a_power_cut_leaves_a_prefix_of_the_changes_with_all_that_were_synced() {
    let (mut emptied, mut lost) = (0, 0);
    for seed in 0..60_u64 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let disk = SimulatedDisk::new(&root, seed).unwrap();
        let rng = &mut StdRng::seed_from_u64(seed);
        let (mut states, mut synced) = (vec![Contents::new()], 0);
        for life in 0..6 {
            let blobs = BlobLog::open_with(Arc::new(disk.clone()), &root.join("log"), SEGMENT);
            let blobs = blobs.unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
            let found = blobs.with_log(|log| contents(log));
            let at = states[synced..].iter().rposition(|state| *state == found);
            let at = at.unwrap_or_else(|| panic!("seed {seed}, life {life}: another state"));
            lost += states.len() - 1 - synced - at;
            (states, synced) = (vec![found], 0);
            let first = blobs.with_log(|log| log.first_segment());
            // In some lives the disk is full now and then, in most of the others the power ends.
            let fills = rng.gen_bool(0.3);
            if !fills && rng.gen_bool(0.8) {
                disk.end_after(rng.gen_range(5..900), rng.gen_bool(0.5));
            }
            for _ in 0..rng.gen_range(50..500) {
                if fills {
                    disk.limit_growth(rng.gen_bool(0.2).then(|| rng.gen_range(0..900)));
                }
                if rng.gen_bool(0.1) {
                    disk.fail_syncs(u64::from(rng.gen_bool(0.02)));
                    match blobs.sync_now() {
                        Ok(()) => synced = states.len() - 1,
                        // Emptying a segment takes room.
                        Err(_) if fills => {}
                        Err(_) => break,
                    }
                    continue;
                }
                let before = states.len();
                let changed = blobs.with_log(|log| change(log, rng, &mut states));
                match changed {
                    Ok(()) => {}
                    // The step that failed had no effect.
                    Err(_) if fills => {
                        let now = blobs.with_log(|log| contents(log));
                        assert!(states[before - 1..].contains(&now), "seed {seed}, life {life}");
                        states.truncate(before);
                        states.push(now);
                    }
                    Err(_) => break,
                }
            }
            emptied += blobs.with_log(|log| log.first_segment()) - first;
            drop(blobs);
            disk.cut_power().unwrap();
        }
    }
    assert!(emptied > 50 && lost > 50, "{emptied} segments emptied, {lost} changes lost");
}

#[test]
fn the_log_is_bounded_by_what_blobs_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk/log");
    // On a simulated disk syncing costs nothing.
    let disk = Arc::new(SimulatedDisk::new(&folder.path().join("disk"), 1).unwrap());
    let blobs = BlobLog::open_with(disk.clone(), &path, SEGMENT).unwrap();
    // One blob stays, and must not be lost when the segments that it was written to are removed.
    blobs.with_log(|log| {
        let kept = open_blob(log, "kept", b"1").unwrap();
        log.write(kept, 100, &[7; 3_000]).unwrap();
    });
    for round in 0..2_000_u64 {
        blobs.with_log(|log| {
            let name = round.to_be_bytes();
            let key = open_blob(log, "votes", &name).unwrap();
            log.write(key, 0, &[round as u8; 500]).unwrap();
            log.close_blob(key);
            if round >= 8 {
                log.remove("votes", Some(&(round - 8).to_be_bytes())).unwrap();
            }
        });
        blobs.sync_now().unwrap();
        let (segments, bytes) = blobs.with_log(|log| log.size());
        let most = SEGMENTS_MIN + 2;
        assert!(
            segments <= most && bytes <= most as u64 * (SEGMENT + 1_000),
            "{segments}, {bytes}"
        );
    }
    assert!(fs::read_dir(&path).unwrap().count() <= SEGMENTS_MIN + 2);
    drop(blobs);
    let blobs = BlobLog::open_with(disk, &path, SEGMENT).unwrap();
    let found = blobs.with_log(|log| contents(log));
    assert_eq!(found.len(), 9);
    let content = &found[&("kept".to_owned(), b"1".to_vec())];
    assert_eq!((&content[..100], &content[100..]), (&[0; 100][..], &[7; 3_000][..]));
}

#[test]
fn a_torn_segment_in_front_of_one_that_was_only_begun_is_cut_off() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let blobs = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT).unwrap();
    let write = |number: u8| {
        blobs.with_log(|log| {
            let key = open_blob(log, "votes", &[number]).unwrap();
            log.write(key, 0, &[number; 20]).unwrap();
            log.close_blob(key);
        });
    };
    write(1);
    blobs.sync_now().unwrap();
    // The next segment was begun, which failed for want of room, and this one written to again.
    drop(BlobLog::open_with(RealDisk::shared(), other.path(), SEGMENT).unwrap());
    let begun = fs::read_dir(other.path()).unwrap().next().unwrap().unwrap().path();
    fs::copy(begun, folder.path().join(format!("{:020}.log", 2))).unwrap();
    write(2);
    let end = blobs.with_log(|log| log.size().1);
    drop(blobs);
    let first = folder.path().join(format!("{:020}.log", 1));
    fs::File::options().write(true).open(first).unwrap().set_len(end - 1).unwrap();

    let blobs = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT).unwrap();
    let found = blobs.with_log(|log| contents(log));
    let blob = |number: u8, bytes: usize| (("votes".to_owned(), vec![number]), vec![number; bytes]);
    assert_eq!(found, Contents::from([blob(1, 20), blob(2, 0)]));
}

#[test]
fn the_next_segment_is_begun_between_two_writes() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT).unwrap();
    let write = |number: u8, bytes: usize| {
        blobs.with_log(|log| {
            let key = open_blob(log, "votes", &[number]).unwrap();
            log.write(key, 0, &vec![number; bytes]).unwrap();
            log.close_blob(key);
        });
    };
    let segments = || blobs.with_log(|log| log.size().0);
    let make = || {
        let made = blobs.with_log(|log| log.begin_making()).unwrap().make();
        blobs.with_log(|log| log.end_making(made)).unwrap();
    };
    let begin_finish = || blobs.with_log(|log| log.begin_finish()).unwrap().unwrap();
    assert!(blobs.with_log(|log| log.begin_making()).is_none(), "there is room");
    write(1, 7_200);
    make();
    let pending = begin_finish();
    write(2, 20);
    let synced = pending.run();
    let done = blobs.with_log(|log| log.end_finish(&pending, synced)).unwrap();
    assert!(!done && segments() == 1, "what was written meanwhile may not be durable");
    let pending = begin_finish();
    let synced = pending.run();
    assert!(blobs.with_log(|log| log.end_finish(&pending, synced)).unwrap());
    assert_eq!(segments(), 2);

    // A write without room waits for no segment that is being made, and makes none of its name.
    write(3, 7_200);
    let being_made = blobs.with_log(|log| log.begin_making()).unwrap();
    write(4, 1_500);
    assert_eq!(segments(), 2);
    let made = being_made.make();
    blobs.with_log(|log| log.end_making(made)).unwrap();
    write(5, 20);
    assert_eq!(segments(), 3);
    write(6, 7_200);
    blobs.sync_now().unwrap();
    assert_eq!(segments(), 4, "a sync does all of it");
    drop(blobs);

    let blobs = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT).unwrap();
    let found = blobs.with_log(|log| contents(log));
    let sizes: Vec<_> = found.values().map(Vec::len).collect();
    assert_eq!(sizes, [7_200, 20, 7_200, 1_500, 20, 7_200]);
}

// Promise: P6 - Each flipped bit of a synced vote is detected when the engine's storage is opened.
#[test]
fn each_flipped_bit_of_what_was_synced_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT).unwrap();
    for number in 0..4_u8 {
        blobs.with_log(|log| {
            let key = open_blob(log, "votes", &[number]).unwrap();
            log.write(key, 0, &[number; 20]).unwrap();
            log.close_blob(key);
        });
        blobs.sync_now().unwrap();
    }
    // The last mark is acknowledged by nothing.
    let acknowledged = blobs.with_log(|log| log.size().1 - HEAD_BYTES);
    drop(blobs);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&path).unwrap();
    for bit in 0..acknowledged as usize * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let opened = BlobLog::open_with(RealDisk::shared(), folder.path(), SEGMENT);
        assert!(opened.is_err(), "bit {bit} of byte {}", bit / 8);
    }
}

#[test]
fn any_bytes_are_a_record_or_refused() {
    let rng = &mut StdRng::seed_from_u64(1);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..rng.gen_range(0..40)).map(|_| rng.r#gen()).collect();
        if let Some(kind) = bytes.first_mut() {
            *kind %= 6;
        }
        if let Some(record) = Record::decode(&bytes) {
            assert_eq!(record.encode(), bytes);
        }
    }
}

async fn open(blobs: &BlobLog, name: &[u8]) -> LogBlob {
    let versions = DEFAULT_BLOB_VERSION..=DEFAULT_BLOB_VERSION;
    blobs.open_blob("votes", name, &versions).unwrap().0
}

#[test]
fn one_sync_answers_all_who_wait() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("disk");
    let disk = SimulatedDisk::new(&root, 1).unwrap();
    let blobs = BlobLog::open(Arc::new(disk.clone()), &root.join("log")).unwrap();
    deterministic::Runner::default().start(|context| async move {
        blobs.start(context.child("blobs"));
        let (first, second) = (open(&blobs, b"1").await, open(&blobs, b"2").await);
        first.write_at(3, b"one".to_vec(), WriteOptions::default()).await.unwrap();
        second.write_at(0, b"two".to_vec(), WriteOptions::default()).await.unwrap();
        let before = disk.operations();
        let (synced, too) = (first.start_sync().await, second.start_sync().await);
        synced.await.unwrap();
        too.await.unwrap();
        assert_eq!(disk.operations() - before, 2, "a sync, and its mark");
        first.sync().await.unwrap();
        assert_eq!(disk.operations() - before, 2, "everything is durable");

        let versions = DEFAULT_BLOB_VERSION..=DEFAULT_BLOB_VERSION;
        let again = blobs.open_blob("votes", b"1", &versions);
        assert!(matches!(again, Err(Error::BlobAlreadyOpen(..))));
        blobs.remove("votes", Some(b"1")).unwrap();
        // What is removed stays readable for who has it open, and its name is free.
        let replaced = open(&blobs, b"1").await;
        let read = first.read_at(0, 6, ReadOptions::default()).await.unwrap();
        assert_eq!(read.coalesce().as_ref(), b"\0\0\0one");
        let end = replaced.read_at(0, 1, ReadOptions::default()).await;
        assert!(matches!(end, Err(Error::BlobInsufficientLength)));
        assert!(first.sync().await.is_err());
        drop(first);
        assert_eq!(blobs.scan("votes").unwrap(), [b"1".to_vec(), b"2".to_vec()]);

        disk.fail_syncs(1);
        replaced.write_at(0, b"x".to_vec(), WriteOptions::default()).await.unwrap();
        assert!(replaced.sync().await.is_err(), "the disk failed");
        assert!(second.sync().await.is_err(), "nothing is made durable any more");
        let refused = second.write_at(0, b"x".to_vec(), WriteOptions::default()).await;
        assert!(matches!(refused, Err(Error::Closed)));
    });
}
