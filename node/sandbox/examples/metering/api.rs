//! Every function of the System API.

use sandbox::module::{IC0_FUNCTIONS, Ic0Function, Ic0Type};

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

/// Arguments of a function, in the order of its parameters, and what it needs around it.
struct Use {
    arguments: Vec<String>,
    /// Once, before all calls.
    before: &'static str,
    /// Before each call.
    repeated: &'static str,
    entry_kind: EntryKind,
}

fn import(function: &Ic0Function) -> String {
    let word = |word: &Ic0Type| word.val_type(false).to_string();
    let params: Vec<_> = function.params.iter().map(word).collect();
    let result = function.result.as_ref().map(word);
    let result = result.map(|ty| format!("(result {ty})")).unwrap_or_default();
    format!(
        "(import \"ic0\" \"{0}\" (func ${0} (param {1}) {result}))",
        function.name,
        params.join(" ")
    )
}

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

fn entry_kind(function: &str) -> EntryKind {
    match function {
        "msg_reject_msg_size"
        | "msg_reject_msg_copy"
        | "msg_cycles_refunded"
        | "msg_cycles_refunded128"
        | "msg_reject_code" => EntryKind::Reject,
        "msg_method_name_size" | "msg_method_name_copy" => EntryKind::Inspect,
        "data_certificate_size" | "data_certificate_copy" => EntryKind::Query,
        _ => EntryKind::Update,
    }
}

fn used(function: &Ic0Function) -> Use {
    let given = arguments(function.name);
    let arguments = function.params.iter().zip(given.iter().chain(std::iter::repeat(&0)));
    let arguments = arguments
        .map(|(word, value)| format!("({}.const {value})", word.val_type(false)))
        .collect();
    let new = "(call $call_new (i32.const 192) (i32.const 10) (i32.const 64) (i32.const 6) \
               (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))";
    let (before, repeated) = match function.name {
        "call_data_append" | "call_cycles_add" | "call_cycles_add128" => (new, ""),
        "call_perform" => ("", new),
        _ => ("", ""),
    };
    Use { arguments, before, repeated, entry_kind: entry_kind(function.name) }
}

/// A case of calls in a row. `repeated` precedes each of them.
fn case(function: &Ic0Function, name: &str, arguments: &[String], repeated: &str) -> Case {
    let Use { before, entry_kind, .. } = used(function);
    let drop = if function.result.is_some() { "drop" } else { "" };
    let call = format!("{repeated} {} call ${} {drop}\n", arguments.join(" "), function.name);
    let mut imports = import(function);
    if function.name != "call_new" && (before.contains("call_new") || repeated.contains("call_new"))
    {
        imports += &IC0_FUNCTIONS.iter().find(|one| one.name == "call_new").map(import).unwrap();
    }
    let init = if function.name.starts_with("stable") {
        let grow = IC0_FUNCTIONS.iter().find(|one| one.name == "stable64_grow").unwrap();
        let grow = import(grow).replace("$stable64_grow", "$init_grow");
        imports += &grow;
        "(func (export \"canister_init\") (drop (call $init_grow (i64.const 16))))"
    } else {
        ""
    };
    let parts = format!("{imports} {TEXTS} {init}");
    let module = module(&parts, "", before, &call.repeat(8), "");
    Case { entry_kind, ..Case::new("System API", name, module) }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in IC0_FUNCTIONS.iter().filter(|function| !ONCE.contains(&function.name)) {
        let Use { arguments, repeated, .. } = used(function);
        cases.push(case(function, function.name, &arguments, repeated));
        // The same with what makes it long.
        let word = |value: i64| format!("(i32.const {value})");
        let long = |value: i64| format!("(i64.const {value})");
        let (name, arguments) = match function.name {
            "msg_arg_data_copy" => ("of 0 bytes", vec![word(0), word(0), word(0)]),
            "debug_print" => ("of 1000 bytes", vec![word(0), word(1000)]),
            "stable64_grow" => ("by 1", vec![long(1)]),
            "stable64_read" => ("of 64 KiB", vec![long(4096), long(0), long(65_536)]),
            "stable64_write" => ("of 64 KiB", vec![long(0), long(4096), long(65_536)]),
            "call_data_append" => ("of 1000 bytes", vec![word(0), word(1000)]),
            "env_var_name_exists" => ("of none", vec![word(0), word(100)]),
            _ => continue,
        };
        let name = format!("{} {name}", function.name);
        let times_max = match function.name {
            "call_data_append" => 200,
            "stable64_grow" => 100,
            _ => u32::MAX,
        };
        cases.push(Case { times_max, ..case(function, &name, &arguments, "") });
    }
    cases
}
