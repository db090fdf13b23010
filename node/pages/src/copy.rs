//! Memories that begin as copies: what a version of one memory holds, in another.
//!
//! A copy of the newest version takes no disk space and negligible time on any file system: it
//! references the same pages of the same files ([`Memory::share_pages`]), and each of the two
//! memories gets pages of its own where it writes, when they are folded. Any other version, and one
//! whose pages are spread over too many files already, is copied into the base file of the new
//! memory, by the file system if it can: XFS and btrfs share blocks. Holes stay holes, as far as
//! the file system reports them. The copied bytes are not delta: they are synced with the first
//! checkpoint that names the memory.
//!
//! In both cases that checkpoint reports all pages that hold data as written
//! ([`crate::CheckpointTicket::written`]). This module must not know what is copied, or why.

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use disk::DiskFile;

use crate::{
    MemoryId, MemoryLayout, PAGE_BYTES, PageFile, PagesError, Result, Run,
    files::{self, Dir, Name, NamedFile},
    memory::{self, InitialPages, Memory},
    read::{pages_of, read_pages, segment_of},
    store::{PageStore, lock},
};

/// Number of segments from which a memory that is copied requests a checkpoint, so that they are
/// folded: each copy may seal one more, and their number is bounded ([`Memory::can_share_pages`]).
const SEGMENTS_FOLDED_FROM: usize = 16;
/// Ranges of written pages that are remembered until the next checkpoint; more become fewer and
/// longer ones.
const RANGES_MAX: usize = 4096;

impl PageStore {
    /// Creates a memory that may grow to `base_bytes` and holds the first `bytes` bytes of a
    /// version of another (or as many as that has); the rest is zero. Costs in the number of that
    /// memory's runs and parts if it is the newest version and its append target is not out; else
    /// it takes as long as copying takes. The source may be folded meanwhile if it is the newest
    /// version, or held.
    ///
    /// # Errors
    /// The errors of [`PageStore::create`], of reading and of writing; the memory does not exist
    /// then.
    pub fn create_copy(
        &self,
        id: MemoryId,
        base_bytes: u64,
        from: &MemoryLayout,
        bytes: u64,
    ) -> Result<MemoryLayout> {
        memory::check_base_bytes(base_bytes).ok_or(PagesError::BadSize { id, base_bytes })?;
        self.check_sync()?;
        let _one = lock(&self.creating);
        self.check_new(id)?;
        let path = self.dir.base_path(id);
        let file = self.dir.create(&path, base_bytes)?;
        let whole_pages = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let most = base_bytes.min(from.base_bytes).min(whole_pages);
        let made = match self.borrowed(id, base_bytes, from, most / PAGE_BYTES) {
            Ok(Some(memory)) => Ok(memory),
            Ok(None) => self.copied((id, base_bytes), (file, &path), from, most / PAGE_BYTES),
            Err(error) => Err(error),
        };
        let memory = made.inspect_err(|_| {
            // The first error is the one that matters; if the removal fails as well, the next start
            // removes the file, and another attempt fails because the file exists.
            let _ = self.dir.unlink(&path);
        })?;
        Ok(self.admit(memory))
    }

