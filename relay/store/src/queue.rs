//! A queue between threads, bounded by count and by bytes. It never grows past either, one item
//! excepted that alone is over the bound of bytes; callers that push choose between waiting and
//! being refused.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
    count_max: usize,
    bytes_max: u64,
}

struct State<T> {
    items: VecDeque<(T, u64)>,
    bytes: u64,
    closed: bool,
    /// Number of items at which the taker is to be woken.
    enough: usize,
    /// Items must not be left to gather.
    flush_requested: bool,
}

impl<T> State<T> {
    fn is_enough(&self) -> bool {
        self.items.len() >= self.enough || self.flush_requested || self.closed
    }
}

pub(crate) enum PushError {
    Full { count: usize, bytes: u64 },
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(count_max: usize, bytes_max: u64) -> Self {
        let state = State {
            items: VecDeque::new(),
            bytes: 0,
            closed: false,
            enough: 1,
            flush_requested: false,
        };
        Self {
            state: Mutex::new(state),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            count_max,
            bytes_max,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, state: &State<T>, bytes: u64) -> bool {
        state.items.is_empty()
            || state.items.len() < self.count_max
                && state.bytes.saturating_add(bytes) <= self.bytes_max
    }

    /// Adds an item without waiting. Errors: the queue is full or closed.
    pub(crate) fn try_push(&self, item: T, bytes: u64) -> Result<(), PushError> {
        let mut state = self.state();
        if state.closed {
            return Err(PushError::Closed);
        }
        if !self.fits(&state, bytes) {
            return Err(PushError::Full { count: state.items.len(), bytes: state.bytes });
        }
        self.add(&mut state, item, bytes);
        self.wake(&state);
        Ok(())
    }

    /// Waits for room for each item; those left when the queue is closed are dropped.
    pub(crate) fn push_all(&self, items: impl Iterator<Item = (T, u64)>) {
        let mut state = self.state();
        for (item, bytes) in items {
            while !state.closed && !self.fits(&state, bytes) {
                state.flush_requested = true;
                self.filled.notify_one();
                state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closed {
                return;
            }
            self.add(&mut state, item, bytes);
        }
        self.wake(&state);
    }

    fn add(&self, state: &mut State<T>, item: T, bytes: u64) {
        state.bytes += bytes;
        state.items.push_back((item, bytes));
        let (count, bytes) = (state.items.len(), state.bytes);
        debug_assert!(
            count == 1 || (count <= self.count_max && bytes <= self.bytes_max),
            "{count} items of {bytes} bytes, the most is {} of {}",
            self.count_max,
            self.bytes_max
        );
    }

    fn wake(&self, state: &State<T>) {
        if state.is_enough() {
            self.filled.notify_one();
        }
    }

    /// Lets items gather until `enough` wait, for `linger` from the first one on at most; not when
    /// [`Self::flush`] was called, or a thread waits for room. Returns without items after
    /// `timeout`. For a queue with one taker.
    pub(crate) fn gather(&self, enough: usize, timeout: Duration, linger: Duration) {
        let mut state = self.wait(self.state(), timeout);
        if state.items.is_empty() {
            return;
        }
        state.enough = enough;
        self.wait(state, linger).enough = 1;
    }

    /// Waiting items, and those that arrive until they are taken, do not gather.
    pub(crate) fn flush(&self) {
        self.state().flush_requested = true;
        self.filled.notify_all();
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State<T>>,
        timeout: Duration,
    ) -> MutexGuard<'a, State<T>> {
        let gathers =
            |state: &mut State<T>| !state.closed && (state.items.is_empty() || !state.is_enough());
        self.filled
            .wait_timeout_while(state, timeout, gathers)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Waits for at least one item, at most `timeout`, and takes the waiting items, up to the
    /// maximum. Empty after the timeout; `None` when the queue is closed and empty.
    pub(crate) fn take(
        &self,
        count_max: usize,
        bytes_max: u64,
        timeout: Duration,
    ) -> Option<Vec<T>> {
        let mut state = self.wait(self.state(), timeout);
        if state.items.is_empty() {
            return if state.closed { None } else { Some(Vec::new()) };
        }
        let (mut taken, mut bytes) = (Vec::new(), 0u64);
        while taken.len() < count_max {
            let next = state.items.front().map(|(_, item_bytes)| *item_bytes);
            let Some(next) = next else { break };
            if !taken.is_empty() && bytes.saturating_add(next) > bytes_max {
                break;
            }
            if let Some((item, _)) = state.items.pop_front() {
                assert!(state.bytes >= next, "an item of {next} bytes of {} in all", state.bytes);
                bytes += next;
                state.bytes -= next;
                taken.push(item);
            }
        }
        state.flush_requested = false;
        let more = !state.items.is_empty();
        debug_assert!(more || state.bytes == 0, "{} bytes of no item", state.bytes);
        // A queue that was once long does not keep its memory.
        if !more && state.items.capacity() > 64 {
            state.items = VecDeque::new();
        }
        drop(state);
        self.emptied.notify_all();
        if more {
            self.filled.notify_one();
        }
        Some(taken)
    }

    /// Closes the queue to new items; waiting items can still be taken.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn count(&self) -> usize {
        self.state().items.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn gather_and_take(queue: &Queue<u32>, linger: Duration) -> Option<Vec<u32>> {
        queue.gather(10, LONG, linger);
        queue.take(100, u64::MAX, Duration::ZERO)
    }

    #[test]
    fn items_gather_until_there_are_enough_or_the_time_is_over() {
        let queue = Arc::new(Queue::new(100, u64::MAX));
        let taker = queue.clone();
        let taking = thread::spawn(move || gather_and_take(&taker, LONG));
        for item in 0..10 {
            assert!(queue.try_push(item, 1).is_ok());
        }
        assert_eq!(taking.join().unwrap(), Some((0..10).collect()));
        let began = Instant::now();
        assert!(queue.try_push(10, 1).is_ok());
        assert_eq!(gather_and_take(&queue, Duration::from_millis(50)), Some(vec![10]));
        assert!(began.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn gathering_ends_on_flush_on_a_waiting_push_and_on_close() {
        let queue = Arc::new(Queue::new(3, u64::MAX));
        // Before there is any item: the next items do not gather.
        queue.flush();
        assert!(queue.try_push(1, 1).is_ok());
        assert_eq!(gather_and_take(&queue, LONG), Some(vec![1]));
        assert!(queue.try_push(2, 1).is_ok());
        let other = queue.clone();
        let flushing = thread::spawn(move || other.flush());
        assert_eq!(gather_and_take(&queue, LONG), Some(vec![2]));
        flushing.join().unwrap();
        let other = queue.clone();
        let pushing = thread::spawn(move || other.push_all((0..5).map(|item| (item, 1))));
        let mut taken = gather_and_take(&queue, LONG).unwrap();
        assert_eq!(taken, [0, 1, 2]);
        queue.close();
        pushing.join().unwrap();
        while let Some(more) = gather_and_take(&queue, LONG) {
            taken.extend(more);
        }
        // Items without room when the queue was closed are dropped.
        assert!(taken.len() >= 3 && taken.len() <= 5);
    }
}
