//! Messages in slices: paused and resumed, lost and run again, without an observable difference.

use sandbox::{
    Changes, Entry, Grant, Lane, Outcome, Progress, Request, Response, Sandbox, Slice, SlicedName,
};
use state::{ErrorCode, Height};

use super::{COUNTER, Canister, HOST, MIB, World, counters, kill};

const SLICE: u64 = 1_000_000;

/// Works through memory and stable memory, with and without calls of the system.
const WORKER: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "performance_counter" (func $counter (param i32) (result i64)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (import "ic0" "trap" (func $trap (param i32 i32)))
    (import "ic0" "call_new" (func $call_new (param i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "ic0" "call_data_append" (func $call_append (param i32 i32)))
    (import "ic0" "call_perform" (func $perform (result i32)))
    (memory 32)
    (global $n (mut i64) (i64.const 0))
    (func $compute (param $times i32)
        (loop $next
            (global.set $n (i64.add (i64.mul (global.get $n) (i64.const 6364136223846793005)) (i64.const 1442695040888963407)))
            (i64.store (i32.and (i32.wrap_i64 (i64.shr_u (global.get $n) (i64.const 20))) (i32.const 0x7ffff)) (global.get $n))
            (br_if $next (local.tee $times (i32.sub (local.get $times) (i32.const 1))))))
    (func $call (param $times i32)
        (loop $next
            (call $compute (i32.const 50))
            (i64.store (i32.const 0x100000) (global.get $n))
            (call $swrite (i64.and (i64.shr_u (global.get $n) (i64.const 8)) (i64.const 0xfff8)) (i64.const 0x100000) (i64.const 8))
            (br_if $next (local.tee $times (i32.sub (local.get $times) (i32.const 1))))))
    (func $show
        (i64.store (i32.const 0x100008) (call $counter (i32.const 0)))
        (call $append (i32.const 0x100000) (i32.const 16))
        (call $append (i32.const 0) (i32.const 0x80000))
        (call $sread (i64.const 0x110000) (i64.const 0) (i64.const 0x10000))
        (call $append (i32.const 0x110000) (i32.const 0x10000))
        (call $reply))
    (func (export "canister_init") (drop (call $grow (i64.const 1))))
    (func (export "canister_update compute") (call $compute (i32.const 600000)) (call $show))
    (func (export "canister_update call") (call $call (i32.const 10000)) (call $show))
    ;; Computes less after it has read 136 Wasm pages.
    (func (export "canister_update far") (local $at i32)
        (drop (memory.grow (i32.const 256)))
        (local.set $at (i32.const 0x400000))
        (loop $next
            (drop (i64.load (local.get $at)))
            (br_if $next (i32.lt_u
                (local.tee $at (i32.add (local.get $at) (i32.const 0x10000))) (i32.const 0xc80000))))
        (call $compute (i32.const 20000)) (call $show))
    (func (export "canister_update grow")
        (call $compute (i32.const 100000))
        (drop (memory.grow (i32.const 3)))
        (drop (call $grow (i64.const 2)))
        (call $call (i32.const 3000)) (call $show))
    (func (export "canister_update fill")
        (local $times i32)
        (loop $next
            (memory.fill (i32.const 0) (local.get $times) (i32.const 0x80000))
            (br_if $next (i32.lt_u (local.tee $times (i32.add (local.get $times) (i32.const 1))) (i32.const 30))))
        (call $show))
    ;; Makes calls and goes on; so far down its stack; having written much.
    (func (export "canister_update calls")
        (local $times i32)
        (loop $next
            (call $call_new (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))
            (call $call_append (i32.const 0) (i32.const 0xf0000))
            (if (call $perform) (then (unreachable)))
            (br_if $next (i32.lt_u (local.tee $times (i32.add (local.get $times) (i32.const 1))) (i32.const 3))))
        (call $compute (i32.const 300000)))
    (func $down (param $depth i32) (param $value i64)
        (if (local.get $depth)
            (then (call $down (i32.sub (local.get $depth) (i32.const 1)) (i64.add (local.get $value) (i64.const 3))))
            (else (call $compute (i32.const 300000))))
        (global.set $n (i64.add (global.get $n) (local.get $value))))
    (func (export "canister_update deep")
        (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x180000))
        (call $down (i32.const 60000) (i64.const 1))
        (call $reply))
    ;; Writes pages far apart in both memories, again and again, between calls that are made, one that
    ;; is under construction and an answer that is begun; then sums all of it up.
    (func $wide
        (local $times i32) (local $at i32)
        (drop (memory.grow (i32.const 256)))
        (drop (call $grow (i64.const 512)))
        (i64.store (i32.const 0) (i64.const 0))
        (call $call_new (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)
            (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))
        (call $call_append (i32.const 0) (i32.const 0xf0000))
        (if (call $perform) (then (unreachable)))
        (call $call_new (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)
            (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))
        (call $call_append (i32.const 0) (i32.const 0x80000))
        (call $append (i32.const 0) (i32.const 0x40000))
        (loop $next
            (global.set $n (i64.add (i64.mul (global.get $n) (i64.const 6364136223846793005)) (i64.const 1442695040888963407)))
            (local.set $at (i32.or
                (i32.wrap_i64 (i64.and (i64.shr_u (global.get $n) (i64.const 20)) (i64.const 0x1fff000)))
                (i32.wrap_i64 (i64.and (i64.shr_u (global.get $n) (i64.const 50)) (i64.const 0x38)))))
            (call $swrite (i64.extend_i32_u (local.get $at)) (i64.const 0x1f0000) (i64.const 8))
            (local.set $at (i32.add (i32.const 0x200000) (i32.and (local.get $at) (i32.const 0xffffff))))
            (i64.store (local.get $at) (i64.add (global.get $n) (i64.load (local.get $at))))
            (i64.store (i32.const 0x1f0000) (global.get $n))
            (br_if $next (i32.lt_u (local.tee $times (i32.add (local.get $times) (i32.const 1))) (i32.const 6000))))
        (if (call $perform) (then (unreachable)))
        (call $show_sum))
    ;; A sum over some of each page of both memories.
    (func $show_sum
        (local $at i32) (local $sum i64)
        (loop $next
            (call $sread (i64.const 0x1f0000) (i64.extend_i32_u (local.get $at)) (i64.const 8))
            (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 3)) (i64.load (i32.const 0x1f0000))))
            (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 5)) (i64.load
                (i32.add (i32.const 0x200000) (i32.and (local.get $at) (i32.const 0xffffff))))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (if (i32.and (local.get $at) (i32.const 0x40))
                (then (local.set $at (i32.add (i32.and (local.get $at) (i32.const 0xfffff000)) (i32.const 0x1000)))))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 0x2000000))))
        (i64.store (i32.const 0x100000) (local.get $sum))
        (call $append (i32.const 0x100000) (i32.const 8))
        (call $reply))
    (func (export "canister_update wide") (call $wide))
    (func (export "canister_update wide_and_late") (call $wide) (call $compute (i32.const 300000)) (call $trap (i32.const 0) (i32.const 4)))
    ;; Writes the same pages of stable memory over and over.
    (func (export "canister_update refill")
        (local $times i32)
        (drop (call $grow (i64.const 128)))
        (loop $next
            (memory.fill (i32.const 0) (local.get $times) (i32.const 0x10000))
            (call $swrite (i64.extend_i32_u (i32.shl (i32.and (local.get $times) (i32.const 7)) (i32.const 20))) (i64.const 0) (i64.const 0x100000))
            (br_if $next (i32.lt_u (local.tee $times (i32.add (local.get $times) (i32.const 1))) (i32.const 40))))
        (call $show))
    (func (export "canister_update late") (call $compute (i32.const 300000)) (call $trap (i32.const 0) (i32.const 4)))
    (func (export "canister_update endless") (loop $next (call $compute (i32.const 1000)) (br $next)))
    (func (export "canister_update callless") (loop $next (drop (call $counter (i32.const 0))) (br $next)))
    (func (export "canister_query sum") (call $show_sum))
    (func (export "canister_query show") (call $show)))"#;

