//! Checkpoints of the replicated state's metadata in one embedded database file.
//!
//! A checkpoint is one transaction: the records that changed since the last, the height, and the
//! caller's metadata. It is there whole or not at all, whatever kills the process, and durable once
//! [`StateStore::write`] returns. Canister memory is not in here (only its index is), nor are
//! modules.
//!
//! Records are read and written one at a time and in parts, so neither needs more memory than one
//! record and the database's own cache, whose bytes are given at [`StateStore::open`]. (The
//! database allocates in powers of two: a large value in one piece would cost twice its size.)
//! Every part carries a checksum over its key, its number and its bytes, and the checkpoint a tally
//! of each table, because the database checks its own sums only when it recovers from a crash.
//!
//! The database takes an advisory lock on its file: a second process that opens it gets an error.
//!
//! It must never know what the records mean; height and key apart, they are bytes.

mod backend;
mod build;
mod leaves;
mod parts;
mod rows;
#[cfg(test)]
mod tests;

use std::{
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use disk::{RealDisk, SharedDisk};
use pages::{MemoryId, MemoryIndex};
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTableMetadata, TableDefinition,
    TableError, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{CanisterId, Height, NotEncoded, RequestId};

use backend::Backend;
use parts::{Records, Table, Tally};

pub use build::StoreBuilder;
pub use leaves::{KnownLeaf, ManifestWriter, MemoryRow, WriteFailed};
pub use rows::{Row, RowAt, RowError, RowKind, RowReader, RowStream};

/// Version of what is in the file. Raised with any change to the tables or to the encoding of a
/// record in them.
pub(crate) const FORMAT: u32 = 11;

const FILE_NAME: &str = "state.redb";

/// Only `format`, so that any version of the node can read it.
const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");
/// The [`Header`], the caller's metadata, and the header of the newest manifest.
const HEADS: Table = TableDefinition::new("heads");
const CANISTERS: Table = TableDefinition::new("canisters");
/// Messages apart, by number.
const MESSAGES: Table = TableDefinition::new("messages");
const HISTORY: Table = TableDefinition::new("history");
const MEMORIES: Table = TableDefinition::new("memories");

const HEADER_KEY: &[u8] = b"header";
const METADATA_KEY: &[u8] = b"metadata";
const MANIFEST_KEY: &[u8] = b"manifest";

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Header {
    height: Height,
    canisters: Tally,
    messages: Tally,
    history: Tally,
    memories: Tally,
    /// CRC-32 of the caller's metadata.
    metadata_sum: u32,
}

impl Header {
    /// `None` before the first checkpoint.
    fn read(transaction: &ReadTransaction) -> Result<Option<Self>, Failure> {
        let Some(record) = Records::read_record(transaction, HEADS, HEADER_KEY)? else {
            return Ok(None);
        };
        match postcard::from_bytes(&record) {
            Ok(header) => Ok(Some(header)),
            Err(error) => Err(Failure::Corrupt(format!("the checkpoint's header: {error}"))),
        }
    }
}

/// Why the store cannot serve.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum StoreError {
    /// Another process, most likely a second node with the same data folder, has the file open.
    #[error(
        "{0} is in use by another process; stop the other node or give this one its own data \
         directory"
    )]
    Locked(PathBuf),
    #[error(
        "the disk of {0} is full: free some space; the last checkpoint is intact and nothing \
         acknowledged is lost"
    )]
    DiskFull(PathBuf),
    #[error(
        "{0} cannot be written ({1}): check its owner, its permissions and how its file system is \
         mounted"
    )]
    Unwritable(PathBuf, #[source] io::Error),
    #[error("{0} cannot be read or written: {1}")]
    Io(PathBuf, #[source] io::Error),
    #[error(
        "{path} is damaged ({reason}): restore it from another node or a backup; it was not \
         written by a crash of this node"
    )]
    Corrupt { path: PathBuf, reason: String },
    #[error(
        "{path} has format {found} and this node reads format {FORMAT}: use the version of the \
         node that wrote it"
    )]
    Format { path: PathBuf, found: String },
    #[error("a checkpoint of height {} was to follow one of height {}: heights must not fall", new.0, newest.0)]
    Height { newest: Height, new: Height },
    /// The writer aborted; nothing was written.
    #[error("a write to the metadata store was given up")]
    GivenUp,
    #[error(transparent)]
    NotEncoded(#[from] NotEncoded),
    #[error(transparent)]
    History(#[from] crate::history::HistoryError),
}

impl StoreError {
    /// Whether the same call may succeed later in the same process, because what is in its way can
    /// be freed or mended from outside.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::DiskFull(_) | Self::Unwritable(..) => true,
            Self::Io(_, source) => lifecycle::can_heal(source),
            Self::Locked(_)
            | Self::Corrupt { .. }
            | Self::Format { .. }
            | Self::Height { .. }
            | Self::GivenUp
            | Self::NotEncoded(_)
            | Self::History(_) => false,
        }
    }
}

