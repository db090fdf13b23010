//! Replay gives a node's recorded results, with any number of threads.

use std::{path::Path, process::Output};

use candid::{Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::CanisterInstallMode;

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

// Promise: P8 - `thimble replay --check` reproduces the roots with one, the same and twice the
//   threads.
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
        randomness: state::Randomness::Drawn([7; 32]),
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

/// Calls `raw_rand` with its own argument, as it is, and replies with the answer or the reject's
/// text.
const RAW_CALL: &str = r#"(module
  (import "ic0" "call_new" (func $new (param i32 i32 i32 i32 i32 i32 i32 i32)))
  (import "ic0" "call_data_append" (func $append (param i32 i32)))
  (import "ic0" "call_perform" (func $perform (result i32)))
  (import "ic0" "msg_arg_data_size" (func $arg_size (result i32)))
  (import "ic0" "msg_arg_data_copy" (func $arg_copy (param i32 i32 i32)))
  (import "ic0" "msg_reject_msg_size" (func $text_size (result i32)))
  (import "ic0" "msg_reject_msg_copy" (func $text_copy (param i32 i32 i32)))
  (import "ic0" "msg_reply_data_append" (func $reply_append (param i32 i32)))
  (import "ic0" "msg_reply" (func $reply))
  (memory 40)
  (data (i32.const 0) "raw_rand")
  (table funcref (elem $replied $rejected))
  (func $replied (param i32)
    (call $arg_copy (i32.const 16) (i32.const 0) (call $arg_size))
    (call $reply_append (i32.const 16) (call $arg_size))
    (call $reply))
  (func $rejected (param i32)
    (call $text_copy (i32.const 16) (i32.const 0) (call $text_size))
    (call $reply_append (i32.const 16) (call $text_size))
    (call $reply))
  (func (export "canister_update run")
    (call $arg_copy (i32.const 16) (i32.const 0) (call $arg_size))
    (call $new (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 8)
      (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0))
    (call $append (i32.const 16) (call $arg_size))
    (drop (call $perform))))"#;

// Promise: P8 - Hostile arguments give the same roots in a replay and with another memory budget.
#[tokio::test]
async fn hostile_arguments_have_the_same_roots_in_a_replay_and_with_another_memory() {
    let mut node = Node::start_as("256MiB", NO_CHECKPOINT, "").await;
    let agent = node.agent(1).await;
    let canister = create(&agent).await;
    let module = wat::parse_str(RAW_CALL).unwrap();
    install(&agent, canister, CanisterInstallMode::Install, module, vec![]).await.unwrap();
    let mut texts = Vec::new();
    for (what, argument) in envelope::candid_wire::hostile::messages() {
        let told = update(&agent, canister, "run", argument).await.unwrap();
        texts.push((what, text(&told)));
    }
    let told = |of: &str| &texts.iter().find(|(what, _)| *what == of).unwrap().1;
    assert!(told("2^60 elements without bytes").contains("more than 10000 values"), "{texts:?}");
    assert!(told("3,014 bytes of options").contains("more than 32 levels deep"), "{texts:?}");
    node.kill();
    let checked = replay(&["--check"], &node.data);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    // Executes the log by the limits of before, and compares roots, before it starts.
    node.memory("512MiB");
    node.launch().await;
    let agent = node.agent(1).await;
    let told = update(&agent, canister, "run", Encode!().unwrap()).await.unwrap();
    assert_eq!(candid::decode_one::<Vec<u8>>(&told).unwrap().len(), 32);
}
