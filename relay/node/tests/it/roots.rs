//! Roots of the membership contract from an Ethereum node: `geth --dev` with a contract of the same
//! interface, which `tests/waku/setup.sh geth` builds, and a server of ours beside it that lies.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::mpsc,
};

use serde_json::{Value, json};
use testing::eventually;

use self::prover::Member;
use crate::{
    harness::{Relay, target},
    http::{get, post},
    peer::{Client, message},
};

#[path = "../../src/rln/prover.rs"]
mod prover;

/// The key in every URL here, which nothing may show.
const KEY: &str = "secretsecretsecret";

/// Opcodes of the contract.
mod op {
    pub(super) const EQ: u8 = 0x14;
    pub(super) const SHR: u8 = 0x1c;
    pub(super) const CALLDATALOAD: u8 = 0x35;
    pub(super) const CODECOPY: u8 = 0x39;
    pub(super) const MSTORE: u8 = 0x52;
    pub(super) const SLOAD: u8 = 0x54;
    pub(super) const SSTORE: u8 = 0x55;
    pub(super) const STOP: u8 = 0x00;
    pub(super) const JUMPI: u8 = 0x57;
    pub(super) const JUMPDEST: u8 = 0x5b;
    pub(super) const DUP1: u8 = 0x80;
    pub(super) const RETURN: u8 = 0xf3;
}

/// `PUSH1` to `PUSH4`, and what is pushed.
fn push(bytes: &[u8]) -> Vec<u8> {
    [&[0x5f + bytes.len() as u8][..], bytes].concat()
}

/// A contract that keeps the five newest roots in its storage slots 0 to 4, newest first.
///
/// `getRecentRoots()` returns the slots. Any other call is `register(uint256 root)`: each slot
/// takes the value of the one before it, and slot 0 the argument. (The real contract computes the
/// root of a tree; what is read is the same.)
fn runtime() -> Vec<u8> {
    let shift = |slot: u8| [push(&[slot - 1]), vec![op::SLOAD], push(&[slot]), vec![op::SSTORE]];
    let mut register: Vec<u8> = [4, 3, 2, 1].into_iter().flat_map(shift).flatten().collect();
    register.extend([push(&[4]), vec![op::CALLDATALOAD], push(&[0])].concat());
    register.extend([op::SSTORE, op::STOP]);

    let load = |slot: u8| [push(&[slot]), vec![op::SLOAD], push(&[32 * slot]), vec![op::MSTORE]];
    let mut read = vec![op::JUMPDEST];
    read.extend((0..5).flat_map(load).flatten());
    read.extend([push(&[5 * 32]), push(&[0]), vec![op::RETURN]].concat());

    // The selector is the first four bytes of the call.
    let select = |target: u8| {
        [
            push(&[0]),
            vec![op::CALLDATALOAD],
            push(&[0xe0]),
            vec![op::SHR],
            push(&[0xe6, 0x33, 0x37, 0xc3]),
            vec![op::EQ],
            push(&[target]),
            vec![op::JUMPI],
        ]
        .concat()
    };
    let target = select(0).len() + register.len();
    [select(target as u8), register, read].concat()
}

/// The code that creates it: copies what follows it, and returns that.
fn creation() -> Vec<u8> {
    let runtime = runtime();
    let copy = |from: u8| {
        let copied = [push(&[runtime.len() as u8]), vec![op::DUP1], push(&[from]), push(&[0])];
        [copied.concat(), vec![op::CODECOPY], push(&[0]), vec![op::RETURN]].concat()
    };
    [copy(copy(0).len() as u8), runtime.clone()].concat()
}

/// An Ethereum node with one account that has funds; dropping it kills it.
struct Geth {
    process: Child,
    url: String,
    account: Value,
    contract: String,
}

