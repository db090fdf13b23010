//! The round loop: batches from consensus through execution back to certificates, checkpoints in between. One thread.
//!
//! ```text
//! next (durable) -> execute -> executed (share) -> certificate, now or later -> certify (shown) -> checkpoint when due
//! ```
//!
//! What goes wrong with the disk must not end the node: new updates are refused with the reason, queries and reads go on, and the same step is tried again until
//! it succeeds. What goes wrong with the state itself (another root than the one certified before) ends the node: serving on would be worse.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use budget::{Ledger, Observation};
use consensus::{
    Certificate, Consensus, ConsensusError, Demand, FinalisedBatch, IngressPool, StateOffer, Step,
};
use execution::{Executor, FatalError, RoundResult};
use gateway::Waiters;
use limits::{Limits, pool};
use state::{Height, Ingress, ReplicatedState, RequestId};

use crate::{
    catchup::{self, Outcome},
    metrics::RoundMetrics,
    pace::Pace,
    verdicts::Verdicts,
    watch::Watch,
};

/// How long to wait before a step that the disk refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a batch waits at most for memory to be given back.
const MEMORY_PATIENCE: Duration = Duration::from_secs(10);
/// Time between looks at the free disk.
const DISK_CHECK_EVERY: Duration = Duration::from_millis(500);

/// Everything the loop needs.
pub(crate) struct Driver<C: Consensus> {
    pub(crate) consensus: C,
    pub(crate) executor: Executor,
    pub(crate) pool: Arc<IngressPool>,
    pub(crate) watch: Arc<Watch>,
    /// Set while a checkpoint is made.
    pub(crate) busy: Arc<AtomicBool>,
    pub(crate) waiters: Waiters,
    pub(crate) metrics: RoundMetrics,
    pub(crate) data_dir: PathBuf,
    pub(crate) disk_reserve_bytes: u64,
    /// Last height of the block log when the node started: up to there rounds are executed again.
    pub(crate) recovered_at: Height,
    pub(crate) observed: Observed,
    pub(crate) pace: Pace,
    pub(crate) delta_bytes: Box<dyn Fn() -> u64 + Send>,
    /// Ingress bytes in blocks that bring a checkpoint early.
    pub(crate) checkpoint_block_bytes: u64,
    /// Ingress bytes in blocks since the last checkpoint.
    pub(crate) block_bytes: u64,
    pub(crate) finished: Finished,
    pub(crate) limits: Arc<Limits>,
    pub(crate) verdicts: Verdicts,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The node was told to stop.
    Stopped,
    /// A state taken over from peers waits to be put in place: the node must start again.
    NewState,
}

/// Calls that were answered in heights whose certificate is not there yet.
pub(crate) struct Finished {
    heights_max: usize,
    waiting: VecDeque<(Height, Vec<RequestId>)>,
}

impl Finished {
    /// Beyond `heights_max` the oldest are let go; whoever waits for them asks again.
    pub(crate) fn new(heights_max: u64) -> Self {
        Self {
            heights_max: usize::try_from(heights_max).unwrap_or(usize::MAX).max(1),
            waiting: VecDeque::new(),
        }
    }

    fn add(&mut self, height: Height, calls: Vec<RequestId>) {
        if calls.is_empty() {
            return;
        }
        self.waiting.push_back((height, calls));
        while self.waiting.len() > self.heights_max {
            self.waiting.pop_front();
        }
    }

    /// Those that a certificate of `height` covers.
    fn take(&mut self, height: Height) -> impl Iterator<Item = Vec<RequestId>> + '_ {
        let covered = self.waiting.partition_point(|(of, _)| *of <= height);
        self.waiting.drain(..covered).map(|(_, calls)| calls)
    }
}

/// Pools of the ledger that the rules of replicated state hold to their caps: counted after every round, so that the ledger says what they hold.
pub(crate) struct Observed {
    history: Option<Observation>,
    guaranteed: Option<Observation>,
    best_effort: Option<Observation>,
    sections: Option<Observation>,
    metadata: Option<Observation>,
    delta_index: Option<Observation>,
    certificates: Option<Observation>,
    blocks: Option<Observation>,
}

