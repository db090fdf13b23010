//! Plans which pages of one memory can be folded now, and to which file. Pages are written to the
//! base file they are in if this memory alone references them there, or if all memories that do
//! have the same data to write (see `shared_fold.rs`). Otherwise they move to another file, with
//! the pages around them. The crate's documentation explains why each case is safe.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    Pin, Result, Run, SegmentId,
    extents::SharedFile,
    files::Name,
    memory::{Memory, Segment},
    shared_fold::{CoReferrers, DeltaPage},
    sharing::Move,
    store::{Memories, PageStore},
};

/// Pages that one step moves in one memory, unless more have to go at once.
const MOVED_PAGES_MAX: u64 = 4096;

/// Treatment of readers that block a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Their memory is skipped, and so are pages that only readers and durable indexes still share:
    /// once these release them, the pages need not be moved.
    Respected,
    /// They are cut off, unless they hold their version, and pages that only readers still share
    /// are moved. Pages shared by a durable index wait for the checkpoint that releases them.
    CutOff,
}

/// Input of a plan.
#[derive(Clone, Copy)]
pub(crate) struct FoldContext<'a> {
    pub(crate) store: &'a PageStore,
    /// All memories. That which is folded is locked.
    pub(crate) memories: &'a Memories,
    pub(crate) readers: Readers,
}

/// Pages to fold and where they are.
pub(crate) struct FoldPlan {
    /// Each within one base file.
    pub(crate) runs: Vec<(Run, Name)>,
    /// To be done before.
    pub(crate) moves: Vec<Move>,
    pub(crate) segments: Vec<FoldSource>,
    /// The files that the memory shares.
    pub(crate) shared_bases: Vec<Arc<SharedFile>>,
    /// Until the pages are written, the fold is a reader of the memory: if that is removed, no page
    /// is released and referenced anew meanwhile.
    pub(crate) _pin: Arc<Pin>,
}

/// A segment that is folded.
pub(crate) struct FoldSource {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<std::fs::File>,
    /// Set if other memories may name it too.
    pub(crate) shared: Option<Arc<SharedFile>>,
}

/// Work of a fold.
pub(crate) enum FoldWork {
    /// Nothing is sealed and durable.
    None,
    /// An older version is being read, or pages wait for a checkpoint that releases them.
    Blocked,
    /// This step folds another memory that it shares files with.
    Later,
    /// These runs can be folded.
    Plan(FoldPlan),
}

/// Where a page goes, and to which page the same holds.
enum Target {
    To(Name, u64),
    /// It has to wait.
    Waits(u64),
    /// As much is moved as one step may.
    Full,
}

