//! Putting a state together from chunks, and in place of the one that is there.
//!
//! Everything is stored in `sync/` within the data folder until it is complete:
//!
//! ```text
//! sync/header, sync/body        the manifest
//! sync/records                  the stream of records
//! sync/pages/<id>.base          memories, where the page store will want them
//! sync/state/blobs/<hash>       modules and chunks
//! sync/state/messages/<number>  payloads of large messages
//! sync/state/state.redb         made of the records at the end
//! sync/complete                 everything above is durable: from here on the new state counts
//! ```
//!
//! Every chunk is checked against the certified root before a byte of it is written, so the sender
//! of a wrong one is known at once. The set of fetched chunks is not recorded: a new attempt reads
//! the files leaf by leaf, and trusts hashes alone.
//!
//! Before `complete` the old state counts; after it [`complete_install`], which every start of the
//! node must call first, moves the new one in.

mod plan;
mod staging;
mod swap;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::SharedDisk;
use limits::Limits;
use pages::{HeldLayout, MemoryId, PAGE_BYTES, PageStore, PagesError, StagedMemory};
use state::manifest::{
    Header, LEAF_BYTES, LeafError, LeafHash, ManifestError, ObjectId, encode_leaf, leaf_hash,
    leaves_of, piece_hash, root_of, stream_leaf_bytes, unpack_leaf,
};
use state::store::{KnownLeaf, LoadedCheckpoint, RowAt, RowError, RowKind, StoreBuilder};
use state::{
    BlobError, BlobStore, ChunkId, Height, PayloadError, PayloadStore, StateStore, StoreError,
};
use thiserror::Error;

use crate::compute::LeafReader;
use plan::{Plan, PlannedObject};
use staging::Staging;

pub use swap::{complete_install, complete_install_on};

/// Leaves checked in one call of [`StateInstaller::missing`]: 64 MiB at most are read and hashed.
const LEAF_CHECKS_PER_CALL: u32 = 256;
/// The folder of payloads in that of the store.
const MESSAGES: &str = "messages";
/// Cache of the store that is written at the end.
const STORE_CACHE_BYTES: u64 = 4 << 20;
/// Rows read from the body at once.
const ROWS_AT_ONCE: usize = 1024;

/// Why an installation cannot continue. Fetched data stays, and a new attempt continues from it.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum InstallError {
    #[error("the disk of {path} is full: free some space; what was fetched so far is kept")]
    DiskFull { path: PathBuf },
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Pages(#[from] PagesError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
    #[error(transparent)]
    Payloads(#[from] PayloadError),
    #[error("the certified manifest cannot be read ({0}): is this node of the subnet's version?")]
    Manifest(#[from] ManifestError),
    #[error("the certified records cannot be read ({0}): is this node of the subnet's version?")]
    Records(#[from] RowError),
    #[error("a certified leaf cannot be read ({0}): is this node of the subnet's version?")]
    Leaf(#[from] LeafError),
    #[error(
        "the certified state has {what} of {bytes} bytes and this node's limit is {limit}: the \
         nodes of a subnet must have the same limits"
    )]
    Limit { what: &'static str, bytes: u64, limit: u64 },
    #[error("the manifest is of height {} and its records of height {}", .manifest.0, .records.0)]
    Height { manifest: Height, records: Height },
    #[error("{missing} chunks are missing: the state is not complete")]
    Incomplete { missing: u64 },
    #[error(
        "{path} is in use: stop the executor (and any other process) that has it open before the \
         new state takes its place"
    )]
    InUse { path: PathBuf },
}

impl InstallError {
    fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| {
            let path = path.to_path_buf();
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Self::DiskFull { path }
                }
                _ => Self::Io { action, path, source },
            }
        }
    }

    /// Whether the same call may succeed later in the same process, because its cause can be
    /// removed from outside. A certified state that this version cannot read or hold needs a
    /// person.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::DiskFull { .. } => true,
            Self::Io { source, .. } => lifecycle::can_heal(source),
            Self::Pages(error) => error.can_heal(),
            Self::Store(error) => error.can_heal(),
            Self::Blobs(error) => error.can_heal(),
            Self::Payloads(error) => error.can_heal(),
            _ => false,
        }
    }
}

