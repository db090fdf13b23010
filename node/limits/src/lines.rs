//! The lines of the replica's budget sheets, of memory and of disk ([`sheet::Sheet`]).
//!
//! One line is shared. Update messages, an install and a compilation all take memory that lives for
//! one execution, and never all at once: each reserves its worst case from the pool `executions`
//! before it starts and waits while that does not fit. The line is the largest of the three.

use budget::format_size;
use sheet::{LineKind, SheetLine};

use crate::{Limits, SubnetLimits, VIRTUAL_LANES, pool};

/// Buffers of one open connection: read and write buffer, HTTP state.
pub const CONNECTION_BYTES: u64 = 16 << 10;
/// Memory of a request to the HTTP gateway in addition to bodies while its canister is asked: its
/// headers, those of the response, hashes of pieces, and the certificate with its trees while they
/// are verified.
pub const HTTP_REQUEST_BYTES: u64 = 512 << 10;
/// Memory of a response of several replies in addition to the one that is written: the request with
/// its headers and a body of [`HTTP_STREAM_BODY_BYTES`], those of the response, and a token with
/// its copy.
pub const HTTP_STREAM_BYTES: u64 = 256 << 10;
/// The longest request body that a response of several replies may answer.
pub const HTTP_STREAM_BODY_BYTES: u64 = 64 << 10;
/// Memory for each piece of a response that was verified before it is sent.
pub const HTTP_PIECE_BYTES: u64 = 32;
/// Memory of a header line in addition to its name and value.
pub const HTTP_LINE_BYTES: u64 = 128;
/// Responses up to this are small: they have room of their own, which long ones cannot take.
pub const HTTP_SMALL_BYTES: u64 = 64 << 10;
/// The gateway's own part of a response's head, in addition to the canister's header lines.
pub(crate) const HTTP_HEAD_BESIDE_BYTES: u64 = 1 << 10;
/// Most bytes of a canister's request to a server outside, and of the response (interface
/// specification, `http_request`).
pub const OUTCALL_REQUEST_BYTES: u64 = 2_000_000;
/// See [`OUTCALL_REQUEST_BYTES`].
pub const OUTCALL_RESPONSE_BYTES: u64 = 2_000_000;
/// Most bytes of the context of a transform in addition to the largest response. A smaller response
/// leaves more for it: both are passed to the transform together.
pub const OUTCALL_CONTEXT_BYTES: u64 = 8 << 10;
/// Memory of an outcall in addition to its response: buffers of its connection and of TLS, headers.
pub const OUTCALL_BESIDE_BYTES: u64 = 256 << 10;
/// Memory of a canister's reply in addition to its counted payload.
pub const HTTP_REPLY_BESIDE_BYTES: u64 = 64 << 10;
/// Queries of one canister in the table of those that were counted: an entry of an ordered map that
/// may be half full.
const QUERY_COUNTS_BYTES: u64 = 128;
/// Members of a subnet at most.
const MEMBERS_MAX: u64 = 64;
/// One certificate with its tree.
pub const CERTIFICATE_BYTES: u64 = 8 << 10;
/// One entry of the page index, at worst one per page of delta: an entry of the ordered map, and
/// its share of the layouts in use.
const RUN_BYTES: u64 = 40;
const PAGE_BYTES: u64 = 4096;
/// Checkpoints whose records are on disk at once: the store writes new pages before it lets the old
/// ones go.
const RECORD_VERSIONS: u64 = 2;
/// Bytes of the store for each byte of messages with guaranteed responses that are not files: its
/// pages are powers of two, and those that were freed in a transaction are used again in later
/// ones. With several nodes, pages freed since the snapshot that is being hashed or served stay as
/// well.
const STORE_PER_MESSAGE_BYTE: u64 = 3;
const SHOWN_STORE_PER_MESSAGE_BYTE: u64 = 8;
/// Bytes of such a message that are in no file, at most: without its payload, if that is larger.
const SMALL_MESSAGE_BYTES: u64 = 8 << 10;
/// Additional bytes of a payload's file: the rest of its last page, an inode and a name.
const FILE_BESIDE_BYTES: u64 = PAGE_BYTES + 1024;
/// Of the messages, the part that comes between two checkpoints at most, so that one checkpoint
/// stays bounded; and so much more may one round bring.
const CHECKPOINT_MESSAGES_PART: u64 = 4;
/// However few may wait: there would be nothing but checkpoints.
const CHECKPOINT_MESSAGES_MIN: u64 = 4 << 20;
const CHECKPOINT_MESSAGES_COUNT_MIN: u64 = 1_024;
/// The same while a manifest is computed: small calls alone do not make every round wait for it.
const LATE_CHECKPOINT_MESSAGES_COUNT_MIN: u64 = 10_000;
/// Messages that may arrive while a manifest is computed, which a checkpoint would wait for: all
/// that may wait, if that is no more than this.
const LATE_CHECKPOINT_MESSAGES: u64 = 256 << 20;
/// Finished messages that a snapshot kept for a lease may retain, in files and in the store: a part
/// of the messages, and at least `LEASED_BYTES_MIN`, so that ordinary traffic ends no lease.
const LEASED_PART: u64 = 4;
const LEASED_BYTES_MIN: u64 = 256 << 20;
/// Calls that wait for the management canister take this multiple of the largest argument, or as
/// much as messages that may be dropped if that is more; small ones have room of their own.
const LARGE_MANAGEMENT_CALLS: u64 = 4;
/// Room for small calls of the management canister when larger ones no longer fit.
pub const SMALL_MANAGEMENT_CALLS_BYTES: u64 = 1 << 20;
/// Payloads that are under way within a round before they are in files: what four lanes have done
/// before it is merged, each up to 4 MiB and one message more, of eight payloads and a reply; and 4
/// MiB that wait.
const ROUND_PAYLOAD_BYTES: u64 = 96 << 20;
/// The most that one message sends: eight payloads and a reply.
const PAYLOADS_PER_MESSAGE: u64 = 9;
/// Payloads of calls and answers after which a lane starts no further message in an iteration: they
/// are in the state's heap until it is over.
pub const LANE_PAYLOAD_BYTES: u64 = 4 << 20;
/// The line of canister state, on disk.
pub(crate) const STATE_LINE: &str = "canister_state";
/// Names of the lines of the state's heap, in this order: messages with guaranteed responses, other
/// messages, the status of clients' calls, canisters apart from their memories.
pub const HEAP_LINES: [&str; 5] = [
    "guaranteed_messages",
    "best_effort_messages",
    "ingress_history",
    "canister_metadata",
    "custom_sections",
];
/// The line of everything else in the state's heap.
pub const STATE_HEAP_LINE: &str = "state_heap";
/// The line of message payloads in files.
pub const MESSAGE_FILES_LINE: &str = "message_files";
/// Gaps and forks may take this additional part of the heap's contents.
const HEAP_GAPS_PART: u64 = 4;
/// Heap bytes for each byte of such messages: states that are read, or not certified yet, retain
/// messages taken from the queues since; and blocks have fixed sizes and leave holes.
const HEAP_PER_MESSAGE_BYTE: u64 = 8;
/// Size of an empty heap: the allocator's own memory, and blocks allocated ahead.
const HEAP_REST_BYTES: u64 = 16 << 20;
/// Bytes of a heap that one byte of the kernel's page tables maps, and the part of the kernel's line
/// that is there for them.
const HEAP_BYTES_PER_TABLE_BYTE: u64 = 512;
const KERNEL_TABLES_PART: u64 = 4;
/// The stack of a message: the canister's part, and the part of system functions below it.
pub const STACK_BYTES: u64 = 5 << 20;
/// A worker's record of a page that a message wrote: its place in up to five lists.
const DIRTY_PAGE_BYTES: u64 = 80;
/// An additional record for a page of stable memory that a message touched far from all others: a
/// piece of three sets of bits each.
const LONE_PAGE_BYTES: u64 = 3 * 144;
/// Extents of a paused message may take one `SPILL_BESIDE_PART`th of its file in addition.
const SPILL_BESIDE_PART: u64 = 64;
/// A call without its payload, in a file.
const CALL_BYTES: u64 = 512;
/// One element of a table of an instance.
const TABLE_ELEMENT_BYTES: u64 = 8;

