//! Compiled modules on disk.
//!
//! Two files per module, named by its hash and the version of engine and limits:
//!
//! - `<hash>-<version>.cwasm`: the artefact, machine code, mapped by workers;
//! - `<hash>-<version>.info`: the results of validation, the artefact's length and SHA-256, and a
//!   SHA-256 over all of that.
//!
//! Both are written under a temporary name and renamed, the info last, so a module is in the cache
//! exactly when its info is. Nothing is synced: after a power cut a file may have any content,
//! which the checksums reveal before the first use by this process.
//!
//! Artefacts are code that workers run, so the directory must belong to the node's user and be
//! closed to all others; [`ArtefactCache::open`] makes it so or refuses.
//!
//! Bounded in bytes by `sandbox.compilation_cache_bytes`: the least recently used module goes
//! first, in an order that survives restarts as the files' time of modification. In memory there
//! are some hundred bytes per module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::{ModuleHash, ModuleInfo};
use thiserror::Error;

use crate::{NotPrepared, lock};

const ARTEFACT: &str = "cwasm";
const INFO: &str = "info";
const TEMPORARY: &str = "tmp";

/// Most that is read of an info file; limits on method names and metadata keep it far below.
const INFO_BYTES_MAX: u64 = 16 << 20;

const CHECKSUM_BYTES: usize = 32;

/// The cache cannot be used.
#[derive(Debug, Error)]
pub enum CacheError {
    /// Another user could put code there.
    #[error(
        "the artefact directory {0} belongs to another user (uid {1}); choose another one, or \
         give it to the node's user"
    )]
    Owner(PathBuf, u32),
    /// Reading or writing failed.
    #[error("artefact directory {0}: {1}")]
    Io(PathBuf, io::Error),
}

impl From<CacheError> for NotPrepared {
    fn from(error: CacheError) -> Self {
        Self::Trouble(error.to_string())
    }
}

/// Content of an info file, before its checksum.
#[derive(Serialize, Deserialize)]
struct InfoFile {
    artefact_bytes: u64,
    artefact_sha256: [u8; CHECKSUM_BYTES],
    info: ModuleInfo,
}

/// A cached module: the size of its two files and when it was last used.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Artefact and info.
    bytes: u64,
    /// Order of use; higher is later.
    used: u64,
    /// Whether this process has compared the artefact's checksum.
    verified: bool,
}

#[derive(Default)]
struct Index {
    entries: BTreeMap<ModuleHash, Entry>,
    bytes: u64,
    clock: u64,
}

/// The directory and what is in it. All methods may be called from any thread.
pub struct ArtefactCache {
    dir: PathBuf,
    version: String,
    bytes_max: u64,
    index: Mutex<Index>,
    temporary: AtomicU64,
}

