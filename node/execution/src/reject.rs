//! Rejects, with the codes of the interface specification and texts that name what was hit.
//!
//! Published clients and test suites compare some texts with those of the public network. These
//! begin with the public network's text, character for character; `docs/interface.md` lists them,
//! and `texts_that_clients_compare_are_those_of_the_public_network` pins them.

use ic_principal::Principal;
use sandbox::Trap;
use state::{CanisterId, CanisterState, Cycles, ErrorCode, Reject, RejectCode};

use crate::management::may_view;

/// Bytes of a reject text that are kept: answers to outcalls take no more.
pub(crate) const MESSAGE_BYTES_MAX: usize = state::OUTCALL_REJECT_BYTES_MAX;

/// Bytes of a snapshot's id that are shown: more than any has.
const SNAPSHOT_ID_SHOWN: usize = 64;

/// A reject with this error code; the reject code follows from its hundreds, as in the
/// specification's table.
pub(crate) fn reject(error_code: u16, message: impl Into<String>) -> Reject {
    // Each code is in the reference of errors.
    debug_assert!(ErrorCode(error_code).cause().is_some());
    let code = match error_code / 100 {
        1 => RejectCode::SysFatal,
        2 => RejectCode::SysTransient,
        3 => RejectCode::DestinationInvalid,
        4 => RejectCode::CanisterReject,
        6 => RejectCode::SysUnknown,
        _ => RejectCode::CanisterError,
    };
    Reject { code, message: cut(message.into()), error_code: ErrorCode(error_code) }
}

/// Cuts a text at a character boundary.
pub(crate) fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let mut end = MESSAGE_BYTES_MAX;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    }
    message
}

/// An error of a canister's own making, said as the caller sees it.
pub(crate) fn from_canister(id: &CanisterId, reject: Reject) -> Reject {
    Reject { message: cut(format!("Error from Canister {id}: {}", reject.message)), ..reject }
}

/// What a trap is to its caller: with its backtrace where the caller may read the canister's log.
pub(crate) fn of_trap(canister: &CanisterState, caller: &Principal, trap: Trap) -> Reject {
    let Trap { mut reject, backtrace } = trap;
    if !backtrace.is_empty() && may_view(&canister.settings.log_visibility, canister, caller) {
        reject.message.push('\n');
        reject.message.push_str(&backtrace);
    }
    from_canister(&canister.id, reject)
}

pub(crate) fn subnet_oversubscribed(message: impl Into<String>) -> Reject {
    reject(101, message)
}

pub(crate) fn too_many_canisters(limit: u64) -> Reject {
    reject(
        102,
        format!("The subnet has {limit} canisters, the most it takes (subnet.canisters_max)."),
    )
}

pub(crate) fn queue_full(message: impl Into<String>) -> Reject {
    reject(201, message)
}

/// The gateway answers it with 429 or 503: see `gateway::NO_QUERY_WORKER`.
pub(crate) fn no_query_worker(wait_seconds: u64, per_canister_max: u64) -> Reject {
    reject(
        211,
        format!(
            "No query worker became free within the limit execution.query_wait_seconds = \
             {wait_seconds} (one canister has at most \
             execution.query_threads_per_canister = {per_canister_max}); ask again."
        ),
    )
}

pub(crate) fn query_overdue(id: &CanisterId, seconds: u64) -> Reject {
    reject(
        528,
        format!(
            "Query of canister {id} was ended: with all its calls it ran longer than the limit \
             execution.query_wall_clock_seconds = {seconds}."
        ),
    )
}

pub(crate) fn query_compiled_too_long(id: &CanisterId, seconds: u64) -> Reject {
    trouble_of_the_machine(format!(
        "The module of canister {id} has to be compiled first, which takes longer than the limit \
         execution.query_wall_clock_seconds = {seconds}; the compilation continues, ask again."
    ))
}

pub(crate) fn ingress_timeout(id: &Principal) -> Reject {
    reject(
        202,
        format!(
            "The message waited for canister {id} until its ingress expiry passed; nothing of it \
             was executed."
        ),
    )
}

pub(crate) fn stop_timeout(id: &CanisterId, seconds: u64) -> Reject {
    reject(
        206,
        format!(
            "Stop canister request timed out: canister {id} still has open calls after {seconds} s \
             and continues stopping."
        ),
    )
}

pub(crate) fn out_of_cycles(
    id: &CanisterId,
    available: Cycles,
    needed: Cycles,
    what: &str,
) -> Reject {
    reject(
        207,
        format!(
            "Canister {id} is out of cycles: please top up the canister with at least {} \
             additional cycles; {what} needs {needed} cycles and {available} are above its \
             freezing threshold.",
            needed.saturating_sub(available)
        ),
    )
}

