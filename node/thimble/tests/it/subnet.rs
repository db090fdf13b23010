//! Four nodes on one machine: one key that none of them knows, one state that all of them certify.

use std::{net::TcpListener, time::Duration};

use ic_agent::Agent;

use crate::{
    clients::{client_of, python},
    harness::*,
};

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
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let run = |arguments: &[&str]| {
            let output = thimble().args(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        // Ports that are free now: held until all are known, so that no two are the same.
        let held: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = held.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
        drop(held);
        let names = |prefix: &str, suffix: &str| -> Vec<String> {
            (0..4).map(|node| path(&format!("{prefix}{node}{suffix}"))).collect()
        };
        let (data, records, dealings) = (names("node", ""), names("node", ".json"), names("deal", ".json"));
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
            run(&["genesis", "deal", "--data-dir", &data[node], "--plan", &plan, "--out", &dealings[node]]);
        }
        let mut arguments = vec!["genesis", "assemble", "--plan", &plan, "--out", &genesis];
        arguments.extend(dealings.iter().flat_map(|dealing| ["--dealing", dealing]));
        run(&arguments);
        run(&["genesis", "verify", &genesis]);
        let mut nodes = Vec::new();
        for node in 0..4 {
            run(&["join", "--data-dir", &data[node], "--genesis", &genesis]);
            let arguments = vec!["--p2p-listen".to_owned(), addresses[node].clone()];
            let mut prepared = Node::prepared(data[node].clone().into(), "512MiB", arguments);
            prepared.configure(configuration);
            nodes.push(prepared);
        }
        let mut subnet = Self { nodes, _folder: folder };
        subnet.start_all().await;
        subnet
    }

    pub(crate) async fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::spawn);
        for node in &mut self.nodes {
            node.healthy().await;
        }
    }

    /// Every node's own answer to a query, each signed by that node and verified.
    pub(crate) async fn counts(&self, counter: candid::Principal) -> Vec<u64> {
        let mut counts = Vec::new();
        for node in &self.nodes {
            let agent = node.agent(1).await;
            let reply = query(&agent, counter, "get", vec![]).await.unwrap();
            counts.push(u64::from_le_bytes(reply.try_into().unwrap()));
        }
        counts
    }
}

pub(crate) async fn increment(agent: &Agent, counter: candid::Principal) -> u64 {
    u64::from_le_bytes(update(agent, counter, "inc", vec![]).await.unwrap().try_into().unwrap())
}

#[tokio::test]
async fn unmodified_clients_work_against_any_of_four_nodes() {
    let subnet = Subnet::start().await;
    client_of(&subnet.nodes[0].url, "node", &["tests/clients/node/deploy.mjs"]);
    client_of(&subnet.nodes[1].url, "node", &["tests/clients/node/legacy.mjs"]);
    client_of(&subnet.nodes[2].url, &python(), &["tests/clients/python/deploy.py"]);
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_one_node_is_killed_and_when_all_are() {
    let mut subnet = Subnet::start().await;
    let agent = subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    for count in 1..=5 {
        assert_eq!(increment(&agent, counter).await, count);
    }

    // Three go on without the fourth, which then takes part again.
    subnet.nodes[3].kill();
    for count in 6..=10 {
        assert_eq!(increment(&agent, counter).await, count);
    }
    subnet.nodes[3].launch().await;
    until("the node that was killed has caught up", async || subnet.counts(counter).await == [10; 4]).await;

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
    until("all four are back with everything", async || subnet.counts(counter).await == [11; 4]).await;
    let agent = subnet.nodes[2].agent(1).await;
    assert_eq!(increment(&agent, counter).await, 12);
}
