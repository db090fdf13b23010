//! The decoders of everything a peer sends, for fuzz targets: each takes one message of one channel
//! and says whether it decodes. None of them may panic, or use memory out of proportion to the
//! message.
//!
//! No part of the node's interface: the node itself decodes within the tasks that own the channels.

use commonware_codec::{Decode as _, Encode as _};

use super::{block::Block, calls, engine::block_bounds, outcalls, shares, state_sync, wire};

/// A message about calls: offers, requests, what was asked for.
pub fn decode_call_message(bytes: &[u8]) -> bool {
    wire::decode::<calls::Message>(bytes, bytes.len()).is_some()
}

/// A block, as it is broadcast, fetched and stored. The encoding is canonical: true only if the
/// block encodes to the same bytes again.
pub fn decode_block(bytes: &[u8]) -> bool {
    let block = Block::decode_cfg(bytes::Bytes::copy_from_slice(bytes), &block_bounds(1_000));
    block.is_ok_and(|block| block.encode() == bytes)
}

/// A message about state roots: shares of the subnet's signature, certificates, limits.
pub fn decode_share_message(bytes: &[u8]) -> bool {
    wire::decode::<shares::Message>(bytes, bytes.len()).is_some()
}

/// A message of state sync: questions, offers with the block and finalization in them,
/// chunks.
pub fn decode_sync_message(bytes: &[u8]) -> bool {
    state_sync::decodes(bytes)
}

/// A message about answers to outcalls: shares of the subnet's signature, or the answer of one
/// member.
pub fn decode_outcall_message(bytes: &[u8]) -> bool {
    wire::decode::<outcalls::Message>(bytes, bytes.len()).is_some()
}
