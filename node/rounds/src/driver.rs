//! The loop itself.

use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Duration};

use consensus::{
    Certificate, Consensus, ConsensusError, Demand, FinalisedBatch, IngressPool, Step,
};
use execution::{FatalError, RoundResult};
use lifecycle::{Cause, Health, Stop};
use limits::Limits;
use state::{Fault, Height, Ingress, RequestId, Time};

use crate::{
    backoff::{Backoff, LONGEST},
    clock::Clock,
    disk::DiskProbe,
    error::RoundError,
    observer::{Observer, Round},
    pace::Pace,
    replica::Replica,
    state_sync::Outcome,
};

/// Longest wait of a batch for memory: continuing is bounded by the pools, a halt is not bounded.
pub(crate) const MEMORY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between checks whether memory is still short.
const MEMORY_CHECK_EVERY: Duration = Duration::from_millis(20);
/// Time between checks of the free disk space.
const DISK_CHECK_EVERY: Duration = Duration::from_millis(500);

/// Where and within what bounds the loop runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's data.
    pub folder: PathBuf,
    /// Last height of the block log when the node started: up to there rounds are executed again.
    pub recovered_at: Height,
    /// Updates are refused while less of the disk is free, in bytes.
    pub disk_reserve_bytes: u64,
    /// Ingress bytes in blocks that bring a checkpoint early.
    pub checkpoint_block_bytes: u64,
    /// Heights whose answered calls wait for a certificate. Above this limit the oldest are
    /// dropped; clients that wait for them ask again.
    pub certificates_kept: u64,
}

