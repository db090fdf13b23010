//! The block log: the node's write-ahead log of finalised blocks and of what executing them gave.
//!
//! A folder of segment files named by the first height they hold. A segment is a header (magic, format version) and records, each
//! `length: u32, crc32: u32, payload` (little-endian), where the payload is a postcard-encoded record: a block with its calls, or the outcome of one. Appends go to the
//! newest segment; a segment that reached its size is closed and the next begins; segments that lie wholly below a durable checkpoint are deleted. So disk use
//! is bounded by what checkpoints allow, and memory by one record.
//!
//! Durability: [`BlockLog::append_block`] returns after `fdatasync`. An outcome without faults needs no sync of its own, because it can be computed again;
//! one with faults is synced.
//!
//! After a crash the last record may be torn. A record that is cut short or whose checksum fails *at the end of the newest segment* is such a tear and is cut
//! off; anywhere else it is damage, and the node refuses to start rather than guess. A failed append (full disk) is rolled back to the end of the last whole
//! record, so that the next append starts clean.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use state::{Fault, Height};
use thiserror::Error;

use crate::seam::{FinalisedBlock, Recorded};

const MAGIC: &[u8; 8] = b"thblog\x00\x03";
/// A record larger than this is damage: no block can be.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Why the log cannot be read or written.
#[derive(Debug, Error)]
pub enum LogError {
    /// The operating system said no.
    #[error("block log {path}: {doing}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Reason.
        source: io::Error,
    },
    /// A record in the middle does not check.
    #[error("block log {path} is damaged at byte {offset}: {what}; restore the data directory from a copy")]
    Damaged {
        /// File.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// The block does not fit a record.
    #[error("a block of {bytes} bytes is over the block log's record limit of {RECORD_BYTES_MAX}")]
    TooLarge {
        /// Encoded size.
        bytes: usize,
    },
}

impl LogError {
    /// Whether the disk is full, so that the same call may succeed later.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge))
    }
}

#[derive(Serialize, Deserialize)]
enum Record {
    Block(FinalisedBlock),
    Outcome { height: Height, root: [u8; 32], faults: Vec<Fault> },
}

#[derive(Serialize)]
enum RecordRef<'a> {
    Block(&'a FinalisedBlock),
    Outcome { height: Height, root: [u8; 32], faults: &'a [Fault] },
}

/// A block as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The block.
    pub block: FinalisedBlock,
    /// What executing it gave, if it was executed before the crash.
    pub recorded: Option<Recorded>,
}

/// See the module.
pub struct BlockLog {
    folder: PathBuf,
    segment_bytes: u64,
    segments: Vec<Segment>,
    file: Option<File>,
    /// Length of the newest segment up to its last whole record.
    length: u64,
    last: Option<Height>,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Segment {
    first: Height,
    path: PathBuf,
}

impl BlockLog {
    /// Opens the log in `folder` (made if absent), cutting off a torn tail.
    pub fn open(folder: &Path, segment_bytes: u64) -> Result<Self, LogError> {
        fs::create_dir_all(folder).map_err(|source| io_error(folder, "creating the folder", source))?;
        let mut segments = Vec::new();
        for entry in fs::read_dir(folder).map_err(|source| io_error(folder, "listing", source))? {
            let path = entry.map_err(|source| io_error(folder, "listing", source))?.path();
            let first = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_suffix(".blocks"))
                .and_then(|name| name.parse().ok());
            if let Some(first) = first {
                segments.push(Segment { first: Height(first), path });
            }
        }
        segments.sort_by_key(|segment| segment.first);
        let mut log = Self {
            folder: folder.to_path_buf(),
            segment_bytes,
            segments,
            file: None,
            length: 0,
            last: None,
            buffer: Vec::new(),
        };
        log.recover_tail()?;
        Ok(log)
    }

    /// Where the segments lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Height of the newest block, if the log holds any.
    pub fn last(&self) -> Option<Height> {
        self.last
    }

