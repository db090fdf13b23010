// SEAM
//! The table itself: every limit of the node, typed, in one place.
//!
//! Units are in the names: `_bytes`, `_pages` (64 KiB Wasm pages), `_seconds`, `_millis`,
//! `_rounds`, `_instructions`. Every other crate takes the group it needs by reference and never
//! invents a limit of its own.

use budget::Ledger;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sheet::{HandBackLimits, HeapLimits, LimitsError, Preset, Rules, Sheet, SheetLine, Table};

use crate::{PRESETS, derive::COMPILE_ANONYMOUS_BYTES, reasons::REASONS};

/// All limits of one node. Built by [`crate::Limits::derive`] or a preset, checked by
/// [`crate::Limits::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most memory the node's processes may take together, stated by the operator.
    pub memory_budget_bytes: u64,
    /// The most that the node may keep on disk ([`Self::set_disk`]). 0 if not stated: the size on
    /// disk then follows from the memory.
    #[serde(default)]
    pub disk_budget_bytes: u64,
    /// Limits of one subnet.
    pub subnet: SubnetLimits,
    /// Limits of one message and one round.
    pub execution: ExecutionLimits,
    /// Worker processes and compilation.
    pub sandbox: SandboxLimits,
    /// Delta log and checkpoints.
    pub pages: PagesLimits,
    /// Sizes and counts of one canister module.
    pub module: ModuleLimits,
    /// Blocks, the ingress pool and the block log.
    pub consensus: ConsensusLimits,
    /// The public HTTP interface.
    pub gateway: GatewayLimits,
    /// The HTTP gateway, which serves canisters to browsers.
    #[serde(default)]
    pub http_gateway: HttpGatewayLimits,
    /// Requests of canisters to servers outside.
    #[serde(default)]
    pub outcalls: OutcallLimits,
    /// Reserve for the process itself.
    pub process: ProcessLimits,
    /// When freed memory goes back to the operating system, and when work is held back.
    pub governor: GovernorLimits,
    /// Cost of sampling allocations, in a node that does (`--heap-profile`).
    pub heap: HeapLimits,
}

impl Limits {
    /// Lays the operator's own values over the table, by name. Nothing is changed when anything is
    /// refused ([`sheet::apply_overrides`]).
    pub fn apply_overrides(&mut self, overrides: &Value) -> Result<(), LimitsError> {
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

    /// The pools that hold the node to the sheet. Lines that are not pools are taken off the budget
    /// first.
    pub fn ledger(&self) -> Result<Ledger, LimitsError> {
        self.sheet().ledger()
    }
}

impl Table for Limits {
    const PROGRAM: &'static str = "thimble";
    const PRESETS: &'static [Preset] = &PRESETS;
    const REASONS: &'static [(&'static str, &'static str)] = REASONS;

    fn scaled(memory_bytes: u64) -> Self {
        Self::derived(memory_bytes)
    }

    fn memory_budget_bytes(&self) -> u64 {
        self.memory_budget_bytes
    }

    fn disk_budget_bytes(&self) -> u64 {
        self.disk_budget_bytes
    }

    fn lines(&self) -> Vec<SheetLine> {
        self.sheet_lines()
    }

    fn follow(&mut self, stays: impl Fn(&str) -> bool) {
        self.follow_causes(stays);
    }

