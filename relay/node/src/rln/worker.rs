//! The thread that verifies proofs: as many at a time as wait, and never on a network thread.
//!
//! Its queue is never waited for by a network thread: a message has one of the pending places
//! before it is queued, and there are no more places than the queue has room for. After a batch
//! with a false proof the next proofs are verified one by one, and batches grow again as proofs are
//! true: false proofs cost little more than true ones.
//!
//! Bounds: [`relay_limits::RlnLimits::pending_messages`] jobs, `batch_proofs` of them at a time. It
//! must never know peers, roots and clocks.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread,
};

use anyhow::{Context, Result};
use ark_bn254::Fr;
use disk::Disk;
use protocol::{RateLimitProof, WakuMessage};
use tokio::sync::oneshot;

use super::{
    groth16::{Claim, Verifier},
    nullifiers::{Entry, NullifierLog, NullifierUse},
    refusal::{ProofCounters, ProofRefusal},
    signal::{claim, external_nullifier},
};

/// Of which the equation touches some tens of kilobytes; a batch is on the heap.
const STACK_BYTES: usize = 512 << 10;

/// A message whose proof is to be verified.
pub(super) struct Job {
    pub(super) message: WakuMessage,
    /// Its id, as it was sent.
    pub(super) id: [u8; 32],
    pub(super) proof: RateLimitProof,
    /// The number of the proof's epoch.
    pub(super) epoch: u64,
    /// Whether its nullifier is noted.
    pub(super) notes: bool,
    pub(super) judged: oneshot::Sender<Result<(), ProofRefusal>>,
}

/// Where the thread keeps nullifiers, and how much it does at a time.
pub(super) struct WorkerConfig<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) folder: &'a Path,
    /// Of one epoch.
    pub(super) nullifiers: u64,
    /// Jobs that wait at most.
    pub(super) queue: usize,
    /// Proofs verified at a time at most.
    pub(super) batch: usize,
}

/// Starts the thread; it ends when the sender is dropped.
pub(super) fn start(
    config: &WorkerConfig<'_>,
    counters: Arc<ProofCounters>,
) -> Result<mpsc::SyncSender<Job>> {
    let (jobs_tx, jobs_rx) = mpsc::sync_channel(config.queue);
    let mut worker = Worker {
        verifier: Verifier::new()?,
        log: NullifierLog::open(config.disk, config.folder, config.nullifiers)?,
        external_nullifier: None,
        counters,
        batch: config.batch.max(1),
        batch_now: config.batch.max(1),
    };
    let work = move || {
        while let Ok(first) = jobs_rx.recv() {
            let more = jobs_rx.try_iter().take(worker.batch_now - 1);
            let jobs: Vec<Job> = std::iter::once(first).chain(more).collect();
            worker.judge(jobs);
        }
    };
    thread::Builder::new()
        .name("rln".into())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .context("starting the thread that verifies proofs")?;
    Ok(jobs_tx)
}

struct Worker {
    verifier: Verifier,
    log: NullifierLog,
    /// Of the epoch of the last message.
    external_nullifier: Option<(u64, Fr)>,
    counters: Arc<ProofCounters>,
    /// Proofs verified at a time, at most and at the moment.
    batch: usize,
    batch_now: usize,
}

impl Worker {
    fn judge(&mut self, jobs: Vec<Job>) {
        let (mut waiting, mut claims) = (Vec::with_capacity(jobs.len()), Vec::new());
        for job in jobs {
            match self.claim(&job) {
                Ok(claim) => {
                    waiting.push(job);
                    claims.push(claim);
                }
                Err(refusal) => answer(job, Err(refusal)),
            }
        }
        if claims.is_empty() {
            return;
        }
        let found = self.verifier.verify(&claims);
        self.counters.verified.fetch_add(claims.len() as u64, Relaxed);
        self.counters.batches.fetch_add(1, Relaxed);
        let all_are_true = found.iter().all(|is_true| *is_true);
        self.batch_now = if all_are_true { (self.batch_now * 2).min(self.batch) } else { 1 };
        for (job, is_true) in waiting.into_iter().zip(found) {
            let judged = if is_true { self.note(&job) } else { Err(ProofRefusal::False) };
            answer(job, judged);
        }
    }

    /// The claim of a job that may be true. Whether its equation holds or not, a second share under
    /// a nullifier is rejected, and other bytes of one signal are not passed on: neither needs it
    /// to be computed.
    fn claim(&mut self, job: &Job) -> Result<Claim, ProofRefusal> {
        let noted = self.log.look_up(job.epoch, &entry(job)).map_err(log_failed)?;
        refused(noted)?;
        let nullifier = match self.external_nullifier {
            Some((epoch, nullifier)) if epoch == job.epoch => nullifier,
            _ => {
                let nullifier = external_nullifier(&job.proof.epoch);
                self.external_nullifier = Some((job.epoch, nullifier));
                nullifier
            }
        };
        claim(&job.message, &job.proof, nullifier).ok_or(ProofRefusal::False)
    }

    fn note(&mut self, job: &Job) -> Result<(), ProofRefusal> {
        let entry = entry(job);
        let noted = if job.notes {
            self.log.note(job.epoch, &entry)
        } else {
            self.log.look_up(job.epoch, &entry)
        };
        refused(noted.map_err(log_failed)?)
    }
}

fn entry(job: &Job) -> Entry {
    Entry::new(&job.proof.nullifier, &job.proof.share_x, &job.id)
}

fn refused(noted: NullifierUse) -> Result<(), ProofRefusal> {
    match noted {
        // The same bytes come again when they could not be stored: the store knows those it has.
        NullifierUse::New | NullifierUse::Same => Ok(()),
        NullifierUse::OtherBytes => Err(ProofRefusal::Repeated),
        NullifierUse::OtherShare => Err(ProofRefusal::Spam),
        NullifierUse::Full => Err(ProofRefusal::Log("rln.nullifiers_per_epoch is reached".into())),
    }
}

fn log_failed(error: std::io::Error) -> ProofRefusal {
    ProofRefusal::Log(error.to_string())
}

fn answer(job: Job, judged: Result<(), ProofRefusal>) {
    // The one who asked may be gone.
    let _ = job.judged.send(judged);
}