impl Memory {
    /// Up to `pages_max` pages that may be copied into base files now. Places that are written to
    /// are reserved.
    pub(crate) fn plan_fold(&mut self, context: FoldContext, pages_max: u64) -> Result<FoldWork> {
        if context.readers == Readers::CutOff {
            context.store.accounts.cut_off.fetch_add(self.cut_off_readers(), Relaxed);
        }
        let ready = |segment: &Segment| segment.live_pages > 0 && self.is_settled(segment);
        let candidates = self.segments.iter().filter(|(_, segment)| ready(segment));
        let candidates: Vec<SegmentId> = candidates.map(|(&id, _)| id).collect();
        if candidates.is_empty() {
            return Ok(if self.has_durable_delta() { FoldWork::Blocked } else { FoldWork::None });
        }
        let open = |&id: &SegmentId| {
            let path = context.store.dir.path_of(self.segment_name(id));
            let shared = self.segments.get(&id).and_then(|segment| segment.shared.clone());
            Ok(FoldSource {
                id,
                path,
                file: self.segment_handle(&context.store.dir, id).open()?,
                shared,
            })
        };
        let segments = candidates.iter().map(open).collect::<Result<_>>()?;
        let mut moves = Vec::new();
        let runs = self.runs_to_fold(&candidates, pages_max, |memory, run| {
            memory.target(context, run, &mut moves)
        });
        let mut runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                for Move { pages, to, .. } in &moves {
                    // The error that matters is the first one; what is left is found at the start.
                    let _ = context.store.shared.give_back(&context.store.dir, to, pages);
                }
                return Err(error);
            }
        };
        if runs.is_empty() {
            return Ok(FoldWork::Blocked);
        }
        // Runs to be written in place before it turned out that their unit has to move.
        for Move { pages, from, to } in &moves {
            let first = runs.partition_point(|(run, _)| run.start_page < pages.start);
            let within = runs.iter_mut().skip(first);
            let within = within.take_while(|(run, _)| run.start_page < pages.end);
            within.filter(|(_, base)| *base == from.name).for_each(|(_, base)| *base = to.name);
        }
        debug_assert!(
            moves.is_sorted_by(|one, next| one.pages.end <= next.pages.start),
            "{} moves are out of order or overlap",
            moves.len()
        );
        let shared_bases = self.shared_bases().cloned().collect();
        Ok(FoldWork::Plan(FoldPlan { runs, moves, segments, shared_bases, _pin: self.pin() }))
    }

    /// The base files that it references and that others may reference.
    pub(crate) fn shared_bases(&self) -> impl Iterator<Item = &Arc<SharedFile>> {
        self.sharing.iter().flat_map(|sharing| sharing.files())
    }

    /// Runs of these segments, cut where their targets change, of at most `pages_max` pages in
    /// total.
    fn runs_to_fold(
        &mut self,
        candidates: &[SegmentId],
        pages_max: u64,
        mut target: impl FnMut(&mut Self, Run) -> Result<Target>,
    ) -> Result<Vec<(Run, Name)>> {
        let (mut left, mut found) = (pages_max, Vec::new());
        let mut next = 0;
        // Not all runs: with a budget for few pages, few are visited.
        while left > 0
            && let Some(run) = self.index.next_run(next)
        {
            let end = run.start_page + run.pages;
            let mut at = run.start_page.max(next);
            next = end;
            if !candidates.contains(&run.segment) {
                continue;
            }
            while at < end && left > 0 {
                let offset_page = run.offset_page + (at - run.start_page);
                let rest = Run { start_page: at, pages: end - at, offset_page, ..run };
                match target(self, rest)? {
                    Target::To(base, until) => {
                        debug_assert!(until > at, "page {at} goes to a place up to page {until}");
                        let pages = (until - at).min(left);
                        found.push((Run { pages, ..rest }, base));
                        left -= pages;
                        at += pages;
                    }
                    Target::Waits(until) => {
                        debug_assert!(until > at, "page {at} waits up to page {until}");
                        at = until;
                    }
                    Target::Full => return Ok(found),
                }
            }
        }
        Ok(found)
    }

    /// Where the first page of this run goes.
    fn target(&mut self, context: FoldContext, run: Run, moves: &mut Vec<Move>) -> Result<Target> {
        let (page, end) = (run.start_page, run.start_page + run.pages);
        let (id, memory_pages, base_bytes) = (self.id, self.base_pages(), self.base_bytes);
        let Some(sharing) = self.sharing.as_mut() else {
            return Ok(Target::To(Name::own_base(id), end));
        };
        if let Some(last) = moves.last().filter(|last| last.pages.contains(&page)) {
            return Ok(Target::To(last.to.name, last.pages.end.min(end)));
        }
        let (file, extent) = sharing.extent(page, memory_pages);
        let file = Arc::clone(file);
        let (counts, until) = file.refs().counts(page, end.min(extent.end));
        if counts.is_sole() {
            return Ok(Target::To(file.name, until));
        }
        let unit = sharing.unit_of(page, &extent);
        // At most up to where the rest would move with it, if it has to move.
        let pages = page..until.min(unit.end);
        let segment = self.segments.get(&run.segment).and_then(|of| of.shared.as_ref());
        let co_referrers = match segment {
            Some(segment) if counts.current > 1 => {
                let above = DeltaPage { segment, offset_page: run.offset_page };
                context.co_referrers(id, above, &pages, &file)
            }
            _ => CoReferrers { count: 0, is_ready: true, until: pages.end },
        };
        if co_referrers.count + 1 >= counts.current {
            // No memory's newest version will reference other data here.
            let is_ready = co_referrers.is_ready && counts.pinned == 0;
            match (counts.retired, is_ready, context.readers) {
                (0, true, _) => return Ok(Target::To(file.name, co_referrers.until)),
                (0, false, Readers::CutOff) => {}
                _ => return Ok(Target::Waits(co_referrers.until)),
            }
        }
        // Pages that are written in place, maybe by this very plan, do not move.
        let unit = file.refs().not_sole(page, &unit);
        let moved: u64 = moves.iter().map(|moved| moved.pages.end - moved.pages.start).sum();
        if moved > 0 && moved + (unit.end - unit.start) > MOVED_PAGES_MAX {
            return Ok(Target::Full);
        }
        // A file of a move that is planned is used by the memory only once the move is made.
        let planned = || moves.iter().map(|moved| &moved.to).find(|to| to.reserve(&unit)).cloned();
        let to = match sharing.place_for(&unit).or_else(planned) {
            Some(to) => to,
            None => {
                let base = sharing.next_base();
                context.store.shared.create_base(&context.store.dir, base, base_bytes, &unit)?
            }
        };
        let target = Target::To(to.name, unit.end.min(end));
        moves.push(Move { pages: unit, from: file, to });
        Ok(target)
    }
}