/// A record that a checkpoint writes; `None` removes it.
pub type Change<K> = (K, Option<Vec<u8>>);

/// Records that a checkpoint writes, made one at a time as they are written. At the first that
/// cannot be encoded the checkpoint is not made.
pub type Changes<'a, K> = Box<dyn Iterator<Item = Result<Change<K>, NotEncoded>> + 'a>;

/// Changes since the last checkpoint.
pub struct CheckpointDelta<'a> {
    /// Height of the state; greater than that of the checkpoint before.
    pub height: Height,
    /// Other data that the caller needs to continue; replaces the old data.
    pub metadata: Vec<u8>,
    /// Canister records that changed, and those of canisters that are gone.
    pub canisters: Changes<'a, CanisterId>,
    /// Messages apart that came, and those that went, by number.
    pub messages: Changes<'a, u64>,
    /// Ingress history entries: `Box::new(changes.iter())` of [`crate::history::HistoryChanges`].
    pub history: Changes<'a, RequestId>,
    /// Memory indexes, each with the length of its base file.
    pub memories: Vec<(MemoryId, Option<(MemoryIndex, u64)>)>,
    /// Leaves of memories ([`crate::manifest`]) that were written.
    pub written: Vec<(MemoryId, Vec<Range<u32>>)>,
}

/// See the module. One per data folder; used from one thread at a time, which the inner lock
/// ensures.
#[derive(Debug)]
pub struct StateStore {
    disk: SharedDisk,
    /// The machine's disk: the database opens, and locks, its file itself.
    real: bool,
    path: PathBuf,
    cache_bytes: u64,
    /// Whether its pages have been compared with their checksums, which reads all of it.
    checked: AtomicBool,
    database: Mutex<Slot>,
}

#[derive(Debug)]
enum Slot {
    /// Not yet opened, or closed after an error of the disk: opening it anew also recovers it.
    Closed,
    Open(Database),
    /// Never touched again. Holds the fault found.
    Damaged(String),
}

