//! A hint for project tools: they expect canisters of the public network at well-known ids, which a
//! node alone does not have. Only what a client gets from this node; nothing that is agreed on.

use ic_principal::Principal;
use state::{ErrorCode, Reject};

/// Ids that `thimble-lab local` puts canisters at, and what they are.
const EXPECTED: [(&str, &str); 3] = [
    ("ryjl3-tyaaa-aaaaa-aaaba-cai", "ICP ledger"),
    ("rkp4c-7iaaa-aaaaa-aaaca-cai", "cycles minting canister"),
    ("um5iw-rqaaa-aaaaq-qaaba-cai", "cycles ledger"),
];

/// No such canister (interface specification, error codes).
const NOT_FOUND: ErrorCode = ErrorCode(301);

/// The reject of a call or query of `canister_id`, with a hint where it is one that tools expect
/// and that does not exist. The text that clients compare stays in front.
pub(crate) fn with_hint(mut reject: Reject, canister_id: &Principal) -> Reject {
    let id = canister_id.to_text();
    let expected = EXPECTED.iter().find(|(expected, _)| *expected == id);
    let Some((_, what)) = expected else { return reject };
    if reject.error_code == NOT_FOUND && reject.message == format!("Canister {id} not found") {
        reject.message.push_str(&format!(
            ". Project tools expect the {what} of the public network at this id. `thimble-lab \
             local` starts a network that has it."
        ));
    }
    reject
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use state::RejectCode;

    use super::*;

    fn answer(id: &str, code: u16, message: &str) -> String {
        let message = message.replace("{id}", id);
        let reject =
            Reject { code: RejectCode::DestinationInvalid, message, error_code: ErrorCode(code) };
        with_hint(reject, &Principal::from_text(id).unwrap()).message
    }

    // Promise: P9 - A single node without a canister that tools expect returns a hint.
    #[test]
    fn a_missing_canister_that_tools_expect_is_answered_with_a_hint() {
        for (id, what) in EXPECTED {
            let text = answer(id, 301, "Canister {id} not found");
            assert!(text.starts_with(&format!("Canister {id} not found")), "{text}");
            assert!(text.contains(what) && text.contains("`thimble-lab local`"), "{text}");
        }
    }

    #[test]
    fn other_rejects_stay_as_they_are() {
        let other = "bnz7o-iuaaa-aaaaa-qaaaa-cai";
        assert_eq!(
            answer(other, 301, "Canister {id} not found"),
            format!("Canister {other} not found")
        );
        let [(ledger, _), ..] = EXPECTED;
        assert_eq!(
            answer(ledger, 508, "Canister {id} is stopped"),
            format!("Canister {ledger} is stopped")
        );
        assert_eq!(answer(ledger, 301, "Canister x not found"), "Canister x not found");
    }
}
