//! Files named by the SHA-256 of their content: canister modules as they were uploaded, and chunks
//! of modules, also those that snapshots of canisters name.
//!
//! A blob is written under a temporary name and renamed, so a name never stands for half a content.
//! Blobs are not synced one by one: [`BlobStore::sync`] does it for all new ones, once, before the
//! checkpoint that refers to them. A machine that loses power in between may leave a file whose
//! content is wrong; nothing durable refers to it, reads verify the hash, and writing the same blob
//! again replaces it.
//!
//! Memory: what a caller has in its hands, and `PIECE_BYTES` where blobs are read and written in
//! pieces, so that a module in chunks is not put together in memory; 32 bytes for each blob that
//! `sync` has not reached.
//!
//! It must never know what a blob is for.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use disk::{DiskFile, Open, RealDisk, SharedDisk, if_there};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// SHA-256 of a blob.
pub type BlobHash = [u8; 32];

const TEMPORARY: &str = "tmp-";
/// Bytes in memory of a blob that is copied.
const PIECE_BYTES: usize = 64 << 10;

/// Why a blob cannot be kept or had.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum BlobError {
    #[error("a blob of {bytes} bytes is larger than the limit of {limit} bytes")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("the disk of {0} is full: free some space")]
    DiskFull(PathBuf),
    #[error(
        "{0} cannot be written ({1}): check its owner, its permissions and how its file system is \
         mounted"
    )]
    Unwritable(PathBuf, #[source] io::Error),
    #[error("{0} cannot be read or written: {1}")]
    Io(PathBuf, #[source] io::Error),
    #[error(
        "{path} is damaged: its content does not have the hash in its name; restore it from \
         another node or a backup"
    )]
    Corrupt { path: PathBuf },
}

impl BlobError {
    /// Whether the same call may succeed later in the same process, because what is in its way can
    /// be freed or mended from outside.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::DiskFull(_) | Self::Unwritable(..) => true,
            Self::Io(_, source) => lifecycle::can_heal(source),
            Self::TooLarge { .. } | Self::Corrupt { .. } => false,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct BlobStore {
    disk: SharedDisk,
    dir: PathBuf,
    blob_bytes_max: u64,
    unsynced: Mutex<BTreeSet<BlobHash>>,
    temporary: AtomicU64,
}

impl BlobStore {
    /// Opens or creates the store in `dir`. Blobs are at most `blob_bytes_max` long.
    pub fn open(dir: &Path, blob_bytes_max: u64) -> Result<Self, BlobError> {
        Self::open_on(RealDisk::shared(), dir, blob_bytes_max)
    }

    /// The same on another disk.
    pub fn open_on(disk: SharedDisk, dir: &Path, blob_bytes_max: u64) -> Result<Self, BlobError> {
        let store = BlobStore {
            disk,
            dir: dir.to_path_buf(),
            blob_bytes_max,
            unsynced: Mutex::default(),
            temporary: AtomicU64::new(0),
        };
        store.disk.create_folder(dir).map_err(|error| io_error(dir, error))?;
        // Unfinished files of a process that died.
        store.delete(|name| name.starts_with(TEMPORARY))?;
        Ok(store)
    }

    /// Keeps a blob; durable after the next [`BlobStore::sync`]. Keeping one twice is keeping it
    /// once.
    pub fn put(&self, blob: &[u8]) -> Result<BlobHash, BlobError> {
        let bytes = blob.len() as u64;
        if bytes > self.blob_bytes_max {
            return Err(BlobError::TooLarge { bytes, limit: self.blob_bytes_max });
        }
        let hash: BlobHash = Sha256::digest(blob).into();
        let path = self.path(&hash);
        if !same_content(&path, blob) {
            self.write(&path, |out| out.write_all(blob)).map_err(|error| io_error(&path, error))?;
        }
        self.note_unsynced(hash);
        Ok(hash)
    }

