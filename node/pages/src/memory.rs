//! One memory: its newest version, its segments, the append target that is out, and the readers of
//! older versions. Everything here runs under the memory's own lock, so two lanes that execute
//! different canisters do not contend.
//!
//! A segment goes through four states: *open* (targets are handed out), *sealed* (a checkpoint was
//! begun; nothing is written to it any more), *durable* (that checkpoint is finished, so it may be
//! folded), and, once no run of the index is in it, *releasable* (the next checkpoint that leaves
//! it out allows it to be deleted).

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    AppendTarget, BasePart, BorrowedSegment, IndexFault, MemoryId, MemoryIndex, MemoryLayout,
    PAGE_BYTES, PageFile, PagesError, Pin, Result, Run, RunFault, SegmentId,
    extents::SharedFile,
    files::{self, Dir, FILE_BYTES_MAX, FILE_PAGES_MAX, Name, NamedFile},
    index::RunIndex,
    pending::{PendingDelete, SyncFile},
    reuse::{self, RecentExtents},
    sharing::{Move, Sharing},
    state_heap,
};

/// Overwritten pages of an open segment (4 MiB) from which on it is rewritten without them, if they
/// also outnumber the others four to one. Rewriting then costs at most a quarter of what was
/// written since, and a counter that dirties the same three pages a thousand times a second keeps
/// megabytes of page cache and of checkpoint instead of filling the log.
const REWRITE_DEAD_PAGES: u64 = 1024;
const REWRITE_DEAD_PER_LIVE: u64 = 4;

/// Bytes of pages that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Disk usage and totals of all memories together. Bytes of delta count from commit until the file
/// is deleted.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Bytes of all segments. One that several memories name counts once.
    pub(crate) delta: AtomicU64,
    /// Entries of all indexes. The bound on the bytes bounds them too, except for entries that
    /// copies borrow.
    pub(crate) runs: AtomicU64,
    /// Of those: written since the last checkpoint was begun.
    pub(crate) open: AtomicU64,
    /// Sealed, without a page that the newest version of a memory needs; deleted once a checkpoint
    /// that leaves them out is durable. One that several memories name counts for each of those
    /// that do not need it.
    pub(crate) releasable: AtomicU64,
    /// Bytes that were copied for new memories since the last checkpoint that was finished.
    pub(crate) copied: AtomicU64,
    /// Files with an open descriptor for writing.
    pub(crate) open_files: AtomicU64,
    /// Memories whose recent writes are remembered.
    pub(crate) remembered: Arc<AtomicU64>,
    pub(crate) committed: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) rewritten: AtomicU64,
    pub(crate) folded: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) cut_off: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) unlink_failures: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Segment {
    /// Pages ever committed to it: its length.
    pub(crate) used_pages: u64,
    /// Pages that the newest version still finds in it.
    pub(crate) live_pages: u64,
    /// Set once nothing is written to it any more.
    pub(crate) seal: Option<Seal>,
    /// A durable index names it.
    pub(crate) durable: bool,
    /// Set if other memories name it too, or did, or if it was theirs.
    pub(crate) shared: Option<Arc<SharedFile>>,
    pub(crate) read: Weak<PageFile>,
}

impl Segment {
    /// One to which nothing is written yet.
    fn empty() -> Self {
        let read = Weak::new();
        Self { used_pages: 0, live_pages: 0, seal: None, durable: false, shared: None, read }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    /// Newest version whose pages it holds.
    pub(crate) version: u64,
    /// Checkpoint that sealed it.
    pub(crate) generation: u64,
}

#[derive(Debug)]
struct Open {
    segment: SegmentId,
    /// Handed out with the append target; a second owner means that a target is out. Kept open
    /// until the segment is synced, so that an error of the kernel's own writeback is reported
    /// to that sync. None while descriptors are short ([`Memory::close`]).
    file: Option<Arc<File>>,
    /// It was closed once since the segment was created.
    was_closed: bool,
    /// None until something is written that may be written over, and while very many memories have
    /// one. Not inline: most memories are idle.
    recent: Option<Box<RecentExtents>>,
}

impl Open {
    fn is_out(&self) -> bool {
        self.file.as_ref().is_some_and(|file| Arc::strong_count(file) > 1)
    }
}

type SegmentFiles = [(SegmentId, Arc<PageFile>)];

/// Parts of the newest layout. Weak: the store itself must neither pin a version nor hold unused
/// descriptors.
#[derive(Debug, Default)]
struct View {
    runs: Option<Weak<[Run]>>,
    segments: Option<Weak<SegmentFiles>>,
    parts: Option<Weak<[BasePart]>>,
    base: Weak<PageFile>,
    pin: Weak<Pin>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) id: MemoryId,
    pub(crate) base_bytes: u64,
    pub(crate) version: u64,
    epoch: u64,
    pub(crate) index: RunIndex,
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    open: Option<Open>,
    pub(crate) next_segment: u64,
    view: View,
    /// The files of its pages, if it is a copy or was copied; otherwise all are in the file it was
    /// created with.
    pub(crate) sharing: Option<Box<Sharing>>,
    /// Pins of superseded versions, and of the newest from before pages were moved, that may still
    /// be read, oldest first. Pruned at every commit, so as long as the list of versions being
    /// read.
    older: Vec<(u64, Weak<Pin>)>,
    /// The base file was created since the last checkpoint.
    pub(crate) base_unsynced: bool,
    /// It had more than [`reuse::RUNS_MAX`] runs since its epoch began.
    was_scattered: bool,
    /// The pages it was created with, until a checkpoint that names them is durable.
    pub(crate) initial: Option<InitialPages>,
    /// Places that moved pages left, and rewritten segments that could not be kept for their
    /// readers: the next checkpoint releases them.
    released: Vec<PendingDelete>,
}

