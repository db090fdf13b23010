//! The rules between limits.
//!
//! Most are of one shape ([`sheet::Rules`]): this limit must not be larger than that one, because
//! otherwise something cannot happen or cannot be bounded.

use budget::{KIB, MIB};
use sheet::{LimitValue, Rules, limit};

use crate::{Limits, REFERENCE_BYTES, derive::MESSAGE_BYTES};

/// Shards of a cluster (Waku relay sharding).
const SHARDS: u64 = 1024;
/// Messages of a page, by the store protocol.
const PAGE_MESSAGES: u64 = 100;
/// Content topics of a request, by the filter protocol; bytes of the longest.
const TOPICS_PER_REQUEST: u64 = 100;
const CONTENT_TOPIC_BYTES: u64 = 256;
/// Records in one answer of peer exchange.
const PEER_EXCHANGE_PEERS: u64 = 100;
/// Segments of a log: each is a file.
const SEGMENTS_MAX: u64 = 65_536;

impl Limits {
    /// Reports the rules that the table breaks.
    pub(crate) fn check_rules(&self, rules: &mut Rules) {
        self.check_connections(rules);
        self.check_messages(rules);
        self.check_gossip(rules);
        self.check_services(rules);
        self.check_store(rules);
        self.check_http(rules);
        self.check_governor(rules);
        self.check_heap(rules);
    }

    fn check_heap(&self, rules: &mut Rules) {
        let half = LimitValue::size("process.base_bytes / 2", self.process.base_bytes / 2);
        self.heap.check(rules, limit!(self.http.responses_bytes), half);
    }

    fn check_connections(&self, rules: &mut Rules) {
        let connections = limit!(self.connections.connections);
        for limit in [
            limit!(self.connections.connections_per_peer),
            limit!(self.connections.connections_per_address),
            limit!(self.connections.handshakes),
        ] {
            rules.at_least(limit, 1, "nobody could connect");
            rules.within(limit, connections, "it is a part of all connections");
        }
        rules.at_least(limit!(self.connections.handshake_seconds), 1, "nobody could connect");
        rules.at_most(
            limit!(self.connections.handshake_seconds),
            120,
            "a peer that says nothing would hold a place for ever",
        );
        rules.at_least(
            limit!(self.connections.connection_bytes),
            16 * KIB,
            "noise and a multiplexer take more, and the pool would promise what is not there",
        );
        let streams = limit!(self.connections.streams_per_connection);
        rules.at_least(
            streams,
            8,
            "a relay peer has two streams for gossip, identify, ping and metadata, and requests \
             beside",
        );
        rules.within(streams, limit!(self.connections.streams), "it is a part of all streams");
        let unread = limit!(self.connections.unread_bytes_per_connection);
        rules.within(
            limit!(self.messages.frame_bytes),
            unread,
            "the largest frame could never be received",
        );
        rules.within(
            unread,
            limit!(self.connections.unread_bytes),
            "it is a part of all that is unread",
        );
        let socket = limit!(self.connections.socket_buffer_bytes);
        rules.at_least(socket, 16 * KIB, "throughput would be one packet per round trip");
        rules.at_most(
            socket,
            4 * MIB,
            "the kernel's memory for peers that do not read is the relay's",
        );
        rules.at_least(
            limit!(self.connections.stalled_seconds),
            1,
            "honest peers on slow links would go",
        );
        rules.at_most(
            limit!(self.connections.stalled_seconds),
            600,
            "a peer that never reads would hold its streams for ever",
        );
        let unused = limit!(self.connections.unused_seconds);
        rules.at_least(unused, 1, "a client could not ask for anything in less");
        rules.within(
            unused,
            limit!(self.connections.idle_seconds),
            "who asked for something stays longer",
        );
        rules.within(
            limit!(self.filter.ping_seconds),
            limit!(self.connections.idle_seconds),
            "a receiver that pings in time must find its connection open",
        );
    }

