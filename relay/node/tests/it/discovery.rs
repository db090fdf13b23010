//! Nodes that find each other: by the discovery protocol, by a list in the DNS, by asking a peer;
//! with relays of this program and with the published Go node.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use aes::cipher::{KeyIvInit, StreamCipher};
use protocol::{
    node_list::{EntryHash, ListEntry, ListLink, ListRoot},
    record::NodeRecord,
};
use serde_json::Value;

use crate::{
    clients,
    harness::{Relay, target},
};
use testing::eventually;

const DISCV5: [&str; 3] = ["--discv5", "--discv5-port", "0"];

fn get(relay: &Relay, path: &str) -> Value {
    let address = relay.http.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
        unchunked(body)
    } else {
        body.into()
    };
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error} in {body}"))
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole += &rest[..length];
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

fn record(relay: &Relay) -> NodeRecord {
    get(relay, "/info")["enrUri"].as_str().unwrap().parse().unwrap()
}

fn id(address: &str) -> &str {
    address.rsplit_once('/').unwrap().1
}

/// Waits until a peer is connected; its entry.
fn connected(relay: &Relay, peer: &str) -> Value {
    eventually(&format!("a connection to {peer}"), || {
        let peers = get(relay, "/admin/v1/peers");
        let found = peers.as_array().unwrap().iter().find(|one| {
            one["connected"] == "Connected" && one["multiaddr"].as_str().unwrap().ends_with(peer)
        });
        found.cloned()
    })
}

/// The published Go node as a service node with discovery.
struct GoPeer {
    process: Child,
    ready: Value,
}

impl Drop for GoPeer {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl GoPeer {
    fn start(arguments: &[&str]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // It takes no port 0 for discovery: a port that was free a moment ago, and that the system
        // does not give away by itself.
        let begin = std::process::id() as usize * 16 + NEXT.fetch_add(1, Relaxed);
        let mut ports = (8_000..9_000_u16).cycle().skip(begin % 1_000).take(1_000);
        let port = ports.find(|port| UdpSocket::bind(("0.0.0.0", *port)).is_ok());
        let port = port.expect("a free port").to_string();
        let mut process = Command::new(target().join("waku/peer"))
            .args(["service", "-cluster", "2", "-shards", "0,1", "-discv5-port", &port])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`make test` installs the Go peer");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"));
        Self { process, ready }
    }

    fn id(&self) -> &str {
        self.ready["peer_id"].as_str().unwrap()
    }

    fn record(&self) -> &str {
        self.ready["enr"].as_str().unwrap()
    }
}

// Promise: P23 - The relay finds a go-waku node by discv5 and dials it.
#[test]
fn a_go_node_is_found_and_dialled() {
    // It learns of the relay from the first packet, and would dial it before the relay does.
    let go = GoPeer::start(&["-no-dials"]);
    let relay = Relay::start(
        &[&["--cluster", "2", "--shard", "0", "--discv5-bootstrap", go.record()], &DISCV5[1..]]
            .concat(),
    );
    let peer = connected(&relay, go.id());
    assert_eq!(peer["origin"], "Discv5");
    eventually("gossip with it", || {
        let peers = get(&relay, "/status.json")["peers"].clone();
        let gossiping = peers["relay_inbound"].as_u64()? + peers["relay_outbound"].as_u64()?;
        (gossiping > 0 && peers["dials"].as_u64()? > 0).then_some(())
    });
}

// Promise: P23 - A go-waku node finds the relay by discv5 and dials it.
#[test]
fn a_go_node_finds_the_relay_and_dials_it() {
    let relay = Relay::start(&[&["--cluster", "2", "--shard", "0"], &DISCV5[..]].concat());
    let go = GoPeer::start(&["-bootstrap", &record(&relay).to_string()]);
    // Which of both dials depends on which finds the other first; that both know each other does
    // not.
    let peer = connected(&relay, go.id());
    assert_eq!(peer["origin"], "Discv5");
}