    /// A memory that references what the newest version of another does, if `from` is that.
    fn borrowed(
        &self,
        id: MemoryId,
        base_bytes: u64,
        from: &MemoryLayout,
        pages: u64,
    ) -> Result<Option<Memory>> {
        let shared_copy = self.with(from.id, |source| {
            if source.version != from.version || !source.can_share_pages() {
                return Ok(None);
            }
            if source.segments.len() >= SEGMENTS_FOLDED_FROM {
                self.crowded.store(true, Relaxed);
            }
            // Sealed by whatever checkpoint is begun next.
            let generation = self.progress.next();
            let copy = Memory::new(id, base_bytes);
            let shared_copy =
                source.share_pages(copy, pages, &self.shared, &self.accounts, generation);
            let (memory, unsynced) = shared_copy;
            // Before another checkpoint can be begun, which names what is not synced.
            lock(&self.checkpoint).sync_early(unsynced);
            Ok(Some(memory))
        });
        let mut memory = match shared_copy {
            Ok(Some(shared_copy)) => shared_copy,
            // A layout of a memory that is gone can still be read.
            Ok(None) | Err(PagesError::UnknownMemory(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let pages = self.data_of(&memory);
        memory.initial = Some(InitialPages { file: None, pages });
        Ok(Some(memory))
    }

    /// Pages of a memory's parts that may hold data; all pages if this cannot be determined.
    fn data_of(&self, memory: &Memory) -> Vec<Range<u64>> {
        let mut ranges = Ranges::default();
        let mut open: Vec<(Name, Source)> = Vec::new();
        for (pages, file) in memory.sharing.iter().flat_map(|sharing| sharing.parts()) {
            if !open.iter().any(|(name, _)| *name == file.name)
                && let Ok(source) = Source::open_named(&self.dir, file.name)
            {
                open.push((file.name, source));
            }
            let source = open.iter().find(|(name, _)| *name == file.name);
            let source = source.map(|(_, source)| source);
            let found = source.map(|source| {
                source.data(pages.clone(), |range| {
                    ranges.add(range);
                    Ok(ranges.recorded < RANGES_MAX)
                })
            });
            match found {
                Some(Ok(end)) if end >= pages.end => {}
                // Looking further takes longer than hashing what is left.
                Some(Ok(end)) => ranges.add(end..pages.end),
                _ => ranges.add_over(pages),
            }
        }
        ranges.pages
    }

    /// A memory with a copy of its own.
    fn copied(
        &self,
        (id, base_bytes): (MemoryId, u64),
        (file, path): (File, &Path),
        from: &MemoryLayout,
        pages: u64,
    ) -> Result<Memory> {
        let on_disk = self.dir.on_disk(path, &file);
        let mut copier = Copier::new(on_disk.as_ref(), path);
        copier.version(from, pages)?;
        self.accounts.copied.fetch_add(copier.bytes, Relaxed);
        let pages = copier.written.pages;
        drop(on_disk);
        files::start_writeback(&file);
        // Open until it is synced, so that an error of the kernel's own writeback is not missed.
        self.accounts.open_files.fetch_add(1, Relaxed);
        let mut memory = Memory::new(id, base_bytes);
        memory.initial = Some(InitialPages { file: Some(Arc::new(file)), pages });
        Ok(memory)
    }

    /// Writes bytes of a memory from `offset` on, as one new version, and returns the bytes of
    /// delta. The other bytes of the affected pages are unchanged.
    ///
    /// # Errors
    /// Those of [`read_bytes`](crate::read_bytes), [`PageStore::reserve`] and
    /// [`PageStore::append`]; nothing has changed then.
    pub fn write_bytes(&self, id: MemoryId, offset: u64, bytes: &[u8]) -> Result<u64> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let pages = pages_of(&self.layout(id)?, offset, bytes.len())?;
        let mut content = vec![0; ((pages.end - pages.start) * PAGE_BYTES) as usize];
        read_pages(&self.layout(id)?, pages.start, &mut content)?;
        let within = (offset - pages.start * PAGE_BYTES) as usize;
        debug_assert!(
            within + bytes.len() <= content.len(),
            "{} bytes from {within} on of {}",
            bytes.len(),
            content.len()
        );
        if let Some(place) = content.get_mut(within..within + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        let (start_page, count) = (pages.start, pages.end - pages.start);
        let target = self.reserve(id, count)?;
        let path = self.dir.segment_path(id, target.segment);
        target
            .file
            .write_all_at(&content, target.offset_page * PAGE_BYTES)
            .map_err(|error| PagesError::io("write", &path, error))?;
        let (segment, offset_page) = (target.segment, target.offset_page);
        self.append(&target, &[Run { start_page, pages: count, segment, offset_page }])?;
        Ok(count * PAGE_BYTES)
    }
}

/// Copies into one file.
pub(crate) struct Copier<'a> {
    to: &'a dyn DiskFile,
    to_path: &'a Path,
    /// Pages written so far.
    written: Ranges,
    /// Bytes written so far.
    pub(crate) bytes: u64,
}

/// A file that is copied from.
pub(crate) struct Source {
    file: Arc<File>,
    path: PathBuf,
}

impl Source {
    fn open(file: &PageFile) -> Result<Self> {
        Ok(Self { file: file.open()?, path: file.path() })
    }

    pub(crate) fn open_named(dir: &Dir, name: Name) -> Result<Self> {
        let path = dir.path_of(name);
        Ok(Self { file: Arc::new(dir.open_read(&path)?), path })
    }

    /// Passes the pages that may hold data to `each` until it returns to stop. Returns how far it
    /// got.
    fn data(
        &self,
        pages: Range<u64>,
        mut each: impl FnMut(Range<u64>) -> Result<bool>,
    ) -> Result<u64> {
        let end = pages.end * PAGE_BYTES;
        let mut at = pages.start;
        while at < pages.end {
            let from = NamedFile { file: &self.file, path: &self.path };
            let data = files::next_data(from, at * PAGE_BYTES, end)?;
            // Whole pages, whatever the file system's blocks are.
            let (first, last) = (data.start / PAGE_BYTES, data.end.div_ceil(PAGE_BYTES));
            at = last.max(at + 1);
            if first < last && !each(first..last)? {
                return Ok(at);
            }
        }
        Ok(pages.end)
    }
}

impl<'a> Copier<'a> {
    pub(crate) fn new(to: &'a dyn DiskFile, to_path: &'a Path) -> Self {
        Self { to, to_path, written: Ranges::default(), bytes: 0 }
    }

    /// Copies the first `pages` pages of a version.
    fn version(&mut self, from: &MemoryLayout, pages: u64) -> Result<()> {
        let mut segments: Vec<(crate::SegmentId, Source)> = Vec::new();
        let mut page = 0;
        for run in from.runs.iter().take_while(|run| run.start_page < pages) {
            self.bases(from, page..run.start_page)?;
            let at = match segments.iter().position(|(id, _)| *id == run.segment) {
                Some(at) => at,
                None => {
                    segments.push((run.segment, Source::open(segment_of(from, run.segment)?)?));
                    segments.len() - 1
                }
            };
            let end = (run.start_page + run.pages).min(pages);
            if let Some((_, segment)) = segments.get(at) {
                self.range(segment, run.offset_page, run.start_page..end)?;
            }
            page = end;
        }
        self.bases(from, page..pages)
    }

    fn bases(&mut self, from: &MemoryLayout, pages: Range<u64>) -> Result<()> {
        for (file, pages) in from.bases(pages) {
            self.base(&Source::open(file)?, pages)?;
        }
        Ok(())
    }

    /// Copies what is data of these pages of a base.
    pub(crate) fn base(&mut self, base: &Source, pages: Range<u64>) -> Result<()> {
        base.data(pages, |range| self.range(base, range.start, range).map(|()| true)).map(|_| ())
    }

    /// Copies pages from `from_page` of a file on.
    fn range(&mut self, from: &Source, from_page: u64, pages: Range<u64>) -> Result<()> {
        let (mut at, mut to) = (from_page * PAGE_BYTES, pages.start * PAGE_BYTES);
        let end = pages.end * PAGE_BYTES;
        while to < end {
            let done = self
                .to
                .copy_from(&from.file, at, to, end - to)
                .map_err(|error| PagesError::io("copy to", self.to_path, error))?;
            (at, to) = (at + done, to + done);
            self.bytes += done;
        }
        self.written.add(pages);
        Ok(())
    }
}

/// Pages in order, disjoint.
#[derive(Debug, Default)]
struct Ranges {
    pages: Vec<Range<u64>>,
    /// Number of recorded ranges.
    recorded: usize,
}

impl Ranges {
    fn add(&mut self, pages: Range<u64>) {
        debug_assert!(
            self.pages.last().is_none_or(|last| last.start <= pages.start),
            "{pages:?} is before {:?}",
            self.pages.last()
        );
        self.recorded += 1;
        match self.pages.last_mut() {
            Some(last) if last.end >= pages.start => last.end = last.end.max(pages.end),
            _ => self.pages.push(pages),
        }
        if self.pages.len() > RANGES_MAX {
            self.pages = shorter(&self.pages);
        }
        debug_assert!(self.pages.len() <= RANGES_MAX, "{} ranges", self.pages.len());
    }

    /// Adds pages of which some were added already, at the end.
    fn add_over(&mut self, pages: Range<u64>) {
        while self.pages.pop_if(|last| last.start >= pages.start).is_some() {}
        self.add(pages);
    }
}

/// The same pages and some between them, in at most half as many ranges.
fn shorter(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    ranges.chunks(2).filter_map(|pair| Some(pair.first()?.start..pair.last()?.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_whose_data_cannot_be_found_counts_as_a_whole() {
        let mut ranges = Ranges::default();
        [0..4, 20..30, 40..41].into_iter().for_each(|found| ranges.add(found));
        ranges.add_over(10..60);
        assert_eq!(ranges.pages, [0..4, 10..60]);
    }

    #[test]
    fn many_ranges_become_fewer_that_cover_them() {
        let ranges: Vec<_> = (0..5).map(|n| n * 10..n * 10 + 1).collect();
        assert_eq!(shorter(&ranges), [0..11, 20..31, 40..41]);
    }
}
