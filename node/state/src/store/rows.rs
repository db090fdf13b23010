//! The records of a checkpoint as one stream of bytes: what state sync hashes, sends and lays down
//! again.
//!
//! The stream is the rows of four tables in order (the caller's metadata, canisters by id, messages
//! apart by number, statuses by request id), a row being one part of a record. Rows are small and
//! of the same bounds on every node, so a stream can be made, resumed anywhere and taken in without
//! ever holding a whole record:
//!
//! ```text
//! row = kind:u8 key_bytes:u8 key last:u8 content_bytes:u32 content
//!
//! numbers are big-endian; last is 1 in a record's last row
//! ```

use std::io::Read;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    CANISTERS, HEADS, HISTORY, LoadedCheckpoint, MESSAGES, METADATA_KEY, StoreError, StoreResult,
    guard,
    parts::{self, PART_BYTES, Table},
};

/// Longest key: a request id.
const KEY_BYTES_MAX: usize = 32;
/// The key of a message: its number.
const NUMBER_BYTES: usize = 8;
const _: () = assert!(KEY_BYTES_MAX <= u8::MAX as usize && PART_BYTES <= u32::MAX as usize);

/// Which table a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RowKind {
    /// The caller's metadata: one record.
    Metadata = 1,
    /// Records of canisters.
    Canister = 2,
    /// Messages that have records of their own.
    Message = 3,
    /// Statuses of calls.
    History = 4,
}

impl RowKind {
    const ALL: [Self; 4] = [Self::Metadata, Self::Canister, Self::Message, Self::History];

    pub(super) fn table(self) -> Table {
        match self {
            Self::Metadata => HEADS,
            Self::Canister => CANISTERS,
            Self::Message => MESSAGES,
            Self::History => HISTORY,
        }
    }
}

/// One part of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Table that the record is of.
    pub kind: RowKind,
    /// Key of the record.
    pub key: Vec<u8>,
    /// Number of the part.
    pub number: u32,
    /// Whether the record ends with it.
    pub last: bool,
    /// Bytes of the part.
    pub content: Vec<u8>,
}

impl Row {
    /// Appends the row to a stream.
    pub fn append_to(&self, stream: &mut Vec<u8>) {
        let Self { kind, ref key, number, last, ref content } = *self;
        RowRef { kind, key, number, last, content }.append_to(stream);
    }
}

/// A [`Row`] in the database's memory.
struct RowRef<'r> {
    kind: RowKind,
    key: &'r [u8],
    number: u32,
    last: bool,
    content: &'r [u8],
}

impl RowRef<'_> {
    fn append_to(&self, stream: &mut Vec<u8>) {
        stream.push(self.kind as u8);
        stream.push(self.key.len() as u8);
        stream.extend_from_slice(self.key);
        stream.push(u8::from(self.last));
        stream.extend_from_slice(&(self.content.len() as u32).to_be_bytes());
        stream.extend_from_slice(self.content);
    }

    fn to_row(&self) -> Row {
        let Self { kind, key, number, last, content } = *self;
        Row { kind, key: key.to_vec(), number, last, content: content.to_vec() }
    }
}

/// A place in the stream: a number of bytes into this row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowAt {
    /// Table that the record is of.
    pub kind: RowKind,
    /// Key of the record.
    pub key: Vec<u8>,
    /// Number of the part.
    pub number: u32,
    /// Bytes of the row before the place.
    pub skip: u32,
}

impl LoadedCheckpoint {
    /// The rows from a place on, or all. Each is verified as it is read, and held alone.
    pub fn rows(&self, from: Option<&RowAt>) -> impl Iterator<Item = StoreResult<Row>> + '_ {
        let mut rows = RowCursor::new(self, from);
        std::iter::from_fn(move || rows.read(|row| row.to_row()))
    }
}

