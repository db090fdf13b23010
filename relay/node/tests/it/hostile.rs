//! Attacks of unknown peers.

use futures::AsyncWriteExt;
use protocol::{StatusCode, WakuMessage, filter, frame, gossip, light_push, metadata, store};

use crate::{
    harness::Relay,
    peer::{Client, message, read},
};

const ALL: [&str; 5] = [
    light_push::PROTOCOL,
    light_push::PROTOCOL_V2,
    filter::SUBSCRIBE_PROTOCOL,
    store::PROTOCOL,
    metadata::PROTOCOL,
];

// Promise: P24 - A length of 4 GB ends the connection.
#[tokio::test]
async fn a_length_of_four_gigabytes_ends_the_connection() {
    let mut relay = Relay::start(&[]);
    for name in ALL.into_iter().chain([gossip::PROTOCOL]) {
        let mut client = Client::connect(relay.address(false)).await;
        let mut stream = client.open(name).await.unwrap();
        stream.write_all(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3]).await.unwrap();
        stream.flush().await.unwrap();
        assert!(read(&mut stream).await.is_none(), "{name}");
        assert!(relay.is_running());
    }
}

// Promise: P24 - Abandoned streams use no memory.
#[tokio::test]
async fn streams_that_are_opened_and_abandoned_cost_nothing() {
    let mut relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    for _ in 0..50 {
        for name in ALL {
            let mut stream = client.open(name).await.unwrap();
            stream.close().await.unwrap();
        }
    }
    assert!(client.is_connected().await && relay.is_running());
}

// Promise: P24 - Damaged requests get an error.
#[tokio::test]
async fn damaged_requests_are_answered_with_an_error_text() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    let reply = client.request(light_push::PROTOCOL, &[0xff; 20]).await.unwrap();
    let reply = light_push::Reply::decode(reply).unwrap();
    assert_eq!(reply.status, StatusCode::BadRequest);
    assert!(reply.status_text.is_some());
    let reply = client.request(filter::SUBSCRIBE_PROTOCOL, &[0xff; 20]).await.unwrap();
    assert_eq!(filter::Reply::decode(reply).unwrap().status, StatusCode::BadRequest);
    let reply = client.request(store::PROTOCOL, &[0xff; 20]).await.unwrap();
    assert_eq!(store::Reply::decode(reply).unwrap().status, StatusCode::BadRequest);
}

// Promise: P24 - Refusals have the status code that clients know.
#[tokio::test]
async fn refusals_have_the_code_that_clients_know() {
    let relay = Relay::start(&["--shard", "1"]);
    let mut client = Client::connect(relay.address(false)).await;
    let push = async |client: &mut Client, topic: Option<&str>, message: &[u8]| {
        let request = light_push::Request {
            request_id: "one".into(),
            pubsub_topic: topic.map(Into::into),
            message: message.to_vec().into(),
        };
        let reply = client.request(light_push::PROTOCOL, &request.encode()).await.unwrap();
        let reply = light_push::Reply::decode(reply).unwrap();
        assert_eq!(reply.request_id, "one".into());
        reply.status
    };
    let fine = message("/test/1/refused/proto", b"fine").encode();
    let served = Some("/waku/2/rs/0/1");
    assert_eq!(push(&mut client, served, &fine).await, StatusCode::Ok);
    for other in ["/waku/2/rs/0/2", "/waku/2/rs/1/1", "/waku/2/default-waku/proto"] {
        let status = push(&mut client, Some(other), &fine).await;
        assert_eq!(status, StatusCode::UnsupportedPubsubTopic, "{other}");
    }
    let large = message("/test/1/refused/proto", &vec![1; 153_600]).encode();
    assert_eq!(push(&mut client, served, &large).await, StatusCode::PayloadTooLarge);
    assert_eq!(push(&mut client, served, &[0xff; 9]).await, StatusCode::InvalidMessage);
    let untitled = WakuMessage::default().encode();
    assert_eq!(push(&mut client, served, &untitled).await, StatusCode::InvalidMessage);
}

// Promise: P24 - A peer has at most 1,000 filter criteria.
#[tokio::test]
async fn a_thousand_subscriptions_are_taken_and_no_more() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    for batch in 0..10 {
        let topics: Vec<String> =
            (0..100).map(|number| format!("/test/1/{batch}-{number}/proto")).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        assert_eq!(client.filter(filter::Action::Subscribe, &topics).await, 200);
    }
    assert_eq!(client.filter(filter::Action::Subscribe, &["/test/1/more/proto"]).await, 503);
}

// Promise: P24 - A frame that never ends delays no other peer.
#[tokio::test]
async fn a_frame_that_never_ends_holds_nobody_up() {
    let mut relay = Relay::start(&[]);
    let mut slow = Client::connect(relay.address(false)).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = slow.open(light_push::PROTOCOL).await.unwrap();
        stream.write_all(&frame::encode_length(150_000)).await.unwrap();
        stream.write_all(&[1; 100]).await.unwrap();
        stream.flush().await.unwrap();
        streams.push(stream);
    }
    let mut other = Client::connect(relay.address(false)).await;
    for _ in 0..20 {
        let pushed = other.push(&message("/test/1/slow/proto", &[2; 100_000])).await.unwrap();
        assert_eq!(pushed.status, StatusCode::Ok);
    }
    assert!(relay.is_running());
}
