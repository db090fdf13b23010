//! Limits of gossip.

use accounting::KIB;
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, SCALE, pool};

/// Shards of a cluster (Waku relay sharding).
const SHARDS: u64 = 1024;
/// A reference in a queue: the SHA-256 of its message, and topic, segment, offset and length.
pub const REFERENCE_BYTES: u64 = 64;
/// A reference in the gossip history: as above, found by its hash, noted in its heartbeat, and who
/// fetched it.
pub const HISTORY_BYTES: u64 = 192;
/// An id of a message seen; see the crate's documentation.
pub const SEEN_BYTES: u64 = 96;
/// A gossip peer: state, score, control messages that wait.
pub const GOSSIP_PEER_BYTES: u64 = 4 * KIB;
/// A topic of a gossip peer: its score and back-off there.
pub const GOSSIP_TOPIC_BYTES: u64 = 128;
/// An id that a gossip peer offered and was asked for, or does not want.
pub const GOSSIP_ID_BYTES: u64 = 64;

const _: () = {
    assert!(REFERENCE_BYTES >= 32 + 4 + 8 + 8 + 4, "hash, topic, segment, offset, length");
    assert!(SEEN_BYTES >= 32 * 2 && HISTORY_BYTES >= 2 * REFERENCE_BYTES);
    assert!(rows::peers.covers(&crate::peers::rows::outbound_relay_peers));
    assert!(rows::topics_per_peer.covers(&rows::topics));
    assert!(SCALE.fixed(SHARDS).covers(&rows::topics_per_peer));
    assert!(rows::seen_entries.covers(&rows::history_messages));
    assert!(rows::peers.covers(&rows::d_high), "a mesh can be full");
    assert!(rows::d.covers(&rows::d_low) && rows::d_high.covers(&rows::d));
    assert!(rows::d.covers(&rows::d_score) && rows::d_low.covers(&rows::d_out));
    assert!(rows::history.covers(&rows::history_gossip), "what is offered can be fetched");
    assert!(rows::prune_backoff_seconds.covers(&rows::unsubscribe_backoff_seconds));
};