    /// Finds the end of the newest segment and cuts off what a crash tore.
    fn recover_tail(&mut self) -> Result<(), LogError> {
        while let Some(segment) = self.segments.last().cloned() {
            let mut reader = SegmentReader::open(&segment.path, true)?;
            let mut last = None;
            while let Some(record) = reader.next()? {
                if let Record::Block(block) = record {
                    last = Some(block.height);
                }
            }
            let whole = reader.offset;
            if last.is_none() {
                // Died between creating the segment and its first block; an outcome alone says nothing that cannot be computed again.
                fs::remove_file(&segment.path)
                    .map_err(|source| io_error(&segment.path, "removing", source))?;
                self.segments.pop();
                continue;
            }
            let file = open_for_append(&segment.path)?;
            file.set_len(whole).map_err(|source| io_error(&segment.path, "cutting a torn tail", source))?;
            file.sync_all().map_err(|source| io_error(&segment.path, "syncing", source))?;
            self.file = Some(file);
            self.length = whole;
            self.last = last;
            break;
        }
        Ok(())
    }

    /// Makes `block` durable.
    pub fn append_block(&mut self, block: &FinalisedBlock) -> Result<(), LogError> {
        if self.file.is_none() || self.length >= self.segment_bytes {
            self.begin_segment(block.height)?;
        }
        self.append(&RecordRef::Block(block), true)?;
        self.last = Some(block.height);
        Ok(())
    }

    /// Notes what executing the block of `height` gave; durable on return when there are faults.
    pub fn append_outcome(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: &[Fault],
    ) -> Result<(), LogError> {
        self.append(&RecordRef::Outcome { height, root, faults }, !faults.is_empty())
    }

    fn begin_segment(&mut self, first: Height) -> Result<(), LogError> {
        let path = self.folder.join(format!("{:020}.blocks", first.0));
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| io_error(&path, "creating", source))?;
        let started = file
            .write_all_at(MAGIC, 0)
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(&self.folder)?.sync_all());
        if let Err(source) = started {
            let _ = fs::remove_file(&path);
            return Err(io_error(&path, "starting", source));
        }
        self.segments.push(Segment { first, path });
        self.file = Some(file);
        self.length = MAGIC.len() as u64;
        Ok(())
    }

    fn append(&mut self, record: &RecordRef<'_>, sync: bool) -> Result<(), LogError> {
        let (Some(file), Some(segment)) = (&self.file, self.segments.last()) else {
            return Ok(());
        };
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 8]);
        let buffer = postcard::to_extend(record, std::mem::take(&mut self.buffer))
            .map_err(|error| io_error(&segment.path, "encoding", io::Error::other(error)))?;
        self.buffer = buffer;
        let payload = self.buffer.len() - 8;
        if payload > RECORD_BYTES_MAX {
            return Err(LogError::TooLarge { bytes: payload });
        }
        let checksum = crc32fast::hash(&self.buffer[8..]);
        self.buffer[..4].copy_from_slice(&(payload as u32).to_le_bytes());
        self.buffer[4..8].copy_from_slice(&checksum.to_le_bytes());
        let mut written = file.write_all_at(&self.buffer, self.length);
        if sync {
            written = written.and_then(|()| file.sync_data());
        }
        if let Err(source) = written {
            // Whatever part reached the file must not be taken for a record later.
            let _ = file.set_len(self.length);
            return Err(io_error(&segment.path, "appending", source));
        }
        self.length += self.buffer.len() as u64;
        self.buffer.shrink_to(1 << 20);
        Ok(())
    }

    /// Lets go of every block: a state above them all was installed, and the next block is the one behind that state.
    pub fn clear(&mut self) -> Result<(), LogError> {
        self.file = None;
        self.last = None;
        self.length = 0;
        // The newest first: whatever a crash leaves is a log without a gap.
        while let Some(segment) = self.segments.last() {
            fs::remove_file(&segment.path).map_err(|source| io_error(&segment.path, "removing", source))?;
            self.segments.pop();
        }
        Ok(())
    }

    /// Height of the oldest block, if the log holds any.
    pub fn first(&self) -> Option<Height> {
        self.last.and_then(|_| self.segments.first()).map(|segment| segment.first)
    }

    /// Height at and below which segments must go for the rest to have at most so many bytes. The newest segment stays.
    pub fn height_beyond(&self, bytes: u64) -> Height {
        let mut kept = 0_u64;
        let mut oldest = None;
        for segment in self.segments.iter().rev() {
            kept = kept.saturating_add(fs::metadata(&segment.path).map_or(0, |meta| meta.len()));
            if kept > bytes && oldest.is_some() {
                break;
            }
            oldest = Some(segment.first);
        }
        Height(oldest.map_or(0, |first| first.0.saturating_sub(1)))
    }

    /// Deletes segments whose every block is at or below `height`. The newest stays.
    pub fn prune(&mut self, height: Height) -> Result<(), LogError> {
        while self.segments.get(1).is_some_and(|next| next.first.0 <= height.0 + 1) {
            let segment = self.segments.remove(0);
            fs::remove_file(&segment.path).map_err(|source| io_error(&segment.path, "removing", source))?;
        }
        Ok(())
    }

    /// Reads the blocks above `height`, in order, with their outcomes; one block in memory at a time.
    pub fn read_from(&self, height: Height) -> Result<Replay, LogError> {
        let start =
            self.segments.partition_point(|segment| segment.first.0 <= height.0 + 1).saturating_sub(1);
        Ok(Replay {
            segments: self.segments[start..].iter().cloned().collect(),
            reader: None,
            next: None,
            above: height,
        })
    }

    /// Bytes of all segments on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.segments
            .iter()
            .filter_map(|segment| fs::metadata(&segment.path).ok())
            .map(|meta| meta.len())
            .sum()
    }
}

