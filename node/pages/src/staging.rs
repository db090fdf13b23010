//! Memories that are being put together from elsewhere, before there is a store: base files under the names that [`crate::PageStore::open`] will look for, in
//! a directory that no store has open.
//!
//! What is written here lies in the base file alone; a store that opens the directory is given an empty index for it. A file is sparse, so pages that are
//! zero take no disk. Nothing is durable before [`StagedMemory::sync`], and the names not before [`sync_dir`]: whoever goes on after a crash looks at what
//! is in the files and believes nothing else. This module must not know where pages come from or how it is told that they are right.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

use crate::{MemoryId, PAGE_BYTES, PagesError, Result, files, memory::check_base_bytes};

/// One memory under way. Holds one descriptor.
#[derive(Debug)]
pub struct StagedMemory {
    path: PathBuf,
    file: File,
    base_bytes: u64,
}

impl StagedMemory {
    /// Opens the base file of `id` in `dir`, creating it if need be, and gives it its length. The second value says whether there was a file, whose content
    /// may then be anything.
    pub fn open(dir: &Path, id: MemoryId, base_bytes: u64) -> Result<(Self, bool)> {
        check_base_bytes(base_bytes).ok_or(PagesError::BadSize { id, base_bytes })?;
        let path = dir.join(format!("{}.base", id.0));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| PagesError::io("open", &path, e))?;
        let found = files::len(&file, &path)?;
        if found != base_bytes {
            file.set_len(base_bytes).map_err(|e| PagesError::io("extend", &path, e))?;
        }
        Ok((Self { path, file, base_bytes }, found > 0))
    }

    /// Length of the memory's base in bytes.
    pub fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Fills `buf` with what lies from `offset` on.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        files::read_exact(&self.file, &self.path, buf, offset)
    }

    /// Writes whole pages from `offset` on, within the memory.
    pub fn write(&self, offset: u64, pages: &[u8]) -> Result<()> {
        self.check(offset, pages.len() as u64)?;
        self.file.write_all_at(pages, offset).map_err(|e| PagesError::io("write", &self.path, e))
    }

    /// Makes whole pages zero and gives their disk space back where the file system can.
    pub fn clear(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, hole, offset, bytes) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.write_zeros(offset, bytes),
            Err(e) => Err(PagesError::io("clear", &self.path, e.into())),
        }
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<()> {
        let zeros = vec![0; files::COPY_BUFFER_BYTES];
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(zeros.len() as u64);
            let chunk = zeros.get(..length as usize).unwrap_or(&zeros);
            self.file.write_all_at(chunk, offset + at).map_err(|e| PagesError::io("write", &self.path, e))?;
            at += length;
        }
        Ok(())
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let within = offset.checked_add(bytes).is_some_and(|end| end <= self.base_bytes);
        if within && offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let source = io::Error::from(io::ErrorKind::InvalidInput);
        Err(PagesError::io("write outside of", &self.path, source))
    }

    /// Begins to write it to the disk without waiting, so that the sync of many files does not wait for each in turn.
    pub fn start_writeback(&self) {
        files::start_writeback(&self.file);
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| PagesError::io("sync", &self.path, e))
    }
}

/// Removes from `dir` every file of a memory that `wanted` is not true of.
pub fn retain_staged(dir: &Path, wanted: impl Fn(MemoryId) -> bool) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(|e| PagesError::io("list", dir, e))? {
        let entry = entry.map_err(|e| PagesError::io("list", dir, e))?;
        let keep = match entry.file_name().to_str().and_then(files::Name::parse) {
            Some(files::Name::Base(id)) => wanted(id),
            Some(files::Name::Segment(..)) => false,
            None => true,
        };
        if !keep {
            fs::remove_file(entry.path()).map_err(|e| PagesError::io("remove", &entry.path(), e))?;
        }
    }
    Ok(())
}

/// Makes the names of the files in `dir` durable.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| PagesError::io("sync", dir, e))
}

/// Whether some process has the store in `dir` open. A directory that is not there is not open.
pub fn is_in_use(dir: &Path) -> Result<bool> {
    let handle = match File::open(dir) {
        Ok(handle) => handle,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(PagesError::io("open", dir, e)),
    };
    match handle.try_lock() {
        Ok(()) => {
            handle.unlock().map_err(|e| PagesError::io("unlock", dir, e))?;
            Ok(false)
        }
        Err(fs::TryLockError::WouldBlock) => Ok(true),
        Err(fs::TryLockError::Error(e)) => Err(PagesError::io("lock", dir, e)),
    }
}