impl ArtefactCache {
    /// Opens or creates `dir` and takes stock. Files of other versions and leftovers are removed,
    /// as is what exceeds `bytes_max`.
    pub fn open(dir: &Path, version: &str, bytes_max: u64) -> Result<Self, CacheError> {
        let failed = |error| CacheError::Io(dir.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let metadata = fs::metadata(dir).map_err(failed)?;
        let uid = rustix::process::geteuid().as_raw();
        if metadata.uid() != uid {
            return Err(CacheError::Owner(dir.to_owned(), metadata.uid()));
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let cache = Self {
            dir: dir.to_owned(),
            version: version.to_owned(),
            bytes_max,
            index: Mutex::new(Index::default()),
            temporary: AtomicU64::new(0),
        };
        cache.load_index().map_err(failed)?;
        Ok(cache)
    }

    /// The results of validation, if the module is here.
    pub fn info(&self, hash: &ModuleHash) -> Option<ModuleInfo> {
        if !lock(&self.index).entries.contains_key(hash) {
            return None;
        }
        match self.read_info(hash) {
            Ok(file) => Some(file.info),
            Err(error) => {
                if !is_shortage(&error) {
                    self.discard(hash, &error);
                }
                None
            }
        }
    }

    /// The artefact, opened for reading, if the module is here and unharmed.
    ///
    /// # Errors
    /// When this machine cannot open it now.
    pub fn artefact(&self, hash: &ModuleHash) -> Result<Option<File>, CacheError> {
        let Some(verified) = lock(&self.index).entries.get(hash).map(|entry| entry.verified) else {
            return Ok(None);
        };
        match self.open_artefact(hash, verified) {
            Ok(file) => {
                let mut index = lock(&self.index);
                index.clock += 1;
                let used = index.clock;
                if let Some(entry) = index.entries.get_mut(hash) {
                    entry.used = used;
                    entry.verified = true;
                }
                drop(index);
                // Only the order of eviction after a restart depends on it.
                let _ = file.set_modified(SystemTime::now());
                Ok(Some(file))
            }
            Err(error) if is_shortage(&error) => Err(self.failed(error)),
            Err(error) => {
                self.discard(hash, &error);
                Ok(None)
            }
        }
    }

    /// A new empty file in the directory, for the compiler to write an artefact to.
    pub fn temporary(&self) -> Result<TemporaryFile, CacheError> {
        let path = self
            .dir
            .join(format!("{}.{TEMPORARY}", self.temporary.fetch_add(1, Ordering::Relaxed)));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| self.failed(error))?;
        Ok(TemporaryFile { path, file })
    }

    /// Files an artefact under its module, and makes room.
    pub fn insert(
        &self,
        hash: &ModuleHash,
        artefact: TemporaryFile,
        info: &ModuleInfo,
    ) -> Result<(), CacheError> {
        let (artefact_bytes, artefact_sha256) =
            checksum(&artefact.file).map_err(|error| self.failed(error))?;
        let file = InfoFile { artefact_bytes, artefact_sha256, info: info.clone() };
        let mut content =
            postcard::to_stdvec(&file).map_err(|error| self.failed(io::Error::other(error)))?;
        let digest: [u8; CHECKSUM_BYTES] = Sha256::digest(&content).into();
        content.extend_from_slice(&digest);
        let mut written = self.temporary()?;
        written.file.write_all(&content).map_err(|error| self.failed(error))?;

        let mut index = lock(&self.index);
        index.clock += 1;
        let entry = Entry {
            bytes: artefact_bytes + content.len() as u64,
            used: index.clock,
            verified: true,
        };
        artefact.rename(&self.path(hash, ARTEFACT)).map_err(|error| self.failed(error))?;
        written.rename(&self.path(hash, INFO)).map_err(|error| self.failed(error))?;
        index.put(*hash, entry);
        self.evict(&mut index, Some(hash));
        Ok(())
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes
    }

    /// Whether an eighth of the cap is free: most artefacts fit that.
    pub fn has_room(&self) -> bool {
        self.bytes() < self.bytes_max - self.bytes_max / 8
    }

    /// Modules in the cache.
    pub fn modules(&self) -> usize {
        lock(&self.index).entries.len()
    }

    /// Names the directory in an error.
    pub(crate) fn failed(&self, error: io::Error) -> CacheError {
        CacheError::Io(self.dir.clone(), error)
    }

    fn path(&self, hash: &ModuleHash, extension: &str) -> PathBuf {
        self.dir.join(format!("{hash:?}-{}.{extension}", self.version))
    }

    /// The module that a file of this version belongs to.
    fn parse(&self, path: &Path, extension: &str) -> Option<ModuleHash> {
        if path.extension()?.to_str()? != extension {
            return None;
        }
        let digits = path.file_stem()?.to_str()?.strip_suffix(&self.version)?.strip_suffix('-')?;
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).ok()?;
        Some(ModuleHash(hash))
    }

