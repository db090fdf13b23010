//! A message about state roots as a peer sends it (shares of the subnet's signature, certificates,
//! limits): decoding whatever arrives returns, within bounds, and answers the same twice.

#![no_main]

use consensus::fuzz::decode_share_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode_share_message(bytes);
    assert_eq!(decode_share_message(bytes), decoded);
});
