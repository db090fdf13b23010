//! Situations that are hard on a node and no fault of anybody: a cache that is cold, long messages
//! of many canisters at once, a disk that is slow.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use candid::{Decode, Encode, Principal};
use ic_agent::Agent;
use rustix::fs::{Advice, fadvise, syncfs};
use testing::group::Group;
use tokio::task::JoinSet;

use crate::harness::*;

const MIB: u64 = 1 << 20;

/// Heap that each of the cold canisters has.
const COLD_BYTES: u64 = 6 * MIB;

/// Drops the kernel's cache of the files in a folder; no process may have them mapped.
fn drop_cache(folder: &Path) {
    syncfs(fs::File::open(folder).unwrap()).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
}

/// Bytes that the node and its workers had read from the disk.
fn read_bytes(node: &Node) -> u64 {
    let of = |pid: u32| -> u64 {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
        line.parse().unwrap()
    };
    node.workers().into_iter().chain([node.pid()]).map(of).sum()
}

// Promise: P3 - Canisters of twice the capped memory, all cold, are read correctly in random order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canisters_beyond_the_cap_are_right_when_all_are_cold_and_touched_in_any_order() {
    const CANISTERS: u64 = 48;
    const CAP: u64 = 160 * MIB;
    let Some(group) = Group::new() else { return };
    group.cap(CAP);
    let mut node = Node::start_as("160MiB", "", &group.prelude()).await;
    let agent = node.agent(1).await;
    let mut canisters = vec![];
    for number in 0..CANISTERS {
        let canister = deploy(&agent, "workbench.wasm").await;
        let fill = Encode!(&COLD_BYTES, &(number as u8 + 1)).unwrap();
        update(&agent, canister, "heap_fill", fill).await.unwrap();
        canisters.push((canister, number + 1));
    }
    node.stop();
    drop_cache(&node.data.join("pages"));
    node.launch().await;
    let agent = node.agent(1).await;
    let before = read_bytes(&node);
    // Each once, in an order that has nothing to do with their ids; by turns a query and a message.
    for step in 0..CANISTERS {
        let (canister, byte) = canisters[(step * 29 % CANISTERS) as usize];
        let range = Encode!(&0u64, &COLD_BYTES).unwrap();
        let sum = match step % 2 {
            0 => query(&agent, canister, "heap_read_sum", range).await,
            _ => update(&agent, canister, "heap_read_sum_update", range).await,
        };
        assert_eq!(Decode!(&sum.unwrap(), u64).unwrap(), byte * COLD_BYTES, "of {canister}");
        let held = group.held_bytes();
        assert!(held < CAP, "{} MiB cannot be dropped", held / MIB);
    }
    let read = read_bytes(&node) - before;
    println!("{} MiB read, {} MiB held at the end", read / MIB, group.held_bytes() / MIB);
    assert!(read >= CANISTERS * COLD_BYTES, "the cache was not cold: {} MiB read", read / MIB);
    assert_eq!(group.kills(), 0);
    assert_eq!(node.metric("thimble_worker_restarts_total").await, 0);
}

async fn count(agent: &Agent, counter: Principal) -> u64 {
    let reply = update(agent, counter, "inc", vec![]).await.unwrap();
    u64::from_le_bytes(reply.try_into().unwrap())
}