/// Pages that a memory had in its base when it was created.
#[derive(Debug)]
pub(crate) struct InitialPages {
    /// The base, open since it was written; none once a ticket has it.
    pub(crate) file: Option<Arc<File>>,
    /// Ordered, disjoint, not adjoining.
    pub(crate) pages: Vec<Range<u64>>,
}

impl InitialPages {
    /// Adds pages that were folded from the delta into the base.
    pub(crate) fn add(&mut self, pages: impl IntoIterator<Item = Range<u64>>) {
        self.pages.extend(pages);
        self.pages.sort_unstable_by_key(|range| range.start);
        self.pages = joined(std::mem::take(&mut self.pages));
    }
}

impl Memory {
    /// A memory of zeros.
    pub(crate) fn new(id: MemoryId, base_bytes: u64) -> Self {
        Self {
            id,
            base_bytes,
            version: 0,
            epoch: 0,
            index: RunIndex::default(),
            segments: BTreeMap::new(),
            open: None,
            next_segment: 0,
            view: View::default(),
            sharing: None,
            older: Vec::new(),
            base_unsynced: false,
            was_scattered: false,
            initial: None,
            released: Vec::new(),
        }
    }

    /// The memory as the runs of a durable index name it. Its segments are sealed and durable.
    pub(crate) fn recovered(
        id: MemoryId,
        index: &MemoryIndex,
        base_bytes: u64,
    ) -> std::result::Result<Self, IndexFault> {
        check_base_bytes(base_bytes).ok_or(IndexFault::BadSize)?;
        let mut memory = Self::new(id, base_bytes);
        let mut free_page = 0;
        for &run in &index.runs {
            if run.pages == 0 {
                return Err(IndexFault::EmptyRun);
            }
            if run.start_page < free_page {
                return Err(IndexFault::Disordered);
            }
            free_page = run
                .start_page
                .checked_add(run.pages)
                .filter(|&end| end <= base_bytes / PAGE_BYTES)
                .ok_or(IndexFault::PastEnd)?;
            let end = run
                .offset_page
                .checked_add(run.pages)
                .filter(|&end| end <= FILE_PAGES_MAX)
                .ok_or(IndexFault::PastEnd)?;
            memory.next_segment =
                memory.next_segment.max(run.segment.0.checked_add(1).ok_or(IndexFault::PastEnd)?);
            let segment = memory.segments.entry(run.segment).or_insert(Segment {
                seal: Some(Seal { version: 0, generation: 0 }),
                durable: true,
                ..Segment::empty()
            });
            segment.used_pages = segment.used_pages.max(end);
            segment.live_pages += run.pages;
            memory.index.insert(run, |_, _| ());
        }
        memory.was_scattered = memory.index.len() > reuse::RUNS_MAX;
        Ok(memory)
    }

    /// The file of a segment.
    pub(crate) fn segment_name(&self, id: SegmentId) -> Name {
        let shared = self.segments.get(&id).and_then(|segment| segment.shared.as_ref());
        shared.map_or(Name::Segment(self.id, id), |shared| shared.name)
    }

    pub(crate) fn base_pages(&self) -> u64 {
        self.base_bytes / PAGE_BYTES
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.segments.iter().map(|(&id, segment)| (id, segment))
    }

    pub(crate) fn runs_len(&self) -> u64 {
        self.index.len() as u64
    }

    pub(crate) fn index(&self) -> MemoryIndex {
        let borrowed = |(&segment, of): (&SegmentId, &Segment)| {
            let shared = of.shared.as_ref().filter(|_| of.live_pages > 0)?;
            match shared.name {
                Name::Segment(owner, id) if (owner, id) != (self.id, segment) => {
                    Some(BorrowedSegment { segment, owner, id })
                }
                _ => None,
            }
        };
        MemoryIndex {
            runs: self.index.runs().collect(),
            parts: self.sharing.as_ref().map_or_else(Vec::new, |sharing| sharing.base_runs()),
            borrowed: self.segments.iter().filter_map(borrowed).collect(),
        }
    }

    /// Sealed pages wait for a fold that would shorten the index.
    pub(crate) fn awaits_fold(&self) -> bool {
        self.segments.values().any(|segment| segment.seal.is_some() && segment.live_pages > 0)
    }

