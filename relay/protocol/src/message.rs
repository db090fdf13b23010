//! The Waku message and its hash.
//!
//! Bounds: [`MESSAGE_BYTES_MAX`] for the whole, [`META_BYTES_MAX`] and
//! [`crate::topic::CONTENT_TOPIC_BYTES_MAX`] for its parts; decoding copies and allocates nothing.
//! It must never know whether a message is timely, relayed or stored.
//!
//! Source: vacp2p/rfc-index 14 (format, hash). 64 has 150 KiB for the Waku network, and other
//! networks up to 1 MiB: how much of it a node takes is decided by its user.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::text::{self, Text};
use crate::wire::{self, DecodeError, for_each_field};

/// Largest serialised message of any network, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Largest `meta` attribute, in bytes.
pub const META_BYTES_MAX: usize = 64;

/// Bytes of a frame in addition to its message: as other nodes allow, and enough to read a message
/// slightly over the limit and refuse it with an error message instead of a stream reset.
pub const FRAME_OVERHEAD_BYTES: usize = 64 * 1024;

mod tag {
    pub(super) const PAYLOAD: u32 = 1;
    pub(super) const CONTENT_TOPIC: u32 = 2;
    pub(super) const VERSION: u32 = 3;
    pub(super) const TIMESTAMP: u32 = 10;
    pub(super) const META: u32 = 11;
    pub(super) const RATE_LIMIT_PROOF: u32 = 21;
    pub(super) const EPHEMERAL: u32 = 31;
}

/// Why bytes are not a message that may be relayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The message is larger than any network relays.
    #[error("a message of {bytes} bytes, the limit is {MESSAGE_BYTES_MAX}; split the payload")]
    TooLarge {
        /// Its serialised length.
        bytes: usize,
    },
    /// The message has no content topic, or an empty one.
    #[error("the message has no content topic; set one")]
    NoContentTopic,
    /// The bytes are damaged or a part is too long.
    #[error("the message cannot be read: {0}")]
    Damaged(#[from] DecodeError),
}

/// A Waku message. A decoded one shares the memory of its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WakuMessage {
    /// The application's data; may be empty.
    pub payload: Bytes,
    /// The topic that filters select by: 1 to [`crate::topic::CONTENT_TOPIC_BYTES_MAX`] bytes.
    pub content_topic: Text,
    /// How the payload is encrypted; absent means 0.
    pub version: Option<u32>,
    /// When the sender made it, in nanoseconds since 1970; absent means 0.
    pub timestamp: Option<i64>,
    /// For the application, at most [`META_BYTES_MAX`] bytes.
    pub meta: Option<Bytes>,
    /// Proof for rate-limited networks, not looked into here.
    pub rate_limit_proof: Option<Bytes>,
    /// Whether stores must not keep it; absent means false.
    pub ephemeral: Option<bool>,
}

impl WakuMessage {
    /// A message with a payload and a content topic, and nothing else.
    pub fn new(content_topic: impl Into<Text>, payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), content_topic: content_topic.into(), ..Self::default() }
    }

    /// Reads a message, without a length prefix. Errors: larger than [`MESSAGE_BYTES_MAX`],
    /// damaged, without a content topic, a part that is too long.
    pub fn decode(input: Bytes) -> Result<Self, MessageError> {
        if input.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLarge { bytes: input.len() });
        }
        let mut message = Self::default();
        for_each_field!(field in &input, {
            tag::PAYLOAD => message.payload = field.shared(&input, "payload", MESSAGE_BYTES_MAX)?,
            tag::CONTENT_TOPIC => message.content_topic = text::read_content_topic(&input, &field)?,
            tag::VERSION => message.version = Some(field.uint32()?),
            tag::TIMESTAMP => message.timestamp = Some(field.sint64()?),
            tag::META => message.meta = Some(field.shared(&input, "meta", META_BYTES_MAX)?),
            tag::RATE_LIMIT_PROOF => {
                let proof = field.shared(&input, "rate_limit_proof", MESSAGE_BYTES_MAX)?;
                message.rate_limit_proof = Some(proof);
            },
            tag::EPHEMERAL => message.ephemeral = Some(field.bool()?),
        });
        if message.content_topic.is_empty() {
            return Err(MessageError::NoContentTopic);
        }
        Ok(message)
    }

    /// The serialised message, without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        if !self.payload.is_empty() {
            wire::put_bytes(tag::PAYLOAD, &self.payload, &mut out);
        }
        wire::put_text(tag::CONTENT_TOPIC, &self.content_topic, &mut out);
        wire::put_each_varint(tag::VERSION, self.version, &mut out);
        wire::put_each_varint(tag::TIMESTAMP, self.timestamp.map(wire::zigzag), &mut out);
        wire::put_each(tag::META, &self.meta, &mut out);
        wire::put_each(tag::RATE_LIMIT_PROOF, &self.rate_limit_proof, &mut out);
        wire::put_each_varint(tag::EPHEMERAL, self.ephemeral, &mut out);
        debug_assert_eq!(out.len(), self.encoded_len());
        out
    }

    /// Length of the serialised message, in bytes.
    pub fn encoded_len(&self) -> usize {
        let bytes = |tag, len| wire::bytes_field_len(tag, len);
        let unless_empty = |tag, len| if len == 0 { 0 } else { bytes(tag, len) };
        let optional =
            |tag, part: &Option<Bytes>| part.as_ref().map_or(0, |part| bytes(tag, part.len()));
        let number =
            |tag, value: Option<u64>| value.map_or(0, |value| wire::varint_field_len(tag, value));
        unless_empty(tag::PAYLOAD, self.payload.len())
            + unless_empty(tag::CONTENT_TOPIC, self.content_topic.len())
            + number(tag::VERSION, self.version.map(u64::from))
            + number(tag::TIMESTAMP, self.timestamp.map(wire::zigzag))
            + optional(tag::META, &self.meta)
            + optional(tag::RATE_LIMIT_PROOF, &self.rate_limit_proof)
            + number(tag::EPHEMERAL, self.ephemeral.map(u64::from))
    }

    /// Whether stores must not keep it.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral.unwrap_or(false)
    }
}

/// The deterministic hash of a message on a pubsub topic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageHash(pub [u8; 32]);

/// Computes SHA-256 over pubsub topic, payload, content topic, meta if present, and timestamp as
/// eight bytes, big-endian. An absent timestamp counts as 0, as in the Go node, with whose
/// store hashes must agree; the js client leaves it out. Source: vacp2p/rfc-index 14.
pub fn message_hash(pubsub_topic: &str, message: &WakuMessage) -> MessageHash {
    let digest = Sha256::new()
        .chain_update(pubsub_topic)
        .chain_update(&message.payload)
        .chain_update(message.content_topic.as_str())
        .chain_update(message.meta.as_deref().unwrap_or_default())
        .chain_update(message.timestamp.unwrap_or_default().to_be_bytes())
        .finalize();
    MessageHash(digest.into())
}

impl fmt::Display for MessageHash {
    /// As the interfaces of other nodes write it: `0x` and 64 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MessageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not the hash of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message hash is 64 hexadecimal digits, with or without 0x before them")]
pub struct NotAHash;

impl FromStr for MessageHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
        if digits.len() != 64 {
            return Err(NotAHash);
        }
        let mut hash = Self::default();
        for (byte, pair) in hash.0.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |ascii: u8| (ascii as char).to_digit(16).ok_or(NotAHash);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(hash)
    }
}