const NAMES: [&str; 7] = ["compute", "call", "grow", "fill", "wide", "refill", "far"];

fn name() -> SlicedName {
    SlicedName { since: Height(7), canister_id: ic_principal::Principal::from_slice(&[7]), part: 0 }
}

fn grant(number: u64) -> Grant {
    Grant::new(name(), number * SLICE, SLICE)
}

fn world(places: u64) -> World {
    World::with(HOST, |config| {
        config.sandbox.paused_workers = places;
    })
}

fn request(world: &World, canister: &Canister, method: &str) -> Request {
    world.request(canister, Entry::Update(method.into()))
}

/// Runs `method` in slices, doing `between` after each, and commits it. Where it was paused.
fn in_slices(
    world: &World,
    canister: &mut Canister,
    method: &str,
    mut between: impl FnMut(&World),
) -> (Outcome, Vec<Progress>) {
    let mut pauses = Vec::new();
    for number in 1.. {
        let request = request(world, canister, method);
        match world.pool.run_slice(Lane::Update(0), &request, &grant(number)).unwrap() {
            Slice::Paused(progress) => {
                // Its append targets go back, so that a checkpoint can seal what they are in.
                drop(request);
                pauses.push(progress);
            }
            Slice::Ended(outcome) => {
                world.commit(canister, request, &outcome);
                return (*outcome, pauses);
            }
        }
        between(world);
    }
    unreachable!()
}

