//! Memories that begin as copies: what a version of one memory holds, in the base file of another.
//!
//! The file system copies where it can: blocks are shared where it knows how (XFS, btrfs), and go
//! through the page cache elsewhere, never through this process. What is a hole stays one, as far
//! as the file system tells. The copy lies in the base alone and is no delta: it is synced with the
//! checkpoint that names the memory first, which also tells which pages were written
//! ([`crate::CheckpointTicket::written`]). This module must not know what is copied, or why.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
};

use rustix::{
    fs::{SeekFrom, copy_file_range, seek},
    io::Errno,
};

use crate::{
    MemoryId, MemoryLayout, PAGE_BYTES, PageFile, PagesError, Result, Run, files, heap,
    memory::{self, Fresh, Memory},
    read::{file_of, pages_of, read_pages},
    store::{PageStore, lock},
};

/// Bytes that pass through this process at once where the file system does not copy.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes that the file system is asked to copy at once.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Ranges of written pages that are remembered until the next checkpoint; more become fewer and
/// longer ones.
const RANGES_MAX: usize = 4096;

impl PageStore {
    /// Creates a memory that may grow to `base_bytes` and holds the first `bytes` bytes of a
    /// version of another (or as many as that has); the rest is zero. Takes as long as copying
    /// takes. The source may be folded meanwhile if it is the newest version, or held.
    ///
    /// # Errors
    /// As [`PageStore::create`], and what reading and writing meet; there is no memory then.
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
        let most = base_bytes.min(from.base_bytes).min(bytes.next_multiple_of(PAGE_BYTES));
        let mut copier = Copier::new(&file, &path);
        if let Err(error) = copier.version(from, most / PAGE_BYTES) {
            // The error that matters is the first one; should the removal fail as well, the next
            // start removes the file, and another attempt finds it in its way and says so.
            let _ = self.dir.unlink(&path);
            return Err(error);
        }
        let pages = copier.written;
        files::start_writeback(&file);
        let mut memory = Memory::new(id, base_bytes);
        memory.base_unsynced = true;
        // Open until it is synced, so that an error of the kernel's own writeback is not missed.
        self.accounts.open_files.fetch_add(1, Relaxed);
        let copied_pages: u64 = pages.iter().map(|range| range.end - range.start).sum();
        self.accounts.copied.fetch_add(copied_pages * PAGE_BYTES, Relaxed);
        memory.fresh = Some(Fresh { file: Some(Arc::new(file)), pages });
        let layout = memory.layout(&self.dir);
        let mut memories = self.memories.write().unwrap_or_else(PoisonError::into_inner);
        heap::within(|| memories.insert(id, std::sync::Mutex::new(memory)));
        lock(&self.changed).insert(id);
        Ok(layout)
    }

    /// Writes bytes of a memory from `offset` on, as one new version, and returns the bytes of
    /// delta. What lies beside them in their pages stays.
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
struct Copier<'a> {
    to: &'a File,
    to_path: &'a Path,
    /// The file system does not copy between these files: bytes pass through here.
    buffer: Option<Vec<u8>>,
    /// Pages written so far, in order, disjoint.
    written: Vec<Range<u64>>,
}

/// A file that is copied from.
struct Source {
    file: Arc<File>,
    path: PathBuf,
}

impl Source {
    fn open(file: &PageFile) -> Result<Self> {
        Ok(Self { file: file.open()?, path: file.path() })
    }

    /// The first byte at or after `at` that may be data, and the end of the data there; the end of
    /// the file if there is none.
    fn data(&self, at: u64, end: u64) -> Result<Range<u64>> {
        let start = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole.
            Err(Errno::NXIO) => return Ok(end..end),
            // A file system that tells of no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(at..end),
            Err(error) => return Err(PagesError::io("look for data in", &self.path, error.into())),
        };
        let hole = seek(&self.file, SeekFrom::Hole(start))
            .map_err(|error| PagesError::io("look for holes in", &self.path, error.into()))?;
        Ok(start.min(end)..hole.min(end))
    }
}

