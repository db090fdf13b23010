//! Responding, calling others, and the cycles that go with it.

use ic_principal::Principal;
use sandbox::{CallbackKind, Entry, Outcome, Request, Response};
use state::ErrorCode;

use super::{Canister, HOST, MIB, World};

/// Calls `callee` (its id at 0, 10 bytes) as many times as its argument's first byte says, and
/// replies with the result codes.
const CALLER: &str = r#"(module
    (import "ic0" "msg_arg_data_copy" (func $arg (param i32 i32 i32)))
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "msg_reject" (func $reject (param i32 i32)))
    (import "ic0" "msg_reject_code" (func $reject_code (result i32)))
    (import "ic0" "call_new" (func $new (param i32 i32 i32 i32 i32 i32 i32 i32)))
    (import "ic0" "call_on_cleanup" (func $cleanup (param i32 i32)))
    (import "ic0" "call_data_append" (func $data (param i32 i32)))
    (import "ic0" "call_cycles_add128" (func $cycles (param i64 i64)))
    (import "ic0" "call_with_best_effort_response" (func $best_effort (param i32)))
    (import "ic0" "call_perform" (func $perform (result i32)))
    (import "ic0" "canister_cycle_balance128" (func $balance (param i32)))
    (import "ic0" "canister_liquid_cycle_balance128" (func $liquid (param i32)))
    (import "ic0" "msg_cycles_accept128" (func $accept (param i64 i64 i32)))
    (import "ic0" "msg_cycles_available128" (func $available (param i32)))
    (import "ic0" "msg_cycles_refunded128" (func $refunded (param i32)))
    (import "ic0" "cycles_burn128" (func $burn (param i64 i64 i32)))
    (import "ic0" "cost_call" (func $cost (param i64 i64 i32)))
    (memory 64)
    (table funcref (elem $on_reply $on_reject $on_cleanup $wrong))
    (data (i32.const 0) "\00\00\00\00\00\00\00\08\01\01")
    (data (i32.const 16) "greet")
    (global $seen (mut i32) (i32.const 0))
    (func $begin (call $new (i32.const 0) (i32.const 10) (i32.const 16) (i32.const 5) (i32.const 0) (i32.const 11) (i32.const 1) (i32.const 12)))
    (func $once (result i32)
        (call $begin)
        (call $cleanup (i32.const 2) (i32.const 13))
        (call $data (i32.const 16) (i32.const 3))
        (call $data (i32.const 19) (i32.const 2))
        (call $cycles (i64.const 0) (i64.const 1000))
        (call $perform))
    (func (export "canister_update call") (local $n i32)
        (call $arg (i32.const 100) (i32.const 0) (i32.const 1))
        (block $end (loop $next
            (br_if $end (i32.eqz (i32.load8_u (i32.const 100))))
            (i32.store8 (i32.const 200) (call $once))
            (call $append (i32.const 200) (i32.const 1))
            (i32.store8 (i32.const 100) (i32.sub (i32.load8_u (i32.const 100)) (i32.const 1)))
            (br $next)))
        (call $reply))
    (func (export "canister_update best_effort") (call $begin) (call $best_effort (i32.const 100000)) (drop (call $perform)) (call $reply))
    (func (export "canister_update abandoned") (call $begin) (call $cycles (i64.const 0) (i64.const 5)) (call $begin)
        (call $cycles (i64.const 0) (i64.const 7)) (call $balance (i32.const 300)) (call $append (i32.const 300) (i32.const 16)) (call $reply))
    (func (export "canister_update all_in") (call $liquid (i32.const 300)) (call $begin) (call $cycles (i64.load (i32.const 308)) (i64.load (i32.const 300)))
        (i32.store8 (i32.const 200) (call $perform)) (call $append (i32.const 200) (i32.const 1)) (call $reply))
    (func (export "canister_update too_much") (call $liquid (i32.const 300)) (call $begin)
        (call $cycles (i64.load (i32.const 308)) (i64.add (i64.load (i32.const 300)) (i64.const 1))) (call $reply))
    (func (export "canister_update money")
        (call $accept (i64.const 0) (i64.const 40) (i32.const 300))
        (call $accept (i64.const -1) (i64.const -1) (i32.const 316))
        (call $burn (i64.const 0) (i64.const 9) (i32.const 332))
        (call $burn (i64.const -1) (i64.const -1) (i32.const 348))
        (call $append (i32.const 300) (i32.const 64)) (call $reply))
    (func $all (call $liquid (i32.const 300)) (call $cycles (i64.load (i32.const 308)) (i64.load (i32.const 300))))
    (func (export "canister_update full") (call $begin) (call $all) (call $accept (i64.const -1) (i64.const -1) (i32.const 316)) (call $all)
        (call $append (i32.const 316) (i32.const 16)) (call $begin) (call $balance (i32.const 300)) (call $append (i32.const 300) (i32.const 16))
        (call $burn (i64.const -1) (i64.const -1) (i32.const 332)) (call $accept (i64.const -1) (i64.const -1) (i32.const 316))
        (call $burn (i64.const -1) (i64.const -1) (i32.const 332)) (call $append (i32.const 332) (i32.const 16)) (call $reply))
    (func (export "canister_update cost") (call $cost (i64.const 5) (i64.const 5) (i32.const 300)) (call $append (i32.const 300) (i32.const 16)) (call $reply))
    (func (export "canister_query accept") (global.set $seen (i32.const 9)) (call $accept (i64.const 0) (i64.const 40) (i32.const 300)) (call $reply))
    (func (export "canister_update twice") (call $reply) (call $reply))
    (func (export "canister_update reject") (call $append (i32.const 0) (i32.const 4)) (call $reject (i32.const 16) (i32.const 5)))
    (func (export "canister_update bad_text") (i32.store8 (i32.const 300) (i32.const 255)) (call $reject (i32.const 300) (i32.const 1)))
    (func (export "canister_update nothing") (call $append (i32.const 16) (i32.const 5)))
    (func (export "canister_update large") (call $append (i32.const 0) (i32.const 0x200000)) (call $reply))
    (func (export "canister_update too_large") (call $append (i32.const 0) (i32.const 0x200000)) (call $append (i32.const 0) (i32.const 1)) (call $reply))
    (func (export "canister_update large_call") (call $begin) (call $data (i32.const 0) (i32.const 0x200001)))
    (func (export "canister_update perform_without_new") (drop (call $perform)))
    (func (export "canister_update add_after_perform") (drop (call $once)) (call $data (i32.const 0) (i32.const 1)))
    (func $on_reply (param i32)
        (call $refunded (i32.const 300)) (i32.store (i32.const 316) (local.get 0)) (i32.store (i32.const 320) (call $reject_code))
        (call $append (i32.const 300) (i32.const 24)) (call $reply))
    (func $on_reject (param i32) (i32.store (i32.const 320) (call $reject_code)) (call $append (i32.const 320) (i32.const 4)) (call $reply))
    (func $on_cleanup (param i32) (global.set $seen (local.get 0)))
    (func $wrong))"#;

