//! From one number to the whole table.
//!
//! Limits come in three kinds. **Scaled** ones are rows of `scale`. **Fixed** ones are constants
//! here: what the protocols or the clients demand, and what is a matter of time rather than memory.
//! **Following** ones are consequences of others, so that an operator who changes a cause need not
//! hunt for its consequences.

use budget::{KIB, MIB};
use sheet::{HandBackLimits, HeapLimits, Preset, Rules, SheetLine, Table};

use crate::{reasons::REASONS, scale, *};

/// All presets. They are derived like any other size; tests pin their values.
pub const PRESETS: [Preset; 5] = [
    Preset { name: "tiny", memory_bytes: 64 * MIB },
    Preset { name: "micro", memory_bytes: 128 * MIB },
    Preset { name: "nano", memory_bytes: 256 * MIB },
    Preset { name: "small", memory_bytes: 512 * MIB },
    Preset { name: "medium", memory_bytes: 1024 * MIB },
];

/// Largest Waku message, serialised.
pub(crate) const MESSAGE_BYTES: u64 = 150 * KIB;
/// Bytes of a gossip frame in addition to one message: control messages, topics.
const FRAME_EXTRA_BYTES: u64 = 64 * KIB;
/// Stock clients take frames of up to 4 MiB; a page is a frame.
const PAGE_BYTES: u64 = 3 * MIB;
/// Base64 of the largest message, in JSON.
const BODY_BYTES: u64 = 256 * KIB;
/// Free disk kept at least, however small the segments.
const DISK_RESERVE_BYTES_MIN: u64 = 256 * MIB;
/// Segments whose room is kept free.
const DISK_RESERVE_SEGMENTS: u64 = 4;

const GOVERNOR: GovernorLimits = GovernorLimits {
    hand_back: HandBackLimits::MEASURED,
    refuse_queries_percent: 85,
    refuse_pushes_percent: 90,
    pause_reading_percent: 95,
};

const _: () = {
    assert!(MESSAGE_BYTES + FRAME_EXTRA_BYTES == 214 * KIB);
    assert!(MESSAGE_BYTES.div_ceil(3) * 4 + 4 * KIB <= BODY_BYTES);
    assert!(PAGE_BYTES >= 2 * MESSAGE_BYTES && PAGE_BYTES <= 4 * MIB - 64 * KIB);
};

impl Table for Limits {
    const PROGRAM: &'static str = "thimble-relay";
    const PRESETS: &'static [Preset] = &PRESETS;
    const REASONS: &'static [(&'static str, &'static str)] = REASONS;

    fn scaled(memory: u64) -> Self {
        let mut table = Self {
            memory_budget_bytes: memory,
            process: ProcessLimits {
                base_bytes: scale::BASE.bytes_at(memory),
                program_bytes: MIB,
                kernel_bytes: scale::KERNEL.bytes_at(memory),
                page_cache_floor_bytes: scale::PAGE_CACHE_FLOOR.bytes_at(memory),
            },
            connections: connections(memory),
            messages: messages(memory),
            gossip: gossip(memory),
            filter: filter(memory),
            light_push: LightPushLimits {
                requests_in_flight: scale::PUSH_REQUESTS.at(memory),
                messages_per_second: 10_000,
                messages_burst: 10_000,
                hold_back_messages_per_second: 250,
                hold_back_bytes_per_second: 8 * MIB,
            },
            store: store(memory),
            peers: PeerLimits {
                known_peers: scale::KNOWN_PEERS.at(memory),
                peer_exchange_peers: 60,
                discovery_table: scale::DISCOVERY_TABLE.at(memory),
                discovery_packets_per_second: 100,
                node_list_names: 500,
                outbound_relay_peers: scale::OUTBOUND.at(memory),
                dials: 4,
                retry_seconds: 5,
                retry_seconds_max: 3_600,
                requests_per_second: 1,
                requests_burst: 10,
            },
            http: HttpLimits {
                connections: scale::HTTP_CONNECTIONS.at(memory),
                body_bytes: BODY_BYTES,
                bodies_bytes: scale::BODIES.bytes_at(memory),
                responses_bytes: scale::RESPONSES.bytes_at(memory),
                subscriptions: scale::HTTP_SUBSCRIPTIONS.at(memory),
                cache_messages: scale::CACHE_MESSAGES.at(memory),
                read_timeout_millis: 10_000,
            },
            governor: GOVERNOR,
            heap: HeapLimits::with_profiler_bytes(scale::BASE.bytes_at(memory) / 3),
        };
        table.follow(|_| false);
        table
    }

    fn memory_budget_bytes(&self) -> u64 {
        self.memory_budget_bytes
    }

    fn lines(&self) -> Vec<SheetLine> {
        self.sheet_lines()
    }

