//! Which messages were seen lately.

use std::{collections::HashSet, time::Duration};

use crate::MessageId;

/// Ids seen within a time: three generations, of which the oldest is dropped whole.
///
/// An id is remembered for at least `keep` and at most one and a half times as long, unless more
/// than `entries` come within it: then a generation ends early. Iteration order is never used.
#[derive(Debug, Default)]
pub(crate) struct SeenCache {
    generation: Duration,
    entries: usize,
    began: Duration,
    new: HashSet<MessageId>,
    middle: HashSet<MessageId>,
    old: HashSet<MessageId>,
    /// Generations that ended early.
    pub(crate) cut_short: u64,
}

impl SeenCache {
    pub(crate) fn new(keep: Duration, entries: usize) -> Self {
        Self { generation: keep / 2, entries: entries / 3, ..Self::default() }
    }

    pub(crate) fn contains(&self, id: &MessageId) -> bool {
        self.new.contains(id) || self.middle.contains(id) || self.old.contains(id)
    }

    /// Remembers `id`; returns whether it is new.
    pub(crate) fn insert(&mut self, id: MessageId, now: Duration) -> bool {
        self.rotate(now);
        if self.contains(&id) {
            return false;
        }
        if self.new.len() >= self.entries {
            self.cut_short += 1;
            self.end_generation(now);
        }
        let is_new = self.new.insert(id);
        debug_assert!(is_new, "an id is in the newest generation and was not found");
        debug_assert!(
            self.new.len() <= self.entries.max(1),
            "{} ids in a generation of {}",
            self.new.len(),
            self.entries
        );
        is_new
    }

    pub(crate) fn remove(&mut self, id: &MessageId) {
        self.new.remove(id);
        self.middle.remove(id);
        self.old.remove(id);
    }

    pub(crate) fn len(&self) -> usize {
        self.new.len() + self.middle.len() + self.old.len()
    }

    /// Ends generations whose time is over.
    pub(crate) fn rotate(&mut self, now: Duration) {
        let age = now.saturating_sub(self.began);
        if age >= self.generation * 3 {
            (self.new, self.middle, self.old) = Default::default();
            self.began = now;
        } else if age >= self.generation {
            self.end_generation(now);
        }
    }

    /// Tables of a busy time go with their generation: the new one starts empty and small.
    fn end_generation(&mut self, now: Duration) {
        self.old = std::mem::take(&mut self.middle);
        self.middle = std::mem::take(&mut self.new);
        self.began = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MessageId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_le_bytes());
        MessageId(id)
    }

    #[test]
    fn an_id_is_remembered_for_its_time_and_then_forgotten() {
        let mut seen = SeenCache::new(Duration::from_secs(120), 1000);
        for second in 0..300 {
            let now = Duration::from_secs(second);
            assert!(seen.insert(id(second), now));
            for earlier in second.saturating_sub(119)..=second {
                assert!(seen.contains(&id(earlier)), "{earlier} at {second}");
            }
            if second > 180 {
                assert!(!seen.contains(&id(second - 181)), "forgotten at {second}");
            }
        }
    }

    #[test]
    fn a_flood_cuts_memory_short_and_says_so() {
        let mut seen = SeenCache::new(Duration::from_secs(120), 300);
        for number in 0..10_000 {
            assert!(seen.insert(id(number), Duration::from_secs(1)));
            assert!(seen.len() <= 300);
        }
        assert!(seen.cut_short >= 98);
        assert!(seen.contains(&id(9_999)) && !seen.contains(&id(1)));
    }

    #[test]
    fn a_long_silence_forgets_everything() {
        let mut seen = SeenCache::new(Duration::from_secs(120), 300);
        seen.insert(id(1), Duration::ZERO);
        assert!(seen.insert(id(1), Duration::from_secs(1000)));
    }
}
