//! Payloads of messages that wait, each in a file of its own, named by the number of its message.
//!
//! A message with more than [`crate::WHOLE_BYTES_MAX`] bytes keeps its payload (the name of its
//! method and its argument, or the reply) here while it waits or is paused; its record, and with
//! that the manifest, keeps [`StoredPayload`]: nothing is read or hashed again until it is
//! executed. When files are durable and when they are removed: docs/internals/durability.md,
//! "Payload files". After a failed sync all files that it was to cover are *suspect*: each is
//! written anew before a later sync may count. [`PayloadStore::keep_only`] removes remains of a
//! crash at the next start, and finds files that are missing or of another length, which is damage,
//! as is content without its hash.
//!
//! Memory: a payload that is read; a few words for each file that is not durable yet, or released
//! and not removed, which are in the state's heap. This module must not know the meaning of a
//! payload.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use disk::{Open, SharedDisk, if_there};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::manifest::{LEAF_BYTES, LeafHash, leaves_of, stream_leaf_bytes};
use crate::messages::StateArc;
use crate::state_heap;

/// Prefix of the name under which new content is written before it replaces the old.
const TEMPORARY: &str = "tmp-";
/// Disk space of a file is a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// A payload in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPayload {
    /// Number of the message, which names the file.
    pub number: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Of them, those of the name of the method, which come first; 0 for a response.
    pub name_bytes: u32,
    /// SHA-256 of each leaf of [`LEAF_BYTES`].
    pub leaves: Vec<LeafHash>,
}

impl StoredPayload {
    /// Whether it can be a payload of this message.
    pub fn is_sound(&self, number: u64) -> bool {
        self.number == number
            && u64::from(self.name_bytes) <= self.bytes
            && self.leaves.len() as u64 == leaves_of(self.bytes)
    }
}

/// Why a payload cannot be kept or had.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum PayloadError {
    #[error("the disk of {0} is full: free some space")]
    DiskFull(PathBuf),
    #[error("{0} cannot be read or written: {1}")]
    Io(PathBuf, #[source] io::Error),
    #[error("{path}, the payload of a message that waits, is damaged ({reason}); {cure}")]
    Damaged { path: PathBuf, reason: String, cure: &'static str },
}

impl PayloadError {
    /// Whether the same call may succeed later in the same process.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::DiskFull(_) => true,
            Self::Io(_, source) => lifecycle::can_heal(source),
            Self::Damaged { .. } => false,
        }
    }

    fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::DiskFull(path),
            _ => Self::Io(path, source),
        }
    }
}

/// A payload that no state refers to any more, which the newest checkpoint did when it went.
#[derive(Clone, Copy, Debug)]
struct UnreferencedPayload {
    number: u64,
    bytes: u64,
    /// Of the newest durable checkpoint then.
    checkpoint: u64,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Written and not known to be durable.
    unsynced: BTreeMap<u64, StateArc<StoredPayload>>,
    /// Of those, the files that a sync failed for and that were not written anew since.
    suspect: BTreeSet<u64>,
    /// Durable checkpoints of this process so far.
    checkpoints: u64,
    /// A checkpoint may refer to numbers below this one.
    tried_below: u64,
    /// Gone since the newest durable checkpoint, which refers to them.
    leaving: VecDeque<UnreferencedPayload>,
    /// Gone, and held by snapshots alone.
    pinned: VecDeque<UnreferencedPayload>,
    pinned_bytes: u64,
    dead: VecDeque<UnreferencedPayload>,
    /// Bytes on disk of what was written since something was removed last.
    written_bytes: u64,
    /// The checkpoint that each snapshot is of, and the numbers that it may refer to.
    pins: BTreeMap<u64, (u64, u64)>,
    next_pin: u64,
    unpinned: bool,
}

impl Ledger {
    fn is_pinned(&self, gone: &UnreferencedPayload) -> bool {
        let mut pins = self.pins.values();
        pins.any(|(checkpoint, below)| *checkpoint <= gone.checkpoint && gone.number < *below)
    }

    /// Sorts what went into what snapshots hold and what can be removed.
    fn sort(&mut self, all: VecDeque<UnreferencedPayload>) {
        for gone in all {
            if self.is_pinned(&gone) {
                self.pinned_bytes += on_disk(gone.bytes);
                self.pinned.push_back(gone);
            } else {
                self.dead.push_back(gone);
            }
        }
    }

    /// Looks anew at what snapshots held that are there no more.
    fn unpin(&mut self) {
        if std::mem::take(&mut self.unpinned) {
            let pinned = std::mem::take(&mut self.pinned);
            self.pinned_bytes = 0;
            self.sort(pinned);
        }
    }
}

fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// See the module.
#[derive(Debug)]
pub struct PayloadStore {
    disk: SharedDisk,
    dir: PathBuf,
    /// The folder, open since before anything was written into it.
    handle: File,
    ledger: Arc<Mutex<Ledger>>,
}

impl PayloadStore {
    /// Opens or creates the store in `dir`.
    pub fn open_on(disk: SharedDisk, dir: &Path) -> Result<Self, PayloadError> {
        let failed = |error| PayloadError::io(dir, error);
        disk.create_folder(dir).map_err(failed)?;
        let handle = File::open(dir).map_err(failed)?;
        Ok(Self { disk, dir: dir.to_path_buf(), handle, ledger: Arc::default() })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a message's payload.
    pub fn path(&self, number: u64) -> PathBuf {
        payload_path(&self.dir, number)
    }

    /// Keeps the payload of a message, whose parts are the name of its method and the rest; durable
    /// after the next [`PayloadStore::sync`]. Whatever the file held before is replaced.
    ///
    /// # Errors
    /// When the disk fails; nothing is kept then, and the same call may be made again.
    pub fn write(
        &self,
        number: u64,
        parts: [&[u8]; 2],
    ) -> Result<StateArc<StoredPayload>, PayloadError> {
        let path = self.path(number);
        let leaves = self.write_file(&path, parts).map_err(|error| {
            // The next start would remove it.
            let _ = self.disk.remove(&path);
            PayloadError::io(&path, error)
        })?;
        let bytes = (parts[0].len() + parts[1].len()) as u64;
        let name_bytes = u32::try_from(parts[0].len()).unwrap_or(u32::MAX);
        let stored = StateArc::new(StoredPayload { number, bytes, name_bytes, leaves });
        debug_assert!(stored.is_sound(number), "{} leaves of {bytes} bytes", stored.leaves.len());
        let _here = state_heap::enter();
        let mut ledger = self.ledger();
        ledger.written_bytes = ledger.written_bytes.saturating_add(on_disk(bytes));
        ledger.suspect.remove(&number);
        ledger.unsynced.insert(number, stored.clone());
        Ok(stored)
    }

    /// Writes a file leaf by leaf; returns their hashes.
    fn write_file(&self, path: &Path, parts: [&[u8]; 2]) -> io::Result<Vec<LeafHash>> {
        let file = self.disk.open(path, Open::Truncate)?;
        let mut leaves = state_heap::within(|| {
            Vec::with_capacity((parts[0].len() + parts[1].len()).div_ceil(LEAF_BYTES))
        });
        let (mut hasher, mut in_leaf, mut at) = (Sha256::new(), 0, 0_u64);
        for mut part in parts {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(LEAF_BYTES - in_leaf));
                file.write_at(now, at)?;
                hasher.update(now);
                (in_leaf, at, part) = (in_leaf + now.len(), at + now.len() as u64, later);
                if in_leaf == LEAF_BYTES {
                    leaves.push(hasher.finalize_reset().into());
                    in_leaf = 0;
                }
            }
        }
        if in_leaf > 0 {
            leaves.push(hasher.finalize().into());
        }
        Ok(leaves)
    }

    /// A payload, verified. It is allocated in the state's heap.
    ///
    /// # Errors
    /// When the disk fails, or the content is not what was written.
    pub fn read(&self, payload: &StoredPayload) -> Result<Vec<u8>, PayloadError> {
        let file = self.open(payload)?;
        let mut content =
            state_heap::within(|| vec![0; usize::try_from(payload.bytes).unwrap_or(usize::MAX)]);
        self.fill(&file, payload.number, 0, &mut content)?;
        debug_assert_eq!(payload.leaves.len() as u64, leaves_of(payload.bytes), "hashed leaves");
        for (leaf, hash) in content.chunks(LEAF_BYTES).zip(&payload.leaves) {
            if LeafHash::from(Sha256::digest(leaf)) != *hash {
                return Err(self.damaged(payload.number, "its content has another hash".into()));
            }
        }
        Ok(content)
    }

    /// A leaf of a payload, as it is in the file; `None` if there is none.
    pub fn read_leaf(
        &self,
        payload: &StoredPayload,
        index: u32,
    ) -> Result<Option<Vec<u8>>, PayloadError> {
        let Some(bytes) = stream_leaf_bytes(payload.bytes, index) else { return Ok(None) };
        let file = self.open(payload)?;
        let mut leaf = vec![0; bytes];
        self.fill(&file, payload.number, u64::from(index) * LEAF_BYTES as u64, &mut leaf)?;
        Ok(Some(leaf))
    }

    /// Replaces `leaf` by that of a payload of `bytes` bytes, if there is a file of this name and
    /// length. Does not check which message the file belongs to.
    pub fn read_if_there(
        &self,
        number: u64,
        bytes: u64,
        index: u32,
        leaf: &mut Vec<u8>,
    ) -> Result<bool, PayloadError> {
        let path = self.path(number);
        let opened = if_there(File::open(&path)).map_err(|error| PayloadError::io(&path, error))?;
        let Some(file) = opened else { return Ok(false) };
        let found = file.metadata().map_err(|error| PayloadError::io(&path, error))?.len();
        let Some(length) = stream_leaf_bytes(bytes, index).filter(|_| found == bytes) else {
            return Ok(false);
        };
        leaf.resize(length, 0);
        self.fill(&file, number, u64::from(index) * LEAF_BYTES as u64, leaf)?;
        Ok(true)
    }

    /// The file of a payload, which has its length.
    fn open(&self, payload: &StoredPayload) -> Result<File, PayloadError> {
        let path = self.path(payload.number);
        let opened = if_there(File::open(&path)).map_err(|error| PayloadError::io(&path, error))?;
        let file = opened.ok_or_else(|| self.damaged(payload.number, "it is missing".into()))?;
        let found = file.metadata().map_err(|error| PayloadError::io(&path, error))?.len();
        self.check_length(payload.number, payload.bytes, found)?;
        Ok(file)
    }

    fn check_length(&self, number: u64, expected: u64, found: u64) -> Result<(), PayloadError> {
        if expected == found {
            return Ok(());
        }
        Err(self.damaged(number, format!("it has {found} bytes and should have {expected}")))
    }

    fn fill(
        &self,
        file: &File,
        number: u64,
        offset: u64,
        content: &mut [u8],
    ) -> Result<(), PayloadError> {
        file.read_exact_at(content, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(number, "it ends too early".into()),
            _ => PayloadError::io(&self.path(number), error),
        })
    }

    fn damaged(&self, number: u64, reason: String) -> PayloadError {
        let is_saved = number < self.ledger().tried_below;
        let cure = if is_saved {
            "see docs/operating.md, \"When the disk was damaged\""
        } else {
            "no checkpoint refers to it: start the node again, which executes the message anew"
        };
        PayloadError::Damaged { path: self.path(number), reason, cure }
    }

    /// Makes all payloads written so far durable.
    ///
    /// # Errors
    /// When the disk fails: then none of them counts as durable.
    pub fn sync(&self) -> Result<(), PayloadError> {
        let _here = state_heap::enter();
        self.rewrite_suspects()?;
        let unsynced = self.ledger().unsynced.clone();
        if unsynced.is_empty() {
            return Ok(());
        }
        let files: Vec<_> = unsynced.keys().map(|number| self.path(*number)).collect();
        if let Err(error) = self.disk.sync_files(&self.dir, &self.handle, &files) {
            self.ledger().suspect.extend(unsynced.keys());
            // At once, as long as the operating system may still have the content.
            self.rewrite_suspects()?;
            return Err(PayloadError::io(&self.dir, error));
        }
        self.ledger().unsynced.retain(|number, _| !unsynced.contains_key(number));
        Ok(())
    }

    /// Writes all suspect files anew, or as many as the disk takes: the others stay suspect.
    fn rewrite_suspects(&self) -> Result<(), PayloadError> {
        loop {
            let next = {
                let ledger = self.ledger();
                let Some(number) = ledger.suspect.first().copied() else { return Ok(()) };
                (number, ledger.unsynced.get(&number).cloned())
            };
            if let (_, Some(payload)) = &next {
                self.rewrite(payload)?;
            }
            self.ledger().suspect.remove(&next.0);
        }
    }

    /// Writes the content of a file whose sync failed to another file, which replaces it. Data that
    /// the operating system dropped is damage: the next start executes the batches again.
    fn rewrite(&self, payload: &StoredPayload) -> Result<(), PayloadError> {
        let path = self.path(payload.number);
        let content = self.read(payload)?;
        let temporary = self.dir.join(format!("{TEMPORARY}{:016x}", payload.number));
        let written = self
            .write_file(&temporary, [&content, &[]])
            .and_then(|_| self.disk.rename(&temporary, &path));
        written.map_err(|error| {
            let _ = self.disk.remove(&temporary);
            PayloadError::io(&path, error)
        })
    }

    /// The state does not refer to the payload of this message any more.
    pub fn release(&self, number: u64, bytes: u64) {
        let _here = state_heap::enter();
        let mut ledger = self.ledger();
        ledger.unsynced.remove(&number);
        ledger.suspect.remove(&number);
        let gone = UnreferencedPayload { number, bytes, checkpoint: ledger.checkpoints };
        if number < ledger.tried_below {
            ledger.leaving.push_back(gone);
        } else {
            ledger.dead.push_back(gone);
        }
    }

    /// A checkpoint is about to be written that may refer to numbers below this one.
    pub fn begin_saving(&self, below: u64) {
        let mut ledger = self.ledger();
        ledger.tried_below = ledger.tried_below.max(below);
    }

    /// A checkpoint of the state as it is now is durable.
    pub fn saved(&self) {
        let _here = state_heap::enter();
        let mut ledger = self.ledger();
        ledger.checkpoints += 1;
        debug_assert!(
            ledger.leaving.iter().all(|gone| gone.number < ledger.tried_below),
            "a payload left that no checkpoint below {} refers to",
            ledger.tried_below
        );
        let leaving = std::mem::take(&mut ledger.leaving);
        ledger.sort(leaving);
    }

    /// Holds all that the newest durable checkpoint refers to, which is the state as it is now.
    pub fn pin(&self) -> PayloadPin {
        let _here = state_heap::enter();
        let mut ledger = self.ledger();
        let pin = ledger.next_pin;
        ledger.next_pin += 1;
        let held = (ledger.checkpoints, ledger.tried_below);
        let before = ledger.pins.insert(pin, held);
        debug_assert!(before.is_none(), "pin {pin} was given before");
        PayloadPin { ledger: Arc::clone(&self.ledger), pin }
    }

    /// Bytes on disk of payloads that only snapshots refer to.
    pub fn pinned_bytes(&self) -> u64 {
        self.ledger().pinned_bytes
    }

    /// Removes files that are no longer referenced: at least `least`, or as many bytes as were
    /// written since the last call if that is more, so that removable files never grow faster than
    /// waiting ones. Returns true if there are none left. A file that cannot be removed now is
    /// retried next time.
    pub fn sweep(&self, least: usize) -> bool {
        let _here = state_heap::enter();
        let mut doomed = self.take_dead(least);
        while let Some(gone) = doomed.pop_front() {
            if if_there(self.disk.remove(&self.path(gone.number))).is_err() {
                doomed.push_front(gone);
                break;
            }
        }
        let mut ledger = self.ledger();
        ledger.dead.append(&mut doomed);
        ledger.dead.is_empty()
    }

    /// The files to remove now. They are removed while other threads may use the store.
    fn take_dead(&self, least: usize) -> VecDeque<UnreferencedPayload> {
        let mut ledger = self.ledger();
        ledger.unpin();
        let least_bytes = std::mem::take(&mut ledger.written_bytes);
        let (mut count, mut bytes) = (0, 0_u64);
        while count < ledger.dead.len() && (count < least || bytes < least_bytes) {
            bytes =
                bytes.saturating_add(ledger.dead.get(count).map_or(0, |gone| on_disk(gone.bytes)));
            count += 1;
        }
        ledger.dead.drain(..count).collect()
    }

    /// After the newest checkpoint was loaded, which refers to numbers below `next`: removes every
    /// file that is not of one of these payloads, given by rising number, and looks whether theirs
    /// are there and as long as they should be.
    ///
    /// # Errors
    /// When the disk fails, or one of them is damaged.
    pub fn keep_only(&self, live: &BTreeMap<u64, u64>, next: u64) -> Result<(), PayloadError> {
        self.begin_saving(next);
        let failed = |error| PayloadError::io(&self.dir, error);
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(parse_name);
            if number.is_some_and(|number| live.contains_key(&number)) {
                continue;
            }
            let path = self.dir.join(&name);
            if_there(self.disk.remove(&path)).map_err(|error| PayloadError::io(&path, error))?;
        }
        for (number, bytes) in live {
            let path = self.path(*number);
            let found = if_there(fs::metadata(&path));
            let found = found.map_err(|error| PayloadError::io(&path, error))?;
            let found = found.ok_or_else(|| self.damaged(*number, "it is missing".into()))?;
            self.check_length(*number, *bytes, found.len())?;
        }
        Ok(())
    }
}

/// The file of a message's payload in a folder of payloads.
pub fn payload_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}"))
}

/// The number that a file of a payload is named by.
pub fn parse_name(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (name == format!("{number:016x}")).then_some(number)
}

/// While it is there, no payload is removed that the checkpoint referred to which it was made of.
#[derive(Debug)]
pub struct PayloadPin {
    ledger: Arc<Mutex<Ledger>>,
    pin: u64,
}

impl Drop for PayloadPin {
    fn drop(&mut self) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let held = ledger.pins.remove(&self.pin);
        debug_assert!(held.is_some(), "pin {} was released before", self.pin);
        ledger.unpinned = true;
    }
}
