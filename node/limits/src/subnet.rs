//! Limits of replicated state: of canisters, their messages, and statuses of calls.

use accounting::{MIB, format_size};
use memory_budget::{Rules, SheetLine, limit, lines, times, whole};

use crate::{
    LANE_PAYLOAD_BYTES, Limits, SCALE, VIRTUAL_LANES, execution::PAYLOADS_PER_MESSAGE,
    pages::PAGE_BYTES,
};

/// As on the Internet Computer.
pub(crate) const MESSAGE_PAYLOAD_BYTES: u64 = 2 * MIB;

/// Metadata line taken by a canister without messages, logs or a notable number of methods.
const METADATA_BYTES_PER_CANISTER: u64 = 8 << 10;
/// The most state for each byte of memory: hashes of its leaves, kept while a state is fetched, and
/// the layouts of its memories stay a small part of the memory so.
const CAPACITY_BYTES_PER_MEMORY_BYTE: u64 = 256;
/// The part of a disk budget that statuses of calls may take, and the most: half of the memory
/// beyond what small nodes need for everything else. They are found by ids without order, so all of
/// them should fit into the page cache.
const HISTORY_PART: u64 = 64;
const HISTORY_MEMORY_PART: u64 = 2;
const BESIDE_HISTORY_BYTES: u64 = 32 * MIB;
/// The part of a disk budget beyond the least that the metadata of canisters may take, and the
/// most: a canister for each 4 KiB of memory, because lists of the changed ones are in memory, and
/// a million in all.
const METADATA_PART: u64 = 64;
/// On a disk of no more than this the canisters follow from the memory.
const BESIDE_METADATA_BYTES: u64 = 4 << 30;
const METADATA_BYTES_PER_MEMORY_BYTE: u64 = 2;
const METADATA_BYTES_MAX: u64 = 8 << 30;
/// A canister's interface is a fourth of its other metadata.
const METADATA_BYTES_OF_SECTION_BYTE: u64 = 4;
/// Messages with guaranteed responses get one `MESSAGES_PART`th of a disk budget beyond the larger
/// of `BESIDE_MESSAGES_BYTES` and `BESIDE_MESSAGES_PER_MEMORY_BYTE` times the memory: their files
/// take about five fourths of that. Where a fetched state may be stored alongside the old one and
/// snapshots keep finished messages, files take more than four times that, so that they get
/// `SHARED_MESSAGES_PART`.
const MESSAGES_PART: u64 = 4;
const SHARED_MESSAGES_PART: u64 = 12;
const BESIDE_MESSAGES_BYTES: u64 = 20 << 30;
const BESIDE_MESSAGES_PER_MEMORY_BYTE: u64 = 4;
/// On a small disk they get at most one `SMALL_DISK_MESSAGES_PART`th of it.
const SMALL_DISK_MESSAGES_PART: u64 = 32;
/// The most for each byte of memory, for each byte of memory beyond the needs of small nodes, and
/// in total. This keeps page tables of the heap with the rest of these messages a part of the
/// memory, and lists of their files short.
const MESSAGES_PER_MEMORY_BYTE: u64 = 40;
const MESSAGES_PER_FREE_BYTE: u64 = 128;
const BESIDE_MESSAGES_MEMORY: u64 = 256 * MIB;
const MESSAGES_BYTES_MAX: u64 = 256 << 30;
/// Bytes of messages with guaranteed responses for each such call that may be open: an unanswered
/// one takes four times as much, an answered one the size of its response.
const MESSAGE_BYTES_PER_CALL: u64 = 512 << 10;

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

const _: () = {
    assert!(rows::chunk_store_bytes.covers(&rows::chunk_bytes), "a chunk finds room");
    assert!(SHOWN_STORE_PER_MESSAGE_BYTE >= STORE_PER_MESSAGE_BYTE, "snapshots take more");
    assert!(CHECKPOINT_MESSAGES_MIN <= LATE_CHECKPOINT_MESSAGES);
    assert!(CHECKPOINT_MESSAGES_COUNT_MIN <= LATE_CHECKPOINT_MESSAGES_COUNT_MIN);
    assert!(CHECKPOINT_MESSAGES_MIN >= MESSAGE_PAYLOAD_BYTES, "the largest message is below it");
};

