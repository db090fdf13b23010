//! More large messages at once than the relay has room for, and a relay that gets no processor for
//! a while: every push is answered, and no connection is closed.

use std::time::Duration;

use futures::{AsyncWriteExt, future::join_all};
use libp2p::core::muxing::SubstreamBox;
use protocol::{
    Text, frame,
    light_push::{self, Reply, ReplyV2},
};

use crate::{
    harness::Relay,
    peer::{message, read, serves},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/overload/proto";
const LARGE_BYTES: usize = 140_000;
/// Fewer than a connection has streams, and several times what is admitted at 64 MiB.
const PUSHES: usize = 100;

/// A push of a large message, in a frame.
fn large_push(number: usize) -> Vec<u8> {
    let message = message(TOPIC, &[number as u8; LARGE_BYTES]);
    let request = light_push::Request {
        request_id: Text::from(format!("push {number}")),
        pubsub_topic: None,
        message: message.encode().into(),
    };
    frame::with_length(&request.encode())
}

/// Writes a push and reads its answer: the id and the status.
async fn answered(stream: &mut SubstreamBox, push: &[u8]) -> (String, u32) {
    stream.write_all(push).await.unwrap();
    stream.flush().await.unwrap();
    let reply = Reply::decode(read(stream).await.expect("an answer")).unwrap();
    (reply.request_id.as_str().to_owned(), reply.status.code())
}

// Promise: P24 - Large pushes beyond what is admitted are answered 429, on connections that stay.
#[tokio::test]
async fn every_large_push_of_an_overload_is_answered_and_connections_stay() {
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        let relay = Relay::start(&[]);
        let memory = relay.watch();
        let raw = Raw::connect(relay.address(false), multiplexer, &[]).await;
        let mut streams = Vec::new();
        for _ in 0..PUSHES {
            streams.push(raw.open(light_push::PROTOCOL).await.unwrap());
        }
        let pushing = streams.iter_mut().enumerate().map(async |(number, stream)| {
            let (id, status) = answered(stream, &large_push(number)).await;
            assert_eq!(id, format!("push {number}"));
            status
        });
        let statuses = join_all(pushing).await;
        let count = |status| statuses.iter().filter(|other| **other == status).count();
        let (accepted, busy) = (count(200), count(429));
        println!("{multiplexer:?}: {accepted} accepted, {busy} busy");
        assert_eq!(accepted + busy, PUSHES, "{statuses:?}");
        assert!(accepted >= 10, "{accepted} accepted");
        assert!(!raw.is_closed());
        // The same connection is served afterwards.
        let mut stream = raw.open(light_push::PROTOCOL).await.unwrap();
        assert_eq!(answered(&mut stream, &large_push(0)).await.1, 200);
        serves(relay.address(false), TOPIC).await;
        memory.stayed_inside(&format!("large pushes over {multiplexer:?}"));
    }
}

// Promise: P24 - A relay with a tenth of a processor answers every large push and closes nothing.
#[tokio::test]
async fn relay_with_little_processor_answers_every_large_push_on_open_connections() {
    let relay = Relay::start(&[]);
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(Raw::connect(relay.address(false), Multiplexer::Yamux, &[]).await);
    }
    let throttle = relay.throttle(10);
    // Due at a rate, whatever the answers are: further streams open while others wait.
    let pushing = (0..PUSHES * 2).map(async |number| {
        tokio::time::sleep(Duration::from_millis(10) * number as u32).await;
        let raw = &connections[number % connections.len()];
        let mut stream = raw.open(light_push::PROTOCOL).await.expect("a stream");
        answered(&mut stream, &large_push(number)).await.1
    });
    let statuses = join_all(pushing).await;
    drop(throttle);
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    println!("{accepted} accepted of {}", statuses.len());
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    assert!(accepted > 0);
    assert!(connections.iter().all(|raw| !raw.is_closed()));
}

// Promise: P24 - A stop of the process for 22 s breaks off no push and no connection.
#[tokio::test]
async fn relay_that_was_stopped_for_22_seconds_answers_what_was_under_way() {
    let relay = Relay::start(&[]);
    let raw = Raw::connect(relay.address(false), Multiplexer::Yamux, &[]).await;
    let push = large_push(1);
    let mut begun = Vec::new();
    for _ in 0..4 {
        let mut stream = raw.open(light_push::PROTOCOL).await.unwrap();
        stream.write_all(&push[..LARGE_BYTES / 2]).await.unwrap();
        stream.flush().await.unwrap();
        begun.push(stream);
    }
    relay.reaches("thimble_relay_pool_used_bytes{pool=\"receiving\"}", 4 * 128_000).await;
    relay.stop_for(Duration::from_secs(22)).await;
    for stream in &mut begun {
        let (_, status) = answered(stream, &push[LARGE_BYTES / 2..]).await;
        assert_eq!(status, 200);
    }
    assert!(!raw.is_closed());
}

#[tokio::test]
async fn version_2_of_light_push_reports_a_refusal_for_want_of_room() {
    let relay = Relay::start(&[]);
    let raw = Raw::connect(relay.address(false), Multiplexer::Yamux, &[]).await;
    let mut streams = Vec::new();
    for _ in 0..PUSHES {
        streams.push(raw.open(light_push::PROTOCOL_V2).await.unwrap());
    }
    let pushing = streams.iter_mut().enumerate().map(async |(number, stream)| {
        let request = light_push::RequestV2 {
            request_id: Text::from(format!("push {number}")),
            pubsub_topic: Text::from("/waku/2/rs/0/0"),
            message: message(TOPIC, &[number as u8; LARGE_BYTES]).encode().into(),
        };
        stream.write_all(&frame::with_length(&request.encode())).await.unwrap();
        stream.flush().await.unwrap();
        let reply = ReplyV2::decode(read(stream).await.expect("an answer")).unwrap();
        assert_eq!(reply.request_id.as_str(), format!("push {number}"));
        let info = reply.info.map(|info| info.as_str().to_owned()).unwrap_or_default();
        assert!(reply.is_success || info.contains("messages.admitted_bytes"), "{info}");
    });
    join_all(pushing).await;
    assert!(!raw.is_closed());
}
