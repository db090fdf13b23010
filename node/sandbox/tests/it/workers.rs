//! Worker processes: killed, hanging, faulty, confined, and how many of them hold what.

use std::time::Duration;

use sandbox::{Entry, Lane, Outcome, Probe, Response, Sandbox, WorkerTrouble};
use state::ErrorCode;

use super::{COUNTER, Canister, HOST, World, counters, kill};

const LOOPS: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (memory 1)
    (func $recurse (param i64 i64 i64 i64) (call $recurse (local.get 0) (local.get 1) (local.get 2) (local.get 3)) (i64.store (i32.const 0) (local.get 0)))
    (func (export "canister_update loop") (loop $next (i32.store (i32.const 0) (i32.const 1)) (br $next)))
    (func (export "canister_update recurse") (call $recurse (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)))
    (func (export "canister_update null") (drop (i32.load (i32.const -1))))
    (func (export "canister_update divide") (drop (i32.div_u (i32.const 1) (i32.load (i32.const 0)))))
    (func (export "canister_update ok") (call $reply)))"#;

#[test]
fn loops_and_recursion_end_with_the_message() {
    let world = World::new(HOST);
    let mut canister = world.install(LOOPS);
    let outcome = world.run(&mut canister, Entry::Update("loop".into()), |request| {
        request.limits.instructions = 50_000_000
    });
    assert_eq!(outcome.instructions, 50_000_000);
    let reject = outcome.result.unwrap_err().reject;
    assert_eq!(reject.error_code, ErrorCode(522));
    assert!(reject.message.contains("50000000"), "{}", reject.message);
    for (method, text) in
        [("recurse", "stack overflow"), ("null", "out of bounds"), ("divide", "division by 0")]
    {
        let reject = world.update(&mut canister, method, b"").result.unwrap_err().reject;
        assert_eq!(reject.error_code, ErrorCode(502));
        assert!(reject.message.contains(text), "{}", reject.message);
    }
    assert!(world.update(&mut canister, "ok", b"").result.is_ok());
    assert_eq!(world.pool.statistics().restarts, 0);
}

#[test]
fn a_worker_killed_in_the_middle_of_a_message_costs_that_message() {
    let world = World::with(HOST, |config| config.update_workers = 2);
    let mut canister = world.install(LOOPS);
    let pid = world.pool.pids()[0];
    std::thread::scope(|scope| {
        let looping = scope.spawn(|| {
            world.attempt(&mut canister.clone(), Entry::Update("loop".into()), |request| {
                request.limits.instructions = 1 << 50
            })
        });
        // Busy when its first message has used some processor time.
        while cpu_ticks(pid) < 10 {
            std::thread::yield_now();
        }
        kill(pid);
        let error = looping.join().unwrap().unwrap_err().to_string();
        assert_eq!(error, "the worker ended (signal: 9 (SIGKILL))");
    });
    assert!(world.update(&mut canister, "ok", b"").result.is_ok());
    assert_eq!(world.pool.pids().len(), 3);
}

#[test]
fn messages_longer_than_the_rings_pass_in_pieces() {
    const ECHO: &str = r#"(module
        (import "ic0" "msg_arg_data_size" (func $size (result i32)))
        (import "ic0" "msg_arg_data_copy" (func $copy (param i32 i32 i32)))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (import "ic0" "msg_reply" (func $reply))
        (memory 40)
        (func (export "canister_update echo")
            (call $copy (i32.const 0) (i32.const 0) (call $size))
            (call $append (i32.const 0) (call $size))
            (call $reply)))"#;
    let world = World::with(HOST, |config| config.sandbox.ring_bytes = 4096);
    let mut canister = world.install(ECHO);
    for bytes in [0, 1, 3_000, 3_840, 4_096, 100_000, 2_000_000] {
        let argument: Vec<u8> = (0..bytes).map(|n: usize| (n % 251) as u8).collect();
        let outcome = world.update(&mut canister, "echo", &argument);
        assert!(outcome.result == Ok(Response::Reply(argument)), "{bytes}");
    }
    assert_eq!(world.pool.statistics().restarts, 0);
}

#[test]
fn a_worker_is_brought_to_where_its_thread_stays() {
    let world = World::new(HOST);
    let mut canister = world.install(LOOPS);
    let usable = accounting::processor::Processors::of_this_thread();
    let at = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().to_owned()
    };
    let everywhere = at(world.pool.pids()[0]);
    assert!(world.update(&mut canister, "ok", b"").result.is_ok());
    assert_eq!(at(world.pool.pids()[0]), everywhere, "its thread stays nowhere");
    let Some(here) = usable.stay() else { return };
    let there = usable.beside(here, 1).unwrap();
    for processor in [here, there] {
        assert!(accounting::processor::stay_on(processor));
        assert!(world.update(&mut canister, "ok", b"").result.is_ok());
        assert_eq!(at(world.pool.pids()[0]), processor.to_string());
    }
    usable.roam();
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    fields[11].parse::<u64>().unwrap()
}

