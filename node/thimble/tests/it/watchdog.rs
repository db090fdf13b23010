//! A round that does not end is reported, and no state keeps a signal from ending the node.

use std::time::Duration;

use ic_agent::Agent;
use rustix::process::Signal;
use testing::until_async;

use crate::harness::*;

/// Status code and text of `/health`.
pub(crate) async fn health(node: &Node) -> (u16, String) {
    let response = reqwest::get(format!("{}/health", node.url)).await.unwrap();
    let code = response.status().as_u16();
    let body: serde_json::Value = response.json().await.unwrap();
    (code, body["status"].as_str().unwrap().to_owned())
}

async fn update_workers(node: &Node) -> Vec<u32> {
    let status = node.status().await;
    let processes = status["processes"].as_array().unwrap();
    let updates = processes.iter().filter(|process| process["role"] == "update worker");
    updates.map(|process| process["pid"].as_u64().unwrap() as u32).collect()
}

async fn count(agent: &Agent, counter: candid::Principal) -> u64 {
    let reply = update(agent, counter, "inc", vec![]).await.unwrap();
    u64::from_le_bytes(reply.try_into().unwrap())
}

// Promise: P21 - A node with a stalled round exits after SIGTERM with status 3, and the batch runs
//   again once.
/// A worker that was stopped answers nothing: its round ends no sooner than the worker's time
/// limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_that_does_not_end_is_reported_and_does_not_outlive_a_stop() {
    let mut node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await, 1);
    let workers = update_workers(&node).await;
    assert!(!workers.is_empty());
    for worker in &workers {
        testing::process::send(*worker, Signal::STOP);
    }
    let call = tokio::spawn({
        let agent = agent.clone();
        async move { update(&agent, counter, "inc", vec![]).await }
    });
    until_async("the round is reported", async || health(&node).await.0 == 503).await;
    let (_, status) = health(&node).await;
    let command = format!("thimble reject --data-dir {}", node.data.display());
    for words in
        ["the round of height", "has not ended", "method inc", &counter.to_text(), &command]
    {
        assert!(status.contains(words), "no `{words}` in {status}");
    }
    until_async("the round is logged", async || node.log().contains(&command)).await;
    // Clients read which message it is, and neither the operator's folder nor the command.
    let shown = agent.status().await.unwrap().replica_health_status.unwrap();
    assert!(shown.contains("has not ended") && shown.contains(&counter.to_text()), "{shown}");
    for hidden in [&node.data.display().to_string()[..], "thimble reject"] {
        assert!(!shown.contains(hidden), "`{hidden}` in {shown}");
    }

    testing::process::send(node.pid(), Signal::TERM);
    let ended = node.ended().await;
    call.abort();
    assert_eq!(ended.code(), Some(3), "{ended}\n{}", node.log());
    assert!(node.log().contains("stopped without a last checkpoint"), "{}", node.log());

    // The batch was durable and its result counts for nothing: it is executed again, once.
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(count(&agent, counter).await, 3);
    node.stop();
}

// Promise: P5 - SIGHUP stops the node with a checkpoint, like SIGTERM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hangup_stops_the_node_in_order() {
    let mut node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await, 1);
    testing::process::send(node.pid(), Signal::HUP);
    let ended = node.ended().await;
    assert_eq!(ended.code(), Some(0), "{ended}\n{}", node.log());
    assert!(node.log().contains("stopped with a checkpoint"), "{}", node.log());
    let logged = node.log().len();
    node.launch().await;
    assert!(node.log()[logged..].contains("restored the newest checkpoint"), "{}", node.log());
    let agent = node.agent(1).await;
    assert_eq!(count(&agent, counter).await, 2);
    tokio::time::timeout(Duration::from_secs(100), async { node.stop() }).await.unwrap();
}

// Promise: P5 - A node that was started to ignore SIGHUP ignores it.
/// `nohup` starts a program with the signal ignored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hangup_is_ignored_where_the_node_was_started_to_ignore_it() {
    let mut node = Node::start_as("256MiB", "", "trap '' HUP").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    testing::process::send(node.pid(), Signal::HUP);
    assert_eq!(count(&agent, counter).await, 1);
    node.stop();
}
