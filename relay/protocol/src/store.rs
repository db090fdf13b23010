//! Store, version 3: a client asks for messages of the past, page by page.
//!
//! Bounds: [`PAGE_MAX`] entries in a reply, [`CONTENT_TOPICS_MAX`] and [`HASHES_MAX`] in a request,
//! frame lengths by the constants below. Messages are left as the bytes they are; a reply can be
//! written around messages that are not in memory ([`reply_frame`], [`entry_parts`]). It must never
//! know which messages there are.
//!
//! Source: vacp2p/rfc-index 13.

use bytes::Bytes;

use crate::frame::{SplitFrame, encode_length};
use crate::message::{FRAME_OVERHEAD_BYTES, MESSAGE_BYTES_MAX, MessageHash};
use crate::status::StatusCode;
use crate::text::{self, Text};
use crate::topic::CONTENT_TOPIC_BYTES_MAX;
use crate::wire::{self, DecodeError, for_each_field};

/// Name of the protocol.
pub const PROTOCOL: &str = "/vac/waku/store-query/3.0.0";

/// Most content topics in a query. Stock clients send at most 10.
pub const CONTENT_TOPICS_MAX: usize = 100;

/// Most hashes in a query: ten pages.
pub const HASHES_MAX: usize = 1000;

/// Entries in a page when the query states no limit.
pub const PAGE_DEFAULT: u64 = 20;

/// Most entries in a page.
pub const PAGE_MAX: usize = 100;

/// Longest request, in bytes: either list at its limit, with room to read one that is too long.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Longest reply, in bytes: a page of the largest messages. Only clients read replies.
pub const REPLY_BYTES_MAX: usize = PAGE_MAX * MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

const _: () = assert!(HASHES_MAX * (32 + 3) < REQUEST_BYTES_MAX);
const _: () = assert!(CONTENT_TOPICS_MAX * (CONTENT_TOPIC_BYTES_MAX + 3) < REQUEST_BYTES_MAX);

/// A query for stored messages, or for one further page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the client, repeated in the reply.
    pub request_id: Text,
    /// Whether entries carry the message, not only its hash.
    pub include_data: bool,
    /// Only messages of this pubsub topic.
    pub pubsub_topic: Option<Text>,
    /// Only messages of one of these, at most [`CONTENT_TOPICS_MAX`]; empty means all.
    pub content_topics: Vec<Text>,
    /// Only messages of this time or later, in nanoseconds since 1970.
    pub time_start: Option<i64>,
    /// Only messages before this time, in nanoseconds since 1970.
    pub time_end: Option<i64>,
    /// Only these messages, at most [`HASHES_MAX`]; excludes all criteria above.
    pub message_hashes: Vec<MessageHash>,
    /// The last entry of the page before; the page starts after it.
    pub cursor: Option<MessageHash>,
    /// Whether pages go from old to new.
    pub forward: bool,
    /// Entries wanted; see [`PAGE_DEFAULT`] and [`PAGE_MAX`]. Not limited here.
    pub limit: Option<u64>,
}

impl Request {
    /// Reads a query without its length prefix. An empty cursor counts as none. Errors: damaged,
    /// too many topics or hashes, a text that is too long, a hash not of 32 bytes.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut request = Self::default();
        for_each_field!(field in &input, {
            1 => request.request_id = text::read_request_id(&input, &field)?,
            2 => request.include_data = field.bool()?,
            10 => request.pubsub_topic = Some(text::read_pubsub_topic(&input, &field)?),
            11 => wire::push_bounded(
                &mut request.content_topics,
                text::read_content_topic(&input, &field)?,
                "content_topics",
                CONTENT_TOPICS_MAX,
            )?,
            12 => request.time_start = Some(field.sint64()?),
            13 => request.time_end = Some(field.sint64()?),
            20 => wire::push_bounded(
                &mut request.message_hashes,
                MessageHash(field.digest("message_hashes")?),
                "message_hashes",
                HASHES_MAX,
            )?,
            51 => request.cursor = cursor(&field)?,
            52 => request.forward = field.bool()?,
            53 => request.limit = Some(field.varint()?),
        });
        Ok(request)
    }

    /// The query without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 35 * self.message_hashes.len());
        wire::put_text(1, &self.request_id, &mut out);
        if self.include_data {
            wire::put_varint(2, 1, &mut out);
        }
        wire::put_each(10, &self.pubsub_topic, &mut out);
        wire::put_each(11, &self.content_topics, &mut out);
        wire::put_each_varint(12, self.time_start.map(wire::zigzag), &mut out);
        wire::put_each_varint(13, self.time_end.map(wire::zigzag), &mut out);
        wire::put_each(20, self.message_hashes.iter().map(|hash| hash.0), &mut out);
        wire::put_each(51, self.cursor.map(|cursor| cursor.0), &mut out);
        if self.forward {
            wire::put_varint(52, 1, &mut out);
        }
        wire::put_each_varint(53, self.limit, &mut out);
        out
    }
}

/// One message of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Deterministic hash of the message on its pubsub topic.
    pub hash: MessageHash,
    /// The serialised message, not looked into, if the query asked for it.
    pub message: Option<Bytes>,
    /// Where it was published, if the query asked for messages.
    pub pubsub_topic: Option<Text>,
}

