//! Where memory ends: the kernel kills, caps below what works, canisters that take all they can,
//! modules too large to compile, and more canisters than fit.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use candid::{Decode, Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::{CanisterInstallMode, CanisterSettings};

use testing::group::Group;

use crate::harness::*;
use testing::until_async;

const MIB: u64 = 1 << 20;

async fn fill_heap(agent: &Agent, canister: Principal, mib: u64, byte: u8) -> Result<(), String> {
    let filled = update(agent, canister, "heap_fill", Encode!(&(mib * MIB), &byte).unwrap()).await;
    filled.map(drop).map_err(|error| rejected(error).1)
}

async fn heap_sum(agent: &Agent, canister: Principal, mib: u64) -> u64 {
    let reply = query(agent, canister, "heap_read_sum", Encode!(&0u64, &(mib * MIB)).unwrap())
        .await
        .unwrap();
    Decode!(&reply, u64).unwrap()
}

async fn count(agent: &Agent, counter: Principal) -> u64 {
    let reply = update(agent, counter, "inc", vec![]).await.unwrap();
    u64::from_le_bytes(reply.try_into().unwrap())
}

// Promise: P1 - A worker killed by the kernel for memory costs one retry of its message.
#[tokio::test]
async fn a_worker_killed_for_memory_is_replaced_and_its_message_runs_again() {
    let Some(group) = Group::new() else { return };
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    for expected in 1..=5 {
        assert_eq!(count(&agent, counter).await, expected);
    }
    let restarts = node.metric("thimble_worker_restarts_total").await;
    group.cap(16 * MIB);
    for worker in node.workers() {
        group.add(worker);
    }
    // The worker has no room for this; the one that takes its place lives in the node's own group,
    // which has.
    fill_heap(&agent, bench, 48, 3).await.unwrap();
    assert!(group.kills() >= 1, "the kernel killed no process");
    assert!(node.metric("thimble_worker_restarts_total").await > restarts);
    assert_eq!(heap_sum(&agent, bench, 48).await, 3 * 48 * MIB);
    assert_eq!(count(&agent, counter).await, 6);
}

async fn health(node: &Node) -> String {
    reqwest::get(format!("{}/health", node.url)).await.unwrap().text().await.unwrap()
}

/// A message that writes, under way.
type Filling = tokio::task::JoinHandle<Result<(), String>>;

/// A node in a group that has no room for what a message writes, waiting for it; the message, and
/// the arguments of the command that the node prints.
async fn waiting(
    group: &Group,
    node: &Node,
    agent: &Agent,
    bench: Principal,
) -> (Filling, Vec<String>) {
    // The group gets less memory than the node was promised. The worker is smaller than the node,
    // and is still the process to be killed.
    group.cap(group.held_bytes() + 12 * MIB);
    let filling = tokio::spawn({
        let agent = agent.clone();
        async move { fill_heap(&agent, bench, 60, 4).await }
    });
    until_async("the node says what it waits for", async || {
        health(node).await.contains("thimble reject")
    })
    .await;
    let text = health(node).await;
    assert!(text.contains("a round waits") && text.contains(&bench.to_text()), "{text}");
    let (_, command) = text.split_once("thimble reject ").unwrap();
    let (command, _) = command.split_once(',').unwrap();
    (filling, command.split(' ').map(str::to_owned).collect())
}

#[tokio::test]
async fn a_message_too_large_for_the_process_group_waits_until_there_is_room() {
    let Some(group) = Group::new() else { return };
    let mut node = Node::start_as("512MiB", "", &group.prelude()).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    fill_heap(&agent, bench, 8, 3).await.unwrap();
    for expected in 1..=5 {
        assert_eq!(count(&agent, counter).await, expected);
    }
    let restarts = node.metric("thimble_worker_restarts_total").await;
    let (filling, _) = waiting(&group, &node, &agent, bench).await;
    assert!(group.kills() >= 2, "{} killed", group.kills());
    assert!(node.metric("thimble_worker_restarts_total").await > restarts);
    let refused = update(&agent, counter, "inc", vec![]).await.unwrap_err();
    let refused = format!("{refused:?}");
    assert!(refused.contains("a round waits") && refused.contains("SIGKILL"), "{refused}");
    for hidden in [&node.data.display().to_string()[..], "thimble reject"] {
        assert!(!refused.contains(hidden), "`{hidden}` in {refused}");
    }
    assert_eq!(heap_sum(&agent, bench, 8).await, 3 * 8 * MIB, "queries go on");

    // With room the same message has the same result as anywhere else, and updates are accepted
    // again automatically.
    group.cap(1024 * MIB);
    filling.await.unwrap().unwrap();
    until_async("updates are taken again", async || {
        update(&agent, counter, "inc", vec![]).await.is_ok()
    })
    .await;
    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(heap_sum(&agent, bench, 60).await, 4 * 60 * MIB);
    assert_eq!(count(&agent, counter).await, 7);
}

