//! Segment files: how messages are written to them and read back at start.
//!
//! A segment is a record file ([`disk::records`]); the payload of each record (integers
//! little-endian) is
//!
//! ```text
//! hash [32] · timestamp, ns i64 · bytes of pubsub topic u16 · of content topic u16 · both topics ·
//! message
//! ```
//!
//! Records are encoded here and not by [`disk::records::RecordFile`], whose syncs and appends
//! exclude one another: syncing a second's worth of large messages takes as long as writing them.
//! The reader of that module reads them, and its rule for damage applies: `synced` in each head is
//! what a sync by the keeper had covered when the record was written.
//!
//! Bounds: a batch of [`BATCH_BYTES_MAX`]; offsets fit 32 bits ([`crate::Config::segment_bytes`]).

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use disk::{
    Disk, DiskFile, Open, SharedDisk, read_exact,
    records::{End, Head, Kind, Reader, RecordError, RecordFile},
};

use crate::{
    message::{Files, RecordPosition, Segment},
    spare::SPARE_BYTES,
    store::Arrival,
};

/// Most bytes of a message that the store takes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Longest pubsub or content topic.
pub const TOPIC_BYTES_MAX: usize = 4 << 10;

pub(crate) use disk::records::HEAD_BYTES;
/// Offset of the hash in a payload.
pub(crate) const HASH_AT: u64 = 0;
/// Bytes of a payload before the topics.
pub(crate) const FIXED_BYTES: usize = 44;
const _: () = assert!(FIXED_BYTES == 32 + 8 + 2 + 2, "hash, time, lengths of the topics");
const _: () = assert!(TOPIC_BYTES_MAX <= u16::MAX as usize, "a length of a topic has two bytes");
/// Bytes encoded before they are written, one record more at most.
pub(crate) const BATCH_BYTES_MAX: usize = 4 << 20;
/// Messages of this length are written from where they are; copying them would cost more than a
/// call.
const LARGE_BYTES: usize = 16 << 10;
/// A buffer keeps so much between batches.
const BUFFER_KEPT_BYTES: usize = 256 << 10;
const _: () = assert!(LARGE_BYTES <= BUFFER_KEPT_BYTES, "small messages fit what is kept");
const _: () = assert!(KIND.bytes_max as usize <= BATCH_BYTES_MAX, "a record fits a batch");
const _: () = assert!(SPARE_BYTES <= u32::MAX as u64, "positions in a spare segment fit");
/// Where a record file has its salt.
const SALT_AT: u64 = 20;

pub(crate) const KIND: Kind = Kind {
    name: *b"messages",
    version: 1,
    bytes_max: (FIXED_BYTES + 2 * TOPIC_BYTES_MAX + MESSAGE_BYTES_MAX) as u32,
};

pub(crate) fn record_bytes(arrival: &Arrival, message: &[u8]) -> u64 {
    let topics = arrival.pubsub_topic.len() + arrival.content_topic.len();
    HEAD_BYTES + (FIXED_BYTES + topics + message.len()) as u64
}

pub(crate) fn file_name(number: u32) -> String {
    format!("{number:010}.segment")
}

pub(crate) fn number_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".segment")?;
    name.parse().ok()
}

/// A segment that is appended to.
pub(crate) struct SegmentWriter {
    pub(crate) segment: Arc<Segment>,
    file: Box<dyn DiskFile>,
    salt: u64,
    /// Up to the last record that was written.
    length: u64,
    /// It takes so much.
    bytes_max: u64,
    /// Records encoded and not yet written, large messages excepted.
    buffer: Vec<u8>,
    /// Large messages: each belongs before the buffer's byte at this position.
    large: Vec<(usize, Bytes)>,
    /// Bytes of the buffer and of these.
    pending: usize,
    /// A failed write could not be taken back.
    broken: bool,
}

impl SegmentWriter {
    /// Begins a segment; its header and name are durable on return.
    pub(crate) fn create(
        disk: &SharedDisk,
        files: &Arc<Files>,
        path: PathBuf,
        number: u32,
        bytes_max: u64,
    ) -> io::Result<Self> {
        let length = RecordFile::create(disk.as_ref(), &path, KIND).map_err(io_error)?.length();
        let file = disk.open(&path, Open::Write)?;
        let mut salt = [0; 8];
        read_exact(file.as_ref(), &mut salt, SALT_AT)?;
        let segment = Segment::new(disk.clone(), files.clone(), path, number, false);
        segment.length.store(length, Ordering::Release);
        segment.synced.store(length, Ordering::Release);
        segment.checked.store(true, Ordering::Release);
        Ok(Self::begin(segment, file, u64::from_le_bytes(salt), length, bytes_max))
    }

    /// Overwrites a spare file. It has no header, as it is never read through.
    pub(crate) fn over_spare(
        disk: &SharedDisk,
        files: &Arc<Files>,
        path: PathBuf,
        number: u32,
    ) -> io::Result<Self> {
        let file = disk.open(&path, Open::Write)?;
        let segment = Segment::new(disk.clone(), files.clone(), path, number, true);
        Ok(Self::begin(segment, file, 0, 0, SPARE_BYTES))
    }