/// Blocks of the log, oldest first.
pub struct Replay {
    segments: VecDeque<Segment>,
    reader: Option<SegmentReader>,
    /// A block whose outcome may be the next record.
    next: Option<Logged>,
    above: Height,
}

impl Replay {
    fn record(&mut self) -> Result<Option<Record>, LogError> {
        loop {
            if let Some(reader) = &mut self.reader
                && let Some(record) = reader.next()?
            {
                return Ok(Some(record));
            }
            let Some(segment) = self.segments.pop_front() else {
                return Ok(None);
            };
            self.reader = Some(SegmentReader::open(&segment.path, self.segments.is_empty())?);
        }
    }

    /// The next block.
    pub fn next_block(&mut self) -> Result<Option<Logged>, LogError> {
        loop {
            match self.record()? {
                None => return Ok(self.next.take()),
                Some(Record::Block(block)) => {
                    let wanted = block.height > self.above;
                    let logged = wanted.then_some(Logged { block, recorded: None });
                    if let Some(ready) = std::mem::replace(&mut self.next, logged) {
                        return Ok(Some(ready));
                    }
                }
                Some(Record::Outcome { height, root, faults }) => {
                    if let Some(next) = self.next.as_mut().filter(|next| next.block.height == height) {
                        next.recorded = Some(Recorded { root, faults });
                    }
                }
            }
        }
    }
}

struct SegmentReader {
    path: PathBuf,
    file: BufReader<File>,
    length: u64,
    /// End of the last whole record read.
    offset: u64,
    newest: bool,
}