// Promise: P7 - A message that kills every worker is reported with the command that rejects it.
#[tokio::test]
async fn an_operator_has_a_message_rejected_that_kills_every_worker() {
    let Some(group) = Group::new() else { return };
    let mut node = Node::start_as("512MiB", "", &group.prelude()).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    fill_heap(&agent, bench, 8, 3).await.unwrap();
    assert_eq!(count(&agent, counter).await, 1);
    let (filling, command) = waiting(&group, &node, &agent, bench).await;
    let output = thimble().arg("reject").args(&command).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Stopping in the middle of a wait is a clean end.
    node.stop();
    filling.abort();
    group.cap(1024 * MIB);
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(
        heap_sum(&agent, bench, 8).await,
        3 * 8 * MIB,
        "nothing of the message is seen, though it would run now"
    );
    assert_eq!(count(&agent, counter).await, 2);
    assert!(node.log().contains("a verdict took effect: the message was rejected"));
    assert_eq!(node.metric("thimble_verdicts_total").await, 1);

    // The verdict is in the block log: a replay repeats it without the file.
    node.kill();
    std::fs::remove_file(node.data.join("verdicts.txt")).unwrap();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(heap_sum(&agent, bench, 8).await, 3 * 8 * MIB);
    assert_eq!(count(&agent, counter).await, 3);
}

// Promise: P13 - Slow queries delay no round and end no node.
#[tokio::test]
async fn slow_queries_neither_end_nor_hold_up_a_node_that_writes() {
    let mut node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    fill_heap(&agent, bench, 8, 1).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let (agent, stop) = (agent.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // Each until its instructions are used up, on the state that was newest when it
                    // began.
                    let _ = query(&agent, bench, "loop_forever_query", Encode!().unwrap()).await;
                }
            })
        })
        .collect();
    // More than the delta log holds, many times over.
    for byte in 1..=60u8 {
        fill_heap(&agent, bench, 8, byte).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for query in slow {
        query.await.unwrap();
    }
    // Queries whose clients gave up are executed to their end, and their canister's worker is
    // theirs until then.
    let first = Encode!(&0u64, &MIB).unwrap();
    until_async("the canister's query worker is free", async || {
        query(&agent, bench, "heap_read_sum", first.clone()).await.is_ok()
    })
    .await;
    assert_eq!(heap_sum(&agent, bench, 8).await, 60 * 8 * MIB);
    node.kill();
    node.launch().await;
    assert_eq!(heap_sum(&node.agent(1).await, bench, 8).await, 60 * 8 * MIB);
}

// Promise: P13 - Endless queries of one canister leave workers to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_queries_of_one_canister_leave_answers_to_others() {
    // No count of instructions ends them.
    const LIMITS: &str = "[limits.execution]\ninstructions_per_query = 1000000000000000\n\
                          query_wall_clock_seconds = 1\nquery_wait_seconds = 60\n";
    let node = Node::start_as("512MiB", LIMITS, "").await;
    let agent = node.agent(1).await;
    let endless = deploy(&agent, "workbench.wasm").await;
    let other = deploy(&agent, "workbench.wasm").await;
    let attackers: Vec<_> = (0..6)
        .map(|_| {
            let agent = agent.clone();
            tokio::spawn(async move {
                query(&agent, endless, "loop_forever_query", Encode!().unwrap()).await
            })
        })
        .collect();
    let none = Encode!().unwrap();
    for _ in 0..4 {
        query(&agent, other, "get", none.clone()).await.unwrap();
    }
    // Calls are checked by the same worker.
    update(&agent, other, "inc", none.clone()).await.unwrap();
    for attacker in attackers {
        let (_, text, code) = rejected(attacker.await.unwrap().unwrap_err());
        assert_eq!(code, "IC0528", "{text}");
        assert!(text.contains("query_wall_clock_seconds = 1"), "{text}");
    }
    assert_eq!(node.metric("thimble_queries_ended_by_wall_clock_total").await, 6);
    // Their workers are no deaths; one line of the log stands for all within a minute.
    assert_eq!(node.metric("thimble_worker_restarts_total").await, 0);
    assert_eq!(node.log().matches("query_wall_clock_seconds and was ended").count(), 1);
    assert_eq!(node.metric("thimble_worker_restarts_total").await, 0);
    query(&agent, endless, "get", none).await.unwrap();
}

