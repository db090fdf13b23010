//! Stories of a relay's users.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use protocol::{WakuMessage, filter::Action, store};

use crate::{
    harness::Relay,
    peer::{Client, message},
};

const TOPIC: &str = "/test/1/story/proto";

fn all_of(topic: &str) -> store::Request {
    store::Request {
        request_id: "a request".into(),
        include_data: true,
        content_topics: vec![topic.into()],
        forward: true,
        limit: Some(100),
        ..store::Request::default()
    }
}

#[tokio::test]
async fn a_message_is_pushed_received_and_found() {
    let relay = Relay::start(&[]);
    let mut sender = Client::connect(relay.address(false)).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let mut all = Vec::new();
    for size in [1, 1000, 100_000, 149_000] {
        let sent = message(TOPIC, &vec![7; size]);
        assert_eq!(sender.push(&sent).await.unwrap().status.code(), 200);
        assert_eq!(receiver.pushed().await, sent);
        all.push(sent.encode());
    }
    let found = sender.query(&all_of(TOPIC)).await.entries;
    let found: Vec<Vec<u8>> =
        found.iter().map(|entry| entry.message.as_ref().unwrap().to_vec()).collect();
    assert_eq!(found, all);
}

#[tokio::test]
async fn unsubscribed_client_receives_nothing_more() {
    let relay = Relay::start(&[]);
    let mut sender = Client::connect(relay.address(false)).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(Action::Ping, &[]).await, 404);
    let topics = [TOPIC, "/test/1/other/proto"];
    assert_eq!(receiver.filter(Action::Subscribe, &topics).await, 200);
    assert_eq!(receiver.filter(Action::Ping, &[]).await, 200);
    assert_eq!(receiver.filter(Action::Unsubscribe, &[TOPIC]).await, 200);
    sender.push(&message(TOPIC, b"not for anybody")).await.unwrap();
    let other = message("/test/1/other/proto", b"for the receiver");
    sender.push(&other).await.unwrap();
    assert_eq!(receiver.pushed().await, other);
    assert_eq!(receiver.filter(Action::UnsubscribeAll, &[]).await, 200);
    assert_eq!(receiver.filter(Action::Ping, &[]).await, 404);
}

/// Files and folders at and below `path` that group or others have access to.
fn open_to_others(path: &Path) -> Vec<PathBuf> {
    let mode = fs::symlink_metadata(path).unwrap().permissions().mode();
    let mut found = if mode & 0o077 == 0 { vec![] } else { vec![path.to_owned()] };
    if path.is_dir() {
        let below = fs::read_dir(path).unwrap();
        found.extend(below.flat_map(|entry| open_to_others(&entry.unwrap().path())));
    }
    found
}

// Promise: P16 - The data folder of a relay is readable by its owner only.
#[tokio::test]
async fn data_folder_is_readable_by_its_owner_only() {
    let mut relay = Relay::start(&[]);
    let mut sender = Client::connect(relay.address(false)).await;
    assert_eq!(sender.push(&message(TOPIC, b"kept")).await.unwrap().status.code(), 200);
    relay.restart_after(|data| {
        assert!(data.join("messages").is_dir());
        assert_eq!(open_to_others(data), Vec::<PathBuf>::new());
        // As another version of the program made it.
        fs::set_permissions(data, fs::Permissions::from_mode(0o755)).unwrap();
    });
    relay.restart_after(|data| assert_eq!(open_to_others(data), Vec::<PathBuf>::new()));
}

// Promise: P23 - A message answered 200 by light push is found after `kill -9`.
#[tokio::test]
async fn what_was_answered_for_is_there_after_a_kill() {
    let mut relay = Relay::start(&[]);
    let mut sent = Vec::new();
    for round in 0..5_u8 {
        let mut sender = Client::connect(relay.address(false)).await;
        for number in 0..20 {
            let one = message(TOPIC, &[round, number]);
            assert_eq!(sender.push(&one).await.unwrap().status.code(), 200);
            sent.push(one.encode());
        }
        relay.kill_and_start();
    }
    let mut reader = Client::connect(relay.address(false)).await;
    let found = reader.query(&all_of(TOPIC)).await;
    let found: Vec<Vec<u8>> =
        found.entries.iter().map(|entry| entry.message.as_ref().unwrap().to_vec()).collect();
    assert_eq!(found, sent);
}

