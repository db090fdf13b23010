//! The thread that computes manifests, one at a time, and waiting for them.
//!
//! A disk that is full or does not answer does not end the node: the computation is tried again,
//! with a warning, and a round that needs the root waits meanwhile. Only when that has gone on for
//! [`ATTEMPTS_MAX`] attempts, or what is on disk is damaged, does waiting end with the error. For
//! descriptors there is no such bound.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use state::manifest::LeafHash;
use state::{Height, StateStore};

use crate::compute::{self, Failure, Job};
use crate::error::ManifestError;
use crate::snapshot::Snapshot;
use crate::source::SnapshotSource;

/// Attempts on a disk that does not take it.
const ATTEMPTS_MAX: u32 = 60;
/// The same for lack of descriptors, which others release at their own pace.
const DESCRIPTOR_ATTEMPTS_MAX: u32 = 300;
/// Between two attempts.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
enum JobState {
    #[default]
    None,
    Running,
    Known(Height, LeafHash),
    Failed(String),
}

#[derive(Default)]
struct WorkerShared {
    work: Mutex<JobState>,
    changed: Condvar,
    stop: AtomicBool,
}

impl WorkerShared {
    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, work: JobState) {
        *self.lock() = work;
        self.changed.notify_all();
    }

    /// Waits, or until the node stops; returns whether it stops.
    fn pause(&self, time: Duration) -> bool {
        let work = self.lock();
        let stopped = |_: &mut JobState| !self.stop.load(Ordering::Relaxed);
        // A poisoned lock is as good as any: nothing is read.
        drop(self.changed.wait_timeout_while(work, time, stopped));
        self.stop.load(Ordering::Relaxed)
    }
}

/// The thread that computes manifests, see the module.
pub struct ManifestWorker {
    shared: Arc<WorkerShared>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl ManifestWorker {
    /// Starts the thread, which publishes its results in `snapshots`.
    pub fn start(store: Arc<StateStore>, snapshots: SnapshotSource) -> Result<Self, ManifestError> {
        let shared = Arc::new(WorkerShared::default());
        let (jobs, received) = sync_channel::<Job>(1);
        let working = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("manifest".into())
            .spawn(move || {
                for job in received {
                    work_on(&working, &store, &snapshots, job);
                }
            })
            .map_err(|error| ManifestError::Thread(error.to_string()))?;
        Ok(Self { shared, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Begins a manifest. The one before is finished by then: its root was waited for.
    ///
    /// # Errors
    /// When the thread is gone, or still has another to do.
    pub fn begin(&self, job: Job) -> Result<(), ManifestError> {
        self.shared.set(JobState::Running);
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => Ok(()),
            _ => Err(ManifestError::Thread("it takes no work".into())),
        }
    }

    /// The manifest of this height was computed before a restart.
    pub fn known(&self, height: Height, root: LeafHash) {
        self.shared.set(JobState::Known(height, root));
    }

    /// Whether one is being computed.
    pub fn is_busy(&self) -> bool {
        matches!(*self.shared.lock(), JobState::Running)
    }

    /// The root of the manifest of this height, waited for. A computation that failed for good
    /// fails every caller.
    ///
    /// # Errors
    /// When the computation failed for good, or none was begun for this height.
    pub fn wait(&self, height: Height) -> Result<LeafHash, ManifestError> {
        let mut work = self.shared.lock();
        while matches!(*work, JobState::Running) {
            work = self.shared.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        let reason = match &*work {
            JobState::Known(known, root) if *known == height => return Ok(*root),
            JobState::Failed(reason) => reason.clone(),
            _ => "it was never begun".into(),
        };
        Err(ManifestError::Failed { height: height.0, reason })
    }
}

impl Drop for ManifestWorker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has no result.
            let _ = thread.join();
        }
    }
}

fn work_on(shared: &WorkerShared, store: &StateStore, snapshots: &SnapshotSource, job: Job) {
    let height = job.height;
    let _notifier = PanicNotifier(shared);
    let (mut attempts, mut without_descriptors) = (0, 0);
    let outcome = loop {
        match compute::compute(store, &job, &shared.stop) {
            Ok(header) => break publish_snapshot(store, snapshots, header, job),
            Err(Failure::Stopped) => break JobState::None,
            Err(Failure::Write) => {
                break JobState::Failed("the store did not say what failed".into());
            }
            Err(Failure::Error(error)) if error.can_heal() => {
                let (attempts, attempts_max) = match error.wants_descriptors() {
                    true => (&mut without_descriptors, DESCRIPTOR_ATTEMPTS_MAX),
                    false => (&mut attempts, ATTEMPTS_MAX),
                };
                *attempts += 1;
                if *attempts > attempts_max {
                    break JobState::Failed(error.to_string());
                }
                tracing::warn!(%error, height = height.0, "computing a manifest failed and is tried again");
                if shared.pause(RETRY_AFTER) {
                    break JobState::None;
                }
            }
            Err(Failure::Error(error)) => break JobState::Failed(error.to_string()),
        }
    };
    shared.set(outcome);
}

fn publish_snapshot(
    store: &StateStore,
    snapshots: &SnapshotSource,
    header: state::manifest::Header,
    job: Job,
) -> JobState {
    let (height, root) = (header.height, header.root());
    match store.load() {
        Ok(Some(checkpoint)) if checkpoint.height == height => {
            snapshots.computed(Arc::new(Snapshot::new(header, checkpoint, job.pinned)));
        }
        // Peers cannot fetch it here; the root is known all the same.
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "a snapshot cannot be shown"),
    }
    JobState::Known(height, root)
}

/// If the thread panics, waiting threads are notified.
struct PanicNotifier<'a>(&'a WorkerShared);

impl Drop for PanicNotifier<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(JobState::Failed("the thread that computed it panicked".into()));
        }
    }
}
