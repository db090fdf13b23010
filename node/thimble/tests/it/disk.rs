//! Full and unwritable disks: a clear word, no new updates, no damage.

use std::{
    fs,
    io::Write,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use candid::{Decode, Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::{ClearChunkStoreArgs, UploadChunkArgs};

use crate::{
    harness::*,
    subnet::{Subnet, increment},
};
use testing::{SmallDisk, until_async};

/// A disk that a node of 256 MiB takes updates on: what it keeps free, and some more.
pub(crate) fn disk_for_little() -> String {
    let reserve = limits::Limits::micro().unwrap().pages.disk_reserve_bytes;
    format!("{}m", (reserve >> 20) + 200)
}

// Promise: P7 - A full disk refuses updates with a reason and loses nothing.
#[tokio::test]
async fn a_disk_that_fills_up_stops_updates_and_loses_nothing() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(mount_point.path(), &disk_for_little()) else { return };
    let mut node = Node::start_in(disk.path().join("data"), "256MiB", None).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    for _ in 0..10 {
        update(&agent, counter, "inc", vec![]).await.unwrap();
    }
    // Someone else fills the disk.
    let filler = disk.path().join("filler");
    let written = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1000"])
        .arg(format!("of={}", filler.display()))
        .output()
        .unwrap();
    assert!(!written.status.success(), "the disk is full now");

    let (mut acknowledged, mut text) = (10, String::new());
    until_async("updates are refused on a full disk", async || {
        match update(&agent, counter, "inc", vec![]).await {
            Ok(reply) => acknowledged = u64::from_le_bytes(reply.try_into().unwrap()),
            Err(error) => text = format!("{error:?}"),
        }
        !text.is_empty()
    })
    .await;
    assert!(text.contains("disk") || text.contains("space"), "{text}");
    // Reads continue.
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), acknowledged.to_le_bytes());
    until_async("the node says that it is not healthy", async || !health(&node).await.0).await;

    // A kill on a full disk, then room again: everything acknowledged is there, and updates are
    // taken.
    node.kill();
    std::fs::remove_file(&filler).unwrap();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), acknowledged.to_le_bytes());
    assert_eq!(
        update(&agent, counter, "inc", vec![]).await.unwrap(),
        (acknowledged + 1).to_le_bytes()
    );
}

// Promise: P7 - Updates resume without a restart when the disk has room.
#[tokio::test]
async fn updates_are_taken_again_when_the_disk_has_room_without_a_restart() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(mount_point.path(), &disk_for_little()) else { return };
    let node = Node::start_in(disk.path().join("data"), "256MiB", None).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let filler = disk.path().join("filler");
    let _ = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1000"])
        .arg(format!("of={}", filler.display()))
        .output();
    until_async("updates are refused on a full disk", async || {
        update(&agent, counter, "inc", vec![]).await.is_err()
    })
    .await;
    std::fs::remove_file(&filler).unwrap();
    until_async("updates are taken with room on the disk", async || {
        update(&agent, counter, "inc", vec![]).await.is_ok()
    })
    .await;
}

/// What every call of a writer fills.
const WRITE_BYTES: u64 = 8 << 20;

/// A writer's record of the canister it fills: with 1, with 2, and so on.
struct FillWriter {
    canister: Principal,
    sent: AtomicU64,
    acknowledged: AtomicU64,
    failures: AtomicU64,
}

