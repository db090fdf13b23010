//! Messages of state sync: of peers, and of the driver.

use commonware_codec::Decode as _;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use state::Height;

use super::floor::{self, Floor};
use crate::{
    ChunkRequest, FetchedChunks, StateOffer,
    subnet::{
        block::{Block, BlockBounds, BlockFinalization},
        engine::block_bounds,
        voters::Voters,
        wire,
    },
};

#[derive(Serialize, Deserialize)]
pub(super) enum Message<'a> {
    /// Is this block kept, and which state can be had?
    Ask {
        next: Height,
    },
    Answer {
        next: BlockAvailability,
        #[serde(borrow)]
        offer: Option<WireOffer<'a>>,
    },
    Get {
        height: Height,
        name: &'a [u8],
    },
    Chunk {
        height: Height,
        name: &'a [u8],
        bytes: &'a [u8],
    },
    NotFound {
        height: Height,
        name: &'a [u8],
    },
}

/// One message of each kind.
#[cfg(test)]
pub(in crate::subnet) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let (height, name) = (Height(0x0102_0304), [1, 2, 3].as_slice());
    let key = Some(WireKey { voters: &[12; 13], rest: [14; 32] });
    let offer = WireOffer { certificate: &[4; 5], key, block: &[6; 7], finalization: &[8; 9] };
    wire::samples([
        ("ask", Message::Ask { next: height }),
        ("answer", Message::Answer { next: BlockAvailability::Gone, offer: Some(offer) }),
        ("get", Message::Get { height, name }),
        ("chunk", Message::Chunk { height, name, bytes: &[10; 11] }),
        ("not", Message::NotFound { height, name }),
    ])
}

/// Of the block that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BlockAvailability {
    Kept,
    Gone,
    /// The answering node has not reached that block.
    Unknown,
}

/// [`state::KeyProof`] of the certificate's tree.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct WireKey<'a> {
    pub(super) voters: &'a [u8],
    pub(super) rest: [u8; 32],
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct WireOffer<'a> {
    pub(super) certificate: &'a [u8],
    /// None while the key is held as the ceremony left it.
    #[serde(borrow)]
    pub(super) key: Option<WireKey<'a>>,
    pub(super) block: &'a [u8],
    pub(super) finalization: &'a [u8],
}

impl WireOffer<'_> {
    /// The block and the finalization in it.
    pub(super) fn decode(&self, bounds: &BlockBounds) -> Option<(Block, BlockFinalization)> {
        let block = bytes::Bytes::copy_from_slice(self.block);
        Some((Block::decode_cfg(block, bounds).ok()?, floor::decode(self.finalization)?))
    }
}

pub(super) fn encode(message: &Message<'_>) -> Option<Vec<u8>> {
    wire::encode(message, "a message about states")
}

/// Whether a message of this channel decodes, with the block, the finalization and the keys in it.
pub(in crate::subnet) fn decodes(bytes: &[u8]) -> bool {
    match wire::decode::<Message<'_>>(bytes, bytes.len()) {
        Some(Message::Answer { offer: Some(offer), .. }) => {
            let is_known = |key: WireKey<'_>| Voters::decode(key.voters).is_some();
            offer.decode(&block_bounds(1_000)).is_some() && offer.key.is_none_or(is_known)
        }
        message => message.is_some(),
    }
}

/// The driver's commands for the task.
pub(in crate::subnet) enum Command {
    Fetch(ChunkRequest, oneshot::Sender<FetchedChunks>),
    /// It is not behind that far any more.
    Abandon,
}

/// A state to fetch, and the floor above it, from which consensus continues.
#[derive(Clone, Debug)]
pub(in crate::subnet) struct SyncTarget {
    pub(in crate::subnet) offer: StateOffer,
    pub(in crate::subnet) floor: Floor,
}