    fn begin(
        segment: Arc<Segment>,
        file: Box<dyn DiskFile>,
        salt: u64,
        length: u64,
        bytes_max: u64,
    ) -> Self {
        let (buffer, large) = (Vec::new(), Vec::new());
        Self { segment, file, salt, length, bytes_max, buffer, large, pending: 0, broken: false }
    }

    /// Whether a record of `record_bytes` bytes fits after the encoded ones.
    pub(crate) fn fits(&self, record_bytes: u64) -> bool {
        self.bytes() + record_bytes <= self.bytes_max
    }

    /// Bytes including the encoded records.
    pub(crate) fn bytes(&self) -> u64 {
        self.length + self.pending as u64
    }

    /// Bytes encoded and not written.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken || self.segment.sync_lost.load(Ordering::Acquire)
    }

    /// Encodes a message; it is written by [`Self::write`]. Topics and message are within their
    /// limits.
    pub(crate) fn encode(&mut self, arrival: &Arrival, message: Bytes) -> RecordPosition {
        let record = self.bytes();
        let (pubsub, content) = (arrival.pubsub_topic.as_bytes(), arrival.content_topic.as_bytes());
        debug_assert!(pubsub.len() <= TOPIC_BYTES_MAX && content.len() <= TOPIC_BYTES_MAX);
        debug_assert!(message.len() <= MESSAGE_BYTES_MAX);
        let head_at = self.buffer.len();
        let payload_at = head_at + HEAD_BYTES as usize;
        self.buffer.resize(payload_at, 0);
        self.buffer.extend_from_slice(&arrival.hash);
        self.buffer.extend_from_slice(&arrival.timestamp_ns.to_le_bytes());
        self.buffer.extend_from_slice(&(pubsub.len() as u16).to_le_bytes());
        self.buffer.extend_from_slice(&(content.len() as u16).to_le_bytes());
        self.buffer.extend_from_slice(pubsub);
        self.buffer.extend_from_slice(content);
        let header_bytes = self.buffer.len() - payload_at;
        debug_assert_eq!(
            header_bytes,
            FIXED_BYTES + pubsub.len() + content.len(),
            "bytes of a record before its message"
        );
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.buffer[payload_at..]);
        hasher.update(&message);
        let (length, checksum) = ((header_bytes + message.len()) as u32, hasher.finalize());
        let synced = self.segment.synced.load(Ordering::Acquire);
        let head = Head { length, payload: checksum, synced };
        head.encode(self.salt, record, &mut self.buffer[head_at..payload_at]);
        self.pending += HEAD_BYTES as usize + length as usize;
        debug_assert_eq!(
            self.bytes(),
            record + record_bytes(arrival, &message),
            "the end of the record that begins at byte {record}"
        );
        let start = record + HEAD_BYTES + header_bytes as u64;
        let place = RecordPosition {
            record: record as u32,
            start: start as u32,
            length: message.len() as u32,
        };
        if message.len() >= LARGE_BYTES {
            self.large.push((self.buffer.len(), message));
        } else {
            self.buffer.extend_from_slice(&message);
        }
        place
    }

    /// Writes the encoded records; all of them, or none.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let written = self.write_parts();
        match &written {
            Ok(end) => {
                debug_assert_eq!(*end, self.bytes());
                self.length = *end;
                self.segment.length.store(self.length, Ordering::Release);
            }
            // It keeps its space; the next write overwrites the partial one.
            Err(_) if self.segment.spare => {}
            // Whatever part reached the file must not be taken for a record later.
            Err(_) => self.broken = self.file.set_len(self.length).is_err(),
        }
        self.large.clear();
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        self.pending = 0;
        written.map(drop)
    }

    /// The buffer up to each large message, and that message; returns where the file ends then.
    fn write_parts(&self) -> io::Result<u64> {
        let (mut at, mut from) = (self.length, 0);
        let mut write = |bytes: &[u8]| {
            if !bytes.is_empty() {
                self.file.write_at(bytes, at)?;
                at += bytes.len() as u64;
            }
            io::Result::Ok(())
        };
        for (position, message) in &self.large {
            write(&self.buffer[from..*position])?;
            write(message)?;
            from = *position;
        }
        write(&self.buffer[from..])?;
        Ok(at)
    }
}

/// The part of a payload before the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header<'a> {
    pub(crate) hash: [u8; 32],
    pub(crate) timestamp_ns: i64,
    pub(crate) pubsub_topic: &'a str,
    pub(crate) content_topic: &'a str,
    /// Bytes before the message.
    pub(crate) bytes: usize,
}

