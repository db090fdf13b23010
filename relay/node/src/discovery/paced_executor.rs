//! The tasks of the discovery protocol, woken at a limited rate.
//!
//! The protocol's crate takes packets of unknown nodes at a rate, and all packets of an address
//! from which it waits for an answer. An unknown node becomes such an address by its first packet,
//! as that is answered by a challenge; each further one, under another id, then makes another
//! challenge, which is kept for a second. Only the rate at which the tasks run bounds that: in one
//! run a task takes at most as many packets as tokio's budget for a task allows (128 operations,
//! two for a packet). Faster packets wait in the socket's buffer, and are dropped by the kernel
//! when that is full.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use discv5::Executor;
use tokio::time::{Instant, Sleep};

/// A task runs at most once in this time, on average.
const PACE: Duration = Duration::from_millis(40);
/// Number of times that it may run at once after idling.
const BURST: u32 = 25;

/// Starts tasks that are woken at most so often.
#[derive(Clone, Debug)]
pub(crate) struct PacedExecutor;

impl Executor for PacedExecutor {
    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let now = Instant::now();
        tokio::spawn(Task { work, next: now, wait: Box::pin(tokio::time::sleep_until(now)) });
    }
}

struct Task {
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// When it had gone on as often as it may, had it done so evenly.
    next: Instant,
    wait: Pin<Box<Sleep>>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let earliest = self.next.checked_sub(PACE * (BURST - 1)).unwrap_or(self.next);
        if now < earliest {
            self.wait.as_mut().reset(earliest);
            if self.wait.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        self.next = self.next.max(now) + PACE;
        self.work.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    };

    use super::*;

    #[tokio::test]
    async fn a_task_that_always_wants_to_go_on_does_so_at_its_pace() {
        let polls = Arc::new(AtomicU32::new(0));
        let count = polls.clone();
        let began = Instant::now();
        PacedExecutor.spawn(Box::pin(std::future::poll_fn(move |context| {
            count.fetch_add(1, Relaxed);
            context.waker().wake_by_ref();
            Poll::Pending
        })));
        // It keeps running, and never faster than allowed, however slow the machine is.
        while polls.load(Relaxed) < BURST + 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let seen = polls.load(Relaxed);
            let most = began.elapsed().as_nanos() / PACE.as_nanos() + u128::from(BURST);
            assert!(u128::from(seen) <= most, "{seen} of {most} after {:?}", began.elapsed());
        }
    }
}
