//! The table itself: every limit of the relay, typed, in one place.
//!
//! Units are in the names: `_bytes`, `_seconds`, `_millis`, `_hours`, `_percent`; what has none is
//! a count. Every other crate of the relay takes the group it needs by reference and never invents
//! a limit of its own.

use budget::Ledger;
use serde::{Deserialize, Serialize};
use sheet::{HandBackLimits, HeapLimits, LimitsError, Sheet};

/// All limits of one relay. Built by [`Limits::derive`] or [`Limits::preset`], checked by
/// [`Limits::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most memory the relay may take, stated by the operator.
    pub memory_budget_bytes: u64,
    /// Reserve for the process itself.
    pub process: ProcessLimits,
    /// Connections, streams and multiplexers.
    pub connections: ConnectionLimits,
    /// Messages and frames on their way through.
    pub messages: MessageLimits,
    /// The mesh of relay nodes.
    pub gossip: GossipLimits,
    /// Filter subscriptions and pushes.
    pub filter: FilterLimits,
    /// Messages that light clients push.
    pub light_push: LightPushLimits,
    /// The log, its index, and queries.
    pub store: StoreLimits,
    /// Peers that are known, connected or not.
    pub peers: PeerLimits,
    /// The REST interface.
    pub http: HttpLimits,
    /// When freed memory goes back to the operating system, and when work is held back.
    pub governor: GovernorLimits,
    /// Limits of sampling allocations, in a relay that does (`--heap-profile`).
    pub heap: HeapLimits,
}

impl Limits {
    /// The table for a relay that may take `memory_bytes` in all (whole MiB of it), or which line
    /// of the budget sheet does not fit and what size would work.
    pub fn derive(memory_bytes: u64) -> Result<Self, LimitsError> {
        sheet::derive(memory_bytes)
    }

    /// The smallest size that can be derived.
    pub fn smallest_bytes() -> u64 {
        sheet::smallest_bytes::<Self>()
    }

    /// The table of a named size ([`crate::PRESETS`]).
    pub fn preset(name: &str) -> Result<Self, LimitsError> {
        sheet::preset(name)
    }

    /// Lays the operator's own values over the table, by name: an object of groups of limits.
    /// Nothing is changed when anything is refused.
    pub fn apply_overrides(&mut self, overrides: &serde_json::Value) -> Result<(), LimitsError> {
        sheet::apply_overrides(self, overrides)
    }

    /// Whether the limits fit together and into the budget; every rule broken is named with its
    /// limits and values.
    pub fn check(&self) -> Result<(), LimitsError> {
        sheet::check(self)
    }

    /// The budget sheet of this table.
    pub fn sheet(&self) -> Sheet {
        Sheet::for_table(self)
    }

    /// The pools that hold the relay to the sheet. Lines that are not pools are taken off the
    /// budget first.
    pub fn ledger(&self) -> Result<Ledger, LimitsError> {
        self.sheet().ledger()
    }
}

/// Memory of the process itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLimits {
    /// The process without its pools: runtime, stacks, memory that the allocator keeps between
    /// uses.
    pub base_bytes: u64,
    /// Constants of the program that hold addresses.
    pub program_bytes: u64,
    /// Kernel memory charged to the group: page tables, sockets and their buffers, directory
    /// entries.
    pub kernel_bytes: u64,
    /// Left unassigned on purpose, for page cache that must be resident: code being executed, and
    /// pages of the log between writing and sending.
    pub page_cache_floor_bytes: u64,
}

/// Limits on connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionLimits {
    /// Open connections, in and out. Beyond it a new one is not accepted.
    pub connections: u64,
    /// Connections of one peer. Beyond it the new one is closed.
    pub connections_per_peer: u64,
    /// Connections from one IP address (an IPv6 prefix of 64 bits counts as one). Beyond it a new
    /// one is closed before it is negotiated.
    pub connections_per_address: u64,
    /// Inbound connections being negotiated at once. Beyond it they wait in the listener's
    /// backlog.
    pub handshakes: u64,
    /// Time to negotiate a connection; then it is closed.
    pub handshake_seconds: u64,
    /// Charge of one open connection in the pool `connections`: noise, multiplexer, state.
    pub connection_bytes: u64,
    /// Open streams over all connections. Beyond it a new one is reset.
    pub streams: u64,
    /// Open streams of one connection, in each direction. Beyond it a new one is reset.
    pub streams_per_connection: u64,
    /// Bytes one connection's multiplexer may hold that no stream consumed. Beyond it the socket
    /// is not read.
    pub unread_bytes_per_connection: u64,
    /// The same over all connections: the pool `unread`.
    pub unread_bytes: u64,
    /// Send buffer and receive buffer of a socket, each, as set in the kernel. Bounds the kernel's
    /// memory for a peer that does not read.
    pub socket_buffer_bytes: u64,
    /// A stream with bytes to write that takes none for so long is reset, and its peer
    /// disconnected if it takes none at all.
    pub stalled_seconds: u64,
    /// When nearly all places are taken, a connection on which nothing was asked for so long, and
    /// whose peer neither gossips nor subscribes, is closed for a new one.
    pub idle_seconds: u64,
    /// The same for a connection on which nothing was asked ever, since it was opened.
    pub unused_seconds: u64,
}

