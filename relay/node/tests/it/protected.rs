//! Protected shards: messages of clients and of relay peers that are signed, and others.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use protocol::{WakuMessage, signed};
use serde_json::{Value, json};

use crate::{gossip::GossipPeer, harness::Relay, http::post, peer::message};

const TOPIC: &str = "/waku/2/rs/0/1";
const OPEN_TOPIC: &str = "/waku/2/rs/0/2";
const CONTENT_TOPIC: &str = "/test/1/protected/proto";
const SECRET: &str = "5526a8990317c9b7b58d07843d270f9cd1d9aaee129294c1c478abf7261dd9e6";
/// Its public key.
const KEY: &str = "029c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02";

fn signed(mut message: WakuMessage) -> WakuMessage {
    let secret: [u8; 32] = hex::decode(SECRET).unwrap().try_into().unwrap();
    message.meta = Some(signed::sign(&secret, TOPIC, &message).unwrap().to_vec().into());
    message
}

fn pushed(topic: &str, message: &WakuMessage) -> Value {
    let meta = message.meta.as_ref().map(|meta| BASE64.encode(meta)).unwrap_or_default();
    json!({
        "pubsubTopic": topic,
        "message": {
            "payload": BASE64.encode(&message.payload),
            "contentTopic": message.content_topic.as_str(),
            "timestamp": message.timestamp.unwrap(),
            "meta": meta,
        },
    })
}

#[tokio::test]
async fn clients_messages_on_a_protected_shard_are_taken_when_they_are_signed() {
    let node = Relay::start(&["--protected-shard", &format!("1:{KEY}")]);
    let mut peer = GossipPeer::connect(node.address(false), &[TOPIC, OPEN_TOPIC]).await;
    for topic in [TOPIC, OPEN_TOPIC] {
        peer.graft(topic).await;
        let mesh = format!("libp2p_gossipsub_peers_per_topic_mesh{{topic=\"{topic}\"}}");
        node.reaches(&mesh, 1).await;
    }
    let push = |topic: &str, message: &WakuMessage| {
        post(&node.http, "/lightpush/v3/message", &pushed(topic, message))
    };
    let plain = message(CONTENT_TOPIC, b"plain");
    let refused = push(TOPIC, &plain);
    assert_eq!(refused.status, 420, "{}", refused.text());
    assert!(refused.text().contains("not signed by its key"), "{}", refused.text());
    assert_eq!(push(OPEN_TOPIC, &plain).status, 200);
    peer.wait_for_message(&plain).await;

    let good = signed(message(CONTENT_TOPIC, b"signed"));
    let taken = push(TOPIC, &good);
    assert_eq!(taken.status, 200, "{}", taken.text());
    let heard = peer
        .wait_for(|rpc| {
            let of_topic = rpc.publish.iter().find(|one| one.topic.as_str() == TOPIC)?;
            Some(WakuMessage::decode(of_topic.data.clone()).unwrap())
        })
        .await;
    assert_eq!(heard.unwrap().meta, good.meta);
    let outcomes = ["Accept", "Reject"].map(|result| {
        node.metric(&format!("waku_msg_validator_signed_outcome_total{{result=\"{result}\"}}"))
    });
    assert_eq!(outcomes, [1, 1]);
}

#[tokio::test]
async fn peers_unsigned_messages_count_against_them_and_late_ones_do_not() {
    let node = Relay::start(&["--protected-shard", &format!("1:{KEY}")]);
    let mut sender = GossipPeer::connect(node.address(false), &[TOPIC]).await;
    let mut receiver = GossipPeer::connect(node.address(false), &[TOPIC]).await;
    sender.graft(TOPIC).await;
    receiver.graft(TOPIC).await;
    let refused = "waku_msg_validator_signed_outcome_total{result=\"Reject\"}";
    let faults = "libp2p_pubsub_validation_failure_total";

    let mut late = message(CONTENT_TOPIC, b"late");
    late.timestamp = Some(late.timestamp.unwrap() - 301 * 1_000_000_000);
    assert!(sender.publish(TOPIC, &signed(late)).await);
    node.reaches(refused, 1).await;
    assert_eq!(node.metric(faults), 0, "the lateness may be this machine's");
    assert!(sender.publish(TOPIC, &message(CONTENT_TOPIC, b"unsigned")).await);
    node.reaches(refused, 2).await;
    assert_eq!(node.metric(faults), 1);
    // The rejected messages came first: the first that the other peer hears is the signed one.
    let good = signed(message(CONTENT_TOPIC, b"signed"));
    assert!(sender.publish(TOPIC, &good).await);
    let first = receiver.wait_for(|rpc| rpc.publish.first().map(|one| one.data.clone())).await;
    assert_eq!(first.unwrap(), good.encode());
}
