//! Nothing acknowledged is lost, whatever is killed and when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use candid::Principal;
use ic_agent::Agent;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::harness::*;
use testing::process::Signal;
use testing::until_async;

const KILLS: usize = 20;
const CLIENTS: usize = 4;

/// A client's observations: the highest count it saw acknowledged by a certified reply, and the
/// most calls that can have counted.
#[derive(Default)]
struct Ledger {
    acknowledged: AtomicU64,
    sent: AtomicU64,
}

/// Increments its own counter until `stop` is set; every reply was verified by the agent before it
/// counts.
async fn load(agent: Agent, counter: Principal, ledger: Arc<Ledger>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        ledger.sent.fetch_add(1, Ordering::SeqCst);
        let call =
            tokio::time::timeout(Duration::from_secs(5), update(&agent, counter, "inc", vec![]));
        if let Ok(Ok(reply)) = call.await {
            let count = u64::from_le_bytes(reply.try_into().unwrap());
            ledger.acknowledged.fetch_max(count, Ordering::SeqCst);
        }
    }
}

/// Newest certified height, as the node reports it.
async fn certified_height(node: &Node) -> u64 {
    let health = reqwest::get(format!("{}/health", node.url)).await.unwrap().bytes().await.unwrap();
    let health: serde_json::Value = serde_json::from_slice(&health).unwrap();
    health["certified_height"].as_u64().unwrap()
}

/// Height of the checkpoint that the last start began from.
fn restored_height(log: &str) -> u64 {
    let line = log.lines().rev().find(|line| line.contains("restored the newest checkpoint"));
    let height =
        line.and_then(|line| line.split("height=").nth(1)?.split_whitespace().next()?.parse().ok());
    height.unwrap_or(0)
}

/// Root of the newest certified state, as a client computes it from a verified certificate.
async fn certified_root(agent: &Agent, canister: Principal) -> String {
    let certificate =
        agent.read_state_raw(vec![vec![b"time".as_slice().into()]], canister).await.unwrap();
    hex::encode(certificate.tree.digest())
}

// Promise: P5 - 20 kills of node or worker under load lose no update with a certified reply, and
//   reproduce the roots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn twenty_kills_of_node_or_worker_under_load_lose_nothing() {
    let seed: u64 = std::env::var("THIMBLE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random);
    println!("seed {seed} (set THIMBLE_SEED to repeat)");
    let mut random = StdRng::seed_from_u64(seed);
    let mut node = Node::start().await;
    node.log_filter("info,rounds=debug").await;
    let agent = node.agent(1).await;
    let mut counters = Vec::new();
    for _ in 0..CLIENTS {
        counters.push(deploy(&agent, "counter-c.wasm").await);
    }
    let ledgers: Vec<Arc<Ledger>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    let (mut node_kills, mut reproduced) = (0, 0);
    for kill in 0..KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for (counter, ledger) in counters.iter().zip(&ledgers) {
            let agent = node.agent(1).await;
            clients.push(tokio::spawn(load(agent, *counter, ledger.clone(), stop.clone())));
        }
        tokio::time::sleep(Duration::from_millis(random.gen_range(20..400))).await;
        // The first two kills are one of each kind, the others as the dice fall.
        let kill_node = if kill < 2 { kill == 0 } else { random.gen_bool(0.5) };
        if kill_node {
            let agent = node.agent(1).await;
            let height = certified_height(&node).await;
            let root = certified_root(&agent, counters[0]).await;
            node_kills += 1;
            node.kill();
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.await.unwrap();
            }
            let told = node.log().len();
            node.launch().await;
            // A checkpoint of a later state, made between the certificate and the kill, leaves
            // nothing to compute again.
            let log = node.log()[told..].to_owned();
            if log.contains(&root) {
                reproduced += 1;
            } else {
                let restored = restored_height(&log);
                assert!(
                    restored > height,
                    "the root {root}, certified at {height} or later, was not reproduced"
                );
            }
        } else {
            let workers = node.workers();
            assert!(!workers.is_empty(), "the node has workers");
            testing::process::send(workers[random.gen_range(0..workers.len())], Signal::KILL);
            tokio::time::sleep(Duration::from_millis(random.gen_range(20..200))).await;
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.await.unwrap();
            }
        }
        let agent = node.agent(1).await;
        for (counter, ledger) in counters.iter().zip(&ledgers) {
            let reply = query_again(&agent, *counter).await;
            let count = u64::from_le_bytes(reply.try_into().unwrap());
            let (acknowledged, sent) =
                (ledger.acknowledged.load(Ordering::SeqCst), ledger.sent.load(Ordering::SeqCst));
            assert!(
                count >= acknowledged,
                "kill {kill}: {acknowledged} acknowledged, {count} there"
            );
            assert!(count <= sent, "kill {kill}: {sent} sent, {count} counted");
        }
    }
    let acknowledged: u64 =
        ledgers.iter().map(|ledger| ledger.acknowledged.load(Ordering::SeqCst)).sum();
    println!(
        "{KILLS} kills ({node_kills} of the node), {acknowledged} updates acknowledged, none \
         lost; {reproduced} roots reproduced"
    );
    assert!(
        reproduced > 0,
        "no certified root was computed again in {node_kills} kills of the node"
    );
    assert!(acknowledged > KILLS as u64, "the clients hardly got through: {acknowledged}");
}