/// Limits on messages on their way through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageLimits {
    /// Largest message, serialised.
    pub message_bytes: u64,
    /// Largest gossip frame. A frame announced longer ends the stream before it is read.
    pub frame_bytes: u64,
    /// Frames being read and decoded, together: the pool `receiving`.
    pub receiving_bytes: u64,
    /// Messages waiting for the log's writer, together: the pool `appending`.
    pub appending_bytes: u64,
    /// Buffers of messages being written to peers, together: the pool `sending`.
    pub sending_bytes: u64,
    /// Bytes of a message that are in memory at once while it is written to one peer.
    pub sending_chunk_bytes: u64,
    /// How far a message's timestamp may be off this machine's clock to be stored.
    pub clock_seconds: u64,
}

/// Limits of gossip. Without another word a time or count is that of gossipsub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GossipLimits {
    /// Peers that gossip. Further ones are connected, but not gossiped with.
    pub peers: u64,
    /// Topics this relay subscribes to or publishes in.
    pub topics: u64,
    /// Topics of one peer that are noted. Further ones are not.
    pub topics_per_peer: u64,
    /// Peers in a topic's mesh after grafting or pruning.
    pub d: u64,
    /// With fewer, peers are grafted.
    pub d_low: u64,
    /// With more, peers are pruned.
    pub d_high: u64,
    /// When pruning, this many of the best scored stay.
    pub d_score: u64,
    /// Number of peers of a mesh that this relay dialled.
    pub d_out: u64,
    /// Peers outside the mesh that hear of history at each heartbeat, at least.
    pub d_lazy: u64,
    /// Time between heartbeats.
    pub heartbeat_millis: u64,
    /// Heartbeats for which a message can be fetched.
    pub history: u64,
    /// Heartbeats for which a message is offered.
    pub history_gossip: u64,
    /// Messages in the history, as references. Beyond it the oldest leave early.
    pub history_messages: u64,
    /// A topic that is only published to is forgotten after so long without a message.
    pub fanout_seconds: u64,
    /// A message seen is not taken again for so long.
    pub seen_seconds: u64,
    /// Messages that are remembered as seen. Beyond it the oldest leave early.
    pub seen_entries: u64,
    /// A pruned peer is not grafted for so long.
    pub prune_backoff_seconds: u64,
    /// The same after this relay left a topic.
    pub unsubscribe_backoff_seconds: u64,
    /// References waiting for one peer. Beyond it the oldest leaves, and is counted.
    pub queue_messages_per_peer: u64,
    /// References waiting for all peers, in bytes: the pool `gossip_queues`.
    pub queues_bytes: u64,
    /// IHAVE messages of one peer that are heard per heartbeat.
    pub ihave_messages_per_heartbeat: u64,
    /// Ids of one IHAVE, and asked of one peer per heartbeat.
    pub ihave_ids_per_heartbeat: u64,
    /// Messages sent to one peer per heartbeat because it asked by IWANT. Further ids are ignored.
    pub iwant_ids_per_heartbeat: u64,
    /// How often one peer may fetch the same message.
    pub iwant_retransmissions: u64,
    /// Time in which a peer sends the messages it offered; otherwise its score falls.
    pub iwant_followup_millis: u64,
    /// Messages from this size on are announced by IDONTWANT before they are forwarded.
    pub idontwant_bytes: u64,
    /// Ids that one peer said it does not want, kept at most.
    pub idontwant_ids_per_peer: u64,
    /// Heartbeats for which they are kept.
    pub idontwant_heartbeats: u64,
}

/// Limits of filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterLimits {
    /// Peers that subscribe. Beyond it a subscription is refused with 503.
    pub receivers: u64,
    /// Content topics of one request. Beyond it the request is refused with 400.
    pub topics_per_request: u64,
    /// Criteria of one peer. Beyond it the request is refused with 503.
    pub criteria_per_peer: u64,
    /// Criteria of all peers. Beyond it the request is refused with 503.
    pub subscriptions: u64,
    /// Longest content topic of a criterion. A longer one is refused with 400.
    pub content_topic_bytes: u64,
    /// References waiting for one receiver. Beyond it the oldest leaves, and is counted.
    pub queue_messages_per_receiver: u64,
    /// References waiting for all receivers, in bytes: the pool `push_queues`.
    pub queues_bytes: u64,
    /// Pushes to one receiver that are being written at once, each on a stream of its own.
    pub pushes_in_flight_per_receiver: u64,
    /// Subscriptions of a peer that sent no request for so long end.
    pub ping_seconds: u64,
    /// Requests of one peer per second, on average. Beyond it 429.
    pub requests_per_second: u64,
    /// Requests of one peer at once after a pause.
    pub requests_burst: u64,
}

impl FilterLimits {
    /// Charge of one criterion in the pool `subscriptions`, with the longest content topic.
    pub fn criterion_bytes(&self) -> u64 {
        self.content_topic_bytes.saturating_add(crate::CRITERION_BYTES)
    }
}

