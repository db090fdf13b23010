//! Filter: clients subscribe to content topics, and receive their messages.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use futures::{
    AsyncReadExt, AsyncWriteExt,
    future::{Either, pending, select},
};
use libp2p::PeerId;
use protocol::{
    StatusCode, Text,
    filter::{Action, REQUEST_BYTES_MAX, Reply, Request, push_frame},
};
use router::Shard;
use store::Message;

use super::{ServeOutcome, reply, request, text};
use crate::{
    counters::Reason,
    governor::WorkKind,
    latencies,
    network::{
        stream_slots::Stream,
        streams::{Frame, SEND_TIME, discard, write_message},
    },
    node::Node,
    settings::count,
};

pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let frame = request(&node, &mut stream, REQUEST_BYTES_MAX).await?;
    let Some(Frame { body, held: _held, .. }) = frame else { return Ok(()) };
    node.counters.filter_requests.fetch_add(1, Relaxed);
    let answer = match Request::decode(body.clone()) {
        Ok(asked) => {
            let request_id = asked.request_id.clone();
            let (status, reason, status_text) = match node.rates.filter.take(&peer) {
                Ok(()) => answer(&node, peer, &asked),
                Err(limit) => (
                    StatusCode::TooManyRequests,
                    Some(Reason::RateLimited),
                    text(limit.to_string()),
                ),
            };
            if let Some(reason) = reason {
                node.counters.filter_refused.add(reason);
            }
            Reply { request_id, status, status_text }
        }
        Err(error) => {
            node.counters.filter_refused.add(Reason::Damaged);
            Reply {
                request_id: protocol::request_id(&body),
                status: StatusCode::BadRequest,
                status_text: text(error.to_string()),
            }
        }
    };
    reply(&mut stream, &answer.encode()).await
}

fn answer(
    node: &Node,
    peer: PeerId,
    asked: &Request,
) -> (StatusCode, Option<Reason>, Option<Text>) {
    let now = Instant::now();
    let done = (StatusCode::Ok, None, text("OK"));
    let unknown =
        (StatusCode::NotFound, Some(Reason::Topic), text("this peer has no subscriptions here"));
    match asked.action {
        Action::Ping if node.filter.ping(&peer, now) => done,
        Action::UnsubscribeAll if node.filter.unsubscribe_all(&peer) => done,
        Action::Ping | Action::UnsubscribeAll => unknown,
        Action::Subscribe | Action::Unsubscribe => {
            if asked.action == Action::Subscribe
                && let Some(why) = node.watch.held_back(WorkKind::Pushes)
            {
                return (StatusCode::ServiceUnavailable, Some(Reason::Memory), text(why));
            }
            if let Some(why) = too_many(node, asked) {
                return (StatusCode::BadRequest, Some(Reason::TooLarge), text(why));
            }
            if asked.content_topics.is_empty() {
                let why = text("at least one content topic is needed");
                return (StatusCode::BadRequest, Some(Reason::Damaged), why);
            }
            change(node, peer, asked, now).unwrap_or(done)
        }
    }
}

/// Which limit on content topics a request does not keep to.
fn too_many(node: &Node, asked: &Request) -> Option<String> {
    let limits = &node.settings.limits.filter;
    let (topics, most) = (asked.content_topics.len(), count(limits.topics_per_request));
    if topics > most {
        return Some(format!(
            "{topics} content topics, filter.topics_per_request is {most}; send several requests"
        ));
    }
    let most = count(limits.content_topic_bytes);
    let long = asked
        .content_topics
        .iter()
        .map(|topic| topic.as_str().len())
        .find(|bytes| *bytes > most)?;
    Some(format!(
        "a content topic of {long} bytes, filter.content_topic_bytes is {most}; use a shorter one"
    ))
}

/// Subscribes or unsubscribes; the refusal, if it is refused.
fn change(
    node: &Node,
    peer: PeerId,
    asked: &Request,
    now: Instant,
) -> Option<(StatusCode, Option<Reason>, Option<Text>)> {
    let pubsub_topic = asked.pubsub_topic.as_ref().map(|topic| topic.as_str());
    let mut by_shard: Vec<(Shard, Vec<Arc<str>>)> = Vec::new();
    for topic in &asked.content_topics {
        let shard = match node.shard_for(pubsub_topic, topic.as_str()) {
            Ok(shard) => shard,
            Err(rejected) => {
                let status = StatusCode::BadRequest;
                return Some((status, Some(Reason::Topic), text(rejected.to_string())));
            }
        };
        let topic: Arc<str> = Arc::from(topic.as_str());
        match by_shard.iter_mut().find(|(other, _)| *other == shard) {
            Some((_, topics)) => topics.push(topic),
            None => by_shard.push((shard, vec![topic])),
        }
    }
    for (shard, topics) in by_shard {
        if asked.action == Action::Subscribe {
            if let Err(error) = node.filter.subscribe(peer, shard, &topics, now) {
                let status = StatusCode::ServiceUnavailable;
                return Some((status, Some(Reason::Busy), text(error.to_string())));
            }
        } else if !node.filter.unsubscribe(peer, shard, &topics, now) {
            let why = text("this peer has no subscriptions here");
            return Some((StatusCode::NotFound, Some(Reason::Topic), why));
        }
    }
    None
}

/// Sends one message on a stream of its own; whether the receiver took it.
pub(crate) async fn push(
    node: Arc<Node>,
    stream: libp2p::Stream,
    shard: Shard,
    message: Message,
) -> bool {
    let began = Instant::now();
    let frame = push_frame(message.len(), &node.topic(shard));
    let (read, mut write) = stream.split();
    let sending = async {
        write_message(&mut write, &node, &frame.head, &message, &frame.tail).await.ok()?;
        write.close().await.ok()
    };
    // A receiver sends nothing; any bytes are read, and dropped.
    let discarding = async {
        discard(read).await;
        pending::<()>().await;
    };
    let (sending, discarding) = (pin!(sending), pin!(discarding));
    match tokio::time::timeout(SEND_TIME, select(sending, discarding)).await {
        Ok(Either::Left((Some(()), _))) => {
            latencies::observe_since(&node.latencies.filter_push, began);
            true
        }
        _ => false,
    }
}