impl Settings {
    /// As the node's limits say.
    pub fn new(folder: PathBuf, recovered_at: Height, limits: &Limits) -> Self {
        Self {
            folder,
            recovered_at,
            disk_reserve_bytes: limits.pages.disk_reserve_bytes,
            checkpoint_block_bytes: limits.consensus.checkpoint_block_bytes,
            certificates_kept: limits.consensus.certificates_kept,
        }
    }
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverExit {
    /// The node was requested to stop.
    Stopped,
    /// A state fetched from peers waits to be put in place: the node must start again.
    NewState,
}

/// Calls that were answered in heights whose certificate is not there yet.
struct UncertifiedCalls {
    heights_max: usize,
    waiting: VecDeque<(Height, Vec<RequestId>)>,
}

impl UncertifiedCalls {
    fn new(heights_max: u64) -> Self {
        let heights_max = usize::try_from(heights_max).unwrap_or(usize::MAX).max(1);
        Self { heights_max, waiting: VecDeque::new() }
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

struct Retry {
    backoff: Backoff,
    /// Not before then.
    at: Duration,
}

/// Messages of a height that are to be rejected without being executed, out of those that an
/// earlier run of it rejected.
type Verdicts = Box<dyn Fn(Height, Option<Vec<Fault>>) -> Vec<Fault> + Send>;

/// Everything the loop works with.
pub struct Driver<R, K, D, O> {
    // Interfaces.
    pub(crate) consensus: Box<dyn Consensus>,
    pub(crate) replica: R,
    pub(crate) clock: K,
    disk: D,
    observer: O,
    pool: Arc<IngressPool>,
    pub(crate) stop: Stop,
    pub(crate) health: Health,
    // Configuration.
    pub(crate) settings: Settings,
    verdicts: Verdicts,
    // State.
    pace: Pace,
    uncertified: UncertifiedCalls,
    /// Ingress bytes in blocks since the last checkpoint.
    block_bytes: u64,
    disk_checked: Option<Duration>,
    retry: Option<Retry>,
}

impl<R: Replica, K: Clock, D: DiskProbe, O: Observer<R>> Driver<R, K, D, O> {
    /// Puts a loop together. `pool` is the one that `consensus` makes blocks of.
    pub fn new(
        consensus: Box<dyn Consensus>,
        replica: R,
        clock: K,
        disk: D,
        observer: O,
        pool: Arc<IngressPool>,
        settings: Settings,
    ) -> Self {
        let (stop, health) = (pool.stop().clone(), pool.health().clone());
        let uncertified = UncertifiedCalls::new(settings.certificates_kept);
        Self {
            consensus,
            replica,
            clock,
            disk,
            observer,
            pool,
            stop,
            health,
            settings,
            verdicts: Box::new(|_, recorded| recorded.unwrap_or_default()),
            pace: Pace::default(),
            uncertified,
            block_bytes: 0,
            disk_checked: None,
            retry: None,
        }
    }

    /// Has messages rejected as `verdicts` says of a height, given what an earlier run of it
    /// rejected.
    #[must_use]
    pub fn with_verdicts(
        mut self,
        verdicts: impl Fn(Height, Option<Vec<Fault>>) -> Vec<Fault> + Send + 'static,
    ) -> Self {
        self.verdicts = Box::new(verdicts);
        self
    }

    /// Runs rounds until the stop, then makes a last checkpoint, so that the next start repeats
    /// nothing.
    pub async fn run(mut self) -> Result<DriverExit, RoundError> {
        let restarted_from = self.replica.height();
        if restarted_from > Height(0) {
            self.checkpointed(restarted_from)?;
        }
        // The first batch comes at once: until a state is certified there is nothing to serve.
        let mut demand = Demand { more: true, ..Demand::default() };
        let mut certified = self.clock.now();
        let mut backoff = Backoff::default();
        loop {
            self.watch_disk();
            if self.wait_for_memory().await {
                self.observer.waited_for_memory();
            }
            // Work that waits makes the time since the last certified round a stall; without any it
            // counts from the batch.
            let waiting = demand.more || self.pool.status().messages > 0;
            let finalised = match self.consensus.next(demand).await {
                Ok(Step::Execute(finalised)) => finalised,
                Ok(Step::Certified(certificate)) => {
                    self.certified(certificate)?;
                    continue;
                }
                Ok(Step::Behind(offer)) => {
                    if self.sync_state(offer).await? == Outcome::Ready {
                        self.observer.took_over(offer.height);
                        return Ok(DriverExit::NewState);
                    }
                    continue;
                }
                Ok(Step::Closing) => break,
                Err(error) if error.can_heal() && !self.stop.is_closing() => {
                    self.wait_for_log(&mut backoff, error).await;
                    continue;
                }
                // The batch was not acknowledged to anybody: clients try again.
                Err(error) if error.can_heal() => break,
                Err(error) => return Err(error.into()),
            };
            self.clear_log_fault(&mut backoff);
            if !waiting {
                certified = self.clock.now();
            }
            let (height, time) = (finalised.batch.height, finalised.batch.time);
            let Some(result) = self.round(finalised).await? else {
                tracing::info!(
                    height = height.0,
                    "stopped in a round that waited; the next start executes it again"
                );
                return Ok(DriverExit::Stopped);
            };
            self.observer.stalled(self.clock.now().saturating_sub(certified));
            certified = self.clock.now();
            let RoundResult { more, next_timer, awaited, .. } = result;
            demand = Demand { more, next_timer, awaited };
            if !self.checkpoint_if_due(height).await? {
                break;
            }
            self.schedule_checkpoint_retry(&mut demand, time);
        }
        self.last_checkpoint()
    }

    /// A failed checkpoint is retried after a batch, so a batch is required: updates are refused
    /// until then, and no other component may request one.
    fn schedule_checkpoint_retry(&self, demand: &mut Demand, time: Time) {
        let Some(retry) = &self.retry else { return };
        let wait = retry.at.saturating_sub(self.clock.now()).min(LONGEST);
        let again = Time(time.0.saturating_add(wait.as_nanos() as u64));
        demand.next_timer = Some(demand.next_timer.map_or(again, |timer| timer.min(again)));
    }

    /// None when the node is closing and the batch is to be executed at the next start.
    async fn round(
        &mut self,
        finalised: FinalisedBatch,
    ) -> Result<Option<RoundResult>, RoundError> {
        let started = self.clock.now();
        let batch = &finalised.batch;
        let height = batch.height;
        let recorded = finalised.recorded.as_ref().map(|recorded| recorded.faults.clone());
        let calls = batch.ingress.iter().map(Ingress::accounted_bytes);
        let answers = batch.outcalls.iter().map(|answer| answer.payload.len());
        let block_bytes = calls.chain(answers).sum::<u64>();
        self.observer.begins(&finalised, block_bytes);
        let rejected = (self.verdicts)(height, recorded);
        let mut result = match self.replica.execute(batch, &rejected) {
            Ok(result) => result,
            // The progress of this round is discarded.
            Err(FatalError::Closing) => return Ok(None),
            Err(source) => return Err(RoundError::Execute { height: height.0, source }),
        };
        self.observer.executed(&self.replica, &finalised, &result);
        let mut backoff = Backoff::default();
        let certificates = loop {
            match self.consensus.executed(height, result.root, result.verdicts.clone()).await {
                Ok(certificates) => break certificates,
                Err(error) if error.can_heal() => {
                    // An outcome that was not recorded comes out the same when the batch is
                    // executed again.
                    if self.stop.is_closing() {
                        return Ok(None);
                    }
                    self.wait_for_log(&mut backoff, error).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.clear_log_fault(&mut backoff);
        let round = Round {
            finalised: &finalised,
            result: &result,
            took: self.clock.now().saturating_sub(started),
            certificates_pending: self.consensus.certificates_pending(),
        };
        self.observer.recorded(&self.replica, &round);
        self.uncertified.add(height, std::mem::take(&mut result.finished));
        for certificate in certificates {
            self.certified(certificate)?;
        }
        self.block_bytes += block_bytes;
        let room = self.replica.room();
        let taken = finalised.batch.ingress.len() as u64;
        let allowed = self.pace.after_round(self.clock.now(), taken, room.free, room.capacity);
        self.pool.set_room(allowed.min(room.calls));
        if height <= self.settings.recovered_at {
            tracing::debug!(height = height.0, root = hex::encode(result.root), "executed again");
            if height == self.settings.recovered_at {
                tracing::info!(
                    height = height.0,
                    root = hex::encode(result.root),
                    "recovered: every state root is as certified before"
                );
            }
        }
        Ok(Some(result))
    }

    /// Serves the state of a height, and answers the calls that wait for its certificate.
    fn certified(&mut self, certificate: Certificate) -> Result<(), RoundError> {
        let height = certificate.height;
        self.replica
            .certify(height, certificate.signature.0.to_vec())
            .map_err(|source| RoundError::Certify { height: height.0, source })?;
        self.observer.certified(&self.replica, &certificate);
        for calls in self.uncertified.take(height) {
            self.observer.answered(&calls);
        }
        Ok(())
    }

    /// Makes a checkpoint when one is due. One that fails and can heal is tried again: in place
    /// while the next batch has to wait for it, between batches otherwise, because the state in
    /// memory is whole and the block log covers it. False when the next batch would have to
    /// wait and the node is closing.
    async fn checkpoint_if_due(&mut self, height: Height) -> Result<bool, RoundError> {
        loop {
            let pressing = self.replica.checkpoint_pressing();
            // One that failed stays due: a batch that made it itself, for room in the delta log,
            // does not withdraw the reason for which updates are refused.
            let due = self.retry.is_some()
                || self.replica.checkpoint_due()
                || self.block_bytes >= self.settings.checkpoint_block_bytes
                || pressing;
            if !due {
                return Ok(true);
            }
            let wait = self.retry.as_ref().map_or(Duration::ZERO, |retry| {
                // Never longer than the longest wait, whatever the clock does.
                retry.at.saturating_sub(self.clock.now()).min(LONGEST)
            });
            if wait.is_zero() {
                if self.checkpoint(height)? || !pressing {
                    return Ok(true);
                }
            } else if !pressing {
                return Ok(true);
            } else if self.stop.is_closing() {
                return Ok(false);
            } else {
                self.clock.sleep(wait, &self.stop).await;
            }
        }
    }

    /// Whether it was made.
    fn checkpoint(&mut self, height: Height) -> Result<bool, RoundError> {
        if let Err(error) = self.consensus.before_checkpoint() {
            if !error.can_heal() {
                return Err(error.into());
            }
            self.postpone_checkpoint(error.to_string());
            return Ok(false);
        }
        let started = self.clock.now();
        self.observer.checkpoint_begins(&self.replica);
        let made = self.replica.checkpoint();
        let now = self.clock.now();
        let durable = made.is_ok().then_some(height);
        self.observer.checkpoint_ends(&self.replica, durable, now.saturating_sub(started));
        if let Err(source) = made {
            if !source.can_heal() {
                return Err(RoundError::Checkpoint { height: height.0, source });
            }
            self.postpone_checkpoint(source.to_string());
            return Ok(false);
        }
        self.retry = None;
        if self.health.withdraw(Cause::Checkpoint) {
            tracing::info!(height = height.0, "checkpoints are made again");
        }
        self.block_bytes = 0;
        self.checkpointed(height)?;
        Ok(true)
    }

    /// One failed, and is to be tried again.
    fn postpone_checkpoint(&mut self, reason: String) {
        let mut backoff = self.retry.take().map_or_else(Backoff::default, |retry| retry.backoff);
        self.retry = Some(Retry { at: self.clock.now() + backoff.next(), backoff });
        self.refuse(Cause::Checkpoint, format!("a checkpoint failed: {reason}"));
    }

    /// Notifies consensus. Old log files that cannot be removed now are removed after a later
    /// checkpoint.
    fn checkpointed(&mut self, height: Height) -> Result<(), RoundError> {
        match self.consensus.checkpointed(height) {
            Err(error) if error.can_heal() => {
                tracing::warn!(%error, height = height.0, "what the checkpoint covers cannot be removed from the block log");
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn last_checkpoint(mut self) -> Result<DriverExit, RoundError> {
        let height = self.replica.height();
        if self.checkpoint(height)? {
            tracing::info!(height = height.0, "stopped with a checkpoint");
        } else {
            tracing::warn!(
                height = height.0,
                "stopped without a checkpoint: the next start executes again what came after the \
                 last one"
            );
        }
        Ok(DriverExit::Stopped)
    }

    /// Waits while memory is short. Whether it waited.
    async fn wait_for_memory(&mut self) -> bool {
        if !self.observer.is_held() {
            return false;
        }
        let until = self.clock.now() + MEMORY_TIMEOUT;
        while self.observer.is_held() && !self.stop.is_closing() {
            let left = until.saturating_sub(self.clock.now());
            if left.is_zero() {
                break;
            }
            self.clock.sleep(left.min(MEMORY_CHECK_EVERY), &self.stop).await;
        }
        true
    }

    /// Refuses updates because of the block log and waits.
    async fn wait_for_log(&mut self, backoff: &mut Backoff, error: ConsensusError) {
        self.refuse(Cause::Log, format!("the disk takes no blocks now ({error})"));
        self.clock.sleep(backoff.next(), &self.stop).await;
    }

    fn clear_log_fault(&mut self, backoff: &mut Backoff) {
        *backoff = Backoff::default();
        if self.health.withdraw(Cause::Log) {
            tracing::info!("the block log takes blocks again");
        }
    }

    fn refuse(&self, cause: Cause, reason: String) {
        if self.health.refuse(cause, reason.clone()) {
            tracing::error!(%reason, "updates are refused until this is mended");
        }
    }

    /// Refuses updates while less than the reserve is free, and takes them again when there is
    /// room.
    fn watch_disk(&mut self) {
        let now = self.clock.now();
        if self.disk_checked.is_some_and(|at| now.saturating_sub(at) < DISK_CHECK_EVERY) {
            return;
        }
        self.disk_checked = Some(now);
        let (disk, reserve) = (&self.disk, self.settings.disk_reserve_bytes);
        match disk.free_bytes() {
            Ok(free) if free < reserve => self.refuse(
                Cause::Disk,
                format!(
                    "{disk} has {free} bytes free, under the reserve of {reserve} \
                     (disk_reserve_bytes): free some disk"
                ),
            ),
            Ok(_) if self.health.has(Cause::Disk) => match disk.write() {
                Ok(()) => {
                    self.health.withdraw(Cause::Disk);
                    tracing::info!("the disk has room again");
                }
                Err(error) => {
                    self.refuse(Cause::Disk, format!("{disk} cannot be written: {error}"))
                }
            },
            Ok(_) => {}
            Err(error) => self.refuse(Cause::Disk, format!("{disk}: {error}")),
        }
    }
}
