//! A block as a peer broadcasts, proposes or serves it: decoding whatever arrives
//! returns, within bounds, and answers the same twice.

use consensus::fuzz::decode_block;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let decoded = decode_block(bytes);
    assert_eq!(decode_block(bytes), decoded);
}