impl Observed {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        let observe = |name| ledger.pool(name).map(|pool| pool.observe());
        Self {
            history: observe(pool::INGRESS_HISTORY),
            guaranteed: observe(pool::GUARANTEED_MESSAGES),
            best_effort: observe(pool::BEST_EFFORT_MESSAGES),
            sections: observe(pool::CUSTOM_SECTIONS),
            metadata: observe(pool::CANISTER_METADATA),
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
        let figures = [
            (&mut self.history, state.history.bytes()),
            (&mut self.guaranteed, totals.guaranteed_message_bytes),
            (&mut self.best_effort, totals.best_effort_message_bytes),
            (&mut self.sections, totals.custom_section_bytes),
            (&mut self.metadata, totals.metadata_bytes),
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

impl<C: Consensus> Driver<C> {
    /// Runs rounds until the pool is closed, then makes a last checkpoint, so that the next start replays nothing.
    pub(crate) fn run(mut self) -> Result<Ended> {
        // The first batch comes at once: until a state is certified there is nothing to serve.
        let mut demand = Demand { more: true, ..Demand::default() };
        let mut disk_checked: Option<Instant> = None;
        let mut certified = Instant::now();
        loop {
            if disk_checked.is_none_or(|at| at.elapsed() >= DISK_CHECK_EVERY) {
                self.watch_disk();
                disk_checked = Some(Instant::now());
            }
            if self.watch.wait_for_memory(MEMORY_PATIENCE) {
                self.metrics.skipped();
            }
            // Only what fits into the gaps that are there is moved, so that moving takes no memory of its own.
            if self.watch.repack_below(self.executor.state().history.bytes()) {
                self.executor.repack_history();
            }
            // Work that waits makes the time since the last certified round a stall; without any it counts from the batch.
            let waiting = demand.more || self.pool.status().messages > 0;
            let finalised = match self.consensus.next(demand) {
                Ok(Step::Execute(finalised)) => finalised,
                Ok(Step::Certified(certificate)) => {
                    self.certified(certificate)?;
                    continue;
                }
                Ok(Step::Behind(offer)) => {
                    if self.take_over(offer)? == Outcome::Ready {
                        return Ok(Ended::NewState);
                    }
                    continue;
                }
                Ok(Step::Closing) => break,
                Err(error) => {
                    self.storage_trouble(error)?;
                    continue;
                }
            };
            if !waiting {
                certified = Instant::now();
            }
            let height = finalised.batch.height;
            let Some(result) = self.round(finalised)? else {
                tracing::info!(
                    height = height.0,
                    "stopped in a round that waited; the next start executes it again"
                );
                return Ok(Ended::Stopped);
            };
            self.metrics.stalled(certified.elapsed());
            certified = Instant::now();
            demand =
                Demand { more: result.more, next_timer: result.next_timer, every_round: result.every_round };
            if self.executor.checkpoint_due() || self.block_bytes >= self.checkpoint_block_bytes {
                self.checkpoint(height)?;
            }
            // The state of this height is given a manifest: nothing is executed on top of it before its checkpoint is durable.
            while self.executor.manifest_owed() && !self.pool.closing() {
                self.checkpoint(height)?;
            }
            if self.executor.manifest_owed() {
                break;
            }
        }
        let height = self.executor.height();
        self.executor.checkpoint().context("making the last checkpoint")?;
        self.consensus.checkpointed(height)?;
        tracing::info!(height = height.0, "stopped with a checkpoint");
        Ok(Ended::Stopped)
    }

    /// Nothing is executed meanwhile; what was certified before is still shown, and queries go on.
    fn take_over(&mut self, offer: StateOffer) -> Result<Outcome> {
        let (pool, limits) = (self.pool.clone(), self.limits.clone());
        let refuse = |reason: String| {
            if pool.refusing().as_deref() != Some(&reason) {
                tracing::error!(%reason, "taking over a state waits until this is mended");
            }
            pool.refuse(Some(reason));
        };
        catchup::take_over(&self.executor, &mut self.consensus, offer, &self.data_dir, &limits, &pool, refuse)
    }

    /// None when the node is closing and the round waited for this machine: what it did so far counts for nothing.
    fn round(&mut self, finalised: FinalisedBatch) -> Result<Option<RoundResult>> {
        let FinalisedBatch { batch, recorded } = finalised;
        let rejected = self.verdicts.at(batch.height, recorded.map(|recorded| recorded.faults));
        let started = Instant::now();
        let block_bytes = batch.ingress.iter().map(Ingress::accounted_bytes).sum::<u64>();
        self.observed.block(block_bytes);
        let mut result = match self.executor.execute(&batch, &rejected) {
            Err(FatalError::Closing) => return Ok(None),
            result => result.with_context(|| format!("executing batch {}", batch.height.0))?,
        };
        let certificates = loop {
            match self.consensus.executed(batch.height, result.root, result.verdicts.clone()) {
                Ok(certificates) => break certificates,
                Err(error) => self.storage_trouble(error)?,
            }
        };
        self.finished.add(batch.height, std::mem::take(&mut result.finished));
        for certificate in certificates {
            self.certified(certificate)?;
        }
        self.metrics.round(&batch, &result, started.elapsed());
        self.block_bytes += block_bytes;
        let history = &self.executor.state().history;
        let allowed = self.pace.after_round(
            self.watch.started.elapsed(),
            batch.ingress.len() as u64,
            history.free_calls(),
            history.capacity_calls(),
        );
        self.pool.set_room(allowed.min(history.room_calls()));
        self.observed.block(0);
        self.observed.count(
            self.executor.state(),
            (self.delta_bytes)(),
            self.consensus.certificates_pending(),
        );
        if batch.height <= self.recovered_at {
            tracing::debug!(height = batch.height.0, root = hex::encode(result.root), "executed again");
            if batch.height == self.recovered_at {
                tracing::info!(
                    height = batch.height.0,
                    root = hex::encode(result.root),
                    "recovered: every state root is as certified before"
                );
            }
        }
        Ok(Some(result))
    }

    /// Shows the state of a height, and tells those who wait for it.
    fn certified(&mut self, certificate: Certificate) -> Result<()> {
        self.executor.certify(certificate.height, certificate.signature.0.to_vec())?;
        for calls in self.finished.take(certificate.height) {
            self.waiters.certified(&calls);
        }
        Ok(())
    }

    fn checkpoint(&mut self, height: Height) -> Result<()> {
        let started = Instant::now();
        let relieved = self.executor.relieved();
        self.busy.store(true, Relaxed);
        let done = self.executor.checkpoint();
        self.busy.store(false, Relaxed);
        if self.executor.relieved() > relieved {
            self.metrics.skipped();
        }
        if let Err(error) = done {
            // The state in memory is whole and the block log still covers it: go on, and try again at the next round.
            self.refuse(format!("a checkpoint failed: {error:#}"));
            self.pool.wait(RETRY_AFTER);
            return Ok(());
        }
        self.consensus.checkpointed(height)?;
        self.block_bytes = 0;
        self.metrics.checkpoint(started.elapsed());
        Ok(())
    }

    /// Refuses updates because of the disk and waits a moment; anything else ends the node.
    fn storage_trouble(&self, error: ConsensusError) -> Result<()> {
        match error {
            ConsensusError::Log(error) if error.can_heal() => {
                if self.pool.closing() {
                    bail!(error);
                }
                self.refuse(error.to_string());
                std::thread::sleep(RETRY_AFTER);
                Ok(())
            }
            other => bail!(other),
        }
    }

    fn refuse(&self, reason: String) {
        if self.pool.refusing().as_deref() != Some(&reason) {
            tracing::error!(%reason, "updates are refused until this is mended");
        }
        self.pool.refuse(Some(reason));
    }

    /// Refuses updates while less than the reserve is free, and takes them again when there is room.
    fn watch_disk(&self) {
        if self.pool.closing() {
            return;
        }
        match rustix::fs::statvfs(&self.data_dir) {
            Ok(disk) if disk.f_bavail * disk.f_frsize < self.disk_reserve_bytes => self.refuse(format!(
                "{} has {} bytes free, under the reserve of {} (disk_reserve_bytes): free some disk",
                self.data_dir.display(),
                disk.f_bavail * disk.f_frsize,
                self.disk_reserve_bytes
            )),
            Ok(_) if self.pool.refusing().is_some() => {
                let probe = self.data_dir.join(".writable");
                match std::fs::write(&probe, b"probe").and_then(|()| std::fs::remove_file(&probe)) {
                    Ok(()) => {
                        tracing::info!("updates are taken again");
                        self.pool.refuse(None);
                    }
                    Err(error) => {
                        self.refuse(format!("{} cannot be written: {error}", self.data_dir.display()));
                    }
                }
            }
            Ok(_) => {}
            Err(error) => self.refuse(format!("{}: {error}", self.data_dir.display())),
        }
    }
}
