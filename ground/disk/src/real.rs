//! The machine's file systems.

use std::{
    borrow::Borrow,
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::{COPY_BYTES_MAX, Disk, DiskFile, Open, SharedDisk, if_there};

/// Zeros written at once where a file system makes no holes.
const ZEROS_BYTES: usize = 256 << 10;
/// Bytes that pass through this process at once where the file system does not copy.
const COPIED_AT_ONCE: usize = 1 << 20;
/// Up to this many files are synced one by one before their file system is, which reports errors on
/// systems where syncing the file system does not; for more files only the file system is synced.
const SYNCED_ALONE: usize = 32;

/// Hands every operation on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl RealDisk {
    /// The same, to be shared.
    pub fn shared() -> SharedDisk {
        Arc::new(Self)
    }
}

pub(crate) fn open(path: &Path, how: Open) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    match how {
        Open::Read => &mut options,
        Open::Write => options.write(true),
        Open::Create => options.write(true).create(true).truncate(false),
        Open::Truncate => options.write(true).create(true).truncate(true),
        Open::Secret => options.write(true).create(true).truncate(true).mode(0o600),
        Open::New => options.write(true).create_new(true),
    };
    options.open(path)
}

pub(crate) fn clear(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            write_zeros(file, offset, bytes)
        }
        result => result.map_err(io::Error::from),
    }
}

fn write_zeros(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..length as usize], offset + at)?;
        at += length;
    }
    Ok(())
}

pub(crate) fn copy(
    from: &File,
    from_offset: u64,
    to: &File,
    offset: u64,
    bytes: u64,
) -> io::Result<u64> {
    use rustix::io::Errno;
    let most = usize::try_from(bytes.min(COPY_BYTES_MAX)).unwrap_or(COPIED_AT_ONCE);
    let (mut read_at, mut write_at) = (from_offset, offset);
    match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), most) {
        Ok(done) if done > 0 => return Ok(done as u64),
        // A length of zero may mean that the file is too short: reading it returns the error.
        Ok(_)
        | Err(
            Errno::INTR
            | Errno::XDEV
            | Errno::OPNOTSUPP
            | Errno::INVAL
            | Errno::NOSYS
            | Errno::PERM,
        ) => {}
        Err(error) => return Err(error.into()),
    }
    let mut part = vec![0; most.min(COPIED_AT_ONCE)];
    from.read_exact_at(&mut part, from_offset)?;
    to.write_all_at(&part, offset)?;
    Ok(part.len() as u64)
}

impl Disk for RealDisk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(open(path, how)?))
    }

    fn open_raw(&self, path: &Path, how: Open) -> io::Result<File> {
        open(path, how)
    }

    fn raw<'a>(&self, _: &Path, file: &'a File) -> Box<dyn DiskFile + 'a> {
        Box::new(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_files(&self, _: &Path, handle: &File, files: &[PathBuf]) -> io::Result<()> {
        for path in files.iter().filter(|_| files.len() <= SYNCED_ALONE) {
            if let Some(file) = if_there(open(path, Open::Write))? {
                file.sync_all()?;
            }
        }
        // A file that was not open may have lost a failed write, and with it the error: then only
        // its file system reports it.
        self.check_writeback(handle)
    }

    fn check_writeback(&self, handle: &File) -> io::Result<()> {
        Ok(rustix::fs::syncfs(handle)?)
    }
}

fn file_of(held: &impl Borrow<File>) -> &File {
    held.borrow()
}

impl<F: Borrow<File> + fmt::Debug + Send + Sync> DiskFile for F {
    fn length(&self) -> io::Result<u64> {
        Ok(file_of(self).metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(file_of(self), buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        file_of(self).write_all_at(bytes, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(file_of(self), length)
    }

    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
        clear(file_of(self), offset, bytes)
    }

    fn copy_from(&self, from: &File, from_offset: u64, offset: u64, bytes: u64) -> io::Result<u64> {
        copy(from, from_offset, file_of(self), offset, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(file_of(self))
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(file_of(self))
    }
}