pub(crate) fn balance_full(canister: &CanisterState, amount: Cycles) -> Reject {
    invalid_payload(format!(
        "Canister {} has {} cycles and cannot be given {amount} more: a balance holds at most \
         2^128 - 1.",
        canister.id, canister.cycles
    ))
}

pub(crate) fn no_certified_state() -> Reject {
    reject(208, "No certified state is available yet; ask again in a moment.")
}

pub(crate) fn canister_not_found(id: &Principal) -> Reject {
    reject(301, format!("Canister {id} not found"))
}

pub(crate) fn unknown_management_method(name: &str) -> Reject {
    reject(536, format!("Management canister has no method '{}'", name.escape_debug()))
}

pub(crate) fn unknown_management_query(name: &str) -> Reject {
    reject(536, format!("Management canister has no query method '{}'.", name.escape_debug()))
}

pub(crate) fn not_by_ingress(name: &str) -> Reject {
    reject(406, format!("Only canisters can call ic00 method {}", name.escape_debug()))
}

pub(crate) fn not_by_update(name: &str) -> Reject {
    reject(406, format!("The management canister's method '{name}' can only be queried."))
}

pub(crate) fn not_provisional(name: &str) -> Reject {
    reject(
        406,
        format!(
            "{name} is switched off on this subnet (features.provisional = false): canisters and \
             cycles cannot be made out of nothing."
        ),
    )
}

/// A violation of the specification's rules on the values of settings and on chunks.
pub(crate) fn contract_violation(message: impl Into<String>) -> Reject {
    reject(504, message)
}

pub(crate) fn invalid_payload(message: impl Into<String>) -> Reject {
    reject(408, message)
}

pub(crate) fn rejected_message(message: impl Into<String>) -> Reject {
    reject(406, message)
}

pub(crate) fn stopped(id: &CanisterId) -> Reject {
    reject(508, format!("Canister {id} is stopped"))
}

pub(crate) fn stopping(id: &CanisterId) -> Reject {
    reject(509, format!("Canister {id} is stopping"))
}

/// The text of the public network for a query to a canister that is stopped.
pub(crate) fn stopped_for_queries(id: &CanisterId) -> Reject {
    reject(
        508,
        format!("Canister {id} is stopped and therefore does not have a CallContextManager"),
    )
}

pub(crate) fn not_empty(id: &CanisterId) -> Reject {
    reject(
        514,
        format!(
            "Canister {id} cannot be installed because the canister is not empty. Try installing \
             with mode='reinstall' instead."
        ),
    )
}

pub(crate) fn already_installed(id: &CanisterId) -> Reject {
    reject(538, format!("Canister {id} is already installed."))
}

pub(crate) fn uninstalled() -> Reject {
    rejected_message("Canister has been uninstalled.")
}

/// `canister_inspect_message` did not accept.
pub(crate) fn not_accepted(id: &CanisterId) -> Reject {
    rejected_message(format!("Error from Canister {id}: Canister rejected the message"))
}

pub(crate) fn log_not_visible(caller: &Principal) -> Reject {
    rejected_message(format!("Caller {caller} is not allowed to access canister logs"))
}

pub(crate) fn no_module(id: &CanisterId) -> Reject {
    reject(
        537,
        format!(
            "Error from Canister {id}: Attempted to execute a message, but the canister contains \
             no Wasm module."
        ),
    )
}

pub(crate) fn no_method(id: &CanisterId, kind: &str, name: &str) -> Reject {
    reject(
        536,
        format!(
            "Error from Canister {id}: Canister has no {kind} method '{}'.",
            name.escape_debug()
        ),
    )
}

pub(crate) fn snapshot_not_found(id: &CanisterId, snapshot_id: &[u8]) -> Reject {
    let shown = hex::encode(snapshot_id.get(..SNAPSHOT_ID_SHOWN).unwrap_or(snapshot_id));
    reject(305, format!("Could not find the snapshot ID {shown} for canister {id}."))
}

pub(crate) fn invalid_controller(id: &CanisterId, method_name: &str) -> Reject {
    reject(
        512,
        format!(
            "Only controllers of canister {id} can call ic00 method {}",
            method_name.escape_debug()
        ),
    )
}

/// The fixed text of an operator's verdict: the same on every node.
pub(crate) fn ruled_out(id: &CanisterId) -> Reject {
    reject(
        521,
        format!(
            "Error from Canister {id}: The message could not be executed and was rejected by the \
             operators of the subnet; nothing of it was kept."
        ),
    )
}

pub(crate) fn query_cut_off(id: &CanisterId, seconds: u64) -> Reject {
    reject(
        208,
        format!(
            "The query of canister {id} was given up: it read an older state for so long that \
             newer ones could not be written down (pages.pin_seconds {seconds}, \
             pages.pinned_delta_bytes); ask again."
        ),
    )
}

