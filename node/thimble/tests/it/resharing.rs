//! The subnet's key goes from shares to shares while clients notice nothing.

use crate::{
    harness::*,
    subnet::{Subnet, increment},
};
use testing::until_async;

/// Epochs of a few seconds.
const SHORT_EPOCHS: &str = "[limits.consensus]\nblocks_per_epoch = 20\nidle_round_millis = 150\n";

/// For which epoch the shares were made that this node signs with.
async fn key_epoch(node: &Node) -> u64 {
    node.status().await["subnet"]["key_epoch"].as_u64().unwrap()
}

async fn wait_for_key(node: &Node, epoch: u64) {
    until_async("the key was handed on", async || key_epoch(node).await >= epoch).await;
}

// Promise: P20 - Resharing is invisible to clients.
#[tokio::test]
async fn the_key_is_handed_on_and_clients_notice_nothing() {
    let mut subnet = Subnet::start_with(SHORT_EPOCHS).await;
    // This agent knows the subnet's public key from the first epoch.
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    wait_for_key(&subnet.nodes[0], 2).await;
    assert_eq!(increment(&agent, counter).await, 1);

    // Three hand it on without the fourth, which takes up its newest share when it is back.
    subnet.nodes[3].kill();
    let before = key_epoch(&subnet.nodes[0]).await;
    wait_for_key(&subnet.nodes[0], before + 2).await;
    assert_eq!(increment(&agent, counter).await, 2);
    subnet.nodes[3].launch().await;
    let now = key_epoch(&subnet.nodes[0]).await;
    wait_for_key(&subnet.nodes[3], now).await;
    // It is needed from here on: three of four sign.
    subnet.nodes[2].kill();
    assert_eq!(increment(&agent, counter).await, 3);
    subnet.nodes[2].launch().await;

    // All at once, in the middle of an epoch or between two.
    for count in 4..=6 {
        subnet.nodes.iter_mut().for_each(Node::kill);
        subnet.start_all().await;
        let now = key_epoch(&subnet.nodes[1]).await;
        let agent = subnet.nodes[1].agent(1).await;
        assert_eq!(increment(&agent, counter).await, count);
        wait_for_key(&subnet.nodes[1], now + 1).await;
    }
    until_async("all four have everything", async || subnet.all_count(counter, 6).await).await;
    let shares = subnet.nodes[0].data.join("keys/shares");
    // The next share is written before the oldest is removed.
    until_async("old shares are removed", async || {
        std::fs::read_dir(&shares).unwrap().count() <= 2
    })
    .await;
}

// Promise: P20 - A member with other limits exits with the differing limit.
#[tokio::test]
async fn a_node_with_other_limits_than_the_others_ends_and_says_which() {
    let mut subnet = Subnet::start().await;
    let node = &mut subnet.nodes[2];
    node.stop();
    node.configure("[limits.subnet]\nqueue_slots = 400\n");
    node.spawn();
    assert!(!node.ended().await.success());
    let log = node.log();
    assert!(log.contains("subnet.queue_slots is 400 here and 500 there"), "{log}");
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(increment(&agent, counter).await, 1, "the others continue");
}
