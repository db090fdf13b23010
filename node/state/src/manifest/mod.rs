//! The manifest: the contents of a state at one height, as hashes of pieces that can be fetched and
//! checked one by one.
//!
//! # Contents
//!
//! A state is four kinds of objects, each cut into leaves of [`LEAF_BYTES`]:
//!
//! - the *records*, one stream: the subnet's own, canisters by id, messages apart by number,
//!   statuses of calls by request id, row by row as the checkpoint store keeps them
//!   ([`crate::store::Row`]);
//! - *memories*, by id: canister heaps and stable memories from their first byte to the end of
//!   their base file. Leaves that are all zero are left out;
//! - *blobs*, by hash: modules and chunks of modules;
//! - *payloads* of messages, by number ([`crate::payloads`]). The records of their messages have
//!   the hashes of their leaves.
//!
//! Only replicated data is in it: checkpoint intervals, page indexes, segments, layouts and caches
//! are each node's own and are not. Two nodes that executed the same batches have the same
//! manifest, whenever they checkpointed, folded or restarted.
//!
//! # Encoding
//!
//! The *body* lists objects in order, each with the index and the SHA-256 of its leaves; numbers
//! are big-endian and of fixed width, so a body has one encoding:
//!
//! ```text
//! body    = object*                    records first, then memories by id, blobs by hash,
//!                                      payloads by number
//! object  = 1 length:u64 rows          the records' stream, of this length
//!         | 2 id:u64 length:u64 rows   a memory whose base file is so long
//!         | 3 hash:32 length:u64 rows  a blob
//!         | 4 number:u64 length:u64 rows   the payload of this message
//! rows    = count:u32 (index:u32 hash:32)*   by rising index
//! ```
//!
//! The *header* names the body's pieces of [`PIECE_BYTES`] by their hashes, and the root is the
//! header's hash:
//!
//! ```text
//! header  = version:u8 height:u64 body_bytes:u64 hash:32 per piece
//! root    = SHA-256(22 "thimble-state-manifest" header)
//! ```
//!
//! 36 bytes per leaf: about 290 KiB for 2 GiB of memory, fetched in pieces like everything else.
//! The encoding is part of the agreement of a subnet: any change to it, to the leaves or to the
//! records changes roots, and needs another [`VERSION`].
//!
//! This module must not know where bytes are kept, nor which peers request them.

mod clock;
mod decode;
mod encode;
mod leaf;
#[cfg(test)]
mod tests;

use std::fmt;

use pages::MemoryId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Height, blobs::BlobHash};

pub use clock::{Entering, ManifestClock, ManifestPace, RoundCost};
pub use decode::{Body, ManifestError, Object};
pub use encode::{BodyEncoder, PieceSink};
pub use leaf::{LeafError, encode_leaf, leaf_hash, unpack_leaf};

/// Version of everything the root depends on.
pub const VERSION: u8 = 7;
/// Bytes of one leaf: 64 pages, so that one 64-bit word can state which of them are zero.
pub const LEAF_BYTES: usize = 256 << 10;
/// Bytes of one piece of the body.
pub const PIECE_BYTES: usize = 256 << 10;
/// Longest chunk that is ever fetched: a leaf of a memory with no zero page. Headers of more pieces
/// than fit are refused.
pub const CHUNK_BYTES_MAX: usize = LEAF_BYTES + leaf::MASK_BYTES;
/// Pieces a body may have: bodies are at most 2 GiB, for states of 14 TiB.
pub const PIECES_MAX: u64 = 8191;
const _: () = assert!(PIECES_MAX * PIECE_BYTES as u64 <= 2 << 30, "bodies are at most 2 GiB");
const _: () = assert!(
    Header::FIXED_BYTES + 32 * PIECES_MAX as usize <= CHUNK_BYTES_MAX,
    "a header is one chunk"
);

/// SHA-256 of a leaf as it is sent, of a piece, or the root.
pub type LeafHash = [u8; 32];

/// One of the objects a state consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectId {
    /// The stream of records.
    Records,
    /// A heap or a stable memory.
    Memory(MemoryId),
    /// A module or a chunk of one.
    Blob(BlobHash),
    /// Payload of the message of this number.
    Payload(u64),
}

/// A piece that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChunkId {
    /// Piece of the manifest: 0 is the header, `n` the piece `n - 1` of the body.
    Manifest(u32),
    /// Leaf of an object.
    Leaf(ObjectId, u32),
}