memory_budget::limits! {
    SCALE;
    /// Limits on replicated state.
    #[serde(deny_unknown_fields)]
    pub struct SubnetLimits as subnet of Limits, rules check {
        /// All canister state together, on disk.
        memory_capacity_bytes: u64 =
            mib([128, 128, 192, 256, 512, 1024, 4096, 16384, 65536])
            follows_disk(|limits, _| limits.capacity_bytes()), agreed, pays line("canister_state"),
            bounds [at_least(1, "with none, no canister could work")],
            reason "all canister state together, on disk: what the disk budget leaves, at most \
                    256 bytes for each byte of memory; without a disk budget it follows the \
                    memory";
        /// Usage above which storage reserves cycles; equal to the capacity, so it never does.
        memory_threshold_bytes: u64 = follows(|limits| limits.subnet.memory_capacity_bytes), agreed,
            pays none("a threshold takes no room"),
            reason "follows the capacity, so that storage never reserves cycles";
        /// Canisters that may exist.
        canisters_max: u64 = follows(|limits| limits.canisters_by_metadata()), agreed,
            bounds [at_least(1, "with none, no canister could work")],
            reason "follows canister_metadata_bytes, 8 KiB each";
        /// Guaranteed-response messages: queued bytes and reservations.
        guaranteed_response_message_bytes: u64 =
            mib([20, 22, 52, 76, 160, 320, 512, 768, 2048])
            follows_disk(|limits, least| limits.messages_bytes(least)), agreed,
            pays line("message_files"),
            reason "held on disk; each call in progress reserves the largest response";
        /// Calls with guaranteed responses that may be open, whether or not they are answered.
        /// Those that are refused for want of room are open too until their caller takes up the
        /// reject.
        guaranteed_response_calls: u64 = follows(|limits| limits.open_calls()), agreed,
            pays line("heap_tables", "guaranteed_messages", "state_heap", "message_files",
                  "checkpoint_records"), bounds [at_least(1, "with none, no canister could work")],
            reason "follows guaranteed_response_message_bytes, one for each 512 KiB: what is \
                    known of a message beside its payload lies in the state's heap and in the \
                    store";
        /// Messages the system may drop: queued bytes of best-effort calls and of ingress messages
        /// inducted and not yet started.
        best_effort_message_bytes: u64 = mib([2, 2, 8, 12, 32, 64, 128, 256, 1024]), agreed,
            pays line("heap_tables", "guaranteed_messages", "best_effort_messages",
                  "state_heap", "checkpoint_records"),
            reason "held on disk; best-effort calls, and client calls inducted and not yet \
                    started";
        /// Ingress history (statuses and replies).
        ingress_history_bytes: u64 =
            mib([3, 3, 8, 12, 32, 64, 128, 256, 1024])
            follows_disk(|limits, least| least.max(limits.history_part_bytes())), agreed,
            pays line("heap_tables", "ingress_history", "state_heap", "checkpoint_records"),
            reason "kept until calls expire, on disk; the oldest replies are dropped first when \
                    it is full";
        /// Ingress messages inducted and not yet answered.
        ingress_unfinished_max: u64 =
            values([250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000]), agreed,
            bounds [at_least(1, "with none, no canister could work")],
            reason "calls accepted and not yet answered";
        /// Custom sections of all modules together.
        wasm_custom_sections_bytes: u64 =
            mib([1, 1, 2, 4, 16, 24, 48, 96, 384])
            follows_disk(|limits, least| least.max(limits.sections_part_bytes())), agreed,
            pays line("heap_tables", "custom_sections", "state_heap", "checkpoint_records"),
            reason "kept on disk, so that read_state can certify them";
        /// Metadata of all canisters (queues, controllers, globals ...), without messages.
        canister_metadata_bytes: u64 =
            mib([2, 2, 3, 4, 8, 16, 32, 64, 256])
            follows_disk(|limits, least| least.max(limits.metadata_part_bytes())), agreed,
            pays line("heap_tables", "canister_metadata", "state_heap", "checkpoint_records"),
            reason "kept on disk, of what was touched last in memory: settings, contexts, \
                    callbacks, logs";
        /// Outstanding callbacks per canister above which new calls are refused.
        callback_soft_limit: u64 =
            values([512, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131_072])
            follows(|limits, least| least.max(limits.largest_open_calls())), agreed,
            pays line("paused_messages"), bounds [at_least(1, "with none, no canister could work")],
            reason "calls one canister may have open: as many with guaranteed responses as \
                    there is room for, or what follows from the memory if that is more";
        /// Messages in one input or output queue between two canisters.
        queue_slots: u64 = fixed(500), agreed,
            bounds [at_least(1, "with none, no canister could work")],
            reason "messages between two canisters in one direction";
        /// Largest argument or reply of an inter-canister call or ingress message.
        message_payload_bytes: u64 = fixed(MESSAGE_PAYLOAD_BYTES), agreed,
            pays line("worker_buffers", "heap_tables", "paused_workers",
                  "guaranteed_messages", "state_heap", "message_files", "checkpoint_records",
                  "paused_messages"),
            bounds [at_least(1, "a message without room for an argument says nothing")],
            reason "as on the Internet Computer: 2 MiB";
        /// Controllers of one canister.
        controllers_max: u64 = fixed(10), agreed,
            bounds [at_least(1, "with none, no canister could work")],
            reason "interface specification: 10";
        /// Chunk store of one canister.
        chunk_store_bytes: u64 = fixed(100 * MIB), agreed, pays within("canister_state"),
            reason "on disk, part of the capacity; 100 chunks";
        /// Largest chunk of a chunk store (interface specification: 1 MiB).
        chunk_bytes: u64 = fixed(MIB), agreed, pays within("canister_state"),
            reason "interface specification: 1 MiB";
        /// Log records kept for one canister.
        canister_log_bytes: u64 = fixed(4 << 10), agreed, pays within("canister_metadata"),
            reason "the newest log records of one canister, part of its metadata";
    }
}