    fn rules(&self, rules: &mut Rules) {
        self.check_rules(rules);
    }
}

/// Limits on replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetLimits {
    /// All canister state together, on disk.
    pub memory_capacity_bytes: u64,
    /// Usage above which storage reserves cycles; equal to the capacity, so it never does.
    pub memory_threshold_bytes: u64,
    /// Canisters that may exist.
    pub canisters_max: u64,
    /// Guaranteed-response messages: queued bytes and reservations.
    pub guaranteed_response_message_bytes: u64,
    /// Calls with guaranteed responses that may be open, whether or not they are answered. Those
    /// that are refused for want of room are open too until their caller takes up the reject.
    pub guaranteed_response_calls: u64,
    /// Messages the system may drop: queued bytes of best-effort calls and of ingress messages
    /// inducted and not yet started.
    pub best_effort_message_bytes: u64,
    /// Ingress history (statuses and replies).
    pub ingress_history_bytes: u64,
    /// Ingress messages inducted and not yet answered.
    pub ingress_unfinished_max: u64,
    /// Custom sections of all modules together.
    pub wasm_custom_sections_bytes: u64,
    /// Metadata of all canisters (queues, controllers, globals ...), without messages.
    pub canister_metadata_bytes: u64,
    /// Outstanding callbacks per canister above which new calls are refused.
    pub callback_soft_limit: u64,
    /// Messages in one input or output queue between two canisters.
    pub queue_slots: u64,
    /// Largest argument or reply of an inter-canister call or ingress message.
    pub message_payload_bytes: u64,
    /// Controllers of one canister.
    pub controllers_max: u64,
    /// Chunk store of one canister.
    pub chunk_store_bytes: u64,
    /// Largest chunk of a chunk store (interface specification: 1 MiB).
    pub chunk_bytes: u64,
    /// Log records kept for one canister.
    pub canister_log_bytes: u64,
}

/// Limits on executions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutionLimits {
    /// Threads (and update workers) that execute messages in parallel; at least 1.
    pub threads: u64,
    /// Query workers, each a process of its own; 1 to 64.
    pub query_threads: u64,
    /// Queries of one canister at once.
    pub query_threads_per_canister: u64,
    /// Seconds that a query may run, with all its calls; also a check of a call
    /// (`canister_inspect_message`) and a transform of an outcall. Local: no result that members
    /// agree on depends on it.
    pub query_wall_clock_seconds: u64,
    /// Seconds that a query or a check of a call waits for a query worker.
    pub query_wait_seconds: u64,
    /// Memory each execution thread keeps free for response callbacks.
    pub response_callback_reservation_bytes: u64,
    /// Instructions of one update, timer, heartbeat or callback.
    pub instructions_per_message: u64,
    /// Instructions of one init, upgrade or install.
    pub instructions_per_install: u64,
    /// Instructions of one query.
    pub instructions_per_query: u64,
    /// Instructions of inspect_message.
    pub instructions_per_inspect: u64,
    /// Instructions after which no further message starts in a round.
    pub instructions_per_round: u64,
    /// Instructions after which a running message is paused so that others are served (one slice).
    pub instructions_per_slice: u64,
    /// Paused messages that are granted a slice in one round; the others wait their turn.
    pub paused_executions: u64,
    /// Stable bytes one message may dirty.
    pub stable_dirty_bytes_per_message: u64,
    /// Stable bytes one install or upgrade may dirty.
    pub stable_dirty_bytes_per_install: u64,
    /// Stable bytes one message or query may access.
    pub stable_accessed_bytes_per_message: u64,
    /// Stable bytes one install or upgrade may access.
    pub stable_accessed_bytes_per_install: u64,
    /// Heap bytes one message may dirty.
    pub heap_dirty_bytes_per_message: u64,
    /// Heap bytes one install or upgrade may dirty.
    pub heap_dirty_bytes_per_install: u64,
    /// Heap and stable bytes together that each phase of one install or upgrade may dirty: what
    /// the working memory holds of them.
    pub dirty_bytes_per_install: u64,
    /// Heap bytes one query may dirty, over all frames of a composite one.
    pub heap_dirty_bytes_per_query: u64,
    /// Stable bytes one query may dirty, over all frames of a composite one.
    pub stable_dirty_bytes_per_query: u64,
    /// Delta one round may add, and payloads of its messages.
    pub heap_delta_bytes_per_round: u64,
    /// Delta one canister may add per round.
    pub heap_delta_bytes_per_canister_round: u64,
    /// Depth of calls of one composite query.
    pub composite_query_depth: u64,
    /// Query replies cached.
    pub query_cache_bytes: u64,
    /// Rounds of a period: queries that members counted in one are a part of canisters' totals two
    /// periods later.
    pub query_stats_period_rounds: u64,
    /// Canisters whose queries a member counts in a period.
    pub query_stats_canisters: u64,
    /// Refuse calls with guaranteed responses at the System API.
    pub reject_guaranteed_response_calls: bool,
}

