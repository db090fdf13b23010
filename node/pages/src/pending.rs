//! Files that a checkpoint syncs before it is durable, and those that it releases afterwards.

use std::{
    fs::File,
    path::Path,
    sync::{Arc, Weak},
};

use crate::{
    MemoryId, PAGE_BYTES, PageFile, PagesError, Result, SegmentId,
    extents::{RetiredRefs, SharedFiles},
    files::{Dir, Name},
    memory::Segment,
};

/// A file to make durable.
#[derive(Clone, Debug)]
pub(crate) struct SyncFile {
    pub(crate) name: Name,
    /// Held since the first write, so that an error of the kernel's own writeback is not missed.
    /// None of a new base that holds no data, and of a file that was closed meanwhile.
    pub(crate) file: Option<Arc<File>>,
    /// It was not open all the time: an error may have passed unseen.
    pub(crate) was_closed: bool,
    /// Of a segment: the length it must have.
    pub(crate) segment_bytes: Option<u64>,
}

impl SyncFile {
    /// The base of a memory that was created, and its file if it was written; or one of which only
    /// what was cleared is to be synced.
    pub(crate) fn base(name: Name, file: Option<Arc<File>>) -> Self {
        Self { name, file, was_closed: false, segment_bytes: None }
    }

    pub(crate) fn close(&mut self) {
        (self.file, self.was_closed) = (None, true);
    }

    pub(crate) fn open(&self, path: &Path, dir: &Dir) -> Result<Arc<File>> {
        match &self.file {
            Some(file) => Ok(Arc::clone(file)),
            None if self.segment_bytes.is_some() => Ok(Arc::new(dir.open_write(path)?)),
            // Only its length, its name and holes are to be synced: any descriptor does.
            None => Ok(Arc::new(dir.open_read(path)?)),
        }
    }
}

/// What to release once no durable index needs it.
#[derive(Debug)]
pub(crate) struct PendingDelete {
    target: ReleaseTarget,
    /// Delta that goes with the file; 0 for a base.
    pub(crate) delta_bytes: u64,
    /// The file as layouts name it, if one does.
    file: Weak<PageFile>,
}

#[derive(Debug)]
enum ReleaseTarget {
    /// A file that no other memory names.
    File(Name),
    /// References to a file that other memories may name too.
    Refs(RetiredRefs),
}

impl PendingDelete {
    /// References to pages, which wait for their possible readers.
    pub(crate) fn pages(retired: RetiredRefs) -> Self {
        Self { target: ReleaseTarget::Refs(retired), delta_bytes: 0, file: Weak::new() }
    }

    /// The base file of a memory that is removed and was never shared.
    pub(crate) fn base(memory: MemoryId, file: Weak<PageFile>) -> Self {
        Self { target: ReleaseTarget::File(Name::own_base(memory)), delta_bytes: 0, file }
    }

    /// A segment that a memory does not name any more.
    pub(crate) fn segment(memory: MemoryId, id: SegmentId, segment: Segment) -> Self {
        let retire = |file| RetiredRefs::new(&file, vec![file.whole()], Vec::new());
        let target = match segment.shared {
            Some(file) => ReleaseTarget::Refs(retire(file)),
            None => ReleaseTarget::File(Name::Segment(memory, id)),
        };
        Self { target, delta_bytes: segment.used_pages * PAGE_BYTES, file: segment.read }
    }

    /// The name of a file that goes for certain.
    pub(crate) fn last_name(&self) -> Option<Name> {
        match &self.target {
            ReleaseTarget::File(name) => Some(*name),
            // Of a base file it would take long to find out.
            ReleaseTarget::Refs(retired) => match retired.name() {
                name @ Name::Segment(..) if retired.is_last() => Some(name),
                _ => None,
            },
        }
    }

    /// Unlinks a file, or drops references. Layouts that name a file keep it, open; if that is not
    /// possible and the readers are `given_up`, they lose it. Returns whether a file is gone, and
    /// not only this reference to it; `None` if it waits for readers.
    pub(crate) fn delete(
        &mut self,
        dir: &Dir,
        shared: &SharedFiles,
        given_up: bool,
    ) -> Result<Option<bool>> {
        match &mut self.target {
            ReleaseTarget::Refs(retired) if retired.is_read() => {
                retired.pin();
                Ok(None)
            }
            ReleaseTarget::Refs(retired) => {
                hold_open(&self.file, given_up)?;
                shared.release(dir, retired).map(Some)
            }
            ReleaseTarget::File(name) => {
                hold_open(&self.file, given_up)?;
                dir.unlink(&dir.path_of(*name)).map(|()| Some(true))
            }
        }
    }
}

fn hold_open(file: &Weak<PageFile>, given_up: bool) -> Result<()> {
    let Some(file) = file.upgrade() else { return Ok(()) };
    match file.hold_open() {
        // The file is unreadable already.
        Err(PagesError::Gone { .. } | PagesError::MissingFile { .. }) => Ok(()),
        Err(_) if given_up => {
            file.mark_gone();
            Ok(())
        }
        kept => kept,
    }
}