/// Runs a node that must refuse to start; what it says.
fn refused(prelude: &str, memory: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = thimble_after(prelude)
        .args(["run", "--memory", memory, "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

// Promise: P1 - `thimble run` refuses a budget below 96 MiB and names the smallest budget.
#[test]
fn a_budget_below_the_smallest_is_refused_with_the_size_that_works() {
    let text = refused("", "64MiB");
    assert!(
        text.contains("64 MiB") && text.contains("the smallest size that works is 96 MiB"),
        "{text}"
    );
}

// Promise: P1 - A process group capped below 96 MiB is refused at start.
#[tokio::test]
async fn a_process_group_below_the_smallest_size_is_refused_and_one_below_the_budget_warned_of() {
    let Some(group) = Group::new() else { return };
    group.cap(80 * MIB);
    let text = refused(&group.prelude(), "512MiB");
    for words in ["80 MiB", "512 MiB", "the smallest size that works is 96 MiB", "--memory 96MiB"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.contains(group.directory().to_str().unwrap()), "{text}");

    group.cap(300 * MIB);
    let node = Node::start_as("512MiB", "", &group.prelude()).await;
    let log = node.log();
    assert!(log.contains("may take 300 MiB but the budget is 512 MiB"), "{log}");
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await, 1);
}

/// Watches the node's memory until dropped.
struct MemoryWatcher {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
}

impl MemoryWatcher {
    fn new(node: &Node) -> Self {
        let watched = Self { stop: Arc::default(), most: Arc::default() };
        let (stop, most, url) =
            (watched.stop.clone(), watched.most.clone(), format!("{}/metrics", node.url));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(response) = reqwest::get(&url).await
                    && let Ok(text) = response.text().await
                    && text.contains("# EOF")
                {
                    let bytes = figure(&text, "thimble_memory_anonymous_bytes");
                    most.fetch_max(bytes, Ordering::Relaxed);
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        watched
    }

    /// Most that was seen.
    fn most_bytes(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Takes memory page by page and writes to it at once: everything there is, or 16 MiB more per
/// call; replies how many pages it has.
const EATER: &str = r#"(module
  (import "ic0" "msg_arg_data_copy" (func $arg (param i32 i32 i32)))
  (import "ic0" "msg_reply" (func $reply))
  (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
  (memory 1)
  (func $eat (param $pages i32)
    (local $at i32) (local $end i32)
    (loop $more
      (if (i32.eqz (local.get $pages)) (then return))
      (local.set $at (i32.shl (memory.grow (i32.const 1)) (i32.const 16)))
      (if (i32.eq (local.get $at) (i32.const 0xffff0000)) (then return))
      (local.set $end (i32.add (local.get $at) (i32.const 65536)))
      (loop $touch
        (i32.store (local.get $at) (i32.const 1))
        (local.set $at (i32.add (local.get $at) (i32.const 4096)))
        (br_if $touch (i32.lt_u (local.get $at) (local.get $end))))
      (local.set $pages (i32.sub (local.get $pages) (i32.const 1)))
      (br $more)))
  (func (export "canister_update everything") (call $eat (i32.const -1)))
  (func (export "canister_update some")
    (call $eat (i32.const 256))
    (i32.store (i32.const 0) (memory.size))
    (call $append (i32.const 0) (i32.const 4))
    (call $reply)))"#;

#[tokio::test]
async fn a_canister_that_takes_all_memory_it_can_gets_its_limit_and_no_more() {
    let capacity = "[limits.subnet]\nmemory_capacity_bytes = \"256MiB\"\n";
    let node = Node::start_as("256MiB", capacity, "").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let module = wat::parse_str(EATER).unwrap();
    let watched = MemoryWatcher::new(&node);

    // In one message: the cap on what a message may write.
    let eater = create(&agent).await;
    install(&agent, eater, CanisterInstallMode::Install, module.clone(), vec![]).await.unwrap();
    let (code, text, _) = rejected(update(&agent, eater, "everything", vec![]).await.unwrap_err());
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("30 MiB") && text.contains("Wasm memory"), "the limit is named: {text}");

    // The owner's own limit is a trap that names it.
    let limited =
        CanisterSettings { wasm_memory_limit: Some((4 * MIB).into()), ..Default::default() };
    let modest = create_with(&agent, Some(limited)).await.unwrap();
    install(&agent, modest, CanisterInstallMode::Install, module, vec![]).await.unwrap();
    let (code, text, _) = rejected(update(&agent, modest, "some", vec![]).await.unwrap_err());
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("4194304") || text.contains("4 MiB"), "the limit is named: {text}");

    // Over many: memory.grow fails once the subnet has no more, which is long before the address
    // space ends.
    let mut pages = 0;
    for _ in 0..40 {
        let reply = update(&agent, eater, "some", vec![]).await.unwrap();
        let now = u64::from(u32::from_le_bytes(reply.try_into().unwrap()));
        if now == pages {
            break;
        }
        pages = now;
    }
    let taken = pages << 16;
    assert!(
        (128 * MIB..=256 * MIB).contains(&taken),
        "{} MiB of a capacity of 256 MiB",
        taken / MIB
    );

    assert_eq!(count(&agent, counter).await, 1);
    let most = watched.most_bytes();
    println!("{} MiB taken, at most {} MiB of anonymous memory", taken / MIB, most / MIB);
    assert!(most > 0 && most < 256 * MIB, "{} MiB", most / MIB);
}

/// Installed a thousand times: a counter that replies nothing.
const TINY: &str = r#"(module
  (import "ic0" "msg_reply" (func $reply))
  (memory 1)
  (func (export "canister_update touch")
    (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
    (call $reply)))"#;

// Promise: P3 - 1,000 idle canisters use at most 8 MiB of anonymous memory more than 100.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_canisters_take_no_more_memory_than_a_hundred() {
    const LANES: usize = 16;
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let module = Arc::new(wat::parse_str(TINY).unwrap());
    let live = async |canisters: usize| {
        let left = Arc::new(AtomicUsize::new(canisters));
        let mut lanes = tokio::task::JoinSet::new();
        for _ in 0..LANES {
            let (agent, module, left) = (agent.clone(), module.clone(), left.clone());
            lanes.spawn(async move {
                let take = |left: usize| left.checked_sub(1);
                let mut born = vec![];
                while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                    let canister = create(&agent).await;
                    install(
                        &agent,
                        canister,
                        CanisterInstallMode::Install,
                        module.to_vec(),
                        vec![],
                    )
                    .await
                    .unwrap();
                    update(&agent, canister, "touch", vec![]).await.unwrap();
                    born.push(canister);
                }
                born
            });
        }
        lanes.join_all().await.concat()
    };
    let mut born = live(100).await;
    let hundred = node.anonymous_bytes().await;
    born.extend(live(900).await);
    let thousand = node.anonymous_bytes().await;
    println!("{} MiB with 100 canisters, {} MiB with 1,000", hundred / MIB, thousand / MIB);
    assert!(thousand < hundred + 8 * MIB, "{hundred} with 100 canisters, {thousand} with 1,000");
    // Those that had to leave their worker long ago come back when called.
    for canister in [born[0], born[500], born[999]] {
        update(&agent, canister, "touch", vec![]).await.unwrap();
    }
    assert_eq!(node.metric("thimble_worker_restarts_total").await, 0);
}

/// Loops within loops, and the innermost changes every local.
fn entangled(locals: usize, depth: usize) -> String {
    let change: String = (0..locals)
        .map(|n| format!("(local.set {n} (i32.add (local.get {n}) (i32.const 1)))"))
        .collect();
    let ends = "(br_if 0 (global.get 0)) end ".repeat(depth);
    format!(
        "(module (global (mut i32) (i32.const 0)) (func (local {}) {} {change} {ends}))",
        "i32 ".repeat(locals),
        "loop ".repeat(depth)
    )
}

#[tokio::test]
async fn a_module_too_large_to_compile_is_refused_with_the_limit_and_costs_nobody_else() {
    let node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await, 1);
    for (name, limit, text) in [
        (
            "as many functions as there may be, each in a table",
            "the limit `module.weight` is ",
            format!(
                "(module (table funcref (elem {})){})",
                "0 ".repeat(49_900),
                "(func)".repeat(49_900)
            ),
        ),
        (
            "one function that is hard",
            "the limit `module.function_weight` is ",
            entangled(5_000, 1_000),
        ),
    ] {
        let module = wat::parse_str(text).unwrap();
        println!("{name}: {} KiB", module.len() >> 10);
        let canister = create(&agent).await;
        let (installed, counted) = tokio::join!(
            install(&agent, canister, CanisterInstallMode::Install, module, vec![]),
            update(&agent, counter, "inc", vec![])
        );
        counted.unwrap();
        let error = installed.expect_err(name);
        let (code, text, _) = rejected(error);
        assert_eq!(code, 5, "{name}: {text}");
        let value = text.split_once(limit).map(|(_, value)| value);
        assert!(
            value.is_some_and(|value| value.starts_with(|digit: char| digit.is_ascii_digit())),
            "{name}: the limit is named with its value: {text}"
        );
        // The same canister takes a module of ordinary size right after, and the others continue.
        let ordinary = std::fs::read(fixture("workbench.wasm")).unwrap();
        install(&agent, canister, CanisterInstallMode::Install, ordinary, Encode!().unwrap())
            .await
            .unwrap();
        update(&agent, canister, "inc", Encode!().unwrap()).await.unwrap();
    }
    assert_eq!(count(&agent, counter).await, 4);
}

