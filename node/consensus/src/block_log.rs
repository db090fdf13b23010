//! The block log: the node's write-ahead log of finalised blocks and of the results of their
//! execution.
//!
//! A folder of segments named by the first height they hold. A segment is a record file
//! ([`disk::records`]) of postcard-encoded records: a block with its calls, the outcome of one, and
//! first of all, in every segment that follows another, where that one ends. Segments wholly below
//! a durable checkpoint are deleted. So disk use is bounded by what checkpoints allow, and memory
//! by one record.
//!
//! [`BlockLog::append_block`] returns after `fdatasync`. A block that is durable elsewhere may be
//! synced together with later ones ([`BlockLog::append_block_later`]): with the
//! [`UNSYNCED_BLOCKS_MAX`]th, or when they have [`UNSYNCED_BYTES_MAX`] bytes. An outcome with
//! faults is synced; one without can be computed again. The first record behind a sync also marks
//! what is before it as durable: from then on a changed bit is damage, not a tear.
//!
//! The newest certified height is kept in a separate file, written before a certificate is shown. A
//! log that ends below it lost acknowledged data ([`BlockLog::check_complete`]).
//!
//! A failed append is rolled back to the end of the last whole record. After a failed sync the
//! contents of the segment beyond the last successful one are unknown: it ends there, and the next
//! append begins a new segment with the blocks and outcomes that were not durable.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
};

use disk::{
    NumberFile, Open, RealDisk, SharedDisk, if_there,
    records::{End, Kind, Reader, RecordError, RecordFile},
};
use serde::{Deserialize, Serialize};
use state::{Fault, Height};
use thiserror::Error;

use crate::seam::{FinalisedBlock, RecordedOutcome};

/// A record larger than this is damage: no block can be.
const KIND: Kind = Kind { name: *b"blocks\0\0", version: 6, bytes_max: 64 << 20 };
/// Blocks that are synced with a later one, at most, and the bytes of their records.
pub(crate) const UNSYNCED_BLOCKS_MAX: usize = 4;
const UNSYNCED_BYTES_MAX: usize = 256 << 10;
/// File of the newest certified height.
const CERTIFIED: &str = "certified";

/// Why the log cannot be read or written.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum LogError {
    /// The operating system said no, or another version wrote the file.
    #[error("block log {0}")]
    Records(RecordError),
    #[error(
        "block log {path} is damaged at byte {offset}: {what}; {missing}: see docs/operating.md, \
         \"When the disk was damaged\""
    )]
    Damaged { path: PathBuf, offset: u64, what: String, missing: String },
    #[error(
        "block log {folder} ends at height {last}, but height {certified} was certified: blocks \
         {first_missing} to {certified} were acknowledged and are missing; see docs/operating.md, \
         \"When the disk was damaged\""
    )]
    Missing {
        folder: PathBuf,
        /// Newest height of the log, or of the checkpoint if that is newer.
        last: u64,
        first_missing: u64,
        certified: u64,
    },
}

impl LogError {
    /// Trouble of the disk, which may heal, so that the same call may succeed later. Damage does
    /// not heal.
    pub fn can_heal(&self) -> bool {
        matches!(self, Self::Records(error) if error.can_heal())
    }
}

impl From<RecordError> for LogError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Damaged { path, offset, what } => {
                Self::Damaged { path, offset, what, missing: "blocks in it cannot be read".into() }
            }
            other => Self::Records(other),
        }
    }
}

