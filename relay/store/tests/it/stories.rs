//! The life of a message: appended, found, read through a reference, retired.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use accounting::Pool;
use disk::RealDisk;
use store::{
    AppendError, Config, MESSAGE_BYTES_MAX, OpenError, Query, QueryError, Store, TOPIC_BYTES_MAX,
};

use crate::common::*;

#[test]
fn a_message_is_found_as_soon_as_it_was_appended_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    for number in 0..50 {
        let message = append(&store, number, hand.now() + number as i64 % 7);
        assert_eq!(message.hash().unwrap(), hash(number));
        let mut part = [0; 10];
        message.read_at(33, &mut part).unwrap();
        assert_eq!(part, body(number, 200)[33..43]);
        assert_eq!(
            message.read_at(191, &mut part).unwrap_err().kind(),
            std::io::ErrorKind::InvalidInput
        );
        let query = Query { hashes: vec![hash(number)], ..Query::default() };
        let page = ask(&store, query).unwrap();
        assert_eq!(page.messages.iter().map(checked).collect::<Vec<_>>(), [number]);
        assert_eq!(&*page.messages[0].content_topic, "/app/1/chat/proto");
        assert_eq!(&*page.messages[0].pubsub_topic, PUBSUB);
    }
    let status = store.status();
    assert_eq!((status.messages, status.partitions, status.index_lag_messages), (50, 1, 0));
    assert!(status.unsynced_bytes > 0);
    store.sync();
    assert_eq!(store.status().unsynced_bytes, 0);
    drop(store);
    let store = open(config(folder.path()), &hand);
    assert_eq!(numbers(&store), (0..50).collect::<Vec<_>>());
    assert_eq!((store.status().messages, store.status().rebuilt_indexes), (50, 0));
    assert_eq!(store.status().oldest_ns, Some(hand.now()));
}

#[test]
fn a_folder_has_one_store_and_a_closed_store_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    let again = Store::open(config(folder.path()), RealDisk::shared(), hand.clock());
    assert!(matches!(again.err().unwrap(), OpenError::InUse { .. }));
    let message = append(&store, 1, hand.now());
    store.close();
    let refused = try_append(&store, arrival(2, hand.now()), body(2, 10));
    assert!(matches!(refused, Err(AppendError::Closed)));
    assert!(matches!(ask(&store, Query::default()), Err(QueryError::Closed)));
    assert_eq!(message.read_all().unwrap(), body(1, 200));
    drop(store);
    assert_eq!(numbers(&open(config(folder.path()), &hand)), [1]);
}

#[test]
fn a_message_that_arrives_twice_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let config = Config { retention: Duration::from_secs(8000), ..config(folder.path()) };
    let store = open(config, &hand);
    let first = append(&store, 1, hand.now());
    let written = store.status().appended_bytes;
    let pool = Pool::standalone("test", 1 << 20);
    // One after the other, and both in one batch.
    assert_eq!(format!("{:?}", append(&store, 1, hand.now())), format!("{first:?}"));
    assert_eq!(store.status().appended_bytes, written);
    let twice: Vec<_> = (0..2)
        .map(|_| {
            let held = pool.try_reserve(200).unwrap();
            store.append(arrival(2, hand.now()), body(2, 200), held).unwrap()
        })
        .collect();
    let twice: Vec<store::AppendOutcome> =
        twice.into_iter().map(|answer| block_on(answer).unwrap()).collect();
    assert_eq!(twice.iter().map(|appended| appended.known).collect::<Vec<_>>(), [false, true]);
    assert_eq!(format!("{:?}", twice[0].message), format!("{:?}", twice[1].message));
    assert_eq!(store.status().appended_messages, 2);
    // One that was not kept is written when it is to be kept.
    let transit = store::Arrival { kept: false, ..arrival(3, hand.now()) };
    try_append(&store, transit.clone(), body(3, 200)).unwrap();
    assert_eq!(numbers(&store), [1, 2]);
    append(&store, 3, hand.now());
    assert_eq!(numbers(&store), [1, 2, 3]);
    // Long after, it is written again, and found once.
    hand.forward(121);
    append(&store, 1, hand.now() - 121 * SECOND);
    assert_eq!(store.status().appended_messages, 4);
    assert_eq!(numbers(&store), [1, 2, 3]);
}

#[test]
fn a_message_of_another_store_is_new_when_it_arrives_to_be_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    let pool = Pool::standalone("test", 1000);
    let new = arrival(1, hand.now());
    let fetched = store::Arrival { fetched: true, ..new.clone() };
    let is_known = |one: &store::Arrival| {
        let held = pool.try_reserve(200).unwrap();
        block_on(store.append(one.clone(), body(1, 200), held).unwrap()).unwrap().known
    };
    assert!(!is_known(&fetched) && is_known(&fetched));
    assert!(!is_known(&new), "it is passed on once");
    assert!(is_known(&new) && is_known(&fetched));
    assert_eq!(numbers(&store), [1]);
}

#[test]
fn retention_by_time_removes_whole_partitions_and_references_outlive_them() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    // A partition takes ten seconds.
    let mut references = Vec::new();
    for number in 0..12 {
        references.push(append(&store, number, hand.now()));
        hand.forward(10);
    }
    assert_eq!(numbers(&store).len() as u64, 12 - store.status().dropped_partitions);
    append(&store, 99, hand.now());
    store.sync();
    // 120 s have passed, 80 are kept; a partition goes when all of it is older.
    assert_eq!(numbers(&store), [4, 5, 6, 7, 8, 9, 10, 11, 99]);
    assert_eq!((store.status().dropped_partitions, store.status().partitions), (4, 9));
    assert_eq!(files(folder.path(), ".sqlite").len(), 9);
    for (number, message) in references.iter().enumerate() {
        assert_eq!(message.read_all().unwrap(), body(number as u64, 200));
    }
    // In addition to two for reading.
    assert!(store.status().open_segments <= 2);
    let query = Query { cursor: Some(hash(0)), ..Query::default() };
    assert!(
        matches!(ask(&store, query), Err(QueryError::UnknownCursor { cursor }) if cursor == hash(0))
    );
}

