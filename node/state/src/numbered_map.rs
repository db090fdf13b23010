//! A map from rising numbers to values. Copies share all unchanged parts.
//!
//! A canister's record is copied whenever a round first changes it. Collections of which a canister
//! has thousands (messages that wait, calls, call contexts) are kept in chunks that the copy
//! shares: copying costs a pointer for a chunk of up to [`CHUNK`] entries, and a change copies its
//! chunk. All other operations take time in the logarithm of the number of entries. Chunks are
//! allocated in the state's heap, whatever code changes them; data that a value points to is the
//! responsibility of its owner.
//!
//! Stored as a map: the chunks are not part of the format. This module must not know what the
//! values are.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::resting::rest_map;
use crate::state_heap;

/// Most entries of a chunk: what a change may have to copy.
const CHUNK: usize = 32;

type Chunk<T> = Vec<(u64, T)>;

#[derive(Clone)]
pub(crate) struct NumberedMap<T> {
    /// By the number that the chunk began with; no later chunk has a number below its own. None is
    /// empty.
    chunks: BTreeMap<u64, Arc<Chunk<T>>>,
    len: usize,
}

impl<T> Default for NumberedMap<T> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new(), len: 0 }
    }
}

impl<T> NumberedMap<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let (_, chunk) = self.chunks.range(..=number).next_back()?;
        let at = place(chunk, number).ok()?;
        chunk.get(at).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        self.chunks.values().flat_map(|chunk| chunk.iter().map(|(number, value)| (*number, value)))
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let first = self.chunks.range(..=number).next_back().map_or(number, |(key, _)| *key);
        self.chunks
            .range(first..)
            .flat_map(|(_, chunk)| chunk.iter().map(|(number, value)| (*number, value)))
            .skip_while(move |(at, _)| *at < number)
    }

    pub(crate) fn first(&self) -> Option<u64> {
        let (_, chunk) = self.chunks.first_key_value()?;
        chunk.first().map(|(number, _)| *number)
    }

    pub(crate) fn last(&self) -> Option<u64> {
        let (_, chunk) = self.chunks.last_key_value()?;
        chunk.last().map(|(number, _)| *number)
    }

    /// Checks that numbers rise, that chunks are neither empty nor too long, and that entries are
    /// counted. Visits every entry.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self) {
        let mut last = None;
        for (key, chunk) in &self.chunks {
            assert!((1..=CHUNK).contains(&chunk.len()), "a chunk of {} entries", chunk.len());
            for (number, _) in chunk.iter() {
                assert!(number >= key, "{number} is in the chunk from {key} on");
                assert!(last < Some(*number), "{number} follows {last:?}");
                last = Some(*number);
            }
        }
        let entries: usize = self.chunks.values().map(|chunk| chunk.len()).sum();
        assert_eq!(self.len, entries, "entries of a numbered map");
    }
}

impl<T: Clone> NumberedMap<T> {
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (_, chunk) = self.chunks.range_mut(..=number).next_back()?;
        let at = place(chunk, number).ok()?;
        let _here = state_heap::enter();
        make_mut(chunk).get_mut(at).map(|(_, value)| value)
    }

    /// Nodes over chunks that are gone are returned; the others are in the state's heap.
    pub(crate) fn rest(&mut self) {
        rest_map(&mut self.chunks);
    }

    /// Calls `change` with every value.
    pub(crate) fn for_each_mut(&mut self, mut change: impl FnMut(u64, &mut T)) {
        for chunk in self.chunks.values_mut() {
            let chunk = {
                let _here = state_heap::enter();
                make_mut(chunk)
            };
            chunk.iter_mut().for_each(|(number, value)| change(*number, value));
        }
    }

    /// Puts a value in, in place of one of the same number. Numbers usually rise.
    pub(crate) fn insert(&mut self, number: u64, value: T) -> Option<T> {
        let _here = state_heap::enter();
        let last = self.chunks.range_mut(..=number).next_back();
        let Some((_, chunk)) = last else {
            self.chunks.insert(number, Arc::new(single_entry_chunk(number, value)));
            self.len += 1;
            return None;
        };
        let at = match place(chunk, number) {
            Ok(at) => {
                let before = make_mut(chunk).get_mut(at)?;
                return Some(std::mem::replace(&mut before.1, value));
            }
            Err(at) => at,
        };
        self.len += 1;
        if chunk.len() < CHUNK {
            make_mut(chunk).insert(at, (number, value));
        } else if at == CHUNK {
            self.chunks.insert(number, Arc::new(single_entry_chunk(number, value)));
        } else {
            let mut upper = make_mut(chunk).split_off(at);
            make_mut(chunk).push((number, value));
            debug_assert!(!upper.is_empty(), "number {number} is not behind all of its chunk");
            debug_assert!(chunk.len() <= CHUNK, "a chunk of {} entries", chunk.len());
            upper.shrink_to_fit();
            if let Some((first, _)) = upper.first() {
                self.chunks.insert(*first, Arc::new(upper));
            }
        }
        None
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let _here = state_heap::enter();
        let (key, chunk) = self.chunks.range_mut(..=number).next_back()?;
        let at = place(chunk, number).ok()?;
        let (_, value) = if chunk.len() == 1 {
            let key = *key;
            let chunk = self.chunks.remove(&key)?;
            Arc::try_unwrap(chunk).unwrap_or_else(|chunk| chunk.to_vec()).pop()?
        } else {
            let chunk = make_mut(chunk);
            let entry = chunk.remove(at);
            // A chunk with few entries left must not keep the room of many.
            if chunk.capacity() > 4 * chunk.len() {
                chunk.shrink_to(2 * chunk.len());
            }
            entry
        };
        debug_assert!(self.len > 0, "entry {number} was not counted");
        self.len -= 1;
        Some(value)
    }

    /// Takes the entry of the lowest number out.
    pub(crate) fn pop_first(&mut self) -> Option<(u64, T)> {
        let first = self.first()?;
        self.remove(first).map(|value| (first, value))
    }

    /// Removes every value for which `keep` does not hold.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64, &T) -> bool) {
        let gone: Vec<u64> = self
            .iter()
            .filter(|(number, value)| !keep(*number, value))
            .map(|(number, _)| number)
            .collect();
        for number in gone {
            self.remove(number);
        }
    }
}

