//! Gossip between relay nodes: which peer gets which message, and which peers are worth talking to.
//!
//! An implementation of gossipsub 1.1 (libp2p specifications, `pubsub/gossipsub`), with the
//! IDONTWANT message of version 1.2, for a service node that holds every payload once, in a file.
//! The router never sees a payload: it moves references `M` of fixed size that its user passes in,
//! and its user reads the bytes when a peer's stream takes them.
//!
//! # Path of a message
//!
//! 1. A frame comes from a peer. For each message in it, [`Router::offer`] returns whether it is
//!    new.
//! 2. The user validates it and writes it to its log. Then [`Router::accept`] with the reference,
//!    [`Router::reject`] if it breaks the protocol (its sender's score falls), or
//!    [`Router::forget`] if this machine could not keep it (it may come again).
//! 3. Accepting puts the reference into the queues of the peers that get it: all peers of the
//!    topic's mesh but the sender; for a message of this node's own clients, all peers of the topic
//!    (flood publishing). Peers outside the mesh hear of it by IHAVE at the next heartbeats, and
//!    get it from the history by IWANT.
//! 4. [`Router::poll_next`] returns the next item to send on a peer's connection: control messages
//!    first, then references.
//!
//! [`Router::heartbeat`], once a second, keeps meshes between `d_low` and `d_high`, scores peers,
//! offers history, and forgets.
//!
//! # Bounds
//!
//! Topics are shards of one cluster, of which there are 1,024: a peer's subscriptions are a set of
//! bits. Queues hold `queue_messages` references each; the oldest leaves first, and is counted. The
//! set of seen messages, the history, promises, back-offs and retained scores have a number of
//! entries each, in [`Config`]; when one is full its oldest entries leave early. Control messages
//! waiting for a peer are bounded by kind ([`Control`]). Nothing grows with uptime.
//!
//! # Out of scope
//!
//! It must never know sockets, payloads, clocks. Time and randomness are passed in, and iteration
//! is over ordered maps: the same calls give the same network.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod control;
mod heartbeat;
mod history;
mod peer;
mod router;
mod score;
mod seen;
#[cfg(test)]
mod tests;
mod topics;

pub use config::{Config, ScoreConfig};
pub use control::{Control, Outgoing};
pub use protocol::gossip::MessageId;
pub use router::{Counters, Offer, PeerView, Refusal, Router, RouterUsage};
pub use topics::{SHARDS, Shard, Topics};

/// A connected peer, numbered by the owner of the connections. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u64);
