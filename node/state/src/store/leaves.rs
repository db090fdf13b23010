//! Manifest data in the store: the hashes of leaves, so that only changed leaves are hashed again,
//! and the newest manifest, so that it can be served.
//!
//! - `leaves`: of each memory, by index: a hash, or nothing for a leaf that was written since it
//!   was hashed. A leaf that is not there was never written, or was found to be zero. A checkpoint
//!   marks the leaves it covers in the transaction that names their pages, so the two never differ.
//! - `blob_leaves`: of each blob; blobs do not change.
//! - `body` and `starts`: the body of the newest manifest in small rows, and where in the records
//!   each leaf of them begins.
//!
//! Hashes are this node's work, kept to be used again; nothing in here is part of the replicated
//! state.

use std::ops::Range;

use pages::MemoryId;
use redb::{TableDefinition, WriteTransaction};

use super::{
    Failure, HEADS, LoadedCheckpoint, MANIFEST_KEY, StateStore, StoreError, StoreResult, encode,
    guard,
    parts::{self, Records, Tally},
    rows::RowAt,
};
use crate::{
    blobs::BlobHash,
    manifest::{Header, LeafHash, PIECE_BYTES, PieceSink},
};

/// (memory, leaf) to its hash, or to nothing when it has to be hashed.
pub(super) const LEAVES: TableDefinition<'static, (u64, u32), &'static [u8]> =
    TableDefinition::new("leaves");
/// (blob, leaf) to its hash.
pub(super) const BLOB_LEAVES: TableDefinition<'static, (&'static [u8], u32), &'static [u8]> =
    TableDefinition::new("blob_leaves");
/// (piece, part) of the newest manifest's body.
pub(super) const BODY: TableDefinition<'static, (u32, u32), &'static [u8]> =
    TableDefinition::new("body");
/// Leaf of the records to where it begins.
pub(super) const STARTS: TableDefinition<'static, u32, &'static [u8]> =
    TableDefinition::new("starts");

/// A row of the body's table: with its key within four pages of the database, which takes powers of
/// two.
const BODY_PART_BYTES: usize = 15 << 10;
const _: () = assert!(BODY_PART_BYTES + size_of::<(u32, u32)>() <= 4 * 4096);

/// State of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownLeaf {
    /// Zero from end to end.
    Zero,
    /// Written since it was hashed.
    Written,
    /// Of this hash.
    Hash(LeafHash),
}

/// Marks leaves as written. In the transaction of the checkpoint that covers them.
pub(super) fn mark_written(
    transaction: &WriteTransaction,
    written: &[(MemoryId, Vec<Range<u32>>)],
) -> Result<(), Failure> {
    let mut table = transaction.open_table(LEAVES)?;
    for (id, ranges) in written {
        for leaf in ranges.iter().cloned().flatten() {
            table.insert((id.0, leaf), [].as_slice())?;
        }
    }
    Ok(())
}

pub(super) fn forget(transaction: &WriteTransaction, id: MemoryId) -> Result<(), Failure> {
    transaction.open_table(LEAVES)?.retain_in((id.0, 0)..=(id.0, u32::MAX), |_, _| false)?;
    Ok(())
}

fn hash(value: &[u8]) -> Result<LeafHash, Failure> {
    value
        .try_into()
        .map_err(|_| Failure::Corrupt(format!("the hash of a leaf has {} bytes", value.len())))
}

impl StateStore {
    /// Keeps what hashing found: a hash, or `None` for a leaf that is zero. Durable when it
    /// returns.
    pub fn put_leaves(
        &self,
        leaves: &[(MemoryId, u32, Option<LeafHash>)],
    ) -> Result<(), StoreError> {
        self.transact(|transaction| {
            let mut table = transaction.open_table(LEAVES)?;
            for (id, leaf, hash) in leaves {
                match hash {
                    Some(hash) => drop(table.insert((id.0, *leaf), hash.as_slice())?),
                    None => drop(table.remove((id.0, *leaf))?),
                }
            }
            Ok(())
        })
    }

