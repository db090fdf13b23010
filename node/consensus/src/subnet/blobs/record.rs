//! Records of the log.

use disk::records::Kind;

/// Bytes of one write; a longer one takes several records.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;
/// Bytes of the record of a write, in front of what is written.
pub(super) const WRITE_HEAD_BYTES: u64 = 1 + 8 + 8;
pub(super) const KIND: Kind = Kind {
    name: *b"engine\0\0",
    version: 1,
    bytes_max: WRITE_BYTES_MAX as u32 + WRITE_HEAD_BYTES as u32,
};

const BEGIN: u8 = 0;
const NAME: u8 = 1;
const WRITE: u8 = 2;
const RESIZE: u8 = 3;
const REMOVE: u8 = 4;

/// A change. Integers are little-endian; a record begins with its kind, one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// The first of each segment: where the records of the segment before it end; 0 in the first of
    /// all.
    Begin {
        previous_end: u64,
    },
    /// The blob `id` has this name. One that had it before is removed.
    Name {
        id: u64,
        version: u16,
        partition: &'a str,
        name: &'a [u8],
    },
    Write {
        id: u64,
        offset: u64,
        bytes: &'a [u8],
    },
    Resize {
        id: u64,
        length: u64,
    },
    Remove {
        id: u64,
    },
}

impl<'a> Record<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match *self {
            Self::Begin { previous_end } => {
                out.push(BEGIN);
                out.extend_from_slice(&previous_end.to_le_bytes());
            }
            Self::Name { id, version, partition, name } => {
                out.push(NAME);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&(partition.len() as u32).to_le_bytes());
                out.extend_from_slice(partition.as_bytes());
                out.extend_from_slice(name);
            }
            Self::Write { id, offset, bytes } => {
                out.reserve_exact(WRITE_HEAD_BYTES as usize + bytes.len());
                out.push(WRITE);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Resize { id, length } => {
                out.push(RESIZE);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
            }
            Self::Remove { id } => {
                out.push(REMOVE);
                out.extend_from_slice(&id.to_le_bytes());
            }
        }
        out
    }

    /// None if the bytes are not a record.
    pub(super) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (kind, mut rest) = payload.split_first()?;
        let record = match *kind {
            BEGIN => Self::Begin { previous_end: take_u64(&mut rest)? },
            NAME => {
                let id = take_u64(&mut rest)?;
                let (version, behind) = rest.split_first_chunk()?;
                let (length, behind) = behind.split_first_chunk()?;
                let length = u32::from_le_bytes(*length) as usize;
                let (partition, name) = behind.split_at_checked(length)?;
                rest = &[];
                Self::Name {
                    id,
                    version: u16::from_le_bytes(*version),
                    partition: std::str::from_utf8(partition).ok()?,
                    name,
                }
            }
            WRITE => {
                let (id, offset) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                // An end beyond what can be counted was never written.
                offset.checked_add(rest.len() as u64)?;
                Self::Write { id, offset, bytes: std::mem::take(&mut rest) }
            }
            RESIZE => Self::Resize { id: take_u64(&mut rest)?, length: take_u64(&mut rest)? },
            REMOVE => Self::Remove { id: take_u64(&mut rest)? },
            _ => return None,
        };
        rest.is_empty().then_some(record)
    }
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

/// The version, and one record of each kind.
#[cfg(test)]
pub(in crate::subnet) fn samples() -> (u64, Vec<(&'static str, Vec<u8>)>) {
    let samples = [
        ("begin", Record::Begin { previous_end: 0x0102_0304 }),
        ("name", Record::Name { id: 5, version: 6, partition: "votes-7", name: &[8, 9] }),
        ("write", Record::Write { id: 10, offset: 11 << 32, bytes: &[12; 30] }),
        ("resize", Record::Resize { id: 13, length: 14 << 40 }),
        ("remove", Record::Remove { id: 15 }),
    ]
    .map(|(name, record)| (name, record.encode()));
    (KIND.version.into(), samples.into())
}
