//! Files that several memories reference, or may: base files with a reference to every page that is
//! in use, and segments with the memories that name them. A memory that was never copied and is not
//! a copy has no entry here.
//!
//! The memory that ends the last reference to a base file, or is the last to name a segment,
//! deletes the file. Whether it is the last is decided with the change itself, under one lock: if
//! two memories end references at the same time, exactly one is last. Pages are cleared while the
//! reference that ends still covers them, so a free page holds no data.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use crate::{
    BaseId, MemoryId, PAGE_BYTES, PageFile, Result, SegmentId,
    extent_refs::ExtentRefs,
    files::{Dir, Name},
    store::lock,
};

/// A base file and the references to its pages.
#[derive(Debug)]
pub(crate) struct BaseFile {
    pub(crate) id: BaseId,
    /// Its length.
    pub(crate) bytes: u64,
    /// The memory that it was created with exists, or a durable index names that.
    owned: AtomicBool,
    /// It is being deleted, and nothing in it is free. Set under the lock of the references.
    is_going: AtomicBool,
    refs: Mutex<ExtentRefs>,
}

impl BaseFile {
    pub(crate) fn new(id: BaseId, bytes: u64) -> Self {
        // Others are there for the pages in them alone.
        let owned = AtomicBool::new(id.number == 0);
        Self { id, bytes, owned, is_going: AtomicBool::new(false), refs: Mutex::default() }
    }

    pub(crate) fn refs(&self) -> MutexGuard<'_, ExtentRefs> {
        lock(&self.refs)
    }

    /// Reserves pages if they are within the file and unreferenced. Returns whether it did.
    pub(crate) fn take_free(&self, pages: &Range<u64>) -> bool {
        let mut refs = self.refs();
        let is_free = pages.end <= self.bytes / PAGE_BYTES
            && !self.is_going.load(SeqCst)
            && refs.is_free(pages);
        if is_free {
            refs.add(pages);
        }
        is_free
    }

    /// Ends references. Returns whether the file is no longer referenced; the caller then deletes
    /// it.
    fn end_refs(&self, refs: &mut ExtentRefs, change: impl FnOnce(&mut ExtentRefs)) -> bool {
        change(refs);
        let is_last = refs.pages() == 0 && !self.owned.load(SeqCst);
        if is_last {
            self.is_going.store(true, SeqCst);
        }
        is_last
    }

    /// No memory of its number any more.
    pub(crate) fn disown(&self) {
        self.owned.store(false, SeqCst);
    }
}

/// A segment that nothing is appended to any more, and the memories that name it.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    /// The memory whose segment it was.
    pub(crate) owner: MemoryId,
    /// Its id in that memory.
    pub(crate) id: SegmentId,
    /// Its length.
    pub(crate) bytes: u64,
    /// Each once, and what it calls the segment. One that was removed stays until it leaves.
    sharers: Mutex<Vec<(MemoryId, SegmentId)>>,
}

impl SharedSegment {
    pub(crate) fn join(&self, memory: MemoryId, name: SegmentId) {
        let mut sharers = lock(&self.sharers);
        debug_assert!(
            sharers.iter().all(|(id, _)| *id != memory),
            "memory {} names the segment already",
            memory.0
        );
        sharers.push((memory, name));
    }

    pub(crate) fn sharers(&self) -> Vec<(MemoryId, SegmentId)> {
        lock(&self.sharers).clone()
    }

    /// Whether others still name it.
    pub(crate) fn has_others(&self) -> bool {
        lock(&self.sharers).len() > 1
    }

    /// A memory names it no more. Returns that memory's name for it if no other memory names it.
    fn leave(&self, memory: MemoryId) -> Option<SegmentId> {
        let mut sharers = lock(&self.sharers);
        let at = sharers.iter().position(|(id, _)| *id == memory);
        debug_assert!(at.is_some(), "memory {} does not name the segment", memory.0);
        let at = at?;
        let (_, name) = sharers.swap_remove(at);
        sharers.is_empty().then_some(name)
    }

    pub(crate) fn name(&self) -> Name {
        Name::Segment(self.owner, self.id)
    }
}

/// All of them, by name: a leaf among the locks.
#[derive(Debug, Default)]
pub(crate) struct SharedFiles {
    bases: Mutex<BTreeMap<BaseId, Arc<BaseFile>>>,
    segments: Mutex<BTreeMap<(MemoryId, SegmentId), Arc<SharedSegment>>>,
}

impl SharedFiles {
    /// The base file of this name; registered with `bytes` bytes and the references of `add_refs`
    /// if it was unknown.
    pub(crate) fn base(
        &self,
        id: BaseId,
        bytes: u64,
        add_refs: impl FnOnce(&mut ExtentRefs),
    ) -> Arc<BaseFile> {
        let mut bases = lock(&self.bases);
        let known = bases.entry(id).or_insert_with(|| {
            let base = BaseFile::new(id, bytes);
            add_refs(&mut base.refs());
            Arc::new(base)
        });
        Arc::clone(known)
    }

