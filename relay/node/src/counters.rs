//! Counters of messages accepted, refused and passed on, for metrics and for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{ingest::Source, latencies::PayloadSizes};

/// Why something was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    TooLarge,
    Invalid,
    Topic,
    NoPeers,
    Busy,
    RateLimited,
    Unavailable,
    Duplicate,
    /// No request could be read.
    Damaged,
    /// Measured memory is near the budget.
    Memory,
    /// The proof of the rate limit.
    Proof,
}

/// The reasons in their order, as metrics name them.
const NAMES: [&str; 11] = [
    "too_large",
    "invalid",
    "unsupported_topic",
    "no_relay_peers",
    "busy",
    "rate_limited",
    "unavailable",
    "duplicate",
    "damaged",
    "memory",
    "rln_proof",
];
const _: () = assert!(Reason::Proof as usize + 1 == NAMES.len(), "each reason has a name");

#[derive(Debug, Default)]
pub(crate) struct ByReason([AtomicU64; NAMES.len()]);

impl ByReason {
    pub(crate) fn add(&self, reason: Reason) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Each reason by its name.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.into_iter().zip(self.0.iter().map(|count| count.load(Relaxed)))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) client_messages: AtomicU64,
    pub(crate) client_refused: ByReason,
    pub(crate) relay_messages: AtomicU64,
    pub(crate) relay_refused: ByReason,
    /// Messages of protected shards that were signed by the shard's key in time, and others.
    pub(crate) signatures_accepted: AtomicU64,
    pub(crate) signatures_refused: AtomicU64,
    /// Payloads of accepted messages.
    pub(crate) payloads: PayloadSizes,
    /// Clients' messages that were held back and then refused: those they go to are slow.
    pub(crate) held_back: AtomicU64,
    /// Messages passed on and not kept for queries: ephemeral ones, those whose timestamp is too
    /// far off this machine's clock, and those for which the disk has no room.
    pub(crate) ephemeral: AtomicU64,
    pub(crate) off_the_clock: AtomicU64,
    pub(crate) without_room: AtomicU64,
    /// Filter pushes that receivers took.
    pub(crate) pushed: AtomicU64,
    /// Filter pushes that failed: the receiver is gone, or took too long.
    pub(crate) pushes_failed: AtomicU64,
    pub(crate) store_queries: AtomicU64,
    pub(crate) store_refused: ByReason,
    pub(crate) filter_requests: AtomicU64,
    pub(crate) filter_refused: ByReason,
    /// Streams refused because a peer had too many.
    pub(crate) streams_refused: AtomicU64,
    /// Connections refused because measured memory is near the budget.
    pub(crate) connections_refused: AtomicU64,
    /// REST reads refused for the same reason, store queries aside.
    pub(crate) reads_refused: AtomicU64,
    /// Connections closed because they filled buffers, did not read, or broke the protocol.
    pub(crate) connections_closed: AtomicU64,
}

impl Counters {
    /// Work done, by kind: messages of clients, of relay peers, filter pushes, store queries.
    pub(crate) fn done(&self) -> [u64; 4] {
        [&self.client_messages, &self.relay_messages, &self.pushed, &self.store_queries]
            .map(|count| count.load(Relaxed))
    }

    /// Messages and filter requests that were not taken.
    pub(crate) fn refused(&self) -> u64 {
        let all = [&self.client_refused, &self.relay_refused, &self.filter_refused];
        all.iter().flat_map(|counts| counts.each()).map(|(_, count)| count).sum()
    }

    pub(crate) fn message(&self, source: Source, taken: Result<(), Reason>) {
        let (messages, refused) = match source {
            Source::Client => (&self.client_messages, &self.client_refused),
            Source::Relay(_) => (&self.relay_messages, &self.relay_refused),
        };
        match taken {
            Ok(()) => drop(messages.fetch_add(1, Relaxed)),
            Err(reason) => refused.add(reason),
        }
    }
}
