//! Opening the store: there is one way, the newest durable checkpoint. Everything is verified
//! before the first file is removed, so a wrong or damaged index does not cost the data.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::{self, Metadata},
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use disk::{RealDisk, SharedDisk};
use limits::PagesLimits;

use crate::{
    BaseId, BaseRun, BorrowedSegment, IndexFault, MemoryId, MemoryIndex, PAGE_BYTES, PagesError,
    Result, SegmentId,
    extents::SharedFiles,
    files::{self, Dir, Name},
    memory::{Accounts, Memory, subtract},
    state_heap,
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
        let mut sharers = Sharers::new();
        for (id, index, base_bytes) in index {
            let _here = state_heap::enter();
            let bad = |fault| PagesError::BadIndex { id, fault };
            let memory = Memory::recovered(id, &index, base_bytes).map_err(bad)?;
            if !index.parts.is_empty() || !index.borrowed.is_empty() {
                check_sharer(id, &index, memory.base_pages()).map_err(bad)?;
                sharers.insert(id, MemoryIndex { runs: Vec::new(), ..index });
            }
            if memory.has_durable_delta() {
                fold_queue.insert(id);
            }
            match memories.entry(id) {
                Entry::Vacant(slot) => slot.insert(Mutex::new(memory)),
                Entry::Occupied(_) => return Err(bad(IndexFault::Twice)),
            };
        }
        let shared = SharedFiles::default();
        share_bases(&dir, &shared, &mut memories, &sharers)?;
        let duplicates = share_segments(&shared, &mut memories, &sharers);
        for memory in memories.values_mut() {
            let memory = memory.get_mut().unwrap_or_else(PoisonError::into_inner);
            verify(&dir, memory)?;
            let pages: u64 = memory.segments().map(|(_, segment)| segment.used_pages).sum();
            accounts.delta.fetch_add(pages * PAGE_BYTES, Relaxed);
            accounts.runs.fetch_add(memory.runs_len(), Relaxed);
        }
        subtract(&accounts.delta, duplicates);
        tidy(&dir, &shared, &mut memories)?;
        shared.clear_gaps(&dir)?;
        Ok(Self::assemble(limits, dir, shared, memories, fold_queue, accounts))
    }
}

/// Memories that reference files of others: their indexes, without runs.
type Sharers = BTreeMap<MemoryId, MemoryIndex>;

fn check_sharer(
    id: MemoryId,
    MemoryIndex { parts, borrowed, .. }: &MemoryIndex,
    pages: u64,
) -> std::result::Result<(), IndexFault> {
    let mut free_page = 0;
    for part in parts {
        let end = part.start_page.checked_add(part.pages);
        let is_possible = part.pages > 0
            && part.start_page >= free_page
            && part.base != BaseId::initial(id)
            && end.is_some_and(|end| end <= pages);
        free_page = end.filter(|_| is_possible).ok_or(IndexFault::BadParts)?;
    }
    let mut free = SegmentId(0);
    for BorrowedSegment { segment, owner, .. } in borrowed {
        if *segment < free || *owner == id {
            return Err(IndexFault::BadBorrowed);
        }
        free = SegmentId(segment.0.checked_add(1).ok_or(IndexFault::BadBorrowed)?);
    }
    Ok(())
}

fn known(memories: &mut Memories, id: MemoryId) -> Option<&mut Memory> {
    memories.get_mut(&id).map(|memory| memory.get_mut().unwrap_or_else(PoisonError::into_inner))
}

/// Adds references to the pages of base files that some memory shares.
fn share_bases(
    dir: &Dir,
    shared: &SharedFiles,
    memories: &mut Memories,
    sharers: &Sharers,
) -> Result<()> {
    let _here = state_heap::enter();
    for (&id, sharer) in sharers {
        for &BaseRun { start_page, pages, base } in &sharer.parts {
            if let Some(owner) = known(memories, base.memory) {
                owner.start_sharing(shared).next_file_from(base.number.saturating_add(1));
            }
            let (name, path) = (Name::Base(base), dir.path_of(Name::Base(base)));
            let file = match shared.known(name) {
                Some(file) => file,
                None => shared.file(name, files::len(&dir.open_read(&path)?, &path)?),
            };
            if let Some(memory) = known(memories, id) {
                memory.start_sharing(shared).place(start_page..start_page + pages, &file);
            }
        }
    }
    for memory in memories.values_mut() {
        let memory = memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(sharing) = &memory.sharing {
            sharing.add_refs(0..memory.base_pages());
        }
    }
    Ok(())
}

