//! Extents: the pages of files that several memories reference, or may. Base files and segments
//! are treated alike. A memory that was never copied and is not a copy has no entry here.
//!
//! A reference to pages of a file ([`ExtentRefs`]) goes through these steps:
//!
//! - *added* for the newest version of a memory, or to reserve a place ([`SharedFile::reserve`]);
//! - *retired* ([`RetiredRefs`]) when that version does not use the pages any more. A durable index
//!   may still need them, so nothing is released before a checkpoint that does not name them;
//! - *pinned* if that checkpoint finds that a reader may still use them;
//! - *dropped* ([`SharedFiles::release`]). The last reference to a page returns its disk space, and
//!   the last reference to a file deletes the file.
//!
//! A file is kept by references to its pages. A memory keeps its own base file, and every memory
//! that names a segment the segment, by a reference to the page behind the last
//! ([`SharedFile::whole`]).
//!
//! Whether a reference is the last is decided with the change itself, under one lock: if two
//! memories end references at the same time, exactly one is last. Pages are cleared while the
//! reference that ends still covers them, so a free page holds no data.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use crate::{
    BaseId, MemoryId, PAGE_BYTES, Pin, Result, SegmentId,
    extent_refs::ExtentRefs,
    files::{Dir, Name},
    range_map::PageValue,
    store::lock,
};

/// A file and the references to its pages.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(crate) name: Name,
    /// Its length.
    pub(crate) bytes: u64,
    refs: Mutex<ExtentRefs>,
    /// Of a base file: memories whose newest version may reference pages of it.
    users: Mutex<BTreeSet<MemoryId>>,
}

impl PartialEq for SharedFile {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The file that holds a page at the same offset.
impl PageValue for Arc<SharedFile> {
    fn after(&self, _: u64) -> Self {
        Self::clone(self)
    }
}

impl SharedFile {
    pub(crate) fn refs(&self) -> MutexGuard<'_, ExtentRefs> {
        lock(&self.refs)
    }

    /// The page behind the last one. A reference to it keeps the file.
    pub(crate) fn whole(&self) -> Range<u64> {
        let pages = self.bytes / PAGE_BYTES;
        pages..pages + 1
    }

    /// References pages if they are within the file and unreferenced. Returns whether it did.
    pub(crate) fn reserve(&self, pages: &Range<u64>) -> bool {
        let mut refs = self.refs();
        let is_free = pages.end <= self.bytes / PAGE_BYTES && refs.is_free(pages);
        if is_free {
            refs.add(pages);
        }
        is_free
    }

    pub(crate) fn users(&self) -> MutexGuard<'_, BTreeSet<MemoryId>> {
        lock(&self.users)
    }
}

/// References of one memory that ended.
#[derive(Debug)]
pub(crate) struct RetiredRefs {
    file: Arc<SharedFile>,
    pages: Vec<Range<u64>>,
    /// Of layouts that may use them.
    readers: Vec<Weak<Pin>>,
    /// No durable index needs them any more, only readers.
    is_pinned: bool,
}

impl RetiredRefs {
    /// The newest version does not use these pages any more; layouts with these pins may.
    pub(crate) fn new(
        file: &Arc<SharedFile>,
        pages: Vec<Range<u64>>,
        readers: Vec<Weak<Pin>>,
    ) -> Self {
        let mut refs = file.refs();
        pages.iter().for_each(|pages| refs.retire(pages));
        Self { file: Arc::clone(file), pages, readers, is_pinned: false }
    }

    pub(crate) fn name(&self) -> Name {
        self.file.name
    }

    pub(crate) fn is_read(&self) -> bool {
        self.readers.iter().any(|pin| pin.strong_count() > 0)
    }

    /// Records that only readers need them.
    pub(crate) fn pin(&mut self) {
        if !std::mem::replace(&mut self.is_pinned, true) {
            let mut refs = self.file.refs();
            self.pages.iter().for_each(|pages| refs.pin(pages));
        }
    }

    /// Whether the file is deleted with them.
    pub(crate) fn is_last(&self) -> bool {
        let refs = self.file.refs();
        count(&self.last(&refs)) == refs.pages()
    }

    /// Those of the pages that no other reference covers.
    fn last(&self, refs: &ExtentRefs) -> Vec<Range<u64>> {
        self.pages.iter().flat_map(|pages| refs.last(pages)).collect()
    }
}

