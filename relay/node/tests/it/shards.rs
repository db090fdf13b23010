//! Shards and topics that clients of REST subscribe to while a relay runs, and over its restarts.

use std::fs;

use protocol::{
    gossip::Rpc,
    metadata::{self, Metadata},
    record::NodeRecord,
};
use serde_json::json;
use testing::until_async;

use crate::{
    gossip::GossipPeer,
    harness::Relay,
    http::{Answer, get, get_raw, send_json},
    peer::{Client, message},
};

const CONFIGURED: &str = "/waku/2/rs/0/0";
const SHARD: &str = "/waku/2/rs/0/700";
const CONTENT_TOPIC: &str = "/test/1/shards/proto";
const SUBSCRIPTIONS: &str = "/relay/v1/subscriptions";
const AUTO: &str = "/relay/v1/auto/subscriptions";

fn change(relay: &Relay, method: &str, path: &str, topics: &[&str]) -> Answer {
    send_json(&relay.http, method, path, &json!(topics))
}

fn status(relay: &Relay, path: &str) -> u16 {
    get_raw(&relay.http, path).split(' ').nth(1).unwrap().parse().unwrap()
}

fn messages(topic: &str) -> String {
    format!("/relay/v1/messages/{topic}")
}

/// The shards by the protocol for it.
async fn in_metadata(relay: &Relay) -> Vec<u16> {
    let mut client = Client::connect(relay.address(false)).await;
    let own = Metadata { cluster: Some(0), shards: vec![0] };
    let reply = client.request(metadata::PROTOCOL, &own.encode()).await.unwrap();
    Metadata::decode(reply).unwrap().shards
}

fn record(relay: &Relay) -> NodeRecord {
    get(&relay.http, "/info").json()["enrUri"].as_str().unwrap().parse().unwrap()
}

/// Waits until the record names these shards; it follows in a task of its own.
async fn named_in_record(relay: &Relay, shards: &[u16]) -> NodeRecord {
    until_async("the record names the shards", async || {
        record(relay).shards.is_some_and(|named| named.shards() == shards)
    })
    .await;
    record(relay)
}

/// What a peer hears when the relay joins a shard, or leaves it.
fn says(rpc: &Rpc, topic: &str, joins: bool) -> bool {
    rpc.subscriptions.iter().any(|one| one.topic.as_str() == topic && one.subscribe == joins)
}

// Promise: P23 - A shard is served while REST clients subscribe to it, and the record follows.
#[tokio::test]
async fn a_shard_is_served_while_clients_subscribe_to_it() {
    let relay = Relay::start(&["--shard", "0"]);
    let mut peer = GossipPeer::connect(relay.address(false), &[CONFIGURED, SHARD]).await;
    let before = named_in_record(&relay, &[0]).await;
    assert_eq!(status(&relay, &messages(SHARD)), 404);
    assert_eq!(change(&relay, "POST", SUBSCRIPTIONS, &[SHARD]).status, 200);
    let (mut joined, mut grafted) = (false, false);
    let heard = peer.wait_for(|rpc| {
        joined |= says(rpc, SHARD, true);
        grafted |= rpc.graft.iter().any(|topic| topic.as_str() == SHARD);
        (joined && grafted).then_some(())
    });
    assert!(heard.await.is_some(), "the relay closed the connection");
    assert_eq!(in_metadata(&relay).await, [0, 700]);
    let after = named_in_record(&relay, &[0, 700]).await;
    assert!(after.sequence > before.sequence && after.public_key == before.public_key);
    assert_eq!(after.tcp, before.tcp);

    let sent = message(CONTENT_TOPIC, b"heard");
    assert!(peer.publish(SHARD, &sent).await);
    until_async("the message waits", async || {
        get_raw(&relay.http, &messages(SHARD)).contains("aGVhcmQ=")
    })
    .await;

    assert_eq!(change(&relay, "DELETE", SUBSCRIPTIONS, &[SHARD]).status, 200);
    let left = peer.wait_for(|rpc| says(rpc, SHARD, false).then_some(()));
    assert!(left.await.is_some(), "the relay closed the connection");
    assert_eq!(in_metadata(&relay).await, [0]);
    named_in_record(&relay, &[0]).await;
    assert_eq!(status(&relay, &messages(SHARD)), 404);
    let push = json!({ "payload": "", "contentTopic": CONTENT_TOPIC });
    let refused = send_json(&relay.http, "POST", &messages(SHARD), &push);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("does not serve"), "{}", refused.text());
    // A content topic keeps its shard, also when the shard itself is no longer subscribed to.
    let shard = u16::from(shard_of(CONTENT_TOPIC));
    let named = format!("/waku/2/rs/0/{shard}");
    assert_eq!(change(&relay, "POST", AUTO, &[CONTENT_TOPIC]).status, 200);
    assert_eq!(change(&relay, "POST", SUBSCRIPTIONS, &[&named]).status, 200);
    assert_eq!(change(&relay, "DELETE", SUBSCRIPTIONS, &[&named]).status, 200);
    assert!(in_metadata(&relay).await.contains(&shard));
}