impl Drop for Geth {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Geth {
    /// Starts one on a free port and deploys the contract.
    fn start() -> Self {
        let program = target().join("waku/geth");
        let mut process = Command::new(&program)
            .args(["--dev", "--ipcdisable", "--nodiscover", "--port", "0", "--authrpc.port", "0"])
            .args(["--http", "--http.addr", "127.0.0.1", "--http.port", "0", "--verbosity", "3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?} ({error}): `make test` builds it"));
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (found_tx, found_rx) = mpsc::channel();
        // It reads to the end: a full pipe would stop the node.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((_, rest)) = line.split_once("endpoint=127.0.0.1:") else { continue };
                let port = rest.split(' ').next().unwrap_or_default().to_owned();
                if line.contains("HTTP server started") && line.contains("auth=false") {
                    // The test may have ended.
                    let _ = found_tx.send(port);
                }
            }
        });
        let port = found_rx.recv_timeout(testing::TIMEOUT).expect("geth serves HTTP");
        let url = format!("http://127.0.0.1:{port}");
        let mut geth = Self { process, url, account: Value::Null, contract: String::new() };
        geth.account = geth.call("eth_accounts", json!([]))["result"][0].clone();
        let created = geth.send(json!({ "data": format!("0x{}", hex::encode(creation())) }));
        geth.contract = created["contractAddress"].as_str().unwrap().to_owned();
        geth
    }

    fn call(&self, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        post(&self.url, "/", &call).json()
    }

    /// Sends a transaction; its receipt, once it is in a block.
    fn send(&self, mut transaction: Value) -> Value {
        transaction["from"] = self.account.clone();
        let sent = self.call("eth_sendTransaction", json!([transaction]));
        let hash = sent["result"].as_str().unwrap_or_else(|| panic!("{sent}")).to_owned();
        let receipt = eventually("a receipt", || {
            let answer = self.call("eth_getTransactionReceipt", json!([hash]));
            Some(answer["result"].clone()).filter(Value::is_object)
        });
        assert_eq!(receipt["status"], "0x1", "{receipt}");
        receipt
    }

    /// A member registers, which makes `root` the newest.
    fn register(&self, root: u64) {
        self.register_root(&format!("{root:064x}"));
    }

    /// The same for a root in hexadecimal digits, big-endian.
    fn register_root(&self, root: &str) {
        self.send(json!({ "to": self.contract, "data": format!("0xf207564e{root}") }));
    }

    /// A member registers that makes proofs.
    fn register_member(&self, member: &Member) {
        let root: Vec<u8> = member.root.iter().rev().copied().collect();
        self.register_root(&hex::encode(root));
    }

    /// A relay that reads the roots from this node, and from `others`.
    fn relay(&self, limits: &str, others: &[&str]) -> Relay {
        let url = format!("{}/?key={KEY}", self.url);
        let urls: Vec<&str> = [url.as_str()].into_iter().chain(others.iter().copied()).collect();
        let config = format!(
            "cluster = 2\neth_rpc = {urls:?}\nrln_contract = \"{}\"\nrln_chain_id = 1337\n\
             [limits.roots]\nrefresh_seconds = 1\nrequest_millis = 1000\n{limits}",
            self.contract
        );
        Relay::start_after("", &config, &[])
    }
}

/// A server that answers every call for roots with these, and says that it is of geth's chain.
fn liar(roots: &[u64]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{KEY}", listener.local_addr().unwrap());
    let mut words: String = roots.iter().map(|root| format!("{root:064x}")).collect();
    words = format!("{words:0<320}");
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.ends_with(b"}") {
                let Ok(read @ 1..) = stream.read(&mut buffer) else { break };
                request.extend_from_slice(&buffer[..read]);
            }
            let is_chain = String::from_utf8_lossy(&request).contains("eth_chainId");
            let result = if is_chain { "539" } else { &words };
            let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"0x{result}\"}}");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            // The relay may have given up.
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    url
}

/// The part of the report about roots.
fn roots(relay: &Relay) -> Value {
    get(&relay.http, "/status.json").json()["rln"].clone()
}

/// Waits for a step and a number of roots; what is reported then.
fn reaches(relay: &Relay, step: &str, count: u64) -> Value {
    let found = eventually(&format!("{count} roots, {step}"), || {
        Some(roots(relay)).filter(|found| found["step"] == step && found["roots"] == count)
    });
    for shown in [found.to_string(), relay.log(), get(&relay.http, "/health").text().to_owned()] {
        assert!(!shown.contains(KEY), "{shown}");
    }
    found
}

// Promise: P23 - Roots of registrations at the contract become known while the relay runs, and are
//   there after a restart without the Ethereum node.
#[tokio::test]
async fn roots_of_new_members_become_known_and_survive_the_ethereum_node() {
    let mut geth = Geth::start();
    let mut relay = geth.relay("stale_seconds = 2", &[]);
    eventually("a contract without members", || {
        roots(&relay)["detail"].as_str()?.contains("no members").then_some(())
    });
    for root in 1..=7 {
        geth.register(root);
        reaches(&relay, "current", root);
    }
    assert_eq!(get(&relay.http, "/status.json").json()["healthy"], true);
    assert_eq!(relay.metric("thimble_relay_roots_valid"), 7);
    // Proofs are made by senders.
    let mut client = Client::connect(relay.address(false)).await;
    let refused = client.push(&message("/test/1/proof/proto", b"without one")).await.unwrap();
    assert_eq!(refused.status.code(), 504, "{refused:?}");

    geth.process.kill().unwrap();
    let stale = reaches(&relay, "stale", 7);
    assert!(stale["servers"][0]["error"].as_str().unwrap().contains("cannot connect"), "{stale}");
    assert!(get(&relay.http, "/health").text().contains("the last 7 are used"));
    assert_eq!(relay.metric("thimble_relay_roots_step"), 2);
    relay.restart_after(|_| {});
    reaches(&relay, "restored", 7);
    relay.restart_after(|data| {
        let mut damaged = std::fs::read(data.join("rln-roots")).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(data.join("rln-roots"), damaged).unwrap();
    });
    reaches(&relay, "none", 0);
}