/// The parts of an outcome that slices must not change.
fn comparable_parts(outcome: Outcome) -> (u64, Response, Changes, u64) {
    let mut changes = outcome.changes.unwrap_or_else(|| panic!("{:?}", outcome.result));
    // The place of the pages does not matter.
    let mut runs = std::mem::take(&mut changes.heap_runs);
    runs.append(&mut changes.stable_runs);
    let pages = runs.iter().map(|run| run.pages).sum();
    (outcome.instructions, outcome.result.unwrap(), changes, pages)
}

fn kill_paused(world: &World) {
    world.pool.paused_pids().into_iter().for_each(kill);
}

// Promise: P13 - A message has one result in one piece, in slices, and after loss of its worker.
#[test]
fn sliced_or_restarted_message_has_the_outcome_of_an_unsliced_one() {
    for method in NAMES {
        let whole = world(0);
        let mut canister = whole.install(WORKER);
        // Runs once before, so that some pages are in the delta, some of them as private copies.
        whole.update(&mut canister, "call", b"");
        let expected = comparable_parts(whole.update(&mut canister, method, b""));
        // Contents of the memories afterwards, including pages that were written slices ago.
        let look = if method == "wide" { "sum" } else { "show" };
        let shown = whole.query(&canister, look, b"").result.unwrap();
        let mut pauses = None;
        type Between = fn(&World);
        let ways: [(&str, u64, Between); 4] = [
            ("kept", 1, |_| {}),
            ("kept over checkpoints", 1, World::fold),
            ("killed", 1, kill_paused),
            ("without a place", 0, |_| {}),
        ];
        for (way, places, between) in ways {
            let world = world(places);
            let mut canister = world.install(WORKER);
            world.update(&mut canister, "call", b"");
            let (outcome, paused) = loop_until_ended(&world, &mut canister, method, between);
            assert_eq!(comparable_parts(outcome), expected, "{method} {way}");
            assert!(paused.len() > 3, "{method}: {paused:?}");
            assert_eq!(pauses.get_or_insert_with(|| paused.clone()), &paused, "{method} {way}");
            let repeated = world.pool.statistics().repeated;
            assert_eq!(repeated > 0, way == "killed" || places == 0, "{method} {way}");
            assert_eq!(world.query(&canister, look, b"").result.unwrap(), shown);
            // The worker runs other messages.
            let mut other = world.install(COUNTER);
            let reply = world.update(&mut other, "inc", b"").result.unwrap();
            assert_eq!(counters(&reply), [1; 3]);
        }
    }
}

