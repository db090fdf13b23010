//! Limits of one message, one query and one round.

use accounting::format_size;
use memory_budget::{
    GRANULE_BYTES, Group, LimitValue, Rules, SheetLine, limit, lines, times, whole,
};

use crate::{Limits, SCALE, pool};

/// The most lanes that a round spreads canisters over, and the most paused messages that continue
/// in it: a notion of the state machine, the same on every machine.
pub const VIRTUAL_LANES: u64 = 4;

// Instructions. A round is what fits between two certificates, so it is kept short: a slice is
// about a tenth of a second. A message may take as much as on the Internet Computer, in slices.
const INSTRUCTIONS_PER_SLICE: u64 = 1_000_000_000;
pub(crate) const INSTRUCTIONS_PER_ROUND: u64 = 4_000_000_000;
const INSTRUCTIONS_PER_MESSAGE: u64 = 40_000_000_000;
// So may an installation, of both its executions together; where no worker can keep one that is
// paused, all of it runs again in each slice.
const INSTRUCTIONS_PER_INSTALL: u64 = 300_000_000_000;
const INSTRUCTIONS_PER_INSTALL_AGAIN: u64 = 20_000_000_000;
/// Only at the first size there is no such worker.
const INSTRUCTIONS_PER_INSTALL_BY_MEMORY: [u64; 9] = {
    let mut values = [INSTRUCTIONS_PER_INSTALL; 9];
    values[0] = INSTRUCTIONS_PER_INSTALL_AGAIN;
    values
};
const INSTRUCTIONS_PER_QUERY: u64 = 5_000_000_000;
const INSTRUCTIONS_PER_INSPECT: u64 = 200_000_000;

/// Several times what a query at its instruction limit takes on a slow machine.
const QUERY_WALL_CLOCK_SECONDS: u64 = 10;
/// Longer than one query may run, so that the next in line is served and not refused.
const QUERY_WAIT_SECONDS: u64 = 15;
/// Queries of one canister in the table of those that were counted: an entry of an ordered map that
/// may be half full.
const QUERY_COUNTS_BYTES: u64 = 128;
/// Members of a subnet at most.
const MEMBERS_MAX: u64 = 64;
/// The most that one message sends: eight payloads and a reply.
pub(crate) const PAYLOADS_PER_MESSAGE: u64 = 9;

/// Payloads of calls and answers after which a lane starts no further message in an iteration: they
/// are in the state's heap until it is over.
pub const LANE_PAYLOAD_BYTES: u64 = 4 << 20;
/// The stack of a message: the canister's part, and the part of system functions below it.
pub const STACK_BYTES: u64 = 5 << 20;

const _: () = {
    assert!(INSTRUCTIONS_PER_SLICE <= INSTRUCTIONS_PER_ROUND);
    assert!(INSTRUCTIONS_PER_ROUND <= INSTRUCTIONS_PER_MESSAGE);
    assert!(INSTRUCTIONS_PER_ROUND <= INSTRUCTIONS_PER_INSTALL_AGAIN);
    assert!(INSTRUCTIONS_PER_INSTALL_AGAIN <= INSTRUCTIONS_PER_INSTALL);
    assert!(INSTRUCTIONS_PER_MESSAGE <= INSTRUCTIONS_PER_INSTALL);
    assert!(QUERY_WALL_CLOCK_SECONDS < QUERY_WAIT_SECONDS, "the next query in line is served");
    assert!(
        crate::subnet::MESSAGE_PAYLOAD_BYTES <= LANE_PAYLOAD_BYTES,
        "a lane goes on after the largest payload"
    );
    assert!(
        INSTRUCTIONS_PER_INSPECT <= INSTRUCTIONS_PER_QUERY
            && INSTRUCTIONS_PER_QUERY <= INSTRUCTIONS_PER_MESSAGE
    );
};

