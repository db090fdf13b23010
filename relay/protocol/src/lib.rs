//! Messages, topics, hashes and codecs of the Waku protocols.
//!
//! Purpose: everything that is sent between a Waku node and its peers is read and written here, for
//! both sides of each protocol. A decoder takes [`bytes::Bytes`] and returns a value whose byte
//! fields are slices of that input, so that a payload is never copied; a caller that keeps one of
//! them longer than the frame keeps the whole frame in memory and should copy it.
//!
//! Bounds: every list has a stated maximum that is checked before the list grows, every text and
//! every frame has a maximum length in bytes. Nothing recurses: the messages nest at most three
//! deep, by code rather than by input, and unknown groups are refused.
//!
//! It must never know sockets, files, clocks, threads, peers and configuration. The same bytes give
//! the same value everywhere.
//!
//! A message is kept once, in a file. [`filter::push_frame`], [`store::entry_parts`] and
//! [`gossip::publish_frame`] therefore write the bytes around a message from its length alone.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod enr_keys;
pub mod filter;
pub mod frame;
pub mod gossip;
pub mod light_push;
pub mod message;
pub mod metadata;
pub mod node_list;
pub mod peer_exchange;
pub mod rate_limit_proof;
pub mod record;
pub mod signed;
pub mod status;
pub mod store;
pub mod sync;
pub mod text;
pub mod topic;
pub mod validity;
pub mod wire;

pub use frame::{FrameError, SplitFrame};
pub use message::{MessageError, MessageHash, WakuMessage, message_hash};
pub use rate_limit_proof::RateLimitProof;
pub use status::StatusCode;
pub use text::Text;
pub use topic::{ContentTopic, PubsubTopic, TopicError, autoshard};
pub use validity::Verdict;
pub use wire::DecodeError;

/// Longest request id that is read, in bytes. Stock clients send 32 to 64 hexadecimal digits.
pub const REQUEST_ID_BYTES_MAX: usize = 256;

/// Longest text with a status code that is read, in bytes.
pub const STATUS_TEXT_BYTES_MAX: usize = 4096;

/// The request id of a request whose decoding failed, so that the refusal can carry it: field 1
/// of all requests of this crate that have one. Empty when it cannot be read.
pub fn request_id(request: &bytes::Bytes) -> Text {
    let mut found = Text::default();
    for field in wire::Fields::new(request) {
        let Ok(field) = field else { break };
        if field.tag == 1 {
            match text::read_request_id(request, &field) {
                Ok(id) => found = id,
                Err(_) => break,
            }
        }
    }
    found
}
