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
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    message
}

/// `Err` with a reject: the function of this module or the error code, then text and arguments as
/// `format!` takes them.
macro_rules! refused {
    ($code:literal, $($text:tt)*) => {
        Err($crate::reject::reject($code, format!($($text)*)).into())
    };
    ($kind:ident, $($text:tt)*) => {
        Err($crate::reject::$kind(format!($($text)*)).into())
    };
}
pub(crate) use refused;

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

pub(crate) fn queue_full(message: impl Into<String>) -> Reject {
    reject(201, message)
}

pub(crate) fn no_certified_state() -> Reject {
    reject(208, "No certified state is available yet; ask again in a moment.")
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

pub(crate) fn uninstalled() -> Reject {
    rejected_message("Canister has been uninstalled.")
}

pub(crate) fn snapshot_not_found(id: &CanisterId, snapshot_id: &[u8]) -> Reject {
    let shown = hex::encode(snapshot_id.get(..SNAPSHOT_ID_SHOWN).unwrap_or(snapshot_id));
    reject(305, format!("Could not find the snapshot ID {shown} for canister {id}."))
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

/// Declares rejects: each by the function that makes it, its error code and its text, as `format!`
/// takes it.
macro_rules! rejects {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) = $code:literal,
       $text:literal $(, $shown:expr)*;)*) => {
        $($(#[$doc])*
        pub(crate) fn $name($($arg: $type),*) -> Reject {
            reject($code, format!($text $(, $shown)*))
        })*
    };
}

rejects! {
    fn too_many_canisters(limit: u64) = 102,
        "The subnet has {limit} canisters, the most it takes (subnet.canisters_max).";
    /// The gateway answers it with 429 or 503: see `gateway::NO_QUERY_WORKER`.
    fn no_query_worker(wait_seconds: u64, per_canister_max: u64) = 211,
        "No query worker became free within the limit execution.query_wait_seconds = \
         {wait_seconds} (one canister has at most execution.query_threads_per_canister = \
         {per_canister_max}); ask again.";
    fn query_overdue(id: &CanisterId, seconds: u64) = 528,
        "Query of canister {id} was ended: with all its calls it ran longer than the limit \
         execution.query_wall_clock_seconds = {seconds}.";
    fn query_compiled_too_long(id: &CanisterId, seconds: u64) = 208,
        "The module of canister {id} has to be compiled first, which takes longer than the limit \
         execution.query_wall_clock_seconds = {seconds}; the compilation continues, ask again.";
    fn response_dropped(limit: u64) = 602,
        "The response was dropped: best-effort messages fill the subnet's {limit} bytes \
         (subnet.best_effort_message_bytes).";
    fn ingress_timeout(id: &Principal) = 202,
        "The message waited for canister {id} until its ingress expiry passed; nothing of it was \
         executed.";
    fn stop_timeout(id: &CanisterId, seconds: u64) = 206,
        "Stop canister request timed out: canister {id} still has open calls after {seconds} s and \
         continues stopping.";
    fn stop_cancelled(id: &CanisterId) = 511,
        "Canister {id} was started again before it had stopped.";
    fn out_of_cycles(id: &CanisterId, available: Cycles, needed: Cycles, what: &str) = 207,
        "Canister {id} is out of cycles: please top up the canister with at least {} additional \
         cycles; {what} needs {needed} cycles and {available} are above its freezing \
         threshold.", needed.saturating_sub(available);
    fn too_few_cycles_attached(id: &CanisterId, minimum: Cycles, attached: Cycles) = 520,
        "Canister {id} takes calls with at least {minimum} cycles attached \
         (minimum_incoming_canister_call_cycles); this one brought {attached}.";
    fn ran_out(id: &CanisterId) = 406, "Canister {id} ran out of cycles and lost its code.";
    fn balance_full(canister: &CanisterState, amount: Cycles) = 408,
        "Canister {} has {} cycles and cannot be given {amount} more: a balance holds at most \
         2^128 - 1.", canister.id, canister.cycles;
    fn canister_not_found(id: &Principal) = 301, "Canister {id} not found";
    fn unknown_management_method(name: &str) = 536,
        "Management canister has no method '{}'", name.escape_debug();
    fn unknown_management_query(name: &str) = 536,
        "Management canister has no query method '{}'.", name.escape_debug();
    fn not_by_ingress(name: &str) = 406,
        "Only canisters can call ic00 method {}", name.escape_debug();
    fn not_by_update(name: &str) = 406,
        "The management canister's method '{name}' can only be queried.";
    fn not_provisional(name: &str) = 406,
        "{name} is switched off on this subnet (features.provisional = false): canisters and \
         cycles cannot be made out of nothing.";
    fn stopped(id: &CanisterId) = 508, "Canister {id} is stopped";
    fn stopping(id: &CanisterId) = 509, "Canister {id} is stopping";
    /// The text of the public network for a query to a canister that is stopped.
    fn stopped_for_queries(id: &CanisterId) = 508,
        "Canister {id} is stopped and therefore does not have a CallContextManager";
    fn not_empty(id: &CanisterId) = 514,
        "Canister {id} cannot be installed because the canister is not empty. Try installing with \
         mode='reinstall' instead.";
    fn already_installed(id: &CanisterId) = 538, "Canister {id} is already installed.";
    /// `canister_inspect_message` did not accept.
    fn not_accepted(id: &CanisterId) = 406,
        "Error from Canister {id}: Canister rejected the message";
    fn log_not_visible(caller: &Principal) = 406,
        "Caller {caller} is not allowed to access canister logs";
    fn no_module(id: &CanisterId) = 537,
        "Error from Canister {id}: Attempted to execute a message, but the canister contains no \
         Wasm module.";
    fn module_too_large(bytes: u64, limit: u64) = 505,
        "The module has {bytes} bytes, the most is {limit} (module.wasm_bytes).";
    fn no_method(id: &CanisterId, kind: &str, name: &str) = 536,
        "Error from Canister {id}: Canister has no {kind} method '{}'.", name.escape_debug();
    fn invalid_controller(id: &CanisterId, method_name: &str) = 512,
        "Only controllers of canister {id} can call ic00 method {}", method_name.escape_debug();
    /// The fixed text of an operator's verdict: the same on every node.
    fn ruled_out(id: &CanisterId) = 521,
        "Error from Canister {id}: The message could not be executed and was rejected by the \
         operators of the subnet; nothing of it was kept.";
    fn query_cut_off(id: &CanisterId, seconds: u64) = 208,
        "The query of canister {id} was given up: it read an older state for so long that newer \
         ones could not be written down (pages.pin_seconds {seconds}, pages.pinned_delta_bytes); \
         ask again.";
    fn not_compiled(id: &CanisterId, reason: &str) = 208,
        "The node could not compile the module of canister {id} now ({reason}); nothing was \
         executed. That is trouble of the node and says nothing about the canister; ask again.";
    /// A fault that ends the node when it executes an update.
    fn node_cannot_execute(id: &CanisterId, error: &impl std::fmt::Display) = 208,
        "This node cannot execute canister {id}: {error}. That is trouble of the node and says \
         nothing about the canister; its operator has to mend it.";
    fn memory_too_dear(id: &CanisterId, bytes: u64, balance: Cycles, needed: Cycles) = 532,
        "Error from Canister {id}: Canister cannot grow its memory by {bytes} bytes: its balance \
         would be {balance} cycles, below its freezing threshold of {needed} cycles; top it up.";
    fn did_not_reply(id: &CanisterId) = 506,
        "Error from Canister {id}: Canister did not produce a response.";
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
