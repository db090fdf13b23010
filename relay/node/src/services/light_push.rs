//! Light push: a client's message becomes the network's. Versions 3 and 2.

use std::{sync::Arc, time::Instant};

use libp2p::PeerId;
use protocol::{
    StatusCode, Text, WakuMessage,
    light_push::{Reply, ReplyV2, Request, RequestV2},
};

use super::{PushRequest, RefusedPush, ServeOutcome, push_request, reply, status_of, text};
use crate::{
    counters::Reason,
    governor::WorkKind,
    ingest::ReceivedMessage,
    latencies,
    network::{stream_slots::Stream, streams::Frame},
    node::Node,
    settings::count,
};

pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let answer = match push_request(&node, &mut stream, request_bytes_max(&node)).await? {
        None => return Ok(()),
        Some(PushRequest::Refused(RefusedPush { begin, status, why })) => Reply {
            request_id: protocol::request_id(&begin),
            status,
            status_text: text(why),
            relay_peer_count: None,
        },
        Some(PushRequest::Whole(Frame { body, held, admitted: _admitted, arrived })) => {
            match Request::decode(body.clone()) {
                Ok(asked) => {
                    let topic = asked.pubsub_topic.as_ref().map(|topic| topic.as_str().to_owned());
                    let request_id = asked.request_id.to_owned_text();
                    let received = ReceivedMessage { bytes: asked.message.clone(), held, arrived };
                    // The rest of the request is not needed while the message is written.
                    drop((asked, body));
                    let (status, status_text, relay_peers) =
                        push(&node, &peer, topic.as_deref(), received).await;
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
            }
        }
    };
    reply(&mut stream, &answer.encode()).await
}

pub(crate) async fn serve_v2(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let answer = match push_request(&node, &mut stream, request_bytes_max(&node)).await? {
        None => return Ok(()),
        Some(PushRequest::Refused(RefusedPush { begin, why, .. })) => {
            ReplyV2 { request_id: protocol::request_id(&begin), is_success: false, info: text(why) }
        }
        Some(PushRequest::Whole(Frame { body, held, admitted: _admitted, arrived })) => {
            match RequestV2::decode(body.clone()) {
                Ok(asked) => {
                    let topic = asked.pubsub_topic.as_str().to_owned();
                    let request_id = asked.request_id.to_owned_text();
                    let received = ReceivedMessage { bytes: asked.message.clone(), held, arrived };
                    drop((asked, body));
                    let (status, info, _) = push(&node, &peer, Some(&topic), received).await;
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
            }
        }
    };
    reply(&mut stream, &answer.encode()).await
}

/// A message of a gossip frame comes in a request of the same size; one that is slightly too large
/// is read, to be answered with 413.
fn request_bytes_max(node: &Node) -> usize {
    count(node.settings.limits.messages.frame_bytes)
}

async fn push(
    node: &Arc<Node>,
    peer: &PeerId,
    pubsub_topic: Option<&str>,
    received: ReceivedMessage,
) -> (StatusCode, Option<Text>, Option<u32>) {
    let began = Instant::now();
    let answer = take(node, peer, pubsub_topic, received).await;
    latencies::observe_since(&node.latencies.light_push, began);
    answer
}

async fn take(
    node: &Arc<Node>,
    peer: &PeerId,
    pubsub_topic: Option<&str>,
    received: ReceivedMessage,
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
    let taken = match WakuMessage::decode(received.bytes.clone()) {
        Ok(decoded) => match node.shard_for(pubsub_topic, decoded.content_topic.as_str()) {
            Ok(shard) => node.publish(shard, decoded, received).await,
            Err(rejected) => Err(node.refused(rejected)),
        },
        Err(error) => Err(node.refused(error.into())),
    };
    match taken {
        Ok(accepted) => {
            let relay_peers = u32::try_from(accepted.relay_peers).unwrap_or(u32::MAX);
            (StatusCode::Ok, node.not_stored(&accepted).and_then(text), Some(relay_peers))
        }
        Err(rejected) => (status_of(&rejected), text(rejected.to_string()), None),
    }
}