impl SegmentReader {
    fn open(path: &Path, newest: bool) -> Result<Self, LogError> {
        let file = File::open(path).map_err(|source| io_error(path, "opening", source))?;
        let length = file.metadata().map_err(|source| io_error(path, "reading", source))?.len();
        let mut reader =
            Self { path: path.to_path_buf(), file: BufReader::new(file), length, offset: 0, newest };
        let mut magic = [0; MAGIC.len()];
        if length >= MAGIC.len() as u64 {
            reader.file.read_exact(&mut magic).map_err(|source| io_error(path, "reading", source))?;
            reader.offset = MAGIC.len() as u64;
            if &magic != MAGIC {
                return reader.damaged("this is no block log of a format this version reads");
            }
        } else if !newest {
            return reader.damaged("the file is cut short");
        } else {
            reader.length = 0;
        }
        Ok(reader)
    }

    fn damaged<T>(&self, what: impl Into<String>) -> Result<T, LogError> {
        Err(LogError::Damaged { path: self.path.clone(), offset: self.offset, what: what.into() })
    }

    /// The next whole record; `None` at the end, or at a tear at the end of the newest segment.
    fn next(&mut self) -> Result<Option<Record>, LogError> {
        let left = self.length.saturating_sub(self.offset);
        if left == 0 {
            return Ok(None);
        }
        match self.parse(left)? {
            Ok((record, bytes)) => {
                self.offset += bytes;
                Ok(Some(record))
            }
            Err(_) if self.newest => {
                self.length = self.offset;
                Ok(None)
            }
            Err(what) => self.damaged(what),
        }
    }

    fn parse(&mut self, left: u64) -> Result<Result<(Record, u64), String>, LogError> {
        let read_error = |path: &Path, source| io_error(path, "reading", source);
        let mut head = [0; 8];
        if left < 8 {
            return Ok(Err("a record's head is cut short".into()));
        }
        self.file.read_exact(&mut head).map_err(|source| read_error(&self.path, source))?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let checksum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if length > RECORD_BYTES_MAX || length as u64 + 8 > left {
            return Ok(Err(format!("a record claims {length} bytes")));
        }
        let mut payload = vec![0; length];
        self.file.read_exact(&mut payload).map_err(|source| read_error(&self.path, source))?;
        if crc32fast::hash(&payload) != checksum {
            return Ok(Err("a record's checksum does not match".into()));
        }
        Ok(postcard::from_bytes(&payload)
            .map(|record| (record, length as u64 + 8))
            .map_err(|error| format!("a record does not decode: {error}")))
    }
}

fn open_for_append(path: &Path) -> Result<File, LogError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|source| io_error(path, "opening", source))
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> LogError {
    LogError::Io { path: path.to_path_buf(), doing, source }
}

impl Drop for BlockLog {
    fn drop(&mut self) {
        if let Some(file) = &mut self.file {
            let _ = file.flush().and_then(|()| file.sync_data());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ic_principal::Principal;
    use state::Time;

    use super::*;

    fn block(height: u64) -> FinalisedBlock {
        FinalisedBlock {
            height: Height(height),
            time: Time(height),
            randomness: [height as u8; 32],
            ingress: vec![],
            key: None,
        }
    }

    fn heights(log: &BlockLog, above: u64) -> Vec<u64> {
        let mut replay = log.read_from(Height(above)).unwrap();
        let mut heights = vec![];
        while let Some(logged) = replay.next_block().unwrap() {
            heights.push(logged.block.height.0);
        }
        heights
    }

    fn write(folder: &Path, segment_bytes: u64, from: u64, to: u64) -> BlockLog {
        let mut log = BlockLog::open(folder, segment_bytes).unwrap();
        for height in from..=to {
            log.append_block(&block(height)).unwrap();
            log.append_outcome(Height(height), [height as u8; 32], &[]).unwrap();
        }
        log
    }

    #[test]
    fn batches_come_back_with_what_executing_them_gave() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = write(folder.path(), 1 << 20, 1, 3);
        let fault = Fault { canister_id: Principal::management_canister(), ordinal: 2 };
        log.append_block(&block(4)).unwrap();
        log.append_outcome(Height(4), [1; 32], std::slice::from_ref(&fault)).unwrap();
        log.append_block(&block(5)).unwrap();
        drop(log);
        let log = BlockLog::open(folder.path(), 1 << 20).unwrap();
        assert_eq!(log.last(), Some(Height(5)));
        let mut replay = log.read_from(Height(2)).unwrap();
        let third = replay.next_block().unwrap().unwrap();
        assert_eq!(third.recorded, Some(Recorded { root: [3; 32], faults: vec![] }));
        let fourth = replay.next_block().unwrap().unwrap();
        assert_eq!(fourth.recorded.unwrap().faults, [fault]);
        let fifth = replay.next_block().unwrap().unwrap();
        assert_eq!((fifth.block.height, fifth.recorded), (Height(5), None));
        assert!(replay.next_block().unwrap().is_none());
    }

    #[test]
    fn segments_roll_and_are_pruned_only_when_wholly_below() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = write(folder.path(), 300, 1, 20);
        assert!(log.segments.len() > 3);
        let before = log.disk_bytes();
        for below in 0..=20 {
            log.prune(Height(below)).unwrap();
            assert_eq!(heights(&log, below), (below + 1..=20).collect::<Vec<_>>());
        }
        assert!(log.disk_bytes() < before);
        drop(log);
        let log = write(folder.path(), 300, 21, 22);
        assert_eq!(heights(&log, 20), [21, 22]);
    }

