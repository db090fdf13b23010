//! Error codes of rejects: their names on the public network, and the causes of those that this
//! replica gives. `docs/reference/errors.md` is generated from the table.

use crate::ErrorCode;

/// Declares rows of the table, in rising order: the code, its name on the public network, and when
/// this replica gives it.
macro_rules! error_codes {
    ($($code:literal $name:literal $cause:literal;)*) => {
        const ERROR_CODES: &[(u16, &str, &str)] = &[$(($code, $name, $cause)),*];
    };
}

// A code without a name is of this replica alone; one without a cause is never given.
error_codes! {
    100 "" "An HTTPS outcall cannot succeed: its URL, its method, a header or the response size.";
    101 "SubnetOversubscribed"
        "A limit of the subnet is reached: memory, metadata, sections or compute of all canisters.";
    102 "MaxNumberOfCanistersReached" "The subnet has `subnet.canisters_max` canisters.";
    200 ""
        "An HTTPS outcall failed for now: no connection, no answer in time, or different answers.";
    201 "CanisterQueueFull"
        "Messages, calls or installations that wait fill their limit, or the disk is nearly full.";
    202 "IngressMessageTimeout"
        "An ingress message waited until it expired; nothing of it was executed.";
    203 "CanisterQueueNotEmpty" "A canister with messages or open calls is to be deleted.";
    204 "IngressHistoryFull" "";
    205 "CanisterIdAlreadyExists" "";
    206 "StopCanisterRequestTimeout" "Calls are still open 300 s after `stop_canister`.";
    207 "CanisterOutOfCycles"
        "A canister is below its freezing threshold, or cannot pay for a message or a call.";
    208 "CertifiedStateUnavailable"
        "This node cannot answer a query now: no certified state, a dead worker, a module that is \
         not compiled, or a state that was read for too long (`pages.pin_seconds`).";
    209 "CanisterInstallCodeRateLimited" "";
    210 "CanisterHeapDeltaRateLimited" "";
    211 "SubnetCoolingDown" "No query worker became free within `execution.query_wait_seconds`.";
    301 "CanisterNotFound"
        "The canister does not exist, or the subnet has no threshold keys or Bitcoin adapter.";
    305 "CanisterSnapshotNotFound" "The snapshot does not exist.";
    402 "InsufficientMemoryAllocation" "";
    403 "InsufficientCyclesForCreateCanister"
        "The call of `create_canister` has fewer cycles than the fee.";
    404 "SubnetNotFound" "The subnet named in a management call is not this one.";
    405 "CanisterNotHostedBySubnet" "`specified_id` is outside the subnet's canister ranges.";
    406 "CanisterRejectedMessage"
        "The canister rejected the call or lost its code, the caller may not call the method, or \
         an HTTPS outcall or a snapshot is refused.";
    407 "UnknownManagementMessage" "";
    408 "InvalidManagementPayload"
        "The argument of a management call does not decode, or exceeds a bound.";
    409 "CanisterSnapshotImmutable" "Data are written to a snapshot that was not uploaded.";
    410 "InvalidSubnetAdmin" "";
    502 "CanisterTrapped" "WebAssembly trapped.";
    503 "CanisterCalledTrap" "The canister called `ic0.trap`.";
    504 "CanisterContractViolation"
        "The canister broke a rule of the System API, a value of settings, chunks or snapshots is \
         outside its bounds, or HTTPS outcalls are off.";
    505 "CanisterInvalidWasm" "The module is invalid, or exceeds a limit of `[limits.module]`.";
    506 "CanisterDidNotReply" "The last message of a call ended without a reply or reject.";
    507 "CanisterOutOfMemory" "The canister cannot grow its memory.";
    508 "CanisterStopped" "The canister is stopped.";
    509 "CanisterStopping" "The canister is stopping.";
    510 "CanisterNotStopped" "A canister that is not stopped is to be deleted.";
    511 "CanisterStoppingCancelled" "The canister was started again before it had stopped.";
    512 "CanisterInvalidController" "The caller is no controller of the canister.";
    513 "CanisterFunctionNotFound" "A callback is no function of the module's table.";
    514 "CanisterNonEmpty" "Code is to be installed in a canister that has code.";
    517 "QueryCallGraphLoopDetected" "";
    520 "InsufficientCyclesInCall"
        "The call has fewer cycles than the callee's `minimum_incoming_canister_call_cycles`.";
    521 "CanisterWasmEngineError"
        "The engine cannot run the module, or operators rejected the message (`thimble reject`).";
    522 "CanisterInstructionLimitExceeded"
        "The message used more instructions than its limit (`execution.instructions_per_message` \
         and the limits next to it).";
    524 "CanisterMemoryAccessLimitExceeded"
        "The message accessed or wrote more memory than its limit \
         (`execution.heap_dirty_bytes_per_message` and the limits next to it).";
    525 "QueryCallGraphTooDeep"
        "Calls of a composite query are nested deeper than `execution.composite_query_depth`.";
    526 "QueryCallGraphTotalInstructionLimitExceeded"
        "A query used `execution.instructions_per_query` instructions with all its calls.";
    527 "CompositeQueryCalledInReplicatedMode"
        "A composite query was called as an update, or by an update.";
    528 "QueryTimeLimitExceeded"
        "A query ran longer than `execution.query_wall_clock_seconds` with all its calls.";
    529 "QueryCallGraphInternal" "";
    530 "InsufficientCyclesInComputeAllocation"
        "The canister's cycles do not cover its freezing threshold with a larger compute \
         allocation.";
    531 "InsufficientCyclesInMemoryAllocation"
        "The canister's cycles do not cover its freezing threshold with a larger memory \
         allocation.";
    532 "InsufficientCyclesInMemoryGrow"
        "The canister's cycles do not cover its freezing threshold with more memory.";
    533 "ReservedCyclesLimitExceededInMemoryAllocation" "";
    534 "ReservedCyclesLimitExceededInMemoryGrow" "";
    535 "InsufficientCyclesInMessageMemoryGrow" "";
    536 "CanisterMethodNotFound" "The canister, or the management canister, has no such method.";
    537 "CanisterWasmModuleNotFound" "The canister has no code.";
    538 "CanisterAlreadyInstalled"
        "`specified_id` is that of a canister, or of one that was deleted.";
    539 "CanisterWasmMemoryLimitExceeded"
        "The heap would exceed the canister's `wasm_memory_limit`.";
    540 "ReservedCyclesLimitIsTooLow" "";
    541 "CanisterInvalidControllerOrSubnetAdmin" "";
    542 "CanisterStatusAccessDenied" "";
    601 "DeadlineExpired"
        "The deadline of a best-effort call passed; the callee may have executed it.";
    602 "ResponseDropped"
        "The response to a best-effort call was dropped: `subnet.best_effort_message_bytes` are \
         taken.";
}

