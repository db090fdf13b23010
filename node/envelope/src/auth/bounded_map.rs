//! A bounded map of what verification found out: the oldest entry goes first.
//!
//! Only results of valid signatures are inserted, so requests that are refused evict nothing.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::hash::Hash;

/// At most `limit` values by 32 bytes.
#[derive(Debug)]
pub(crate) struct BoundedMap<V> {
    limit: usize,
    entries: Mutex<Entries<V>>,
}

#[derive(Debug)]
struct Entries<V> {
    values: HashMap<Hash, V>,
    /// Oldest first.
    order: VecDeque<Hash>,
}

impl<V: Copy> BoundedMap<V> {
    /// Room for `limit` values; nothing is remembered at 0.
    pub(crate) fn new(limit: u64) -> Self {
        let entries = Entries { values: HashMap::new(), order: VecDeque::new() };
        Self { limit: usize::try_from(limit).unwrap_or(usize::MAX), entries: Mutex::new(entries) }
    }

    pub(crate) fn get(&self, key: &Hash) -> Option<V> {
        self.lock().values.get(key).copied()
    }

    pub(crate) fn insert(&self, key: Hash, value: V) {
        if self.limit == 0 {
            return;
        }
        let mut entries = self.lock();
        if entries.values.insert(key, value).is_some() {
            return;
        }
        entries.order.push_back(key);
        if entries.order.len() > self.limit
            && let Some(oldest) = entries.order.pop_front()
        {
            entries.values.remove(&oldest);
        }
        debug_assert_eq!(entries.order.len(), entries.values.len(), "each value has one place");
    }

    fn lock(&self) -> MutexGuard<'_, Entries<V>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_leaves_at_the_limit() {
        let remembered = BoundedMap::new(2);
        for number in [1, 2, 1, 3] {
            remembered.insert([number; 32], number);
        }
        let found = [1, 2, 3].map(|number| remembered.get(&[number; 32]));
        assert_eq!(found, [None, Some(2), Some(3)]);
        assert_eq!(remembered.lock().order.len(), 2);
    }

    #[test]
    fn nothing_is_remembered_without_room() {
        let remembered = BoundedMap::new(0);
        remembered.insert([1; 32], ());
        assert_eq!(remembered.get(&[1; 32]), None);
    }
}
