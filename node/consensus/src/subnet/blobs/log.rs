//! The log on disk with its index: changes are appended, and contents are looked up. Nothing here
//! is asynchronous.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use commonware_runtime::{BlobVersion, Error};
use disk::{
    DiskFile, Open, SharedDisk, if_there,
    records::{End, HEAD_BYTES, HEADER_BYTES, Reader, RecordError, RecordFile},
};

use super::{
    AHEAD_BYTES, SEGMENTS_MIN,
    index::{Blob, Extent, Index, Key},
    record::{KIND, Record, WRITE_BYTES_MAX, WRITE_HEAD_BYTES},
};

/// Bytes of a segment with its first record only.
const FIRST_BYTES: u64 = HEADER_BYTES + HEAD_BYTES + 9;

#[derive(Debug)]
struct Segment {
    number: u64,
    path: PathBuf,
    /// Up to the end of its last record.
    bytes: u64,
    /// For reading, and for syncing without the log at hand.
    file: Arc<dyn DiskFile>,
}

/// What a sync is to make durable.
pub(super) struct PendingSync {
    file: Arc<dyn DiskFile>,
    segment: u64,
    length: u64,
    changes: u64,
}

impl PendingSync {
    /// Waits for the disk.
    pub(super) fn run(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// What emptying the oldest segment needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compaction {
    /// There is nothing to be gained.
    Idle,
    /// A blob was moved to the end; there may be more.
    Moved,
    /// Nothing is left in this segment. It may be removed once the end of the log is durable.
    Emptied(u64),
}

/// Part of a read: bytes of the buffer, and where they are. Others are zeros.
pub(super) struct ReadPart {
    pub(super) range: std::ops::Range<usize>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) at: u64,
}

#[derive(Debug)]
pub(super) struct Log {
    disk: SharedDisk,
    folder: PathBuf,
    segment_bytes: u64,
    /// Oldest first; the last one takes records.
    segments: VecDeque<Segment>,
    tail: RecordFile,
    pub(super) index: Index,
    next_id: u64,
    /// Changes so far, and those that are durable.
    appended: u64,
    durable: u64,
    /// A sync failed.
    lost: bool,
}

fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}.log"))
}

fn damaged<T>(path: &Path, offset: u64, what: impl Into<String>) -> Result<T, RecordError> {
    Err(RecordError::Damaged { path: path.to_path_buf(), offset, what: what.into() })
}

fn into_error(error: RecordError) -> Error {
    match error {
        RecordError::Io { source, .. } => source.into(),
        // Not to be tried again.
        error => {
            tracing::error!(%error, "the engine's storage takes nothing more");
            Error::Closed
        }
    }
}

fn blob_error(error: fn(String, String) -> Error, partition: &str, name: &[u8]) -> Error {
    error(partition.to_owned(), hex::encode(name))
}

impl Log {
    /// Opens the log in `folder`, made if absent, cutting off a torn end.
    pub(super) fn open(
        disk: SharedDisk,
        folder: &Path,
        segment_bytes: u64,
    ) -> Result<Self, RecordError> {
        disk.create_folder(folder)
            .map_err(|source| RecordError::io(folder, "creating the folder", source))?;
        let listed =
            disk.list(folder).map_err(|source| RecordError::io(folder, "listing", source))?;
        let number_of =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_suffix(".log")?.parse::<u64>().ok();
        let mut paths: Vec<(u64, PathBuf)> = listed
            .into_iter()
            .filter_map(|path| number_of(&path).map(|number| (number, path)))
            .collect();
        paths.sort();
        let mut recovery = Recovery::default();
        let newest = paths.last().map_or(0, |(number, _)| *number);
        for (number, path) in paths {
            recovery.read(&disk, number, path, number == newest)?;
        }
        let Recovery { mut index, segments, tail, next_id, .. } = recovery;
        index.drop_unnamed();
        let (tail, segments) = match tail {
            Some(reader) => {
                let mut tail = RecordFile::resume(disk.as_ref(), &reader)?;
                tail.reserve_ahead(AHEAD_BYTES.min(segment_bytes));
                (tail, segments)
            }
            None => {
                let (tail, segment) = begin_segment(&disk, folder, 1, (0, segment_bytes))?;
                (tail, VecDeque::from([segment]))
            }
        };
        Ok(Self {
            disk,
            folder: folder.to_path_buf(),
            segment_bytes,
            segments,
            tail,
            index,
            next_id,
            appended: 0,
            durable: 0,
            lost: false,
        })
    }