impl StateStore {
    /// Opens or creates the store in `dir`. It caches at most `cache_bytes`.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        Self::with_disk(RealDisk::shared(), true, dir, cache_bytes)
    }

    /// The same on another disk, where nothing keeps a second process out.
    pub fn open_on(disk: SharedDisk, dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        Self::with_disk(disk, false, dir, cache_bytes)
    }

    fn with_disk(
        disk: SharedDisk,
        real: bool,
        dir: &Path,
        cache_bytes: u64,
    ) -> Result<Self, StoreError> {
        let path = dir.join(FILE_NAME);
        let (checked, database) = (AtomicBool::new(false), Mutex::new(Slot::Closed));
        let store = StateStore { disk, real, path, cache_bytes, checked, database };
        store.disk.create_folder(dir).map_err(|error| store.io(error))?;
        store.with_database(|_| Ok(()))?;
        Ok(store)
    }

    /// The disk of the store.
    pub fn disk(&self) -> &SharedDisk {
        &self.disk
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// The newest checkpoint; `None` if there was none yet.
    pub fn load(&self) -> Result<Option<LoadedCheckpoint>, StoreError> {
        let transaction = self.with_database(|database| Ok(database.begin_read()?))?;
        let loaded = self.guard(|| {
            let Some(header) = Header::read(&transaction)? else {
                for table in [CANISTERS, MESSAGES, HISTORY, MEMORIES] {
                    if !transaction.open_table(table)?.is_empty()? {
                        return Err(Failure::Corrupt("it has records and no header".into()));
                    }
                }
                return Ok(None);
            };
            let metadata =
                Records::read_record(&transaction, HEADS, METADATA_KEY)?.unwrap_or_default();
            if crc32fast::hash(&metadata) != header.metadata_sum {
                return Err(Failure::Corrupt(
                    "the checkpoint's metadata is missing or another's".into(),
                ));
            }
            Ok(Some((header, metadata)))
        })?;
        Ok(loaded.map(|(header, metadata)| LoadedCheckpoint {
            height: header.height,
            metadata,
            header,
            path: self.path.clone(),
            transaction,
        }))
    }

    /// Writes a checkpoint. When it returns, the checkpoint survives anything short of the disk's
    /// loss; when it fails, the one before is still whole, and the write may be tried again. A
    /// checkpoint of the same height as the last is of the same state: only the places of its pages
    /// may have changed.
    pub fn write(&self, delta: CheckpointDelta<'_>) -> Result<(), StoreError> {
        let CheckpointDelta { height, metadata, canisters, messages, history, memories, written } =
            delta;
        self.with_database(|database| {
            let newest = Header::read(&database.begin_read()?)?;
            if let Some(newest) = newest.filter(|newest| newest.height > height) {
                return Err(Failure::Store(StoreError::Height {
                    newest: newest.height,
                    new: height,
                }));
            }
            let mut header = newest.unwrap_or_default();
            header.height = height;
            header.metadata_sum = crc32fast::hash(&metadata);
            let mut transaction = database.begin_write()?;
            // After a crash the file is then opened at once, and not read from end to end to find
            // its free space.
            transaction.set_quick_repair(true);
            let mut table = transaction.open_table(CANISTERS)?;
            for change in canisters {
                let (id, record) = change.map_err(StoreError::from).map_err(Failure::Store)?;
                parts::put(&mut table, &mut header.canisters, id.as_slice(), record.as_deref())?;
            }
            drop(table);
            let mut table = transaction.open_table(MESSAGES)?;
            for change in messages {
                let (number, record) = change.map_err(StoreError::from).map_err(Failure::Store)?;
                let key = number.to_be_bytes();
                parts::put(&mut table, &mut header.messages, &key, record.as_deref())?;
            }
            drop(table);
            let mut table = transaction.open_table(HISTORY)?;
            for change in history {
                let (id, record) = change.map_err(StoreError::from).map_err(Failure::Store)?;
                parts::put(&mut table, &mut header.history, &id.0, record.as_deref())?;
            }
            drop(table);
            let mut table = transaction.open_table(MEMORIES)?;
            for (id, index) in &memories {
                let record = index.as_ref().map(encode).transpose()?;
                parts::put(
                    &mut table,
                    &mut header.memories,
                    &id.0.to_be_bytes(),
                    record.as_deref(),
                )?;
                if record.is_none() {
                    leaves::forget(&transaction, *id)?;
                }
            }
            drop(table);
            leaves::mark_written(&transaction, &written)?;
            let mut table = transaction.open_table(HEADS)?;
            let mut untallied = Tally::default();
            parts::put(&mut table, &mut untallied, METADATA_KEY, Some(&metadata))?;
            parts::put(&mut table, &mut untallied, HEADER_KEY, Some(&encode(&header)?))?;
            drop(table);
            transaction.commit()?;
            Ok(())
        })
    }

    /// Runs `work` in a transaction of its own, durable when this returns.
    fn transact<R>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<R, Failure>,
    ) -> Result<R, StoreError> {
        self.with_database(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_quick_repair(true);
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
    }

    /// Runs `work` on the database, opening it first if need be. After an error of the disk it is
    /// opened anew next time.
    fn with_database<R>(
        &self,
        work: impl FnOnce(&Database) -> Result<R, Failure>,
    ) -> Result<R, StoreError> {
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.guard(|| {
            if let Slot::Closed = *slot {
                *slot = Slot::Open(self.open_database()?);
            }
            match &*slot {
                Slot::Open(database) => work(database),
                Slot::Damaged(reason) => Err(Failure::Corrupt(reason.clone())),
                Slot::Closed => Err(Failure::Corrupt("the database is closed".into())),
            }
        });
        match &result {
            Ok(_)
            | Err(StoreError::Height { .. } | StoreError::GivenUp | StoreError::NotEncoded(_)) => {}
            Err(StoreError::Corrupt { reason, .. }) => {
                abandon(std::mem::replace(&mut *slot, Slot::Damaged(reason.clone())));
            }
            Err(_) => close(std::mem::replace(&mut *slot, Slot::Closed)),
        }
        result
    }

    fn open_database(&self) -> Result<Database, Failure> {
        let new = !self.path.exists();
        let cache_bytes = usize::try_from(self.cache_bytes).unwrap_or(usize::MAX);
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let database = if self.real {
            builder.create(&self.path)?
        } else {
            builder.create_with_backend(Backend::open(self.disk.as_ref(), &self.path)?)?
        };
        let database = self.check(database)?;
        let transaction = database.begin_read()?;
        let found = match transaction.open_table(NUMBERS) {
            Ok(numbers) => numbers.get("format")?.map(|format| format.value()),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(error.into()),
        };
        drop(transaction);
        match found {
            Some(found) if found == u64::from(FORMAT) => {}
            Some(found) => {
                return Err(Failure::Store(StoreError::Format {
                    path: self.path.clone(),
                    found: found.to_string(),
                }));
            }
            None => {
                // A new file, or one whose creation was interrupted.
                let mut transaction = database.begin_write()?;
                transaction.set_quick_repair(true);
                transaction.open_table(NUMBERS)?.insert("format", u64::from(FORMAT))?;
                create_tables(&transaction)?;
                transaction.commit()?;
            }
        }
        if new && let Some(dir) = self.path.parent() {
            self.disk.sync_folder(dir)?;
        }
        Ok(database)
    }

    /// Reads every page and compares its checksum, at the first opening only. Commits have two
    /// phases, so a crash leaves nothing to repair but the list of free pages: any other fault was
    /// not written by this node. After an error of the disk the database recovers by itself, and
    /// every part of a record that is read has its checksum: a retry must not wait for all pages
    /// each time.
    fn check(&self, mut database: Database) -> Result<Database, Failure> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(database);
        }
        match catch_unwind(AssertUnwindSafe(|| database.check_integrity())) {
            Ok(Ok(true)) => {
                self.checked.store(true, Ordering::Relaxed);
                Ok(database)
            }
            checked => {
                abandon(Slot::Open(database));
                match checked {
                    Ok(Ok(_)) => {
                        Err(Failure::Corrupt("its pages do not have their checksums".into()))
                    }
                    Ok(Err(error)) => Err(error.into()),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        }
    }

    fn io(&self, error: io::Error) -> StoreError {
        io_error(&self.path, error)
    }

    fn guard<R>(&self, work: impl FnOnce() -> Result<R, Failure>) -> Result<R, StoreError> {
        guard(&self.path, work)
    }
}