    fn load_index(&self) -> io::Result<()> {
        let mut found: BTreeSet<(SystemTime, ModuleHash, u64)> = BTreeSet::new();
        let mut infos: BTreeMap<ModuleHash, u64> = BTreeMap::new();
        for file in fs::read_dir(&self.dir)? {
            let file = file?;
            let (path, metadata) = (file.path(), file.metadata()?);
            if let Some(hash) = self.parse(&path, ARTEFACT) {
                found.insert((metadata.modified()?, hash, metadata.len()));
            } else if let Some(hash) = self.parse(&path, INFO) {
                infos.insert(hash, metadata.len());
            } else if path.extension().is_some_and(|extension| {
                extension == ARTEFACT || extension == INFO || extension == TEMPORARY
            }) {
                fs::remove_file(path)?;
            }
        }
        let mut index = lock(&self.index);
        for (_, hash, bytes) in found {
            match infos.remove(&hash) {
                Some(info_bytes) => {
                    index.clock += 1;
                    let entry = Entry {
                        bytes: bytes.saturating_add(info_bytes),
                        used: index.clock,
                        verified: false,
                    };
                    index.put(hash, entry);
                }
                None => fs::remove_file(self.path(&hash, ARTEFACT))?,
            }
        }
        for hash in infos.into_keys() {
            fs::remove_file(self.path(&hash, INFO))?;
        }
        self.evict(&mut index, None);
        Ok(())
    }

    fn read_info(&self, hash: &ModuleHash) -> io::Result<InfoFile> {
        let mut content = Vec::new();
        File::open(self.path(hash, INFO))?.take(INFO_BYTES_MAX).read_to_end(&mut content)?;
        let (content, digest) = content.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
        if Sha256::digest(content)[..] != digest[..] {
            return Err(damaged());
        }
        postcard::from_bytes(content).map_err(io::Error::other)
    }

    fn open_artefact(&self, hash: &ModuleHash, verified: bool) -> io::Result<File> {
        let file = File::open(self.path(hash, ARTEFACT))?;
        if !verified {
            let info = self.read_info(hash)?;
            if checksum(&file)? != (info.artefact_bytes, info.artefact_sha256) {
                return Err(damaged());
            }
        }
        Ok(file)
    }

    fn discard(&self, hash: &ModuleHash, error: &io::Error) {
        tracing::warn!(module = ?hash, %error, "a compiled module is unusable and will be compiled again");
        let mut index = lock(&self.index);
        self.remove(&mut index, hash);
    }

    fn remove(&self, index: &mut Index, hash: &ModuleHash) {
        index.take(hash);
        for extension in [INFO, ARTEFACT] {
            if let Err(error) = fs::remove_file(self.path(hash, extension))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(module = ?hash, %error, "a compiled module cannot be removed");
            }
        }
    }

    /// Removes what was used longest ago until the cap holds; `keep` stays, because someone is
    /// about to use it.
    fn evict(&self, index: &mut Index, keep: Option<&ModuleHash>) {
        while index.bytes > self.bytes_max {
            let oldest = index
                .entries
                .iter()
                .filter(|(hash, _)| Some(*hash) != keep)
                .min_by_key(|(_, entry)| entry.used)
                .map(|(hash, _)| *hash);
            let Some(oldest) = oldest else { break };
            tracing::debug!(module = ?oldest, "evicting a compiled module");
            self.remove(index, &oldest);
        }
        debug_assert!(
            index.bytes <= self.bytes_max || index.entries.len() == 1,
            "{} modules have {} bytes, the most is {}",
            index.entries.len(),
            index.bytes,
            self.bytes_max
        );
    }
}

impl Index {
    fn put(&mut self, hash: ModuleHash, entry: Entry) {
        self.take(&hash);
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.entries.insert(hash, entry);
    }

