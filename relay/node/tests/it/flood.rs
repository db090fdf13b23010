//! Gossip peers that send too much, promise too much, ask for too much or read nothing; filter
//! receivers that read nothing; and messages of machines whose clocks are wrong.

use std::{
    num::NonZeroU16,
    time::{Duration, Instant},
};

use futures::{AsyncWriteExt, future::join_all};
use protocol::{
    ContentTopic, Text, autoshard, filter, frame,
    gossip::{IHave, MessageId, Rpc},
    store,
};
use testing::until_async;

use crate::{
    gossip::{GossipPeer, published},
    harness::Relay,
    peer::{Client, TIMEOUT, message, read, serves},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/flood/proto";
const HOUR_NS: i64 = 3_600_000_000_000;

/// The pubsub topic of [`TOPIC`], of cluster 0 with 8 shards.
fn pubsub_topic() -> String {
    let topic = ContentTopic::parse(TOPIC).unwrap();
    format!("/waku/2/rs/0/{}", autoshard(&topic, NonZeroU16::new(8).unwrap()))
}

/// A peer that asks for a place in the mesh of the topic.
async fn asking(relay: &Relay) -> GossipPeer {
    let mut peer = GossipPeer::connect(relay.address(false), &[&pubsub_topic()]).await;
    peer.graft(&pubsub_topic()).await;
    peer
}

/// A peer that has one.
async fn in_mesh(relay: &Relay) -> GossipPeer {
    let mesh = format!("libp2p_gossipsub_peers_per_topic_mesh{{topic=\"{}\"}}", pubsub_topic());
    let before = relay.metric(&mesh);
    let peer = asking(relay).await;
    relay.reaches(&mesh, before + 1).await;
    peer
}

async fn stored(client: &mut Client) -> Vec<Vec<u8>> {
    let request = store::Request {
        request_id: Text::from("all"),
        include_data: true,
        content_topics: vec![TOPIC.into()],
        forward: true,
        limit: Some(100),
        ..store::Request::default()
    };
    let entries = client.query(&request).await.entries;
    entries.iter().map(|entry| entry.message.as_ref().unwrap().to_vec()).collect()
}

// Promise: P23 - Messages with timestamps off by one hour are relayed, counted and not stored.
#[tokio::test]
async fn messages_of_wrong_clocks_are_relayed_and_counted_and_not_stored() {
    let relay = Relay::start(&[]);
    let mut from = in_mesh(&relay).await;
    let mut to = in_mesh(&relay).await;
    let mut client = Client::connect(relay.address(false)).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(filter::Action::Subscribe, &[TOPIC]).await, 200);
    for (payload, off) in [(b"an hour late", -HOUR_NS), (b"an hour soon", HOUR_NS)] {
        for by_gossip in [true, false] {
            let mut one = message(TOPIC, payload);
            one.timestamp = one.timestamp.map(|now| now + off);
            if by_gossip {
                assert!(from.publish(&pubsub_topic(), &one).await);
            } else {
                assert_eq!(client.push(&one).await.unwrap().status.code(), 200);
            }
            to.wait_for_message(&one).await;
            assert_eq!(receiver.pushed().await, one);
        }
    }
    let right = message(TOPIC, b"of now");
    assert!(from.publish(&pubsub_topic(), &right).await);
    assert_eq!(receiver.pushed().await, right);
    assert_eq!(stored(&mut client).await, [right.encode()]);
    assert_eq!(relay.metric("thimble_relay_messages_not_kept_total{reason=\"clock\"}"), 4);
    assert_eq!(relay.metric("thimble_relay_messages_not_kept_total{reason=\"ephemeral\"}"), 0);
}

// Promise: P23 - One message gossiped 100,000 times is delivered once.
#[tokio::test]
async fn the_same_message_a_hundred_thousand_times_is_one_message() {
    const PEERS: usize = 8;
    const FRAMES: usize = 10;
    const COPIES: usize = 1250;
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(filter::Action::Subscribe, &[TOPIC]).await, 200);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(in_mesh(&relay).await);
    }
    let same = message(TOPIC, b"again and again");
    let copies = Rpc { publish: vec![published(&pubsub_topic(), &same); COPIES], ..Rpc::default() };
    let copies = frame::with_length(&copies.encode());
    let flooding = async {
        join_all(peers.iter_mut().map(async |peer| {
            for _ in 0..FRAMES {
                assert!(peer.write(&copies).await, "the relay takes what it has seen before");
            }
        }))
        .await;
    };
    let meanwhile = async {
        for _ in 0..3 {
            serves(relay.address(false), "/test/1/meanwhile/proto").await;
        }
    };
    tokio::join!(flooding, meanwhile);
    let all = (PEERS * FRAMES * COPIES) as u64;
    relay.reaches("thimble_relay_gossip_duplicates_total", all - 1).await;
    assert_eq!(receiver.pushed().await, same);
    let last = message(TOPIC, b"another");
    assert!(peers[0].publish(&pubsub_topic(), &last).await);
    assert_eq!(receiver.pushed().await, last, "no copy was pushed");
    assert_eq!(stored(&mut receiver).await, [same.encode(), last.encode()]);
    memory.stayed_inside("100,000 copies");
}

