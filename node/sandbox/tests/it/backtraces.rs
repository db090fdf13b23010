//! Backtraces of traps: which functions, in which order, under which names.

use sandbox::{BACKTRACE_BYTES_MAX, Entry, Grant, Lane, Sandbox as _, Slice, SlicedName, Trap};
use state::{ErrorCode, Height};

use super::{Canister, HOST, MIB, World};

/// A frame for each way into a function, and traps of every kind.
const TRAPS: &str = r#"(module
    (import "ic0" "trap" (func $ic0_trap (param i32 i32)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 1)
    (data (i32.const 0) "text")
    (table funcref (elem $indirect))
    (func $inner unreachable)
    (func $indirect (call $inner))
    (func $outer (call_indirect (i32.const 0)))
    (func (@name "canister_update unreachable") (export "canister_update unreachable")
        (call $outer))
    (func $tail (return_call $inner))
    (func $before_tail (call $tail))
    (func (export "canister_update tail") (call $before_tail))
    (func $small (param i32) (result i32) (i32.div_u (i32.const 1) (local.get 0)))
    (func $inlinable (param i32) (result i32) (call $small (local.get 0)))
    (func $divide (drop (call $inlinable (i32.const 0))))
    (func (export "canister_update divide") (call $divide))
    (func $fill (memory.fill (i32.const 65530) (i32.const 0) (i32.const 100)))
    (func (export "canister_update fill") (call $fill))
    (func $load (drop (i32.load (i32.const 70000))))
    (func (export "canister_update load") (call $load))
    (func $call_trap (call $ic0_trap (i32.const 0) (i32.const 4)))
    (func (export "canister_update trap") (call $call_trap))
    (func $call_empty (call $ic0_trap (i32.const 0) (i32.const 0)))
    (func (export "canister_update empty") (call $call_empty))
    (func $stable (call $swrite (i64.const 0) (i64.const 0) (i64.const 1)))
    (func (export "canister_update stable") (call $stable))
    (func $down (param i64) (call $down (i64.add (local.get 0) (i64.const 1))))
    (func (export "canister_update overflow") (call $down (i64.const 0)))
    (func $bare (call $bare))
    (func (export "canister_update bare") (call $bare))
    (func $deep (param i32)
        (if (i32.eqz (local.get 0)) (then (unreachable)))
        (call $deep (i32.sub (local.get 0) (i32.const 1))))
    (func (export "canister_update deep") (call $deep (i32.const 1000)))
    (func $loops (loop (br 0)))
    (func (export "canister_update loops") (call $loops))
    (func $breaks_contract (call $ic0_trap (i32.const 65530) (i32.const 1000)))
    (func (export "canister_update contract") (call $breaks_contract)))"#;

/// The trap of an update, and the last line of its log.
fn trap(world: &World, canister: &mut Canister, method: &str) -> (Trap, String) {
    let outcome = world.run(canister, Entry::Update(method.into()), |request| {
        request.limits.instructions = 10_000_000;
    });
    let log = outcome.log.last().map(|line| String::from_utf8_lossy(line).into_owned());
    (outcome.result.unwrap_err(), log.unwrap_or_default())
}

fn frames(trap: &Trap) -> Vec<&str> {
    let mut lines = trap.backtrace.lines();
    assert_eq!(lines.next(), Some("Canister Backtrace:"), "{trap:?}");
    assert!(trap.backtrace.ends_with('\n'));
    lines.collect()
}

// Promise: P9 - A trap has a backtrace, innermost function first.
#[test]
fn a_trap_names_the_functions_being_called_innermost_first() {
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    let unnamed = "unknown function at index ";
    for (method, text, expected) in [
        (
            "unreachable",
            "unreachable",
            &["inner", "indirect", "outer", "canister_update unreachable"][..],
        ),
        // The function that made the tail call has returned.
        ("tail", "unreachable", &["inner", "before_tail", unnamed]),
        ("divide", "integer division by 0", &["small", "inlinable", "divide", unnamed]),
        // The function that replaces the instruction is not the canister's.
        ("fill", "heap out of bounds", &["fill", unnamed]),
        ("load", "heap out of bounds", &["load", unnamed]),
        ("stable", "stable memory out of bounds", &["stable", unnamed]),
    ] {
        let (trap, log) = trap(&world, &mut canister, method);
        let shown = frames(&trap);
        assert_eq!(shown.len(), expected.len(), "{method}: {shown:?}");
        for (shown, expected) in shown.iter().zip(expected) {
            assert!(shown.starts_with(expected), "{method}: {shown} is not {expected}");
        }
        assert_eq!(trap.reject.error_code, ErrorCode(502), "{method}");
        let front = format!("Canister trapped: {text}");
        assert!(trap.reject.message.starts_with(&front), "{method}: {}", trap.reject.message);
        assert!(log.starts_with(&format!("[TRAP]: {text}")), "{method}: {log}");
        assert!(log.ends_with(&format!("\n{}", trap.backtrace)), "{method}: {log}");
    }
    assert_eq!(world.pool.statistics().restarts, 0);
}

