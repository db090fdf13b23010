//! The node's observer of rounds: figures, the ledger's readings, answers to clients that wait, and
//! memory that is held back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use accounting::{Ledger, Observation};
use consensus::FinalisedBatch;
use execution::{Executor, RoundResult};
use gateway::Waiters;
use limits::pool;
use pages::PageStore;
use rounds::{Observer, Round};
use state::{Height, ReplicatedState, RequestId};

use crate::{
    disk_usage::StateHeapBytes, metrics::RoundMetrics, outcalls::NodeOutcalls, verdicts,
    watch::Watch, watchdog::Stage,
};

pub(crate) struct NodeObserver {
    pub(crate) watch: Arc<Watch>,
    pub(crate) busy: Arc<AtomicBool>,
    pub(crate) waiters: Waiters,
    pub(crate) metrics: RoundMetrics,
    pub(crate) observed: MemoryObservations,
    pub(crate) pages: Arc<PageStore>,
    /// [`Executor::relieved`] at the last check.
    pub(crate) relieved: u64,
    /// None where the subnet makes no requests to servers outside.
    pub(crate) outcalls: Option<NodeOutcalls>,
    /// Below this height requests are open that later blocks have answers to.
    pub(crate) recovered_at: Height,
}

impl Observer<Executor> for NodeObserver {
    fn is_held(&self) -> bool {
        self.watch.is_execution_held()
    }

    fn waited_for_memory(&mut self) {
        self.metrics.skipped.inc();
    }

    fn begins(&mut self, finalised: &FinalisedBatch, ingress_bytes: u64) {
        self.watch.watchdog.begins(Stage::Round, finalised.batch.height, Instant::now());
        self.observed.block(ingress_bytes);
    }

    fn executed(&mut self, _: &Executor, finalised: &FinalisedBatch, result: &RoundResult) {
        let (height, again) = (finalised.batch.height, finalised.recorded.is_some());
        verdicts::log_effects(height, &result.verdicts, again);
    }

    fn recorded(&mut self, executor: &Executor, round: &Round<'_>) {
        self.watch.watchdog.ends();
        self.metrics.round(&round.finalised.batch, round.result, round.took);
        self.observed.block(0);
        self.observed.count(executor.state(), self.pages.delta_bytes(), round.certificates_pending);
        if let Some(outcalls) = &self.outcalls
            && executor.height() >= self.recovered_at
        {
            outcalls.set_open(&executor.state().subnet.outcalls);
        }
    }

    fn stalled(&mut self, time: Duration) {
        self.metrics.stalled(time);
    }

    fn answered(&mut self, calls: &[RequestId]) {
        self.waiters.notify_certified(calls);
    }

    fn checkpoint_begins(&mut self, executor: &Executor) {
        self.watch.watchdog.begins(Stage::Checkpoint, executor.height(), Instant::now());
        self.busy.store(true, Relaxed);
    }

    fn checkpoint_ends(&mut self, executor: &Executor, height: Option<Height>, took: Duration) {
        self.watch.watchdog.ends();
        self.busy.store(false, Relaxed);
        if executor.relieved() > self.relieved {
            self.relieved = executor.relieved();
            self.metrics.skipped.inc();
        }
        if height.is_some() {
            self.metrics.checkpoint(took);
        }
    }
}

/// Memory that the rules of replicated state limit: counted after every round for the ledger's
/// pools and, for the state's heap, the disk's sheet.
pub(crate) struct MemoryObservations {
    in_heap: Arc<StateHeapBytes>,
    delta_index: Option<Observation>,
    certificates: Option<Observation>,
    blocks: Option<Observation>,
}

impl MemoryObservations {
    pub(crate) fn new(ledger: &Ledger, in_heap: Arc<StateHeapBytes>) -> Self {
        let observe = |name| ledger.pool(name).map(|pool| pool.observe());
        Self {
            in_heap,
            delta_index: observe(pool::DELTA_INDEX),
            certificates: observe(pool::CERTIFICATES),
            blocks: observe(pool::BLOCKS),
        }
    }

    /// The block in execution; 0 when there is none.
    fn block(&mut self, bytes: u64) {
        if let Some(blocks) = &mut self.blocks {
            blocks.set(bytes);
        }
    }

    fn count(&mut self, state: &ReplicatedState, delta: u64, certificates: u64) {
        let totals = state.totals();
        self.in_heap.set([
            totals.guaranteed_here_bytes,
            totals.best_effort_message_bytes,
            state.history.bytes(),
            totals.metadata_bytes,
            totals.custom_section_bytes,
        ]);
        self.in_heap.set_message_files(totals.file_payload_bytes);
        let figures = [
            (&mut self.delta_index, limits::delta_index_bytes(delta)),
            (&mut self.certificates, certificates * limits::CERTIFICATE_BYTES),
        ];
        for (observation, bytes) in figures {
            if let Some(observation) = observation {
                observation.set(bytes);
            }
        }
    }
}
