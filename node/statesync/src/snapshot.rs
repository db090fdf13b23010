//! A state at the height of a manifest, kept unchanged while the node continues, and its chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pages::{HeldLayout, MemoryId};
use state::manifest::{Header, LEAF_BYTES, LeafHash, ObjectId, stream_leaf_bytes};
use state::store::LoadedCheckpoint;
use state::{
    BlobHash, BlobStore, ChunkId, Height, PayloadPin, PayloadStore, StateArc, StoredPayload,
};
use thiserror::Error;

use crate::compute::LeafReader;

/// The files behind a state.
pub struct PinnedFiles {
    /// The memories of all canisters, as of that state.
    pub layouts: BTreeMap<MemoryId, HeldLayout>,
    /// Modules and uploaded chunks that the state names.
    pub blobs: BTreeSet<BlobHash>,
    /// Store of those blobs.
    pub blob_store: Arc<BlobStore>,
    /// Payloads of large messages of that state, by number.
    pub payloads: Vec<StateArc<StoredPayload>>,
    /// Store of those payloads.
    pub payload_store: Arc<PayloadStore>,
    /// Keeps them there.
    pub payload_pin: PayloadPin,
}

/// Why a chunk is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ServeError {
    #[error("the state of height {} is not kept{}", .asked.0, .newest.map_or_else(String::new, |newest| format!("; the newest is that of height {}", newest.0)))]
    NotKept { asked: Height, newest: Option<Height> },
    #[error("the state of height {} does not have {chunk}", .height.0)]
    NoChunk { height: Height, chunk: ChunkId },
    /// This node cannot read it.
    #[error("{chunk} of the state of height {} cannot be read: {reason}", .height.0)]
    Unreadable { height: Height, chunk: ChunkId, reason: String },
}

/// A state at the height of a manifest, see the module.
pub struct Snapshot {
    header: Header,
    root: LeafHash,
    checkpoint: LoadedCheckpoint,
    pinned: PinnedFiles,
}

impl Snapshot {
    /// `checkpoint` is the one that the manifest was computed of, `pinned` the files behind it.
    pub fn new(header: Header, checkpoint: LoadedCheckpoint, pinned: PinnedFiles) -> Self {
        let numbers = pinned.payloads.iter().map(|payload| payload.number);
        debug_assert!(numbers.is_sorted(), "payloads are not ordered by number");
        Self { root: header.root(), header, checkpoint, pinned }
    }

    pub(crate) fn height(&self) -> Height {
        self.header.height
    }

    pub(crate) fn root(&self) -> LeafHash {
        self.root
    }

    /// Whether it needs this blob.
    pub(crate) fn has_blob(&self, blob: &BlobHash) -> bool {
        self.pinned.blobs.contains(blob)
    }

    /// One chunk. Takes memory for that chunk and a leaf.
    pub(crate) fn chunk(&self, chunk: ChunkId) -> Result<Vec<u8>, ServeError> {
        let height = self.height();
        match self.read(chunk) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(ServeError::NoChunk { height, chunk }),
            Err(error) => Err(ServeError::Unreadable { height, chunk, reason: error.to_string() }),
        }
    }

    fn read(&self, chunk: ChunkId) -> Result<Option<Vec<u8>>, Box<dyn std::error::Error>> {
        match chunk {
            ChunkId::Manifest(0) => Ok(Some(self.header.to_bytes())),
            ChunkId::Manifest(index) => {
                let Some(bytes) = self.header.piece_bytes(index - 1) else { return Ok(None) };
                let piece = self.checkpoint.manifest_piece(index - 1)?;
                if piece.len() != bytes {
                    return Err(format!("it has {} bytes and not {bytes}", piece.len()).into());
                }
                Ok(Some(piece))
            }
            ChunkId::Leaf(ObjectId::Records, index) => {
                let Some(start) = self.checkpoint.manifest_start(index)? else { return Ok(None) };
                let mut leaf = Vec::new();
                self.checkpoint.row_stream(Some(&start)).leaf(&mut leaf, LEAF_BYTES)?;
                Ok(Some(leaf))
            }
            ChunkId::Leaf(ObjectId::Memory(id), index) => {
                let Some(layout) = self.pinned.layouts.get(&id) else { return Ok(None) };
                let mut reader = LeafReader::default();
                Ok(reader.read(layout, index)?.then_some(reader.encoded))
            }
            ChunkId::Leaf(ObjectId::Blob(hash), index) => {
                if !self.pinned.blobs.contains(&hash) {
                    return Ok(None);
                }
                let length = self.pinned.blob_store.bytes(&hash)?.ok_or("its file is gone")?;
                let Some(bytes) = stream_leaf_bytes(length, index) else { return Ok(None) };
                let mut leaf = vec![0; bytes];
                self.pinned.blob_store.read(
                    &hash,
                    u64::from(index) * LEAF_BYTES as u64,
                    &mut leaf,
                )?;
                Ok(Some(leaf))
            }
            ChunkId::Leaf(ObjectId::Payload(number), index) => {
                let payloads = &self.pinned.payloads;
                let found = payloads.binary_search_by_key(&number, |payload| payload.number);
                let Some(payload) = found.ok().and_then(|at| payloads.get(at)) else {
                    return Ok(None);
                };
                Ok(self.pinned.payload_store.read_leaf(payload, index)?)
            }
        }
    }
}
