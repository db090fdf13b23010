//! A message about state roots as a peer sends it (shares of the subnet's signature, certificates,
//! limits): decoding whatever arrives returns, within bounds, and answers the same twice.

use consensus::fuzz::decode_share_message;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let decoded = decode_share_message(bytes);
    assert_eq!(decode_share_message(bytes), decoded);
}
