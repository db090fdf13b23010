//! Working memory of real workers and compilers against the reservations that admit them.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use accounting::process::{self, Pid};
use sandbox::{BudgetedSandbox, Entry, Lane, Priority, Sandbox};
use sha2::{Digest, Sha256};

use super::{HOST, MIB, World};

const WORKERS: usize = 4;
/// Dirty bytes of one message: exactly its caps.
const HEAP_BYTES: u64 = 48 * MIB;
const STABLE_BYTES: u64 = 16 * MIB;
/// Memory of a worker in addition to dirty pages while it runs a message (lists of pages, the
/// instance's tables). It has a line of its own in the budget sheet, `worker_buffers`.
const BESIDES_BYTES: u64 = MIB;
/// The expected events occur in the first milliseconds; on any machine before this.
const TIMEOUT: Duration = Duration::from_secs(100);

/// Writes `HEAP_BYTES` and `STABLE_BYTES`, then computes for a while and holds them.
const FILLER: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 768)
    (func (export "canister_init") (drop (call $grow (i64.const 256))))
    (func (export "canister_update touch") (call $reply))
    (func (export "canister_update fill") (local $left i64)
        (memory.fill (i32.const 0) (i32.const 1) (i32.const 50331648))
        (call $swrite (i64.const 0) (i64.const 0) (i64.const 16777216))
        (local.set $left (i64.const 40000000))
        (loop $next
            (local.set $left (i64.sub (local.get $left) (i64.const 1)))
            (br_if $next (i64.ne (local.get $left) (i64.const 0))))
        (call $reply)))"#;

/// Anonymous memory of all workers and compilers now. Processes that end meanwhile are left out.
///
/// Each is read twice and the smaller figure counts: between the readings of two processes one may
/// end its message and the other begin one, and the sum of both would be of no moment.
fn anonymous_bytes(world: &World) -> u64 {
    let pids: Vec<u32> = world.pool.pids().into_iter().chain(world.pool.compiler_pids()).collect();
    let read = || -> Vec<u64> {
        let memory =
            |pid: &u32| process::memory(Pid(*pid)).map_or(0, |memory| memory.anonymous_bytes);
        pids.iter().map(memory).collect()
    };
    let (first, second) = (read(), read());
    first.iter().zip(second).map(|(first, second)| second.min(*first)).sum()
}

/// A module of its own for each number, with some hundred functions to compile.
fn module(number: u64) -> Vec<u8> {
    let functions: String = (0..300)
        .map(|index| {
            format!(
                "(func (param i64) (result i64) (i64.add (local.get 0) (i64.const {})))",
                number * 1000 + index
            )
        })
        .collect();
    wat::parse_str(format!("(module {functions})")).unwrap()
}

// Promise: P1 - Four workers and their compile children exceed their reservations by at most 1 MiB
//   per worker.
#[test]
fn dirty_pages_and_compilations_together_stay_within_what_was_reserved() {
    let world = World::with(HOST, |config| {
        config.update_workers = WORKERS;
        config.query_workers = 0;
    });
    let mut limits = limits::Limits::nano().unwrap();
    limits.execution.heap_dirty_bytes_per_message = HEAP_BYTES;
    limits.execution.stable_dirty_bytes_per_message = STABLE_BYTES;
    let compile = limits.sandbox.compile_anonymous_bytes;
    let message = limits.message_dirty_bytes();
    assert_eq!(message, HEAP_BYTES + STABLE_BYTES);
    // Room for two messages, of which four are to run, and a compilation in addition.
    let cap = 2 * message + compile;
    let executions = accounting::Pool::standalone("executions", 2 * message);
    let compilations = accounting::Pool::standalone("compilations", compile);
    let pools =
        (executions.clone(), compilations.clone(), accounting::Pool::standalone("queries", 1));
    let budgeted = BudgetedSandbox::new(world.pool.clone(), pools, &limits);

    let canisters: Vec<_> = (0..WORKERS).map(|_| world.install(FILLER)).collect();
    let run = |lane: usize, method: &str| {
        let mut request = world.request(&canisters[lane], Entry::Update(method.into()));
        request.limits.heap_dirty_bytes = HEAP_BYTES;
        request.limits.stable_dirty_bytes = STABLE_BYTES;
        // The written pages are discarded: the next message writes the same.
        let outcome = budgeted.execute(Lane::Update(lane), &request).unwrap();
        assert!(outcome.result.is_ok(), "{outcome:?}");
    };
    (0..WORKERS).for_each(|lane| run(lane, "touch"));
    let idle = anonymous_bytes(&world);

    let (stop, most, compiled) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for lane in 0..WORKERS {
            let (run, stop) = (&run, &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    run(lane, "fill");
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let number = compiled.load(SeqCst) + 1;
                let wasm = module(number);
                let hash = state::ModuleHash(Sha256::digest(&wasm).into());
                budgeted.prepare(&hash, &wasm.as_slice(), Priority::Round).unwrap();
                compiled.store(number, SeqCst);
            }
        });
        // Both kinds of work were seen in full: what two messages dirty at once, and compilations.
        let begin = Instant::now();
        while (most.load(SeqCst) < 2 * message || compiled.load(SeqCst) < 3)
            && begin.elapsed() < TIMEOUT
        {
            most.fetch_max(anonymous_bytes(&world).saturating_sub(idle), SeqCst);
        }
        stop.store(true, SeqCst);
    });
    let (most, compiled) = (most.load(SeqCst), compiled.load(SeqCst));
    println!("at most {most} bytes at once of {cap}, {compiled} modules compiled, idle {idle}");
    assert!(most >= 2 * message, "two messages at their cap were never seen at once: {most}");
    assert!(compiled >= 3, "{compiled} modules were compiled alongside");
    let besides = WORKERS as u64 * BESIDES_BYTES;
    assert!(most <= cap + besides, "{most} bytes were held, {cap} reserved");
    assert_eq!((executions.used_bytes(), compilations.used_bytes()), (0, 0));
}
