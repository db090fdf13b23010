//! Reading a body: from a reader, object by object and row by row, everything checked before it is
//! used. Holds one row.

use std::io::{self, Read};

use pages::{MemoryId, PAGE_BYTES};
use thiserror::Error;

use super::{LeafHash, ObjectId, PIECES_MAX, VERSION, leaves_of};

/// Why bytes are not a valid manifest.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum ManifestError {
    #[error("the manifest is cut off")]
    CutOff,
    #[error("the manifest has version {0} and this node reads version {VERSION}")]
    Version(u8),
    #[error("the manifest's body of {0} bytes has more than {PIECES_MAX} pieces")]
    TooLong(u64),
    #[error("{hashes_bytes} bytes of hashes do not belong to a body of {body_bytes} bytes")]
    Pieces { body_bytes: u64, hashes_bytes: u64 },
    #[error("the manifest has an object of unknown kind {0}")]
    Kind(u8),
    #[error("the manifest's objects are not in order")]
    Order,
    #[error("the manifest has an object of {0} bytes, which it cannot be")]
    Length(u64),
    #[error("the leaves of an object are not in order, too many or too few")]
    Rows,
    #[error("the manifest cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// One object of a body; its rows follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The object, in ascending order within a body.
    pub id: ObjectId,
    /// Bytes of the stream, the base file, the blob or the payload.
    pub length: u64,
    /// Number of listed leaves.
    pub leaves: u32,
    /// Where in the body its first row is.
    pub rows_at: u64,
}

/// A body being read.
#[derive(Debug)]
pub struct Body<R> {
    reader: R,
    at: u64,
    end: u64,
    last: Option<ObjectId>,
    /// Rows of the current object that were not read.
    rows_left: u32,
    next_index: u64,
    leaves: u64,
    /// Streams have every leaf.
    dense: bool,
}

impl<R: Read> Body<R> {
    /// Reads a body of `body_bytes` bytes.
    pub fn new(reader: R, body_bytes: u64) -> Self {
        Self {
            reader,
            at: 0,
            end: body_bytes,
            last: None,
            rows_left: 0,
            next_index: 0,
            leaves: 0,
            dense: false,
        }
    }

    /// The next object, after the rows of the one before (those not read are checked and passed
    /// over); `None` at the end.
    ///
    /// # Errors
    /// When the body is not one that [`super::BodyEncoder`] makes. Nothing after that counts.
    pub fn object(&mut self) -> Result<Option<Object>, ManifestError> {
        while self.row()?.is_some() {}
        if self.at == self.end {
            // The records are never missing.
            return if self.last.is_none() { Err(ManifestError::CutOff) } else { Ok(None) };
        }
        let [kind] = self.take()?;
        let id = match kind {
            1 => ObjectId::Records,
            2 => ObjectId::Memory(MemoryId(u64::from_be_bytes(self.take()?))),
            3 => ObjectId::Blob(self.take()?),
            4 => ObjectId::Payload(u64::from_be_bytes(self.take()?)),
            kind => return Err(ManifestError::Kind(kind)),
        };
        let in_order = match self.last {
            None => id == ObjectId::Records,
            Some(last) => last < id,
        };
        if !in_order {
            return Err(ManifestError::Order);
        }
        let length = u64::from_be_bytes(self.take()?);
        let leaves = u32::from_be_bytes(self.take()?);
        let memory = matches!(id, ObjectId::Memory(_));
        if length > i64::MAX as u64
            || leaves_of(length) > u64::from(u32::MAX)
            || (memory && !length.is_multiple_of(PAGE_BYTES))
        {
            return Err(ManifestError::Length(length));
        }
        self.leaves = leaves_of(length);
        self.dense = !memory;
        let rows_bytes = u64::from(leaves) * 36;
        if u64::from(leaves) > self.leaves || (self.dense && u64::from(leaves) != self.leaves) {
            return Err(ManifestError::Rows);
        }
        if rows_bytes > self.end - self.at {
            return Err(ManifestError::CutOff);
        }
        self.last = Some(id);
        self.rows_left = leaves;
        self.next_index = 0;
        Ok(Some(Object { id, length, leaves, rows_at: self.at }))
    }

    /// The next leaf of the object; `None` after its last.
    ///
    /// # Errors
    /// As [`Body::object`].
    pub fn row(&mut self) -> Result<Option<(u32, LeafHash)>, ManifestError> {
        if self.rows_left == 0 {
            return Ok(None);
        }
        let index = u32::from_be_bytes(self.take()?);
        let hash = self.take()?;
        let wanted = u64::from(index) >= self.next_index && u64::from(index) < self.leaves;
        if !wanted || (self.dense && u64::from(index) != self.next_index) {
            return Err(ManifestError::Rows);
        }
        self.next_index = u64::from(index) + 1;
        self.rows_left -= 1;
        Ok(Some((index, hash)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ManifestError> {
        if (N as u64) > self.end - self.at {
            return Err(ManifestError::CutOff);
        }
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ManifestError::CutOff,
            _ => ManifestError::Io(error),
        })?;
        self.at += N as u64;
        debug_assert!(self.at <= self.end, "{} of {} bytes were read", self.at, self.end);
        Ok(bytes)
    }
}