// Promise: P23 - Relays and go-waku nodes find each other through a third node.
// Promise: P24 - With discv5 and connected peers the relay uses less than 8 MiB of anonymous
//   memory.
#[test]
fn go_nodes_and_relays_find_each_other_through_one_of_them() {
    let hub = Relay::start(&[&["--cluster", "2", "--shard", "0"], &DISCV5[..]].concat());
    let begin = record(&hub).to_string();
    // It asks no peer, so that it finds nodes only by the protocol.
    let alone = ["--ask-peers", "false", "--discv5-bootstrap", &begin];
    let relay =
        Relay::start(&[&["--cluster", "2", "--shard", "0"], &alone[..], &DISCV5[1..]].concat());
    let go = GoPeer::start(&["-bootstrap", &begin]);
    connected(&hub, go.id());
    connected(&hub, id(relay.address(false)));
    let peer = connected(&relay, go.id());
    assert_eq!(peer["origin"], "Discv5");
    for one in [&hub, &relay] {
        let anonymous = get(one, "/status.json")["memory"]["anonymous_bytes"].as_u64().unwrap();
        assert!(anonymous < 8 << 20, "{anonymous} bytes with discovery on");
    }
    // Others of another cluster are heard of, and left alone.
    let stranger = Relay::start(
        &[&["--cluster", "3", "--shard", "0", "--discv5-bootstrap", &begin], &DISCV5[1..]].concat(),
    );
    eventually("the stranger's table", || {
        (get(&stranger, "/status.json")["peers"]["discovery_table"].as_u64()? > 0).then_some(())
    });
    assert_eq!(get(&stranger, "/admin/v1/peers"), serde_json::json!([]));

    // The relays pass on the records they found to the published clients.
    let (tcp, web) = (hub.address(false), hub.address(true));
    let text = clients::go(&[
        "-peer",
        tcp,
        "-cluster",
        "2",
        "-shards",
        "0",
        "-shards-in-cluster",
        "0",
        "-only",
        "peer-exchange",
    ]);
    assert!(text.contains("peer-exchange-records: 2 records"), "{text}");
    let text = clients::javascript(&[
        "--peer",
        web,
        "--cluster",
        "2",
        "--shard",
        "0",
        "--only",
        "peer-exchange",
    ]);
    assert!(text.contains("peer-exchange: 2 records"), "{text}");
}

/// An ordinary message of an unknown node, with an unknown key (discv5, wire protocol: masking iv,
/// masked header, message).
fn of_a_stranger(number: usize, to: &discv5::Enr) -> Vec<u8> {
    let (iv, mut id, mut nonce) = ([3; 16], [7; 32], [0; 12]);
    id[..8].copy_from_slice(&number.to_le_bytes());
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    // Version, kind of message, nonce, length of what follows: the sender's id.
    let mut header = [&b"d5waku\x00\x01\x00"[..], &nonce, &[0, 32], &id].concat();
    let key: [u8; 16] = to.node_id().raw()[..16].try_into().unwrap();
    ctr::Ctr64BE::<aes::Aes128>::new(&key.into(), &iv.into()).apply_keystream(&mut header);
    [&iv[..], &header, &[5; 60]].concat()
}