impl Drop for StateStore {
    fn drop(&mut self) {
        let slot = self.database.get_mut().unwrap_or_else(PoisonError::into_inner);
        close(std::mem::replace(slot, Slot::Closed));
    }
}

/// Closing writes too, and so may fail; the caller has no more use for the database.
fn close(slot: Slot) {
    let _ = catch_unwind(AssertUnwindSafe(move || drop(slot)));
}

/// Leaves a damaged database as it is. Closing would write to it based on corrupt pages, and a
/// failure within a failure ends the process. It keeps its lock and its cache until the process,
/// which must stop, ends.
fn abandon(slot: Slot) {
    std::mem::forget(slot);
}

/// A memory's index and the length of its base file.
pub type MemoryRecord = (MemoryId, (MemoryIndex, u64));

/// Result of reading one record.
pub type StoreResult<T> = Result<T, StoreError>;

/// A checkpoint being read. It stays as it is while newer ones are written.
pub struct LoadedCheckpoint {
    /// Height of the state.
    pub height: Height,
    /// The metadata of the writer.
    pub metadata: Vec<u8>,
    header: Header,
    path: PathBuf,
    transaction: ReadTransaction,
}

impl LoadedCheckpoint {
    /// Canister records by id, read one at a time.
    pub fn canisters(
        &self,
    ) -> Result<impl Iterator<Item = StoreResult<(CanisterId, Vec<u8>)>> + '_, StoreError> {
        self.records(CANISTERS, self.header.canisters, |key| CanisterId::try_from_slice(key).ok())
    }

    /// Records of messages apart, to be taken one at a time.
    pub fn messages(&self) -> MessageReader<'_> {
        MessageReader { checkpoint: self, found: Tally::default() }
    }

    /// Ingress history entries by id, read one at a time.
    pub fn history(
        &self,
    ) -> Result<impl Iterator<Item = StoreResult<(RequestId, Vec<u8>)>> + '_, StoreError> {
        self.records(HISTORY, self.header.history, |key| key.try_into().ok().map(RequestId))
    }

    /// Memory indexes by id, each with the length of its base file, read one at a time.
    pub fn memories(
        &self,
    ) -> Result<impl Iterator<Item = StoreResult<MemoryRecord>> + '_, StoreError> {
        let records = self.records(MEMORIES, self.header.memories, |key| {
            key.try_into().ok().map(u64::from_be_bytes).map(MemoryId)
        })?;
        Ok(records.map(|record| {
            let (id, bytes) = record?;
            match postcard::take_from_bytes(&bytes) {
                Ok((index, [])) => Ok((id, index)),
                Ok(_) => Err(self.corrupt(format!("bytes follow the index of memory {}", id.0))),
                Err(error) => Err(self.corrupt(format!("the index of memory {}: {error}", id.0))),
            }
        }))
    }

    fn records<'a, K: 'a>(
        &'a self,
        table: Table,
        tally: Tally,
        key: impl Fn(&[u8]) -> Option<K> + 'a,
    ) -> Result<impl Iterator<Item = StoreResult<(K, Vec<u8>)>> + 'a, StoreError> {
        let mut records =
            Some(guard(&self.path, || Records::new(&self.transaction, table, tally))?);
        Ok(std::iter::from_fn(move || {
            let next = guard(&self.path, || records.as_mut().and_then(Iterator::next).transpose());
            let result = match next {
                Ok(None) => return None,
                Ok(Some((bytes, record))) => match key(&bytes) {
                    Some(key) => Ok((key, record)),
                    None => Err(self.corrupt(format!(
                        "a key of {} bytes in table {}",
                        bytes.len(),
                        redb::TableHandle::name(&table)
                    ))),
                },
                Err(error) => Err(error),
            };
            if result.is_err() {
                // Nothing after damage can be relied on.
                records = None;
            }
            Some(result)
        }))
    }

    fn corrupt(&self, reason: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), reason }
    }
}

