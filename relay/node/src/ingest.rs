//! The only path of a message into the node: validated, written to the log once, then passed to
//! gossip, to filters, and to the index of the store.
//!
//! Every accepted message is then passed on, or counted with its reason. A message is accepted when
//! it is in the log: from there it survives this process.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use accounting::Reservation;
use bytes::Bytes;
use protocol::{
    ContentTopic, MessageError, MessageHash, PubsubTopic, WakuMessage, autoshard,
    gossip::message_id, message_hash, signed::SignatureError,
};
use router::{Offer, Peer, Shard};
use store::{AppendError, AppendOutcome, Arrival};
use thiserror::Error;

use crate::{counters::Reason, latencies, node::Node, settings::count};

/// How long a client's message is held back at most before it is refused.
const HOLD_BACK: Duration = Duration::from_secs(5);
/// Between two looks whether there is room.
const RETRY: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client of this node: light push or HTTP.
    Client,
    /// A relay peer.
    Relay(Peer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedMessage {
    /// Its deterministic hash.
    pub(crate) hash: MessageHash,
    /// Relay peers it was passed to.
    pub(crate) relay_peers: usize,
    /// It had arrived before, and was passed on then.
    pub(crate) known: bool,
}

#[derive(Clone, Debug, Error)]
pub(crate) enum RejectReason {
    #[error(transparent)]
    Invalid(#[from] MessageError),
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("a message of {bytes} bytes, messages.message_bytes is {most}; split the payload")]
    TooLarge { bytes: usize, most: usize },
    #[error("{0}")]
    Topic(String),
    #[error("no relay peer of {topic} is connected, and {least} must be; try another service node")]
    NoPeers { topic: String, least: usize },
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("seen before")]
    Duplicate,
}

impl RejectReason {
    /// Under which it is counted.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Invalid(MessageError::TooLarge { .. }) | Self::TooLarge { .. } => {
                Reason::TooLarge
            }
            Self::Invalid(_) | Self::Signature(_) => Reason::Invalid,
            Self::Topic(_) => Reason::Topic,
            Self::NoPeers { .. } => Reason::NoPeers,
            Self::Busy(_) => Reason::Busy,
            Self::Unavailable(_) => Reason::Unavailable,
            Self::Duplicate => Reason::Duplicate,
        }
    }
}

impl Node {
    /// The shard that a client means: the one it names, or the one that follows from the content
    /// topic.
    pub(crate) fn shard_for(
        &self,
        pubsub_topic: Option<&str>,
        content_topic: &str,
    ) -> Result<Shard, RejectReason> {
        let shard = match pubsub_topic.filter(|topic| !topic.is_empty()) {
            Some(topic) => self.shard_of(topic)?,
            None => {
                let parsed = ContentTopic::parse(content_topic).map_err(|error| {
                    RejectReason::Topic(format!(
                        "no pubsub topic is named, and none follows from content topic \
                         `{content_topic}`: {error}"
                    ))
                })?;
                autoshard(&parsed, self.settings.shards_in_cluster)
            }
        };
        if self.shards.contains(shard) {
            return Ok(shard);
        }
        Err(RejectReason::Topic(format!(
            "this node does not serve {}; it serves {}",
            self.topic_name(shard),
            self.settings.served()
        )))
    }

    /// The shard of a pubsub topic of this node's cluster.
    pub(crate) fn shard_of(&self, pubsub_topic: &str) -> Result<Shard, RejectReason> {
        let topic: PubsubTopic =
            pubsub_topic.parse().map_err(|error| RejectReason::Topic(format!("{error}")))?;
        if topic.cluster == self.settings.cluster && topic.shard < router::SHARDS {
            return Ok(topic.shard);
        }
        Err(RejectReason::Topic(format!(
            "{pubsub_topic} is not of this node's cluster {}, which has shards 0 to {}",
            self.settings.cluster,
            router::SHARDS - 1
        )))
    }