/// `Follows`: the segment before begins at height `first`, and its records end at byte `end`.
#[derive(Serialize, Deserialize)]
enum Record<'a> {
    Follows { first: Height, end: u64 },
    Block(Cow<'a, FinalisedBlock>),
    Outcome { height: Height, root: [u8; 32], faults: Cow<'a, [Fault]> },
}

/// The version, and one record of each kind.
#[cfg(test)]
pub(crate) fn samples() -> (u64, Vec<(&'static str, Vec<u8>)>) {
    use state::{Randomness, SignedRandomness};
    let signed = state::SignedIngress {
        effective_canister_id: ic_principal::Principal::from_slice(&[1, 2, 3]),
        envelope: vec![5; 300].into(),
    };
    let counts = state::QueryCounts {
        calls: 10,
        instructions: 11 << 40,
        request_bytes: 12,
        response_bytes: 13,
    };
    let block = FinalisedBlock {
        height: Height(0x0102_0304),
        time: state::Time(77),
        randomness: Randomness::Signed(vec![SignedRandomness { root: [6; 32], value: [14; 32] }]),
        ingress: vec![signed.clone(), signed],
        key: Some(state::SubnetKey {
            summary: vec![15],
            boundary: [16; 32],
            voters: vec![17],
            nodes: vec![],
        }),
        agreed: Some(state::AgreedRound { epoch: 3, view: 700 }),
        queries: Some(Box::new(state::QueryReport {
            node: ic_principal::Principal::from_slice(&[7, 8]),
            canisters: vec![(ic_principal::Principal::from_slice(&[9]), counts)],
        })),
    };
    let fault =
        Fault { canister_id: ic_principal::Principal::from_slice(&[4, 5, 6]), ordinal: 500 };
    let samples = [
        ("follows", Record::Follows { first: Height(9), end: 10_000 }),
        ("block", Record::Block(Cow::Owned(block))),
        (
            "outcome",
            Record::Outcome { height: Height(9), root: [8; 32], faults: vec![fault].into() },
        ),
    ]
    .map(|(name, record)| (name, postcard::to_stdvec(&record).unwrap_or_default()));
    (KIND.version.into(), samples.into())
}

/// A block as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedBlock {
    /// The block as it was appended.
    pub block: FinalisedBlock,
    /// Recorded outcome of the block, if it was executed before the crash.
    pub recorded: Option<RecordedOutcome>,
}

/// Final blocks on disk, in segments, with their recorded outcomes.
pub struct BlockLog {
    disk: SharedDisk,
    folder: PathBuf,
    segment_bytes: u64,
    segments: Vec<Segment>,
    /// The newest segment. None while there is no segment, and between a failed sync and the
    /// segment that takes over.
    file: Option<RecordFile>,
    last: Option<Height>,
    certified: NumberFile,
    /// Encoded records that are not known to be durable, in order: outcomes behind the last block
    /// that is, and blocks behind it with theirs.
    unsynced: Vec<Vec<u8>>,
    /// The first block among them, and how many there are.
    unsynced_blocks: Option<(Height, usize)>,
}

#[derive(Clone, Debug)]
struct Segment {
    first: Height,
    path: PathBuf,
    /// Length of the file at the last check.
    bytes: u64,
    /// Where its records end, once the next segment is begun; read from that one when unknown.
    end: Option<u64>,
}

impl BlockLog {
    /// Opens the log in `folder` (made if absent) on the machine's disk, cutting off a torn end.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when the newest segment is; older ones are checked as they are read.
    pub fn open(folder: &Path, segment_bytes: u64) -> Result<Self, LogError> {
        Self::open_on(RealDisk::shared(), folder, segment_bytes)
    }

    /// The same on another disk.
    pub fn open_on(disk: SharedDisk, folder: &Path, segment_bytes: u64) -> Result<Self, LogError> {
        disk.create_folder(folder).map_err(io_error(folder, "creating the folder"))?;
        let mut segments = Vec::new();
        for path in disk.list(folder).map_err(io_error(folder, "listing"))? {
            let first = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_suffix(".blocks"))
                .and_then(|name| name.parse().ok());
            if let Some(first) = first {
                let bytes = disk.open(&path, Open::Read).and_then(|file| file.length());
                let bytes = bytes.map_err(io_error(&path, "opening"))?;
                segments.push(Segment { first: Height(first), path, bytes, end: None });
            }
        }
        segments.sort_by_key(|segment| segment.first);
        let path = folder.join(CERTIFIED);
        let certified =
            NumberFile::open(disk.as_ref(), &path).map_err(io_error(&path, "opening"))?;
        if certified.was_damaged() {
            tracing::warn!(
                path = %path.display(),
                "the file of the newest certified height was damaged or torn by a power cut; the block log is checked against an older height"
            );
        }
        let mut log = Self {
            disk,
            folder: folder.to_path_buf(),
            segment_bytes,
            segments,
            file: None,
            last: None,
            certified,
            unsynced: Vec::new(),
            unsynced_blocks: None,
        };
        log.recover_tail()?;
        Ok(log)
    }

    /// Folder of the segments.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Disk of the log.
    pub fn disk(&self) -> &SharedDisk {
        &self.disk
    }

    /// Height of the newest block, if the log holds any.
    pub fn last(&self) -> Option<Height> {
        self.last
    }

    /// Height of the newest block that is durable in this log; the height below the first block if
    /// none is.
    pub fn durable(&self) -> Height {
        match self.unsynced_blocks {
            Some((first, _)) => Height(first.0.saturating_sub(1)),
            None => self.last.unwrap_or_default(),
        }
    }

    /// Finds the end of the newest segment, cuts off what a crash tore, and finds the newest block.
    fn recover_tail(&mut self) -> Result<(), LogError> {
        while let Some(segment) = self.segments.last().cloned() {
            let before = Height(segment.first.0.saturating_sub(1));
            let mut reader = Reader::open(self.disk.as_ref(), &segment.path, KIND, None)
                .map_err(|error| missing(error.into(), before, self.certified.value()))?;
            let (mut last, mut outcomes) = (None, Vec::new());
            loop {
                match reader.next() {
                    Ok(None) => break,
                    Ok(Some((offset, payload))) => match decode(&segment.path, offset, payload)? {
                        Record::Block(block) => {
                            last = Some(block.height);
                            outcomes.clear();
                        }
                        Record::Outcome { .. } => outcomes.push(payload.to_vec()),
                        Record::Follows { .. } => {}
                    },
                    Err(error) => {
                        let behind = next_block(&mut reader);
                        let until = behind
                            .map(|height| height.0.saturating_sub(1))
                            .or(self.certified.value());
                        return Err(missing(error.into(), last.unwrap_or(before), until));
                    }
                }
            }
            if last.is_none() && outcomes.is_empty() {
                // Died between creating the segment and its first record.
                if let End::Torn(offset) = reader.end() {
                    tracing::debug!(path = %segment.path.display(), offset, "a segment without a record");
                }
                self.disk.remove(&segment.path).map_err(io_error(&segment.path, "removing"))?;
                self.segments.pop();
                continue;
            }
            self.file = Some(RecordFile::resume(self.disk.as_ref(), &reader)?);
            self.last = last;
            self.unsynced = outcomes;
            break;
        }
        // A segment may begin with an outcome and hold no block yet.
        let mut newest = self.segments.len();
        while self.last.is_none() && newest > 1 {
            newest -= 1;
            let mut replay = Replay::new(self, newest - 1..newest, Height(0));
            while let Some(logged) = replay.next_block()? {
                self.last = Some(logged.block.height);
            }
        }
        Ok(())
    }

    /// Refuses a log that ends below what was certified. `restored` is the height of the
    /// checkpoint, which stands for the blocks up to it.
    ///
    /// # Errors
    /// [`LogError::Missing`].
    pub fn check_complete(&self, restored: Height) -> Result<(), LogError> {
        let last = self.last.unwrap_or_default().max(restored).0;
        match self.certified.value() {
            Some(certified) if certified > last => Err(LogError::Missing {
                folder: self.folder.clone(),
                last,
                first_missing: last + 1,
                certified,
            }),
            _ => Ok(()),
        }
    }

    /// Notes that a certificate of `height` is about to be shown. Survives the process at once, and
    /// a power cut from the next segment or checkpoint on.
    ///
    /// # Errors
    /// When the disk fails; the certificate must not be shown then.
    pub fn record_certified(&mut self, height: Height) -> Result<(), LogError> {
        if self.certified.value().is_some_and(|newest| newest >= height.0) {
            return Ok(());
        }
        let path = self.folder.join(CERTIFIED);
        self.certified.remember(height.0).map_err(io_error(&path, "writing"))
    }

    fn sync_certified(&self) -> Result<(), LogError> {
        self.certified.sync().map_err(io_error(&self.folder.join(CERTIFIED), "syncing"))
    }

    /// Makes `block` durable.
    ///
    /// # Errors
    /// When the disk fails: the block may or may not be found after a crash, and the call may be
    /// repeated, with another block of that height too.
    pub fn append_block(&mut self, block: &FinalisedBlock) -> Result<(), LogError> {
        debug_assert!(
            self.last < Some(block.height),
            "block {} is to follow block {:?}",
            block.height.0,
            self.last
        );
        let encoded = self.encode(&Record::Block(Cow::Borrowed(block)))?;
        self.append(&encoded, block.height, true, true)?;
        self.last = Some(block.height);
        Ok(())
    }

    /// Appends a block that is durable elsewhere, and stays there until it is durable here
    /// ([`Self::durable`]).
    ///
    /// # Errors
    /// As of [`Self::append_block`].
    pub fn append_block_later(&mut self, block: &FinalisedBlock) -> Result<(), LogError> {
        debug_assert!(self.last < Some(block.height), "{} follows {:?}", block.height.0, self.last);
        let encoded = self.encode(&Record::Block(Cow::Borrowed(block)))?;
        let bytes = self.unsynced.iter().map(Vec::len).sum::<usize>() + encoded.len();
        let count = self.unsynced_blocks.map_or(0, |(_, count)| count);
        let due = count + 1 >= UNSYNCED_BLOCKS_MAX || bytes > UNSYNCED_BYTES_MAX;
        self.append(&encoded, block.height, true, due)?;
        self.last = Some(block.height);
        if !due {
            // It may have begun a segment, and then everything before it is durable.
            let (first, count) = self.unsynced_blocks.unwrap_or((block.height, 0));
            self.unsynced_blocks = Some((first, count + 1));
            self.unsynced.push(encoded);
        }
        Ok(())
    }

    /// Makes every block durable.
    ///
    /// # Errors
    /// When the disk fails; the call may be repeated.
    pub fn sync(&mut self) -> Result<(), LogError> {
        let Some((first, _)) = self.unsynced_blocks else { return Ok(()) };
        if self.file.as_ref().is_none_or(RecordFile::sync_lost) {
            self.begin_segment(first)?;
        }
        if let Some(file) = &mut self.file {
            file.sync()?;
            self.synced();
        }
        Ok(())
    }

    /// Everything is durable.
    fn synced(&mut self) {
        self.unsynced.clear();
        self.unsynced_blocks = None;
    }

    /// Notes what executing the block of `height` gave; durable on return when there are faults.
    ///
    /// # Errors
    /// When the disk fails; the call may be repeated.
    pub fn append_outcome(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: &[Fault],
    ) -> Result<(), LogError> {
        if self.last.is_none() {
            return Ok(());
        }
        let encoded = self.encode(&Record::Outcome { height, root, faults: faults.into() })?;
        // A step after the append failed, and the caller retries.
        if self.unsynced.last() == Some(&encoded) {
            return Ok(());
        }
        self.append(&encoded, Height(height.0 + 1), false, !faults.is_empty())?;
        self.unsynced.push(encoded);
        Ok(())
    }

    fn encode(&self, record: &Record<'_>) -> Result<Vec<u8>, LogError> {
        postcard::to_stdvec(record)
            .map_err(|error| io_error(&self.folder, "encoding")(io::Error::other(error)))
    }

    /// Appends to the newest segment, or to a new one that is named by `next`, the next block's
    /// height.
    fn append(
        &mut self,
        encoded: &[u8],
        next: Height,
        block: bool,
        sync: bool,
    ) -> Result<(), LogError> {
        // An outcome stays with its block.
        let bytes_max = if block { self.segment_bytes } else { u64::MAX };
        let full = |file: &RecordFile| file.sync_lost() || file.length() >= bytes_max;
        if self.file.as_ref().is_none_or(full) {
            self.begin_segment(next)?;
        }
        let (Some(file), Some(segment)) = (&mut self.file, self.segments.last_mut()) else {
            let error = io::Error::other("there is no segment");
            return Err(io_error(&self.folder, "appending")(error));
        };
        file.append([encoded])?;
        if sync {
            file.sync()?;
        }
        segment.bytes = file.length();
        if sync {
            self.synced();
        }
        Ok(())
    }

    /// Begins a segment with what is not durable, or else with the block of height `next`.
    fn begin_segment(&mut self, next: Height) -> Result<(), LogError> {
        // The end that is written down below must be one that is durable.
        if let Some(file) = &mut self.file
            && !file.sync_lost()
            && file.sync().is_ok()
        {
            self.synced();
        }
        let first = self.unsynced_blocks.map_or(next, |(first, _)| first);
        if self.segments.last().is_some_and(|segment| segment.first == first) {
            // No block in it is durable: it is begun anew, with what it holds.
            self.file = None;
            let begun = self.segments.pop();
            if let (Some(segment), Some(begun)) = (self.segments.last_mut(), begun)
                && segment.end.is_none()
            {
                segment.end = Some(end_before(&self.disk, segment, &begun)?);
            }
        } else if let (Some(file), Some(segment)) = (&self.file, self.segments.last_mut()) {
            segment.end = Some(file.synced());
        }
        self.sync_certified()?;
        let path = self.folder.join(format!("{:020}.blocks", first.0));
        let mut file = RecordFile::create(self.disk.as_ref(), &path, KIND)?;
        let follows = match self.segments.last() {
            Some(Segment { first, end: Some(end), .. }) => {
                Some(self.encode(&Record::Follows { first: *first, end: *end })?)
            }
            _ => None,
        };
        let carried = follows.iter().chain(&self.unsynced).map(Vec::as_slice);
        if let Err(error) = file.append(carried) {
            let _ = self.disk.remove(&path);
            return Err(error.into());
        }
        self.segments.push(Segment { first, path, bytes: file.length(), end: None });
        self.file = Some(file);
        Ok(())
    }

    /// Removes every block: a state above them all was installed, and the next block is the one
    /// after that state.
    pub fn clear(&mut self) -> Result<(), LogError> {
        self.file = None;
        self.last = None;
        self.synced();
        // The newest first: whatever a crash leaves is a log without a gap.
        while let Some(segment) = self.segments.last() {
            self.disk.remove(&segment.path).map_err(io_error(&segment.path, "removing"))?;
            self.segments.pop();
        }
        Ok(())
    }

    /// Height of the oldest block, if the log holds any.
    pub fn first(&self) -> Option<Height> {
        self.last.and_then(|_| self.segments.first()).map(|segment| segment.first)
    }

    /// Height at and below which segments must be removed so that the rest have at most `bytes`
    /// bytes. The newest segment stays.
    pub fn height_beyond(&self, bytes: u64) -> Height {
        let mut kept = 0_u64;
        let mut oldest = None;
        for segment in self.segments.iter().rev() {
            kept = kept.saturating_add(segment.bytes);
            if kept > bytes && oldest.is_some() {
                break;
            }
            oldest = Some(segment.first);
        }
        Height(oldest.map_or(0, |first| first.0.saturating_sub(1)))
    }

    /// Deletes segments whose every block is at or below `height`, that of a durable checkpoint.
    /// The newest stays.
    pub fn prune(&mut self, height: Height) -> Result<(), LogError> {
        self.sync_certified()?;
        while self.segments.get(1).is_some_and(|next| next.first.0 <= height.0 + 1) {
            let path = &self.segments[0].path;
            if_there(self.disk.remove(path)).map_err(io_error(path, "removing"))?;
            drop(self.segments.remove(0));
        }
        Ok(())
    }

    /// Reads the blocks above `height`, in order, with their outcomes; one block in memory at a
    /// time. Blocks appended later are not read.
    pub fn read_from(&self, height: Height) -> Replay {
        let start = self
            .segments
            .partition_point(|segment| segment.first.0 <= height.0 + 1)
            .saturating_sub(1);
        Replay::new(self, start..self.segments.len(), height)
    }

    /// Bytes of all segments on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

/// Blocks of the log, oldest first.
pub struct Replay {
    disk: SharedDisk,
    segments: VecDeque<Segment>,
    /// The segment behind the last of `segments`, if there is one.
    beyond: Option<Segment>,
    /// Where the records of the newest segment ended when the log was asked.
    newest_end: u64,
    reading: Option<Reading>,
    /// A block whose outcome may be the next record.
    next: Option<LoggedBlock>,
    above: Height,
    /// Newest block read, or the one before the first segment.
    seen: Height,
}

/// The segment that is being read.
struct Reading {
    path: PathBuf,
    reader: Reader,
    end: u64,
}

impl Replay {
    fn new(log: &BlockLog, range: std::ops::Range<usize>, above: Height) -> Self {
        let segments: VecDeque<_> = log.segments[range.clone()].iter().cloned().collect();
        let seen = segments.front().map_or(0, |segment| segment.first.0.saturating_sub(1));
        Self {
            disk: log.disk.clone(),
            segments,
            beyond: log.segments.get(range.end).cloned(),
            newest_end: log.file.as_ref().map_or(0, RecordFile::length),
            reading: None,
            next: None,
            above,
            seen: Height(seen),
        }
    }

    fn follower(&self) -> Option<&Segment> {
        self.segments.front().or(self.beyond.as_ref())
    }

    fn record(&mut self) -> Result<Option<Record<'static>>, LogError> {
        loop {
            if let Some(Reading { path, reader, end }) = &mut self.reading {
                let ended = match reader.next() {
                    Ok(Some((offset, payload))) => return decode(path, offset, payload).map(Some),
                    Ok(None) => None,
                    Err(error) => Some(error),
                };
                if ended.is_some() || reader.offset() != *end {
                    let error = ended.unwrap_or_else(|| RecordError::Damaged {
                        path: path.clone(),
                        offset: reader.offset(),
                        what: format!("the records of this segment extended to byte {end}"),
                    });
                    let behind = next_block(reader);
                    let behind = behind.or(self.follower().map(|segment| segment.first));
                    let until = behind.map(|next| next.0.saturating_sub(1));
                    return Err(missing(error.into(), self.seen, until));
                }
            }
            let Some(segment) = self.segments.pop_front() else {
                return Ok(None);
            };
            let end = match (segment.end, self.follower()) {
                (Some(end), _) => end,
                (None, Some(follower)) => end_before(&self.disk, &segment, follower)?,
                (None, None) => self.newest_end,
            };
            let reader = Reader::open(self.disk.as_ref(), &segment.path, KIND, Some(end)).map_err(
                |error| {
                    let until = self.follower().map(|segment| segment.first.0.saturating_sub(1));
                    missing(error.into(), self.seen, until)
                },
            )?;
            self.reading = Some(Reading { path: segment.path, reader, end });
        }
    }

    /// The next block.
    ///
    /// # Errors
    /// [`LogError::Damaged`] where the log does not check, naming the heights that cannot be read.
    pub fn next_block(&mut self) -> Result<Option<LoggedBlock>, LogError> {
        loop {
            match self.record()? {
                None => return Ok(self.next.take()),
                Some(Record::Block(block)) => {
                    self.seen = block.height;
                    let wanted = block.height > self.above;
                    let block = block.into_owned();
                    let logged = wanted.then_some(LoggedBlock { block, recorded: None });
                    if let Some(ready) = std::mem::replace(&mut self.next, logged) {
                        return Ok(Some(ready));
                    }
                }
                Some(Record::Outcome { height, root, faults }) => {
                    if let Some(next) =
                        self.next.as_mut().filter(|next| next.block.height == height)
                    {
                        next.recorded = Some(RecordedOutcome { root, faults: faults.into_owned() });
                    }
                }
                Some(Record::Follows { .. }) => {}
            }
        }
    }
}

