//! Relay: the gossip streams of a peer, one in each direction, for as long as the connection lives.

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use futures::{AsyncReadExt, AsyncWrite, AsyncWriteExt, future::select};
use protocol::gossip::{Control as Entry, Limits, Rpc, control_frames, message_id, publish_frame};
use router::{Control, Outgoing, Peer};

use super::ServeOutcome;
use crate::{
    counters::Reason,
    ingest::ReceivedMessage,
    network::{
        admission::WaitingFrames,
        stream_slots::Stream,
        streams::{
            Frame, GOSSIP_TIMEOUT, Intake, ReadError, SEND_TIME, discard, read_frame, skip,
            write_message,
        },
    },
    node::Node,
    settings::count,
};

/// Control messages are sent in frames of at most this.
const CONTROL_FRAME_BYTES: usize = 64 << 10;
/// Longest frame that is skipped. No node of a known network sends a longer one: the largest
/// messages of any have 1 MiB.
const SKIPPED_FRAME_BYTES_MAX: usize = 2 << 20;
/// A peer whose connection comes and goes gets its messages by gossip; this long it is waited for.
const FLUSH_TIME: Duration = SEND_TIME;
/// How long a peer's first frame waits for the peer to be known, and how often that is checked.
const KNOWN_TIME: Duration = Duration::from_secs(5);
const KNOWN_RETRY: Duration = Duration::from_millis(5);

pub(crate) async fn receive(node: Arc<Node>, peer: Peer, mut stream: Stream) -> ServeOutcome {
    // A peer sends its subscriptions once, and perhaps before this node knows that it gossips.
    let known = tokio::time::Instant::now() + KNOWN_TIME;
    while node.router().score(peer, node.now()).is_none() && tokio::time::Instant::now() < known {
        tokio::time::sleep(KNOWN_RETRY).await;
    }
    let frame_bytes = count(node.settings.limits.messages.frame_bytes);
    // A peer has one such stream, whose frames are not refused.
    let waiting = WaitingFrames::default();
    loop {
        let intake = Intake::new(&node, &waiting, GOSSIP_TIMEOUT);
        let taken = match read_frame(&mut stream, frame_bytes, &intake).await {
            Ok(Some(frame)) => take(&node, peer, frame).await,
            // Its network, or other peers of it, may take larger messages than this node.
            Err(ReadError::TooLong { bytes, .. }) if bytes <= SKIPPED_FRAME_BYTES_MAX => {
                node.counters.relay_refused.add(Reason::TooLarge);
                node.router().delivered_unread(peer);
                match skip(&mut stream, bytes, &mut Vec::new()).await {
                    Ok(()) => continue,
                    Err(_) => return Ok(()),
                }
            }
            Err(error @ (ReadError::Frame(_) | ReadError::TooLong { .. })) => {
                Err(error.to_string())
            }
            // A peer may open another stream. One that is slow is on a slow link, or this node's
            // processor is short, and no fault of the peer.
            Ok(None)
            | Err(
                ReadError::Io(_)
                | ReadError::Torn
                | ReadError::Slow
                | ReadError::Full(_)
                | ReadError::Busy(_),
            ) => return Ok(()),
        };
        taken.inspect_err(|_| node.router().misbehaved(peer))?;
    }
}