/// [`in_slices`], where a killed worker costs another attempt.
fn loop_until_ended(
    world: &World,
    canister: &mut Canister,
    method: &str,
    between: fn(&World),
) -> (Outcome, Vec<Progress>) {
    let mut pauses = Vec::new();
    let mut number = 1;
    // Longer slices where instructions count as more work: without a place, each slice is executed
    // again for each later one.
    let slice = if method == "wide" { 6 * SLICE } else { SLICE };
    loop {
        let request = request(world, canister, method);
        let grant = Grant::new(name(), number * slice, slice);
        match world.pool.run_slice(Lane::Update(0), &request, &grant) {
            Ok(Slice::Paused(progress)) => {
                drop(request);
                pauses.push(progress);
                number += 1;
                between(world);
            }
            Ok(Slice::Ended(outcome)) => {
                world.commit(canister, request, &outcome);
                return (*outcome, pauses);
            }
            Err(_) => {}
        }
    }
}

// Promise: P14 - A slice ends near its granted instructions.
#[test]
fn each_slice_is_about_as_long_as_granted() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    for method in ["compute", "call", "fill"] {
        let (_, pauses) = in_slices(&world, &mut canister, method, |_| {});
        for (number, progress) in (1..).zip(&pauses) {
            let until = number * SLICE;
            // The pages of one operation count at once.
            let range = until..until + 2 * SLICE;
            assert!(range.contains(&progress.instructions), "{method} {number}: {progress:?}");
        }
    }
}

#[test]
fn others_run_while_a_message_is_paused_and_queries_see_the_state_before() {
    let world = world(1);
    let (mut long, mut other) = (world.install(WORKER), world.install(COUNTER));
    let before = world.query(&long, "show", b"").result.unwrap();
    let mut count = 0;
    let snapshot = long.clone();
    in_slices(&world, &mut long, "compute", |world| {
        count += 1;
        assert_eq!(counters(&world.update(&mut other, "inc", b"").result.unwrap()), [count; 3]);
        assert_eq!(world.query(&snapshot, "show", b"").result.unwrap(), before);
        assert_eq!(world.pool.statistics().paused, 1);
        assert_eq!(world.pool.pids().len(), 3);
    });
    assert!(count > 3);
    let statistics = world.pool.statistics();
    assert_eq!((statistics.paused, statistics.repeated, statistics.restarts), (0, 0, 0));
    assert_ne!(world.query(&long, "show", b"").result.unwrap(), before);
}

#[test]
fn instructions_over_a_large_heap_count_as_more_work() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    let (near, _) = in_slices(&world, &mut canister.clone(), "compute", |_| {});
    let (far, pauses) = in_slices(&world, &mut canister, "far", |_| {});
    assert_eq!(near.work, near.instructions);
    // An instruction counts eight times once the pages are open, and pages count once. Without
    // pages, the method executes about 1.2 million.
    let extra = far.work - far.instructions;
    assert!((7_000_000..=7 * 1_400_000).contains(&extra), "{} {}", far.work, far.instructions);
    assert!(pauses.len() as u64 >= far.work / SLICE / 2, "{pauses:?} {}", far.work);
}

#[test]
fn a_message_that_fails_late_leaves_nothing_and_one_without_end_ends_at_its_limit() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    let before = world.query(&canister, "show", b"").result.unwrap();
    let (outcome, pauses) = in_slices(&world, &mut canister, "late", |_| {});
    assert!(outcome.result.is_err() && outcome.changes.is_none() && pauses.len() > 3);
    for method in ["endless", "callless"] {
        let mut pauses = 0;
        let outcome = (1..)
            .find_map(|number| {
                let mut request = request(&world, &canister, method);
                request.limits.instructions = 5 * SLICE + 17;
                match world.pool.run_slice(Lane::Update(0), &request, &grant(number)).unwrap() {
                    Slice::Paused(_) => {
                        pauses += 1;
                        None
                    }
                    Slice::Ended(outcome) => Some(outcome),
                }
            })
            .unwrap();
        assert_eq!(outcome.instructions, 5 * SLICE + 17, "{method}");
        // Where nothing is counted exactly, the last slice may be over before it is noticed.
        assert!((4..=5).contains(&pauses), "{method}: {pauses}");
        assert_eq!(outcome.result.unwrap_err().reject.error_code, ErrorCode(522));
    }
    assert_eq!(world.query(&canister, "show", b"").result.unwrap(), before);
}

