//! A node alone whose wall clock is wrong for a while, or was when its state came about.
//!
//! The node's wall clock is moved ([`WallClock`]); its other clocks, and the clients' clocks, are
//! the machine's.

use std::{path::Path, time::Duration};

use candid::Principal;
use ic_agent::{Agent, AgentError, identity::BasicIdentity};
use testing::{WallClock, until_async};

use crate::{harness::*, watchdog::health};

const YEAR_SECONDS: i64 = 365 * 24 * 3_600;
/// How far ahead calls may be signed, with the drift that is allowed.
const WINDOW_SECONDS: i64 = 360;

/// A client whose calls expire this number of seconds from now.
async fn agent_for(node: &Node, seconds: u64) -> Agent {
    let agent = Agent::builder()
        .with_url(&node.url)
        .with_identity(BasicIdentity::from_raw_key(&[1; 32]))
        .with_ingress_expiry(Duration::from_secs(seconds))
        .build()
        .unwrap();
    agent.fetch_root_key().await.unwrap();
    agent
}

async fn count(agent: &Agent, counter: Principal) -> Result<u64, AgentError> {
    let reply = update(agent, counter, "inc", vec![]).await?;
    Ok(u64::from_le_bytes(reply.try_into().unwrap()))
}

/// The next start is the first since the machine started, as far as the node knows.
fn machine_started(node: &Node) {
    std::fs::remove_file(node.data.join("clock-reading.txt")).unwrap();
}

/// Whether `thimble recover-clock` succeeded, and what it printed.
fn recover(data: &Path) -> (bool, String) {
    let done = thimble().arg("recover-clock").arg("--data-dir").arg(data).output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).unwrap())
}

// Promise: P21 - A wrong clock is reported on `/health` and breaks nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_that_is_wrong_for_seconds_is_reported_and_breaks_nothing() {
    let clock = WallClock::new(0);
    let mut node = Node::start_as("256MiB", "", &clock.prelude()).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await.unwrap(), 1);
    let mut counted = 1;
    for ahead in [YEAR_SECONDS, -YEAR_SECONDS] {
        clock.set(ahead);
        until_async("the jump is reported", async || health(&node).await.0 == 503).await;
        let (_, status) = health(&node).await;
        let direction = if ahead > 0 { "ahead" } else { "back" };
        assert!(status.contains(&format!("the wall clock jumped {direction}")), "{status}");
        assert!(node.status().await["clock"]["jump_millis"].as_i64().unwrap().abs() > 1_000_000);
        // Clients whose clocks are right are served.
        counted += 1;
        assert_eq!(count(&agent, counter).await.unwrap(), counted);
        // Clients whose clocks jumped too get the reason for the refusal.
        if ahead > 0 {
            let jumped = agent_for(&node, ahead as u64 + 120).await;
            let error = count(&jumped, counter).await.unwrap_err().to_string();
            assert!(error.contains("the wall clock jumped"), "{error}");
        }
        clock.set(0);
        until_async("the clock is right again", async || health(&node).await.0 == 200).await;
        counted += 1;
        assert_eq!(count(&agent, counter).await.unwrap(), counted);
    }
    // Nothing of it is in the state.
    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(count(&agent, counter).await.unwrap(), counted + 1);
    // A node that is started again meanwhile knows that the clock jumped.
    clock.set(YEAR_SECONDS);
    node.kill();
    node.spawn();
    until_async("the jump is reported", async || {
        node.try_status().await.is_some_and(|status| {
            let status = status["status"].as_str().unwrap_or_default();
            status.contains("the wall clock jumped ahead")
        })
    })
    .await;
    let agent = node.agent(1).await;
    assert_eq!(count(&agent, counter).await.unwrap(), counted + 2);
    node.stop();
    clock.set(0);
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(count(&agent, counter).await.unwrap(), counted + 3);
    node.stop();
}

// Promise: P21 - `thimble recover-clock` recovers a state ahead of the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_that_is_ahead_of_the_clock_is_recovered() {
    let clock = WallClock::new(0);
    let mut node = Node::start_as("256MiB", "", &clock.prelude()).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    // Sent again later, while it is valid by a right clock.
    let signed = agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap().signed_update;
    agent.update_signed(counter, signed.clone()).await.unwrap();
    node.stop();
    let (done, text) = recover(&node.data);
    assert!(!done && text.contains("within twice its length"), "{text}");

    clock.set(YEAR_SECONDS);
    machine_started(&node);
    node.launch().await;
    let ahead = agent_for(&node, YEAR_SECONDS as u64 + 120).await;
    assert_eq!(count(&ahead, counter).await.unwrap(), 2);
    node.stop();

    clock.set(0);
    machine_started(&node);
    node.spawn();
    until_async("the state is reported", async || {
        node.try_status().await.is_some_and(|status| {
            status["status"].as_str().is_some_and(|status| status.contains("recover-clock"))
        })
    })
    .await;
    assert!(node.status().await["clock"]["block_time_ahead_millis"].as_u64().unwrap() > 1_000_000);
    let agent = node.agent(1).await;
    let error = count(&agent, counter).await.unwrap_err().to_string();
    assert!(error.contains("ahead of the wall clock"), "{error}");
    assert!(!error.contains("recover-clock"), "for the operator: {error}");
    let command = format!("thimble recover-clock --data-dir {}", node.data.display());
    until_async("the state is logged", async || node.log().contains(&command)).await;

    let (done, text) = recover(&node.data);
    assert!(!done && text.contains("stopped first"), "{text}");
    node.stop();
    let (done, text) = recover(&node.data);
    assert!(done && text.contains("ahead of this machine's clock"), "{text}");
    node.spawn();
    let window_millis = WINDOW_SECONDS as u64 * 1_000;
    let mut ahead_millis = u64::MAX;
    until_async("block time is set back", async || {
        let status = node.try_status().await;
        ahead_millis = status
            .and_then(|status| status["clock"]["block_time_ahead_millis"].as_u64())
            .unwrap_or(u64::MAX);
        ahead_millis <= window_millis
    })
    .await;
    assert!(ahead_millis > window_millis / 2, "{ahead_millis}");
    // What was executed before has expired, and so has every call that is valid for less.
    let agent = node.agent(1).await;
    let error = agent.update_signed(counter, signed).await.unwrap_err().to_string();
    assert!(error.contains("ahead of the wall clock"), "{error}");
    let error = count(&agent, counter).await.unwrap_err().to_string();
    assert!(error.contains("ahead of the wall clock"), "{error}");

    // The block that set the time back is executed again like any other. In place of waiting for
    // the clock to catch up with block time, it is set to it.
    node.kill();
    clock.set(WINDOW_SECONDS);
    machine_started(&node);
    node.launch().await;
    assert!(node.log().contains("every state root is as certified before"), "{}", node.log());
    assert_eq!(node.status().await["clock"]["block_time_ahead_millis"], 0);
    let agent = agent_for(&node, WINDOW_SECONDS as u64 + 120).await;
    let reply = query(&agent, counter, "get", vec![]).await.unwrap();
    assert_eq!(u64::from_le_bytes(reply.try_into().unwrap()), 2);
    assert_eq!(count(&agent, counter).await.unwrap(), 3);
    node.stop();
}