// Promise: P7 - Memory refused by the kernel is retried and is not a result.
#[test]
fn memory_that_the_kernel_refuses_is_no_answer() {
    const GROWS: &str = r#"(module
        (import "ic0" "stable64_grow" (func $grow_stable (param i64) (result i64)))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (import "ic0" "msg_reply" (func $reply))
        (memory 1 100)
        (func $show (param i32) (i32.store (i32.const 0) (local.get 0)) (call $append (i32.const 0) (i32.const 4)) (call $reply))
        (func (export "canister_update heap") (call $show (memory.grow (i32.const 1))))
        (func (export "canister_update stable") (call $show (i32.wrap_i64 (call $grow_stable (i64.const 1)))))
        (func (export "canister_update far") (call $show (memory.grow (i32.const 1000)))))"#;
    let world = World::with(HOST, |config| config.probes = true);
    let mut canister = world.install(GROWS);
    let reply = |outcome: Outcome| match outcome.result.unwrap() {
        Response::Reply(bytes) => i32::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    for (method, pages_before) in [("heap", 1), ("stable", 0)] {
        let entry = Entry::Update(method.into());
        assert!(world.pool.probe(Lane::Update(0), Probe::RefuseGrowth, Duration::from_secs(20)));
        let trouble = world.attempt(&mut canister, entry.clone(), |_| {}).unwrap_err();
        assert!(trouble.to_string().contains("the kernel refused"), "{trouble}");
        // The next worker finds memory, and the same message has the same result as ever.
        let outcome = world.attempt(&mut canister, entry, |_| {}).unwrap();
        assert_eq!(reply(outcome), pages_before, "{method}");
    }
    // A refusal by a rule is an answer, whatever the kernel would have returned.
    assert!(world.pool.probe(Lane::Update(0), Probe::RefuseGrowth, Duration::from_secs(20)));
    assert_eq!(reply(world.update(&mut canister, "far", b"")), -1);
    assert_eq!(world.pool.statistics().restarts, 2);
}

// Promise: P15 - A worker cannot access the machine.
#[test]
fn workers_cannot_reach_the_machine() {
    let world = World::with(HOST, |config| config.probes = true);
    let mut canister = world.install(COUNTER);
    use Probe::{Exec, Fork, Ioctl, Open, Ptrace, Socket};
    for probe in [Open, Socket, Fork, Exec, Ptrace, Ioctl] {
        assert!(
            !world.pool.probe(Lane::Update(0), probe, Duration::from_secs(20)),
            "{probe:?} succeeded"
        );
        assert!(world.update(&mut canister, "inc", b"").result.is_ok());
    }
    for pid in world.pool.pids() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
        assert!(status.contains("Threads:\t1\n"), "{status}");
    }
    assert_eq!(counters(&world.query(&canister, "get", b"").result.unwrap()), [6; 3]);
}

#[test]
fn workers_take_probes_only_when_asked_to() {
    let world = World::new(HOST);
    assert!(!world.pool.probe(Lane::Update(0), Probe::Lie, Duration::from_secs(20)));
    assert_eq!(world.pool.statistics().lies, 0);
}

// Promise: P7 - A worker that hangs or sends invalid results is replaced.
#[test]
fn hanging_and_lying_workers_are_replaced() {
    let world = World::with(HOST, |config| config.probes = true);
    let mut canister = world.install(COUNTER);
    assert!(!world.pool.probe(Lane::Update(0), Probe::Hang, Duration::from_millis(50)));
    assert_eq!(world.pool.statistics().timeouts, 1);
    assert!(!world.pool.probe(Lane::Update(0), Probe::Lie, Duration::from_secs(20)));
    assert_eq!(world.pool.statistics().lies, 1);
    assert_eq!(counters(&world.update(&mut canister, "inc", b"").result.unwrap()), [1; 3]);
}

#[test]
fn lanes_run_at_the_same_time_and_see_each_others_commits() {
    let world = World::with(HOST, |config| config.update_workers = 2);
    let mut one = world.install(COUNTER);
    let mut other = world.install(COUNTER);
    for n in 1..20 {
        std::thread::scope(|scope| {
            for (lane, canister) in [(n % 2, &mut one), ((n + 1) % 2, &mut other)] {
                let world = &world;
                scope.spawn(move || {
                    let request = world.request(canister, Entry::Update("inc".into()));
                    let outcome =
                        world.pool.execute(Lane::Update(lane as usize), &request).unwrap();
                    assert_eq!(counters(outcome.result.as_ref().unwrap()), [n; 3]);
                    world.commit(canister, request, &outcome);
                });
            }
        });
    }
}

