//! The line in front of a full pool: waiters are served in order of arrival.
//!
//! Executions and compilations would rather wait than be refused, and a large reservation must not
//! starve behind a stream of small ones. So waiters queue in a line; only its head tries, the
//! others wait for it. Threads that do not wait (the refusing kind) bypass the line, because
//! refusing them while another thread waits would make their answer depend on the other threads.

use std::{
    collections::BTreeSet,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Most threads in one line. Lines are for the node's own few threads, never for one waiter per
/// request.
pub(crate) const WAITERS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Read by threads that return memory, to skip the lock when no thread waits.
    waiters: AtomicUsize,
    tickets: Mutex<Tickets>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    waiting: BTreeSet<u64>,
}

impl Line {
    /// Calls `take` until it gives something, in turn, for at most `timeout`.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now().checked_add(timeout);
        let mut tickets = self.lock();
        if tickets.waiting.len() >= WAITERS_MAX {
            return None;
        }
        let own = tickets.next;
        tickets.next += 1;
        tickets.waiting.insert(own);
        debug_assert!(
            tickets.waiting.len() <= WAITERS_MAX && tickets.waiting.last() == Some(&own),
            "waiter {own} is not the last of {}",
            tickets.waiting.len()
        );
        // Counted before the first attempt: a release that our attempt does not see yet will see
        // us, and wake us.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let taken = loop {
            if tickets.waiting.first() == Some(&own)
                && let Some(taken) = take()
            {
                break Some(taken);
            }
            tickets = match deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()))
            {
                None => self.moved.wait(tickets).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break None,
                Some(left) => {
                    self.moved.wait_timeout(tickets, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        let waited = tickets.waiting.remove(&own);
        debug_assert!(waited, "waiter {own} left before");
        let waiters = self.waiters.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(waiters > 0, "no waiter was counted");
        drop(tickets);
        // The next in line may fit into the rest, or take our place if we gave up.
        self.moved.notify_all();
        taken
    }

    /// Whether a thread waits in line.
    pub(crate) fn is_occupied(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// To be called after memory was returned.
    pub(crate) fn wake(&self) {
        if self.is_occupied() {
            // Taking the lock orders this after any attempt under way, so that its waiter is asleep
            // and hears us.
            drop(self.lock());
            self.moved.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tickets> {
        // The line stays consistent whatever `take` panics about: tickets are plain numbers.
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