impl Limits {
    /// The largest capacity that the disk budget leaves.
    fn capacity_bytes(&self) -> u64 {
        let left = self.disk_budget_bytes.saturating_sub(self.beside_state_bytes());
        let most = self.memory_budget_bytes.saturating_mul(CAPACITY_BYTES_PER_MEMORY_BYTE);
        let capacity = (left / self.pages.states_on_disk.max(1)).min(most);
        capacity - capacity % MIB
    }

    /// The part of a disk budget for statuses of calls.
    fn history_part_bytes(&self) -> u64 {
        let free = self.memory_budget_bytes.saturating_sub(BESIDE_HISTORY_BYTES);
        let most = free / HISTORY_MEMORY_PART;
        self.disk_part_bytes(HISTORY_PART).min(most - most % MIB)
    }

    /// The part of a disk budget for metadata of canisters.
    fn metadata_part_bytes(&self) -> u64 {
        let most = self.memory_budget_bytes.saturating_mul(METADATA_BYTES_PER_MEMORY_BYTE);
        let part = self.disk_budget_bytes.saturating_sub(BESIDE_METADATA_BYTES) / METADATA_PART;
        (part - part % MIB).min(most).min(METADATA_BYTES_MAX)
    }

    /// Custom sections that belong to the metadata.
    fn sections_part_bytes(&self) -> u64 {
        let part = self.subnet.canister_metadata_bytes / METADATA_BYTES_OF_SECTION_BYTE;
        part - part % MIB
    }

    /// Canisters that the metadata has room for.
    fn canisters_by_metadata(&self) -> u64 {
        self.subnet.canister_metadata_bytes / METADATA_BYTES_PER_CANISTER
    }

    /// Calls that messages with guaranteed responses have room for.
    fn open_calls(&self) -> u64 {
        (self.subnet.guaranteed_response_message_bytes / MESSAGE_BYTES_PER_CALL).max(1)
    }

    /// The same if each has the largest response: one canister may have all of them open.
    fn largest_open_calls(&self) -> u64 {
        let subnet = &self.subnet;
        subnet.guaranteed_response_message_bytes / subnet.message_payload_bytes.max(1)
    }

    /// Messages with guaranteed responses where a disk budget is stated: their part of it, and at
    /// least `least`, which is less where the disk is small.
    fn messages_bytes(&self, least: u64) -> u64 {
        let floor = rows::guaranteed_response_message_bytes.value_at(0);
        let least = least.min((self.disk_budget_bytes / SMALL_DISK_MESSAGES_PART).max(floor));
        let bytes = least.max(self.messages_part_bytes());
        bytes - bytes % MIB
    }

