//! Names of the memory pools, for their users: `ledger.pool(relay_limits::pool::UNREAD)`.
//!
//! A pool's cap is the line of the same name in the budget sheet. Pools marked *observed* are
//! bounded by a count of entries already; the ledger only counts them
//! ([`accounting::Pool::observe`]).

/// Constants of the program that the loader writes: [`crate::ProcessLimits::program_bytes`] at
/// most, counted as measured (observed).
pub const PROGRAM: &str = "program";
/// Open connections, while they are negotiated too: [`crate::ConnectionLimits::connection_bytes`]
/// each. Full: a connection is not accepted.
pub const CONNECTIONS: &str = "connections";
/// Open streams: [`crate::STREAM_BYTES`] each. Full: a stream is reset.
pub const STREAMS: &str = "streams";
/// Bytes received by multiplexers that no stream consumed yet. Full: sockets are not read.
pub const UNREAD: &str = "unread";
/// Frames being read and decoded, by their announced length. Full: the stream is not read.
pub const RECEIVING: &str = "receiving";
/// Messages waiting for the log's writer: bounded by its queue (observed), and counted in
/// `receiving` until they are written. Full: light push answers 429, gossip frames wait.
pub const APPENDING: &str = "appending";
/// Buffers of messages being written to peers: [`crate::MessageLimits::sending_chunk_bytes`] each.
/// Full: the stream waits.
pub const SENDING: &str = "sending";
/// Requests of light push being served: [`crate::REQUEST_BYTES`] each. Full: 429.
pub const PUSH_REQUESTS: &str = "push_requests";
/// Messages whose rate limit proofs are being verified: [`crate::RLN_PENDING_BYTES`] each
/// (observed). Full: streams of peers are not read, and light push answers 429.
pub const RLN_PENDING: &str = "rln_pending";
/// State of each gossip peer: topics, ids it offered, was asked for or does not want (observed).
pub const GOSSIP_PEERS: &str = "gossip_peers";
/// Ids of messages seen: [`crate::SEEN_BYTES`] each (observed). Full: the oldest leave.
pub const SEEN: &str = "seen";
/// References of messages that peers may still fetch: [`crate::HISTORY_BYTES`] each (observed).
/// Full: the oldest leave.
pub const GOSSIP_HISTORY: &str = "gossip_history";
/// References waiting for gossip peers: [`crate::REFERENCE_BYTES`] each (observed). Full: the
/// oldest of the longest queue leaves.
pub const GOSSIP_QUEUES: &str = "gossip_queues";
/// Criteria of filter subscriptions: [`crate::FilterLimits::criterion_bytes`] each at most
/// (observed). Full: refused.
pub const SUBSCRIPTIONS: &str = "subscriptions";
/// References waiting for filter receivers: [`crate::REFERENCE_BYTES`] each (observed). Full: the
/// oldest of the longest queue leaves.
pub const PUSH_QUEUES: &str = "push_queues";
/// Rows waiting for the index's writer: [`crate::INDEX_ROW_BYTES`] each (observed). Full: the
/// log's writer waits.
pub const INDEX_QUEUE: &str = "index_queue";
/// Store queries, waiting or running: [`crate::QUERY_BYTES`] each (observed). Full: 429.
pub const STORE_QUERIES: &str = "store_queries";
/// Known peers and the discovery table: [`crate::PEER_BYTES`] each (observed). Full: the worst
/// leave.
pub const PEER_STORE: &str = "peer_store";
/// Buffers of open HTTP connections: [`crate::HTTP_CONNECTION_BYTES`] each. Full: not accepted.
pub const HTTP_CONNECTIONS: &str = "http_connections";
/// HTTP request bodies being read and decoded. Full: 503.
pub const REQUEST_BODIES: &str = "request_bodies";
/// HTTP responses being encoded and written. Full: 503.
pub const RESPONSES: &str = "responses";
/// Topics that REST clients subscribe to ([`crate::HTTP_TOPIC_BYTES`]), and references of their
/// messages: [`crate::REFERENCE_BYTES`] each (observed). Full: the oldest leave, and further topics
/// are refused.
pub const HTTP_CACHE: &str = "http_cache";

/// All of them, in the order of the sheet.
pub const ALL: [&str; 22] = [
    PROGRAM,
    CONNECTIONS,
    STREAMS,
    UNREAD,
    RECEIVING,
    APPENDING,
    SENDING,
    PUSH_REQUESTS,
    RLN_PENDING,
    GOSSIP_PEERS,
    SEEN,
    GOSSIP_HISTORY,
    GOSSIP_QUEUES,
    SUBSCRIPTIONS,
    PUSH_QUEUES,
    INDEX_QUEUE,
    STORE_QUERIES,
    PEER_STORE,
    HTTP_CONNECTIONS,
    REQUEST_BODIES,
    RESPONSES,
    HTTP_CACHE,
];
