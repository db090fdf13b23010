//! The directory and its files: names, creation, deletion, syncing. Only this module touches the
//! file system, except for plain reads and writes at an offset, and only this module has unsafe
//! code. Everything that durability depends on goes through [`disk::Disk`]; the files themselves
//! are always the operating system's, because workers map them and write to them. This module knows
//! nothing of versions or checkpoints.

use std::{
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use disk::{DiskFile, Lock, Open, SharedDisk, if_there};
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use crate::{BaseId, MemoryId, PAGE_BYTES, PagesError, Result, SegmentId};

/// Divisor of RLIMIT_NOFILE: open segments may take one such share, and deleted files that are kept
/// for layouts another, whatever the limits say.
const OPEN_FILES_SHARE: u64 = 4;
/// Largest length of a file: offsets are signed.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The same in pages.
pub(crate) const FILE_PAGES_MAX: u64 = FILE_BYTES_MAX / PAGE_BYTES;

/// Kind of a file of the directory, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Base(BaseId),
    Segment(MemoryId, SegmentId),
}

impl Name {
    /// The base file that a memory is created with.
    pub(crate) fn own_base(memory: MemoryId) -> Self {
        Self::Base(BaseId::initial(memory))
    }

    /// `None` for a name that this crate does not write; such files are left alone.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (id, kind) = name.split_once('.')?;
        let id = MemoryId(canonical(id)?);
        match kind {
            "base" => Some(Self::Base(BaseId::initial(id))),
            other => match other.strip_prefix("base") {
                Some(number) => {
                    let number = canonical(number).filter(|number| *number > 0)?;
                    Some(Self::Base(BaseId { memory: id, number }))
                }
                None => Some(Self::Segment(id, SegmentId(canonical(other)?))),
            },
        }
    }
}

/// A number exactly as it is printed: no sign, no leading zero. Two names never mean the same file.
fn canonical(digits: &str) -> Option<u64> {
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// The directory, locked against other processes for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Dir {
    disk: SharedDisk,
    path: PathBuf,
    lock: Lock,
    /// For layouts, which outlive the lock.
    pub(crate) reader_dir: Arc<ReaderDir>,
}

/// Location of the files, for readers, and the number of unlinked files that stay open for layouts.
#[derive(Debug)]
pub(crate) struct ReaderDir {
    path: PathBuf,
    kept: AtomicU64,
    kept_max: u64,
}

