//! Measures the cost of a commit, in microseconds per message: a counter that dirties the same
//! three pages, and single pages spread over an ever longer index. Prints the machine and the
//! parameters with the results.
//!
//! `cargo run --release -p pages --example commit_cost [directory]`; without a directory a
//! temporary one is used.
#![allow(clippy::unwrap_used)]

use std::{env, fs, path::PathBuf, time::Instant};

use limits::PagesLimits;
use pages::{MemoryId, PAGE_BYTES, PageStore, Run};

const MESSAGES: u64 = 20_000;

fn main() {
    let dir = env::args_os()
        .nth(1)
        .map_or_else(|| env::temp_dir().join("pages-commit-cost"), PathBuf::from);
    fs::create_dir_all(&dir).unwrap();
    println!(
        "directory {}, {MESSAGES} messages per line, write = the worker's pwrite, included",
        dir.display()
    );
    println!("{:<34} {:>12} {:>12} {:>12} {:>12}", "case", "runs", "write", "append", "commit");
    for (name, stride, span) in [
        ("3 pages, always the same", 0, 3),
        ("3 of 1,000 pages", 2, 1_000),
        ("3 of 16,000 pages", 2, 16_000),
    ] {
        let (write, append, runs) = measure(&dir, stride, span, false);
        let (_, commit, _) = measure(&dir, stride, span, true);
        println!("{name:<34} {runs:>12} {write:>12.2} {append:>12.2} {commit:>12.2}");
    }
    fs::remove_dir_all(dir).unwrap();
}

/// Microseconds per message: of the write alone, of everything, and the runs at the end. Each
/// message writes three pages, `stride` apart, somewhere among `span`, so that neighbours do not
/// merge.
fn measure(dir: &std::path::Path, stride: u64, span: u64, with_layout: bool) -> (f64, f64, usize) {
    let limits = PagesLimits {
        delta_capacity_bytes: 1 << 40,
        delta_reserve_bytes: 0,
        pinned_delta_bytes: 8 << 20,
        pin_seconds: 5,
        checkpoint_interval_rounds: 50,
        manifest_interval_rounds: 50,
        checkpoint_delta_bytes: 1 << 40,
        checkpoint_instructions: 1 << 40,
        manifest_lag_rounds: 10,
        manifest_lease_rounds: 100,
        runs_per_memory: 1 << 40,
        open_files: 1 << 20,
        copy_threads: 1,
        metadata_cache_bytes: 1 << 20,
        disk_reserve_bytes: 0,
        states_on_disk: 1,
    };
    let store = PageStore::open(dir, &limits, []).unwrap();
    let id = MemoryId(0);
    // The layout is held between messages, as a canister's state holds it.
    let mut layout = store.create(id, 1 << 32).unwrap();
    let bytes = vec![1; 3 * PAGE_BYTES as usize];
    let mut write_nanos = 0;
    let start = Instant::now();
    for message in 0..MESSAGES {
        let target = store.reserve(id, 16_384).unwrap();
        let writing = Instant::now();
        std::os::unix::fs::FileExt::write_all_at(
            &*target.file,
            &bytes,
            target.offset_page * PAGE_BYTES,
        )
        .unwrap();
        write_nanos += writing.elapsed().as_nanos();
        let first = message.wrapping_mul(0x9e37_79b9) % span.max(1) * stride.max(1) * 3;
        let first = if stride == 0 { 0 } else { first };
        let run = |i| Run {
            start_page: first + i * stride.max(2),
            pages: 1,
            segment: target.segment,
            offset_page: target.offset_page + i,
        };
        let runs = [run(0), run(1), run(2)];
        if with_layout {
            layout = store.commit(&target, &runs).unwrap();
        } else {
            store.append(&target, &runs).unwrap();
        }
    }
    let micros = start.elapsed().as_nanos() as f64 / 1e3 / MESSAGES as f64;
    drop(layout);
    let runs = store.layout(id).unwrap().runs.len();
    store.remove(id);
    let ticket = store.begin_checkpoint().unwrap();
    ticket.sync().unwrap();
    store.finish_checkpoint(ticket);
    (write_nanos as f64 / 1e3 / MESSAGES as f64, micros, runs)
}
