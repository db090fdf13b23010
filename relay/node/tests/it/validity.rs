//! Messages at the edges of what the network takes: from clients, from peers, and on their way on.

use futures::AsyncWriteExt;
use protocol::{
    StatusCode, WakuMessage, frame,
    gossip::{Publish, Rpc, Subscription},
    light_push, wire,
};
use serde_json::json;

use crate::{
    gossip::GossipPeer,
    harness::Relay,
    http::post,
    peer::{Client, message, read},
};

const TOPIC: &str = "/test/1/validity/proto";
const PUBSUB: &str = "/waku/2/rs/0/1";
const REJECTED: &str = "thimble_relay_gossip_rejected_total";

/// A whole message, with more fields after it.
fn followed(payload: &[u8], more: &[u8]) -> Vec<u8> {
    [&message(TOPIC, payload).encode()[..], more].concat()
}

fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_bytes(tag, bytes, &mut out);
    out
}

/// A peer in the relay's mesh, which has `peers` with it.
async fn in_mesh(relay: &Relay, peers: u64) -> GossipPeer {
    let mut peer = GossipPeer::connect(relay.address(false), &[PUBSUB]).await;
    peer.graft(PUBSUB).await;
    let mesh = format!("libp2p_gossipsub_peers_per_topic_mesh{{topic=\"{PUBSUB}\"}}");
    relay.reaches(&mesh, peers).await;
    peer
}

/// Messages that some implementation accepts and forwards, and this relay does not.
fn disputed() -> Vec<(&'static str, Vec<u8>)> {
    let long = message(&format!("/test/1/{}/proto", "t".repeat(300)), b"p");
    vec![
        ("an empty payload", followed(b"p", &field(1, b""))),
        ("no payload", message(TOPIC, b"").encode()),
        ("an empty content topic", followed(b"p", &field(2, b""))),
        ("a content topic that is not UTF-8", followed(b"p", &field(2, b"\xff\xfe"))),
        ("a long content topic", long.encode()),
        ("a version of 33 bits", followed(b"p", b"\x18\x80\x80\x80\x80\x10")),
        ("a group", followed(b"p", b"\x9b\x3f\x9c\x3f")),
        ("field 0", followed(b"p", b"\x00\x01")),
        ("more than this relay takes", message(TOPIC, &[7; 160_000]).encode()),
    ]
}

// Promise: P23 - Light push and REST refuse messages that peers would reject.
#[tokio::test]
async fn clients_are_refused_what_peers_would_reject_with_the_reason() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    let mut push = async |message: Vec<u8>| {
        let request = light_push::Request { message: message.into(), ..Default::default() };
        let reply = client.request(light_push::PROTOCOL, &request.encode()).await.unwrap();
        let reply = light_push::Reply::decode(reply).unwrap();
        (reply.status, reply.status_text.map(|text| text.to_string()).unwrap_or_default())
    };
    for (what, bytes) in disputed() {
        let (status, why) = push(bytes.clone()).await;
        let expected = if bytes.len() > 150_000 {
            StatusCode::PayloadTooLarge
        } else {
            StatusCode::InvalidMessage
        };
        assert!(status == expected && !why.is_empty(), "{what}: {status:?}, {why}");
    }
    let long_meta = followed(b"p", &field(11, &[1; 65]));
    assert_eq!(push(long_meta).await.0, StatusCode::InvalidMessage);
    let widest = followed(b"p", &[field(11, &[1; 64]), field(500, b"later")].concat());
    assert_eq!(push(widest).await.0, StatusCode::Ok);

    let empty = json!({ "payload": "", "contentTopic": TOPIC });
    for (path, body, status) in [
        ("/lightpush/v3/message", json!({ "message": empty }), 420),
        ("/lightpush/v1/message", json!({ "message": empty, "pubsubTopic": PUBSUB }), 400),
        ("/relay/v1/auto/messages", empty.clone(), 400),
        ("/relay/v1/messages/%2Fwaku%2F2%2Frs%2F0%2F1", empty.clone(), 400),
    ] {
        let answer = post(&relay.http, path, &body);
        assert!(answer.status == status, "{path}: {} {}", answer.status, answer.text());
        assert!(answer.text().contains("payload"), "{path}: {}", answer.text());
    }
}

