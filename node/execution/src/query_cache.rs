//! Replies of queries, kept for identical queries while nothing they depend on has changed
//! (docs/internals/query-path.md, "Reply cache"): the canister's state, which is the same
//! allocation at all heights until it changes, and neither the time nor the certificate of a
//! height.
//!
//! Bounded by a pool of the ledger: every entry reserves its bytes, the least recently used one is
//! evicted, and an entry that would take more than an eighth of the pool is not kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use accounting::{Pool, Reservation};
use sha2::{Digest, Sha256};
use state::{CanisterState, QueryRequest, SharedCanister};

/// Cost of an entry in addition to its reply: two map entries, and its share of the state record
/// that its weak reference keeps allocated (not what that holds).
const ENTRY_BYTES: u64 = 1 << 10;
/// One entry takes at most this part of the pool.
const ENTRY_SHARE: u64 = 8;

/// Names what was asked: a digest, so that long arguments cost nothing to keep.
pub(crate) type Key = [u8; 32];

pub(crate) struct QueryCache {
    pool: Pool,
    inner: Mutex<Inner>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<Key, Entry>,
    /// By when they were last used: the first goes first.
    order: BTreeMap<u64, Key>,
    tick: u64,
}

struct Entry {
    canister: Weak<CanisterState>,
    reply: Arc<[u8]>,
    instructions: u64,
    used: u64,
    _reservation: Reservation,
}

impl QueryCache {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool, inner: Mutex::default(), hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The key of a query; `None` for one whose reply is not kept.
    pub(crate) fn key(request: &QueryRequest) -> Option<Key> {
        if request.sender_info.is_some() {
            return None;
        }
        let mut hash = Sha256::new();
        for part in [
            request.sender.as_slice(),
            request.canister_id.as_slice(),
            request.method_name.as_bytes(),
            &request.arg,
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Some(hash.finalize().into())
    }

    /// The reply to the same query of the same state, and the instructions that it once took.
    pub(crate) fn get(&self, key: &Key, canister: &SharedCanister) -> Option<(Arc<[u8]>, u64)> {
        let mut inner = self.lock();
        let found = inner.touch(key, canister);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// The same for a reply of at most `bytes_max` bytes, ahead of [`Self::get`], which counts what
    /// is missing.
    pub(crate) fn get_short(
        &self,
        key: &Key,
        canister: &SharedCanister,
        bytes_max: usize,
    ) -> Option<(Arc<[u8]>, u64)> {
        let found = self.lock().touch(key, canister);
        let found = found.filter(|(reply, _)| reply.len() <= bytes_max);
        self.hits.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// Keeps a reply if there is room, or room can be made.
    pub(crate) fn put(
        &self,
        key: Key,
        canister: &SharedCanister,
        (reply, instructions): (&[u8], u64),
    ) {
        let bytes = ENTRY_BYTES + reply.len() as u64;
        if bytes > self.pool.cap_bytes() / ENTRY_SHARE {
            return;
        }
        let mut inner = self.lock();
        inner.remove(&key);
        let reservation = loop {
            // Checked before reserving, so that making room does not count as refusing.
            if self.pool.free_bytes() >= bytes
                && let Ok(reservation) = self.pool.try_reserve(bytes)
            {
                break reservation;
            }
            let Some((_, oldest)) = inner.order.first_key_value().map(|(used, key)| (*used, *key))
            else {
                return;
            };
            inner.remove(&oldest);
        };
        let used = inner.next_tick();
        inner.order.insert(used, key);
        let entry = Entry {
            canister: Arc::downgrade(canister),
            reply: reply.into(),
            instructions,
            used,
            _reservation: reservation,
        };
        let before = inner.entries.insert(key, entry);
        debug_assert!(before.is_none(), "the entry before was removed");
        debug_assert_eq!(inner.entries.len(), inner.order.len(), "entries and their order");
    }

    /// Drops all entries and with them their reservations in the pool.
    pub(crate) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Queries answered from here, and those that had to run.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn touch(&mut self, key: &Key, canister: &SharedCanister) -> Option<(Arc<[u8]>, u64)> {
        let current = Arc::as_ptr(canister);
        if !std::ptr::eq(self.entries.get(key)?.canister.as_ptr(), current) {
            self.remove(key);
            return None;
        }
        let tick = self.next_tick();
        let entry = self.entries.get_mut(key)?;
        let ordered = self.order.remove(&entry.used);
        debug_assert_eq!(ordered, Some(*key), "the key of the entry used at {}", entry.used);
        self.order.insert(tick, *key);
        entry.used = tick;
        Some((Arc::clone(&entry.reply), entry.instructions))
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use ic_principal::Principal;
    use state::{CanisterState, Settings, Time};

    use super::*;

    fn canister() -> SharedCanister {
        Arc::new(CanisterState::new(
            Principal::from_slice(&[1; 10]),
            vec![],
            Settings::default(),
            5,
            Time(1),
        ))
    }

    fn key(n: u8) -> Key {
        [n; 32]
    }

    #[test]
    fn a_reply_is_good_while_the_state_is_the_same() {
        let cache = QueryCache::new(Pool::standalone("query_cache", 1 << 20));
        let mut canister = canister();
        cache.put(key(1), &canister, (b"one", 77));
        let (reply, instructions) = cache.get(&key(1), &canister).expect("it is kept");
        assert_eq!((&reply[..], instructions), (&b"one"[..], 77));
        assert_eq!(cache.get(&key(2), &canister), None);
        assert!(cache.get_short(&key(1), &canister, 3).is_some());
        assert_eq!(cache.get_short(&key(1), &canister, 2), None, "too long, and not counted");
        assert_eq!(cache.get_short(&key(2), &canister, 2), None, "and not counted");
        // Whether it is copied or, being the only one, changed in place: it is another state.
        Arc::make_mut(&mut canister).status = state::CanisterStatus::Stopped;
        assert_eq!(cache.get(&key(1), &canister), None);
        assert_eq!(cache.figures(), (2, 2));
    }

    #[test]
    fn the_pool_bounds_it_and_the_unused_goes_first() {
        let pool = Pool::standalone("query_cache", 64 << 10);
        let cache = QueryCache::new(pool.clone());
        let canister = canister();
        cache.put(key(0), &canister, (&[0; 60 << 10], 0));
        assert_eq!(pool.used_bytes(), 0, "larger than its share");
        for n in 0..40 {
            cache.put(key(n), &canister, (&[n; 1 << 10], 0));
            assert!(cache.get(&key(0), &canister).is_some(), "in use all the time");
        }
        assert!(cache.get(&key(1), &canister).is_none());
        assert!(cache.get(&key(39), &canister).is_some());
        assert_eq!(pool.used_bytes(), 64 << 10);
        cache.clear();
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn who_asks_what_of_whom_makes_the_key() {
        let request = QueryRequest {
            sender: Principal::anonymous(),
            canister_id: Principal::from_slice(&[1]),
            method_name: "ab".into(),
            arg: b"c".to_vec(),
            sender_info: None,
        };
        let shifted =
            QueryRequest { method_name: "a".into(), arg: b"bc".to_vec(), ..request.clone() };
        assert_ne!(QueryCache::key(&request), QueryCache::key(&shifted));
        let other = QueryRequest { sender: Principal::from_slice(&[7]), ..request.clone() };
        assert_ne!(QueryCache::key(&request), QueryCache::key(&other));
        assert_eq!(QueryCache::key(&request), QueryCache::key(&request.clone()));
    }
}
