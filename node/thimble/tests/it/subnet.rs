//! Four nodes on one machine: one key that none of them knows, one state that all of them certify.

use std::{collections::BTreeMap, net::TcpListener, path::Path, time::Duration};

use candid::{Decode, Encode, Nat, Principal};
use ic_agent::{
    Agent, AgentError, Identity as _,
    agent::{RejectCode, signed::SignedUpdate},
    identity::{BasicIdentity, Delegation},
};
use ic_management_canister_types::{NodeMetrics, NodeMetricsHistoryArgs, NodeMetricsHistoryResult};
use serde_cbor_2::Value as Cbor;
use serde_json::Value;

use crate::{
    clients::{client_of, python},
    genesis::Ceremony,
    harness::*,
    http::post,
};
use testing::until_async;

/// A subnet with its ceremony held.
pub(crate) struct Subnet {
    pub(crate) nodes: Vec<Node>,
    _folder: tempfile::TempDir,
}

impl Subnet {
    /// Four nodes that serve.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// The same, all with this configuration.
    pub(crate) async fn start_with(configuration: &str) -> Self {
        // Tests create their canisters with the provisional methods.
        Self::start_as(configuration, &["--provisional", "true"]).await
    }

    /// The same, with these additional arguments for all nodes.
    pub(crate) async fn start_as(configuration: &str, more: &[&str]) -> Self {
        Self::start_at(configuration, more, None).await
    }

    /// The same, with the last node's data folder at `last`.
    pub(crate) async fn start_at(configuration: &str, more: &[&str], last: Option<&Path>) -> Self {
        let mut subnet = Self::prepared(configuration, more, last);
        subnet.start_all().await;
        subnet
    }

    /// The same, not started yet.
    pub(crate) fn prepared(configuration: &str, more: &[&str], last: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let run = |arguments: &[&str]| {
            let output = thimble().args(arguments).output().unwrap();
            assert!(
                output.status.success(),
                "{arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        let addresses = free_addresses(4);
        let names = |prefix: &str, suffix: &str| -> Vec<String> {
            (0..4).map(|node| path(&format!("{prefix}{node}{suffix}"))).collect()
        };
        let (mut data, records, dealings) =
            (names("node", ""), names("node", ".json"), names("deal", ".json"));
        if let Some(last) = last {
            data[3] = last.to_str().unwrap().to_owned();
        }
        for node in 0..4 {
            run(&[
                "keygen",
                "--data-dir",
                &data[node],
                "--address",
                &addresses[node],
                "--out",
                &records[node],
            ]);
        }
        let (plan, genesis) = (path("plan.json"), path("genesis.json"));
        let mut arguments = vec!["genesis", "plan", "--out", &plan];
        arguments.extend(records.iter().flat_map(|record| ["--node", record]));
        run(&arguments);
        for node in 0..4 {
            run(&[
                "genesis",
                "deal",
                "--data-dir",
                &data[node],
                "--plan",
                &plan,
                "--out",
                &dealings[node],
            ]);
        }
        let mut arguments = vec!["genesis", "assemble", "--plan", &plan, "--out", &genesis];
        arguments.extend(dealings.iter().flat_map(|dealing| ["--dealing", dealing]));
        run(&arguments);
        run(&["genesis", "verify", &genesis]);
        let mut nodes = Vec::new();
        for node in 0..4 {
            run(&["join", "--data-dir", &data[node], "--genesis", &genesis]);
            let mut arguments = vec!["--p2p-listen".to_owned(), addresses[node].clone()];
            arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
            let mut prepared = Node::prepared(data[node].clone().into(), "512MiB", arguments);
            prepared.configure(configuration);
            nodes.push(prepared);
        }
        Self { nodes, _folder: folder }
    }

    pub(crate) async fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::spawn);
        for node in &mut self.nodes {
            node.healthy().await;
        }
    }

    /// Whether every node itself answers a query with this count, signed by that node and verified.
    /// A node that is behind may not have the canister yet.
    pub(crate) async fn all_count(&self, counter: Principal, count: u64) -> bool {
        for node in &self.nodes {
            let agent = node.agent(1).await;
            let found = match query(&agent, counter, "get", vec![]).await {
                Ok(reply) => u64::from_le_bytes(reply.try_into().unwrap()),
                // Neither made there, nor, where it is made, installed; or the node cannot answer
                // at the moment, and asks to be asked again.
                Err(AgentError::UncertifiedReject { reject, .. })
                    if reject.reject_code == RejectCode::DestinationInvalid
                        || matches!(reject.error_code.as_deref(), Some("IC0537" | "IC0208")) =>
                {
                    return false;
                }
                Err(error) => panic!("{error}"),
            };
            if found != count {
                return false;
            }
        }
        true
    }
}

