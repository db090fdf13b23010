//! Full and unwritable disks: a clear word, no new updates, no damage.

use std::{path::Path, process::Command};

use crate::harness::*;

/// A small file system of its own; needs the right to mount. Tests that get none say so and use a limit on file sizes instead.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(mib: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_stops_updates_and_loses_nothing() {
    let Some(disk) = SmallDisk::new(400) else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    let mut node = Node::start_in(disk.path().join("data"), "512MiB", None).await;
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

    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut acknowledged = 10;
    let refusal = loop {
        match update(&agent, counter, "inc", vec![]).await {
            Ok(reply) => acknowledged = u64::from_le_bytes(reply.try_into().unwrap()),
            Err(error) => break error,
        }
        assert!(std::time::Instant::now() < deadline, "updates still pass on a full disk");
    };
    let text = format!("{refusal:?}");
    assert!(text.contains("disk") || text.contains("space"), "{text}");
    // Reading goes on.
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), acknowledged.to_le_bytes());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while reqwest::get(format!("{}/health", node.url)).await.unwrap().status().is_success() {
        assert!(std::time::Instant::now() < deadline, "the node still says it is healthy");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }

    // A kill on a full disk, then room again: everything acknowledged is there, and updates are taken.
    node.kill();
    std::fs::remove_file(&filler).unwrap();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), acknowledged.to_le_bytes());
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), (acknowledged + 1).to_le_bytes());
}

#[tokio::test]
async fn updates_are_taken_again_when_the_disk_has_room_without_a_restart() {
    let Some(disk) = SmallDisk::new(400) else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    let node = Node::start_in(disk.path().join("data"), "512MiB", None).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let filler = disk.path().join("filler");
    let _ = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1000"])
        .arg(format!("of={}", filler.display()))
        .output();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while update(&agent, counter, "inc", vec![]).await.is_ok() {
        assert!(std::time::Instant::now() < deadline, "updates still pass on a full disk");
    }
    std::fs::remove_file(&filler).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while update(&agent, counter, "inc", vec![]).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "updates are still refused with room on the disk");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"in the way").unwrap();
    let data = file.join("data");
    let output =
        thimble().args(["run", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(data.to_str().unwrap()), "{text}");
}

#[tokio::test]
async fn a_second_node_in_the_same_folder_is_refused() {
    let node = Node::start().await;
    let output =
        thimble().args(["run", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&node.data).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("another") || text.contains("in use"), "{text}");
}