// Relations between rows, at every memory size.
const _: () = {
    assert!(rows::heap_delta_bytes_per_round.covers(&rows::heap_dirty_bytes_per_message));
    assert!(rows::heap_delta_bytes_per_round.covers(&rows::stable_dirty_bytes_per_message));
    assert!(rows::heap_delta_bytes_per_round.covers(&rows::heap_delta_bytes_per_canister_round));
    assert!(rows::heap_dirty_bytes_per_install.covers(&rows::heap_dirty_bytes_per_message));
    assert!(rows::stable_dirty_bytes_per_install.covers(&rows::stable_dirty_bytes_per_message));
    assert!(rows::dirty_bytes_per_install.covers(&rows::heap_dirty_bytes_per_install));
    assert!(rows::dirty_bytes_per_install.covers(&rows::stable_dirty_bytes_per_install));
    assert!(rows::heap_dirty_bytes_per_message.covers(&rows::heap_dirty_bytes_per_query));
    assert!(rows::stable_dirty_bytes_per_message.covers(&rows::stable_dirty_bytes_per_query));
    assert!(rows::query_threads.covers(&rows::query_threads_per_canister));
    assert!(rows::threads.covers(&SCALE.fixed(1)));
    assert!(SCALE.fixed(VIRTUAL_LANES).covers(&rows::threads), "each thread has a lane to run");
};

