//! The only path of a message into the node: validated, written to the log once, then passed to
//! gossip, to filters, and to the index of the store.
//!
//! Every accepted message is then passed on, or counted with its reason. A message is accepted when
//! it is in the log: from there it survives this process. On a network with a rate limit its proof
//! is verified before ([`crate::rln`]).

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use accounting::Reservation;
use bytes::Bytes;
use protocol::{
    ContentTopic, MessageError, MessageHash, PubsubTopic, StatusCode, Verdict, WakuMessage,
    autoshard, gossip::message_id, message_hash, signed::SignatureError,
};
use router::{MessageId, Offer, Peer, Shard};
use store::{AppendError, AppendOutcome, Arrival};
use thiserror::Error;

use crate::{
    arrival,
    client::light_push::reason_of,
    counters::Reason,
    latencies,
    node::Node,
    rln::{Effect, Pending, ProofRefusal, Validator},
    settings::count,
};

/// How long a client's message is held back at most before it is refused.
const HOLD_BACK: Duration = Duration::from_secs(5);
/// Between two checks whether there is room: at first, and at most. Each is work for a processor
/// that may be short.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(32);

/// Of this node's delay, what counts where proofs are judged. An epoch has 600 s: with more,
/// messages of more than two epochs would be judged at a time.
const PROOF_DELAY_MAX: Duration = Duration::from_secs(540);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client of this node: light push or HTTP.
    Client,
    /// A relay peer.
    Relay(Peer),
}