/// The most memory that the index of `delta_bytes` of delta takes.
pub fn delta_index_bytes(delta_bytes: u64) -> u64 {
    delta_bytes.div_ceil(PAGE_BYTES).saturating_mul(RUN_BYTES)
}

const _: () = assert!(RUN_BYTES * 64 < PAGE_BYTES, "an index is much smaller than its pages");

impl Limits {
    /// Memory of one worker in addition to its base and its dirty pages: an argument, an answer,
    /// and the tables of the instance.
    pub(crate) fn worker_buffer_bytes(&self) -> u64 {
        let tables = self.module.table_elements.saturating_mul(TABLE_ELEMENT_BYTES);
        self.subnet.message_payload_bytes.saturating_mul(2).saturating_add(tables)
    }

    /// Memory of a worker that keeps a paused message, whose pages, calls and answer are in a file.
    fn paused_worker_bytes(&self) -> u64 {
        self.process
            .worker_base_bytes
            .saturating_add(self.worker_buffer_bytes())
            .saturating_add(STACK_BYTES)
            .saturating_add(self.paused_index_bytes())
    }

    /// A worker's record of the pages that a paused message wrote.
    fn paused_index_bytes(&self) -> u64 {
        let stable_pages = self.execution.stable_accessed_bytes_per_message / PAGE_BYTES;
        (self.paused_page_bytes() / PAGE_BYTES)
            .saturating_mul(DIRTY_PAGE_BYTES)
            .saturating_add(stable_pages.saturating_mul(LONE_PAGE_BYTES))
    }