/// A chunk that may be changed: a copy, with room for more, where another holds it too.
fn make_mut<T: Clone>(chunk: &mut Arc<Chunk<T>>) -> &mut Chunk<T> {
    if Arc::get_mut(chunk).is_none() {
        let mut copy = Vec::with_capacity((chunk.len() + 1).next_power_of_two().min(CHUNK));
        copy.extend_from_slice(chunk);
        *chunk = Arc::new(copy);
    }
    Arc::make_mut(chunk)
}

fn single_entry_chunk<T>(number: u64, value: T) -> Chunk<T> {
    let mut chunk = Vec::with_capacity(4);
    chunk.push((number, value));
    chunk
}

fn place<T>(chunk: &Chunk<T>, number: u64) -> Result<usize, usize> {
    chunk.binary_search_by_key(&number, |(number, _)| *number)
}

impl<T: PartialEq> PartialEq for NumberedMap<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for NumberedMap<T> {}

impl<T: fmt::Debug> fmt::Debug for NumberedMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T: Serialize> Serialize for NumberedMap<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len))?;
        for (number, value) in self.iter() {
            map.serialize_entry(&number, value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de> + Clone> Deserialize<'de> for NumberedMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(NumberedMap<T>);

        impl<'de, T: Deserialize<'de> + Clone> Visitor<'de> for Entries<T> {
            type Value = NumberedMap<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from rising numbers")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut next = Bound::Unbounded;
                while let Some((number, value)) = map.next_entry::<u64, T>()? {
                    if matches!(next, Bound::Excluded(last) if number <= last) {
                        return Err(A::Error::custom("numbers that do not rise"));
                    }
                    next = Bound::Excluded(number);
                    self.0.insert(number, value);
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Entries(Self::default()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        Change(u64),
        PopFirst,
        Copy,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..200).prop_map(Step::Insert),
            2 => (0u64..200).prop_map(Step::Remove),
            1 => (0u64..200).prop_map(Step::Change),
            1 => Just(Step::PopFirst),
            1 => Just(Step::Copy),
        ]
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map_and_copies_do_not_change(
            steps in prop::collection::vec(step(), 0..600),
        ) {
            let (mut map, mut model) = (NumberedMap::default(), BTreeMap::new());
            let mut copies: Vec<(NumberedMap<usize>, BTreeMap<u64, usize>)> = vec![];
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(number) => {
                        prop_assert_eq!(map.insert(number, at), model.insert(number, at));
                    }
                    Step::Remove(number) => {
                        prop_assert_eq!(map.remove(number), model.remove(&number));
                    }
                    Step::Change(number) => {
                        prop_assert_eq!(map.get(number), model.get(&number));
                        if let Some(value) = map.get_mut(number) {
                            *value += 1000;
                            *model.get_mut(&number).unwrap() += 1000;
                        }
                    }
                    Step::PopFirst => prop_assert_eq!(map.pop_first(), model.pop_first()),
                    Step::Copy => copies.push((map.clone(), model.clone())),
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert_eq!(map.first(), model.keys().next().copied());
            }
            copies.push((map, model));
            for (map, model) in copies {
                let expected: Vec<_> = model.iter().map(|(number, value)| (*number, value)).collect();
                prop_assert_eq!(map.iter().collect::<Vec<_>>(), expected);
                for from in [0, 50, 199, 300] {
                    let expected = model.range(from..).map(|(number, value)| (*number, value));
                    prop_assert!(map.from(from).eq(expected));
                }
                let bytes = postcard::to_stdvec(&map).unwrap();
                prop_assert_eq!(&bytes, &postcard::to_stdvec(&model).unwrap());
                prop_assert_eq!(postcard::from_bytes::<NumberedMap<usize>>(&bytes).unwrap(), map);
            }
        }
    }

    #[test]
    fn numbers_that_do_not_rise_are_refused() {
        for numbers in [[1u64, 1], [2, 1]] {
            let bytes = postcard::to_stdvec(&numbers.map(|number| (number, 7u8)).to_vec()).unwrap();
            assert!(postcard::from_bytes::<NumberedMap<u8>>(&bytes).is_err());
        }
    }
}
