//! Peer exchange: a client asks for the node records of some peers.
//!
//! Bounds: [`PEERS_MAX`] records of at most [`RECORD_BYTES_MAX`] bytes. It must never know the
//! content of a record (it stays as bytes), or which peers there are.
//!
//! Source: waku-org/specs peer-exchange; status codes as the reference node has them, within the
//! response.

use bytes::Bytes;

use crate::STATUS_TEXT_BYTES_MAX;
use crate::status::StatusCode;
use crate::text::{self, Text};
use crate::wire::{self, DecodeError, Fields, for_each_field};

/// Name of the protocol.
pub const PROTOCOL: &str = "/vac/waku/peer-exchange/2.0.0-alpha1";

/// Most records in a reply. The specification recommends a cache of 60.
pub const PEERS_MAX: usize = 100;

/// Longest node record, in bytes. Source: EIP-778.
pub const RECORD_BYTES_MAX: usize = 300;

/// Longest request, in bytes: one number within a message.
pub const REQUEST_BYTES_MAX: usize = 1024;

/// Longest reply, in bytes: [`PEERS_MAX`] records of full length and a text.
pub const REPLY_BYTES_MAX: usize = 64 * 1024;

const _: () =
    assert!(PEERS_MAX * (RECORD_BYTES_MAX + 8) + STATUS_TEXT_BYTES_MAX + 64 < REPLY_BYTES_MAX);

/// A request for the node records of some peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Records wanted. Not limited here.
    pub peers: u64,
}

impl Request {
    /// Reads a request without its length prefix. Errors: damaged, no query in it.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let query = embedded(&input, 1)?.ok_or(DecodeError::Missing { field: "query" })?;
        let mut request = Self::default();
        for_each_field!(field in query, {
            1 => request.peers = field.varint()?,
        });
        Ok(request)
    }

    /// The request without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut query = Vec::with_capacity(12);
        wire::put_varint(1, self.peers, &mut query);
        let mut out = Vec::with_capacity(16);
        wire::put_bytes(1, &query, &mut out);
        out
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Node records in their RLP form, at most [`PEERS_MAX`].
    pub records: Vec<Bytes>,
    /// Result of the request; older peers send none.
    pub status: Option<StatusCode>,
    /// Why, for a person; at most [`STATUS_TEXT_BYTES_MAX`] bytes.
    pub status_text: Option<Text>,
}

impl Reply {
    /// Reads a reply without its length prefix. Errors: damaged, no response in it, too many
    /// records, a record or text that is too long.
    pub fn decode(input: Bytes) -> Result<Self, DecodeError> {
        let response = embedded(&input, 2)?.ok_or(DecodeError::Missing { field: "response" })?;
        let mut reply = Self::default();
        for_each_field!(field in response, {
            1 => {
                let mut record = Bytes::new();
                for_each_field!(part in field.bytes()?, {
                    1 => record = part.shared(&input, "enr", RECORD_BYTES_MAX)?,
                });
                wire::push_bounded(&mut reply.records, record, "peer_infos", PEERS_MAX)?;
            },
            10 => reply.status = Some(field.uint32()?.into()),
            11 => reply.status_text = Some(text::read_status_text(&input, &field)?),
        });
        Ok(reply)
    }

    /// The reply without a length prefix.
    pub fn encode(&self) -> Vec<u8> {
        let mut response = Vec::new();
        for record in &self.records {
            wire::put_bytes_head(1, wire::bytes_field_len(1, record.len()), &mut response);
            wire::put_bytes(1, record, &mut response);
        }
        wire::put_each_varint(10, self.status.map(StatusCode::code), &mut response);
        wire::put_each(11, &self.status_text, &mut response);
        let mut out = Vec::with_capacity(response.len() + 8);
        wire::put_bytes(2, &response, &mut out);
        out
    }
}

/// The last embedded message `tag` of `input`.
fn embedded(input: &[u8], tag: u32) -> Result<Option<&[u8]>, DecodeError> {
    let mut found = None;
    for field in Fields::new(input) {
        let field = field?;
        if field.tag == tag {
            found = Some(field.bytes()?);
        }
    }
    Ok(found)
}
