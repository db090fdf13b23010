//! Sandboxes under the ledger: before a message runs or a module is compiled, the most memory that
//! it may dirty is reserved; when the pool is full, it waits.
//!
//! Waiting is bounded by the messages that run, each of which is bounded by its instructions. The
//! order of waiting does not change the result of a message, so this stays out of the agreed state.
//!
//! This module must not know what a message is, or what happens to it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use accounting::{Pool, Reservation};
use limits::Limits;
use pages::MemoryId;
use state::{ModuleHash, ModuleInfo};

use crate::{
    Entry, Grant, Lane, NotPrepared, Outcome, Priority, Request, Sandbox, Slice, SlicedName,
    TimedOutcome, UploadedModule, WorkerTrouble,
};

/// A wait longer than this is logged; then it continues.
const TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
pub struct BudgetedSandbox {
    inner: Arc<dyn Sandbox>,
    executions: Pool,
    compilations: Pool,
    queries: Pool,
    message_bytes: u64,
    install_bytes: u64,
    query_bytes: u64,
    compile_bytes: u64,
}

impl BudgetedSandbox {
    /// Takes updates and installs from `executions`, compilations from `compilations`, queries from
    /// `queries`.
    pub fn new(
        inner: Arc<dyn Sandbox>,
        (executions, compilations, queries): (Pool, Pool, Pool),
        limits: &Limits,
    ) -> Self {
        Self {
            inner,
            message_bytes: limits.message_dirty_bytes(),
            install_bytes: limits.install_dirty_bytes(),
            query_bytes: limits.query_dirty_bytes(),
            compile_bytes: limits.sandbox.compile_anonymous_bytes,
            executions,
            compilations,
            queries,
        }
    }

    fn reserve_execution(&self, lane: Lane, request: &Request) -> Option<Reservation> {
        let (pool, bytes) = match (lane, &request.entry) {
            (Lane::Query(_), _) => (&self.queries, self.query_bytes),
            (Lane::Update(_), Entry::Init | Entry::PreUpgrade | Entry::PostUpgrade { .. }) => {
                (&self.executions, self.install_bytes)
            }
            (Lane::Update(_), _) => (&self.executions, self.message_bytes),
        };
        reserve(pool, bytes)
    }

    /// A module that is compiled already takes nothing, and must not wait for others that are being
    /// compiled.
    fn reserve_compilation(&self, hash: &ModuleHash, priority: Priority) -> Option<Reservation> {
        if self.inner.is_prepared(hash) {
            return None;
        }
        let bytes = self.compile_bytes.min(self.compilations.cap_bytes());
        self.compilations.try_reserve(bytes).ok().or_else(|| {
            // A round waits for no compilation ahead of another.
            if priority == Priority::Round {
                self.inner.end_ahead();
            }
            reserve(&self.compilations, bytes)
        })
    }
}

/// Waits in line until there is room. The caps of the sheet fit at least one reservation of each
/// kind; with a custom table that does not, the reservation is limited to the pool's cap.
fn reserve(pool: &Pool, bytes: u64) -> Option<Reservation> {
    loop {
        match pool.reserve_within(bytes.min(pool.cap_bytes()), TIMEOUT) {
            Ok(reservation) => return Some(reservation),
            Err(full) if full.is_hopeless() => return None,
            Err(full) => tracing::warn!(%full, "still waiting for memory"),
        }
    }
}

impl Sandbox for BudgetedSandbox {
    fn is_prepared(&self, module: &ModuleHash) -> bool {
        self.inner.is_prepared(module)
    }

    fn prepare(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        let _reservation = self.reserve_compilation(hash, priority);
        self.inner.prepare(hash, uploaded, priority)
    }

    fn end_ahead(&self) {
        self.inner.end_ahead();
    }

    fn has_artefact_room(&self) -> bool {
        self.inner.has_artefact_room()
    }

    fn execute(&self, lane: Lane, request: &Request) -> Result<Outcome, WorkerTrouble> {
        let _reservation = self.reserve_execution(lane, request);
        self.inner.execute(lane, request)
    }

    fn execute_until(
        &self,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<TimedOutcome, WorkerTrouble> {
        // The pool has room for every query worker, so this does not wait.
        let _reservation = self.reserve_execution(lane, request);
        self.inner.execute_until(lane, request, deadline)
    }

    fn run_slice(
        &self,
        lane: Lane,
        request: &Request,
        grant: &Grant,
    ) -> Result<Slice, WorkerTrouble> {
        // For as long as it runs: what a paused message holds afterwards is a line of its own.
        let _reservation = self.reserve_execution(lane, request);
        self.inner.run_slice(lane, request, grant)
    }

    fn free_memory(&self) {
        self.inner.free_memory();
    }

    fn abandon(&self, name: &SlicedName) {
        self.inner.abandon(name);
    }

    fn release(&self, lane: Lane, keep_token: u64) {
        self.inner.release(lane, keep_token);
    }

    fn forget(&self, memories: &[MemoryId]) {
        self.inner.forget(memories);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how many compilations run at once.
    #[derive(Default)]
    struct Counting {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Sandbox for Counting {
        fn is_prepared(&self, _: &ModuleHash) -> bool {
            false
        }

        fn prepare(
            &self,
            _: &ModuleHash,
            _: &dyn UploadedModule,
            _: Priority,
        ) -> Result<ModuleInfo, NotPrepared> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            std::thread::yield_now();
            self.now.fetch_sub(1, Ordering::SeqCst);
            Err(NotPrepared::Trouble(String::new()))
        }

        fn execute(&self, _: Lane, _: &Request) -> Result<Outcome, WorkerTrouble> {
            unreachable!("this test compiles only")
        }

        fn release(&self, _: Lane, _: u64) {}

        fn forget(&self, _: &[MemoryId]) {}
    }

    // Promise: P1 - Compilations that exceed the `compilations` line together run in sequence.
    #[test]
    fn compilations_that_do_not_fit_together_take_turns() {
        let limits = Limits::nano().unwrap();
        let counting = Arc::new(Counting::default());
        let cap = limits.sandbox.compile_anonymous_bytes;
        let compilations = Pool::standalone("compilations", cap + cap / 2);
        let other = || Pool::standalone("other", 1);
        let pools = (other(), compilations.clone(), other());
        let budgeted = BudgetedSandbox::new(counting.clone(), pools, &limits);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _ = budgeted.prepare(&ModuleHash([0; 32]), &&b""[..], Priority::Round);
                    }
                });
            }
        });
        assert_eq!(counting.most.load(Ordering::SeqCst), 1);
        assert_eq!(compilations.used_bytes(), 0);
    }
}