impl ErrorCode {
    /// Its name on the public network.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|(_, name, _)| *name).filter(|name| !name.is_empty())
    }

    /// When this replica gives it.
    pub fn cause(self) -> Option<&'static str> {
        self.row().map(|(_, _, cause)| *cause).filter(|cause| !cause.is_empty())
    }

    fn row(self) -> Option<&'static (u16, &'static str, &'static str)> {
        ERROR_CODES.iter().find(|(code, _, _)| *code == self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fmt::Write;

    use super::*;

    #[test]
    fn codes_rise_and_have_a_name_or_a_cause() {
        assert!(ERROR_CODES.is_sorted_by(|one, next| one.0 < next.0));
        for (code, name, cause) in ERROR_CODES {
            assert!(!name.is_empty() || !cause.is_empty(), "{code}");
        }
        assert_eq!(ErrorCode(536).name(), Some("CanisterMethodNotFound"));
        assert_eq!((ErrorCode(200).name(), ErrorCode(599).name()), (None, None));
        assert_eq!((ErrorCode(204).cause(), ErrorCode(599).cause()), (None, None));
    }

    #[test]
    fn reference_page_of_errors_states_every_code() {
        let mut text = String::from("| code | name | when |\n|---|---|---|\n");
        for (code, _, cause) in ERROR_CODES.iter().filter(|(_, _, cause)| !cause.is_empty()) {
            let code = ErrorCode(*code);
            let name = code.name().map(|name| format!("`{name}`")).unwrap_or_default();
            writeln!(text, "| {code} | {name} | {cause} |").unwrap();
        }
        testing::reference::check_page("errors.md", "thimble", &text);
    }
}
