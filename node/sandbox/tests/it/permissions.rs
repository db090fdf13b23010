//! Every function of the System API from every kind of entry point: allowed or refused as its row
//! in the table of functions says.

use sandbox::{
    CallbackKind, Entry, Global, Request,
    module::{IC0_FUNCTIONS, Ic0Function},
};
use state::ErrorCode;

use super::{HOST, World};

/// Calls the function with what `argument` makes of places and types, and drops its result.
fn call(
    function: &Ic0Function,
    memory64: bool,
    argument: impl Fn((usize, String)) -> String,
) -> String {
    let (params, results) = function.val_types(memory64);
    let types = params.iter().map(ToString::to_string);
    let arguments: String = types.enumerate().map(argument).collect();
    format!("(call ${} {arguments}) {}", function.name, "(drop)".repeat(results.len()))
}

/// A canister whose every entry point calls the function of `ic0` that its global names, every
/// argument zero.
fn caller(start: bool) -> String {
    let mut imports = String::new();
    let mut cases = String::new();
    for (n, function) in IC0_FUNCTIONS.iter().enumerate() {
        imports += &function.import_text(false);
        let call = call(function, false, |(_, ty)| format!("({ty}.const 0)"));
        cases += &format!("(if (i32.eq (global.get $which) (i32.const {n})) (then {call}))\n");
    }
    let start = if start { "(start $go)" } else { "" };
    format!(
        r#"(module {imports}
            (memory 1)
            (table funcref (elem $callback))
            (global $which (mut i32) (i32.const -1))
            (func $go {cases})
            (func $callback (param i32) (call $go))
            (export "canister_init" (func $go)) (export "canister_pre_upgrade" (func $go)) (export "canister_post_upgrade" (func $go))
            (export "canister_update u" (func $go)) (export "canister_query q" (func $go)) (export "canister_composite_query c" (func $go))
            (export "canister_heartbeat" (func $go)) (export "canister_global_timer" (func $go)) (export "canister_on_low_wasm_memory" (func $go))
            (export "canister_inspect_message" (func $go))
            {start})"#
    )
}

// Promise: P9 - System API functions may be called from exactly the contexts that their rows list.
/// That these are the contexts of the specification, where it has the function, is a conformance
/// test of the node (`imports::functions_have_the_types_and_contexts_of_the_specification`).
#[test]
fn functions_may_be_called_from_where_the_specification_says() {
    let callback = |kind| Entry::Callback { fun: 0, env: 0, kind };
    let reject = || CallbackKind::Reject { code: 4, message: "no".into() };
    let cleanup = || Entry::Cleanup { fun: 0, env: 0, reject_code: 4 };
    let entries: Vec<(&str, Entry, bool)> = vec![
        ("I", Entry::Init, true),
        ("I", Entry::PostUpgrade { keep_heap: false }, true),
        ("G", Entry::PreUpgrade, true),
        ("U", Entry::Update("u".into()), true),
        ("RQ", Entry::Update("q".into()), true),
        ("NRQ", Entry::Query("q".into()), false),
        ("CQ", Entry::CompositeQuery("c".into()), false),
        ("Ry", callback(CallbackKind::Reply), true),
        ("Rt", callback(reject()), true),
        ("CRy", callback(CallbackKind::Reply), false),
        ("CRt", callback(reject()), false),
        ("C", cleanup(), true),
        ("CC", cleanup(), false),
        ("F", Entry::InspectMessage { method_name: "u".into() }, false),
        ("T", Entry::Heartbeat, true),
        ("T", Entry::GlobalTimer, true),
        ("T", Entry::OnLowWasmMemory, true),
    ];
    let world = World::new(HOST);
    let installed = world.empty(&caller(false));
    let starting = world.empty(&caller(true));
    for (n, function) in IC0_FUNCTIONS.iter().enumerate() {
        let letters: Vec<&str> = function.contexts.split(' ').collect();
        let which = |request: &mut Request| request.globals = vec![Global::I32(n as i32)];
        let refused = |outcome: &sandbox::Outcome| match &outcome.result {
            Err(trap) => {
                let refused = trap.reject.message.contains("cannot be called from");
                if refused {
                    assert_eq!(trap.reject.error_code, ErrorCode(504));
                    assert!(trap.reject.message.contains(function.name), "{}", trap.reject.message);
                }
                refused
            }
            Ok(_) => false,
        };
        for (letter, entry, replicated) in &entries {
            let outcome = world.run(&mut installed.clone(), entry.clone(), |request| {
                which(request);
                request.context.replicated = *replicated;
            });
            let allowed = letters.contains(letter) || letters.contains(&"*");
            assert_eq!(
                refused(&outcome),
                !allowed,
                "ic0.{} from {letter}: {:?}",
                function.name,
                outcome.result
            );
        }
        let outcome = world.run(&mut starting.clone(), Entry::Init, which);
        let from_start =
            matches!(&outcome.result, Err(trap) if trap.reject.message.contains("(start)"));
        assert_eq!(
            from_start,
            !letters.contains(&"s"),
            "ic0.{} from (start): {:?}",
            function.name,
            outcome.result
        );
    }
    assert_eq!(world.pool.statistics().restarts, 0);
}

#[test]
fn hostile_arguments_end_the_message_and_nothing_else() {
    let world = World::new(HOST);
    for memory64 in [false, true] {
        let functions: Vec<_> =
            IC0_FUNCTIONS.iter().filter(|function| !(memory64 && function.only32)).collect();
        let mut imports = String::new();
        let mut methods = String::new();
        for function in &functions {
            imports += &function.import_text(memory64);
            let call = call(function, memory64, |(at, ty)| match ty.as_str() {
                "i64" => format!("(global.get $g{at})"),
                _ => format!("(i32.wrap_i64 (global.get $g{at}))"),
            });
            // A call under construction and some stable memory make more of the arguments matter.
            methods += &format!("(func (export \"canister_update {}\") {call})\n", function.name);
        }
        let globals: String =
            (0..8).map(|n| format!("(global $g{n} (mut i64) (i64.const 0))")).collect();
        let memory = if memory64 { "(memory i64 1)" } else { "(memory 1)" };
        let wat = format!("(module {imports} {memory} {globals} {methods})");
        let mut canister = world.empty(&wat);
        canister.heap_wasm_pages = 1;
        canister.stable_wasm_pages = 1;
        let values = [
            0_i64,
            1,
            65_535,
            65_536,
            65_537,
            i64::from(i32::MAX),
            0xffff_ffff,
            0x1_0000_0000,
            i64::MAX,
            i64::MIN,
            -1,
            -16,
        ];
        for function in &functions {
            for round in 0..values.len() * 3 {
                // Any result is fine, as long as there is one: no worker dies.
                world.run(&mut canister.clone(), Entry::Update(function.name.into()), |request| {
                    request.globals = (0..8)
                        .map(|at| {
                            Global::I64(
                                values[(round * (at + 1) + at * (round / values.len()))
                                    % values.len()],
                            )
                        })
                        .collect();
                });
            }
        }
    }
    assert_eq!(world.pool.statistics().restarts, 0);
}