// Thread counts are steps: they change only at a size where memory for the new threads is at
// hand.
memory_budget::limits! {
    SCALE;
    /// Limits on executions.
    #[serde(deny_unknown_fields)]
    pub struct ExecutionLimits as execution of Limits, rules check {
        /// Threads (and update workers) that execute messages in parallel; at least 1.
        threads: u64 = steps([1, 2, 2, 2, 2, 2, 2, 4, 4]), agreed,
            pays line("program", "worker_processes", "worker_rings", "worker_buffers",
                  "executions", "delta_index", "delta_log"),
            bounds [
                at_least(1, "messages could never run"),
                at_most(64, "each is a worker process"),
            ],
            reason "each is an update worker; (threads - 1) x 100 % can be allocated, or half \
                    of a single one";
        /// Query workers, each a process of its own; 1 to 64.
        query_threads: u64 = steps([1, 1, 1, 1, 1, 2, 2, 4, 4]), local,
            pays line("program", "worker_processes", "worker_rings", "worker_buffers", "queries"),
            bounds [
                at_least(1, "queries could never run"),
                at_most(64, "each is a worker process"),
            ],
            reason "each is a query worker with dirty memory of its own";
        /// Queries of one canister at once.
        query_threads_per_canister: u64 = steps([1, 1, 1, 1, 1, 1, 2, 2, 2]), local,
            bounds [at_least(1, "queries could never run")],
            reason "so that one canister's queries do not take all workers";
        /// Seconds that a query may run, with all its calls; also a check of a call
        /// (`canister_inspect_message`) and a transform of an outcall. Local: no result that
        /// members agree on depends on it.
        query_wall_clock_seconds: u64 = fixed(QUERY_WALL_CLOCK_SECONDS), local,
            bounds [
                at_least(1, "no query would be answered"),
                at_most(3_600, "clients give up long before"),
            ],
            reason "several times what a query at its instruction limit takes; a query beyond \
                    it is ended, with its worker";
        /// Seconds that a query or a check of a call waits for a query worker.
        query_wait_seconds: u64 = fixed(QUERY_WAIT_SECONDS), local,
            bounds [
                at_least(1, "no query would be answered"),
                at_most(3_600, "clients give up long before"),
            ],
            reason "longer than one query may run; what waits longer is answered 429 (calls \
                    503) with Retry-After";
        /// Memory each execution thread keeps free for response callbacks.
        response_callback_reservation_bytes: u64 = mib([1, 1, 2, 4, 8, 16, 32, 64, 256]), agreed,
            pays within("canister_state"),
            reason "of the subnet capacity per thread, so that callbacks can finish when it is \
                    full";
        /// Instructions of one update, timer, heartbeat or callback.
        instructions_per_message: u64 = fixed(INSTRUCTIONS_PER_MESSAGE), agreed,
            reason "as much as on the Internet Computer, in slices";
        /// Instructions of one init, upgrade or install.
        instructions_per_install: u64 = steps(INSTRUCTIONS_PER_INSTALL_BY_MEMORY), agreed,
            reason "as much as on the Internet Computer, in slices";
        /// Instructions of one query.
        instructions_per_query: u64 = fixed(INSTRUCTIONS_PER_QUERY), local,
            reason "a few seconds of a query worker";
        /// Instructions of inspect_message.
        instructions_per_inspect: u64 = fixed(INSTRUCTIONS_PER_INSPECT), agreed,
            bounds [at_least(1, "nothing could run")],
            reason "runs before a call is accepted, so anybody can cause it";
        /// Instructions after which no further message starts in a round.
        instructions_per_round: u64 = fixed(INSTRUCTIONS_PER_ROUND), agreed,
            reason "keeps rounds short, so that certificates stay fresh";
        /// Instructions after which a running message is paused so that others are served (one
        /// slice).
        instructions_per_slice: u64 = fixed(INSTRUCTIONS_PER_SLICE), agreed,
            bounds [at_least(1, "nothing could run")],
            reason "a tenth of a second that others wait for";
        /// Paused messages that are granted a slice in one round; the others wait their turn.
        paused_executions: u64 = steps([1, 1, 1, 2, 4, 4, 4, 4, 4]), agreed,
            bounds [at_least(1, "a message longer than a slice could never finish")],
            reason "half of a round at most is theirs";
        /// Stable bytes one message may dirty.
        stable_dirty_bytes_per_message: u64 = mib([4, 4, 10, 14, 32, 64, 128, 128, 128]), agreed,
            pays line("executions", "paused_workers", "delta_index", "delta_log",
                  "paused_messages"),
            bounds [at_least(GRANULE_BYTES, "an execution needs at least its stack"), pages(4096)],
            reason "anonymous memory until the message ends";
        /// Stable bytes one install or upgrade may dirty.
        stable_dirty_bytes_per_install: u64 =
            mib([16, 16, 40, 60, 128, 256, 512, 768, 1024]), agreed,
            pays line("executions", "paused_workers", "delta_index", "delta_log",
                  "paused_messages", "installations"),
            bounds [at_least(GRANULE_BYTES, "an execution needs at least its stack"), pages(4096)],
            reason "anonymous memory until the phase ends; an upgrade writes its heap there";
        /// Stable bytes one message or query may access.
        stable_accessed_bytes_per_message: u64 = like(stable_dirty_bytes_per_message), agreed,
            pays line("paused_workers"), reason "bounds what one message can make the disk read";
        /// Stable bytes one install or upgrade may access.
        stable_accessed_bytes_per_install: u64 = like(stable_dirty_bytes_per_install), agreed,
            pays none("file pages that are read"),
            reason "bounds what one upgrade can make the disk read";
        /// Heap bytes one message may dirty.
        heap_dirty_bytes_per_message: u64 = mib([8, 8, 20, 30, 64, 128, 256, 256, 256]), agreed,
            pays line("executions", "paused_workers", "delta_index", "delta_log",
                  "paused_messages"),
            bounds [at_least(GRANULE_BYTES, "an execution needs at least its stack"), pages(4096)],
            reason "anonymous memory until the message ends";
        /// Heap bytes one install or upgrade may dirty.
        heap_dirty_bytes_per_install: u64 = mib([16, 16, 40, 60, 128, 256, 512, 768, 1024]), agreed,
            pays line("executions", "paused_workers", "delta_index", "delta_log",
                  "paused_messages", "installations"),
            bounds [at_least(GRANULE_BYTES, "an execution needs at least its stack"), pages(4096)],
            reason "anonymous memory until the phase ends";
        /// Heap and stable bytes together that each phase of one install or upgrade may dirty: what
        /// the working memory holds of them.
        dirty_bytes_per_install: u64 = mib([22, 24, 60, 88, 192, 384, 768, 1024, 2048]), agreed,
            pays line("executions", "paused_workers", "delta_index", "delta_log",
                  "paused_messages", "installations"), bounds [pages(4096)],
            reason "heap and stable memory together; an install runs alone in the working memory";
        /// Heap bytes one query may dirty, over all frames of a composite one.
        heap_dirty_bytes_per_query: u64 = mib([3, 3, 8, 12, 20, 32, 64, 64, 64]), local,
            pays line("queries"),
            bounds [at_least(GRANULE_BYTES, "an execution needs at least its stack"), pages(4096)],
            reason "anonymous memory until the query ends, then dropped";
        /// Stable bytes one query may dirty, over all frames of a composite one.
        stable_dirty_bytes_per_query: u64 = mib([2, 2, 4, 4, 8, 16, 32, 32, 32]), local,
            pays line("queries"), bounds [pages(4096)],
            reason "anonymous memory until the query ends, then dropped";
        /// Delta one round may add, and payloads of its messages.
        heap_delta_bytes_per_round: u64 = mib([14, 14, 24, 32, 64, 128, 256, 256, 512]), agreed,
            pays line("message_files"),
            reason "what one round may add to the delta log and what its messages may carry, \
                    together, before no further message starts";
        /// Delta one canister may add per round.
        heap_delta_bytes_per_canister_round: u64 =
            mib([8, 8, 12, 16, 32, 64, 128, 128, 256]), agreed, pays within("delta_log"),
            bounds [at_least(1, "every canister would be held back for ever")],
            reason "a canister above it waits, so that one writer does not take the log";
        /// Depth of calls of one composite query.
        composite_query_depth: u64 = fixed(6), local,
            bounds [
                at_least(1, "a composite query is itself one level"),
                at_most(64, "each level keeps an instance"),
            ],
            reason "each level keeps an instance in the query worker";
        /// Query replies cached.
        query_cache_bytes: u64 = mib([1, 1, 3, 6, 16, 32, 64, 128, 512]), local,
            pays line("query_cache"), reason "answers repeated queries without running them";
        /// Rounds of a period: queries that members counted in one are a part of canisters' totals
        /// two periods later.
        query_stats_period_rounds: u64 = fixed(600), agreed,
            bounds [at_least(1, "a period has rounds")],
            reason "as the public network: ten minutes where nothing runs";
        /// Canisters whose queries a member counts in a period.
        query_stats_canisters: u64 = fixed(1_000), agreed,
            pays line("heap_tables", "query_stats", "state_heap", "checkpoint_records"),
            bounds [
                at_most(5_000, "the first round of a period looks at all that members reported"),
            ],
            reason "of each member, in the state until the next period; queries of further \
                    canisters are not counted in that period; 0: none are";
        /// Calls of `raw_rand` that wait for randomness.
        raw_rand_waiting: u64 = fixed(2_000), agreed, pays within("state_heap"),
            bounds [at_least(1, "no call could be answered")],
            reason "a call waits for a block or two, about a tenth of a KiB each; further ones \
                    are rejected and may be made again";
        /// Refuse calls with guaranteed responses at the System API.
        reject_guaranteed_response_calls: bool = off(), agreed,
            reason "an option for subnets that must not promise memory; off";
    }
}

