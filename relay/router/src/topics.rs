//! Sets of topics. A topic is a shard of the node's cluster.

/// Shards of a cluster (Waku relay sharding: indices 0 to 1,023).
pub const SHARDS: u16 = 1024;
const _: () = assert!(SHARDS.is_multiple_of(64), "each word of a set is full");

/// A shard of the node's cluster, below [`SHARDS`].
pub type Shard = u16;

/// A set of shards, 128 bytes whatever is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topics([u64; SHARDS as usize / 64]);

impl Topics {
    fn place(shard: Shard) -> (usize, u64) {
        (usize::from(shard) / 64, 1 << (shard % 64))
    }

    /// Adds a shard; returns whether it is new. A shard that does not exist is not added.
    pub fn insert(&mut self, shard: Shard) -> bool {
        let (word, bit) = Self::place(shard);
        let Some(word) = self.0.get_mut(word) else { return false };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a shard; returns whether it was there.
    pub fn remove(&mut self, shard: Shard) -> bool {
        let (word, bit) = Self::place(shard);
        let Some(word) = self.0.get_mut(word) else { return false };
        let had = *word & bit != 0;
        *word &= !bit;
        had
    }

    /// Whether a shard is in it.
    pub fn contains(&self, shard: Shard) -> bool {
        let (word, bit) = Self::place(shard);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Shards in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        (0..SHARDS).filter(|shard| self.contains(*shard))
    }

    /// Whether a shard is in both sets.
    pub fn shares(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one & other != 0)
    }

    /// Number of shards in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_come_and_go() {
        let mut topics = Topics::default();
        assert!(topics.insert(0) && topics.insert(1023) && topics.insert(64) && !topics.insert(64));
        assert!(!topics.insert(1024) && !topics.contains(1024) && !topics.remove(u16::MAX));
        assert_eq!(topics.iter().collect::<Vec<_>>(), [0, 64, 1023]);
        assert!(topics.remove(64) && !topics.remove(64));
        assert_eq!((topics.len(), topics.is_empty()), (2, false));
        let mut other = Topics::default();
        assert!(!topics.shares(&other) && other.insert(64) && !topics.shares(&other));
        assert!(other.insert(1023) && topics.shares(&other) && other.shares(&topics));
    }
}
