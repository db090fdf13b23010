//! Summaries of a subnet's key, payloads of blocks and changes of members as another node or a file
//! has them: decoding returns for any input, and an accepted value has that one encoding (a file
//! has one up to white space).
//!
//! The first byte chooses the decoder.

use genesis::{MembershipChange, Payload, Summary};

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice % 3 {
        0 => {
            let Ok(mut summary) = Summary::from_bytes(bytes) else { return };
            assert_eq!(summary.to_bytes(), bytes);
            summary.close_epoch();
            let closed = summary.to_bytes();
            assert!(Summary::from_bytes(&closed).is_ok_and(|again| again.to_bytes() == closed));
        }
        1 => {
            let Ok(payload) = Payload::from_bytes(bytes) else { return };
            assert_eq!(payload.to_bytes(), bytes);
        }
        _ => {
            let Ok(change) = MembershipChange::from_json(bytes) else { return };
            let text = change.to_json();
            assert!(
                MembershipChange::from_json(text.as_bytes())
                    .is_ok_and(|again| again.to_json() == text)
            );
        }
    }
}
