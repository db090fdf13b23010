//! First touches of pages, in an untouched memory and in one that was touched before.

use sandbox::MESSAGE_OVERHEAD_INSTRUCTIONS;

use crate::{Case, module};

const STABLE: &str = r#"
    (import "ic0" "stable64_grow" (func $grow (param i64) (result i64)))
    (import "ic0" "stable64_read" (func $sread (param i64 i64 i64)))
    (import "ic0" "stable64_write" (func $swrite (param i64 i64 i64)))
    (memory 16)
    (func (export "canister_init") (drop (call $grow (i64.const 4096))))"#;

/// Loops that traverse a memory in steps of a given number of bytes.
fn strides() -> Vec<(String, String, u32)> {
    let mut all = Vec::new();
    for (bytes, times) in [(4096_u32, 8_000_u32), (65_536, 1_900), (1_048_576, 200)] {
        let next = format!("(local.set $at (i32.add (local.get $at) (i32.const {bytes})))");
        all.push((format!("every {} KiB", bytes >> 10), next, times));
    }
    // Each Wasm page once, far from the one before.
    let next = "(local.set $at (i32.and (i32.add (local.get $at) (i32.const 0x3d70000)) \
        (i32.const 0x7ffffff)))";
    all.push(("Wasm pages out of order".into(), next.into(), 1_900));
    all
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let locals = "(local $at i32)";
    for (name, next, times_max) in strides() {
        let at64 = "(i64.extend_i32_u (local.get $at))";
        let stable = |call: &str| {
            let body = format!("{next} (call {call} {at64} (i64.const 8) (i64.const 1))");
            let body = if call == "$sread" {
                format!("{next} (call $sread (i64.const 8) {at64} (i64.const 1))")
            } else {
                body
            };
            module(STABLE, locals, "", &body, "")
        };
        let heap =
            |access: &str| module("(memory 4096)", locals, "", &format!("{next} {access}"), "");
        let read = heap("(drop (i32.load (local.get $at)))");
        let write = heap("(i32.store (local.get $at) (i32.const 1))");
        for (what, module) in [
            ("heap read", read),
            ("heap written", write),
            ("stable memory read", stable("$sread")),
            ("stable memory written", stable("$swrite")),
        ] {
            for is_fresh in [false, true] {
                let age = if is_fresh { "new" } else { "known" };
                let name = format!("{what}, {name}, {age}");
                let case = Case::new("first touches", name, module.clone());
                cases.push(Case { times_max, is_fresh, ..case });
            }
        }
    }
    // The beginning of a heap is readable without being opened: the overhead of the message pays
    // for the faults of the kernel there.
    let next = "(local.set $at (i32.add (local.get $at) (i32.const 4096)))";
    let body = format!("{next} (drop (i32.load (local.get $at)))");
    let module = module("(memory 4096)", locals, "", &body, "");
    for is_fresh in [false, true] {
        let age = if is_fresh { "new" } else { "known" };
        let name = format!("a message that reads 4 MiB every 4 KiB, {age}");
        let case = Case::new("first touches", name, module.clone());
        let overhead = MESSAGE_OVERHEAD_INSTRUCTIONS;
        cases.push(Case { times_max: 1_000, is_fresh, overhead, ..case });
    }
    cases
}