async fn take(node: &Arc<Node>, peer: Peer, frame: Frame) -> Result<(), String> {
    let Frame { body, mut held, admitted: _admitted, arrived } = frame;
    let rpc = Rpc::decode(body, &Limits::default()).map_err(|error| error.to_string())?;
    if rpc.skipped.messages > 0 {
        // The number of messages in a frame is this node's limit. Some may have been asked for.
        node.counters.relay_refused.add(Reason::TooLarge);
        node.router().delivered_unread(peer);
    }
    let now = node.now();
    {
        let mut router = node.router();
        if !router.is_heard(peer, now) {
            return Ok(());
        }
        let shard = |topic: &str| node.shard_of(topic).ok();
        for one in &rpc.subscriptions {
            if let Some(shard) = shard(&one.topic) {
                router.on_subscription(peer, shard, one.subscribe, now);
            }
        }
        for topic in &rpc.graft {
            if let Some(shard) = shard(topic) {
                router.on_graft(peer, shard, now);
            }
        }
        for prune in &rpc.prune {
            if let Some(shard) = shard(&prune.topic) {
                router.on_prune(peer, shard, prune.backoff_s, now);
            }
        }
        for offered in &rpc.ihave {
            if let Some(shard) = shard(&offered.topic) {
                router.on_ihave(peer, shard, offered.ids.iter().copied(), now);
            }
        }
        router.on_iwant(peer, rpc.iwant.iter().copied(), now);
        router.on_idontwant(peer, rpc.idontwant.iter().copied());
    }
    for publish in rpc.publish {
        let Ok(shard) = node.shard_of(&publish.topic) else { continue };
        if publish.signed {
            // nwaku forwards these, go-waku rejects them. The same message may come unsigned.
            node.router().delivered(peer, &message_id(&publish.data));
            node.counters.relay_refused.add(Reason::Invalid);
            continue;
        }
        let bytes = publish.data.len() as u64;
        // Each takes its share of the frame's memory along to the log.
        let Some(share) = held.split(bytes.min(held.bytes())) else { continue };
        let received = ReceivedMessage { bytes: publish.data, held: share, arrived };
        node.relay(peer, shard, received).await;
    }
    Ok(())
}

/// Sends a peer the router's items for it.
pub(crate) async fn send(node: Arc<Node>, peer: Peer, stream: libp2p::Stream) {
    let (read, write) = stream.split();
    // The peer sends nothing on this stream; any bytes are read, and dropped.
    let discarding = async {
        discard(read).await;
        std::future::pending::<()>().await;
    };
    select(pin!(send_all(node, peer, write)), pin!(discarding)).await;
}

async fn send_all(node: Arc<Node>, peer: Peer, mut stream: impl AsyncWrite + Unpin) {
    loop {
        let next = {
            let waiting = node.router().next(peer);
            match waiting {
                None => return,
                Some(Some(next)) => next,
                Some(None) => {
                    // Nothing waits: written bytes are flushed before this sleeps.
                    if tokio::time::timeout(FLUSH_TIME, stream.flush()).await.is_err() {
                        return;
                    }
                    match poll_fn(|cx| node.router().poll_next(peer, cx)).await {
                        Some(next) => next,
                        None => return,
                    }
                }
            }
        };
        match tokio::time::timeout(SEND_TIME, write(&node, &mut stream, next)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

async fn write(
    node: &Node,
    stream: &mut (impl AsyncWrite + Unpin),
    next: Outgoing<store::Message>,
) -> std::io::Result<()> {
    match next {
        Outgoing::Control(control) => {
            for frame in control_bytes(node, &control) {
                stream.write_all(&frame).await?;
            }
            Ok(())
        }
        Outgoing::Message(shard, message) => {
            let frame = publish_frame(&node.topic(shard), message.len());
            write_message(stream, node, &frame.head, &message, &frame.tail).await
        }
    }
}

fn control_bytes(node: &Node, control: &Control) -> Vec<Vec<u8>> {
    let mut shards: Vec<_> = control.subscriptions.iter().map(|(shard, _)| *shard).collect();
    shards.extend(&control.graft);
    shards.extend(control.prune.iter().map(|(shard, _)| *shard));
    shards.extend(control.ihave.iter().map(|(shard, _)| *shard));
    let topics: Vec<_> = shards.into_iter().map(|shard| node.topic(shard)).collect();
    let mut topics = topics.iter().map(|topic| &**topic);
    let mut entries = Vec::new();
    let mut topic = || topics.next().unwrap_or_default();
    for (_, subscribe) in &control.subscriptions {
        entries.push(Entry::Subscription { topic: topic(), subscribe: *subscribe });
    }
    for _ in &control.graft {
        entries.push(Entry::Graft { topic: topic() });
    }
    for (_, backoff) in &control.prune {
        entries.push(Entry::Prune { topic: topic(), backoff_s: Some(*backoff), peers: &[] });
    }
    for (_, ids) in &control.ihave {
        entries.push(Entry::IHave { topic: topic(), ids });
    }
    if !control.iwant.is_empty() {
        entries.push(Entry::IWant { ids: &control.iwant });
    }
    if !control.idontwant.is_empty() {
        entries.push(Entry::IDontWant { ids: &control.idontwant });
    }
    control_frames(&entries, CONTROL_FRAME_BYTES)
}