    /// Whether an append target is out and sealing would take its segment away.
    pub(crate) fn is_busy(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_out() && self.used_pages(open.segment) > 0)
    }

    /// Closes the file of the open segment unless a target is out. It is opened again when it is
    /// written or synced; a writeback error of the kernel that was not reported meanwhile is then
    /// known to the file system alone ([`Dir::check_writeback`]). Returns whether it closed the
    /// file.
    pub(crate) fn close(&mut self, accounts: &Accounts) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| !open.is_out()) else { return false };
        let closed = open.file.take().is_some();
        if closed {
            open.was_closed = true;
            subtract(&accounts.open_files, 1);
        }
        closed
    }

    fn used_pages(&self, id: SegmentId) -> u64 {
        self.segments.get(&id).map_or(0, |segment| segment.used_pages)
    }

    /// Hands out the end of the open segment, and a place in it that can be written again if
    /// `reuses`. See [`crate::PageStore::reserve`].
    pub(crate) fn reserve(
        &mut self,
        dir: &Arc<Dir>,
        accounts: &Accounts,
        pages_max: u64,
        reuses: bool,
    ) -> Result<AppendTarget> {
        if self.open.as_ref().is_some_and(Open::is_out) {
            return Err(PagesError::Busy(self.id));
        }
        if let Some(open) = self.open.as_mut().filter(|open| open.file.is_none()) {
            let path = dir.segment_path(self.id, open.segment);
            open.file = Some(Arc::new(dir.open_write(&path)?));
            accounts.open_files.fetch_add(1, Relaxed);
        }
        // When rewriting fails, for want of disk most likely, the open segment is as good as
        // before.
        let _ = self.rewrite_if_mostly_dead(dir, accounts);
        let used_pages = self.open.as_ref().map_or(0, |open| self.used_pages(open.segment));
        if used_pages.checked_add(pages_max).is_none_or(|end| end > FILE_PAGES_MAX) {
            return Err(PagesError::BadReservation { id: self.id, pages: pages_max });
        }
        if self.open.is_none() {
            self.open = Some(self.create_segment(dir, accounts)?);
        }
        let Some((segment, file)) =
            self.open.as_ref().and_then(|open| Some((open.segment, open.file.clone()?)))
        else {
            return Err(PagesError::UnknownMemory(self.id));
        };
        let free = if reuses { self.free_place() } else { 0..0 };
        debug_assert!(free.end <= used_pages, "{free:?} of {used_pages} pages may be written over");
        Ok(AppendTarget { id: self.id, segment, file, offset_page: used_pages, pages_max, free })
    }

    /// Pages of the open segment that may be written again.
    fn free_place(&self) -> Range<u64> {
        // Workers may have copies of pages of a memory in very many pieces.
        if self.was_scattered || self.sharing.is_some() {
            return 0..0;
        }
        let is_read = |versions: Range<u64>| {
            let mut older = self.older.iter();
            older.any(|(version, pin)| versions.contains(version) && pin.strong_count() > 0)
        };
        let recent = self.open.as_ref().and_then(|open| open.recent.as_ref());
        recent.map_or(0..0, |recent| recent.free(is_read))
    }

    /// Remembers what the newest version wrote to the open segment.
    fn note_place(&mut self, accounts: &Accounts, target: &AppendTarget, runs: &[Run]) {
        let start = runs.iter().map(|run| run.offset_page).min();
        let end = runs.iter().map(|run| run.offset_page + run.pages).max();
        let (Some(start), Some(end)) = (start, end) else { return };
        // Of a place that is written again all of it is taken, however few pages are written.
        let pages = if is_in_free(target, runs) { target.free.clone() } else { start..end };
        let (version, index) = (self.version, &self.index);
        if let Some(open) = self.open.as_mut().filter(|open| open.segment == target.segment) {
            if open.recent.is_none() {
                open.recent = RecentExtents::new(&accounts.remembered).map(Box::new);
            }
            if let Some(recent) = &mut open.recent {
                recent.committed(target.segment, pages, version, index);
            }
        }
    }

    fn create_segment(&mut self, dir: &Dir, accounts: &Accounts) -> Result<Open> {
        let segment = SegmentId(self.next_segment);
        let file = Some(Arc::new(dir.create(&dir.segment_path(self.id, segment), 0)?));
        self.next_segment += 1;
        let before = self.segments.insert(segment, Segment::empty());
        assert!(before.is_none(), "segment {} of memory {} is there", segment.0, self.id.0);
        accounts.open_files.fetch_add(1, Relaxed);
        Ok(Open { segment, file, was_closed: false, recent: None })
    }

    /// Whether `runs` can be committed to `target` or are a part of what can: the first free page
    /// of the segment after them.
    pub(crate) fn verify(&self, dir: &Dir, target: &AppendTarget, runs: &[Run]) -> Result<u64> {
        let is_out = self.open.as_ref().is_some_and(|open| {
            let same = |file: &Arc<File>| Arc::ptr_eq(file, &target.file);
            open.segment == target.segment && open.file.as_ref().is_some_and(same)
        });
        if !is_out || target.offset_page < self.used_pages(target.segment) {
            return Err(PagesError::ForeignTarget(self.id));
        }
        let path = dir.segment_path(self.id, target.segment);
        verify_written(self.base_bytes, target, runs, &path)
    }

    /// Makes `runs` the newest version and returns its number. On an error nothing has changed and
    /// the target is as good as before.
    pub(crate) fn commit(
        &mut self,
        dir: &Dir,
        accounts: &Accounts,
        target: &AppendTarget,
        runs: &[Run],
    ) -> Result<u64> {
        let end_page = self.verify(dir, target, runs)?;
        debug_assert!(
            end_page - target.offset_page <= target.pages_max,
            "a target of {} pages ends at page {end_page}",
            target.pages_max
        );
        if target.offset_page != self.used_pages(target.segment) {
            return Err(PagesError::ForeignTarget(self.id));
        }
        if let Some(segment) = self.segments.get_mut(&target.segment) {
            segment.used_pages = end_page;
        }
        self.lay(accounts, runs);
        self.outdate_layouts();
        self.version += 1;
        self.note_place(accounts, target, runs);
        debug_assert!(
            self.older.last().is_none_or(|(older, _)| *older < self.version),
            "version {} is read and not older than {}",
            self.older.last().map_or(0, |(older, _)| *older),
            self.version
        );
        if cfg!(debug_assertions) {
            self.check();
        }
        let bytes = (end_page - target.offset_page) * PAGE_BYTES;
        accounts.delta.fetch_add(bytes, Relaxed);
        accounts.open.fetch_add(bytes, Relaxed);
        let pages = runs.iter().map(|run| run.pages).sum::<u64>();
        accounts.committed.fetch_add(pages * PAGE_BYTES, Relaxed);
        accounts.commits.fetch_add(1, Relaxed);
        Ok(self.version)
    }

    /// Gives the next layouts a pin of their own.
    fn outdate_layouts(&mut self) {
        if self.view.pin.strong_count() > 0 {
            self.older.push((self.version, std::mem::take(&mut self.view.pin)));
        }
        self.older.retain(|(_, pin)| pin.strong_count() > 0);
    }

    /// The pin of layouts of the newest version.
    pub(crate) fn pin(&mut self) -> Arc<Pin> {
        let pin = self.view.pin.upgrade().unwrap_or_default();
        self.view.pin = Arc::downgrade(&pin);
        pin
    }

    /// The pins of all layouts.
    pub(crate) fn readers(&self) -> Vec<Weak<Pin>> {
        let all = self.older.iter().map(|(_, pin)| pin).chain([&self.view.pin]);
        all.filter(|pin| pin.strong_count() > 0).cloned().collect()
    }

    /// The oldest version that is being read and was not cut off.
    fn oldest_read(&self) -> u64 {
        let is_read = |pin: &Weak<Pin>| pin.upgrade().is_some_and(|pin| !pin.is_cut_off());
        let oldest = self.older.iter().find(|(_, pin)| is_read(pin));
        oldest.map_or(self.version, |(version, _)| *version)
    }

    /// Whether no durable index and no reader of this memory reads below the pages of a segment
    /// that the newest version finds there.
    pub(crate) fn is_settled(&self, segment: &Segment) -> bool {
        segment.durable && segment.seal.is_some_and(|seal| seal.version <= self.oldest_read())
    }

    /// Cuts off the readers of older versions that block a fold and are not held. Returns the
    /// number of versions.
    pub(crate) fn cut_off_readers(&self) -> u64 {
        let ready = |segment: &&Segment| segment.durable && segment.live_pages > 0;
        let sealed = self.segments.values().filter(ready).filter_map(|segment| segment.seal);
        let Some(newest) = sealed.map(|seal| seal.version).max() else { return 0 };
        let versions = self.older.chunk_by(|(version, _), (next, _)| version == next);
        let cut_off = versions.filter(|pins| {
            let blocking = pins.iter().filter(|(version, _)| *version < newest);
            let pins: Vec<_> = blocking.filter_map(|(_, pin)| pin.upgrade()).collect();
            // The fold waits for one that is held, so the others need not go.
            let is_held = pins.iter().any(|pin| pin.is_held());
            let cut_off = |pin: &&Arc<Pin>| !is_held && !pin.is_cut_off() && pin.cut_off();
            pins.iter().filter(cut_off).count() > 0
        });
        cut_off.count() as u64
    }

    /// Checks the invariants between versions: the index names pages that its segments have, each
    /// page once, and the segments count them. Visits every run.
    fn check(&self) {
        let mut live: BTreeMap<SegmentId, u64> = BTreeMap::new();
        let mut free_page = 0;
        for run in self.index.runs() {
            assert!(run.start_page >= free_page, "page {} is indexed twice", run.start_page);
            free_page = run.start_page + run.pages;
            let used = self.segments.get(&run.segment).map(|segment| segment.used_pages);
            assert!(
                used.is_some_and(|used| run.offset_page + run.pages <= used),
                "{run:?} is beyond its segment, which has {used:?} pages"
            );
            *live.entry(run.segment).or_default() += run.pages;
        }
        assert!(free_page <= self.base_bytes / PAGE_BYTES, "page {free_page} is beyond the memory");
        for (id, segment) in &self.segments {
            let counted = live.get(id).copied().unwrap_or_default();
            assert_eq!(segment.live_pages, counted, "live pages of segment {id:?}");
            assert!(
                segment.live_pages <= segment.used_pages,
                "{} of {} pages of segment {id:?} are live",
                segment.live_pages,
                segment.used_pages
            );
            assert!(id.0 < self.next_segment, "segment {id:?} has a number yet to be given");
            let is_open = self.open.as_ref().is_some_and(|open| open.segment == *id);
            assert!(
                segment.seal.is_some() != is_open,
                "segment {id:?}, open: {is_open}, is sealed"
            );
            assert!(!segment.durable || !is_open, "segment {id:?} is open and durable");
            let sealed = segment.seal.map_or(0, |seal| seal.version);
            assert!(sealed <= self.version, "segment {id:?} is of version {sealed}");
        }
        if let Some(sharing) = &self.sharing {
            sharing.check(self.base_pages());
        }
        assert!(self.older.is_sorted_by_key(|(version, _)| *version), "versions that are read");
        if let Some(initial) = &self.initial {
            assert!(are_apart(&initial.pages), "pages that the memory was created with");
        }
    }

    /// Lays runs over the index and keeps the count of what lives where.
    fn lay(&mut self, accounts: &Accounts, runs: &[Run]) {
        let before = self.runs_len();
        let Self { index, segments, .. } = self;
        for &run in runs {
            debug_assert!(segments.contains_key(&run.segment), "no segment {:?}", run.segment);
            if let Some(segment) = segments.get_mut(&run.segment) {
                segment.live_pages += run.pages;
            }
            index.insert(run, |segment, pages| release(segments, accounts, segment, pages));
        }
        self.was_scattered |= self.index.len() > reuse::RUNS_MAX;
        self.view.runs = None;
        self.count_runs(accounts, before);
    }

    /// The files changed: workers map them afresh.
    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.was_scattered = self.index.len() > reuse::RUNS_MAX;
    }

    /// Accounts for a change of the index, which had `before` runs.
    fn count_runs(&self, accounts: &Accounts, before: u64) {
        accounts.runs.fetch_add(self.runs_len(), Relaxed);
        subtract(&accounts.runs, before);
    }

    /// See [`REWRITE_DEAD_PAGES`]. The old segment was never in a checkpoint, so it can go at once;
    /// layouts that read it keep it alive.
    fn rewrite_if_mostly_dead(&mut self, dir: &Arc<Dir>, accounts: &Accounts) -> Result<()> {
        let Some((old, was_closed)) =
            self.open.as_ref().map(|open| (open.segment, open.was_closed))
        else {
            return Ok(());
        };
        let Some(Segment { used_pages, live_pages, .. }) = self.segments.get(&old) else {
            return Ok(());
        };
        debug_assert!(used_pages >= live_pages, "{live_pages} of {used_pages} pages are live");
        let (dead_pages, live_pages) = (used_pages - live_pages, *live_pages);
        if dead_pages < REWRITE_DEAD_PAGES || dead_pages / REWRITE_DEAD_PER_LIVE < live_pages {
            return Ok(());
        }
        let old_path = dir.segment_path(self.id, old);
        let old_handle = self.segment_handle(dir, old);
        let old_file = old_handle.open()?;
        // The pages to be copied may have been lost already, if the error was not reported.
        let new = Open { was_closed, ..self.create_segment(dir, accounts)? };
        let new_path = dir.segment_path(self.id, new.segment);
        let mut moved = Vec::new();
        let mut end_page = 0;
        let mut buf = vec![0; files::COPY_BUFFER_BYTES];
        let Some(new_file) = &new.file else { return Ok(()) };
        let to = dir.on_disk(&new_path, new_file);
        let copied = self.index.runs().filter(|run| run.segment == old).try_for_each(|run| {
            let from = NamedFile { file: &old_file, path: &old_path };
            files::copy_pages(
                from,
                run.offset_page,
                (to.as_ref(), &new_path),
                end_page,
                run.pages,
                &mut buf,
            )?;
            moved.push(Run { segment: new.segment, offset_page: end_page, ..run });
            end_page += run.pages;
            Ok(())
        });
        drop(to);
        // One of the two goes, and with it its descriptor.
        subtract(&accounts.open_files, 1);
        if let Err(e) = copied {
            self.segments.remove(&new.segment);
            self.unlink_quietly(dir, accounts, new.segment);
            return Err(e);
        }
        assert_eq!(end_page, live_pages, "pages of segment {old:?} that were copied");
        if let Some(segment) = self.segments.get_mut(&new.segment) {
            segment.used_pages = end_page;
        }
        self.lay(accounts, &moved);
        let old_segment = self.segments.remove(&old);
        let left = old_segment.as_ref().map_or(0, |segment| segment.live_pages);
        assert_eq!(left, 0, "live pages of segment {old:?}, which goes");
        self.open = Some(new);
        self.begin_epoch();
        let is_read = Arc::strong_count(&old_handle) > 1;
        if !is_read || old_handle.hold_open().is_ok() {
            self.unlink_quietly(dir, accounts, old);
        } else if let Some(segment) = old_segment {
            let orphan = PendingDelete::segment(self.id, old, segment);
            accounts.delta.fetch_add(orphan.delta_bytes, Relaxed);
            accounts.releasable.fetch_add(orphan.delta_bytes, Relaxed);
            self.released.push(orphan);
        }
        subtract(&accounts.delta, dead_pages * PAGE_BYTES);
        subtract(&accounts.open, dead_pages * PAGE_BYTES);
        accounts.rewritten.fetch_add(end_page * PAGE_BYTES, Relaxed);
        Ok(())
    }

    /// Removes a segment that no checkpoint names. Should that fail, the next start removes it.
    fn unlink_quietly(&self, dir: &Dir, accounts: &Accounts, segment: SegmentId) {
        if dir.unlink(&dir.segment_path(self.id, segment)).is_err() {
            accounts.unlink_failures.fetch_add(1, Relaxed);
        }
    }

    /// The newest version, ready to be mapped.
    pub(crate) fn layout(&mut self, dir: &Arc<Dir>) -> MemoryLayout {
        // It is kept as long as a canister rests.
        state_heap::within(|| self.assemble(dir))
    }

    /// `commit` and `layout` in one.
    pub(crate) fn commit_layout(
        &mut self,
        dir: &Arc<Dir>,
        accounts: &Accounts,
        target: &AppendTarget,
        runs: &[Run],
    ) -> Result<MemoryLayout> {
        self.commit(dir, accounts, target, runs)?;
        Ok(self.layout(dir))
    }

    fn assemble(&mut self, dir: &Arc<Dir>) -> MemoryLayout {
        let base = self.base_handle(dir);
        let known = self.view.parts.as_ref().and_then(Weak::upgrade);
        let parts = known.unwrap_or_else(|| {
            let sharing = self.sharing.as_ref();
            sharing.map_or_else(Arc::default, |sharing| sharing.base_parts(&dir.reader_dir))
        });
        let wanted = || {
            let named = self.segments.iter().filter(|(_, segment)| segment.live_pages > 0);
            named.map(|(&id, _)| id)
        };
        let same = |cached: &Arc<SegmentFiles>| cached.iter().map(|(id, _)| *id).eq(wanted());
        let segments = match self.view.segments.as_ref().and_then(Weak::upgrade).filter(same) {
            Some(cached) => cached,
            None => {
                let wanted: Vec<SegmentId> = wanted().collect();
                wanted.into_iter().map(|id| (id, self.segment_handle(dir, id))).collect()
            }
        };
        let runs = self
            .view
            .runs
            .as_ref()
            .and_then(Weak::upgrade)
            .unwrap_or_else(|| self.index.runs().collect());
        let pin = self.pin();
        self.view.parts = Some(Arc::downgrade(&parts));
        self.view.segments = Some(Arc::downgrade(&segments));
        self.view.runs = Some(Arc::downgrade(&runs));
        MemoryLayout {
            id: self.id,
            version: self.version,
            epoch: self.epoch,
            base,
            base_bytes: self.base_bytes,
            parts,
            segments,
            runs,
            pin,
        }
    }

    fn base_handle(&mut self, dir: &Arc<Dir>) -> Arc<PageFile> {
        self.view.base.upgrade().unwrap_or_else(|| {
            let base = Arc::new(PageFile::new(&dir.reader_dir, Name::own_base(self.id)));
            self.view.base = Arc::downgrade(&base);
            base
        })
    }

    pub(crate) fn segment_handle(&mut self, dir: &Arc<Dir>, id: SegmentId) -> Arc<PageFile> {
        let known = self.segments.get(&id).and_then(|segment| segment.read.upgrade());
        known.unwrap_or_else(|| {
            let name = self.segment_name(id);
            let file = state_heap::within(|| Arc::new(PageFile::new(&dir.reader_dir, name)));
            if let Some(segment) = self.segments.get_mut(&id) {
                segment.read = Arc::downgrade(&file);
            }
            file
        })
    }

    /// Removes the open segment if it is empty and no target is out, so that a memory that was only
    /// prepared for writing leaves nothing behind.
    pub(crate) fn take_empty(&mut self, accounts: &Accounts) -> Option<PendingDelete> {
        let segments = &self.segments;
        let is_empty =
            |id| segments.get(&id).is_some_and(|segment: &Segment| segment.used_pages == 0);
        let open = self.open.take_if(|open| !open.is_out() && is_empty(open.segment))?;
        subtract(&accounts.open_files, open.file.iter().len() as u64);
        let segment = self.segments.remove(&open.segment)?;
        self.shrink();
        Some(PendingDelete::segment(self.id, open.segment, segment))
    }

    /// Whether it has a segment that may be written.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A map keeps a node when its last entry is removed, and most memories are idle.
    pub(crate) fn shrink(&mut self) {
        if self.segments.is_empty() {
            self.segments = BTreeMap::new();
        }
        if self.index.len() == 0 {
            self.index = RunIndex::default();
        }
        self.older.retain(|(_, pin)| pin.strong_count() > 0);
        if self.older.is_empty() {
            self.older = Vec::new();
        }
    }

    /// Closes the open segment if it holds anything, and returns what has to be synced. It counts
    /// as open until a checkpoint is begun.
    pub(crate) fn seal(&mut self, accounts: &Accounts, generation: u64) -> Option<SyncFile> {
        let open = self.open.take_if(|open| {
            self.segments.get(&open.segment).is_some_and(|segment| segment.used_pages > 0)
        })?;
        let segment = self.segments.get_mut(&open.segment)?;
        debug_assert!(segment.seal.is_none(), "segment {:?} is sealed twice", open.segment);
        segment.seal = Some(Seal { version: self.version, generation });
        let bytes = segment.used_pages * PAGE_BYTES;
        subtract(&accounts.open_files, open.file.iter().len() as u64);
        if segment.live_pages == 0 {
            accounts.releasable.fetch_add(bytes, Relaxed);
        }
        let Open { segment, file, was_closed, .. } = open;
        let name = Name::Segment(self.id, segment);
        Some(SyncFile { name, file, was_closed, segment_bytes: Some(bytes) })
    }

    /// Pages that the newest version finds in segments no durable index names, and those it was
    /// created with if none names it: all that was written since the last checkpoint that was
    /// finished.
    pub(crate) fn written_pages(&self) -> Vec<Range<u64>> {
        let recent = |id: &SegmentId| self.segments.get(id).is_some_and(|segment| !segment.durable);
        let runs = self.index.runs().filter(|run| recent(&run.segment));
        let appended = runs.map(|run| run.start_page..run.start_page + run.pages);
        match &self.initial {
            None => joined(appended),
            Some(initial) => {
                let mut all: Vec<_> = appended.chain(initial.pages.iter().cloned()).collect();
                all.sort_unstable_by_key(|range| range.start);
                joined(all)
            }
        }
    }

    /// The base if it was created since the last checkpoint and no ticket has it yet.
    pub(crate) fn take_unsynced_base(&mut self, accounts: &Accounts) -> Option<SyncFile> {
        std::mem::take(&mut self.base_unsynced)
            .then(|| SyncFile::base(Name::own_base(self.id), self.take_initial_file(accounts)))
    }

    /// The file of the base, if it was written and no ticket has it yet.
    fn take_initial_file(&mut self, accounts: &Accounts) -> Option<Arc<File>> {
        let file = self.initial.as_mut()?.file.take()?;
        subtract(&accounts.open_files, 1);
        Some(file)
    }

    /// Forgets what the index being checkpointed does not name, for release once it is durable.
    pub(crate) fn take_released(&mut self) -> Vec<PendingDelete> {
        let (memory, mut released) = (self.id, std::mem::take(&mut self.released));
        let dead = self
            .segments
            .extract_if(.., |_, segment| segment.seal.is_some() && segment.live_pages == 0);
        released.extend(dead.map(|(id, segment)| PendingDelete::segment(memory, id, segment)));
        self.shrink();
        released
    }

    /// Forgets every file, because the memory is removed.
    pub(crate) fn take_all(&mut self, accounts: &Accounts) -> Vec<PendingDelete> {
        let open = self.open.take().and_then(|open| open.file);
        subtract(&accounts.open_files, open.iter().len() as u64);
        self.take_initial_file(accounts);
        subtract(&accounts.runs, self.runs_len());
        let mut released = std::mem::take(&mut self.released);
        for (id, segment) in std::mem::take(&mut self.segments) {
            let bytes = segment.used_pages * PAGE_BYTES;
            if segment.seal.is_none() {
                subtract(&accounts.open, bytes);
            }
            if segment.seal.is_none() || segment.live_pages > 0 {
                accounts.releasable.fetch_add(bytes, Relaxed);
            }
            released.push(PendingDelete::segment(self.id, id, segment));
        }
        match self.sharing.take() {
            Some(sharing) => {
                let retired = sharing.retire_all(self.base_pages(), &self.readers());
                released.extend(retired.into_iter().map(PendingDelete::pages));
            }
            None => released.push(PendingDelete::base(self.id, self.view.base.clone())),
        }
        released
    }

    /// The checkpoint `generation` is durable. Returns whether there is something to fold now.
    pub(crate) fn made_durable(&mut self, generation: u64) -> bool {
        self.initial = None;
        for segment in self.segments.values_mut() {
            segment.durable |= segment.seal.is_some_and(|seal| seal.generation <= generation);
        }
        self.has_durable_delta()
    }

    /// Whether there is something to fold, now or once readers of older versions are gone.
    pub(crate) fn has_durable_delta(&self) -> bool {
        self.segments.values().any(|segment| segment.durable && segment.live_pages > 0)
    }

    /// The base now holds the data of these runs, at the place that `moves` state: removes the runs
    /// that were not overwritten meanwhile. Returns whether it changed anything.
    pub(crate) fn folded(&mut self, accounts: &Accounts, runs: &[Run], moves: &[Move]) -> bool {
        let before = self.runs_len();
        let mut folded = Vec::new();
        let Self { index, segments, .. } = self;
        for &run in runs {
            let mut is_found = false;
            index.remove(run, |segment, pages| {
                is_found = true;
                release(segments, accounts, segment, pages);
            });
            folded.extend(is_found.then(|| run.start_page..run.start_page + run.pages));
        }
        if folded.is_empty() && moves.is_empty() {
            return false;
        }
        if let Some(initial) = &mut self.initial {
            initial.add(folded);
        }
        self.view.runs = None;
        if !moves.is_empty() {
            let readers = self.readers();
            let left = self.sharing.as_mut().map(|sharing| sharing.moved(moves, &readers));
            self.released.extend(left.into_iter().flatten().map(PendingDelete::pages));
            self.view.parts = None;
            self.outdate_layouts();
        }
        self.begin_epoch();
        self.count_runs(accounts, before);
        self.shrink();
        if cfg!(debug_assertions) {
            self.check();
        }
        true
    }
}

