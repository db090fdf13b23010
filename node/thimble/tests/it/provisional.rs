//! Provisional methods: callers that may use them may ask for as much as there is.

use candid::{Encode, Nat, Principal};
use ic_agent::{Agent, agent::RequestStatusResponse, identity::AnonymousIdentity};
use ic_management_canister_types::{
    ProvisionalCreateCanisterWithCyclesArgs, ProvisionalTopUpCanisterArgs, UpdateSettingsArgs,
};

use crate::{harness::*, http::post, subnet::Subnet};
use testing::until_async;

const CREATE: &str = "provisional_create_canister_with_cycles";
const TOP_UP: &str = "provisional_top_up_canister";

async fn top_up(agent: &Agent, canister_id: Principal, amount: Nat) -> Result<(), String> {
    let arguments = ProvisionalTopUpCanisterArgs { canister_id, amount };
    let done = manage(agent, canister_id, TOP_UP, Encode!(&arguments).unwrap()).await;
    done.map(drop).map_err(|error| rejected(error).1)
}

// Promise: P15 - 2^128 - 1 cycles leave a real node serving.
#[tokio::test]
async fn all_the_cycles_there_can_be_leave_the_node_serving() {
    let mut node = Node::start().await;
    let anonymous = node.agent_with(AnonymousIdentity).await;
    let canister = create_for(&anonymous, 0).await;
    top_up(&anonymous, canister, Nat::from(u128::MAX)).await.unwrap();
    for amount in [Nat::from(1u8), Nat::from(u128::MAX), Nat::from(u128::MAX) + 1u8] {
        top_up(&anonymous, canister, amount).await.unwrap();
    }
    // Other canisters are not affected.
    let another = create_for(&anonymous, u128::MAX).await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1u64.to_le_bytes());

    // And neither does a node that executes all of it again.
    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 2u64.to_le_bytes());
    let anonymous = node.agent_with(AnonymousIdentity).await;
    top_up(&anonymous, another, Nat::from(1u8)).await.unwrap();
    let settings = ic_management_canister_types::CanisterSettings {
        freezing_threshold: Some(Nat::from(u64::MAX)),
        compute_allocation: Some(Nat::from(1u8)),
        ..Default::default()
    };
    let arguments =
        UpdateSettingsArgs { canister_id: another, settings, sender_canister_version: None };
    manage(&anonymous, another, "update_settings", Encode!(&arguments).unwrap()).await.unwrap();
    manage(&anonymous, another, "canister_status", Encode!(&record(another)).unwrap())
        .await
        .unwrap();
    node.restart().await;
}

fn record(canister_id: Principal) -> ic_management_canister_types::CanisterIdRecord {
    ic_management_canister_types::CanisterIdRecord { canister_id }
}

// Promise: P9 - One signed create makes one canister at any effective id.
#[tokio::test]
async fn one_signed_create_makes_one_canister_wherever_it_is_sent() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let first = create(&agent).await;
    let before = node.status().await["canisters_total"].as_u64().unwrap();
    let signed = agent
        .update(&management(), CREATE)
        .with_effective_canister_id(management())
        .with_arg(Encode!(&ProvisionalCreateCanisterWithCyclesArgs::default()).unwrap())
        .sign()
        .unwrap();
    let places = [management(), first, Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, 77, 1, 1])];
    let send = |place: Principal| {
        post(format!("{}/api/v3/canister/{place}/call", node.url), signed.signed_update.clone())
    };
    let answers = tokio::join!(send(places[0]), send(places[1]), send(places[2]));
    for (code, text) in [answers.0, answers.1, answers.2] {
        assert!(code == 200 || code == 202, "{code}: {}", String::from_utf8_lossy(&text));
    }
    // Wherever it was sent its sender finds the same answer.
    let mut replies = Vec::new();
    for place in places {
        until_async("the call is answered", async || {
            match agent.request_status_raw(&signed.request_id, place).await.unwrap().0 {
                RequestStatusResponse::Replied(reply) => {
                    replies.push(reply.arg);
                    true
                }
                _ => false,
            }
        })
        .await;
    }
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    // Another call after it, so that whatever was ordered twice has been executed.
    create(&agent).await;
    assert_eq!(node.status().await["canisters_total"], before + 2);
}

// Promise: P16 - Provisional methods are off in a subnet unless all members enable them; a
//   differing member exits.
#[tokio::test]
async fn a_subnet_makes_nothing_out_of_nothing_unless_all_its_members_say_so() {
    let mut subnet = Subnet::start_as("", &[]).await;
    let agent = subnet.nodes[0].agent(1).await;
    let (_, text, _) = rejected(create_with(&agent, None).await.unwrap_err());
    assert!(text.contains("features.provisional"), "{text}");

    // One of them does not say so: it ends, and names the setting.
    subnet.nodes.iter_mut().for_each(Node::stop);
    for node in &mut subnet.nodes[..3] {
        node.arguments.extend(["--provisional", "true"].map(str::to_owned));
    }
    subnet.nodes.iter_mut().for_each(Node::spawn);
    assert!(!subnet.nodes[3].ended().await.success());
    let log = subnet.nodes[3].log();
    assert!(log.contains("features.provisional is 0 here and 1 there"), "{log}");
    for node in &mut subnet.nodes[..3] {
        node.healthy().await;
    }
    let agent = subnet.nodes[0].agent(1).await;
    create(&agent).await;
}

// Promise: P16 - A single node can disable the provisional methods.
#[tokio::test]
async fn a_node_alone_can_be_told_to_make_nothing_out_of_nothing() {
    let mut node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    // Even after a crash: what was made before is made again by the setting it was made under.
    node.kill();
    node.configure("[features]\nprovisional = false\n");
    node.launch().await;
    let agent = node.agent(1).await;
    let (_, text, _) = rejected(create_with(&agent, None).await.unwrap_err());
    assert!(text.contains("features.provisional"), "{text}");
    assert!(
        top_up(&agent, counter, Nat::from(1u8)).await.unwrap_err().contains("features.provisional")
    );
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1u64.to_le_bytes());
}