    /// Makes a base file, all of it a hole, in which these pages are referenced.
    pub(crate) fn create_base(
        &self,
        dir: &Dir,
        id: BaseId,
        bytes: u64,
        pages: &Range<u64>,
    ) -> Result<Arc<BaseFile>> {
        dir.create(&dir.path_of(Name::Base(id)), bytes)?;
        Ok(self.base(id, bytes, |refs| refs.add(pages)))
    }

    pub(crate) fn known_base(&self, id: BaseId) -> Option<Arc<BaseFile>> {
        lock(&self.bases).get(&id).cloned()
    }

    /// The segment of this name.
    pub(crate) fn segment(&self, owner: MemoryId, id: SegmentId, bytes: u64) -> Arc<SharedSegment> {
        let mut segments = lock(&self.segments);
        let known = segments.entry((owner, id)).or_insert_with(|| {
            Arc::new(SharedSegment { owner, id, bytes, sharers: Mutex::default() })
        });
        Arc::clone(known)
    }

    pub(crate) fn known_segment(
        &self,
        owner: MemoryId,
        id: SegmentId,
    ) -> Option<Arc<SharedSegment>> {
        lock(&self.segments).get(&(owner, id)).cloned()
    }

    /// Frees unreferenced pages of base files: pages that were being moved when the power failed,
    /// and pages that had not been returned yet.
    pub(crate) fn clear_gaps(&self, dir: &Dir) -> Result<()> {
        for base in lock(&self.bases).values() {
            let gaps = base.refs().gaps(&(0..base.bytes / PAGE_BYTES));
            if !gaps.is_empty() {
                let path = dir.path_of(Name::Base(base.id));
                let file = dir.open_write(&path)?;
                dir.clear(&path, &file, &gaps)?;
            }
        }
        Ok(())
    }

    /// Whether there is a file that bears the number of a memory, or may be.
    pub(crate) fn bears(&self, id: MemoryId) -> bool {
        let base = BaseId { memory: id, number: 0 }..=BaseId { memory: id, number: u64::MAX };
        let segment = (id, SegmentId(0))..=(id, SegmentId(u64::MAX));
        lock(&self.bases).range(base).next().is_some()
            || lock(&self.segments).range(segment).next().is_some()
    }

    /// One memory names a segment no more; the last takes the name away. Whether others do.
    pub(crate) fn leave_segment(
        &self,
        dir: &Dir,
        segment: &SharedSegment,
        memory: MemoryId,
    ) -> Result<bool> {
        let Some(name) = segment.leave(memory) else { return Ok(true) };
        // It stays until its name is gone.
        dir.unlink(&dir.path_of(segment.name())).inspect_err(|_| segment.join(memory, name))?;
        lock(&self.segments).remove(&(segment.owner, segment.id));
        Ok(false)
    }

    /// Ends references for good: pages that no other memory references return their disk space, and
    /// a file that is no longer referenced is deleted. May be retried after an error.
    pub(crate) fn release(&self, dir: &Dir, retired: &mut RetiredRefs) -> Result<()> {
        let file = Arc::clone(&retired.file);
        if retired.disowns {
            file.disown();
        }
        let (was_pinned, is_changed) = (retired.is_pinned, Cell::new(false));
        let ended = self.end_refs(dir, &file, &retired.pages, ExtentRefs::last, |refs| {
            retired.pages.iter().for_each(|pages| refs.drop_ref(pages, was_pinned));
            is_changed.set(true);
        });
        if is_changed.get() {
            retired.pages.clear();
        }
        ended
    }

    /// Withdraws references to pages that no index names by them. The file is deleted if no other
    /// memory references it.
    pub(crate) fn cancel_refs(
        &self,
        dir: &Dir,
        file: &BaseFile,
        pages: &[Range<u64>],
    ) -> Result<()> {
        self.end_refs(dir, file, pages, ExtentRefs::sole, |refs| {
            pages.iter().for_each(|pages| refs.cancel(pages));
        })
    }

    /// Ends one reference to each of these pages, by `change`. `last` returns those of them that no
    /// other reference covers.
    fn end_refs(
        &self,
        dir: &Dir,
        file: &BaseFile,
        pages: &[Range<u64>],
        last: impl Fn(&ExtentRefs, &Range<u64>) -> Vec<Range<u64>>,
        change: impl FnOnce(&mut ExtentRefs),
    ) -> Result<()> {
        let path = dir.path_of(Name::Base(file.id));
        let mut refs = file.refs();
        let mut cleared = Vec::new();
        loop {
            let freed: Vec<_> = pages.iter().flat_map(|pages| last(&refs, pages)).collect();
            let freed_pages: u64 = freed.iter().map(|range| range.end - range.start).sum();
            let goes = freed_pages == refs.pages() && !file.owned.load(SeqCst);
            // The memory that ended the other reference on a page meanwhile left it to this one.
            if goes || freed == cleared {
                break;
            }
            drop(refs);
            let open = dir.open_write(&path)?;
            dir.clear(&path, &open, &freed)?;
            cleared = freed;
            refs = file.refs();
        }
        let is_last = file.end_refs(&mut refs, change);
        drop(refs);
        if is_last {
            dir.unlink(&path)?;
            lock(&self.bases).remove(&file.id);
        }
        Ok(())
    }
}

