//! Answers to outcalls as peers send them, alone and in envelopes of blocks: decoding whatever arrives
//! returns, and an envelope that is read is the one that is made of what was read.

#![no_main]

use consensus::fuzz::decode_outcall_message;
use ic_principal::Principal;
use libfuzzer_sys::fuzz_target;
use state::{OutcallAnswer, SignedIngress};

fuzz_target!(|bytes: &[u8]| {
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
});
