//! Parameters of the gossip, with the values of the Waku network as defaults.

use std::time::Duration;

/// Parameters of the mesh and bounds of retained state.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Peers in a topic's mesh after grafting or pruning.
    pub d: usize,
    /// Fewer than these: peers are grafted.
    pub d_low: usize,
    /// More than these: peers are pruned.
    pub d_high: usize,
    /// When pruning, this many of the best scored stay.
    pub d_score: usize,
    /// Number of peers of a mesh that this node dialled: a mesh of only unknown peers could cut the
    /// node off. Below `d_low`, and at most half of `d`.
    pub d_out: usize,
    /// Peers outside the mesh that hear of history at each heartbeat, at least.
    pub d_lazy: usize,
    /// Of all peers outside the mesh, the share that hears of history.
    pub gossip_factor: f64,
    /// Time between heartbeats. The caller keeps it.
    pub heartbeat: Duration,
    /// Heartbeats for which a message can be fetched by IWANT.
    pub history: usize,
    /// Heartbeats for which a message is offered by IHAVE; at most `history`.
    pub history_gossip: usize,
    /// A topic this node only publishes to is forgotten after so long without a message.
    pub fanout: Duration,
    /// A message seen is not taken again for so long.
    pub seen: Duration,
    /// Seen messages kept at most; with more the oldest leave early and may be taken twice.
    pub seen_entries: usize,
    /// Messages in the history at most; with more the oldest leave early.
    pub history_entries: usize,
    /// A pruned peer is not grafted for so long, and asked not to graft.
    pub prune_backoff: Duration,
    /// The same after leaving a topic.
    pub unsubscribe_backoff: Duration,
    /// Peers at most. Further ones are not gossiped with, unless a peer gives way
    /// ([`crate::Router::gives_way`]).
    pub peers: usize,
    /// Heartbeats that a new peer has to subscribe to a topic of this node before it gives way.
    pub newcomer_heartbeats: u64,
    /// References waiting for one peer at most; then the oldest leaves.
    pub queue_messages: usize,
    /// Ids in one IHAVE, and asked of one peer between heartbeats, at most.
    pub ihave_ids: usize,
    /// Topics of one peer that are noted. Further ones are not.
    pub topics_per_peer: usize,
    /// IHAVE messages of one peer heard between heartbeats.
    pub ihave_messages: usize,
    /// Messages one peer may fetch between heartbeats.
    pub iwant_ids: usize,
    /// How often one peer may fetch the same message.
    pub retransmissions: u8,
    /// A message that a peer offered and was asked for must arrive within this time, or counts as a
    /// broken promise.
    pub iwant_followup: Duration,
    /// Messages from this size on are announced by IDONTWANT before they are forwarded.
    pub idontwant_bytes: usize,
    /// Ids a peer declared unwanted, kept at most; for [`Self::idontwant_heartbeats`].
    pub idontwant_ids: usize,
    /// Heartbeats for which they are kept.
    pub idontwant_heartbeats: u32,
    /// Heartbeats between looks whether a mesh is stuck with poor peers.
    pub opportunistic_heartbeats: u64,
    /// Peers grafted then.
    pub opportunistic_peers: usize,
    /// Whether messages of this node's own clients go to every peer of the topic, not to its mesh
    /// only.
    pub flood_publish: bool,
    /// Weights and thresholds of the peer scores.
    pub score: ScoreConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            d: 6,
            d_low: 4,
            d_high: 8,
            d_score: 4,
            d_out: 3,
            d_lazy: 6,
            gossip_factor: 0.25,
            heartbeat: Duration::from_secs(1),
            history: 6,
            history_gossip: 3,
            fanout: Duration::from_secs(60),
            seen: Duration::from_secs(120),
            seen_entries: 100_000,
            history_entries: 20_000,
            prune_backoff: Duration::from_secs(60),
            unsubscribe_backoff: Duration::from_secs(10),
            peers: 128,
            newcomer_heartbeats: 10,
            queue_messages: 1024,
            ihave_ids: 5000,
            topics_per_peer: 1024,
            ihave_messages: 10,
            iwant_ids: 5000,
            retransmissions: 3,
            iwant_followup: Duration::from_secs(3),
            idontwant_bytes: 1024,
            idontwant_ids: 1024,
            idontwant_heartbeats: 3,
            opportunistic_heartbeats: 60,
            opportunistic_peers: 2,
            flood_publish: true,
            score: ScoreConfig::default(),
        }
    }
}

/// Weights and thresholds of peer scores (gossipsub 1.1, "Peer Scoring").
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreConfig {
    /// Below it a peer gets no gossip, and its gossip is not heard.
    pub gossip_threshold: f64,
    /// Below it a peer gets none of this node's own messages.
    pub publish_threshold: f64,
    /// Below it all input of a peer is ignored.
    pub graylist_threshold: f64,
    /// Median score of a mesh below which others are grafted too.
    pub opportunistic_threshold: f64,
    /// Time between decays of counters.
    pub decay_interval: Duration,
    /// Counters below it become nothing.
    pub decay_to_zero: f64,
    /// Scores below zero of peers that left are kept for so long.
    pub retain: Duration,
    /// The number of such peers.
    pub retained: usize,
    /// P1: weight of a quantum of time in the mesh.
    pub mesh_time_weight: f64,
    /// P1: the quantum.
    pub mesh_time_quantum: Duration,
    /// P1: quanta counted at most.
    pub mesh_time_cap: f64,
    /// P2: weight of a message that a peer was the first to bring.
    pub first_deliveries_weight: f64,
    /// P2: part of the counter that remains at each decay.
    pub first_deliveries_decay: f64,
    /// P2: messages counted at most.
    pub first_deliveries_cap: f64,
    /// P4: weight of the square of invalid messages.
    pub invalid_weight: f64,
    /// P4: part that remains at each decay.
    pub invalid_decay: f64,
    /// P6: weight of the square of peers above the threshold at one address.
    pub colocation_weight: f64,
    /// P6: peers of one address that are free.
    pub colocation_threshold: u32,
    /// P7: weight of the square of broken rules.
    pub behaviour_weight: f64,
    /// P7: part that remains at each decay.
    pub behaviour_decay: f64,
    /// P7: broken rules that are free.
    pub behaviour_threshold: f64,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        Self {
            gossip_threshold: -100.0,
            publish_threshold: -1000.0,
            graylist_threshold: -10_000.0,
            opportunistic_threshold: 0.0,
            decay_interval: Duration::from_secs(12),
            decay_to_zero: 0.01,
            retain: Duration::from_secs(120),
            retained: 1024,
            mesh_time_weight: 0.01,
            mesh_time_quantum: Duration::from_secs(1),
            mesh_time_cap: 10.0,
            first_deliveries_weight: 1.0,
            first_deliveries_decay: 0.5,
            first_deliveries_cap: 10.0,
            invalid_weight: -100.0,
            invalid_decay: 0.5,
            colocation_weight: -50.0,
            colocation_threshold: 8,
            behaviour_weight: -10.0,
            behaviour_decay: 0.986,
            behaviour_threshold: 0.0,
        }
    }
}
