//! Dependencies and bounds of the tasks that carry calls.

use std::{sync::Arc, time::Duration};

use envelope::Envelopes;

use crate::{
    IngressPool, WallClock,
    subnet::{
        block::NameBounds,
        journal::Journal,
        peers::{Meter, PeerScorer, Rate},
    },
};

/// Blocks whose calls the store has room for: those being voted on, and those finalised that wait
/// to be made durable.
pub(super) const STORE_BLOCKS: u64 = 4;
/// Envelopes offered or given in one message, in bytes, unless a single one is larger.
pub(super) const OFFER_BYTES: usize = 256 << 10;
/// Calls offered or given in one message.
pub(super) const OFFER_CALLS_MAX: usize = 1_024;
/// Greatest overhead of a message per envelope, in bytes: a digest, a principal, lengths.
pub(super) const PER_CALL_BYTES: usize = 128;
/// Names in one request.
pub(super) const WANT_MAX: usize = 256;
/// A call that was offered to this node may still be on its way when the block that names it
/// arrives.
pub(super) const GRACE: Duration = Duration::from_millis(60);
/// Time between two requests for the same call; the second and later ones go to all peers.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Blocks' worth of calls that a node offers per second: more than a subnet agrees on. Further
/// calls of clients wait in the pool, and are fetched when a block names them.
pub(super) const OFFER_BLOCKS: u64 = 4;
/// Factor by which a peer may exceed that, because its clock and the network are not even.
pub(super) const OFFER_SLACK: u64 = 2;
/// Blocks' worth of calls that a peer is given per second, and at once.
pub(super) const ANSWER_BLOCKS: u64 = 8;
pub(super) const ANSWER_BURST_BLOCKS: u64 = 16;
/// Requests for calls of old blocks that wait, of all peers and of one.
pub(super) const OLD_WAITING: usize = 64;
pub(super) const OLD_WAITING_PER_PEER: usize = 8;
const _: () = assert!(OLD_WAITING_PER_PEER < OLD_WAITING, "one peer leaves room for others");
const _: () = assert!(WANT_MAX <= OFFER_CALLS_MAX, "what one message requests fits a response");
const _: () = assert!(ANSWER_BLOCKS <= ANSWER_BURST_BLOCKS && OFFER_SLACK > 1);
const _: () = assert!(GRACE.as_nanos() < ASK_AGAIN.as_nanos(), "the first request is the soonest");

#[derive(Clone)]
pub(in crate::subnet) struct Config<S> {
    pub(in crate::subnet) pool: Arc<IngressPool>,
    pub(in crate::subnet) envelopes: Arc<dyn Envelopes>,
    pub(in crate::subnet) clock: Arc<dyn WallClock>,
    pub(in crate::subnet) journal: Arc<Journal>,
    pub(in crate::subnet) bounds: NameBounds,
    pub(in crate::subnet) scorer: PeerScorer,
    pub(in crate::subnet) sender: S,
}

/// Rate limits of each peer.
pub(super) struct Meters {
    pub(super) offered_calls: Meter,
    pub(super) offered_bytes: Meter,
    /// Given and not asked for.
    pub(super) given_bytes: Meter,
    pub(super) asked_names: Meter,
    pub(super) answered_bytes: Meter,
}

impl Meters {
    pub(super) fn new(bounds: &NameBounds) -> Self {
        let (calls, bytes) = (bounds.calls, bounds.bytes.max(bounds.call_bytes));
        let blocks = |one: u64, per_second: u64, burst: u64| {
            Meter::new(Rate {
                per_second: one.saturating_mul(per_second),
                burst: one.saturating_mul(burst),
            })
        };
        let offered = OFFER_BLOCKS * OFFER_SLACK;
        Self {
            offered_calls: blocks(calls, offered, offered),
            offered_bytes: blocks(bytes, offered, offered),
            given_bytes: blocks(bytes, 1, ANSWER_BURST_BLOCKS),
            asked_names: blocks(calls, ANSWER_BLOCKS, ANSWER_BURST_BLOCKS),
            answered_bytes: blocks(bytes, ANSWER_BLOCKS, ANSWER_BURST_BLOCKS),
        }
    }
}