/// A message as it came.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) bytes: Bytes,
    /// The memory of its bytes.
    pub(crate) held: Reservation,
    /// When the first byte of its request was read.
    pub(crate) arrived: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedMessage {
    /// Its deterministic hash.
    pub(crate) hash: MessageHash,
    /// Relay peers it was passed to.
    pub(crate) relay_peers: usize,
    /// It had arrived before, and was passed on then.
    pub(crate) known: bool,
    /// How far its timestamp is off, if it is not stored for that.
    pub(crate) off_by: Option<Duration>,
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
    #[error(transparent)]
    Proof(#[from] ProofRefusal),
    #[error("seen before")]
    Duplicate,
    /// Another node, to which it was pushed, did not take it.
    #[error("{text}")]
    Remote { status: StatusCode, text: String },
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
            Self::Proof(_) => Reason::Proof,
            Self::Duplicate => Reason::Duplicate,
            Self::Remote { status, .. } => reason_of(*status),
        }
    }

    /// What it means for a relay peer that sent the message.
    fn verdict(&self) -> Verdict {
        match self {
            Self::Invalid(error) => error.verdict(),
            _ => Verdict::Ignore,
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
        let shard = self.shard_named(pubsub_topic, content_topic)?;
        if self.shards().contains(shard) {
            return Ok(shard);
        }
        Err(RejectReason::Topic(format!(
            "this node does not serve {}; it serves {}",
            self.topic_name(shard),
            self.served()
        )))
    }

    /// The same, whether or not this node serves it.
    pub(crate) fn shard_named(
        &self,
        pubsub_topic: Option<&str>,
        content_topic: &str,
    ) -> Result<Shard, RejectReason> {
        if let Some(topic) = pubsub_topic.filter(|topic| !topic.is_empty()) {
            return self.shard_of(topic);
        }
        let parsed = ContentTopic::parse(content_topic).map_err(|error| {
            RejectReason::Topic(format!(
                "no pubsub topic is named, and none follows from content topic \
                 `{content_topic}`: {error}"
            ))
        })?;
        Ok(autoshard(&parsed, self.settings.shards_in_cluster))
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

    /// The note for a client whose message was taken and is not in the store, which it can find out
    /// in no other way. `None` where the sender, or this node's settings, wanted nothing stored.
    pub(crate) fn not_stored(&self, accepted: &AcceptedMessage) -> Option<String> {
        let off = accepted.off_by?;
        Some(format!(
            "relayed and not stored: the timestamp is {:.1} s off this node's clock, \
             messages.clock_seconds is {}",
            off.as_secs_f64(),
            self.clock_drift.as_secs()
        ))
    }

    /// Takes a message of a client, which the received bytes decode to.
    ///
    /// In a task of its own: a message that was written is passed on, also when the connection that
    /// brought it ends meanwhile.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        shard: Shard,
        message: WakuMessage,
        received: ReceivedMessage,
    ) -> Result<AcceptedMessage, RejectReason> {
        let node = self.clone();
        let taking = tokio::spawn(async move {
            let taken = node.publish_inner(shard, &message, received).await;
            node.count(Source::Client, &taken);
            taken
        });
        taking.await.unwrap_or_else(|_| Err(ending()))
    }

    async fn publish_inner(
        &self,
        shard: Shard,
        message: &WakuMessage,
        received: ReceivedMessage,
    ) -> Result<AcceptedMessage, RejectReason> {
        self.check_size(&received.bytes)?;
        let least = self.settings.min_relay_peers;
        if least > 0 && self.router().reachable(shard, self.now()) < least {
            return Err(RejectReason::NoPeers { topic: self.topic_name(shard), least });
        }
        self.check_signature(shard, message, received.arrived)?;
        self.wait_for_room(shard, message.content_topic.as_str()).await?;
        let id = message_id(&received.bytes);
        if let Some(rln) = &self.rln {
            let pending = rln.admit_within(HOLD_BACK).await?;
            self.judge_proof(rln, &pending, message, &id, received.arrived).await?;
        }
        let AppendedMessage { hash, outcome, off_by } =
            self.append(Source::Client, shard, message, received).await?;
        let AppendOutcome { message: stored, known, .. } = outcome;
        if known {
            // It was passed on when it first arrived. This copy may be other bytes with the same
            // hash, which are not in the log: a peer that fetched them by their id would get
            // different bytes.
            return Ok(AcceptedMessage { hash, relay_peers: 0, known, off_by });
        }
        self.counters.payloads.observe(message.payload.len());
        let relay_peers = self.router().publish(shard, id, stored.clone(), self.now());
        self.paces.published(shard, stored.len());
        self.filter.deliver(shard, message.content_topic.as_str(), &stored);
        self.subscribers.deliver(shard, message.content_topic.as_str(), &stored);
        Ok(AcceptedMessage { hash, relay_peers, known: false, off_by })
    }

    /// Holds a client's message back while those it goes to have no room: for a moment, and within
    /// the bounds of [`crate::pace`].
    async fn wait_for_room(&self, shard: Shard, content_topic: &str) -> Result<(), RejectReason> {
        let deadline = Instant::now() + HOLD_BACK;
        let mut pause = RETRY;
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
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Takes a message of a relay peer; in a task of its own, like [`Self::publish`]. If its proof
    /// is to be verified, this waits for one of the pending places, which the message has until it
    /// is written, and not for the verdict: the peer's next frames are read meanwhile.
    pub(crate) async fn relay(
        self: &Arc<Self>,
        peer: Peer,
        shard: Shard,
        received: ReceivedMessage,
    ) {
        let pending = match &self.rln {
            Some(rln) => rln.admit().await,
            None => None,
        };
        let is_pending = pending.is_some();
        let node = self.clone();
        let taking = tokio::spawn(async move {
            let taken = node.relay_inner(peer, shard, received, pending).await;
            node.count(Source::Relay(peer), &taken);
            if let Err(rejected) = taken
                && !matches!(rejected, RejectReason::Duplicate)
            {
                tracing::trace!(?peer, %rejected, "message of a peer was not taken");
            }
        });
        if !is_pending {
            // An error is that the node ends.
            let _ = taking.await;
        }
    }

    async fn relay_inner(
        &self,
        peer: Peer,
        shard: Shard,
        received: ReceivedMessage,
        pending: Option<Pending>,
    ) -> Result<AcceptedMessage, RejectReason> {
        // Before anything is refused: this may have been asked of the peer.
        let id = message_id(&received.bytes);
        match self.router().offer(peer, shard, id, received.bytes.len(), self.now()) {
            Offer::New => {}
            Offer::Duplicate => return Err(RejectReason::Duplicate),
            Offer::Refused(_) => {
                return Err(RejectReason::Topic(format!(
                    "{} is not relayed",
                    self.topic_name(shard)
                )));
            }
        }
        let message = match self.check_message(&received.bytes) {
            Ok(message) => message,
            Err(rejected) => {
                match rejected.verdict() {
                    Verdict::Reject => self.router().reject(peer),
                    Verdict::Accept | Verdict::Ignore => self.router().ignore(),
                }
                return Err(rejected);
            }
        };
        if let Err(error) = self.check_signature(shard, &message, received.arrived) {
            // The network rejects a message without a signature. One that is late may be late by
            // this machine's clock: it is not passed on, and its sender is not at fault.
            if error == SignatureError::Unsigned {
                self.router().reject(peer);
            } else {
                self.router().ignore();
            }
            return Err(error.into());
        }
        if let (Some(rln), Some(pending)) = (&self.rln, &pending)
            && let Err(refusal) =
                self.judge_proof(rln, pending, &message, &id, received.arrived).await
        {
            match refusal.effect() {
                Effect::Reject => self.router().reject(peer),
                Effect::Forget => self.router().forget(&id),
                Effect::Ignore => self.router().ignore(),
            }
            return Err(refusal.into());
        }
        match self.append(Source::Relay(peer), shard, &message, received).await {
            // As above; the peer's id stays among those seen, so that it is not handled again.
            Ok(AppendedMessage { outcome: AppendOutcome { known: true, .. }, .. }) => {
                Err(RejectReason::Duplicate)
            }
            Ok(AppendedMessage {
                hash,
                outcome: AppendOutcome { message: stored, .. },
                off_by,
            }) => {
                self.counters.payloads.observe(message.payload.len());
                let relay_peers = self.router().accept(peer, shard, id, stored.clone());
                self.filter.deliver(shard, message.content_topic.as_str(), &stored);
                self.subscribers.deliver(shard, message.content_topic.as_str(), &stored);
                Ok(AcceptedMessage { hash, relay_peers, known: false, off_by })
            }
            Err(rejected) => {
                // Another peer may bring it when there is room again.
                self.router().forget(&id);
                Err(rejected)
            }
        }
    }

    async fn judge_proof(
        &self,
        rln: &Validator,
        pending: &Pending,
        message: &WakuMessage,
        id: &MessageId,
        arrived: Instant,
    ) -> Result<(), ProofRefusal> {
        let began = Instant::now();
        let timestamp_ns = message.timestamp.unwrap_or_default();
        let near_ns = self.arrival_near(timestamp_ns, arrived, PROOF_DELAY_MAX);
        let judged = rln.judge(pending, message, id, near_ns).await;
        latencies::observe_since(&self.latencies.rln_proof, began);
        judged
    }

    /// Judges the signature and the proof of a message that another node sent because this one
    /// asked, where they are demanded: as of any other one if it is new, else as of one that a
    /// store kept.
    pub(crate) async fn judge_fetched(
        &self,
        shard: Shard,
        message: &WakuMessage,
        bytes: &Bytes,
        arrived: Option<Instant>,
    ) -> Result<(), RejectReason> {
        match arrived {
            Some(arrived) => self.check_signature(shard, message, arrived)?,
            None => {
                self.check_signature_at(shard, message, message.timestamp.unwrap_or_default())?;
            }
        }
        let Some(rln) = &self.rln else { return Ok(()) };
        let id = message_id(bytes);
        let pending = rln.admit_within(HOLD_BACK).await?;
        match arrived {
            Some(arrived) => self.judge_proof(rln, &pending, message, &id, arrived).await?,
            None => rln.judge_kept(&pending, message, &id, (self.clock)()).await?,
        }
        Ok(())
    }

    /// The time nearest to the timestamp at which a message may have arrived, of which the first
    /// byte was read at `arrived`: this node's own delay does not make it late. While the clock
    /// has jumped, both of its times count. Of the delay `most` counts.
    pub(crate) fn arrival_near(&self, timestamp_ns: i64, arrived: Instant, most: Duration) -> i64 {
        let waited = (arrived.elapsed() + self.delays.longest(self.now())).min(most);
        let near = |now_ns| arrival::nearest(timestamp_ns, now_ns, waited);
        let [ours, other] = self.time.times_ns().map(near);
        if timestamp_ns.abs_diff(other) < timestamp_ns.abs_diff(ours) { other } else { ours }
    }

    /// Checks a message of a protected shard, and counts the outcome; others pass.
    fn check_signature(
        &self,
        shard: Shard,
        message: &WakuMessage,
        arrived: Instant,
    ) -> Result<(), SignatureError> {
        if !self.protected.contains_key(&shard) {
            return Ok(());
        }
        let timestamp_ns = message.timestamp.unwrap_or_default();
        let near_ns = self.arrival_near(timestamp_ns, arrived, Duration::MAX);
        self.check_signature_at(shard, message, near_ns)
    }

    fn check_signature_at(
        &self,
        shard: Shard,
        message: &WakuMessage,
        now_ns: i64,
    ) -> Result<(), SignatureError> {
        let Some(key) = self.protected.get(&shard) else { return Ok(()) };
        let checked = key.check(&self.topic(shard), message, now_ns);
        let counters = &self.counters;
        let count = match checked {
            Ok(()) => &counters.signatures_accepted,
            Err(_) => &counters.signatures_refused,
        };
        count.fetch_add(1, Relaxed);
        checked
    }

    /// This node may take less than the network does; a sender of more is not at fault.
    pub(crate) fn check_size(&self, bytes: &Bytes) -> Result<(), RejectReason> {
        let (bytes, most) = (bytes.len(), count(self.settings.limits.messages.message_bytes));
        if bytes > most {
            return Err(RejectReason::TooLarge { bytes, most });
        }
        Ok(())
    }

    /// A message that this node takes and the network relays.
    fn check_message(&self, bytes: &Bytes) -> Result<WakuMessage, RejectReason> {
        self.check_size(bytes)?;
        Ok(WakuMessage::decode(bytes.clone())?)
    }

    async fn append(
        &self,
        source: Source,
        shard: Shard,
        message: &WakuMessage,
        received: ReceivedMessage,
    ) -> Result<AppendedMessage, RejectReason> {
        let ReceivedMessage { bytes, held, arrived } = received;
        let topic = self.topic(shard);
        let hash = message_hash(&topic, message);
        let now_ns = (self.clock)();
        let timestamp_ns = message.timestamp.filter(|at| *at != 0).unwrap_or(now_ns);
        let near_ns = self.arrival_near(timestamp_ns, arrived, Duration::MAX);
        let off = Duration::from_nanos(timestamp_ns.abs_diff(near_ns));
        let off_the_clock = off > self.clock_drift;
        let kept = self.settings.store && !message.is_ephemeral() && !off_the_clock;
        let arrival = Arrival {
            hash: hash.0,
            timestamp_ns,
            pubsub_topic: topic,
            content_topic: Arc::from(message.content_topic.as_str()),
            kept,
            // A client gets an error, and tries elsewhere; a peer's message is passed on to others.
            may_pass: matches!(source, Source::Relay(_)),
            fetched: false,
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
                let is_missing = self.settings.store && !message.is_ephemeral() && !appended.kept;
                let off_by = Some(off).filter(|_| is_missing && off_the_clock);
                Ok(AppendedMessage { hash, outcome: appended, off_by })
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

/// A message that is in the log.
struct AppendedMessage {
    hash: MessageHash,
    outcome: AppendOutcome,
    /// As of [`AcceptedMessage`].
    off_by: Option<Duration>,
}

/// The task that took a message is gone, because the node ends.
fn ending() -> RejectReason {
    RejectReason::Unavailable("this node is stopping".into())
}
