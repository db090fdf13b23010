//! Light push: a client's message becomes the network's. Versions 3 and 2.

use std::{sync::Arc, time::Instant};

use accounting::Reservation;
use bytes::Bytes;
use libp2p::PeerId;
use protocol::{
    StatusCode, Text, WakuMessage,
    light_push::{REQUEST_BYTES_MAX, Reply, ReplyV2, Request, RequestV2},
};

use super::{Request as Received, ServeOutcome, any_request, reply, status_of, text};
use crate::{
    counters::Reason,
    governor::WorkKind,
    latencies,
    network::{
        admission::NotAdmitted,
        stream_slots::Stream,
        streams::{Frame, UnreadFrame},
    },
    node::Node,
};

pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let Frame { body, held, admitted } = match received(&node, &mut stream).await? {
        None => return Ok(()),
        Some(Received::Refused(UnreadFrame { begin, .. })) => {
            let refused = Reply {
                request_id: protocol::request_id(&begin),
                status: StatusCode::TooManyRequests,
                status_text: text(NotAdmitted.to_string()),
                relay_peer_count: None,
            };
            return reply(&mut stream, &refused.encode()).await;
        }
        Some(Received::Whole(frame)) => frame,
    };
    let answer = match Request::decode(body.clone()) {
        Ok(asked) => {
            let topic = asked.pubsub_topic.as_ref().map(|topic| topic.as_str().to_owned());
            let request_id = asked.request_id.to_owned_text();
            let message = asked.message.clone();
            // The rest of the request is not needed while the message is written.
            drop((asked, body));
            let (status, status_text, relay_peers) =
                push(&node, &peer, topic.as_deref(), message, held).await;
            Reply { request_id, status, status_text, relay_peer_count: relay_peers }
        }
        Err(error) => {
            node.counters.client_refused.add(Reason::Damaged);
            Reply {
                request_id: protocol::request_id(&body),
                status: StatusCode::BadRequest,
                status_text: text(error.to_string()),
                relay_peer_count: None,
            }
        }
    };
    drop(admitted);
    reply(&mut stream, &answer.encode()).await
}

/// The push that a peer sends on a stream.
async fn received(node: &Node, stream: &mut Stream) -> Result<Option<Received>, String> {
    let activity = stream.activity();
    let received = any_request(node, stream, REQUEST_BYTES_MAX, activity.waiting()).await?;
    if matches!(received, Some(Received::Refused(_))) {
        node.counters.client_refused.add(Reason::Busy);
    }
    Ok(received)
}

pub(crate) async fn serve_v2(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let Frame { body, held, admitted } = match received(&node, &mut stream).await? {
        None => return Ok(()),
        Some(Received::Refused(UnreadFrame { begin, .. })) => {
            let refused = ReplyV2 {
                request_id: protocol::request_id(&begin),
                is_success: false,
                info: text(NotAdmitted.to_string()),
            };
            return reply(&mut stream, &refused.encode()).await;
        }
        Some(Received::Whole(frame)) => frame,
    };
    let answer = match RequestV2::decode(body.clone()) {
        Ok(asked) => {
            let topic = asked.pubsub_topic.as_str().to_owned();
            let request_id = asked.request_id.to_owned_text();
            let message = asked.message.clone();
            drop((asked, body));
            let (status, info, _) = push(&node, &peer, Some(&topic), message, held).await;
            ReplyV2 { request_id, is_success: status.is_success(), info }
        }
        Err(error) => {
            node.counters.client_refused.add(Reason::Damaged);
            ReplyV2 {
                request_id: protocol::request_id(&body),
                is_success: false,
                info: text(error.to_string()),
            }
        }
    };
    drop(admitted);
    reply(&mut stream, &answer.encode()).await
}

async fn push(
    node: &Arc<Node>,
    peer: &PeerId,
    pubsub_topic: Option<&str>,
    message: Bytes,
    held: Reservation,
) -> (StatusCode, Option<Text>, Option<u32>) {
    let began = Instant::now();
    let answer = take(node, peer, pubsub_topic, message, held).await;
    latencies::observe_since(&node.latencies.light_push, began);
    answer
}

async fn take(
    node: &Arc<Node>,
    peer: &PeerId,
    pubsub_topic: Option<&str>,
    message: Bytes,
    held: Reservation,
) -> (StatusCode, Option<Text>, Option<u32>) {
    if let Some(why) = node.watch.held_back(WorkKind::Pushes) {
        node.counters.client_refused.add(Reason::Memory);
        return (StatusCode::TooManyRequests, text(why), None);
    }
    if let Err(limit) = node.rates.light_push.take(peer) {
        node.counters.client_refused.add(Reason::RateLimited);
        return (StatusCode::TooManyRequests, text(limit.to_string()), None);
    }
    let _request = match node.pools.push_requests.try_reserve(relay_limits::REQUEST_BYTES) {
        Ok(held) => held,
        Err(full) => {
            node.counters.client_refused.add(Reason::Busy);
            return (StatusCode::TooManyRequests, text(full.to_string()), None);
        }
    };
    let taken = match WakuMessage::decode(message.clone()) {
        Ok(decoded) => match node.shard_for(pubsub_topic, decoded.content_topic.as_str()) {
            Ok(shard) => node.publish(shard, decoded, message, held).await,
            Err(rejected) => Err(node.refused(rejected)),
        },
        Err(error) => Err(node.refused(error.into())),
    };
    match taken {
        Ok(accepted) => {
            (StatusCode::Ok, None, Some(u32::try_from(accepted.relay_peers).unwrap_or(u32::MAX)))
        }
        Err(rejected) => (status_of(&rejected), text(rejected.to_string()), None),
    }
}
