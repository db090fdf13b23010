//! Charges of a message in addition to its instructions: values that move, pages it touches.

use sandbox::{Entry, Outcome};

use super::{Canister, HOST, World};

/// Instructions for the first access to a Wasm page of the heap, beyond the first 64.
const TOUCHED: u64 = 50_000;
/// Instructions for the first write to a page of either memory.
const WRITTEN: u64 = 12_000;
/// Instructions for the first access to a page of stable memory.
const STABLE: u64 = 9_000;

/// Methods that touch as many pages as their argument has bytes.
const TOUCHES: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
    (import "ic0" "msg_arg_data_size" (func $size (result i32)))
    (import "ic0" "performance_counter" (func $counter (param i32) (result i64)))
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 192)
    (func (export "canister_init") (drop (call $grow (i64.const 16))))
    (func $read (export "canister_query read") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (drop (i32.load offset=0x400000 (i32.mul (local.get $n) (i32.const 0x10000))))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    (func (export "canister_query twice") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (drop (i32.load offset=0x400000 (i32.mul (local.get $n) (i32.const 0x10000))))
            (drop (i32.load offset=0x401000 (i32.mul (local.get $n) (i32.const 0x10000))))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    (func (export "canister_query copy")
        (memory.copy
            (i32.const 0x400000) (i32.const 0x600000) (i32.mul (call $size) (i32.const 0x10000)))
        (call $reply))
    (func (export "canister_query append")
        (call $append (i32.const 0x410000) (i32.mul (call $size) (i32.const 0x10000)))
        (call $reply))
    (func (export "canister_query write") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (i32.store offset=0x410000 (i32.mul (local.get $n) (i32.const 0x1000)) (i32.const 7))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    ;; The first pages of the heap.
    (func (export "canister_query near") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (drop (i32.load (i32.mul (local.get $n) (i32.const 0x10000))))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    (func (export "canister_query near_write") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (i32.store (i32.mul (local.get $n) (i32.const 0x1000)) (i32.const 7))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    ;; Reads or writes far pages, then traps.
    (func (export "canister_query read_and_trap")
        (call $read)
        (unreachable))
    (func (export "canister_query stable_read") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (call $sread (i64.const 0)
                (i64.mul (i64.extend_i32_u (local.get $n)) (i64.const 4096)) (i64.const 1))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    (func (export "canister_query stable_write") (local $n i32)
        (local.set $n (call $size))
        (loop $next
            (call $swrite
                (i64.mul (i64.extend_i32_u (local.get $n)) (i64.const 4096)) (i64.const 0) (i64.const 1))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (call $reply))
    ;; What the counter says before and after a page is touched.
    (func (export "canister_query counter") (local $before i64)
        (local.set $before (call $counter (i32.const 0)))
        (drop (i32.load (i32.const 0x420000)))
        (i64.store (i32.const 0) (i64.sub (call $counter (i32.const 0)) (local.get $before)))
        (call $append (i32.const 0) (i32.const 8))
        (call $reply)))"#;

fn counted(outcome: &Outcome) -> u64 {
    assert!(outcome.result.is_ok(), "{outcome:?}");
    outcome.instructions
}

/// What 10 more pages cost, in units of `price`.
fn ten_more(world: &World, canister: &Canister, method: &str, price: u64) -> u64 {
    let few = counted(&world.query(canister, method, &[0; 2]));
    let many = counted(&world.query(canister, method, &[0; 12]));
    (many - few) / price
}

// Promise: P14 - Each page of a message is charged at its first access.
#[test]
fn each_page_of_a_message_is_charged_when_it_is_first_touched() {
    let world = World::new(HOST);
    let canister = world.install(TOUCHES);
    assert_eq!(ten_more(&world, &canister, "read", TOUCHED), 10);
    assert_eq!(ten_more(&world, &canister, "twice", TOUCHED), 10, "once for each");
    assert_eq!(ten_more(&world, &canister, "write", WRITTEN), 10);
    assert_eq!(ten_more(&world, &canister, "near_write", WRITTEN), 10);
    assert_eq!(ten_more(&world, &canister, "near", 1_000), 0, "the first pages are readable");
    assert_eq!(ten_more(&world, &canister, "stable_read", STABLE), 10);
    assert_eq!(ten_more(&world, &canister, "stable_write", STABLE + WRITTEN), 10);
    // What the runtime and the system read counts as well: what is read and written, and each byte.
    let bytes = 65_536;
    let copied = ten_more(&world, &canister, "copy", 2 * TOUCHED + 16 * WRITTEN + bytes);
    assert_eq!(copied, 10);
    assert_eq!(ten_more(&world, &canister, "append", TOUCHED + bytes), 10);
}

// Promise: P14 - Pages are charged equally in every message and worker.
#[test]
fn pages_count_the_same_in_each_message_whatever_worker_runs_it() {
    let world = World::with(HOST, |config| config.query_workers = 2);
    let canister = world.install(TOUCHES);
    let first = counted(&world.query(&canister, "read", &[0; 20]));
    assert_eq!(counted(&world.query(&canister, "read", &[0; 20])), first);
    let other = world.install(TOUCHES);
    assert_eq!(counted(&world.query(&other, "read", &[0; 20])), first);
    assert_eq!(counted(&world.query(&canister, "read", &[0; 20])), first);
}

/// Reads isolated Wasm pages, of those beyond the first 64 as many as the worker remembers one by
/// one but for two, and copies four pages from elsewhere if the argument has a byte.
const SCATTERED: &str = r#"(module
    (import "ic0" "msg_reply" (func $reply))
    (import "ic0" "msg_arg_data_size" (func $size (result i32)))
    (memory 1200)
    (func (export "canister_query copy") (local $n i32)
        (local.set $n (i32.const 541))
        (loop $next
            (local.set $n (i32.sub (local.get $n) (i32.const 1)))
            (drop (i32.load (i32.mul (local.get $n) (i32.const 0x20000))))
            (br_if $next (local.get $n)))
        (drop (i32.load (i32.const 0x4800000)))
        (drop (i32.load (i32.const 0x4810000)))
        (drop (i32.load (i32.const 0x4820000)))
        (drop (i32.load (i32.const 0x4830000)))
        (if (call $size) (then
            (memory.copy (i32.const 0x4800000) (i32.const 0x4600000) (i32.const 0x40000))))
        (call $reply)))"#;

#[test]
fn pages_of_a_copy_count_in_ascending_order_whatever_the_processor_reads_first() {
    let world = World::new(HOST);
    let canister = world.install(SCATTERED);
    let without = counted(&world.query(&canister, "copy", &[]));
    let with = counted(&world.query(&canister, "copy", &[0]));
    let bytes = 0x40000;
    let expected = 4 * TOUCHED + 64 * WRITTEN + bytes;
    assert!((expected..expected + TOUCHED).contains(&(with - without)), "{}", with - without);
}

#[test]
fn code_ends_at_the_page_that_costs_more_than_its_limit() {
    let world = World::new(HOST);
    let canister = world.install(TOUCHES);
    let run = |instructions| {
        let entry = Entry::Query("read_and_trap".into());
        let outcome = world.run(&mut canister.clone(), entry, |request| {
            request.context.arg = vec![0; 100];
            request.limits.instructions = instructions;
        });
        outcome.result.unwrap_err().reject.message
    };
    let enough = run(102 * TOUCHED);
    assert!(enough.contains("unreachable"), "{enough}");
    let short = run(98 * TOUCHED);
    assert!(short.contains("instructions"), "{short}");
}

#[test]
fn the_performance_counter_shows_pages() {
    let world = World::new(HOST);
    let canister = world.install(TOUCHES);
    let outcome = world.query(&canister, "counter", &[]);
    let sandbox::Response::Reply(reply) = outcome.result.unwrap() else { panic!("no reply") };
    let between = u64::from_le_bytes(reply[..8].try_into().unwrap());
    assert!((TOUCHED..TOUCHED + 1_000).contains(&between), "{between}");
}

/// A chain of functions that return the results of the previous one.
fn chain(functions: usize, results: usize) -> String {
    let all = "i64 ".repeat(results);
    let mut module = format!(
        "(module (import \"ic0\" \"msg_reply\" (func $reply)) (type $t (func (result {all}))) \
         (func $f{functions} (type $t) {})",
        "i64.const 1 ".repeat(results)
    );
    for n in 0..functions {
        module += &format!("(func $f{n} (type $t) (call $f{}))", n + 1);
    }
    let drops = "drop ".repeat(results);
    module + &format!("(func (export \"canister_query run\") (call $f0) {drops} (call $reply)))")
}

#[test]
fn results_of_calls_are_charged_where_they_are_handed_on() {
    let world = World::new(HOST);
    let run = |results| counted(&world.query(&world.install(&chain(100, results)), "run", b""));
    let (few, many) = (run(8), run(508));
    // The last function pushes them, once.
    assert!(many - few - 500 >= 100 * 500 * 4, "{few} {many}");
    assert!(few < 10_000, "what travels in registers costs nothing: {few}");
}

/// A loop over locals that an `if` may set.
fn looping(locals: usize) -> String {
    let names: Vec<_> = (0..locals).map(|n| format!("$l{n}")).collect();
    let declared: String = names.iter().map(|name| format!("(local {name} i64)")).collect();
    let set: String =
        names.iter().map(|name| format!("(local.set {name} (i64.const 1))")).collect();
    let used: String =
        names.iter().map(|name| format!("(global.set $g (local.get {name}))")).collect();
    format!(
        "(module (import \"ic0\" \"msg_reply\" (func $reply)) (global $g (mut i64) (i64.const 0))
         (global $never (mut i32) (i32.const 0))
         (func (export \"canister_query run\") (local $n i32) {declared}
            (local.set $n (i32.const 1000))
            (loop $next
                (if (global.get $never) (then {set}))
                (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            {used} (call $reply)))"
    )
}

#[test]
fn locals_that_are_alive_in_a_loop_are_charged_in_each_turn() {
    let world = World::new(HOST);
    let run = |locals| counted(&world.query(&world.install(&looping(locals)), "run", b""));
    let (few, many) = (run(10), run(1_010));
    assert!(many - few >= 1_000 * 1_900, "{few} {many}");
    assert!(few < 20_000, "what fits registers costs nothing: {few}");
}
