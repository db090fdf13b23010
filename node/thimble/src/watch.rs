//! What is known of the node at a moment: readings of memory, counters of the governor and the throttle, and the last ten minutes.
//!
//! One [`Watch`] is shared by the governor (which writes), the metrics and the status report (which read), the gateway's adapter and the round loop (which ask how
//! far work is held back). Everything kept here has a fixed size: [`HISTORY_MAX`] samples and [`EVENTS_MAX`] events.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use budget::{
    Ledger, Level, Observation,
    cgroup::Cgroup,
    process::{self, Pid},
};
use gateway::report::{self, EVENTS_MAX, HISTORY_MAX};
use limits::Limits;
use sandbox::Lane;

use crate::allocator;

/// The role of a compile child, as the report names it.
const COMPILER: &str = "compiler";

/// See the module.
pub(crate) struct Watch {
    // Interfaces.
    pub(crate) ledger: Ledger,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) sandbox: Arc<sandbox::Pool>,
    // Configuration.
    pub(crate) budget_bytes: u64,
    /// What the loader wrote in this process before it began; workers are of the same program.
    program_bytes: u64,
    // Counters.
    pub(crate) started: Instant,
    pub(crate) queries: AtomicU64,
    pub(crate) purges: Purges,
    // State.
    level: AtomicU8,
    /// Bytes that lie in gaps between allocations of an idle node, once they are worth closing; 0 otherwise.
    gaps: AtomicU64,
    /// `program_bytes` of every process that was there at the last look.
    program: Mutex<Option<Observation>>,
    throttling: Mutex<Throttling>,
    history: Mutex<VecDeque<report::Sample>>,
}

/// What was handed back to the operating system.
#[derive(Default)]
pub(crate) struct Purges {
    pub(crate) idle: AtomicU64,
    pub(crate) pressure: AtomicU64,
    pub(crate) returned_bytes: AtomicU64,
    pub(crate) cpu_nanos: AtomicU64,
}

#[derive(Default)]
struct Throttling {
    reason: Option<String>,
    events: VecDeque<report::Event>,
}

/// Memory of all processes at a moment.
pub(crate) struct Reading {
    /// Node, workers, compilers, in this order.
    pub(crate) processes: Vec<report::Process>,
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    /// What of it pools of the ledger hold.
    pub(crate) accounted_bytes: u64,
}

impl Reading {
    /// Anonymous memory that no pool of the ledger holds: what the processes need at rest, and what nobody reserved. Negative while reservations are not used up.
    pub(crate) fn unaccounted_bytes(&self) -> i64 {
        budget::unaccounted(self.anonymous_bytes, self.accounted_bytes).unaccounted_bytes
    }
}

impl Watch {
    pub(crate) fn new(
        ledger: Ledger,
        cgroup: Option<Cgroup>,
        sandbox: Arc<sandbox::Pool>,
        limits: &Limits,
    ) -> Self {
        let program_bytes = process::relocated_bytes(Pid::own()).unwrap_or_else(|error| {
            // Nothing hangs on it but a figure, which is then too high by as much.
            tracing::warn!(%error, "cannot measure what the program's own constants take");
            0
        });
        let program = ledger.pool(limits::pool::PROGRAM).map(|pool| pool.observe());
        Self {
            program_bytes,
            program: Mutex::new(program),
            ledger,
            cgroup,
            sandbox,
            budget_bytes: limits.memory_budget_bytes,
            started: Instant::now(),
            queries: AtomicU64::new(0),
            purges: Purges::default(),
            level: AtomicU8::new(0),
            gaps: AtomicU64::new(0),
            throttling: Mutex::default(),
            history: Mutex::new(VecDeque::with_capacity(HISTORY_MAX)),
        }
    }

    /// Memory of every process of the node, and what pools hold of it. Processes that end meanwhile are left out.
    pub(crate) fn memory(&self) -> Reading {
        let (processes, accounted_bytes) = held_beside(&self.ledger, || self.processes());
        Reading {
            anonymous_bytes: processes.iter().map(|process| process.anonymous_bytes).sum(),
            file_bytes: processes.iter().map(|process| process.file_bytes).sum(),
            processes,
            accounted_bytes,
        }
    }

    fn processes(&self) -> Vec<report::Process> {
        let workers = self.sandbox.workers().into_iter().map(|worker| {
            let role = match worker.lane {
                Lane::Update(_) => "update worker",
                Lane::Query(_) => "query worker",
            };
            (role, worker.pid)
        });
        let compilers = self.sandbox.compiler_pids().into_iter().map(|pid| (COMPILER, pid));
        let processes: Vec<report::Process> = std::iter::once(("node", std::process::id()))
            .chain(workers)
            .chain(compilers)
            .filter_map(|(role, pid)| {
                let memory = process::memory(Pid(pid)).ok()?;
                Some(report::Process {
                    role: role.into(),
                    pid,
                    anonymous_bytes: memory.anonymous_bytes + memory.shared_bytes,
                    file_bytes: memory.file_bytes,
                })
            })
            .collect();
        // A compile child is not among them: what is reserved for a compilation is for all that its process takes.
        let count = processes.iter().filter(|process| process.role != COMPILER).count() as u64;
        if let Some(program) = lock(&self.program).as_mut() {
            program.set(count.saturating_mul(self.program_bytes));
        }
        processes
    }

    /// Share of the last 10 s in which a task waited for memory, in hundredths of a percent, and whether it is of the node's own group: on a machine with
    /// other work its figure says little about this node.
    pub(crate) fn stalled(&self) -> (Option<u32>, bool) {
        match self.cgroup.as_ref().and_then(Cgroup::pressure) {
            Some(own) => (Some(own.some.avg10_hundredths), true),
            None => (budget::pressure::machine_memory().map(|machine| machine.some.avg10_hundredths), false),
        }
    }

