//! State sync of a large state through function calls, without a network: how long a manifest takes
//! from nothing and after a few changes, how long showing and installing take, and what each takes
//! of anonymous memory beyond what the process had.
//!
//! `SYNC_BENCH_MIB` sets the size (300), `SYNC_BENCH_CSV` a file for `thimble-lab compare`. Disk is
//! wherever temporary directories are.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Node, Op, Spec, limits};
use limits::Limits;
use state::{CanisterId, Height};
use statesync::{LocalState, StateInstaller};

const MIB: u64 = 1 << 20;
const CANISTERS: u64 = 6;
/// Pages one message writes: 8 MiB.
const PAGES: u64 = 2_048;
const INTERVAL: u64 = 150;

fn bench_limits(bytes: u64) -> Limits {
    let mut limits = limits();
    limits.subnet.memory_capacity_bytes = 4 * bytes;
    limits.pages.checkpoint_interval_rounds = INTERVAL;
    limits.pages.manifest_interval_rounds = INTERVAL;
    limits.pages.checkpoint_delta_bytes = u64::MAX;
    limits.pages.checkpoint_instructions = u64::MAX;
    limits.pages.manifest_lag_rounds = 1;
    limits
}

/// Anonymous memory of this process.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs `work` and returns what it took: seconds, and the peak of anonymous memory above where it
/// began.
fn measured<T>(work: impl FnOnce() -> T) -> (T, Duration, u64) {
    let before = anonymous_bytes();
    let (peak, stop) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
    let sampler = {
        let (peak, stop) = (Arc::clone(&peak), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let started = Instant::now();
    let result = work();
    let took = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    sampler.join().unwrap();
    (result, took, peak.load(Ordering::Relaxed) - before)
}

fn print(what: &str, took: Duration, extra: u64, note: &str) {
    if let Some(path) = std::env::var_os("SYNC_BENCH_CSV") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            writeln!(file, "name,value,unit").unwrap();
        }
        writeln!(file, "\"{what}\",{},s", took.as_secs_f64()).unwrap();
        writeln!(file, "\"{what}, anonymous memory\",{extra},bytes").unwrap();
    }
    println!(
        "| {what} | {:.2} s | {:.1} MiB | {note} |",
        took.as_secs_f64(),
        extra as f64 / MIB as f64
    );
}

/// Empty rounds until the state is owed a manifest; its checkpoint is made by the last.
fn until_manifest(node: &mut Node) -> Height {
    loop {
        if node.round().manifest {
            return node.executor.height();
        }
    }
}

fn write(node: &mut Node, ids: &[CanisterId], pages: u64, step: u64, spread: u64) {
    for id in ids {
        let ops: Vec<Op> = (0..pages / spread)
            .map(|number| {
                Op::Write(
                    step % 1_000 * pages + number * spread,
                    if spread > 1 { 1 } else { pages },
                    step + 1,
                )
            })
            .take(if spread > 1 { usize::MAX } else { 1 })
            .chain([Op::Reply(vec![])])
            .collect();
        node.send(*id, &ops);
    }
    node.round();
}

fn install(
    dir: &Path,
    node: &Node,
    height: Height,
    root: [u8; 32],
    local: Option<LocalState>,
) -> (Duration, Duration, u64, u64) {
    let snapshots = node.executor.snapshots();
    let limits = Arc::new(node.config.limits.as_ref().clone());
    let ((mut installer, fetched, looks), fetching, extra) = measured(|| {
        let disk = disk::RealDisk::shared();
        let mut installer =
            StateInstaller::begin_on(disk, dir, height, root, limits, local).unwrap();
        let (mut fetched, mut looks) = (0u64, 0u64);
        while !installer.is_complete() {
            looks += 1;
            for chunk in installer.missing(16).unwrap() {
                let bytes = snapshots.chunk(height, chunk).unwrap();
                fetched += bytes.len() as u64;
                installer.offer(chunk, &bytes).unwrap();
            }
        }
        (installer, fetched, looks)
    });
    let _ = (&mut installer, looks);
    let progress = installer.progress();
    print(
        "fetch, check and write every chunk",
        fetching,
        extra,
        &format!(
            "{} chunks, {} MiB fetched, {} MiB reused, {:.0} MiB/s",
            progress.chunks_total,
            fetched / MIB,
            progress.bytes_reused / MIB,
            progress.bytes_total as f64 / MIB as f64 / fetching.as_secs_f64()
        ),
    );
    let (_, finishing, extra_finish) = measured(|| installer.finish().unwrap());
    print("build the store, sync, swap", finishing, extra_finish, "");
    (fetching, finishing, extra.max(extra_finish), fetched)
}

fn main() {
    let size =
        std::env::var("SYNC_BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(300u64)
            * MIB;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu =
        cpu.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("unknown CPU");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("state sync of {} MiB, {CANISTERS} canisters; {cores} cores of {cpu}\n", size / MIB);
    println!("| step | time | extra anonymous memory | |\n|---|---|---|---|");

    let mut node = Node::of_subnet(bench_limits(size));
    let ids: Vec<_> = (0..CANISTERS).map(|_| node.deploy(&Spec::default())).collect();
    for id in &ids {
        node.call(*id, &[Op::Grow(size / CANISTERS / 65_536 + 64), Op::Reply(vec![])]).unwrap();
    }
    let steps = size / CANISTERS / (PAGES * 4096);
    for step in 0..steps {
        write(&mut node, &ids, PAGES, step, 1);
        for _ in 0..2 {
            node.round();
        }
    }
    // Everything is folded before, so that hashing reads what it would read of a state that is not
    // new.
    node.executor.checkpoint().unwrap();
    while !node.pages.fold(64 * MIB).unwrap().is_idle() {}
    let first = until_manifest(&mut node);
    let (_, took, extra) = measured(|| node.round());
    let written = steps * PAGES * 4096 * CANISTERS;
    print(
        "manifest from nothing",
        took,
        extra,
        &format!("{:.0} MiB/s", written as f64 / MIB as f64 / took.as_secs_f64()),
    );
    let stale = tempfile::tempdir().unwrap();
    let (height, root) = node.executor.snapshots().newest().unwrap();
    assert_eq!(height, first);
    install(stale.path(), &node, height, root, None);
    let (opened, took, extra) =
        measured(|| Node::at(stale.path().to_path_buf(), node.config.clone(), None));
    print(
        "open what was installed",
        took,
        extra,
        &format!("at height {}", opened.executor.height().0),
    );
    assert_eq!(opened.executor.height(), height);
    drop(opened);

    write(&mut node, &ids, 2_048, 1_000, 64);
    until_manifest(&mut node);
    let (_, took, extra) = measured(|| node.round());
    print("manifest after 192 scattered pages changed", took, extra, "");
    let (height, root) = node.executor.snapshots().newest().unwrap();
    let local = LocalState::open(stale.path(), &node.config.limits).unwrap();
    install(stale.path(), &node, height, root, local);
    until_manifest(&mut node);
    let (_, took, extra) = measured(|| node.round());
    print("manifest after nothing changed", took, extra, "");
}
