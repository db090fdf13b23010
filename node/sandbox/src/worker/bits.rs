//! A bit per page of a memory.
//!
//! That of a heap is one piece, because it is used in a signal handler, which must not allocate. A
//! stable memory may be a thousand times as large: its bits are allocated for 1024 pages at a time,
//! where one is set, so that they cost what a message touches and not what there is.

/// Words allocated at once.
const CHUNK_WORDS: usize = 16;

type Chunk = Box<[u64; CHUNK_WORDS]>;

#[derive(Debug)]
pub(super) enum Bits {
    Dense(Vec<u64>),
    Sparse(Vec<Option<Chunk>>),
}

impl Bits {
    /// No bit is set. Bits of a dense one stay untouched until used.
    pub(super) fn new(pages: u64, is_sparse: bool) -> Self {
        let words = pages.div_ceil(64) as usize;
        if is_sparse {
            Self::Sparse(vec![None; words.div_ceil(CHUNK_WORDS)])
        } else {
            Self::Dense(vec![0; words])
        }
    }

    /// Pages that there are bits for.
    pub(super) fn pages(&self) -> u64 {
        64 * match self {
            Self::Dense(words) => words.len() as u64,
            Self::Sparse(chunks) => (chunks.len() * CHUNK_WORDS) as u64,
        }
    }

    pub(super) fn is_set(&self, page: u64) -> bool {
        let word = (page / 64) as usize;
        let word = match self {
            Self::Dense(words) => words.get(word),
            Self::Sparse(chunks) => {
                let chunk = chunks.get(word / CHUNK_WORDS).and_then(Option::as_ref);
                chunk.and_then(|chunk| chunk.get(word % CHUNK_WORDS))
            }
        };
        word.is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    /// Sets the bit of a page that there is one for.
    pub(super) fn set(&mut self, page: u64) {
        if let Some(word) = self.word_mut(page, true) {
            *word |= 1 << (page % 64);
        }
    }

    pub(super) fn unset(&mut self, page: u64) {
        if let Some(word) = self.word_mut(page, false) {
            *word &= !(1 << (page % 64));
        }
    }

    /// Unsets the bit of a page and of others near it, which are to be unset as well.
    pub(super) fn forget(&mut self, page: u64) {
        match self {
            Self::Dense(_) => {
                if let Some(word) = self.word_mut(page, false) {
                    *word = 0;
                }
            }
            Self::Sparse(chunks) => {
                if let Some(chunk) = chunks.get_mut((page / 64) as usize / CHUNK_WORDS) {
                    *chunk = None;
                }
            }
        }
    }

    /// The word of a page. That of a sparse one must be there already, or is allocated.
    fn word_mut(&mut self, page: u64, allocates: bool) -> Option<&mut u64> {
        let word = (page / 64) as usize;
        match self {
            Self::Dense(words) => words.get_mut(word),
            Self::Sparse(chunks) => {
                let chunk = chunks.get_mut(word / CHUNK_WORDS)?;
                if allocates && chunk.is_none() {
                    *chunk = Some(Box::new([0; CHUNK_WORDS]));
                }
                chunk.as_mut()?.get_mut(word % CHUNK_WORDS)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_large_memory_cost_what_is_set() {
        let mut bits = Bits::new(1 << 27, true);
        for page in [0, 1023, 1 << 26, (1 << 27) - 1] {
            assert!(!bits.is_set(page));
            bits.set(page);
            assert!(bits.is_set(page) && !bits.is_set(page ^ 1));
        }
        let Bits::Sparse(chunks) = &bits else { return };
        assert_eq!(chunks.iter().flatten().count(), 3);
        bits.unset(1023);
        assert!(bits.is_set(0) && !bits.is_set(1023));
        bits.unset(5 << 20);
        bits.forget(0);
        let Bits::Sparse(chunks) = &bits else { return };
        assert_eq!(chunks.iter().flatten().count(), 2, "nothing is allocated to unset");
        bits.set(1 << 28);
        assert!(!bits.is_set(1 << 28), "there is no such page");
    }
}
