//! Admission of large frames: as many at once as `messages.admitted_bytes` has room for, in the
//! order in which they came. The others wait.
//!
//! Without it, every large frame that arrives is read a little at a time while the processor is
//! short, and none is complete before its sender gives up. A frame that waits is not read: the
//! multiplexer's buffers fill, and the rest stays in the socket, where TCP holds the sender back.
//!
//! The protocols interleave the streams of a connection, and have no way to hold back a single one
//! before it has sent 256 KiB. So the rest of an admitted frame may be behind bytes of frames that
//! wait, on a connection that is not read because these fill its buffers. Then no admitted frame
//! gets any bytes, and the line is *stuck*: frames that wait are refused, except one of each
//! connection, which its buffers always have room for
//! (`connections.unread_bytes_per_connection`). Refused frames are read and dropped, and
//! the rest of the admitted ones arrives.
//!
//! Bounds: a waiter for each stream. It must never know protocols, peers, and the content of
//! frames.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use thiserror::Error;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Bytes of a permit.
const PERMIT_BYTES: u64 = 1 << 10;
/// The line is stuck when no admitted frame got anything for this time.
const STUCK: Duration = Duration::from_millis(500);
/// Interval at which a waiter checks that.
const CHECK: Duration = Duration::from_millis(250);

/// See the module. Clones are the same line.
#[derive(Clone, Debug)]
pub(crate) struct Admission(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    permits: Arc<Semaphore>,
    permits_max: u32,
    since: Instant,
    /// Milliseconds from `since` to the last progress of an admitted frame.
    moved_millis: AtomicU64,
}

/// A frame's place among those that are admitted; dropping it frees it.
#[derive(Debug)]
pub(crate) struct AdmissionPermit {
    admission: Admission,
    _permit: OwnedSemaphorePermit,
}

/// A frame was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this node is busy with other large messages, as many as messages.admitted_bytes has room for; \
     try again in a second"
)]
pub(crate) struct NotAdmitted;

/// Frames of a connection that wait.
pub(crate) type WaitingFrames = AtomicUsize;

/// Counts one of [`WaitingFrames`] as long as it lives.
struct Waiting<'a>(&'a WaitingFrames);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Admission {
    /// For frames of `bytes` bytes together.
    pub(crate) fn new(bytes: u64) -> Self {
        let permits_max = u32::try_from(bytes / PERMIT_BYTES).unwrap_or(u32::MAX).max(1);
        let permits = Semaphore::new(usize::try_from(permits_max).unwrap_or(usize::MAX));
        Self(Arc::new(Inner {
            permits: Arc::new(permits),
            permits_max,
            since: Instant::now(),
            moved_millis: AtomicU64::new(0),
        }))
    }

    /// Admits a frame of `bytes` bytes when it is its turn, within `time`. `waiting` counts the
    /// frames of its connection that wait. `check` is called a few times a second meanwhile.
    pub(crate) async fn admit(
        &self,
        bytes: usize,
        time: Duration,
        waiting: &WaitingFrames,
        mut check: impl FnMut(),
    ) -> Result<AdmissionPermit, NotAdmitted> {
        let permits = (bytes as u64).div_ceil(PERMIT_BYTES);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX).min(self.0.permits_max);
        let semaphore = &self.0.permits;
        if let Ok(permit) = semaphore.clone().try_acquire_many_owned(permits) {
            return Ok(self.admitted(permit));
        }
        let is_first = waiting.fetch_add(1, Relaxed) == 0;
        let _waiting = Waiting(waiting);
        let deadline = Instant::now() + time;
        let mut acquiring = pin!(semaphore.clone().acquire_many_owned(permits));
        while Instant::now() < deadline && (is_first || !self.is_stuck()) {
            let until = deadline.min(Instant::now() + CHECK);
            match timeout_at(until, acquiring.as_mut()).await {
                Ok(Ok(permit)) => return Ok(self.admitted(permit)),
                // The semaphore is never closed.
                Ok(Err(_)) => break,
                Err(_) => check(),
            }
        }
        Err(NotAdmitted)
    }

    fn admitted(&self, permit: OwnedSemaphorePermit) -> AdmissionPermit {
        self.moved();
        AdmissionPermit { admission: self.clone(), _permit: permit }
    }

    fn moved(&self) {
        let millis = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.moved_millis.store(millis, Relaxed);
    }

    fn is_stuck(&self) -> bool {
        let moved = Duration::from_millis(self.0.moved_millis.load(Relaxed));
        self.0.since.elapsed().saturating_sub(moved) >= STUCK
    }
}

impl AdmissionPermit {
    /// The frame got some of its bytes.
    pub(crate) fn moved(&self) {
        self.admission.moved();
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.admission.moved();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    async fn admit(admission: &Admission, bytes: usize) -> AdmissionPermit {
        admission.admit(bytes, LONG, &WaitingFrames::default(), || {}).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn large_frames_are_admitted_in_the_order_in_which_they_came() {
        let admission = Admission::new(300 << 10);
        let held = admit(&admission, 200 << 10).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let begin = |name: &'static str, bytes: usize| {
            let (admission, order) = (admission.clone(), order.clone());
            tokio::spawn(async move {
                let admitted = admit(&admission, bytes).await;
                order.lock().unwrap().push(name);
                drop(admitted);
            })
        };
        let large = begin("large", 250 << 10);
        tokio::task::yield_now().await;
        // It would have room, and does not overtake.
        let small = begin("small", 50 << 10);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(order.lock().unwrap().is_empty());
        drop(held);
        large.await.unwrap();
        small.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["large", "small"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_line_refuses_all_but_the_first_frame_of_a_connection() {
        let admission = Admission::new(100 << 10);
        let held = admit(&admission, 100 << 10).await;
        let waiting = Arc::new(WaitingFrames::default());
        let begin = || {
            let (admission, waiting) = (admission.clone(), waiting.clone());
            tokio::spawn(async move {
                let began = Instant::now();
                let admitted = admission.admit(9 << 10, 10 * STUCK, &waiting, || {}).await;
                (admitted.map(drop), began.elapsed())
            })
        };
        let first = begin();
        tokio::task::yield_now().await;
        let second = begin();
        let (refused, after) = second.await.unwrap();
        assert_eq!(refused, Err(NotAdmitted));
        assert!((STUCK..2 * STUCK).contains(&after), "{after:?}");
        assert_eq!(waiting.load(Relaxed), 1);
        // While an admitted frame gets bytes, a further one waits its time.
        let third = begin();
        for _ in 0..16 {
            held.moved();
            tokio::time::sleep(STUCK / 4).await;
        }
        assert!(!third.is_finished());
        drop(held);
        assert_eq!(third.await.unwrap().0, Ok(()));
        assert_eq!(first.await.unwrap().0, Ok(()));
        assert_eq!(waiting.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_waits_no_longer_than_its_time_and_reports_meanwhile() {
        let admission = Admission::new(100 << 10);
        let _held = admit(&admission, 1 << 30).await;
        let (waiting, mut checks) = (WaitingFrames::default(), 0);
        let began = Instant::now();
        let time = Duration::from_secs(5);
        let refused = admission.admit(1, time, &waiting, || checks += 1).await;
        assert_eq!(refused.map(drop), Err(NotAdmitted));
        assert_eq!((began.elapsed().as_secs(), checks), (5, 20));
    }
}
