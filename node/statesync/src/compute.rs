//! Computing a manifest: hashing the leaves that were written, the records and new blobs, and
//! laying the body down in the store. In steps, so that it can be stopped; whatever was hashed
//! before stays.

use std::sync::atomic::{AtomicBool, Ordering};

use pages::{MemoryId, MemoryLayout, PAGE_BYTES, PagesError, read_pages};
use sha2::{Digest, Sha256};
use state::manifest::{
    BodyEncoder, Header, LEAF_BYTES, LeafHash, ObjectId, encode_leaf, leaf_hash, piece_hash,
    stream_leaf_bytes,
};
use state::store::{LoadedCheckpoint, ManifestWriter, MemoryRow, WriteFailed};
use state::{BlobError, BlobHash, BlobStore, Height, StateStore};

use crate::error::ManifestError;
use crate::snapshot::PinnedFiles;

/// Leaves hashed between two transactions.
pub(crate) const BATCH_LEAVES: usize = 4096;

/// A state to be hashed. Its checkpoint is the newest in the store and stays it until this is done.
pub struct Job {
    /// Height of the checkpoint.
    pub height: Height,
    /// The files behind its state.
    pub pinned: PinnedFiles,
}

pub(crate) enum Failure {
    Stopped,
    /// The store failed; it reports the error.
    Write,
    Error(ManifestError),
}

impl<E: Into<ManifestError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl From<WriteFailed> for Failure {
    fn from(_: WriteFailed) -> Self {
        Self::Write
    }
}

/// Reads leaves of memories through one buffer.
pub(crate) struct LeafReader {
    pages: Vec<u8>,
    pub(crate) encoded: Vec<u8>,
}

impl Default for LeafReader {
    fn default() -> Self {
        Self { pages: vec![0; LEAF_BYTES], encoded: Vec::new() }
    }
}

impl LeafReader {
    /// Encodes leaf `index` of a memory into `self.encoded`; false if it is zero or not there.
    pub(crate) fn read(&mut self, layout: &MemoryLayout, index: u32) -> Result<bool, PagesError> {
        let start = u64::from(index) * LEAF_BYTES as u64;
        let bytes = layout.base_bytes.saturating_sub(start).min(LEAF_BYTES as u64);
        let pages = self.pages.get_mut(..bytes as usize).unwrap_or_default();
        read_pages(layout, start / PAGE_BYTES, pages)?;
        Ok(encode_leaf(pages, &mut self.encoded))
    }
}

/// Computes the manifest of the newest checkpoint, keeps it in the store and returns its header.
pub(crate) fn compute(store: &StateStore, job: &Job, stop: &AtomicBool) -> Result<Header, Failure> {
    let check_stop = || if stop.load(Ordering::Relaxed) { Err(Failure::Stopped) } else { Ok(()) };
    hash_memories(store, job, &check_stop)?;
    let checkpoint = loaded(store, job.height)?;
    store.put_manifest(|writer| write_manifest(&checkpoint, job, writer, &check_stop))?
}

fn loaded(store: &StateStore, height: Height) -> Result<LoadedCheckpoint, Failure> {
    match store.load()? {
        Some(checkpoint) if checkpoint.height == height => Ok(checkpoint),
        other => {
            let found = other.map_or(0, |checkpoint| checkpoint.height.0);
            Err(ManifestError::OtherHeight { height: height.0, found }.into())
        }
    }
}

/// Hashes the leaves that were written since they were hashed last.
fn hash_memories(
    store: &StateStore,
    job: &Job,
    check_stop: &impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let checkpoint = loaded(store, job.height)?;
    let mut reader = LeafReader::default();
    let mut batch: Vec<(MemoryId, u32, Option<LeafHash>)> = Vec::new();
    for leaf in checkpoint.written_leaves()? {
        check_stop()?;
        let (id, index) = leaf?;
        // A memory without a canister is not part of the state.
        let hash = match job.pinned.layouts.get(&id) {
            Some(layout) if reader.read(layout, index)? => Some(leaf_hash(&reader.encoded)),
            _ => None,
        };
        batch.push((id, index, hash));
        if batch.len() == BATCH_LEAVES {
            store.put_leaves(&batch)?;
            batch.clear();
        }
    }
    if !batch.is_empty() {
        store.put_leaves(&batch)?;
    }
    Ok(())
}

