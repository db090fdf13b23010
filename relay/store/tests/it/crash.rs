//! Processes that are killed, ends that are torn, power that goes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use accounting::Pool;
use disk::{RealDisk, SimulatedDisk};
use store::{Config, Query, Store};

use crate::common::*;

const FOLDER: &str = "STORE_TEST_FOLDER";
const FIRST: &str = "STORE_TEST_FIRST";

/// Partitions of an hour, and nothing is ever old.
fn long(folder: &Path) -> Config {
    Config { retention: Duration::from_secs(1 << 30), ..config(folder) }
}

/// Appends until it is killed, eight at a time, and reports the answers.
fn child(folder: &str, first: u64) -> ! {
    let hand = ManualClock::new();
    let config = Config { sync_interval: Duration::from_millis(20), ..long(folder.as_ref()) };
    let store = open(config, &hand);
    let pool = Pool::standalone("test", 1 << 30);
    let mut out = std::io::stdout();
    block_on(async {
        for batch in 0.. {
            let answers: Vec<_> = (0..8)
                .map(|index| {
                    let number = first + batch * 8 + index;
                    let bytes = if number.is_multiple_of(5) { 140_000 } else { 300 };
                    let held = pool.try_reserve(bytes as u64).unwrap();
                    let arrival = arrival(number, hand.now());
                    (number, store.append(arrival, body(number, bytes), held).unwrap())
                })
                .collect();
            for (number, answer) in answers {
                answer.await.unwrap();
                writeln!(out, "acknowledged {number}").unwrap();
            }
            out.flush().unwrap();
            // Partitions and segments change on the way.
            hand.forward(600);
        }
    });
    unreachable!()
}

