//! Places of an open segment that may be written again.
//!
//! A busy canister writes the same few pages in every message. Appended, they take new pages of the
//! kernel's cache each time, which costs ten times what writing over cached ones does. So the store
//! remembers which pages of an open segment the last commits wrote, and hands them out again
//! ([`crate::AppendTarget::free`]) once no version that can still be read has them.
//!
//! What is in an open segment counts for nothing after a crash, so the order of these writes does
//! not matter. A sealed segment is never written.
//!
//! A place then no longer identifies its content. Mappings of the file show the newest content
//! anyway; copies that a worker made of pages it could not map would not. A worker copies only
//! where a memory has thousands of runs, so memories that had more than [`RUNS_MAX`] since their
//! files were last mapped afresh reuse nothing.
//!
//! Bounds: [`EXTENTS_MAX`] extents for each of [`MEMORIES_MAX`] memories, 80 KiB in all; others
//! append. The sheet's line of the index counts an entry for every page of the log, also for dead
//! ones, of which there is none.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{SegmentId, index::RunIndex, memory::subtract};

/// Memories whose extents are remembered at a time.
const MEMORIES_MAX: u64 = 256;

/// Extents that are remembered; the oldest goes first.
const EXTENTS_MAX: usize = 8;

/// Longest extent in pages that is remembered: longer ones are the exception, and their places are
/// recovered when the segment is rewritten.
const EXTENT_PAGES_MAX: u64 = 64;

/// Runs of an index up to which it is looked for extents, at every commit.
const INDEXED_RUNS_MAX: usize = 64;

/// Runs of a memory beyond which nothing is reused until the files are mapped afresh; far below
/// what a worker maps.
pub(crate) const RUNS_MAX: usize = 1_024;

/// Extents of one open segment that recent commits wrote.
#[derive(Debug)]
pub(crate) struct RecentExtents {
    extents: Vec<Extent>,
    /// Memories that have such a value, this one included.
    memories: Arc<AtomicU64>,
}

impl Drop for RecentExtents {
    fn drop(&mut self) {
        subtract(&self.memories, 1);
    }
}

#[derive(Debug)]
struct Extent {
    /// Of the segment.
    pages: Range<u64>,
    /// The version that wrote them.
    written: u64,
    /// The first version seen that needs none of them.
    replaced: Option<u64>,
}

impl RecentExtents {
    /// `None` while as many of the `memories` of a store have one as may.
    pub(crate) fn new(memories: &Arc<AtomicU64>) -> Option<Self> {
        let one_more = |memories: u64| (memories < MEMORIES_MAX).then_some(memories + 1);
        memories.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Self { extents: Vec::new(), memories: Arc::clone(memories) })
    }

    /// `version`, whose index is `index`, wrote `pages` of `segment`.
    pub(crate) fn committed(
        &mut self,
        segment: SegmentId,
        pages: Range<u64>,
        version: u64,
        index: &RunIndex,
    ) {
        if index.len() > INDEXED_RUNS_MAX {
            self.extents.clear();
            return;
        }
        self.extents.retain(|extent| !overlap(&extent.pages, &pages));
        for extent in &mut self.extents {
            let is_needed = || {
                index.runs().any(|run| {
                    let place = run.offset_page..run.offset_page + run.pages;
                    run.segment == segment && overlap(&place, &extent.pages)
                })
            };
            if extent.replaced.is_none() && !is_needed() {
                extent.replaced = Some(version);
            }
        }
        if pages.is_empty() || pages.end - pages.start > EXTENT_PAGES_MAX {
            return;
        }
        if self.extents.len() == EXTENTS_MAX {
            self.extents.remove(0);
        }
        self.extents.push(Extent { pages, written: version, replaced: None });
    }

    /// The longest extent that no version needs that can be read; empty if there is none. `is_read`
    /// says whether one of a range of versions older than the newest is being read.
    pub(crate) fn free(&self, is_read: impl Fn(Range<u64>) -> bool) -> Range<u64> {
        let free = self.extents.iter().filter(|extent| {
            extent.replaced.is_some_and(|replaced| !is_read(extent.written..replaced))
        });
        let longest = free.max_by_key(|extent| extent.pages.end - extent.pages.start);
        longest.map_or(0..0, |extent| extent.pages.clone())
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Run;

    const SEGMENT: SegmentId = SegmentId(3);

    fn extents() -> RecentExtents {
        RecentExtents::new(&Arc::default()).unwrap()
    }

    #[test]
    fn memories_that_remember_are_bounded_and_make_room_for_others() {
        let memories = Arc::default();
        let mut all: Vec<_> =
            (0..MEMORIES_MAX).map(|_| RecentExtents::new(&memories).unwrap()).collect();
        assert!(RecentExtents::new(&memories).is_none());
        drop(all.pop());
        assert!(RecentExtents::new(&memories).is_some());
        drop(all);
        assert_eq!(memories.load(Relaxed), 0);
    }

    fn commit(extents: &mut RecentExtents, index: &mut RunIndex, version: u64, run: Run) {
        index.insert(run, |_, _| ());
        let pages = run.offset_page..run.offset_page + run.pages;
        extents.committed(SEGMENT, pages, version, index);
    }

    fn run(start_page: u64, pages: u64, offset_page: u64) -> Run {
        Run { start_page, pages, segment: SEGMENT, offset_page }
    }

    #[test]
    fn what_a_later_version_replaced_is_free_unless_a_version_between_is_read() {
        let (mut extents, mut index) = (extents(), RunIndex::default());
        commit(&mut extents, &mut index, 1, run(10, 3, 0));
        assert!(extents.free(|_| false).is_empty(), "the newest version needs it");
        commit(&mut extents, &mut index, 2, run(10, 2, 3));
        assert!(extents.free(|_| false).is_empty(), "page 12 is still there");
        commit(&mut extents, &mut index, 3, run(10, 3, 5));
        assert_eq!(extents.free(|_| false), 0..3, "the longest");
        assert_eq!(extents.free(|versions| versions.contains(&1)), 3..5);
        assert!(extents.free(|versions| versions.contains(&2)).is_empty(), "both are in it");
        assert_eq!(extents.free(|versions| versions.contains(&3)), 0..3);
        commit(&mut extents, &mut index, 4, run(10, 3, 0));
        assert_eq!(extents.free(|_| false), 5..8);
    }

    #[test]
    fn extents_are_bounded_in_number_and_length() {
        let (mut extents, mut index) = (extents(), RunIndex::default());
        for version in 1..40 {
            let pages = if version % 5 == 0 { EXTENT_PAGES_MAX + 1 } else { 1 };
            commit(&mut extents, &mut index, version, run(0, pages, version * 100));
            assert!(extents.extents.len() <= EXTENTS_MAX);
        }
        let free = extents.free(|_| false);
        assert!(!free.is_empty() && free.end - free.start <= EXTENT_PAGES_MAX);
        for page in 0..=INDEXED_RUNS_MAX as u64 {
            commit(&mut extents, &mut index, 40 + page, run(1000 + 2 * page, 1, 8_000 + 3 * page));
        }
        assert!(extents.free(|_| false).is_empty(), "an index too long to be looked through");
    }
}
