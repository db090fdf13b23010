//! Every function of the System API.

use sandbox::module::{IC0_FUNCTIONS, Ic0Function};

use crate::{Case, EntryKind, module};

/// Functions that end a message or that it can call once: a message has no loop of them.
const ONCE: [&str; 8] = [
    "accept_message",
    "call_on_cleanup",
    "call_with_best_effort_response",
    "mint_cycles",
    "mint_cycles128",
    "msg_reject",
    "msg_reply",
    "trap",
];

/// Where the text is that functions are given.
const TEXTS: &str = r#"(memory 64)
    (data (i32.const 64) "COLOUR") (data (i32.const 128) "key_1")
    (data (i32.const 192) "\00\00\00\00\00\00\00\07\01\01")"#;

/// Arguments by function; most take an address and a size.
fn arguments(function: &str) -> &'static [i64] {
    match function {
        "call_new" => &[192, 10, 64, 6, 0, 0, 0, 0],
        "call_data_append" | "msg_reply_data_append" => &[0, 0],
        "call_cycles_add" => &[1],
        "call_cycles_add128" => &[0, 1],
        "msg_cycles_accept" => &[1],
        "msg_cycles_accept128" | "cycles_burn128" => &[0, 1, 4096],
        "certified_data_set" => &[0, 32],
        "is_controller" => &[192, 10],
        "debug_print" => &[0, 10],
        "performance_counter" => &[1],
        "global_timer_set" => &[1],
        "stable_grow" | "stable64_grow" => &[0],
        "stable_read" | "stable64_read" => &[4096, 0, 1],
        "stable_write" | "stable64_write" => &[0, 4096, 1],
        "cost_call" | "cost_http_request" => &[10, 10, 4096],
        "cost_sign_with_ecdsa" | "cost_sign_with_schnorr" | "cost_vetkd_derive_key" => {
            &[128, 5, 0, 4096]
        }
        "env_var_name_size" => &[1],
        "env_var_name_copy" => &[1, 4096, 0, 4],
        "env_var_name_exists" | "env_var_value_size" => &[64, 6],
        "env_var_value_copy" => &[64, 6, 4096, 0, 5],
        name if name.ends_with("_copy") => &[4096, 0, 1],
        name if name.ends_with("128") || name == "cost_create_canister" => &[4096],
        _ => &[],
    }
}

/// An entry point that may call it.
fn entry_kind(function: &Ic0Function) -> EntryKind {
    let may = |letter| function.contexts.split(' ').any(|one| one == letter || one == "*");
    if may("U") {
        EntryKind::Update
    } else if may("Rt") {
        EntryKind::Reject
    } else if may("NRQ") {
        EntryKind::Query
    } else {
        EntryKind::Inspect
    }
}

/// A case of calls in a row, with these arguments and zeros.
fn case(function: &Ic0Function, name: &str, arguments: &[i64]) -> Case {
    let new = "(call $call_new (i32.const 192) (i32.const 10) (i32.const 64) (i32.const 6) \
               (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))";
    // Once, and before each call.
    let (before, repeated) = match function.name {
        "call_data_append" | "call_cycles_add" | "call_cycles_add128" => (new, ""),
        "call_perform" => ("", new),
        _ => ("", ""),
    };
    let (params, results) = function.val_types(false);
    let values = arguments.iter().chain(std::iter::repeat(&0));
    let arguments: String =
        params.iter().zip(values).map(|(ty, value)| format!("({ty}.const {value}) ")).collect();
    let drop = "drop".repeat(results.len());
    let call = format!("{repeated} {arguments} call ${} {drop}\n", function.name);
    let import = |name| Ic0Function::find(name).unwrap().import_text(false);
    let mut parts = import(function.name);
    if !before.is_empty() || !repeated.is_empty() {
        parts += &import("call_new");
    }
    let mut init = "";
    if function.name.starts_with("stable") {
        parts += &import("stable64_grow").replace("$stable64_grow", "$init_grow");
        init = "(func (export \"canister_init\") (drop (call $init_grow (i64.const 16))))";
    }
    let module = module(&format!("{parts} {TEXTS} {init}"), "", before, &call.repeat(8), "");
    Case { entry_kind: entry_kind(function), ..Case::new("System API", name, module) }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in IC0_FUNCTIONS.iter().filter(|function| !ONCE.contains(&function.name)) {
        cases.push(case(function, function.name, arguments(function.name)));
        // The same with what makes it long.
        let (name, arguments, times_max): (_, &[i64], _) = match function.name {
            "msg_arg_data_copy" => ("of 0 bytes", &[0, 0, 0], u32::MAX),
            "debug_print" => ("of 1000 bytes", &[0, 1000], u32::MAX),
            "stable64_grow" => ("by 1", &[1], 100),
            "stable64_read" => ("of 64 KiB", &[4096, 0, 65_536], u32::MAX),
            "stable64_write" => ("of 64 KiB", &[0, 4096, 65_536], u32::MAX),
            "call_data_append" => ("of 1000 bytes", &[0, 1000], 200),
            "env_var_name_exists" => ("of none", &[0, 100], u32::MAX),
            _ => continue,
        };
        let name = format!("{} {name}", function.name);
        cases.push(Case { times_max, ..case(function, &name, arguments) });
    }
    cases
}
