//! Query workers, handed out in the order of arrival.
//!
//! A canister at its share of the workers is passed over, so that the queries behind its own are
//! not held up. Waiting is bounded. Few threads wait here: the gateway admits as many queries and
//! as many checks of calls as there are workers, and outcalls run two transforms.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use state::{CanisterId, Reject};

use crate::reject;

pub(super) struct Lanes {
    per_canister_max: u64,
    wait: Duration,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<usize>,
    per_canister: BTreeMap<CanisterId, u64>,
    /// Waiting threads in the order of arrival.
    line: VecDeque<(u64, CanisterId)>,
    next_ticket: u64,
}

/// A query worker in use.
pub(super) struct Permit<'a> {
    lanes: &'a Lanes,
    pub(super) lane: usize,
    canister_id: CanisterId,
}

impl State {
    fn next(&self, per_canister_max: u64) -> Option<u64> {
        let used = |id: &CanisterId| self.per_canister.get(id).copied().unwrap_or(0);
        self.line.iter().find(|(_, id)| used(id) < per_canister_max).map(|(ticket, _)| *ticket)
    }
}

impl Lanes {
    pub(super) fn new(lanes: u64, per_canister_max: u64, wait: Duration) -> Self {
        let lanes = usize::try_from(lanes.max(1)).unwrap_or(1);
        Self {
            per_canister_max: per_canister_max.max(1),
            wait,
            state: Mutex::new(State { free: (0..lanes).rev().collect(), ..State::default() }),
            freed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker.
    ///
    /// # Errors
    /// When the wait is over.
    pub(super) fn acquire(&self, canister_id: CanisterId) -> Result<Permit<'_>, Reject> {
        let until = Instant::now() + self.wait;
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.line.push_back((ticket, canister_id));
        loop {
            if state.next(self.per_canister_max) == Some(ticket)
                && let Some(lane) = state.free.pop()
            {
                state.line.retain(|(waiting, _)| *waiting != ticket);
                *state.per_canister.entry(canister_id).or_default() += 1;
                let is_next_waiting = !state.line.is_empty() && !state.free.is_empty();
                drop(state);
                if is_next_waiting {
                    self.freed.notify_all();
                }
                return Ok(Permit { lanes: self, lane, canister_id });
            }
            let now = Instant::now();
            if now >= until {
                state.line.retain(|(waiting, _)| *waiting != ticket);
                drop(state);
                // The next in line may have waited for this one.
                self.freed.notify_all();
                return Err(reject::no_query_worker(self.wait.as_secs(), self.per_canister_max));
            }
            state = self
                .freed
                .wait_timeout(state, until - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.lanes.lock();
        state.free.push(self.lane);
        if let Some(used) = state.per_canister.get_mut(&self.canister_id) {
            *used -= 1;
            if *used == 0 {
                state.per_canister.remove(&self.canister_id);
            }
        }
        drop(state);
        self.lanes.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;
    use crate::ExecutorConfig;

    const LONG: Duration = Duration::from_secs(60);

    fn id(number: u64) -> CanisterId {
        ExecutorConfig::canister_id(number)
    }

    fn wait_for_line(lanes: &Lanes, length: usize) {
        while lanes.lock().line.len() < length {
            std::thread::yield_now();
        }
    }

    #[test]
    fn workers_come_back_and_one_canister_does_not_take_them_all() {
        let lanes = Lanes::new(2, 1, LONG);
        let first = lanes.acquire(id(1)).unwrap();
        let second = lanes.acquire(id(2)).unwrap();
        assert_ne!(first.lane, second.lane);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lanes.acquire(id(1)).unwrap().lane);
            let lane = first.lane;
            drop(first);
            assert_eq!(waiting.join().unwrap(), lane);
        });
        drop(second);
        assert!(lanes.lock().per_canister.is_empty());
        assert_eq!(lanes.lock().free.len(), 2);
    }

    #[test]
    fn canister_at_its_share_is_passed_over_and_the_others_are_served_in_order() {
        let lanes = Lanes::new(2, 1, LONG);
        let (first, second) = (lanes.acquire(id(1)).unwrap(), lanes.acquire(id(2)).unwrap());
        let (served_tx, served_rx) = mpsc::channel();
        std::thread::scope(|scope| {
            for (length, number) in [(1, 1), (2, 3), (3, 4)] {
                let (lanes, served_tx) = (&lanes, served_tx.clone());
                scope.spawn(move || {
                    let permit = lanes.acquire(id(number)).unwrap();
                    served_tx.send(number).unwrap();
                    drop(permit);
                });
                wait_for_line(lanes, length);
            }
            // The first in line belongs to a canister that still has its worker.
            drop(second);
            assert_eq!([served_rx.recv().unwrap(), served_rx.recv().unwrap()], [3, 4]);
            drop(first);
            assert_eq!(served_rx.recv().unwrap(), 1);
        });
        assert!(lanes.lock().line.is_empty());
    }

    #[test]
    fn wait_for_a_worker_ends_with_the_limit_and_its_value() {
        let lanes = Lanes::new(1, 1, Duration::ZERO);
        let held = lanes.acquire(id(1)).unwrap();
        let refused = lanes.acquire(id(2)).err().unwrap();
        assert!(refused.message.contains("execution.query_wait_seconds = 0"), "{refused:?}");
        assert!(lanes.lock().line.is_empty());
        drop(held);
        assert!(lanes.acquire(id(2)).is_ok());
    }
}