/// Why a chunk was not accepted.
#[derive(Debug, Error)]
pub enum OfferError {
    /// It does not match the certified root: its sender is faulty.
    #[error("{0} has another hash than the certified manifest says")]
    Wrong(ChunkId),
    /// It was not requested, or is there already. Not a fault of the sender.
    #[error("{0} is not wanted")]
    NotWanted(ChunkId),
    /// This node failed; no peer is at fault.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// How far an installation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of leaves that are there, a leaf counted whole.
    pub bytes_done: u64,
    /// Bytes of all leaves; 0 until the manifest is there.
    pub bytes_total: u64,
    /// Of those done: found in this node's own files.
    pub bytes_reused: u64,
    /// Chunks that are there, the manifest's among them.
    pub chunks_done: u64,
    /// All chunks, as far as they are known.
    pub chunks_total: u64,
}

/// State that this node has already, to be copied instead of fetched. Holds the files of its
/// memories.
pub struct LocalState {
    checkpoint: LoadedCheckpoint,
    layouts: BTreeMap<MemoryId, HeldLayout>,
    blobs: Arc<BlobStore>,
    payloads: Arc<PayloadStore>,
    /// Open as long as the checkpoint is read, unless an executor has it.
    _store: Option<StateStore>,
}

impl LocalState {
    /// Of an executor that runs: its newest checkpoint, the layouts of its memories as of now, its
    /// modules and what its messages carry.
    pub fn new(
        checkpoint: LoadedCheckpoint,
        layouts: BTreeMap<MemoryId, HeldLayout>,
        (blobs, payloads): (Arc<BlobStore>, Arc<PayloadStore>),
    ) -> Self {
        Self { checkpoint, layouts, blobs, payloads, _store: None }
    }

    /// The state in a data folder whose executor is not running; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read. An installation needs none of it.
    pub fn open(data_dir: &Path, limits: &Limits) -> Result<Option<Self>, InstallError> {
        if !data_dir.join("state").exists() || !data_dir.join("pages").exists() {
            return Ok(None);
        }
        let store = StateStore::open(&data_dir.join("state"), limits.pages.metadata_cache_bytes)?;
        let Some(checkpoint) = store.load()? else { return Ok(None) };
        let index: Vec<_> = checkpoint
            .memories()?
            .map(|record| record.map(|(id, (index, bytes))| (id, index, bytes)))
            .collect::<Result<_, _>>()?;
        let pages = PageStore::open(data_dir.join("pages"), &limits.pages, index)?;
        let layouts = pages
            .ids()
            .into_iter()
            .map(|id| Ok((id, crate::hold_newest_layout(&pages, id)?)))
            .collect::<Result<_, PagesError>>()?;
        let blobs = Arc::new(BlobStore::open(
            &data_dir.join("state").join("blobs"),
            blob_bytes_max(limits),
        )?);
        let messages = data_dir.join("state").join(MESSAGES);
        let payloads = Arc::new(PayloadStore::open_on(store.disk().clone(), &messages)?);
        Ok(Some(Self { checkpoint, layouts, blobs, payloads, _store: Some(store) }))
    }

    /// Whether this state has the leaf; then its encoding is in `reader`.
    fn read(
        &self,
        planned: &PlannedObject,
        index: u32,
        hash: &LeafHash,
        reader: &mut LeafReader,
    ) -> Result<bool, InstallError> {
        match planned.id {
            ObjectId::Records => Ok(false),
            ObjectId::Memory(id) => {
                let Some(layout) = self.layouts.get(&id) else { return Ok(false) };
                match self.checkpoint.leaf(id, index)? {
                    KnownLeaf::Zero => return Ok(false),
                    KnownLeaf::Hash(known) if known != *hash => return Ok(false),
                    KnownLeaf::Hash(_) | KnownLeaf::Written => {}
                }
                Ok(reader.read(layout, index)? && leaf_hash(&reader.encoded) == *hash)
            }
            ObjectId::Blob(blob) => {
                if self.blobs.bytes(&blob)? != Some(planned.length) {
                    return Ok(false);
                }
                reader.encoded.resize(planned.leaf_bytes(index) as usize, 0);
                self.blobs.read(
                    &blob,
                    u64::from(index) * LEAF_BYTES as u64,
                    &mut reader.encoded,
                )?;
                Ok(piece_hash(&reader.encoded) == *hash)
            }
            ObjectId::Payload(number) => {
                let mut leaf = std::mem::take(&mut reader.encoded);
                let read = self.payloads.read_if_there(number, planned.length, index, &mut leaf);
                reader.encoded = leaf;
                Ok(read? && piece_hash(&reader.encoded) == *hash)
            }
        }
    }
}

