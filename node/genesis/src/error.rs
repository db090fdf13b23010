//! Why a file of the ceremony was refused. The text is for people; the caller adds which file it
//! was.

use ic_principal::Principal;
use nidkg::{DealingError, DecodeError, KeyError, SessionError, TranscriptError};
use thiserror::Error;

use crate::{ADDRESS_BYTES_MAX, NODES_MAX, encoding::VERSION};

/// Why a file was refused.
#[derive(Debug, Error)]
pub enum GenesisError {
    /// A file with more bytes than are read of its kind.
    #[error("{what} has {bytes} bytes; at most {bytes_max} are read")]
    TooLarge {
        /// Name of the file, for the message.
        what: &'static str,
        /// Size of the file in bytes.
        bytes: usize,
        /// Most bytes that are read of a file of this kind.
        bytes_max: usize,
    },
    /// Not the JSON it must be.
    #[error("{what} is not what it should be: {error}")]
    Json {
        /// Name of the file, for the message.
        what: &'static str,
        /// Where and why.
        error: serde_json::Error,
    },
    /// Written by another program.
    #[error("{what} has version {found}; this program reads version {VERSION}")]
    Version {
        /// Name of the file, for the message.
        what: &'static str,
        /// Version that the file states.
        found: u32,
    },
    /// Not a key.
    #[error("the node key {0} is not the public key of an Ed25519 key pair")]
    NodeKey(String),
    /// The id is the hash of the key.
    #[error("the record is for node {stated}, but its node key is that of node {actual}")]
    NodeId {
        /// As in the file.
        stated: String,
        /// As given by the key.
        actual: Principal,
    },
    /// The encryption key of a node is refused.
    #[error("the encryption key of node {node}: {error}")]
    EncryptionKey {
        /// The node that the encryption key belongs to.
        node: Principal,
        /// Error of the key.
        error: KeyError,
    },
    /// Signature of a record.
    #[error(
        "the signature of the record of node {0} does not verify: it was changed, or not made by \
         that node"
    )]
    RecordSignature(Principal),
    /// Not an address of the form HOST:PORT.
    #[error(
        "`{address}` is no address: {why}; HOST:PORT is meant, at most {ADDRESS_BYTES_MAX} bytes, \
         like 10.0.0.1:4000 or node1.example.org:4000"
    )]
    Address {
        /// The address as given, cut to 60 characters.
        address: String,
        /// The violated rule.
        why: &'static str,
    },
    /// Number of nodes.
    #[error("{0} nodes; a subnet has 1 to {NODES_MAX}")]
    Nodes(usize),
    /// A node or an address twice.
    #[error("two nodes of the plan have the same {what}, {value}")]
    Twice {
        /// The common value: `node id` or `address`.
        what: &'static str,
        /// The node id or address that occurs twice.
        value: String,
    },
    /// The nodes of a plan are not in the order of rising node keys.
    #[error("the nodes of the plan do not stand by rising node key: {after} follows {before}")]
    Order {
        /// Stands before the other, and belongs after it.
        before: Principal,
        /// Stands after it, and belongs before.
        after: Principal,
    },
    /// The threshold of a plan is not the one for its number of nodes.
    #[error("the plan's threshold is {stated}; for {nodes} nodes it is {right}")]
    Threshold {
        /// As in the file.
        stated: u32,
        /// As it must be.
        right: u32,
        /// Of how many.
        nodes: usize,
    },
    /// The time of a plan, in seconds since 1970, exceeds 64 bits of nanoseconds.
    #[error(
        "the plan's time, {0} seconds since 1970, is too far away to be counted in nanoseconds"
    )]
    Time(u64),
    /// The nodes of a plan make no valid key generation session.
    #[error("the plan is no key generation: {0}")]
    Session(#[from] SessionError),
    /// A dealing that names the hash of another plan.
    #[error("the dealing of node {dealer} is for the plan {stated}, this plan is {plan}")]
    OtherPlan {
        /// The node that the dealing names as its dealer.
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
        "the signature of the dealing of node {0} does not verify: it was changed, or not made by \
         that node"
    )]
    DealingSignature(Principal),
    /// Bytes of a dealing.
    #[error("the dealing of node {dealer}: {error}")]
    DealingBytes {
        /// The node that made the dealing.
        dealer: Principal,
        /// Why the bytes cannot be decoded.
        error: DecodeError,
    },
    /// A dealing that could not be made, or failed a check.
    #[error("node {dealer}: {error}")]
    Dealing {
        /// The node that deals.
        dealer: Principal,
        /// The check that failed, or why no dealing could be made.
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
    /// No transcript can be made of the dealings, or no share opened from it.
    #[error("the transcript: {0}")]
    Transcript(#[from] TranscriptError),
    /// The transcript is not the one of the dealings.
    #[error("the transcript is not the one that the dealings give: it was changed")]
    WrongTranscript,
    /// Not the bytes they must be.
    #[error(transparent)]
    Bytes(#[from] crate::BytesError),
    /// The committee of the transcript is refused.
    #[error("the committee of the transcript: {0}")]
    Committee(#[from] nidkg::BlsError),
}
