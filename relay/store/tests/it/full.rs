//! With a full disk messages are refused with the reason, and nothing else is lost.

use std::{io, sync::Arc};

use disk::SimulatedDisk;
use store::{AppendError, Config, Query, QueryError};

use crate::common::*;
use testing::{SmallDisk, until};

/// The first page of everything.
fn first() -> Query {
    Query { forward: true, ..Query::default() }
}

fn is_refused(error: &QueryError) -> bool {
    matches!(error, QueryError::Index { .. }) && error.to_string().contains("try again")
}

#[test]
fn queries_that_concern_a_partition_that_cannot_be_opened_are_refused_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let live = folder.path().join("live");
    let store = open(config(&live), &hand);
    (0..3).for_each(|number| drop(append(&store, number, hand.now())));
    // Killed now: its segment is not synced, and cannot be.
    let root = folder.path().join("disk");
    copy(&live, &root.join("store"));
    let disk = SimulatedDisk::new(&root, 1).unwrap();
    disk.fail_syncs(u64::MAX);
    let store = open_on(Arc::new(disk.clone()), config(&root.join("store")), &hand);
    let of = |number| Query { hashes: vec![hash(number)], ..Query::default() };
    let behind = Query { cursor: Some(hash(1)), ..first() };
    for query in [first(), of(2), behind] {
        let error = ask(&store, query.clone()).unwrap_err();
        assert!(is_refused(&error), "{query:?}: {error}");
    }
    // Its messages are newer by an hour and more.
    let before = Query { end_ns: Some(hand.now() - 7200 * SECOND), ..first() };
    assert!(ask(&store, before).unwrap().messages.is_empty());
    disk.fail_syncs(0);
    until("the partition is open", || ask(&store, first()).is_ok());
    assert_eq!(numbers(&store), [0, 1, 2]);
    assert!(ask(&store, of(9)).unwrap().messages.is_empty());
}

// Promise: P23 - A full disk refuses messages and accepts them when it has room.
#[test]
fn writes_that_find_no_room_are_refused_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new(folder.path(), 1).unwrap();
    let hand = ManualClock::new();
    let config = config(&folder.path().join("store"));
    let store = open_on(Arc::new(disk.clone()), config.clone(), &hand);
    for round in 0..3u64 {
        let first = round * 100;
        append(&store, first, hand.now());
        disk.limit_growth(Some(1000));
        // The small one fits, the large one does not, and the small one behind it does.
        append(&store, first + 1, hand.now());
        let refused =
            try_append(&store, arrival(first + 2, hand.now()), body(first + 2, 5000)).unwrap_err();
        let AppendError::DiskFull { path, needed_bytes, .. } = &refused else {
            panic!("{refused}")
        };
        assert_eq!(*path, folder.path().join("store"));
        assert!(*needed_bytes >= 5000);
        assert!(refused.to_string().contains("the disk is full"), "{refused}");
        append(&store, first + 3, hand.now());
        // A partition cannot be begun either.
        hand.forward(10);
        disk.limit_growth(Some(0));
        let refused =
            try_append(&store, arrival(first + 4, hand.now()), body(first + 4, 10)).unwrap_err();
        assert!(matches!(refused, AppendError::DiskFull { .. }), "{refused}");
        disk.limit_growth(None);
        append(&store, first + 5, hand.now());
    }
    let expected: Vec<u64> =
        (0..3).flat_map(|round| [0, 1, 3, 5].map(|number| round * 100 + number)).collect();
    assert_eq!(numbers(&store), expected);
    assert_eq!(store.status().disk_full_refusals, 6);
    drop(store);
    let store = open_on(Arc::new(disk), config, &hand);
    assert_eq!(numbers(&store), expected);
    assert_eq!(store.status().damaged_segments, 0);
}

