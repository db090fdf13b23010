//! The Waku message and its hash.
//!
//! Bounds: [`MESSAGE_BYTES_MAX`] for the whole, [`META_BYTES_MAX`] and
//! [`crate::topic::CONTENT_TOPIC_BYTES_MAX`] for its parts; decoding copies and allocates nothing.
//! It must never know whether a message is timely, relayed or stored.
//!
//! Source: vacp2p/rfc-index 14 (format, hash). 64 has 150 KiB for the Waku network, and other
//! networks up to 1 MiB: how much of it a node takes is decided by its user. [`crate::validity`]
//! compares implementations.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::text::{self, Text};
use crate::validity::Verdict;
use crate::wire::{self, DecodeError, Fields, Value};

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

/// Why bytes are not a message that may be relayed. [`MessageError::verdict`] is what it means for
/// the peer that sent them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The message is larger than any network relays.
    #[error("a message of {bytes} bytes, the limit is {MESSAGE_BYTES_MAX}; split the payload")]
    TooLarge {
        /// Its serialised length.
        bytes: usize,
    },
    /// The payload is absent or empty.
    #[error("the message has no payload; set one: nodes of the network drop messages without")]
    NoPayload,
    /// The message has no content topic.
    #[error("the message has no content topic; set one")]
    NoContentTopic,
    /// The content topic is an empty text.
    #[error("the content topic is empty; set one")]
    EmptyContentTopic,
    /// The `meta` attribute is longer than [`META_BYTES_MAX`].
    #[error("meta has {bytes} bytes, the limit is {META_BYTES_MAX}; shorten it")]
    LongMeta {
        /// Its length, in bytes.
        bytes: usize,
    },
    /// The version is a number of more than 32 bits.
    #[error("version is {value}, which is not a number of 32 bits")]
    LongVersion {
        /// The number that was sent.
        value: u64,
    },
    /// The bytes are damaged or a part is longer than this node takes.
    #[error("the message cannot be read: {0}")]
    Damaged(#[from] DecodeError),
}

impl MessageError {
    /// What it means for the peer that sent the message: [`Verdict::Reject`] only where every
    /// implementation rejects it, so that a peer that follows any of them is never at fault. The
    /// rules are those of [`crate::validity::RULES`].
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::NoContentTopic
            | Self::LongMeta { .. }
            | Self::Damaged(DecodeError::Damaged { .. } | DecodeError::Truncated { .. }) => {
                Verdict::Reject
            }
            Self::TooLarge { .. }
            | Self::NoPayload
            | Self::EmptyContentTopic
            | Self::LongVersion { .. }
            | Self::Damaged(_) => Verdict::Ignore,
        }
    }
}

/// A Waku message. A decoded one shares the memory of its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WakuMessage {
    /// The application's data; may be relayed only if there is any.
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

    /// Reads a message that may be relayed, without a length prefix. Errors: it breaks a rule of
    /// [`crate::validity::RULES`].
    pub fn decode(input: Bytes) -> Result<Self, MessageError> {
        if input.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLarge { bytes: input.len() });
        }
        let (message, found) = Self::read_fields(&input)?;
        if let Some(value) = found.long_version {
            return Err(MessageError::LongVersion { value });
        }
        if !found.content_topic {
            return Err(MessageError::NoContentTopic);
        }
        if let Some(meta) = message.meta.as_ref().filter(|meta| meta.len() > META_BYTES_MAX) {
            return Err(MessageError::LongMeta { bytes: meta.len() });
        }
        if message.content_topic.is_empty() {
            return Err(MessageError::EmptyContentTopic);
        }
        if message.payload.is_empty() {
            return Err(MessageError::NoPayload);
        }
        Ok(message)
    }

    /// Reads a message that was accepted before, under the rules of then: only its bytes are
    /// checked. Errors: damaged, a content topic that is too long or not UTF-8.
    pub fn read(input: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self::read_fields(input)?.0)
    }

    /// As other nodes read it: the last of a repeated field counts, and a field of another wire
    /// type than its own is skipped like an unknown one.
    fn read_fields(input: &Bytes) -> Result<(Self, FieldFacts), DecodeError> {
        let mut message = Self::default();
        let mut found = FieldFacts::default();
        for field in Fields::new(input) {
            let field = field?;
            match (field.tag, field.value) {
                (tag::PAYLOAD, Value::Bytes(bytes)) => message.payload = input.slice_ref(bytes),
                (tag::CONTENT_TOPIC, Value::Bytes(_)) => {
                    message.content_topic = text::read_content_topic(input, &field)?;
                    found.content_topic = true;
                }
                (tag::VERSION, Value::Varint(number)) => {
                    message.version = Some(field.uint32()?);
                    found.long_version =
                        Some(number).filter(|number| *number > u64::from(u32::MAX));
                }
                (tag::TIMESTAMP, Value::Varint(_)) => message.timestamp = Some(field.sint64()?),
                (tag::META, Value::Bytes(bytes)) => message.meta = Some(input.slice_ref(bytes)),
                (tag::RATE_LIMIT_PROOF, Value::Bytes(bytes)) => {
                    message.rate_limit_proof = Some(input.slice_ref(bytes));
                }
                (tag::EPHEMERAL, Value::Varint(_)) => message.ephemeral = Some(field.bool()?),
                _ => {}
            }
        }
        Ok((message, found))
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

/// Facts about the bytes of a message that the message does not hold.
#[derive(Default)]
struct FieldFacts {
    /// Whether there is a content topic, if an empty one.
    content_topic: bool,
    /// The version, if it has more than 32 bits.
    long_version: Option<u64>,
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
