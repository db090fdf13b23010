//! What `/status.json` says: one document from which the dashboard draws and `thimble status` prints.
//!
//! The node fills it; the gateway only carries it. Every list has an upper bound, so the document stays under 256 KiB however many canisters or
//! hours there are. Bytes are bytes, times are milliseconds of the Unix epoch, rates are per second.

use serde::{Deserialize, Serialize};

/// Canisters listed at most: the largest by memory.
pub const CANISTERS_MAX: usize = 32;
/// Throttling events listed at most: the newest.
pub const EVENTS_MAX: usize = 64;
/// Samples listed at most: the newest.
pub const HISTORY_MAX: usize = 600;

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
    /// The node's processes.
    pub processes: Vec<Process>,
    /// Rounds since the start.
    pub rounds: Rounds,
    /// What is refused at the moment, and what was.
    pub throttling: Throttling,
    /// The largest canisters by memory.
    pub canisters: Vec<Canister>,
    /// Canisters there are.
    pub canisters_total: u64,
    /// Oldest first, one per second; while nothing happens samples may be further apart.
    pub history: Vec<Sample>,
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
    /// A state is being taken over from peers, because the blocks this node needs are kept nowhere any more.
    pub state_sync: Option<StateSync>,
    /// Rounds without a block since the start.
    pub nullified_rounds: u64,
    /// Proofs seen that a node voted twice.
    pub equivocations: u64,
}

/// How far taking over a state is.
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
    /// Its principal.
    pub node_id: String,
    /// Where this node looks for it.
    pub address: String,
    /// Newest height whose state it signed, as far as was heard; 0 if nothing was.
    pub heard_height: u64,
}

/// Memory of all processes of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// What the operator stated.
    pub budget_bytes: u64,
    /// Private memory the kernel cannot take back, all processes.
    pub anonymous_bytes: u64,
    /// Mapped files, which it can; shared pages are counted in every process.
    pub file_bytes: u64,
    /// What the ledger's pools hold.
    pub accounted_bytes: u64,
    /// Anonymous minus accounted; negative while reservations are not used up.
    pub unaccounted_bytes: i64,
    /// The process group's own limit and charge, where there is one.
    pub group: Option<Group>,
    /// Share of the last 10 s in which some task waited for memory, in percent; `null` where the kernel does not tell.
    pub stalled_percent: Option<f64>,
}

/// The process group (cgroup) of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its cap; `null` without one.
    pub limit_bytes: Option<u64>,
    /// Charged to it, page cache included.
    pub usage_bytes: u64,
    /// Anonymous.
    pub anonymous_bytes: u64,
    /// Page cache.
    pub file_bytes: u64,
    /// Processes the kernel killed in it for lack of memory.
    pub oom_kills: u64,
}

/// The allocator of the node process, and what was handed back to the operating system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    /// Allocated by the program.
    pub live_bytes: u64,
    /// In pages that hold at least one allocation.
    pub active_bytes: u64,
    /// Resident, freed pages that were not handed back yet included.
    pub resident_bytes: u64,
    /// Handed back since the start.
    pub returned_bytes: u64,
    /// Hand-backs of an idle node.
    pub purges_idle: u64,
    /// Hand-backs under pressure.
    pub purges_pressure: u64,
    /// CPU spent on handing back, in percent of one core since the start.
    pub purge_cpu_percent: f64,
}

/// One pool of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// As in `thimble limits`.
    pub name: String,
    /// Held now.
    pub used_bytes: u64,
    /// May be held.
    pub cap_bytes: u64,
    /// Most that was held since the start.
    pub high_water_bytes: u64,
    /// Requests it turned down since the start.
    pub refused: u64,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// `node`, `update worker`, `query worker`, `compiler`.
    pub role: String,
    /// Its id.
    pub pid: u32,
    /// Private memory the kernel cannot take back.
    pub anonymous_bytes: u64,
    /// Mapped files.
    pub file_bytes: u64,
}

/// What the round loop did since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Newest certified height.
    pub height: u64,
    /// Rounds executed.
    pub rounds: u64,
    /// Rounds in which execution was skipped because of the delta log, the disk or memory.
    pub skipped: u64,
    /// Longest time without a certified round while work was waiting.
    pub longest_stall_millis: u64,
    /// Canister messages executed.
    pub messages: u64,
    /// Queries answered.
    pub queries: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Delta segments on disk.
    pub delta_bytes: u64,
    /// What they may take.
    pub delta_capacity_bytes: u64,
    /// Workers that died and were started again.
    pub worker_restarts: u64,
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

/// What is held back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttling {
    /// Now.
    pub level: Level,
    /// Why; `null` at level `none`.
    pub reason: Option<String>,
    /// Changes of the level, oldest first.
    pub events: Vec<Event>,
}

/// A change of the level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When.
    pub unix_millis: u64,
    /// To what.
    pub level: Level,
    /// Why, in a sentence that names the limit and its value.
    pub reason: String,
}

/// One canister.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canister {
    /// Its id.
    pub id: String,
    /// Heap and stable memory, module and everything else that counts against the subnet's capacity (on disk, not resident).
    pub memory_bytes: u64,
    /// `running`, `stopping`, `stopped`.
    pub status: String,
}

/// One second.
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
    /// Median time of the update calls that ended within the sample, in milliseconds; `null` without any.
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