/// Reads records of messages apart as their canisters ask for them. A message that no canister has
/// shows at the end, because it was not counted.
pub struct MessageReader<'a> {
    checkpoint: &'a LoadedCheckpoint,
    found: Tally,
}

impl MessageReader<'_> {
    /// The record of this number.
    ///
    /// # Errors
    /// When it is not there, or damaged.
    pub fn take(&mut self, number: u64) -> StoreResult<Vec<u8>> {
        let checkpoint = self.checkpoint;
        let found = guard(&checkpoint.path, || {
            let key = number.to_be_bytes();
            Records::read_record_counted(&checkpoint.transaction, MESSAGES, &key, &mut self.found)
        })?;
        found
            .ok_or_else(|| checkpoint.corrupt(format!("the record of message {number} is missing")))
    }

    /// All canisters have their messages.
    ///
    /// # Errors
    /// When there are others.
    pub fn finish(self) -> StoreResult<()> {
        let expected = self.checkpoint.header.messages;
        if self.found == expected {
            return Ok(());
        }
        Err(self.checkpoint.corrupt(format!(
            "canisters have messages in {} parts of records, and there are {}, or others",
            self.found.parts, expected.parts
        )))
    }
}

impl std::fmt::Debug for LoadedCheckpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedCheckpoint({:?}, {} bytes of metadata)", self.height, self.metadata.len())
    }
}