    /// Opens a blob, made if absent. Returns its length and version.
    pub(super) fn open_blob(
        &mut self,
        partition: &str,
        name: &[u8],
        versions: &RangeInclusive<BlobVersion>,
    ) -> Result<(Key, u64, BlobVersion), Error> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if partition.is_empty() || !partition.bytes().all(allowed) {
            return Err(Error::PartitionNameInvalid(partition.to_owned()));
        }
        if let Some(key) = self.index.find(partition, name)
            && let Some(blob) = self.index.blobs.get_mut(&key)
        {
            if blob.open {
                return Err(blob_error(Error::BlobAlreadyOpen, partition, name));
            }
            let found = BlobVersion::new(blob.version);
            if !versions.contains(&found) {
                return Err(Error::BlobVersionMismatch { expected: versions.clone(), found });
            }
            blob.open = true;
            return Ok((key, blob.length, found));
        }
        let (id, version) = (self.next_id, versions.end().get());
        let segment = self.append(&[Record::Name { id, version, partition, name }.encode()])?.0;
        self.next_id += 1;
        let blob = Blob { changed: self.appended, open: true, ..Blob::new(id, segment) };
        self.index.blobs.insert(id, blob);
        self.index.name(id, version, partition, name);
        Ok((id, 0, *versions.end()))
    }

    pub(super) fn close_blob(&mut self, key: Key) {
        self.index.close(key);
    }

    /// The blob, if it was not removed.
    fn named(&self, key: Key) -> Result<&Blob, Error> {
        let blob = self.index.blobs.get(&key).filter(|blob| blob.name.is_some());
        blob.ok_or_else(|| Error::BlobMissing("removed".into(), key.to_string()))
    }

    /// Returns the number of the change.
    pub(super) fn write(&mut self, key: Key, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let id = self.named(key)?.id;
        offset.checked_add(bytes.len() as u64).ok_or(Error::OffsetOverflow)?;
        let mut offset = offset;
        // A write may be torn, so a long one may be several records.
        for piece in bytes.chunks(WRITE_BYTES_MAX) {
            let (_, extent) = self.append_write(id, offset, piece)?;
            self.index.change(key, |blob| {
                blob.put(offset, extent);
                blob.changed = self.appended;
            });
            offset += piece.len() as u64;
        }
        Ok(self.appended)
    }

    /// Returns the segment and where the bytes are.
    fn append_write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(u64, Extent), Error> {
        let (segment, file, at) = self.append(&[Record::Write { id, offset, bytes }.encode()])?;
        let at = at + HEAD_BYTES + WRITE_HEAD_BYTES;
        Ok((segment, Extent { file, at, bytes: bytes.len() as u64 }))
    }

    pub(super) fn resize(&mut self, key: Key, length: u64) -> Result<(), Error> {
        let id = self.named(key)?.id;
        self.append(&[Record::Resize { id, length }.encode()])?;
        self.index.change(key, |blob| {
            blob.resize(length);
            blob.changed = self.appended;
        });
        Ok(())
    }

    /// Removes a blob, or all of a partition.
    pub(super) fn remove(&mut self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        let missing = || Error::PartitionMissing(partition.to_owned());
        let names = self.index.partition(partition).ok_or_else(missing)?;
        let keys: Vec<Key> = match name {
            Some(name) => {
                let key = names.get(name).copied();
                vec![key.ok_or_else(|| blob_error(Error::BlobMissing, partition, name))?]
            }
            None => names.values().copied().collect(),
        };
        let records: Vec<_> = keys
            .iter()
            .filter_map(|key| self.index.blobs.get(key))
            .map(|blob| Record::Remove { id: blob.id }.encode())
            .collect();
        if !records.is_empty() {
            self.append(&records)?;
        }
        match name {
            Some(_) => keys.into_iter().for_each(|key| self.index.remove(key)),
            None => self.index.remove_partition(partition),
        }
        Ok(())
    }

    pub(super) fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        let names = self.index.partition(partition);
        let names = names.ok_or_else(|| Error::PartitionMissing(partition.to_owned()))?;
        Ok(names.keys().cloned().collect())
    }

    /// Where bytes of a blob are, which may have been removed.
    pub(super) fn locate(
        &self,
        key: Key,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<ReadPart>, Error> {
        let end = offset.checked_add(bytes as u64).ok_or(Error::OffsetOverflow)?;
        let blob = self.index.blobs.get(&key).filter(|blob| end <= blob.length);
        let blob = blob.ok_or(Error::BlobInsufficientLength)?;
        let before = blob.extents.range(..offset).next_back();
        let parts = before.into_iter().chain(blob.extents.range(offset..end));
        Ok(parts
            .filter_map(|(start, extent)| {
                let (from, to) = (offset.max(*start), end.min(start + extent.bytes));
                (from < to).then(|| ReadPart {
                    range: (from - offset) as usize..(to - offset) as usize,
                    file: extent.file.clone(),
                    at: extent.at + (from - start),
                })
            })
            .collect())
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether changes of this blob are not durable.
    pub(super) fn needs_sync(&self, key: Key) -> Result<bool, Error> {
        if self.lost {
            return Err(Error::Closed);
        }
        Ok(self.named(key)?.changed > self.durable)
    }

    /// What a sync has to make durable; none if everything is.
    pub(super) fn begin_sync(&self) -> Result<Option<PendingSync>, Error> {
        if self.lost {
            return Err(Error::Closed);
        }
        let tail = self.segments.back().filter(|_| self.durable < self.appended);
        Ok(tail.map(|tail| PendingSync {
            file: tail.file.clone(),
            segment: tail.number,
            length: self.tail.length(),
            changes: self.appended,
        }))
    }

    /// A sync ended.
    pub(super) fn end_sync(
        &mut self,
        pending: &PendingSync,
        result: io::Result<()>,
    ) -> Result<(), Error> {
        if let Err(error) = result {
            self.lost = true;
            self.tail.lose_sync();
            return Err(error.into());
        }
        self.durable = self.durable.max(pending.changes);
        // The segment may have been finished meanwhile.
        if self.newest() == pending.segment {
            self.tail.synced_to(pending.length);
            self.tail.mark();
            self.note_length();
        }
        Ok(())
    }

    fn newest(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.number)
    }

    fn note_length(&mut self) {
        let bytes = self.tail.length();
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes = bytes;
        }
    }

    /// Appends records: all in one segment. Returns its number and file, and where the first is.
    fn append(&mut self, payloads: &[Vec<u8>]) -> Result<(u64, Arc<dyn DiskFile>, u64), Error> {
        if self.lost {
            return Err(Error::Closed);
        }
        let bytes: u64 = payloads.iter().map(|payload| HEAD_BYTES + payload.len() as u64).sum();
        let offset = self.tail.length();
        // One change always fits.
        if offset + bytes > self.segment_bytes && offset > FIRST_BYTES {
            self.rotate()?;
        }
        let offset = self.tail.length();
        self.tail.append(payloads.iter().map(Vec::as_slice)).map_err(into_error)?;
        self.appended += 1;
        self.note_length();
        let newest = self.segments.back().ok_or(Error::WriteFailed)?;
        Ok((newest.number, newest.file.clone(), offset))
    }

    /// Makes the newest segment durable and begins another. May be repeated when it fails for want
    /// of room.
    fn rotate(&mut self) -> Result<(), Error> {
        if let Err(error) = self.tail.finish() {
            tracing::error!(%error, "the engine's storage takes nothing more");
            self.lost = true;
            self.tail.lose_sync();
            return Err(Error::Closed);
        }
        self.durable = self.appended;
        self.note_length();
        let (number, end) = (self.newest() + 1, self.tail.length());
        let begun = begin_segment(&self.disk, &self.folder, number, (end, self.segment_bytes));
        let (tail, segment) = begun.map_err(into_error)?;
        self.tail = tail;
        self.segments.push_back(segment);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Moves one blob out of the oldest segment, if emptying it is worth it.
    pub(super) fn compact(&mut self) -> Result<Compaction, Error> {
        let Some(oldest) = self.segments.front().map(|segment| segment.number) else {
            return Ok(Compaction::Idle);
        };
        if self.segments.len() <= SEGMENTS_MIN || self.bytes() <= 2 * self.index.live_bytes() {
            return Ok(Compaction::Idle);
        }
        match self.index.beginning_in(oldest) {
            None => Ok(Compaction::Emptied(oldest)),
            Some(key) => self.move_blob(key).map(|()| Compaction::Moved),
        }
    }

    /// Writes a blob again, at the end, under another number: it has its name only once everything
    /// is written, so a crash leaves either.
    fn move_blob(&mut self, key: Key) -> Result<(), Error> {
        let blob = self.named(key)?;
        let (version, length) = (blob.version, blob.length);
        let (partition, name) = blob.name.clone().unwrap_or_default();
        let old = blob.extents.clone();
        let id = self.next_id;
        self.next_id += 1;
        let (mut first, mut extents) = (None, BTreeMap::new());
        for (start, extent) in old {
            let mut done = 0;
            while done < extent.bytes {
                let mut piece = vec![0; (extent.bytes - done).min(WRITE_BYTES_MAX as u64) as usize];
                disk::read_exact(extent.file.as_ref(), &mut piece, extent.at + done)?;
                let (segment, moved) = self.append_write(id, start + done, &piece)?;
                first.get_or_insert(segment);
                extents.insert(start + done, moved);
                done += piece.len() as u64;
            }
        }
        let name = Record::Name { id, version, partition: &partition, name: &name };
        let records = [Record::Resize { id, length }.encode(), name.encode()];
        let (segment, ..) = self.append(&records)?;
        self.index.moved(key, id, first.unwrap_or(segment), extents);
        Ok(())
    }

    /// Removes a segment that was emptied. Everything must be durable.
    pub(super) fn remove_segment(&mut self, number: u64) -> Result<(), Error> {
        let emptied = self.index.beginning_in(number).is_none() && self.segments.len() > 1;
        let Some(oldest) = self.segments.front().filter(|segment| segment.number == number) else {
            return Ok(());
        };
        assert!(emptied, "segment {number} holds blobs");
        debug_assert_eq!(
            self.index.live_bytes(),
            self.index.count_live_bytes(),
            "the sum of what blobs have is wrong"
        );
        if_there(self.disk.remove(&oldest.path))?;
        // In this order: a segment that came back without those after it would bring removed
        // blobs back.
        self.disk.sync_folder(&self.folder)?;
        self.segments.pop_front();
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn first_segment(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.number)
    }

    /// Number of segments, and bytes of their records.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, u64) {
        (self.segments.len(), self.bytes())
    }
}

