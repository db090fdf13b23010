//! Frames: a message prefixed with its length as a varint, as all Waku protocols send them.
//!
//! Bounds: the caller states the longest frame it takes; a length above it, or one that is not
//! finished after five bytes, is refused from its prefix alone, before anything is allocated. It
//! must never know the content of a frame, or the source of its bytes.

use prost::encoding::encode_varint;
use thiserror::Error;

/// Longest length prefix that is read, in bytes: enough for 32 bits.
pub const LENGTH_PREFIX_BYTES_MAX: usize = 5;

/// Why a length prefix is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The frame is longer than the protocol allows.
    #[error("a frame of {bytes} bytes; this protocol takes at most {bytes_max}: send less at once")]
    TooLong {
        /// Length that was announced.
        bytes: u64,
        /// Most bytes that the caller takes.
        bytes_max: usize,
    },
    /// The prefix is longer than five bytes.
    #[error("a length prefix of more than {LENGTH_PREFIX_BYTES_MAX} bytes is no length")]
    PrefixTooLong,
}

/// The prefix of a frame of `bytes` bytes.
pub fn encode_length(bytes: usize) -> Vec<u8> {
    // With room for the keys that begin a frame.
    let mut prefix = Vec::with_capacity(16);
    encode_varint(bytes as u64, &mut prefix);
    prefix
}

/// Reads the length at the start of `received`: the length of the frame's body and that of the
/// prefix itself, both in bytes, or nothing while the prefix is not complete. Errors: longer than
/// `bytes_max`, or not finished after [`LENGTH_PREFIX_BYTES_MAX`] bytes.
pub fn decode_length(
    received: &[u8],
    bytes_max: usize,
) -> Result<Option<(usize, usize)>, FrameError> {
    let mut length = 0u64;
    for (index, byte) in received.iter().take(LENGTH_PREFIX_BYTES_MAX).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * index);
        // A prefix that is already too large does not become smaller.
        if length > bytes_max as u64 {
            return Err(FrameError::TooLong { bytes: length, bytes_max });
        }
        if byte & 0x80 == 0 {
            return Ok(Some((length as usize, index + 1)));
        }
    }
    if received.len() >= LENGTH_PREFIX_BYTES_MAX {
        return Err(FrameError::PrefixTooLong);
    }
    Ok(None)
}

/// `body` behind its length.
pub fn with_length(body: &[u8]) -> Vec<u8> {
    let mut frame = encode_length(body.len());
    frame.extend_from_slice(body);
    frame
}

/// The bytes before and after bytes that are sent from another source. Whether `head` starts with a
/// length prefix depends on the constructor: frames do, entries of a frame do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitFrame {
    /// Bytes before those from the other source.
    pub head: Vec<u8>,
    /// Bytes after those from the other source.
    pub tail: Vec<u8>,
}

impl SplitFrame {
    /// Length of the whole, in bytes, with `inner_bytes` bytes between head and tail.
    pub fn total_len(&self, inner_bytes: usize) -> usize {
        self.head.len() + inner_bytes + self.tail.len()
    }

    /// The whole, for tests and for messages that are in memory anyway.
    pub fn around(&self, inner: &[u8]) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.total_len(inner.len()));
        whole.extend_from_slice(&self.head);
        whole.extend_from_slice(inner);
        whole.extend_from_slice(&self.tail);
        whole
    }
}