struct Caller {
    world: World,
    canister: Canister,
}

impl Caller {
    fn new() -> Self {
        let world = World::new(HOST);
        let canister = world.install(CALLER);
        Self { world, canister }
    }

    fn with(&mut self, entry: Entry, change: impl FnOnce(&mut Request)) -> Outcome {
        self.world.run(&mut self.canister, entry, change)
    }

    fn update(&mut self, name: &str, change: impl FnOnce(&mut Request)) -> Outcome {
        self.with(Entry::Update(name.into()), change)
    }
}

fn reply(outcome: &Outcome) -> Vec<u8> {
    match &outcome.result {
        Ok(Response::Reply(reply)) => reply.clone(),
        other => panic!("{other:?}"),
    }
}

fn failure(outcome: &Outcome, code: u16) -> String {
    let reject = &outcome.result.as_ref().unwrap_err().reject;
    assert_eq!(reject.error_code, ErrorCode(code), "{}", reject.message);
    reject.message.clone()
}

/// Base, ten bytes of payload, both reservations: see the prices of the world.
const PREPAID: u128 = 1_000 + 10 * 2 + 3_000 + 4_000;

#[test]
fn calls_leave_with_their_cycles() {
    let mut caller = Caller::new();
    let before = caller.canister.balance;
    let outcome = caller.update("call", |request| request.context.arg = vec![2]);
    assert_eq!(reply(&outcome), [0, 0]);
    let changes = outcome.changes.unwrap();
    assert_eq!(changes.balance, before - 2 * (1000 + PREPAID));
    assert_eq!(changes.calls.len(), 2);
    let call = &changes.calls[0];
    assert_eq!(call.callee, Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, 8, 1, 1]));
    assert_eq!((call.method_name.as_str(), call.arg.as_slice()), ("greet", b"greet".as_slice()));
    assert_eq!((call.cycles, call.prepaid), (1000, PREPAID));
    assert_eq!(
        (call.on_reply, call.on_reject, call.on_cleanup, call.timeout_seconds),
        ((0, 11), (1, 12), Some((2, 13)), None)
    );
    let cost = reply(&caller.update("cost", |_| {}));
    assert_eq!(u128::from_le_bytes(cost.try_into().unwrap()), PREPAID);
    let outcome = caller.update("best_effort", |_| {});
    assert_eq!(outcome.changes.unwrap().calls[0].timeout_seconds, Some(300));
}

