//! The pages that a message wrote: an exact count against a cap, and the list of pages at the end.
//!
//! A cap that changes an outcome must be reached at the same write on every node, so pages are
//! counted by what the canister did, never by what the kernel happens to have mapped. A [`Tracker`]
//! is notified of every first write, by the fault of a protected page or ahead of a write of known
//! extent, and refuses the one that would exceed the cap.
//!
//! The granule that a write opens ([`Tracker::open`]) grows with the number of stretches of
//! unprotected pages, as each costs the kernel up to two mappings (docs/internals/metering.md): a
//! page while there are fewer than [`STRETCHES_PER_PAGE`], 16 pages until twice that, then 256.
//! Pages of the granule count as written. With a cap of `c` pages the stretches stay below
//! `2 * STRETCHES_PER_PAGE + c / 256`, which leaves room for what else a worker maps.
//!
//! A second tracker ([`Tracker::touched`]) counts Wasm pages of a heap as they are first accessed,
//! with at most `2 * STRETCHES_PER_WASM_PAGE` stretches and one for each 16 MiB. Stable memory is
//! never protected, so there every page is counted by itself ([`Tracker::mark`]).
//!
//! Pages of a paused message are in a file after [`Tracker::spill`], protected again in a heap.
//! They stay counted; a write to one is recorded ([`Tracker::touch`]), so that the next pause
//! writes the changes since. In a heap it also unprotects: single pages up to
//! [`TOUCHES_OF_A_PAGE`], then all counted pages among 256. This affects only the number of
//! mappings.
//!
//! # Bounds
//!
//! Of Wasm pages that are touched one bit and at most one range each: 1 MiB for a heap of 4 GiB.
//! One bit per page ([`Bits`]): of a heap as many as the largest had that this worker has seen, of
//! a stable memory those near pages that were written; one more where a message was paused; and one
//! entry per stretch found, at most one per page of the cap. Of a heap's tracker [`Tracker::open`]
//! and [`Tracker::touch`] allocate nothing, because they run in a signal handler.

use std::ops::Range;

use super::bits::Bits;

/// Stretches of written pages up to which a fault unprotects a single page.
pub(crate) const STRETCHES_PER_PAGE: u64 = 8192;

/// Stretches of Wasm pages that were touched up to which a fault opens a single one.
const STRETCHES_PER_WASM_PAGE: u64 = 512;

/// Writes to spilled pages up to which a fault unprotects a single one.
const TOUCHES_OF_A_PAGE: usize = 2048;

/// The message would have written more pages than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapReached;

/// Pages written by one execution.
#[derive(Debug)]
pub(crate) struct Tracker {
    bits: Bits,
    /// Every range of pages newly marked, in the order of marking; disjoint.
    marked: Vec<Range<u64>>,
    /// Number of pages marked, at most `pages_max`.
    pages: u64,
    /// Pages that may be marked.
    pages_max: u64,
    /// Stretches of adjacent marked pages.
    stretches: u64,
    /// Stretches up to which [`Self::open`] marks single pages.
    stretches_per_page: u64,
    /// Marked, spilled, and not written since; there are none where nothing was spilled.
    spilled: Bits,
    is_sparse: bool,
    /// Entries of `marked` that came before the last spill.
    spilled_marks: usize,
    /// Spilled pages that were written since, disjoint.
    touched: Vec<Range<u64>>,
}

impl Tracker {
    /// Of a heap, or of a stable memory, whose tracker may allocate at any time.
    pub(crate) fn new(is_sparse: bool) -> Self {
        Self {
            bits: Bits::new(0, is_sparse),
            marked: Vec::new(),
            pages: 0,
            pages_max: 0,
            stretches: 0,
            stretches_per_page: STRETCHES_PER_PAGE,
            spilled: Bits::new(0, is_sparse),
            is_sparse,
            spilled_marks: 0,
            touched: Vec::new(),
        }
    }

    /// A tracker of the Wasm pages of a heap that a message touched: those that are accessible. A
    /// page in this module is then a Wasm page.
    pub(crate) fn touched() -> Self {
        Self { stretches_per_page: STRETCHES_PER_WASM_PAGE, ..Self::new(false) }
    }

    /// Prepares for an execution over a memory of at most `memory_pages` that may write
    /// `pages_max`.
    pub(crate) fn begin(&mut self, memory_pages: u64, pages_max: u64) {
        self.clear();
        self.pages_max = pages_max.min(memory_pages);
        if self.bits.pages() < memory_pages {
            // A fresh zeroed allocation stays untouched until used, resizing would touch it.
            self.bits = Bits::new(memory_pages, self.is_sparse);
        }
        if self.marked.capacity() < self.pages_max as usize + 1 {
            self.marked = Vec::with_capacity(self.pages_max as usize + 1);
        }
        debug_assert!(
            self.pages_max <= self.bits.pages(),
            "{} pages may be marked of {}",
            self.pages_max,
            self.bits.pages()
        );
    }