// Promise: P23 - A root that one of two RPC servers reports alone is not valid, and the
//   disagreement is on /health.
#[test]
fn root_that_one_of_two_servers_reports_is_not_taken() {
    let geth = Geth::start();
    geth.register(1);
    let relay = geth.relay("disagree_seconds = 1\nstale_seconds = 3600", &[&liar(&[9, 1])]);
    reaches(&relay, "disagreeing", 1);
    let health = get(&relay.http, "/health");
    assert!(health.text().contains("report different roots"), "{}", health.text());
    // Once both say the same, it is as valid as any.
    geth.register(9);
    reaches(&relay, "current", 2);
}

// Promise: P23 - One RPC server of three that reports other roots is outvoted and named.
#[test]
fn server_that_most_others_contradict_is_outvoted_and_named() {
    let geth = Geth::start();
    geth.register(1);
    let (honest, lying) = (liar(&[1]), liar(&[9, 1]));
    let relay = geth.relay("disagree_seconds = 1\nstale_seconds = 3600", &[&honest, &lying]);
    reaches(&relay, "current", 1);
    eventually("the liar is named", || {
        let named = roots(&relay)["servers"].as_array().unwrap().clone();
        (named[2]["disagrees"] == true).then(|| {
            assert!(named[0]["disagrees"] == false && named[1]["disagrees"] == false, "{named:?}");
        })
    });
    reaches(&relay, "current", 1);
}

#[test]
fn another_chain_and_an_address_without_contract_are_named() {
    let geth = Geth::start();
    geth.register(1);
    for (contract, chain, reason) in [
        (geth.contract.as_str(), 59_141, "it serves chain 1337, not 59141"),
        (&*format!("0x{}", "7".repeat(40)), 1337, "no contract with getRecentRoots()"),
    ] {
        let config = format!(
            "cluster = 2\neth_rpc = [\"{}/?key={KEY}\"]\nrln_contract = \"{contract}\"\n\
             rln_chain_id = {chain}\n",
            geth.url
        );
        let relay = Relay::start_after("", &config, &[]);
        eventually(reason, || {
            let found = roots(&relay);
            let error = found["servers"][0]["error"].as_str().unwrap_or_default().to_owned();
            error.contains(reason).then(|| assert_eq!(found["step"], "none"))
        });
        assert!(!relay.log().contains(KEY), "{}", relay.log());
    }
}

/// The status of a message that a member sends, and when it was sent.
async fn pushed(client: &mut Client, member: &Member, number: u64, at: Option<i64>) -> (u32, i64) {
    let mut sent = message("/thimble/1/rln/proto", b"from a member");
    if at.is_some() {
        sent.timestamp = at;
    }
    member.attach(&mut sent, number);
    let reply = client.push(&sent).await.unwrap();
    (reply.status.code(), sent.timestamp.unwrap())
}

// Promise: P23 - Messages of members are taken from their registration on while others register,
//   and a second message under one nullifier is refused.
#[tokio::test]
async fn messages_of_members_are_taken_from_their_registration_on_and_spam_is_not() {
    let geth = Geth::start();
    let relay = geth.relay("[limits.rln]\nroot_wait_millis = 5000", &[]);
    let (early, late) = (Member::new(), Member::new());
    geth.register_member(&early);
    reaches(&relay, "current", 1);
    let mut client = Client::connect(relay.address(false)).await;
    let (status, at) = pushed(&mut client, &early, 0, None).await;
    assert_eq!(status, 200);
    // Another payload would do; another timestamp is another signal too.
    assert_eq!(pushed(&mut client, &early, 0, Some(at + 1)).await.0, 420);
    assert_eq!(relay.metric("waku_rln_spam_messages_total"), 1);
    assert_eq!(pushed(&mut client, &late, 0, None).await.0, 420, "not a member yet");
    for number in 1..=5 {
        geth.register(number);
        assert_eq!(pushed(&mut client, &early, number, None).await.0, 200);
    }
    reaches(&relay, "current", 6);
    geth.register_member(&late);
    reaches(&relay, "current", 7);
    assert_eq!(pushed(&mut client, &late, 1, None).await.0, 200);
    assert_eq!(relay.metric("waku_rln_valid_messages_total"), 7);
}
