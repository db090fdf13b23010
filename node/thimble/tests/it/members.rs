//! Changes of a subnet's members from outside: who holds the key is shown, a fifth node gets ready,
//! and a change passes from hand to hand until it is complete.

use std::fs;

use serde_json::{Value, json};

use crate::{
    genesis::{Ceremony, record},
    harness::*,
    subnet::{Subnet, increment},
};
use testing::until_async;

/// Four members, and a fifth node that knows the subnet.
fn five() -> Ceremony {
    let ceremony = Ceremony::held();
    for node in 0..4 {
        ceremony.join(node);
    }
    ceremony.keygen(4);
    let told = ceremony.join(4);
    assert!(told.contains("takes part once the members admit it"), "{told}");
    assert!(ceremony.join(4).contains("had joined before"));
    ceremony
}

fn change(ceremony: &Ceremony, out: &str, more: &[&str]) -> String {
    ceremony.ok(&[&["members", "change", "--data-dir", "0", "--out", out][..], more].concat())
}

fn sign(ceremony: &Ceremony, node: usize) -> String {
    ceremony.ok(&["members", "sign", "--data-dir", &node.to_string(), "change.json"])
}

// Promise: P20 - Three of four members admit a fifth node.
#[test]
fn a_fifth_node_is_admitted_by_three_of_four() {
    let ceremony = five();
    let subnet: Value =
        serde_json::from_str(&ceremony.ok(&["members", "show", "--data-dir", "4", "--json"]))
            .unwrap();
    assert_eq!(
        (&subnet["threshold"], &subnet["epoch"], &subnet["changes"]),
        (&json!(3), &json!(0), &json!(0))
    );
    assert_eq!(
        (&subnet["member"], subnet["members"].as_array().unwrap().len()),
        (&json!(false), 4)
    );
    let shown = ceremony.ok(&["members", "show", "--data-dir", "4"]);
    assert!(shown.contains("3 of 4 members sign; 1 may be faulty"), "{shown}");
    assert!(shown.contains("this node is no member"), "{shown}");
    assert_eq!(ceremony.json("4/keys/subnet.json").get("node_index"), None);
    assert!(!ceremony.path("4/keys/subnet-share.key").exists());

    let told = change(&ceremony, "change.json", &["--add", &record(4)]);
    assert!(told.contains("5 after it, 4 before; 4 must then run and agree"), "{told}");
    let hash = told.lines().next().unwrap().to_owned();
    ceremony.refused(
        &["members", "submit", "--data-dir", "0", "change.json"],
        &["0 members signed", "3 must"],
    );
    for (count, node) in [(1, 2), (2, 0), (2, 2)] {
        let told = sign(&ceremony, node);
        assert!(
            told.starts_with(&hash) && told.contains(&format!("{count} of 3 needed")),
            "{told}"
        );
    }
    ceremony
        .refused(&["members", "submit", "--data-dir", "0", "change.json"], &["2 members signed"]);
    // Only members can sign; the error names that.
    ceremony.refused(&["members", "sign", "--data-dir", "4", "change.json"], &["is no member"]);
    sign(&ceremony, 3);
    let verified = ceremony.ok(&["members", "verify", "--data-dir", "4", "--json", "change.json"]);
    let verified: Value = serde_json::from_str(&verified).unwrap();
    assert_eq!((&verified["complete"], &verified["signatures"]), (&json!(true), &json!(3)));
    assert_eq!(verified["add"][0]["node_id"], json!(ceremony.node_id(4)));

    let told = ceremony.ok(&["members", "submit", "--data-dir", "1", "change.json"]);
    assert!(told.contains("the next block that this node leads"), "{told}");
    assert_eq!(ceremony.json("1/members-change.json"), ceremony.json("change.json"));
}

// Promise: P20 - An invalid change of members is refused with the reason.
#[test]
fn a_change_that_cannot_be_is_refused_where_it_is_made_or_seen() {
    let ceremony = five();
    let id = |node| ceremony.node_id(node);
    let refused = |more: &[&str], words: &[&str]| {
        let arguments =
            [&["members", "change", "--data-dir", "0", "--out", "no.json"][..], more].concat();
        ceremony.refused(&arguments, words);
        assert!(!ceremony.path("no.json").exists());
    };
    refused(&[], &["leaves the members as they are"]);
    refused(&["--remove", &id(1)], &["3 members after the change, 4 before", "tolerate no fault"]);
    refused(&["--remove", &id(4)], &["is to be removed and is no member"]);
    refused(&["--remove", "node-one"], &["`node-one` is no node id"]);
    refused(&["--add", &record(1)], &["is to be added and is a member"]);
    refused(&["--add", "plan.json"], &["plan.json"]);

    // One for one, with a warning where it is due.
    change(&ceremony, "change.json", &["--add", &record(4), "--remove", &id(1)]);
    sign(&ceremony, 0);
    ceremony.changed("change.json", "other.json", |file| file["remove"][0] = json!(id(2)));
    ceremony.refused(
        &["members", "verify", "--data-dir", "0", "other.json"],
        &["other.json", "does not verify"],
    );
    ceremony.changed("change.json", "other.json", |file| file["number"] = json!(1));
    ceremony.refused(
        &["members", "sign", "--data-dir", "0", "other.json"],
        &["has number 1", "has number 0"],
    );
    let three = [0, 1, 2].map(id);
    let remove: Vec<_> = three[1..].iter().flat_map(|id| ["--remove", id]).collect();
    for node in 5..8 {
        ceremony.keygen(node);
    }
    let records = [4, 5, 6, 7].map(record);
    let add: Vec<_> = records.iter().flat_map(|record| ["--add", record]).collect();
    let told = change(&ceremony, "more.json", &[remove, add].concat());
    assert!(
        told.contains("only 2 of them are members already: at least 3 of the new ones must run"),
        "{told}"
    );

    // A node that has no subnet, and one whose summary was lost.
    ceremony.refused(&["members", "show", "--data-dir", "7"], &["7/keys/summary", "thimble join"]);
    fs::remove_file(ceremony.path("0/keys/summary")).unwrap();
    ceremony.refused(
        &["members", "show", "--data-dir", "0"],
        &["run `thimble join` with the genesis again"],
    );
    ceremony.join(0);
    ceremony.ok(&["members", "show", "--data-dir", "0"]);
}

