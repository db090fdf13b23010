//! The delta index of one memory: the segment of each page. Runs are disjoint; neighbours are
//! merged if they are neighbours in the segment too, because every run costs its mapper a mapping.
//! The index knows nothing of files; a callback reports pages that are removed.

use std::ops::Range;

use crate::{
    Run, SegmentId,
    range_map::{PageValue, RangeMap},
};

/// A page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentPage {
    segment: SegmentId,
    offset_page: u64,
}

impl PageValue for SegmentPage {
    fn after(&self, pages: u64) -> Self {
        Self { offset_page: self.offset_page + pages, ..*self }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunIndex {
    runs: RangeMap<SegmentPage>,
}

impl RunIndex {
    /// Number of runs.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// All runs, ordered by first page.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = Run> {
        self.runs.iter().map(|(pages, of)| run(pages, of))
    }

    /// The first run that ends behind a page, whole.
    pub(crate) fn next_run(&self, page: u64) -> Option<Run> {
        self.runs.next(page).map(|(pages, of)| run(pages, of))
    }

    /// Lays `new` over what is there. `freed(segment, pages)` hears of every page that it replaces.
    pub(crate) fn insert(&mut self, new: Run, mut freed: impl FnMut(SegmentId, u64)) {
        assert!(new.pages > 0, "an empty run at page {}", new.start_page);
        let (pages, of) = parts(new);
        self.runs.insert(pages, of, |piece, old| freed(old.segment, piece.end - piece.start));
    }

    /// Takes `old` out wherever it is still what the index says, and leaves what was overwritten
    /// since. Calls `freed` for what it took.
    pub(crate) fn remove(&mut self, old: Run, mut freed: impl FnMut(SegmentId, u64)) {
        let (pages, of) = parts(old);
        self.runs.remove(&pages, |piece, found| {
            let is_same = found == of.after(piece.start - pages.start);
            if is_same {
                freed(found.segment, piece.end - piece.start);
            }
            is_same
        });
    }
}

fn run(pages: Range<u64>, &SegmentPage { segment, offset_page }: &SegmentPage) -> Run {
    Run { start_page: pages.start, pages: pages.end - pages.start, segment, offset_page }
}

fn parts(run: Run) -> (Range<u64>, SegmentPage) {
    let Run { start_page, pages, segment, offset_page } = run;
    (start_page..start_page + pages, SegmentPage { segment, offset_page })
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