#[test]
fn retention_by_size_removes_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let config = Config {
        retention_bytes: 16 << 20,
        retention: Duration::from_secs(1 << 30),
        ..config(folder.path())
    };
    let store = open(config.clone(), &hand);
    let bytes = 300 << 10;
    for number in 0..150 {
        try_append(&store, arrival(number, hand.now()), body(number, bytes)).unwrap();
        hand.forward(1);
        if number % 5 == 0 {
            store.sync();
            let on_disk = store.status().disk_bytes;
            assert!(on_disk <= config.retention_bytes, "{on_disk} at {number}");
        }
    }
    let found = numbers(&store);
    assert_eq!(*found.last().unwrap(), 149);
    assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "the newest, without a gap");
    // At least all but two of the eighths are in use.
    assert!(found.len() * bytes >= 12 << 20, "{}", found.len());
    let on_disk: u64 =
        files(folder.path(), "").iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(on_disk <= 17 << 20, "{on_disk}");
    drop(store);
    assert_eq!(numbers(&open(config, &hand)), found);
}

#[test]
fn a_message_that_is_not_kept_is_no_answer_and_readable_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    let transit = store::Arrival { kept: false, ..arrival(1, hand.now()) };
    let message = try_append(&store, transit, body(1, 5000)).unwrap();
    assert_eq!(numbers(&store), [] as [u64; 0]);
    let transit = folder.path().join("transit");
    hand.forward(119);
    store.sync();
    assert_eq!((files(&transit, ".segment").len(), store.status().transit_segments), (1, 1));
    hand.forward(2);
    store.sync();
    assert_eq!((files(&transit, ".segment").len(), store.status().transit_segments), (0, 0));
    assert_eq!(message.read_all().unwrap(), body(1, 5000));
    // The next begins another segment.
    let later = store::Arrival { kept: false, ..arrival(2, hand.now()) };
    let later = try_append(&store, later, body(2, 100)).unwrap();
    assert_eq!(later.read_all().unwrap(), body(2, 100));
    assert_eq!(files(&transit, ".segment").len(), 1);
    drop(store);
    open(config(folder.path()), &hand);
    assert_eq!(files(&transit, ".segment").len(), 0);
}

#[test]
fn messages_that_are_not_kept_take_so_much_space_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(Config { transit_bytes: 6 << 20, ..config(folder.path()) }, &hand);
    let messages: Vec<_> = (0..40)
        .map(|number| {
            let transit = store::Arrival { kept: false, ..arrival(number, hand.now()) };
            try_append(&store, transit, body(number, 500_000)).unwrap()
        })
        .collect();
    store.sync();
    let status = store.status();
    assert!((4 << 20..=6 << 20).contains(&status.transit_bytes), "{}", status.transit_bytes);
    assert_eq!(files(folder.path(), ".segment").len(), status.transit_segments);
    // Holders of a reference can still read.
    for (number, message) in messages.iter().enumerate() {
        assert_eq!(message.read_all().unwrap(), body(number as u64, 500_000));
    }
}

#[test]
fn many_segments_are_read_through_few_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(config(folder.path()), &hand);
    let messages: Vec<_> = (0..12)
        .map(|number| {
            try_append(&store, arrival(number, hand.now()), body(number, 1 << 20)).unwrap()
        })
        .collect();
    assert!(files(folder.path(), ".segment").len() >= 12);
    for round in 0..3 {
        for (number, message) in messages.iter().enumerate() {
            let mut part = [0; 100];
            message.read_at(round * 1000, &mut part).unwrap();
            assert_eq!(part, body(number as u64, 1 << 20)[round * 1000..round * 1000 + 100]);
        }
    }
    assert_eq!(store.status().open_segments, 2);
}

#[test]
fn what_is_too_much_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let store = open(Config { query_queue: 1, ..config(folder.path()) }, &hand);
    let refused = try_append(&store, arrival(1, 0), body(1, MESSAGE_BYTES_MAX + 1)).unwrap_err();
    assert!(refused.to_string().contains("a message of 1048577 bytes"), "{refused}");
    let topic = "t".repeat(TOPIC_BYTES_MAX + 1);
    let long = store::Arrival { content_topic: topic.into(), ..arrival(1, 0) };
    let refused = try_append(&store, long, body(1, 1)).unwrap_err();
    assert!(refused.to_string().contains("a content topic of 4097 bytes"), "{refused}");
    let query = Query { hashes: vec![[0; 32]; store::HASHES_MAX + 1], ..Query::default() };
    assert!(matches!(ask(&store, query), Err(QueryError::TooMany { what: "hashes", .. })));
    // Each holds its place until its answer was taken.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    let mut queries: Vec<_> = (0..1000).map(|_| Box::pin(store.query(Query::default()))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let answers = queries.iter_mut().map(|query| query.as_mut().poll(&mut context));
    let busy =
        answers.filter(|answer| matches!(answer, Poll::Ready(Err(QueryError::Busy { queue: 1 }))));
    assert!(busy.count() > 0);
    drop(queries);
    assert_eq!(store.status().queries, 0);
    drop(store);
    let small = Config { segment_bytes: 1, ..config(folder.path()) };
    let refused = Store::open(small, RealDisk::shared(), hand.clock()).err().unwrap();
    assert!(refused.to_string().contains("segment_bytes is 1; set it to 2097152"), "{refused}");
}
