//! Opening the store: there is one way, the newest durable checkpoint. Everything is verified
//! before the first file is removed, so a wrong or damaged index does not cost the data.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::{self, Metadata},
    path::Path,
    sync::{Arc, Mutex},
};

use disk::{RealDisk, SharedDisk};
use limits::PagesLimits;

use crate::{
    IndexFault, MemoryId, MemoryIndex, PAGE_BYTES, PagesError, Result,
    files::{self, Dir, Name},
    heap,
    memory::{Accounts, Memory},
    store::{Memories, PageStore},
};

impl PageStore {
    /// Opens the directory (created if its parent exists) as the durable checkpoint's `index`
    /// describes it: one entry per memory with its index and the length of its base. Fails if a
    /// file it names is missing or too short ([`PagesError::MissingFile`],
    /// [`PagesError::ShortFile`]) or the index itself is impossible ([`PagesError::BadIndex`]);
    /// in all these cases nothing was removed. Then removes every file of this crate that the index
    /// does not name, cuts segments to what it names, and queues all delta for folding. Locks the
    /// directory against other processes.
    pub fn open(
        dir: impl AsRef<Path>,
        limits: &PagesLimits,
        index: impl IntoIterator<Item = (MemoryId, MemoryIndex, u64)>,
    ) -> Result<Self> {
        Self::open_on(RealDisk::shared(), dir, limits, index)
    }

    /// The same on another disk.
    pub fn open_on(
        disk: SharedDisk,
        dir: impl AsRef<Path>,
        limits: &PagesLimits,
        index: impl IntoIterator<Item = (MemoryId, MemoryIndex, u64)>,
    ) -> Result<Self> {
        let dir = Arc::new(Dir::open(disk, dir.as_ref(), limits.open_files)?);
        let accounts = Accounts::default();
        let mut memories: Memories = BTreeMap::new();
        let mut fold_queue = BTreeSet::new();
        for (id, index, base_bytes) in index {
            let _here = heap::enter();
            let memory = Memory::recovered(id, &index, base_bytes, &accounts)
                .map_err(|fault| PagesError::BadIndex { id, fault })?;
            verify(&dir, &memory)?;
            if memory.has_durable_delta() {
                fold_queue.insert(id);
            }
            match memories.entry(id) {
                Entry::Vacant(slot) => slot.insert(Mutex::new(memory)),
                Entry::Occupied(_) => {
                    return Err(PagesError::BadIndex { id, fault: IndexFault::Twice });
                }
            };
        }
        tidy(&dir, &mut memories)?;
        Ok(Self::assemble(limits, dir, memories, fold_queue, accounts))
    }
}

/// The files of a memory are there and long enough.
fn verify(dir: &Dir, memory: &Memory) -> Result<()> {
    let long_enough = |path: &Path, expected_bytes: u64| {
        let found_bytes = files::len(&dir.open_read(path)?, path)?;
        if found_bytes < expected_bytes {
            return Err(PagesError::ShortFile {
                path: path.to_path_buf(),
                expected_bytes,
                found_bytes,
            });
        }
        Ok(())
    };
    long_enough(&dir.base_path(memory.id), memory.base_bytes)?;
    for (id, segment) in memory.segments() {
        long_enough(&dir.segment_path(memory.id, id), segment.used_pages * PAGE_BYTES)?;
    }
    Ok(())
}

fn entry_metadata(path: &Path) -> Result<Metadata> {
    fs::metadata(path).map_err(|e| PagesError::io("inspect", path, e))
}

/// Removes what the index does not name: segments of after the checkpoint, segments folded before
/// the crash, memories removed or never checkpointed.
fn tidy(dir: &Dir, memories: &mut Memories) -> Result<()> {
    for entry in dir.list()? {
        let (name, path) = entry?;
        let (id, segment) = match name {
            Name::Base(id) => (id, None),
            Name::Segment(id, segment) => (id, Some(segment)),
        };
        let memory = memories
            .get_mut(&id)
            .map(|memory| memory.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        let wanted_bytes = match (&memory, segment) {
            (None, _) => None,
            (Some(memory), None) => Some(memory.base_bytes),
            (Some(memory), Some(segment)) => memory
                .segments()
                .find(|(id, _)| *id == segment)
                .map(|(_, segment)| segment.used_pages * PAGE_BYTES),
        };
        let Some(wanted_bytes) = wanted_bytes else {
            dir.unlink(&path)?;
            continue;
        };
        // Of most files nothing is to be cut off: they are not opened.
        let metadata = entry_metadata(&path)?;
        if metadata.len() > wanted_bytes {
            let file = dir.open_write(&path)?;
            dir.on_disk(&path, &file)
                .set_len(wanted_bytes)
                .map_err(|e| PagesError::io("truncate", &path, e))?;
        }
    }
    Ok(())
}