#[test]
fn the_youngest_gives_way_and_what_holds_too_much_is_not_kept() {
    let world = world(1);
    let canister = world.install(WORKER);
    let run = |since: u64, number: u64, method: &str| {
        let grant = Grant { name: SlicedName { since: Height(since), ..name() }, ..grant(number) };
        let request = request(&world, &canister, method);
        let slice = world.pool.run_slice(Lane::Update(0), &request, &grant).unwrap();
        assert!(matches!(slice, Slice::Paused(_)));
        (world.pool.statistics().paused, world.pool.statistics().repeated)
    };
    assert_eq!(run(5, 1, "compute"), (1, 0));
    assert_eq!(run(6, 1, "compute"), (1, 0), "the older one stays");
    assert_eq!(run(5, 2, "compute"), (1, 0));
    assert_eq!(run(4, 1, "compute"), (1, 0), "an older one takes the place");
    assert_eq!(run(5, 3, "compute"), (1, 1), "the one that gave way runs again");
    assert_eq!(run(4, 2, "compute"), (1, 1));
    world.pool.abandon(&SlicedName { since: Height(4), ..name() });
    assert_eq!(world.pool.statistics().paused, 0);
    assert_eq!(world.pool.pids().len(), world.pool.paused_pids().len() + 1);

    let world = World::with(HOST, |config| {
        config.sandbox.paused_workers = 1;
        config.paused_spill_bytes = MIB / 8;
    });
    let canister = world.install(WORKER);
    for number in 1..4 {
        let request = request(&world, &canister, "compute");
        let slice = world.pool.run_slice(Lane::Update(0), &request, &grant(number)).unwrap();
        assert!(matches!(slice, Slice::Paused(_)));
        assert_eq!(world.pool.statistics().paused, 0);
    }
    assert_eq!(world.pool.statistics().repeated, 2);

    let world = World::with(HOST, |config| {
        config.sandbox.paused_workers = 1;
        config.paused_anonymous_bytes = MIB / 8;
    });
    let canister = world.install(WORKER);
    let request = request(&world, &canister, "compute");
    let slice = world.pool.run_slice(Lane::Update(0), &request, &grant(1)).unwrap();
    assert!(matches!(slice, Slice::Paused(_)));
    assert_eq!(world.pool.statistics().paused, 0);
}

// Promise: P13 - A paused message releases its worker when memory is short.
#[test]
fn a_place_is_given_up_when_memory_is_short_and_when_what_it_maps_is_gone() {
    let world = world(2);
    let (one, other) = (world.install(WORKER), world.install(WORKER));
    let begin = |since: u64, canister: &Canister| {
        let grant = Grant { name: SlicedName { since: Height(since), ..name() }, ..grant(1) };
        let request = request(&world, canister, "compute");
        let slice = world.pool.run_slice(Lane::Update(0), &request, &grant).unwrap();
        assert!(matches!(slice, Slice::Paused(_)));
        request.heap.layout.id
    };
    let (old, young) = (begin(5, &one), begin(6, &other));
    let pids = world.pool.paused_pids();
    assert_eq!((world.pool.statistics().paused, pids.len()), (2, 2));
    world.pool.evict_pressed();
    assert_eq!(world.pool.statistics().paused, 1);
    world.pool.forget(&[young]);
    assert_eq!(world.pool.statistics().paused, 1, "the youngest went before");
    world.pool.forget(&[old]);
    assert_eq!(world.pool.statistics().paused, 0);
    assert!(world.pool.paused_pids().is_empty());
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
    }
}