/// Four nodes that agree in epochs of a few seconds, and a fifth data folder that knows them.
struct Running {
    subnet: Subnet,
    /// Where the fifth is reached.
    address: String,
}

const SHORT_EPOCHS: &str = "[limits.consensus]\nblocks_per_epoch = 20\nidle_round_millis = 150\n";

impl Running {
    async fn start() -> Self {
        let subnet = Subnet::start_with(SHORT_EPOCHS).await;
        let address = free_addresses(1).remove(0);
        let running = Self { subnet, address };
        let (data, record) = (running.path("node4"), running.path("node4.json"));
        running.run(&[
            "keygen",
            "--data-dir",
            &data,
            "--address",
            &running.address,
            "--out",
            &record,
        ]);
        running.run(&["join", "--data-dir", &data, "--genesis", &running.path("genesis.json")]);
        running
    }

    fn path(&self, name: &str) -> String {
        self.subnet.nodes[0].data.with_file_name(name).to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = thimble().args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes a change, has it signed by all four, submits it to one of them, and waits until there
    /// are `members` members.
    async fn change(&self, what: &[&str], members: usize) {
        let out = self.path("change.json");
        self.run(
            &[&["members", "change", "--data-dir", &self.path("node0"), "--out", &out], what]
                .concat(),
        );
        for node in ["node0", "node1", "node2", "node3"] {
            self.run(&["members", "sign", "--data-dir", &self.path(node), &out]);
        }
        self.run(&["members", "submit", "--data-dir", &self.path("node1"), &out]);
        let first = &self.subnet.nodes[0];
        until_async("the members changed", async || {
            first.status().await["subnet"]["members"].as_array().unwrap().len() == members
        })
        .await;
        let waits = || self.subnet.nodes[1].data.join("members-change.json").exists();
        until_async("the change is taken away", async || !waits()).await;
    }
}

// Promise: P20 - Members change while clients are served.
#[tokio::test]
async fn members_change_while_clients_are_served() {
    let running = Running::start().await;
    let agent = running.subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(increment(&agent, counter).await, 1);
    running.change(&["--add", &running.path("node4.json")], 5).await;
    // Four of five sign, and the four old ones are there. The agent knows the key of the four.
    assert_eq!(increment(&agent, counter).await, 2);
    let shown = running.run(&["members", "show", "--data-dir", &running.path("node2"), "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["threshold"], &shown["changes"]), (&json!(4), &json!(1)));
    let fifth =
        shown["members"].as_array().unwrap().iter().find(|node| node["address"] == running.address);
    let fifth = fifth.unwrap()["node_id"].as_str().unwrap().to_owned();
    running.change(&["--remove", &fifth], 4).await;
    assert_eq!(increment(&agent, counter).await, 3);
}

// Promise: P20 - A fifth node joins a running subnet and is needed from then on.
#[tokio::test]
async fn a_fifth_node_comes_to_a_running_subnet_and_is_needed_from_then_on() {
    let mut running = Running::start().await;
    let agent = running.subnet.nodes[0].agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let arguments =
        ["--p2p-listen", &running.address, "--provisional", "true"].map(str::to_owned).to_vec();
    let mut fifth = Node::prepared(running.path("node4").into(), "512MiB", arguments);
    fifth.configure(SHORT_EPOCHS);
    fifth.spawn();
    running.change(&["--add", &running.path("node4.json")], 5).await;
    fifth.healthy().await;
    until_async("the fifth has a place", async || fifth.status().await["subnet"]["place"].is_u64())
        .await;
    // Four of five sign: without one of the old members the fifth is needed.
    running.subnet.nodes[3].kill();
    assert_eq!(increment(&agent, counter).await, 1);
    assert_eq!(increment(&fifth.agent(1).await, counter).await, 2);
}
