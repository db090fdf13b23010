//! A subnet of several nodes behind the seam; `docs/internals/consensus.md` describes it.
//!
//! Agreement is done by commonware's simplex with votes by node keys; marshal stores the blocks
//! that are agreed on and fetches missing ones. Everything here but [`network`] is generic in
//! runtime and network, and none of it knows what a call means.

mod actor;
pub mod adversary;
mod application;
mod batching;
mod blobs;
mod block;
mod calls;
mod config;
mod deps;
mod engine;
#[cfg(test)]
mod formats;
pub mod fuzz;
mod greeting;
mod ingress;
mod journal;
mod key;
mod lag;
mod network;
mod outcalls;
mod peer_queue;
mod peers;
mod published;
mod queries;
mod recent_speakers;
mod resharing;
mod runtime;
mod shares;
mod state_sync;
mod storage_retry;
mod voters;
mod votes;
mod wire;

pub(crate) use self::block::CallName;
use self::ingress::{DeliveredBlock, Input};
pub use self::{
    actor::{Subnet, SubnetStatus},
    blobs::BlobLog,
    config::{StartError, SubnetConfig},
    engine::{
        ChannelName, Channels, ConsensusEngine, IdentityLayer, Peering, SenderLayer, Transport,
    },
    greeting::LimitsDiffer,
    key::EngineKeyError,
    published::SubnetProgress,
    resharing::{Arithmetic, KeyStore, arithmetic},
    runtime::{Attempt, Layer, LayeredRuntime, Operation},
};
