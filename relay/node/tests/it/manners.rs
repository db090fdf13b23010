//! What the relay says is so, and how it ends conversations.

use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use protocol::{Text, frame, metadata, store};

use crate::{
    gossip::GossipPeer,
    harness::Relay,
    http::post,
    peer::{Client, TIMEOUT, message, read},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/manners/proto";
const PUBSUB: &str = "/waku/2/rs/0/1";

fn all() -> store::Request {
    store::Request {
        request_id: Text::from("all"),
        include_data: true,
        content_topics: vec![TOPIC.into()],
        forward: true,
        limit: Some(100),
        ..store::Request::default()
    }
}

/// Timestamps may be a second off.
const STRICT: &str = "[limits.messages]\nclock_seconds = 1\n";

// Promise: P23 - Messages that wait for a stopped relay are stored, by light push and gossip.
#[tokio::test]
async fn messages_that_waited_for_a_relay_that_was_stopped_are_in_the_store() {
    let relay = Relay::start_after("", STRICT, &[]);
    let mut client = Client::connect(relay.address(false)).await;
    let mut peer = GossipPeer::connect(relay.address(false), &[PUBSUB]).await;
    peer.graft(PUBSUB).await;
    let before = message(TOPIC, b"before");
    assert!(peer.publish(PUBSUB, &before).await);
    relay.reaches("thimble_relay_messages_total{source=\"relay\"}", 1).await;
    relay.freeze();
    let (pushed, published) = (message(TOPIC, b"pushed"), message(TOPIC, b"published"));
    assert!(peer.publish(PUBSUB, &published).await);
    // Longer than timestamps may be off: this much later they are read.
    let thaw = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        relay.thaw();
    };
    let (reply, ()) = tokio::join!(client.push(&pushed), thaw);
    let reply = reply.expect("a reply");
    assert_eq!((reply.status.code(), reply.status_text), (200, None));
    relay.reaches("thimble_relay_messages_total{source=\"relay\"}", 2).await;
    let page = client.query(&all()).await;
    let mut found: Vec<_> = page.entries.into_iter().map(|entry| entry.message.unwrap()).collect();
    let mut sent = [before, pushed, published].map(|one| Bytes::from(one.encode())).to_vec();
    found.sort();
    sent.sort();
    assert_eq!(found, sent);
    assert_eq!(relay.metric("thimble_relay_gossip_broken_promises_total"), 0);
}

// Promise: P23 - The answer to a message that is relayed and not stored says so.
#[tokio::test]
async fn answer_says_that_a_message_is_not_stored() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    let mut stale = message(TOPIC, b"an hour old");
    stale.timestamp = stale.timestamp.map(|at| at - 3_600_000_000_000);
    // The second time it is known, and no more stored than the first.
    for _ in 0..2 {
        let reply = client.push(&stale).await.unwrap();
        let why = reply.status_text.unwrap();
        assert!(reply.status.is_success() && why.contains("not stored"), "{why}");
        assert!(why.contains("clock_seconds is 20"), "{why}");
    }
    let body = serde_json::json!({
        "payload": "aGk=", "contentTopic": TOPIC, "timestamp": stale.timestamp,
    });
    let answer = post(&relay.http, "/relay/v1/auto/messages", &body);
    assert!(answer.status == 200 && answer.text().contains("not stored"), "{}", answer.text());
    let answer =
        post(&relay.http, "/lightpush/v3/message", &serde_json::json!({ "message": body }));
    let described = answer.json()["statusDesc"].to_string();
    assert!(answer.status == 200 && described.contains("not stored"), "{described}");
    // Ephemeral messages are not meant to be.
    let mut ephemeral = message(TOPIC, b"ephemeral");
    ephemeral.ephemeral = Some(true);
    assert_eq!(client.push(&ephemeral).await.unwrap().status_text, None);
    assert_eq!(client.push(&message(TOPIC, b"kept")).await.unwrap().status_text, None);
    assert_eq!(client.query(&all()).await.entries.len(), 1);
}

// Promise: P23 - The relay's question for metadata ends in order.
#[tokio::test]
async fn question_for_metadata_ends_with_its_end_and_not_with_a_reset() {
    let relay = Relay::start(&["--cluster", "2"]);
    // The relay asks a peer that says that it answers.
    let (_client, mut streams) = Client::serving(relay.address(false), metadata::PROTOCOL).await;
    let asked = tokio::time::timeout(TIMEOUT, streams.next()).await.expect("a question in time");
    let (_, mut stream) = asked.unwrap();
    let question = metadata::Metadata::decode(read(&mut stream).await.unwrap()).unwrap();
    assert_eq!((question.cluster, question.shards.len()), (Some(2), 8));
    let answer = metadata::Metadata { cluster: Some(2), shards: Vec::new() }.encode();
    stream.write_all(&frame::with_length(&answer)).await.unwrap();
    stream.flush().await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!((ended.expect("the end, and no reset"), rest.len()), (0, 0));
}

// Promise: P23 - A peer of another cluster is told so before it is disconnected.
#[tokio::test]
async fn peer_of_another_cluster_is_answered_before_it_is_dismissed() {
    let relay = Relay::start(&["--cluster", "2"]);
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        let raw = Raw::connect(relay.address(false), multiplexer, &[]).await;
        let mut stream = raw.open(metadata::PROTOCOL).await.unwrap();
        let question = metadata::Metadata { cluster: Some(16), shards: vec![32] }.encode();
        stream.write_all(&frame::with_length(&question)).await.unwrap();
        stream.close().await.unwrap();
        let answer = read(&mut stream).await.expect("an answer");
        assert_eq!(metadata::Metadata::decode(answer).unwrap().cluster, Some(2));
        testing::until_async("the peer is dismissed", async || raw.is_closed()).await;
    }
}

// Promise: P23 - Pages of hashes alone are not cut by bytes that are not sent.
#[tokio::test]
async fn pages_of_hashes_are_as_long_as_was_asked_for() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    for number in 0..40 {
        let one = message(TOPIC, &[number; 140_000]);
        assert_eq!(client.push(&one).await.unwrap().status.code(), 200);
    }
    for forward in [true, false] {
        let hashes = store::Request { include_data: false, forward, ..all() };
        let page = client.query(&hashes).await;
        assert_eq!((page.entries.len(), page.cursor), (40, None));
        let data = store::Request { forward, ..all() };
        let page = client.query(&data).await;
        assert!(page.entries.len() < 40 && page.cursor.is_some(), "4 MiB of a page");
    }
}