impl FillWriter {
    async fn keep_writing(self: Arc<Self>, agent: Agent, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::SeqCst) {
            let value = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
            let arguments = Encode!(&WRITE_BYTES, &(value as u8)).unwrap();
            match update(&agent, self.canister, "heap_fill", arguments).await {
                Ok(_) => self.acknowledged.store(value, Ordering::SeqCst),
                Err(_) => {
                    self.failures.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// The canister holds one write as a whole: the last that was acknowledged, or a later one
    /// whose answer was lost.
    async fn check(&self, agent: &Agent) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        // A query is given up while newer states wait to be written, which takes longer when the
        // disk is full; its sender is asked to retry.
        let mut sum = None;
        until_async("the canister is read", async || {
            let arguments = Encode!(&0u64, &WRITE_BYTES).unwrap();
            match query(agent, self.canister, "heap_read_sum", arguments).await {
                Ok(answer) => sum = Some(answer),
                Err(error) => assert!(error.to_string().contains("IC0208"), "{error}"),
            }
            sum.is_some()
        })
        .await;
        let sum = sum.unwrap();
        let sum = Decode!(&sum, u64).unwrap();
        let sent = self.sent.load(Ordering::SeqCst);
        assert!(
            (acknowledged..=sent).any(|value| sum == (value % 256) * WRITE_BYTES),
            "the bytes sum to {sum}; {acknowledged} was acknowledged, {sent} sent"
        );
    }
}

/// Uploads chunks, each different, until `stop` is set. Returns the number that were accepted.
async fn keep_uploading(agent: Agent, canister: Principal, stop: Arc<AtomicBool>) -> u64 {
    let mut taken = 0;
    for number in 0u64.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let chunk = number.to_le_bytes().repeat(32 << 10);
        let upload = UploadChunkArgs { canister_id: canister, chunk };
        match manage(&agent, canister, "upload_chunk", Encode!(&upload).unwrap()).await {
            Ok(_) => taken += 1,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        // The disk is small.
        if number % 16 == 15 {
            let clear = ClearChunkStoreArgs { canister_id: canister };
            let _ = manage(&agent, canister, "clear_chunk_store", Encode!(&clear).unwrap()).await;
        }
    }
    taken
}

// Promise: P7 - A disk that fills under load loses nothing and recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_under_a_storm_of_writes_loses_nothing_and_heals() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(mount_point.path(), "300m") else { return };
    // The log is on another disk, so that the events can be read.
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("log"), disk.path().join("data.log")).unwrap();
    // Next to no reserve: what meets the full disk is the writing of pages, not the node's
    // foresight.
    let config = "[limits.pages]\ndisk_reserve_bytes = 65536\n";
    let mut node = Node::start_as_in(disk.path().join("data"), None, "256MiB", config, "").await;
    let agent = node.agent(1).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = vec![];
    let mut storm = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let canister = deploy(&agent, "workbench.wasm").await;
        let written = Arc::new(FillWriter {
            canister,
            sent: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        storm.spawn(written.clone().keep_writing(node.agent(1).await, stop.clone()));
        writers.push(written);
    }
    let library = create(&agent).await;
    let uploads = tokio::spawn(keep_uploading(node.agent(1).await, library, stop.clone()));
    let acknowledged = || {
        let of = |writer: &Arc<FillWriter>| writer.acknowledged.load(Ordering::SeqCst);
        writers.iter().map(of).collect::<Vec<u64>>()
    };
    let failures =
        || writers.iter().map(|writer| writer.failures.load(Ordering::SeqCst)).sum::<u64>();
    let all_beyond =
        |now: Vec<u64>, before: &[u64]| now.iter().zip(before).all(|(now, then)| now > then);
    until_async("everybody writes", async || all_beyond(acknowledged(), &[2; 4])).await;

    // Twice, and until it was a write of pages that met the full disk: a chunk or the metadata may
    // meet it first.
    let pages_met_it = || node.log().contains("appending dirty pages");
    for time in 1.. {
        assert!(time < 50, "no write of pages met the full disk:\n{}", node.log());
        // Another process takes the rest of the disk, and all that the node frees.
        let mut filler = Filler::new(&disk);
        until_async("writers meet the full disk", async || {
            filler.fill();
            // Calls that were accepted before do not fail: they wait for the disk with their round.
            node.metric("thimble_updates_refused").await == 1
        })
        .await;
        // Reads continue, and no partial write is visible.
        for writer in &writers {
            writer.check(&agent).await;
        }
        let before = acknowledged();
        drop(filler);
        until_async("everybody writes again", async || all_beyond(acknowledged(), &before)).await;
        if time >= 2 && pages_met_it() {
            break;
        }
    }
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = storm.join_next().await {
        ended.unwrap();
    }
    let uploaded = uploads.await.unwrap();
    assert!(uploaded > 0);
    for writer in &writers {
        writer.check(&agent).await;
    }
    println!("{:?} acknowledged, {:?} failed, {uploaded} chunks", acknowledged(), failures());

    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    for writer in &writers {
        writer.check(&agent).await;
    }
    update(&agent, writers[0].canister, "inc", Encode!().unwrap()).await.unwrap();
}

/// Stable memory that is written while one node has no room for it.
const UNWRITABLE: u64 = 24 << 20;

/// Takes the rest of a disk, and all that is freed on it.
struct Filler {
    file: fs::File,
    path: std::path::PathBuf,
}

impl Filler {
    fn new(disk: &SmallDisk) -> Self {
        let path = disk.path().join("filler");
        Self { file: fs::File::create(&path).unwrap(), path }
    }

