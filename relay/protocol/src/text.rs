//! Text within a received frame.
//!
//! Purpose: request ids, topics and status texts are read without a copy. Bounds: each decoder
//! states a maximum length. It must never know the meaning of the text.

use std::fmt;

use bytes::Bytes;

use crate::topic::{CONTENT_TOPIC_BYTES_MAX, PUBSUB_TOPIC_BYTES_MAX};
use crate::wire::{DecodeError, Field};
use crate::{REQUEST_ID_BYTES_MAX, STATUS_TEXT_BYTES_MAX};

/// UTF-8 text that shares the memory of the frame it came in. Use [`Text::to_owned_text`] before
/// keeping one for longer than the frame.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Bytes);

impl Text {
    /// The text of `field`, read from `input`, of at most `bytes_max` bytes. Errors: another wire
    /// type, too long, not UTF-8.
    pub fn read(
        input: &Bytes,
        field: &Field<'_>,
        name: &'static str,
        bytes_max: usize,
    ) -> Result<Self, DecodeError> {
        Self::of(field.shared(input, name, bytes_max)?, name)
    }

    /// The text that these bytes are. Errors: not UTF-8.
    pub(crate) fn of(bytes: Bytes, name: &'static str) -> Result<Self, DecodeError> {
        match std::str::from_utf8(&bytes) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => Err(DecodeError::NotText { field: name }),
        }
    }

    /// The text as a string slice, without a copy.
    pub fn as_str(&self) -> &str {
        // Checked when it was made: the default is never taken.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The same text in memory of its own.
    pub fn to_owned_text(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A request id, of at most [`REQUEST_ID_BYTES_MAX`] bytes.
pub(crate) fn read_request_id(input: &Bytes, field: &Field<'_>) -> Result<Text, DecodeError> {
    Text::read(input, field, "request_id", REQUEST_ID_BYTES_MAX)
}

/// A pubsub topic of any form, of at most [`PUBSUB_TOPIC_BYTES_MAX`] bytes.
pub(crate) fn read_pubsub_topic(input: &Bytes, field: &Field<'_>) -> Result<Text, DecodeError> {
    Text::read(input, field, "pubsub_topic", PUBSUB_TOPIC_BYTES_MAX)
}

/// A content topic of any form, of at most [`CONTENT_TOPIC_BYTES_MAX`] bytes.
pub(crate) fn read_content_topic(input: &Bytes, field: &Field<'_>) -> Result<Text, DecodeError> {
    Text::read(input, field, "content_topic", CONTENT_TOPIC_BYTES_MAX)
}

/// The text with a status code, of at most [`STATUS_TEXT_BYTES_MAX`] bytes.
pub(crate) fn read_status_text(input: &Bytes, field: &Field<'_>) -> Result<Text, DecodeError> {
    Text::read(input, field, "status_desc", STATUS_TEXT_BYTES_MAX)
}