    /// The most that a paused message or installation writes to pages.
    fn paused_page_bytes(&self) -> u64 {
        self.message_dirty_bytes().max(self.install_dirty_bytes())
    }

    /// Disk that paused messages may take together: pages that they wrote, their calls with the one
    /// that each is making, and their answers. Installations write more;
    /// [`Self::installations_kept`] of them are kept.
    pub fn paused_spill_bytes(&self) -> u64 {
        let payloads = self.subnet.message_payload_bytes.saturating_mul(PAYLOADS_PER_MESSAGE + 1);
        let calls = self.subnet.callback_soft_limit.saturating_mul(CALL_BYTES);
        let message = self.message_dirty_bytes().saturating_add(payloads).saturating_add(calls);
        let more = self.install_dirty_bytes().saturating_sub(self.message_dirty_bytes());
        let bytes = self
            .sandbox
            .paused_workers
            .saturating_mul(message)
            .saturating_add(self.installations_kept().saturating_mul(more));
        bytes.saturating_add(bytes / SPILL_BESIDE_PART)
    }

    /// Number of paused installations whose writes a machine keeps: there is one at a time.
    pub fn installations_kept(&self) -> u64 {
        self.sandbox.paused_workers.min(1)
    }

    /// Anonymous memory that such a worker may hold.
    pub fn paused_anonymous_bytes(&self) -> u64 {
        self.paused_worker_bytes().saturating_add(self.process.program_bytes)
    }

    pub(crate) fn sheet_lines(&self) -> Vec<SheetLine> {
        [
            self.process_lines(),
            self.execution_lines(),
            self.traffic_lines(),
            self.cache_lines(),
            self.heap_lines(),
            self.disk_lines(),
            self.work_lines(),
        ]
        .concat()
    }

    /// Bytes of dirty pages of updates and installs that are executed at once.
    fn in_flight_bytes(&self) -> u64 {
        let messages = self.message_dirty_bytes().saturating_mul(self.execution.threads);
        messages.max(self.install_dirty_bytes())
    }

    /// The most bytes in delta segments.
    fn delta_bytes(&self) -> u64 {
        self.pages.delta_capacity_bytes.saturating_add(self.in_flight_bytes())
    }

