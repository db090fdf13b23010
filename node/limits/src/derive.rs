//! From one number, or two where the disk is stated, to the whole table.
//!
//! Limits come in three kinds. **Scaled** ones are rows of `scale`. **Fixed** ones are constants
//! here: what the interface specification or the clients demand, and what is a matter of time
//! rather than memory. **Following** ones are consequences of others, computed in
//! [`Limits::follow_causes`], so that an operator who changes a cause need not hunt for its
//! consequences.

use budget::MIB;

use sheet::{GRANULE_BYTES, HandBackLimits, HeapLimits, Preset};

use crate::{lines::STATE_LINE, scale, *};

/// All presets. They are derived like any other size; tests pin their values.
pub const PRESETS: [Preset; 3] = [
    Preset { name: "micro", memory_bytes: 256 * MIB },
    Preset { name: "nano", memory_bytes: 512 * MIB },
    Preset { name: "small", memory_bytes: 1024 * MIB },
];

/// The most lanes that a round spreads canisters over, and the most paused messages that continue
/// in it: a notion of the state machine, the same on every machine.
pub const VIRTUAL_LANES: u64 = 4;

// Instructions. A round is what fits between two certificates, so it is kept short: a slice is about
// a tenth of a second. A message may take as much as on the Internet Computer, in slices.
const INSTRUCTIONS_PER_SLICE: u64 = 1_000_000_000;
const INSTRUCTIONS_PER_ROUND: u64 = 4_000_000_000;
const INSTRUCTIONS_PER_MESSAGE: u64 = 40_000_000_000;
// So may an installation, of both its executions together; where no worker can keep one that is
// paused, all of it runs again in each slice.
const INSTRUCTIONS_PER_INSTALL: u64 = 300_000_000_000;
const INSTRUCTIONS_PER_INSTALL_AGAIN: u64 = 20_000_000_000;
const INSTRUCTIONS_PER_QUERY: u64 = 5_000_000_000;
const INSTRUCTIONS_PER_INSPECT: u64 = 200_000_000;

// Checkpoints. Rounds come as fast as work arrives, more than a hundred a second, so a checkpoint
// every few rounds would be nothing but checkpoints. The cost to an operator is the time that a
// restart after a crash replays. It depends on instructions (those that ran again included),
// rounds, and delta, and what one round adds.
const CHECKPOINT_INTERVAL_ROUNDS: u64 = 500;
/// Rounds of a subnet are slower, tens of milliseconds at least, and a node that fetches a state
/// should have few blocks to execute after it.
const MANIFEST_INTERVAL_ROUNDS: u64 = 50;
const CHECKPOINT_INSTRUCTIONS: u64 = 20_000_000_000;
/// At thirty rounds a second, time to hash some hundred MiB that changed.
const MANIFEST_LAG_ROUNDS: u64 = 32;
/// At thirty rounds a second, time to fetch some GiB.
const MANIFEST_LEASE_ROUNDS: u64 = 2_000;

/// Runs of one memory before it is folded. Each is up to two kernel mappings, and a process has
/// 65,530 of them by default.
const RUNS_PER_MEMORY: u64 = 1024;

// Messages.
const MESSAGE_PAYLOAD_BYTES: u64 = 2 * MIB;
const BODY_BYTES: u64 = 4 * MIB;
const HTTP_BODY_BYTES: u64 = 2 * MIB;

// Processes. Constants that hold addresses are 1.1 MiB in each: of the base of a process as it was
// measured, they are a line of their own. A build with assertions, which is less optimised, has 1.7.
const PROGRAM_BYTES: u64 = if cfg!(debug_assertions) { 2 * MIB } else { 3 * MIB / 2 };
const WORKER_BASE_BYTES: u64 = 4 * MIB - PROGRAM_BYTES;

// Compilation. Measured peaks: 30 MB for a module of 0.4 MB, 93 MB for 3.4 MB, 184 MB for 6.3 MB.
// The line above all of them is 20 MiB + 28 x module.
const COMPILE_BASE_BYTES: u64 = 20 * MIB;
/// Memory outside the heap, which is in a file: constants of the program that hold addresses, and
/// the allocator's own records. Measured: 1 to 2.8 MiB, and the program's constants.
pub(crate) const COMPILE_ANONYMOUS_BYTES: u64 = 4 * MIB;
const COMPILE_BYTES_PER_BYTE: u64 = 28;
/// Memory of the compile child: its size when idle, and the number of copies of the module's bytes.
const COMPILE_REST_BYTES: u64 = 4 * MIB;
const COMPILE_COPIES: u64 = 3;
/// The unit of `module.function_weight` and `module.weight`.
const WEIGHT_UNIT_BYTES: u64 = 256;
/// Instructions charged for compiling a byte of a module, for a unit of its weight, and for judging
/// a byte of one that is refused. By weight it is about what a slow core needs at two instructions
/// a nanosecond.
const COMPILE_INSTRUCTIONS_PER_BYTE: u64 = 6_000;
const COMPILE_INSTRUCTIONS_PER_WEIGHT: u64 = 200_000;
const VALIDATE_INSTRUCTIONS_PER_BYTE: u64 = 500;

