//! Query statistics, agreed on: exact on one node, the same on four, over crashes and replays.

use candid::{Decode, Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::{CanisterIdRecord, CanisterStatusResult, QueryStats};
use testing::until_async;

use crate::{harness::*, subnet::Subnet};

/// Periods of few rounds, and blocks twenty times a second.
const SHORT_PERIODS: &str = "[limits.execution]\nquery_stats_period_rounds = 10\n\
                             [limits.consensus]\nidle_round_millis = 50\n";
/// A checkpoint would take reports out of the log.
const NO_CHECKPOINT: &str = "[limits.pages]\ncheckpoint_interval_rounds = 1000000\n\
                             checkpoint_instructions = 1000000000000\n\
                             manifest_interval_rounds = 1000000\n";
/// Rounds after which what was counted is in the totals.
const ROUNDS: u64 = 3 * 10 + 1;

/// As the node itself reports them, of its newest state.
async fn stats(agent: &Agent, canister: Principal) -> QueryStats {
    let record = Encode!(&CanisterIdRecord { canister_id: canister }).unwrap();
    let asked = agent.query(&management(), "canister_status").with_effective_canister_id(canister);
    let told = asked.with_arg(record).call().await.unwrap();
    Decode!(&told, CanisterStatusResult).unwrap().query_stats
}

async fn get(agent: &Agent, counter: Principal) {
    assert_eq!(query(agent, counter, "get", vec![]).await.unwrap(), [0; 8]);
}

async fn height(node: &Node) -> u64 {
    node.metric("thimble_certified_height").await
}

// Promise: P9 - `query_stats` of a single node are exact and survive kills.
#[tokio::test]
async fn query_stats_of_one_node_are_exact_and_outlive_kills_by_the_block_log_alone() {
    let configuration = format!("{SHORT_PERIODS}{NO_CHECKPOINT}");
    let mut node = Node::start_as("256MiB", &configuration, "").await;
    let mut agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let mut of_one = None;
    for asked in [1_u64, 11, 21] {
        let hits = node.metric("thimble_query_cache_hits_total").await;
        let further = asked.min(10);
        for _ in 0..further {
            get(&agent, counter).await;
        }
        // Answered with a reply that was kept, and counted as if they had run.
        let hits = node.metric("thimble_query_cache_hits_total").await - hits;
        assert!(hits >= further / 2, "{hits} of {further}");
        until_async("the totals have every query", async || {
            stats(&agent, counter).await.num_calls_total >= asked
        })
        .await;
        let before = stats(&agent, counter).await;
        assert_eq!(before.num_calls_total, asked);
        assert_eq!(before.request_payload_bytes_total, 0u8);
        assert_eq!(before.response_payload_bytes_total, 8 * asked);
        let of_one = of_one.get_or_insert_with(|| before.num_instructions_total.clone());
        assert!(*of_one > 0u8);
        assert_eq!(before.num_instructions_total, of_one.clone() * asked);
        node.kill();
        let checked = thimble().args(["replay", "--check"]).arg(&node.data).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        node.launch().await;
        agent = node.agent(1).await;
        assert_eq!(stats(&agent, counter).await, before);
    }
}

// Promise: P9 - `query_stats` are equal on four members and after a kill of all.
#[tokio::test]
async fn query_stats_are_the_same_on_four_members_and_after_all_were_killed() {
    let mut subnet = Subnet::start_with(SHORT_PERIODS).await;
    let mut agents = vec![];
    for node in &subnet.nodes {
        agents.push(node.agent(1).await);
    }
    let counter = deploy(&agents[0], "counter-c.wasm").await;
    // An attempt asks some of the four, or all.
    let mut asked = 0_u64;
    until_async("all four have the canister", async || {
        asked += agents.len() as u64;
        subnet.all_count(counter, 0).await
    })
    .await;
    // All members alike, until reports of several periods came together.
    until_async("the totals have forty queries", async || {
        for agent in &agents {
            get(agent, counter).await;
            asked += 1;
        }
        stats(&agents[0], counter).await.num_calls_total >= 40_u64
    })
    .await;
    let mut last = 0;
    for node in &subnet.nodes {
        last = last.max(height(node).await);
    }
    until_async("all four are beyond the periods of the queries", async || {
        let mut lowest = u64::MAX;
        for node in &subnet.nodes {
            lowest = lowest.min(height(node).await);
        }
        lowest > last + ROUNDS
    })
    .await;
    let found = stats(&agents[0], counter).await;
    assert!(found.num_calls_total <= asked, "{found:?} of {asked}");
    assert_eq!(found.response_payload_bytes_total, found.num_calls_total.clone() * 8u8);
    for agent in &agents {
        assert_eq!(stats(agent, counter).await, found);
    }
    subnet.nodes.iter_mut().for_each(Node::kill);
    subnet.start_all().await;
    for node in &subnet.nodes {
        assert_eq!(stats(&node.agent(1).await, counter).await, found);
    }
}