impl ReaderDir {
    /// Counts a file that is open although its name goes, unless there are as many as may be.
    pub(crate) fn reserve_unlinked(&self) -> bool {
        let one_more = |kept: u64| (kept < self.kept_max).then_some(kept + 1);
        self.kept.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// One of those was closed.
    pub(crate) fn release_unlinked(&self) {
        let kept = self.kept.fetch_sub(1, Relaxed);
        debug_assert!(kept > 0, "no file without a name is open");
    }

    pub(crate) fn path_of(&self, name: Name) -> PathBuf {
        self.path.join(match name {
            Name::Base(BaseId { memory, number: 0 }) => format!("{}.base", memory.0),
            Name::Base(BaseId { memory, number }) => format!("{}.base{number}", memory.0),
            Name::Segment(id, segment) => format!("{}.{}", id.0, segment.0),
        })
    }

    /// For readers: they cannot write through it even when they are handed the descriptor.
    pub(crate) fn open_read(&self, path: &Path) -> Result<File> {
        File::open(path).map_err(|e| Dir::open_error(path, e))
    }
}

impl Dir {
    /// Opens the directory, creating it (durably) if its parent exists. At most `open_files` are
    /// kept open without a name.
    pub(crate) fn open(disk: SharedDisk, path: &Path, open_files: u64) -> Result<Self> {
        let created = match fs::create_dir(path) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(PagesError::io("create the directory", path, e)),
        };
        // Also when it was there: the process that created it may have died before it synced the
        // parent.
        match sync_parent(&disk, path) {
            Err(e) if created => return Err(e),
            _ => {}
        }
        let handle = OpenOptions::new()
            .read(true)
            .open(path)
            .map_err(|e| PagesError::io("open", path, e))?;
        if !handle.metadata().map_err(|e| PagesError::io("inspect", path, e))?.is_dir() {
            return Err(PagesError::io("open", path, io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let lock = Lock::take(handle).map_err(|e| PagesError::io("lock", path, e))?;
        let lock = lock.ok_or_else(|| PagesError::Locked { dir: path.to_path_buf() })?;
        // A directory that cannot be written must be found out at start-up, not at the first
        // message.
        rustix::fs::accessat(
            rustix::fs::CWD,
            path,
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            rustix::fs::AtFlags::EACCESS,
        )
        .map_err(|e| PagesError::io("write to", path, e.into()))?;
        let path = path.to_path_buf();
        let kept_max = open_files_max(open_files);
        let reader_dir = ReaderDir { path: path.clone(), kept: AtomicU64::new(0), kept_max };
        Ok(Self { disk, path, lock, reader_dir: Arc::new(reader_dir) })
    }

    pub(crate) fn path_of(&self, name: Name) -> PathBuf {
        self.reader_dir.path_of(name)
    }

    pub(crate) fn base_path(&self, id: MemoryId) -> PathBuf {
        self.path_of(Name::own_base(id))
    }

    pub(crate) fn segment_path(&self, id: MemoryId, segment: SegmentId) -> PathBuf {
        self.path_of(Name::Segment(id, segment))
    }

    /// Every file with a name of ours.
    pub(crate) fn list(&self) -> Result<impl Iterator<Item = Result<(Name, PathBuf)>>> {
        let entries =
            fs::read_dir(&self.path).map_err(|e| PagesError::io("list", &self.path, e))?;
        Ok(entries.filter_map(|entry| match entry {
            Ok(entry) => entry
                .file_name()
                .to_str()
                .and_then(Name::parse)
                .map(|name| Ok((name, entry.path()))),
            Err(e) => Some(Err(PagesError::io("list", &self.path, e))),
        }))
    }

    /// Creates a file of `len` bytes that is one hole. On failure there is no file.
    pub(crate) fn create(&self, path: &Path, len: u64) -> Result<File> {
        let file =
            self.disk.open_raw(path, Open::New).map_err(|e| PagesError::io("create", path, e))?;
        if len > 0
            && let Err(e) = self.on_disk(path, &file).set_len(len)
        {
            // The first error is the one that matters; if the removal fails as well, the next start
            // removes the file.
            let _ = self.disk.remove(path);
            return Err(PagesError::io("extend", path, e));
        }
        Ok(file)
    }

    /// See [`ReaderDir::open_read`].
    pub(crate) fn open_read(&self, path: &Path) -> Result<File> {
        self.reader_dir.open_read(path)
    }

    pub(crate) fn open_write(&self, path: &Path) -> Result<File> {
        self.disk.open_raw(path, Open::Write).map_err(|e| Self::open_error(path, e))
    }

    /// Makes pages of an open file zero and gives their disk back.
    pub(crate) fn clear(&self, path: &Path, file: &File, pages: &[Range<u64>]) -> Result<()> {
        let on_disk = self.on_disk(path, file);
        for range in pages {
            let (mut at, end) = (range.start * PAGE_BYTES, range.end * PAGE_BYTES);
            // Holes are not touched: where the file system cannot make any, zeros are written.
            while at < end {
                let data = next_data(NamedFile { file, path }, at, end)?;
                on_disk
                    .clear(data.start, data.end - data.start)
                    .map_err(|e| PagesError::io("clear", path, e))?;
                at = data.end.max(at + 1);
            }
        }
        Ok(())
    }

    /// An open file of the directory, for writes and syncs that durability depends on.
    pub(crate) fn on_disk<'a>(&self, path: &Path, file: &'a File) -> Box<dyn DiskFile + 'a> {
        self.disk.raw(path, file)
    }

    fn open_error(path: &Path, e: io::Error) -> PagesError {
        match e.kind() {
            io::ErrorKind::NotFound => PagesError::MissingFile { path: path.to_path_buf() },
            _ => PagesError::io("open", path, e),
        }
    }

    /// Removes a file; one that is gone already counts as removed.
    pub(crate) fn unlink(&self, path: &Path) -> Result<()> {
        if_there(self.disk.remove(path)).map(drop).map_err(|e| PagesError::io("remove", path, e))
    }

    /// Makes the names of all files created so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.disk.sync_folder(&self.path).map_err(|e| PagesError::io("sync", &self.path, e))
    }

