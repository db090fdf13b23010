//! Folding delta that several memories have in common once for all of them.
//!
//! A copy names the runs of the memory it was made of. If each memory folded them for itself, all
//! pages that the delta touches would be moved apart although nothing differs. So when one memory
//! is folded:
//!
//! - A page that several memories reference is overwritten in place if all of them find the same
//!   page of the same segment above it, in all versions that are being read and in all durable
//!   indexes. The run is then removed from all their indexes ([`Memory::shadowed_until`] before,
//!   [`Memory::apply_shared_fold`] after).
//! - Pages that have to be moved are moved for all memories that find the same segment pages above
//!   the written ones: they share the new place. The data at the old place was the same for all of
//!   them.
//!
//! A memory cannot stop finding a run above a page in a way that matters while the page is written:
//! newer runs are above it too, a removed memory's durable index names the run, and a copy that is
//! made meanwhile begins with it.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    MemoryId, Run, SegmentId,
    extents::SharedFile,
    files::Name,
    fold_plan::{FoldContext, FoldPlan, FoldSource, Readers},
    memory::{Accounts, Memory, Segment},
    sharing::Move,
    store::lock,
};

/// Other memories that find the same page above a page that they reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoReferrers {
    /// Their number.
    pub(crate) count: u32,
    /// None of them, and none of their readers, reads below it.
    pub(crate) is_ready: bool,
    /// End of the range in which the same holds.
    pub(crate) until: u64,
}

/// The page of a segment that shadows a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaPage<'a> {
    pub(crate) segment: &'a Arc<SharedFile>,
    pub(crate) offset_page: u64,
}

/// A memory's names for the segments of a plan, and their files.
type SegmentNames<'a> = BTreeMap<SegmentId, (SegmentId, &'a Arc<SharedFile>)>;

impl FoldContext<'_> {
    /// Those memories that find `above` above the first of these pages, and reference `base` there.
    /// `id` is the memory that is folded, and locked: no other thread waits for a memory while
    /// holding another, so locking these cannot deadlock.
    pub(crate) fn co_referrers(
        &self,
        id: MemoryId,
        above: DeltaPage,
        pages: &Range<u64>,
        base: &Arc<SharedFile>,
    ) -> CoReferrers {
        let mut co_referrers = CoReferrers { count: 0, is_ready: true, until: pages.end };
        let users = base.users().clone();
        for other in users.into_iter().filter(|other| *other != id) {
            let Some(memory) = self.memories.get(&other) else { continue };
            let memory = lock(memory);
            let Some((segment, until)) = memory.shadowed_until(above, pages, base) else {
                continue;
            };
            co_referrers.count += 1;
            co_referrers.until = co_referrers.until.min(until);
            let mut is_ready = memory.is_ready(segment);
            if !is_ready && self.readers == Readers::CutOff {
                self.store.accounts.cut_off.fetch_add(memory.cut_off_readers(), Relaxed);
                is_ready = memory.is_ready(segment);
            }
            co_referrers.is_ready &= is_ready;
        }
        co_referrers
    }
}

impl Memory {
    /// This memory's name for the segment that shadows these pages, and the end of the range in
    /// which `above` does and the base page is in `base`; `None` if the first page does not match.
    fn shadowed_until(
        &self,
        above: DeltaPage,
        pages: &Range<u64>,
        base: &Arc<SharedFile>,
    ) -> Option<(SegmentId, u64)> {
        let run = self.index.next_run(pages.start)?;
        let within = pages.start.checked_sub(run.start_page)?;
        let segment = self.segments.get(&run.segment)?.shared.as_ref()?;
        let is_same =
            Arc::ptr_eq(segment, above.segment) && run.offset_page + within == above.offset_page;
        let (file, extent) = self.sharing.as_ref()?.extent(pages.start, self.base_pages());
        let until = pages.end.min(extent.end).min(run.start_page + run.pages);
        (is_same && Arc::ptr_eq(file, base)).then_some((run.segment, until))
    }

