//! Agreement on what happens next, behind one seam.
//!
//! The rest of the node sees [`Consensus`] only: finalised batches come out in height order and at
//! least once, state roots go in, certificates come out per height. A subnet of one makes its
//! blocks by itself ([`SingleNode`]); several nodes agree on theirs ([`Subnet`]).
//!
//! A batch is durable before its certificate exists; therefore every state that a client saw
//! certified is executed again after a crash.
//!
//! This crate must not know what a message means, how it is executed, or where canister memory is
//! stored.

mod block_log;
mod certifier;
mod clock;
mod newest;
mod outcalls;
mod pool;
mod replay;
mod seam;
mod single;
mod state_sync;
mod subnet;

pub use block_log::{BlockLog, LogError, LoggedBlock};
pub use certifier::{Certificate, CertificateCheck, Certifier, CertifyError};
pub use clock::{BlockClock, ClockStatus, SystemClock, WallClock};
pub use outcalls::{OpenOutcall, OutcallAnswers};
pub use pool::{
    HELD_FOR, IngressPool, NextHeld, PoolRefusal, PoolStatus, SubmitOutcome, TakenCall,
};
pub use replay::LogReplay;
pub use seam::{
    Consensus, ConsensusDeps, ConsensusError, CountedQueries, Demand, FinalisedBatch,
    FinalisedBlock, RecordedOutcome, Step,
};
pub use single::{RandomSource, SingleNode, SystemRandom};
pub use state_sync::{
    CHUNK_NAME_BYTES_MAX, CHUNKS_WANTED_MAX, ChunkRequest, ChunkSource, FetchedChunks,
    OfferedState, StateOffer, StateServer, SyncProgress,
};
pub use subnet::{
    Arithmetic, Attempt, BlobLog, ChannelName, Channels, ConsensusEngine, EngineKeyError,
    IdentityLayer, KeyStore, Layer, LayeredRuntime, LimitsDiffer, Operation, Peering, SenderLayer,
    StartError, Subnet, SubnetConfig, SubnetProgress, SubnetStatus, Transport, arithmetic,
};
#[doc(hidden)]
pub use subnet::{adversary, fuzz};