#[test]
fn calls_that_cannot_be_made_say_so_and_cost_nothing() {
    let mut caller = Caller::new();
    let before = caller.canister.balance;
    let refused = |outcome: &Outcome, codes: &[u8], calls: usize| {
        assert_eq!(reply(outcome), codes);
        let changes = outcome.changes.as_ref().unwrap();
        assert_eq!(changes.calls.len(), calls);
        changes.balance
    };
    let outcome = caller.update("call", |request| {
        request.context.arg = vec![3];
        request.context.calls_max = 1;
    });
    assert_eq!(refused(&outcome, &[0, 2, 2], 1), before - 1000 - PREPAID);
    let callee = Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, 8, 1, 1]);
    let outcome = caller.update("call", |request| {
        request.context.arg = vec![3];
        request.context.queue_slots_left = [(callee, 2)].into();
    });
    refused(&outcome, &[0, 0, 2], 2);
    let outcome = caller.update("call", |request| {
        request.context.arg = vec![2];
        request.context.queue_slots = 1;
    });
    refused(&outcome, &[0, 2], 1);
    let outcome = caller.update("call", |request| {
        request.context.arg = vec![2];
        request.context.reject_guaranteed_response_calls = true;
    });
    refused(&outcome, &[2, 2], 0);
    let outcome = caller.update("call", |request| {
        request.context.arg = vec![2];
        request.context.freezing_threshold = request.context.balance - 1000 - PREPAID - 1000;
    });
    refused(&outcome, &[0, 2], 1);
    let outcome = caller.update("all_in", |_| {});
    assert_eq!(refused(&outcome, &[2], 0), caller.canister.balance);
    // Cycles attached to an abandoned call were returned, those of the pending one were not.
    let balance = caller.canister.balance;
    let outcome = caller.update("abandoned", |_| {});
    assert_eq!(u128::from_le_bytes(reply(&outcome).try_into().unwrap()), balance - 7);
    assert_eq!(outcome.changes.unwrap().balance, balance);
    failure(&caller.update("too_much", |_| {}), 504);
    failure(&caller.update("perform_without_new", |_| {}), 504);
    failure(&caller.update("add_after_perform", |_| {}), 504);
    assert!(failure(&caller.update("large_call", |_| {}), 504).contains(&format!("{}", 2 * MIB)));
    assert_eq!(caller.canister.balance, balance);
}

