//! Files that several memories look at, or may: base files with a claim on every page that somebody
//! needs, and segments with the number of memories that name them. A memory that was never copied
//! and is no copy has no entry here.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use crate::{
    BaseId, MemoryId, PAGE_BYTES, PageFile, Result, SegmentId,
    claims::Claims,
    files::{Dir, Name},
    store::lock,
};

/// A base file and who looks at which of its pages.
#[derive(Debug)]
pub(crate) struct BaseFile {
    pub(crate) id: BaseId,
    /// Its length.
    pub(crate) bytes: u64,
    /// The memory that it was created with exists, or a durable index names that.
    owned: AtomicBool,
    claims: Mutex<Claims>,
}

impl BaseFile {
    pub(crate) fn new(id: BaseId, bytes: u64) -> Self {
        // Others are there for the pages in them alone.
        let owned = AtomicBool::new(id.number == 0);
        Self { id, bytes, owned, claims: Mutex::default() }
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        lock(&self.claims)
    }

    /// Whether these pages are in it and nobody looks at them.
    pub(crate) fn is_free(&self, pages: &Range<u64>) -> bool {
        pages.end <= self.bytes / PAGE_BYTES && self.claims().is_free(pages)
    }

    /// No memory of its number any more.
    pub(crate) fn disown(&self) {
        self.owned.store(false, SeqCst);
    }
}

/// A segment that nothing is appended to any more, and how many memories name it.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    /// The memory whose segment it was.
    pub(crate) owner: MemoryId,
    /// What it was there.
    pub(crate) id: SegmentId,
    /// Its length.
    pub(crate) bytes: u64,
    sharers: AtomicU64,
}

impl SharedSegment {
    pub(crate) fn join(&self) {
        self.sharers.fetch_add(1, SeqCst);
    }

    /// Whether others still name it.
    pub(crate) fn has_others(&self) -> bool {
        self.sharers.load(SeqCst) > 1
    }

    fn leave(&self) {
        self.sharers.fetch_sub(1, SeqCst);
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
    /// The base file of this name, made known with so many bytes and what `claim` lays on it if it
    /// was not.
    pub(crate) fn base(
        &self,
        id: BaseId,
        bytes: u64,
        claim: impl FnOnce(&mut Claims),
    ) -> Arc<BaseFile> {
        let mut bases = lock(&self.bases);
        let known = bases.entry(id).or_insert_with(|| {
            let base = BaseFile::new(id, bytes);
            claim(&mut base.claims());
            Arc::new(base)
        });
        Arc::clone(known)
    }

    /// Makes a base file, all of it a hole, at which nobody looks yet.
    pub(crate) fn create_base(&self, dir: &Dir, id: BaseId, bytes: u64) -> Result<Arc<BaseFile>> {
        dir.create(&dir.path_of(Name::Base(id)), bytes)?;
        Ok(self.base(id, bytes, |_| ()))
    }

    pub(crate) fn known_base(&self, id: BaseId) -> Option<Arc<BaseFile>> {
        lock(&self.bases).get(&id).cloned()
    }

    /// The segment of this name, named by one memory if it was not known.
    pub(crate) fn segment(&self, owner: MemoryId, id: SegmentId, bytes: u64) -> Arc<SharedSegment> {
        let mut segments = lock(&self.segments);
        let known = segments.entry((owner, id)).or_insert_with(|| {
            Arc::new(SharedSegment { owner, id, bytes, sharers: AtomicU64::new(1) })
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

    /// Gives back what lies in base files where nobody looks: what was being moved there when the
    /// power went, and what nobody had given back yet.
    pub(crate) fn clear_gaps(&self, dir: &Dir) -> Result<()> {
        for base in lock(&self.bases).values() {
            let gaps = base.claims().gaps(&(0..base.bytes / PAGE_BYTES));
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
    pub(crate) fn leave_segment(&self, dir: &Dir, segment: &SharedSegment) -> Result<bool> {
        let has_others = segment.has_others();
        if !has_others {
            dir.unlink(&dir.path_of(segment.name()))?;
            lock(&self.segments).remove(&(segment.owner, segment.id));
        }
        segment.leave();
        Ok(has_others)
    }

    /// Ends claims for good: pages that nobody else looks at give their disk back, and a file that
    /// nobody looks at goes.
    pub(crate) fn release(&self, dir: &Dir, retired: &Retired) -> Result<()> {
        let file = &retired.file;
        if retired.disowns {
            file.disown();
        }
        let (last, is_all) = {
            let claims = file.claims();
            let last: Vec<_> = retired.pages.iter().flat_map(|pages| claims.last(pages)).collect();
            let pages: u64 = last.iter().map(|range| range.end - range.start).sum();
            (last, pages == claims.pages())
        };
        let path = dir.path_of(Name::Base(file.id));
        if is_all && !file.owned.load(SeqCst) {
            dir.unlink(&path)?;
            lock(&self.bases).remove(&file.id);
        } else if !last.is_empty() {
            let open = dir.open_write(&path)?;
            dir.clear(&path, &open, &last)?;
        }
        let mut claims = file.claims();
        retired.pages.iter().for_each(|pages| claims.release(pages));
        Ok(())
    }

    /// Takes back a reservation of pages that nothing names. The file goes if it was for them alone.
    pub(crate) fn give_back(&self, dir: &Dir, file: &BaseFile, pages: &Range<u64>) -> Result<()> {
        let is_unused = {
            let mut claims = file.claims();
            claims.give_back(pages);
            claims.pages() == 0 && !file.owned.load(SeqCst)
        };
        let path = dir.path_of(Name::Base(file.id));
        if is_unused {
            lock(&self.bases).remove(&file.id);
            return dir.unlink(&path);
        }
        let open = dir.open_write(&path)?;
        dir.clear(&path, &open, std::slice::from_ref(pages))
    }
}

/// Claims that ended: the newest version of a memory does not look at these pages any more.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) file: Arc<BaseFile>,
    pub(crate) pages: Vec<Range<u64>>,
    /// The file as layouts name it that may look at them.
    pub(crate) readers: Vec<Weak<PageFile>>,
    /// The memory of the file's number is gone.
    pub(crate) disowns: bool,
}

impl Retired {
    pub(crate) fn is_read(&self) -> bool {
        self.readers.iter().any(|file| file.strong_count() > 0)
    }
}
