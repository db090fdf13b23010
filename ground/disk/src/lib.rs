//! Files, and their content after a crash.
//!
//! [`Disk`] is the seam between the parts of the node that must not lose anything and the machine's
//! file systems: every write, sync, rename and removal that durability depends on goes through it.
//! [`RealDisk`] passes them to the operating system. [`SimulatedDisk`] does so too, in a folder of
//! a test, and records unsynced changes, so that a power cut can be simulated without rights or
//! devices; it also fails on demand (no space, a failed sync, power off after a number of
//! operations).
//!
//! Most files are used through [`DiskFile`]. A file that is mapped, or whose descriptor other
//! processes write to, has to be a file of the operating system: [`Disk::open_raw`] opens such a
//! file, and [`Disk::raw`] represents it on the disk, for the writes and syncs that durability
//! depends on.
//!
//! Two formats for all durable files of the node are built on it: [`records`] (files of records
//! that are appended to, with one rule that distinguishes a write cut short by a crash from damage)
//! and [`NumberFile`] (one number that is overwritten in place).
//!
//! This crate must never know the meaning of the bytes.

mod lock;
mod number_file;
mod private;
mod real;
pub mod records;
mod replace;
mod simulated;

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use lock::Lock;
pub use number_file::NumberFile;
pub use private::{allow_new_files, make_private_folder, restrict_new_files};
pub use real::RealDisk;
pub use replace::{Readers, replace_file, replace_file_on};
pub use simulated::{PowerCut, SimulatedDisk};

/// A disk that several parts write to.
pub type SharedDisk = Arc<dyn Disk>;

/// How [`Disk::open`] treats a file that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It must be there; reading only.
    Read,
    /// It must be there; reading and writing.
    Write,
    /// Made if absent, kept if present; reading and writing.
    Create,
    /// Made if absent, emptied if present; reading and writing.
    Truncate,
    /// The same; when it is made, only its owner may read it.
    Secret,
    /// It must not be there; reading and writing.
    New,
}

/// Operations on files and folders. Paths are absolute. Errors are those of the operating system.
///
/// A power cut leaves of operations that returned: of a file, everything that
/// [`DiskFile::sync_data`] or [`DiskFile::sync_all`] covered, and of later writes any part, in
/// units smaller than a write; of a folder, everything that [`Disk::sync_folder`] covered, and of
/// later creations, renames and removals any subset.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Makes a folder and those above it.
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Files and folders in a folder, in no order.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file of the operating system, to be mapped or passed to other processes. Writes to
    /// it other than through [`Self::raw`] may only append, and count as written and not synced,
    /// like any other write.
    fn open_raw(&self, path: &Path, how: Open) -> io::Result<File>;
    /// Such a file at `path`, on this disk.
    fn raw<'a>(&self, path: &Path, file: &'a File) -> Box<dyn DiskFile + 'a>;
    /// Renames a file or a folder; a file at `to` is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder and its contents.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes the entries of a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes files of one folder, and their names, durable. `handle` is the folder, opened before
    /// they were written. Their whole file system is synced (since Linux 5.8 this reports failed
    /// writes, also those of files that were not open; an error of another file on it counts as an
    /// error of these). After a failure the state of all of them is unknown, as after a failed sync
    /// of one file. Missing files are skipped.
    fn sync_files(&self, folder: &Path, handle: &File, files: &[PathBuf]) -> io::Result<()>;
    /// Whether the file system of an open file or folder failed to write anything since the last
    /// check with this handle, or since it was opened (since Linux 5.8; earlier kernels do not
    /// report it). Waits until the whole file system is written.
    fn check_writeback(&self, handle: &File) -> io::Result<()>;
}

/// Bytes that one call of [`DiskFile::copy_from`] copies.
pub const COPY_BYTES_MAX: u64 = 64 << 20;

/// An open file. All methods take the offset, so one handle serves several readers.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Reads at most `buffer.len()` bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`, or fails having written any part.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends (with zeros).
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Makes bytes within the file zero, and frees their space where the file system can.
    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Copies bytes of another file to `offset`, where the file system can without looking at them:
    /// some share the blocks then. How many it copied, at least one. One call copies no more than
    /// [`COPY_BYTES_MAX`].
    fn copy_from(&self, from: &File, from_offset: u64, offset: u64, bytes: u64) -> io::Result<u64>;
    /// Makes content and length durable. After a failure the state is unknown of everything written
    /// since the last success, and a later success of the same file does not cover it: the
    /// operating system may have dropped the pages.
    fn sync_data(&self) -> io::Result<()>;
    /// The same, with times and permissions.
    fn sync_all(&self) -> io::Result<()>;
}

/// The result of an operation on a file or folder that need not be there; `None` if it is not.
pub fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// Fills the buffer. Errors: those of the disk, or that the file ends before.
pub fn read_exact(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let read = read_full(file, buffer, offset)?;
    if read == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads as many bytes as there are, at most `buffer.len()`.
pub(crate) fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