/// Where the records of `segment` end, by what `follower` says of the segment before it.
fn end_before(disk: &SharedDisk, segment: &Segment, follower: &Segment) -> Result<u64, LogError> {
    let mut reader = Reader::open(disk.as_ref(), &follower.path, KIND, None)?;
    let found = reader.next()?;
    match found.map(|(offset, payload)| decode(&follower.path, offset, payload)).transpose()? {
        Some(Record::Follows { first, end }) if first == segment.first => Ok(end),
        _ => {
            let what = format!("it does not follow the segment {}", segment.path.display());
            let (path, offset) = (follower.path.clone(), disk::records::HEADER_BYTES);
            let error = RecordError::Damaged { path, offset, what }.into();
            Err(missing(error, segment.first, Some(follower.first.0.saturating_sub(1))))
        }
    }
}

/// The first block that can be read behind damage.
fn next_block(reader: &mut Reader) -> Option<Height> {
    loop {
        reader.skip_damage();
        match reader.next() {
            Ok(Some((_, payload))) => {
                if let Ok(Record::Block(block)) = postcard::from_bytes(payload) {
                    return Some(block.height);
                }
            }
            Err(RecordError::Damaged { .. }) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Names the heights between the last block that was read and the next that can be.
fn missing(error: LogError, before: Height, until: Option<u64>) -> LogError {
    let LogError::Damaged { path, offset, what, .. } = error else { return error };
    let from = before.0 + 1;
    let missing = match until {
        Some(until) if until < from => {
            format!("what executing block {} gave cannot be read", before.0)
        }
        Some(until) if until == from => format!("block {from} cannot be read"),
        Some(until) => format!("blocks {from} to {until} cannot be read"),
        None => format!("blocks from {from} on cannot be read"),
    };
    LogError::Damaged { path, offset, what, missing }
}

fn decode(path: &Path, offset: u64, payload: &[u8]) -> Result<Record<'static>, LogError> {
    postcard::from_bytes(payload).map_err(|error| {
        let what = format!("a record does not decode: {error}");
        RecordError::Damaged { path: path.to_path_buf(), offset, what }.into()
    })
}

fn io_error(path: &Path, doing: &'static str) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::Records(RecordError::io(path, doing, source))
}

impl Drop for BlockLog {
    fn drop(&mut self) {
        if let Some(file) = &mut self.file {
            let _ = file.sync();
        }
        let _ = self.sync_certified();
    }
}

#[cfg(test)]
#[path = "block_log_tests.rs"]
mod tests;