    /// Replaces the manifest by what `make` writes and returns; all of it or, on an error of either
    /// kind, nothing.
    pub fn put_manifest<E>(
        &self,
        make: impl FnOnce(&mut ManifestWriter<'_>) -> Result<Header, E>,
    ) -> Result<Result<Header, E>, StoreError> {
        let mut refused = None;
        let written = self.transact(|transaction| {
            transaction.open_table(BODY)?.retain(|_, _| false)?;
            transaction.open_table(STARTS)?.retain(|_, _| false)?;
            let mut writer = ManifestWriter::new(transaction)?;
            let made = make(&mut writer);
            if let Some(failure) = writer.failure.take() {
                return Err(failure);
            }
            drop(writer);
            match made {
                Ok(header) => {
                    write_header(transaction, &header)?;
                    Ok(header)
                }
                Err(error) => {
                    refused = Some(error);
                    Err(Failure::GivenUp)
                }
            }
        });
        match (written, refused) {
            (_, Some(error)) => Ok(Err(error)),
            (Ok(header), None) => Ok(Ok(header)),
            (Err(error), None) => Err(error),
        }
    }
}

pub(super) fn write_header(transaction: &WriteTransaction, header: &Header) -> Result<(), Failure> {
    let mut table = transaction.open_table(HEADS)?;
    parts::put(&mut table, &mut Tally::default(), MANIFEST_KEY, Some(&header.to_bytes()))
}

/// Writes a manifest's parts within one transaction. An error of the disk is remembered and ends
/// the whole; until then calls do nothing.
pub struct ManifestWriter<'t> {
    body: redb::Table<'t, (u32, u32), &'static [u8]>,
    starts: redb::Table<'t, u32, &'static [u8]>,
    blobs: redb::Table<'t, (&'static [u8], u32), &'static [u8]>,
    failure: Option<Failure>,
}

/// The store failed; [`StateStore::put_manifest`] says how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFailed;

impl<'t> ManifestWriter<'t> {
    pub(super) fn new(transaction: &'t WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            body: transaction.open_table(BODY)?,
            starts: transaction.open_table(STARTS)?,
            blobs: transaction.open_table(BLOB_LEAVES)?,
            failure: None,
        })
    }

    fn run(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), WriteFailed> {
        if self.failure.is_some() {
            return Err(WriteFailed);
        }
        work(self).map_err(|failure| {
            self.failure = Some(failure);
            WriteFailed
        })
    }

    pub(super) fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// Where a leaf of the records begins.
    pub fn start(&mut self, leaf: u32, at: &RowAt) -> Result<(), WriteFailed> {
        self.run(|writer| {
            let bytes = encode(at)?;
            writer.starts.insert(leaf, bytes.as_slice())?;
            Ok(())
        })
    }

    /// Leaf of a blob.
    pub fn blob_leaf(
        &mut self,
        blob: &BlobHash,
        leaf: u32,
        hash: &LeafHash,
    ) -> Result<(), WriteFailed> {
        self.run(|writer| {
            writer.blobs.insert((blob.as_slice(), leaf), hash.as_slice())?;
            Ok(())
        })
    }

    /// Forgets the leaves of blobs that `live` is not true of.
    pub fn retain_blobs(&mut self, live: impl Fn(&[u8]) -> bool) -> Result<(), WriteFailed> {
        self.run(|writer| Ok(writer.blobs.retain(|(blob, _), _| live(blob))?))
    }
}

impl PieceSink for ManifestWriter<'_> {
    type Error = WriteFailed;

    fn piece(&mut self, index: u32, bytes: &[u8]) -> Result<(), WriteFailed> {
        debug_assert!(bytes.len() <= PIECE_BYTES, "a piece of {} bytes", bytes.len());
        self.run(|writer| {
            for (number, part) in (0u32..).zip(bytes.chunks(BODY_PART_BYTES)) {
                writer.body.insert((index, number), part)?;
            }
            Ok(())
        })
    }
}