pub(crate) async fn increment(agent: &Agent, counter: Principal) -> u64 {
    u64::from_le_bytes(update(agent, counter, "inc", vec![]).await.unwrap().try_into().unwrap())
}

#[tokio::test]
async fn a_node_that_the_others_could_not_connect_to_says_so_and_ends() {
    let ceremony = Ceremony::held();
    ceremony.join(0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = vec!["--p2p-listen".to_owned(), address.clone()];
    let mut node = Node::prepared(ceremony.path("0"), "512MiB", arguments);
    node.spawn();
    assert!(!node.ended().await.success());
    let log = node.log();
    assert!(log.contains(&format!("cannot listen on {address} for the other members")), "{log}");
}

// Promise: P10 - Published clients in JavaScript and Python work with each of four nodes.
#[tokio::test]
async fn unmodified_clients_work_against_any_of_four_nodes() {
    let subnet = Subnet::start().await;
    client_of(&subnet.nodes[0].url, "node", &["tests/clients/node/deploy.mjs"]);
    client_of(&subnet.nodes[1].url, "node", &["tests/clients/node/legacy.mjs"]);
    client_of(&subnet.nodes[2].url, &python(), &["tests/clients/python/deploy.py"]);
}

// Promise: P5 - Acknowledged updates of four nodes survive a kill of one and of all; two of four
//   acknowledge nothing.
#[tokio::test]
async fn nothing_acknowledged_is_lost_when_one_node_is_killed_and_when_all_are() {
    let mut subnet = Subnet::start().await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    for count in 1..=5 {
        assert_eq!(increment(&agent, counter).await, count);
    }

    // Three nodes continue without the fourth, which then takes part again.
    subnet.nodes[3].kill();
    for count in 6..=10 {
        assert_eq!(increment(&agent, counter).await, count);
    }
    subnet.nodes[3].launch().await;
    until_async("the node that was killed has caught up", async || {
        subnet.all_count(counter, 10).await
    })
    .await;

    // The node metrics contain rounds that the dead node led.
    let counts = subnet.block_counts(&agent).await;
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(counts.iter().all(|node| node.num_blocks_proposed_total > 0), "{counts:?}");
    assert!(counts.iter().any(|node| node.num_block_failures_total > 0), "{counts:?}");

    // Two are not enough to agree; nothing is acknowledged until a third is back.
    subnet.nodes[1].kill();
    subnet.nodes[2].kill();
    let pending = {
        let agent = agent.clone();
        tokio::spawn(async move { increment(&agent, counter).await })
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!pending.is_finished(), "two of four acknowledged an update");
    subnet.nodes[1].launch().await;
    assert_eq!(pending.await.unwrap(), 11);
    subnet.nodes[2].launch().await;

    // All at once, without warning.
    subnet.nodes.iter_mut().for_each(Node::kill);
    subnet.start_all().await;
    until_async("all four are back with everything", async || subnet.all_count(counter, 11).await)
        .await;
    let agent = subnet.nodes[2].agent(1).await;
    assert_eq!(increment(&agent, counter).await, 12);
}

/// Blocks twenty times a second, few of which are kept; and states that travel slowly, so that one
/// can be interrupted.
pub(crate) const FORGETFUL: &str = "[limits.pages]\nmanifest_interval_rounds = 20\nmanifest_lag_rounds = 5\n\
     [limits.consensus]\nidle_round_millis = 50\nblocks_per_epoch = 100\nretention_rounds = 40\nsync_bytes_per_second = 2097152\n";
/// Rounds after which a node with that configuration surely keeps nothing of what was before.
const FORGOTTEN: u64 = 160;
/// Stable memory that is written while a node is away.
const WRITTEN: u64 = 24 << 20;

/// A figure of the status report, 0 while there is none.
async fn reported(node: &mut Node, pointer: &str) -> u64 {
    node.try_status()
        .await
        .and_then(|report| report.pointer(pointer).and_then(Value::as_u64))
        .unwrap_or(0)
}

impl Subnet {
    /// The node metrics of the subnet today, as a canister gets them.
    async fn block_counts(&self, agent: &Agent) -> Vec<NodeMetrics> {
        let bench = deploy(agent, "workbench.wasm").await;
        let subnet_id = Principal::self_authenticating(agent.read_root_key());
        let argument = NodeMetricsHistoryArgs { subnet_id, start_at_timestamp_nanos: 0 };
        let (method, argument) = ("node_metrics_history", Encode!(&argument).unwrap());
        let argument = Encode!(&management(), &method, &argument, &Nat::from(0u8)).unwrap();
        let told = update(agent, bench, "call_raw", argument).await.unwrap();
        let told = Decode!(&told, Result<Vec<u8>, String>).unwrap().unwrap();
        Decode!(&told, NodeMetricsHistoryResult).unwrap().pop().unwrap().node_metrics
    }

    /// The other three continue until they keep no block from which the fourth could continue.
    pub(crate) async fn forget(&mut self) {
        let goal = reported(&mut self.nodes[0], "/subnet/executed_height").await + FORGOTTEN;
        until_async("the others are far ahead", async || {
            reported(&mut self.nodes[0], "/subnet/executed_height").await >= goal
        })
        .await;
    }

    /// Whether all four show the same: the counter, and the sum over what was written.
    async fn agree(&mut self, counter: Principal, count: u64, bench: Principal) {
        until_async("all four show the same", async || {
            for node in &mut self.nodes {
                if node.try_status().await.is_none() {
                    return false;
                }
            }
            self.all_count(counter, count).await
        })
        .await;
        for node in &self.nodes {
            let agent = node.agent(1).await;
            let sum = query(&agent, bench, "stable_read_sum", Encode!(&0u64, &WRITTEN).unwrap())
                .await
                .unwrap();
            assert_eq!(Decode!(&sum, u64).unwrap(), 7 * WRITTEN);
        }
    }
}

// Promise: P19 - A node that was away too long, or has only its keys, fetches a state, also when
//   killed meanwhile.
#[tokio::test]
async fn a_node_that_was_away_too_long_fetches_a_state_even_when_killed_meanwhile_and_from_nothing()
{
    let mut subnet = Subnet::start_with(FORGETFUL).await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    for count in 1..=3 {
        assert_eq!(increment(&agent, counter).await, count);
    }

    // It stops in order, misses a lot, and what it would need to execute is gone.
    subnet.nodes[3].stop();
    update(&agent, bench, "stable_grow", Encode!(&(WRITTEN >> 16)).unwrap()).await.unwrap();
    update(&agent, bench, "stable_fill", Encode!(&0u64, &WRITTEN, &7u8).unwrap()).await.unwrap();
    assert_eq!(increment(&agent, counter).await, 4);
    subnet.forget().await;

    // In the middle of it the node is killed, and continues with the chunks it has.
    subnet.nodes[3].spawn();
    until_async("some of the state is there", async || {
        reported(&mut subnet.nodes[3], "/subnet/state_sync/bytes_done").await > 4 << 20
    })
    .await;
    assert!(
        !reqwest::get(format!("{}/health", subnet.nodes[3].url))
            .await
            .unwrap()
            .status()
            .is_success()
    );
    subnet.nodes[3].kill();
    assert!(!subnet.nodes[3].log().contains("starting again in place"));
    subnet.nodes[3].spawn();
    until_async("it is at it again", async || {
        reported(&mut subnet.nodes[3], "/subnet/state_sync/bytes_done").await > 0
    })
    .await;
    let workers = subnet.nodes[3].workers();
    assert!(!workers.is_empty());
    subnet.nodes[3].healthy().await;
    // The process is the same, and nothing of its former run is left. Workers end when the other
    // end is closed, which may take them a moment.
    until_async("the workers of before have ended", async || {
        subnet.nodes[3].workers().iter().all(|worker| !workers.contains(worker))
    })
    .await;
    let log = subnet.nodes[3].log();
    assert_eq!(log.matches("a state was fetched from peers").count(), 1, "{log}");
    assert_eq!(log.matches("starting again in place").count(), 1, "{log}");
    subnet.agree(counter, 4, bench).await;
    // Calls through it are answered with certificates that verify, and it is one of three that can
    // continue.
    let own = subnet.nodes[3].agent(1).await;
    assert_eq!(increment(&own, counter).await, 5);
    subnet.nodes[2].kill();
    assert_eq!(increment(&own, counter).await, 6);
    subnet.nodes[2].launch().await;

    // Everything but its keys is gone.
    subnet.nodes[3].kill();
    for entry in std::fs::read_dir(&subnet.nodes[3].data).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("keys") => {}
            _ if path.is_dir() => std::fs::remove_dir_all(&path).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
    }
    assert_eq!(increment(&agent, counter).await, 7);
    subnet.nodes[3].launch().await;
    let log = subnet.nodes[3].log();
    assert_eq!(log.matches("a state was fetched from peers").count(), 2, "{log}");
    subnet.agree(counter, 7, bench).await;
    let own = subnet.nodes[3].agent(1).await;
    assert_eq!(increment(&own, counter).await, 8);
}

