//! Bytes that change on disk: reported, set aside, and the store continues with the rest.

use std::path::Path;

use store::{Query, QueryError};

use crate::common::*;

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Two partitions: numbers below 20, and from 20 on.
fn filled(folder: &Path) -> ManualClock {
    let hand = ManualClock::new();
    let store = open(config(folder), &hand);
    for number in 0..40 {
        if number == 20 {
            hand.forward(10);
        }
        append(&store, number, hand.now());
    }
    store.sync();
    hand
}

// Promise: P23 - A missing, damaged or foreign index is rebuilt.
#[test]
fn an_index_that_is_missing_damaged_or_foreign_is_made_anew() {
    for case in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let hand = filled(folder.path());
        let index = files(folder.path(), ".sqlite").remove(0);
        match case {
            0 => std::fs::remove_file(&index).unwrap(),
            // As if it had just been begun.
            1 => std::fs::write(&index, b"").unwrap(),
            2 => std::fs::write(&index, vec![7; 10_000]).unwrap(),
            3 => flip(&index, 5),
            _ => {
                let other = rusqlite::Connection::open(&index).unwrap();
                other.pragma_update(None, "user_version", 99).unwrap();
            }
        }
        let store = open(config(folder.path()), &hand);
        assert_eq!(store.status().rebuilt_indexes, u64::from(case != 1), "case {case}");
        assert_eq!(numbers(&store), (0..40).collect::<Vec<_>>(), "case {case}");
    }
}

#[test]
fn an_index_damaged_within_is_noticed_by_a_query_and_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let hand = filled(folder.path());
    let index = files(folder.path(), ".sqlite").remove(0);
    let mut bytes = std::fs::read(&index).unwrap();
    let pages = bytes.len() / 4096;
    assert!(pages > 8);
    // The tables' own definition is on the first page.
    bytes[8192..].fill(0xa5);
    std::fs::write(&index, bytes).unwrap();
    let store = open(config(folder.path()), &hand);
    assert_eq!(numbers(&store), (0..40).collect::<Vec<_>>());
    assert_eq!(store.status().rebuilt_indexes, 1);

    // All of it but the first page.
    let whole = std::fs::metadata(&index).unwrap().len() as usize;
    let file = std::fs::OpenOptions::new().write(true).open(&index).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xa5; whole - 4096], 4096).unwrap();
    drop(store);
    let store = open(config(folder.path()), &hand);
    let query = Query { hashes: vec![hash(3)], ..Query::default() };
    assert_eq!(ask_until_built(&store, &query).messages.len(), 1);
    assert_eq!(numbers(&store), (0..40).collect::<Vec<_>>());
}

// Promise: P23 - A damaged segment is set aside.
#[test]
fn a_damaged_segment_is_set_aside_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let hand = filled(folder.path());
    let segment = files(folder.path(), ".segment").remove(0);
    // Complete and synced: it is not read through at start. The last byte is in the last message.
    let length = std::fs::metadata(&segment).unwrap().len() as usize;
    flip(&segment, length - 1);
    let store = open(config(folder.path()), &hand);
    assert_eq!((store.status().damaged_segments, store.status().messages), (0, 40));
    let of = |number| Query { hashes: vec![hash(number)], ..Query::default() };
    // Its other messages check.
    assert_eq!(ask(&store, of(3)).unwrap().messages.len(), 1);
    let reference = ask(&store, of(4)).unwrap().messages.remove(0).message;
    let refused = ask(&store, of(19)).unwrap_err();
    assert!(matches!(&refused, QueryError::Index { path, .. } if *path == segment), "{refused}");
    assert!(refused.to_string().contains("checksum"), "{refused}");
    assert!(ask_until_built(&store, &of(19)).messages.is_empty());
    assert_eq!(numbers(&store), (20..40).collect::<Vec<_>>());
    assert_eq!((store.status().damaged_segments, store.status().messages), (1, 20));
    assert_eq!(files(folder.path(), ".segment.damaged").len(), 1);
    assert_eq!(reference.read_all().unwrap(), body(4, 200));
    append(&store, 100, hand.now());
    drop(store);
    let store = open(config(folder.path()), &hand);
    assert_eq!(numbers(&store).len(), 21);
    assert_eq!(store.status().damaged_segments, 0);
    // It goes with its partition.
    hand.forward(200);
    append(&store, 101, hand.now());
    store.sync();
    assert_eq!(files(folder.path(), ".damaged").len(), 0);
}

#[test]
fn a_damaged_segment_is_set_aside_when_it_is_read_through() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let live = folder.path().join("live");
    let store = open(config(&live), &hand);
    (0..10).for_each(|number| drop(append(&store, number, hand.now())));
    store.sync();
    append(&store, 10, hand.now());
    hand.forward(10);
    append(&store, 11, hand.now());
    assert_eq!(numbers(&store).len(), 12);
    let killed = folder.path().join("killed");
    copy(&live, &killed);
    flip(&files(&killed, ".segment")[0], 500);
    let store = open(config(&killed), &hand);
    assert_eq!(numbers(&store), [11]);
    assert_eq!(store.status().damaged_segments, 1);
    drop(store);
    assert_eq!(numbers(&open(config(&killed), &hand)), [11]);
}

#[test]
fn a_segment_that_is_gone_and_files_of_others_are_no_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let hand = filled(folder.path());
    std::fs::remove_file(&files(folder.path(), ".segment")[0]).unwrap();
    let partitions = folder.path().join("partitions");
    std::fs::write(partitions.join("notes"), "mine").unwrap();
    std::fs::create_dir(partitions.join("00000000000000000005")).unwrap();
    // An invalid partition: it is set aside.
    std::fs::write(partitions.join("00000000000000000006"), "not a folder").unwrap();
    let store = open(config(folder.path()), &hand);
    assert_eq!(numbers(&store), (20..40).collect::<Vec<_>>());
    assert_eq!((store.status().damaged_partitions, store.status().partitions), (1, 3));
    assert!(partitions.join("00000000000000000006.damaged").exists());
    assert!(partitions.join("notes").exists());
    append(&store, 100, hand.now());
    assert_eq!(numbers(&store).len(), 21);
}

#[test]
fn an_index_that_vanishes_under_a_running_store_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let hand = filled(folder.path());
    let store = open(config(folder.path()), &hand);
    for path in files(folder.path(), ".sqlite") {
        std::fs::remove_file(path).unwrap();
    }
    let query = Query { hashes: vec![hash(3), hash(33)], ..Query::default() };
    assert_eq!(ask_until_built(&store, &query).messages.len(), 2);
    append(&store, 100, hand.now());
    assert_eq!(numbers(&store).len(), 41);
    assert_eq!(store.status().rebuilt_indexes, 2);
}
