//! The disk and the wall clock of a simulated node: the disk can be slow, and the node can end in
//! the middle of any of its operations; the clock can jump.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use commonware_runtime::{Clock, Error};
use consensus::{Attempt, BlobLog, Layer, Operation, WallClock};
use futures::{FutureExt as _, future::BoxFuture};
use state::Time;

use crate::simulation::{Context, faulty_machine::MachineFaults, net::time_of};

/// Reads and writes mostly meet the operating system's cache: they wait for this part of what
/// making durable takes.
const CACHED: u64 = 20;

/// No operation is the last.
const ENDLESS: u64 = u64::MAX;

/// Faults of a disk; may change while the node runs.
pub(crate) struct Disk {
    /// Milliseconds it takes to make something durable.
    sync_millis: AtomicU64,
    operations_left: AtomicU64,
    last_is_done: AtomicBool,
    /// Writes and syncs so far; one of this number fails, none if it is 0.
    changes: AtomicU64,
    fails_every: AtomicU64,
    /// Milliseconds by which the wall clock is ahead of the others', or behind.
    clock_ahead_millis: AtomicI64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            sync_millis: AtomicU64::new(0),
            operations_left: AtomicU64::new(ENDLESS),
            last_is_done: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            fails_every: AtomicU64::new(0),
            clock_ahead_millis: AtomicI64::new(0),
        }
    }
}

/// Fate of an operation.
enum OperationFate {
    /// It is carried out.
    Done,
    /// It is carried out, and its result is lost.
    Last,
    /// It is not carried out.
    Over,
}

impl Disk {
    pub(crate) fn slow(&self, sync_millis: u64) {
        self.sync_millis.store(sync_millis, Ordering::Relaxed);
    }

    /// The operation of this number, counted from now, is the last; it may be done, or not even
    /// begun.
    pub(crate) fn end_with(&self, operation: u64, done: bool) {
        self.operations_left.store(operation, Ordering::Relaxed);
        self.last_is_done.store(done, Ordering::Relaxed);
    }

    /// The wall clock continues from here, ahead of the others' by `ahead_millis`.
    pub(crate) fn jump(&self, ahead_millis: i64) {
        self.clock_ahead_millis.store(ahead_millis, Ordering::Relaxed);
    }

    pub(crate) fn endless(&self) {
        self.operations_left.store(ENDLESS, Ordering::Relaxed);
    }

    /// One write or sync of this number fails; none if it is 0.
    pub(crate) fn fail_every(&self, changes: u64) {
        self.fails_every.store(changes, Ordering::Relaxed);
    }

    fn next_change_fails(&self) -> bool {
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let every = self.fails_every.load(Ordering::Relaxed);
        every > 0 && number.is_multiple_of(every)
    }

    fn next_fate(&self) -> OperationFate {
        match self.operations_left.load(Ordering::Relaxed) {
            ENDLESS => OperationFate::Done,
            0 => OperationFate::Over,
            left => {
                self.operations_left.store(left - 1, Ordering::Relaxed);
                match left {
                    1 if self.last_is_done.load(Ordering::Relaxed) => OperationFate::Last,
                    1 => OperationFate::Over,
                    _ => OperationFate::Done,
                }
            }
        }
    }
}

/// Storage of the node, with its faults.
#[derive(Clone)]
pub(crate) struct DiskLayer {
    pub(crate) clock: Arc<Context>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) faults: Arc<MachineFaults>,
    pub(crate) blobs: BlobLog,
}

/// Not to be tried again.
fn ended() -> Error {
    Error::Closed
}

impl Layer for DiskLayer {
    fn blobs(&self) -> Option<&BlobLog> {
        Some(&self.blobs)
    }

    fn storage<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        mut attempt: Attempt<'a, T>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let meets = async move {
            let durable =
                matches!(operation, Operation::Open | Operation::Remove | Operation::Sync);
            let millis =
                self.disk.sync_millis.load(Ordering::Relaxed) / if durable { 1 } else { CACHED };
            if millis > 0 {
                self.clock.sleep(Duration::from_millis(millis)).await;
            }
            let grows = matches!(operation, Operation::Write | Operation::Resize);
            let changes = matches!(operation, Operation::Write | Operation::Sync);
            if changes && self.disk.next_change_fails() {
                return Err(std::io::Error::other("a simulated fault of the disk").into());
            }
            match self.disk.next_fate() {
                OperationFate::Done if grows && self.faults.is_full() => {
                    Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into())
                }
                OperationFate::Done => attempt().await,
                OperationFate::Last => attempt().await.and(Err(ended())),
                OperationFate::Over => Err(ended()),
            }
        };
        meets.boxed()
    }
}

/// The wall clock of a machine.
pub(crate) struct SimulatedWallClock(pub(crate) Context, pub(crate) Arc<Disk>);

impl WallClock for SimulatedWallClock {
    fn now(&self) -> Time {
        let ahead = self.1.clock_ahead_millis.load(Ordering::Relaxed).saturating_mul(1_000_000);
        Time(time_of(self.0.current()).0.saturating_add_signed(ahead))
    }
}