/// The same call with unsigned bytes around it.
fn padded(signed: &[u8], bytes: usize) -> Vec<u8> {
    let mut envelope: BTreeMap<Cbor, Cbor> = serde_cbor_2::from_slice(signed).unwrap();
    envelope.insert(Cbor::Text("padding".into()), Cbor::Bytes(vec![7; bytes]));
    serde_cbor_2::to_vec(&Cbor::Map(envelope)).unwrap()
}

/// The same call signed by another key, to which a chain of delegations leads that is as long as
/// may be: all of it holds.
fn delegated(signed: &SignedUpdate, key: &BasicIdentity, number: u8) -> Vec<u8> {
    const LINKS: u8 = 20;
    let text = |text: &str| Cbor::Text(text.into());
    let keys: Vec<_> =
        (1..=LINKS).map(|link| BasicIdentity::from_raw_key(&[number ^ (link << 3); 32])).collect();
    let mut targets: Vec<_> = (0..900_u16)
        .map(|target| Principal::from_slice(&[&target.to_be_bytes()[..], &[7; 27]].concat()))
        .collect();
    targets.push(signed.canister_id);
    let expiration = signed.ingress_expiry + 1_000_000_000;
    let mut by = key;
    let mut chain = Vec::new();
    for to in &keys {
        let delegation = Delegation {
            pubkey: to.public_key().unwrap(),
            expiration,
            targets: Some(targets.clone()),
            permissions: None,
        };
        let signature = by.sign_delegation(&delegation).unwrap().signature.unwrap();
        let fields = BTreeMap::from([
            (text("pubkey"), Cbor::Bytes(delegation.pubkey)),
            (text("expiration"), Cbor::Integer(expiration.into())),
            (
                text("targets"),
                Cbor::Array(
                    targets.iter().map(|target| Cbor::Bytes(target.as_slice().to_vec())).collect(),
                ),
            ),
        ]);
        chain.push(Cbor::Map(BTreeMap::from([
            (text("delegation"), Cbor::Map(fields)),
            (text("signature"), Cbor::Bytes(signature)),
        ])));
        by = to;
    }
    let mut envelope: BTreeMap<Cbor, Cbor> =
        serde_cbor_2::from_slice(&signed.signed_update).unwrap();
    let request = [b"\x0Aic-request".as_slice(), signed.request_id.as_slice()].concat();
    let signature = by.sign_arbitrary(&request).unwrap().signature.unwrap();
    envelope.insert(text("sender_sig"), Cbor::Bytes(signature));
    envelope.insert(text("sender_delegation"), Cbor::Array(chain));
    serde_cbor_2::to_vec(&Cbor::Map(envelope)).unwrap()
}