/// Begins a segment: durable on return but for its first record.
fn begin_segment(
    disk: &SharedDisk,
    folder: &Path,
    number: u64,
    (previous_end, segment_bytes): (u64, u64),
) -> Result<(RecordFile, Segment), RecordError> {
    let path = segment_path(folder, number);
    let mut tail = RecordFile::create(disk.as_ref(), &path, KIND)?;
    tail.reserve_ahead(AHEAD_BYTES.min(segment_bytes));
    tail.append([Record::Begin { previous_end }.encode().as_slice()])?;
    let file = open_segment(disk, &path)?;
    let bytes = tail.length();
    Ok((tail, Segment { number, path, bytes, file }))
}

fn open_segment(disk: &SharedDisk, path: &Path) -> Result<Arc<dyn DiskFile>, RecordError> {
    let opened = disk.open(path, Open::Write);
    opened.map(Arc::from).map_err(|source| RecordError::io(path, "opening", source))
}

/// Reads the segments, oldest first.
#[derive(Default)]
struct Recovery {
    index: Index,
    segments: VecDeque<Segment>,
    /// Of the last segment that has records, read to its end.
    tail: Option<Reader>,
    next_id: u64,
    /// The last segment that has records, if it has a torn end, and where.
    torn: Option<(PathBuf, u64)>,
}

impl Recovery {
    fn read(
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
