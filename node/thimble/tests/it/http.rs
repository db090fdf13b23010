//! The public interface over plain HTTP: every version of every endpoint, as the agents of
//! different ages use them.

use candid::Principal;
use ic_agent::Agent;
use ic_certification::{Certificate, LookupResult};
use serde::Deserialize;

use crate::harness::*;
use testing::until_async;

pub(crate) async fn post(url: String, body: Vec<u8>) -> (u16, Vec<u8>) {
    let response = reqwest::Client::new()
        .post(url)
        .header("content-type", "application/cbor")
        .body(body)
        .send()
        .await
        .unwrap();
    (response.status().as_u16(), response.bytes().await.unwrap().to_vec())
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default, with = "serde_bytes")]
    certificate: Vec<u8>,
}

#[derive(Deserialize)]
struct StateAnswer {
    #[serde(with = "serde_bytes")]
    certificate: Vec<u8>,
}

fn reply_in(agent: &Agent, certificate: &[u8], id: &[u8], canister: Principal) -> Option<Vec<u8>> {
    let certificate: Certificate = serde_cbor_2::from_slice(certificate).unwrap();
    agent.verify(&certificate, canister).unwrap();
    match certificate.tree.lookup_path([b"request_status".as_slice(), id, b"reply"]) {
        LookupResult::Found(reply) => Some(reply.to_vec()),
        _ => None,
    }
}

#[tokio::test]
async fn calls_are_answered_at_once_or_polled_for_in_every_version() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let url =
        |version: u32, what: &str| format!("{}/api/v{version}/canister/{counter}/{what}", node.url);

    for (version, expected) in [(3, 1u64), (4, 2)] {
        let signed = agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap();
        let (code, body) = post(url(version, "call"), signed.signed_update).await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
        let answer: Answer = serde_cbor_2::from_slice(&body).unwrap();
        assert_eq!(answer.status, "replied");
        let reply = reply_in(&agent, &answer.certificate, signed.request_id.as_slice(), counter);
        assert_eq!(reply.unwrap(), expected.to_le_bytes());
    }

    let signed = agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap();
    let (code, body) = post(url(2, "call"), signed.signed_update).await;
    assert_eq!((code, body.len()), (202, 0));
    for version in [2, 3] {
        let mut reply = None;
        until_async("there is a reply", async || {
            let poll = agent.sign_request_status(counter, signed.request_id).unwrap();
            let (code, body) = post(url(version, "read_state"), poll.signed_request_status).await;
            assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
            let answer: StateAnswer = serde_cbor_2::from_slice(&body).unwrap();
            reply = reply_in(&agent, &answer.certificate, signed.request_id.as_slice(), counter);
            reply.is_some()
        })
        .await;
        assert_eq!(reply.unwrap(), 3u64.to_le_bytes());
    }

    for version in [2, 3] {
        let signed = agent.query(&counter, "get").with_arg(vec![]).sign().unwrap();
        let (code, body) = post(url(version, "query"), signed.signed_query).await;
        assert_eq!(code, 200);
        let answer: Answer = serde_cbor_2::from_slice(&body).unwrap();
        assert_eq!(answer.status, "replied");
    }
}

#[tokio::test]
async fn a_call_sent_twice_counts_once() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let signed = agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap();
    let url = format!("{}/api/v4/canister/{counter}/call", node.url);
    for _ in 0..3 {
        let (code, body) = post(url.clone(), signed.signed_update.clone()).await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
        let answer: Answer = serde_cbor_2::from_slice(&body).unwrap();
        let reply = reply_in(&agent, &answer.certificate, signed.request_id.as_slice(), counter);
        assert_eq!(reply.unwrap(), 1u64.to_le_bytes());
    }
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), 1u64.to_le_bytes());
}

#[tokio::test]
async fn the_state_of_canister_and_subnet_can_be_read_and_verified() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let hash = agent.read_state_canister_module_hash(counter).await.unwrap();
    let module = std::fs::read(fixture("counter-c.wasm")).unwrap();
    use sha2::Digest;
    assert_eq!(hash, sha2::Sha256::digest(&module).to_vec());
    let controllers = agent.read_state_canister_controllers(counter).await.unwrap();
    assert_eq!(controllers, [agent.get_principal().unwrap()]);
    let interface = agent.read_state_canister_metadata(counter, "candid:service").await.unwrap();
    assert!(String::from_utf8(interface).unwrap().contains("service"));
    let subnet = Principal::self_authenticating(agent.read_root_key());
    let ranges = agent.read_state_subnet_canister_ranges(subnet).await.unwrap();
    assert!(ranges.iter().any(|(first, last)| *first <= counter && counter <= *last), "{ranges:?}");
    let metrics = agent.read_state_subnet_metrics(subnet).await.unwrap();
    assert_eq!(metrics.num_canisters, 1);
}

#[tokio::test]
async fn status_health_and_metrics_say_how_the_node_is() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    deploy(&agent, "counter-c.wasm").await;
    let status = agent.status().await.unwrap();
    assert_eq!(status.replica_health_status.as_deref(), Some("healthy"));
    assert_eq!(status.root_key.unwrap().len(), 133);
    let health = reqwest::get(format!("{}/health", node.url)).await.unwrap();
    assert_eq!(health.status(), 200);
    let metrics =
        reqwest::get(format!("{}/metrics", node.url)).await.unwrap().text().await.unwrap();
    for name in [
        "thimble_memory_anonymous_bytes",
        "thimble_memory_file_bytes",
        "thimble_memory_budget_bytes",
        "thimble_pool_used_bytes",
        "thimble_certified_height",
        "thimble_rounds_total",
        "thimble_messages_executed_total",
        "thimble_worker_restarts_total",
    ] {
        assert!(metrics.contains(name), "{name} in\n{metrics}");
    }
}