/// A module of 10 MB: mostly data, all of which its heap begins with.
fn ten_megabytes() -> Vec<u8> {
    let data = "d".repeat(10_000_000);
    let module = wat::parse_str(format!(
        r#"(module
             (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
             (import "ic0" "msg_reply" (func $reply))
             (memory 160)
             (data (i32.const 16) "{data}")
             (func (export "canister_query last")
               (call $append (i32.const 10000015) (i32.const 1))
               (call $reply)))"#
    ))
    .unwrap();
    assert!(module.len() >= 10_000_000);
    module
}

// Promise: P1 - A node of 128 MiB installs a module of 10 MB and runs a compilation of 95 MiB.
#[tokio::test]
async fn a_node_of_128_mib_installs_ten_megabytes_and_compiles_what_takes_most_of_its_memory() {
    let Some(group) = Group::new() else { return };
    group.cap(128 * MIB);
    let node = Node::start_as("128MiB", "", &group.prelude()).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(count(&agent, counter).await, 1);
    let watched = MemoryWatcher::new(&node);

    let large = create(&agent).await;
    install_in_chunks(&agent, large, &ten_megabytes()).await.unwrap();
    assert_eq!(query(&agent, large, "last", vec![]).await.unwrap(), b"d");

    // A JavaScript engine: compiling it takes some 95 MiB. Whether its start fits what a message
    // may write in so small a node is another matter.
    let artefacts = || std::fs::read_dir(node.data.join("artifacts")).unwrap().count();
    let before = artefacts();
    let engine = std::fs::read(fixture("azle-hello.wasm.gz")).unwrap();
    let canister = create(&agent).await;
    if let Err(error) = install_in_chunks(&agent, canister, &engine).await {
        let (code, text, _) = rejected(error);
        assert!(code == 5 && text.contains("Wasm memory"), "{code}: {text}");
    }
    assert_eq!(artefacts(), before + 2, "it was compiled");
    assert_eq!(count(&agent, counter).await, 2);
    assert_eq!(group.kills(), 0);
    let most = watched.most_bytes();
    println!("{} MiB of anonymous memory at most", most / MIB);
    assert!(most < 128 * MIB, "{most}");
}
