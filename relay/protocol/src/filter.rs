//! Filter, version 2: a client subscribes to content topics and receives the messages on them.
//!
//! Bounds: [`CONTENT_TOPICS_PER_REQUEST_MAX`] topics in a request; frame lengths by the constants
//! below; nothing is copied. It must never know who is subscribed.
//!
//! Source: vacp2p/rfc-index 12.

use bytes::Bytes;

use crate::frame::{SplitFrame, encode_length};
use crate::message::{FRAME_OVERHEAD_BYTES, MESSAGE_BYTES_MAX};
use crate::status::StatusCode;
use crate::text::{self, Text};
use crate::topic::CONTENT_TOPIC_BYTES_MAX;
use crate::wire::{self, DecodeError, for_each_field};
use crate::{REQUEST_ID_BYTES_MAX, STATUS_TEXT_BYTES_MAX};

/// Name of the protocol by which a client subscribes.
pub const SUBSCRIBE_PROTOCOL: &str = "/vac/waku/filter-subscribe/2.0.0-beta1";

/// Name of the protocol by which messages are pushed to a client.
pub const PUSH_PROTOCOL: &str = "/vac/waku/filter-push/2.0.0-beta1";

/// Most content topics in one request. Source: vacp2p/rfc-index 12.
pub const CONTENT_TOPICS_PER_REQUEST_MAX: usize = 100;

/// Longest request, in bytes: twice the length of [`CONTENT_TOPICS_PER_REQUEST_MAX`] topics of full
/// length, so that one that lists too many is still read and refused with an error message.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Longest reply, in bytes: a request id, a text and a number.
pub const REPLY_BYTES_MAX: usize = 8 * 1024;

/// Longest push, in bytes: one message and its pubsub topic.
pub const PUSH_BYTES_MAX: usize = MESSAGE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

const _: () = assert!(
    2 * CONTENT_TOPICS_PER_REQUEST_MAX * (CONTENT_TOPIC_BYTES_MAX + 3) + 1024 < REQUEST_BYTES_MAX
);
const _: () = assert!(REQUEST_ID_BYTES_MAX + STATUS_TEXT_BYTES_MAX + 64 < REPLY_BYTES_MAX);

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Action {
    /// 0: am I still subscribed? Keeps the subscriptions.
    #[default]
    Ping,
    /// 1: add content topics.
    Subscribe,
    /// 2: remove content topics.
    Unsubscribe,
    /// 3: remove all of this client.
    UnsubscribeAll,
}

impl Action {
    /// The number on the wire.
    pub fn code(self) -> u32 {
        match self {
            Self::Ping => 0,
            Self::Subscribe => 1,
            Self::Unsubscribe => 2,
            Self::UnsubscribeAll => 3,
        }
    }

    fn from_code(code: u64) -> Result<Self, DecodeError> {
        match code {
            0 => Ok(Self::Ping),
            1 => Ok(Self::Subscribe),
            2 => Ok(Self::Unsubscribe),
            3 => Ok(Self::UnsubscribeAll),
            value => {
                Err(DecodeError::OutOfRange { field: "filter_subscribe_type", value, value_max: 3 })
            }
        }
    }
}

/// A request to change or check subscriptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the client, repeated in the reply.
    pub request_id: Text,
    /// The requested action.
    pub action: Action,
    /// Where the messages are; absent where shards follow from content topics.
    pub pubsub_topic: Option<Text>,
    /// At most [`CONTENT_TOPICS_PER_REQUEST_MAX`] topics, which may be empty texts.
    pub content_topics: Vec<Text>,
}

impl Request {
    /// Reads a request without its length prefix. Errors: damaged, an unknown action, too many
    /// topics, a text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut request = Self::default();
        for_each_field!(field in &input, {
            1 => request.request_id = text::read_request_id(&input, &field)?,
            2 => request.action = Action::from_code(field.varint()?)?,
            10 => request.pubsub_topic = Some(text::read_pubsub_topic(&input, &field)?),
            11 => wire::push_bounded(
                &mut request.content_topics,
                text::read_content_topic(&input, &field)?,
                "content_topics",
                CONTENT_TOPICS_PER_REQUEST_MAX,
            )?,
        });
        Ok(request)
    }

    /// The request without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        wire::put_text(1, &self.request_id, &mut out);
        if self.action != Action::Ping {
            wire::put_varint(2, self.action.code().into(), &mut out);
        }
        wire::put_each(10, &self.pubsub_topic, &mut out);
        wire::put_each(11, &self.content_topics, &mut out);
        out
    }
}

/// The reply to a [`Request`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// That of the request.
    pub request_id: Text,
    /// Result of the request.
    pub status: StatusCode,
    /// Why, for a person; at most [`STATUS_TEXT_BYTES_MAX`] bytes.
    pub status_text: Option<Text>,
}

impl Reply {
    /// Reads a reply without its length prefix. Errors: damaged, a text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut reply = Self::default();
        for_each_field!(field in &input, {
            1 => reply.request_id = text::read_request_id(&input, &field)?,
            10 => reply.status = field.uint32()?.into(),
            11 => reply.status_text = Some(text::read_status_text(&input, &field)?),
        });
        Ok(reply)
    }

    /// The reply without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        wire::put_text(1, &self.request_id, &mut out);
        wire::put_varint(10, self.status.code().into(), &mut out);
        wire::put_each(11, &self.status_text, &mut out);
        out
    }
}

/// A message on its way to a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Push {
    /// The serialised message, not looked into.
    pub message: Bytes,
    /// Where it was published. Stock clients refuse a push without it.
    pub pubsub_topic: Option<Text>,
}

impl Push {
    /// Reads a push without its length prefix. Errors: damaged, no message, a topic that is too
    /// long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let mut message = None;
        let mut pubsub_topic = None;
        for_each_field!(field in &input, {
            1 => message = Some(field.shared(&input, "waku_message", PUSH_BYTES_MAX)?),
            2 => pubsub_topic = Some(text::read_pubsub_topic(&input, &field)?),
        });
        let message = message.ok_or(DecodeError::Missing { field: "waku_message" })?;
        Ok(Self { message, pubsub_topic })
    }

    /// The push without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 64);
        wire::put_bytes(1, &self.message, &mut out);
        wire::put_each(2, &self.pubsub_topic, &mut out);
        out
    }
}

/// The bytes around a serialised message of `message_bytes` bytes that is pushed. The head starts
/// with the length prefix: head, message and tail are the whole frame.
pub fn push_frame(message_bytes: usize, pubsub_topic: &str) -> SplitFrame {
    let mut tail = Vec::with_capacity(pubsub_topic.len() + 4);
    wire::put_bytes(2, pubsub_topic.as_bytes(), &mut tail);
    let body_bytes = wire::bytes_field_len(1, message_bytes) + tail.len();
    let mut head = encode_length(body_bytes);
    wire::put_bytes_head(1, message_bytes, &mut head);
    SplitFrame { head, tail }
}