/// No module is larger than on the Internet Computer, however much memory there is.
const WASM_UNCOMPRESSED_BYTES_MAX: u64 = 100 * MIB;
const CODE_SECTION_BYTES_MAX: u64 = 11 * MIB;

const GOVERNOR: GovernorLimits = GovernorLimits {
    hand_back: HandBackLimits::MEASURED,
    refuse_queries_percent: 85,
    refuse_calls_percent: 90,
    pause_execution_percent: 95,
};

/// Metadata line taken by a canister without messages, logs or a notable number of methods.
const METADATA_BYTES_PER_CANISTER: u64 = 8 << 10;

/// Several times what a query at its instruction limit takes on a slow machine.
const QUERY_WALL_CLOCK_SECONDS: u64 = 10;
/// Longer than one query may run, so that the next in line is served and not refused.
const QUERY_WAIT_SECONDS: u64 = 15;

/// A query at its instruction limit takes a few seconds: most finish, and the log does not fill
/// meanwhile.
const PIN_SECONDS: u64 = 5;
/// Free disk kept at least, however small the delta log.
const DISK_RESERVE_BYTES_MIN: u64 = 256 * MIB;
/// The least state that a disk budget must leave room for.
const CAPACITY_BYTES_MIN: u64 = 64 * MIB;
/// The most state for each byte of memory: hashes of its leaves, kept while a state is fetched, and
/// the layouts of its memories stay a small part of the memory so.
const CAPACITY_BYTES_PER_MEMORY_BYTE: u64 = 256;
/// Compiled code may take one `COMPILED_PART`th of a disk budget, and at most `COMPILED_BYTES_MAX`,
/// beyond which more is of no use: with 1 MB each, code of four thousand modules.
const COMPILED_PART: u64 = 16;
const COMPILED_BYTES_MAX: u64 = 4 << 30;
/// The part of a disk budget that blocks may take for members that were away, and the most.
const BLOCKS_PART: u64 = 64;
const BLOCKS_BYTES_MAX: u64 = 1 << 30;
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
/// Blocks that are kept without a disk budget.
const RETENTION_BLOCK_BYTES: u64 = 128 * MIB;

const _: () = {
    assert!(INSTRUCTIONS_PER_SLICE <= INSTRUCTIONS_PER_ROUND);
    assert!(INSTRUCTIONS_PER_ROUND <= INSTRUCTIONS_PER_MESSAGE);
    assert!(INSTRUCTIONS_PER_ROUND <= INSTRUCTIONS_PER_INSTALL_AGAIN);
    assert!(
        INSTRUCTIONS_PER_INSPECT <= INSTRUCTIONS_PER_QUERY
            && INSTRUCTIONS_PER_QUERY <= INSTRUCTIONS_PER_MESSAGE
    );
    assert!(CHECKPOINT_INSTRUCTIONS >= INSTRUCTIONS_PER_ROUND);
    assert!(
        MESSAGE_PAYLOAD_BYTES * 3 / 2 <= BODY_BYTES,
        "an envelope with all its delegations fits in addition to the largest argument"
    );
    assert!(
        RUNS_PER_MEMORY * 2 * 2 < 65_530 / 8,
        "both memories of one canister take a small part of a process's mappings"
    );
};

impl Limits {
    /// The table for a node that may take `memory_bytes` in all (whole MiB of it), or which line of
    /// the budget sheet does not fit and what size would work.
    pub fn derive(memory_bytes: u64) -> Result<Self, LimitsError> {
        sheet::derive(memory_bytes)
    }

    /// The smallest size that can be derived. Below the first anchor nothing shrinks further: what
    /// that table sums to is what a node needs at least.
    pub fn smallest_bytes() -> u64 {
        sheet::smallest_bytes::<Self>()
    }

    /// The table of a named size.
    pub fn preset(name: &str) -> Result<Self, LimitsError> {
        sheet::preset(name)
    }

    /// 512 MiB: the size the node is made for.
    pub fn nano() -> Result<Self, LimitsError> {
        Self::preset("nano")
    }