/// Adds its argument's first byte to a number in the heap and to one in stable memory.
const ADDER: &str = r#"(module
    (import "ic0" "msg_arg_data_copy" (func $arg (param i32 i32 i32)))
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 1)
    (func (export "canister_init") (drop (call $grow (i64.const 1))))
    (func (export "canister_update add")
        (call $arg (i32.const 8) (i32.const 0) (i32.const 1))
        (i32.store8 (i32.const 0) (i32.add (i32.load8_u (i32.const 0)) (i32.load8_u (i32.const 8))))
        (call $sread (i64.const 1) (i64.const 0) (i64.const 1))
        (i32.store8 (i32.const 1) (i32.add (i32.load8_u (i32.const 1)) (i32.load8_u (i32.const 8))))
        (call $swrite (i64.const 0) (i64.const 1) (i64.const 1))
        (call $append (i32.const 0) (i32.const 2))
        (call $reply))
    (func (export "canister_update touch")
        (call $swrite (i64.const 8192) (i64.const 0) (i64.const 1))
        (call $reply)))"#;

#[test]
fn changes_thrown_away_are_not_taken_for_those_of_another_lane() {
    let world = World::with(HOST, |config| config.update_workers = 2);
    let mut canister = world.install(ADDER);
    let mut total = 0;
    let mut add = |lane: usize, amount: u8, keep: bool| {
        let mut request = world.request(&canister, Entry::Update("add".into()));
        request.context.arg = vec![amount];
        let outcome = world.pool.execute(Lane::Update(lane), &request).unwrap();
        assert_eq!(outcome.result, Ok(sandbox::Response::Reply(vec![total + amount; 2])));
        if keep {
            total += amount;
            world.commit(&mut canister, request, &outcome);
        }
    };
    for (lane, other) in [(0, 1), (1, 0), (0, 1)] {
        add(lane, 1, true);
        // The space this took is returned, and the other lane writes the same pages there.
        add(lane, 5, false);
        add(other, 1, true);
        add(lane, 1, true);
        add(lane, 7, false);
        add(lane, 1, true);
    }
}

#[test]
fn a_lane_that_could_not_map_a_memory_does_not_trust_what_it_has_of_it() {
    let world = World::with(HOST, |config| config.update_workers = 2);
    let mut canister = world.install(ADDER);
    let request = |canister: &Canister, method: &str, amount: u8| {
        let mut request = world.request(canister, Entry::Update(method.into()));
        request.context.arg = vec![amount];
        request
    };
    // Thrown away here, and written to the same place by the other lane; which then writes another
    // page of stable memory, so that there is something to map.
    for (lane, method, amount, keep) in
        [(0, "add", 1, true), (0, "add", 5, false), (1, "add", 1, true), (1, "touch", 0, true)]
    {
        let request = request(&canister, method, amount);
        let outcome = world.pool.execute(Lane::Update(lane), &request).unwrap();
        if keep {
            world.commit(&mut canister, request, &outcome);
        }
    }
    let request = request(&canister, "add", 1);
    let trouble = world.without_files(|| world.pool.execute(Lane::Update(0), &request));
    assert!(matches!(trouble, Err(WorkerTrouble::Damage(_))), "{trouble:?}");
    let outcome = world.pool.execute(Lane::Update(0), &request).unwrap();
    assert_eq!(outcome.result, Ok(sandbox::Response::Reply(vec![3; 2])));
    assert_eq!(world.pool.statistics().restarts, 0, "the worker had no part in it");
}

#[test]
fn more_canisters_than_may_be_mapped_take_turns() {
    let world = World::with(HOST, |config| {
        config.sandbox.canisters_max = 4;
        config.sandbox.idle_seconds = 0;
        config.sandbox.resident_floor_bytes = 0;
    });
    let mut canisters: Vec<_> = (0..7).map(|_| world.install(COUNTER)).collect();
    for n in 1..4 {
        for canister in &mut canisters {
            assert_eq!(counters(&world.update(canister, "inc", b"").result.unwrap()), [n; 3]);
            assert_eq!(counters(&world.query(canister, "get", b"").result.unwrap()), [n; 3]);
        }
        let mapped = world.pool.statistics().mapped;
        assert!(mapped <= 8, "{mapped}");
    }
    world.pool.evict_idle();
    assert_eq!(world.pool.statistics().mapped, 0);
    world.pool.forget(&[canisters[0].heap, canisters[0].stable]);
    assert_eq!(counters(&world.update(&mut canisters[0], "inc", b"").result.unwrap()), [4; 3]);
    assert_eq!(world.pool.statistics().restarts, 0);
}

#[test]
fn a_worker_with_too_much_memory_is_replaced_between_messages() {
    let world = World::with(HOST, |config| config.sandbox.worker_anonymous_bytes = 0);
    let mut canister = world.install(COUNTER);
    world.pool.evict_idle();
    assert_eq!(world.pool.statistics().replaced, 2);
    assert_eq!(counters(&world.update(&mut canister, "inc", b"").result.unwrap()), [1; 3]);
}
