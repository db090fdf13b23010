//! A light-push request, written at once into a reused buffer.
//!
//! Bounds: the payload's bound. Must never know: connections and answers.

use protocol::{
    frame, light_push,
    wire::{bytes_field_len, put_bytes, put_bytes_head, put_varint, varint_field_len, zigzag},
};

use crate::{
    channel,
    payload::{self, Header},
};

/// Which light push the node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V3,
    V2,
}

impl Version {
    pub(crate) fn protocol(self) -> &'static str {
        match self {
            Self::V3 => light_push::PROTOCOL,
            Self::V2 => light_push::PROTOCOL_V2,
        }
    }
}

/// Fields shared by all requests of a publisher.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    pub(crate) version: Version,
    /// Bytes that open the stream.
    pub(crate) proposal: Vec<u8>,
    pub(crate) pubsub_topic: String,
    pub(crate) content_topic: String,
}

impl RequestTemplate {
    pub(crate) fn new(version: Version, pubsub_topic: &str, content_topic: &str) -> Self {
        Self {
            version,
            proposal: channel::proposal(version.protocol()),
            pubsub_topic: pubsub_topic.to_owned(),
            content_topic: content_topic.to_owned(),
        }
    }

    /// Writes proposal, length and request to `out`, which is emptied before; gives where in it the
    /// payload is.
    pub(crate) fn write(
        &self,
        request_id: &str,
        timestamp: i64,
        header: &Header,
        payload_bytes: usize,
        out: &mut Vec<u8>,
    ) -> std::ops::Range<usize> {
        let payload_bytes = payload_bytes.clamp(payload::HEADER_BYTES, payload::PAYLOAD_BYTES_MAX);
        let time = zigzag(timestamp);
        let message = bytes_field_len(1, payload_bytes)
            + bytes_field_len(2, self.content_topic.len())
            + varint_field_len(10, time);
        let id = bytes_field_len(1, request_id.len());
        out.clear();
        out.extend_from_slice(&self.proposal);
        match self.version {
            Version::V3 => {
                let body = id
                    + bytes_field_len(20, self.pubsub_topic.len())
                    + bytes_field_len(21, message);
                out.extend_from_slice(&frame::encode_length(body));
                put_bytes(1, request_id.as_bytes(), out);
                put_bytes(20, self.pubsub_topic.as_bytes(), out);
                put_bytes_head(21, message, out);
            }
            Version::V2 => {
                let inner =
                    bytes_field_len(1, self.pubsub_topic.len()) + bytes_field_len(2, message);
                out.extend_from_slice(&frame::encode_length(id + bytes_field_len(2, inner)));
                put_bytes(1, request_id.as_bytes(), out);
                put_bytes_head(2, inner, out);
                put_bytes(1, self.pubsub_topic.as_bytes(), out);
                put_bytes_head(2, message, out);
            }
        }
        put_bytes_head(1, payload_bytes, out);
        let from = out.len();
        payload::write(header, payload_bytes, out);
        let payload = from..out.len();
        put_bytes(2, self.content_topic.as_bytes(), out);
        put_varint(10, time, out);
        payload
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use protocol::{WakuMessage, frame::decode_length};

    use super::*;

    proptest! {
        #[test]
        fn requests_are_what_the_protocol_crate_reads(
            v3 in any::<bool>(), bytes in 0..40_000_usize, timestamp in any::<i64>(), sequence in any::<u64>(),
        ) {
            let version = if v3 { Version::V3 } else { Version::V2 };
            let template = RequestTemplate::new(version, "/waku/2/rs/16/32", "/a/1/b/proto");
            let header = Header { run: 1, phase: 2, sender: 3, sequence, sent_nanos: 5 };
            let mut out = vec![1, 2, 3];
            let payload = template.write("id-7", timestamp, &header, bytes, &mut out);
            prop_assert_eq!(payload::read(&out[payload.clone()]), Ok(header));
            let frame = out.strip_prefix(template.proposal.as_slice()).unwrap();
            let (length, prefix) = decode_length(frame, 1 << 20).unwrap().unwrap();
            prop_assert_eq!(frame.len(), length + prefix);
            let body = Bytes::copy_from_slice(&frame[prefix..]);
            let (id, topic, message) = match version {
                Version::V3 => {
                    let request = light_push::Request::decode(body).unwrap();
                    (request.request_id, request.pubsub_topic.unwrap(), request.message)
                }
                Version::V2 => {
                    let request = light_push::RequestV2::decode(body).unwrap();
                    (request.request_id, request.pubsub_topic, request.message)
                }
            };
            prop_assert_eq!((id.as_str(), topic.as_str()), ("id-7", "/waku/2/rs/16/32"));
            let message = WakuMessage::decode(message).unwrap();
            prop_assert_eq!(message.payload.as_ref(), &out[payload]);
            prop_assert_eq!(message.content_topic.as_str(), "/a/1/b/proto");
            prop_assert_eq!(message.timestamp, Some(timestamp));
        }
    }
}