    /// The preset `small`: the table of a node with 1 GiB of memory.
    pub fn small() -> Result<Self, LimitsError> {
        Self::preset("small")
    }

    /// The preset `micro`: the table of a node with 256 MiB of memory.
    pub fn micro() -> Result<Self, LimitsError> {
        Self::preset("micro")
    }

    /// Gives the node `disk_bytes` (whole MiB of it) for everything on disk, with room for `states`
    /// states: two where a fetched state is stored alongside the old one. Compiled code, blocks and
    /// the capacity of the subnet follow from it, except limits that were set before.
    /// [`Self::check_disk`] checks whether it is enough.
    pub fn set_disk(&mut self, disk_bytes: u64, states: u64) {
        sheet::restate(self, |table| {
            // Whole MiB, and never 0, which would mean that none is stated.
            table.disk_budget_bytes = (disk_bytes - disk_bytes % MIB).max(1);
            table.pages.states_on_disk = states;
        });
    }

    /// Whether the disk budget, if one is stated, leaves enough for a state.
    ///
    /// # Errors
    /// [`LimitsError::DiskTooSmall`], with the size that works.
    pub fn check_disk(&self) -> Result<(), LimitsError> {
        let (disk_bytes, states) = (self.disk_budget_bytes, self.pages.states_on_disk);
        let smallest_bytes = self.smallest_disk_bytes(states);
        if disk_bytes == 0 || disk_bytes >= smallest_bytes {
            return Ok(());
        }
        let least = states.saturating_mul(self.least_capacity_bytes());
        let beside_bytes = smallest_bytes.saturating_sub(least);
        Err(LimitsError::DiskTooSmall { disk_bytes, beside_bytes, smallest_bytes })
    }

    /// The smallest disk for this table, with room for `states` states.
    pub fn smallest_disk_bytes(&self, states: u64) -> u64 {
        self.disk_bytes(states, self.least_capacity_bytes())
    }

    /// The smallest disk for `capacity_bytes`, with room for `states` states.
    pub fn disk_bytes(&self, states: u64, capacity_bytes: u64) -> u64 {
        let state = states.saturating_mul(capacity_bytes);
        // Compiled code and blocks take a small part of the disk, so that each step adds less than
        // the one before.
        let mut table = self.clone();
        let mut disk = MIB;
        loop {
            sheet::restate(&mut table, |table| {
                table.disk_budget_bytes = disk;
                table.pages.states_on_disk = states;
            });
            let needed = table.beside_state_bytes().saturating_add(state);
            if needed <= disk {
                return disk;
            }
            disk = needed.checked_next_multiple_of(MIB).unwrap_or(u64::MAX);
        }
    }

    /// Heap and stable bytes one update message may dirty: what is reserved of [`pool::EXECUTIONS`]
    /// before it starts.
    pub fn message_dirty_bytes(&self) -> u64 {
        self.execution
            .heap_dirty_bytes_per_message
            .saturating_add(self.execution.stable_dirty_bytes_per_message)
    }

    /// Heap and stable bytes each phase of an install or upgrade may dirty: what is reserved of
    /// [`pool::EXECUTIONS`] for it.
    pub fn install_dirty_bytes(&self) -> u64 {
        let execution = &self.execution;
        let apart = execution
            .heap_dirty_bytes_per_install
            .saturating_add(execution.stable_dirty_bytes_per_install);
        execution.dirty_bytes_per_install.min(apart)
    }

    /// Heap and stable bytes one query may dirty: what is reserved of [`pool::QUERIES`] before it
    /// starts.
    pub fn query_dirty_bytes(&self) -> u64 {
        self.execution
            .heap_dirty_bytes_per_query
            .saturating_add(self.execution.stable_dirty_bytes_per_query)
    }

    /// The most that a round may write beyond `heap_delta_bytes_per_round`. Paused messages run to
    /// their end before anything is counted, and count as half of that at most. Then each lane may
    /// have begun a message when the round was used up, or the management dispatcher an upgrade,
    /// which has two phases. [`Self::lanes_beside`] and [`Self::has_room_for_upgrade`] ensure that
    /// both together are at most five messages.
    pub fn delta_beyond_round_bytes(&self) -> u64 {
        let lanes = self.message_dirty_bytes().saturating_mul(VIRTUAL_LANES);
        let counted = self.execution.heap_delta_bytes_per_round / 2;
        let beside_paused = self.delta_with_paused_bytes().saturating_sub(counted);
        // An installation that was paused is counted like a message, and a lane starts one in
        // addition.
        let installed = self.upgrade_dirty_bytes().saturating_add(self.message_dirty_bytes());
        let beside_installed = installed.saturating_sub(counted);
        lanes.max(self.upgrade_dirty_bytes()).max(beside_paused).max(beside_installed)
    }

