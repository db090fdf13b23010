//! The lines of the relay's budget sheet ([`sheet::Sheet`]), and what one entry of each table
//! costs.

use budget::{KIB, MIB, format_size};
use sheet::{LineKind, SheetLine};

use crate::{Limits, pool};

/// A stream: its multiplexer's state, the negotiation of its protocol, the task that serves it.
pub const STREAM_BYTES: u64 = 4 * KIB;
/// A push being served, in addition to its message, which is in `receiving` and then in
/// `appending`.
pub const REQUEST_BYTES: u64 = 4 * KIB;
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
/// A criterion of a filter subscription, without its content topic.
pub const CRITERION_BYTES: u64 = 128;
/// A connection to an index database, without its cache: lookaside memory, schema, statements.
pub const INDEX_CONNECTION_BYTES: u64 = 192 * KIB;
/// A spare segment of the store, on disk.
pub(crate) const SPARE_BYTES: u64 = 4 * MIB;
/// A row waiting for the index's writer.
pub const INDEX_ROW_BYTES: u64 = 256;
/// A store query, waiting or running: the request and the references of a page.
pub const QUERY_BYTES: u64 = 32 * KIB;
/// A known peer: key, addresses, its signed record.
pub const PEER_BYTES: u64 = 2 * KIB;
/// Buffers of one HTTP connection.
pub const HTTP_CONNECTION_BYTES: u64 = 16 * KIB;

const _: () = {
    assert!(REFERENCE_BYTES >= 32 + 4 + 8 + 8 + 4, "hash, topic, segment, offset, length");
    assert!(SEEN_BYTES >= 32 * 2 && HISTORY_BYTES >= 2 * REFERENCE_BYTES);
    assert!(HTTP_CONNECTION_BYTES >= 8 << 10, "HTTP parsers start with a buffer of 8 KiB");
};

/// A line that is one count of entries of one size.
fn times(count: u64, bytes: u64) -> (u64, String) {
    (count.saturating_mul(bytes), format!("{count} x {}", format_size(bytes)))
}

/// A line that is one limit.
fn whole(bytes: u64) -> (u64, String) {
    (bytes, String::new())
}

impl Limits {
    /// The most memory that one gossip peer takes.
    fn gossip_peer_bytes(&self) -> u64 {
        let gossip = &self.gossip;
        let topics = gossip.topics_per_peer.saturating_mul(GOSSIP_TOPIC_BYTES);
        let ids = gossip.ihave_ids_per_heartbeat.saturating_add(gossip.idontwant_ids_per_peer);
        GOSSIP_PEER_BYTES.saturating_add(topics).saturating_add(ids.saturating_mul(GOSSIP_ID_BYTES))
    }

    pub(crate) fn sheet_lines(&self) -> Vec<SheetLine> {
        let mut lines = self.process_lines();
        lines.extend(self.traffic_lines());
        lines.extend(self.gossip_lines());
        lines.extend(self.service_lines());
        lines.extend(self.file_lines());
        lines
    }

    fn process_lines(&self) -> Vec<SheetLine> {
        use LineKind::{Fixed, Pool};
        let process = &self.process;
        vec![
            line(
                pool::PROGRAM,
                "relay",
                Pool,
                whole(process.program_bytes),
                "constants that hold addresses: the loader writes them",
            ),
            line(
                "process",
                "relay",
                Fixed,
                whole(process.base_bytes),
                "the process at rest: runtime, stacks, allocator slack",
            ),
            line(
                "kernel",
                "kernel",
                Fixed,
                whole(process.kernel_bytes),
                "page tables, sockets and their buffers charged to the relay",
            ),
            line(
                "page_cache",
                "kernel",
                Fixed,
                whole(process.page_cache_floor_bytes),
                "code being executed, and messages between writing and sending",
            ),
        ]
    }

    fn traffic_lines(&self) -> Vec<SheetLine> {
        use LineKind::Pool;
        let (connections, messages) = (&self.connections, &self.messages);
        vec![
            line(
                pool::CONNECTIONS,
                "relay",
                Pool,
                times(connections.connections, connections.connection_bytes),
                "noise, multiplexer and state of open connections",
            ),
            line(
                pool::STREAMS,
                "relay",
                Pool,
                times(connections.streams, STREAM_BYTES),
                "open streams: negotiation, and the task that serves them",
            ),
            line(
                pool::UNREAD,
                "relay",
                Pool,
                whole(connections.unread_bytes),
                "bytes received by multiplexers that no stream consumed yet",
            ),
            line(
                pool::RECEIVING,
                "relay",
                Pool,
                whole(messages.receiving_bytes),
                "frames being read and decoded",
            ),
            line(
                pool::APPENDING,
                "store",
                Pool,
                whole(messages.appending_bytes),
                "messages waiting for the log's writer",
            ),
            line(
                pool::SENDING,
                "relay",
                Pool,
                whole(messages.sending_bytes),
                "chunks of messages being written to peers",
            ),
            line(
                pool::PUSH_REQUESTS,
                "relay",
                Pool,
                times(self.light_push.requests_in_flight, REQUEST_BYTES),
                "light pushes being served",
            ),
        ]
    }

