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
    records::{HEAD_BYTES, HEADER_BYTES, RecordError, RecordFile},
};

use super::{
    AHEAD_BYTES, SEGMENTS_MIN,
    index::{Blob, Extent, Index, Key},
    record::{KIND, Record, WRITE_BYTES_MAX, WRITE_HEAD_BYTES},
    recovery::Recovery,
};

/// Bytes of a segment with its first record only.
const FIRST_BYTES: u64 = HEADER_BYTES + HEAD_BYTES + 9;

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Up to the end of its last record.
    pub(super) bytes: u64,
    /// For reading, and for syncing without the log at hand.
    pub(super) file: Arc<dyn DiskFile>,
}

/// The records that a sync is to make durable.
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

/// A segment and the file that takes its records.
pub(super) type MadeSegment = (RecordFile, Segment);

/// A segment that is to be made, without the log at hand.
pub(super) struct SegmentToMake {
    disk: SharedDisk,
    path: PathBuf,
    number: u64,
}

impl SegmentToMake {
    /// Makes it, without records. Waits for the disk: the file is durable on return. One of its
    /// name, which has no records either, is replaced.
    pub(super) fn make(self) -> Result<MadeSegment, RecordError> {
        let Self { disk, path, number } = self;
        let tail = RecordFile::create(disk.as_ref(), &path, KIND)?;
        let file = open_segment(&disk, &path)?;
        let bytes = tail.length();
        Ok((tail, Segment { number, path, bytes, file }))
    }
}

