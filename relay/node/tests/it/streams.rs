//! Streams that are opened and not used as they should be: the relay stays inside its memory, and
//! others get theirs.

use std::time::Duration;

use futures::{AsyncWriteExt, future::join_all};
use libp2p::core::muxing::SubstreamBox;
use protocol::{filter, frame, light_push, metadata, peer_exchange, store};

use crate::{
    harness::Relay,
    peer::{Client, TIMEOUT, message, read, serves},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/streams/proto";

/// Every protocol with a request and a reply.
const REQUESTS: [&str; 6] = [
    light_push::PROTOCOL,
    light_push::PROTOCOL_V2,
    filter::SUBSCRIBE_PROTOCOL,
    store::PROTOCOL,
    metadata::PROTOCOL,
    peer_exchange::PROTOCOL,
];

async fn connections(relay: &Relay, count: usize, multiplexer: Multiplexer) -> Vec<Raw> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Raw::connect(relay.address(false), multiplexer, &[]).await);
    }
    all
}

/// As many streams of a connection as the relay takes, of which each has sent `bytes`.
async fn streams(raw: &Raw, count: usize, bytes: &[u8]) -> Vec<SubstreamBox> {
    let mut all = Vec::new();
    for number in 0..count {
        let Some(mut stream) = raw.open(REQUESTS[number % REQUESTS.len()]).await else { break };
        // It may be reset already.
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        all.push(stream);
    }
    all
}

// Promise: P24 - Idle streams give way, and each connection has its share of streams.
#[tokio::test]
async fn streams_kept_idle_by_some_leave_streams_for_others() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let hostile = connections(&relay, 12, Multiplexer::Yamux).await;
    let held = join_all(hostile.iter().map(|raw| streams(raw, 100, &[]))).await;
    assert!(held.iter().map(Vec::len).sum::<usize>() > 300);
    for _ in 0..3 {
        serves(relay.address(false), TOPIC).await;
    }
    drop(held);
    memory.stayed_inside("idle streams");
}

// Promise: P24 - Unfinished requests leave streams to others.
#[tokio::test]
async fn requests_that_are_begun_and_not_finished_leave_streams_for_others() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let hostile = connections(&relay, 12, Multiplexer::Yamux).await;
    // The first byte of a length of two.
    let held = join_all(hostile.iter().map(|raw| streams(raw, 100, &[0x80]))).await;
    for _ in 0..3 {
        serves(relay.address(false), TOPIC).await;
    }
    drop(held);
    memory.stayed_inside("unfinished requests");
}

// Promise: P24 - Streams without a protocol use next to no memory.
#[tokio::test]
async fn streams_for_which_no_protocol_is_agreed_on_cost_next_to_nothing() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let hostile = connections(&relay, 90, Multiplexer::Yamux).await;
    let mut held = Vec::new();
    for raw in &hostile {
        for _ in 0..250 {
            let Some(mut stream) = raw.open_bare().await else { break };
            // A length, and nothing of the line that it announces.
            let _ = stream.write_all(&[19]).await;
            let _ = stream.flush().await;
            held.push(stream);
        }
    }
    serves(relay.address(false), TOPIC).await;
    memory.stayed_inside("streams without a protocol");
}

// Promise: P24 - Bytes that are sent and not read are bounded over all connections.
#[tokio::test]
async fn what_is_sent_and_not_read_is_bounded_over_all_connections() {
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        let relay = Relay::start(&[]);
        let mut client = Client::connect(relay.address(false)).await;
        for number in 0..25_u8 {
            let large = message(TOPIC, &[number; 140_000]);
            assert_eq!(client.push(&large).await.unwrap().status.code(), 200);
        }
        let query =
            store::Request { include_data: true, limit: Some(100), ..store::Request::default() };
        let query = frame::with_length(&query.encode());
        let memory = relay.watch();
        let hostile = connections(&relay, 60, multiplexer).await;
        // Two streams of each: a reply that is not read, and as much as the multiplexer lets
        // through after the request, until the relay closes the connection or reads no
        // further.
        let sending = hostile.iter().map(async |raw| {
            let mut streams = Vec::new();
            for _ in 0..2 {
                let opening = tokio::time::timeout(TIMEOUT / 30, raw.open(store::PROTOCOL)).await;
                let Ok(Some(mut stream)) = opening else { break };
                let sending = async {
                    stream.write_all(&query).await?;
                    stream.write_all(&vec![1; 1 << 20]).await?;
                    stream.flush().await
                };
                let _ = tokio::time::timeout(Duration::from_millis(500), sending).await;
                streams.push(stream);
            }
            streams
        });
        let held = join_all(sending).await;
        serves(relay.address(false), "/test/1/meanwhile/proto").await;
        drop(held);
        memory.stayed_inside(&format!("unread bytes of {multiplexer:?}"));
    }
}

// Promise: P24 - Half-closed streams are answered.
#[tokio::test]
async fn half_closed_streams_are_answered() {
    let relay = Relay::start(&[]);
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        for name in REQUESTS {
            // A request, though a damaged one, and the end of this side's data.
            let raw = Raw::connect(relay.address(false), multiplexer, &[]).await;
            let mut stream = raw.open(name).await.unwrap();
            stream.write_all(&frame::with_length(&[0xff; 20])).await.unwrap();
            stream.close().await.unwrap();
            // Invalid metadata is not answered: the connection ends.
            assert_eq!(read(&mut stream).await.is_some(), name != metadata::PROTOCOL, "{name}");
        }
        let raw = Raw::connect(relay.address(false), multiplexer, &[]).await;
        for name in REQUESTS {
            // The end without a request, and within one.
            for begun in [&[][..], &[0x80], &[200, 1, 7]] {
                let mut stream = raw.open(name).await.unwrap();
                stream.write_all(begun).await.unwrap();
                stream.close().await.unwrap();
                assert!(read(&mut stream).await.is_none(), "{name}");
            }
        }
        assert!(!raw.is_closed());
    }
    serves(relay.address(false), TOPIC).await;
}

// Promise: P24 - Reset streams use no memory.
#[tokio::test]
async fn streams_that_are_reset_cost_nothing() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    for multiplexer in [Multiplexer::Yamux, Multiplexer::Mplex] {
        let raw = Raw::connect(relay.address(false), multiplexer, &[]).await;
        for round in 0..40 {
            for name in REQUESTS {
                let mut stream = raw.open(name).await.unwrap();
                if round % 2 == 0 {
                    stream.write_all(&[200, 1, 7]).await.unwrap();
                    stream.flush().await.unwrap();
                }
                drop(stream);
            }
        }
        assert!(!raw.is_closed());
    }
    serves(relay.address(false), TOPIC).await;
    memory.stayed_inside("streams that are reset");
}
