//! What a node recorded comes out again, however many threads execute it.

use std::{path::Path, process::Output};

use candid::{Encode, Principal};
use ic_agent::Agent;

use crate::harness::*;

/// A checkpoint takes what came before it out of the log.
const NO_CHECKPOINT: &str = "[limits.pages]\ncheckpoint_interval_rounds = 1000000\n\
                             checkpoint_instructions = 1000000000000\n\
                             manifest_interval_rounds = 1000000\n";
const CANISTERS: usize = 6;
const STEPS: u64 = 12;

fn replay(arguments: &[&str], folder: &Path) -> Output {
    thimble().arg("replay").args(arguments).arg(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Memory, randomness, traps, growth, calls to itself and to the management canister.
async fn work(agent: Agent, bench: Principal, seed: u64) {
    update(&agent, bench, "stable_grow", Encode!(&16u64).unwrap()).await.unwrap();
    update(&agent, bench, "start_timer", Encode!(&1u64).unwrap()).await.unwrap();
    for step in 0..STEPS {
        let byte = (seed * 31 + step) as u8;
        let at = seed * 5_000 + step * 40_000;
        let arg = Encode!(&at, &30_000u64, &byte).unwrap();
        update(&agent, bench, "stable_fill", arg).await.unwrap();
        update(&agent, bench, "inc", Encode!().unwrap()).await.unwrap();
        if step % 3 == seed % 3 {
            update(&agent, bench, "raw_rand_via_mgmt", Encode!().unwrap()).await.unwrap();
        }
        if step % 4 == 1 {
            let trapped = update(&agent, bench, "trap_with", Encode!(&"on purpose").unwrap());
            assert!(rejected(trapped.await.unwrap_err()).1.contains("on purpose"));
        }
    }
}

#[tokio::test]
async fn a_recorded_workload_comes_to_the_same_roots_with_any_number_of_threads() {
    let mut node = Node::start_as("256MiB", NO_CHECKPOINT, "").await;
    let mut clients = Vec::new();
    for seed in 0..CANISTERS as u64 {
        let agent = node.agent(seed as u8).await;
        let bench = deploy(&agent, "workbench.wasm").await;
        clients.push(tokio::spawn(work(agent, bench, seed)));
    }
    for client in clients {
        client.await.unwrap();
    }
    let in_use = replay(&["--check"], &node.data);
    assert!(!in_use.status.success() && text(&in_use.stderr).contains("in use"));

    node.kill();
    let checked = replay(&["--check", "--json"], &node.data);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let runs: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let runs = runs.as_array().unwrap();
    let threads: Vec<_> = runs.iter().map(|run| run["threads"].as_u64().unwrap()).collect();
    assert!(threads.len() == 3 && threads[0] == 1 && threads[2] == 2 * threads[1], "{threads:?}");
    for run in runs {
        assert!(run["compared"].as_u64().unwrap() >= STEPS, "{run}");
        assert_eq!(run["compared"], runs[0]["compared"]);
    }
    let shown = text(&replay(&["--threads", "3"], &node.data).stdout);
    let heights = shown.lines().filter(|line| line.split(' ').nth(1).unwrap().len() == 64).count();
    assert_eq!(Some(heights as u64), runs[0]["last"].as_u64());
    assert!(shown.contains("with 3 threads"), "{shown}");

    // A root that does not come out again is found.
    let last = runs[0]["last"].as_u64().unwrap();
    let mut log = consensus::BlockLog::open(&node.data.join("blocks"), 8 << 20).unwrap();
    let height = state::Height(last + 1);
    let block = consensus::FinalisedBlock {
        height,
        time: state::Time(u64::MAX / 2),
        randomness: [7; 32],
        ingress: vec![],
        key: None,
        agreed: None,
        queries: None,
    };
    log.append_block(&block).unwrap();
    log.append_outcome(height, [9; 32], &[]).unwrap();
    drop(log);
    let differs = replay(&["--threads", "1"], &node.data);
    assert!(!differs.status.success());
    assert!(text(&differs.stderr).contains(&"09".repeat(32)), "{}", text(&differs.stderr));
}

#[tokio::test]
async fn without_blocks_above_the_checkpoint_there_is_nothing_to_compare() {
    let mut node = Node::start().await;
    deploy(&node.agent(1).await, "counter-c.wasm").await;
    node.stop();
    let refused = replay(&["--check"], &node.data);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("no block above"), "{}", text(&refused.stderr));
    let empty = tempfile::tempdir().unwrap();
    let refused = replay(&[], empty.path());
    assert!(text(&refused.stderr).contains("no file `rules`"), "{}", text(&refused.stderr));
}
