//! A message about calls as a peer sends it (offers, requests, what was asked for): decoding
//! whatever arrives returns, within bounds, and answers the same twice.

use consensus::fuzz::decode_call_message;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let decoded = decode_call_message(bytes);
    assert_eq!(decode_call_message(bytes), decoded);
}