#[tokio::test]
async fn relays_pass_messages_on() {
    let first = Relay::start(&[]);
    let second = Relay::start(&["--peer", first.address(false)]);
    let third = Relay::start(&["--peer", second.address(false)]);
    let mut receiver = Client::connect(first.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let mut sender = Client::connect(third.address(false)).await;
    // Until the relays know of one another there is no peer to pass a message on to.
    let mut sent = message(TOPIC, b"from afar");
    loop {
        let reply = sender.push(&sent).await.unwrap();
        match reply.status.code() {
            200 => break,
            505 => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            other => panic!("{other}: {reply:?}"),
        }
        sent = message(TOPIC, b"from afar");
    }
    assert_eq!(receiver.pushed().await, sent);
}

#[tokio::test]
async fn ephemeral_and_stale_messages_are_passed_on_and_not_kept() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let mut ephemeral = message(TOPIC, b"ephemeral");
    ephemeral.ephemeral = Some(true);
    let mut stale = message(TOPIC, b"an hour old");
    stale.timestamp = stale.timestamp.map(|at| at - 3_600_000_000_000);
    let kept = message(TOPIC, b"kept");
    for one in [&ephemeral, &stale, &kept] {
        assert_eq!(client.push(one).await.unwrap().status.code(), 200);
        assert_eq!(&receiver.pushed().await, one);
    }
    let found = client.query(&all_of(TOPIC)).await;
    assert_eq!(found.entries.len(), 1);
    assert_eq!(found.entries[0].message.as_deref(), Some(&kept.encode()[..]));
}

#[tokio::test]
async fn pages_of_large_messages_are_shorter_and_nothing_is_left_out() {
    let relay = Relay::start(&[]);
    let mut client = Client::connect(relay.address(false)).await;
    let mut sent = Vec::new();
    for number in 0..60 {
        let one = message(TOPIC, &[number; 140_000]);
        assert_eq!(client.push(&one).await.unwrap().status.code(), 200);
        sent.push(one.encode());
    }
    for forward in [true, false] {
        let mut request = store::Request { forward, ..all_of(TOPIC) };
        let mut found: Vec<Vec<u8>> = Vec::new();
        loop {
            let page = client.query(&request).await;
            let page_bytes: Vec<Vec<u8>> =
                page.entries.iter().map(|entry| entry.message.as_ref().unwrap().to_vec()).collect();
            assert!(page_bytes.iter().map(Vec::len).sum::<usize>() <= 3 << 20);
            if forward {
                found.extend(page_bytes);
            } else {
                found.splice(0..0, page_bytes);
            }
            match page.cursor {
                Some(cursor) => request.cursor = Some(cursor),
                None => break,
            }
        }
        assert!(found == sent, "forward {forward}: {} of {}", found.len(), sent.len());
    }
}

// Promise: P23 - Of two messages with one hash the first is kept, relayed and pushed.
#[tokio::test]
async fn of_two_messages_with_one_hash_the_first_is_the_message() {
    let first = Relay::start(&[]);
    let second = Relay::start(&["--peer", first.address(false)]);
    let mut near = Client::connect(first.address(false)).await;
    let mut far = Client::connect(second.address(false)).await;
    for receiver in [&mut near, &mut far] {
        assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    }
    let mut sender = Client::connect(first.address(false)).await;
    // Until both relays know of one another.
    loop {
        let hello = message(TOPIC, b"hello");
        let reply = sender.push(&hello).await.unwrap();
        assert_eq!(reply.status.code(), 200);
        assert_eq!(near.pushed().await, hello);
        if reply.relay_peer_count == Some(1) {
            assert_eq!(far.pushed().await, hello);
            break;
        }
    }
    let original = message(TOPIC, b"the same payload, topic and time");
    // Its version is not part of its hash.
    let other = WakuMessage { version: Some(1), ..original.clone() };
    let last = message(TOPIC, b"the last one");
    for (sent, is_new) in [(&original, true), (&other, false), (&original, false), (&last, true)] {
        let reply = sender.push(sent).await.unwrap();
        assert_eq!((reply.status.code(), reply.relay_peer_count), (200, Some(u32::from(is_new))));
        if is_new {
            assert_eq!(&near.pushed().await, sent);
            assert_eq!(&far.pushed().await, sent);
        }
    }
    let found = far.query(&all_of(TOPIC)).await.entries;
    let found: Vec<_> = found.iter().rev().take(2).map(|entry| entry.message.as_deref()).collect();
    assert_eq!(found, [Some(&last.encode()[..]), Some(&original.encode()[..])]);
}