// Promise: P24 - A flood of discovery packets takes less than 8 MiB, and new nodes are heard.
/// One address sends packets under ever new ids, as fast as it can. Each asks for a challenge,
/// which has to be remembered for a while.
#[test]
fn a_flood_of_strangers_takes_little_memory_and_ends_nothing() {
    const PACKETS: usize = 20_000;
    let arguments = ["--memory", "64MiB", "--cluster", "2", "--shard", "0"];
    let relay = Relay::start(&[&arguments[..], &DISCV5[..]].concat());
    let begin = record(&relay);
    let own: discv5::Enr = begin.to_string().parse().unwrap();
    let packets: Vec<Vec<u8>> = (0..PACKETS).map(|number| of_a_stranger(number, &own)).collect();
    let anonymous = || get(&relay, "/status.json")["memory"]["anonymous_bytes"].as_u64().unwrap();
    let before = anonymous();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = begin.udp.unwrap();
    let memory = relay.watch();
    let (began, mut sent) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(6) {
        for packet in &packets {
            // A full buffer of the sender's is not a fault of the relay.
            sent += u64::from(socket.send_to(packet, to).is_ok());
        }
    }
    let after = anonymous();
    assert!(sent > 100_000, "{sent} packets are no flood");
    assert!(after < before + (8 << 20), "{before} bytes, and {after} after {sent} packets");
    memory.stayed_inside("a flood of discovery packets");
    // A node that arrives then is served.
    let begin = begin.to_string();
    let found = ["--cluster", "2", "--shard", "0", "--discv5-bootstrap", &begin];
    let found = Relay::start(&[&found[..], &DISCV5[1..]].concat());
    connected(&relay, id(found.address(false)));
}

// Promise: P23 - Peer exchange supplies found nodes and accepts them from peers.
#[test]
fn a_peer_is_asked_for_others() {
    let hub = Relay::start(&[&["--shard", "0"], &DISCV5[..]].concat());
    let begin = record(&hub).to_string();
    let found =
        Relay::start(&[&["--shard", "0", "--discv5-bootstrap", &begin], &DISCV5[1..]].concat());
    connected(&hub, id(found.address(false)));
    let asking = Relay::start(&["--shard", "0", "--peer", hub.address(false), "--ask-peers"]);
    let peer = connected(&asking, id(found.address(false)));
    assert_eq!(peer["origin"], "PeerExchange");
    assert_eq!(connected(&asking, id(hub.address(false)))["origin"], "Static");
}

/// A server of the DNS that answers with texts, from a zone that can change.
struct Dns {
    address: String,
    zone: Arc<Mutex<BTreeMap<String, String>>>,
    asked: Arc<AtomicUsize>,
}

impl Dns {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let zone = Arc::new(Mutex::new(BTreeMap::new()));
        let asked = Arc::new(AtomicUsize::new(0));
        let (served, count) = (zone.clone(), asked.clone());
        // Ends with the test's process.
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Relaxed);
                let answer = answer(&buffer[..bytes], &served.lock().unwrap());
                socket.send_to(&answer, from).unwrap();
            }
        });
        Self { address, zone, asked }
    }

    /// Puts a list into the zone; its URL.
    fn list(&self, domain: &str, records: &[NodeRecord], secret: [u8; 32]) -> String {
        let mut zone = self.zone.lock().unwrap();
        let mut put = |text: String| {
            let hash = EntryHash::for_text(&text);
            zone.insert(format!("{hash}.{domain}").to_lowercase(), text);
            hash
        };
        let leaves = records.iter().map(|record| put(record.to_string())).collect();
        let records = put(ListEntry::Branch(leaves).to_string());
        let links = put(ListEntry::Branch(Vec::new()).to_string());
        let root = ListRoot { records, links, sequence: 1 }.sign(&secret).unwrap();
        zone.insert(domain.to_owned(), root);
        let signer = protocol::record::RecordContent::default().sign(&secret).unwrap();
        ListLink { public_key: signer.public_key, domain: domain.into() }.to_string()
    }
}

/// The answer to one question for a text: RFC 1035, without compression but for the name asked.
fn answer(query: &[u8], zone: &BTreeMap<String, String>) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap().to_lowercase());
        at = end;
    }
    let question = &query[12..at + 5];
    let text = zone.get(&labels.join("."));
    let code = if text.is_some() { 0 } else { 3 };
    let mut answer = query[..2].to_vec();
    answer.extend([0x85, 0x80 | code, 0, 1, 0, u8::from(text.is_some()), 0, 0, 0, 0]);
    answer.extend(question);
    if let Some(text) = text {
        let data: Vec<u8> = text
            .as_bytes()
            .chunks(255)
            .flat_map(|part| [&[part.len() as u8], part].concat())
            .collect();
        answer.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60]);
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }
    answer
}