/// Reads the rows of a checkpoint one after the other, without copying them.
struct RowCursor<'a> {
    checkpoint: &'a LoadedCheckpoint,
    /// Tables that are not begun.
    kinds: &'static [RowKind],
    /// Key and number of the first row, until its table is begun.
    start: Option<(Vec<u8>, u32)>,
    current: Option<(RowKind, redb::Range<'static, parts::Key, &'static [u8]>)>,
    failed: bool,
}

impl<'a> RowCursor<'a> {
    fn new(checkpoint: &'a LoadedCheckpoint, from: Option<&RowAt>) -> Self {
        const ALL: &[RowKind] = &RowKind::ALL;
        let first = from.map_or(RowKind::Metadata, |at| at.kind);
        Self {
            checkpoint,
            kinds: &ALL[ALL.partition_point(|kind| *kind < first)..],
            start: from.map(|at| (at.key.clone(), at.number)),
            current: None,
            failed: false,
        }
    }

    /// Hands the next row to `take`. `None` at the end, and after an error.
    fn read<R>(&mut self, take: impl FnMut(RowRef<'_>) -> R) -> Option<StoreResult<R>> {
        if self.failed {
            return None;
        }
        let row = self.try_read(take);
        self.failed = row.is_err();
        row.transpose()
    }

    fn try_read<R>(&mut self, mut take: impl FnMut(RowRef<'_>) -> R) -> StoreResult<Option<R>> {
        let LoadedCheckpoint { path, transaction, .. } = self.checkpoint;
        loop {
            if self.current.is_none() {
                let Some((kind, rest)) = self.kinds.split_first() else { return Ok(None) };
                self.kinds = rest;
                let (key, number) = self.start.take().unwrap_or_default();
                let range = guard(path, || {
                    let table = transaction.open_table(kind.table())?;
                    Ok(match kind {
                        RowKind::Metadata => {
                            table.range((METADATA_KEY, number)..=(METADATA_KEY, u32::MAX))?
                        }
                        _ => table.range((key.as_slice(), number)..)?,
                    })
                })?;
                self.current = Some((*kind, range));
            }
            let Some((kind, range)) = &mut self.current else { return Ok(None) };
            let row = guard(path, || {
                let Some(entry) = range.next() else { return Ok(None) };
                let (key, value) = entry?;
                let ((key, number), value) = (key.value(), value.value());
                let (last, content) = parts::open_part(key, number, value)?;
                Ok(Some(take(RowRef { kind: *kind, key, number, last, content })))
            })?;
            if row.is_some() {
                return Ok(row);
            }
            self.current = None;
        }
    }
}

/// Why a stream is not one.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum RowError {
    #[error("the stream of records is cut off")]
    CutOff,
    #[error("the stream of records has an impossible row: {0}")]
    Row(&'static str),
    #[error("the stream of records cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads a stream row by row. Every length is checked before anything is allocated for it.
#[derive(Debug)]
pub struct RowReader<R> {
    reader: R,
    left: u64,
    before: Option<(RowKind, Vec<u8>, u32, bool)>,
}

impl<R: Read> RowReader<R> {
    /// A stream of `bytes` bytes.
    pub fn new(reader: R, bytes: u64) -> Self {
        Self { reader, left: bytes, before: None }
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    /// When the stream is not one that [`Row::append_to`] made of a checkpoint's rows.
    pub fn next_row(&mut self) -> Result<Option<Row>, RowError> {
        if self.left == 0 {
            return match &self.before {
                Some((.., true)) => Ok(None),
                _ => Err(RowError::CutOff),
            };
        }
        let [kind, key_bytes] = self.take()?;
        let kind = match kind {
            1 => RowKind::Metadata,
            2 => RowKind::Canister,
            3 => RowKind::Message,
            4 => RowKind::History,
            _ => return Err(RowError::Row("an unknown kind")),
        };
        let key_bytes = usize::from(key_bytes);
        if key_bytes > KEY_BYTES_MAX {
            return Err(RowError::Row("a key longer than any"));
        }
        let key = self.take_vec(key_bytes)?;
        if (kind == RowKind::Metadata && key != METADATA_KEY)
            || (kind == RowKind::Message && key_bytes != NUMBER_BYTES)
            || (kind == RowKind::History && key_bytes != KEY_BYTES_MAX)
        {
            return Err(RowError::Row("a key that its kind does not have"));
        }
        let last = match self.take()? {
            [0] => false,
            [1] => true,
            _ => return Err(RowError::Row("neither last nor not")),
        };
        let content_bytes = u32::from_be_bytes(self.take()?) as usize;
        if content_bytes > PART_BYTES || (!last && content_bytes != PART_BYTES) {
            return Err(RowError::Row("a part of another size"));
        }
        let content = self.take_vec(content_bytes)?;
        let number = match &self.before {
            Some((before_kind, before_key, number, false)) => {
                if *before_kind != kind || *before_key != key {
                    return Err(RowError::Row("a record within another"));
                }
                number.checked_add(1).ok_or(RowError::Row("too many parts"))?
            }
            Some((before_kind, before_key, _, true))
                if (*before_kind, before_key.as_slice()) >= (kind, key.as_slice()) =>
            {
                return Err(RowError::Row("records out of order"));
            }
            None if kind != RowKind::Metadata => return Err(RowError::Row("no metadata")),
            _ => 0,
        };
        self.before = Some((kind, key.clone(), number, last));
        Ok(Some(Row { kind, key, number, last, content }))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], RowError> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn take_vec(&mut self, count: usize) -> Result<Vec<u8>, RowError> {
        let mut bytes = vec![0; count];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), RowError> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            return Err(RowError::CutOff);
        };
        self.reader.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => RowError::CutOff,
            _ => RowError::Io(error),
        })?;
        self.left = left;
        Ok(())
    }
}

