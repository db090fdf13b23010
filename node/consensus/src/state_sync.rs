//! State sync as consensus carries it: heights, names of chunks and bytes. Execution defines their
//! meaning.

use std::any::Any;

use state::{Height, KeyProof, ManifestClaim};

/// A name of a chunk is never longer: the tag, a hash and an index take 37.
pub const CHUNK_NAME_BYTES_MAX: usize = 64;
/// Chunks that may be asked for and not taken yet, all peers together: a quarter of a megabyte
/// each.
pub const CHUNKS_WANTED_MAX: usize = 12;

/// Shows this node's state to others. Used from several threads.
pub trait StateServer: Send + Sync {
    /// The newest state that can be fetched here.
    fn offer(&self) -> Option<OfferedState>;

    /// The oldest state that is still served to a peer: blocks above it are kept.
    fn oldest(&self) -> Option<Height>;

    /// One chunk. Blocks, as it reads the disk; called for one chunk at a time.
    fn chunk(&self, height: Height, name: &[u8]) -> Result<Vec<u8>, String>;

    /// Keeps the state of this height as long as the returned value lives, within the bounds of its
    /// keeper.
    fn lease(&self, height: Height) -> Option<Box<dyn Any + Send>>;

    /// The content of another node's certificate. Its signature is verified elsewhere.
    fn read_offer(&self, certificate: &[u8]) -> Option<ManifestClaim>;
}

/// A state that this node serves, with its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedState {
    /// Of the state.
    pub height: Height,
    /// A certificate of its manifest and of how the subnet's key is held.
    pub certificate: Vec<u8>,
    /// Proof of the keys of votes, by that certificate. None while the key is held as the ceremony
    /// left it.
    pub key: Option<KeyProof>,
}

/// A state to fetch: the subnet vouches for it, and peers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOffer {
    /// Of the state.
    pub height: Height,
    /// Root of its manifest, certified.
    pub root: [u8; 32],
}

/// Who sent a chunk: the member's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkSource(pub(crate) usize);

/// The next chunks to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkRequest {
    /// Names, most urgent first, [`CHUNKS_WANTED_MAX`] at most. Replaces what was wanted before.
    pub chunks: Vec<Vec<u8>>,
    /// Whose chunks did not lead to the certified root: they are not asked again.
    pub faulty_sources: Vec<ChunkSource>,
    /// Bytes of the state that are there.
    pub bytes_done: u64,
    /// All of them; 0 while that is not known.
    pub bytes_total: u64,
}

/// Chunks that peers sent since the last question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedChunks {
    /// Who sent it, its name, its bytes. May be none: then the node looks whether it is to stop,
    /// and asks again.
    pub chunks: Vec<(ChunkSource, Vec<u8>, Vec<u8>)>,
    /// No peer shows this state any more. Another offer will come.
    pub over: bool,
}

/// How far state sync is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncProgress {
    /// Of the state.
    pub height: Height,
    /// Bytes that are there.
    pub bytes_done: u64,
    /// All of them; 0 while that is not known.
    pub bytes_total: u64,
    /// Peers that sent some of it.
    pub peers: u64,
}