impl SandboxLimits {
    /// Room in the file of a compile child's heap. Twice the heap: what a growing buffer leaves
    /// behind is too small for its next size, and nothing is released before the child ends.
    pub fn compile_room_bytes(&self) -> u64 {
        self.compile_memory_bytes.saturating_mul(2)
    }
}

/// Limits on workers and compilation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxLimits {
    /// Canisters whose memories stay mapped over all workers.
    pub canisters_max: u64,
    /// Seconds without a message after which a canister's mapping is dropped.
    pub idle_seconds: u64,
    /// Resident bytes under which idle mappings are kept.
    pub resident_floor_bytes: u64,
    /// Resident bytes freed per eviction.
    pub eviction_batch_bytes: u64,
    /// Address space (RLIMIT_AS-independent) of anonymous memory one worker may hold before it is
    /// restarted.
    pub worker_anonymous_bytes: u64,
    /// Paused messages that a worker of their own keeps between rounds; any other runs again from
    /// its beginning. May be 0.
    #[serde(default)]
    pub paused_workers: u64,
    /// Compilations at once.
    pub compile_threads: u64,
    /// Heap of one compile child, in a file that the kernel can write back.
    pub compile_memory_bytes: u64,
    /// Anonymous memory of one compile child, reserved for it; four times that in address space
    /// (RLIMIT_DATA).
    #[serde(default = "compile_anonymous_bytes")]
    pub compile_anonymous_bytes: u64,
    /// CPU seconds of one compile child (RLIMIT_CPU).
    pub compile_seconds: u64,
    /// Compiled artefacts kept on disk.
    pub compilation_cache_bytes: u64,
}

/// Limits on canister memory on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagesLimits {
    /// Delta log over all canisters. A round begins only while `delta_reserve_bytes` of it are
    /// free.
    pub delta_capacity_bytes: u64,
    /// Delta kept free so that a started round can always finish.
    pub delta_reserve_bytes: u64,
    /// Delta log beyond which queries on older states may hold up folding for `pin_seconds` at
    /// most. When a round waits for room they give way at once.
    pub pinned_delta_bytes: u64,
    /// Seconds for which queries on older states may hold up folding while the delta log holds
    /// more than `pinned_delta_bytes`. Then they are cut off and fail with a reject that names
    /// this limit.
    pub pin_seconds: u64,
    /// Rounds after which a checkpoint comes at the latest; in a subnet each manifest also has one,
    /// mostly sooner.
    pub checkpoint_interval_rounds: u64,
    /// Rounds between states of a subnet that are given a manifest, and with it a checkpoint: what
    /// peers can fetch. The same on every node of a subnet.
    pub manifest_interval_rounds: u64,
    /// Delta since the last checkpoint that brings the next one early.
    pub checkpoint_delta_bytes: u64,
    /// Instructions since the last checkpoint that bring the next one early: bounds replay after a
    /// crash.
    pub checkpoint_instructions: u64,
    /// Rounds after a checkpoint with a manifest until the manifest's root is in the certified
    /// tree: time to compute it without a round waiting. The same on every node of a subnet.
    pub manifest_lag_rounds: u64,
    /// Rounds for which a snapshot that a peer is fetching is kept beyond its replacement by a
    /// newer one.
    pub manifest_lease_rounds: u64,
    /// Runs of one memory's index beyond which it is folded first (each is one kernel mapping).
    pub runs_per_memory: u64,
    /// Files of canister memories that are open for writing between two rounds; as many again may
    /// be open while a checkpoint syncs them, and for queries on older states. No more than a
    /// quarter of the system's limit.
    #[serde(default = "open_files")]
    pub open_files: u64,
    /// Threads that copy pages.
    pub copy_threads: u64,
    /// Cache of the metadata store.
    pub metadata_cache_bytes: u64,
    /// Free disk below which new updates are refused.
    pub disk_reserve_bytes: u64,
    /// Number of states that fit into the disk budget: 2 where a state fetched from peers is stored
    /// alongside the old one.
    #[serde(default = "one")]
    pub states_on_disk: u64,
}