    /// The most that paused messages which ended in a round write, with those that others had begun
    /// when it was used up: one of each lane and one more.
    fn delta_with_paused_bytes(&self) -> u64 {
        self.message_dirty_bytes().saturating_mul(VIRTUAL_LANES + 1)
    }

    fn upgrade_dirty_bytes(&self) -> u64 {
        self.install_dirty_bytes().saturating_mul(2)
    }

    /// Number of lanes of a round in which finished paused messages wrote `paused_delta_bytes`. At
    /// least one.
    pub fn lanes_beside(&self, paused_delta_bytes: u64) -> u64 {
        let left = self.delta_with_paused_bytes().saturating_sub(paused_delta_bytes);
        (left / self.message_dirty_bytes().max(1)).clamp(1, VIRTUAL_LANES)
    }

    /// Number of paused messages that may continue in a round in which finished installations wrote
    /// `delta_bytes`.
    pub fn paused_beside(&self, delta_bytes: u64) -> u64 {
        let left = self.delta_with_paused_bytes().saturating_sub(delta_bytes);
        (left / self.message_dirty_bytes().max(1)).saturating_sub(1).min(VIRTUAL_LANES)
    }

    /// Whether an upgrade may begin or end in a round in which finished paused messages wrote
    /// `paused_delta_bytes`.
    pub fn has_room_for_upgrade(&self, paused_delta_bytes: u64) -> bool {
        let left = self.delta_with_paused_bytes().saturating_sub(self.upgrade_dirty_bytes());
        paused_delta_bytes <= left
    }

    /// Scaled and fixed limits, with the limits derived from them; not checked.
    pub(crate) fn derived(memory: u64) -> Self {
        let mut table = Self {
            memory_budget_bytes: memory,
            disk_budget_bytes: 0,
            subnet: subnet(memory),
            execution: execution(memory),
            sandbox: sandbox(memory),
            pages: pages(memory),
            module: module(memory),
            consensus: consensus(memory),
            gateway: gateway(memory),
            http_gateway: http_gateway(memory),
            outcalls: outcalls(memory),
            process: ProcessLimits {
                program_bytes: PROGRAM_BYTES,
                node_base_bytes: scale::NODE_BASE.bytes_at(memory).saturating_sub(PROGRAM_BYTES),
                worker_base_bytes: WORKER_BASE_BYTES,
                kernel_bytes: scale::KERNEL.bytes_at(memory),
                page_cache_floor_bytes: scale::PAGE_CACHE_FLOOR.bytes_at(memory),
            },
            governor: GOVERNOR,
            heap: HeapLimits::with_profiler_bytes(scale::NODE_BASE.bytes_at(memory) / 4),
        };
        table.follow_causes(|_| false);
        table
    }