// Promise: P24 - An honest peer keeps its score whatever its own peers accepted.
#[tokio::test]
async fn peer_that_forwards_what_others_accept_is_not_at_fault() {
    let relay = Relay::start(&[]);
    let mut from = in_mesh(&relay, 1).await;
    let mut to = in_mesh(&relay, 2).await;
    let publish =
        |data: Vec<u8>, signed| Publish { topic: PUBSUB.into(), data: data.into(), signed };
    for _ in 0..20 {
        for (what, bytes) in disputed() {
            let rpc = Rpc { publish: vec![publish(bytes, false)], ..Rpc::default() };
            assert!(from.send_rpc(&rpc).await, "{what}");
        }
        // nwaku forwards messages with an author.
        let author = field(1, b"author");
        let data = field(2, &message(TOPIC, b"signed").encode());
        let entry = [author, data, field(4, PUBSUB.as_bytes())].concat();
        assert!(from.write(&frame::with_length(&field(2, &entry))).await);
    }
    // A frame that only other nodes read.
    let large = publish(message(TOPIC, &[7; 500_000]).encode(), false);
    assert!(from.send_rpc(&Rpc { publish: vec![large], ..Rpc::default() }).await);

    // More in a frame than this relay reads of one.
    let many = Rpc {
        publish: vec![Publish { topic: "/t".into(), data: "d".into(), signed: false }; 5_000],
        subscriptions: vec![Subscription { topic: "/t".into(), subscribe: true }; 2_000],
        graft: vec!["/t".into(); 2_000],
        ..Rpc::default()
    };
    assert!(from.send_rpc(&many).await);

    let good = message(TOPIC, b"still heard");
    assert!(from.publish(PUBSUB, &good).await);
    to.wait_for_message(&good).await;
    assert_eq!((relay.metric(REJECTED), from.raw.is_closed()), (0, false));
    // Nothing else went on, which would cost this relay its score with others.
    assert_eq!(relay.metric("thimble_relay_messages_total{source=\"relay\"}"), 1);
}

// Promise: P24 - A message that was ignored signed is taken unsigned.
#[tokio::test]
async fn message_that_came_with_an_author_first_is_relayed_without_it() {
    let relay = Relay::start(&[]);
    let mut hostile = in_mesh(&relay, 1).await;
    let mut honest = in_mesh(&relay, 2).await;
    let one = message(TOPIC, b"censored?");
    let entry = [field(1, b"me"), field(2, &one.encode()), field(4, PUBSUB.as_bytes())].concat();
    assert!(hostile.write(&frame::with_length(&field(2, &entry))).await);
    relay.reaches("thimble_relay_gossip_refused_total", 1).await;
    assert!(honest.publish(PUBSUB, &one).await);
    hostile.wait_for_message(&one).await;
}

// Promise: P24 - What every implementation rejects costs its sender's score.
#[tokio::test]
async fn what_all_implementations_reject_counts_against_the_peer() {
    let relay = Relay::start(&[]);
    let mut peer = in_mesh(&relay, 1).await;
    let rejected = [
        field(1, b"no content topic"),
        followed(b"p", &field(11, &[1; 65])),
        followed(b"p", b"\x0a\x05a"),
    ];
    for data in rejected {
        let publish = Publish { topic: PUBSUB.into(), data: data.into(), signed: false };
        assert!(peer.send_rpc(&Rpc { publish: vec![publish], ..Rpc::default() }).await);
    }
    relay.reaches(REJECTED, 3).await;
}

// Promise: P23 - Pushes above the limit are answered with 413.
#[tokio::test]
async fn push_that_is_too_long_to_be_read_is_answered_with_413() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    for bytes in [250_000, 1 << 20, 5 << 20] {
        let message = WakuMessage::new(TOPIC, vec![7; bytes]).encode();
        let request = light_push::Request {
            request_id: "a request".into(),
            message: message.clone().into(),
            ..Default::default()
        };
        let reply = client.request(light_push::PROTOCOL, &request.encode()).await.expect("a reply");
        let reply = light_push::Reply::decode(reply).unwrap();
        assert_eq!(reply.status, StatusCode::PayloadTooLarge, "{bytes}: {reply:?}");
        assert_eq!(reply.request_id.as_str(), "a request");
        let request = light_push::RequestV2 {
            request_id: "a request".into(),
            pubsub_topic: PUBSUB.into(),
            message: message.into(),
        };
        let reply = client.request(light_push::PROTOCOL_V2, &request.encode()).await.unwrap();
        let reply = light_push::ReplyV2::decode(reply).unwrap();
        assert!(!reply.is_success && reply.info.is_some() && &*reply.request_id == "a request");
        assert!(client.is_connected().await, "{bytes}");
    }
    // A client that ends after its first bytes is answered, too.
    let mut stream = client.open(light_push::PROTOCOL).await.unwrap();
    let head = [frame::encode_length(1 << 20), field(1, b"cut off")].concat();
    stream.write_all(&head).await.unwrap();
    stream.close().await.unwrap();
    let reply = light_push::Reply::decode(read(&mut stream).await.expect("a reply")).unwrap();
    assert_eq!((reply.status, reply.request_id.as_str()), (StatusCode::PayloadTooLarge, "cut off"));
}
