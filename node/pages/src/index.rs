//! The delta index of one memory: the segment of each page. An ordered map from first page to
//! extent, disjoint; neighbours are merged if they are neighbours in the segment too. Inserting a
//! run costs the logarithm of the map plus what it overwrites; no list is copied. The index knows
//! nothing of files; a callback reports pages that are removed.

use std::collections::{BTreeMap, btree_map};

use crate::{Run, SegmentId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    pages: u64,
    segment: SegmentId,
    offset_page: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunIndex {
    extents: BTreeMap<u64, Extent>,
}

impl RunIndex {
    /// Number of runs.
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// All runs, ordered by first page.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = Run> {
        self.extents.iter().map(|(&start_page, extent)| run(start_page, extent))
    }

    /// The first run that ends behind a page, whole.
    pub(crate) fn next_run(&self, page: u64) -> Option<Run> {
        let at = self.extents.range(..=page).next_back();
        let at = at.filter(|(start, extent)| **start + extent.pages > page);
        at.or_else(|| self.extents.range(page..).next()).map(|(&start, extent)| run(start, extent))
    }

    /// Lays `new` over what is there. `freed(segment, pages)` hears of every page that it replaces.
    pub(crate) fn insert(&mut self, new: Run, mut freed: impl FnMut(SegmentId, u64)) {
        assert!(new.pages > 0, "an empty run at page {}", new.start_page);
        let extent =
            Extent { pages: new.pages, segment: new.segment, offset_page: new.offset_page };
        // A hot page is written again and again as the same run: replace it in place.
        match self.extents.get_mut(&new.start_page) {
            Some(old) if old.pages == new.pages => {
                freed(old.segment, old.pages);
                *old = extent;
            }
            _ => {
                self.cut(new.start_page, new.start_page + new.pages, |_, old| {
                    freed(old.segment, old.pages);
                    true
                });
                self.extents.insert(new.start_page, extent);
            }
        }
        let (start, end) = (new.start_page, new.start_page + new.pages);
        debug_assert!(
            self.extents.range(start + 1..).next().is_none_or(|(next, _)| *next >= end),
            "the run behind page {start} begins before page {end}"
        );
        debug_assert!(
            self.extents.range(..start).next_back().is_none_or(|(at, of)| at + of.pages <= start),
            "the run before page {start} reaches beyond it"
        );
        self.merge(new.start_page);
    }

    /// Takes `old` out wherever it is still what the index says, and leaves what was overwritten
    /// since. Calls `freed` for what it took.
    pub(crate) fn remove(&mut self, old: Run, mut freed: impl FnMut(SegmentId, u64)) {
        self.cut(old.start_page, old.start_page + old.pages, |start_page, piece| {
            let same = piece.segment == old.segment
                && piece.offset_page == old.offset_page + (start_page - old.start_page);
            if same {
                freed(piece.segment, piece.pages);
            }
            same
        });
    }

    /// Passes every piece of an extent in `[start, end)` to `take(start of piece, piece)` and
    /// removes those for which it returns true.
    fn cut(&mut self, start: u64, end: u64, mut take: impl FnMut(u64, Extent) -> bool) {
        let mut next = match self.extents.range(..start).next_back() {
            Some((&before, extent)) if before + extent.pages > start => before,
            _ => start,
        };
        while next < end
            && let Some((&at, &extent)) = self.extents.range(next..end).next()
        {
            let extent_end = at + extent.pages;
            next = extent_end;
            let (from, to) = (at.max(start), extent_end.min(end));
            debug_assert!(from < to, "the run at page {at} has no page in {start}..{end}");
            let piece = Extent {
                pages: to - from,
                segment: extent.segment,
                offset_page: extent.offset_page + (from - at),
            };
            if !take(from, piece) {
                continue;
            }
            if at < from {
                if let btree_map::Entry::Occupied(mut head) = self.extents.entry(at) {
                    head.get_mut().pages = from - at;
                }
            } else {
                self.extents.remove(&at);
            }
            if to < extent_end {
                let tail = Extent {
                    pages: extent_end - to,
                    segment: extent.segment,
                    offset_page: extent.offset_page + (to - at),
                };
                self.extents.insert(to, tail);
            }
        }
    }

    /// Joins the extent at `start` with its neighbours where the segment continues too: every run
    /// costs its mapper a mapping.
    fn merge(&mut self, start: u64) {
        let Some(&extent) = self.extents.get(&start) else { return };
        let continues = |left: (u64, Extent), right: (u64, Extent)| {
            left.0 + left.1.pages == right.0
                && left.1.segment == right.1.segment
                && left.1.offset_page + left.1.pages == right.1.offset_page
        };
        let mut extent = extent;
        let after = start + extent.pages;
        if let Some(&right) = self.extents.get(&after)
            && continues((start, extent), (after, right))
        {
            self.extents.remove(&after);
            extent.pages += right.pages;
            self.extents.insert(start, extent);
        }
        if let Some((&before, left)) = self.extents.range_mut(..start).next_back()
            && continues((before, *left), (start, extent))
        {
            left.pages += extent.pages;
            self.extents.remove(&start);
        }
    }
}