    fn check_messages(&self, rules: &mut Rules) {
        let message = limit!(self.messages.message_bytes);
        let frame = limit!(self.messages.frame_bytes);
        let chunk = limit!(self.messages.sending_chunk_bytes);
        rules.at_least(message, KIB, "hardly any message would be taken");
        rules.at_most(message, MESSAGE_BYTES, "other nodes of the network take no larger ones");
        rules.within(message, frame, "a message comes in a frame");
        rules.at_most(frame, MESSAGE_BYTES + 64 * KIB, "no peer sends a longer one");
        rules.within(frame, limit!(self.messages.receiving_bytes), "the largest frame must fit");
        rules.within(
            message,
            limit!(self.messages.appending_bytes),
            "the largest message must fit",
        );
        rules.at_least(chunk, KIB, "sending would be all system calls");
        rules.within(chunk, limit!(self.messages.sending_bytes), "one chunk must fit");
        rules.at_least(limit!(self.messages.clock_seconds), 1, "clocks are never the same");
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_gossip(&self, rules: &mut Rules) {
        let peers = limit!(self.gossip.peers);
        let (d, d_low, d_high) =
            (limit!(self.gossip.d), limit!(self.gossip.d_low), limit!(self.gossip.d_high));
        rules.at_least(d_low, 1, "there would be no mesh");
        rules.within(d_low, d, "a mesh is grafted up to d");
        rules.within(d, d_high, "a mesh is pruned down to d");
        rules.within(d_high, peers, "a mesh is made of gossip peers");
        rules.within(limit!(self.gossip.d_score), d, "of d peers that stay");
        let d_out = self.gossip.d_out;
        rules.within(
            LimitValue::number("gossip.d_out + 1", d_out.saturating_add(1)),
            d_low,
            "peers that this relay dialled are fewer than the smallest mesh",
        );
        rules.within(
            LimitValue::number("gossip.d_out x 2", d_out.saturating_mul(2)),
            d,
            "they are at most half of a mesh",
        );
        rules.within(peers, limit!(self.connections.connections), "each has a connection");
        let topics = limit!(self.gossip.topics_per_peer);
        rules.within(
            limit!(self.gossip.topics),
            topics,
            "a peer may be in all topics of this relay",
        );
        rules.at_most(topics, SHARDS, "a cluster has no more shards");
        rules.at_least(
            limit!(self.gossip.heartbeat_millis),
            100,
            "there would be nothing but heartbeats",
        );
        rules.at_most(limit!(self.gossip.heartbeat_millis), 10_000, "a mesh would heal too late");
        rules.within(
            limit!(self.gossip.history_gossip),
            limit!(self.gossip.history),
            "what is offered must be there to be fetched",
        );
        rules.at_most(limit!(self.gossip.history), 60, "the history is held by heartbeat");
        let kept = self.gossip.history.saturating_mul(self.gossip.heartbeat_millis);
        rules.within(
            LimitValue::number("gossip.history x gossip.heartbeat_millis", kept),
            LimitValue::number(
                "gossip.seen_seconds x 1000",
                self.gossip.seen_seconds.saturating_mul(1000),
            ),
            "what peers may still fetch must not be taken again",
        );
        rules.within(
            limit!(self.gossip.history_messages),
            limit!(self.gossip.seen_entries),
            "what is in the history was seen",
        );
        let queue = self.gossip.queue_messages_per_peer.saturating_mul(REFERENCE_BYTES);
        rules.within(
            LimitValue::size("gossip.queue_messages_per_peer x 64 B", queue),
            limit!(self.gossip.queues_bytes),
            "the longest queue must fit",
        );
        for limit in [
            limit!(self.gossip.topics),
            limit!(self.gossip.history_gossip),
            limit!(self.gossip.history_messages),
            limit!(self.gossip.fanout_seconds),
            limit!(self.gossip.prune_backoff_seconds),
            limit!(self.gossip.unsubscribe_backoff_seconds),
            limit!(self.gossip.queue_messages_per_peer),
            limit!(self.gossip.ihave_messages_per_heartbeat),
            limit!(self.gossip.ihave_ids_per_heartbeat),
            limit!(self.gossip.iwant_ids_per_heartbeat),
            limit!(self.gossip.iwant_retransmissions),
            limit!(self.gossip.iwant_followup_millis),
            limit!(self.gossip.idontwant_heartbeats),
        ] {
            rules.at_least(limit, 1, "gossip would not work");
        }
        rules.at_most(limit!(self.gossip.iwant_retransmissions), 255, "it is counted in a byte");
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_services(&self, rules: &mut Rules) {
        rules.within(
            limit!(self.filter.receivers),
            limit!(self.connections.connections),
            "each has a connection",
        );
        rules.within(
            limit!(self.filter.topics_per_request),
            limit!(self.filter.criteria_per_peer),
            "one request must fit",
        );
        rules.within(
            limit!(self.filter.criteria_per_peer),
            limit!(self.filter.subscriptions),
            "it is a part of all subscriptions",
        );
        let queue = self.filter.queue_messages_per_receiver.saturating_mul(REFERENCE_BYTES);
        rules.within(
            LimitValue::size("filter.queue_messages_per_receiver x 64 B", queue),
            limit!(self.filter.queues_bytes),
            "the longest queue must fit",
        );
        rules.within(
            limit!(self.filter.pushes_in_flight_per_receiver),
            limit!(self.connections.streams_per_connection),
            "each push is a stream",
        );
        rules.at_least(
            limit!(self.filter.content_topic_bytes),
            16,
            "hardly any content topic would fit",
        );
        let topic = limit!(self.filter.content_topic_bytes);
        rules.at_most(topic, CONTENT_TOPIC_BYTES, "no message has a longer one");
        let topics = limit!(self.filter.topics_per_request);
        rules.at_most(topics, TOPICS_PER_REQUEST, "the protocol has no larger requests");
        rules.at_least(limit!(self.filter.ping_seconds), 10, "receivers would be all pings");
        for limit in [
            limit!(self.filter.receivers),
            limit!(self.filter.topics_per_request),
            limit!(self.filter.queue_messages_per_receiver),
            limit!(self.filter.pushes_in_flight_per_receiver),
            limit!(self.filter.requests_per_second),
            limit!(self.filter.requests_burst),
            limit!(self.light_push.requests_in_flight),
            limit!(self.light_push.messages_per_second),
            limit!(self.light_push.messages_burst),
            limit!(self.peers.known_peers),
            limit!(self.peers.peer_exchange_peers),
            limit!(self.peers.discovery_table),
            limit!(self.peers.discovery_packets_per_second),
            limit!(self.peers.node_list_names),
            limit!(self.peers.dials),
            limit!(self.peers.retry_seconds),
            limit!(self.peers.requests_per_second),
            limit!(self.peers.requests_burst),
        ] {
            rules.at_least(limit, 1, "the service could not be used");
        }
        rules.at_most(
            limit!(self.peers.peer_exchange_peers),
            PEER_EXCHANGE_PEERS,
            "an answer is one frame, which other nodes read up to 64 KiB",
        );
        rules.at_most(
            limit!(self.peers.discovery_packets_per_second),
            10_000,
            "each may begin a handshake, which is kept for a second",
        );
        rules.at_most(
            limit!(self.peers.node_list_names),
            100_000,
            "names asked for are kept until the end",
        );
        rules.within(
            limit!(self.peers.outbound_relay_peers),
            limit!(self.gossip.peers),
            "they are gossiped with",
        );
        rules.within(
            limit!(self.peers.dials),
            limit!(self.connections.connections),
            "each becomes a connection",
        );
        rules.within(
            limit!(self.peers.retry_seconds),
            limit!(self.peers.retry_seconds_max),
            "the time doubles up to there",
        );
    }

    fn check_store(&self, rules: &mut Rules) {
        let segment = limit!(self.store.segment_bytes);
        rules.at_least(limit!(self.store.retention_hours), 1, "a partition is an hour");
        rules.at_most(
            limit!(self.store.retention_hours),
            24 * 366,
            "each hour has an index of its own",
        );
        rules.at_least(segment, MIB, "the log would be all small files");
        rules.within(
            LimitValue::size("store.segment_bytes x 4", segment.value().saturating_mul(4)),
            limit!(self.store.retention_bytes),
            "the oldest leaves while the newest is written",
        );
        rules.at_most(
            LimitValue::number(
                "store.retention_bytes / store.segment_bytes",
                self.store.retention_bytes / segment.value().max(1),
            ),
            SEGMENTS_MAX,
            "each is a file",
        );
        rules.within(
            segment,
            limit!(self.store.disk_reserve_bytes),
            "a segment that began must be finished",
        );
        rules.at_least(limit!(self.store.sync_millis), 10, "there would be nothing but syncs");
        rules.at_most(
            limit!(self.store.sync_millis),
            60_000,
            "a loss of power would cost too much",
        );
        rules.within(
            LimitValue::number(
                "store.query_threads + 1",
                self.store.query_threads.saturating_add(1),
            ),
            limit!(self.store.index_connections),
            "each query reads by a connection, and the writer has one",
        );
        rules.at_least(
            limit!(self.store.index_cache_bytes),
            64 * KIB,
            "every row would be read twice",
        );
        rules.at_most(
            limit!(self.store.page_messages_max),
            PAGE_MESSAGES,
            "the protocol has no larger pages",
        );
        rules.within(
            limit!(self.messages.frame_bytes),
            limit!(self.store.page_bytes),
            "the largest message must fit a page",
        );
        for limit in [
            limit!(self.store.index_queue_messages),
            limit!(self.store.query_threads),
            limit!(self.store.page_messages_max),
            limit!(self.store.requests_per_second),
            limit!(self.store.requests_burst),
        ] {
            rules.at_least(limit, 1, "the service could not be used");
        }
        rules.at_most(limit!(self.store.query_threads), 64, "queries are bound by the disk");
        rules.at_most(
            limit!(self.store.spare_segments),
            64,
            "a few seconds of messages are enough",
        );
    }

    fn check_http(&self, rules: &mut Rules) {
        let encoded =
            self.messages.message_bytes.div_ceil(3).saturating_mul(4).saturating_add(4 * KIB);
        let encoded = LimitValue::size("messages.message_bytes in base64 + 4 KiB", encoded);
        let body = limit!(self.http.body_bytes);
        rules.within(encoded, body, "the largest message must fit a body");
        rules.within(body, limit!(self.http.bodies_bytes), "the largest body must fit");
        rules.within(
            encoded,
            limit!(self.http.responses_bytes),
            "the largest message must fit a response",
        );
        for limit in [
            limit!(self.http.connections),
            limit!(self.http.subscriptions),
            limit!(self.http.cache_messages),
        ] {
            rules.at_least(limit, 1, "clients could not be served");
        }
        let timeout = limit!(self.http.read_timeout_millis);
        rules.at_least(timeout, 100, "honest clients on slow links would be cut off");
        rules.at_most(timeout, 600_000, "slow clients would hold their connection for ever");
    }

    fn check_governor(&self, rules: &mut Rules) {
        let levels = [
            limit!(self.governor.refuse_queries_percent),
            limit!(self.governor.refuse_pushes_percent),
            limit!(self.governor.pause_reading_percent),
        ];
        let because =
            ["queries are refused before messages", "messages are refused before everything waits"];
        self.governor.hand_back.check(rules, levels, because);
    }
}
