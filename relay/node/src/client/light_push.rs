//! Light push by another node: a message of a REST client becomes the network's there.

use accounting::Reservation;
use bytes::Bytes;
use protocol::{
    StatusCode, Text, WakuMessage,
    light_push::{PROTOCOL, PROTOCOL_V2, REPLY_BYTES_MAX, Reply, ReplyV2, Request, RequestV2},
    message_hash,
};
use router::Shard;

use super::{ClientError, Remote};
use crate::{
    counters::Reason,
    ingest::{AcceptedMessage, RejectReason, Source},
    network::{
        offers::Offer,
        streams::{Frame, REQUEST_TIMEOUT, reserve},
    },
    node::Node,
};

/// Bytes of a request in addition to its message.
const REQUEST_BYTES: usize = 512;

impl From<ClientError> for RejectReason {
    fn from(error: ClientError) -> Self {
        Self::Remote { status: error.status(), text: error.to_string() }
    }
}

impl Node {
    /// Whether messages of REST clients are pushed to another node.
    pub(crate) fn pushes_remotely(&self) -> bool {
        !self.settings.relay || self.settings.service_nodes.light_push.is_some()
    }

    /// Pushes a message, which `bytes` decode to, to the light push node. `held` is their memory.
    pub(crate) async fn push_remotely(
        &self,
        shard: Shard,
        message: &WakuMessage,
        bytes: Bytes,
        held: Reservation,
    ) -> Result<AcceptedMessage, RejectReason> {
        let pushed = self.push_to_any(shard, message, bytes).await;
        drop(held);
        let counted = pushed.as_ref().map(|_| ()).map_err(RejectReason::reason);
        self.counters.message(Source::Client, counted);
        pushed
    }

    async fn push_to_any(
        &self,
        shard: Shard,
        message: &WakuMessage,
        bytes: Bytes,
    ) -> Result<AcceptedMessage, RejectReason> {
        let topic = self.topic(shard);
        // The request is a copy of the message.
        let _copied = reserve(&self.pools.receiving, bytes.len() + REQUEST_BYTES, REQUEST_TIMEOUT)
            .await
            .map_err(|full| RejectReason::Busy(full.to_string()))?;
        let to = match self.service_node(Offer::LightPush).await {
            Err(ClientError::NoPeer(_)) => self.service_node(Offer::LightPushV2).await?,
            found => found?,
        };
        let pushed = match self.push_v3(&to, &topic, bytes.clone()).await {
            Err(ClientError::Unsupported(..)) => self.push_v2(&to, &topic, bytes).await,
            pushed => pushed,
        };
        let hash = message_hash(&topic, message);
        Ok(AcceptedMessage { hash, relay_peers: pushed?, known: false, off_by: None })
    }

    /// Peers that it was relayed to.
    async fn push_v3(
        &self,
        to: &Remote,
        topic: &str,
        message: Bytes,
    ) -> Result<usize, ClientError> {
        let request =
            Request { request_id: request_id(), pubsub_topic: Some(Text::from(topic)), message };
        let Frame { body, held: _held, .. } =
            self.exchange(to, PROTOCOL, &request.encode(), REPLY_BYTES_MAX).await?;
        let reply = Reply::decode(body)
            .map_err(|error| ClientError::Damaged { peer: to.peer, why: error.to_string() })?;
        if !reply.status.is_success() {
            let text = refusal(to, reply.status_text.as_ref());
            return Err(ClientError::Refused { status: reply.status, text });
        }
        Ok(reply.relay_peer_count.map_or(0, |peers| peers as usize))
    }

    async fn push_v2(
        &self,
        to: &Remote,
        topic: &str,
        message: Bytes,
    ) -> Result<usize, ClientError> {
        let request =
            RequestV2 { request_id: request_id(), pubsub_topic: Text::from(topic), message };
        let Frame { body, held: _held, .. } =
            self.exchange(to, PROTOCOL_V2, &request.encode(), REPLY_BYTES_MAX).await?;
        let reply = ReplyV2::decode(body)
            .map_err(|error| ClientError::Damaged { peer: to.peer, why: error.to_string() })?;
        if !reply.is_success {
            let text = refusal(to, reply.info.as_ref());
            return Err(ClientError::Refused { status: StatusCode::ServiceUnavailable, text });
        }
        // This version does not say; it was at least one.
        Ok(1)
    }
}

/// A new request id, as stock clients make them.
pub(super) fn request_id() -> Text {
    Text::from(format!("{:032x}", rand::random::<u128>()))
}

/// What another node said, for people.
pub(super) fn refusal(to: &Remote, text: Option<&Text>) -> String {
    let text = text.map_or("no reason was given", |text| text.as_str());
    format!("{} refused: {text}", to.peer)
}

/// Under which a refusal of another node is counted.
pub(crate) fn reason_of(status: StatusCode) -> Reason {
    match status {
        StatusCode::PayloadTooLarge => Reason::TooLarge,
        StatusCode::BadRequest | StatusCode::InvalidMessage => Reason::Invalid,
        StatusCode::UnsupportedPubsubTopic => Reason::Topic,
        StatusCode::NoPeers => Reason::NoPeers,
        StatusCode::TooManyRequests => Reason::RateLimited,
        _ => Reason::Unavailable,
    }
}
