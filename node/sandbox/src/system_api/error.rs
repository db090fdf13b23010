//! Why a message of a canister failed: the error code and the text that its caller reads.
//!
//! The codes are those clients know from the public network (`IC0502` trapped, `IC0504` contract
//! violation, ...), so that their error handling works unchanged. A text that stems from a limit
//! names the limit and its value.

use state::{ErrorCode, Reject, RejectCode};

use super::contexts::Context;
use crate::Trap;

/// WebAssembly trapped.
const TRAPPED: u16 = 502;

/// The canister called `ic0.trap`.
const CALLED_TRAP: u16 = 503;

/// A failure of the canister. Travels through wasmtime as an error and ends the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// The number `nnn` of the error code `IC0nnn`.
    pub(crate) code: u16,
    /// For the caller.
    pub(crate) message: String,
    /// For the canister's log.
    pub(crate) logged: String,
    /// The functions that were being called: for the log, and for callers that may read it. Empty
    /// if there are none.
    pub(crate) backtrace: String,
}

impl Failure {
    fn new(code: u16, message: String) -> Self {
        let logged = format!("[TRAP]: {message}");
        Self { code, message, logged, backtrace: String::new() }
    }

    /// A WebAssembly trap.
    pub(crate) fn trapped(what: &str) -> Self {
        Self {
            logged: format!("[TRAP]: {what}"),
            ..Self::new(TRAPPED, format!("Canister trapped: {what}"))
        }
    }

    /// The canister called `ic0.trap` with this text (`IC0503`).
    pub(crate) fn called_trap(text: &str) -> Self {
        Self {
            logged: format!("[TRAP]: {}", if text.is_empty() { "(no message)" } else { text }),
            ..Self::new(CALLED_TRAP, format!("Canister called `ic0.trap` with message: '{text}'"))
        }
    }

    /// Adds where it happened. As on the public network, only traps have that.
    pub(crate) fn with_backtrace(mut self, backtrace: impl FnOnce() -> String) -> Self {
        if matches!(self.code, TRAPPED | CALLED_TRAP) {
            self.backtrace = backtrace();
            if !self.backtrace.is_empty() {
                self.logged.push('\n');
                self.logged.push_str(&self.backtrace);
            }
        }
        self
    }

    /// A rule of the System API broken.
    pub(crate) fn contract(what: &str) -> Self {
        Self::new(504, format!("Canister violated contract: {what}"))
    }

    /// A function called where it may not be.
    pub(crate) fn forbidden(function: &str, context: Context) -> Self {
        Self::contract(&format!("ic0.{function} cannot be called from {}", context.description()))
    }

    /// Fuel ran out.
    pub(crate) fn instructions(limit: u64) -> Self {
        Self::new(
            522,
            format!(
                "Canister exceeded the limit of {limit} instructions for single message execution."
            ),
        )
    }

    /// A cap on pages.
    pub(crate) fn memory_access(what: &str, limit_bytes: u64) -> Self {
        Self::new(
            524,
            format!(
                "Canister exceeded the memory access limit: the number of {what} in a single \
                 message execution is limited to {}.",
                size(limit_bytes)
            ),
        )
    }

    /// The heap would grow beyond `wasm_memory_limit` of the canister's settings (`IC0539`).
    pub(crate) fn wasm_memory_limit(wanted_bytes: u64, limit_bytes: u64) -> Self {
        Self::new(
            539,
            format!(
                "Canister exceeded its current Wasm memory limit of {limit_bytes} bytes: \
                 {wanted_bytes} bytes are needed. Use less memory or raise wasm_memory_limit in \
                 the canister's settings."
            ),
        )
    }

    /// More memory than there is.
    pub(crate) fn out_of_memory(what: &str) -> Self {
        Self::new(507, format!("Canister cannot grow its memory usage: {what}"))
    }

    /// A callback that is not in the table.
    pub(crate) fn function_not_found(what: &str) -> Self {
        Self::new(513, format!("Canister has no such function: {what}"))
    }

    /// A method that is not exported.
    pub(crate) fn method_not_found(what: &str) -> Self {
        Self::new(536, format!("Canister has no {what}."))
    }

    /// The engine refused the module: not the canister's fault at run time, but its message cannot
    /// run.
    pub(crate) fn engine(what: &str) -> Self {
        Self::new(521, format!("Canister encountered a Wasm engine error: {what}"))
    }

    /// As its caller sees it.
    pub(crate) fn trap(self) -> Trap {
        debug_assert!(ErrorCode(self.code).cause().is_some(), "{} is in no reference", self.code);
        let reject = Reject {
            code: RejectCode::CanisterError,
            message: self.message,
            error_code: ErrorCode(self.code),
        };
        Trap { reject, backtrace: self.backtrace }
    }
}

/// `33554432 bytes (32 MiB, 32768 KB)`: in every unit a reader may look for.
fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    if bytes >= MIB && bytes.is_multiple_of(MIB) {
        format!("{bytes} bytes ({} MiB, {} KB)", bytes / MIB, bytes / KIB)
    } else if bytes >= KIB && bytes.is_multiple_of(KIB) {
        format!("{bytes} bytes ({} KB)", bytes / KIB)
    } else {
        format!("{bytes} bytes")
    }
}