    /// The part of a disk budget for messages with guaranteed responses.
    fn messages_part_bytes(&self) -> u64 {
        let (disk, memory) = (self.disk_budget_bytes, self.memory_budget_bytes);
        let beside = memory.saturating_mul(BESIDE_MESSAGES_PER_MEMORY_BYTE);
        let beyond = disk.saturating_sub(beside.max(BESIDE_MESSAGES_BYTES));
        let free = memory.saturating_sub(BESIDE_MESSAGES_MEMORY);
        let is_alone = self.pages.states_on_disk <= 1;
        let part = if is_alone { MESSAGES_PART } else { SHARED_MESSAGES_PART };
        (beyond / part)
            .min(memory.saturating_mul(MESSAGES_PER_MEMORY_BYTE))
            .min(free.saturating_mul(MESSAGES_PER_FREE_BYTE))
            .min(MESSAGES_BYTES_MAX)
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let payload = limit!(limits.subnet.message_payload_bytes);
    rules.bounds(limits, &["subnet.message_payload_bytes"]);
    rules.within(
        limit!(limits.subnet.memory_threshold_bytes),
        limit!(limits.subnet.memory_capacity_bytes),
        "usage cannot pass the capacity, so a threshold above it would never be met",
    );
    let guaranteed = limit!(limits.subnet.guaranteed_response_message_bytes);
    rules.within(payload, guaranteed, "one call must fit its own response");
    let best_effort = limit!(limits.subnet.best_effort_message_bytes);
    rules.within(payload, best_effort, "one message must fit");
    rules.within(payload, limit!(limits.subnet.ingress_history_bytes), "one reply must fit");
    let chunk = limit!(limits.subnet.chunk_bytes);
    rules.within(chunk, limit!(limits.subnet.chunk_store_bytes), "one chunk must fit");
    rules.within(chunk, payload, "a chunk is uploaded in one message");
    rules.within(
        limit!(limits.subnet.canister_log_bytes),
        limit!(limits.subnet.canister_metadata_bytes),
        "the log of one canister is part of its metadata",
    );
}

impl Limits {
    /// Bytes of messages that are over, in files and in the store, which a snapshot may keep that
    /// is there for a lease.
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

    /// The most that the state's heap takes on disk.
    pub fn state_heap_bytes(&self) -> u64 {
        self.heap_lines().iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
    }

    /// The parts of the replicated state that are kept in a heap on disk, of which the kernel keeps
    /// the recently touched pages in memory.
    pub(crate) fn heap_lines(&self) -> Vec<SheetLine> {
        let subnet = &self.subnet;
        let guaranteed = self.small_message_bytes();
        let held = [
            subnet.best_effort_message_bytes,
            subnet.ingress_history_bytes,
            subnet.canister_metadata_bytes,
            subnet.wasm_custom_sections_bytes,
        ];
        let held = held.into_iter().fold(0, u64::saturating_add);
        let old_messages = guaranteed.saturating_mul(HEAP_PER_MESSAGE_BYTE - 1);
        lines![
            Disk(HEAP_LINES[0], "state") =
                (
                    guaranteed,
                    format!(
                        "{} and {} of calls of the management canister",
                        times(subnet.guaranteed_response_calls, SMALL_MESSAGE_BYTES).1,
                        format_size(self.management_bytes())
                    ),
                ),
                "queued messages of calls with guaranteed responses, beside payloads that lie in \
                 files";
            Disk(HEAP_LINES[1], "state") = whole(subnet.best_effort_message_bytes),
                "queued messages of best-effort calls and of clients";
            Disk(HEAP_LINES[2], "state") = whole(subnet.ingress_history_bytes),
                "statuses and replies that clients still ask for";
            Disk(HEAP_LINES[3], "state") = whole(subnet.canister_metadata_bytes),
                "settings, contexts, callbacks, globals and logs of all canisters";
            Disk(HEAP_LINES[4], "state") = whole(subnet.wasm_custom_sections_bytes),
                "metadata sections of the modules of all canisters";
            Disk(STATE_HEAP_LINE, "state") =
                (
                    (held / HEAP_GAPS_PART)
                        .saturating_add(old_messages)
                        .saturating_add(ROUND_PAYLOAD_BYTES)
                        .saturating_add(HEAP_REST_BYTES)
                        .saturating_add(self.query_report_bytes()),
                    format!(
                        "{}, a part in {HEAP_GAPS_PART} of the other four, {}, {}, {}",
                        times(HEAP_PER_MESSAGE_BYTE - 1, guaranteed).1,
                        format_size(ROUND_PAYLOAD_BYTES),
                        format_size(HEAP_REST_BYTES),
                        format_size(self.query_report_bytes())
                    ),
                ),
                "messages with guaranteed responses that older states hold, gaps between those \
                 five in the heap on disk, payloads before they are in files, indexes over the \
                 canisters, and what members report of queries";
        ]
    }