/// The shard of a content topic, of eight.
fn shard_of(content_topic: &str) -> u8 {
    let topic = protocol::ContentTopic::parse(content_topic).unwrap();
    let shard = protocol::autoshard(&topic, std::num::NonZeroU16::new(8).unwrap());
    u8::try_from(shard).unwrap()
}

#[tokio::test]
async fn nodes_that_subscribe_later_relay_to_each_other() {
    let here = Relay::start(&["--shard", "0"]);
    let there = Relay::start(&["--shard", "0", "--peer", here.address(false)]);
    for relay in [&here, &there] {
        assert_eq!(change(relay, "POST", SUBSCRIPTIONS, &[SHARD]).status, 200);
    }
    let mesh = format!("libp2p_gossipsub_peers_per_topic_mesh{{topic=\"{SHARD}\"}}");
    for relay in [&here, &there] {
        relay.reaches(&mesh, 1).await;
    }
    let push = json!({ "payload": "YWNyb3Nz", "contentTopic": CONTENT_TOPIC });
    assert_eq!(send_json(&there.http, "POST", &messages(SHARD), &push).status, 200);
    until_async("the message came across", async || {
        get_raw(&here.http, &messages(SHARD)).contains("YWNyb3Nz")
    })
    .await;
}

// Promise: P23 - Subscriptions of REST clients that were answered survive a killed relay.
#[tokio::test]
async fn subscriptions_that_were_answered_are_there_after_the_relay_was_killed() {
    let config = format!("content_topics = [\"{CONTENT_TOPIC}\"]\n");
    let mut relay = Relay::start_after("", &config, &["--shard", "0"]);
    let auto = |topic: &str| format!("/relay/v1/auto/messages/{topic}");
    let added = "/test/1/added/proto";
    let filter = json!({ "requestId": "r", "pubsubTopic": CONFIGURED, "contentFilters": [added] });
    // The configured ones are subscribed at the start.
    assert_eq!(status(&relay, &messages(CONFIGURED)), 200);
    assert_eq!(status(&relay, &auto(CONTENT_TOPIC)), 200);
    assert_eq!(change(&relay, "POST", SUBSCRIPTIONS, &[SHARD]).status, 200);
    assert_eq!(change(&relay, "POST", AUTO, &[added]).status, 200);
    let subscribed = send_json(&relay.http, "POST", "/filter/v2/subscriptions", &filter);
    assert_eq!(subscribed.status, 200, "{}", subscribed.text());
    // Configured ones can be left until the next start.
    assert_eq!(change(&relay, "DELETE", SUBSCRIPTIONS, &[CONFIGURED]).status, 200);
    assert_eq!(status(&relay, &messages(CONFIGURED)), 404);
    let shards = {
        let mut shards = vec![0, 700, shard_of(CONTENT_TOPIC).into(), shard_of(added).into()];
        shards.sort_unstable();
        shards.dedup();
        shards
    };
    relay.kill_and_start();
    let all = [messages(CONFIGURED), messages(SHARD), auto(CONTENT_TOPIC), auto(added)];
    for path in all.iter().chain([&format!("/filter/v2/messages/{added}")]) {
        assert_eq!(status(&relay, path), 200, "{path}");
    }
    assert_eq!(in_metadata(&relay).await, shards);
    named_in_record(&relay, &shards).await;
    // What was ended stays ended, unless it is configured.
    assert_eq!(change(&relay, "DELETE", SUBSCRIPTIONS, &[SHARD, CONFIGURED]).status, 200);
    relay.kill_and_start();
    assert_eq!(status(&relay, &messages(SHARD)), 404);
    assert_eq!(status(&relay, &messages(CONFIGURED)), 200);
    // A damaged file is set aside.
    relay.restart_after(|data| fs::write(data.join("subscriptions.json"), "{").unwrap());
    assert_eq!(status(&relay, &auto(added)), 404);
    assert_eq!(status(&relay, &messages(CONFIGURED)), 200);
    assert!(relay.log().contains("subscriptions.damaged"), "{}", relay.log());
    relay.restart_after(|data| {
        assert_eq!(fs::read(data.join("subscriptions.damaged")).unwrap(), b"{");
    });
}

