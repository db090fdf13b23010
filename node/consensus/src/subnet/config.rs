//! Configuration of a member, and why it may not start.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use genesis::Summary;
use state::{SubnetKey, Time};
use thiserror::Error;
use zeroize::Zeroizing;

use super::{Arithmetic, EngineKeyError, KeyStore};

/// Configuration of a member.
pub struct SubnetConfig {
    /// The Ed25519 secret that this node is known by to its peers.
    pub node_secret: Zeroizing<[u8; 32]>,
    /// How the ceremony left the subnet's key.
    pub genesis: Summary,
    /// How it is held as of the state execution resumes from, if that is another.
    pub key: Option<SubnetKey>,
    /// This node's shares.
    pub keys: Box<dyn KeyStore>,
    /// Resources of the machine for resharing.
    pub arithmetic: Arithmetic,
    /// Limits that all members must have alike.
    pub agreed: Vec<(String, u64)>,
    /// Time of the first state.
    pub genesis_time: Time,
    /// Where peers reach this node.
    pub listen: SocketAddr,
    /// `host:port` of members that are elsewhere than they stated, by the text of their node ids.
    pub addresses: BTreeMap<String, String>,
    /// The engine's own storage.
    pub directory: PathBuf,
    /// Most bytes of an envelope.
    pub call_bytes: u64,
}

/// Why a node cannot take part.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum StartError {
    #[error(transparent)]
    Key(#[from] EngineKeyError),
    #[error("`{0}` is no address of a peer: write HOST:PORT")]
    Address(String),
    #[error(
        "cannot listen on {listen} for the other members: {error}; choose another address with \
         --p2p-listen, or stop what uses it"
    )]
    Listen { listen: SocketAddr, error: std::io::Error },
    #[error("this node's share of the subnet's key: {0}")]
    Share(String),
    #[error("what is stored of the subnet's key does not decode: {0}")]
    Summary(String),
    #[error(
        "block {height} is not of epoch {stored}, which the subnet's key is in: \
         consensus.blocks_per_epoch was changed, and cannot be"
    )]
    Epoch { height: u64, stored: u64 },
    #[error("the engine cannot be started: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Log(#[from] crate::LogError),
    #[error(transparent)]
    Records(#[from] disk::records::RecordError),
}