memory_budget::limits! {
    SCALE;
    /// Limits of gossip. Without another word a time or count is that of gossipsub.
    #[serde(deny_unknown_fields)]
    pub struct GossipLimits as gossip of Limits, rules check {
        /// Peers that gossip. Further ones are connected, but not gossiped with.
        peers: u64 = values([24, 32, 48, 80, 128, 192, 256]), local, pays line("gossip_peers"),
            reason "three meshes of eight at least; more peers mean more duplicates";
        /// Topics this relay subscribes to or publishes in.
        topics: u64 = values([16, 24, 32, 64, 128, 256, 1024]), local,
            bounds [at_least(1, "gossip would not work")],
            reason "the shards that one relay of that size can serve";
        /// Topics of one peer that are noted. Further ones are not.
        topics_per_peer: u64 = values([32, 48, 64, 128, 128, 256, 1024]), local,
            pays line("gossip_peers"), bounds [at_most(SHARDS, "a cluster has no more shards")],
            reason "a peer may serve more shards than this relay";
        /// Peers in a topic's mesh after grafting or pruning.
        d: u64 = fixed(6), local, reason "of the Waku network";
        /// With fewer, peers are grafted.
        d_low: u64 = fixed(4), local, bounds [at_least(1, "there would be no mesh")],
            reason "of the Waku network";
        /// With more, peers are pruned.
        d_high: u64 = fixed(8), local, reason "of the Waku network";
        /// When pruning, this many of the best scored stay.
        d_score: u64 = fixed(4), local, reason "of gossipsub 1.1";
        /// Number of peers of a mesh that this relay dialled.
        d_out: u64 = fixed(3), local,
            reason "of the Waku network: a mesh of strangers alone could cut the relay off";
        /// Peers outside the mesh that hear of history at each heartbeat, at least.
        d_lazy: u64 = fixed(6), local, reason "of the Waku network";
        /// Time between heartbeats.
        heartbeat_millis: u64 = fixed(1_000), local,
            bounds [
                at_least(100, "there would be nothing but heartbeats"),
                at_most(10_000, "a mesh would heal too late"),
            ],
            reason "of the Waku network";
        /// Heartbeats for which a message can be fetched.
        history: u64 = fixed(6), local, bounds [at_most(60, "the history is held by heartbeat")],
            reason "of the Waku network";
        /// Heartbeats for which a message is offered.
        history_gossip: u64 = fixed(3), local, bounds [at_least(1, "gossip would not work")],
            reason "of the Waku network";
        /// Messages in the history, as references. Beyond it the oldest leave early.
        history_messages: u64 =
            values([8192, 12_288, 16_384, 32_768, 65_536, 131_072, 262_144]), local,
            pays line("gossip_history"), bounds [at_least(1, "gossip would not work")],
            reason "192 B each; six heartbeats of 2,700 messages a second at 128 MiB";
        /// A topic that is only published to is forgotten after so long without a message.
        fanout_seconds: u64 = fixed(60), local, bounds [at_least(1, "gossip would not work")],
            reason "of the Waku network";
        /// A message seen is not taken again for so long.
        seen_seconds: u64 = fixed(120), local, reason "of the Waku network";
        /// Messages that are remembered as seen. Beyond it the oldest leave early.
        seen_entries: u64 =
            values([24_576, 40_960, 65_536, 131_072, 262_144, 524_288, 1_048_576]), local,
            pays line("seen"), reason "96 B each; 180 s of 360 messages a second at 128 MiB";
        /// A pruned peer is not grafted for so long.
        prune_backoff_seconds: u64 = fixed(60), local,
            bounds [at_least(1, "gossip would not work")], reason "of the Waku network";
        /// The same after this relay left a topic.
        unsubscribe_backoff_seconds: u64 = fixed(10), local,
            bounds [at_least(1, "gossip would not work")], reason "of gossipsub 1.1";
        /// References waiting for one peer. Beyond it the oldest leaves, and is counted.
        queue_messages_per_peer: u64 =
            values([1024, 2048, 4096, 8192, 8192, 16_384, 16_384]), local,
            bounds [at_least(1, "gossip would not work")],
            reason "64 B each; a peer half a second behind a flood keeps all";
        /// References waiting for all peers, in bytes: the pool `gossip_queues`.
        queues_bytes: u64 = mib([1, 2, 3, 6, 12, 24, 64]), local, pays line("gossip_queues"),
            reason "shared, as few peers lag at once";
        /// IHAVE messages of one peer that are heard per heartbeat.
        ihave_messages_per_heartbeat: u64 = fixed(10), local,
            bounds [at_least(1, "gossip would not work")], reason "of gossipsub 1.1";
        /// Ids of one IHAVE, and asked of one peer per heartbeat.
        ihave_ids_per_heartbeat: u64 = values([400, 500, 750, 1200, 2500, 5000, 5000]), local,
            pays line("gossip_peers"), bounds [at_least(1, "gossip would not work")],
            reason "64 B each per peer; gossipsub's 5,000 from 1 GiB on";
        /// Messages sent to one peer per heartbeat because it asked by IWANT. Further ids are
        /// ignored.
        iwant_ids_per_heartbeat: u64 = values([400, 500, 750, 1200, 2500, 5000, 5000]), local,
            bounds [at_least(1, "gossip would not work")],
            reason "as many as may be offered; bounds what an IWANT storm costs";
        /// How often one peer may fetch the same message.
        iwant_retransmissions: u64 = fixed(3), local,
            bounds [at_least(1, "gossip would not work"), at_most(255, "it is counted in a byte")],
            reason "of gossipsub 1.1";
        /// Time in which a peer sends the messages it offered; otherwise its score falls.
        iwant_followup_millis: u64 = fixed(3_000), local,
            bounds [at_least(1, "gossip would not work")], reason "of gossipsub 1.1";
        /// Messages from this size on are announced by IDONTWANT before they are forwarded.
        idontwant_bytes: u64 = fixed(KIB), local, pays none("a threshold takes no room"),
            reason "an announcement per peer costs some 40 bytes";
        /// Ids that one peer said it does not want, kept at most.
        idontwant_ids_per_peer: u64 = values([256, 384, 512, 768, 1024, 2048, 4096]), local,
            pays line("gossip_peers"),
            reason "64 B each; without, a duplicate is sent, nothing else";
        /// Heartbeats for which they are kept.
        idontwant_heartbeats: u64 = fixed(3), local, bounds [at_least(1, "gossip would not work")],
            reason "of gossipsub 1.2";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let gossip = &limits.gossip;
    let peers = limit!(limits.gossip.peers);
    let (d, d_low, d_high) =
        (limit!(limits.gossip.d), limit!(limits.gossip.d_low), limit!(limits.gossip.d_high));
    rules.bounds(limits, &["gossip.d_low"]);
    rules.within(d_low, d, "a mesh is grafted up to d");
    rules.within(d, d_high, "a mesh is pruned down to d");
    rules.within(d_high, peers, "a mesh is made of gossip peers");
    rules.within(limit!(limits.gossip.d_score), d, "of d peers that stay");
    rules.within(
        LimitValue::number("gossip.d_out + 1", gossip.d_out.saturating_add(1)),
        d_low,
        "peers that this relay dialled are fewer than the smallest mesh",
    );
    let twice = LimitValue::number("gossip.d_out x 2", gossip.d_out.saturating_mul(2));
    rules.within(twice, d, "they are at most half of a mesh");
    rules.within(peers, limit!(limits.connections.connections), "each has a connection");
    rules.within(
        limit!(limits.gossip.topics),
        limit!(limits.gossip.topics_per_peer),
        "a peer may be in all topics of this relay",
    );
    rules.bounds(limits, &["gossip.topics_per_peer", "gossip.heartbeat_millis"]);
    rules.within(
        limit!(limits.gossip.history_gossip),
        limit!(limits.gossip.history),
        "what is offered must be there to be fetched",
    );
    rules.bounds(limits, &["gossip.history"]);
    let kept = gossip.history.saturating_mul(gossip.heartbeat_millis);
    rules.within(
        LimitValue::number("gossip.history x gossip.heartbeat_millis", kept),
        LimitValue::number("gossip.seen_seconds x 1000", gossip.seen_seconds.saturating_mul(1000)),
        "what peers may still fetch must not be taken again",
    );
    rules.within(
        limit!(limits.gossip.history_messages),
        limit!(limits.gossip.seen_entries),
        "what is in the history was seen",
    );
    let queue = gossip.queue_messages_per_peer.saturating_mul(REFERENCE_BYTES);
    rules.within(
        LimitValue::size("gossip.queue_messages_per_peer x 64 B", queue),
        limit!(limits.gossip.queues_bytes),
        "the longest queue must fit",
    );
}

impl Limits {
    /// The most memory that one gossip peer takes.
    fn gossip_peer_bytes(&self) -> u64 {
        let gossip = &self.gossip;
        let topics = gossip.topics_per_peer.saturating_mul(GOSSIP_TOPIC_BYTES);
        let ids = gossip.ihave_ids_per_heartbeat.saturating_add(gossip.idontwant_ids_per_peer);
        GOSSIP_PEER_BYTES.saturating_add(topics).saturating_add(ids.saturating_mul(GOSSIP_ID_BYTES))
    }

    /// Peers, histories and queues.
    pub(crate) fn gossip_lines(&self) -> Vec<SheetLine> {
        let gossip = &self.gossip;
        lines![
            Pool(pool::GOSSIP_PEERS, "router") = times(gossip.peers, self.gossip_peer_bytes()),
                "state of gossip peers: topics, scores, ids offered and not wanted";
            Pool(pool::SEEN, "router") = times(gossip.seen_entries, SEEN_BYTES),
                "ids of messages that are not taken again";
            Pool(pool::GOSSIP_HISTORY, "router") = times(gossip.history_messages, HISTORY_BYTES),
                "references of messages that peers may still fetch";
            Pool(pool::GOSSIP_QUEUES, "router") = whole(gossip.queues_bytes),
                "references of messages waiting for gossip peers";
        ]
    }
}