    fn follow(&mut self, stays: impl Fn(&str) -> bool) {
        let set = |name: &str, field: &mut u64, value: u64| {
            if !stays(name) {
                *field = value;
            }
        };
        let frame = self.messages.message_bytes.saturating_add(FRAME_EXTRA_BYTES);
        set("messages.frame_bytes", &mut self.messages.frame_bytes, frame);
        let half = self.connections.connections.div_ceil(2);
        set(
            "connections.connections_per_address",
            &mut self.connections.connections_per_address,
            half,
        );
        let reserve = self
            .store
            .segment_bytes
            .saturating_mul(DISK_RESERVE_SEGMENTS)
            .max(DISK_RESERVE_BYTES_MIN);
        set("store.disk_reserve_bytes", &mut self.store.disk_reserve_bytes, reserve);
    }

    fn rules(&self, rules: &mut Rules) {
        self.check_rules(rules);
    }
}

fn connections(memory: u64) -> ConnectionLimits {
    ConnectionLimits {
        connections: scale::CONNECTIONS.at(memory),
        connections_per_peer: 3,
        connections_per_address: 0,
        handshakes: scale::HANDSHAKES.at(memory),
        handshake_seconds: 10,
        connection_bytes: 40 * KIB,
        streams: scale::STREAMS.at(memory),
        streams_per_connection: scale::STREAMS_PER_CONNECTION.at(memory),
        unread_bytes_per_connection: scale::UNREAD_PER_CONNECTION.bytes_at(memory),
        unread_bytes: scale::UNREAD.bytes_at(memory),
        socket_buffer_bytes: scale::SOCKET_BUFFER.bytes_at(memory),
        stalled_seconds: 20,
        idle_seconds: 600,
        unused_seconds: 5,
    }
}

fn messages(memory: u64) -> MessageLimits {
    MessageLimits {
        message_bytes: MESSAGE_BYTES,
        frame_bytes: 0,
        receiving_bytes: scale::RECEIVING.bytes_at(memory),
        appending_bytes: scale::APPENDING.bytes_at(memory),
        sending_bytes: scale::SENDING.bytes_at(memory),
        sending_chunk_bytes: 16 * KIB,
        clock_seconds: 20,
    }
}

fn gossip(memory: u64) -> GossipLimits {
    GossipLimits {
        peers: scale::GOSSIP_PEERS.at(memory),
        topics: scale::TOPICS.at(memory),
        topics_per_peer: scale::TOPICS_PER_PEER.at(memory),
        d: 6,
        d_low: 4,
        d_high: 8,
        d_score: 4,
        d_out: 3,
        d_lazy: 6,
        heartbeat_millis: 1_000,
        history: 6,
        history_gossip: 3,
        history_messages: scale::HISTORY_MESSAGES.at(memory),
        fanout_seconds: 60,
        seen_seconds: 120,
        seen_entries: scale::SEEN_ENTRIES.at(memory),
        prune_backoff_seconds: 60,
        unsubscribe_backoff_seconds: 10,
        queue_messages_per_peer: scale::QUEUE_PER_PEER.at(memory),
        queues_bytes: scale::GOSSIP_QUEUES.bytes_at(memory),
        ihave_messages_per_heartbeat: 10,
        ihave_ids_per_heartbeat: scale::IHAVE_IDS.at(memory),
        iwant_ids_per_heartbeat: scale::IWANT_IDS.at(memory),
        iwant_retransmissions: 3,
        iwant_followup_millis: 3_000,
        idontwant_bytes: KIB,
        idontwant_ids_per_peer: scale::IDONTWANT_IDS.at(memory),
        idontwant_heartbeats: 3,
    }
}

fn filter(memory: u64) -> FilterLimits {
    FilterLimits {
        receivers: scale::RECEIVERS.at(memory),
        topics_per_request: 100,
        criteria_per_peer: 1_000,
        subscriptions: scale::SUBSCRIPTIONS.at(memory),
        content_topic_bytes: 256,
        queue_messages_per_receiver: scale::QUEUE_PER_RECEIVER.at(memory),
        queues_bytes: scale::PUSH_QUEUES.bytes_at(memory),
        pushes_in_flight_per_receiver: scale::PUSHES_IN_FLIGHT.step_at(memory),
        ping_seconds: 300,
        requests_per_second: 100,
        requests_burst: 1_000,
    }
}

fn store(memory: u64) -> StoreLimits {
    StoreLimits {
        retention_hours: 48,
        retention_bytes: scale::RETENTION.bytes_at(memory),
        segment_bytes: scale::SEGMENT.step_at(memory),
        sync_millis: 1_000,
        index_connections: scale::INDEX_CONNECTIONS.step_at(memory),
        index_cache_bytes: scale::INDEX_CACHE.bytes_at(memory),
        index_queue_messages: scale::INDEX_QUEUE.at(memory),
        query_threads: scale::QUERY_THREADS.step_at(memory),
        queries_waiting: scale::QUERIES_WAITING.at(memory),
        page_messages_max: 100,
        page_bytes: PAGE_BYTES,
        requests_per_second: 200,
        requests_burst: 400,
        disk_reserve_bytes: 0,
        spare_segments: 4,
    }
}
