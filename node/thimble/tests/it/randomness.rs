//! Randomness that canisters get.

use candid::{Decode, Encode};

use crate::harness::*;

// Promise: P9 - `raw_rand` never repeats over clean stops and kills.
#[tokio::test]
async fn raw_rand_never_comes_again_after_a_clean_stop_or_a_kill() {
    let mut node = Node::start().await;
    let bench = deploy(&node.agent(1).await, "workbench.wasm").await;
    let mut seen = Vec::new();
    for start in 0..5 {
        let agent = node.agent(1).await;
        for _ in 0..3 {
            let reply =
                update(&agent, bench, "raw_rand_via_mgmt", Encode!().unwrap()).await.unwrap();
            seen.push(Decode!(&reply, Vec<u8>).unwrap());
        }
        // A killed node executes again what it had executed, and compares the roots: with other
        // randomness it would end here.
        if start % 2 == 0 {
            node.stop();
        } else {
            node.kill();
        }
        node.launch().await;
    }
    assert!(seen.iter().all(|bytes| bytes.len() == 32));
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "a value came twice");
}