    fn fill(&mut self) {
        for size in [64 << 10, 4 << 10] {
            let chunk = vec![0; size];
            while self.file.write_all(&chunk).is_ok() {}
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// `/health`: whether it is well, and what it says.
async fn health(node: &Node) -> (bool, String) {
    let answer = reqwest::get(format!("{}/health", node.url)).await.unwrap();
    (answer.status().is_success(), answer.text().await.unwrap())
}

// Promise: P7 - One of four nodes with a full disk reports it on `/health` and catches up without a
//   restart.
#[tokio::test]
async fn one_of_four_with_a_full_disk_waits_and_says_so_and_goes_on_when_there_is_room() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(mount_point.path(), "400m") else { return };
    // The log is on another disk, so that the events can be read.
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("log"), disk.path().join("data.log")).unwrap();
    // Next to no reserve: what meets the full disk is the writing, not the node's foresight.
    let config = "[limits.pages]\ndisk_reserve_bytes = 65536\n";
    let mut subnet =
        Subnet::start_at(config, &["--provisional", "true"], Some(&disk.path().join("data"))).await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    update(&agent, bench, "stable_grow", Encode!(&(UNWRITABLE >> 16)).unwrap()).await.unwrap();
    let mut count = increment(&agent, counter).await;
    until_async("all four have it", async || subnet.all_count(counter, count).await).await;
    let pid = subnet.nodes[3].pid();

    // Twice: what healed once heals again.
    for byte in [7_u8, 9] {
        let mut filler = Filler::new(&disk);
        filler.fill();
        // The others continue, with canister memory that the fourth cannot write and beyond a
        // checkpoint.
        update(&agent, bench, "stable_fill", Encode!(&0u64, &UNWRITABLE, &byte).unwrap())
            .await
            .unwrap();
        for _ in 0..60 {
            count = increment(&agent, counter).await;
        }
        let mut last = String::new();
        until_async("the fourth says on /health that its disk is full", async || {
            filler.fill();
            let (healthy, said) = health(&subnet.nodes[3]).await;
            if last != said {
                println!("the fourth says {said:?}");
                last.clone_from(&said);
            }
            !healthy && said.contains("disk")
        })
        .await;
        let own = subnet.nodes[3].agent(1).await;
        let refusal = format!("{:?}", update(&own, counter, "inc", vec![]).await.unwrap_err());
        assert!(refusal.contains("disk") || refusal.contains("space"), "{refusal}");
        assert_eq!(increment(&agent, counter).await, count + 1);
        count += 1;

        drop(filler);
        until_async("the fourth has caught up", async || {
            health(&subnet.nodes[3]).await.0 && subnet.all_count(counter, count).await
        })
        .await;
        assert_eq!(subnet.nodes[3].pid(), pid, "it heals without a restart");
        for node in &subnet.nodes {
            let sum = Encode!(&0u64, &UNWRITABLE).unwrap();
            let sum = query(&node.agent(1).await, bench, "stable_read_sum", sum).await.unwrap();
            assert_eq!(Decode!(&sum, u64).unwrap(), u64::from(byte) * UNWRITABLE);
        }
        // The roots agree: with one of the others gone no certificate comes about without the
        // fourth's share.
        subnet.nodes[1].kill();
        let own = subnet.nodes[3].agent(1).await;
        count = increment(&own, counter).await;
        subnet.nodes[1].launch().await;
    }
    let log = subnet.nodes[3].log();
    assert!(!log.contains("differs"), "{log}");
}

/// How many files a process may open: the soft limit and the hard one.
fn descriptor_limits(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (words[0], words[1])
}

fn limit_descriptors(pid: u32, (soft, hard): (u64, u64)) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
    prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), Resource::Nofile, limit).unwrap();
}