    #[test]
    fn it_is_cut_to_a_size_but_for_its_newest_segment() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = write(folder.path(), 300, 1, 20);
        let all = log.disk_bytes();
        assert_eq!(log.height_beyond(all), Height(0));
        for bytes in (600..all).rev().step_by(100) {
            log.prune(log.height_beyond(bytes)).unwrap();
            assert!(log.disk_bytes() <= bytes, "{bytes}");
            assert_eq!(log.last(), Some(Height(20)));
        }
        log.prune(log.height_beyond(0)).unwrap();
        assert_eq!(log.segments.len(), 1);
    }

    #[test]
    fn a_log_that_was_cleared_begins_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = write(folder.path(), 300, 1, 20);
        assert_eq!(log.first(), Some(Height(1)));
        log.clear().unwrap();
        assert_eq!((log.first(), log.last(), log.disk_bytes()), (None, None, 0));
        log.append_block(&block(70)).unwrap();
        drop(log);
        let log = write(folder.path(), 300, 71, 90);
        assert_eq!((log.first(), log.last()), (Some(Height(70)), Some(Height(90))));
        assert_eq!(heights(&log, 69), (70..=90).collect::<Vec<_>>());
    }

    #[test]
    fn a_torn_tail_is_cut_wherever_the_tear_is() {
        let source = tempfile::tempdir().unwrap();
        drop(write(source.path(), 1 << 20, 1, 3));
        let name = "00000000000000000001.blocks";
        let whole = fs::read(source.path().join(name)).unwrap();
        for cut in 0..whole.len() {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(name), &whole[..cut]).unwrap();
            let mut log = BlockLog::open(folder.path(), 1 << 20).unwrap();
            let next = log.last().map_or(1, |height| height.0 + 1);
            log.append_block(&block(next)).unwrap();
            assert_eq!(heights(&log, 0), (1..=next).collect::<Vec<_>>());
        }
    }

    #[test]
    fn damage_in_the_middle_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(write(folder.path(), 200, 1, 20));
        let first = folder.path().join("00000000000000000001.blocks");
        let mut bytes = fs::read(&first).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&first, bytes).unwrap();
        let log = BlockLog::open(folder.path(), 200).unwrap();
        let mut replay = log.read_from(Height(0)).unwrap();
        let error = loop {
            match replay.next_block() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("damage went unnoticed"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = BlockLog::open(&file.join("log"), 100).err().unwrap();
        assert!(error.to_string().contains("creating the folder"), "{error}");
    }
}