    /// Takes a message of a client, which `bytes` decode to. `held` is their memory.
    ///
    /// In a task of its own: a message that was written is passed on, also when the connection that
    /// brought it ends meanwhile.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        shard: Shard,
        message: WakuMessage,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<AcceptedMessage, RejectReason> {
        let node = self.clone();
        let taking = tokio::spawn(async move {
            let taken = node.publish_inner(shard, &message, bytes, held).await;
            node.count(Source::Client, &taken);
            taken
        });
        taking.await.unwrap_or_else(|_| Err(ending()))
    }

    async fn publish_inner(
        &self,
        shard: Shard,
        message: &WakuMessage,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<AcceptedMessage, RejectReason> {
        self.check_size(&bytes)?;
        let least = self.settings.min_relay_peers;
        if least > 0 && self.router().reachable(shard, self.now()) < least {
            return Err(RejectReason::NoPeers { topic: self.topic_name(shard), least });
        }
        self.check_signature(shard, message)?;
        self.wait_for_room(shard, message.content_topic.as_str()).await?;
        let id = message_id(&bytes);
        let (hash, AppendOutcome { message: stored, known, .. }) =
            self.append(Source::Client, shard, message, bytes, held).await?;
        if known {
            // It was passed on when it first arrived. This copy may be other bytes with the same
            // hash, which are not in the log: a peer that fetched them by their id would get
            // different bytes.
            return Ok(AcceptedMessage { hash, relay_peers: 0, known });
        }
        self.counters.payloads.observe(message.payload.len());
        let relay_peers = self.router().publish(shard, id, stored.clone(), self.now());
        self.paces.published(shard, stored.len());
        self.filter.deliver(shard, message.content_topic.as_str(), &stored);
        self.subscribers.deliver(shard, message.content_topic.as_str(), &stored);
        Ok(AcceptedMessage { hash, relay_peers, known: false })
    }

    /// Holds a client's message back while those it goes to have no room: for a moment, and within
    /// the bounds of [`crate::pace`].
    async fn wait_for_room(&self, shard: Shard, content_topic: &str) -> Result<(), RejectReason> {
        let deadline = Instant::now() + HOLD_BACK;
        loop {
            let now = Instant::now();
            let slow = if !self.filter.has_room(shard, content_topic, now) {
                "receivers of this content topic"
            } else if !self.router().has_room(shard) && self.paces.is_above_floor(shard, now) {
                "relay peers of this topic"
            } else {
                return Ok(());
            };
            if now >= deadline {
                self.counters.held_back.fetch_add(1, Relaxed);
                return Err(RejectReason::Busy(format!(
                    "{slow} read slower than messages come; try again"
                )));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Takes a message of a relay peer; in a task of its own, like [`Self::publish`].
    pub(crate) async fn relay(
        self: &Arc<Self>,
        peer: Peer,
        shard: Shard,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<AcceptedMessage, RejectReason> {
        let node = self.clone();
        let taking = tokio::spawn(async move {
            let taken = node.relay_inner(peer, shard, bytes, held).await;
            node.count(Source::Relay(peer), &taken);
            taken
        });
        taking.await.unwrap_or_else(|_| Err(ending()))
    }

    async fn relay_inner(
        &self,
        peer: Peer,
        shard: Shard,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<AcceptedMessage, RejectReason> {
        self.check_size(&bytes)?;
        let id = message_id(&bytes);
        match self.router().offer(peer, shard, id, bytes.len(), self.now()) {
            Offer::New => {}
            Offer::Duplicate => return Err(RejectReason::Duplicate),
            Offer::Refused(_) => {
                return Err(RejectReason::Topic(format!(
                    "{} is not relayed",
                    self.topic_name(shard)
                )));
            }
        }
        let message = match WakuMessage::decode(bytes.clone()) {
            Ok(message) => message,
            Err(error) => {
                self.router().reject(peer);
                return Err(error.into());
            }
        };
        if let Err(error) = self.check_signature(shard, &message) {
            // The network rejects a message without a signature. One that is late may be late by
            // this machine's clock: it is not passed on, and its sender is not at fault.
            if error == SignatureError::Unsigned {
                self.router().reject(peer);
            }
            return Err(error.into());
        }
        match self.append(Source::Relay(peer), shard, &message, bytes, held).await {
            // As above; the peer's id stays among those seen, so that it is not handled again.
            Ok((_, AppendOutcome { known: true, .. })) => Err(RejectReason::Duplicate),
            Ok((hash, AppendOutcome { message: stored, .. })) => {
                self.counters.payloads.observe(message.payload.len());
                let relay_peers = self.router().accept(peer, shard, id, stored.clone());
                self.filter.deliver(shard, message.content_topic.as_str(), &stored);
                self.subscribers.deliver(shard, message.content_topic.as_str(), &stored);
                Ok(AcceptedMessage { hash, relay_peers, known: false })
            }
            Err(rejected) => {
                // Another peer may bring it when there is room again.
                self.router().forget(&id);
                Err(rejected)
            }
        }
    }

    /// Checks a message of a protected shard, and counts the outcome; others pass.
    fn check_signature(&self, shard: Shard, message: &WakuMessage) -> Result<(), SignatureError> {
        let Some(key) = self.protected.get(&shard) else { return Ok(()) };
        let checked = key.check(&self.topic(shard), message, (self.clock)());
        let counters = &self.counters;
        let count = match checked {
            Ok(()) => &counters.signatures_accepted,
            Err(_) => &counters.signatures_refused,
        };
        count.fetch_add(1, Relaxed);
        checked
    }

    /// This node may take less than the network does; a sender of more is not at fault.
    fn check_size(&self, bytes: &Bytes) -> Result<(), RejectReason> {
        let (bytes, most) = (bytes.len(), count(self.settings.limits.messages.message_bytes));
        // A message too large for the network is refused where it is decoded, and counts against
        // its peer.
        if bytes > most && bytes <= protocol::message::MESSAGE_BYTES_MAX {
            return Err(RejectReason::TooLarge { bytes, most });
        }
        Ok(())
    }

    async fn append(
        &self,
        source: Source,
        shard: Shard,
        message: &WakuMessage,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<(MessageHash, AppendOutcome), RejectReason> {
        let topic = self.topic(shard);
        let hash = message_hash(&topic, message);
        let now_ns = (self.clock)();
        let timestamp_ns = message.timestamp.filter(|at| *at != 0).unwrap_or(now_ns);
        let drift = Duration::from_nanos(timestamp_ns.abs_diff(now_ns));
        let off_the_clock = drift > self.clock_drift;
        let kept = self.settings.store && !message.is_ephemeral() && !off_the_clock;
        let arrival = Arrival {
            hash: hash.0,
            timestamp_ns,
            pubsub_topic: topic,
            content_topic: Arc::from(message.content_topic.as_str()),
            kept,
            // A client gets an error, and tries elsewhere; a peer's message is passed on to others.
            may_pass: matches!(source, Source::Relay(_)),
        };
        // Its memory stays held until the bytes are written.
        let began = Instant::now();
        let appending = self
            .store
            .append(arrival, bytes, held)
            .map_err(|full| RejectReason::Busy(full.to_string()))?;
        let appended = appending.await;
        latencies::observe_since(&self.latencies.append, began);
        match appended {
            Ok(appended) => {
                let counters = &self.counters;
                if message.is_ephemeral() {
                    counters.ephemeral.fetch_add(1, Relaxed);
                } else if off_the_clock {
                    counters.off_the_clock.fetch_add(1, Relaxed);
                } else if kept && !appended.kept {
                    counters.without_room.fetch_add(1, Relaxed);
                }
                Ok((hash, appended))
            }
            Err(error @ AppendError::TooLarge { .. }) => {
                Err(RejectReason::Topic(error.to_string()))
            }
            Err(error) => Err(RejectReason::Unavailable(error.to_string())),
        }
    }

    fn count(&self, source: Source, taken: &Result<AcceptedMessage, RejectReason>) {
        let taken = match taken {
            Ok(accepted) if accepted.known => Err(Reason::Duplicate),
            Ok(_) => Ok(()),
            Err(rejected) => Err(rejected.reason()),
        };
        self.counters.message(source, taken);
    }
}

/// The task that took a message is gone, because the node ends.
fn ending() -> RejectReason {
    RejectReason::Unavailable("this node is stopping".into())
}
