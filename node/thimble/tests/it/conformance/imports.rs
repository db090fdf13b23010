//! The table "Overview of imports" of the specification (chapter "Canister interface").

use std::{collections::BTreeSet, ops::Range};

use candid::Principal;
use sandbox::module::{IC0_FUNCTIONS, Ic0Function};

use super::program::{Call, Program, program};

/// Name, parameters, result and contexts of each function. Types are `i` and `l` for 32 and 64 bit,
/// and `I` for an address of the memory's own width; `*` stands for [`EVERYWHERE`]. The universal
/// canister numbers its operations in this order, which is that of its `imports.h`.
#[rustfmt::skip]
pub(crate) const TABLE: [(&str, &str, &str, &str); 74] = [
    ("msg_arg_data_size", "", "I", "I U RQ NRQ TQ CQ Ry CRy F"),
    ("msg_arg_data_copy", "III", "", "I U RQ NRQ TQ CQ Ry CRy F"),
    ("msg_caller_size", "", "I", "*"),
    ("msg_caller_copy", "III", "", "*"),
    ("msg_caller_info_data_size", "", "I", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_data_copy", "III", "", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_signer_size", "", "I", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_caller_info_signer_copy", "III", "", "U RQ NRQ CQ Ry Rt CRy CRt C CC F"),
    ("msg_reject_code", "", "i", "Ry Rt CRy CRt C"),
    ("msg_reject_msg_size", "", "I", "Rt CRt"),
    ("msg_reject_msg_copy", "III", "", "Rt CRt"),
    ("msg_deadline", "", "l", "U RQ NRQ CQ Ry Rt CRy CRt"),
    ("msg_reply_data_append", "II", "", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("msg_reply", "", "", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("msg_reject", "II", "", "U RQ NRQ TQ CQ Ry Rt CRy CRt"),
    ("msg_cycles_available128", "I", "", "U RQ Rt Ry"),
    ("msg_cycles_refunded128", "I", "", "Rt Ry"),
    ("msg_cycles_accept128", "llI", "", "U RQ Rt Ry"),
    ("cycles_burn128", "llI", "", "I G U RQ Ry Rt C T"),
    ("canister_self_size", "", "I", "*"),
    ("canister_self_copy", "III", "", "*"),
    ("canister_cycle_balance128", "I", "", "*"),
    ("canister_liquid_cycle_balance128", "I", "", "*"),
    ("canister_status", "", "i", "*"),
    ("canister_version", "", "l", "*"),
    ("subnet_self_size", "", "I", "*"),
    ("subnet_self_copy", "III", "", "*"),
    ("msg_method_name_size", "", "I", "F"),
    ("msg_method_name_copy", "III", "", "F"),
    ("accept_message", "", "", "F"),
    ("call_new", "IIIIIIII", "", "U CQ Ry Rt CRy CRt T"),
    ("call_on_cleanup", "II", "", "U CQ Ry Rt CRy CRt T"),
    ("call_data_append", "II", "", "U CQ Ry Rt CRy CRt T"),
    ("call_with_best_effort_response", "i", "", "U CQ Ry Rt CRy CRt T"),
    ("call_cycles_add128", "ll", "", "U Ry Rt T"),
    ("call_perform", "", "i", "U CQ Ry Rt CRy CRt T"),
    ("stable64_size", "", "l", "* s"),
    ("stable64_grow", "l", "l", "* s"),
    ("stable64_write", "lll", "", "* s"),
    ("stable64_read", "lll", "", "* s"),
    ("root_key_size", "", "I", "I G U RQ Ry Rt C T"),
    ("root_key_copy", "III", "", "I G U RQ Ry Rt C T"),
    ("certified_data_set", "II", "", "I G U Ry Rt T"),
    ("data_certificate_present", "", "i", "*"),
    ("data_certificate_size", "", "I", "NRQ CQ"),
    ("data_certificate_copy", "III", "", "NRQ CQ"),
    ("time", "", "l", "*"),
    ("global_timer_set", "l", "l", "I G U Ry Rt C T"),
    ("performance_counter", "i", "l", "* s"),
    ("is_controller", "II", "i", "* s"),
    ("in_replicated_execution", "", "i", "* s"),
    ("cost_call", "llI", "", "* s"),
    ("cost_create_canister", "I", "", "* s"),
    ("cost_http_request", "llI", "", "* s"),
    ("cost_sign_with_ecdsa", "IIiI", "i", "* s"),
    ("cost_sign_with_schnorr", "IIiI", "i", "* s"),
    ("cost_vetkd_derive_key", "IIiI", "i", "* s"),
    ("env_var_count", "", "I", "*"),
    ("env_var_name_size", "I", "I", "*"),
    ("env_var_name_copy", "IIII", "", "*"),
    ("env_var_name_exists", "II", "i", "*"),
    ("env_var_value_size", "II", "I", "*"),
    ("env_var_value_copy", "IIIII", "", "*"),
    ("debug_print", "II", "", "* s"),
    ("trap", "II", "", "* s"),
    ("msg_cycles_available", "", "l", "U RQ Rt Ry"),
    ("msg_cycles_refunded", "", "l", "Rt Ry"),
    ("msg_cycles_accept", "l", "l", "U RQ Rt Ry"),
    ("canister_cycle_balance", "", "l", "*"),
    ("call_cycles_add", "l", "", "U Ry Rt T"),
    ("stable_size", "", "i", "* s"),
    ("stable_grow", "i", "i", "* s"),
    ("stable_write", "iii", "", "* s"),
    ("stable_read", "iii", "", "* s"),
];

/// The functions of the table that exist for 32-bit memory alone. Newer functions come after them,
/// so that the universal canister's numbers stay.
pub(crate) const NARROW: Range<usize> = 65..74;

const EVERYWHERE: &str = "I G U RQ NRQ TQ CQ Ry Rt CRy CRt C CC F T";

pub(crate) fn number(name: &str) -> u8 {
    let found = TABLE.iter().position(|row| row.0 == name);
    u8::try_from(found.unwrap_or_else(|| panic!("no import is called {name}"))).unwrap()
}

/// Whether the function may be called in `context`.
pub(crate) fn permitted(name: &str, context: &str) -> bool {
    let (.., contexts) = TABLE[usize::from(number(name))];
    contexts
        .split(' ')
        .any(|one| one == context || (one == "*" && EVERYWHERE.split(' ').any(|c| c == context)))
}

// Promise: P9 - Types and contexts of System API functions are those of the specification.
#[test]
fn functions_have_the_types_and_contexts_of_the_specification() {
    let function = |name| Ic0Function::find(name).unwrap_or_else(|| panic!("no ic0.{name}"));
    let words = |letters: &str| -> Vec<&str> {
        let word = |letter| match letter {
            'i' => "i32",
            'l' => "i64",
            _ => "I",
        };
        letters.chars().map(word).collect()
    };
    for (at, (name, parameters, result, contexts)) in TABLE.into_iter().enumerate() {
        let function = function(name);
        assert_eq!(function.params, words(parameters), "{name}");
        assert_eq!(function.results, words(result), "{name}");
        assert_eq!(function.only32, NARROW.contains(&at), "{name}");
        // Transforms of outcalls (`TQ`) run as other query methods.
        let contexts: BTreeSet<&str> = contexts.split(' ').filter(|one| *one != "TQ").collect();
        assert_eq!(function.contexts.split(' ').collect::<BTreeSet<_>>(), contexts, "{name}");
    }
    // Those that the specification does not have, with their contexts.
    let others = [("mint_cycles", "*"), ("mint_cycles128", "*"), ("subnet_self_node_count", "*")];
    for (name, contexts) in others {
        assert_eq!(function(name).contexts, contexts, "{name}");
    }
    let named = TABLE.len() + others.len();
    assert_eq!(IC0_FUNCTIONS.len(), named, "`TABLE` or `others` lacks a function");
}

/// An address that the universal canister uses for nothing.
const SPARE: u64 = 64;

/// An arbitrary call.
fn some_call() -> Call {
    Call::to(Principal::management_canister(), "raw_rand")
}

/// The least use of the function: traps only if it may not be called at all, and leaves nothing on
/// the stack. The canister must have an environment variable `probe`. (`trap` is not among them.)
pub(crate) fn probe(name: &str) -> Program {
    let probe = match name {
        "call_new" => program().begin(&some_call()),
        "call_on_cleanup" => {
            program().begin(&some_call()).callback(program()).import("call_on_cleanup")
        }
        "call_data_append" => program().begin(&some_call()).import_of(name, &[SPARE, 1]),
        "call_with_best_effort_response" => program().begin(&some_call()).import_of(name, &[10]),
        "call_cycles_add128" => program().begin(&some_call()).import_of(name, &[0, 0]),
        "call_cycles_add" => program().begin(&some_call()).import_of(name, &[0]),
        "call_perform" => program().begin(&some_call()).import(name),
        "is_controller" => program().import_of(name, &[SPARE, 1]),
        "env_var_name_exists" | "env_var_value_size" => {
            program().bytes(b"probe").split().import(name)
        }
        "env_var_value_copy" => program().bytes(b"probe").split().import_of(name, &[SPARE, 0, 1]),
        "cost_sign_with_ecdsa" | "cost_sign_with_schnorr" | "cost_vetkd_derive_key" => {
            program().bytes(b"key_1").split().import_of(name, &[0, SPARE])
        }
        "stable64_read" | "stable64_write" | "stable_read" | "stable_write" => {
            program().import_of(name, &[0, 0, 0])
        }
        "cost_call" | "cost_http_request" | "msg_cycles_accept128" | "cycles_burn128" => {
            program().import_of(name, &[0, 0, SPARE])
        }
        "cost_create_canister" => program().import_of(name, &[SPARE]),
        _ if name.ends_with("128") => program().import_of(name, &[SPARE]),
        _ => {
            let (_, parameters, ..) = TABLE[usize::from(number(name))];
            program().import_of(name, &vec![0; parameters.len()])
        }
    };
    let (_, _, result, _) = TABLE[usize::from(number(name))];
    if result.is_empty() { probe } else { probe.drop_top() }
}