    /// Whether the file system failed to write anything since the last call, or since the directory
    /// was opened (Linux 5.8 or later; earlier kernels do not report it). Waits until all of the
    /// file system is written, by any process, and cannot attribute the error to a process.
    pub(crate) fn check_writeback(&self) -> Result<()> {
        self.disk
            .check_writeback(self.lock.file())
            .map_err(|e| PagesError::io("sync the file system of", &self.path, e))
    }

    /// Disk space that this process may still use.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(self.lock.file())
            .map_err(|e| PagesError::io("inspect", &self.path, e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Makes the name of `path` durable.
fn sync_parent(disk: &SharedDisk, path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    disk.sync_folder(parent).map_err(|e| PagesError::io("sync", parent, e))
}

/// Length of an open file.
pub(crate) fn len(file: &File, path: &Path) -> Result<u64> {
    Ok(file.metadata().map_err(|e| PagesError::io("inspect", path, e))?.len())
}

/// Starts writing a file back without waiting. Called on every file of a group before the first is
/// synced, so that the device sees them together and the file system's journal commits once instead
/// of once per file. Only a hint: the sync that follows reports what failed.
pub(crate) fn start_writeback(file: &File) {
    // SAFETY: the descriptor is open for the duration of the call, and the call reads no memory of
    // ours.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Fills `buf` from `offset` on. A file that ends too early was truncated.
pub(crate) fn read_exact(file: &File, path: &Path, buf: &mut [u8], offset: u64) -> Result<()> {
    match file.read_exact_at(buf, offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(PagesError::ShortFile {
            path: path.to_path_buf(),
            expected_bytes: offset.saturating_add(buf.len() as u64),
            found_bytes: len(file, path)?,
        }),
        result => result.map_err(|e| PagesError::io("read", path, e)),
    }
}

/// The first byte at or after `at` that may be data, and the end of the data there, both at most
/// `end`.
pub(crate) fn next_data(from: NamedFile, at: u64, end: u64) -> Result<Range<u64>> {
    let start = match seek(from.file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // Nothing but a hole.
        Err(Errno::NXIO) => return Ok(end..end),
        // A file system that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(at..end),
        Err(error) => return Err(PagesError::io("look for data in", from.path, error.into())),
    };
    if start >= end {
        return Ok(end..end);
    }
    let hole = seek(from.file, SeekFrom::Hole(start))
        .map_err(|error| PagesError::io("look for holes in", from.path, error.into()))?;
    Ok(start..hole.min(end))
}

/// An open file and its name for errors.
#[derive(Clone, Copy)]
pub(crate) struct NamedFile<'a> {
    pub(crate) file: &'a File,
    pub(crate) path: &'a Path,
}

/// Copies `pages` pages, a buffer at a time.
pub(crate) fn copy_pages(
    from: NamedFile,
    from_page: u64,
    (to, to_path): (&dyn DiskFile, &Path),
    to_page: u64,
    pages: u64,
    buf: &mut [u8],
) -> Result<()> {
    let (mut at, end) = (0, pages * PAGE_BYTES);
    while at < end {
        let bytes = (end - at).min(buf.len() as u64);
        let chunk = &mut buf[..bytes as usize];
        read_exact(from.file, from.path, chunk, from_page * PAGE_BYTES + at)?;
        to.write_at(chunk, to_page * PAGE_BYTES + at)
            .map_err(|e| PagesError::io("write", to_path, e))?;
        at += bytes;
    }
    Ok(())
}

/// Buffer of a copy: large enough to make the calls cheap, small enough to be negligible in the
/// node's memory.
pub(crate) const COPY_BUFFER_BYTES: usize = 256 << 10;

/// How many of `open_files` (see `pages.open_files`) the process may have open.
pub(crate) fn open_files_max(open_files: u64) -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    open_files.min(limit.current.unwrap_or(u64::MAX) / OPEN_FILES_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_ours() {
        let base = |number| Name::Base(BaseId { memory: MemoryId(7), number });
        assert_eq!(Name::parse("7.base"), Some(base(0)));
        assert_eq!(Name::parse("7.base3"), Some(base(3)));
        assert_eq!(Name::parse("7.12"), Some(Name::Segment(MemoryId(7), SegmentId(12))));
        for other in [
            "",
            "7",
            "7.",
            ".base",
            "07.base",
            "+7.base",
            "7.012",
            "7.base.tmp",
            "7.base0",
            "7.base03",
            "7.-1",
            "x.base",
            "7.Base",
            "18446744073709551616.base",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