    fn take(&mut self, hash: &ModuleHash) {
        if let Some(entry) = self.entries.remove(hash) {
            debug_assert!(
                self.bytes >= entry.bytes,
                "a module of {} bytes, all have {}",
                entry.bytes,
                self.bytes
            );
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
    }
}

/// A file that disappears unless it is filed.
#[derive(Debug)]
pub struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl TemporaryFile {
    /// The open file, whose name is removed on drop unless it was filed.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Unlinks the file and keeps the content for holders of the descriptor.
    pub fn into_unnamed(self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // After a rename there is nothing of this name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a file is only out of reach now: no descriptor or no memory is left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its checksum does not match")
}

/// Length and SHA-256 of a file, read from its beginning through a small buffer.
fn checksum(file: &File) -> io::Result<(u64, [u8; CHECKSUM_BYTES])> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    loop {
        let read = std::os::unix::fs::FileExt::read_at(file, &mut buffer, offset)?;
        if read == 0 {
            return Ok((offset, hasher.finalize().into()));
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
        offset += read as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn info(name: &str) -> ModuleInfo {
        crate::module::validate(
            &wat::parse_str(format!("(module (func (export \"canister_query {name}\")))")).unwrap(),
            &crate::module::testing::limits(),
        )
        .unwrap()
        .info
    }

    fn put(cache: &ArtefactCache, n: u8, content: &[u8]) -> ModuleHash {
        let hash = ModuleHash([n; 32]);
        let mut artefact = cache.temporary().unwrap();
        artefact.file.write_all(content).unwrap();
        cache.insert(&hash, artefact, &info(&n.to_string())).unwrap();
        hash
    }

    fn content(cache: &ArtefactCache, hash: &ModuleHash) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        cache.artefact(hash).unwrap()?.read_to_end(&mut content).unwrap();
        Some(content)
    }

    #[test]
    fn what_was_put_is_found_again_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
        let hash = put(&cache, 1, b"code");
        assert_eq!(cache.info(&hash), Some(info("1")));
        assert_eq!(content(&cache, &hash).unwrap(), b"code");
        let bytes = cache.bytes();
        fs::write(dir.path().join("7.tmp"), "left over").unwrap();

        let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
        assert_eq!((cache.modules(), cache.bytes()), (1, bytes));
        assert_eq!(cache.info(&hash), Some(info("1")));
        assert_eq!(content(&cache, &hash).unwrap(), b"code");
        assert!(!dir.path().join("7.tmp").exists());

        let cache = ArtefactCache::open(dir.path(), "v2", 1 << 20).unwrap();
        assert_eq!((cache.modules(), cache.bytes()), (0, 0), "another engine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_file_is_never_handed_out() {
        for extension in [ARTEFACT, INFO] {
            for damage in [&b"cod3"[..], b"co", b""] {
                let dir = tempfile::tempdir().unwrap();
                let hash =
                    put(&ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap(), 1, b"code");
                let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
                fs::write(cache.path(&hash, extension), damage).unwrap();
                assert_eq!(content(&cache, &hash), None, "{extension} {damage:?}");
                assert_eq!(cache.info(&hash), None);
                assert_eq!((cache.modules(), cache.bytes()), (0, 0));
                assert_eq!(content(&cache, &put(&cache, 1, b"again")).unwrap(), b"again");
            }
        }
    }

    #[test]
    fn one_file_without_the_other_is_nothing() {
        for extension in [ARTEFACT, INFO] {
            let dir = tempfile::tempdir().unwrap();
            let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
            fs::remove_file(cache.path(&put(&cache, 1, b"code"), extension)).unwrap();
            let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
            assert_eq!((cache.modules(), fs::read_dir(dir.path()).unwrap().count()), (0, 0));
        }
    }

    #[test]
    fn the_cap_holds_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ArtefactCache::open(dir.path(), "v1", 2_600).unwrap();
        let code = [7; 1_000];
        let (a, b) = (put(&cache, 1, &code), put(&cache, 2, &code));
        let open = cache.artefact(&b).unwrap().unwrap();
        assert!(cache.artefact(&a).unwrap().is_some(), "now b is the oldest");
        let c = put(&cache, 3, &code);
        assert_eq!(
            (cache.info(&a).is_some(), cache.info(&b).is_some(), cache.info(&c).is_some()),
            (true, false, true)
        );
        assert!(cache.bytes() <= 2_600);
        let mut mapped = Vec::new();
        (&open).read_to_end(&mut mapped).unwrap();
        assert_eq!(mapped, code, "who has it open keeps it");
        let large = put(&cache, 4, &[0; 5_000]);
        assert_eq!(
            cache.modules(),
            1,
            "the newest is kept even alone over the cap, so that it can run"
        );
        assert!(cache.artefact(&large).unwrap().is_some());
    }

    #[test]
    fn the_directory_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_temporary_file_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ArtefactCache::open(dir.path(), "v1", 1 << 20).unwrap();
        drop(cache.temporary().unwrap());
        let unnamed = cache.temporary().unwrap().into_unnamed().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(unnamed.metadata().unwrap().len(), 0);
    }
}
