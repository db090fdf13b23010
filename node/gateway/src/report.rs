//! Content of `/status.json`: one document from which the dashboard draws and `thimble status`
//! prints.
//!
//! The node fills it; the gateway only carries it. Every list has an upper bound, so the document
//! stays under 256 KiB however many canisters or hours there are. Bytes are bytes, times are
//! milliseconds of the Unix epoch, rates are per second.

use serde::{Deserialize, Serialize};

pub use dashboard::{Allocator, EVENTS_MAX, Group, HISTORY_MAX, Memory, Pool, Process};

/// Work that is held back.
pub type Throttling = dashboard::Throttling<Level>;
/// A change of the level.
pub type Event = dashboard::Event<Level>;

/// Canisters listed at most: the largest by memory.
pub const CANISTERS_MAX: usize = 32;
/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The node's version.
    pub version: String,
    /// The subnet it is part of.
    pub subnet_id: String,
    /// Its own id.
    pub node_id: String,
    /// When this was read.
    pub unix_millis: u64,
    /// Since the process started.
    pub uptime_millis: u64,
    /// As on `/health`.
    pub healthy: bool,
    /// As on `/health`: `healthy`, `recovering` ...
    pub status: String,
    /// How far the subnet is, if the node is one of several.
    pub subnet: Option<Subnet>,
    /// Memory against the budget.
    pub memory: Memory,
    /// The node process's allocator.
    pub allocator: Allocator,
    /// Every pool of the ledger, in the order of the budget sheet.
    pub pools: Vec<Pool>,
    /// Disk usage.
    pub disk: Disk,
    /// The node's processes.
    pub processes: Vec<Process>,
    /// The wall clock and block time.
    pub clock: Clock,
    /// Rounds since the start.
    pub rounds: Rounds,
    /// Current refusals, and former ones.
    pub throttling: Throttling,
    /// The largest canisters by memory.
    pub canisters: Vec<Canister>,
    /// Canisters there are.
    pub canisters_total: u64,
    /// Canisters that may exist (`subnet.canisters_max`).
    pub canisters_max: u64,
    /// Oldest first, one per second; while nothing happens samples may be further apart.
    pub history: Vec<Sample>,
}

/// Disk usage, against the disk's budget sheet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The disk budget; 0 where none was stated and the size follows from the memory.
    pub budget_bytes: u64,
    /// Why the file system cannot hold what the budget allows, found when the node started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<String>,
    /// Free on the disk of the data folder, for any process.
    pub free_bytes: u64,
    /// In the order of the budget sheet, but for what is kept free and what compilations work in.
    pub lines: Vec<DiskLine>,
}

/// One line of [`Disk`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLine {
    /// As in the budget sheet.
    pub name: String,
    /// Bytes in use. Of the state: bytes that count against the capacity, allocated memory in full,
    /// whether or not it was written.
    pub used_bytes: u64,
    /// Upper bound of the bytes in use.
    pub cap_bytes: u64,
}

/// The subnet as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// This node's place among the members; `null` once it is none.
    pub place: Option<u32>,
    /// Epoch of agreement.
    pub epoch: u64,
    /// Epoch for which the members' shares of the key were made.
    pub key_epoch: u64,
    /// Dealings that the shares of the next epoch still need.
    pub dealings_missing: u64,
    /// All members by place.
    pub members: Vec<SubnetMember>,
    /// Newest height known to be final.
    pub finalised_height: u64,
    /// Newest height executed here.
    pub executed_height: u64,
    /// Newest height certified here.
    pub certified_height: u64,
    /// Final heights not executed here.
    pub behind: u64,
    /// Whether the node fetches blocks that others executed.
    pub catching_up: bool,
    /// A state is being fetched from peers, because the blocks this node needs are kept nowhere
    /// any more.
    pub state_sync: Option<StateSync>,
    /// Rounds without a block since the start.
    pub nullified_rounds: u64,
    /// Proofs seen that a node voted twice.
    pub equivocations: u64,
}

