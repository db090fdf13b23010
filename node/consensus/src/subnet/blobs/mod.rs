//! The engine's storage: all its blobs in one log of records, synced together.
//!
//! The engine keeps votes, certificates and blocks in some thirty journals, each of which makes
//! files, syncs them and removes them again: with a file for each of its blobs a block would cost
//! more than ten syncs, and files that are created and removed in every round. Here a blob is an
//! entry of an index in memory, and every change of any blob is a record at the end of one log. So
//! one sync covers the changes of all journals, callers that arrive while a sync runs share the
//! next one, and in the steady state no file is opened or removed but at the end of a segment.
//!
//! # Format
//!
//! A folder of segments, `NUMBER.log`, each a record file ([`disk::records`]) whose records are
//! those of [`record`]. A blob has a number that is never used again. Its bytes are where they were
//! written, in the record of the write; the index ([`index`]) says where.
//!
//! # Durability
//!
//! The log is written and synced in order, so a crash leaves a prefix of the changes, and at least
//! those that a sync returned for. That is more than the engine expects of files. Opening and
//! removing a blob are changes like others: they are in the prefix or not, and a sync of anything
//! later covers them. A torn end is cut off when the log is opened; any other record that does not
//! check is damage, and refused: a node that continued could have lost a vote of its own.
//!
//! A write that fails has no effect and may be repeated. After a failed sync the log takes nothing
//! more, and its owner has to end.
//!
//! # Bounds
//!
//! On disk: when there are more than [`SEGMENTS_MIN`] segments and more than twice the bytes that
//! blobs have, the oldest segment is emptied: the blobs that begin in it are written again, at the
//! end, and it is removed. In memory: an index entry for each blob and for each write that was not
//! overwritten, which the engine bounds by what it keeps; one write while it is encoded; one piece
//! of [`record::WRITE_BYTES_MAX`] while a segment is emptied.

mod index;
mod log;
mod record;
mod recovery;
mod storage;

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use self::record::samples;
pub use self::storage::BlobLog;
pub(super) use self::storage::LogBlob;

/// Bytes at which a segment is full, but for what is written while the next one is made.
const SEGMENT_BYTES: u64 = 4 << 20;
/// Zeros that are written ahead of the records of a segment.
const AHEAD_BYTES: u64 = 256 << 10;
/// Segments that are not worth emptying one.
const SEGMENTS_MIN: usize = 4;