fn create_tables(transaction: &WriteTransaction) -> Result<(), Failure> {
    for table in [HEADS, CANISTERS, MESSAGES, HISTORY, MEMORIES] {
        transaction.open_table(table)?;
    }
    transaction.open_table(leaves::LEAVES)?;
    transaction.open_table(leaves::BLOB_LEAVES)?;
    transaction.open_table(leaves::BODY)?;
    transaction.open_table(leaves::STARTS)?;
    Ok(())
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(value).map_err(|error| Failure::Corrupt(error.to_string()))
}

/// An error before it is known which file it is about.
enum Failure {
    Redb(redb::Error),
    Corrupt(String),
    Store(StoreError),
    GivenUp,
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Redb(error.into())
    }
}

/// Runs `work` and says what went wrong in this file. The database answers some kinds of damage
/// with a panic; it holds no state that outlives the error, so the panic ends here.
fn guard<R>(path: &Path, work: impl FnOnce() -> Result<R, Failure>) -> Result<R, StoreError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(Failure::Store(error))) => Err(error),
        Ok(Err(Failure::GivenUp)) => Err(StoreError::GivenUp),
        Ok(Err(Failure::Corrupt(reason))) => {
            Err(StoreError::Corrupt { path: path.to_path_buf(), reason })
        }
        Ok(Err(Failure::Redb(error))) => Err(redb_error(path, error)),
        Err(panic) => {
            let reason = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("the database gave up on it");
            Err(StoreError::Corrupt { path: path.to_path_buf(), reason: reason.to_string() })
        }
    }
}

fn redb_error(path: &Path, error: redb::Error) -> StoreError {
    match error {
        redb::Error::DatabaseAlreadyOpen => StoreError::Locked(path.to_path_buf()),
        redb::Error::UpgradeRequired(version) => StoreError::Format {
            path: path.to_path_buf(),
            found: format!("database file version {version}"),
        },
        // The database's word for a file that does not begin as its own do.
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Corrupt { path: path.to_path_buf(), reason: error.to_string() }
        }
        redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            StoreError::Corrupt { path: path.to_path_buf(), reason: "it ends too early".into() }
        }
        redb::Error::Io(error) => io_error(path, error),
        other => StoreError::Corrupt { path: path.to_path_buf(), reason: other.to_string() },
    }
}

fn io_error(path: &Path, error: io::Error) -> StoreError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreError::DiskFull(path)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::Unwritable(path, error)
        }
        _ => StoreError::Io(path, error),
    }
}