/// References that ended: the newest version of a memory does not reference these pages any more.
#[derive(Debug)]
pub(crate) struct RetiredRefs {
    pub(crate) file: Arc<BaseFile>,
    pub(crate) pages: Vec<Range<u64>>,
    /// The file as named by layouts that may reference them.
    pub(crate) readers: Vec<Weak<PageFile>>,
    /// The memory of the file's number is gone.
    pub(crate) disowns: bool,
    /// No durable index needs them any more, only readers.
    pub(crate) is_pinned: bool,
}

impl RetiredRefs {
    pub(crate) fn is_read(&self) -> bool {
        self.readers.iter().any(|file| file.strong_count() > 0)
    }

    /// Records that only readers need them.
    pub(crate) fn pin(&mut self) {
        if !std::mem::replace(&mut self.is_pinned, true) {
            let mut refs = self.file.refs();
            self.pages.iter().for_each(|pages| refs.pin(pages));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use disk::RealDisk;

    use super::*;

    fn place() -> (tempfile::TempDir, Dir, SharedFiles) {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(RealDisk::shared(), folder.path(), 100).unwrap();
        (folder, dir, SharedFiles::default())
    }

    #[test]
    fn concurrent_release_clears_pages_before_they_are_free() {
        for number in 0..40 {
            let (_folder, dir, shared) = place();
            let id = BaseId { memory: MemoryId(1), number: 1 };
            // The file stays: its last page has a reference that is never ended.
            let file = shared.create_base(&dir, id, 513 * PAGE_BYTES, &(0..513)).unwrap();
            let path = dir.path_of(Name::Base(id));
            std::fs::write(&path, vec![7; 513 * PAGE_BYTES as usize]).unwrap();
            // Of the later pages, one retired reference and one of the writer.
            file.refs().add(&(256..512));
            file.refs().retire(&(0..512));
            let mut retired = RetiredRefs {
                file: Arc::clone(&file),
                pages: vec![0..256, 256..512],
                readers: vec![],
                disowns: false,
                is_pinned: false,
            };
            retired.pin();
            std::thread::scope(|scope| {
                scope.spawn(|| shared.release(&dir, &mut retired).unwrap());
                scope.spawn(|| {
                    // At another moment each time.
                    (0..number * 200).for_each(|_| std::hint::spin_loop());
                    let written = 256..512;
                    shared.cancel_refs(&dir, &file, std::slice::from_ref(&written)).unwrap();
                });
            });
            let bytes = std::fs::read(&path).unwrap();
            let (ended, kept) = bytes.split_at(512 * PAGE_BYTES as usize);
            assert!(ended.iter().all(|byte| *byte == 0), "{number}");
            assert!(kept.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn last_released_reference_deletes_the_file_in_any_order() {
        for is_released_first in [true, false] {
            let (_folder, dir, shared) = place();
            let id = BaseId { memory: MemoryId(1), number: 1 };
            let file = shared.create_base(&dir, id, 64 * PAGE_BYTES, &(0..8)).unwrap();
            assert!(file.take_free(&(8..16)) && !file.take_free(&(15..17)));
            file.refs().retire(&(0..8));
            let mut retired = RetiredRefs {
                file: Arc::clone(&file),
                pages: vec![0..4, 4..8],
                readers: vec![],
                disowns: false,
                is_pinned: false,
            };
            retired.pin();
            let path = dir.path_of(Name::Base(id));
            for is_release in [is_released_first, !is_released_first] {
                assert!(path.exists());
                let reserved = 8..16;
                match is_release {
                    true => shared.release(&dir, &mut retired),
                    false => shared.cancel_refs(&dir, &file, std::slice::from_ref(&reserved)),
                }
                .unwrap();
            }
            assert!(!path.exists() && shared.known_base(id).is_none());
            assert!(!file.take_free(&(0..1)), "nothing is free in what is gone");
        }
    }

    #[test]
    fn concurrent_leave_unlinks_the_segment_once() {
        for round in 0..200 {
            let (_folder, dir, shared) = place();
            let (owner, name) = (MemoryId(1), SegmentId(round));
            dir.create(&dir.segment_path(owner, name), 0).unwrap();
            let segment = shared.segment(owner, name, 0);
            segment.join(owner, name);
            segment.join(MemoryId(2), SegmentId(0));
            let stays: Vec<bool> = std::thread::scope(|scope| {
                let leave = |id| {
                    let (shared, dir, segment) = (&shared, &dir, &segment);
                    scope.spawn(move || shared.leave_segment(dir, segment, MemoryId(id)).unwrap())
                };
                let both = [leave(1), leave(2)];
                both.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(stays.iter().filter(|stays| **stays).count(), 1);
            assert!(!dir.segment_path(owner, name).exists() && !shared.bears(owner));
        }
    }
}