/// Adds references to segments that other memories than their owners name. Returns the bytes that
/// are counted more than once.
fn share_segments(shared: &SharedFiles, memories: &mut Memories, sharers: &Sharers) -> u64 {
    let _here = state_heap::enter();
    // The memories that name a file, with their names for it.
    let mut files: BTreeMap<(MemoryId, SegmentId), Vec<(MemoryId, SegmentId)>> = BTreeMap::new();
    for (&memory, sharer) in sharers {
        for BorrowedSegment { segment, owner, id } in &sharer.borrowed {
            files.entry((*owner, *id)).or_default().push((memory, *segment));
        }
    }
    let mut duplicates = 0;
    for ((owner, id), mut names) in files {
        if let Some(memory) = known(memories, owner) {
            // Also where it needs none of it any more: the name is taken.
            memory.next_segment = memory.next_segment.max(id.0.saturating_add(1));
        }
        // The owner's own, unless it borrowed one by that name.
        let is_borrowed = sharers.get(&owner).is_some_and(|sharer| {
            sharer.borrowed.binary_search_by_key(&id, |borrowed| borrowed.segment).is_ok()
        });
        if !is_borrowed {
            names.push((owner, id));
        }
        let mut longest = 0;
        names.retain(|(memory, segment)| {
            let found = known(memories, *memory).and_then(|memory| memory.segments.get(segment));
            longest = longest.max(found.map_or(0, |segment| segment.used_pages));
            found.is_some()
        });
        if names.is_empty() {
            continue;
        }
        let file = shared.file(Name::Segment(owner, id), longest * PAGE_BYTES);
        duplicates += (names.len() as u64 - 1) * file.bytes;
        for (id, segment) in names {
            let memory = known(memories, id);
            let Some(segment) = memory.and_then(|memory| memory.segments.get_mut(&segment)) else {
                continue;
            };
            file.refs().add(&file.whole());
            segment.shared = Some(Arc::clone(&file));
            segment.used_pages = longest;
        }
    }
    duplicates
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
    let mut ends: BTreeMap<Name, u64> = BTreeMap::new();
    for (pages, file) in memory.sharing.iter().flat_map(|sharing| sharing.parts()) {
        // The last part of a file reaches farthest.
        ends.insert(file.name, pages.end);
    }
    for (name, end) in ends {
        long_enough(&dir.path_of(name), end * PAGE_BYTES)?;
    }
    for (id, segment) in memory.segments() {
        let path = dir.path_of(memory.segment_name(id));
        long_enough(&path, segment.used_pages * PAGE_BYTES)?;
    }
    Ok(())
}

fn entry_metadata(path: &Path) -> Result<Metadata> {
    fs::metadata(path).map_err(|e| PagesError::io("inspect", path, e))
}

/// Removes what the index does not name: segments of after the checkpoint, segments folded before
/// the crash, memories removed or never checkpointed, base files that were being made.
fn tidy(dir: &Dir, shared: &SharedFiles, memories: &mut Memories) -> Result<()> {
    for entry in dir.list()? {
        let (name, path) = entry?;
        let Some(wanted_bytes) = wanted_bytes(name, shared, memories) else {
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

/// The length that a file should have; none if it should not be there.
fn wanted_bytes(name: Name, shared: &SharedFiles, memories: &mut Memories) -> Option<u64> {
    let (Name::Base(BaseId { memory, .. }) | Name::Segment(memory, _)) = name;
    let memory = known(memories, memory);
    let base_bytes = memory.as_ref().map(|memory| memory.base_bytes);
    match name {
        Name::Base(base) => match shared.known(name) {
            // Others may reference pages behind the end of the memory that made it.
            Some(known) => Some(known.bytes.max(base_bytes.unwrap_or(0))),
            None => base_bytes.filter(|_| base.number == 0),
        },
        Name::Segment(_, id) => match shared.known(name) {
            Some(known) => Some(known.bytes),
            None => memory
                .and_then(|memory| memory.segments.get(&id))
                .filter(|segment| segment.shared.is_none())
                .map(|segment| segment.used_pages * PAGE_BYTES),
        },
    }
}