    /// Payloads in files. Those of the newest checkpoint stay until the next, in addition to those
    /// that came since: a part of all, and those of one round. With several nodes, snapshots keep
    /// the files they were made of, and the files of a fetched state are added.
    pub(crate) fn payload_lines(&self) -> Vec<SheetLine> {
        let messages = self.file_bytes();
        let states = self.pages.states_on_disk.max(1);
        let came = self.pressing_message_bytes().max(messages / CHECKPOINT_MESSAGES_PART);
        let round = self.round_file_bytes();
        let kept = if states > 1 { self.pinned_message_bytes() } else { 0 };
        let (waiting, made_of) = times(states, messages);
        lines![
            Disk(MESSAGE_FILES_LINE, "state") =
                (
                    [waiting, came, round, kept].into_iter().fold(0, u64::saturating_add),
                    format!(
                        "{made_of}, {}, {} and {}",
                        format_size(came),
                        format_size(round),
                        format_size(kept)
                    ),
                ),
                "what large messages carry that wait, and room for the largest response to each \
                 call; what came since the newest checkpoint; what one round may bring, \
                 execution.heap_delta_bytes_per_round and what its lanes had begun, each file \
                 rounded up; where there are several nodes, the files of a state that is fetched, \
                 and what snapshots keep: all that the newest and the one before its certificate \
                 were made of, and a part for leases";
        ]
    }

    /// The store of checkpoints. A large message is written once, and its room is used again; the
    /// other records are there in two versions. With several nodes, the stream of a fetched state
    /// and the store made of it are added.
    pub(crate) fn record_lines(&self) -> Vec<SheetLine> {
        let messages = self.small_message_bytes();
        let (others, states) = (self.records_bytes(), self.pages.states_on_disk.max(1));
        let factor = if states > 1 { SHOWN_STORE_PER_MESSAGE_BYTE } else { STORE_PER_MESSAGE_BYTE };
        let (rows, made_of) = times(factor, messages);
        let (versions, of_others) = times(RECORD_VERSIONS, others);
        let stream = messages.saturating_add(others);
        let fetched_store = messages.saturating_mul(STORE_PER_MESSAGE_BYTE);
        let fetched = stream.saturating_add(others).saturating_add(fetched_store);
        let fetched = fetched.saturating_mul(states - 1);
        lines![
            Disk("checkpoint_records", "state") =
                (
                    rows.saturating_add(versions).saturating_add(fetched),
                    format!("{made_of} and {of_others}"),
                ),
                "queued messages beside payloads in files; metadata and the ingress history, in \
                 the newest checkpoint and in the one being written; where there are several \
                 nodes, the records of a state that is fetched";
        ]
    }

    /// The state of canisters, on disk.
    pub(crate) fn state_lines(&self) -> Vec<SheetLine> {
        lines![
            Disk(STATE_LINE, "pages") =
                times(self.pages.states_on_disk, self.subnet.memory_capacity_bytes),
                "heaps, stable memories, modules and chunks of all canisters and of their \
                 snapshots; where there are several nodes, a state that is fetched lies beside the \
                 old one";
        ]
    }
}

impl SubnetLimits {
    /// Bytes that calls may take which wait for the management canister, unless they are small.
    pub fn management_call_bytes(&self) -> u64 {
        let large = self.message_payload_bytes.saturating_mul(LARGE_MANAGEMENT_CALLS);
        self.best_effort_message_bytes.max(large)
    }
}