// Promise: P7 - One of four nodes without descriptors waits and recovers without a restart.
#[tokio::test]
async fn one_of_four_that_can_open_nothing_more_waits_and_goes_on_when_it_can() {
    let mut subnet = Subnet::start_at("", &["--provisional", "true"], None).await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let mut count = increment(&agent, counter).await;
    until_async("all four have it", async || subnet.all_count(counter, count).await).await;
    let pid = subnet.nodes[3].pid();
    let limits = descriptor_limits(pid);
    for _ in 0..2 {
        // Below the number of each that it can get.
        limit_descriptors(pid, (8, limits.1));
        // The engine begins a file for each 4 MiB of votes, blocks and ingress messages.
        let seen = subnet.nodes[3].log().matches("takes no votes and blocks").count();
        until_async("the fourth meets the limit", async || {
            count += 1;
            let reply = update(&agent, counter, "inc", vec![0; 1 << 19]).await.unwrap();
            assert_eq!(u64::from_le_bytes(reply.try_into().unwrap()), count);
            subnet.nodes[3].log().matches("takes no votes and blocks").count() > seen
        })
        .await;
        for _ in 0..5 {
            count = increment(&agent, counter).await;
        }
        limit_descriptors(pid, limits);
        until_async("the fourth has caught up", async || {
            health(&subnet.nodes[3]).await.0 && subnet.all_count(counter, count).await
        })
        .await;
        assert_eq!(subnet.nodes[3].pid(), pid, "it heals without a restart");
    }
    // The roots agree: with one of the others gone no certificate comes about without the fourth's
    // share.
    subnet.nodes[1].kill();
    let own = subnet.nodes[3].agent(1).await;
    increment(&own, counter).await;
}

// Promise: P7 - Files that may not grow are waited for and named.
#[tokio::test]
async fn files_that_may_not_grow_are_waited_for_and_named() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let count = increment(&agent, counter).await;
    let pid = node.pid();
    let hard = getrlimit(Resource::Fsize).maximum;
    let limit = |bytes| {
        let limit = Rlimit { current: bytes, maximum: hard };
        prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), Resource::Fsize, limit).unwrap();
    };
    limit(Some(4096));
    let _ =
        tokio::time::timeout(Duration::from_secs(3), update(&agent, counter, "inc", vec![])).await;
    until_async("the node says what it waits for", async || !health(&node).await.0).await;
    limit(hard);
    until_async("it is well again", async || health(&node).await.0).await;
    assert!(increment(&agent, counter).await > count);
    assert_eq!(node.pid(), pid, "it heals without a restart");
}

// Promise: P7 - A folder that cannot be written is named.
#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"in the way").unwrap();
    let data = file.join("data");
    let output = thimble()
        .args(["run", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(data.to_str().unwrap()), "{text}");
}

#[tokio::test]
async fn a_second_node_in_the_same_folder_is_refused() {
    let node = Node::start().await;
    let output = thimble()
        .args(["run", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&node.data)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("another") || text.contains("in use"), "{text}");
}

/// Newest segment of a node's block log, and what it holds.
fn newest_segment(node: &Node) -> (std::path::PathBuf, Vec<u8>) {
    let files = fs::read_dir(node.data.join("blocks")).unwrap().map(|entry| entry.unwrap().path());
    let newest =
        files.filter(|path| path.extension().is_some_and(|end| end == "blocks")).max().unwrap();
    let bytes = fs::read(&newest).unwrap();
    (newest, bytes)
}

/// Starts a node that has to refuse, and returns its log since.
async fn refused(node: &mut Node) -> String {
    let before = node.log().len();
    node.spawn();
    let status = node.ended().await;
    assert!(!status.success());
    node.log()[before..].to_owned()
}

// Promise: P6 - A node refuses a flipped bit by height and accepts a torn end.
#[tokio::test]
async fn a_flipped_bit_in_the_block_log_is_refused_by_height_and_a_torn_end_is_not() {
    const UPDATES: u64 = 20;
    let mut node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    for _ in 0..UPDATES {
        update(&agent, counter, "inc", vec![]).await.unwrap();
    }
    node.kill();
    let (path, whole) = newest_segment(&node);
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
    };
    // In the middle, and in the last block: only what executing it gave follows.
    let near_the_end = whole.len() - 100;
    for at in [whole.len() / 2, near_the_end] {
        flip(at);
        let log = refused(&mut node).await;
        assert!(log.contains("is damaged at byte") && log.contains("cannot be read"), "{log}");
        assert!(log.contains("docs/operating.md"), "{log}");
    }
    // A missing end is not a tear either: more was certified.
    fs::write(&path, &whole[..whole.len() * 3 / 4]).unwrap();
    let log = refused(&mut node).await;
    assert!(log.contains("were acknowledged and are missing"), "{log}");
    // The remains of an unacknowledged write after a crash.
    let torn = [whole.as_slice(), &[0x5a; 700], &[0; 3_000]].concat();
    fs::write(&path, torn).unwrap();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), UPDATES.to_le_bytes());
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), (UPDATES + 1).to_le_bytes());
}