#[test]
fn what_the_kernel_refused_is_in_no_report_of_a_pause() {
    let expected = {
        let world = world(1);
        let mut canister = world.install(WORKER);
        let (outcome, pauses) = in_slices(&world, &mut canister, "grow", |_| {});
        (comparable_parts(outcome), pauses)
    };
    let world = World::with(HOST, |config| {
        config.sandbox.paused_workers = 1;
        config.probes = true;
    });
    let mut canister = world.install(WORKER);
    let timeout = std::time::Duration::from_secs(20);
    assert!(world.pool.probe(Lane::Update(0), sandbox::Probe::RefuseGrowth, timeout));
    let (mut pauses, mut refused) = (Vec::new(), 0);
    let outcome = loop {
        let request = request(&world, &canister, "grow");
        let number = 1 + pauses.len() as u64;
        match world.pool.run_slice(Lane::Update(0), &request, &grant(number)) {
            Ok(Slice::Paused(progress)) => pauses.push(progress),
            Ok(Slice::Ended(outcome)) => {
                world.commit(&mut canister, request, &outcome);
                break *outcome;
            }
            Err(trouble) => {
                assert!(trouble.to_string().contains("the kernel refused"), "{trouble}");
                refused += 1;
            }
        }
    };
    assert_eq!(refused, 1);
    assert_eq!((comparable_parts(outcome), pauses), expected);
}

#[test]
fn a_place_is_given_up_for_what_the_machine_lacks() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    let first = request(&world, &canister, "fill");
    world.pool.run_slice(Lane::Update(0), &first, &grant(1)).unwrap();
    drop(first);
    assert_eq!(world.pool.statistics().paused, 1);
    world.pool.free_memory();
    assert_eq!(world.pool.statistics().paused, 0);
    let (outcome, _) = in_slices(&world, &mut canister, "fill", |_| {});
    assert!(outcome.result.is_ok());
}

/// Files of memories that a process has mapped.
fn mapped(pid: u32) -> std::collections::BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.filter(|path| path.ends_with(".base")).map(str::to_owned).collect()
}

#[test]
fn a_worker_that_waits_holds_its_message_and_nothing_of_others() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    let mut other = world.install(COUNTER);
    let worker = world.pool.pids()[0];
    let inc = |other: &mut Canister| world.update(other, "inc", b"").result.unwrap();
    world.update(&mut canister, "call", b"");
    assert_eq!(counters(&inc(&mut other)), [1; 3]);
    // A base file without data is not mapped at all.
    world.fold();
    world.update(&mut canister, "show", b"");
    assert_eq!(counters(&inc(&mut other)), [2; 3]);
    assert_eq!(mapped(worker).len(), 4, "{:?}", mapped(worker));
    let first = request(&world, &canister, "compute");
    let slice = world.pool.run_slice(Lane::Update(0), &first, &grant(1)).unwrap();
    assert!(matches!(slice, Slice::Paused(_)));
    assert_eq!(world.pool.paused_pids(), [worker]);
    assert_eq!(mapped(worker).len(), 2, "{:?}", mapped(worker));
    // The worker returns to the lane, where the other canister is mapped afresh.
    let last = world.pool.run_slice(Lane::Update(0), &first, &grant(1_000)).unwrap();
    assert!(matches!(last, Slice::Ended(_)));
    drop(first);
    assert_eq!(counters(&inc(&mut other)), [3; 3]);
    assert_eq!(world.pool.statistics().restarts, 0);
}

/// Anonymous memory of a process.
fn anonymous_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