/// For tables that were written down before a compile child had its heap in a file.
fn compile_anonymous_bytes() -> u64 {
    COMPILE_ANONYMOUS_BYTES
}

/// For tables that were written down before there was such a limit.
fn open_files() -> u64 {
    1024
}

/// For tables that were written down before there was a disk budget.
fn one() -> u64 {
    1
}

/// Limits on canister modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleLimits {
    /// Module as uploaded.
    pub wasm_bytes: u64,
    /// Module after gunzip.
    pub wasm_uncompressed_bytes: u64,
    /// Code section of one module.
    pub code_section_bytes: u64,
    /// Functions, imported and defined.
    pub functions: u64,
    /// Size of one function body.
    pub function_bytes: u64,
    /// Compile weight of one function, in units of 256 bytes of the compile child's memory.
    pub function_weight: u64,
    /// Compile weight of the module, in the same units: what stays of every function, its types
    /// and its tables.
    pub weight: u64,
    /// Globals that one module defines.
    pub globals: u64,
    /// Table elements, summed over tables.
    pub table_elements: u64,
    /// Tables that one module defines.
    pub tables: u64,
    /// Data segments of one module; also the limit for its element segments.
    pub data_segments: u64,
    /// Custom sections that carry metadata.
    pub custom_sections: u64,
    /// Bytes of custom sections of one module.
    pub custom_sections_bytes: u64,
    /// Exported query, update and composite query methods.
    pub exported_functions: u64,
    /// Sum of exported method name lengths.
    pub exported_names_bytes: u64,
    /// Heap of a 32-bit memory.
    pub heap32_bytes: u64,
    /// Heap of a 64-bit memory.
    pub heap64_bytes: u64,
    /// Stable memory of one canister.
    pub stable_bytes: u64,
}

/// Limits on blocks and the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsensusLimits {
    /// Ingress messages waiting for a block, in bytes.
    pub ingress_pool_bytes: u64,
    /// Ingress messages waiting for a block, counted.
    pub ingress_pool_messages: u64,
    /// Ingress bytes of one block.
    pub block_ingress_bytes: u64,
    /// Ingress messages of one block.
    pub block_ingress_messages: u64,
    /// How far ahead an ingress message may expire.
    pub ingress_expiry_seconds: u64,
    /// Clock drift allowed on top of it.
    pub ingress_drift_seconds: u64,
    /// With nothing to do, a block is made this often.
    pub idle_round_millis: u64,
    /// Blocks finalised but not executed: beyond it no block is proposed.
    pub execution_lag_blocks: u64,
    /// Certificates kept in memory.
    pub certificates_kept: u64,
    /// Blocks that one set of shares signs; then the subnet's key is reshared. The same for as long
    /// as the subnet lives.
    pub blocks_per_epoch: u64,
    /// Ingress bytes in blocks since the last checkpoint that bring the next one early: bounds the
    /// block log and what a restart reads.
    pub checkpoint_block_bytes: u64,
    /// Blocks kept below the newest checkpoint, for peers that were away.
    pub retention_rounds: u64,
    /// Ingress bytes in blocks that are kept: when there are more, older blocks go sooner.
    pub retention_block_bytes: u64,
    /// Bytes of its state a node sends peers that catch up, all together.
    pub sync_bytes_per_second: u64,
    /// Tables of key generation, and its working memory: with less room it is slower, never
    /// refused.
    pub nidkg_tables_bytes: u64,
}

/// Limits of the HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayLimits {
    /// Connections open at once; each reserves [`crate::CONNECTION_BYTES`] for buffers.
    pub connections: u64,
    /// Requests being served.
    pub requests_in_flight: u64,
    /// Queries waiting for or in a query worker.
    pub queries_in_flight: u64,
    /// Synchronous calls waiting for their certificate.
    pub sync_calls_waiting: u64,
    /// Body of one request.
    pub body_bytes: u64,
    /// Bodies of all requests in flight together.
    pub bodies_bytes: u64,
    /// Responses being written, together.
    pub responses_bytes: u64,
    /// Time to send headers and body.
    pub read_timeout_millis: u64,
    /// Time a synchronous call waits before 202.
    pub sync_call_wait_millis: u64,
    /// Paths of one read_state.
    pub read_state_paths: u64,
    /// Labels of one path.
    pub read_state_path_labels: u64,
    /// Delegations of one envelope.
    pub delegations: u64,
    /// Targets of one delegation.
    pub delegation_targets: u64,
    /// Nonce of one request.
    pub nonce_bytes: u64,
}