impl<'a> Copier<'a> {
    fn new(to: &'a File, to_path: &'a Path) -> Self {
        Self { to, to_path, buffer: None, written: Vec::new() }
    }

    /// Copies the first `pages` pages of a version.
    fn version(&mut self, from: &MemoryLayout, pages: u64) -> Result<()> {
        let base = Source::open(&from.base)?;
        let mut segments: Vec<(crate::SegmentId, Source)> = Vec::new();
        let mut page = 0;
        for run in from.runs.iter().take_while(|run| run.start_page < pages) {
            self.base(&base, page..run.start_page)?;
            let at = match segments.iter().position(|(id, _)| *id == run.segment) {
                Some(at) => at,
                None => {
                    let source = Source::open(file_of(from, Some(run.segment))?)?;
                    segments.push((run.segment, source));
                    segments.len() - 1
                }
            };
            let end = (run.start_page + run.pages).min(pages);
            if let Some((_, segment)) = segments.get(at) {
                self.range(segment, run.offset_page, run.start_page..end)?;
            }
            page = end;
        }
        self.base(&base, page..pages)
    }

    /// Copies what is data of these pages of the base.
    fn base(&mut self, base: &Source, pages: Range<u64>) -> Result<()> {
        let end = pages.end * PAGE_BYTES;
        let mut at = pages.start * PAGE_BYTES;
        while at < end {
            let data = base.data(at, end)?;
            // Whole pages, whatever the file system's blocks are.
            let (first, last) = (data.start / PAGE_BYTES, data.end.div_ceil(PAGE_BYTES));
            if first < last {
                self.range(base, first, first..last)?;
            }
            at = (last * PAGE_BYTES).max(data.end).max(at + PAGE_BYTES);
        }
        Ok(())
    }

    /// Copies pages from `from_page` of a file on.
    fn range(&mut self, from: &Source, from_page: u64, pages: Range<u64>) -> Result<()> {
        let (mut at, mut to) = (from_page * PAGE_BYTES, pages.start * PAGE_BYTES);
        let end = pages.end * PAGE_BYTES;
        while to < end {
            let done = self.part(from, at, to, end - to)?;
            (at, to) = (at + done, to + done);
        }
        self.note(pages);
        Ok(())
    }

    /// Copies up to `most` bytes and answers how many.
    fn part(&mut self, from: &Source, at: u64, to: u64, most: u64) -> Result<u64> {
        if self.buffer.is_none() {
            let bytes = usize::try_from(most.min(COPY_BYTES_MAX)).unwrap_or(BUFFER_BYTES);
            let (mut read_at, mut write_at) = (at, to);
            let file = from.file.as_ref();
            match copy_file_range(file, Some(&mut read_at), self.to, Some(&mut write_at), bytes) {
                Ok(done) if done > 0 => return Ok(done as u64),
                Err(Errno::INTR) => return Ok(0),
                // None at all may be the end of a file that is too short: reading it tells.
                Ok(_)
                | Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                    self.buffer = Some(vec![0; BUFFER_BYTES])
                }
                Err(error) => {
                    return Err(PagesError::io("copy to", self.to_path, io::Error::from(error)));
                }
            }
        }
        let buffer = self.buffer.get_or_insert_default();
        let bytes = usize::try_from(most).unwrap_or(BUFFER_BYTES).min(buffer.len());
        let Some(part) = buffer.get_mut(..bytes) else { return Ok(0) };
        files::read_exact(&from.file, &from.path, part, at)?;
        self.to
            .write_all_at(part, to)
            .map_err(|error| PagesError::io("write", self.to_path, error))?;
        Ok(bytes as u64)
    }

    fn note(&mut self, pages: Range<u64>) {
        match self.written.last_mut() {
            Some(last) if last.end >= pages.start => last.end = last.end.max(pages.end),
            _ => self.written.push(pages),
        }
        if self.written.len() > RANGES_MAX {
            self.written = shorter(&self.written);
        }
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
    fn many_ranges_become_fewer_that_cover_them() {
        let ranges: Vec<_> = (0..5).map(|n| n * 10..n * 10 + 1).collect();
        assert_eq!(shorter(&ranges), [0..11, 20..31, 40..41]);
    }
}