/// A query may meet the worker that was just killed: that is one reject, not two.
async fn query_again(agent: &Agent, counter: Principal) -> Vec<u8> {
    match query(agent, counter, "get", vec![]).await {
        Ok(reply) => reply,
        Err(_) => query(agent, counter, "get", vec![]).await.unwrap(),
    }
}

// Promise: P8 - A start with another `--memory` replays by the old limits and then applies the new
//   ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_memory_after_a_crash_replays_by_the_limits_of_before() {
    let mut node = Node::start_with("512MiB").await;
    node.log_filter("info,rounds=debug").await;
    let agent = node.agent(1).await;
    let mut counters = Vec::new();
    for _ in 0..CLIENTS {
        counters.push(deploy(&agent, "counter-c.wasm").await);
    }
    let ledgers: Vec<Arc<Ledger>> = (0..CLIENTS).map(|_| Arc::default()).collect();
    for memory in ["256MiB", "512MiB", "300MiB"] {
        let stop = Arc::new(AtomicBool::new(false));
        let before: u64 =
            ledgers.iter().map(|ledger| ledger.acknowledged.load(Ordering::SeqCst)).sum();
        let mut clients = Vec::new();
        for (counter, ledger) in counters.iter().zip(&ledgers) {
            let agent = node.agent(1).await;
            clients.push(tokio::spawn(load(agent, *counter, ledger.clone(), stop.clone())));
        }
        until_async("updates go through", async || {
            let now: u64 =
                ledgers.iter().map(|ledger| ledger.acknowledged.load(Ordering::SeqCst)).sum();
            now > before + 40
        })
        .await;
        node.kill();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let told = node.log().len();
        node.memory(memory);
        node.launch().await;
        let log = node.log()[told..].to_owned();
        for words in ["limits changed", "every state root is as certified before", "takes effect"] {
            assert!(log.contains(words), "{memory}: no `{words}` in {log}");
        }
        let agent = node.agent(1).await;
        for (counter, ledger) in counters.iter().zip(&ledgers) {
            let reply = query_again(&agent, *counter).await;
            let count = u64::from_le_bytes(reply.try_into().unwrap());
            let (acknowledged, sent) =
                (ledger.acknowledged.load(Ordering::SeqCst), ledger.sent.load(Ordering::SeqCst));
            assert!(
                (acknowledged..=sent).contains(&count),
                "{memory}: {acknowledged} acknowledged, {count} there, {sent} sent"
            );
        }
    }
}