impl std::fmt::Debug for LocalState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalState({:?}, {} memories)", self.checkpoint, self.layouts.len())
    }
}

fn blob_bytes_max(limits: &Limits) -> u64 {
    limits.module.wasm_bytes.max(limits.subnet.chunk_bytes)
}

enum Stage {
    /// Not even the header is there.
    Header,
    /// Pieces of the body are missing.
    Body { header: Header, there: Vec<bool> },
    /// The manifest is there.
    Leaves { header: Header, plan: Plan, cursor: Cursor },
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    object: usize,
    row: u32,
    /// First leaf of the object that was not checked.
    next_index: u32,
    /// Its file was there before, with whatever content.
    existed: bool,
}

/// See the module.
pub struct StateInstaller {
    disk: SharedDisk,
    data_dir: PathBuf,
    staging: Staging,
    height: Height,
    root: LeafHash,
    limits: Arc<Limits>,
    local: Option<LocalState>,
    stage: Stage,
    progress: Progress,
    // One leaf at a time.
    reader: LeafReader,
    buffer: Vec<u8>,
    /// The memory that was touched last.
    memory: Option<(MemoryId, StagedMemory)>,
}

impl StateInstaller {
    /// Begins to install the state of `height` whose manifest has this certified root, or
    /// continues: data that an earlier attempt fetched, for this height or another, is used as far
    /// as it is correct. `local` is a state to copy from.
    ///
    /// # Errors
    /// When the disk fails, or another installation into this directory runs.
    pub fn begin_on(
        disk: SharedDisk,
        data_dir: &Path,
        height: Height,
        root: LeafHash,
        limits: Arc<Limits>,
        local: Option<LocalState>,
    ) -> Result<Self, InstallError> {
        let staging = Staging::open(disk.clone(), data_dir)?;
        let mut installer = Self {
            disk,
            data_dir: data_dir.to_path_buf(),
            staging,
            height,
            root,
            limits,
            local,
            stage: Stage::Header,
            progress: Progress::default(),
            reader: LeafReader::default(),
            buffer: Vec::new(),
            memory: None,
        };
        if let Some(bytes) = installer.staging.header()?.filter(|bytes| root_of(bytes) == root) {
            installer.take_header(&bytes)?;
        }
        installer.count();
        Ok(installer)
    }

    /// Up to `max` chunks to fetch next. Those given before and not offered yet are given again,
    /// first. Looks through a bounded number of leaves per call, copying what this node has, so
    /// it may give none although some are missing: until [`StateInstaller::is_complete`], call
    /// again.
    pub fn missing(&mut self, max: usize) -> Result<Vec<ChunkId>, InstallError> {
        match &mut self.stage {
            Stage::Header => Ok(vec![ChunkId::Manifest(0)]),
            Stage::Body { there, .. } => {
                let missing = (1u32..).zip(there.iter()).filter(|(_, there)| !**there);
                Ok(missing.map(|(index, _)| ChunkId::Manifest(index)).take(max).collect())
            }
            Stage::Leaves { plan, .. } => {
                let mut missing = plan.missing_chunks(max)?;
                let mut checks = LEAF_CHECKS_PER_CALL;
                while missing.len() < max && checks > 0 {
                    checks -= 1;
                    match self.check_next_leaf()? {
                        LeafStatus::Missing(chunk) => missing.push(chunk),
                        LeafStatus::Present => {}
                        LeafStatus::End => break,
                    }
                }
                Ok(missing)
            }
        }
    }

