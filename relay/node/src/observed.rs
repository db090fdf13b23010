//! Memory of tables that are bounded by a count, reported to the ledger once a second.
//!
//! Their pools are marked *observed* in [`relay_limits::pool`]: they refuse nothing, so they are
//! counted here and not where an entry is made.

use std::sync::atomic::Ordering::Relaxed;

use accounting::{
    Ledger, Observation,
    process::{self, Pid},
};
use anyhow::Result;
use relay_limits::pool;

use crate::node::{Node, pool as of};

/// One for each of these pools.
pub(crate) struct ObservedPools {
    _program: Observation,
    appending: Observation,
    gossip_peers: Observation,
    seen: Observation,
    gossip_history: Observation,
    gossip_queues: Observation,
    subscriptions: Observation,
    push_queues: Observation,
    index_queue: Observation,
    store_queries: Observation,
    peer_store: Observation,
    http_cache: Observation,
}

impl ObservedPools {
    /// Counts the program, and nothing else yet.
    pub(crate) fn new(ledger: &Ledger) -> Result<Self> {
        let observe = |name| anyhow::Ok(of(ledger, name)?.observe());
        let mut program = observe(pool::PROGRAM)?;
        // Nothing hangs on it but a figure, which is too low by as much where the kernel does not
        // say.
        program.set(process::relocated_bytes(Pid::own()).unwrap_or_default());
        Ok(Self {
            _program: program,
            appending: observe(pool::APPENDING)?,
            gossip_peers: observe(pool::GOSSIP_PEERS)?,
            seen: observe(pool::SEEN)?,
            gossip_history: observe(pool::GOSSIP_HISTORY)?,
            gossip_queues: observe(pool::GOSSIP_QUEUES)?,
            subscriptions: observe(pool::SUBSCRIPTIONS)?,
            push_queues: observe(pool::PUSH_QUEUES)?,
            index_queue: observe(pool::INDEX_QUEUE)?,
            store_queries: observe(pool::STORE_QUERIES)?,
            peer_store: observe(pool::PEER_STORE)?,
            http_cache: observe(pool::HTTP_CACHE)?,
        })
    }

    /// Updates all of them.
    pub(crate) fn update(&mut self, node: &Node) {
        use relay_limits::{
            CRITERION_BYTES, GOSSIP_PEER_BYTES, HISTORY_BYTES, INDEX_ROW_BYTES, PEER_BYTES,
            QUERY_BYTES, REFERENCE_BYTES, SEEN_BYTES,
        };
        let set = |observation: &mut Observation, entries: usize, bytes: u64| {
            observation.set(entries as u64 * bytes);
        };
        let gossip = node.router().usage();
        set(&mut self.gossip_peers, gossip.peers, GOSSIP_PEER_BYTES);
        set(&mut self.seen, gossip.seen, SEEN_BYTES);
        set(&mut self.gossip_history, gossip.history, HISTORY_BYTES);
        set(&mut self.gossip_queues, gossip.waiting, REFERENCE_BYTES);
        let filter = node.filter.usage();
        self.subscriptions.set(filter.criteria as u64 * CRITERION_BYTES + filter.topics_bytes);
        set(&mut self.push_queues, filter.waiting, REFERENCE_BYTES);
        let store = node.store.waiting();
        self.appending.set(store.append_bytes);
        set(&mut self.index_queue, store.rows, INDEX_ROW_BYTES);
        set(&mut self.store_queries, store.queries, QUERY_BYTES);
        let known = node.peers().len() + node.discovery_table.load(Relaxed) as usize;
        set(&mut self.peer_store, known, PEER_BYTES);
        set(&mut self.http_cache, node.subscribers.waiting(), REFERENCE_BYTES);
    }
}