/// The next step of emptying the oldest segment.
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
    /// The segment behind it, made ahead of time and without records.
    next: Option<MadeSegment>,
    /// It is being made, without the log at hand.
    is_making: bool,
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
                let next =
                    SegmentToMake { disk: disk.clone(), path: segment_path(folder, 1), number: 1 };
                let (tail, segment) = begin(next.make()?, 0, segment_bytes)?;
                (tail, VecDeque::from([segment]))
            }
        };
        Ok(Self {
            disk,
            folder: folder.to_path_buf(),
            segment_bytes,
            segments,
            tail,
            next: None,
            is_making: false,
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
        let mut blob = Blob::new(id, segment);
        blob.changed = self.appended;
        blob.open = true;
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

    /// The records that a sync has to make durable; none if everything is.
    pub(super) fn begin_sync(&self) -> Result<Option<PendingSync>, Error> {
        if self.lost {
            return Err(Error::Closed);
        }
        Ok(self.pending_sync().filter(|_| self.durable < self.appended))
    }

    fn pending_sync(&self) -> Option<PendingSync> {
        self.segments.back().map(|tail| PendingSync {
            file: tail.file.clone(),
            segment: tail.number,
            length: self.tail.length(),
            changes: self.appended,
        })
    }

    /// A sync ended.
    pub(super) fn end_sync(
        &mut self,
        pending: &PendingSync,
        result: io::Result<()>,
    ) -> Result<(), Error> {
        if self.note_sync(pending, result)? {
            self.tail.mark();
            self.note_length();
        }
        Ok(())
    }

    /// A sync ended. Whether the segment is still the newest: it may have been finished meanwhile.
    fn note_sync(&mut self, pending: &PendingSync, result: io::Result<()>) -> Result<bool, Error> {
        if let Err(error) = result {
            self.lost = true;
            self.tail.lose_sync();
            return Err(error.into());
        }
        self.durable = self.durable.max(pending.changes);
        let is_newest = self.newest() == pending.segment;
        if is_newest {
            self.tail.synced_to(pending.length);
        }
        Ok(is_newest)
    }

    fn next_segment(&self) -> SegmentToMake {
        let number = self.newest() + 1;
        let path = segment_path(&self.folder, number);
        SegmentToMake { disk: self.disk.clone(), path, number }
    }

    /// The next segment, if it is to be made now: the newest one is nearly full. It takes all
    /// records until [`Self::end_making`], so that nothing else makes a file of this name.
    pub(super) fn begin_making(&mut self) -> Option<SegmentToMake> {
        if self.lost || self.is_making || self.next.is_some() || !self.is_nearly_full() {
            return None;
        }
        self.is_making = true;
        Some(self.next_segment())
    }

    /// Keeps the segment of [`Self::begin_making`], if it was made.
    pub(super) fn end_making(
        &mut self,
        made: Result<MadeSegment, RecordError>,
    ) -> Result<(), Error> {
        self.is_making = false;
        self.next = Some(made.map_err(into_error)?);
        Ok(())
    }

    /// The records that a sync has to make durable before the next segment can be begun; none if
    /// that is not due, or not made.
    pub(super) fn begin_finish(&mut self) -> Result<Option<PendingSync>, Error> {
        if self.lost {
            return Err(Error::Closed);
        }
        if self.next.is_none() || !self.is_nearly_full() {
            return Ok(None);
        }
        // Of what is reserved nothing may be left in a segment that others follow.
        self.tail.cut_ahead().map_err(into_error)?;
        Ok(self.pending_sync())
    }

    /// The sync of [`Self::begin_finish`] ended. Whether the next segment takes records now: not if
    /// something was written meanwhile, which has to be durable first.
    pub(super) fn end_finish(
        &mut self,
        pending: &PendingSync,
        result: io::Result<()>,
    ) -> Result<bool, Error> {
        if !self.note_sync(pending, result)? {
            return Ok(true);
        }
        if self.tail.length() != pending.length {
            return Ok(false);
        }
        self.begin_next().map(|()| true)
    }

    fn is_nearly_full(&self) -> bool {
        self.tail.length() >= self.segment_bytes - self.segment_bytes / 8
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
        if offset + bytes > self.segment_bytes && offset > FIRST_BYTES && !self.is_making {
            self.rotate()?;
        }
        let offset = self.tail.length();
        self.tail.append(payloads.iter().map(Vec::as_slice)).map_err(into_error)?;
        self.appended += 1;
        self.note_length();
        let newest = self.segments.back().ok_or(Error::WriteFailed)?;
        Ok((newest.number, newest.file.clone(), offset))
    }

    /// Makes the newest segment durable and begins another, for a write that has no room. May be
    /// repeated when it fails for want of room.
    fn rotate(&mut self) -> Result<(), Error> {
        if let Err(error) = self.tail.finish() {
            tracing::error!(%error, "the engine's storage takes nothing more");
            self.lost = true;
            self.tail.lose_sync();
            return Err(Error::Closed);
        }
        self.durable = self.appended;
        self.note_length();
        if self.next.is_none() {
            self.next = Some(self.next_segment().make().map_err(into_error)?);
        }
        self.begin_next()
    }

    /// Writes to the next segment, which is made, from now on. Everything must be durable: a later
    /// segment with records says that the one before is complete.
    fn begin_next(&mut self) -> Result<(), Error> {
        debug_assert_eq!(self.durable, self.appended, "a segment follows one that may be torn");
        let next = self.next.take().ok_or(Error::WriteFailed)?;
        let begun = begin(next, self.tail.length(), self.segment_bytes);
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

/// Writes the first record of a segment. It is not durable on return.
fn begin(
    (mut tail, mut segment): MadeSegment,
    previous_end: u64,
    segment_bytes: u64,
) -> Result<MadeSegment, RecordError> {
    tail.reserve_ahead(AHEAD_BYTES.min(segment_bytes));
    tail.append([Record::Begin { previous_end }.encode().as_slice()])?;
    segment.bytes = tail.length();
    Ok((tail, segment))
}

pub(super) fn open_segment(
    disk: &SharedDisk,
    path: &Path,
) -> Result<Arc<dyn DiskFile>, RecordError> {
    let opened = disk.open(path, Open::Write);
    opened.map(Arc::from).map_err(|source| RecordError::io(path, "opening", source))
}