#[tokio::test]
async fn subscription_that_cannot_be_kept_over_a_restart_is_refused_and_changes_nothing() {
    let mut relay = Relay::start(&["--shard", "0"]);
    // The file cannot be written where a folder has the name of its scratch file.
    relay.restart_after(|data| fs::create_dir(data.join(".subscriptions.json.new")).unwrap());
    let refused = change(&relay, "POST", SUBSCRIPTIONS, &[SHARD]);
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("subscriptions.json"), "{}", refused.text());
    assert_eq!(status(&relay, &messages(SHARD)), 404);
    assert_eq!(in_metadata(&relay).await, [0]);
    relay.restart_after(|data| fs::remove_dir(data.join(".subscriptions.json.new")).unwrap());
    assert_eq!(change(&relay, "POST", SUBSCRIPTIONS, &[SHARD]).status, 200);
}

#[test]
fn topics_are_bounded_by_memory_and_shards_by_their_number() {
    let relay = Relay::start(&[]);
    let topics = |from: usize, count: usize| -> Vec<String> {
        (from..from + count).map(|number| format!("/a/1/n{number:03}/proto")).collect()
    };
    let post = |topics: &[String]| send_json(&relay.http, "POST", AUTO, &json!(topics));
    assert_eq!(post(&topics(0, 100)).status, 200, "more than 64");
    let refused = post(&topics(100, 200));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("http.cache_bytes is 131072"), "{}", refused.text());
    assert_eq!(status(&relay, "/relay/v1/auto/messages//a/1/n100/proto"), 404, "none of them");
    assert_eq!(relay.metric("thimble_relay_http_subscriptions"), 108);
    let cap = relay.metric("thimble_relay_pool_cap_bytes{pool=\"http_cache\"}");
    let used = || relay.metric("thimble_relay_pool_used_bytes{pool=\"http_cache\"}");
    testing::eventually("the topics are counted", || (used() > 100 * 320).then_some(()));
    assert!(used() <= cap);
    // Eight shards are configured, and sixteen may be served at this size.
    let shards: Vec<String> = (100..109).map(|shard| format!("/waku/2/rs/0/{shard}")).collect();
    let refused = send_json(&relay.http, "POST", SUBSCRIPTIONS, &json!(shards));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("gossip.topics is 16"), "{}", refused.text());
    let fewer = send_json(&relay.http, "POST", SUBSCRIPTIONS, &json!(shards[..8]));
    assert_eq!(fewer.status, 200, "{}", fewer.text());
}

#[tokio::test]
async fn light_clients_push_to_a_shard_from_its_subscription_on() {
    let relay = Relay::start(&["--shard", "700"]);
    let mut client = Client::connect(relay.address(false)).await;
    let sent = message(CONTENT_TOPIC, b"pushed");
    let refused = client.push(&sent).await.unwrap();
    assert_eq!(refused.status.code(), 421, "{refused:?}");
    assert_eq!(change(&relay, "POST", AUTO, &[CONTENT_TOPIC]).status, 200);
    assert_eq!(client.push(&sent).await.unwrap().status.code(), 200);
    let path = format!("/relay/v1/auto/messages/{CONTENT_TOPIC}");
    assert!(get_raw(&relay.http, &path).contains("cHVzaGVk"));
}
