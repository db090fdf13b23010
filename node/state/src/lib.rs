//! Replicated state: the state that every node of a subnet agrees on after each block, its storage
//! and its proofs.
//!
//! - [`tree`]: the certified tree, its hashes and witnesses.
//! - [`history`]: the status of every call the subnet knows.
//! - [`certified`]: the state a client can have proved, at one height.
//! - [`manifest`]: the contents of a state, as hashes of pieces that other nodes can fetch.
//! - [`store`], [`blobs`] and [`payloads`]: checkpoints, canister modules and payloads of large
//!   messages, on disk.
//! - [`state_heap`] (of the page store): the heap of the process that holds all of it.
//!
//! Deterministic throughout: no clock, no randomness, no iteration over unordered maps. It must
//! never know of networks, of how blocks are agreed on, or of how a canister's code is run.
pub mod blobs;

mod calls;
mod canister;
mod canister_records;
pub mod certified;
mod cycles;
mod error_codes;
pub mod history;
pub mod manifest;
mod messages;
mod module;
mod node_metrics;
mod numbered_map;
mod outcalls;
mod paused;
pub mod payloads;
mod query_stats;
mod queues;
mod randomness;
mod record;
mod replicated;
mod resting;
mod snapshots;
pub mod store;
pub mod tree;
mod types;

pub use blobs::{BlobError, BlobHash, BlobStore};
pub use calls::*;
pub use canister::*;
pub use canister_records::*;
pub use certified::{
    CertifiedReader, CertifiedState, KeyProof, ManifestClaim, NodeInfo, SubnetInfo, SubnetMetrics,
    SubnetTree, SubnetType, UncertifiedState,
};
pub use cycles::*;
pub use history::{
    HistoryChanges, HistoryEntry, HistoryError, HistoryLimits, IngressHistory, Status,
};
pub use manifest::{ChunkId, ManifestClock, ManifestPace, ObjectId, RoundCost};
pub use messages::*;
pub use module::*;
pub use node_metrics::{AgreedRound, BlockCounts, NodeMetrics, NodeSample};
pub use outcalls::*;
pub use pages::state_heap;
pub use paused::PausedMessage;
pub use payloads::{PayloadError, PayloadPin, PayloadStore, StoredPayload};
pub use query_stats::*;
pub use queues::*;
pub use randomness::*;
pub use record::{NotEncoded, encode_record};
pub use replicated::*;
pub use snapshots::*;
pub use store::{CheckpointDelta, LoadedCheckpoint, MessageReader, StateStore, StoreError};
pub use tree::{CertifiedValue, Digest, LabeledValue, MerkleMap, Subtree};
pub use types::*;

/// All canisters of the subnet.
pub type CanisterMap = MerkleMap<SharedCanister>;
