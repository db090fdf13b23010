//! Parameters of the gossip, with the values of the Waku network as defaults.

use std::time::Duration;

/// A struct whose fields have a default each: one row a field.
macro_rules! parameters {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}

parameters! {
    /// Parameters of the mesh and bounds of retained state.
    pub struct Config {
        /// Peers in a topic's mesh after grafting or pruning.
        d: usize = 6,
        /// Fewer than these: peers are grafted.
        d_low: usize = 4,
        /// More than these: peers are pruned.
        d_high: usize = 8,
        /// When pruning, this many of the best scored stay.
        d_score: usize = 4,
        /// Number of peers of a mesh that this node dialled: a mesh of only unknown peers could cut
        /// the node off. Below `d_low`, and at most half of `d`.
        d_out: usize = 3,
        /// Peers outside the mesh that hear of history at each heartbeat, at least.
        d_lazy: usize = 6,
        /// Of all peers outside the mesh, the share that hears of history.
        gossip_factor: f64 = 0.25,
        /// Time between heartbeats. The caller keeps it.
        heartbeat: Duration = Duration::from_secs(1),
        /// Heartbeats for which a message can be fetched by IWANT.
        history: usize = 6,
        /// Heartbeats for which a message is offered by IHAVE; at most `history`.
        history_gossip: usize = 3,
        /// A topic this node only publishes to is forgotten after so long without a message.
        fanout: Duration = Duration::from_secs(60),
        /// A message seen is not taken again for so long.
        seen: Duration = Duration::from_secs(120),
        /// Seen messages kept at most; with more the oldest leave early and may be taken twice.
        seen_entries: usize = 100_000,
        /// Messages in the history at most; with more the oldest leave early.
        history_entries: usize = 20_000,
        /// A pruned peer is not grafted for so long, and asked not to graft.
        prune_backoff: Duration = Duration::from_secs(60),
        /// The same after leaving a topic.
        unsubscribe_backoff: Duration = Duration::from_secs(10),
        /// Peers at most. Further ones are not gossiped with, unless a peer gives way
        /// ([`crate::Router::gives_way`]).
        peers: usize = 128,
        /// Heartbeats that a new peer has to subscribe to a topic of this node before it gives way.
        newcomer_heartbeats: u64 = 10,
        /// References waiting for one peer at most; then the oldest leaves.
        queue_messages: usize = 1024,
        /// Ids in one IHAVE, and asked of one peer between heartbeats, at most.
        ihave_ids: usize = 5000,
        /// Topics of one peer that are noted. Further ones are not.
        topics_per_peer: usize = 1024,
        /// IHAVE messages of one peer heard between heartbeats.
        ihave_messages: usize = 10,
        /// Messages one peer may fetch between heartbeats.
        iwant_ids: usize = 5000,
        /// How often one peer may fetch the same message.
        retransmissions: u8 = 3,
        /// A message that a peer offered and was asked for must arrive within this time, or counts
        /// as a broken promise.
        iwant_followup: Duration = Duration::from_secs(3),
        /// Messages from this size on are announced by IDONTWANT before they are forwarded.
        idontwant_bytes: usize = 1024,
        /// Ids a peer declared unwanted, kept at most; for [`Self::idontwant_heartbeats`].
        idontwant_ids: usize = 1024,
        /// Heartbeats for which they are kept.
        idontwant_heartbeats: u32 = 3,
        /// Heartbeats between looks whether a mesh is stuck with poor peers.
        opportunistic_heartbeats: u64 = 60,
        /// Peers grafted then.
        opportunistic_peers: usize = 2,
        /// Whether messages of this node's own clients go to every peer of the topic, not to its
        /// mesh only.
        flood_publish: bool = true,
        /// Weights and thresholds of the peer scores.
        score: ScoreConfig = ScoreConfig::default(),
    }
}

parameters! {
    /// Weights and thresholds of peer scores (gossipsub 1.1, "Peer Scoring").
    pub struct ScoreConfig {
        /// Below it a peer gets no gossip, and its gossip is not heard.
        gossip_threshold: f64 = -100.0,
        /// Below it a peer gets none of this node's own messages.
        publish_threshold: f64 = -1000.0,
        /// Below it all input of a peer is ignored.
        graylist_threshold: f64 = -10_000.0,
        /// Median score of a mesh below which others are grafted too.
        opportunistic_threshold: f64 = 0.0,
        /// Time between decays of counters.
        decay_interval: Duration = Duration::from_secs(12),
        /// Counters below it become nothing.
        decay_to_zero: f64 = 0.01,
        /// Scores below zero of peers that left are kept for so long.
        retain: Duration = Duration::from_secs(120),
        /// The number of such peers.
        retained: usize = 1024,
        /// P1: weight of a quantum of time in the mesh.
        mesh_time_weight: f64 = 0.01,
        /// P1: the quantum.
        mesh_time_quantum: Duration = Duration::from_secs(1),
        /// P1: quanta counted at most.
        mesh_time_cap: f64 = 10.0,
        /// P2: weight of a message that a peer was the first to bring.
        first_deliveries_weight: f64 = 1.0,
        /// P2: part of the counter that remains at each decay.
        first_deliveries_decay: f64 = 0.5,
        /// P2: messages counted at most.
        first_deliveries_cap: f64 = 10.0,
        /// P4: weight of the square of invalid messages.
        invalid_weight: f64 = -100.0,
        /// P4: part that remains at each decay.
        invalid_decay: f64 = 0.5,
        /// P6: weight of the square of peers above the threshold at one address.
        colocation_weight: f64 = -50.0,
        /// P6: peers of one address that are free.
        colocation_threshold: u32 = 8,
        /// P7: weight of the square of broken rules.
        behaviour_weight: f64 = -10.0,
        /// P7: part that remains at each decay.
        behaviour_decay: f64 = 0.986,
        /// P7: broken rules that are free.
        behaviour_threshold: f64 = 0.0,
    }
}