    /// Pages marked so far.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that may still be marked.
    pub(crate) fn room(&self) -> u64 {
        self.pages_max - self.pages
    }

    /// Stretches of adjacent pages that are marked.
    pub(crate) fn stretches(&self) -> u64 {
        self.stretches
    }

    /// Whether `page` is marked.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.bits.is_set(page)
    }

    /// Whether `page` was spilled and is unchanged since.
    pub(crate) fn is_spilled(&self, page: u64) -> bool {
        self.spilled.is_set(page)
    }

    /// The pages that were written since the last spill, as disjoint ranges in order, none
    /// adjacent. From now on they count as spilled.
    pub(crate) fn spill(&mut self) -> Vec<Range<u64>> {
        if self.spilled.pages() < self.bits.pages() {
            self.spilled = Bits::new(self.bits.pages(), self.is_sparse);
        }
        let mut ranges: Vec<_> = self.marked.get(self.spilled_marks..).unwrap_or_default().to_vec();
        ranges.append(&mut self.touched);
        if self.touched.capacity() < self.marked.capacity() {
            self.touched = Vec::with_capacity(self.marked.capacity());
        }
        self.spilled_marks = self.marked.len();
        ranges.iter().cloned().flatten().for_each(|page| self.spilled.set(page));
        joined(&mut ranges)
    }

    /// Records a write to `range`, which is marked: passes `again` each part that was spilled and
    /// is to be unprotected.
    pub(crate) fn touch(&mut self, range: Range<u64>, mut again: impl FnMut(Range<u64>)) {
        if self.spilled_marks == 0 || !range.clone().any(|page| self.is_spilled(page)) {
            return;
        }
        let range = match self.touched.len() {
            ..TOUCHES_OF_A_PAGE => range,
            _ => range.start - range.start % 256..range.end.next_multiple_of(256),
        };
        let mut page = range.start;
        while page < range.end {
            let start = page;
            while page < range.end && self.is_spilled(page) {
                self.spilled.unset(page);
                page += 1;
            }
            if start < page {
                self.touched.push(start..page);
                again(start..page);
            } else {
                page += 1;
            }
        }
    }

    /// A first write to `range` of a memory of `memory_pages`, where unmarked pages are protected:
    /// marks it, widened to the granule for the current number of stretches, and passes `fresh`
    /// each part that is to be unprotected.
    pub(crate) fn open(
        &mut self,
        range: Range<u64>,
        memory_pages: u64,
        fresh: impl FnMut(Range<u64>),
    ) -> Result<(), CapReached> {
        let granule = match self.stretches / self.stretches_per_page {
            0 => 1,
            1 => 16,
            _ => 256,
        };
        if granule == 1 || range.clone().all(|page| self.contains(page)) {
            return self.mark(range, fresh);
        }
        let start = range.start - range.start % granule;
        let end = range.end.next_multiple_of(granule).min(memory_pages);
        self.mark(start..end, fresh)
    }

    /// Marks `range`, and passes `fresh` each part of it that was not marked. If the cap would be
    /// exceeded, nothing is marked.
    pub(crate) fn mark(
        &mut self,
        range: Range<u64>,
        mut fresh: impl FnMut(Range<u64>),
    ) -> Result<(), CapReached> {
        let unmarked = range.clone().filter(|page| !self.contains(*page)).count() as u64;
        if unmarked == 0 {
            return Ok(());
        }
        if self.pages + unmarked > self.pages_max || range.end > self.bits.pages() {
            return Err(CapReached);
        }
        let mut page = range.start;
        while page < range.end {
            if self.contains(page) {
                page += 1;
                continue;
            }
            let start = page;
            while page < range.end && !self.contains(page) {
                self.bits.set(page);
                page += 1;
            }
            let joined =
                u64::from(start > 0 && self.contains(start - 1)) + u64::from(self.contains(page));
            self.stretches = (self.stretches + 1).saturating_sub(joined);
            self.pages += page - start;
            debug_assert!(self.marked.len() < self.marked.capacity(), "a mark would allocate");
            self.marked.push(start..page);
            fresh(start..page);
        }
        Ok(())
    }

    /// Ends the execution: the marked pages as disjoint ranges in order, none adjacent. The tracker
    /// is empty afterwards.
    pub(crate) fn take(&mut self) -> Vec<Range<u64>> {
        let ranges = joined(&mut self.marked);
        debug_assert_eq!(
            ranges.iter().map(|range| range.end - range.start).sum::<u64>(),
            self.pages,
            "pages that were marked"
        );
        debug_assert_eq!(ranges.len() as u64, self.stretches, "stretches that were marked");
        self.clear();
        ranges
    }

    fn clear(&mut self) {
        for page in self.marked.drain(..).flatten() {
            self.bits.forget(page);
            self.spilled.forget(page);
        }
        self.touched.clear();
        self.spilled_marks = 0;
        self.pages = 0;
        self.stretches = 0;
    }
}

