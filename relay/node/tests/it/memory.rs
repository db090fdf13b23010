//! Behaviour of a relay when its process group is small, and when measured memory is near its
//! budget.

use std::process::Command;

use protocol::{filter::Action, store};
use testing::group::Group;

use crate::{
    harness::{Relay, relay},
    http::get,
    peer::{Client, message},
};
use testing::{eventually, until_async};

const MIB: u64 = 1 << 20;
const TOPIC: &str = "/test/1/memory/proto";

/// Thresholds in percent of 64 MiB; an idle relay holds more than 3 % of them and less than 40 %.
fn levels(queries: u64, pushes: u64, reading: u64) -> String {
    format!(
        "[limits.governor]\nshort_percent = 1\nrefuse_queries_percent = {queries}\n\
         refuse_pushes_percent = {pushes}\npause_reading_percent = {reading}\n"
    )
}

// Promise: P24 - A process group capped below 64 MiB is refused at start; one below the budget is
//   warned about.
#[test]
fn a_process_group_below_the_smallest_size_is_refused_and_one_below_the_budget_warned_of() {
    let Some(group) = Group::new() else { return };
    group.cap(48 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{}; exec \"$0\" \"$@\"", group.prelude());
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_thimble-relay"), "run", "--memory", "128MiB"])
        .args(["--listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let smallest = relay_limits::Limits::smallest_bytes();
    assert_eq!(smallest, 64 * MIB);
    for words in ["48 MiB", "128 MiB", "the smallest size that works is 64 MiB", "--memory 64MiB"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.contains(group.directory().to_str().unwrap()), "{text}");

    group.cap(96 * MIB);
    let mut node = Relay::start_after(&group.prelude(), "", &["--memory", "128MiB"]);
    assert!(node.is_running());
    let log = node.log();
    assert!(log.contains("may take 96 MiB but the budget is 128 MiB"), "{log}");
    let report = get(&node.http, "/status.json").json();
    assert_eq!(report["memory"]["group"]["limit_bytes"], 96 * MIB);
    assert!(get(&node.http, "/metrics").text().contains("\nthimble_relay_cgroup_limit_bytes "));
}

// Promise: P24 - Near the budget store queries and REST reads are refused first.
#[tokio::test]
async fn near_the_budget_queries_are_refused_first_and_pushes_go_on() {
    let node = Relay::start_after("", &levels(2, 90, 95), &[]);
    let mut client = Client::connect(node.address(false)).await;
    eventually("queries are refused", || {
        let report = get(&node.http, "/status.json").json();
        (report["throttling"]["level"] == "queries").then_some(())
    });
    let asked =
        store::Request { request_id: "a".into(), forward: true, ..store::Request::default() };
    let reply = client.query(&asked).await;
    let why = reply.status_text.unwrap().as_str().to_owned();
    assert_eq!(reply.status.code(), 429, "{why}");
    for words in
        ["anonymous memory is", "% of the budget of 64 MiB", "governor.refuse_queries_percent is 2"]
    {
        assert!(why.contains(words), "{words} in {why}");
    }
    for path in
        ["/store/v3/messages", "/admin/v1/peers", "/relay/v1/auto/messages/%2Fa%2F1%2Fb%2Fproto"]
    {
        let refused = get(&node.http, path);
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        assert!(refused.text().contains("anonymous memory is"), "{}", refused.text());
    }
    assert_eq!(client.push(&message(TOPIC, b"taken")).await.unwrap().status.code(), 200);
    assert_eq!(client.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let health = get(&node.http, "/health").text().to_owned();
    assert!(health.contains("anonymous memory is") && health.contains("NOT_READY"), "{health}");
    let report = get(&node.http, "/status.json").json();
    assert_eq!(report["requests"]["store"]["refused"]["memory"], 2, "{report}");
    assert_eq!(report["requests"]["reads_refused"], 2, "{report}");
    assert!(
        report["throttling"]["events"][0]["reason"].as_str().unwrap().contains("% of the budget")
    );
    let metrics = get(&node.http, "/metrics").text().to_owned();
    assert!(metrics.contains("thimble_relay_throttle_level 1"), "{metrics}");
    assert!(metrics.contains("thimble_relay_light_push_seconds_count 1"), "{metrics}");
}

// Promise: P24 - Nearer to the budget light pushes, subscriptions and connections are refused.
#[tokio::test]
async fn nearer_to_it_pushes_subscriptions_and_connections_are_refused_too() {
    let node = Relay::start_after("", &levels(2, 2, 95), &[]);
    eventually("pushes are refused", || {
        let report = get(&node.http, "/status.json").json();
        (report["throttling"]["level"] == "pushes").then_some(())
    });
    assert!(Client::try_connect(node.address(false)).await.is_err(), "a new connection is refused");
    let pushed = serde_json::json!({
        "pubsubTopic": "/waku/2/rs/0/1",
        "message": { "payload": "aGVsbG8=", "contentTopic": TOPIC },
    });
    let refused = crate::http::post(&node.http, "/lightpush/v3/message", &pushed);
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("governor.refuse_pushes_percent is 2"), "{}", refused.text());
    let subscribe = serde_json::json!(["/waku/2/rs/0/1"]);
    assert_eq!(crate::http::post(&node.http, "/relay/v1/subscriptions", &subscribe).status, 503);
    let report = get(&node.http, "/status.json").json();
    assert_eq!(report["requests"]["connections_refused"], 1, "{report}");
    assert_eq!(report["messages"]["client"]["refused"]["memory"], 1);
    assert_eq!(report["requests"]["filter"]["refused"]["memory"], 1);
}

#[tokio::test]
async fn status_is_printed_for_people_and_for_machines() {
    let node = Relay::start(&[]);
    let mut client = Client::connect(node.address(false)).await;
    assert_eq!(client.push(&message(TOPIC, b"one")).await.unwrap().status.code(), 200);
    let address = node.http.strip_prefix("http://").unwrap();
    let status = |arguments: &[&str]| {
        let output = relay().args(["status", "--http", address]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = status(&[]);
    for words in [
        "Ready",
        "of a budget of 64 MiB",
        "nothing is held back",
        "1 connections of 1 peers",
        "receiving",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    let report: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(report["messages"]["client"]["accepted"], 1);
    // A second later there is a sample, and while nothing happens one every five.
    eventually("a sample", || {
        let history = get(&node.http, "/status.json").json()["history"].clone();
        history[0]["anonymous_bytes"].as_u64().filter(|bytes| *bytes > 0)
    });
    let nobody = relay().args(["status", "--http", "127.0.0.1:1"]).output().unwrap();
    let error = String::from_utf8(nobody.stderr).unwrap();
    assert!(
        error.contains("no node answers at 127.0.0.1:1") && error.contains("--http"),
        "{error}"
    );
}

#[test]
fn init_writes_what_run_reads() {
    let folder = tempfile::tempdir().unwrap();
    let init = |arguments: &[&str]| {
        relay()
            .current_dir(folder.path())
            .args(["init", "--data-dir", "data", "--systemd"])
            .args(arguments)
            .output()
            .unwrap()
    };
    for _ in 0..2 {
        let output = init(&["--memory", "64MiB", "--cluster", "16"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let unit = std::fs::read_to_string(folder.path().join("data/thimble-relay.service")).unwrap();
    assert!(unit.contains("MemoryMax=67108864\nMemorySwapMax=0\n"), "{unit}");
    let config = relay()
        .current_dir(folder.path())
        .args(["config", "--config", "data/relay.toml"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&config.stdout).contains("cluster = 16"));
    let error = init(&["--memory", "128MiB"]);
    assert!(!error.status.success());
    let text = String::from_utf8(error.stderr).unwrap();
    assert!(text.contains("relay.toml is there and says something else"), "{text}");
}

#[tokio::test]
async fn limits_of_messages_and_requests_are_those_of_the_table() {
    let limits = "[limits.messages]\nmessage_bytes = 2048\nsending_chunk_bytes = 1024\n\
                  [limits.filter]\ntopics_per_request = 2\ncontent_topic_bytes = 24\n";
    let node = Relay::start_after("", limits, &[]);
    let mut client = Client::connect(node.address(false)).await;
    let reply = client.push(&message(TOPIC, &[1; 3000])).await.unwrap();
    let why = reply.status_text.unwrap().as_str().to_owned();
    assert_eq!(reply.status.code(), 413, "{why}");
    assert!(why.contains("messages.message_bytes is 2048"), "{why}");
    let three = ["/t/1/a/proto", "/t/1/b/proto", "/t/1/c/proto"];
    assert_eq!(client.filter(Action::Subscribe, &three).await, 400);
    assert_eq!(client.filter(Action::Subscribe, &["/test/1/a-long-name/proto"]).await, 400);
    assert_eq!(client.filter(Action::Subscribe, &[TOPIC]).await, 200);
    // Written in three pieces, the message is whole.
    let sent = message(TOPIC, &[7; 1900]);
    assert_eq!(client.push(&sent).await.unwrap().status.code(), 200);
    assert_eq!(client.pushed().await, sent);
    let metrics = get(&node.http, "/metrics").text().to_owned();
    let peak = metrics
        .lines()
        .find_map(|line| {
            line.strip_prefix("thimble_relay_pool_high_water_bytes{pool=\"sending\"} ")
        })
        .unwrap();
    assert!(peak.parse::<f64>().unwrap() < 1900.0, "a piece at a time, not {peak} bytes");
    until_async("the push is timed", async || {
        get(&node.http, "/metrics").text().contains("thimble_relay_filter_push_seconds_count 1")
    })
    .await;
}

// Promise: P24 - Tables of the relay are counted in their pools.
#[tokio::test]
async fn what_tables_hold_is_counted_in_their_pools() {
    let node = Relay::start(&[]);
    let mut receiver = Client::connect(node.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let mut sender = Client::connect(node.address(false)).await;
    for number in 0..20 {
        assert_eq!(sender.push(&message(TOPIC, &[number])).await.unwrap().status.code(), 200);
        receiver.pushed().await;
    }
    let used = |name| node.metric(&format!("thimble_relay_pool_used_bytes{{pool=\"{name}\"}}"));
    eventually("the tables were looked at", || {
        (used("seen") >= 20 * relay_limits::SEEN_BYTES).then_some(())
    });
    assert!(used("program") > 100_000, "constants that the loader wrote: {}", used("program"));
    let topic_bytes = TOPIC.len() as u64;
    assert_eq!(used("subscriptions"), relay_limits::CRITERION_BYTES + topic_bytes);
}