    /// The idle processes.
    fn process_lines(&self) -> Vec<SheetLine> {
        use LineKind::{Fixed, Pool};
        let Limits { process, .. } = self;
        let workers = self.execution.threads.saturating_add(self.execution.query_threads);
        let paused = self.sandbox.paused_workers;
        let processes = workers.saturating_add(paused).saturating_add(1);
        vec![
            line(
                pool::PROGRAM,
                processes.saturating_mul(process.program_bytes),
                "thimble",
                Pool,
                times(processes, process.program_bytes),
                "constants that hold addresses: the loader writes them in the node and in each \
                 worker",
            ),
            line(
                "node_process",
                process.node_base_bytes,
                "thimble",
                Fixed,
                String::new(),
                "the node at rest: runtime, stacks, allocator slack",
            ),
            line(
                "worker_processes",
                workers.saturating_mul(process.worker_base_bytes),
                "sandbox",
                Fixed,
                times(workers, process.worker_base_bytes),
                "update and query workers at rest",
            ),
            line(
                "worker_buffers",
                workers.saturating_mul(self.worker_buffer_bytes()),
                "sandbox",
                Fixed,
                times(workers, self.worker_buffer_bytes()),
                "per worker one argument, one answer and the tables of the instance",
            ),
            line(
                "kernel",
                process.kernel_bytes,
                "kernel",
                Fixed,
                String::new(),
                "page tables, sockets and directory entries charged to the node",
            ),
            line(
                "heap_tables",
                (self.state_heap_bytes() / HEAP_BYTES_PER_TABLE_BYTE)
                    .saturating_sub(process.kernel_bytes / KERNEL_TABLES_PART),
                "kernel",
                Fixed,
                format!("{} of heap", format_size(self.state_heap_bytes())),
                "page tables of the state's heap beyond what the line of the kernel has for them",
            ),
            line(
                "page_cache",
                process.page_cache_floor_bytes,
                "kernel",
                Fixed,
                String::new(),
                "code being executed must stay resident",
            ),
        ]
    }

    /// Memory of executions and queries in flight.
    fn execution_lines(&self) -> Vec<SheetLine> {
        use LineKind::Pool;
        let Limits { execution, .. } = self;
        let Limits { sandbox, .. } = self;
        vec![
            line(
                pool::EXECUTIONS,
                self.in_flight_bytes(),
                "sandbox",
                Pool,
                format!(
                    "larger of: messages {}, one install {}",
                    times(execution.threads, self.message_dirty_bytes()),
                    format_size(self.install_dirty_bytes()),
                ),
                "dirty pages of messages and installs in flight; each reserves its worst case \
                 before it starts",
            ),
            line(
                "paused_workers",
                sandbox.paused_workers.saturating_mul(self.paused_worker_bytes()),
                "sandbox",
                LineKind::Fixed,
                times(sandbox.paused_workers, self.paused_worker_bytes()),
                "workers that keep a message between two of its slices, with its stack; the pages it \
                 wrote and its calls lie in a file",
            ),
            line(
                pool::COMPILATIONS,
                sandbox.compile_threads.saturating_mul(sandbox.compile_anonymous_bytes),
                "sandbox",
                Pool,
                times(sandbox.compile_threads, sandbox.compile_anonymous_bytes),
                "compile children without their heaps, which are on disk; messages run meanwhile",
            ),
            line(
                pool::QUERIES,
                execution.query_threads.saturating_mul(self.query_dirty_bytes()),
                "execution",
                Pool,
                times(execution.query_threads, self.query_dirty_bytes()),
                "pages that queries dirty and drop",
            ),
        ]
    }

    /// Messages of clients and blocks on their way.
    fn traffic_lines(&self) -> Vec<SheetLine> {
        use LineKind::Pool;
        let Limits { consensus, gateway, http_gateway, outcalls, .. } = self;
        let blocks = self.consensus.execution_lag_blocks.saturating_add(1);
        vec![
            line(
                pool::INGRESS_POOL,
                consensus.ingress_pool_bytes,
                "consensus",
                Pool,
                String::new(),
                "accepted calls that no block holds yet",
            ),
            line(
                pool::BLOCKS,
                blocks.saturating_mul(consensus.block_ingress_bytes),
                "consensus",
                Pool,
                times(blocks, consensus.block_ingress_bytes),
                "the block being executed and those waiting for it",
            ),
            line(
                pool::REQUEST_BODIES,
                gateway.bodies_bytes,
                "gateway",
                Pool,
                String::new(),
                "request bodies being read and verified",
            ),
            line(
                pool::RESPONSES,
                gateway.responses_bytes,
                "gateway",
                Pool,
                String::new(),
                "responses being encoded and written",
            ),
            line(
                pool::CONNECTIONS,
                gateway.connections.saturating_mul(CONNECTION_BYTES),
                "gateway",
                Pool,
                times(gateway.connections, CONNECTION_BYTES),
                "buffers of open connections",
            ),
            line(
                pool::HTTP_CONNECTIONS,
                http_gateway.connections.saturating_mul(http_gateway.connection_bytes()),
                "gateway",
                Pool,
                times(http_gateway.connections, http_gateway.connection_bytes()),
                "buffers of open connections to the HTTP gateway; a response's head is written into \
                 one that grows to twice its size",
            ),
            line(
                pool::HTTP_REQUESTS,
                http_gateway.requests_bytes,
                "gateway",
                Pool,
                String::new(),
                "bodies of browsers' requests, canisters being asked, and responses being written",
            ),
            line(
                pool::OUTCALLS,
                outcalls.bytes,
                "outcalls",
                Pool,
                String::new(),
                "requests of canisters to servers outside, and answers that no block has yet",
            ),
        ]
    }