/// The stream from a place on, cut into leaves.
pub struct RowStream<'a> {
    rows: RowCursor<'a>,
    /// A row that is framed and not yet given out as a whole, with its place.
    pending: Vec<u8>,
    at: RowAt,
    taken: usize,
    /// Bytes of the first row before the stream begins.
    skip: u32,
}

impl LoadedCheckpoint {
    /// The stream of all rows, or of those from a place on. Holds one row.
    pub fn row_stream(&self, from: Option<&RowAt>) -> RowStream<'_> {
        RowStream {
            rows: RowCursor::new(self, from),
            pending: Vec::new(),
            at: RowAt { kind: RowKind::Metadata, key: Vec::new(), number: 0, skip: 0 },
            taken: 0,
            skip: from.map_or(0, |at| at.skip),
        }
    }
}

impl RowStream<'_> {
    /// Replaces `leaf` by up to `bytes` bytes of the stream and returns where they begin; `None`,
    /// and nothing, at the end.
    pub fn leaf(&mut self, leaf: &mut Vec<u8>, bytes: usize) -> Result<Option<RowAt>, StoreError> {
        leaf.clear();
        let mut start = None;
        let Self { rows, pending, at, taken, skip } = self;
        while leaf.len() < bytes {
            if *taken == pending.len() {
                let row = rows.read(|row| {
                    pending.clear();
                    row.append_to(pending);
                    (at.kind, at.number) = (row.kind, row.number);
                    at.key.clear();
                    at.key.extend_from_slice(row.key);
                });
                let Some(()) = row.transpose()? else { break };
                *taken = (std::mem::take(skip) as usize).min(pending.len());
                continue;
            }
            if start.is_none() {
                start = Some(RowAt { skip: *taken as u32, ..at.clone() });
            }
            let rest = pending.get(*taken..).unwrap_or_default();
            let now = rest.get(..bytes - leaf.len()).unwrap_or(rest);
            leaf.extend_from_slice(now);
            *taken += now.len();
        }
        debug_assert!(leaf.len() <= bytes, "a leaf of {} bytes, the most is {bytes}", leaf.len());
        Ok(start)
    }
}
