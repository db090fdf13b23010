//! Retention with a wall clock that is set.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
};

use disk::RealDisk;
use store::{Clock, Store};

use crate::common::{SECOND, append, config, numbers};

const START: i64 = 1_700_000_000 * SECOND;
const HOUR: i64 = 3600 * SECOND;

/// Clocks that are moved by hand.
struct ManualClocks {
    wall_ns: AtomicI64,
    boot_ns: AtomicI64,
    settled: AtomicBool,
}

impl ManualClocks {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            wall_ns: AtomicI64::new(START),
            boot_ns: AtomicI64::new(5 * SECOND),
            settled: AtomicBool::new(true),
        })
    }

    fn pass(&self, ns: i64) {
        self.wall_ns.fetch_add(ns, SeqCst);
        self.boot_ns.fetch_add(ns, SeqCst);
    }

    fn set_by(&self, ns: i64) {
        self.wall_ns.fetch_add(ns, SeqCst);
    }
}

impl Clock for ManualClocks {
    fn now_ns(&self) -> i64 {
        self.wall_ns.load(SeqCst)
    }

    fn boot_ns(&self) -> i64 {
        self.boot_ns.load(SeqCst)
    }

    fn is_settled(&self) -> bool {
        self.settled.load(SeqCst)
    }
}

// Promise: P23 - A wall clock that was set removes no message that arrived since the relay started.
#[test]
fn messages_of_this_process_live_as_long_whatever_the_wall_clock_is_set_to() {
    for set_ns in [80 * HOUR, -80 * HOUR] {
        let folder = tempfile::tempdir().unwrap();
        let clocks = ManualClocks::new();
        let store = Store::open(config(folder.path()), RealDisk::shared(), clocks.clone()).unwrap();
        // A partition takes ten seconds, and 80 s are kept.
        for number in 0..3 {
            append(&store, number, clocks.now_ns());
            clocks.pass(10 * SECOND);
        }
        clocks.set_by(set_ns);
        append(&store, 3, clocks.now_ns());
        store.sync();
        assert_eq!(store.status().dropped_partitions, 0, "{set_ns}");
        assert_eq!(numbers(&store), [0, 1, 2, 3], "{set_ns}");
        clocks.pass(65 * SECOND);
        append(&store, 4, clocks.now_ns());
        store.sync();
        // The first partition ended 85 s ago, the second 75 s ago.
        assert_eq!(store.status().dropped_partitions, 1, "{set_ns}");
        store.close();
    }
}

// Promise: P23 - Messages of an earlier process are not judged by a clock that is not settled.
#[test]
fn messages_of_an_earlier_process_wait_until_the_wall_clock_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let clocks = ManualClocks::new();
    let open = || Store::open(config(folder.path()), RealDisk::shared(), clocks.clone()).unwrap();
    let store = open();
    append(&store, 1, clocks.now_ns());
    store.close();
    drop(store);
    clocks.set_by(80 * HOUR);
    clocks.settled.store(false, SeqCst);
    let store = open();
    store.sync();
    assert_eq!(numbers(&store), [1]);
    clocks.settled.store(true, SeqCst);
    store.sync();
    assert!(numbers(&store).is_empty());
    assert_eq!(store.status().dropped_partitions, 1);
}
