//! A message of state sync as a peer sends it (questions, offers with block and finalization,
//! chunks): decoding whatever arrives returns, within bounds, and answers the same twice.

#![no_main]

use consensus::fuzz::decode_sync_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode_sync_message(bytes);
    assert_eq!(decode_sync_message(bytes), decoded);
});