    /// Whether no durable index of this memory, and no reader of it, reads below a segment that the
    /// newest version finds above a page.
    fn is_ready(&self, segment: SegmentId) -> bool {
        let is_ready = |segment: &Segment| {
            // No version of it ever read below the segments it was created with.
            let owner = segment.shared.as_ref().map(|shared| shared.name);
            let is_borrowed = matches!(owner, Some(Name::Segment(owner, _)) if owner != self.id);
            is_borrowed || self.is_settled(segment)
        };
        self.segments.get(&segment).is_some_and(is_ready)
    }

    /// Applies a fold to another memory: the data that `plan` wrote for that memory, and synced, is
    /// below what this one finds. Removes the same runs from this index and references pages where
    /// they were moved. Returns whether anything changed.
    pub(crate) fn apply_shared_fold(&mut self, accounts: &Accounts, plan: &FoldPlan) -> bool {
        let names = self.names_of(&plan.segments);
        let relocated = plan.moves.iter().map(|moved| self.relocate_shared(moved, plan, &names));
        let moves: Vec<Move> = relocated.flatten().collect();
        let mut runs = Vec::new();
        for (run, base) in &plan.runs {
            let Some(&(segment, _)) = names.get(&run.segment) else { continue };
            let pages = run.start_page..run.start_page + run.pages;
            if moves.iter().any(|moved| moved.pages.contains(&pages.start)) {
                runs.push(Run { segment, ..*run });
                continue;
            }
            let extents = self.sharing.iter().flat_map(|sharing| sharing.extents(pages.clone()));
            for (_, here) in extents.filter(|(file, _)| file.name == *base) {
                let offset_page = run.offset_page + (here.start - pages.start);
                let (start_page, pages) = (here.start, here.end - here.start);
                runs.push(Run { start_page, pages, segment, offset_page });
            }
        }
        for Move { pages, to, .. } in &moves {
            to.refs().add(pages);
        }
        self.folded(accounts, &runs, &moves)
    }

    /// This memory's names for segments of another, without those whose pages it would not report
    /// any more as written since the last checkpoint if they were folded.
    fn names_of<'a>(&self, sources: &'a [FoldSource]) -> SegmentNames<'a> {
        let name = |source: &'a FoldSource| {
            let shared = source.shared.as_ref()?;
            let is_named = |segment: &Segment| {
                segment.shared.as_ref().is_some_and(|named| Arc::ptr_eq(named, shared))
            };
            let (own, segment) = self.segments.iter().find(|(_, segment)| is_named(segment))?;
            (segment.durable || self.initial.is_some()).then_some((source.id, (*own, shared)))
        };
        sources.iter().filter_map(name).collect()
    }

    /// The part of a move that is in this memory, if it can reference the new place instead: it
    /// referenced all of the old one, and finds the same pages above the written ones.
    fn relocate_shared(&self, moved: &Move, plan: &FoldPlan, names: &SegmentNames) -> Option<Move> {
        let pages = moved.pages.start..moved.pages.end.min(self.base_pages());
        if pages.is_empty() {
            return None;
        }
        let (file, extent) = self.sharing.as_ref()?.extent(pages.start, self.base_pages());
        if !Arc::ptr_eq(file, &moved.from) || extent.end < pages.end {
            return None;
        }
        let mut goes = false;
        let written = plan.runs.iter().filter(|(run, _)| moved.pages.contains(&run.start_page));
        for (run, _) in written.filter(|(run, _)| run.start_page < pages.end) {
            let here = run.start_page..(run.start_page + run.pages).min(pages.end);
            let (_, segment) = names.get(&run.segment)?;
            let above = DeltaPage { segment, offset_page: run.offset_page };
            let (_, until) = self.shadowed_until(above, &here, &moved.from)?;
            if until < here.end {
                return None;
            }
            goes = true;
        }
        goes.then(|| Move { pages, ..moved.clone() })
    }
}
