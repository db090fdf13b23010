//! From where each function may be called: the permission table of the System API.
//!
//! Source: interface specification, "Overview of imports", whose letters the constants below keep.
//! [`permitted`] is consulted when the functions are linked, so a call costs one comparison.

use crate::{CallbackKind, Entry};

/// Kind of the running entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Context {
    /// `I`: `canister_init` or `canister_post_upgrade`.
    Install = 1,
    /// `G`: `canister_pre_upgrade`.
    PreUpgrade = 1 << 1,
    /// `U`: `canister_update`.
    Update = 1 << 2,
    /// `RQ`: `canister_query`, replicated.
    ReplicatedQuery = 1 << 3,
    /// `NRQ`: `canister_query`, not replicated.
    Query = 1 << 4,
    /// `CQ`: `canister_composite_query`.
    CompositeQuery = 1 << 5,
    /// `Ry`: reply callback.
    Reply = 1 << 6,
    /// `Rt`: reject callback.
    Reject = 1 << 7,
    /// `CRy`: reply callback of a composite query.
    CompositeReply = 1 << 8,
    /// `CRt`: reject callback of a composite query.
    CompositeReject = 1 << 9,
    /// `C`: cleanup callback.
    Cleanup = 1 << 10,
    /// `CC`: cleanup callback of a composite query.
    CompositeCleanup = 1 << 11,
    /// `s`: `(start)`.
    Start = 1 << 12,
    /// `F`: `canister_inspect_message`.
    Inspect = 1 << 13,
    /// `T`: heartbeat, global timer, low memory hook.
    Task = 1 << 14,
}

impl Context {
    /// The context of an entry. `replicated` distinguishes queries and callbacks of the two modes.
    pub(crate) fn for_entry(entry: &Entry, replicated: bool) -> Self {
        match (entry, replicated) {
            (Entry::Init | Entry::PostUpgrade { .. }, _) => Self::Install,
            (Entry::PreUpgrade, _) => Self::PreUpgrade,
            (Entry::Update(_), _) => Self::Update,
            (Entry::Query(_), true) => Self::ReplicatedQuery,
            (Entry::Query(_), false) => Self::Query,
            (Entry::CompositeQuery(_), _) => Self::CompositeQuery,
            (Entry::Callback { kind: CallbackKind::Reply, .. }, true) => Self::Reply,
            (Entry::Callback { kind: CallbackKind::Reject { .. }, .. }, true) => Self::Reject,
            (Entry::Callback { kind: CallbackKind::Reply, .. }, false) => Self::CompositeReply,
            (Entry::Callback { kind: CallbackKind::Reject { .. }, .. }, false) => {
                Self::CompositeReject
            }
            (Entry::Cleanup { .. }, true) => Self::Cleanup,
            (Entry::Cleanup { .. }, false) => Self::CompositeCleanup,
            (Entry::Heartbeat | Entry::GlobalTimer | Entry::OnLowWasmMemory, _) => Self::Task,
            (Entry::InspectMessage { .. }, _) => Self::Inspect,
        }
    }

