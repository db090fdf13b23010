//! The ceremony from outside: four people, four data folders, and files that pass between them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::{Value, json};

use crate::harness::thimble;

/// A folder with four nodes' data folders `0` to `3` and the files of their ceremony.
pub(crate) struct Ceremony {
    folder: tempfile::TempDir,
}

impl Ceremony {
    /// A ceremony with the keys and records of all four nodes, before the plan.
    fn begin() -> Self {
        let ceremony = Self { folder: tempfile::tempdir().unwrap() };
        for node in 0..4 {
            ceremony.keygen(node);
        }
        ceremony
    }

    /// Up to the genesis.
    pub(crate) fn held() -> Self {
        let ceremony = Self::begin();
        ceremony.plan("plan.json", &[0, 1, 2, 3]);
        for node in 0..4 {
            ceremony.deal(node);
        }
        ceremony.assemble("genesis.json", &[0, 1, 2, 3]);
        ceremony
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap()
    }

    /// The program in the ceremony's folder.
    fn run(&self, arguments: &[&str]) -> Output {
        thimble().args(arguments).current_dir(self.folder.path()).output().unwrap()
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// It fails, and what it says has these words.
    pub(crate) fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?} was not refused");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?} in: {error}");
    }

    pub(crate) fn keygen(&self, node: usize) -> String {
        let address = format!("10.0.0.{}:4000", node + 1);
        self.ok(&[
            "keygen",
            "--data-dir",
            &node.to_string(),
            "--address",
            &address,
            "--out",
            &record(node),
        ])
    }

    fn plan(&self, out: &str, nodes: &[usize]) -> String {
        let records: Vec<_> = nodes.iter().map(|node| record(*node)).collect();
        let mut arguments = vec!["genesis", "plan", "--time", "1700000000", "--out", out];
        arguments.extend(records.iter().flat_map(|record| ["--node", record]));
        self.ok(&arguments)
    }

    fn deal(&self, node: usize) -> String {
        let (data, out) = (node.to_string(), dealing(node));
        self.ok(&["genesis", "deal", "--data-dir", &data, "--plan", "plan.json", "--out", &out])
    }

    fn assemble(&self, out: &str, nodes: &[usize]) -> String {
        let dealings: Vec<_> = nodes.iter().map(|node| dealing(*node)).collect();
        let mut arguments = vec!["genesis", "assemble", "--plan", "plan.json", "--out", out];
        arguments.extend(dealings.iter().flat_map(|dealing| ["--dealing", dealing]));
        self.ok(&arguments)
    }

    pub(crate) fn join(&self, node: usize) -> String {
        self.ok(&["join", "--data-dir", &node.to_string(), "--genesis", "genesis.json"])
    }

    /// A copy of a file with a change.
    pub(crate) fn changed(&self, name: &str, copy: &str, change: impl FnOnce(&mut Value)) {
        let mut file = self.json(name);
        change(&mut file);
        fs::write(self.path(copy), file.to_string()).unwrap();
    }

    pub(crate) fn node_id(&self, node: usize) -> String {
        self.json(&record(node))["node_id"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn record(node: usize) -> String {
    format!("node{node}.json")
}

fn dealing(node: usize) -> String {
    format!("dealing{node}.json")
}

/// Changes one digit of a text of hexadecimal digits or base64.
fn flip(value: &mut Value, place: usize) {
    let mut text = value.as_str().unwrap().to_owned();
    let other = if text[place..].starts_with('0') { "1" } else { "0" };
    text.replace_range(place..=place, other);
    *value = json!(text);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

// Promise: P20 - Four nodes make their key by the ceremony and form a subnet.
#[test]
fn four_nodes_make_their_key_and_join() {
    let ceremony = Ceremony::begin();
    let records: Vec<_> = (0..4).map(|node| ceremony.text(&record(node))).collect();
    // Again: the same keys, the same record.
    for (node, record_before) in records.iter().enumerate() {
        ceremony.keygen(node);
        assert_eq!(ceremony.text(&record(node)), *record_before);
        assert_eq!(mode(&ceremony.path(&format!("{node}/keys"))), 0o700);
        for name in ["node.key", "encryption.key"] {
            assert_eq!(mode(&ceremony.path(&format!("{node}/keys/{name}"))), 0o600, "{name}");
        }
    }
    let told = ceremony.plan("plan.json", &[2, 0, 3, 1]);
    assert!(told.contains("threshold    3 of 4 nodes sign; 1 may be faulty"), "{told}");
    ceremony.plan("again.json", &[1, 3, 0, 2]);
    assert_eq!(ceremony.text("plan.json"), ceremony.text("again.json"), "in any order");
    let plan_hash = told.lines().next().unwrap().strip_prefix("plan hash    ").unwrap();
    assert_eq!(plan_hash.len(), 64);

    for node in 0..4 {
        assert!(ceremony.deal(node).contains(plan_hash));
        let before = ceremony.text(&dealing(node));
        assert!(ceremony.deal(node).contains("already"));
        assert_eq!(ceremony.text(&dealing(node)), before, "a dealing that is there is kept");
    }
    let told = ceremony.assemble("genesis.json", &[3, 1, 0, 2]);
    ceremony.assemble("again.json", &[0, 1, 2, 3]);
    assert_eq!(ceremony.text("genesis.json"), ceremony.text("again.json"), "whoever assembles");

    let verified = ceremony.ok(&["genesis", "verify", "genesis.json"]);
    assert!(told.starts_with(&verified), "{told}\n{verified}");
    let report: Value =
        serde_json::from_str(&ceremony.ok(&["genesis", "verify", "genesis.json", "--json"]))
            .unwrap();
    assert_eq!((&report["threshold"], &report["plan_hash"]), (&json!(3), &json!(plan_hash)));
    assert_eq!(report["nodes"].as_array().unwrap().len(), 4);
    for name in ["genesis_hash", "subnet_id", "root_key"] {
        assert!(verified.contains(report[name].as_str().unwrap()), "{name}");
    }

    let mut places = Vec::new();
    for node in 0..4 {
        let data = node.to_string();
        ceremony
            .refused(&["run", "--data-dir", &data], &["belongs to no subnet yet", "thimble join"]);
        let told = ceremony.join(node);
        assert!(
            told.starts_with("joined") && told.contains(report["subnet_id"].as_str().unwrap()),
            "{told}"
        );
        assert!(ceremony.join(node).starts_with("had joined before"));
        let keys = ceremony.path(&format!("{node}/keys"));
        assert_eq!(
            (mode(&keys.join("subnet-share.key")), mode(&keys.join("encryption.key"))),
            (0o600, 0o600)
        );
        assert_eq!(fs::metadata(keys.join("subnet-share.key")).unwrap().len(), 32);
        let subnet = ceremony.json(&format!("{node}/keys/subnet.json"));
        assert_eq!(subnet["genesis_hash"], report["genesis_hash"]);
        assert_eq!(subnet["genesis_time_seconds"], json!(1_700_000_000));
        assert_eq!(
            (&subnet["threshold"], &subnet["coefficients"][0]),
            (&json!(3), &subnet["public_key"])
        );
        assert_eq!(subnet["coefficients"].as_array().unwrap().len(), 3);
        let place = subnet["node_index"].as_u64().unwrap() as usize;
        assert_eq!(subnet["members"][place]["node_id"], json!(ceremony.node_id(node)));
        assert_eq!(subnet["members"][place]["address"], json!(format!("10.0.0.{}:4000", node + 1)));
        places.push(place);
    }
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3]);
}

// Promise: P20 - A changed record, plan, dealing or genesis is refused with file, node and check.
#[test]
fn what_was_tampered_with_is_refused_in_words() {
    let ceremony = Ceremony::held();
    let order: Vec<String> = {
        let nodes = ceremony.json("plan.json")["nodes"].as_array().unwrap().clone();
        nodes.iter().map(|node| node["node_id"].as_str().unwrap().to_owned()).collect()
    };

    // A record.
    ceremony.changed("node1.json", "bad.json", |file| file["address"] = json!("10.6.6.6:4000"));
    let arguments = ["genesis", "plan", "--out", "x", "--node", "node0.json", "--node", "bad.json"];
    ceremony.refused(&arguments, &["bad.json", "signature of the record", &ceremony.node_id(1)]);
    ceremony.changed("node1.json", "bad.json", |file| {
        file["encryption_key"] = ceremony.json("node2.json")["encryption_key"].clone();
    });
    ceremony.refused(&arguments, &["bad.json", "proof of possession", &ceremony.node_id(1)]);
    let twice = ["genesis", "plan", "--out", "x", "--node", "node0.json", "--node", "node0.json"];
    ceremony.refused(&twice, &["the same node id"]);
    assert!(!ceremony.path("x").exists());

    // A plan.
    ceremony.changed("plan.json", "bad.json", |file| file["threshold"] = json!(1));
    let deal = ["genesis", "deal", "--data-dir", "0", "--plan", "bad.json", "--out", "x"];
    ceremony.refused(&deal, &["bad.json", "threshold is 1; for 4 nodes it is 3"]);
    fs::write(ceremony.path("bad.json"), vec![b' '; 300_000]).unwrap();
    ceremony.refused(&deal, &["bad.json", "more than 262144 bytes"]);
    // Another time is another plan.
    ceremony.changed("plan.json", "bad.json", |file| file["genesis_time_seconds"] = json!(1));
    let assemble = |plan: &str, dealings: [&str; 2], words: &[&str]| {
        let arguments = ["genesis", "assemble", "--out", "x", "--plan", plan];
        ceremony.refused(
            &[&arguments[..], &["--dealing", dealings[0], "--dealing", dealings[1]]].concat(),
            words,
        );
    };
    assemble("bad.json", ["dealing0.json", "dealing1.json"], &["dealing0.json", "is for the plan"]);
    // A dealing is kept from what is none of this node's.
    let deal =
        ["genesis", "deal", "--data-dir", "0", "--plan", "plan.json", "--out", "dealing1.json"];
    ceremony.refused(&deal, &["dealing1.json is there and is not this node's"]);

    // A dealing, its signature, its dealer.
    ceremony.changed("dealing2.json", "bad.json", |file| flip(&mut file["dealing"], 9_000));
    let named = ["bad.json", "signature of the dealing", &ceremony.node_id(2)];
    assemble("plan.json", ["dealing0.json", "bad.json"], &named);
    ceremony.changed("dealing2.json", "bad.json", |file| flip(&mut file["signature"], 5));
    assemble("plan.json", ["dealing0.json", "bad.json"], &named);
    ceremony
        .changed("dealing2.json", "bad.json", |file| file["dealer"] = json!(ceremony.node_id(3)));
    let named = ["bad.json", "signature of the dealing", &ceremony.node_id(3)];
    assemble("plan.json", ["dealing0.json", "bad.json"], &named);
    assemble("plan.json", ["dealing0.json", "dealing0.json"], &["two dealings of node"]);
    let one =
        ["genesis", "assemble", "--out", "x", "--plan", "plan.json", "--dealing", "dealing0.json"];
    ceremony.refused(&one, &["1 dealings; 2 are needed"]);

    // A genesis: by `verify` as by `join`.
    type Change = fn(&mut Value);
    let changes: [(Change, &[&str]); 5] = [
        (|file| file["plan"]["genesis_time_seconds"] = json!(1), &["is for the plan", &order[0]]),
        (
            |file| flip(&mut file["dealings"][1]["dealing"], 9_000),
            &["signature of the dealing", &order[1]],
        ),
        (
            |file| flip(&mut file["dealings"][3]["signature"], 9),
            &["signature of the dealing", &order[3]],
        ),
        (
            |file| flip(&mut file["transcript"], 5_000),
            &["transcript is not the one that the dealings give"],
        ),
        (|file| file["extra"] = json!(1), &["unknown field `extra`"]),
    ];
    for (change, words) in changes {
        ceremony.changed("genesis.json", "bad.json", change);
        let words = [&["bad.json"], words].concat();
        ceremony.refused(&["genesis", "verify", "bad.json"], &words);
        ceremony.refused(&["join", "--data-dir", "0", "--genesis", "bad.json"], &words);
    }
    assert!(!ceremony.path("0/keys/subnet.json").exists());
}

// Promise: P20 - A data folder joins one subnet, with its own keys.
#[test]
fn a_node_joins_its_own_subnet_with_its_own_keys() {
    let (ours, theirs) = (Ceremony::held(), Ceremony::held());
    let join =
        |data: &str| vec!["join".to_owned(), "--data-dir".into(), data.into(), "--genesis".into()];
    let refused = |data: &str, genesis: &Path, words: &[&str]| {
        let mut arguments = join(data);
        arguments.push(genesis.to_str().unwrap().to_owned());
        ours.refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), words);
    };
    let (own, other) = (ours.path("genesis.json"), theirs.path("genesis.json"));
    // By mistake: it gets to know another subnet, has no share of its key, and nothing is lost.
    let told = ours.ok(&["join", "--data-dir", "0", "--genesis", other.to_str().unwrap()]);
    assert!(told.contains("this node is not in its plan"), "{told}");
    assert!(ours.join(0).starts_with("joined: node "));
    refused("0", &other, &["belongs to the subnet", "a data folder of its own"]);
    refused("nowhere", &own, &["node.key is missing", "thimble keygen"]);

    // The encryption key is lost: named by every step that needs it, and the share opens when it is
    // back.
    let key = ours.path("1/keys/encryption.key");
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    refused("1", &own, &["1/keys/encryption.key is missing", "restore it"]);
    ours.refused(
        &["keygen", "--data-dir", "1", "--address", "10.0.0.2:4000"],
        &["encryption.key is missing"],
    );
    fs::copy(ours.path("2/keys/encryption.key"), &key).unwrap();
    refused("1", &own, &["is not the key that the genesis has for this node"]);
    fs::write(&key, kept).unwrap();
    ours.join(1);

    // One that joined stays where it is.
    refused("1", &other, &["belongs to the subnet", "a data folder of its own"]);
    assert!(ours.join(1).starts_with("had joined before"));

    // With the plan of an older address no node deals.
    ours.ok(&["keygen", "--data-dir", "2", "--address", "moved.example.org:4000"]);
    let deal = ["genesis", "deal", "--data-dir", "2", "--plan", "plan.json", "--out", "x"];
    ours.refused(&deal, &["10.0.0.3:4000", "moved.example.org:4000"]);
}

#[test]
fn init_writes_what_run_reads() {
    let ceremony = Ceremony { folder: tempfile::tempdir().unwrap() };
    let init = [
        "init",
        "--memory",
        "256MiB",
        "--listen",
        "127.0.0.1:9",
        "--data-dir",
        "data",
        "--systemd",
    ];
    ceremony.ok(&init);
    ceremony.ok(&init);
    let printed = ceremony.ok(&["config", "--config", "data/thimble.toml"]);
    assert!(
        printed.contains("memory = \"256 MiB\"") && printed.contains("127.0.0.1:9"),
        "{printed}"
    );
    let unit = ceremony.text("data/thimble.service");
    assert!(unit.contains("MemoryMax=268435456\nMemorySwapMax=0\n"), "{unit}");
    let data = fs::canonicalize(ceremony.path("data")).unwrap();
    assert!(unit.contains(&format!("run --config {}/thimble.toml\n", data.display())), "{unit}");
    ceremony.refused(
        &["init", "--data-dir", "data"],
        &["thimble.toml is there and says something else"],
    );
}