impl ExecutionLimits {
    /// The share of the execution threads that canisters may have allocated, in percent of one: all
    /// but one of them, or half of a single one.
    pub fn allocatable_percent(&self) -> u64 {
        self.threads.saturating_sub(1).saturating_mul(100).max(50)
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.bounds(limits, &["execution.threads", "execution.query_threads"]);
    rules.within(
        limit!(limits.execution.query_threads_per_canister),
        limit!(limits.execution.query_threads),
        "there are no more query threads",
    );
    let execution = &limits.execution;
    rules.within(
        LimitValue::number(
            "execution.paused_executions x execution.instructions_per_slice",
            execution.paused_executions.saturating_mul(execution.instructions_per_slice),
        ),
        LimitValue::number(
            "execution.instructions_per_round (or one slice)",
            execution.instructions_per_round.max(execution.instructions_per_slice),
        ),
        "long messages must not take all of a round",
    );
    let slice = limit!(limits.execution.instructions_per_slice);
    let instructions = limit!(limits.execution.instructions_per_round);
    rules.within(slice, instructions, "a round holds at least one slice");
    let message = limit!(limits.execution.instructions_per_message);
    rules.within(slice, message, "a slice is a part of a message");
    rules.within(
        limit!(limits.execution.instructions_per_inspect),
        limit!(limits.execution.instructions_per_query),
        "inspecting a call must stay cheaper than a query",
    );

    let round = limit!(limits.execution.heap_delta_bytes_per_round);
    let heap = limit!(limits.execution.heap_dirty_bytes_per_message);
    let stable = limit!(limits.execution.stable_dirty_bytes_per_message);
    let heap_install = limit!(limits.execution.heap_dirty_bytes_per_install);
    let stable_install = limit!(limits.execution.stable_dirty_bytes_per_install);
    let install = limit!(limits.execution.dirty_bytes_per_install);
    let fits = "a message must fit into a round";
    rules.within(heap, round, fits);
    rules.within(stable, round, fits);
    rules.within(
        limit!(limits.execution.heap_delta_bytes_per_canister_round),
        round,
        "one canister cannot add more than all",
    );
    let as_much = "an install must be able to do what a message can";
    rules.within(heap, heap_install, as_much);
    rules.within(stable, stable_install, as_much);
    let together = "the sum cannot be below one of its parts";
    rules.within(heap_install, install, together);
    rules.within(stable_install, install, together);
    let writes = "writing a page is an access";
    rules.within(stable, limit!(limits.execution.stable_accessed_bytes_per_message), writes);
    let accessed = limit!(limits.execution.stable_accessed_bytes_per_install);
    rules.within(stable_install, accessed, writes);
    let heap_query = limit!(limits.execution.heap_dirty_bytes_per_query);
    let stable_query = limit!(limits.execution.stable_dirty_bytes_per_query);
    rules.within(heap_query, heap, "a query must also run as an update");
    rules.within(stable_query, stable, "a query must also run as an update");
    rules.bounds_of(limits, ExecutionLimits::LIMITS);
    let reserved = execution.response_callback_reservation_bytes.saturating_mul(execution.threads);
    rules.within(
        LimitValue::size(
            "execution.response_callback_reservation_bytes x execution.threads",
            reserved,
        ),
        limit!(limits.subnet.memory_capacity_bytes),
        "nothing would be left to allocate",
    );
}

impl Limits {
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

