//! A message of state sync as a peer sends it (questions, offers with block and finalization,
//! chunks): decoding whatever arrives returns, within bounds, and answers the same twice.

use consensus::fuzz::decode_sync_message;

pub(crate) fn test_one_input(bytes: &[u8]) {
    let decoded = decode_sync_message(bytes);
    assert_eq!(decode_sync_message(bytes), decoded);
}