/// Limits of light push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LightPushLimits {
    /// Requests being served, over all peers. Beyond it 429.
    pub requests_in_flight: u64,
    /// Messages of one peer per second, on average. Beyond it 429.
    pub messages_per_second: u64,
    /// Messages of one peer at once after a pause.
    pub messages_burst: u64,
    /// Messages whose receivers, or all relay peers, read slower than messages come are held back,
    /// but a topic is not slowed down below this rate, nor below the next: then the oldest in
    /// their queues leave.
    pub hold_back_messages_per_second: u64,
    /// The same in bytes.
    pub hold_back_bytes_per_second: u64,
}

/// Limits of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreLimits {
    /// Messages are kept for so long; the hour they came in is dropped whole.
    pub retention_hours: u64,
    /// Disk that messages and their index take. Beyond it the oldest partition is dropped, sooner
    /// than by its age.
    pub retention_bytes: u64,
    /// Size at which a segment of the log ends.
    pub segment_bytes: u64,
    /// Time after which what was appended is written through to the disk. A killed process loses
    /// nothing; a machine without power loses so much.
    pub sync_millis: u64,
    /// Connections to index databases that are open at once, the writer's among them.
    pub index_connections: u64,
    /// Page cache of one of them.
    pub index_cache_bytes: u64,
    /// Rows waiting for the index's writer. Beyond it the log's writer waits.
    pub index_queue_messages: u64,
    /// Queries that run at once.
    pub query_threads: u64,
    /// Queries that wait for one of them. Beyond it 429.
    pub queries_waiting: u64,
    /// Messages of one page.
    pub page_messages_max: u64,
    /// Bytes of one page. A page ends before the message that would pass them, with a cursor.
    pub page_bytes: u64,
    /// Queries of one peer per second, on average. Beyond it 429.
    pub requests_per_second: u64,
    /// Queries of one peer at once after a pause.
    pub requests_burst: u64,
    /// Free disk below which messages are refused with the reason; relaying continues.
    pub disk_reserve_bytes: u64,
    /// Files of 4 MiB made while there is room: what relay peers bring is passed on in them while
    /// the disk has no byte left.
    pub spare_segments: u64,
}

/// Limits on known peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLimits {
    /// Peers whose addresses are known. Beyond it those that failed longest leave.
    pub known_peers: u64,
    /// Peers in one answer of peer exchange.
    pub peer_exchange_peers: u64,
    /// Records in the table of the discovery protocol, and sessions with their nodes. Beyond it
    /// records leave, those first whose nodes do not answer.
    pub discovery_table: u64,
    /// Discovery packets a second that this relay did not wait for. Beyond it they are dropped.
    pub discovery_packets_per_second: u64,
    /// Names that are asked for at one reading of a node list in the DNS; the rest is left for the
    /// next.
    pub node_list_names: u64,
    /// Relay peers that this relay dials, among those it found. With fewer it dials further ones.
    pub outbound_relay_peers: u64,
    /// Dials under way at once.
    pub dials: u64,
    /// Time until a peer that could not be reached is dialled again; doubles with each failure.
    pub retry_seconds: u64,
    /// The longest such time.
    pub retry_seconds_max: u64,
    /// Peer exchange requests of one peer per second, on average. Beyond it 429.
    pub requests_per_second: u64,
    /// Peer exchange requests of one peer at once after a pause.
    pub requests_burst: u64,
}

/// Limits of the REST interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpLimits {
    /// Open connections. Beyond it a new one waits in the listener's backlog.
    pub connections: u64,
    /// Body of one request. Beyond it 413.
    pub body_bytes: u64,
    /// Bodies of all requests in flight: the pool `request_bodies`.
    pub bodies_bytes: u64,
    /// Responses being written: the pool `responses`.
    pub responses_bytes: u64,
    /// Topics that REST clients subscribe to. Beyond it 503.
    pub subscriptions: u64,
    /// Messages kept for one of them, as references. Beyond it the oldest leaves.
    pub cache_messages: u64,
    /// Time to send headers and body.
    pub read_timeout_millis: u64,
}

/// When memory is returned, and when work is held back. Unknown fields are refused by
/// [`sheet::apply_overrides`]: serde cannot for a flattened struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GovernorLimits {
    /// When freed memory goes back.
    #[serde(flatten)]
    pub hand_back: HandBackLimits,
    /// Anonymous memory in percent of the budget from which on store queries and REST reads are
    /// refused.
    pub refuse_queries_percent: u64,
    /// Anonymous memory in percent of the budget from which on light pushes, subscriptions and new
    /// connections are refused.
    pub refuse_pushes_percent: u64,
    /// Anonymous memory in percent of the budget from which on no stream is read.
    pub pause_reading_percent: u64,
}

impl GovernorLimits {
    /// The thresholds, in the order in which they are reached.
    pub fn levels(&self) -> [u64; 3] {
        [self.refuse_queries_percent, self.refuse_pushes_percent, self.pause_reading_percent]
    }
}
