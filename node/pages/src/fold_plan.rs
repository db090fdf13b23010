//! What of one memory can be folded now, and where to: pages go to the base file in which they lie
//! if their memory alone looks at them there, and with others around them to another file if not.
//! See the crate's documentation for why either is safe.

use std::{ops::Range, path::PathBuf, sync::Arc};

use crate::{
    BaseId, Result, Run, SegmentId,
    claims::Standing,
    files::Dir,
    memory::{Memory, Segment},
    shared::SharedFiles,
    sharing::Move,
};

/// Pages that one step moves in one memory, unless more have to go at once.
const MOVED_PAGES_MAX: u64 = 4096;

/// What may stand in the way of a fold and be passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Their memory is left alone, and so are pages that only readers and durable indexes still
    /// share: once these let go, the pages need not be moved.
    Respected,
    /// They are cut off, unless they hold their version; and pages are moved that need not be later.
    CutOff,
}

/// Pages to fold and where they are.
pub(crate) struct FoldPlan {
    /// Each within one base file.
    pub(crate) runs: Vec<(Run, BaseId)>,
    /// To be done before.
    pub(crate) moves: Vec<Move>,
    pub(crate) segments: Vec<FoldSource>,
}

/// A segment that is folded.
pub(crate) struct FoldSource {
    pub(crate) id: SegmentId,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<std::fs::File>,
}

/// What there is to fold.
pub(crate) enum FoldWork {
    /// Nothing is sealed and durable.
    None,
    /// An older version is being read, or pages wait for a checkpoint that lets go of them.
    Blocked,
    /// These runs can be folded.
    Plan(FoldPlan),
}

/// Where a page goes, and to which page the same holds.
enum Target {
    To(BaseId, u64),
    /// It has to wait.
    Waits(u64),
    /// As much is moved as one step may.
    Full,
}

impl Memory {
    /// Cuts off the readers of older versions that stand in the way of a fold and that nobody
    /// holds. How many versions.
    pub(crate) fn cut_off_readers(&mut self) -> u64 {
        self.older.retain(|(_, pin)| pin.strong_count() > 0);
        let ready = |segment: &&Segment| segment.durable && segment.live_pages > 0;
        let sealed = self.segments.values().filter(ready).filter_map(|segment| segment.seal);
        let Some(newest) = sealed.map(|seal| seal.version).max() else { return 0 };
        let before = self.older.len();
        self.older.retain(|(version, pin)| {
            pin.upgrade().is_some_and(|pin| *version >= newest || !pin.cut_off())
        });
        (before - self.older.len()) as u64
    }

    /// Up to `pages_max` pages that may be copied into base files now. Places that moves go to are
    /// reserved.
    pub(crate) fn plan_fold(
        &mut self,
        dir: &Arc<Dir>,
        shared: &SharedFiles,
        pages_max: u64,
        readers: Readers,
    ) -> Result<FoldWork> {
        self.older.retain(|(_, pin)| pin.strong_count() > 0);
        let oldest_read =
            self.older.iter().map(|&(version, _)| version).min().unwrap_or(self.version);
        let ready = |segment: &Segment| segment.durable && segment.live_pages > 0;
        let candidates: Vec<SegmentId> = self
            .segments
            .iter()
            .filter(|(_, segment)| {
                ready(segment) && segment.seal.is_some_and(|seal| seal.version <= oldest_read)
            })
            .map(|(&id, _)| id)
            .collect();
        if candidates.is_empty() {
            return Ok(if self.has_durable_delta() { FoldWork::Blocked } else { FoldWork::None });
        }
        let open = |&id: &SegmentId| {
            let path = dir.path_of(self.segment_name(id));
            Ok(FoldSource { id, path, file: self.segment_handle(dir, id).open()? })
        };
        let segments = candidates.iter().map(open).collect::<Result<_>>()?;
        let mut moves = Vec::new();
        let runs = self.runs_to_fold(&candidates, pages_max, |memory, page, end| {
            memory.target(dir, shared, page..end, readers, &mut moves)
        });
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                for Move { pages, to, .. } in &moves {
                    // The error that matters is the first one; what is left is found at the start.
                    let _ = shared.give_back(dir, to, pages);
                }
                return Err(error);
            }
        };
        if runs.is_empty() {
            return Ok(FoldWork::Blocked);
        }
        Ok(FoldWork::Plan(FoldPlan { runs, moves, segments }))
    }

    /// Runs of these segments, cut where their targets change, of so many pages at most.
    fn runs_to_fold(
        &mut self,
        candidates: &[SegmentId],
        pages_max: u64,
        mut target: impl FnMut(&mut Self, u64, u64) -> Result<Target>,
    ) -> Result<Vec<(Run, BaseId)>> {
        let (mut left, mut found) = (pages_max, Vec::new());
        let mut next = 0;
        // Not all runs: with a budget for few pages, few are looked at.
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
                match target(self, at, end)? {
                    Target::To(base, until) => {
                        let pages = (until - at).min(left);
                        let offset_page = run.offset_page + (at - run.start_page);
                        found.push((Run { start_page: at, pages, offset_page, ..run }, base));
                        left -= pages;
                        at += pages;
                    }
                    Target::Waits(until) => at = until,
                    Target::Full => return Ok(found),
                }
            }
        }
        Ok(found)
    }

    /// Where the first of these pages goes.
    fn target(
        &mut self,
        dir: &Dir,
        shared: &SharedFiles,
        pages: Range<u64>,
        readers: Readers,
        moves: &mut Vec<Move>,
    ) -> Result<Target> {
        let (page, memory_pages, own) = (pages.start, self.base_pages(), BaseId::of(self.id));
        let Some(sharing) = self.sharing.as_mut() else { return Ok(Target::To(own, pages.end)) };
        if let Some(last) = moves.last().filter(|last| last.pages.contains(&page)) {
            return Ok(Target::To(last.to.id, last.pages.end.min(pages.end)));
        }
        let Some((file, extent)) = sharing.extent(page, memory_pages) else {
            return Ok(Target::Waits(pages.end));
        };
        let file = Arc::clone(file);
        let (standing, until) = file.claims().standing(page, pages.end.min(extent.end));
        match standing {
            Standing::Sole => return Ok(Target::To(file.id, until)),
            Standing::Waiting if readers == Readers::Respected => return Ok(Target::Waits(until)),
            _ => {}
        }
        // Pages that are written in place, maybe by this very plan, do not move.
        let unit = file.claims().not_sole(page, &sharing.unit_of(page, &extent));
        let moved: u64 = moves.iter().map(|moved| moved.pages.end - moved.pages.start).sum();
        if moved > 0 && moved + (unit.end - unit.start) > MOVED_PAGES_MAX {
            return Ok(Target::Full);
        }
        let to = match sharing.place_for(&unit) {
            Some(to) => to,
            // One of those planned already may have it: it is used by the memory only once they are
            // made.
            None => match moves.iter().map(|moved| &moved.to).find(|to| to.is_free(&unit)) {
                Some(to) => Arc::clone(to),
                None => shared.create_base(dir, sharing.next_base(), self.base_bytes)?,
            },
        };
        to.claims().add(&unit);
        let target = Target::To(to.id, unit.end.min(pages.end));
        moves.push(Move { pages: unit, from: file, to });
        Ok(target)
    }
}