/// Limits of the HTTP gateway. Without connections it is off: so it is in tables that were written
/// down before there was one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpGatewayLimits {
    /// Connections of browsers open at once; each reserves [`Self::connection_bytes`]. 0 where the
    /// node has no memory for the gateway.
    pub connections: u64,
    /// Requests being served.
    pub requests_in_flight: u64,
    /// Memory of these requests together: bodies, arguments, replies, data being verified.
    pub requests_bytes: u64,
    /// Body of one request.
    pub body_bytes: u64,
    /// Header lines of one response of a canister.
    pub response_headers: u64,
    /// Names and values of these together.
    pub response_header_bytes: u64,
    /// Pieces of one response.
    pub response_chunks: u64,
    /// Time for one response to be verified before its first byte is sent, and for each further piece
    /// of it to be made.
    pub verify_millis: u64,
    /// Time for the whole of a response of several replies.
    pub stream_millis: u64,
    /// Time for an update call that a request was upgraded to.
    pub update_wait_millis: u64,
}

impl HttpGatewayLimits {
    /// Whether there is memory for a gateway.
    pub fn is_possible(&self) -> bool {
        self.connections > 0
    }

    /// Buffers of one open connection. The one that heads of responses are written into grows by
    /// doubling, and stays.
    pub fn connection_bytes(&self) -> u64 {
        // `: ` and the end of each line.
        let lines = self.response_headers.saturating_mul(4);
        let head = self.response_header_bytes.saturating_add(lines);
        let head = head.saturating_add(crate::lines::HTTP_HEAD_BESIDE_BYTES);
        crate::CONNECTION_BYTES.saturating_add(head.saturating_mul(2))
    }

    /// Memory of a request while its canister is asked, in addition to its body of `body_bytes`
    /// bytes: the body is in the argument of a query when the reply comes, and in the argument and
    /// the envelope of an update call. A reply has `reply_bytes` at most.
    pub fn asking_bytes(body_bytes: u64, reply_bytes: u64) -> u64 {
        let query = body_bytes.saturating_add(reply_most(reply_bytes));
        crate::HTTP_REQUEST_BYTES.saturating_add(query.max(body_bytes.saturating_mul(2)))
    }

    /// The most that a response takes while it is written, one reply of a canister at a time: the reply
    /// and the response's head, twice.
    pub fn response_bytes(&self, reply_bytes: u64) -> u64 {
        let lines = self.response_headers.saturating_mul(crate::HTTP_LINE_BYTES);
        let head = self.response_header_bytes.saturating_mul(2).saturating_add(lines);
        reply_most(reply_bytes).saturating_add(head)
    }

    /// Memory that a response of several replies takes in addition.
    pub fn stream_bytes(&self) -> u64 {
        let pieces = self.response_chunks.saturating_mul(crate::HTTP_PIECE_BYTES);
        crate::HTTP_STREAM_BYTES.saturating_add(pieces)
    }

