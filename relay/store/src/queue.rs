//! A queue between threads, bounded by count and by bytes. It never grows past either, one item
//! excepted that alone is over the bound of bytes; those who push choose between waiting and being
//! refused.

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
}

/// Why an item was not taken.
pub(crate) enum Refused {
    Full { count: usize, bytes: u64 },
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(count_max: usize, bytes_max: u64) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, closed: false };
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
            || state.items.len() < self.count_max && state.bytes.saturating_add(bytes) <= self.bytes_max
    }

    /// Never waits.
    pub(crate) fn try_push(&self, item: T, bytes: u64) -> Result<(), Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(Refused::Closed);
        }
        if !self.fits(&state, bytes) {
            return Err(Refused::Full { count: state.items.len(), bytes: state.bytes });
        }
        state.bytes += bytes;
        state.items.push_back((item, bytes));
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for room for each item; those left when the queue is closed are dropped.
    pub(crate) fn push_all(&self, items: impl Iterator<Item = (T, u64)>) {
        let mut state = self.state();
        for (item, bytes) in items {
            while !state.closed && !self.fits(&state, bytes) {
                self.filled.notify_one();
                state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closed {
                return;
            }
            state.bytes += bytes;
            state.items.push_back((item, bytes));
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for at least one item, at most `patience`, and takes what waits, at most so much.
    /// Empty after the patience; `None` when the queue is closed and empty.
    pub(crate) fn take(&self, count_max: usize, bytes_max: u64, patience: Duration) -> Option<Vec<T>> {
        let mut state = self.state();
        if state.items.is_empty() && !state.closed {
            let waited = self
                .filled
                .wait_timeout_while(state, patience, |state| state.items.is_empty() && !state.closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
                bytes += next;
                state.bytes -= next;
                taken.push(item);
            }
        }
        let more = !state.items.is_empty();
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

    /// Nothing more is taken in; what waits can still be taken out.
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