// Promise: P17 - One request in several valid envelopes, 26 MB in total, is executed once.
#[tokio::test]
async fn one_request_in_many_envelopes_does_not_hold_a_subnet_up() {
    const CALLS: u8 = 12;
    let subnet = Subnet::start().await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    // Every request reaches one node in 200 bytes and the others in megabytes, about 26 MB in
    // total. Whatever block names it, three nodes of four hold another envelope.
    for number in 0..CALLS {
        let key = BasicIdentity::from_raw_key(&[100 + number; 32]);
        let signing =
            subnet.nodes[0].agent_with(BasicIdentity::from_raw_key(&[100 + number; 32])).await;
        let signed = signing.update(&counter, "inc").with_arg(vec![]).sign().unwrap();
        let large =
            [padded(&signed.signed_update, 2 << 20), delegated(&signed, &key, 100 + number)];
        assert!(
            signed.signed_update.len() < 500
                && large.iter().all(|envelope| envelope.len() > 500_000)
        );
        let sent = subnet.nodes.iter().enumerate().map(|(place, node)| {
            let body = match (place + usize::from(number)) % 4 {
                0 => signed.signed_update.clone(),
                other => large[other % 2].clone(),
            };
            tokio::spawn(post(format!("{}/api/v2/canister/{counter}/call", node.url), body))
        });
        for call in sent.collect::<Vec<_>>() {
            let (code, text) = call.await.unwrap();
            // A node that knows the call already, or is full for a moment, says so; none says that
            // the call is none.
            assert!(matches!(code, 200 | 202 | 503), "{code}: {}", String::from_utf8_lossy(&text));
        }
    }
    // Each call is executed once on every node, and the subnet continues. It would halt for minutes
    // if each node counted its own copies.
    let expected = u64::from(CALLS);
    until_async("every call is executed on every node", async || {
        subnet.all_count(counter, expected).await
    })
    .await;
    for count in 1..=5 {
        assert_eq!(increment(&agent, counter).await, expected + count);
    }
    until_async("all have it", async || subnet.all_count(counter, expected + 5).await).await;
}
