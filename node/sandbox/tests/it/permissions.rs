//! Every function of the System API from every kind of entry point: allowed or refused as the
//! specification's table says.

use std::collections::BTreeMap;

use sandbox::{
    CallbackKind, Entry, Global, Request,
    module::{IC0_FUNCTIONS, Ic0Type},
};
use state::ErrorCode;

use super::{HOST, World};

/// The table of the specification ("Overview of imports"); `Q` is every kind of query method but
/// composite ones, `*` everywhere but in `(start)`.
const PERMITTED: &[(&str, &str)] = &[
    ("accept_message", "F"),
    ("call_cycles_add", "U Ry Rt T"),
    ("call_cycles_add128", "U Ry Rt T"),
    ("call_data_append", "U CQ Ry Rt CRy CRt T"),
    ("call_new", "U CQ Ry Rt CRy CRt T"),
    ("call_on_cleanup", "U CQ Ry Rt CRy CRt T"),
    ("call_perform", "U CQ Ry Rt CRy CRt T"),
    ("call_with_best_effort_response", "U CQ Ry Rt CRy CRt T"),
    ("canister_cycle_balance", "*"),
    ("canister_cycle_balance128", "*"),
    ("canister_liquid_cycle_balance128", "*"),
    ("canister_self_copy", "*"),
    ("canister_self_size", "*"),
    ("canister_status", "*"),
    ("canister_version", "*"),
    ("certified_data_set", "I G U Ry Rt T"),
    ("cost_call", "* s"),
    ("cost_create_canister", "* s"),
    ("cost_http_request", "* s"),
    ("cost_sign_with_ecdsa", "* s"),
    ("cost_sign_with_schnorr", "* s"),
    ("cost_vetkd_derive_key", "* s"),
    ("cycles_burn128", "I G U RQ Ry Rt C T"),
    ("data_certificate_copy", "NRQ CQ"),
    ("data_certificate_present", "*"),
    ("data_certificate_size", "NRQ CQ"),
    ("debug_print", "* s"),
    ("env_var_count", "*"),
    ("env_var_name_copy", "*"),
    ("env_var_name_exists", "*"),
    ("env_var_name_size", "*"),
    ("env_var_value_copy", "*"),
    ("env_var_value_size", "*"),
    ("global_timer_set", "I G U Ry Rt C T"),
    ("in_replicated_execution", "* s"),
    ("is_controller", "* s"),
    // Not in the table.
    ("mint_cycles", "*"),
    ("mint_cycles128", "*"),
    ("msg_arg_data_copy", "I U RQ NRQ TQ CQ Ry CRy F"),
    ("msg_arg_data_size", "I U RQ NRQ TQ CQ Ry CRy F"),
    ("msg_caller_copy", "*"),
    ("msg_caller_info_data_copy", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_data_size", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_signer_copy", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_signer_size", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_size", "*"),
    ("msg_cycles_accept", "U RQ Rt Ry"),
    ("msg_cycles_accept128", "U RQ Rt Ry"),
    ("msg_cycles_available", "U RQ Rt Ry"),
    ("msg_cycles_available128", "U RQ Rt Ry"),
    ("msg_cycles_refunded", "Rt Ry"),
    ("msg_cycles_refunded128", "Rt Ry"),
    ("msg_deadline", "U Q CQ Ry Rt CRy CRt"),
    ("msg_method_name_copy", "F"),
    ("msg_method_name_size", "F"),
    ("msg_reject", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("msg_reject_code", "Ry Rt CRy CRt C"),
    ("msg_reject_msg_copy", "Rt CRt"),
    ("msg_reject_msg_size", "Rt CRt"),
    ("msg_reply", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("msg_reply_data_append", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("performance_counter", "* s"),
    ("root_key_copy", "I G U RQ Ry Rt C T"),
    ("root_key_size", "I G U RQ Ry Rt C T"),
    ("stable64_grow", "* s"),
    ("stable64_read", "* s"),
    ("stable64_size", "* s"),
    ("stable64_write", "* s"),
    ("stable_grow", "* s"),
    ("stable_read", "* s"),
    ("stable_size", "* s"),
    ("stable_write", "* s"),
    ("subnet_self_copy", "*"),
    // Not in the table.
    ("subnet_self_node_count", "*"),
    ("subnet_self_size", "*"),
    ("time", "*"),
    ("trap", "* s"),
];

/// A canister whose every entry point calls the function of `ic0` that its global names, every
/// argument zero.
fn caller(start: bool) -> String {
    let mut imports = String::new();
    let mut cases = String::new();
    for (n, function) in IC0_FUNCTIONS.iter().enumerate() {
        let kind = |word: &Ic0Type| match word {
            Ic0Type::I | Ic0Type::I32 => "i32",
            Ic0Type::I64 => "i64",
        };
        let params: String =
            function.params.iter().map(|word| format!(" {}", kind(word))).collect();
        let result = function
            .result
            .as_ref()
            .map(|word| format!("(result {})", kind(word)))
            .unwrap_or_default();
        imports += &format!(
            "(import \"ic0\" \"{}\" (func $f{n} (param{params}) {result}))\n",
            function.name
        );
        let arguments: String =
            function.params.iter().map(|word| format!("({}.const 0)", kind(word))).collect();
        let call = format!("(call $f{n} {arguments})");
        let call = if function.result.is_some() { format!("(drop {call})") } else { call };
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

// Promise: P9 - System API functions may be called from exactly the contexts that the specification
//   lists.
#[test]
fn functions_may_be_called_from_where_the_specification_says() {
    assert_eq!(PERMITTED.len(), IC0_FUNCTIONS.len());
    let permitted: BTreeMap<&str, Vec<&str>> =
        PERMITTED.iter().map(|(name, letters)| (*name, letters.split(' ').collect())).collect();
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
        let letters = &permitted[function.name];
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
            let allowed = letters.contains(letter)
                || letters.contains(&"*")
                || (letters.contains(&"Q") && ["RQ", "NRQ"].contains(letter));
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
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn hostile_arguments_end_the_message_and_nothing_else() {
    let world = World::new(HOST);
    for memory64 in [false, true] {
        let word = |word: &Ic0Type| match (word, memory64) {
            (Ic0Type::I, true) | (Ic0Type::I64, _) => "i64",
            _ => "i32",
        };
        let functions: Vec<_> =
            IC0_FUNCTIONS.iter().filter(|function| !(memory64 && function.only32)).collect();
        let mut imports = String::new();
        let mut methods = String::new();
        for (n, function) in functions.iter().enumerate() {
            let params: String =
                function.params.iter().map(|param| format!(" {}", word(param))).collect();
            let result = function
                .result
                .as_ref()
                .map(|result| format!("(result {})", word(result)))
                .unwrap_or_default();
            imports += &format!(
                "(import \"ic0\" \"{}\" (func $f{n} (param{params}) {result}))\n",
                function.name
            );
            let arguments: String = function
                .params
                .iter()
                .enumerate()
                .map(|(at, param)| match word(param) {
                    "i64" => format!("(global.get $g{at})"),
                    _ => format!("(i32.wrap_i64 (global.get $g{at}))"),
                })
                .collect();
            let call = format!("(call $f{n} {arguments})");
            let call = if function.result.is_some() { format!("(drop {call})") } else { call };
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
