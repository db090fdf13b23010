//! Limits of canister memory on disk: the delta log and checkpoints.

use accounting::{MIB, format_size};
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, whole};

use crate::{Limits, SCALE, execution::INSTRUCTIONS_PER_ROUND, pool};

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
/// Kernel mappings of one process, as Linux ships.
const MAPPINGS_PER_PROCESS: u64 = 65_530;
/// A query at its instruction limit takes a few seconds: most finish, and the log does not fill
/// meanwhile.
const PIN_SECONDS: u64 = 5;
/// Free disk kept at least, however small the delta log.
const DISK_RESERVE_BYTES_MIN: u64 = 256 * MIB;
/// One entry of the page index, at worst one per page of delta: an entry of the ordered map, and
/// its share of the layouts in use.
const RUN_BYTES: u64 = 40;
pub(crate) const PAGE_BYTES: u64 = 4096;

const _: () = {
    assert!(RUN_BYTES * 64 < PAGE_BYTES, "an index is much smaller than its pages");
    assert!(CHECKPOINT_INSTRUCTIONS >= INSTRUCTIONS_PER_ROUND);
    assert!(MANIFEST_INTERVAL_ROUNDS <= CHECKPOINT_INTERVAL_ROUNDS);
    assert!(
        MANIFEST_LAG_ROUNDS < MANIFEST_INTERVAL_ROUNDS,
        "a root is certified before the next manifest is made"
    );
    assert!(
        MANIFEST_INTERVAL_ROUNDS + MANIFEST_LAG_ROUNDS <= MANIFEST_LEASE_ROUNDS,
        "a state can be fetched until the next is certified"
    );
    assert!(
        RUNS_PER_MEMORY * 2 * 2 < 65_530 / 8,
        "both memories of one canister take a small part of a process's mappings"
    );
    assert!(
        crate::execution::rows::heap_delta_bytes_per_round.covers(&rows::checkpoint_delta_bytes)
    );
};

