//! Reference counts on the pages of one file: ranges of pages with three counts each. This module
//! knows nothing of files or memories.

use std::ops::Range;

use crate::range_map::{PageValue, RangeMap};

/// The references to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCounts {
    /// Memories whose newest version references it.
    pub(crate) current: u32,
    /// Ended references that a durable index may still need: the next checkpoint but one at the
    /// latest releases them, or marks them as pinned.
    pub(crate) retired: u32,
    /// References that ended and that no durable index holds, but a reader of an older version.
    pub(crate) pinned: u32,
}

impl RefCounts {
    /// Exactly one memory references the page, and no other durable index or reader does.
    pub(crate) fn is_sole(self) -> bool {
        self == Self { current: 1, ..Self::default() }
    }

    /// One reference is left of all, and it ended.
    fn is_last(self) -> bool {
        self.current == 0 && self.retired + self.pinned == 1
    }
}

impl PageValue for RefCounts {
    fn after(&self, _: u64) -> Self {
        *self
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ExtentRefs {
    ranges: RangeMap<RefCounts>,
}

impl ExtentRefs {
    /// A memory references these pages from now on.
    pub(crate) fn add(&mut self, pages: &Range<u64>) {
        self.change(pages, |counts| counts.current += 1);
    }

    /// The newest version of a memory does not reference these pages any more.
    pub(crate) fn retire(&mut self, pages: &Range<u64>) {
        self.change(pages, |counts| {
            counts.current = less(counts.current);
            counts.retired += 1;
        });
    }

    /// The durable indexes of that memory do not reference them any more; only a reader does.
    pub(crate) fn pin(&mut self, pages: &Range<u64>) {
        self.change(pages, |counts| {
            counts.retired = less(counts.retired);
            counts.pinned += 1;
        });
    }

    /// Neither durable indexes nor readers of that memory reference them any more. `was_pinned`:
    /// only readers did.
    pub(crate) fn drop_ref(&mut self, pages: &Range<u64>, was_pinned: bool) {
        self.change(pages, |counts| {
            let ended = if was_pinned { &mut counts.pinned } else { &mut counts.retired };
            *ended = less(*ended);
        });
    }

    /// The pages around this one, within others, that more than one memory references, or may.
    pub(crate) fn not_sole(&self, page: u64, within: &Range<u64>) -> Range<u64> {
        let (mut start, mut at) = (within.start, within.start);
        while at < within.end {
            let (counts, until) = self.counts(at, within.end);
            if counts.is_sole() {
                if at > page {
                    return start..at;
                }
                start = until;
            }
            at = until;
        }
        start..within.end
    }

    /// Whether none of these pages is referenced.
    pub(crate) fn is_free(&self, pages: &Range<u64>) -> bool {
        pages.is_empty() || self.counts(pages.start, pages.end) == (RefCounts::default(), pages.end)
    }

    /// Those of these pages that only one reference still covers, which ended.
    pub(crate) fn last(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        self.matching(pages, RefCounts::is_last)
    }

    /// Whether the newest version of a memory references each of these pages.
    pub(crate) fn is_current(&self, pages: &Range<u64>) -> bool {
        self.matching(pages, |counts| counts.current == 0).is_empty()
    }

    /// Those of these pages that are not referenced.
    pub(crate) fn gaps(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        self.matching(pages, |counts| counts == RefCounts::default())
    }

    /// Number of referenced pages.
    pub(crate) fn pages(&self) -> u64 {
        self.ranges.iter().map(|(pages, _)| pages.end - pages.start).sum()
    }

    fn matching(&self, pages: &Range<u64>, is_one: impl Fn(RefCounts) -> bool) -> Vec<Range<u64>> {
        let (mut at, mut found) = (pages.start, Vec::<Range<u64>>::new());
        while at < pages.end {
            let (counts, until) = self.counts(at, pages.end);
            if is_one(counts) {
                match found.last_mut() {
                    Some(last) if last.end == at => last.end = until,
                    _ => found.push(at..until),
                }
            }
            at = until;
        }
        found
    }

    /// The counts of a page, and to where they hold, at most to `end`.
    pub(crate) fn counts(&self, page: u64, end: u64) -> (RefCounts, u64) {
        match self.ranges.next(page) {
            Some((pages, counts)) if pages.start <= page => (*counts, pages.end.min(end)),
            next => (RefCounts::default(), next.map_or(end, |(pages, _)| pages.start.min(end))),
        }
    }

    fn change(&mut self, pages: &Range<u64>, change: impl Fn(&mut RefCounts)) {
        let mut at = pages.start;
        while at < pages.end {
            let (mut counts, until) = self.counts(at, pages.end);
            change(&mut counts);
            if counts == RefCounts::default() {
                self.ranges.remove(&(at..until), |_, _| true);
            } else {
                self.ranges.insert(at..until, counts, |_, _| ());
            }
            at = until;
        }
    }
}

/// A count that is wrong must not wrap around: pages that look referenced for ever cost disk, and
/// others' pages.
fn less(count: u32) -> u32 {
    debug_assert!(count > 0, "a reference ends that never was");
    count.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 40;

    fn expand(refs: &ExtentRefs) -> Vec<RefCounts> {
        let mut table = vec![RefCounts::default(); PAGES as usize];
        let mut last = (0, RefCounts::default());
        for (Range { start, end }, &counts) in refs.ranges.iter() {
            assert!(start < end && start >= last.0 && counts != RefCounts::default());
            assert!(start > last.0 || counts != last.1, "neighbours that say the same are one");
            last = (end, counts);
            table[start as usize..end as usize].fill(counts);
        }
        table
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn operations_match_a_table_of_counts(steps in proptest::collection::vec((0..PAGES, 1..12u64, 0..5u8), 1..60)) {
            let mut refs = ExtentRefs::default();
            let mut table = vec![RefCounts::default(); PAGES as usize];
            for (start, pages, kind) in steps {
                let range = start..(start + pages).min(PAGES);
                let part = &mut table[range.start as usize..range.end as usize];
                // Only what is there can end.
                match kind {
                    1 if part.iter().all(|counts| counts.current > 0) => {
                        refs.retire(&range);
                        part.iter_mut().for_each(|counts| {
                            (counts.current, counts.retired) = (counts.current - 1, counts.retired + 1);
                        });
                    }
                    2 if part.iter().all(|counts| counts.retired > 0) => {
                        refs.drop_ref(&range, false);
                        part.iter_mut().for_each(|counts| counts.retired -= 1);
                    }
                    3 if part.iter().all(|counts| counts.retired > 0) => {
                        refs.pin(&range);
                        part.iter_mut().for_each(|counts| {
                            (counts.retired, counts.pinned) = (counts.retired - 1, counts.pinned + 1);
                        });
                    }
                    4 if part.iter().all(|counts| counts.pinned > 0) => {
                        refs.drop_ref(&range, true);
                        part.iter_mut().for_each(|counts| counts.pinned -= 1);
                    }
                    _ => {
                        refs.add(&range);
                        part.iter_mut().for_each(|counts| counts.current += 1);
                    }
                }
                prop_assert_eq!(&expand(&refs), &table);
                let (counts, until) = refs.counts(start, PAGES);
                let same = table[start as usize..].iter().take_while(|other| **other == counts).count() as u64;
                prop_assert_eq!(until, start + same);
                let is_free = |counts: &RefCounts| *counts == RefCounts::default();
                let all = 0..PAGES;
                if !counts.is_sole() {
                    let is_sole = |page: &u64| table[*page as usize].is_sole();
                    let first = (0..start).rev().find(is_sole).map_or(0, |page| page + 1);
                    let end = (start..PAGES).find(is_sole).unwrap_or(PAGES);
                    prop_assert_eq!(refs.not_sole(start, &all), first..end);
                }
                let part = &table[range.start as usize..range.end as usize];
                prop_assert_eq!(refs.is_free(&range), part.iter().all(is_free));
                let gaps: u64 = refs.gaps(&range).iter().map(|gap| gap.end - gap.start).sum();
                prop_assert_eq!(gaps, part.iter().filter(|counts| is_free(counts)).count() as u64);
                prop_assert_eq!(refs.pages(), table.iter().filter(|counts| !is_free(counts)).count() as u64);
            }
        }
    }

    #[test]
    fn last_returns_pages_with_one_reference_that_ended() {
        let mut refs = ExtentRefs::default();
        refs.add(&(0..10));
        refs.add(&(4..6));
        let counts = |current, retired, pinned| RefCounts { current, retired, pinned };
        assert_eq!(refs.counts(0, 10), (counts(1, 0, 0), 4));
        assert_eq!(refs.counts(4, 10), (counts(2, 0, 0), 6));
        refs.retire(&(4..6));
        assert_eq!(refs.counts(4, 10), (counts(1, 1, 0), 6));
        refs.pin(&(4..5));
        assert_eq!(refs.last(&(0..10)), []);
        assert_eq!(refs.not_sole(4, &(2..10)), 4..6);
        refs.drop_ref(&(4..5), true);
        refs.drop_ref(&(5..6), false);
        assert_eq!(refs.counts(0, 20), (counts(1, 0, 0), 10));
        refs.retire(&(0..10));
        refs.pin(&(0..6));
        assert_eq!(refs.last(&(2..20)), std::iter::once(2..10).collect::<Vec<_>>());
        refs.drop_ref(&(0..6), true);
        refs.drop_ref(&(6..10), false);
        assert!(refs.is_free(&(0..20)) && refs.pages() == 0);
    }
}