    /// How far work is held back.
    pub(crate) fn level(&self) -> Level {
        match self.level.load(Relaxed) {
            0 => Level::None,
            1 => Level::Queries,
            2 => Level::Ingress,
            _ => Level::Execution,
        }
    }

    /// Sets the level; a change is an event.
    pub(crate) fn set_level(&self, level: Level, reason: String) {
        if level == self.level() {
            return;
        }
        if level == Level::None {
            tracing::info!(%reason, "work is taken again");
        } else {
            tracing::warn!(?level, %reason, "work is held back");
        }
        let mut throttling = lock(&self.throttling);
        self.level.store(level as u8, Relaxed);
        push(
            &mut throttling.events,
            report::Event { unix_millis: unix_millis(), level: shown(level), reason: reason.clone() },
            EVENTS_MAX,
        );
        throttling.reason = (level != Level::None).then_some(reason);
    }

    /// Asks the round loop to close gaps of so many bytes.
    pub(crate) fn close_gaps(&self, bytes: u64) {
        self.gaps.store(bytes, Relaxed);
    }

    /// Whether something of this size is to be moved together now; asked once per wish.
    pub(crate) fn repack_below(&self, bytes: u64) -> bool {
        // An empty node is not asked, and one without a wish answers without a write.
        self.gaps.load(Relaxed) > 0 && (1..=self.gaps.swap(0, Relaxed)).contains(&bytes)
    }

    /// Why work is held back, if it is.
    pub(crate) fn reason(&self) -> Option<String> {
        lock(&self.throttling).reason.clone()
    }

    /// Whether the next batch is to wait.
    pub(crate) fn is_execution_held(&self) -> bool {
        self.level() >= Level::Execution
    }

    /// The process group's figures.
    pub(crate) fn group(&self) -> Option<report::Group> {
        let memory = self.cgroup.as_ref()?.memory().ok()?;
        Some(report::Group {
            limit_bytes: memory.limit_bytes,
            usage_bytes: memory.usage_bytes,
            anonymous_bytes: memory.anonymous_bytes,
            file_bytes: memory.file_bytes,
            oom_kills: memory.oom_kills,
        })
    }

    /// The node process's allocator, and what was handed back by all processes.
    pub(crate) fn allocator(&self, uptime: Duration) -> report::Allocator {
        let heap = allocator::heap(false);
        let cpu = Duration::from_nanos(self.purges.cpu_nanos.load(Relaxed));
        report::Allocator {
            live_bytes: heap.live_bytes,
            active_bytes: allocator::active_bytes(),
            resident_bytes: heap.resident_bytes,
            returned_bytes: self.purges.returned_bytes.load(Relaxed),
            purges_idle: self.purges.idle.load(Relaxed),
            purges_pressure: self.purges.pressure.load(Relaxed),
            purge_cpu_percent: 100.0 * cpu.as_secs_f64() / uptime.as_secs_f64().max(1e-9),
        }
    }

    /// Adds a sample.
    pub(crate) fn sample(&self, sample: report::Sample) {
        push(&mut lock(&self.history), sample, HISTORY_MAX);
    }

    /// All samples, oldest first.
    pub(crate) fn history(&self) -> Vec<report::Sample> {
        lock(&self.history).iter().cloned().collect()
    }

    /// What the report says of throttling.
    pub(crate) fn throttling(&self) -> report::Throttling {
        let throttling = lock(&self.throttling);
        report::Throttling {
            level: shown(self.level()),
            reason: throttling.reason.clone(),
            events: throttling.events.iter().cloned().collect(),
        }
    }
}

/// What `read` saw of memory, and what pools held while it looked. Processes are read one after the other: a message that ends meanwhile was seen with all
/// its pages, and its reservation is gone a moment later. So of each pool the larger amount of before and after counts.
fn held_beside<T>(ledger: &Ledger, read: impl FnOnce() -> T) -> (T, u64) {
    let before = ledger.snapshot().pools;
    let seen = read();
    let after = ledger.snapshot().pools;
    let most = before.iter().zip(&after).map(|(before, after)| before.used_bytes.max(after.used_bytes));
    (seen, most.fold(0, u64::saturating_add))
}

/// The level as the report writes it.
pub(crate) fn shown(level: Level) -> report::Level {
    match level {
        Level::None => report::Level::None,
        Level::Queries => report::Level::Queries,
        Level::Ingress => report::Level::Ingress,
        Level::Execution => report::Level::Execution,
    }
}

/// The wall clock; nothing but shown times depends on it.
pub(crate) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn push<T>(ring: &mut VecDeque<T>, item: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use budget::PoolSpec;

    use super::*;

    #[test]
    fn a_message_that_ends_while_memory_is_read_leaves_none_unexplained() {
        let specs = ["executions", "responses"].map(|name| PoolSpec { name, cap_bytes: 100 });
        let ledger = Ledger::new(200, specs).unwrap();
        let pool = |name| ledger.pool(name).unwrap();
        let message = pool("executions").try_reserve(60).unwrap();
        let mut answer = None;
        let (seen, held) = held_beside(&ledger, || {
            drop(message);
            answer = Some(pool("responses").try_reserve(5).unwrap());
            60
        });
        // Its pages were seen, and so is what was reserved for them; what came meanwhile is seen too.
        assert_eq!((seen, held), (60, 65));
        assert_eq!(held_beside(&ledger, || ()).1, 5);
    }
}
