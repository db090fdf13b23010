//! Rejects as the protocol writes them: names for codes.

use serde::Serialize;
use state::{ErrorCode, Reject, RejectCode};

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

/// Codes that clients before version 16 have no name for, and those that they read instead.
const CODES_OF_16: [(u16, u16); 2] = [(211, 201), (542, 512)];

fn error_name(code: u16, class: RejectCode, client: Client) -> &'static str {
    let older = CODES_OF_16.iter().find(|(new, _)| *new == code && !client.knows_codes_of_16());
    let code = older.map_or(code, |(_, older)| *older);
    // Clients refuse a code without a name, so it has the name that fits its class.
    ErrorCode(code).name().unwrap_or(match class {
        RejectCode::SysFatal => "SubnetOversubscribed",
        RejectCode::SysTransient => "CanisterQueueFull",
        RejectCode::DestinationInvalid => "CanisterNotFound",
        RejectCode::CanisterReject => "CanisterRejectedMessage",
        RejectCode::CanisterError => "CanisterTrapped",
        RejectCode::SysUnknown => "ResponseDropped",
    })
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
    }
}
