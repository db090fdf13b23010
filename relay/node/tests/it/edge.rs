//! Nodes that are clients of others, compare their stores with them, and fetch what they missed:
//! the real program, over loopback.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{AsyncWriteExt, StreamExt};
use protocol::{
    frame,
    sync::{Content, Payload, PayloadWriter, RECONCILIATION_PROTOCOL, SyncId, TRANSFER_PROTOCOL},
};
use serde_json::json;
use testing::eventually;

use crate::{
    harness::Relay,
    http,
    peer::{self, Client},
    rest::{CONTENT_TOPIC, Node, encoded, message, payload, pubsub_topic, start},
};

/// Publishes messages on a node, with these payloads.
fn publish(node: &Node, payloads: &[&str]) {
    for payload in payloads {
        let body = json!({
            "pubsubTopic": pubsub_topic(CONTENT_TOPIC),
            "message": message(payload.as_bytes()),
        });
        let answer = node.post("/lightpush/v3/message", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Payloads of all messages that a node's store has.
fn stored(node: &Node) -> BTreeSet<String> {
    let page = node.get("/store/v3/messages?includeData=true&pageSize=100").ok();
    let messages = page["messages"].as_array().unwrap();
    messages.iter().map(|one| String::from_utf8(payload(&one["message"])).unwrap()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_client_pushes_to_filters_at_and_queries_another_node() {
    let mut server = start("", &[]);
    let address = server.multiaddr.clone();
    let edge = start(
        "",
        &[
            "--relay=false",
            "--lightpushnode",
            &address,
            "--filternode",
            &address,
            "--storenode",
            &address,
        ],
    );
    let subscription = json!({
        "requestId": "a request",
        "contentFilters": [CONTENT_TOPIC],
        "pubsubTopic": pubsub_topic(CONTENT_TOPIC),
    });
    eventually("the subscription", || {
        let answer = edge.post("/filter/v2/subscriptions", &subscription);
        println!("{}", answer.text());
        (answer.status == 200).then_some(())
    });
    publish(&edge, &["by another node"]);
    let path = format!("/filter/v2/messages/{}", encoded(CONTENT_TOPIC));
    let pushed = eventually("the push", || {
        let messages = edge.get(&path).ok();
        messages.as_array().unwrap().first().cloned()
    });
    assert_eq!(payload(&pushed), b"by another node");
    assert_eq!(stored(&edge), names(&["by another node"]), "of the store node");
    assert_eq!(stored(&server), names(&["by another node"]));
    assert_eq!(edge.get("/filter/v2/subscriptions/ping").status, 200);
    // It is no relay peer of anybody, and has no gossip to offer.
    let relays = server.get("/admin/v1/peers/relay").ok();
    let relays = relays.as_array().unwrap();
    assert!(relays.iter().all(|shard| shard["peers"].as_array().unwrap().is_empty()), "{relays:?}");
    let refused = edge.post("/relay/v1/auto/messages", &message(b"not relayed"));
    assert!(refused.status == 404 && refused.text().contains("relay = false"), "{refused:?}");
    let gone = edge.send("DELETE", "/filter/v2/subscriptions", &subscription);
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(edge.get(&path).status, 404);
    // The reason is named when the other node is gone.
    server.kill();
    let body = json!({ "pubsubTopic": pubsub_topic(CONTENT_TOPIC), "message": message(b"lost") });
    let answer = edge.post("/lightpush/v3/message", &body);
    assert_eq!(answer.status, 503, "{}", answer.text());
    let answer = edge.get("/store/v3/messages");
    assert!([503, 504].contains(&answer.status), "{}", answer.text());
}

#[test]
fn a_query_that_names_another_node_is_answered_by_it() {
    let (one, other) = (start("", &[]), start("", &[]));
    publish(&other, &["1", "2", "3"]);
    let path = format!(
        "/store/v3/messages?peerAddr={}&includeData=true&pageSize=2",
        encoded(&other.multiaddr)
    );
    let first = one.get(&path).ok();
    assert_eq!(first["messages"].as_array().unwrap().len(), 2);
    let cursor = first["paginationCursor"].as_str().unwrap();
    let second = one.get(&format!("{path}&cursor={cursor}")).ok();
    let second = second["messages"].as_array().unwrap();
    assert_eq!((second.len(), payload(&second[0]["message"])), (1, b"3".to_vec()));
    assert_eq!(second[0]["pubsubTopic"], pubsub_topic(CONTENT_TOPIC));
    assert!(stored(&one).is_empty());
}

/// A store whose answers are all longer than a relay takes, each after a delay: the status of one
/// query by HTTP, and the numbers of messages that the store was asked for.
async fn query_of_long_answers(delay: Duration, page: u64) -> (u16, Vec<u64>) {
    let config = "[limits.client]\nanswer_seconds = 3\n";
    let relay = Relay::start_after("", config, &["--cluster", "16"]);
    let (mut client, mut streams) =
        Client::serving(relay.address(false), protocol::store::PROTOCOL).await;
    assert!(client.is_connected().await);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let serving = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Some((_, mut stream)) = streams.next().await {
            let Some(request) = peer::read(&mut stream).await else { continue };
            let request = protocol::store::Request::decode(request).unwrap();
            seen.lock().unwrap().push(request.limit.unwrap());
            tokio::time::sleep(delay).await;
            // The relay may wait no longer.
            let _ = stream.write_all(&frame::encode_length(1 << 29)).await;
            let _ = stream.flush().await;
            open.push(stream);
        }
    });
    let other = encoded(&format!("/ip4/127.0.0.1/tcp/1/p2p/{}", client.id));
    let path = format!("/store/v3/messages?peerAddr={other}&pageSize={page}");
    let url = relay.http.clone();
    let answered = tokio::task::spawn_blocking(move || http::get(&url, &path).status);
    let status = answered.await.unwrap();
    serving.abort();
    let asked = asked.lock().unwrap().clone();
    (status, asked)
}

#[tokio::test]
async fn a_page_that_is_too_long_is_asked_for_in_shorter_ones_within_one_deadline() {
    let (status, asked) = query_of_long_answers(Duration::ZERO, 8).await;
    assert_eq!((status, asked), (503, vec![8, 4, 2, 1]));
    let (status, asked) = query_of_long_answers(Duration::from_secs(1), 64).await;
    assert_eq!(status, 504);
    assert!((1..5).contains(&asked.len()), "{asked:?}");
}

const SYNC: &str = "[limits.sync]\ninterval_seconds = 10\njitter_seconds = 0\n";

#[test]
fn stores_that_are_compared_have_the_same_messages_afterwards() {
    let one = start(SYNC, &["--store-sync"]);
    let mut other = start(SYNC, &["--store-sync"]);
    publish(&one, &["a", "b", "c"]);
    publish(&other, &["d", "e"]);
    assert_eq!(stored(&other), names(&["d", "e"]));
    // Without gossip nothing but synchronisation moves messages.
    let address = one.multiaddr.clone();
    other.kill_and_start(&["--store-sync", "--relay=false", "--store", "--peer", &address]);
    let all = names(&["a", "b", "c", "d", "e"]);
    eventually("the same messages", || {
        let same = stored(&one) == all && stored(&other) == all;
        same.then_some(())
    });
}

#[test]
fn a_node_that_was_away_fetches_what_it_missed() {
    let server = start("", &[]);
    publish(&server, &["1", "2", "3"]);
    let address = server.multiaddr.clone();
    let flags = ["--relay=false", "--store", "--store-resume", "--storenode", &address];
    let mut node = start("", &flags);
    let has = |node: &Node, expected: BTreeSet<String>| {
        eventually("what was missed", || (stored(node) == expected).then_some(()));
    };
    has(&node, names(&["1", "2", "3"]));
    let online = node.folder.path().join("data").join("online");
    eventually("the file", || online.exists().then_some(()));
    publish(&server, &["4", "5"]);
    node.kill_and_start(&flags);
    has(&node, names(&["1", "2", "3", "4", "5"]));
    // A damaged file costs a longer query and nothing else.
    std::fs::write(&online, "thimble-relay online 9").unwrap();
    publish(&server, &["6"]);
    node.kill_and_start(&flags);
    has(&node, names(&["1", "2", "3", "4", "5", "6"]));
}

/// A frame of a stream.
async fn send(stream: &mut libp2p::Stream, body: &[u8]) {
    stream.write_all(&frame::with_length(body)).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test]
async fn a_session_of_many_content_topics_is_answered_and_what_it_brings_is_passed_on_once() {
    let relay = Relay::start_after("", SYNC, &["--cluster", "16", "--store-sync"]);
    let mut client = Client::connect(relay.address(false)).await;
    let here = peer::message(CONTENT_TOPIC, b"here");
    assert_eq!(client.push(&here).await.unwrap().status.code(), 200);
    // A query waits for the index, a session does not.
    let request = protocol::store::Request { forward: true, ..Default::default() };
    assert_eq!(client.query(&request).await.entries.len(), 1);
    let mut topics: Vec<String> = (0..60).map(|topic| format!("/other/1/{topic}/proto")).collect();
    topics.push(CONTENT_TOPIC.to_owned());
    let none: [&str; 0] = [];
    let mut writer = PayloadWriter::new(&none, &topics, 0);
    writer.fingerprint(SyncId::at(i64::MAX), &[7; 32]);
    let mut stream = client.open(RECONCILIATION_PROTOCOL).await.unwrap();
    send(&mut stream, &writer.finish()).await;
    let answer = Payload::decode(peer::read(&mut stream).await.unwrap()).unwrap();
    let range = answer.ranges().next().unwrap().unwrap();
    let Content::Items(items) = range.content else { panic!("{range:?}") };
    assert_eq!(items.count(), 1);

    // It sends what is missing, and then it comes from a client.
    let queue = format!("/relay/v1/messages/{}", encoded(&pubsub_topic(CONTENT_TOPIC)));
    assert_eq!(http::get_raw(&relay.http, &queue).matches("payload").count(), 1);
    let fetched = peer::message(CONTENT_TOPIC, b"fetched");
    let bytes = fetched.encode();
    let frame = protocol::sync::transfer_frame(bytes.len(), &pubsub_topic(CONTENT_TOPIC));
    let mut transfer = client.open(TRANSFER_PROTOCOL).await.unwrap();
    transfer.write_all(&frame.around(&bytes)).await.unwrap();
    transfer.close().await.unwrap();
    relay.reaches("thimble_relay_fetched_total", 1).await;
    assert_eq!(http::get_raw(&relay.http, &queue).matches("payload").count(), 0);
    for _ in 0..2 {
        assert_eq!(client.push(&fetched).await.unwrap().status.code(), 200);
    }
    assert_eq!(http::get_raw(&relay.http, &queue).matches("payload").count(), 1);
}

#[tokio::test]
async fn hostile_sessions_end_and_unasked_messages_are_not_taken() {
    let relay = Relay::start_after("", SYNC, &["--cluster", "16", "--store-sync"]);
    let mut client = Client::connect(relay.address(false)).await;
    // A message without a session is not stored.
    let unasked = peer::message(CONTENT_TOPIC, b"unasked").encode();
    let frame = protocol::sync::transfer_frame(unasked.len(), &pubsub_topic(CONTENT_TOPIC));
    let mut stream = client.open(TRANSFER_PROTOCOL).await.unwrap();
    stream.write_all(&frame.around(&unasked)).await.unwrap();
    stream.close().await.unwrap();
    // Payloads that are no payloads, one that is too long, and one of everything there ever was.
    for body in [vec![0xff; 100], vec![1, 1, 0xff, 0, 0], vec![0, 0, 1, 1, 2, 0xff, 0xff, 0x7f]] {
        let mut stream = client.open(RECONCILIATION_PROTOCOL).await.unwrap();
        send(&mut stream, &body).await;
        assert_eq!(peer::read(&mut stream).await, None, "{body:?}");
    }
    let mut stream = client.open(RECONCILIATION_PROTOCOL).await.unwrap();
    stream.write_all(&frame::encode_length(1 << 30)).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(peer::read(&mut stream).await, None);
    let none: [&str; 0] = [];
    let mut writer = PayloadWriter::new(&none, &none, 0);
    writer.fingerprint(SyncId::at(i64::MAX), &[7; 32]);
    let mut stream = client.open(RECONCILIATION_PROTOCOL).await.unwrap();
    send(&mut stream, &writer.finish()).await;
    let answer = Payload::decode(peer::read(&mut stream).await.unwrap()).unwrap();
    assert_eq!(answer.ranges().count(), 1, "an empty store has an empty set");
    drop(stream);
    // An honest client of the same node is served, and the store has its message alone.
    assert!(client.is_connected().await);
    let request = protocol::store::Request {
        include_data: true,
        forward: true,
        ..protocol::store::Request::default()
    };
    let found = client.query(&request).await.entries;
    assert_eq!(found.len(), 1);
    assert!(found[0].message.as_ref().unwrap().windows(5).any(|bytes| bytes == b"alive"));
}
