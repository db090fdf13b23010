//! Rejects as the protocol writes them: names for codes.

use serde::Serialize;
use state::{Reject, RejectCode};

use crate::cli::Client;

/// A reject, as clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RejectResponse {
    reject_code: &'static str,
    reject_message: String,
    error_code: &'static str,
    /// Whether it is in the certified state.
    certified: bool,
}

impl RejectResponse {
    /// Of a reject of execution, for a client of this version.
    pub(crate) fn new(reject: &Reject, certified: bool, client: Client) -> Self {
        Self {
            reject_code: code_name(reject.code),
            reject_message: reject.message.clone(),
            error_code: error_name(reject.error_code.0, reject.code, client),
            certified,
        }
    }
}

fn code_name(code: RejectCode) -> &'static str {
    match code {
        RejectCode::SysFatal => "SysFatal",
        RejectCode::SysTransient => "SysTransient",
        RejectCode::DestinationInvalid => "DestinationInvalid",
        RejectCode::CanisterReject => "CanisterReject",
        RejectCode::CanisterError => "CanisterError",
        RejectCode::SysUnknown => "SysUnknown",
    }
}

/// Error codes that clients have a name for. One without is refused by them, so it goes by the name
/// that fits its class.
const NAMES: &[(u16, &str)] = &[
    (101, "SubnetOversubscribed"),
    (102, "MaxNumberOfCanistersReached"),
    (201, "CanisterQueueFull"),
    (202, "IngressMessageTimeout"),
    (203, "CanisterQueueNotEmpty"),
    (204, "IngressHistoryFull"),
    (205, "CanisterIdAlreadyExists"),
    (206, "StopCanisterRequestTimeout"),
    (207, "CanisterOutOfCycles"),
    (208, "CertifiedStateUnavailable"),
    (209, "CanisterInstallCodeRateLimited"),
    (210, "CanisterHeapDeltaRateLimited"),
    (211, "SubnetCoolingDown"),
    (301, "CanisterNotFound"),
    (305, "CanisterSnapshotNotFound"),
    (402, "InsufficientMemoryAllocation"),
    (403, "InsufficientCyclesForCreateCanister"),
    (404, "SubnetNotFound"),
    (405, "CanisterNotHostedBySubnet"),
    (406, "CanisterRejectedMessage"),
    (407, "UnknownManagementMessage"),
    (408, "InvalidManagementPayload"),
    (409, "CanisterSnapshotImmutable"),
    (410, "InvalidSubnetAdmin"),
    (502, "CanisterTrapped"),
    (503, "CanisterCalledTrap"),
    (504, "CanisterContractViolation"),
    (505, "CanisterInvalidWasm"),
    (506, "CanisterDidNotReply"),
    (507, "CanisterOutOfMemory"),
    (508, "CanisterStopped"),
    (509, "CanisterStopping"),
    (510, "CanisterNotStopped"),
    (511, "CanisterStoppingCancelled"),
    (512, "CanisterInvalidController"),
    (513, "CanisterFunctionNotFound"),
    (514, "CanisterNonEmpty"),
    (517, "QueryCallGraphLoopDetected"),
    (520, "InsufficientCyclesInCall"),
    (521, "CanisterWasmEngineError"),
    (522, "CanisterInstructionLimitExceeded"),
    (524, "CanisterMemoryAccessLimitExceeded"),
    (525, "QueryCallGraphTooDeep"),
    (526, "QueryCallGraphTotalInstructionLimitExceeded"),
    (527, "CompositeQueryCalledInReplicatedMode"),
    (528, "QueryTimeLimitExceeded"),
    (529, "QueryCallGraphInternal"),
    (530, "InsufficientCyclesInComputeAllocation"),
    (531, "InsufficientCyclesInMemoryAllocation"),
    (532, "InsufficientCyclesInMemoryGrow"),
    (533, "ReservedCyclesLimitExceededInMemoryAllocation"),
    (534, "ReservedCyclesLimitExceededInMemoryGrow"),
    (535, "InsufficientCyclesInMessageMemoryGrow"),
    (536, "CanisterMethodNotFound"),
    (537, "CanisterWasmModuleNotFound"),
    (538, "CanisterAlreadyInstalled"),
    (539, "CanisterWasmMemoryLimitExceeded"),
    (540, "ReservedCyclesLimitIsTooLow"),
    (541, "CanisterInvalidControllerOrSubnetAdmin"),
    (542, "CanisterStatusAccessDenied"),
    (601, "DeadlineExpired"),
    (602, "ResponseDropped"),
];

/// Codes that clients before version 16 have no name for, and those that they read instead.
const CODES_OF_16: [(u16, u16); 2] = [(211, 201), (542, 512)];

fn error_name(code: u16, class: RejectCode, client: Client) -> &'static str {
    let older = CODES_OF_16.iter().find(|(new, _)| *new == code && !client.knows_codes_of_16());
    let code = older.map_or(code, |(_, older)| *older);
    match NAMES.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => name,
        None => match class {
            RejectCode::SysFatal => "SubnetOversubscribed",
            RejectCode::SysTransient => "CanisterQueueFull",
            RejectCode::DestinationInvalid => "CanisterNotFound",
            RejectCode::CanisterReject => "CanisterRejectedMessage",
            RejectCode::CanisterError => "CanisterTrapped",
            RejectCode::SysUnknown => "ResponseDropped",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_of_its_class() {
        let latest = Client::default();
        assert_eq!(error_name(536, RejectCode::CanisterError, latest), "CanisterMethodNotFound");
        assert_eq!(error_name(599, RejectCode::CanisterError, latest), "CanisterTrapped");
        let older = Client::from_major(15);
        for (code, latest_name, older_name) in [
            (542, "CanisterStatusAccessDenied", "CanisterInvalidController"),
            (211, "SubnetCoolingDown", "CanisterQueueFull"),
            (207, "CanisterOutOfCycles", "CanisterOutOfCycles"),
        ] {
            assert_eq!(error_name(code, RejectCode::CanisterError, latest), latest_name);
            assert_eq!(error_name(code, RejectCode::CanisterError, older), older_name);
        }
        assert!(NAMES.is_sorted_by(|one, next| one.0 < next.0));
    }
}