// Promise: P23 - 20 kills lose no acknowledged message.
#[test]
fn what_was_acknowledged_is_found_after_each_of_twenty_kills() {
    if let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) {
        child(&folder, first.parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut acknowledged, mut killed_while_running) = (Vec::new(), 0);
    for life in 0..20u64 {
        let name = "crash::what_was_acknowledged_is_found_after_each_of_twenty_kills";
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(FOLDER, folder.path())
            .env(FIRST, (life * 1_000_000).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut read = |lines: &mut std::io::Lines<BufReader<std::process::ChildStdout>>| {
            let line: String = lines.next()?.unwrap();
            let number = line.strip_prefix("acknowledged ").map(|number| number.parse().unwrap());
            acknowledged.extend::<Option<u64>>(number);
            Some(())
        };
        for _ in 0..40 + 37 * life {
            read(&mut lines).unwrap();
        }
        process.kill().unwrap();
        killed_while_running += u64::from(!process.wait().unwrap().success());
        while read(&mut lines).is_some() {}
        if life % 5 == 4 {
            // Each life's clock begins anew, so nothing is old.
            let store = open(long(folder.path()), &ManualClock::new());
            let found = numbers(&store);
            acknowledged.sort_unstable();
            let missing: Vec<_> =
                acknowledged.iter().filter(|number| found.binary_search(number).is_err()).collect();
            assert!(missing.is_empty(), "{missing:?} of {}", acknowledged.len());
            assert_eq!(store.status().damaged_segments, 0);
        }
    }
    assert_eq!(killed_while_running, 20);
    assert!(acknowledged.len() > 5000, "{}", acknowledged.len());
}

// Promise: P23 - A torn tail is cut at every byte and never served.
#[test]
fn an_end_torn_at_any_byte_is_cut_off_and_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let hand = ManualClock::new();
    let live = folder.path().join("live");
    let store = open(config(&live), &hand);
    for number in 0..6 {
        try_append(&store, arrival(number, hand.now()), body(number, 40)).unwrap();
    }
    assert_eq!(numbers(&store).len(), 6);
    // As a kill would leave it: nothing is sealed.
    let killed = folder.path().join("killed");
    copy(&live, &killed);
    drop(store);
    let segment = files(&killed, ".segment").remove(0);
    let whole = std::fs::read(&segment).unwrap();
    let record = (whole.len() - 32) / 6;
    for end in whole.len() - 3 * record..=whole.len() {
        let torn = folder.path().join("torn");
        copy(&killed, &torn);
        let segment = files(&torn, ".segment").remove(0);
        let mut bytes = whole.clone();
        match end % 3 {
            // Cut short; or long enough, with the old content.
            0 | 1 => bytes.truncate(end),
            _ => bytes[end..].fill(0),
        }
        std::fs::write(&segment, &bytes).unwrap();
        // The index is ahead of the segment, or is gone.
        let rebuilt = end % 2 == 0;
        if rebuilt {
            files(&torn, ".sqlite").iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
        let left = (end - 32) as u64 / record as u64;
        let store = open(config(&torn), &hand);
        assert_eq!(numbers(&store), (0..left).collect::<Vec<_>>(), "cut at {end}");
        assert_eq!(store.status().damaged_segments, 0);
        assert_eq!(store.status().rebuilt_indexes, u64::from(rebuilt || left < 6));
        append(&store, 100, hand.now());
        assert_eq!(numbers(&store).len() as u64, left + 1);
        drop(store);
        std::fs::remove_dir_all(&torn).unwrap();
    }
}

// Promise: P23 - Synced messages survive a power cut at any operation.
#[test]
fn the_power_goes_and_what_was_synced_is_there() {
    let mut lost = 0;
    for seed in 0..40u64 {
        let folder = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::new(folder.path(), seed).unwrap();
        let hand = ManualClock::new();
        let config = config(&folder.path().join("store"));
        let store = open_on(Arc::new(disk.clone()), config.clone(), &hand);
        let bytes = |number: u64| if number.is_multiple_of(4) { 100_000 } else { 500 };
        let some = |range: std::ops::Range<u64>| {
            for number in range {
                let answer =
                    try_append(&store, arrival(number, hand.now()), body(number, bytes(number)));
                if answer.is_err() {
                    return number;
                }
                if number % 10 == 0 {
                    hand.forward(4);
                }
            }
            u64::MAX
        };
        some(0..30);
        store.sync();
        if seed % 4 == 0 {
            // In the middle of a write, or of a change of partitions.
            disk.end_after(1 + seed / 4, seed % 8 == 0);
        }
        let ended = some(30..60);
        assert_eq!(ended < 60, seed % 4 == 0, "the disk ended at {ended}");
        disk.switch_off();
        drop(store);
        disk.cut_power().unwrap();
        // SQLite does not write through the simulated disk: its files are as they were, which is
        // ahead of the segments, or gone.
        if seed % 3 == 0 {
            for path in files(folder.path(), "")
                .iter()
                .filter(|path| path.to_str().unwrap().contains("sqlite"))
            {
                std::fs::remove_file(path).unwrap();
            }
        }
        let store = open_on(Arc::new(disk.clone()), config.clone(), &hand);
        let found = numbers(&store);
        assert!((0..30).all(|number| found.contains(&number)), "seed {seed}: {found:?}");
        assert_eq!(store.status().damaged_segments + store.status().damaged_partitions as u64, 0);
        lost += u64::from(found.len() < 60);
        // The store continues, and the next power cut takes nothing that was synced.
        append(&store, 1000, hand.now());
        store.sync();
        disk.switch_off();
        drop(store);
        disk.cut_power().unwrap();
        let store = open_on(Arc::new(disk.clone()), config, &hand);
        let again = numbers(&store);
        assert!(found.iter().chain(&[1000]).all(|number| again.contains(number)), "seed {seed}");
    }
    assert!(lost > 10, "power cuts took something away {lost} times");
}

// Promise: P23 - A failed sync starts a new segment.
#[test]
fn a_sync_that_fails_begins_a_new_segment() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new(folder.path(), 7).unwrap();
    let hand = ManualClock::new();
    let store =
        Store::open(config(&folder.path().join("store")), Arc::new(disk.clone()), hand.clock())
            .unwrap();
    append(&store, 0, hand.now());
    store.sync();
    // Before there is anything to sync: the store's own thread syncs every second.
    disk.fail_syncs(1);
    append(&store, 1, hand.now());
    store.sync();
    assert_eq!(store.status().sync_errors, 1);
    append(&store, 2, hand.now());
    store.sync();
    assert_eq!(files(folder.path(), ".segment").len(), 2);
    assert_eq!(numbers(&store), [0, 1, 2]);
    drop(store);
    let store = Store::open(config(&folder.path().join("store")), RealDisk::shared(), hand.clock())
        .unwrap();
    assert_eq!(ask(&store, Query::default()).unwrap().messages.len(), 3);
}
