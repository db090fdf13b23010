//! Memories that are assembled from elsewhere, before there is a store: base files under the names
//! that [`crate::PageStore::open`] will look for, in a directory that no store has open.
//!
//! All data written here is in the base file; a store that opens the directory is given an empty
//! index for it. A file is sparse, so zero pages take no disk space. Nothing is durable before
//! [`StagedMemory::sync`], and the names not before [`sync_dir`]: a caller that continues after a
//! crash must verify the contents of the files. This module must not know where pages come from or
//! how they are verified.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use disk::{Disk, DiskFile, Lock, Open, SharedDisk, if_there};

use crate::{MemoryId, PAGE_BYTES, PagesError, Result, files, memory::check_base_bytes};

/// One memory under way. Holds one descriptor.
#[derive(Debug)]
pub struct StagedMemory {
    disk: SharedDisk,
    path: PathBuf,
    file: File,
    base_bytes: u64,
}

impl StagedMemory {
    /// Opens the base file of `id` in `dir`, creating it if need be, and gives it its length. The
    /// second value says whether there was a file, whose content may then be anything.
    pub fn open(
        disk: SharedDisk,
        dir: &Path,
        id: MemoryId,
        base_bytes: u64,
    ) -> Result<(Self, bool)> {
        check_base_bytes(base_bytes).ok_or(PagesError::BadSize { id, base_bytes })?;
        let path = dir.join(format!("{}.base", id.0));
        let file =
            disk.open_raw(&path, Open::Create).map_err(|e| PagesError::io("open", &path, e))?;
        let found = files::len(&file, &path)?;
        let memory = Self { disk, path, file, base_bytes };
        if found != base_bytes {
            memory
                .on_disk()
                .set_len(base_bytes)
                .map_err(|e| PagesError::io("extend", &memory.path, e))?;
        }
        Ok((memory, found > 0))
    }

    fn on_disk(&self) -> Box<dyn DiskFile + '_> {
        self.disk.raw(&self.path, &self.file)
    }

    /// Length of the memory's base in bytes.
    pub fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Fills `buf` with the bytes from `offset` on.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        files::read_exact(&self.file, &self.path, buf, offset)
    }

    /// Writes whole pages from `offset` on, within the memory.
    pub fn write(&self, offset: u64, pages: &[u8]) -> Result<()> {
        self.check(offset, pages.len() as u64)?;
        self.on_disk().write_at(pages, offset).map_err(|e| PagesError::io("write", &self.path, e))
    }

    /// Makes whole pages zero and gives their disk space back where the file system can.
    pub fn clear(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check(offset, bytes)?;
        self.on_disk().clear(offset, bytes).map_err(|e| PagesError::io("clear", &self.path, e))
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let within = offset.checked_add(bytes).is_some_and(|end| end <= self.base_bytes);
        if within && offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let source = io::Error::from(io::ErrorKind::InvalidInput);
        Err(PagesError::io("write outside of", &self.path, source))
    }

    /// Begins to write it to the disk without waiting, so that the sync of many files does not wait
    /// for each in turn.
    pub fn start_writeback(&self) {
        files::start_writeback(&self.file);
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        self.on_disk().sync_all().map_err(|e| PagesError::io("sync", &self.path, e))
    }
}

/// Removes from `dir` every file of a memory that `wanted` is not true of.
pub fn retain_staged(disk: &dyn Disk, dir: &Path, wanted: impl Fn(MemoryId) -> bool) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(|e| PagesError::io("list", dir, e))? {
        let entry = entry.map_err(|e| PagesError::io("list", dir, e))?;
        let keep = match entry.file_name().to_str().and_then(files::Name::parse) {
            Some(files::Name::Base(id)) => id.number == 0 && wanted(id.memory),
            Some(files::Name::Segment(..)) => false,
            None => true,
        };
        if !keep {
            disk.remove(&entry.path()).map_err(|e| PagesError::io("remove", &entry.path(), e))?;
        }
    }
    Ok(())
}

/// Makes the names of the files in `dir` durable.
pub fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    disk.sync_folder(dir).map_err(|e| PagesError::io("sync", dir, e))
}

/// Whether some process has the store in `dir` open. A directory that is not there is not open.
pub fn is_in_use(dir: &Path) -> Result<bool> {
    let handle = if_there(File::open(dir)).map_err(|e| PagesError::io("open", dir, e))?;
    let Some(handle) = handle else { return Ok(false) };
    let free = Lock::take(handle).map_err(|e| PagesError::io("lock", dir, e))?;
    Ok(free.is_none())
}