// Promise: P13 - Ten canisters with messages of forty slices delay other calls by a few rounds.
/// Forty slices each, as one of 40 billion instructions has, of 20 million instructions instead of
/// a billion: how many slices there are decides who waits, and this takes seconds instead of
/// minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_canisters_with_messages_of_forty_slices_hold_up_nobody() {
    const SLICE: u64 = 20_000_000;
    const LONG: u64 = 40 * SLICE - SLICE / 2;
    let config = format!(
        "[limits.execution]\ninstructions_per_slice = {SLICE}\n\
         instructions_per_message = {}\ninstructions_per_round = {}\n",
        40 * SLICE,
        4 * SLICE,
    );
    let node = Node::start_as("256MiB", &config, "").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let mut canisters = vec![];
    for _ in 0..10 {
        canisters.push(deploy(&agent, "workbench.wasm").await);
    }
    let mut long = JoinSet::new();
    let over = Arc::new(AtomicU64::new(0));
    for canister in canisters {
        let (agent, over) = (node.agent(1).await, over.clone());
        long.spawn(async move {
            let reply = update(&agent, canister, "spin", Encode!(&LONG).unwrap()).await;
            over.fetch_add(1, Ordering::SeqCst);
            Decode!(&reply.unwrap(), u64).unwrap()
        });
    }
    let mut served = 0;
    while over.load(Ordering::SeqCst) < 10 {
        served += 1;
        assert_eq!(count(&agent, counter).await, served);
    }
    let used = long.join_all().await;
    println!("{served} calls were served meanwhile");
    assert!(used.iter().all(|used| (LONG..40 * SLICE).contains(used)), "{used:?}");
    // They have four slices a round together, so they take a hundred rounds or more.
    assert!(served >= 30, "{served} calls were served meanwhile");
    assert_eq!(node.metric("thimble_worker_restarts_total").await, 0);
}

/// What each sync takes on the slow disk.
const SYNC: Duration = Duration::from_millis(20);

/// Whether strace works; where it does not and all has to run, the test fails.
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    let works = traced.is_ok_and(|traced| traced.status.success());
    if !works {
        testing::missing("strace cannot trace here: install it, and permit ptrace");
    }
    works
}

/// Becomes the node below a tracer that holds up every sync.
fn slow_syncs() -> String {
    let calls = "fsync,fdatasync,syncfs";
    format!(
        "exec strace -D -f -qqq --seccomp-bpf -o /dev/null -e trace={calls} -e \
         inject={calls}:delay_exit={} \"$0\" \"$@\"",
        SYNC.as_micros()
    )
}

// Promise: P7 - Syncs of 20 ms delay no call for 10 s, and memory stays below 100 MiB of 160 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_whose_syncs_take_long_slows_calls_and_holds_up_none() {
    const LANES: usize = 16;
    const CALLS: u64 = 25;
    const WRITTEN: u64 = 6 * MIB;
    if !can_trace() {
        return;
    }
    let mut node = Node::start_as("160MiB", "", &slow_syncs()).await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    let grow = Encode!(&(WRITTEN >> 16)).unwrap();
    update(&agent, bench, "stable_grow", grow).await.unwrap();
    let height = async |node: &Node| node.metric("thimble_certified_height").await;
    let (first, begun) = (height(&node).await, Instant::now());
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        let agent = node.agent(1).await;
        lanes.spawn(async move {
            let counter = deploy(&agent, "counter-c.wasm").await;
            let mut longest = Duration::ZERO;
            for expected in 1..=CALLS {
                let sent = Instant::now();
                assert_eq!(count(&agent, counter).await, expected);
                longest = longest.max(sent.elapsed());
            }
            (counter, longest)
        });
    }
    // Meanwhile a canister writes as much as a node of this size may hold in memory.
    for byte in 1..=27_u8 {
        let fill = Encode!(&0u64, &WRITTEN, &byte).unwrap();
        update(&agent, bench, "stable_fill", fill).await.unwrap();
        let anonymous = node.anonymous_bytes().await;
        assert!(anonymous < 100 * MIB, "{} MiB", anonymous / MIB);
    }
    let lanes = lanes.join_all().await;
    let (rounds, took) = (height(&node).await - first, begun.elapsed());
    let longest = lanes.iter().map(|(_, longest)| *longest).max().unwrap();
    println!("{rounds} rounds in {took:?}, the longest call took {longest:?}");
    // Every block was synced before it was executed.
    assert!(took >= SYNC * u32::try_from(rounds).unwrap(), "{rounds} rounds in {took:?}");
    assert!(longest < Duration::from_secs(10), "a call took {longest:?}");
    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    for (counter, _) in lanes {
        assert_eq!(count(&agent, counter).await, CALLS + 1);
    }
}