    fn gossip_lines(&self) -> Vec<SheetLine> {
        use LineKind::Pool;
        let gossip = &self.gossip;
        vec![
            line(
                pool::GOSSIP_PEERS,
                "router",
                Pool,
                times(gossip.peers, self.gossip_peer_bytes()),
                "state of gossip peers: topics, scores, ids offered and not wanted",
            ),
            line(
                pool::SEEN,
                "router",
                Pool,
                times(gossip.seen_entries, SEEN_BYTES),
                "ids of messages that are not taken again",
            ),
            line(
                pool::GOSSIP_HISTORY,
                "router",
                Pool,
                times(gossip.history_messages, HISTORY_BYTES),
                "references of messages that peers may still fetch",
            ),
            line(
                pool::GOSSIP_QUEUES,
                "router",
                Pool,
                whole(gossip.queues_bytes),
                "references of messages waiting for gossip peers",
            ),
        ]
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn service_lines(&self) -> Vec<SheetLine> {
        use LineKind::{Fixed, Pool};
        let Limits { filter, store, peers, http, .. } = self;
        let index_connection = store.index_cache_bytes.saturating_add(INDEX_CONNECTION_BYTES);
        vec![
            line(
                pool::SUBSCRIPTIONS,
                "relay",
                Pool,
                times(filter.subscriptions, filter.criterion_bytes()),
                "criteria of filter subscriptions, with the longest content topic",
            ),
            line(
                pool::PUSH_QUEUES,
                "relay",
                Pool,
                whole(filter.queues_bytes),
                "references of messages waiting for filter receivers",
            ),
            line(
                "store_index",
                "store",
                Fixed,
                times(store.index_connections, index_connection),
                "page caches and statements of the index databases that are open",
            ),
            line(
                pool::INDEX_QUEUE,
                "store",
                Pool,
                times(store.index_queue_messages, INDEX_ROW_BYTES),
                "rows waiting for the index's writer",
            ),
            line(
                pool::STORE_QUERIES,
                "store",
                Pool,
                times(store.query_threads.saturating_add(store.queries_waiting), QUERY_BYTES),
                "store queries, running and waiting",
            ),
            line(
                pool::PEER_STORE,
                "relay",
                Pool,
                times(peers.known_peers.saturating_add(peers.discovery_table), PEER_BYTES),
                "known peers and the discovery table",
            ),
            line(
                pool::HTTP_CONNECTIONS,
                "relay",
                Pool,
                times(http.connections, HTTP_CONNECTION_BYTES),
                "buffers of open HTTP connections",
            ),
            line(
                pool::REQUEST_BODIES,
                "relay",
                Pool,
                whole(http.bodies_bytes),
                "HTTP request bodies being read and decoded",
            ),
            line(
                pool::RESPONSES,
                "relay",
                Pool,
                whole(http.responses_bytes),
                "HTTP responses being encoded and written",
            ),
            line(
                pool::HTTP_CACHE,
                "relay",
                Pool,
                times(http.subscriptions.saturating_mul(http.cache_messages), REFERENCE_BYTES),
                "references of messages that REST clients will fetch",
            ),
        ]
    }

    fn file_lines(&self) -> Vec<SheetLine> {
        use LineKind::{Disk, File};
        let store = &self.store;
        vec![
            line(
                "log_pages",
                "store",
                File,
                times(2, store.segment_bytes),
                "the newest segments, which most readers read; the kernel takes them when it \
                 needs them",
            ),
            line(
                "store",
                "store",
                Disk,
                whole(store.retention_bytes),
                "messages and their index, in partitions by the hour",
            ),
            line(
                "segments_in_transit",
                "store",
                Disk,
                times(3, store.segment_bytes),
                "the segment being written, one being begun, one dropped that is still being sent",
            ),
            line(
                "spare_segments",
                "store",
                Disk,
                times(store.spare_segments, SPARE_BYTES),
                "passed on in these while the disk has no byte left",
            ),
            line(
                "disk_reserve",
                "store",
                Disk,
                whole(store.disk_reserve_bytes),
                "kept free; with less, messages are refused",
            ),
        ]
    }
}

fn line(
    name: &'static str,
    owner: &'static str,
    kind: LineKind,
    (bytes, made_of): (u64, String),
    reason: &'static str,
) -> SheetLine {
    SheetLine { name, bytes, owner, made_of, reason, kind }
}