// Promise: P13 - A paused message uses at most its line of memory; the rest is in a file.
#[test]
fn whatever_a_paused_message_wrote_and_called_it_holds_next_to_no_memory() {
    // Scattered, so that many pages of stable memory are not mapped; and the same ones again.
    for (method, least_pages) in [("wide", 6_000), ("refill", 2_000)] {
        let world = world(1);
        let mut canister = world.install(WORKER);
        let mut most = 0;
        let rest = anonymous_bytes(world.pool.pids()[0]);
        let (outcome, pauses) = in_slices(&world, &mut canister, method, |world| {
            let pids = world.pool.paused_pids();
            most = most.max(anonymous_bytes(pids[0]));
        });
        let pages = comparable_parts(outcome).3;
        assert!(pages > least_pages && pauses.len() > 20, "{method}: {pages}, {}", pauses.len());
        assert!(most < rest + 6 * MIB, "{method}: {most} of {rest} at rest");
        let statistics = world.pool.statistics();
        assert_eq!((statistics.repeated, world.pool.paused_pids().len()), (0, 0));
    }
}

#[test]
fn what_fails_after_it_was_put_away_leaves_the_memories_as_they_were() {
    let world = world(1);
    let mut canister = world.install(WORKER);
    world.update(&mut canister, "call", b"");
    let before = world.query(&canister, "show", b"").result.unwrap();
    let (outcome, pauses) = in_slices(&world, &mut canister, "wide_and_late", |_| {});
    assert!(pauses.len() > 20, "{outcome:?}");
    assert!(outcome.result.is_err());
    assert_eq!(world.query(&canister, "show", b"").result.unwrap(), before);
    let other = super::World::new(HOST);
    let mut expected = other.install(WORKER);
    other.update(&mut expected, "call", b"");
    let expected = comparable_parts(other.update(&mut expected, "wide", b""));
    assert_eq!(comparable_parts(world.update(&mut canister, "wide", b"")), expected);
}

// Promise: P13 - A paused message without disk room is executed again with the same result.
#[test]
fn a_message_that_finds_no_room_on_the_disk_runs_again_and_comes_to_the_same() {
    let expected = {
        let world = world(1);
        let mut canister = world.install(WORKER);
        comparable_parts(world.update(&mut canister, "fill", b""))
    };
    type Fault = fn(&World);
    // A worker that may write no more is ended by the kernel.
    let no_room: Fault = |world| {
        for pid in world.pool.pids() {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: lowers a limit of a process that this one started.
            let done = unsafe {
                libc::prlimit(pid as i32, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut())
            };
            assert_eq!(done, 0);
        }
    };
    let no_file: Fault = |world| std::fs::rename(world.cache(), world.aside()).unwrap();
    for (what, inject_fault) in [("no room", no_room), ("no file", no_file)] {
        let world = world(1);
        let mut canister = world.install(WORKER);
        let first = request(&world, &canister, "fill");
        inject_fault(&world);
        let slice = world.pool.run_slice(Lane::Update(0), &first, &grant(1)).unwrap();
        assert!(matches!(slice, Slice::Paused(_)), "{what}");
        assert_eq!(world.pool.statistics().paused, 0, "{what}");
        assert!(world.pool.paused_pids().is_empty(), "{what}");
        drop(first);
        if world.aside().exists() {
            std::fs::rename(world.aside(), world.cache()).unwrap();
        }
        let (outcome, _) = in_slices(&world, &mut canister, "fill", |_| {});
        assert_eq!(comparable_parts(outcome), expected, "{what}");
    }
}

#[test]
fn what_the_sheet_has_for_a_paused_message_is_enough_for_it() {
    let world = world(1);
    let canister = world.install(WORKER);
    // Private pages of others, as a lane that served many has them.
    for _ in 0..16 {
        let mut other = world.install(WORKER);
        let request = request(&world, &other, "fill");
        let outcome = world.pool.execute(Lane::Update(0), &request).unwrap();
        world.commit(&mut other, request, &outcome);
    }
    let request = request(&world, &canister, "deep");
    let slice = world.pool.run_slice(Lane::Update(0), &request, &grant(4)).unwrap();
    assert!(matches!(slice, Slice::Paused(_)), "{slice:?}");
    assert_eq!(world.pool.statistics().paused, 1);
}