/// For a fault of this machine, which is unrelated to the canister: transient, like every condition
/// under which another node may answer. Never for an update.
fn trouble_of_the_machine(message: String) -> Reject {
    reject(208, message)
}

pub(crate) fn query_worker_died(id: &CanisterId, attempts: u32, what: &str) -> Reject {
    let times = if attempts == 1 { "once".into() } else { format!("{attempts} times") };
    trouble_of_the_machine(format!(
        "The node could not execute the query of canister {id}: its worker process ended {times} \
         without an outcome ({what}). That is trouble of the node and says nothing about the \
         canister; ask again."
    ))
}

pub(crate) fn not_compiled(id: &CanisterId, reason: &str) -> Reject {
    trouble_of_the_machine(format!(
        "The node could not compile the module of canister {id} now ({reason}); nothing was \
         executed. That is trouble of the node and says nothing about the canister; ask again."
    ))
}

/// A fault that ends the node when it executes an update.
pub(crate) fn node_cannot_execute(id: &CanisterId, error: &impl std::fmt::Display) -> Reject {
    trouble_of_the_machine(format!(
        "This node cannot execute canister {id}: {error}. That is trouble of the node and says \
         nothing about the canister; its operator has to mend it."
    ))
}

pub(crate) fn memory_too_dear(
    id: &CanisterId,
    bytes: u64,
    balance: Cycles,
    needed: Cycles,
) -> Reject {
    reject(
        532,
        format!(
            "Error from Canister {id}: Canister cannot grow its memory by {bytes} bytes: its \
             balance would be {balance} cycles, below its freezing threshold of {needed} cycles; \
             top it up."
        ),
    )
}

pub(crate) fn did_not_reply(id: &CanisterId) -> Reject {
    reject(506, format!("Error from Canister {id}: Canister did not produce a response."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn codes_follow_from_the_error_code() {
        assert_eq!(reject(207, "").code, RejectCode::SysTransient);
        assert_eq!(reject(301, "").code, RejectCode::DestinationInvalid);
        assert_eq!(reject(406, "").code, RejectCode::CanisterReject);
        assert_eq!(reject(536, "").code, RejectCode::CanisterError);
        assert_eq!(reject(601, "").code, RejectCode::SysUnknown);
    }

    // Promise: P9 - Reject texts that published suites compare are those of the public network.
    #[test]
    fn texts_that_clients_compare_are_those_of_the_public_network() {
        let id = Principal::from_text("rwlgt-iiaaa-aaaaa-aaaaa-cai").unwrap();
        let anonymous = Principal::anonymous();
        for (reject, code, text) in [
            (canister_not_found(&id), 301, "Canister {id} not found"),
            (stopped(&id), 508, "Canister {id} is stopped"),
            (stopping(&id), 509, "Canister {id} is stopping"),
            (
                stopped_for_queries(&id),
                508,
                "Canister {id} is stopped and therefore does not have a CallContextManager",
            ),
            (
                not_empty(&id),
                514,
                "Canister {id} cannot be installed because the canister is not empty. Try \
                 installing with mode='reinstall' instead.",
            ),
            (already_installed(&id), 538, "Canister {id} is already installed."),
            (uninstalled(), 406, "Canister has been uninstalled."),
            (not_accepted(&id), 406, "Error from Canister {id}: Canister rejected the message"),
            (
                log_not_visible(&anonymous),
                406,
                "Caller 2vxsx-fae is not allowed to access canister logs",
            ),
            (
                invalid_controller(&id, "update_settings"),
                512,
                "Only controllers of canister {id} can call ic00 method update_settings",
            ),
            (not_by_ingress("raw_rand"), 406, "Only canisters can call ic00 method raw_rand"),
            (unknown_management_method("x"), 536, "Management canister has no method 'x'"),
            (
                no_method(&id, "update", "f"),
                536,
                "Error from Canister {id}: Canister has no update method 'f'.",
            ),
            (
                snapshot_not_found(&id, &[1, 2]),
                305,
                "Could not find the snapshot ID 0102 for canister {id}.",
            ),
        ] {
            let text = text.replace("{id}", &id.to_text());
            assert_eq!((reject.error_code, reject.message), (ErrorCode(code), text));
        }
        let poor = out_of_cycles(&id, 10, 30, "taking in an ingress message").message;
        let front =
            "is out of cycles: please top up the canister with at least 20 additional cycles";
        assert!(poor.contains(front), "{poor}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = cut("ä".repeat(MESSAGE_BYTES_MAX));
        assert!(text.len() <= MESSAGE_BYTES_MAX);
        assert!(text.chars().all(|character| character == 'ä'));
    }
}
