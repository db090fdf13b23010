//! The disk as the second budget: found, remembered, stated, filled.

use candid::{CandidType, Encode, Nat};

use crate::{disk::disk_for_little, harness::*};
use testing::SmallDisk;

/// The disk in the status report: budget, and used and cap of a line.
async fn disk(node: &Node, line: &str) -> (u64, u64, u64) {
    let report = node.status().await;
    let lines = report["disk"]["lines"].as_array().unwrap();
    let line = lines.iter().find(|found| found["name"] == line).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    (
        number(&report["disk"]["budget_bytes"]),
        number(&line["used_bytes"]),
        number(&line["cap_bytes"]),
    )
}

#[derive(CandidType)]
struct Settings {
    memory_allocation: Nat,
}

#[derive(CandidType)]
struct UpdateSettings {
    canister_id: candid::Principal,
    settings: Settings,
}

/// Has memory promised to a canister.
async fn allocate(
    agent: &ic_agent::Agent,
    canister_id: candid::Principal,
    bytes: u64,
) -> Result<(), ic_agent::AgentError> {
    let settings = Settings { memory_allocation: bytes.into() };
    let arguments = Encode!(&UpdateSettings { canister_id, settings }).unwrap();
    manage(agent, canister_id, "update_settings", arguments).await.map(drop)
}

// Promise: P4 - A node without `--disk` uses the free space of its first start from then on.
#[tokio::test]
async fn the_disk_that_was_found_is_remembered_and_another_may_be_stated() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(small) = SmallDisk::mount(mount_point.path(), "8g") else { return };
    let mut node = Node::start_in(small.path().join("data"), "512MiB", None).await;
    let (found, _, capacity) = disk(&node, "canister_state").await;
    assert!((7 << 30..=8 << 30).contains(&found), "{found}");
    assert!((1 << 30..found).contains(&capacity), "{capacity}");

    // Other files on the disk do not change a limit.
    std::fs::write(small.path().join("filler"), vec![1; 64 << 20]).unwrap();
    node.restart().await;
    assert_eq!(disk(&node, "canister_state").await.0, found);
    node.kill();
    node.launch().await;
    let (remembered, _, cap) = disk(&node, "canister_state").await;
    assert_eq!((remembered, cap), (found, capacity));

    node.reconfigure("disk = \"100GiB\"\n").await;
    let (stated, _, cap) = disk(&node, "canister_state").await;
    assert_eq!(stated, 100 << 30);
    assert!(cap > 56 << 30, "{cap}");
    let (_, _, code) = disk(&node, "compiled_modules").await;
    assert_eq!(code, 4 << 30);

    // The file system has less, which is reported wherever the budget is.
    let report = node.status().await;
    let shortage = report["disk"]["shortage"].as_str().unwrap_or_default();
    assert!(shortage.contains("100 GiB") && shortage.contains("8 GiB"), "{shortage}");
    let output = thimble()
        .args(["limits", "--disk", "100GiB", "--data-dir"])
        .arg(small.path().join("data"))
        .output()
        .unwrap();
    assert!(output.status.success());
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("100 GiB") && warning.contains("8 GiB"), "{warning}");
}

// Promise: P4 - A disk smaller than its budget is reported with both numbers by log, `limits` and
//   `status`.
#[tokio::test]
async fn disk_with_less_free_than_smallest_budget_is_reported() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(small) = SmallDisk::mount(mount_point.path(), &disk_for_little()) else { return };
    let node = Node::start_in(small.path().join("data"), "256MiB", None).await;
    let report = node.status().await;
    let shortage = report["disk"]["shortage"].as_str().unwrap_or_default();
    let (_, smallest) = smallest_disk();
    assert!(shortage.contains("free") && shortage.contains(&smallest), "{shortage}");
}

// Promise: P4 - Canisters fill the stated disk budget and do not exceed it.
#[tokio::test]
async fn canisters_fill_the_disk_that_is_stated_and_no_more() {
    let (ok, smallest) = smallest_disk();
    assert!(!ok, "{smallest}");
    let config = format!("disk = \"{smallest}\"\n");
    let mut node = Node::start_as("256MiB", &config, "").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1_u64.to_le_bytes());
    let (_, used, cap) = disk(&node, "canister_state").await;
    assert!(used > 0 && cap == 64 << 20, "{used} {cap}");

    let refused = allocate(&agent, counter, 100 << 20).await.unwrap_err();
    let (_, message, _) = rejected(refused);
    assert!(message.contains("subnet.memory_capacity_bytes"), "{message}");
    assert!(message.contains(&cap.to_string()), "{message}");

    node.reconfigure("disk = \"20GiB\"\n").await;
    let agent = node.agent(1).await;
    allocate(&agent, counter, 10 << 30).await.unwrap();
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 2_u64.to_le_bytes());
    let metrics = node.metrics().await;
    assert!(metrics.contains("thimble_disk_used_bytes{line=\"block_log\"}"), "{metrics}");
}

/// The smallest disk for 256 MiB of memory, as the refusal of a smaller one names it.
fn smallest_disk() -> (bool, String) {
    let output =
        thimble().args(["limits", "--memory", "256MiB", "--disk", "1MiB"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let (_, rest) = text.split_once("smallest disk that works is ").expect(&text);
    let (size, _) = rest.split_once(';').unwrap();
    (output.status.success(), size.to_owned())
}