memory_budget::limits! {
    SCALE;
    /// Limits on canister memory on disk.
    #[serde(deny_unknown_fields)]
    pub struct PagesLimits as pages of Limits, rules check {
        /// Delta log over all canisters. A round begins only while `delta_reserve_bytes` of it are
        /// free.
        delta_capacity_bytes: u64 = follows(|limits| limits.least_log_bytes()), agreed,
            pays line("delta_index", "delta_log"),
            reason "on disk; follows the reserve and one round more";
        /// Delta kept free so that a started round can always finish.
        delta_reserve_bytes: u64 = follows(|limits| limits.least_reserve_bytes()), agreed,
            pays within("delta_log"),
            reason "follows: one round and everything that may be in flight when it ends";
        /// Delta log beyond which queries on older states may hold up folding for `pin_seconds` at
        /// most. When a round waits for room they give way at once.
        pinned_delta_bytes: u64 = follows(|limits| limits.pages.open_delta_bytes() / 2), local,
            pays within("delta_log"),
            reason "half of what is outside the reserve: folding has begun before a round must \
                    wait";
        /// Seconds for which queries on older states may hold up folding while the delta log holds
        /// more than `pinned_delta_bytes`. Then they are cut off and fail with a reject that names
        /// this limit.
        pin_seconds: u64 = fixed(PIN_SECONDS), local,
            reason "longer than almost any query takes; the log fills faster than one that \
                    takes more";
        /// Rounds after which a checkpoint comes at the latest; in a subnet each manifest also has
        /// one, mostly sooner.
        checkpoint_interval_rounds: u64 = fixed(CHECKPOINT_INTERVAL_ROUNDS), local,
            bounds [at_least(1, "there would be no checkpoints")],
            reason "rounds come as fast as work does, a hundred a second and more: a checkpoint \
                    every few seconds of work";
        /// Rounds between states of a subnet that are given a manifest, and with it a checkpoint:
        /// what peers can fetch. The same on every node of a subnet.
        manifest_interval_rounds: u64 = fixed(MANIFEST_INTERVAL_ROUNDS), agreed,
            bounds [at_least(1, "there would be no checkpoints")],
            reason "whoever fetches a state has few blocks to execute after it; in a subnet a \
                    round takes tens of milliseconds at least";
        /// Delta since the last checkpoint that brings the next one early.
        checkpoint_delta_bytes: u64 = mib([12, 12, 16, 24, 32, 64, 128, 128, 256]), agreed,
            pays within("delta_log"),
            bounds [at_least(MIB, "there would be nothing but checkpoints")],
            reason "bounds what a checkpoint has to sync and a crash has to write again";
        /// Instructions since the last checkpoint that bring the next one early: bounds replay
        /// after a crash.
        checkpoint_instructions: u64 = fixed(CHECKPOINT_INSTRUCTIONS), agreed,
            bounds [at_least(1_000_000_000, "there would be nothing but checkpoints")],
            reason "bounds what is executed again after a crash: about one long message";
        /// Rounds after a checkpoint with a manifest until the manifest's root is in the certified
        /// tree: time to compute it without a round waiting. The same on every node of a subnet.
        manifest_lag_rounds: u64 = fixed(MANIFEST_LAG_ROUNDS), agreed,
            bounds [
                at_least(1, "the root of a manifest cannot be known in the round that it \
                             describes"),
            ],
            reason "time to hash what changed, on a thread of its own, before the manifest's \
                    root is in the certified tree";
        /// Rounds for which a snapshot that a peer is fetching is kept beyond its replacement by a
        /// newer one.
        manifest_lease_rounds: u64 = fixed(MANIFEST_LEASE_ROUNDS), local,
            reason "a snapshot holds up folding: a peer that takes longer goes on with the next \
                    one and keeps what is still right";
        /// Runs of one memory's index beyond which it is folded first (each is one kernel mapping).
        runs_per_memory: u64 = fixed(RUNS_PER_MEMORY), local,
            bounds [
                at_least(16, "memories would be folded after every message"),
                at_most(MAPPINGS_PER_PROCESS / 8, "each run is up to two of the 65,530 kernel \
                                                   mappings of a worker, and a canister has two \
                                                   memories"),
            ],
            reason "each run is up to two kernel mappings in a worker, which has 65,530";
        /// Files of canister memories that are open for writing between two rounds; as many again
        /// may be open while a checkpoint syncs them, and for queries on older states. No more than
        /// a quarter of the system's limit.
        // Each takes far less than the line of the kernel has.
        open_files: u64 = values([512, 512, 512, 1024, 1024, 2048, 4096, 8192, 16384]), local,
            bounds [at_least(16, "every lane of execution writes two memories")],
            reason "each holds some 1.5 KiB of the kernel's memory; a round that writes more \
                    memories closes and opens them in turn";
        /// Threads that copy pages.
        copy_threads: u64 = steps([2, 2, 2, 2, 2, 2, 2, 4, 4]), local,
            bounds [
                at_least(1, "nothing could be folded"),
                at_most(64, "copying is bound by the disk"),
            ],
            reason "folding is bound by the disk, not by cores";
        /// Cache of the metadata store.
        metadata_cache_bytes: u64 = mib([1, 1, 1, 2, 3, 8, 16, 32, 128]), local,
            pays line("metadata_cache"),
            bounds [at_least(MIB, "the metadata store keeps its own tables there")],
            reason "the metadata store's own cache";
        /// Free disk below which new updates are refused.
        disk_reserve_bytes: u64 = follows(|limits| limits.least_free_disk_bytes()), local,
            pays line("disk_reserve"),
            reason "follows the delta log and half a compile child's heap, so that what was \
                    accepted can be written and compiled";
        /// Number of states that fit into the disk budget: 2 where a state fetched from peers is
        /// stored alongside the old one.
        states_on_disk: u64 = fixed(1), local,
            pays line("heap_tables", "state_heap", "message_files", "checkpoint_records",
                  "canister_state"),
            reason "2 in a subnet of several: a fetched state is stored alongside the old one";
    }
}