/// Takes `amount` off a figure of which it is a part.
pub(crate) fn subtract(figure: &AtomicU64, amount: u64) {
    let before = figure.fetch_sub(amount, Relaxed);
    debug_assert!(before >= amount, "{amount} is taken off a figure of {before}");
}

/// Whether ranges are ordered, disjoint and not adjoining.
pub(crate) fn are_apart(ranges: &[Range<u64>]) -> bool {
    ranges.is_sorted_by(|one, next| one.end < next.start)
}

/// Ranges in the order of their beginnings, as few as cover the same pages.
fn joined(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        debug_assert!(
            joined.last().is_none_or(|last| last.start <= range.start),
            "pages from {} on are out of order",
            range.start
        );
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// `pages` pages of a segment were overwritten or folded.
fn release(
    segments: &mut BTreeMap<SegmentId, Segment>,
    accounts: &Accounts,
    id: SegmentId,
    pages: u64,
) {
    debug_assert!(segments.contains_key(&id), "no segment {id:?}");
    let Some(segment) = segments.get_mut(&id) else { return };
    assert!(segment.live_pages >= pages, "segment {id:?} has fewer live pages than were freed");
    segment.live_pages -= pages;
    if segment.live_pages == 0 && segment.seal.is_some() {
        accounts.releasable.fetch_add(segment.used_pages * PAGE_BYTES, Relaxed);
    }
}

/// A length that a base file can have.
pub(crate) fn check_base_bytes(base_bytes: u64) -> Option<()> {
    (base_bytes <= FILE_BYTES_MAX && base_bytes.is_multiple_of(PAGE_BYTES)).then_some(())
}

/// Checks the runs a worker returned, and that they were written to the file of `target`, at
/// `path`. Returns the first free page after them.
pub(crate) fn verify_written(
    base_bytes: u64,
    target: &AppendTarget,
    runs: &[Run],
    path: &Path,
) -> Result<u64> {
    let id = target.id;
    let end_page = check_runs(base_bytes / PAGE_BYTES, target, runs)
        .map_err(|(run, fault)| PagesError::BadRun { id, run, fault })?;
    if let Some(last) = runs.iter().max_by_key(|run| run.offset_page) {
        // Accessing a mapping beyond the end of its file raises SIGBUS.
        let len = files::len(&target.file, path)?;
        if len < end_page * PAGE_BYTES {
            return Err(PagesError::BadRun { id, run: *last, fault: RunFault::NotWritten });
        }
    }
    Ok(end_page)
}

/// Copies the pages of `runs` from a file to the beginning of a target.
pub(crate) fn copy_pages(target: &AppendTarget, from: &File, runs: &[Run]) -> io::Result<Vec<Run>> {
    let bytes = |run: &Run| usize::try_from(run.pages * PAGE_BYTES).unwrap_or(COPY_BYTES);
    // Most installations write a few pages.
    let longest = runs.iter().map(bytes).max().unwrap_or(0);
    let mut buffer = vec![0; longest.min(COPY_BYTES)];
    let mut offset_page = target.offset_page;
    let mut copied = Vec::with_capacity(runs.len());
    for run in runs {
        copied.push(Run { segment: target.segment, offset_page, ..*run });
        let (mut at, mut to) = (run.offset_page * PAGE_BYTES, offset_page * PAGE_BYTES);
        let mut left = run.pages * PAGE_BYTES;
        while left > 0 {
            let most = buffer.len();
            let part = &mut buffer[..most.min(usize::try_from(left).unwrap_or(most))];
            from.read_exact_at(part, at)?;
            target.file.write_all_at(part, to)?;
            (at, to, left) =
                (at + part.len() as u64, to + part.len() as u64, left - part.len() as u64);
        }
        offset_page += run.pages;
    }
    debug_assert!(
        offset_page - target.offset_page <= target.pages_max,
        "{} pages were copied to a target of {}",
        offset_page - target.offset_page,
        target.pages_max
    );
    Ok(copied)
}

/// Checks what a worker returned and answers with the first free page of the segment after it.
fn check_runs(
    memory_pages: u64,
    target: &AppendTarget,
    runs: &[Run],
) -> std::result::Result<u64, (Run, RunFault)> {
    let in_free = is_in_free(target, runs);
    let place = match in_free {
        true => target.free.clone(),
        false => target.offset_page..target.offset_page.saturating_add(target.pages_max),
    };
    let mut free_page = 0;
    let mut free_offset = place.start;
    let mut offsets_ascend = true;
    for run in runs {
        let bad = |fault| Err((*run, fault));
        if run.pages == 0 {
            return bad(RunFault::Empty);
        }
        if run.segment != target.segment {
            return bad(RunFault::OtherSegment);
        }
        if run.start_page < free_page {
            return bad(RunFault::Disordered);
        }
        match run.start_page.checked_add(run.pages) {
            Some(end) if end <= memory_pages => free_page = end,
            _ => return bad(RunFault::PastMemory),
        }
        let end = match run.offset_page.checked_add(run.pages) {
            Some(end) if run.offset_page >= place.start && end <= place.end => end,
            _ => return bad(RunFault::OutsideTarget),
        };
        offsets_ascend &= run.offset_page >= free_offset;
        free_offset = free_offset.max(end);
    }
    if !offsets_ascend {
        // Written in another order than that of the pages: look for overlaps in the order of
        // writing.
        let mut by_offset: Vec<&Run> = runs.iter().collect();
        by_offset.sort_unstable_by_key(|run| run.offset_page);
        for (left, right) in by_offset.iter().zip(by_offset.iter().skip(1)) {
            if left.offset_page + left.pages > right.offset_page {
                return Err((**right, RunFault::SharedPages));
            }
        }
    }
    // What is written again adds nothing to the segment.
    Ok(if in_free { target.offset_page } else { free_offset })
}

/// Whether a message put its pages where they may be written again.
fn is_in_free(target: &AppendTarget, runs: &[Run]) -> bool {
    runs.first().is_some_and(|run| run.offset_page < target.offset_page)
}
