//! Light push, versions 3 and 2: a client sends a message to this node to relay it.
//!
//! Bounds: [`REQUEST_BYTES_MAX`] and [`REPLY_BYTES_MAX`]; nothing is copied. The message itself is
//! left as the bytes received, which are relayed and stored; [`crate::WakuMessage::decode`] reads
//! them. It must never know the fate of a message.
//!
//! Source: waku-org/specs lightpush (version 3), vacp2p/rfc-index 19 (version 2).

use bytes::Bytes;

use crate::message::{FRAME_OVERHEAD_BYTES, MESSAGE_BYTES_MAX};
use crate::status::StatusCode;
use crate::text::{self, Text};
use crate::wire::{self, DecodeError, for_each_field};
use crate::{REQUEST_ID_BYTES_MAX, STATUS_TEXT_BYTES_MAX};

/// Name of version 3.
pub const PROTOCOL: &str = "/vac/waku/lightpush/3.0.0";

/// Name of version 2.
pub const PROTOCOL_V2: &str = "/vac/waku/lightpush/2.0.0-beta1";

/// Longest request of either version, in bytes: a message that is slightly too large is still
/// read, to be answered with 413.
pub const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// Longest reply of either version, in bytes: a request id, a text and three numbers.
pub const REPLY_BYTES_MAX: usize = 8 * 1024;

const _: () = assert!(REQUEST_ID_BYTES_MAX + STATUS_TEXT_BYTES_MAX + 64 < REPLY_BYTES_MAX);

/// A request of version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the client, repeated in the reply.
    pub request_id: Text,
    /// Where to relay it; absent where shards follow from content topics.
    pub pubsub_topic: Option<Text>,
    /// The serialised message, at most [`REQUEST_BYTES_MAX`] bytes, not looked into.
    pub message: Bytes,
}

impl Request {
    /// Reads a request without its length prefix. Errors: damaged, no message, a text that is too
    /// long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut request = Self::default();
        let mut message = None;
        for_each_field!(field in &input, {
            1 => request.request_id = text::read_request_id(&input, &field)?,
            20 => request.pubsub_topic = Some(text::read_pubsub_topic(&input, &field)?),
            21 => message = Some(field.shared(&input, "message", REQUEST_BYTES_MAX)?),
        });
        request.message = message.ok_or(DecodeError::Missing { field: "message" })?;
        Ok(request)
    }

    /// The request without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 128);
        wire::put_text(1, &self.request_id, &mut out);
        wire::put_each(20, &self.pubsub_topic, &mut out);
        wire::put_bytes(21, &self.message, &mut out);
        out
    }
}

/// A reply of version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// That of the request.
    pub request_id: Text,
    /// Result of the push.
    pub status: StatusCode,
    /// Why, for a person; at most [`STATUS_TEXT_BYTES_MAX`] bytes.
    pub status_text: Option<Text>,
    /// Peers the message was sent to.
    pub relay_peer_count: Option<u32>,
}

impl Reply {
    /// Reads a reply without its length prefix. Errors: damaged, a text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut reply = Self::default();
        for_each_field!(field in &input, {
            1 => reply.request_id = text::read_request_id(&input, &field)?,
            10 => reply.status = field.uint32()?.into(),
            11 => reply.status_text = Some(text::read_status_text(&input, &field)?),
            12 => reply.relay_peer_count = Some(field.uint32()?),
        });
        Ok(reply)
    }

    /// The reply without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        wire::put_text(1, &self.request_id, &mut out);
        wire::put_varint(10, self.status.code().into(), &mut out);
        wire::put_each(11, &self.status_text, &mut out);
        wire::put_each_varint(12, self.relay_peer_count, &mut out);
        out
    }
}

/// A request of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestV2 {
    /// Chosen by the client, repeated in the reply.
    pub request_id: Text,
    /// Where to relay it; may be empty.
    pub pubsub_topic: Text,
    /// The serialised message, at most [`REQUEST_BYTES_MAX`] bytes, not looked into.
    pub message: Bytes,
}

impl RequestV2 {
    /// Reads a request without its length prefix. Errors: damaged, no request or message in it, a
    /// text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut request_id = Text::default();
        let mut inner = None;
        for_each_field!(field in &input, {
            1 => request_id = text::read_request_id(&input, &field)?,
            2 => inner = Some(field.bytes()?),
        });
        let mut pubsub_topic = Text::default();
        let mut message = None;
        for_each_field!(field in inner.ok_or(DecodeError::Missing { field: "request" })?, {
            1 => pubsub_topic = text::read_pubsub_topic(&input, &field)?,
            2 => message = Some(field.shared(&input, "message", REQUEST_BYTES_MAX)?),
        });
        let message = message.ok_or(DecodeError::Missing { field: "message" })?;
        Ok(Self { request_id, pubsub_topic, message })
    }

    /// The request without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut inner = Vec::with_capacity(self.message.len() + 64);
        wire::put_text(1, &self.pubsub_topic, &mut inner);
        wire::put_bytes(2, &self.message, &mut inner);
        let mut out = Vec::with_capacity(inner.len() + 128);
        wire::put_text(1, &self.request_id, &mut out);
        wire::put_bytes(2, &inner, &mut out);
        out
    }
}

/// A reply of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyV2 {
    /// That of the request.
    pub request_id: Text,
    /// Whether the message was relayed.
    pub is_success: bool,
    /// Why not, for a person; at most [`STATUS_TEXT_BYTES_MAX`] bytes.
    pub info: Option<Text>,
}

impl ReplyV2 {
    /// Reads a reply without its length prefix. Errors: damaged, no response in it, a text that
    /// is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut reply = Self::default();
        let mut inner = None;
        for_each_field!(field in &input, {
            1 => reply.request_id = text::read_request_id(&input, &field)?,
            3 => inner = Some(field.bytes()?),
        });
        for_each_field!(field in inner.ok_or(DecodeError::Missing { field: "response" })?, {
            1 => reply.is_success = field.bool()?,
            2 => reply.info = Some(text::read_status_text(&input, &field)?),
        });
        Ok(reply)
    }

    /// The reply without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut inner = Vec::with_capacity(64);
        if self.is_success {
            wire::put_varint(1, 1, &mut inner);
        }
        wire::put_each(2, &self.info, &mut inner);
        let mut out = Vec::with_capacity(inner.len() + 128);
        wire::put_text(1, &self.request_id, &mut out);
        wire::put_bytes(3, &inner, &mut out);
        out
    }
}
