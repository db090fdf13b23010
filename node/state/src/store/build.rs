//! A store built from fetched data: the rows of a stream, memories that are only in their base
//! files, hashes that were checked already. Written in several transactions, because nothing opens
//! the file before it is complete: the header is written last, and a file without it is reported as
//! damaged.

use std::path::Path;

use disk::{Disk, if_there};
use pages::{MemoryId, MemoryIndex};
use redb::{Database, WriteTransaction};

use super::{
    FORMAT, Failure, HEADER_KEY, HEADS, Header, MEMORIES, NUMBERS, StoreError,
    backend::Backend,
    create_tables, encode, guard,
    leaves::{self, LEAVES, ManifestWriter},
    parts::{self, Tally},
    rows::{Row, RowAt, RowKind},
};
use crate::{
    Height,
    blobs::BlobHash,
    manifest::{self, LeafHash, PieceSink},
};

/// Bytes written between two transactions.
const BATCH_BYTES: u64 = 4 << 20;

/// A store being built.
pub struct StoreBuilder {
    path: std::path::PathBuf,
    database: Database,
    transaction: Option<WriteTransaction>,
    header: Header,
    metadata_sum: crc32fast::Hasher,
    batch_bytes: u64,
}

impl StoreBuilder {
    /// Begins a new store in `dir`, in place of whatever store is there. Caches at most
    /// `cache_bytes`. Nothing keeps a second process out: the builder must hold a lock of its own.
    pub fn create_on(disk: &dyn Disk, dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let path = dir.join(super::FILE_NAME);
        let database = guard(&path, || {
            if_there(disk.remove(&path))?;
            let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            let database = builder.create_with_backend(Backend::open(disk, &path)?)?;
            let transaction = database.begin_write()?;
            create_tables(&transaction)?;
            transaction.commit()?;
            Ok(database)
        })?;
        Ok(Self {
            path,
            database,
            transaction: None,
            header: Header::default(),
            metadata_sum: crc32fast::Hasher::new(),
            batch_bytes: 0,
        })
    }

    fn write<R>(
        &mut self,
        bytes: u64,
        work: impl FnOnce(&WriteTransaction, &mut Header) -> Result<R, Failure>,
    ) -> Result<R, StoreError> {
        let Self { path, database, transaction, header, batch_bytes, .. } = self;
        guard(path, || {
            let open = match transaction.take() {
                Some(open) => open,
                None => {
                    let mut open = database.begin_write()?;
                    open.set_quick_repair(true);
                    open
                }
            };
            let result = work(&open, header)?;
            *batch_bytes += bytes;
            if *batch_bytes >= BATCH_BYTES {
                *batch_bytes = 0;
                open.commit()?;
            } else {
                *transaction = Some(open);
            }
            Ok(result)
        })
    }

    /// The next row of the stream.
    pub fn row(&mut self, row: &Row) -> Result<(), StoreError> {
        if row.kind == RowKind::Metadata {
            self.metadata_sum.update(&row.content);
        }
        self.write(row.content.len() as u64 + 64, |transaction, header| {
            let mut untallied = Tally::default();
            let tally = match row.kind {
                RowKind::Metadata => &mut untallied,
                RowKind::Canister => &mut header.canisters,
                RowKind::Message => &mut header.messages,
                RowKind::History => &mut header.history,
            };
            let mut table = transaction.open_table(row.kind.table())?;
            // The store is new: no other record had this key.
            parts::put_part(&mut table, tally, &row.key, row.number, row.last, &row.content)?;
            Ok(())
        })
    }

    /// A memory all of whose pages are in its base file.
    pub fn memory(&mut self, id: MemoryId, base_bytes: u64) -> Result<(), StoreError> {
        self.write(64, |transaction, header| {
            let record = encode(&(MemoryIndex::default(), base_bytes))?;
            let mut table = transaction.open_table(MEMORIES)?;
            parts::put(&mut table, &mut header.memories, &id.0.to_be_bytes(), Some(&record))
        })
    }

    /// Hashes of leaves of a memory, by rising index.
    pub fn leaves(&mut self, id: MemoryId, rows: &[(u32, LeafHash)]) -> Result<(), StoreError> {
        self.write(64 * rows.len() as u64, |transaction, _| {
            let mut table = transaction.open_table(LEAVES)?;
            for (leaf, hash) in rows {
                table.insert((id.0, *leaf), hash.as_slice())?;
            }
            Ok(())
        })
    }

    /// A leaf of a blob.
    pub fn blob_leaf(
        &mut self,
        blob: &BlobHash,
        leaf: u32,
        hash: &LeafHash,
    ) -> Result<(), StoreError> {
        self.manifest(128, |writer| writer.blob_leaf(blob, leaf, hash))
    }

    /// A piece of the manifest's body.
    pub fn piece(&mut self, index: u32, bytes: &[u8]) -> Result<(), StoreError> {
        self.manifest(bytes.len() as u64, |writer| writer.piece(index, bytes))
    }

    /// Where a leaf of the records begins.
    pub fn start(&mut self, leaf: u32, at: &RowAt) -> Result<(), StoreError> {
        self.manifest(128, |writer| writer.start(leaf, at))
    }

    fn manifest(
        &mut self,
        bytes: u64,
        work: impl FnOnce(&mut ManifestWriter<'_>) -> Result<(), leaves::WriteFailed>,
    ) -> Result<(), StoreError> {
        self.write(bytes, |transaction, _| {
            let mut writer = ManifestWriter::new(transaction)?;
            let _ = work(&mut writer);
            writer.failure().map_or(Ok(()), Err)
        })
    }

    /// Completes the store: its checkpoint is of this height and its manifest has this header.
    /// Durable when it returns, but for the file's name.
    pub fn finish(mut self, height: Height, manifest: &manifest::Header) -> Result<(), StoreError> {
        let metadata_sum = self.metadata_sum.clone().finalize();
        self.write(BATCH_BYTES, |transaction, header| {
            header.height = height;
            header.metadata_sum = metadata_sum;
            leaves::write_header(transaction, manifest)?;
            let mut table = transaction.open_table(HEADS)?;
            let header = encode(header)?;
            parts::put(&mut table, &mut Tally::default(), HEADER_KEY, Some(&header))?;
            transaction.open_table(NUMBERS)?.insert("format", u64::from(FORMAT))?;
            Ok(())
        })
    }
}