/// The most memory that the index of `delta_bytes` of delta takes.
pub fn delta_index_bytes(delta_bytes: u64) -> u64 {
    delta_bytes.div_ceil(PAGE_BYTES).saturating_mul(RUN_BYTES)
}

impl PagesLimits {
    /// The delta log outside the reserve.
    fn open_delta_bytes(&self) -> u64 {
        self.delta_capacity_bytes.saturating_sub(self.delta_reserve_bytes)
    }
}

impl Limits {
    /// The reserve of the delta log. A round starts while it is free. It writes its own delta, and
    /// what ends before that is counted, or is in flight when it is reached, still finishes.
    fn least_reserve_bytes(&self) -> u64 {
        let round = self.execution.heap_delta_bytes_per_round;
        round.saturating_add(self.delta_beyond_round_bytes())
    }

    /// The reserve and one round.
    fn least_log_bytes(&self) -> u64 {
        let round = self.execution.heap_delta_bytes_per_round;
        self.pages.delta_reserve_bytes.saturating_add(round)
    }

    /// The delta log, and compilations: one that finds no disk waits with its round. Five sixths of
    /// its heap are more than any module was seen to fill, 50,000 empty functions 310 MiB of 384.
    fn least_free_disk_bytes(&self) -> u64 {
        let heap = self.sandbox.compile_memory_bytes / 6 * 5;
        self.pages.delta_capacity_bytes.saturating_add(heap).max(DISK_RESERVE_BYTES_MIN)
    }

    /// The most bytes in delta segments.
    fn delta_bytes(&self) -> u64 {
        self.pages.delta_capacity_bytes.saturating_add(self.in_flight_bytes())
    }

    /// The index of the delta log, and the cache of the metadata store.
    pub(crate) fn index_lines(&self) -> Vec<SheetLine> {
        let delta_most = self.delta_bytes();
        lines![
            Pool(pool::DELTA_INDEX, "pages") =
                (
                    delta_index_bytes(delta_most),
                    format!("{RUN_BYTES} B per page of {}", format_size(delta_most)),
                ),
                "the index of pages changed since they were last folded, every page a run of its \
                 own at worst";
            Fixed("metadata_cache", "state") = whole(self.pages.metadata_cache_bytes),
                "cache of the metadata store";
        ]
    }

    /// The delta log, on disk.
    pub(crate) fn delta_lines(&self) -> Vec<SheetLine> {
        let capacity = format_size(self.pages.delta_capacity_bytes);
        let in_flight = format_size(self.in_flight_bytes());
        lines![
            Disk("disk_reserve", "thimble") = whole(self.pages.disk_reserve_bytes),
                "kept free; with less, updates are refused";
            Disk("delta_log", "pages") =
                (self.delta_bytes(), format!("{capacity} and {in_flight} in flight")),
                "pages changed since they were last folded";
        ]
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let capacity = limit!(limits.pages.delta_capacity_bytes);
    let reserve = limit!(limits.pages.delta_reserve_bytes);
    rules.within(reserve, capacity, "a reserve is a part of the capacity");
    let open = LimitValue::size(
        "pages.delta_capacity_bytes - pages.delta_reserve_bytes",
        limits.pages.open_delta_bytes(),
    );
    let round = limit!(limits.execution.heap_delta_bytes_per_round);
    rules.within(round, open, "a round must fit outside the reserve");
    let checkpoint = limit!(limits.pages.checkpoint_delta_bytes);
    rules.within(checkpoint, open, "a checkpoint must come before the log is full");
    let pinned = limit!(limits.pages.pinned_delta_bytes);
    rules.within(pinned, open, "queries must give way before a round has to wait for room");
    rules.at_least(
        reserve,
        limits.least_reserve_bytes(),
        "a started round writes its delta, and executions in flight then still finish \
         (execution.heap_delta_bytes_per_round + what messages may dirty on four lanes or two \
         phases of an upgrade, or half of it + what five messages may dirty)",
    );
}