    /// The least that [`Self::requests_bytes`] may be: one body, one canister asked, one response of
    /// several replies.
    pub fn least_bytes(&self, reply_bytes: u64) -> u64 {
        [
            self.body_bytes,
            Self::asking_bytes(self.body_bytes, reply_bytes),
            self.response_bytes(reply_bytes),
            self.stream_bytes(),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// How [`Self::requests_bytes`] are divided, where a reply has `reply_bytes` at most. Whatever
    /// bodies and responses hold, there is room to ask: so requests cannot deadlock on one another,
    /// and slow readers do not block other requests.
    pub fn parts(&self, reply_bytes: u64) -> HttpParts {
        let all = self.requests_bytes;
        let asking = Self::asking_bytes(self.body_bytes, reply_bytes);
        let response = self.response_bytes(reply_bytes);
        let needed = asking.saturating_add(response).saturating_add(self.stream_bytes());
        let bodies = (all / 4).max(self.body_bytes).min(all.saturating_sub(needed));
        let needed = asking.saturating_add(response).saturating_add(bodies);
        let streams = (all / 16).min(all.saturating_sub(needed)) / self.stream_bytes().max(1);
        let streams = streams.max(1);
        let rest = all.saturating_sub(bodies);
        let rest = rest.saturating_sub(streams.saturating_mul(self.stream_bytes()));
        let responses = (all / 2).min(rest.saturating_sub(asking)).max(response).min(rest);
        let small = (all / 8).min(responses - response.min(responses));
        HttpParts { bodies, streams, rest, small, large: responses - small }
    }
}

/// The parts of [`HttpGatewayLimits::requests_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpParts {
    /// For request bodies.
    pub bodies: u64,
    /// Responses of several replies at once; each takes [`HttpGatewayLimits::stream_bytes`].
    pub streams: u64,
    /// For requests to canisters and for data being written.
    pub rest: u64,
    /// Of the rest, the most for responses that are small ([`crate::HTTP_SMALL_BYTES`]) ...
    pub small: u64,
    /// ... and for others.
    pub large: u64,
}

/// The most that a reply takes.
fn reply_most(reply_bytes: u64) -> u64 {
    reply_bytes.saturating_add(crate::HTTP_REPLY_BESIDE_BYTES)
}

/// Limits of HTTPS outcalls. Without bytes there are none: so it is in tables that were written down
/// before there were any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcallLimits {
    /// Requests of all canisters that are not answered.
    pub open: u64,
    /// Bytes of these in the state.
    pub open_bytes: u64,
    /// From the block that has a request to the last that may answer it.
    pub timeout_seconds: u64,
    /// Requests that this node makes at once.
    pub in_flight: u64,
    /// Memory of these and the answers that are not agreed on yet together. 0 where the node has no
    /// memory for outcalls.
    pub bytes: u64,
    /// Time for this node to have one response.
    pub request_millis: u64,
}

impl OutcallLimits {
    /// Whether there is memory for outcalls.
    pub fn is_possible(&self) -> bool {
        self.bytes > 0
    }

    /// Memory of a request while it is made: its body in addition to the response that is read,
    /// whose memory may be twice as much while it grows; then the response twice while it is
    /// encoded; and with a transform that has `transform_context` bytes of context, the argument in
    /// three places, as a query has it. Then buffers.
    pub fn request_bytes(body: u64, response_max: u64, transform_context: Option<u64>) -> u64 {
        let read = body.saturating_add(response_max.saturating_mul(2));
        let handed = transform_context
            .map_or(0, |context| response_max.saturating_add(context).saturating_mul(3));
        read.max(handed).saturating_add(crate::OUTCALL_BESIDE_BYTES)
    }
}

/// Memory of the process itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLimits {
    /// Constants of the program that hold addresses, in each process.
    pub program_bytes: u64,
    /// Idle node process: runtime, stacks, allocator slack.
    pub node_base_bytes: u64,
    /// One idle worker.
    pub worker_base_bytes: u64,
    /// Kernel memory charged to the group: page tables, sockets, dentries.
    pub kernel_bytes: u64,
    /// Left unassigned on purpose, for page cache that must be resident (code being executed).
    pub page_cache_floor_bytes: u64,
}

/// When memory is returned, and when work is held back. Unknown fields are refused by
/// [`sheet::apply_overrides`]: serde cannot for a flattened struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GovernorLimits {
    /// When freed memory goes back.
    #[serde(flatten)]
    pub hand_back: HandBackLimits,
    /// Anonymous memory in percent of the budget from which on queries are refused.
    pub refuse_queries_percent: u64,
    /// Anonymous memory in percent of the budget from which on new calls are refused.
    pub refuse_calls_percent: u64,
    /// Anonymous memory in percent of the budget from which on the next batch waits.
    pub pause_execution_percent: u64,
}

impl GovernorLimits {
    /// The thresholds, in the order in which they are reached.
    pub fn levels(&self) -> [u64; 3] {
        [self.refuse_queries_percent, self.refuse_calls_percent, self.pause_execution_percent]
    }
}
