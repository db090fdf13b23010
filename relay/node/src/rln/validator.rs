//! Judges a message by its proof: what needs no equation first, then the worker's verdict.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::Result;
use disk::Disk;
use protocol::{DecodeError, RateLimitProof, WakuMessage};
use relay_limits::RlnLimits;
use router::MessageId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    refusal::{ProofCounters, ProofRefusal},
    roots::{Roots, RootsState},
    signal::{RLN_IDENTIFIER, epoch_bytes, epoch_of},
    worker::{self, Job, WorkerConfig},
};
use crate::settings::count;

/// How far a timestamp may be off the clock, in whole seconds: 17/WAKU2-RLN-RELAY.
const CLOCK_SECONDS_MAX: u64 = 20;
const NANOS: u64 = 1_000_000_000;

/// One of the places for messages whose proofs are being verified.
#[derive(Debug)]
pub(crate) struct Pending {
    _place: OwnedSemaphorePermit,
}

/// Verifies the proofs of one network's messages.
pub(crate) struct Validator {
    epoch_seconds: u64,
    roots: Arc<Roots>,
    pub(crate) counters: Arc<ProofCounters>,
    jobs: mpsc::SyncSender<Job>,
    /// Places of messages that are being judged, and how many there are.
    places: Arc<Semaphore>,
    places_max: usize,
    /// Those of them that may wait for a root.
    root_places: Semaphore,
    root_wait: Duration,
}

impl Validator {
    /// Opens the log of nullifiers in `folder` and starts the thread that verifies.
    pub(crate) fn open(
        epoch_seconds: u64,
        roots: Arc<Roots>,
        limits: &RlnLimits,
        disk: &dyn Disk,
        folder: &Path,
    ) -> Result<Self> {
        let counters = Arc::new(ProofCounters::default());
        let places_max = count(limits.pending_messages);
        let config = WorkerConfig {
            disk,
            folder,
            nullifiers: limits.nullifiers_per_epoch,
            queue: places_max,
            batch: count(limits.batch_proofs),
        };
        Ok(Self {
            epoch_seconds,
            roots,
            jobs: worker::start(&config, counters.clone())?,
            counters,
            places: Arc::new(Semaphore::new(places_max)),
            places_max,
            root_places: Semaphore::new(places_max / 2),
            root_wait: Duration::from_millis(limits.root_wait_millis),
        })
    }

    /// Messages that are being judged.
    pub(crate) fn pending(&self) -> usize {
        self.places_max.saturating_sub(self.places.available_permits())
    }

    /// Waits for a place. Places are given in the order in which they were asked for.
    pub(crate) async fn admit(&self) -> Option<Pending> {
        // An error is that the semaphore is closed, which it never is.
        self.places.clone().acquire_owned().await.ok().map(|place| Pending { _place: place })
    }

    /// Waits for a place for at most `time`. Errors: there was none.
    pub(crate) async fn admit_within(&self, time: Duration) -> Result<Pending, ProofRefusal> {
        if let Ok(Some(pending)) = tokio::time::timeout(time, self.admit()).await {
            return Ok(pending);
        }
        let busy = ProofRefusal::Busy(self.places_max);
        self.counters.count(&Err(busy.clone()));
        Err(busy)
    }

    /// Judges a message that arrived at `arrived_ns`, in nanoseconds since 1970.
    pub(crate) async fn judge(
        &self,
        _pending: &Pending,
        message: &WakuMessage,
        id: &MessageId,
        arrived_ns: i64,
    ) -> Result<(), ProofRefusal> {
        let judged = self.judge_new(message, id, arrived_ns).await;
        self.counters.count(&judged);
        judged
    }