#[test]
fn cycles_are_accepted_and_burned_within_bounds() {
    let mut caller = Caller::new();
    let before = caller.canister.balance;
    let outcome = caller.update("money", |request| request.context.cycles_available = 100);
    let amounts: Vec<u128> = reply(&outcome)
        .chunks(16)
        .map(|bytes| u128::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let threshold = 10_u128.pow(12);
    assert_eq!(amounts, [40, 60, 9, before + 100 - 9 - threshold]);
    let changes = outcome.changes.unwrap();
    assert_eq!(
        (changes.balance, changes.cycles_accepted, changes.cycles_burned),
        (threshold, 100, before + 100 - threshold)
    );
}

// Promise: P15 - 2^128 - 1 cycles do not kill a worker.
/// Cycles attached to a call under construction may be returned, so they count when cycles are
/// accepted; and the counter of burned cycles saturates.
#[test]
fn all_the_cycles_there_can_be_do_not_kill_a_worker() {
    const FULL: u128 = u128::MAX;
    let mut caller = Caller::new();
    for balance in [0, 1_000, 1 << 127, FULL - 5, FULL] {
        let outcome = caller.update("full", |request| {
            request.context.balance = balance;
            request.context.freezing_threshold = 0;
            request.context.cycles_available = FULL;
        });
        let amounts: Vec<u128> = reply(&outcome)
            .chunks(16)
            .map(|bytes| u128::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        // Accepted while everything was attached; the balance when it came back; burned the second
        // time, when the counter was full.
        assert_eq!(amounts, [FULL - balance, FULL, 0], "{balance}");
        let changes = outcome.changes.unwrap();
        assert_eq!(changes.cycles_burned, FULL);
        assert_eq!(changes.cycles_accepted, FULL);
        assert_eq!(changes.balance, balance);
    }
}

#[test]
fn a_query_called_as_an_update_keeps_cycles_only() {
    let mut caller = Caller::new();
    let before = caller.canister.clone();
    let outcome = caller.update("accept", |request| request.context.cycles_available = 100);
    let changes = outcome.changes.unwrap();
    assert_eq!((changes.balance, changes.cycles_accepted), (before.balance + 40, 40));
    assert_eq!(changes.globals, before.globals);
    assert!(changes.heap_runs.is_empty() && changes.calls.is_empty());
    failure(&caller.update("no_such_method", |_| {}), 536);
}

#[test]
fn responses_follow_their_rules() {
    let mut caller = Caller::new();
    failure(&caller.update("twice", |_| {}), 504);
    failure(
        &caller.update("call", |request| {
            request.context.arg = vec![0];
            request.context.already_responded = true;
        }),
        504,
    );
    assert_eq!(caller.update("reject", |_| {}).result, Ok(Response::Reject("greet".into())));
    failure(&caller.update("bad_text", |_| {}), 504);
    assert_eq!(caller.update("nothing", |_| {}).result, Ok(Response::None));
    assert_eq!(reply(&caller.update("large", |_| {})).len() as u64, 2 * MIB);
    assert!(failure(&caller.update("too_large", |_| {}), 504).contains(&format!("{}", 2 * MIB)));
}

#[test]
fn callbacks_are_called_by_their_index() {
    let mut caller = Caller::new();
    let back = |fun, env, kind| Entry::Callback { fun, env, kind };
    let outcome = caller
        .with(back(0, 11, CallbackKind::Reply), |request| request.context.cycles_refunded = 77);
    let bytes = reply(&outcome);
    assert_eq!(u128::from_le_bytes(bytes[..16].try_into().unwrap()), 77);
    assert_eq!(bytes[16..], [11, 0, 0, 0, 0, 0, 0, 0]);
    let outcome =
        caller.with(back(1, 12, CallbackKind::Reject { code: 4, message: "no".into() }), |_| {});
    assert_eq!(reply(&outcome), 4_u32.to_le_bytes());
    let outcome = caller.with(Entry::Cleanup { fun: 2, env: 13, reject_code: 0 }, |_| {});
    assert_eq!(outcome.changes.unwrap().globals, [sandbox::Global::I32(13)]);
    for fun in [3, 4, u64::from(u32::MAX), u64::MAX] {
        failure(&caller.with(back(fun, 0, CallbackKind::Reply), |_| {}), 513);
    }
}
