//! Settings of the node, from the configuration and the table of limits, in the types that use
//! them.

use std::{num::NonZeroU16, time::Duration};

use relay_limits::Limits;
use router::Topics;

use crate::client::ServiceNodes;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) cluster: u16,
    /// Those of the configuration; the node has those that are served now.
    pub(crate) shards: Topics,
    pub(crate) shards_in_cluster: NonZeroU16,
    /// Whether messages are kept for store queries.
    pub(crate) store: bool,
    /// Whether this node gossips. If not, it is a client of other nodes.
    pub(crate) relay: bool,
    /// Nodes that are asked, as configured.
    pub(crate) service_nodes: ServiceNodes,
    /// Whether the store is compared with those of peers.
    pub(crate) store_sync: bool,
    /// Whether messages that were missed are fetched from the stores of peers.
    pub(crate) store_resume: bool,
    /// Light push is refused while fewer relay peers of the shard are connected.
    pub(crate) min_relay_peers: usize,
    pub(crate) limits: Limits,
}

pub(crate) fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl Settings {
    pub(crate) fn new(
        cluster: u16,
        shards: &[u16],
        shards_in_cluster: NonZeroU16,
        store: bool,
        min_relay_peers: usize,
        limits: &Limits,
    ) -> Self {
        let mut topics = Topics::default();
        for shard in shards {
            topics.insert(*shard);
        }
        Self {
            cluster,
            shards: topics,
            shards_in_cluster,
            store,
            relay: true,
            service_nodes: ServiceNodes::default(),
            store_sync: false,
            store_resume: false,
            min_relay_peers,
            limits: limits.clone(),
        }
    }
}

pub(crate) fn gossip(limits: &Limits) -> router::Config {
    let gossip = &limits.gossip;
    let peers = count(gossip.peers);
    let queues = gossip.queues_bytes / relay_limits::REFERENCE_BYTES / gossip.peers.max(1);
    router::Config {
        d: count(gossip.d),
        d_low: count(gossip.d_low),
        d_high: count(gossip.d_high),
        d_score: count(gossip.d_score),
        d_out: count(gossip.d_out),
        d_lazy: count(gossip.d_lazy),
        heartbeat: Duration::from_millis(gossip.heartbeat_millis),
        history: count(gossip.history),
        history_gossip: count(gossip.history_gossip),
        fanout: Duration::from_secs(gossip.fanout_seconds),
        seen: Duration::from_secs(gossip.seen_seconds),
        seen_entries: count(gossip.seen_entries),
        history_entries: count(gossip.history_messages),
        prune_backoff: Duration::from_secs(gossip.prune_backoff_seconds),
        unsubscribe_backoff: Duration::from_secs(gossip.unsubscribe_backoff_seconds),
        peers,
        // No pool has to be asked: all queues together have room for what each may hold.
        queue_messages: count(gossip.queue_messages_per_peer.min(queues.max(1))),
        ihave_ids: count(gossip.ihave_ids_per_heartbeat),
        topics_per_peer: count(gossip.topics_per_peer),
        ihave_messages: count(gossip.ihave_messages_per_heartbeat),
        iwant_ids: count(gossip.iwant_ids_per_heartbeat),
        retransmissions: u8::try_from(gossip.iwant_retransmissions).unwrap_or(u8::MAX),
        iwant_followup: Duration::from_millis(gossip.iwant_followup_millis),
        idontwant_bytes: count(gossip.idontwant_bytes),
        idontwant_ids: count(gossip.idontwant_ids_per_peer),
        idontwant_heartbeats: u32::try_from(gossip.idontwant_heartbeats).unwrap_or(u32::MAX),
        ..router::Config::default()
    }
}

pub(crate) fn filter(limits: &Limits) -> crate::filter::Bounds {
    let filter = &limits.filter;
    let queues = filter.queues_bytes / relay_limits::REFERENCE_BYTES / filter.receivers.max(1);
    crate::filter::Bounds {
        receivers: count(filter.receivers),
        criteria_per_peer: count(filter.criteria_per_peer),
        criteria: count(filter.subscriptions),
        queue_messages: count(filter.queue_messages_per_receiver.min(queues.max(1))),
        silence: Duration::from_secs(filter.ping_seconds),
        floor: floor(limits),
    }
}

/// Rates below which clients' messages are not held back.
pub(crate) fn floor(limits: &Limits) -> crate::pace::Floor {
    crate::pace::Floor {
        messages_per_second: limits.light_push.hold_back_messages_per_second,
        bytes_per_second: limits.light_push.hold_back_bytes_per_second,
    }
}

pub(crate) fn store(limits: &Limits, folder: std::path::PathBuf) -> store::Config {
    let (store, messages) = (&limits.store, &limits.messages);
    store::Config {
        segment_bytes: store.segment_bytes,
        retention: Duration::from_secs(store.retention_hours.saturating_mul(3600)),
        retention_bytes: store.retention_bytes,
        sync_interval: Duration::from_millis(store.sync_millis),
        index_cache_bytes: store.index_cache_bytes.saturating_mul(store.index_connections),
        disk_reserve_bytes: store.disk_reserve_bytes,
        spare_segments: count(store.spare_segments),
        query_threads: count(store.query_threads),
        query_queue: count(store.queries_waiting),
        queue_bytes: messages.appending_bytes,
        index_queue_messages: count(store.index_queue_messages),
        recent_messages: count(limits.gossip.seen_entries / 4),
        ..store::Config::new(folder)
    }
}