fn write_manifest(
    checkpoint: &LoadedCheckpoint,
    job: &Job,
    writer: &mut ManifestWriter<'_>,
    check_stop: &impl Fn() -> Result<(), Failure>,
) -> Result<Header, Failure> {
    let PinnedFiles { layouts, blobs, blob_store, payloads, .. } = &job.pinned;
    writer.retain_blobs(|blob| BlobHash::try_from(blob).is_ok_and(|hash| blobs.contains(&hash)))?;
    let mut body = BodyEncoder::default();
    let (length, hashes) = hash_records(checkpoint, writer, check_stop)?;
    body.object(writer, &ObjectId::Records, length, hashes.len() as u32)?;
    for (index, hash) in (0..).zip(&hashes) {
        body.leaf(writer, index, hash)?;
    }
    drop(hashes);
    for (id, layout) in layouts {
        check_stop()?;
        checkpoint.memory_leaves(*id, |row| match row {
            MemoryRow::Count(count) => {
                let most = layout.base_bytes.div_ceil(LEAF_BYTES as u64);
                assert!(u64::from(count) <= most, "{count} leaves of a memory that has {most}");
                body.object(writer, &ObjectId::Memory(*id), layout.base_bytes, count)
            }
            MemoryRow::Leaf(index, hash) => body.leaf(writer, index, &hash),
        })??;
    }
    for blob in blobs {
        check_stop()?;
        let (length, hashes) = hash_blob(checkpoint, blob_store, writer, blob)?;
        body.object(writer, &ObjectId::Blob(*blob), length, hashes.len() as u32)?;
        for (index, hash) in (0..).zip(&hashes) {
            body.leaf(writer, index, hash)?;
        }
    }
    for payload in payloads {
        // Their hashes are known since they were written.
        let leaves = payload.leaves.len() as u32;
        body.object(writer, &ObjectId::Payload(payload.number), payload.bytes, leaves)?;
        for (index, hash) in (0..).zip(&payload.leaves) {
            body.leaf(writer, index, hash)?;
        }
    }
    Ok(body.finish(writer, job.height)?)
}

/// Hashes the stream of records, notes where its leaves begin, and returns its length and hashes.
fn hash_records(
    checkpoint: &LoadedCheckpoint,
    writer: &mut ManifestWriter<'_>,
    check_stop: &impl Fn() -> Result<(), Failure>,
) -> Result<(u64, Vec<LeafHash>), Failure> {
    let mut stream = checkpoint.row_stream(None);
    let (mut leaf, mut hashes, mut length) = (Vec::with_capacity(LEAF_BYTES), Vec::new(), 0);
    while let Some(start) = stream.leaf(&mut leaf, LEAF_BYTES)? {
        check_stop()?;
        writer.start(u32::try_from(hashes.len()).unwrap_or(u32::MAX), &start)?;
        hashes.push(piece_hash(&leaf));
        length += leaf.len() as u64;
    }
    debug_assert_eq!(
        hashes.len() as u64,
        state::manifest::leaves_of(length),
        "leaves of records of {length} bytes"
    );
    Ok((length, hashes))
}

/// Length and hashes of a blob, from the store if they are there.
fn hash_blob(
    checkpoint: &LoadedCheckpoint,
    blob_store: &BlobStore,
    writer: &mut ManifestWriter<'_>,
    blob: &BlobHash,
) -> Result<(u64, Vec<LeafHash>), Failure> {
    let damaged = || BlobError::Corrupt { path: blob_store.path(blob) };
    let length = blob_store.bytes(blob)?.ok_or_else(damaged)?;
    let known = checkpoint.blob_leaves(blob)?;
    if known.len() as u64 == state::manifest::leaves_of(length) {
        return Ok((length, known));
    }
    let (mut whole, mut leaf, mut hashes) = (Sha256::new(), Vec::new(), Vec::new());
    for index in 0u32.. {
        let Some(bytes) = stream_leaf_bytes(length, index) else { break };
        leaf.resize(bytes, 0);
        blob_store.read(blob, u64::from(index) * LEAF_BYTES as u64, &mut leaf)?;
        whole.update(&leaf);
        let hash = piece_hash(&leaf);
        writer.blob_leaf(blob, index, &hash)?;
        hashes.push(hash);
    }
    debug_assert_eq!(
        hashes.len() as u64,
        state::manifest::leaves_of(length),
        "leaves of a blob of {length} bytes"
    );
    if BlobHash::from(whole.finalize()) != *blob {
        return Err(damaged().into());
    }
    Ok((length, hashes))
}
