//! Publishing: relay by pubsub topic or by content topic, and light push of both versions.
//!
//! All are handled alike: the message is published like every client's message
//! ([`crate::node::Node::publish`]) and acknowledged when it is in the log; light push may be by
//! another node instead, and is acknowledged when that node did. Rates per peer do not
//! count: clients of this interface are the operator's. Bounds: the request's body, and the pool
//! `receiving` for the encoded message.

use bytes::Bytes;
use http_server::{ErrorResponse, Outgoing, TEXT};
use hyper::{Response, StatusCode};
use protocol::{StatusCode as Status, WakuMessage};
use serde::Deserialize;

use super::{
    answer,
    message::{MessageJson, present},
    service::{HttpResult, ReceivedBody, Service, pool_full},
};
use crate::{
    counters::Reason,
    ingest::{AcceptedMessage, ReceivedMessage, RejectReason},
    network::streams::{REQUEST_TIMEOUT, reserve},
    services::status_of,
};

/// `PushRequest` of the specification.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PushRequest<'a> {
    #[serde(default, deserialize_with = "present")]
    pubsub_topic: Option<String>,
    #[serde(borrow)]
    message: MessageJson<'a>,
}

enum PublishError {
    /// No message could be read.
    Refused(ErrorResponse),
    /// It was not taken.
    Rejected(RejectReason),
}

impl From<RejectReason> for PublishError {
    fn from(rejected: RejectReason) -> Self {
        Self::Rejected(rejected)
    }
}