    /// Judges a message that a store kept, which may be of an epoch long ago; `now_ns` is the time,
    /// in nanoseconds since 1970. Its root must be one of those that are valid still. Its nullifier
    /// is noted in the present epoch only: the log has no place for earlier ones.
    pub(crate) async fn judge_kept(
        &self,
        _pending: &Pending,
        message: &WakuMessage,
        id: &MessageId,
        now_ns: i64,
    ) -> Result<(), ProofRefusal> {
        let judged = match self.read(message) {
            Ok((proof, epoch)) if self.roots.contains(&proof.merkle_root) => {
                let notes = epoch == epoch_of(now_ns, self.epoch_seconds);
                self.verify(message, id, proof, epoch, notes).await
            }
            Ok(_) if self.roots.state() == RootsState::Absent => Err(ProofRefusal::NoRoots),
            Ok(_) => Err(ProofRefusal::Root),
            Err(refusal) => Err(refusal),
        };
        self.counters.count(&judged);
        judged
    }

    async fn judge_new(
        &self,
        message: &WakuMessage,
        id: &MessageId,
        arrived_ns: i64,
    ) -> Result<(), ProofRefusal> {
        let seconds = message.timestamp.unwrap_or_default().abs_diff(arrived_ns) / NANOS;
        let (proof, epoch) = match self.read(message) {
            // In the order of the reference: the clock is compared before the epoch.
            Ok(_) | Err(ProofRefusal::Epoch | ProofRefusal::Application)
                if seconds > CLOCK_SECONDS_MAX =>
            {
                return Err(ProofRefusal::Clock { seconds, most: CLOCK_SECONDS_MAX });
            }
            read => read?,
        };
        self.check_root(&proof.merkle_root).await?;
        self.verify(message, id, proof, epoch, true).await
    }

    /// Has the equation verified, and the nullifier noted if `notes`.
    async fn verify(
        &self,
        message: &WakuMessage,
        id: &MessageId,
        proof: RateLimitProof,
        epoch: u64,
        notes: bool,
    ) -> Result<(), ProofRefusal> {
        let (judged_tx, judged_rx) = oneshot::channel();
        let message = message.clone();
        let job = Job { message, id: id.0, proof, epoch, notes, judged: judged_tx };
        // There are as many places as the queue has room for; an error is that the thread ended.
        if self.jobs.try_send(job).is_err() {
            return Err(ProofRefusal::Busy(self.places_max));
        }
        judged_rx.await.unwrap_or(Err(ProofRefusal::Busy(self.places_max)))
    }

    /// The proof with the number of its epoch, if they fit the message.
    fn read(&self, message: &WakuMessage) -> Result<(RateLimitProof, u64), ProofRefusal> {
        let bytes = message.rate_limit_proof.as_ref().filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or(ProofRefusal::Absent)?;
        let proof = RateLimitProof::decode(bytes).map_err(|error| match error {
            DecodeError::Damaged { .. } | DecodeError::Truncated { .. } => ProofRefusal::Damaged,
            // As of the message itself (`protocol::validity`).
            _ => ProofRefusal::Disputed,
        })?;
        let timestamp = message.timestamp.filter(|at| *at != 0);
        let timestamp = timestamp.ok_or(ProofRefusal::NoTimestamp)?;
        let epoch = epoch_of(timestamp, self.epoch_seconds);
        if proof.epoch != epoch_bytes(epoch) {
            return Err(ProofRefusal::Epoch);
        }
        // The reference does not compare it. A sender that may choose it has as many rate limits as
        // it likes, so such messages are not passed on; peers that do are not at fault.
        if proof.rln_identifier != RLN_IDENTIFIER {
            return Err(ProofRefusal::Application);
        }
        Ok((proof, epoch))
    }

    /// Whether a root is valid. One that is not known may be that of a member that registered just
    /// now: the contract is asked, and the message waits.
    async fn check_root(&self, root: &[u8; 32]) -> Result<(), ProofRefusal> {
        if self.roots.contains(root) {
            return Ok(());
        }
        if self.roots.state() == RootsState::Absent {
            return Err(ProofRefusal::NoRoots);
        }
        let _place = self.root_places.try_acquire().map_err(|_| ProofRefusal::Root)?;
        if self.roots.wait_for(root, self.root_wait).await {
            Ok(())
        } else {
            Err(ProofRefusal::Root)
        }
    }
}