    /// Keeps `bytes` bytes that `read` gives in pieces, from an offset on each. Their hash.
    ///
    /// # Errors
    /// Those of the store, and those of `read` as the error of a file.
    pub fn put_read(
        &self,
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<BlobHash, BlobError> {
        if bytes > self.blob_bytes_max {
            return Err(BlobError::TooLarge { bytes, limit: self.blob_bytes_max });
        }
        let mut hasher = Sha256::new();
        let temporary = self.temporary();
        let mut content = |out: &mut dyn Write| {
            let mut buffer = vec![0; PIECE_BYTES];
            let mut at = 0;
            while at < bytes {
                let most = usize::try_from(bytes - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let piece = &mut buffer[..most];
                read(at, piece)?;
                hasher.update(&piece);
                out.write_all(piece)?;
                at += most as u64;
            }
            Ok(())
        };
        let hash = self
            .disk
            .open(&temporary, Open::Truncate)
            .and_then(|file| content(&mut FileWriter { file, end: 0 }))
            .map(|()| BlobHash::from(hasher.finalize()))
            .map_err(|error| self.blob_error(error));
        let named = hash.and_then(|hash| {
            // One that is kept may be named by a durable checkpoint: a file that is not synced must
            // not take its place.
            if !self.is_kept(&hash)? {
                let renamed = self.disk.rename(&temporary, &self.path(&hash));
                return renamed.map(|()| (hash, true)).map_err(|error| self.blob_error(error));
            }
            Ok((hash, false))
        });
        if !matches!(named, Ok((_, true))) {
            // If this fails, the next start removes the file.
            let _ = self.disk.remove(&temporary);
        }
        let (hash, _) = named?;
        self.note_unsynced(hash);
        Ok(hash)
    }

    /// Whether the blob is there, undamaged.
    fn is_kept(&self, hash: &BlobHash) -> Result<bool, BlobError> {
        match self.digest(std::slice::from_ref(hash)) {
            Ok(found) => Ok(found == Some(*hash)),
            Err(BlobError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A name that no blob has and no other caller gets.
    fn temporary(&self) -> PathBuf {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{TEMPORARY}{}-{number}", std::process::id()))
    }

    /// Keeps what several blobs make up one after the other, whose hash is `hash`. `None` if one of
    /// them is not kept.
    pub fn join(&self, parts: &[BlobHash], hash: &BlobHash) -> Result<Option<()>, BlobError> {
        let path = self.path(hash);
        if !self.is_kept(hash)? {
            let mut complete = true;
            let written = self.write(&path, |out| {
                complete = self.copy(parts, out)?.is_some();
                if complete { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
            });
            if !complete {
                return Ok(None);
            }
            written.map_err(|error| self.blob_error(error))?;
        }
        self.note_unsynced(*hash);
        Ok(Some(()))
    }

    /// Also one that was there: a process before this one may have died before it synced.
    fn note_unsynced(&self, hash: BlobHash) {
        self.unsynced().insert(hash);
    }

    fn unsynced(&self) -> MutexGuard<'_, BTreeSet<BlobHash>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a blob to a file of its own that is renamed to its name once it is complete.
    fn write(
        &self,
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = self.temporary();
        let written = self
            .disk
            .open(&temporary, Open::Truncate)
            .and_then(|file| content(&mut FileWriter { file, end: 0 }))
            .and_then(|()| self.disk.rename(&temporary, path));
        if written.is_err() {
            // If this fails too, the next start removes the file.
            let _ = self.disk.remove(&temporary);
        }
        written
    }

    /// Writes what several blobs make up one after the other to `out`, each of them verified when
    /// all of it was written. `None` if one of them is not kept.
    ///
    /// # Errors
    /// Of `out` as they are; of the store as a [`BlobError`] in an [`io::Error`].
    pub fn copy(&self, parts: &[BlobHash], out: &mut dyn Write) -> io::Result<Option<()>> {
        let mut buffer = vec![0; PIECE_BYTES];
        for hash in parts {
            let path = self.path(hash);
            let Some((file, bytes)) = self.open_blob(hash).map_err(io::Error::other)? else {
                return Ok(None);
            };
            let mut file = file.take(bytes);
            let mut hasher = Sha256::new();
            loop {
                let read = file.read(&mut buffer);
                let read = read.map_err(|error| io::Error::other(io_error(&path, error)))?;
                let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
                    break;
                };
                hasher.update(piece);
                out.write_all(piece)?;
            }
            if BlobHash::from(hasher.finalize()) != *hash {
                return Err(io::Error::other(BlobError::Corrupt { path }));
            }
        }
        Ok(Some(()))
    }

    /// SHA-256 of what several blobs make up one after the other, each of them verified. `None` if
    /// one of them is not kept.
    pub fn digest(&self, parts: &[BlobHash]) -> Result<Option<BlobHash>, BlobError> {
        let mut hasher = Sha256::new();
        let copied = self.copy(parts, &mut hasher).map_err(|error| self.blob_error(error))?;
        Ok(copied.map(|()| hasher.finalize().into()))
    }

    /// An error of [`Self::copy`], or of a file in the store.
    fn blob_error(&self, error: io::Error) -> BlobError {
        match error.downcast::<BlobError>() {
            Ok(error) => error,
            Err(error) => io_error(&self.dir, error),
        }
    }

    /// The file of a blob and its length; `None` if it is not kept.
    fn open_blob(&self, hash: &BlobHash) -> Result<Option<(File, u64)>, BlobError> {
        let path = self.path(hash);
        let opened = if_there(File::open(&path)).map_err(|error| io_error(&path, error))?;
        let Some(file) = opened else { return Ok(None) };
        let bytes = file.metadata().map_err(|error| io_error(&path, error))?.len();
        if bytes > self.blob_bytes_max {
            return Err(BlobError::Corrupt { path });
        }
        Ok(Some((file, bytes)))
    }

    /// A blob, verified; `None` if it is not kept.
    pub fn get(&self, hash: &BlobHash) -> Result<Option<Vec<u8>>, BlobError> {
        let bytes = self.bytes(hash)?.unwrap_or(0);
        let mut blob = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        let copied = self.copy(std::slice::from_ref(hash), &mut blob);
        Ok(copied.map_err(|error| self.blob_error(error))?.map(|()| blob))
    }

    /// Length of a blob; `None` if it is not kept.
    pub fn bytes(&self, hash: &BlobHash) -> Result<Option<u64>, BlobError> {
        let path = self.path(hash);
        match if_there(fs::metadata(&path)).map_err(|error| io_error(&path, error))? {
            Some(found) if found.len() > self.blob_bytes_max => Err(BlobError::Corrupt { path }),
            found => Ok(found.map(|found| found.len())),
        }
    }

    /// Fills `buffer` with what a blob has from `offset` on. Does not verify it: that takes the
    /// whole.
    pub fn read(&self, hash: &BlobHash, offset: u64, buffer: &mut [u8]) -> Result<(), BlobError> {
        let path = self.path(hash);
        File::open(&path).and_then(|file| file.read_exact_at(buffer, offset)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::UnexpectedEof => BlobError::Corrupt { path: path.clone() },
                _ => io_error(&path, error),
            }
        })
    }

    /// Whether a blob of this name is kept; does not verify it.
    pub fn contains(&self, hash: &BlobHash) -> bool {
        self.path(hash).exists()
    }

    /// Where a blob is, or would be.
    pub fn path(&self, hash: &BlobHash) -> PathBuf {
        self.dir.join(hex::encode(hash))
    }

    /// Makes every blob kept so far durable. Those that could not be synced are tried again next
    /// time.
    pub fn sync(&self) -> Result<(), BlobError> {
        let unsynced = self.unsynced().clone();
        if unsynced.is_empty() {
            return Ok(());
        }
        for hash in &unsynced {
            let path = self.path(hash);
            let synced = self.disk.open(&path, Open::Write).and_then(|file| file.sync_all());
            // `retain` may have removed it meanwhile.
            if let Err(error) = if_there(synced) {
                // The system may have dropped what was not written, and report a later sync of the
                // same file as done: the next one is of another file.
                let _ = self.write(&path, |out| {
                    let copied = self.copy(std::slice::from_ref(hash), out)?;
                    copied.ok_or_else(|| io::ErrorKind::NotFound.into())
                });
                return Err(io_error(&path, error));
            }
        }
        self.disk.sync_folder(&self.dir).map_err(|error| io_error(&self.dir, error))?;
        self.unsynced().retain(|hash| !unsynced.contains(hash));
        Ok(())
    }

    /// Deletes every blob for which `live` is false; returns how many. To be called once a
    /// checkpoint is durable, with all that the checkpoint or the state after it refers to, and
    /// not while a `put` whose blob is not yet referred to runs.
    pub fn retain(&self, live: impl Fn(&BlobHash) -> bool) -> Result<u64, BlobError> {
        self.delete(|name| {
            let mut hash = BlobHash::default();
            hex::decode_to_slice(name, &mut hash).is_ok() && !live(&hash)
        })
    }

    fn delete(&self, dead: impl Fn(&str) -> bool) -> Result<u64, BlobError> {
        let mut deleted = 0;
        for entry in fs::read_dir(&self.dir).map_err(|error| io_error(&self.dir, error))? {
            let entry = entry.map_err(|error| io_error(&self.dir, error))?;
            if entry.file_name().to_str().is_some_and(&dead) {
                let removed = if_there(self.disk.remove(&entry.path()));
                let removed = removed.map_err(|error| io_error(&entry.path(), error))?;
                deleted += u64::from(removed.is_some());
            }
        }
        Ok(deleted)
    }
}

/// A file that is written from its beginning on.
struct FileWriter {
    file: Box<dyn DiskFile>,
    end: u64,
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the file is there with exactly this content.
fn same_content(path: &Path, blob: &[u8]) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    if !file.metadata().is_ok_and(|metadata| metadata.len() == blob.len() as u64) {
        return false;
    }
    let mut buffer = vec![0; PIECE_BYTES];
    blob.chunks(buffer.len()).all(|expected| {
        let found = &mut buffer[..expected.len()];
        file.read_exact(found).is_ok() && found == expected
    })
}

fn io_error(path: &Path, error: io::Error) -> BlobError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            BlobError::DiskFull(path)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            BlobError::Unwritable(path, error)
        }
        _ => BlobError::Io(path, error),
    }
}