#[test]
fn a_function_without_a_name_is_shown_by_its_index_in_the_uploaded_module() {
    let world = World::new(HOST);
    let mut canister = world.install(
        r#"(module
            (import "ic0" "trap" (func $ic0_trap (param i32 i32)))
            (memory 1)
            (func $inner unreachable)
            (func (export "canister_update go") (call $inner)))"#,
    );
    let (trap, _) = trap(&world, &mut canister, "go");
    assert_eq!(frames(&trap), ["inner", "unknown function at index 2"]);
}

#[test]
fn a_call_of_ic0_trap_has_a_backtrace_and_an_empty_text_is_logged_as_no_message() {
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    let (with_text, log) = trap(&world, &mut canister, "trap");
    assert_eq!(with_text.reject.error_code, ErrorCode(503));
    assert_eq!(with_text.reject.message, "Canister called `ic0.trap` with message: 'text'");
    assert_eq!(frames(&with_text)[0], "call_trap");
    assert_eq!(log, format!("[TRAP]: text\n{}", with_text.backtrace));
    let (empty, log) = trap(&world, &mut canister, "empty");
    assert_eq!(empty.reject.message, "Canister called `ic0.trap` with message: ''");
    assert_eq!(log, format!("[TRAP]: (no message)\n{}", empty.backtrace));
}

#[test]
fn only_traps_have_a_backtrace() {
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    for (method, code) in [("loops", 522), ("contract", 504)] {
        let (trap, _) = trap(&world, &mut canister, method);
        assert_eq!((trap.reject.error_code, trap.backtrace.as_str()), (ErrorCode(code), ""));
    }
    let unnamed = "(module (func (export \"canister_update go\") (unreachable)))";
    let mut canister = world.install(unnamed);
    let (trap, log) = trap(&world, &mut canister, "go");
    assert_eq!((trap.backtrace.as_str(), log.as_str()), ("", "[TRAP]: unreachable"));
}

// Promise: P9 - A backtrace has at most 20 frames of bounded names.
#[test]
fn a_backtrace_has_at_most_20_frames_of_bounded_names() {
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    for method in ["overflow", "deep"] {
        let (trap, log) = trap(&world, &mut canister, method);
        let shown = frames(&trap);
        assert_eq!(shown, [if method == "deep" { "deep" } else { "down" }; 20], "{method}");
        assert!(log.len() <= 4096 && trap.backtrace.len() <= BACKTRACE_BYTES_MAX);
    }
    let name = "n".repeat(1_000);
    let text = format!(
        "(module (func $f (@name \"{name}\") (param i32) (if (i32.eqz (local.get 0)) (then \
         unreachable)) (call $f (i32.sub (local.get 0) (i32.const 1)))) (func (export \
         \"canister_update go\") (call $f (i32.const 100))))"
    );
    let mut canister = world.install(&text);
    let (trap, log) = trap(&world, &mut canister, "go");
    assert_eq!(frames(&trap), ["n".repeat(128).as_str(); 20]);
    assert!(log.ends_with(&trap.backtrace));
}

// Promise: P9 - A message in slices has the same backtrace as in one piece.
#[test]
fn a_message_in_slices_has_the_same_backtrace() {
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    for method in ["unreachable", "trap", "overflow", "fill"] {
        let (whole, log) = trap(&world, &mut canister, method);
        let mut outcome = None;
        for number in 1..=1_000 {
            let mut request = world.request(&canister, Entry::Update(method.into()));
            request.limits.instructions = 10_000_000;
            let canister_id = request.context.canister_id;
            let name = SlicedName { since: Height(1), canister_id, part: 0 };
            let grant = Grant::new(name, number * 10_000, 10_000);
            if let Slice::Ended(ended) =
                world.pool.run_slice(Lane::Update(0), &request, &grant).unwrap()
            {
                outcome = Some(ended);
                break;
            }
        }
        let outcome = outcome.expect("the message ends");
        assert_eq!(outcome.result.unwrap_err(), whole, "{method}");
        assert_eq!(outcome.log.last().unwrap().as_slice(), log.as_bytes(), "{method}");
    }
}

/// The most memory a process ever had in use.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn the_frames_of_a_full_stack_take_little_memory_beside_the_stack() {
    const STACK_BYTES: u64 = 4 * MIB;
    // Twice what the list of frames takes while it grows.
    const FRAMES_BYTES: u64 = 6 * MIB;
    let world = World::new(HOST);
    let mut canister = world.install(TRAPS);
    trap(&world, &mut canister, "unreachable");
    let pid = world.pool.pids()[0];
    let before = peak_bytes(pid);
    let (trap, _) = trap(&world, &mut canister, "bare");
    assert_eq!(frames(&trap), ["bare"; 20]);
    let taken = peak_bytes(pid) - before;
    println!("{} KiB for the smallest frames", taken >> 10);
    assert!(taken <= STACK_BYTES + FRAMES_BYTES, "{taken}");
}