// Promise: P24 - A peer that offers and never delivers is ignored within seconds.
#[tokio::test]
async fn peer_that_announces_without_delivering_gets_no_more_iwants() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let mut liar = in_mesh(&relay).await;
    let mut honest = in_mesh(&relay).await;
    let topic = pubsub_topic();
    let started = Instant::now();
    let mut asked = 0;
    let mut offered = 0_u64;
    // Until a whole second passes in which nothing that was offered is asked for.
    let mut asked_last = Instant::now();
    while asked_last.elapsed() < Duration::from_millis(2500) {
        let ids = (0..500).map(|_| {
            offered += 1;
            let mut id = [0; 32];
            id[..8].copy_from_slice(&offered.to_le_bytes());
            MessageId(id)
        });
        let offer = Rpc {
            ihave: vec![IHave { topic: topic.as_str().into(), ids: ids.collect() }],
            ..Rpc::default()
        };
        assert!(liar.send_rpc(&offer).await);
        let wanted: usize = liar.drain_received().iter().map(|rpc| rpc.iwant.len()).sum();
        if wanted > 0 {
            asked_last = Instant::now();
        }
        asked += wanted;
        assert!(started.elapsed() < Duration::from_secs(20), "{asked} of {offered} were asked for");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(asked > 0, "at first it is believed");
    assert!(relay.metric("thimble_relay_gossip_broken_promises_total") > 0);
    // 400 ids a heartbeat at most.
    assert!(asked as u64 <= 400 * (started.elapsed().as_secs() + 2), "{asked}");
    let sent = message(TOPIC, b"of an honest peer");
    assert!(honest.publish(&topic, &sent).await);
    serves(relay.address(false), "/test/1/meanwhile/proto").await;
    memory.stayed_inside("broken promises");
}

// Promise: P24 - A peer gets at most `gossip.iwant_ids_per_heartbeat` messages per heartbeat.
#[tokio::test]
async fn peer_that_repeats_iwants_gets_a_bounded_share() {
    const MESSAGES: usize = 60;
    const PEERS: u64 = 6;
    let limits = "[limits.gossip]\niwant_ids_per_heartbeat = 50\nheartbeat_millis = 10000\n";
    let relay = Relay::start_after("", limits, &[]);
    let memory = relay.watch();
    let mut client = Client::connect(relay.address(false)).await;
    let mut greedy: Vec<GossipPeer> = Vec::new();
    for _ in 0..PEERS {
        greedy.push(GossipPeer::connect(relay.address(false), &[]).await);
    }
    let mut ids = Vec::new();
    for number in 0..MESSAGES {
        let one = message(TOPIC, &[number as u8; 100_000]);
        assert_eq!(client.push(&one).await.unwrap().status.code(), 200);
        ids.push(protocol::gossip::message_id(&one.encode()));
    }
    let asking = Rpc { iwant: ids, ..Rpc::default() };
    let started = Instant::now();
    for _ in 0..50 {
        for peer in &mut greedy {
            assert!(peer.send_rpc(&asking).await);
        }
    }
    serves(relay.address(false), TOPIC).await;
    relay.reaches("thimble_relay_gossip_fetched_total", 50 * PEERS).await;
    // The last request was received before this is answered.
    for peer in &mut greedy {
        let alive = message(TOPIC, b"alive");
        assert!(peer.publish(&pubsub_topic(), &alive).await);
    }
    relay.reaches("thimble_relay_messages_total{source=\"relay\"}", 1).await;
    let fetched = relay.metric("thimble_relay_gossip_fetched_total");
    let heartbeats = started.elapsed().as_secs() / 10 + 2;
    assert!(fetched <= 50 * PEERS * heartbeats, "{fetched} in {heartbeats} heartbeats");
    memory.stayed_inside("an IWANT storm");
}