fn count(pages: &[Range<u64>]) -> u64 {
    pages.iter().map(|range| range.end - range.start).sum()
}

/// All of them, by name: a leaf among the locks.
#[derive(Debug, Default)]
pub(crate) struct SharedFiles {
    files: Mutex<BTreeMap<Name, Arc<SharedFile>>>,
}

impl SharedFiles {
    /// The file of this name; registered with this length, and without a reference, if it was
    /// unknown.
    pub(crate) fn file(&self, name: Name, bytes: u64) -> Arc<SharedFile> {
        let mut files = lock(&self.files);
        let known = files.entry(name).or_insert_with(|| {
            let (refs, users) = (Mutex::default(), Mutex::default());
            Arc::new(SharedFile { name, bytes, refs, users })
        });
        Arc::clone(known)
    }

    pub(crate) fn known(&self, name: Name) -> Option<Arc<SharedFile>> {
        lock(&self.files).get(&name).cloned()
    }

    /// Makes a base file, all of it a hole, in which these pages are reserved.
    pub(crate) fn create_base(
        &self,
        dir: &Dir,
        base: BaseId,
        bytes: u64,
        pages: &Range<u64>,
    ) -> Result<Arc<SharedFile>> {
        let name = Name::Base(base);
        dir.create(&dir.path_of(name), bytes)?;
        let file = self.file(name, bytes);
        file.refs().add(pages);
        Ok(file)
    }

    /// Frees unreferenced pages of base files: pages that were being moved when the power failed,
    /// and pages that had not been returned yet.
    pub(crate) fn clear_gaps(&self, dir: &Dir) -> Result<()> {
        let files = lock(&self.files);
        for file in files.values().filter(|file| matches!(file.name, Name::Base(_))) {
            let gaps = file.refs().gaps(&(0..file.bytes / PAGE_BYTES));
            if !gaps.is_empty() {
                let path = dir.path_of(file.name);
                dir.clear(&path, &dir.open_write(&path)?, &gaps)?;
            }
        }
        Ok(())
    }

    /// Whether there is a file that bears the number of a memory, or may be.
    pub(crate) fn bears(&self, id: MemoryId) -> bool {
        let base = |number| Name::Base(BaseId { memory: id, number });
        let segment = |number| Name::Segment(id, SegmentId(number));
        let files = lock(&self.files);
        files.range(base(0)..=base(u64::MAX)).next().is_some()
            || files.range(segment(0)..=segment(u64::MAX)).next().is_some()
    }

    /// Drops references for good: pages that no other reference covers return their disk space, and
    /// a file that has no other is deleted. Returns whether it was. May be retried after an error.
    pub(crate) fn release(&self, dir: &Dir, retired: &RetiredRefs) -> Result<bool> {
        let file = &retired.file;
        let path = dir.path_of(file.name);
        let mut cleared = Vec::new();
        loop {
            let mut refs = file.refs();
            let last = retired.last(&refs);
            if count(&last) == refs.pages() {
                dir.unlink(&path)?;
                // Nothing is free in a deleted file.
                refs.add(&(0..file.whole().end));
                drop(refs);
                lock(&self.files).remove(&file.name);
                return Ok(true);
            }
            // The memory that ended the other reference on a page meanwhile left it to this one.
            if last == cleared {
                retired.pages.iter().for_each(|pages| refs.drop_ref(pages, retired.is_pinned));
                return Ok(false);
            }
            drop(refs);
            let end = file.bytes / PAGE_BYTES;
            let in_file = last.iter().map(|pages| pages.start..pages.end.min(end));
            let in_file: Vec<_> = in_file.filter(|pages| !pages.is_empty()).collect();
            if !in_file.is_empty() {
                dir.clear(&path, &dir.open_write(&path)?, &in_file)?;
            }
            cleared = last;
        }
    }

