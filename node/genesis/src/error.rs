//! Why a file of the ceremony was refused. The text is what a person reads; the caller adds which
//! file it was.

use ic_principal::Principal;
use nidkg::{DealingError, DecodeError, KeyError, SessionError, TranscriptError};
use thiserror::Error;

use crate::{ADDRESS_BYTES_MAX, NODES_MAX, encoding::VERSION};

/// Why a file was refused.
#[derive(Debug, Error)]
pub enum GenesisError {
    /// Size.
    #[error("{what} has {bytes} bytes; at most {bytes_max} are read")]
    TooLarge {
        /// Which file.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Not the JSON it must be.
    #[error("{what} is not what it should be: {error}")]
    Json {
        /// Which file.
        what: &'static str,
        /// Where and why.
        error: serde_json::Error,
    },
    /// Written by another program.
    #[error("{what} has version {found}; this program reads version {VERSION}")]
    Version {
        /// Which file.
        what: &'static str,
        /// Version found.
        found: u32,
    },
    /// Not a key.
    #[error("the node key {0} is not the public key of an Ed25519 key pair")]
    NodeKey(String),
    /// The id is the hash of the key.
    #[error("the record is for node {stated}, but its node key is that of node {actual}")]
    NodeId {
        /// As the file says.
        stated: String,
        /// As the key says.
        actual: Principal,
    },
    /// Encryption key.
    #[error("the encryption key of node {node}: {error}")]
    EncryptionKey {
        /// Whose.
        node: Principal,
        /// What is wrong with it.
        error: KeyError,
    },
    /// Signature of a record.
    #[error(
        "the signature of the record of node {0} does not verify: it was changed, or not made by that node"
    )]
    RecordSignature(Principal),
    /// Address.
    #[error(
        "`{address}` is no address: {why}; HOST:PORT is meant, at most {ADDRESS_BYTES_MAX} bytes, like 10.0.0.1:4000 or node1.example.org:4000"
    )]
    Address {
        /// As given.
        address: String,
        /// Why not.
        why: &'static str,
    },
    /// Number of nodes.
    #[error("{0} nodes; a subnet has 1 to {NODES_MAX}")]
    Nodes(usize),
    /// A node or an address twice.
    #[error("two nodes of the plan have the same {what}, {value}")]
    Twice {
        /// Of what.
        what: &'static str,
        /// Which.
        value: String,
    },
    /// Order.
    #[error("the nodes of the plan do not stand by rising node key: {after} follows {before}")]
    Order {
        /// Stands first.
        before: Principal,
        /// Stands after it, and belongs before.
        after: Principal,
    },
    /// Threshold.
    #[error("the plan's threshold is {stated}; for {nodes} nodes it is {right}")]
    Threshold {
        /// As the file says.
        stated: u32,
        /// As it must be.
        right: u32,
        /// Of how many.
        nodes: usize,
    },
    /// Time.
    #[error(
        "the plan's time, {0} seconds since 1970, is too far away to be counted in nanoseconds"
    )]
    Time(u64),
    /// Session.
    #[error("the plan is no key generation: {0}")]
    Session(#[from] SessionError),
    /// Another plan.
    #[error("the dealing of node {dealer} is for the plan {stated}, this plan is {plan}")]
    OtherPlan {
        /// Whose dealing.
        dealer: Principal,
        /// Hash that it names.
        stated: String,
        /// Hash of the plan at hand.
        plan: String,
    },
    /// Not of the plan.
    #[error("node {0} is not in the plan")]
    UnknownNode(String),
    /// Signature of a dealing.
    #[error(
        "the signature of the dealing of node {0} does not verify: it was changed, or not made by that node"
    )]
    DealingSignature(Principal),
    /// Bytes of a dealing.
    #[error("the dealing of node {dealer}: {error}")]
    DealingBytes {
        /// Whose.
        dealer: Principal,
        /// Why.
        error: DecodeError,
    },
    /// A dealing that could not be made, or failed a check.
    #[error("node {dealer}: {error}")]
    Dealing {
        /// Whose.
        dealer: Principal,
        /// Which check.
        error: DealingError,
    },
    /// A dealer twice.
    #[error("two dealings of node {0}")]
    TwiceDealt(Principal),
    /// Order of dealings.
    #[error("the dealings of the genesis do not stand in the order of the plan's nodes")]
    DealingOrder,
    /// Not enough dealings.
    #[error("{have} dealings; {need} are needed, one more than nodes that may be faulty")]
    TooFewDealings {
        /// How many there are.
        have: usize,
        /// How many there must be.
        need: u32,
    },
    /// Transcript.
    #[error("the transcript: {0}")]
    Transcript(#[from] TranscriptError),
    /// Not what the dealings give.
    #[error("the transcript is not the one that the dealings give: it was changed")]
    WrongTranscript,
    /// Not the bytes they must be.
    #[error(transparent)]
    Bytes(#[from] crate::BytesError),
    /// Committee.
    #[error("the committee of the transcript: {0}")]
    Committee(#[from] nidkg::BlsError),
}