    /// Indexes, caches and tables.
    fn cache_lines(&self) -> Vec<SheetLine> {
        use LineKind::{File, Fixed, Pool};
        let Limits { execution, sandbox, pages, consensus, .. } = self;
        let delta_most = self.delta_bytes();
        vec![
            line(
                pool::DELTA_INDEX,
                delta_most.div_ceil(PAGE_BYTES).saturating_mul(RUN_BYTES),
                "pages",
                Pool,
                format!("{RUN_BYTES} B per page of {}", format_size(delta_most)),
                "the index of pages changed since they were last folded, every page a run of its \
                 own at worst",
            ),
            line(
                "metadata_cache",
                pages.metadata_cache_bytes,
                "state",
                Fixed,
                String::new(),
                "cache of the metadata store",
            ),
            line(
                pool::CERTIFICATES,
                consensus.certificates_kept.saturating_mul(CERTIFICATE_BYTES),
                "consensus",
                Pool,
                times(consensus.certificates_kept, CERTIFICATE_BYTES),
                "certificates of recent heights",
            ),
            line(
                pool::NIDKG_TABLES,
                consensus.nidkg_tables_bytes,
                "nidkg",
                Pool,
                String::new(),
                "tables that make key generation fast, and what it works in",
            ),
            line(
                pool::QUERY_CACHE,
                execution.query_cache_bytes,
                "execution",
                Pool,
                String::new(),
                "replies of queries whose canister did not change",
            ),
            line(
                "query_stats",
                execution.query_stats_canisters.saturating_mul(2 * QUERY_COUNTS_BYTES),
                "execution",
                Fixed,
                times(2 * execution.query_stats_canisters, QUERY_COUNTS_BYTES),
                "queries that were counted in the period that runs, and those that are being \
                 reported",
            ),
            line(
                "mapped_state",
                sandbox.resident_floor_bytes,
                "sandbox",
                File,
                String::new(),
                "clean pages of idle canisters left mapped; the kernel takes them when it needs \
                 them",
            ),
        ]
    }