    /// Releases pages that were reserved and that no index and no layout names.
    pub(crate) fn give_back(
        &self,
        dir: &Dir,
        file: &Arc<SharedFile>,
        pages: &Range<u64>,
    ) -> Result<()> {
        self.release(dir, &RetiredRefs::new(file, vec![pages.clone()], Vec::new())).map(|_| ())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use disk::RealDisk;

    use super::*;

    const BASE: BaseId = BaseId { memory: MemoryId(1), number: 1 };

    fn place() -> (tempfile::TempDir, Dir, SharedFiles) {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::open(RealDisk::shared(), folder.path(), 100).unwrap();
        (folder, dir, SharedFiles::default())
    }

    #[test]
    fn concurrent_release_clears_pages_before_they_are_free() {
        for number in 0..40 {
            let (_folder, dir, shared) = place();
            // The file stays: its last page has a reference that is never ended.
            let file = shared.create_base(&dir, BASE, 513 * PAGE_BYTES, &(0..513)).unwrap();
            let path = dir.path_of(Name::Base(BASE));
            std::fs::write(&path, vec![7; 513 * PAGE_BYTES as usize]).unwrap();
            // Of the later pages, one retired reference and one of the writer.
            file.refs().add(&(256..512));
            let mut retired = RetiredRefs::new(&file, vec![0..256, 256..512], Vec::new());
            retired.pin();
            std::thread::scope(|scope| {
                scope.spawn(|| shared.release(&dir, &retired).unwrap());
                scope.spawn(|| {
                    // At another moment each time.
                    (0..number * 200).for_each(|_| std::hint::spin_loop());
                    shared.give_back(&dir, &file, &(256..512)).unwrap();
                });
            });
            let bytes = std::fs::read(&path).unwrap();
            let (ended, kept) = bytes.split_at(512 * PAGE_BYTES as usize);
            assert!(ended.iter().all(|byte| *byte == 0), "{number}");
            assert!(kept.iter().all(|byte| *byte == 7));
            assert!(file.reserve(&(0..512)));
        }
    }

    #[test]
    fn last_released_reference_deletes_the_file_in_any_order() {
        for is_released_first in [true, false] {
            let (_folder, dir, shared) = place();
            let file = shared.create_base(&dir, BASE, 64 * PAGE_BYTES, &(0..8)).unwrap();
            assert!(file.reserve(&(8..16)) && !file.reserve(&(15..17)));
            let mut retired = RetiredRefs::new(&file, vec![0..4, 4..8], Vec::new());
            retired.pin();
            let path = dir.path_of(Name::Base(BASE));
            for is_release in [is_released_first, !is_released_first] {
                assert!(path.exists());
                match is_release {
                    true => drop(shared.release(&dir, &retired).unwrap()),
                    false => shared.give_back(&dir, &file, &(8..16)).unwrap(),
                }
            }
            assert!(!path.exists() && shared.known(Name::Base(BASE)).is_none());
            assert!(!file.reserve(&(0..1)), "nothing is free in a deleted file");
            assert!(!file.reserve(&(20..21)), "nothing is free in a deleted file");
        }
    }

    #[test]
    fn a_reference_to_the_whole_file_keeps_it_and_its_pages_are_returned() {
        let (_folder, dir, shared) = place();
        let file = shared.create_base(&dir, BASE, 8 * PAGE_BYTES, &(0..8)).unwrap();
        file.refs().add(&file.whole());
        let path = dir.path_of(Name::Base(BASE));
        std::fs::write(&path, vec![7; 8 * PAGE_BYTES as usize]).unwrap();
        assert!(!file.reserve(&file.whole()));
        let pages = RetiredRefs::new(&file, vec![0..8, file.whole()], Vec::new());
        file.refs().add(&file.whole());
        assert!(!pages.is_last() && !shared.release(&dir, &pages).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; 8 * PAGE_BYTES as usize]);
        let whole = RetiredRefs::new(&file, vec![file.whole()], Vec::new());
        assert!(whole.is_last() && shared.release(&dir, &whole).unwrap() && !path.exists());
    }

    #[test]
    fn concurrent_release_unlinks_the_segment_once() {
        for round in 0..200 {
            let (_folder, dir, shared) = place();
            let name = Name::Segment(MemoryId(1), SegmentId(round));
            dir.create(&dir.path_of(name), 0).unwrap();
            let segment = shared.file(name, 0);
            (0..2).for_each(|_| segment.refs().add(&segment.whole()));
            let is_deleted: Vec<bool> = std::thread::scope(|scope| {
                let leave = || {
                    let (shared, dir, segment) = (&shared, &dir, &segment);
                    let retired = RetiredRefs::new(segment, vec![segment.whole()], Vec::new());
                    scope.spawn(move || shared.release(dir, &retired).unwrap())
                };
                let both = [leave(), leave()];
                both.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(is_deleted.iter().filter(|is_deleted| **is_deleted).count(), 1);
            assert!(!dir.path_of(name).exists() && !shared.bears(MemoryId(1)));
        }
    }
}
