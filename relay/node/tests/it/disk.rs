//! Disks that are full, and disks that change bytes.

use std::{
    fs,
    num::NonZeroU16,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use protocol::{ContentTopic, PubsubTopic, Text, autoshard, filter::Action, store};

use crate::{
    gossip::GossipPeer,
    harness::Relay,
    peer::{Client, TIMEOUT, message, serves},
};
use testing::{SmallDisk, until_async};

const TOPIC: &str = "/test/1/disk/proto";

// Promise: P23 - Light push on a full disk answers 503 with the reason and recovers without a
//   restart.
#[tokio::test]
async fn a_full_disk_refuses_messages_and_heals_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("data"), "64m") else { return };
    let limits = "[limits.store]\ndisk_reserve_bytes = 16777216\nretention_bytes = 134217728\n";
    let mut relay = Relay::start_in(folder, "", limits, &[]);
    let memory = relay.watch();
    let mut client = Client::connect(relay.address(false)).await;
    let content_topic = ContentTopic::parse(TOPIC).unwrap();
    let topic =
        PubsubTopic::new(0, autoshard(&content_topic, NonZeroU16::new(8).unwrap())).to_string();
    let mut peer = GossipPeer::connect(relay.address(false), &[&topic]).await;
    serves(relay.address(false), TOPIC).await;

    let refused = async |client: &mut Client| {
        let refused = client.push(&message(TOPIC, &[1; 100_000])).await.unwrap();
        assert_eq!(refused.status.code(), 503, "{refused:?}");
        let why = refused.status_text.unwrap();
        assert!(why.as_str().contains("the disk is full"), "{why:?}");
    };
    // The relay has taken what it passes messages on with while the disk is full.
    let made = || {
        let spares = segments(disk.path(), ".spare");
        spares
            .iter()
            .filter(|path| fs::metadata(path).is_ok_and(|file| file.len() == 4 << 20))
            .count()
    };
    until_async("the spare segments are made", async || made() >= 4).await;
    // Less is free than the relay reserves: clients are refused, and what peers bring is passed on.
    let filler = disk.path().join("filler");
    let free = disk.free_bytes() as usize;
    fs::write(&filler, vec![1; free - (8 << 20)]).unwrap();
    refused(&mut client).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let passing = message(TOPIC, b"passed on and not kept");
    assert!(peer.publish(&topic, &passing).await);
    assert_eq!(receiver.pushed().await, passing);
    relay.reaches("thimble_relay_messages_not_kept_total{reason=\"disk_full\"}", 1).await;

    // Another program fills the disk.
    let filled = fs::write(&filler, vec![1; 64 << 20]);
    assert!(filled.is_err(), "the disk is full now");
    for _ in 0..5 {
        refused(&mut client).await;
    }
    // A peer's message is passed on without a free byte; stored messages are found.
    for number in 0..100 {
        let passing = message(TOPIC, &[number; 100_000]);
        assert!(peer.publish(&topic, &passing).await);
        assert_eq!(receiver.pushed().await, passing);
    }
    relay.reaches("thimble_relay_messages_not_kept_total{reason=\"disk_full\"}", 101).await;
    let all = store::Request {
        request_id: Text::from("all"),
        content_topics: vec![TOPIC.into()],
        limit: Some(100),
        ..store::Request::default()
    };
    assert_eq!(client.query(&all).await.entries.len(), 1);
    assert!(relay.is_running());

    fs::remove_file(&filler).unwrap();
    serves(relay.address(false), TOPIC).await;
    let later = message(TOPIC, b"there is room");
    assert!(peer.publish(&topic, &later).await);
    relay.reaches("thimble_relay_messages_total{source=\"relay\"}", 102).await;
    assert!(!peer.raw.is_closed(), "the peer was there all the time");
    assert_eq!(client.query(&all).await.entries.len(), 3);
    memory.stayed_inside("a full disk");
}

// Promise: P23 - Store queries on a disk that was full at start are refused until it has room.
#[tokio::test]
async fn disk_that_is_full_at_start_hides_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("data"), "64m") else { return };
    let limits = "[limits.store]\ndisk_reserve_bytes = 16777216\nretention_bytes = 134217728\n";
    let mut relay = Relay::start_in(folder, "", limits, &[]);
    let mut client = Client::connect(relay.address(false)).await;
    let kept = message(TOPIC, b"kept");
    assert_eq!(client.push(&kept).await.unwrap().status.code(), 200);
    let filler = disk.path().join("filler");
    assert!(fs::write(&filler, vec![1; 64 << 20]).is_err(), "the disk is full now");
    relay.kill_and_start();
    let mut client = Client::connect(relay.address(false)).await;
    let all = store::Request {
        request_id: Text::from("all"),
        content_topics: vec![TOPIC.into()],
        ..store::Request::default()
    };
    let page = client.query(&all).await;
    match page.status.code() {
        200 => assert_eq!(page.entries.len(), 1),
        other => assert_eq!(other, 503, "{page:?}"),
    }
    fs::remove_file(&filler).unwrap();
    until_async("the message is found", async || {
        let page = client.query(&all).await;
        assert!(page.status.code() == 503 || page.entries.len() == 1, "{page:?}");
        page.status.is_success()
    })
    .await;
}

fn segments(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(segments(&entry.path(), ending));
        } else if entry.file_name().to_str().unwrap().ends_with(ending) {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

// Promise: P23 - A damaged partition is logged and set aside, and the others are served.
#[tokio::test]
async fn a_damaged_partition_is_set_aside_and_the_rest_is_served() {
    // A partition takes an eighth of it.
    let limits = "[limits.store]\nsegment_bytes = 4194304\nretention_bytes = 33554432\n";
    let mut relay = Relay::start_after("", limits, &[]);
    let mut client = Client::connect(relay.address(false)).await;
    for number in 0..60_u8 {
        let one = message(TOPIC, &[number; 140_000]);
        assert_eq!(client.push(&one).await.unwrap().status.code(), 200);
    }
    let mut damaged = PathBuf::new();
    relay.restart_after(|data| {
        let all = segments(data, ".segment");
        assert!(all.len() >= 2, "{all:?}");
        damaged = all[0].clone();
        let mut bytes = fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&damaged, bytes).unwrap();
    });
    let mut client = Client::connect(relay.address(false)).await;
    let mut request = store::Request {
        request_id: Text::from("all"),
        include_data: true,
        content_topics: vec![TOPIC.into()],
        forward: true,
        limit: Some(100),
        ..store::Request::default()
    };
    // Queries are refused while it is come upon and set aside; then they are served without it.
    let mut found = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let page = client.query(&request).await;
        if page.status.code() != 200 {
            assert!(Instant::now() < deadline, "{page:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            (found, request.cursor) = (Vec::new(), None);
            continue;
        }
        found.extend(page.entries.iter().map(|entry| entry.message.clone().unwrap()));
        request.cursor = page.cursor;
        if request.cursor.is_none() {
            break;
        }
    }
    assert!(found.len() >= 10 && found.len() < 60, "{} of 60", found.len());
    let log = relay.log();
    let name = damaged.file_name().unwrap().to_str().unwrap();
    assert!(log.contains(name) && log.contains("set aside"), "{log}");
    assert!(relay.is_running());
    serves(relay.address(false), TOPIC).await;
}