    /// The most that the state's heap takes on disk.
    pub fn state_heap_bytes(&self) -> u64 {
        self.heap_lines().iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// The parts of the replicated state that are kept in a heap on disk, of which the kernel keeps
    /// the recently touched pages in memory.
    fn heap_lines(&self) -> Vec<SheetLine> {
        use LineKind::Disk;
        let SubnetLimits {
            best_effort_message_bytes: best_effort,
            ingress_history_bytes: history,
            canister_metadata_bytes: metadata,
            wasm_custom_sections_bytes: sections,
            ..
        } = self.subnet;
        let of_state =
            |name, bytes, made_of, reason| line(name, bytes, "state", Disk, made_of, reason);
        let guaranteed = self.small_message_bytes();
        let held = [best_effort, history, metadata, sections];
        let held = held.into_iter().fold(0, u64::saturating_add);
        let old_messages = guaranteed.saturating_mul(HEAP_PER_MESSAGE_BYTE - 1);
        vec![
            of_state(
                HEAP_LINES[0],
                guaranteed,
                format!(
                    "{} and {} of calls of the management canister",
                    times(self.subnet.guaranteed_response_calls, SMALL_MESSAGE_BYTES),
                    format_size(self.management_bytes())
                ),
                "queued messages of calls with guaranteed responses, beside payloads that lie in \
                 files",
            ),
            of_state(
                HEAP_LINES[1],
                best_effort,
                String::new(),
                "queued messages of best-effort calls and of clients",
            ),
            of_state(
                HEAP_LINES[2],
                history,
                String::new(),
                "statuses and replies that clients still ask for",
            ),
            of_state(
                HEAP_LINES[3],
                metadata,
                String::new(),
                "settings, contexts, callbacks, globals and logs of all canisters",
            ),
            of_state(
                HEAP_LINES[4],
                sections,
                String::new(),
                "metadata sections of the modules of all canisters",
            ),
            of_state(
                STATE_HEAP_LINE,
                (held / HEAP_GAPS_PART)
                    .saturating_add(old_messages)
                    .saturating_add(ROUND_PAYLOAD_BYTES)
                    .saturating_add(HEAP_REST_BYTES)
                    .saturating_add(self.query_report_bytes()),
                format!(
                    "{}, a part in {HEAP_GAPS_PART} of the other four, {}, {}, {}",
                    times(HEAP_PER_MESSAGE_BYTE - 1, guaranteed),
                    format_size(ROUND_PAYLOAD_BYTES),
                    format_size(HEAP_REST_BYTES),
                    format_size(self.query_report_bytes())
                ),
                "messages with guaranteed responses that older states hold, gaps between those \
                 five in the heap on disk, payloads before they are in files, indexes over the \
                 canisters, and what members report of queries",
            ),
        ]
    }

    /// Lines of the disk.
    fn disk_lines(&self) -> Vec<SheetLine> {
        use LineKind::Disk;
        let Limits { subnet, sandbox, pages, consensus, .. } = self;
        let in_flight = self.in_flight_bytes();
        let delta_most = self.delta_bytes();
        vec![
            line(
                "disk_reserve",
                pages.disk_reserve_bytes,
                "thimble",
                Disk,
                String::new(),
                "kept free; with less, updates are refused",
            ),
            line(
                "delta_log",
                delta_most,
                "pages",
                Disk,
                format!(
                    "{} and {} in flight",
                    format_size(pages.delta_capacity_bytes),
                    format_size(in_flight)
                ),
                "pages changed since they were last folded",
            ),
            line(
                "block_log",
                consensus.retention_block_bytes.saturating_add(consensus.block_ingress_bytes),
                "consensus",
                Disk,
                String::new(),
                "blocks since the last checkpoint, and in a subnet those that peers may still \
                 want; and the block that brings the next",
            ),
            self.payloads_line(),
            self.records_line(),
            line(
                "compiled_modules",
                sandbox.compilation_cache_bytes,
                "sandbox",
                Disk,
                String::new(),
                "compiled artefacts, mapped when they run",
            ),
            line(
                STATE_LINE,
                subnet.memory_capacity_bytes.saturating_mul(pages.states_on_disk),
                "pages",
                Disk,
                times(pages.states_on_disk, subnet.memory_capacity_bytes),
                "heaps, stable memories, modules and chunks of all canisters and of their snapshots; \
                 where there are several nodes, a state that is fetched lies beside the old one",
            ),
        ]
    }

    /// Temporary unlinked files on disk.
    fn work_lines(&self) -> Vec<SheetLine> {
        use LineKind::Disk;
        let Limits { sandbox, .. } = self;
        // Of the one that is paused, what the first phase wrote; of one that runs, both.
        let kept = self.installations_kept().saturating_add(2);
        vec![
            line(
                "compile_heaps",
                sandbox.compile_threads.saturating_mul(sandbox.compile_memory_bytes),
                "sandbox",
                Disk,
                times(sandbox.compile_threads, sandbox.compile_memory_bytes),
                "what compile children work in, gone with them; their files are sparse, and a \
                 module that is accepted fills five sixths of one at most",
            ),
            line(
                "paused_messages",
                self.paused_spill_bytes(),
                "sandbox",
                Disk,
                format!("{} places", sandbox.paused_workers),
                "pages that paused messages wrote, their calls and answers, in files that are gone \
                 with their workers",
            ),
            line(
                "installations",
                kept.saturating_mul(self.install_dirty_bytes()),
                "execution",
                Disk,
                times(kept, self.install_dirty_bytes()),
                "pages that installations wrote, until all of it ended well: both phases of the one that \
                 runs, and the first of those that are paused",
            ),
        ]
    }

    /// Bytes of messages that are over, in files and in the store, which a snapshot may keep that is
    /// there for a lease.
    pub fn leased_message_bytes(&self) -> u64 {
        let messages = self.subnet.guaranteed_response_message_bytes;
        (messages / LEASED_PART).max(LEASED_BYTES_MIN)
    }

    /// Bytes of messages with records of their own after which a checkpoint is due.
    pub fn checkpoint_message_bytes(&self) -> u64 {
        let messages = self.subnet.guaranteed_response_message_bytes;
        (messages / CHECKPOINT_MESSAGES_PART).max(CHECKPOINT_MESSAGES_MIN)
    }

    /// The same while a manifest is computed, which the checkpoint would wait for.
    pub fn late_checkpoint_message_bytes(&self) -> u64 {
        let messages = self.subnet.guaranteed_response_message_bytes;
        messages.min(LATE_CHECKPOINT_MESSAGES).max(self.checkpoint_message_bytes())
    }

    /// Number of messages with records of their own after which a checkpoint is due.
    pub fn checkpoint_messages(&self) -> u64 {
        let calls = self.subnet.guaranteed_response_calls;
        (calls / CHECKPOINT_MESSAGES_PART).max(CHECKPOINT_MESSAGES_COUNT_MIN)
    }

    /// The same while a manifest is computed, which the checkpoint would wait for.
    pub fn late_checkpoint_messages(&self) -> u64 {
        self.checkpoint_messages().max(LATE_CHECKPOINT_MESSAGES_COUNT_MIN)
    }

    /// Bytes of messages with records of their own after which no batch is executed without a
    /// checkpoint: the disk has room for no more that came since the newest.
    pub fn pressing_message_bytes(&self) -> u64 {
        match self.pages.states_on_disk {
            0 | 1 => self.checkpoint_message_bytes(),
            _ => self.late_checkpoint_message_bytes(),
        }
    }

    /// Bytes of files of messages that are over which all snapshots may keep: what the newest and
    /// the one that is not certified yet were made of, and what is leased.
    pub fn pinned_message_bytes(&self) -> u64 {
        self.file_bytes().saturating_mul(2).saturating_add(self.leased_message_bytes())
    }

    /// File bytes for the payloads of all messages that may wait.
    fn file_bytes(&self) -> u64 {
        let beside = self.subnet.guaranteed_response_calls.saturating_mul(FILE_BESIDE_BYTES);
        self.subnet.guaranteed_response_message_bytes.saturating_add(beside)
    }

    /// File bytes that one round may add. Its delta and its payloads are counted together, those of
    /// paused messages as half of them at most; then four lanes may have begun a message. A block's
    /// payloads are added. Each file takes more than its content.
    fn round_file_bytes(&self) -> u64 {
        let counted = self.execution.heap_delta_bytes_per_round;
        let message = self.subnet.message_payload_bytes.saturating_mul(PAYLOADS_PER_MESSAGE);
        let paused = message.saturating_mul(VIRTUAL_LANES).saturating_sub(counted / 2);
        let begun = message.saturating_add(LANE_PAYLOAD_BYTES).saturating_mul(VIRTUAL_LANES);
        let all = [counted, paused, begun, self.consensus.block_ingress_bytes];
        let all = all.into_iter().fold(0, u64::saturating_add);
        all.saturating_add((all / SMALL_MESSAGE_BYTES).saturating_mul(FILE_BESIDE_BYTES))
    }

    /// Bytes that calls may take which wait for the management canister, or for servers outside.
    fn management_bytes(&self) -> u64 {
        let calls =
            self.subnet.management_call_bytes().saturating_add(SMALL_MANAGEMENT_CALLS_BYTES);
        calls.saturating_add(self.outcalls.open_bytes)
    }

    /// Bytes of messages with guaranteed responses apart from payloads in files.
    fn small_message_bytes(&self) -> u64 {
        let calls = self.subnet.guaranteed_response_calls;
        calls.saturating_mul(SMALL_MESSAGE_BYTES).saturating_add(self.management_bytes())
    }

    /// Payloads in files. Those of the newest checkpoint stay until the next, in addition to those
    /// that came since: a part of all, and those of one round. With several nodes, snapshots keep
    /// the files they were made of, and the files of a fetched state are added.
    fn payloads_line(&self) -> SheetLine {
        let messages = self.file_bytes();
        let states = self.pages.states_on_disk.max(1);
        let came = self.pressing_message_bytes().max(messages / CHECKPOINT_MESSAGES_PART);
        let round = self.round_file_bytes();
        let kept = if states > 1 { self.pinned_message_bytes() } else { 0 };
        let all = [messages.saturating_mul(states), came, round, kept];
        line(
            MESSAGE_FILES_LINE,
            all.into_iter().fold(0, u64::saturating_add),
            "state",
            LineKind::Disk,
            format!(
                "{}, {}, {} and {}",
                times(states, messages),
                format_size(came),
                format_size(round),
                format_size(kept)
            ),
            "what large messages carry that wait, and room for the largest response to each call; \
             what came since the newest checkpoint; what one round may bring, \
             execution.heap_delta_bytes_per_round and what its lanes had begun, each file rounded \
             up; where there are several nodes, the files of a state that is fetched, and what \
             snapshots keep: all that the newest and the one before its certificate were made of, \
             and a part for leases",
        )
    }

    /// The store of checkpoints. A large message is written once, and its room is used again; the
    /// other records are there in two versions. With several nodes, the stream of a fetched state
    /// and the store made of it are added.
    fn records_line(&self) -> SheetLine {
        let messages = self.small_message_bytes();
        let (others, states) = (self.records_bytes(), self.pages.states_on_disk.max(1));
        let factor = if states > 1 { SHOWN_STORE_PER_MESSAGE_BYTE } else { STORE_PER_MESSAGE_BYTE };
        let rows = messages.saturating_mul(factor);
        let store = rows.saturating_add(others.saturating_mul(RECORD_VERSIONS));
        let stream = messages.saturating_add(others);
        let fetched_store = messages.saturating_mul(STORE_PER_MESSAGE_BYTE);
        let fetched = stream.saturating_add(others).saturating_add(fetched_store);
        let fetched = fetched.saturating_mul(states - 1);
        line(
            "checkpoint_records",
            store.saturating_add(fetched),
            "state",
            LineKind::Disk,
            format!("{} and {}", times(factor, messages), times(RECORD_VERSIONS, others)),
            "queued messages beside payloads in files; metadata and the ingress history, in the \
             newest checkpoint and in the one being written; where there are several nodes, the \
             records of a state that is fetched",
        )
    }

    /// Query reports of all members in a period.
    fn query_report_bytes(&self) -> u64 {
        let members = if self.pages.states_on_disk > 1 { MEMBERS_MAX } else { 1 };
        let canisters = self.execution.query_stats_canisters.saturating_mul(members);
        // As much again for sums that are held and due, and while they are made.
        canisters.saturating_mul(2 * QUERY_COUNTS_BYTES)
    }

    /// Size of the records of one checkpoint when all pools are full, without messages with
    /// guaranteed responses.
    fn records_bytes(&self) -> u64 {
        [
            self.subnet.best_effort_message_bytes,
            self.subnet.ingress_history_bytes,
            self.subnet.wasm_custom_sections_bytes,
            self.subnet.canister_metadata_bytes,
            self.query_report_bytes(),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

impl SubnetLimits {
    /// Bytes that calls may take which wait for the management canister, unless they are small.
    pub fn management_call_bytes(&self) -> u64 {
        let large = self.message_payload_bytes.saturating_mul(LARGE_MANAGEMENT_CALLS);
        self.best_effort_message_bytes.max(large)
    }
}

fn line(
    name: &'static str,
    bytes: u64,
    owner: &'static str,
    kind: LineKind,
    made_of: String,
    reason: &'static str,
) -> SheetLine {
    SheetLine { name, bytes, owner, made_of, reason, kind }
}

fn times(count: u64, bytes: u64) -> String {
    format!("{count} x {}", format_size(bytes))
}