impl LoadedCheckpoint {
    /// Leaves that have to be hashed, by memory and index.
    pub fn written_leaves(
        &self,
    ) -> Result<impl Iterator<Item = StoreResult<(MemoryId, u32)>> + '_, StoreError> {
        let mut range = guard(&self.path, || {
            Ok(self.transaction.open_table(LEAVES)?.range::<(u64, u32)>(..)?)
        })?;
        Ok(std::iter::from_fn(move || {
            loop {
                let next = guard(&self.path, || {
                    let Some(entry) = range.next() else { return Ok(None) };
                    let (key, value) = entry?;
                    Ok(Some((key.value(), value.value().is_empty())))
                });
                match next.transpose()? {
                    Ok(((id, leaf), true)) => return Some(Ok((MemoryId(id), leaf))),
                    Ok((_, false)) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
        }))
    }

    /// Hashes of the leaves of a memory that are not zero, given to `each` in order after their
    /// number.
    ///
    /// # Errors
    /// When one of them has to be hashed first, or `each` fails.
    pub fn memory_leaves(
        &self,
        id: MemoryId,
        each: impl FnMut(MemoryRow) -> Result<(), WriteFailed>,
    ) -> Result<Result<(), WriteFailed>, StoreError> {
        let mut each = each;
        guard(&self.path, || {
            let table = self.transaction.open_table(LEAVES)?;
            let range = || table.range((id.0, 0)..=(id.0, u32::MAX));
            let count = u32::try_from(range()?.count()).unwrap_or(u32::MAX);
            if each(MemoryRow::Count(count)).is_err() {
                return Ok(Err(WriteFailed));
            }
            for entry in range()? {
                let (key, value) = entry?;
                let row = MemoryRow::Leaf(key.value().1, hash(value.value())?);
                if each(row).is_err() {
                    return Ok(Err(WriteFailed));
                }
            }
            Ok(Ok(()))
        })
    }

    /// State of one leaf.
    pub fn leaf(&self, id: MemoryId, leaf: u32) -> Result<KnownLeaf, StoreError> {
        guard(&self.path, || {
            let table = self.transaction.open_table(LEAVES)?;
            let value = table.get((id.0, leaf))?;
            match value.as_ref().map(redb::AccessGuard::value) {
                None => Ok(KnownLeaf::Zero),
                Some([]) => Ok(KnownLeaf::Written),
                Some(value) => Ok(KnownLeaf::Hash(hash(value)?)),
            }
        })
    }

    /// Hashes of the leaves of a blob, in order; empty if they were never computed.
    pub fn blob_leaves(&self, blob: &BlobHash) -> Result<Vec<LeafHash>, StoreError> {
        guard(&self.path, || {
            let table = self.transaction.open_table(BLOB_LEAVES)?;
            let mut hashes = Vec::new();
            for entry in table.range((blob.as_slice(), 0)..=(blob.as_slice(), u32::MAX))? {
                let (key, value) = entry?;
                if key.value().1 as usize != hashes.len() {
                    return Err(Failure::Corrupt("a leaf of a blob is missing".into()));
                }
                hashes.push(hash(value.value())?);
            }
            Ok(hashes)
        })
    }

    /// The encoded header of the newest manifest, if there is one. Of a height at or below the
    /// checkpoint's.
    pub fn manifest_header(&self) -> Result<Option<Vec<u8>>, StoreError> {
        guard(&self.path, || Records::read_record(&self.transaction, HEADS, MANIFEST_KEY))
    }

    /// A piece of its body; empty if there is none.
    pub fn manifest_piece(&self, index: u32) -> Result<Vec<u8>, StoreError> {
        guard(&self.path, || {
            let table = self.transaction.open_table(BODY)?;
            let mut piece = Vec::new();
            for entry in table.range((index, 0)..=(index, u32::MAX))? {
                piece.extend_from_slice(entry?.1.value());
                if piece.len() > PIECE_BYTES {
                    return Err(Failure::Corrupt("a piece of the manifest is too long".into()));
                }
            }
            Ok(piece)
        })
    }

    /// Where a leaf of the records begins; `None` beyond their end.
    pub fn manifest_start(&self, leaf: u32) -> Result<Option<RowAt>, StoreError> {
        guard(&self.path, || {
            let table = self.transaction.open_table(STARTS)?;
            let Some(value) = table.get(leaf)? else { return Ok(None) };
            match postcard::from_bytes(value.value()) {
                Ok(at) => Ok(Some(at)),
                Err(error) => Err(Failure::Corrupt(format!("the place of a leaf: {error}"))),
            }
        })
    }
}

/// What [`LoadedCheckpoint::memory_leaves`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRow {
    /// First: how many follow.
    Count(u32),
    /// Number of the leaf in the memory, and its hash.
    Leaf(u32, LeafHash),
}
