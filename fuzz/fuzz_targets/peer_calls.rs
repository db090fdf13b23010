//! A message about calls as a peer sends it (offers, requests, what was asked for): decoding
//! whatever arrives returns, within bounds, and answers the same twice.

#![no_main]

use consensus::fuzz::decode_call_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode_call_message(bytes);
    assert_eq!(decode_call_message(bytes), decoded);
});
