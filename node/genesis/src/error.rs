//! Why a file of the ceremony was refused. The text is for people; the caller adds which file it
//! was.

use ic_principal::Principal;
use nidkg::{DealingError, DecodeError, KeyError, SessionError, TranscriptError};
use thiserror::Error;

use crate::{ADDRESS_BYTES_MAX, NODES_MAX, encoding::VERSION};

/// Why a file was refused.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum GenesisError {
    #[error("{what} has {bytes} bytes; at most {bytes_max} are read")]
    TooLarge { what: &'static str, bytes: usize, bytes_max: usize },
    #[error("{what} is not what it should be: {error}")]
    Json { what: &'static str, error: serde_json::Error },
    #[error("{what} has version {found}; this program reads version {VERSION}")]
    Version { what: &'static str, found: u32 },
    #[error("the node key {0} is not the public key of an Ed25519 key pair")]
    NodeKey(String),
    /// The id is the hash of the key.
    #[error("the record is for node {stated}, but its node key is that of node {actual}")]
    NodeId { stated: String, actual: Principal },
    #[error("the encryption key of node {node}: {error}")]
    EncryptionKey { node: Principal, error: KeyError },
    #[error(
        "the signature of the record of node {0} does not verify: it was changed, or not made by \
         that node"
    )]
    RecordSignature(Principal),
    #[error(
        "`{address}` is no address: {why}; HOST:PORT is meant, at most {ADDRESS_BYTES_MAX} bytes, \
         like 10.0.0.1:4000 or node1.example.org:4000"
    )]
    Address {
        /// The address as given, cut to 60 characters.
        address: String,
        why: &'static str,
    },
    #[error("{0} nodes; a subnet has 1 to {NODES_MAX}")]
    Nodes(usize),
    #[error("two nodes of the plan have the same {what}, {value}")]
    Twice { what: &'static str, value: String },
    #[error("the nodes of the plan do not stand by rising node key: {after} follows {before}")]
    Order { before: Principal, after: Principal },
    #[error("the plan's threshold is {stated}; for {nodes} nodes it is {right}")]
    Threshold { stated: u32, right: u32, nodes: usize },
    #[error(
        "the plan's time, {0} seconds since 1970, is too far away to be counted in nanoseconds"
    )]
    Time(u64),
    #[error("the plan is no key generation: {0}")]
    Session(#[from] SessionError),
    #[error("the dealing of node {dealer} is for the plan {stated}, this plan is {plan}")]
    OtherPlan { dealer: Principal, stated: String, plan: String },
    #[error("node {0} is not in the plan")]
    UnknownNode(String),
    #[error(
        "the signature of the dealing of node {0} does not verify: it was changed, or not made by \
         that node"
    )]
    DealingSignature(Principal),
    #[error("the dealing of node {dealer}: {error}")]
    DealingBytes { dealer: Principal, error: DecodeError },
    #[error("node {dealer}: {error}")]
    Dealing { dealer: Principal, error: DealingError },
    #[error("two dealings of node {0}")]
    TwiceDealt(Principal),
    #[error("the dealings of the genesis do not stand in the order of the plan's nodes")]
    DealingOrder,
    #[error("{have} dealings; {need} are needed, one more than nodes that may be faulty")]
    TooFewDealings { have: usize, need: u32 },
    #[error("the transcript: {0}")]
    Transcript(#[from] TranscriptError),
    #[error("the transcript is not the one that the dealings give: it was changed")]
    WrongTranscript,
    #[error(transparent)]
    Bytes(#[from] crate::BytesError),
    #[error("the committee of the transcript: {0}")]
    Committee(#[from] nidkg::BlsError),
}