    /// Sets every limit that is a consequence of others, except those that `stays` names (as
    /// `group.field`).
    pub(crate) fn follow_causes(&mut self, stays: impl Fn(&str) -> bool) {
        let set = |name: &str, field: &mut u64, value: u64| {
            if !stays(name) {
                *field = value;
            }
        };
        // A module may be as large as can be compiled.
        let compiled = self.sandbox.compile_memory_bytes.saturating_sub(COMPILE_BASE_BYTES)
            / COMPILE_BYTES_PER_BYTE;
        let uncompressed = (compiled - compiled % GRANULE_BYTES).min(WASM_UNCOMPRESSED_BYTES_MAX);
        set(
            "module.wasm_uncompressed_bytes",
            &mut self.module.wasm_uncompressed_bytes,
            uncompressed,
        );
        let uncompressed = self.module.wasm_uncompressed_bytes;
        set("module.wasm_bytes", &mut self.module.wasm_bytes, uncompressed);
        set(
            "module.code_section_bytes",
            &mut self.module.code_section_bytes,
            uncompressed.min(CODE_SECTION_BYTES_MAX),
        );

        // The heaviest function alone, and all that stays of functions alone, take half of the
        // child's memory at most; both together, with the largest module, still fit.
        // Weights are those of the worst code there is: real modules take half of theirs or less.
        let half = (self.sandbox.compile_memory_bytes / 2).saturating_sub(COMPILE_REST_BYTES);
        let function = half / 5 * 4 / WEIGHT_UNIT_BYTES;
        set("module.function_weight", &mut self.module.function_weight, function);
        set("module.weight", &mut self.module.weight, half / 20 * 19 / WEIGHT_UNIT_BYTES);

        // A worker that holds more than the program, its base, its buffers and the dirtiest
        // execution has a fault.
        let worker = self
            .process
            .worker_base_bytes
            .saturating_add(self.process.program_bytes)
            .saturating_add(self.worker_buffer_bytes())
            .saturating_add(self.message_dirty_bytes().max(self.install_dirty_bytes()));
        set("sandbox.worker_anonymous_bytes", &mut self.sandbox.worker_anonymous_bytes, worker);

        // A round starts while the reserve is free. It writes its own delta, and what ends before
        // that is counted, or is in flight when it is reached, still finishes.
        let round = self.execution.heap_delta_bytes_per_round;
        let reserve = round.saturating_add(self.delta_beyond_round_bytes());
        set("pages.delta_reserve_bytes", &mut self.pages.delta_reserve_bytes, reserve);
        let capacity = self.pages.delta_reserve_bytes.saturating_add(round);
        set("pages.delta_capacity_bytes", &mut self.pages.delta_capacity_bytes, capacity);
        let open = self.pages.delta_capacity_bytes.saturating_sub(self.pages.delta_reserve_bytes);
        set("pages.pinned_delta_bytes", &mut self.pages.pinned_delta_bytes, open / 2);
        // A compilation that finds no disk waits with its round: five sixths of its heap are more
        // than any module was seen to fill, 50,000 empty functions 310 MiB of 384.
        let disk = self
            .pages
            .delta_capacity_bytes
            .saturating_add(self.sandbox.compile_memory_bytes / 6 * 5)
            .max(DISK_RESERVE_BYTES_MIN);
        set("pages.disk_reserve_bytes", &mut self.pages.disk_reserve_bytes, disk);
        self.follow_disk(&stays);
        if !stays("subnet.canisters_max") {
            self.subnet.canisters_max =
                self.subnet.canister_metadata_bytes / METADATA_BYTES_PER_CANISTER;
        }

        // Storage never reserves cycles.
        let capacity = self.subnet.memory_capacity_bytes;
        if !stays("subnet.memory_threshold_bytes") {
            self.subnet.memory_threshold_bytes = capacity;
        }
    }

    /// Divides a disk budget: a part for compiled code, a part for blocks, and all that no other
    /// line takes for the state. Without a budget these limits follow from the memory.
    fn follow_disk(&mut self, stays: impl Fn(&str) -> bool) {
        let disk = self.disk_budget_bytes;
        if disk == 0 {
            self.follow_messages(&stays);
            return;
        }
        let whole = |bytes: u64| bytes - bytes % MIB;
        if !stays("sandbox.compilation_cache_bytes") {
            let least = scale::COMPILATION_CACHE.bytes_at(self.memory_budget_bytes);
            let part = whole(disk / COMPILED_PART).min(COMPILED_BYTES_MAX);
            self.sandbox.compilation_cache_bytes = least.max(part);
        }
        if !stays("consensus.retention_block_bytes") {
            let part = whole(disk / BLOCKS_PART).min(BLOCKS_BYTES_MAX);
            self.consensus.retention_block_bytes = RETENTION_BLOCK_BYTES.max(part);
        }
        let memory = self.memory_budget_bytes;
        if !stays("subnet.guaranteed_response_message_bytes") {
            let (least, part) = (self.least_messages_bytes(), self.messages_part_bytes());
            self.subnet.guaranteed_response_message_bytes = whole(least.max(part));
        }
        self.follow_messages(&stays);
        if !stays("subnet.ingress_history_bytes") {
            let least = scale::INGRESS_HISTORY.bytes_at(memory);
            let most = memory.saturating_sub(BESIDE_HISTORY_BYTES) / HISTORY_MEMORY_PART;
            let part = whole(disk / HISTORY_PART).min(whole(most));
            self.subnet.ingress_history_bytes = least.max(part);
        }
        if !stays("subnet.canister_metadata_bytes") {
            let least = scale::CANISTER_METADATA.bytes_at(memory);
            let most = memory.saturating_mul(METADATA_BYTES_PER_MEMORY_BYTE);
            let beyond = disk.saturating_sub(BESIDE_METADATA_BYTES);
            let part = whole(beyond / METADATA_PART).min(most).min(METADATA_BYTES_MAX);
            self.subnet.canister_metadata_bytes = least.max(part);
        }
        if !stays("subnet.wasm_custom_sections_bytes") {
            let least = scale::CUSTOM_SECTIONS.bytes_at(memory);
            let part = self.subnet.canister_metadata_bytes / METADATA_BYTES_OF_SECTION_BYTE;
            self.subnet.wasm_custom_sections_bytes = least.max(whole(part));
        }
        if !stays("subnet.memory_capacity_bytes") {
            let left = disk.saturating_sub(self.beside_state_bytes());
            let most = self.memory_budget_bytes.saturating_mul(CAPACITY_BYTES_PER_MEMORY_BYTE);
            let capacity = left / self.pages.states_on_disk.max(1);
            self.subnet.memory_capacity_bytes = whole(capacity.min(most));
        }
    }

