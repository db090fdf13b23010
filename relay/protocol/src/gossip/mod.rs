//! The gossip RPC: subscriptions, published messages and control messages between relays.
//!
//! # Reading
//!
//! [`Rpc::decode`] reads one RPC within [`Limits`]. Damage, which no peer that follows the protocol
//! sends, is an error, for which the peer may be dropped. Entries beyond a limit are skipped and
//! counted instead: the limits are this node's, and peers with other parameters send more. So are
//! meaningless entries: ids that are not 32 bytes, messages without data, entries whose topic is
//! absent, too long or not UTF-8.
//!
//! # Bounds
//!
//! Topics and data are slices of the input; ids are copied, 32 bytes for the 34 they have on the
//! wire. With the default limits a decoded RPC has no more than twice the bytes of its input plus
//! 512 KiB, the latter for an RPC of very many tiny messages. The messages nest three deep.
//!
//! # Writing
//!
//! [`control_frames`] packs control messages into frames of a stated size. [`publish_frame`] writes
//! the bytes around a message that is stored elsewhere.
//!
//! It must never know peers, scores, meshes and time. Waku relays sign nothing: a published message
//! with an author, a sequence number, a signature or a key is read and marked
//! ([`Publish::signed`]).
//!
//! Source: libp2p/specs pubsub, gossipsub 1.0 to 1.2; vacp2p/rfc-index 11.

mod decode;
mod encode;

use bytes::Bytes;
use sha2::{Digest, Sha256};

pub use encode::{CONTROL_FRAME_BYTES_MIN, Control, control_frames, publish_frame};

use crate::message::{FRAME_OVERHEAD_BYTES, MESSAGE_BYTES_MAX};
use crate::text::Text;

/// Name of the protocol. Waku has no other, IDONTWANT of gossipsub 1.2 travels under it too.
pub const PROTOCOL: &str = "/vac/waku/relay/2.0.0";

/// Longest RPC, in bytes, to read or to write, as other relays have it.
pub const RPC_BYTES_MAX: usize = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// Longest peer id in a PRUNE, in bytes; the longest in use has 42.
pub const PEER_ID_BYTES_MAX: usize = 64;

/// Longest signed peer record in a PRUNE, in bytes.
pub const PEER_RECORD_BYTES_MAX: usize = 4096;

mod tag {
    pub(super) const SUBSCRIPTION: u32 = 1;
    pub(super) const PUBLISH: u32 = 2;
    pub(super) const CONTROL: u32 = 3;

    pub(super) const SUBSCRIBE: u32 = 1;
    pub(super) const SUBSCRIBE_TOPIC: u32 = 2;

    pub(super) const FROM: u32 = 1;
    pub(super) const DATA: u32 = 2;
    pub(super) const SEQNO: u32 = 3;
    pub(super) const TOPIC: u32 = 4;
    pub(super) const SIGNATURE: u32 = 5;
    pub(super) const KEY: u32 = 6;

    pub(super) const IHAVE: u32 = 1;
    pub(super) const IWANT: u32 = 2;
    pub(super) const GRAFT: u32 = 3;
    pub(super) const PRUNE: u32 = 4;
    pub(super) const IDONTWANT: u32 = 5;

    /// Of IHAVE, GRAFT and PRUNE.
    pub(super) const CONTROL_TOPIC: u32 = 1;
    pub(super) const IHAVE_IDS: u32 = 2;
    /// Of IWANT and IDONTWANT.
    pub(super) const IDS: u32 = 1;
    pub(super) const PRUNE_PEERS: u32 = 2;
    pub(super) const PRUNE_BACKOFF: u32 = 3;
    pub(super) const PEER_ID: u32 = 1;
    pub(super) const PEER_RECORD: u32 = 2;
}

/// Id of a message in gossip: SHA-256 of its serialised form. Not its [`crate::MessageHash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub [u8; 32]);

/// The id of a serialised message. Source: vacp2p/rfc-index 11.
pub fn message_id(data: &[u8]) -> MessageId {
    MessageId(Sha256::digest(data).into())
}

/// Most entries of each kind in one RPC; further ones are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Subscriptions. Default 1,024, the shards of a cluster.
    pub subscriptions: usize,
    /// Published messages. Default 4,096: an RPC of 200 kB holds fewer of 54 bytes, and the
    /// smallest real ones have more.
    pub publish: usize,
    /// Topics in each of IHAVE, GRAFT and PRUNE. Default 1,024.
    pub topics: usize,
    /// Ids of IHAVE, IWANT and IDONTWANT together. Default 5,000, what other relays announce per
    /// heartbeat.
    pub ids: usize,
    /// Peers offered by all PRUNE together. Default 64: others offer 16 for a topic.
    pub peers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { subscriptions: 1024, publish: 4096, topics: 1024, ids: 5000, peers: 64 }
    }
}

/// One RPC. Topics and data share the memory of the frame they came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rpc {
    /// Topics the peer joins and leaves, in order.
    pub subscriptions: Vec<Subscription>,
    /// Messages that the peer publishes or forwards.
    pub publish: Vec<Publish>,
    /// Messages the peer offers.
    pub ihave: Vec<IHave>,
    /// Messages the peer wants, of all IWANT entries.
    pub iwant: Vec<MessageId>,
    /// Topics whose mesh the peer takes this node into.
    pub graft: Vec<Text>,
    /// Topics whose mesh the peer removes this node from.
    pub prune: Vec<Prune>,
    /// Messages the peer does not want, of all IDONTWANT entries.
    pub idontwant: Vec<MessageId>,
    /// Entries that were left out.
    pub skipped: SkipCounts,
}

/// A topic the peer joins or leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The topic, 1 to 256 bytes.
    pub topic: Text,
    /// Whether it joins.
    pub subscribe: bool,
}

/// A message the peer sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The topic, 1 to 256 bytes.
    pub topic: Text,
    /// The serialised message, at least one byte, not looked into.
    pub data: Bytes,
    /// Whether it has an author, a sequence number, a signature or a key, of any length: it
    /// breaks Waku's policy then and must not be relayed.
    pub signed: bool,
}

/// Messages of a topic the peer offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IHave {
    /// The topic, 1 to 256 bytes.
    pub topic: Text,
    /// At least one id.
    pub ids: Vec<MessageId>,
}

/// A topic whose mesh the peer removes this node from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// The topic, 1 to 256 bytes.
    pub topic: Text,
    /// How long to stay out of the mesh, in seconds, as the peer states: not limited here.
    pub backoff_s: Option<u64>,
    /// Other peers the sender recommends.
    pub peers: Vec<PrunePeer>,
}

/// A peer that is recommended by a PRUNE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunePeer {
    /// Its id, 1 to [`PEER_ID_BYTES_MAX`] bytes, not looked into.
    pub peer_id: Bytes,
    /// Its signed record, at most [`PEER_RECORD_BYTES_MAX`] bytes, not looked into.
    pub signed_record: Option<Bytes>,
}

/// Counts of entries left out of an [`Rpc`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipCounts {
    /// Ids that are not 32 bytes.
    pub odd_ids: usize,
    /// Published messages beyond the limit.
    pub messages: usize,
    /// Other entries beyond the limits.
    pub over_limit: usize,
    /// Entries that mean nothing: no usable topic, no data, no usable peer id.
    pub entries: usize,
}
