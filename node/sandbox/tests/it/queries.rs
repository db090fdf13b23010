//! Queries, and composite queries that wait for their calls.

use std::time::{Duration, Instant};

use sandbox::{
    CallbackKind, Entry, Lane, Outcome, Priority, Request, Response, Sandbox, TimedOutcome,
};
use state::ErrorCode;

use super::{COUNTER, Canister, HOST, World, counters};

/// A composite query that counts in all three memories what it and its callbacks did.
const COMPOSITE: &str = r#"(module
    (import "ic0" "call_new" (func $new (param i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "ic0" "call_perform" (func $perform (result i32)))
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 10)
    (table funcref (elem $again $finish $trap $cleanup))
    (global $n (mut i32) (i32.const 0))
    (func $count
        (global.set $n (i32.add (global.get $n) (i32.const 1)))
        (i32.store (i32.const 4096) (i32.add (i32.load (i32.const 4096)) (i32.const 1)))
        (call $sread (i64.const 8192) (i64.const 0) (i64.const 4))
        (i32.store (i32.const 8192) (i32.add (i32.load (i32.const 8192)) (i32.const 1)))
        (call $swrite (i64.const 0) (i64.const 8192) (i64.const 4)))
    (func $show
        (i32.store (i32.const 4) (global.get $n))
        (call $append (i32.const 4) (i32.const 4))
        (call $append (i32.const 4096) (i32.const 4))
        (call $sread (i64.const 8192) (i64.const 0) (i64.const 4))
        (call $append (i32.const 8192) (i32.const 4))
        (call $append (i32.const 20480) (i32.const 4))
        (call $reply))
    (func $call (call $new (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (drop (call $perform)))
    (func (export "canister_init") (drop (call $grow (i64.const 1))))
    (func (export "canister_update count") (call $count) (call $show))
    (func (export "canister_composite_query ask") (call $count) (call $call))
    (func (export "canister_composite_query alone") (call $count) (call $show))
    (func (export "canister_query get") (call $show))
    (func $again (param i32) (call $count) (call $call))
    (func $finish (param i32) (call $count) (call $show))
    (func $trap (param i32) (call $count) (i32.store (i32.const 20480) (i32.const 1)) (drop (memory.grow (i32.const 3))) unreachable)
    (func $cleanup (param i32) (call $count)))"#;

struct Asker {
    world: World,
    canister: Canister,
}

impl Asker {
    fn new() -> Self {
        let world = World::new(HOST);
        let mut canister = world.install(COMPOSITE);
        assert_eq!(numbers(&world.update(&mut canister, "count", b"")), [1, 1, 1, 0]);
        Self { world, canister }
    }

    fn ask(&self) -> Outcome {
        self.world.run(&mut self.canister.clone(), Entry::CompositeQuery("ask".into()), |_| {})
    }

    fn resume(&self, entry: Entry, token: u64) -> Outcome {
        self.world.run(&mut self.canister.clone(), entry, |request: &mut Request| {
            request.keep_token = Some(token);
            request.context.replicated = false;
        })
    }

    fn callback(&self, fun: u64, token: u64) -> Outcome {
        self.resume(Entry::Callback { fun, env: 0, kind: CallbackKind::Reply }, token)
    }

    fn get(&self) -> [u32; 4] {
        numbers(&self.world.query(&self.canister, "get", b""))
    }
}

fn numbers(outcome: &Outcome) -> [u32; 4] {
    let Ok(Response::Reply(reply)) = &outcome.result else { panic!("{:?}", outcome.result) };
    std::array::from_fn(|n| u32::from_le_bytes(reply[4 * n..][..4].try_into().unwrap()))
}

#[test]
fn a_composite_query_keeps_what_it_wrote_until_it_is_released() {
    let asker = Asker::new();
    let asked = asker.ask();
    let token = asked.keep_token.unwrap();
    assert_eq!((asked.query_calls.len(), asked.changes), (1, None));
    assert_eq!(asker.get(), [1, 1, 1, 0], "others see the state as it was");
    // A second one at the same time, of the same canister, in the same worker.
    let other = asker.ask().keep_token.unwrap();
    assert_ne!(token, other);
    let again = asker.callback(0, token);
    assert_eq!((again.query_calls.len(), again.keep_token), (1, Some(token)));
    assert_eq!(numbers(&asker.callback(1, token)), [4, 4, 4, 0]);
    assert_eq!(numbers(&asker.callback(1, other)), [3, 3, 3, 0]);
    asker.world.pool.release(Lane::Query(0), token);
    asker.world.pool.release(Lane::Query(0), other);
    assert_eq!(asker.get(), [1, 1, 1, 0]);
    let over = asker.world.attempt(
        &mut asker.canister.clone(),
        Entry::Callback { fun: 1, env: 0, kind: CallbackKind::Reply },
        |request| {
            request.keep_token = Some(token);
            request.context.replicated = false;
        },
    );
    assert!(over.unwrap_err().to_string().contains("no longer kept"));
    let alone =
        asker.world.run(&mut asker.canister.clone(), Entry::CompositeQuery("alone".into()), |_| {});
    assert_eq!((numbers(&alone), alone.keep_token), ([2, 2, 2, 0], None));
    assert_eq!(asker.get(), [1, 1, 1, 0]);
    assert_eq!(asker.world.pool.statistics().restarts, 0);
}

#[test]
fn a_callback_that_traps_leaves_its_query_as_it_was() {
    let asker = Asker::new();
    let token = asker.ask().keep_token.unwrap();
    for _ in 0..2 {
        let trapped = asker.callback(2, token);
        assert!(trapped.result.is_err());
        assert_eq!(trapped.keep_token, Some(token));
    }
    assert!(asker.resume(Entry::Cleanup { fun: 3, env: 0, reject_code: 0 }, token).result.is_ok());
    assert_eq!(numbers(&asker.callback(1, token)), [4, 4, 4, 0]);
    asker.world.pool.release(Lane::Query(0), token);
    assert_eq!(asker.get(), [1, 1, 1, 0]);
}

#[test]
fn only_so_many_queries_are_kept() {
    let asker = Asker::new();
    let tokens: Vec<u64> = (0..8).map(|_| asker.ask().keep_token.unwrap()).collect();
    let refused = asker.ask();
    assert_eq!(refused.result.unwrap_err().reject.error_code, ErrorCode(507));
    for token in tokens {
        assert_eq!(numbers(&asker.callback(1, token)), [3, 3, 3, 0]);
        asker.world.pool.release(Lane::Query(0), token);
    }
    assert!(asker.ask().keep_token.is_some());
}

#[test]
fn queries_follow_updates_of_other_workers() {
    let mut asker = Asker::new();
    for n in 2..12 {
        asker.world.update(&mut asker.canister, "count", b"");
        assert_eq!(asker.get(), [n, n, n, 0]);
    }
}

// Promise: P13 - A query ends at `execution.query_wall_clock_seconds`.
#[test]
fn query_is_ended_at_its_deadline_and_nothing_else_is_lost() {
    const ENDLESS: &str = r#"(module
        (memory 1)
        (func (export "canister_query endless") (loop $next (br $next))))"#;
    let world = World::new(HOST);
    let (endless, mut counter) = (world.install(ENDLESS), world.install(COUNTER));
    world.update(&mut counter, "inc", b"");
    let mut request = world.request(&endless, Entry::Query("endless".into()));
    request.limits.instructions = 1 << 50;
    for number in 1..=3 {
        assert_eq!(counters(&world.query(&counter, "get", b"").result.unwrap()), [1; 3]);
        let deadline = Instant::now() + Duration::from_millis(100);
        let timed = world.pool.execute_until(Lane::Query(0), &request, deadline).unwrap();
        assert_eq!(timed, TimedOutcome::Overdue);
        assert!(Instant::now() >= deadline);
        let statistics = world.pool.statistics();
        assert_eq!((statistics.overdue, statistics.timeouts), (number, 0));
    }
    assert_eq!(counters(&world.query(&counter, "get", b"").result.unwrap()), [1; 3]);
}

#[test]
fn query_with_a_deadline_waits_for_no_compilation() {
    let world = World::new(HOST);
    let counter = world.install(COUNTER);
    let request = world.request(&counter, Entry::Query("get".into()));
    let deadline = Instant::now() + Duration::from_secs(60);
    let run = || world.pool.execute_until(Lane::Query(0), &request, deadline).unwrap();
    std::fs::rename(world.cache(), world.aside()).unwrap();
    assert_eq!(run(), TimedOutcome::Unprepared);
    std::fs::rename(world.aside(), world.cache()).unwrap();
    let wasm = wat::parse_str(COUNTER).unwrap();
    world.pool.prepare(&counter.hash, &wasm.as_slice(), Priority::Round).unwrap();
    let TimedOutcome::Ended(outcome) = run() else { panic!("not executed") };
    assert_eq!(counters(&outcome.result.unwrap()), [0; 3]);
    assert_eq!(world.pool.statistics().restarts, 0);
}