impl Entry {
    fn decode(input: &Bytes, body: &[u8]) -> Result<Self, DecodeError> {
        let mut hash = None;
        let mut message = None;
        let mut pubsub_topic = None;
        for_each_field!(field in body, {
            1 => hash = Some(MessageHash(field.digest("message_hash")?)),
            2 => message = Some(field.shared(input, "message", REPLY_BYTES_MAX)?),
            3 => pubsub_topic = Some(text::read_pubsub_topic(input, &field)?),
        });
        let hash = hash.ok_or(DecodeError::Missing { field: "message_hash" })?;
        Ok(Self { hash, message, pubsub_topic })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let message = self.message.as_ref().map(Bytes::len);
        let parts = entry_parts(&self.hash, message, self.pubsub_topic.as_deref());
        out.extend_from_slice(&parts.head);
        out.extend_from_slice(self.message.as_deref().unwrap_or_default());
        out.extend_from_slice(&parts.tail);
    }
}

/// A page of entries, in ascending order of (timestamp, hash).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// That of the query.
    pub request_id: Text,
    /// Result of the query. Clients refuse a reply without one; it is then `Other(0)`.
    pub status: StatusCode,
    /// Why, for a person; at most [`crate::STATUS_TEXT_BYTES_MAX`] bytes.
    pub status_text: Option<Text>,
    /// At most [`PAGE_MAX`].
    pub entries: Vec<Entry>,
    /// The position after which the next query starts; absent at the end.
    pub cursor: Option<MessageHash>,
}

impl Reply {
    /// Reads a reply without its length prefix. Errors: damaged, too many entries, an entry
    /// without a hash, a text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut reply = Self::default();
        for_each_field!(field in &input, {
            1 => reply.request_id = text::read_request_id(&input, &field)?,
            10 => reply.status = field.uint32()?.into(),
            11 => reply.status_text = Some(text::read_status_text(&input, &field)?),
            20 => {
                let entry = Entry::decode(&input, field.bytes()?)?;
                wire::push_bounded(&mut reply.entries, entry, "messages", PAGE_MAX)?;
            },
            51 => reply.cursor = cursor(&field)?,
        });
        Ok(reply)
    }

    /// The reply without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_start(&self.request_id, self.status, self.status_text.as_deref(), &mut out);
        self.entries.iter().for_each(|entry| entry.put(&mut out));
        wire::put_each(51, self.cursor.map(|cursor| cursor.0), &mut out);
        out
    }
}

/// The bytes around the entries of a reply, whose lengths by [`entry_len`] sum up to
/// `entries_bytes`. The head starts with the length prefix: head, entries and tail are the whole
/// frame.
pub fn reply_frame(
    request_id: &str,
    status: StatusCode,
    status_text: Option<&str>,
    entries_bytes: usize,
    cursor: Option<&MessageHash>,
) -> SplitFrame {
    let mut start = Vec::with_capacity(64);
    put_start(request_id, status, status_text, &mut start);
    let mut tail = Vec::with_capacity(40);
    wire::put_each(51, cursor.map(|cursor| cursor.0), &mut tail);
    let mut head = encode_length(start.len() + entries_bytes + tail.len());
    head.extend_from_slice(&start);
    SplitFrame { head, tail }
}

/// The bytes around a serialised message of `message_bytes` bytes as one entry of a reply, without
/// a length prefix of its own. Without a message, head and tail are the entry.
pub fn entry_parts(
    hash: &MessageHash,
    message_bytes: Option<usize>,
    pubsub_topic: Option<&str>,
) -> SplitFrame {
    let mut head = Vec::with_capacity(64);
    wire::put_bytes_head(20, entry_body_len(message_bytes, pubsub_topic), &mut head);
    wire::put_bytes(1, &hash.0, &mut head);
    if let Some(bytes) = message_bytes {
        wire::put_bytes_head(2, bytes, &mut head);
    }
    let mut tail = Vec::new();
    wire::put_each(3, pubsub_topic, &mut tail);
    SplitFrame { head, tail }
}

/// Length of the head, message and tail of [`entry_parts`], in bytes.
pub fn entry_len(message_bytes: Option<usize>, pubsub_topic: Option<&str>) -> usize {
    wire::bytes_field_len(20, entry_body_len(message_bytes, pubsub_topic))
}

fn entry_body_len(message_bytes: Option<usize>, pubsub_topic: Option<&str>) -> usize {
    wire::bytes_field_len(1, 32)
        + message_bytes.map_or(0, |bytes| wire::bytes_field_len(2, bytes))
        + pubsub_topic.map_or(0, |topic| wire::bytes_field_len(3, topic.len()))
}

fn put_start(request_id: &str, status: StatusCode, text: Option<&str>, out: &mut Vec<u8>) {
    wire::put_text(1, request_id, out);
    wire::put_varint(10, status.code().into(), out);
    wire::put_each(11, text, out);
}

fn cursor(field: &wire::Field<'_>) -> Result<Option<MessageHash>, DecodeError> {
    if field.bytes()?.is_empty() {
        return Ok(None);
    }
    Ok(Some(MessageHash(field.digest("pagination_cursor")?)))
}