/// Disjoint ranges in order, adjacent ones as one.
fn joined(ranges: &mut [Range<u64>]) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        debug_assert!(
            all.last().is_none_or(|last| last.end <= range.start),
            "pages from {} on are marked twice",
            range.start
        );
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn tracker(memory_pages: u64, pages_max: u64) -> Tracker {
        let mut tracker = Tracker::new(false);
        tracker.begin(memory_pages, pages_max);
        tracker
    }

    #[test]
    fn the_cap_is_exact() {
        let mut tracker = tracker(100, 3);
        assert_eq!(tracker.open(5..6, 100, |_| {}), Ok(()));
        assert_eq!(tracker.open(5..6, 100, |_| panic!("a page is opened once")), Ok(()));
        assert_eq!(tracker.mark(6..9, |_| {}), Err(CapReached), "one too many marks none");
        assert_eq!(tracker.mark(4..7, |_| {}), Ok(()));
        assert_eq!(tracker.open(7..8, 100, |_| {}), Err(CapReached));
        assert_eq!(tracker.take(), vec![4..7]);
        assert_eq!(tracker.pages(), 0);
    }

    #[test]
    fn scattered_writes_never_make_more_stretches_than_the_kernel_can_map() {
        let memory = 1 << 20;
        let cap = 1 << 18;
        let mut tracker = tracker(memory, cap);
        let mut page = 0;
        while page < memory {
            if tracker.open(page..page + 1, memory, |_| {}).is_err() {
                break;
            }
            page += 2;
        }
        assert!(tracker.stretches <= 2 * STRETCHES_PER_PAGE + cap / 256);
        assert!(tracker.pages() <= cap);
    }

    #[test]
    fn what_was_spilled_counts_once_and_is_spilled_again_when_it_was_written() {
        let mut tracker = tracker(1 << 16, 1 << 15);
        tracker.mark(5..8, |_| {}).unwrap();
        tracker.mark(9..10, |_| {}).unwrap();
        assert_eq!(tracker.spill(), vec![5..8, 9..10]);
        assert_eq!(tracker.spill(), vec![]);
        tracker.mark(4..7, |fresh| assert_eq!(fresh, 4..5)).unwrap();
        let mut again = Vec::new();
        tracker.touch(4..7, |range| again.push(range));
        tracker.touch(6..7, |_| panic!("it was written already"));
        tracker.touch(8..9, |_| panic!("it is not marked"));
        assert_eq!(again.into_iter().flatten().collect::<Vec<u64>>(), [5, 6]);
        assert_eq!(tracker.pages(), 5);
        assert!(tracker.is_spilled(7) && !tracker.is_spilled(4) && !tracker.is_spilled(6));
        assert!(tracker.spill().into_iter().flatten().eq(4..7));
        assert_eq!(tracker.take(), vec![4..8, 9..10]);
        // Nothing of it is left to the next message.
        tracker.begin(1 << 16, 1 << 15);
        tracker.mark(5..6, |_| {}).unwrap();
        tracker.touch(5..6, |_| panic!("nothing was spilled"));
    }

    #[test]
    fn scattered_writes_to_what_was_spilled_make_few_more_stretches() {
        let mut tracker = tracker(1 << 18, 1 << 18);
        tracker.mark(0..1 << 18, |_| {}).unwrap();
        assert!(tracker.spill().into_iter().flatten().eq(0..1 << 18));
        let mut stretches = 0;
        for page in (0..1 << 18).step_by(2) {
            tracker.touch(page..page + 1, |_| stretches += 1);
            assert!(!tracker.is_spilled(page));
        }
        assert!(stretches <= TOUCHES_OF_A_PAGE + (1 << 18) / 256);
    }

    proptest! {
        #[test]
        fn marks_agree_with_a_set(operations in prop::collection::vec((0_u64..300, 1_u64..40, any::<bool>()), 0..60), cap in 1_u64..300, is_sparse: bool) {
            let mut tracker = Tracker::new(is_sparse);
            tracker.begin(300, cap);
            let mut model = BTreeSet::new();
            for (start, length, single) in operations {
                let range = if single { start..start + 1 } else { start..(start + length).min(300) };
                let new: Vec<u64> = range.clone().filter(|page| !model.contains(page)).collect();
                let mut fresh = Vec::new();
                let marked = tracker.mark(range, |part| fresh.extend(part));
                if (model.len() + new.len()) as u64 <= cap {
                    prop_assert_eq!(marked, Ok(()));
                    prop_assert_eq!(&fresh, &new);
                    model.extend(new);
                } else {
                    prop_assert_eq!(marked, Err(CapReached));
                }
                let stretches = model.iter().filter(|page| !model.contains(&(**page + 1))).count() as u64;
                prop_assert_eq!(tracker.stretches, stretches);
                prop_assert_eq!(tracker.pages(), model.len() as u64);
            }
            let taken = tracker.take();
            prop_assert!(taken.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(taken.into_iter().flatten().collect::<BTreeSet<_>>(), model);
            prop_assert_eq!(tracker.mark(0..1, |_| {}), Ok(()));
        }
    }
}