impl Service {
    /// `POST /relay/v1/messages/{pubsubTopic}` and, without a topic, `/relay/v1/auto/messages`.
    pub(crate) async fn relay_publish(
        &self,
        pubsub_topic: Option<&str>,
        body: ReceivedBody,
    ) -> HttpResult {
        let parts = match self.parsed::<MessageJson<'_>>(&body) {
            Ok(message) => self.encode(&message).await,
            Err(refused) => Err(refused),
        };
        let published = self.publish(pubsub_topic.map(str::to_owned), parts, body, false).await;
        self.text_answer(published, "not published", StatusCode::PAYLOAD_TOO_LARGE)
    }

    /// `POST /lightpush/v3/message`. Refusals are JSON too, under the protocol's own status codes.
    pub(crate) async fn light_push(&self, body: HttpResult<ReceivedBody>) -> Response<Outgoing> {
        let pushed = match body {
            Ok(body) => {
                let (topic, parts) = self.encode_pushed(&body).await;
                self.publish(topic, parts, body, true).await
            }
            Err(refused) => Err(PublishError::Refused(refused)),
        };
        let refused = match pushed {
            Ok(accepted) => {
                let mut relayed = serde_json::json!({ "relayPeerCount": accepted.relay_peers });
                if let Some(note) = self.node.not_stored(&accepted) {
                    relayed["statusDesc"] = note.into();
                }
                let body = Outgoing::short(relayed.to_string());
                return answer::answer(StatusCode::OK, "application/json", body);
            }
            Err(PublishError::Refused(refused)) => refused,
            Err(PublishError::Rejected(rejected)) => {
                let code = status_of(&rejected);
                let status = u16::try_from(code.code()).ok();
                let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let retry = matches!(
                    code,
                    Status::TooManyRequests | Status::ServiceUnavailable | Status::NoPeers
                );
                let message = rejected.to_string();
                if retry { answer::busy(status, message) } else { answer::refusal(status, message) }
            }
        };
        let body = serde_json::json!({ "statusDesc": refused.message });
        answer::refused_in_json(refused, &body)
    }

    /// `POST /lightpush/v1/message`: text, and fewer codes.
    pub(crate) async fn light_push_legacy(&self, body: ReceivedBody) -> HttpResult {
        let (topic, parts) = self.encode_pushed(&body).await;
        let published = self.publish(topic, parts, body, true).await;
        self.text_answer(published, "not pushed", StatusCode::BAD_REQUEST)
    }

    async fn encode_pushed(
        &self,
        body: &ReceivedBody,
    ) -> (Option<String>, Result<EncodedMessage, PublishError>) {
        match self.parsed::<PushRequest<'_>>(body) {
            Ok(push) => {
                let encoded = self.encode(&push.message).await;
                (push.pubsub_topic, encoded)
            }
            Err(refused) => (None, Err(refused)),
        }
    }

    fn parsed<'a, T: Deserialize<'a>>(&self, body: &'a ReceivedBody) -> Result<T, PublishError> {
        body.json().map_err(|refused| {
            self.node.counters.client_refused.add(Reason::Damaged);
            PublishError::Refused(refused)
        })
    }

    async fn encode(&self, message: &MessageJson<'_>) -> Result<EncodedMessage, PublishError> {
        let Some(content_topic) = message.content_topic() else {
            self.node.counters.client_refused.add(Reason::Damaged);
            let why = "the message has no contentTopic; every message names one";
            return Err(PublishError::Refused(answer::bad(why)));
        };
        let room = message.encoded_bytes_max(content_topic);
        let held = reserve(&self.node.pools.receiving, room, REQUEST_TIMEOUT)
            .await
            .map_err(|full| self.node.refused(RejectReason::Busy(pool_full(&full))))?;
        let bytes = message.encode(content_topic, (self.node.clock)()).map_err(|why| {
            self.node.counters.client_refused.add(Reason::Damaged);
            PublishError::Refused(answer::bad(why))
        })?;
        Ok(EncodedMessage { content_topic: content_topic.to_owned(), bytes, held })
    }

    async fn publish(
        &self,
        pubsub_topic: Option<String>,
        encoded: Result<EncodedMessage, PublishError>,
        body: ReceivedBody,
        by_light_push: bool,
    ) -> Result<AcceptedMessage, PublishError> {
        // The request's body is not needed while the message is written.
        let arrived = body.arrived;
        drop(body);
        let EncodedMessage { content_topic, bytes, held } = encoded?;
        let shard = self
            .node
            .shard_for(pubsub_topic.as_deref(), &content_topic)
            .map_err(|rejected| self.node.refused(rejected))?;
        let bytes = Bytes::from(bytes);
        let message =
            WakuMessage::decode(bytes.clone()).map_err(|error| self.node.refused(error.into()))?;
        if by_light_push && self.node.pushes_remotely() {
            return Ok(self.node.push_remotely(shard, &message, bytes, held).await?);
        }
        Ok(self.node.publish(shard, message, ReceivedMessage { bytes, held, arrived }).await?)
    }

    /// The answer as text. `too_large` is the status for a message that is larger than is relayed.
    fn text_answer(
        &self,
        published: Result<AcceptedMessage, PublishError>,
        failed: &str,
        too_large: StatusCode,
    ) -> HttpResult {
        let rejected = match published {
            Ok(accepted) => {
                return Ok(match self.node.not_stored(&accepted) {
                    None => answer::text("OK"),
                    Some(note) => {
                        let text = Outgoing::short(format!("OK: {note}"));
                        answer::answer(StatusCode::OK, TEXT, text)
                    }
                });
            }
            Err(PublishError::Refused(refused)) => return Err(refused),
            Err(PublishError::Rejected(rejected)) => rejected,
        };
        let message = format!("{failed}: {rejected}");
        Err(match status_of(&rejected) {
            Status::TooManyRequests => answer::busy(StatusCode::TOO_MANY_REQUESTS, message),
            Status::PayloadTooLarge => answer::refusal(too_large, message),
            Status::NoPeers | Status::ServiceUnavailable => {
                answer::busy(StatusCode::SERVICE_UNAVAILABLE, message)
            }
            _ => answer::bad(message),
        })
    }
}

struct EncodedMessage {
    content_topic: String,
    bytes: Vec<u8>,
    held: accounting::Reservation,
}