// Promise: P24 - Gossip and filter peers that never read delay no other peer.
#[tokio::test]
async fn peer_that_never_reads_does_not_delay_others() {
    let relay = Relay::start(&[]);
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(filter::Action::Subscribe, &[TOPIC]).await, 200);
    let mut reader = in_mesh(&relay).await;
    // Relay peers, and filter receivers of the same topic.
    let mut silent = Vec::new();
    for _ in 0..6 {
        let peer = in_mesh(&relay).await;
        peer.raw.freeze();
        silent.push(peer);
    }
    let mut deaf = Vec::new();
    for _ in 0..6 {
        let raw =
            Raw::connect(relay.address(false), Multiplexer::Yamux, &[filter::PUSH_PROTOCOL]).await;
        let request = filter::Request {
            request_id: Text::from("a request"),
            action: filter::Action::Subscribe,
            pubsub_topic: None,
            content_topics: vec![TOPIC.into()],
        };
        let mut stream = raw.open(filter::SUBSCRIBE_PROTOCOL).await.unwrap();
        stream.write_all(&frame::with_length(&request.encode())).await.unwrap();
        stream.flush().await.unwrap();
        let reply = filter::Reply::decode(read(&mut stream).await.unwrap()).unwrap();
        assert_eq!(reply.status.code(), 200);
        raw.freeze();
        deaf.push(raw);
    }
    let memory = relay.watch();
    let mut sender = Client::connect(relay.address(false)).await;
    // More than the sockets of all peers that do not read can hold.
    for number in 0..120_u8 {
        let one = message(TOPIC, &[number; 140_000]);
        let reply = sender.push(&one).await.unwrap();
        assert_eq!(reply.status.code(), 200, "{number}: {reply:?}");
        assert_eq!(receiver.pushed().await, one);
        reader.wait_for_message(&one).await;
    }
    serves(relay.address(false), "/test/1/meanwhile/proto").await;
    memory.stayed_inside("peers that never read");
}

// Promise: P24 - A gossip peer without a common shard loses its place to a new peer.
#[tokio::test]
async fn a_place_in_the_gossip_is_given_to_who_shares_a_shard() {
    // The places of 64 MiB, and heartbeats that come soon.
    let limits = "[limits.gossip]\nheartbeat_millis = 100\n";
    let relay = Relay::start_after("", limits, &[]);
    let mut strangers = Vec::new();
    for _ in 0..24 {
        strangers.push(GossipPeer::connect(relay.address(false), &["/waku/2/rs/0/999"]).await);
    }
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(asking(&relay).await);
    }
    let mut sender = Client::connect(relay.address(false)).await;
    // A stranger gives way when it has had ten heartbeats to subscribe, one at each.
    for peer in &mut peers {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let sent = message(TOPIC, b"for who shares the shard");
            assert_eq!(sender.push(&sent).await.unwrap().status.code(), 200);
            let soon = Duration::from_millis(300);
            if tokio::time::timeout(soon, peer.wait_for_message(&sent)).await.is_ok() {
                break;
            }
            assert!(Instant::now() < deadline, "a peer that shares the shard got no place");
        }
    }
    // Which a stranger may see after the peer in its place got the message.
    let closed = || strangers.iter().filter(|peer| peer.raw.is_closed()).count();
    until_async("four strangers were closed", async || closed() >= 4).await;
    assert_eq!(closed(), 4);
    // A peer that shares a shard keeps its place.
    let another = GossipPeer::connect(relay.address(false), &["/waku/2/rs/0/999"]).await;
    assert!(peers.iter().all(|peer| !peer.raw.is_closed()) && !another.raw.is_closed());
}

// Promise: P24 - 1,000 filter criteria of one peer delay no other peer.
#[tokio::test]
async fn a_thousand_subscriptions_of_one_peer_hold_nobody_up() {
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let mut many = Client::connect(relay.address(false)).await;
    for batch in 0..10 {
        let topics: Vec<String> =
            (0..100).map(|number| format!("/test/1/{batch}-{number}/proto")).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        assert_eq!(many.filter(filter::Action::Subscribe, &topics).await, 200);
    }
    serves(relay.address(false), TOPIC).await;
    let mut sender = Client::connect(relay.address(false)).await;
    for number in 0..100 {
        let one = message(&format!("/test/1/{}-{number}/proto", number % 10), b"one of many");
        assert_eq!(sender.push(&one).await.unwrap().status.code(), 200);
        assert_eq!(many.pushed().await, one);
    }
    memory.stayed_inside("1,000 subscriptions");
}