// Promise: P23 - Nodes of a DNS list are dialled.
#[test]
fn nodes_of_a_list_in_the_dns_are_dialled() {
    let (one, two) = (Relay::start(&["--shard", "0"]), Relay::start(&["--shard", "0"]));
    let other_cluster = Relay::start(&["--shard", "0", "--cluster", "7"]);
    let records = [record(&one), record(&two), record(&other_cluster)];
    let dns = Dns::start();
    let url = dns.list("nodes.example.org", &records, [5; 32]);
    let relay =
        Relay::start(&["--shard", "0", "--dns-discovery-url", &url, "--dns-server", &dns.address]);
    for other in [&one, &two] {
        assert_eq!(connected(&relay, id(other.address(false)))["origin"], "Dns");
    }
    assert_eq!(get(&relay, "/status.json")["peers"]["known"], 2);
    assert!(dns.asked.load(Relaxed) >= 6, "the root, two branches, three records");
}

// Promise: P24 - A DNS list signed by another key is ignored.
#[test]
fn a_list_that_another_key_signed_is_not_believed() {
    let one = Relay::start(&["--shard", "0"]);
    let dns = Dns::start();
    let url = dns.list("nodes.example.org", &[record(&one)], [5; 32]);
    // The same list, signed by another key.
    dns.list("nodes.example.org", &[record(&one)], [6; 32]);
    // A second list that is fine shows when the first one has been read.
    let two = Relay::start(&["--shard", "0"]);
    let fine = dns.list("fine.example.org", &[record(&two)], [5; 32]);
    let relay = Relay::start(&[
        "--shard",
        "0",
        "--dns-discovery-url",
        &url,
        "--dns-discovery-url",
        &fine,
        "--dns-server",
        &dns.address,
    ]);
    connected(&relay, id(two.address(false)));
    assert_eq!(get(&relay, "/status.json")["peers"]["known"], 1);
}

// Promise: P24 - An invalid DNS list changes nothing.
#[test]
fn a_list_of_rubbish_harms_nobody() {
    let dns = Dns::start();
    let two = Relay::start(&["--shard", "0"]);
    let fine = dns.list("fine.example.org", &[record(&two)], [5; 32]);
    let url = dns.list("bad.example.org", &[], [5; 32]);
    for text in ["", "enrtree-root:v1", &"x".repeat(1200), "enrtree-root:v1 e= l= seq=1 sig="] {
        dns.zone.lock().unwrap().insert("bad.example.org".into(), text.to_owned());
        let mut relay = Relay::start(&[
            "--shard",
            "0",
            "--dns-discovery-url",
            &url,
            "--dns-discovery-url",
            &fine,
            "--dns-server",
            &dns.address,
        ]);
        connected(&relay, id(two.address(false)));
        assert!(relay.is_running());
    }
}

#[test]
fn the_record_is_shown_before_and_after_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
            .args([
                "key",
                "--cluster",
                "16",
                "--shard",
                "32",
                "--announce",
                "/ip4/203.0.113.5/tcp/60000",
            ])
            .arg("--data-dir")
            .arg(folder.path())
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (peer, record) = (run(&[]), run(&["--record"]));
    let record: NodeRecord = record.parse().unwrap();
    assert_eq!(record.tcp, ["203.0.113.5:60000".parse().unwrap()]);
    assert_eq!(record.shards.unwrap().shards(), [32]);
    let key = libp2p::identity::secp256k1::PublicKey::try_from_bytes(&record.public_key).unwrap();
    assert_eq!(libp2p::identity::PublicKey::from(key).to_peer_id().to_string(), peer);
}