    fn follow_messages(&mut self, stays: impl Fn(&str) -> bool) {
        let bytes = self.subnet.guaranteed_response_message_bytes;
        if !stays("subnet.guaranteed_response_calls") {
            self.subnet.guaranteed_response_calls = (bytes / MESSAGE_BYTES_PER_CALL).max(1);
        }
        if !stays("subnet.callback_soft_limit") {
            // One canister may have all of them open.
            let open = bytes / self.subnet.message_payload_bytes.max(1);
            let least = scale::CALLBACK_SOFT_LIMIT.at(self.memory_budget_bytes);
            self.subnet.callback_soft_limit = least.max(open);
        }
    }

    /// The least that messages with guaranteed responses get; less where the disk is small.
    fn least_messages_bytes(&self) -> u64 {
        let (disk, memory) = (self.disk_budget_bytes, self.memory_budget_bytes);
        let least = scale::GUARANTEED_MESSAGES.bytes_at(memory);
        if disk == 0 {
            return least;
        }
        let floor = scale::GUARANTEED_MESSAGES.bytes_at(0);
        least.min((disk / SMALL_DISK_MESSAGES_PART).max(floor))
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

    /// The least capacity that a disk budget must leave: callbacks have their part of it.
    fn least_capacity_bytes(&self) -> u64 {
        let callbacks = self
            .execution
            .response_callback_reservation_bytes
            .saturating_mul(self.execution.threads);
        CAPACITY_BYTES_MIN.max(callbacks.saturating_mul(2))
    }

    /// Bytes on disk other than the state.
    fn beside_state_bytes(&self) -> u64 {
        let sheet = self.sheet();
        let state = sheet.line(STATE_LINE).map_or(0, |line| line.bytes);
        sheet.disk_sum_bytes().saturating_sub(state)
    }
}

/// Memory to compile a module, above every measured peak.
pub(crate) fn compile_need_bytes(wasm_uncompressed_bytes: u64) -> u64 {
    wasm_uncompressed_bytes
        .saturating_mul(COMPILE_BYTES_PER_BYTE)
        .saturating_add(COMPILE_BASE_BYTES)
}

/// The most memory that compiling a module of these limits takes.
pub(crate) fn compile_peak_bytes(module: &ModuleLimits) -> u64 {
    let weights =
        module.function_weight.saturating_add(module.weight).saturating_mul(WEIGHT_UNIT_BYTES);
    let copies = module.wasm_uncompressed_bytes.saturating_mul(COMPILE_COPIES);
    COMPILE_REST_BYTES.saturating_add(copies).saturating_add(weights)
}

/// Instructions charged for compiling a module of `wasm_bytes` bytes, unpacked, and of that weight.
pub fn compile_instructions(wasm_bytes: u64, weight: u64) -> u64 {
    let by_size = wasm_bytes.saturating_mul(COMPILE_INSTRUCTIONS_PER_BYTE);
    by_size.saturating_add(weight.saturating_mul(COMPILE_INSTRUCTIONS_PER_WEIGHT))
}

/// Instructions charged for validating a module of at most `wasm_bytes` bytes, unpacked, that is
/// then refused.
pub fn validate_instructions(wasm_bytes: u64) -> u64 {
    wasm_bytes.saturating_mul(VALIDATE_INSTRUCTIONS_PER_BYTE)
}

impl ExecutionLimits {
    /// The share of the execution threads that canisters may have allocated, in percent of one: all
    /// but one of them, or half of a single one.
    pub fn allocatable_percent(&self) -> u64 {
        self.threads.saturating_sub(1).saturating_mul(100).max(50)
    }
}

impl ModuleLimits {
    /// The most that may be charged for a module of at most `wasm_bytes` bytes, unpacked. An
    /// installer must be able to pay it before the module is examined.
    pub fn compile_instructions_max(&self, wasm_bytes: u64) -> u64 {
        compile_instructions(wasm_bytes, self.weight).max(validate_instructions(wasm_bytes))
    }
}

fn subnet(memory: u64) -> SubnetLimits {
    SubnetLimits {
        memory_capacity_bytes: scale::MEMORY_CAPACITY.bytes_at(memory),
        memory_threshold_bytes: 0,
        canisters_max: 0,
        guaranteed_response_message_bytes: scale::GUARANTEED_MESSAGES.bytes_at(memory),
        guaranteed_response_calls: 0,
        best_effort_message_bytes: scale::BEST_EFFORT_MESSAGES.bytes_at(memory),
        ingress_history_bytes: scale::INGRESS_HISTORY.bytes_at(memory),
        ingress_unfinished_max: scale::INGRESS_UNFINISHED.at(memory),
        wasm_custom_sections_bytes: scale::CUSTOM_SECTIONS.bytes_at(memory),
        canister_metadata_bytes: scale::CANISTER_METADATA.bytes_at(memory),
        callback_soft_limit: scale::CALLBACK_SOFT_LIMIT.at(memory),
        queue_slots: 500,
        message_payload_bytes: MESSAGE_PAYLOAD_BYTES,
        controllers_max: 10,
        chunk_store_bytes: 100 * MIB,
        chunk_bytes: MIB,
        canister_log_bytes: 4 << 10,
    }
}

fn execution(memory: u64) -> ExecutionLimits {
    ExecutionLimits {
        threads: scale::THREADS.step_at(memory),
        query_threads: scale::QUERY_THREADS.step_at(memory),
        query_threads_per_canister: scale::QUERY_THREADS_PER_CANISTER.step_at(memory),
        query_wall_clock_seconds: QUERY_WALL_CLOCK_SECONDS,
        query_wait_seconds: QUERY_WAIT_SECONDS,
        response_callback_reservation_bytes: scale::RESPONSE_CALLBACK_RESERVATION.bytes_at(memory),
        instructions_per_message: INSTRUCTIONS_PER_MESSAGE,
        instructions_per_install: match scale::PAUSED_WORKERS.step_at(memory) {
            0 => INSTRUCTIONS_PER_INSTALL_AGAIN,
            _ => INSTRUCTIONS_PER_INSTALL,
        },
        instructions_per_query: INSTRUCTIONS_PER_QUERY,
        instructions_per_inspect: INSTRUCTIONS_PER_INSPECT,
        instructions_per_round: INSTRUCTIONS_PER_ROUND,
        instructions_per_slice: INSTRUCTIONS_PER_SLICE,
        paused_executions: scale::PAUSED_EXECUTIONS.step_at(memory),
        stable_dirty_bytes_per_message: scale::STABLE_DIRTY_PER_MESSAGE.bytes_at(memory),
        stable_dirty_bytes_per_install: scale::STABLE_DIRTY_PER_INSTALL.bytes_at(memory),
        stable_accessed_bytes_per_message: scale::STABLE_DIRTY_PER_MESSAGE.bytes_at(memory),
        stable_accessed_bytes_per_install: scale::STABLE_DIRTY_PER_INSTALL.bytes_at(memory),
        heap_dirty_bytes_per_message: scale::HEAP_DIRTY_PER_MESSAGE.bytes_at(memory),
        heap_dirty_bytes_per_install: scale::HEAP_DIRTY_PER_INSTALL.bytes_at(memory),
        dirty_bytes_per_install: scale::DIRTY_PER_INSTALL.bytes_at(memory),
        heap_dirty_bytes_per_query: scale::HEAP_DIRTY_PER_QUERY.bytes_at(memory),
        stable_dirty_bytes_per_query: scale::STABLE_DIRTY_PER_QUERY.bytes_at(memory),
        heap_delta_bytes_per_round: scale::DELTA_PER_ROUND.bytes_at(memory),
        heap_delta_bytes_per_canister_round: scale::DELTA_PER_CANISTER_ROUND.bytes_at(memory),
        composite_query_depth: 6,
        query_cache_bytes: scale::QUERY_CACHE.bytes_at(memory),
        query_stats_period_rounds: 600,
        query_stats_canisters: 1_000,
        reject_guaranteed_response_calls: false,
    }
}

fn sandbox(memory: u64) -> SandboxLimits {
    SandboxLimits {
        canisters_max: scale::SANDBOX_CANISTERS.at(memory),
        idle_seconds: 120,
        resident_floor_bytes: scale::RESIDENT_FLOOR.bytes_at(memory),
        eviction_batch_bytes: scale::EVICTION_BATCH.bytes_at(memory),
        worker_anonymous_bytes: 0,
        paused_workers: scale::PAUSED_WORKERS.step_at(memory),
        compile_threads: scale::COMPILE_THREADS.step_at(memory),
        compile_anonymous_bytes: COMPILE_ANONYMOUS_BYTES,
        compile_memory_bytes: scale::COMPILE_MEMORY.bytes_at(memory),
        compile_seconds: scale::COMPILE_SECONDS.step_at(memory),
        compilation_cache_bytes: scale::COMPILATION_CACHE.bytes_at(memory),
    }
}

fn pages(memory: u64) -> PagesLimits {
    PagesLimits {
        delta_capacity_bytes: 0,
        delta_reserve_bytes: 0,
        pinned_delta_bytes: 0,
        pin_seconds: PIN_SECONDS,
        checkpoint_interval_rounds: CHECKPOINT_INTERVAL_ROUNDS,
        manifest_interval_rounds: MANIFEST_INTERVAL_ROUNDS,
        checkpoint_delta_bytes: scale::CHECKPOINT_DELTA.bytes_at(memory),
        checkpoint_instructions: CHECKPOINT_INSTRUCTIONS,
        manifest_lag_rounds: MANIFEST_LAG_ROUNDS,
        manifest_lease_rounds: MANIFEST_LEASE_ROUNDS,
        runs_per_memory: RUNS_PER_MEMORY,
        open_files: scale::OPEN_FILES.at(memory),
        copy_threads: scale::COPY_THREADS.step_at(memory),
        metadata_cache_bytes: scale::METADATA_CACHE.bytes_at(memory),
        disk_reserve_bytes: 0,
        states_on_disk: 1,
    }
}

fn module(memory: u64) -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: 0,
        wasm_uncompressed_bytes: 0,
        code_section_bytes: 0,
        functions: 50_000,
        function_bytes: MIB,
        function_weight: 0,
        weight: 0,
        globals: 1_000,
        table_elements: scale::TABLE_ELEMENTS.step_at(memory),
        tables: 4,
        data_segments: 10_000,
        custom_sections: 16,
        custom_sections_bytes: MIB,
        exported_functions: 1_000,
        exported_names_bytes: 20_000,
        heap32_bytes: 4 << 30,
        heap64_bytes: 6 << 30,
        stable_bytes: 500 << 30,
    }
}