/// How far state sync is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSync {
    /// Of the state.
    pub height: u64,
    /// Bytes of it that are there.
    pub bytes_done: u64,
    /// All of them; 0 while that is not known.
    pub bytes_total: u64,
    /// Peers that sent some.
    pub peers: u64,
}

/// A member of the subnet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetMember {
    /// Principal of the node, as text.
    pub node_id: String,
    /// Where this node looks for it.
    pub address: String,
    /// Newest height whose state it signed, as far as was heard; 0 if nothing was.
    pub heard_height: u64,
}

/// Activity of the round loop since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Newest certified height.
    pub height: u64,
    /// Rounds executed since the process started.
    pub rounds: u64,
    /// Rounds in which execution was skipped because of the delta log, the disk or memory.
    pub skipped: u64,
    /// Longest time without a certified round while work was waiting.
    pub longest_stall_millis: u64,
    /// The newest stall of at least [`LONG_STALL_MILLIS`].
    pub long_stall: Option<Stall>,
    /// Canister messages executed.
    pub messages: u64,
    /// Query calls since the process started, failed ones included.
    pub queries: u64,
    /// Checkpoints made since the process started.
    pub checkpoints: u64,
    /// Delta segments on disk.
    pub delta_bytes: u64,
    /// Capacity for delta segments.
    pub delta_capacity_bytes: u64,
    /// Workers that died and were started again.
    pub worker_restarts: u64,
}

/// A stall from which this on is worth an operator's attention.
pub const LONG_STALL_MILLIS: u64 = 10_000;

/// A time without a certified round while work was waiting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// When a round was certified again.
    pub ended_unix_millis: u64,
    /// How long it took.
    pub millis: u64,
}

/// The wall clock against `CLOCK_BOOTTIME`, and block time against both; of a node alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// By how much the wall clock jumped ahead (negative: back) and is not followed; 0 while it is.
    pub jump_millis: i64,
    /// By how much block time is ahead of the clock that it follows.
    pub block_time_ahead_millis: u64,
}

/// How far the node holds work back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Everything is taken.
    #[default]
    None,
    /// Queries are refused.
    Queries,
    /// New calls are refused too.
    Ingress,
    /// And rounds execute nothing.
    Execution,
}

impl From<accounting::Level> for Level {
    fn from(level: accounting::Level) -> Self {
        match level {
            accounting::Level::None => Self::None,
            accounting::Level::Queries => Self::Queries,
            accounting::Level::Ingress => Self::Ingress,
            accounting::Level::Execution => Self::Execution,
        }
    }
}

/// One of the largest canisters ([`Report::canisters`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canister {
    /// Principal of the canister, as text.
    pub id: String,
    /// Heap and stable memory, module and everything else that counts against the subnet's
    /// capacity (on disk, not resident).
    pub memory_bytes: u64,
    /// `running`, `stopping`, `stopped`.
    pub status: String,
}

/// One sample of [`Report::history`]: rates are over the time since the sample before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// End of the sample.
    pub unix_millis: u64,
    /// Anonymous memory of all processes.
    pub anonymous_bytes: u64,
    /// Mapped file memory.
    pub file_bytes: u64,
    /// Rounds per second.
    pub rounds_rate: f64,
    /// Canister messages per second.
    pub messages_rate: f64,
    /// Queries per second.
    pub queries_rate: f64,
    /// Median time of the update calls that ended within the sample, in milliseconds; `null`
    /// without any.
    pub update_p50_millis: Option<f64>,
    /// Their 99th percentile.
    pub update_p99_millis: Option<f64>,
    /// Median time of the queries.
    pub query_p50_millis: Option<f64>,
    /// Their 99th percentile.
    pub query_p99_millis: Option<f64>,
    /// How far work was held back.
    pub level: Level,
}
