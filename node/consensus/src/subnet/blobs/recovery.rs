//! Reading the log when it is opened.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::{
    DiskFile, SharedDisk, if_there,
    records::{End, HEAD_BYTES, HEADER_BYTES, Reader, RecordError},
};

use super::{
    index::{Blob, Extent, Index},
    log::{Segment, open_segment},
    record::{KIND, Record, WRITE_HEAD_BYTES},
};

fn damaged<T>(path: &Path, offset: u64, what: impl Into<String>) -> Result<T, RecordError> {
    Err(RecordError::Damaged { path: path.to_path_buf(), offset, what: what.into() })
}

/// Reads the segments, oldest first.
#[derive(Default)]
pub(super) struct Recovery {
    pub(super) index: Index,
    pub(super) segments: VecDeque<Segment>,
    /// Of the last segment that has records, read to its end.
    pub(super) tail: Option<Reader>,
    pub(super) next_id: u64,
    /// The last segment that has records, if it has a torn end, and where.
    torn: Option<(PathBuf, u64)>,
}

impl Recovery {
    /// Reads the next segment; `newest` if none follows.
    pub(super) fn read(
        &mut self,
        disk: &SharedDisk,
        number: u64,
        path: PathBuf,
        newest: bool,
    ) -> Result<(), RecordError> {
        let mut reader = Reader::open(disk.as_ref(), &path, KIND, None)?;
        let file = open_segment(disk, &path)?;
        let (mut follows, mut is_used) = (None, false);
        while let Some((offset, payload)) = reader.next()? {
            // A mark.
            if payload.is_empty() {
                continue;
            }
            let Some(record) = Record::decode(payload) else {
                return damaged(&path, offset, "a record does not decode");
            };
            if let (Record::Begin { previous_end }, None) = (record, follows) {
                follows = Some(self.segments.back().is_none_or(|previous| {
                    previous.number + 1 == number && previous.bytes == previous_end
                }));
                continue;
            }
            if follows != Some(true) {
                return damaged(&path, offset, "it does not follow the segment before it");
            }
            is_used = true;
            self.apply(record, number, &file, offset);
        }
        if !is_used {
            if !newest {
                return damaged(&path, HEADER_BYTES, "it has no records");
            }
            // It was begun, and nothing was written to it: that may have failed, and the segment
            // before it was written to again.
            return if_there(disk.remove(&path))
                .map(drop)
                .map_err(|source| RecordError::io(&path, "removing", source));
        }
        // A segment behind it that was begun and not written to does not say that.
        if let Some((path, offset)) = self.torn.take() {
            return damaged(&path, offset, "it was complete when the next one was begun");
        }
        if let End::Torn(offset) = reader.end() {
            self.torn = Some((path.clone(), offset));
        }
        let bytes = reader.offset();
        self.segments.push_back(Segment { number, path, bytes, file });
        self.tail = Some(reader);
        Ok(())
    }

    fn apply(
        &mut self,
        record: Record<'_>,
        segment: u64,
        file: &Arc<dyn DiskFile>,
        record_at: u64,
    ) {
        let (Record::Name { id, .. }
        | Record::Write { id, .. }
        | Record::Resize { id, .. }
        | Record::Remove { id }) = record
        else {
            return;
        };
        self.next_id = self.next_id.max(id.saturating_add(1));
        if let Record::Remove { .. } = record {
            self.index.remove(id);
            self.index.close(id);
            return;
        }
        self.index.blobs.entry(id).or_insert_with(|| Blob::new(id, segment));
        match record {
            Record::Name { version, partition, name, .. } => {
                self.index.name(id, version, partition, name);
            }
            Record::Write { offset, bytes, .. } => {
                let at = record_at + HEAD_BYTES + WRITE_HEAD_BYTES;
                let extent = Extent { file: file.clone(), at, bytes: bytes.len() as u64 };
                self.index.change(id, |blob| blob.put(offset, extent));
            }
            Record::Resize { length, .. } => self.index.change(id, |blob| blob.resize(length)),
            Record::Begin { .. } | Record::Remove { .. } => {}
        }
    }
}
