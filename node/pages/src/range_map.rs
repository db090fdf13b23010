//! An ordered map from disjoint ranges of pages to values. A value belongs to the first page of its
//! range; those of the other pages follow from it. Neighbours are one range if the second continues
//! the first. Changing a range costs the logarithm of the map plus what it overlaps.

use std::{collections::BTreeMap, ops::Range};

/// A value of a page.
pub(crate) trait PageValue: Clone + PartialEq {
    /// The value of the page that is `pages` pages further in the same range.
    fn after(&self, pages: u64) -> Self;
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<V> {
    /// By first page: the page behind the last one, and the value of the first.
    ranges: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<V: PageValue> RangeMap<V> {
    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// All ranges, ordered.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (Range<u64>, &V)> {
        self.ranges.iter().map(|(&start, (end, value))| (start..*end, value))
    }

    /// The first range that ends behind a page, whole.
    pub(crate) fn next(&self, page: u64) -> Option<(Range<u64>, &V)> {
        let at = self.ranges.range(..=page).next_back().filter(|(_, (end, _))| *end > page);
        let found = at.or_else(|| self.ranges.range(page..).next());
        found.map(|(&start, (end, value))| (start..*end, value))
    }

    /// The pages around this one, which has no value, that have none either, up to `end`.
    pub(crate) fn gap(&self, page: u64, end: u64) -> Range<u64> {
        let start = self.ranges.range(..=page).next_back().map_or(0, |(_, (end, _))| *end);
        let next = self.ranges.range(page..).next();
        start..next.map_or(end, |(&next, _)| next.min(end))
    }

    /// Gives pages a value instead of those that they had, which are passed to `replaced`.
    pub(crate) fn insert(
        &mut self,
        pages: Range<u64>,
        value: V,
        mut replaced: impl FnMut(Range<u64>, V),
    ) {
        let Range { start, end } = pages;
        debug_assert!(start < end, "no page in {pages:?}");
        // A hot page is written again and again as the same run: replace it in place.
        match self.ranges.get_mut(&start) {
            Some((old_end, old)) if *old_end == end => {
                replaced(pages, std::mem::replace(old, value));
            }
            _ => {
                self.remove(&pages, |piece, old| {
                    replaced(piece, old);
                    true
                });
                self.ranges.insert(start, (end, value));
            }
        }
        debug_assert!(
            self.ranges.range(start + 1..).next().is_none_or(|(next, _)| *next >= end),
            "the range behind page {start} begins before page {end}"
        );
        debug_assert!(
            self.ranges.range(..start).next_back().is_none_or(|(_, (before, _))| *before <= start),
            "the range before page {start} reaches beyond it"
        );
        self.join(end);
        self.join(start);
    }

    /// Passes the pieces of ranges that are in `pages`, with their values, to `take`, and removes
    /// those for which it returns true.
    pub(crate) fn remove(
        &mut self,
        pages: &Range<u64>,
        mut take: impl FnMut(Range<u64>, V) -> bool,
    ) {
        let mut next = match self.ranges.range(..pages.start).next_back() {
            Some((&before, (end, _))) if *end > pages.start => before,
            _ => pages.start,
        };
        while next < pages.end
            && let Some((&start, (end, value))) = self.ranges.range(next..pages.end).next()
        {
            let (end, value) = (*end, value.clone());
            next = end;
            let piece = start.max(pages.start)..end.min(pages.end);
            debug_assert!(!piece.is_empty(), "the range at page {start} is not in {pages:?}");
            if !take(piece.clone(), value.after(piece.start - start)) {
                continue;
            }
            match self.ranges.get_mut(&start) {
                Some((end, _)) if start < piece.start => *end = piece.start,
                _ => drop(self.ranges.remove(&start)),
            }
            if piece.end < end {
                self.ranges.insert(piece.end, (end, value.after(piece.end - start)));
            }
        }
    }

    /// Merges the two ranges that meet at a page, if the second continues the first.
    fn join(&mut self, page: u64) {
        let Some((end, right)) = self.ranges.get(&page) else { return };
        let before = self.ranges.range(..page).next_back();
        let before = before.filter(|(start, (left_end, left))| {
            *left_end == page && left.after(page - **start) == *right
        });
        let Some((&start, _)) = before else { return };
        let end = *end;
        self.ranges.remove(&page);
        if let Some((left_end, _)) = self.ranges.get_mut(&start) {
            *left_end = end;
        }
    }
}
