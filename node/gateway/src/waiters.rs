//! Synchronous calls that wait for their certificate.
//!
//! A call registers its request id before it reads the certified state, so that an answer certified
//! between reading and waiting is never missed. The node calls
//! [`Waiters::notify_certified`] after it published a height, with the requests that height
//! finished. They leave the map together and are woken after its lock is released, so that a woken
//! call does not block on it: while a thread that the runtime woke for the first of them looks for
//! work, no thread is woken for the others. Waiting is bounded by a count; a call that finds no
//! room is answered as an asynchronous one. A waiter that stops waiting (timeout, client gone)
//! leaves the map by being dropped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use state::RequestId;
use tokio::sync::oneshot;

/// All waiting calls. Cheap to clone; clones share the same map.
#[derive(Clone, Debug)]
pub struct Waiters(Arc<WaiterTable>);

#[derive(Debug)]
struct WaiterTable {
    limit: usize,
    waiting: Mutex<WaitingCalls>,
}

#[derive(Debug, Default)]
struct WaitingCalls {
    next: u64,
    count: usize,
    /// Several clients may wait for the same request.
    by_request: HashMap<RequestId, Vec<(u64, oneshot::Sender<()>)>>,
}

/// One waiting call; leaves the map when dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Waiters,
    id: RequestId,
    number: u64,
    certified: oneshot::Receiver<()>,
    /// Whether it has left the map by being notified.
    is_notified: bool,
}

impl Waiters {
    /// Room for `limit` waiting calls.
    pub fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self(Arc::new(WaiterTable { limit, waiting: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, WaitingCalls> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the calls in `finished` that their answers are in the newest published state. Call
    /// it after publishing.
    pub fn notify_certified(&self, finished: &[RequestId]) {
        let mut notified = Vec::new();
        let mut waiting = self.lock();
        if waiting.count == 0 {
            return;
        }
        for id in finished {
            notified.append(&mut waiting.by_request.remove(id).unwrap_or_default());
        }
        waiting.count -= notified.len();
        drop(waiting);
        for (_, waiter) in notified {
            // The client may have gone in this moment.
            let _ = waiter.send(());
        }
    }

    /// Calls waiting now.
    pub fn len(&self) -> usize {
        self.lock().count
    }

    /// Whether no call waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many may wait.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Joins the waiting calls; `None` when there is no room.
    pub(crate) fn register(&self, id: RequestId) -> Option<Waiter> {
        let mut waiting = self.lock();
        if waiting.count >= self.0.limit {
            return None;
        }
        let (sender, certified) = oneshot::channel();
        let number = waiting.next;
        waiting.next += 1;
        waiting.count += 1;
        waiting.by_request.entry(id).or_default().push((number, sender));
        Some(Waiter { waiters: self.clone(), id, number, certified, is_notified: false })
    }
}

impl Waiter {
    /// Completes when the request was certified.
    pub(crate) async fn wait_certified(&mut self) {
        // The sender is dropped only by sending or with this waiter.
        let _ = (&mut self.certified).await;
        self.is_notified = true;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.is_notified {
            return;
        }
        let mut waiting = self.waiters.lock();
        let Some(same) = waiting.by_request.get_mut(&self.id) else { return };
        let before = same.len();
        same.retain(|(number, _)| *number != self.number);
        let (left, gone) = (same.len(), before - same.len());
        if left == 0 {
            waiting.by_request.remove(&self.id);
        }
        waiting.count -= gone;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: RequestId = RequestId([1; 32]);
    const OTHER: RequestId = RequestId([2; 32]);

    #[tokio::test]
    async fn all_waiters_of_a_request_are_notified_once() {
        let waiters = Waiters::new(3);
        let mut first = waiters.register(ID).unwrap();
        let mut second = waiters.register(ID).unwrap();
        let other = waiters.register(OTHER).unwrap();
        assert!(waiters.register(OTHER).is_none());
        waiters.notify_certified(&[ID, RequestId([3; 32])]);
        first.wait_certified().await;
        second.wait_certified().await;
        assert_eq!(waiters.len(), 1);
        drop((first, second));
        assert_eq!(waiters.len(), 1);
        drop(other);
        assert!(waiters.is_empty());
        assert!(waiters.lock().by_request.is_empty());
    }

    #[tokio::test]
    async fn dropped_waiter_frees_its_slot() {
        let waiters = Waiters::new(2);
        let first = waiters.register(ID).unwrap();
        let mut second = waiters.register(ID).unwrap();
        drop(first);
        let third = waiters.register(ID).unwrap();
        assert!(waiters.register(ID).is_none());
        waiters.notify_certified(&[ID]);
        second.wait_certified().await;
        drop(third);
        assert!(waiters.is_empty());
    }
}
