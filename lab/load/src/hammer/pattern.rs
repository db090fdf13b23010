//! The content of patterned memory, computed here exactly as `canisters/hammer-c/hammer.c` computes
//! it.
//!
//! A page of 4096 bytes is a function of (seed of the canister, number of the page, generation that
//! wrote it), so a reader of a page can verify every byte of it. The canister assigns generations,
//! one per write, in the order in which writes run; generation 0 is a page that was never written.

pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const PAGE_WORDS: u64 = PAGE_BYTES / 8;
/// Set in the number of a page of the heap region, so that heap and stable memory never hold the
/// same page.
pub(crate) const HEAP_PAGES: u64 = 1 << 40;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64: a bijection whose output bits all depend on all input bits.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn base(seed: u64, page: u64, generation: u64) -> u64 {
    mix(mix(mix(seed) ^ page) ^ generation)
}

/// Word `index` of a page.
pub(crate) fn word(seed: u64, page: u64, generation: u64, index: u64) -> u64 {
    match (generation, index) {
        (0, _) => 0,
        (_, 0) => generation,
        _ => base(seed, page, generation) ^ index.wrapping_mul(STEP),
    }
}

/// The wrapping sum of a page's words.
pub(crate) fn page_sum(seed: u64, page: u64, generation: u64) -> u64 {
    if generation == 0 {
        return 0;
    }
    let base = base(seed, page, generation);
    (1..PAGE_WORDS).fold(generation, |sum, index| sum.wrapping_add(base ^ index.wrapping_mul(STEP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wasm module computes the same: `lab/thimble-lab/tests` runs it. These constants pin this
    /// side.
    #[test]
    fn the_pattern_is_pinned() {
        assert_eq!(mix(0), 0);
        assert_eq!(mix(1), 0x5692_161D_100B_05E5);
        assert_eq!(word(7, 3, 2, 0), 2);
        assert_eq!(word(7, 3, 2, 1), mix(mix(mix(7) ^ 3) ^ 2) ^ STEP);
    }

    #[test]
    fn every_input_changes_the_page() {
        let page = |seed, page, generation| -> Vec<u64> {
            (0..PAGE_WORDS).map(|index| word(seed, page, generation, index)).collect()
        };
        let one = page(1, 2, 3);
        for other in [page(2, 2, 3), page(1, 3, 3), page(1, 2 | HEAP_PAGES, 3), page(1, 2, 4)] {
            let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same <= 1, "{same} words of two different pages are the same");
        }
        let mut words = one.clone();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len() as u64, PAGE_WORDS, "no word occurs twice in a page");
    }

    #[test]
    fn the_sum_is_that_of_the_words() {
        for generation in [0, 1, u64::MAX] {
            let sum = (0..PAGE_WORDS).fold(0_u64, |sum, index| {
                sum.wrapping_add(word(9, HEAP_PAGES | 5, generation, index))
            });
            assert_eq!(page_sum(9, HEAP_PAGES | 5, generation), sum);
        }
    }
}