fn consensus(memory: u64) -> ConsensusLimits {
    ConsensusLimits {
        ingress_pool_bytes: scale::INGRESS_POOL.bytes_at(memory),
        ingress_pool_messages: scale::INGRESS_POOL_MESSAGES.at(memory),
        block_ingress_bytes: scale::BLOCK_INGRESS.bytes_at(memory),
        block_ingress_messages: 1_000,
        ingress_expiry_seconds: 300,
        ingress_drift_seconds: 60,
        idle_round_millis: 1_000,
        execution_lag_blocks: 1,
        certificates_kept: 64,
        blocks_per_epoch: 500,
        checkpoint_block_bytes: 64 * MIB,
        retention_rounds: 1_000,
        retention_block_bytes: RETENTION_BLOCK_BYTES,
        sync_bytes_per_second: 32 * MIB,
        nidkg_tables_bytes: scale::NIDKG_TABLES.bytes_at(memory),
    }
}

fn gateway(memory: u64) -> GatewayLimits {
    GatewayLimits {
        connections: scale::CONNECTIONS.at(memory),
        requests_in_flight: scale::REQUESTS_IN_FLIGHT.at(memory),
        queries_in_flight: scale::QUERIES_IN_FLIGHT.at(memory),
        sync_calls_waiting: scale::SYNC_CALLS_WAITING.at(memory),
        body_bytes: BODY_BYTES,
        bodies_bytes: scale::BODIES.bytes_at(memory),
        responses_bytes: scale::RESPONSES.bytes_at(memory),
        read_timeout_millis: 10_000,
        sync_call_wait_millis: 10_000,
        read_state_paths: 1_000,
        read_state_path_labels: 127,
        delegations: 20,
        delegation_targets: 1_000,
        nonce_bytes: 32,
    }
}

fn http_gateway(memory: u64) -> HttpGatewayLimits {
    HttpGatewayLimits {
        connections: scale::HTTP_CONNECTIONS.step_at(memory),
        requests_in_flight: scale::HTTP_REQUESTS_IN_FLIGHT.step_at(memory),
        requests_bytes: scale::HTTP_REQUESTS.step_at(memory),
        body_bytes: HTTP_BODY_BYTES,
        response_headers: 96,
        response_header_bytes: 32 << 10,
        response_chunks: 1_000,
        verify_millis: 30_000,
        stream_millis: 3_600_000,
        update_wait_millis: 60_000,
    }
}

fn outcalls(memory: u64) -> OutcallLimits {
    OutcallLimits {
        open: 500,
        open_bytes: scale::OUTCALLS_OPEN.step_at(memory),
        timeout_seconds: 60,
        in_flight: scale::OUTCALLS_IN_FLIGHT.step_at(memory),
        bytes: scale::OUTCALLS.step_at(memory),
        request_millis: 30_000,
    }
}