    /// Bytes of dirty pages of updates and installs that are executed at once.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let messages = self.message_dirty_bytes().saturating_mul(self.execution.threads);
        messages.max(self.install_dirty_bytes())
    }

    /// Query reports of all members in a period.
    pub(crate) fn query_report_bytes(&self) -> u64 {
        let members = if self.pages.states_on_disk > 1 { MEMBERS_MAX } else { 1 };
        let canisters = self.execution.query_stats_canisters.saturating_mul(members);
        // As much again for sums that are held and due, and while they are made.
        canisters.saturating_mul(2 * QUERY_COUNTS_BYTES)
    }

    /// Memory of executions in flight.
    pub(crate) fn execution_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::EXECUTIONS, "sandbox") =
                (
                    self.in_flight_bytes(),
                    format!(
                        "larger of: messages {}, one install {}",
                        times(self.execution.threads, self.message_dirty_bytes()).1,
                        format_size(self.install_dirty_bytes()),
                    ),
                ),
                "dirty pages of messages and installs in flight; each reserves its worst case \
                 before it starts";
        ]
    }

    /// Memory of queries in flight.
    pub(crate) fn query_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::QUERIES, "execution") =
                times(self.execution.query_threads, self.query_dirty_bytes()),
                "pages that queries dirty and drop";
        ]
    }

    /// Tables of queries.
    pub(crate) fn query_cache_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::QUERY_CACHE, "execution") = whole(self.execution.query_cache_bytes),
                "replies of queries whose canister did not change";
            Fixed("query_stats", "execution") =
                times(self.execution.query_stats_canisters.saturating_mul(2), QUERY_COUNTS_BYTES),
                "queries that were counted in the period that runs, and those that are being \
                 reported";
        ]
    }
}