    /// Whether every chunk is there: [`StateInstaller::finish`] can be called.
    pub fn is_complete(&self) -> bool {
        matches!(&self.stage, Stage::Leaves { plan, .. } if plan.missing() == 0)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The height to be installed.
    pub fn height(&self) -> Height {
        self.height
    }

    /// Takes a chunk that [`StateInstaller::missing`] named.
    ///
    /// # Errors
    /// When it is not what the certified root leads to ([`OfferError::Wrong`]), is not
    /// wanted, or cannot be written; in all cases it is as if it had not been offered.
    pub fn offer(&mut self, chunk: ChunkId, bytes: &[u8]) -> Result<(), OfferError> {
        let (wrong, not_wanted) = (OfferError::Wrong(chunk), OfferError::NotWanted(chunk));
        match (&mut self.stage, chunk) {
            (Stage::Header, ChunkId::Manifest(0)) => {
                if root_of(bytes) != self.root {
                    return Err(wrong);
                }
                self.take_header(bytes)?;
            }
            (Stage::Body { header, there }, ChunkId::Manifest(index)) => {
                let piece = index.checked_sub(1);
                let slot = piece.and_then(|piece| there.get_mut(piece as usize));
                let hash = piece.and_then(|piece| header.pieces.get(piece as usize));
                let (Some(piece), Some(slot), Some(hash)) = (piece, slot, hash) else {
                    return Err(not_wanted);
                };
                if *slot {
                    return Err(not_wanted);
                }
                if header.piece_bytes(piece) != Some(bytes.len()) || piece_hash(bytes) != *hash {
                    return Err(wrong);
                }
                self.staging.put_piece(piece, bytes)?;
                *slot = true;
                self.plan_if_complete()?;
            }
            (Stage::Leaves { plan, .. }, ChunkId::Leaf(object, index)) => {
                let Some((planned, ordinal, hash)) = plan.find(object, index)? else {
                    return Err(not_wanted);
                };
                if !plan.is_wanted(ordinal) {
                    return Err(not_wanted);
                }
                let length_fits = match object {
                    ObjectId::Memory(_) => bytes.len() <= state::manifest::CHUNK_BYTES_MAX,
                    _ => stream_leaf_bytes(planned.length, index) == Some(bytes.len()),
                };
                if !length_fits || piece_hash(bytes) != hash {
                    return Err(wrong);
                }
                self.write(&planned, index, bytes)?;
                if let Stage::Leaves { plan, .. } = &mut self.stage {
                    plan.mark_present(ordinal);
                }
                self.progress.bytes_done += planned.leaf_bytes(index);
            }
            _ => return Err(not_wanted),
        }
        self.count();
        Ok(())
    }

    /// Makes the state durable and replaces the old one, which must not be open. On an error before
    /// the swap the old state stays valid and everything fetched is kept; after a crash during the
    /// swap [`complete_install`] completes it. Returns the height of the new state: blocks from the
    /// one behind it on have to be executed.
    ///
    /// # Errors
    /// When chunks are missing, the old state is in use, or the disk fails.
    pub fn finish(mut self) -> Result<Height, InstallError> {
        self.local = None;
        let (disk, data_dir) = (self.disk.clone(), self.data_dir.clone());
        let pages_dir = data_dir.join("pages");
        if pages::is_in_use(&pages_dir)? {
            return Err(InstallError::InUse { path: pages_dir });
        }
        let installed = self.prepare()?;
        complete_install_on(disk.as_ref(), &data_dir)?;
        Ok(installed)
    }

    /// Makes the state durable and complete alongside the old one, which may be in use. From here
    /// on the new state is valid: the next [`complete_install`] puts it in place, and changes of
    /// the old one until then are lost.
    ///
    /// # Errors
    /// When chunks are missing or the disk fails: then the old state stays valid, and everything
    /// fetched is kept.
    pub fn prepare(mut self) -> Result<Height, InstallError> {
        let Stage::Leaves { header, plan, .. } = &self.stage else {
            return Err(InstallError::Incomplete { missing: 1 });
        };
        if plan.missing() > 0 {
            return Err(InstallError::Incomplete { missing: plan.missing() });
        }
        self.local = None;
        self.memory = None;
        self.build_store(header, plan)?;
        self.staging.sync(plan)?;
        self.staging.complete()?;
        Ok(self.height)
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<(), InstallError> {
        let header = Header::from_bytes(bytes)?;
        if header.height != self.height {
            return Err(InstallError::Height { manifest: header.height, records: self.height });
        }
        self.staging.put_header(bytes, header.body_bytes)?;
        let there = self.staging.pieces_there(&header)?;
        self.stage = Stage::Body { header, there };
        self.plan_if_complete()
    }

    fn plan_if_complete(&mut self) -> Result<(), InstallError> {
        let Stage::Body { header, there } = &self.stage else { return Ok(()) };
        if there.contains(&false) {
            return Ok(());
        }
        let header = header.clone();
        let plan = Plan::read(self.staging.body()?, header.body_bytes, &self.limits)?;
        self.staging.retain(&plan)?;
        self.progress.bytes_total = plan.bytes_total;
        self.stage = Stage::Leaves { header, plan, cursor: Cursor::default() };
        Ok(())
    }

    fn count(&mut self) {
        let (done, total) = match &self.stage {
            Stage::Header => (0, 1),
            Stage::Body { there, .. } => {
                (1 + there.iter().filter(|there| **there).count() as u64, 1 + there.len() as u64)
            }
            Stage::Leaves { header, plan, .. } => {
                let manifest = 1 + header.pieces.len() as u64;
                (manifest + plan.leaves - plan.missing(), manifest + plan.leaves)
            }
        };
        debug_assert!(done <= total, "{done} of {total} chunks are there");
        self.progress.chunks_done = done;
        self.progress.chunks_total = total;
    }

    /// Checks the next leaf: whether it is there, can be copied, or is missing.
    fn check_next_leaf(&mut self) -> Result<LeafStatus, InstallError> {
        let Stage::Leaves { plan, cursor, .. } = &mut self.stage else {
            return Ok(LeafStatus::End);
        };
        let Some(planned) = plan.object(cursor.object) else { return Ok(LeafStatus::End) };
        if cursor.row == 0 && cursor.next_index == 0 {
            cursor.existed = match planned.id {
                ObjectId::Memory(id) => {
                    let (memory, existed) = self.staging.memory(id, planned.length)?;
                    self.memory = Some((id, memory));
                    existed
                }
                id => self.staging.stream(id, planned.length)?.1,
            };
        }
        let at = *cursor;
        if at.row == planned.leaves {
            *cursor = Cursor { object: at.object + 1, ..Cursor::default() };
            if at.existed {
                let end = u32::try_from(leaves_of(planned.length)).unwrap_or(u32::MAX);
                self.clear(&planned, at.next_index, end)?;
            }
            return Ok(LeafStatus::Present);
        }
        let (index, hash) = plan.row(&planned, at.row)?;
        if at.existed {
            self.clear(&planned, at.next_index, index)?;
        }
        let found = (at.existed && self.is_staged(&planned, index, &hash)?)
            || self.copy_local(&planned, index, &hash)?;
        let Stage::Leaves { plan, cursor, .. } = &mut self.stage else {
            return Ok(LeafStatus::End);
        };
        let ordinal = planned.first + u64::from(at.row);
        cursor.row += 1;
        cursor.next_index = index + 1;
        if !found {
            plan.mark_missing(ordinal);
            return Ok(LeafStatus::Missing(ChunkId::Leaf(planned.id, index)));
        }
        plan.mark_present(ordinal);
        self.progress.bytes_done += planned.leaf_bytes(index);
        self.progress.bytes_reused += planned.leaf_bytes(index);
        self.count();
        Ok(LeafStatus::Present)
    }

    /// Makes the leaves from one up to another zero, in a memory whose file was there before.
    fn clear(&mut self, planned: &PlannedObject, from: u32, to: u32) -> Result<(), InstallError> {
        let ObjectId::Memory(id) = planned.id else { return Ok(()) };
        let end = (u64::from(to) * LEAF_BYTES as u64).min(planned.length);
        let start = (u64::from(from) * LEAF_BYTES as u64).min(end);
        self.memory(id, planned.length)?.clear(start, end - start)?;
        Ok(())
    }

    fn memory(&mut self, id: MemoryId, length: u64) -> Result<&StagedMemory, InstallError> {
        let memory = match self.memory.take() {
            Some((open, memory)) if open == id => memory,
            _ => self.staging.memory(id, length)?.0,
        };
        Ok(&self.memory.insert((id, memory)).1)
    }

    /// Whether the leaf is in the staging files already. If they hold anything else there, it is
    /// cleared.
    fn is_staged(
        &mut self,
        planned: &PlannedObject,
        index: u32,
        hash: &LeafHash,
    ) -> Result<bool, InstallError> {
        let start = u64::from(index) * LEAF_BYTES as u64;
        let bytes = (planned.length - start).min(LEAF_BYTES as u64);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(bytes as usize, 0);
        let found = if let ObjectId::Memory(id) = planned.id {
            self.memory(id, planned.length)?.read(start, &mut buffer)?;
            let is_zero = !encode_leaf(&buffer, &mut self.reader.encoded);
            let found = !is_zero && leaf_hash(&self.reader.encoded) == *hash;
            if !found && !is_zero {
                self.memory(id, planned.length)?.clear(start, bytes)?;
            }
            found
        } else {
            self.staging.stream(planned.id, planned.length)?.0.read(start, &mut buffer)?;
            piece_hash(&buffer) == *hash
        };
        self.buffer = buffer;
        Ok(found)
    }

    /// Copies the leaf from this node's own state if that has it.
    fn copy_local(
        &mut self,
        planned: &PlannedObject,
        index: u32,
        hash: &LeafHash,
    ) -> Result<bool, InstallError> {
        let Some(local) = &self.local else { return Ok(false) };
        let mut reader = std::mem::take(&mut self.reader);
        let found = local.read(planned, index, hash, &mut reader);
        let result = match found {
            Ok(true) => self.write(planned, index, &reader.encoded).map(|()| true),
            Ok(false) => Ok(false),
            Err(error) => {
                tracing::warn!(%error, "this node's own state cannot be read: everything is fetched");
                self.local = None;
                Ok(false)
            }
        };
        self.reader = reader;
        result
    }

    /// Writes a leaf whose hash was checked.
    fn write(
        &mut self,
        planned: &PlannedObject,
        index: u32,
        bytes: &[u8],
    ) -> Result<(), InstallError> {
        let start = u64::from(index) * LEAF_BYTES as u64;
        let ObjectId::Memory(id) = planned.id else {
            return self.staging.stream(planned.id, planned.length)?.0.write(start, bytes);
        };
        let pages = (planned.length - start).min(LEAF_BYTES as u64) / PAGE_BYTES;
        let runs = unpack_leaf(bytes, pages as u32)?;
        let memory = self.memory(id, planned.length)?;
        for (page, content) in runs {
            memory.write(start + page * PAGE_BYTES, content)?;
        }
        Ok(())
    }

    /// Makes the store out of the records and the manifest.
    fn build_store(&self, header: &Header, plan: &Plan) -> Result<(), InstallError> {
        let mut builder = StoreBuilder::create_on(
            self.disk.as_ref(),
            &self.staging.state_dir(),
            STORE_CACHE_BYTES,
        )?;
        let mut rows = self.staging.records(plan)?;
        let (mut at, mut leaf) = (0u64, 0u32);
        let mut framed = Vec::new();
        while let Some(row) = rows.next_row()? {
            if row.kind == RowKind::Metadata && row.number == 0 {
                self.check_height(&row.content)?;
            }
            framed.clear();
            row.append_to(&mut framed);
            let end = at + framed.len() as u64;
            while u64::from(leaf) * (LEAF_BYTES as u64) < end {
                let skip = (u64::from(leaf) * LEAF_BYTES as u64 - at) as u32;
                let start =
                    RowAt { kind: row.kind, key: row.key.clone(), number: row.number, skip };
                builder.start(leaf, &start)?;
                leaf += 1;
            }
            at = end;
            builder.row(&row)?;
        }
        let mut batch = Vec::with_capacity(ROWS_AT_ONCE);
        for planned in &plan.objects {
            match planned.id {
                ObjectId::Records | ObjectId::Payload(_) => {}
                ObjectId::Memory(id) => {
                    builder.memory(id, planned.length)?;
                    for row in 0..planned.leaves {
                        batch.push(plan.row(planned, row)?);
                        if batch.len() == ROWS_AT_ONCE || row + 1 == planned.leaves {
                            builder.leaves(id, &batch)?;
                            batch.clear();
                        }
                    }
                }
                ObjectId::Blob(hash) => {
                    for row in 0..planned.leaves {
                        let (index, leaf) = plan.row(planned, row)?;
                        builder.blob_leaf(&hash, index, &leaf)?;
                    }
                }
            }
        }
        for (index, _) in (0u32..).zip(&header.pieces) {
            builder.piece(index, &self.staging.piece(header, index)?)?;
        }
        builder.finish(self.height, header)?;
        Ok(())
    }

    /// The subnet's record begins with the height.
    fn check_height(&self, metadata: &[u8]) -> Result<(), InstallError> {
        let found =
            postcard::take_from_bytes::<Height>(metadata).map_or(Height(0), |(height, _)| height);
        if found == self.height {
            return Ok(());
        }
        Err(InstallError::Height { manifest: self.height, records: found })
    }
}

impl std::fmt::Debug for StateInstaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateInstaller(height {}, {:?})", self.height.0, self.progress)
    }
}

enum LeafStatus {
    Missing(ChunkId),
    Present,
    End,
}
