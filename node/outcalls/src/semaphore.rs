//! A semaphore for an operation with limited concurrency, such as a call of the system's resolver.
//! A canister holds at most one permit, so that none blocks all others.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use state::CanisterId;
use tokio::sync::Notify;

/// A semaphore with at most one permit for each canister. Clones share state.
#[derive(Clone)]
pub(crate) struct CanisterSemaphore(Arc<Inner>);

struct Inner {
    permits_max: usize,
    holders: Mutex<BTreeSet<CanisterId>>,
    released: Notify,
}

/// A permit, released when it is dropped.
pub(crate) struct CanisterPermit {
    semaphore: Arc<Inner>,
    canister_id: CanisterId,
}

impl CanisterSemaphore {
    pub(crate) fn new(permits_max: usize) -> Self {
        Self(Arc::new(Inner { permits_max, holders: Mutex::default(), released: Notify::new() }))
    }

    pub(crate) async fn acquire(&self, canister_id: CanisterId) -> CanisterPermit {
        loop {
            // A permit that is released from here on wakes this.
            let released = self.0.released.notified();
            if let Some(permit) = self.try_acquire(canister_id) {
                return permit;
            }
            released.await;
        }
    }

    fn try_acquire(&self, canister_id: CanisterId) -> Option<CanisterPermit> {
        let mut holders = self.0.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = holders.len() < self.0.permits_max && holders.insert(canister_id);
        is_free.then(|| CanisterPermit { semaphore: self.0.clone(), canister_id })
    }
}

impl Drop for CanisterPermit {
    fn drop(&mut self) {
        let mut holders = self.semaphore.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.remove(&self.canister_id);
        drop(holders);
        self.semaphore.released.notify_waiters();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn semaphore_gives_one_permit_per_canister_within_the_total() {
        let [a, b, c] = [1, 2, 3].map(|number| CanisterId::from_slice(&[number]));
        let semaphore = CanisterSemaphore::new(2);
        let first = semaphore.acquire(a).await;
        assert!(semaphore.try_acquire(a).is_none(), "its second");
        let second = semaphore.acquire(b).await;
        assert!(semaphore.try_acquire(c).is_none(), "the third of all");
        let third = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire(c).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        drop((third.await.unwrap(), second));
        assert!(semaphore.try_acquire(a).is_some());
    }
}
