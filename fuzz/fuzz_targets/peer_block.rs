//! A block as a peer broadcasts, proposes or serves it: decoding whatever arrives
//! returns, within bounds, and answers the same twice.

#![no_main]

use consensus::fuzz::decode_block;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let decoded = decode_block(bytes);
    assert_eq!(decode_block(bytes), decoded);
});