impl<'a> Header<'a> {
    /// Of a whole payload.
    pub(crate) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (hash, rest) = payload.split_first_chunk::<32>()?;
        let (timestamp, rest) = rest.split_first_chunk::<8>()?;
        let (pubsub, rest) = rest.split_first_chunk::<2>()?;
        let (content, rest) = rest.split_first_chunk::<2>()?;
        let pubsub = usize::from(u16::from_le_bytes(*pubsub));
        let content = usize::from(u16::from_le_bytes(*content));
        let topics = rest.get(..pubsub + content)?;
        Some(Self {
            hash: *hash,
            timestamp_ns: i64::from_le_bytes(*timestamp),
            pubsub_topic: std::str::from_utf8(&topics[..pubsub]).ok()?,
            content_topic: std::str::from_utf8(&topics[pubsub..]).ok()?,
            bytes: FIXED_BYTES + topics.len(),
        })
    }
}

pub(crate) enum ScanError<E> {
    Records(RecordError),
    Sink(E),
}

/// Reads a segment from its beginning, at most `length` bytes of it, and passes on every message; a
/// torn end is cut off when `cut` is set. Returns the length up to the last whole record.
pub(crate) fn scan<E>(
    disk: &dyn Disk,
    path: &Path,
    length: Option<u64>,
    cut: bool,
    mut sink: impl FnMut(Header<'_>, RecordPosition) -> Result<(), E>,
) -> Result<u64, ScanError<E>> {
    let mut reader = Reader::open(disk, path, KIND, length).map_err(ScanError::Records)?;
    while let Some((offset, payload)) = reader.next().map_err(ScanError::Records)? {
        let header = Header::decode(payload);
        let place = header.as_ref().and_then(|header| {
            let start = offset + HEAD_BYTES + header.bytes as u64;
            let length = payload.len() - header.bytes;
            let (record, start) = (u32::try_from(offset).ok()?, u32::try_from(start).ok()?);
            Some(RecordPosition { record, start, length: length as u32 })
        });
        let (Some(header), Some(place)) = (header, place) else {
            let what = "a record is whole and is not that of a message".to_string();
            let path = path.to_path_buf();
            return Err(ScanError::Records(RecordError::Damaged { path, offset, what }));
        };
        sink(header, place).map_err(ScanError::Sink)?;
    }
    if cut && let End::Torn(offset) = reader.end() {
        tracing::warn!(path = %path.display(), offset, "cutting off the torn end of a segment");
        let cut =
            |source| RecordError::Io { path: path.into(), doing: "cutting off a torn end", source };
        let file = disk.open(path, Open::Write).map_err(cut).map_err(ScanError::Records)?;
        file.set_len(offset).map_err(cut).map_err(ScanError::Records)?;
        file.sync_all().map_err(cut).map_err(ScanError::Records)?;
    }
    Ok(reader.offset())
}

/// The reason of the operating system, if there is one.
pub(crate) fn io_error(error: RecordError) -> io::Error {
    match error {
        RecordError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P8 - Segments of the relay keep the bytes of their version.
    #[test]
    fn a_segment_is_laid_out_as_the_module_says_and_read_back_by_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let disk = disk::RealDisk::shared();
        let path = folder.path().join(file_name(7));
        let mut writer =
            SegmentWriter::create(&disk, &Files::new(1), path.clone(), 7, u64::MAX).unwrap();
        let arrival = |number: u8| Arrival {
            hash: [number; 32],
            timestamp_ns: -2,
            pubsub_topic: "pub".into(),
            content_topic: "content".into(),
            kept: true,
            may_pass: false,
            fetched: false,
        };
        // Small and large ones in turns, in two writes.
        let messages: Vec<Bytes> =
            [5, LARGE_BYTES, 0, LARGE_BYTES - 1, MESSAGE_BYTES_MAX, LARGE_BYTES + 1, 3]
                .into_iter()
                .enumerate()
                .map(|(number, bytes)| vec![number as u8 + 1; bytes].into())
                .collect();
        let mut places = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            places.push(writer.encode(&arrival(number as u8), message.clone()));
            if number % 3 == 2 {
                writer.write().unwrap();
            }
        }
        writer.write().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, writer.segment.length());
        let mut payload = vec![0; 32];
        payload.extend((-2i64).to_le_bytes());
        payload.extend([3, 0, 7, 0]);
        payload.extend(b"pubcontent\x01\x01\x01\x01\x01");
        assert_eq!(bytes[52..52 + payload.len()], payload);
        let mut read = Vec::new();
        let scanned: Result<u64, ScanError<()>> =
            scan(disk.as_ref(), &path, None, true, |header, place| {
                assert_eq!((header.pubsub_topic, header.content_topic), ("pub", "content"));
                assert_eq!((header.hash, header.timestamp_ns), ([read.len() as u8; 32], -2));
                let (start, length) = (place.start as usize, place.length as usize);
                assert_eq!(bytes[start..start + length], messages[read.len()]);
                read.push(place);
                Ok(())
            });
        assert!(matches!(scanned, Ok(length) if length == bytes.len() as u64));
        assert_eq!(read, places);
    }
}
