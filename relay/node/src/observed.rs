//! Memory of tables that are bounded by a count, reported to the ledger once a second.
//!
//! Their pools are marked *observed* in [`relay_limits::pool`]: they refuse nothing, so they are
//! counted here and not where an entry is made.

use std::sync::atomic::Ordering::Relaxed;

use accounting::{
    Observation,
    process::{self, Pid},
};
use anyhow::Result;
use relay_limits::pool;

use crate::{
    node::{Node, pool as of},
    rln::Validator,
};

/// One observation for each of these pools.
pub(crate) struct ObservedPools {
    _program: Observation,
    /// Those of [`sizes`], in their order.
    observations: Vec<Observation>,
}

impl ObservedPools {
    /// Counts the program, and nothing else yet.
    pub(crate) fn new(node: &Node) -> Result<Self> {
        let observe = |name| anyhow::Ok(of(&node.ledger, name)?.observe());
        let mut program = observe(pool::PROGRAM)?;
        // Nothing hangs on it but a figure, which is too low by as much where the kernel does not
        // say.
        program.set(process::relocated_bytes(Pid::own()).unwrap_or_default());
        let observations = sizes(node).into_iter().map(|(name, _)| observe(name));
        Ok(Self { _program: program, observations: observations.collect::<Result<_>>()? })
    }

    pub(crate) fn update(&mut self, node: &Node) {
        for (observation, (_, bytes)) in self.observations.iter_mut().zip(sizes(node)) {
            observation.set(bytes);
        }
    }
}

/// The pools, each with the bytes that are in use.
fn sizes(node: &Node) -> [(&'static str, u64); 12] {
    use relay_limits::{
        CRITERION_BYTES, GOSSIP_PEER_BYTES, HISTORY_BYTES, INDEX_ROW_BYTES, PEER_BYTES,
        QUERY_BYTES, REFERENCE_BYTES, RLN_PENDING_BYTES, SEEN_BYTES,
    };
    let gossip = node.router().usage();
    let filter = node.filter.usage();
    let store = node.store.waiting();
    let known = node.peers().len() + node.discovery_table.load(Relaxed) as usize;
    let criteria_bytes = filter.criteria as u64 * CRITERION_BYTES + filter.topics_bytes;
    [
        (pool::APPENDING, store.append_bytes),
        (pool::GOSSIP_PEERS, gossip.peers as u64 * GOSSIP_PEER_BYTES),
        (pool::SEEN, gossip.seen as u64 * SEEN_BYTES),
        (pool::GOSSIP_HISTORY, gossip.history as u64 * HISTORY_BYTES),
        (pool::GOSSIP_QUEUES, gossip.waiting as u64 * REFERENCE_BYTES),
        (pool::SUBSCRIPTIONS, criteria_bytes),
        (pool::PUSH_QUEUES, filter.waiting as u64 * REFERENCE_BYTES),
        (pool::INDEX_QUEUE, store.rows as u64 * INDEX_ROW_BYTES),
        (pool::STORE_QUERIES, store.queries as u64 * QUERY_BYTES),
        (pool::PEER_STORE, known as u64 * PEER_BYTES),
        (
            pool::RLN_PENDING,
            node.rln.as_ref().map_or(0, Validator::pending) as u64 * RLN_PENDING_BYTES,
        ),
        (pool::HTTP_CACHE, node.subscribers.bytes()),
    ]
}
