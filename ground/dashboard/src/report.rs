//! Parts of a status report. Bytes are bytes, times are milliseconds of the Unix epoch.

use accounting::{PoolSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

/// Throttling events listed at most: the newest.
pub const EVENTS_MAX: usize = 64;
/// Samples listed at most: the newest.
pub const HISTORY_MAX: usize = 600;

/// Memory of all processes of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The memory budget that the operator stated.
    pub budget_bytes: u64,
    /// Private memory the kernel cannot take back, all processes.
    pub anonymous_bytes: u64,
    /// Mapped files, which it can; shared pages are counted in every process.
    pub file_bytes: u64,
    /// Bytes in use in the ledger's pools.
    pub accounted_bytes: u64,
    /// Anonymous minus accounted; negative while reservations are not used up.
    pub unaccounted_bytes: i64,
    /// Limit and charge of the process group, if it has a limit: the memory of a group without one
    /// is not the program's alone.
    pub group: Option<Group>,
    /// Share of the last 10 s in which some task waited for memory, in percent; `null` where the
    /// kernel does not report it.
    pub stalled_percent: Option<f64>,
}

/// The process group (cgroup) of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its cap; `null` without one.
    pub limit_bytes: Option<u64>,
    /// Charged to it, page cache included.
    pub usage_bytes: u64,
    /// Anonymous memory of the group and the groups below it.
    pub anonymous_bytes: u64,
    /// Page cache of the group and the groups below it; includes shared memory and tmpfs.
    pub file_bytes: u64,
    /// Processes the kernel killed in it for lack of memory.
    pub oom_kills: u64,
}

/// The allocator of the program's own process, and what was handed back to the operating system.
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
    /// Hand-backs of an idle program.
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
    /// As in the budget sheet.
    pub name: String,
    /// Bytes held, reserved or observed, when the report was made.
    pub used_bytes: u64,
    /// May be held.
    pub cap_bytes: u64,
    /// Most that was held since the start.
    pub high_water_bytes: u64,
    /// Requests it turned down since the start.
    pub refused: u64,
}

/// Memory of one process of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Role of the process: `node`, `relay`, `update worker`, `query worker`, `compiler`.
    pub role: String,
    /// Process id, as the kernel counts.
    pub pid: u32,
    /// Private memory the kernel cannot take back.
    pub anonymous_bytes: u64,
    /// Resident pages of mapped files; shared pages are counted in every process.
    pub file_bytes: u64,
}

/// Throttling of the program's work. `L` is a level as the program names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttling<L> {
    /// Level when the report was made.
    pub level: L,
    /// Why; `null` at level `none`.
    pub reason: Option<String>,
    /// Changes of the level, oldest first.
    pub events: Vec<Event<L>>,
}

/// A change of the level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event<L> {
    /// Time of the change.
    pub unix_millis: u64,
    /// Level from this change on.
    pub level: L,
    /// Why, in a sentence that names the limit and its value.
    pub reason: String,
}

/// Every pool of a ledger.
pub fn pools(snapshot: Snapshot) -> Vec<Pool> {
    let line = |pool: PoolSnapshot| Pool {
        name: pool.name.into(),
        used_bytes: pool.used_bytes,
        cap_bytes: pool.cap_bytes,
        high_water_bytes: pool.high_water_bytes,
        refused: pool.refused,
    };
    snapshot.pools.into_iter().map(line).collect()
}
