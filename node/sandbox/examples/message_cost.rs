//! Microseconds per message of a warm canister, host to host, by what the message does.
//!
//! `cargo run --release -p sandbox --example message_cost [messages [method|all [options]]]`.
//! Updates run in slices, as they do in rounds, of which each needs one; the option `whole` runs
//! them in one piece. With `faults` written pages are counted by faults, as on kernels that do not
//! note writes. The example is its own worker. Prints the machine's load, because figures taken
//! under load say little.
#![allow(clippy::unwrap_used)]

#[path = "../tests/it/world.rs"]
#[allow(dead_code)]
mod world;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use sandbox::{Entry, Grant, Lane, Probe, Sandbox, Slice, SlicedName};
use state::Height;
use world::World;

const CANISTER: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 1000)
    (func (export "canister_init") (drop (call $grow (i64.const 1000))))
    (func (export "canister_query trivial") (call $reply))
    (func (export "canister_update trivial_update") (call $reply))
    (func (export "canister_update heap1") (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1))) (call $reply))
    (func $scatter (param $n i32) (loop $next
        (i32.store (i32.mul (local.get $n) (i32.const 65536)) (local.get $n))
        (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "canister_update heap10") (call $scatter (i32.const 10)) (call $reply))
    (func (export "canister_update heap100") (call $scatter (i32.const 100)) (call $reply))
    (func (export "canister_update stable1") (call $swrite (i64.const 0) (i64.const 0) (i64.const 8)) (call $reply))
    (func (export "canister_update stable_mib") (call $swrite (i64.const 0) (i64.const 0) (i64.const 1048576)) (call $reply))
    (func (export "canister_query reply_mib") (call $append (i32.const 0) (i32.const 1048576)) (call $reply)))"#;

#[allow(clippy::too_many_lines, reason = "one measurement, in order")]
fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        Some("sandbox-worker") => return sandbox::worker_main(arguments),
        _ => {}
    }
    let messages = first.and_then(|count| count.to_str()?.parse().ok()).unwrap_or(2_000_u32);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("{messages} messages each; load {}", load.trim());
    println!("{:<16} {:>10} {:>10} {:>10}", "method", "median us", "p99 us", "min us");
    let world = World::with(std::env::current_exe().unwrap(), |config| config.probes = true);
    let mut canister = world.install(CANISTER);
    let only = arguments.next().filter(|method| method != "all");
    let options: Vec<_> = arguments.collect();
    let is_set = |option: &str| options.iter().any(|given| given == option);
    let whole = is_set("whole");
    if is_set("faults") {
        for lane in [Lane::Update(0), Lane::Query(0)] {
            assert!(world.pool.probe(lane, Probe::CountByFaults, Duration::from_secs(20)));
        }
    }
    let name =
        SlicedName { since: Height(1), canister_id: ic_principal::Principal::anonymous(), part: 0 };
    let grant = Grant::new(name, 1_000_000_000, 1_000_000_000);
    let methods = [
        "trivial",
        "trivial_update",
        "heap1",
        "heap10",
        "heap100",
        "stable1",
        "stable_mib",
        "reply_mib",
    ];
    for method in methods {
        if only.as_deref().is_some_and(|only| only != method) {
            continue;
        }
        let query = ["trivial", "reply_mib"].contains(&method);
        let entry = if query { Entry::Query(method.into()) } else { Entry::Update(method.into()) };
        let lane = if query { Lane::Query(0) } else { Lane::Update(0) };
        let count = if method.ends_with("mib") { messages.min(200) } else { messages };
        let mut times = Vec::new();
        for n in 0..count {
            if n % 50 == 0 {
                // Fold what was written, outside the time taken.
                for _ in 0..2 {
                    let ticket = world.store.begin_checkpoint().unwrap();
                    ticket.sync().unwrap();
                    world.store.finish_checkpoint(ticket);
                    while !world.store.fold(1 << 30).unwrap().is_idle() {}
                }
            }
            let request = world.request(&canister, entry.clone());
            let start = Instant::now();
            let outcome = if query || whole {
                world.pool.execute(lane, &request).unwrap()
            } else {
                match world.pool.run_slice(lane, &request, &grant).unwrap() {
                    Slice::Ended(outcome) => *outcome,
                    Slice::Paused(progress) => panic!("{progress:?}"),
                }
            };
            times.push(start.elapsed().as_nanos() as f64 / 1000.0);
            assert!(outcome.result.is_ok(), "{outcome:?}");
            world.commit(&mut canister, request, &outcome);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{method:<16} {:>10.1} {:>10.1} {:>10.1}",
            times[times.len() / 2],
            times[times.len() * 99 / 100],
            times[0]
        );
    }
    ExitCode::SUCCESS
}