    /// For error texts.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Install => "canister_init or canister_post_upgrade",
            Self::PreUpgrade => "canister_pre_upgrade",
            Self::Update => "an update method",
            Self::ReplicatedQuery => "a query method in replicated mode",
            Self::Query => "a query method in non-replicated mode",
            Self::CompositeQuery => "a composite query method",
            Self::Reply => "a reply callback",
            Self::Reject => "a reject callback",
            Self::CompositeReply => "a reply callback of a composite query",
            Self::CompositeReject => "a reject callback of a composite query",
            Self::Cleanup => "a cleanup callback",
            Self::CompositeCleanup => "a cleanup callback of a composite query",
            Self::Start => "the (start) function",
            Self::Inspect => "canister_inspect_message",
            Self::Task => {
                "a system task (canister_heartbeat, canister_global_timer or \
                 canister_on_low_wasm_memory)"
            }
        }
    }

    /// Whether this is in a set of contexts.
    pub(crate) fn among(self, contexts: Contexts) -> bool {
        contexts.0 & self as u16 != 0
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contexts(u16);

const fn set(contexts: &[Context]) -> Contexts {
    let mut bits = 0;
    let mut at = 0;
    while at < contexts.len() {
        bits |= contexts[at] as u16;
        at += 1;
    }
    Contexts(bits)
}

use Context::{
    Cleanup as C, CompositeCleanup as CC, CompositeQuery as CQ, CompositeReject as CRT,
    CompositeReply as CRY, Inspect as F, Install as I, PreUpgrade as G, Query as NRQ, Reject as RT,
    ReplicatedQuery as RQ, Reply as RY, Start as S, Task as T, Update as U,
};

/// `*`: everywhere but in `(start)`.
const ALL: Contexts = Contexts(ALL_AND_START.0 & !(S as u16));
/// `* s`: everywhere, `(start)` included.
const ALL_AND_START: Contexts = set(&[I, G, U, RQ, NRQ, CQ, RY, RT, CRY, CRT, C, CC, S, F, T]);

/// Where `function` of `ic0` may be called from; `None` for a name that is not a function of `ic0`.
pub(crate) fn permitted(function: &str) -> Option<Contexts> {
    Some(match function {
        "msg_arg_data_size" | "msg_arg_data_copy" => set(&[I, U, RQ, NRQ, CQ, RY, CRY, F]),
        "msg_caller_size" | "msg_caller_copy" => ALL,
        "msg_caller_info_data_size"
        | "msg_caller_info_data_copy"
        | "msg_caller_info_signer_size"
        | "msg_caller_info_signer_copy" => set(&[U, RQ, NRQ, CQ, RY, RT, CRY, CRT, C, CC, F]),
        "msg_reject_code" => set(&[RY, RT, CRY, CRT, C]),
        "msg_reject_msg_size" | "msg_reject_msg_copy" => set(&[RT, CRT]),
        "msg_deadline" => set(&[U, RQ, NRQ, CQ, RY, RT, CRY, CRT]),
        "msg_reply_data_append" | "msg_reply" | "msg_reject" => {
            set(&[U, RQ, NRQ, CQ, RY, RT, CRY, CRT])
        }
        "msg_cycles_available" | "msg_cycles_available128" => set(&[U, RQ, RT, RY]),
        "msg_cycles_refunded" | "msg_cycles_refunded128" => set(&[RT, RY]),
        "msg_cycles_accept" | "msg_cycles_accept128" => set(&[U, RQ, RT, RY]),
        "cycles_burn128" => set(&[I, G, U, RQ, RY, RT, C, T]),
        // Dropped by the specification; published modules import them.
        "mint_cycles" | "mint_cycles128" => ALL,
        "canister_self_size" | "canister_self_copy" => ALL,
        "canister_cycle_balance"
        | "canister_cycle_balance128"
        | "canister_liquid_cycle_balance128" => ALL,
        "canister_status" | "canister_version" => ALL,
        "subnet_self_size" | "subnet_self_copy" => ALL,
        // Not in the overview; canister libraries import it.
        "subnet_self_node_count" => ALL,
        "msg_method_name_size" | "msg_method_name_copy" | "accept_message" => set(&[F]),
        "call_new"
        | "call_on_cleanup"
        | "call_data_append"
        | "call_with_best_effort_response"
        | "call_perform" => set(&[U, CQ, RY, RT, CRY, CRT, T]),
        "call_cycles_add" | "call_cycles_add128" => set(&[U, RY, RT, T]),
        "stable64_size" | "stable64_grow" | "stable64_write" | "stable64_read" => ALL_AND_START,
        "stable_size" | "stable_grow" | "stable_write" | "stable_read" => ALL_AND_START,
        "root_key_size" | "root_key_copy" => set(&[I, G, U, RQ, RY, RT, C, T]),
        "certified_data_set" => set(&[I, G, U, RY, RT, T]),
        "data_certificate_present" => ALL,
        "data_certificate_size" | "data_certificate_copy" => set(&[NRQ, CQ]),
        "time" => ALL,
        "global_timer_set" => set(&[I, G, U, RY, RT, C, T]),
        "performance_counter" | "is_controller" | "in_replicated_execution" => ALL_AND_START,
        "cost_call"
        | "cost_create_canister"
        | "cost_http_request"
        | "cost_sign_with_ecdsa"
        | "cost_sign_with_schnorr"
        | "cost_vetkd_derive_key" => ALL_AND_START,
        "env_var_count"
        | "env_var_name_size"
        | "env_var_name_copy"
        | "env_var_name_exists"
        | "env_var_value_size"
        | "env_var_value_copy" => ALL,
        "debug_print" | "trap" => ALL_AND_START,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::module::IC0_FUNCTIONS;

    #[test]
    fn every_function_has_its_permissions() {
        for function in IC0_FUNCTIONS {
            assert!(permitted(function.name).is_some(), "{}", function.name);
        }
        assert!(permitted("no_such_function").is_none());
    }

    // Promise: P9 - The table of System API functions in the documentation is the table in force.
    /// The table that users read is this one.
    #[test]
    fn the_documented_table_is_the_one_in_force() {
        const LETTERS: [(Context, &str); 15] = [
            (I, "I"),
            (G, "G"),
            (U, "U"),
            (RQ, "RQ"),
            (NRQ, "NRQ"),
            (CQ, "CQ"),
            (RY, "Ry"),
            (RT, "Rt"),
            (CRY, "CRy"),
            (CRT, "CRt"),
            (C, "C"),
            (CC, "CC"),
            (S, "s"),
            (F, "F"),
            (T, "T"),
        ];
        let documented = include_str!("../../../../docs/interface.md");
        let rows = documented.lines().filter(|line| line.starts_with("| `") && line.contains("->"));
        assert_eq!(rows.count(), IC0_FUNCTIONS.len());
        for function in IC0_FUNCTIONS {
            let contexts = permitted(function.name).unwrap();
            let from_where = match contexts {
                ALL => "*".to_owned(),
                ALL_AND_START => "* s".to_owned(),
                some => {
                    let letters = LETTERS.iter().filter(|(context, _)| context.among(some));
                    letters.map(|(_, letter)| *letter).collect::<Vec<_>>().join(" ")
                }
            };
            let word = |word: &crate::module::Ic0Type| match word {
                crate::module::Ic0Type::I => "I",
                crate::module::Ic0Type::I32 => "i32",
                crate::module::Ic0Type::I64 => "i64",
            };
            let params: Vec<_> = function.params.iter().map(word).collect();
            let result = function.result.as_ref().map_or("()", word);
            let only32 = if function.only32 { "I = i32 only " } else { "" };
            let row = format!(
                "| `{}` | `({}) -> {result}` | {from_where} | {only32}|",
                function.name,
                params.join(", ")
            );
            assert!(documented.lines().any(|line| line == row), "docs/interface.md lacks\n{row}");
        }
    }

    #[test]
    fn start_may_call_only_what_the_specification_marks() {
        let from_start: Vec<&str> = IC0_FUNCTIONS
            .iter()
            .map(|function| function.name)
            .filter(|name| Context::Start.among(permitted(name).unwrap()))
            .collect();
        for name in &from_start {
            let marked = name.starts_with("stable") || name.starts_with("cost_");
            assert!(
                marked
                    || [
                        "performance_counter",
                        "is_controller",
                        "in_replicated_execution",
                        "debug_print",
                        "trap"
                    ]
                    .contains(name),
                "{name}"
            );
        }
        assert_eq!(from_start.len(), 8 + 6 + 5);
    }
}