impl ChunkId {
    /// For the wire: a tag, the object's key, the index.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + 32 + 4);
        let index = match self {
            Self::Manifest(index) => {
                bytes.push(0);
                index
            }
            Self::Leaf(object, index) => {
                encode::put_object_key(&mut bytes, object);
                index
            }
        };
        bytes.extend_from_slice(&index.to_be_bytes());
        bytes
    }

    /// Inverse of [`ChunkId::to_bytes`]; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (key, index) = bytes.split_last_chunk::<4>()?;
        let index = u32::from_be_bytes(*index);
        let (tag, key) = key.split_first()?;
        match (tag, key.len()) {
            (0, 0) => Some(Self::Manifest(index)),
            (1, 0) => Some(Self::Leaf(ObjectId::Records, index)),
            (2, _) => Some(Self::Leaf(
                ObjectId::Memory(MemoryId(u64::from_be_bytes(key.try_into().ok()?))),
                index,
            )),
            (3, _) => Some(Self::Leaf(ObjectId::Blob(key.try_into().ok()?), index)),
            (4, _) => {
                let number = u64::from_be_bytes(key.try_into().ok()?);
                Some(Self::Leaf(ObjectId::Payload(number), index))
            }
            _ => None,
        }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(0) => write!(f, "the manifest's header"),
            Self::Manifest(index) => write!(f, "piece {} of the manifest", index - 1),
            Self::Leaf(ObjectId::Records, index) => write!(f, "leaf {index} of the records"),
            Self::Leaf(ObjectId::Memory(id), index) => write!(f, "leaf {index} of memory {}", id.0),
            Self::Leaf(ObjectId::Payload(number), index) => {
                write!(f, "leaf {index} of the payload of message {number}")
            }
            Self::Leaf(ObjectId::Blob(hash), index) => {
                write!(f, "leaf {index} of blob ")?;
                hash.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The uppermost part of a manifest: what the root is the hash of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Height of the state.
    pub height: Height,
    /// Length of the body.
    pub body_bytes: u64,
    /// Hashes of its pieces, each [`PIECE_BYTES`] long but the last.
    pub pieces: Vec<LeafHash>,
}

impl Header {
    const FIXED_BYTES: usize = 1 + 8 + 8;

    /// The header as it is hashed and sent: version, fixed fields, hashes of the pieces.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::FIXED_BYTES + 32 * self.pieces.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.height.0.to_be_bytes());
        bytes.extend_from_slice(&self.body_bytes.to_be_bytes());
        self.pieces.iter().for_each(|hash| bytes.extend_from_slice(hash));
        bytes
    }

    /// Reads a header. Its size is bounded by that of `bytes`.
    ///
    /// # Errors
    /// When it is of another version, does not have as many hashes as its body has pieces, or
    /// describes a body beyond [`PIECES_MAX`] pieces.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        let Some((fixed, hashes)) = bytes.split_first_chunk::<{ Self::FIXED_BYTES }>() else {
            return Err(ManifestError::CutOff);
        };
        let [version, numbers @ ..] = fixed;
        if *version != VERSION {
            return Err(ManifestError::Version(*version));
        }
        let number =
            |at: usize| numbers[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let (height, body_bytes) = (Height(number(0)), number(8));
        let count = body_bytes.div_ceil(PIECE_BYTES as u64);
        if count > PIECES_MAX {
            return Err(ManifestError::TooLong(body_bytes));
        }
        let (pieces, rest) = hashes.as_chunks::<32>();
        if pieces.len() as u64 != count || !rest.is_empty() {
            return Err(ManifestError::Pieces { body_bytes, hashes_bytes: hashes.len() as u64 });
        }
        Ok(Self { height, body_bytes, pieces: pieces.to_vec() })
    }

    /// The hash that the subnet certifies.
    pub fn root(&self) -> LeafHash {
        root_of(&self.to_bytes())
    }

    /// Length of piece `index` of the body; `None` if there is none.
    pub fn piece_bytes(&self, index: u32) -> Option<usize> {
        let start = u64::from(index) * PIECE_BYTES as u64;
        let left = self.body_bytes.checked_sub(start).filter(|left| *left > 0)?;
        usize::try_from(left.min(PIECE_BYTES as u64)).ok()
    }
}

/// Root of an encoded header.
pub fn root_of(header: &[u8]) -> LeafHash {
    let mut hasher = Sha256::new();
    hasher.update(b"\x16thimble-state-manifest");
    hasher.update(header);
    hasher.finalize().into()
}

/// Hash of a piece of the body, or of a leaf of the records, a blob or a payload: of its bytes.
pub fn piece_hash(bytes: &[u8]) -> LeafHash {
    Sha256::digest(bytes).into()
}

/// Number of leaves of a stream of `bytes` bytes.
pub fn leaves_of(bytes: u64) -> u64 {
    bytes.div_ceil(LEAF_BYTES as u64)
}

/// Length of leaf `index` of a stream of `length` bytes; `None` if there is no such leaf.
pub fn stream_leaf_bytes(length: u64, index: u32) -> Option<usize> {
    let start = u64::from(index) * LEAF_BYTES as u64;
    let left = length.checked_sub(start).filter(|left| *left > 0)?;
    usize::try_from(left.min(LEAF_BYTES as u64)).ok()
}
