//! Invalid messages, on every protocol.

use bytes::Bytes;
use futures::AsyncWriteExt;
use libp2p::core::muxing::SubstreamBox;
use protocol::{
    Text, filter, frame,
    gossip::{self, Publish, Rpc},
    light_push, metadata, peer_exchange, store,
};

use crate::{
    gossip::GossipPeer,
    harness::Relay,
    peer::{message, read, serves},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/damage/proto";
const IDENTIFY: &str = "/ipfs/id/1.0.0";
const IDENTIFY_PUSH: &str = "/ipfs/id/push/1.0.0";
const PING: &str = "/ipfs/ping/1.0.0";

/// A whole request of each protocol.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let message: Bytes = message(TOPIC, &[7; 300]).encode().into();
    let request_id = Text::from("a request");
    let push = light_push::Request {
        request_id: request_id.clone(),
        pubsub_topic: None,
        message: message.clone(),
    };
    let push_v2 = light_push::RequestV2 {
        request_id: request_id.clone(),
        pubsub_topic: "/waku/2/rs/0/1".into(),
        message: message.clone(),
    };
    let subscribe = filter::Request {
        request_id: request_id.clone(),
        action: filter::Action::Subscribe,
        pubsub_topic: None,
        content_topics: vec![TOPIC.into()],
    };
    let query = store::Request {
        request_id,
        content_topics: vec![TOPIC.into()],
        ..store::Request::default()
    };
    let about = metadata::Metadata { cluster: Some(0), shards: vec![0, 1] };
    let publish = Publish { topic: "/waku/2/rs/0/1".into(), data: message, signed: false };
    let rpc =
        Rpc { publish: vec![publish], graft: vec!["/waku/2/rs/0/1".into()], ..Rpc::default() };
    vec![
        (light_push::PROTOCOL, push.encode()),
        (light_push::PROTOCOL_V2, push_v2.encode()),
        (filter::SUBSCRIBE_PROTOCOL, subscribe.encode()),
        (store::PROTOCOL, query.encode()),
        (metadata::PROTOCOL, about.encode()),
        (peer_exchange::PROTOCOL, peer_exchange::Request { peers: 5 }.encode()),
        (gossip::PROTOCOL, rpc.encode()),
        (IDENTIFY_PUSH, vec![10, 3, 1, 2, 3]),
    ]
}

/// Damaged forms of a request, as sent over the stream.
fn damaged(request: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut flipped = request.to_vec();
    for at in (0..flipped.len()).step_by(3) {
        flipped[at] ^= 0xa5;
    }
    // Field 1, embedded in itself as deep as it gets.
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        let inner = nested.len();
        if inner > 100_000 {
            break;
        }
        nested = [&[10][..], &frame::with_length(&nested)].concat();
    }
    let oversized = vec![1; 300_000];
    vec![
        ("nothing", frame::with_length(&[])),
        ("noise", frame::with_length(&[0xff; 200])),
        ("zeros", frame::with_length(&[0; 200])),
        ("cut short", frame::with_length(&request[..request.len() / 2])),
        ("flipped", frame::with_length(&flipped)),
        ("nested", frame::with_length(&nested)),
        ("a group that does not end", frame::with_length(&[0x0b; 1000])),
        ("oversized", frame::with_length(&oversized)),
        ("4 GB announced", vec![0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3]),
        ("a length that does not end", vec![0xff; 40]),
        // Less than the window of a stream: a peer that waits for more room than there is waits
        // forever.
        ("no frame at all", vec![1; 200_000]),
    ]
}

async fn send(stream: &mut SubstreamBox, bytes: &[u8]) {
    // The relay may have had enough before all is sent.
    let _ = stream.write_all(bytes).await;
    let _ = stream.close().await;
}

// Promise: P24 - Damaged, nested and oversized frames on every protocol stop nothing, within 47
//   MiB.
#[tokio::test]
async fn damaged_and_oversized_frames_on_every_protocol_hurt_nobody() {
    let mut relay = Relay::start(&[]);
    let memory = relay.watch();
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        for (name, request) in requests() {
            for (what, bytes) in damaged(&request) {
                let raw =
                    Raw::connect(relay.address(false), multiplexer, &[gossip::PROTOCOL]).await;
                let mut stream = raw.open(name).await.unwrap_or_else(|| panic!("{name}"));
                send(&mut stream, &bytes).await;
                if what.contains("4 GB") && name != IDENTIFY_PUSH {
                    assert!(read(&mut stream).await.is_none(), "{name}");
                }
                assert!(relay.is_running(), "{name}, {what}");
            }
            serves(relay.address(false), TOPIC).await;
        }
    }
    memory.stayed_inside("damaged frames");
}

// Promise: P24 - Damaged answers to requests of the relay stop nothing.
#[tokio::test]
async fn damaged_answers_to_what_the_relay_asks_hurt_nobody() {
    let mut relay = Relay::start(&[]);
    let memory = relay.watch();
    for (what, bytes) in damaged(&requests()[7].1) {
        // The relay asks for the peer's identity as soon as it connects.
        let mut raw =
            Raw::connect(relay.address(false), Multiplexer::Yamux, &[IDENTIFY, PING]).await;
        for _ in 0..2 {
            let (_, mut stream) = raw.accepted().await.unwrap();
            send(&mut stream, &bytes).await;
        }
        assert!(relay.is_running(), "{what}");
    }
    serves(relay.address(false), TOPIC).await;
    memory.stayed_inside("damaged answers");
}

// Promise: P24 - A gossip peer is ignored after its 11th damaged message.
#[tokio::test]
async fn a_gossip_peer_that_sends_damaged_messages_is_heard_no_more() {
    let relay = Relay::start(&[]);
    let topic = "/waku/2/rs/0/1";
    let mut peer = GossipPeer::connect(relay.address(false), &[topic]).await;
    // Frames that are whole, with messages in them that are none.
    for number in 0..50_u8 {
        let publish =
            Publish { topic: topic.into(), data: vec![0xff, number].into(), signed: false };
        assert!(peer.send_rpc(&Rpc { publish: vec![publish], ..Rpc::default() }).await);
    }
    let fine = message(TOPIC, b"too late");
    assert!(peer.publish(topic, &fine).await);
    relay.reaches("thimble_relay_gossip_rejected_total", 11).await;
    relay
        .reaches(
            "thimble_relay_gossip_rejected_total",
            relay.metric("thimble_relay_gossip_rejected_total"),
        )
        .await;
    assert_eq!(
        relay.metric("thimble_relay_gossip_rejected_total"),
        11,
        "further ones are not looked at"
    );
    assert_eq!(relay.metric("thimble_relay_messages_total{source=\"relay\"}"), 0);
    serves(relay.address(false), TOPIC).await;
}