// Promise: P23 - A file system below the reserve accepts nothing until it has room.
#[test]
fn a_file_system_below_the_reserve_takes_nothing_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path(), "24m") else { return };
    let hand = ManualClock::new();
    let config = Config { disk_reserve_bytes: 6 << 20, ..config(&folder.path().join("store")) };
    let store = open(config.clone(), &hand);
    let mut accepted = Vec::new();
    let refused = (0..1000).find_map(|number| {
        match try_append(&store, arrival(number, hand.now()), body(number, 100_000)) {
            Ok(_) => accepted.push(number),
            Err(error) => return Some(error),
        }
        None
    });
    let refused = refused.unwrap();
    let AppendError::DiskFull { free_bytes, needed_bytes, .. } = refused else {
        panic!("{refused}")
    };
    assert!(free_bytes < needed_bytes && needed_bytes > 6 << 20);
    assert!(accepted.len() > 100, "{}", accepted.len());
    assert_eq!(numbers(&store), accepted);
    // Something else takes the rest, the index's reserve included.
    let filler = folder.path().join("filler");
    let error = std::fs::write(&filler, vec![1; 24 << 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(try_append(&store, arrival(5000, hand.now()), body(5000, 10)).is_err());
    assert_eq!(numbers(&store), accepted);
    std::fs::remove_file(&filler).unwrap();
    // Retention makes room, though nothing arrives.
    hand.forward(200);
    until("retention makes room", || {
        store.sync();
        store.status().partitions == 0
    });
    assert_eq!(numbers(&store), [] as [u64; 0]);
    append(&store, 6000, hand.now());
    assert_eq!(numbers(&store), [6000]);
    drop(store);
    assert_eq!(numbers(&open(config, &hand)), [6000]);
}

// Promise: P23 - Messages are relayed without storing while the disk is below its reserve.
#[test]
fn what_may_pass_is_passed_on_while_there_is_no_room_to_keep_it() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let free = rustix::fs::statvfs(folder.path()).unwrap();
    // Half of the disk's free space is too little for kept messages, and enough for the rest.
    let disk_reserve_bytes = free.f_bavail * free.f_frsize * 2;
    let store = open(Config { disk_reserve_bytes, ..config(folder.path()) }, &hand);
    let refused = try_append(&store, arrival(1, hand.now()), body(1, 200)).unwrap_err();
    assert!(matches!(refused, AppendError::DiskFull { .. }), "{refused}");
    let passing = store::Arrival { may_pass: true, ..arrival(1, hand.now()) };
    let message = try_append(&store, passing.clone(), body(1, 200)).unwrap();
    assert_eq!(message.read_all().unwrap(), body(1, 200));
    // Again: it is known.
    try_append(&store, passing, body(1, 200)).unwrap();
    assert_eq!((numbers(&store).len(), store.status().appended_messages), (0, 0));
}

// Promise: P23 - Messages are relayed without storing while the disk has no byte left.
#[test]
fn what_may_pass_is_passed_on_while_the_disk_has_no_byte_left() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path(), "40m") else { return };
    let hand = ManualClock::new();
    let folder_of_store = folder.path().join("store");
    let config =
        Config { disk_reserve_bytes: 8 << 20, spare_segments: 4, ..config(&folder_of_store) };
    let mut store = open(config.clone(), &hand);
    append(&store, 0, hand.now());
    store.sync();
    assert_eq!(files(folder.path(), ".spare").len(), 4);
    // Its row is written before the disk is full.
    assert_eq!(numbers(&store), [0]);
    let filler = folder.path().join("filler");
    let pass = |store: &store::Store, number: u64| {
        let passing = store::Arrival { may_pass: true, ..arrival(number, hand.now()) };
        try_append(store, passing, body(number, 500_000))
    };
    // The disk is full all the time, at a start too.
    for start in 0..2 {
        let error = std::fs::write(&filler, vec![1; 40 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let refused = try_append(&store, arrival(1, hand.now()), body(1, 10)).unwrap_err();
        assert!(matches!(refused, AppendError::DiskFull { .. }), "{refused}");
        // As long as they have references, exactly this many.
        let mut held = Vec::new();
        let refused = loop {
            let number = 1000 * (start + 1) + held.len() as u64;
            match pass(&store, number) {
                Ok(message) => held.push((number, message)),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, AppendError::DiskFull { .. }), "{refused}");
        assert_eq!(held.len(), 4 * 8, "{refused}");
        for (number, message) in &held {
            assert_eq!(message.read_all().unwrap(), body(*number, 500_000));
        }
        // Those that were sent make room for others.
        held.drain(..8);
        for number in 0..8 {
            held.push((5000 + number, pass(&store, 5000 + number).unwrap()));
        }
        assert!(pass(&store, 6000).is_err());
        for (number, message) in held.drain(..) {
            assert_eq!(message.read_all().unwrap(), body(number, 500_000));
        }
        for number in 7000..7100 {
            let message = pass(&store, number).unwrap();
            assert_eq!(message.read_all().unwrap(), body(number, 500_000));
        }
        // An index may not be opened on a full disk: a query is refused then, and not answered as
        // if there were nothing.
        for query in [first(), Query { hashes: vec![hash(0)], ..Query::default() }] {
            match ask(&store, query) {
                Ok(page) => assert_eq!(page.messages.len(), 1),
                Err(error) => assert!(start > 0 && is_refused(&error), "{error}"),
            }
        }
        drop(store);
        store = open(config.clone(), &hand);
    }
    std::fs::remove_file(&filler).unwrap();
    until("the kept message is found", || ask(&store, first()).is_ok());
    assert_eq!(numbers(&store), [0]);
    append(&store, 1, hand.now());
    assert_eq!(numbers(&store), [0, 1]);
    drop(store);
    let store = open(config, &hand);
    assert_eq!(numbers(&store), [0, 1]);
    assert_eq!(files(&folder.path().join("store/transit"), ".segment").len(), 0);
    pass(&store, 8000).unwrap();
    assert_eq!(numbers(&store), [0, 1, 8000], "there is room to keep it");
}
