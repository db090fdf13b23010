//! The disk of running instances: the machine's, without waiting for it.
//!
//! An instance's files exist as long as its process lives, or are packed into a separate file when
//! it ends (`state_archive`), which is synced. Files that will not be read after a crash need not
//! survive one.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::{Disk, DiskFile, Open, RealDisk, SharedDisk};

#[derive(Debug)]
pub(crate) struct ScratchDisk(SharedDisk);

#[derive(Debug)]
struct ScratchFile<'a>(Box<dyn DiskFile + 'a>);

impl ScratchDisk {
    pub(crate) fn shared() -> SharedDisk {
        Arc::new(Self(RealDisk::shared()))
    }
}

impl Disk for ScratchDisk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.0.create_folder(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.list(folder)
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(ScratchFile(self.0.open(path, how)?)))
    }

    fn open_raw(&self, path: &Path, how: Open) -> io::Result<File> {
        self.0.open_raw(path, how)
    }

    fn raw<'a>(&self, path: &Path, file: &'a File) -> Box<dyn DiskFile + 'a> {
        Box::new(ScratchFile(self.0.raw(path, file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.0.remove_folder(path)
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_files(&self, _: &Path, _: &File, _: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }

    fn check_writeback(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for ScratchFile<'_> {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.0.clear(offset, bytes)
    }

    fn copy_from(&self, from: &File, from_offset: u64, offset: u64, bytes: u64) -> io::Result<u64> {
        self.0.copy_from(from, from_offset, offset, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}
