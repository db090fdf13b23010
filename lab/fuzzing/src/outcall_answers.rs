//! Answers to outcalls as peers send them, alone and in envelopes of blocks: decoding any bytes
//! returns, and an envelope that is read is the one that is made of what was read.

use consensus::fuzz::decode_outcall_message;
use ic_principal::Principal;
use state::{OutcallAnswer, SignedIngress};

pub(crate) fn test_one_input(bytes: &[u8]) {
    let decoded = decode_outcall_message(bytes);
    assert_eq!(decode_outcall_message(bytes), decoded);
    let signed = SignedIngress {
        effective_canister_id: Principal::management_canister(),
        envelope: [&[0, 1], bytes].concat().into(),
    };
    assert!(OutcallAnswer::is_in(&signed));
    if let Ok((answer, signature)) = OutcallAnswer::read(&signed) {
        assert_eq!(answer.envelope(&signature), signed);
        assert!(signed.envelope.len() as u64 >= answer.payload.len());
    }
}
