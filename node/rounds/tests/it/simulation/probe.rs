//! Observes a node that runs the round loop, and reports violations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use commonware_runtime::Clock as _;
use commonware_utils::sync::Mutex;
use consensus::{
    Certificate, ChunkRequest, Consensus, ConsensusError, Demand, FetchedChunks, FinalisedBatch,
    Step, Subnet,
};
use execution::RoundResult;
use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use lifecycle::Stop;
use rounds::{Clock, Observer, Replica};
use state::{Fault, Height};

use crate::simulation::{
    Context,
    net::{Durable, SharedFindings},
    reports,
};

/// Audit of a state after a round.
pub(crate) struct Audit {
    /// Calls of clients that were carried out and answered.
    pub(crate) answered: Vec<String>,
    /// Violations after which the node can continue.
    pub(crate) wrong: Vec<String>,
    /// Canisters with code.
    pub(crate) deployed: usize,
    /// Queries of all canisters, as members reported them.
    pub(crate) queries: u128,
}

/// A replica whose state can be asked what it executed.
pub(crate) trait AuditedReplica: Replica {
    fn audit(&self, finalised: &FinalisedBatch, result: &RoundResult) -> Audit;

    /// How often each call was executed, as the state itself knows it.
    fn executed(&self) -> BTreeMap<String, u32>;

    /// Whether threads of its own may be hashing it, which a checkpoint waits for.
    fn is_hashing(&self) -> bool {
        false
    }
}

/// See the module.
pub(crate) struct Probe {
    pub(crate) durable: Arc<Mutex<Durable>>,
    pub(crate) found: SharedFindings,
    pub(crate) status: consensus::SubnetStatus,
}

impl<R: AuditedReplica> Observer<R> for Probe {
    fn executed(&mut self, replica: &R, finalised: &FinalisedBatch, result: &RoundResult) {
        let batch = &finalised.batch;
        let height = batch.height.0;
        let audit = replica.audit(finalised, result);
        let mut found = self.found.lock();
        let before = *found.roots.entry(height).or_insert(result.root);
        if before != result.root {
            found.failures.push(format!("two roots at height {height}"));
        }
        found.failures.extend(audit.wrong);
        if *found.queries.entry(height).or_insert(audit.queries) != audit.queries {
            found.failures.push(format!("two sums of queries at height {height}"));
        }
        if batch.queries.as_deref().is_some_and(reports::is_lie) {
            found.failures.push(format!("block {height} reports queries in another's name"));
        }
        found.calls.entry(height).or_insert(audit.answered);
        found.deployed = found.deployed.max(audit.deployed);
        if let Some(key) = &batch.key {
            found.record_key(height, key);
        }
    }

    fn recorded(&mut self, replica: &R, round: &rounds::Round<'_>) {
        let mut durable = self.durable.lock();
        durable.height = round.finalised.batch.height.0;
        durable.executed = replica.executed();
    }

    fn certified(&mut self, _: &R, certificate: &Certificate) {
        let mut found = self.found.lock();
        let height = certificate.height.0;
        if found.roots.get(&height) != Some(&certificate.root) {
            found.failures.push(format!("a certificate of another root at height {height}"));
        }
        found.certified.insert(height, certificate.root);
        let covered: Vec<_> =
            found.calls.range(..=height).flat_map(|(_, calls)| calls.clone()).collect();
        found.acknowledged.extend(covered);
        found.equivocations = found.equivocations.max(self.status.progress().equivocations);
    }

    fn took_over(&mut self, _: Height) {
        self.found.lock().syncs += 1;
    }
}

/// The simulation's clock.
pub(crate) struct SimulatedClock(pub(crate) Context);

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        self.0.current().duration_since(UNIX_EPOCH).unwrap()
    }

    fn sleep<'a>(&'a self, time: Duration, stop: &'a Stop) -> BoxFuture<'a, ()> {
        future::select(self.0.sleep(time).boxed(), stop.closed()).map(drop).boxed()
    }
}

/// A subnet whose batches take long to execute.
pub(crate) struct SlowConsensus {
    pub(crate) subnet: Subnet,
    pub(crate) clock: Context,
    /// Milliseconds a batch takes.
    pub(crate) slow: Arc<AtomicU64>,
}

impl Consensus for SlowConsensus {
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        async move {
            let step = self.subnet.next(demand).await;
            let cost = self.slow.load(Ordering::Relaxed);
            if cost > 0 && matches!(step, Ok(Step::Execute(_))) {
                self.clock.sleep(Duration::from_millis(cost)).await;
            }
            step
        }
        .boxed()
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        self.subnet.executed(height, root, faults)
    }

    fn before_checkpoint(&mut self) -> Result<(), ConsensusError> {
        self.subnet.before_checkpoint()
    }

    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError> {
        self.subnet.checkpointed(height)
    }

    fn certificates_pending(&self) -> u64 {
        self.subnet.certificates_pending()
    }

    fn fetch(
        &mut self,
        want: ChunkRequest,
    ) -> BoxFuture<'_, Result<FetchedChunks, ConsensusError>> {
        self.subnet.fetch(want)
    }

    fn installed(&mut self) -> Result<(), ConsensusError> {
        self.subnet.installed()
    }
}