fn run(start_page: u64, extent: &Extent) -> Run {
    Run {
        start_page,
        pages: extent.pages,
        segment: extent.segment,
        offset_page: extent.offset_page,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 64;

    /// The index as a table: page to (segment, page of the segment).
    fn expand(index: &RunIndex) -> Vec<Option<(u64, u64)>> {
        let mut table = vec![None; PAGES as usize];
        let mut end = 0;
        for run in index.runs() {
            assert!(run.pages > 0 && run.start_page >= end, "disjoint and ordered");
            end = run.start_page + run.pages;
            for i in 0..run.pages {
                table[(run.start_page + i) as usize] = Some((run.segment.0, run.offset_page + i));
            }
        }
        table
    }

    fn any_run() -> impl Strategy<Value = Run> {
        (0..PAGES, 1..12u64, 0..3u64, 0..40u64).prop_map(
            |(start_page, pages, segment, offset_page)| Run {
                start_page,
                pages: pages.min(PAGES - start_page),
                segment: SegmentId(segment),
                offset_page,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn behaves_like_a_table(steps in proptest::collection::vec((any_run(), proptest::bool::weighted(0.7)), 1..80)) {
            let mut index = RunIndex::default();
            let mut table = vec![None; PAGES as usize];
            let mut live = [0i64; 3];
            for (run, insert) in steps {
                let mut freed = [0i64; 3];
                let count = |segment: SegmentId, pages: u64| freed[segment.0 as usize] += pages as i64;
                if insert {
                    index.insert(run, count);
                    live[run.segment.0 as usize] += run.pages as i64;
                } else {
                    index.remove(run, count);
                }
                for i in 0..run.pages {
                    let slot = &mut table[(run.start_page + i) as usize];
                    let this = Some((run.segment.0, run.offset_page + i));
                    if insert {
                        *slot = this;
                    } else if *slot == this {
                        *slot = None;
                    }
                }
                for (live, freed) in live.iter_mut().zip(freed) {
                    *live -= freed;
                }
                prop_assert_eq!(&expand(&index), &table);
                for (segment, live) in live.iter().enumerate() {
                    let pages = table.iter().flatten().filter(|page| page.0 == segment as u64).count();
                    prop_assert_eq!(*live, pages as i64);
                }
            }
        }
    }

    #[test]
    fn neighbours_merge_only_when_the_segment_continues() {
        let run = |start_page, offset_page| Run {
            start_page,
            pages: 2,
            segment: SegmentId(0),
            offset_page,
        };
        let mut index = RunIndex::default();
        index.insert(run(0, 10), |_, _| ());
        index.insert(run(2, 12), |_, _| ());
        index.insert(run(6, 16), |_, _| ());
        assert_eq!(index.len(), 2);
        index.insert(run(4, 14), |_, _| ());
        assert_eq!(
            index.runs().collect::<Vec<_>>(),
            [Run { start_page: 0, pages: 8, segment: SegmentId(0), offset_page: 10 }]
        );
        index.insert(run(8, 30), |_, _| ());
        assert_eq!(index.len(), 2);
    }
}
