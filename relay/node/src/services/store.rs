//! Store: past messages, page by page.
//!
//! A reply may be 15 MiB; it is never in memory: its length is known from the references, and the
//! messages are read from the log as the stream takes them.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use futures::AsyncWriteExt;
use libp2p::PeerId;
use protocol::{
    MessageHash, StatusCode,
    store::{PAGE_DEFAULT, REQUEST_BYTES_MAX, Reply, Request, entry_len, entry_parts, reply_frame},
};
use store::{Page, Query, QueryError};

use super::{ServeOutcome, reply, request, text};
use crate::{
    counters::Reason,
    governor::WorkKind,
    latencies,
    network::{
        stream_slots::Stream,
        streams::{Frame, SEND_TIME, write_message},
    },
    node::Node,
    settings::count,
};

pub(crate) async fn serve(node: Arc<Node>, peer: PeerId, mut stream: Stream) -> ServeOutcome {
    let frame = request(&node, &mut stream, REQUEST_BYTES_MAX).await?;
    let Some(Frame { body, held: _held, .. }) = frame else { return Ok(()) };
    node.counters.store_queries.fetch_add(1, Relaxed);
    let refuse = |status, reason, why: String| {
        node.counters.store_refused.add(reason);
        let request_id = protocol::request_id(&body);
        Reply { request_id, status, status_text: text(why), entries: Vec::new(), cursor: None }
            .encode()
    };
    let refusal = match Request::decode(body.clone()) {
        Err(error) => refuse(StatusCode::BadRequest, Reason::Damaged, error.to_string()),
        Ok(_) if !node.settings.store => {
            let why = "this node keeps no messages";
            refuse(StatusCode::ServiceUnavailable, Reason::Unavailable, why.into())
        }
        Ok(_) if let Some(why) = node.watch.held_back(WorkKind::Queries) => {
            refuse(StatusCode::TooManyRequests, Reason::Memory, why)
        }
        Ok(asked) => match node.rates.store.take(&peer) {
            Err(limit) => {
                refuse(StatusCode::TooManyRequests, Reason::RateLimited, limit.to_string())
            }
            Ok(()) => match found(&node, &asked).await {
                Ok(mut page) => {
                    if asked.include_data {
                        let most = count(node.settings.limits.store.page_bytes);
                        shorten(&mut page, asked.forward, most);
                    }
                    let sending = send(&node, &mut stream, &asked, &page);
                    return match tokio::time::timeout(SEND_TIME * 3, sending).await {
                        Ok(_) => Ok(()),
                        Err(_) => Err("a store reply was not taken in time".into()),
                    };
                }
                Err(error) => {
                    let (status, reason) = match &error {
                        QueryError::Busy { .. } => (StatusCode::TooManyRequests, Reason::Busy),
                        QueryError::UnknownCursor { .. } | QueryError::TooMany { .. } => {
                            (StatusCode::BadRequest, Reason::Invalid)
                        }
                        _ => (StatusCode::ServiceUnavailable, Reason::Unavailable),
                    };
                    refuse(status, reason, error.to_string())
                }
            },
        },
    };
    reply(&mut stream, &refusal).await
}

/// The page, and how long it took noted.
async fn found(node: &Node, asked: &Request) -> Result<Page, QueryError> {
    let began = Instant::now();
    let most = count(node.settings.limits.store.page_messages_max);
    let page = node.store.query(query(asked, most)).await;
    latencies::observe_since(&node.latencies.store_query, began);
    page
}

fn query(asked: &Request, most: usize) -> Query {
    let limit = asked.limit.filter(|limit| *limit > 0).unwrap_or(PAGE_DEFAULT);
    Query {
        pubsub_topic: asked
            .pubsub_topic
            .as_ref()
            .map(|topic| topic.as_str().to_owned())
            .filter(|topic| !topic.is_empty()),
        content_topics: asked
            .content_topics
            .iter()
            .map(|topic| topic.as_str().to_owned())
            .collect(),
        start_ns: asked.time_start,
        end_ns: asked.time_end,
        hashes: asked.message_hashes.iter().map(|hash| hash.0).collect(),
        cursor: asked.cursor.map(|cursor| cursor.0),
        forward: asked.forward,
        limit: usize::try_from(limit).unwrap_or(most).min(most),
    }
}

/// Leaves out what does not fit a reply that stock clients take: the newest of a page that goes
/// forward, the oldest of one that goes backward. The first message always stays.
fn shorten(page: &mut Page, forward: bool, bytes_max: usize) {
    let mut bytes = 0;
    let mut fits = |found: &&store::StoredMessage| {
        bytes += found.message.len();
        bytes <= bytes_max
    };
    let all = page.messages.len();
    let kept = if forward {
        page.messages.iter().take_while(&mut fits).count()
    } else {
        page.messages.iter().rev().take_while(&mut fits).count()
    };
    let kept = kept.max(1).min(all);
    if kept == all {
        return;
    }
    let next = if forward {
        page.messages.truncate(kept);
        page.messages.last()
    } else {
        page.messages.drain(..all - kept);
        page.messages.first()
    };
    page.cursor = next.map(|found| found.hash);
}

async fn send(node: &Node, stream: &mut Stream, asked: &Request, page: &Page) -> io::Result<()> {
    let data = |found: &store::StoredMessage| asked.include_data.then(|| found.message.len());
    let topic =
        |found: &store::StoredMessage| asked.include_data.then(|| found.pubsub_topic.clone());
    let entries_bytes =
        page.messages.iter().map(|found| entry_len(data(found), topic(found).as_deref())).sum();
    let cursor = page.cursor.map(MessageHash);
    let frame = reply_frame(
        asked.request_id.as_str(),
        StatusCode::Ok,
        Some("OK"),
        entries_bytes,
        cursor.as_ref(),
    );
    stream.write_all(&frame.head).await?;
    for found in &page.messages {
        let parts = entry_parts(&MessageHash(found.hash), data(found), topic(found).as_deref());
        if asked.include_data {
            write_message(stream, node, &parts.head, &found.message, &parts.tail).await?;
        } else {
            stream.write_all(&parts.head).await?;
        }
    }
    stream.write_all(&frame.tail).await?;
    stream.close().await
}
