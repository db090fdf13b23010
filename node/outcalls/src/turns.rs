//! Turns at an operation with limited concurrency, such as a call of the system's resolver: one for
//! each canister, so that none blocks all others.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use state::CanisterId;
use tokio::sync::Notify;

/// The canisters that have a turn. Clones share state.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Inner>);

struct Inner {
    most: usize,
    taken: Mutex<BTreeSet<CanisterId>>,
    over: Notify,
}

/// Ends when it is dropped.
pub(crate) struct Turn {
    turns: Arc<Inner>,
    canister_id: CanisterId,
}

impl Turns {
    /// At most `most` turns at once.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Inner { most, taken: Mutex::default(), over: Notify::new() }))
    }

    /// Waits for a turn.
    pub(crate) async fn take(&self, canister_id: CanisterId) -> Turn {
        loop {
            // One that ends from here on wakes this.
            let over = self.0.over.notified();
            if let Some(turn) = self.try_take(canister_id) {
                return turn;
            }
            over.await;
        }
    }

    fn try_take(&self, canister_id: CanisterId) -> Option<Turn> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = taken.len() < self.0.most && taken.insert(canister_id);
        is_free.then(|| Turn { turns: self.0.clone(), canister_id })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.canister_id);
        drop(taken);
        self.turns.over.notify_waiters();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_canister_has_one_turn_and_all_have_so_many() {
        let [a, b, c] = [1, 2, 3].map(|number| CanisterId::from_slice(&[number]));
        let turns = Turns::new(2);
        let first = turns.take(a).await;
        assert!(turns.try_take(a).is_none(), "its second");
        let second = turns.take(b).await;
        assert!(turns.try_take(c).is_none(), "the third of all");
        let third = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(c).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        drop((third.await.unwrap(), second));
        assert!(turns.try_take(a).is_some());
    }
}
