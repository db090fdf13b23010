//! State of the node at a moment: readings of the memory of its processes, and the record of the
//! governor ([`memory::Record`]).
//!
//! One [`Watch`] is shared by the governor (which writes), the metrics and the status report (which
//! read), the gateway's adapter and the round loop (which ask how far work is held back).
//! Everything kept here has a fixed size.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicU64};

use accounting::{
    Ledger, Level, Observation,
    cgroup::Cgroup,
    process::{self, Pid},
};
use gateway::report;
use limits::Limits;
use memory::Record;
use sandbox::Lane;

use crate::{clock::NodeClock, watchdog::Watchdog};

/// The role of a compile child, as the report names it.
const COMPILER: &str = "compiler";

pub(crate) struct Watch {
    // Interfaces.
    pub(crate) ledger: Ledger,
    pub(crate) sandbox: Arc<sandbox::Pool>,
    pub(crate) watchdog: Watchdog,
    pub(crate) clock: NodeClock,
    // Configuration.
    /// Bytes that the loader wrote in this process before it began; workers run the same program.
    program_bytes: u64,
    // Counters.
    pub(crate) queries: AtomicU64,
    // State.
    pub(crate) record: Record<report::Sample, report::Level>,
    /// `program_bytes` of every process that was there at the last look.
    program: Mutex<Option<Observation>>,
}

pub(crate) struct Reading {
    /// Node, workers, compilers, in this order.
    pub(crate) processes: Vec<report::Process>,
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    /// Bytes of it that pools of the ledger hold.
    pub(crate) accounted_bytes: u64,
}

impl Reading {
    /// Anonymous memory that no pool of the ledger holds: the baseline of the processes, and memory
    /// that was not reserved. Negative while reservations are not used up.
    pub(crate) fn unaccounted_bytes(&self) -> i64 {
        accounting::unaccounted(self.anonymous_bytes, self.accounted_bytes)
    }
}

impl Watch {
    pub(crate) fn new(
        ledger: Ledger,
        cgroup: Option<Cgroup>,
        sandbox: Arc<sandbox::Pool>,
        (watchdog, clock): (Watchdog, NodeClock),
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
            sandbox,
            watchdog,
            clock,
            queries: AtomicU64::new(0),
            record: Record::new(cgroup, limits.memory_budget_bytes),
        }
    }

    /// Memory of every process of the node, and what pools hold of it. Processes that end meanwhile
    /// are left out.
    pub(crate) fn memory(&self) -> Reading {
        let (processes, accounted_bytes) = with_pool_bytes(&self.ledger, || self.processes());
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
        let paused = self.sandbox.paused_pids().into_iter().map(|pid| ("paused worker", pid));
        let compilers = self.sandbox.compiler_pids().into_iter().map(|pid| (COMPILER, pid));
        let processes: Vec<report::Process> = std::iter::once(("node", std::process::id()))
            .chain(workers)
            .chain(paused)
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
        // A compile child is not among them: what is reserved for a compilation is for all that its
        // process takes.
        let count = processes.iter().filter(|process| process.role != COMPILER).count() as u64;
        if let Some(program) = self.program.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            program.set(count.saturating_mul(self.program_bytes));
        }
        processes
    }

    /// Whether the next batch is to wait.
    pub(crate) fn is_execution_held(&self) -> bool {
        self.record.level() >= Level::Execution
    }
}

/// The result of `read` on memory, and the bytes that pools held during it. Processes are read one
/// after the other: a message that ends meanwhile was seen with all its pages, and its reservation
/// is gone a moment later. So of each pool the larger amount of before and after counts.
fn with_pool_bytes<T>(ledger: &Ledger, read: impl FnOnce() -> T) -> (T, u64) {
    let before = ledger.snapshot().pools;
    let seen = read();
    let after = ledger.snapshot().pools;
    let most =
        before.iter().zip(&after).map(|(before, after)| before.used_bytes.max(after.used_bytes));
    (seen, most.fold(0, u64::saturating_add))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use accounting::PoolSpec;

    use super::*;

    #[test]
    fn a_message_that_ends_while_memory_is_read_leaves_none_unexplained() {
        let specs = ["executions", "responses"].map(|name| PoolSpec { name, cap_bytes: 100 });
        let ledger = Ledger::new(200, specs).unwrap();
        let pool = |name| ledger.pool(name).unwrap();
        let message = pool("executions").try_reserve(60).unwrap();
        let mut answer = None;
        let (seen, held) = with_pool_bytes(&ledger, || {
            drop(message);
            answer = Some(pool("responses").try_reserve(5).unwrap());
            60
        });
        // Its pages were seen, and so is what was reserved for them; what came meanwhile is seen
        // too.
        assert_eq!((seen, held), (60, 65));
        assert_eq!(with_pool_bytes(&ledger, || ()).1, 5);
    }
}
