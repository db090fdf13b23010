//! The HTTP interface, as an operator's tools meet it: the real program, and a plain client.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroU16,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use testing::eventually;

pub(crate) const CONTENT_TOPIC: &str = "/story/1/http/proto";

/// A node of this program, ended with the test.
pub(crate) struct Node {
    child: Child,
    address: SocketAddr,
    pub(crate) multiaddr: String,
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(limits: &str, flags: &[&str]) -> Node {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("relay.toml"), limits).unwrap();
    let (child, address, multiaddr) = run(folder.path(), flags);
    Node { child, address, multiaddr, folder }
}

fn run(folder: &Path, flags: &[&str]) -> (Child, SocketAddr, String) {
    let addresses = folder.join("addresses");
    let _ = fs::remove_file(&addresses);
    let mut child = Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
        .args(["run", "--memory", "64MiB", "--cluster", "16", "--log", "warn"])
        .args(["--listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0"])
        .arg("--config")
        .arg(folder.join("relay.toml"))
        .arg("--data-dir")
        .arg(folder.join("data"))
        .arg("--address-file")
        .arg(&addresses)
        .args(flags)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let text = eventually("the address file", || {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("the node ended: {status}");
        }
        fs::read_to_string(&addresses).ok()
    });
    let http = text.lines().find_map(|line| line.strip_prefix("http://")).unwrap();
    let address = http.parse().unwrap();
    let multiaddr = text.lines().find(|line| line.starts_with("/ip4")).unwrap().to_owned();
    (child, address, multiaddr)
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    /// Reads one whole answer from a connection that ends with it.
    fn read(stream: &mut TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
        let head = std::str::from_utf8(&all[..end]).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<String, String> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let rest = &all[end + 4..];
        let chunked = headers.get("transfer-encoding").is_some_and(|value| value == "chunked");
        let body = if chunked { dechunked(rest) } else { rest.to_vec() };
        // Asked for the head alone, there is a length and no body.
        if let Some(length) = headers.get("content-length").filter(|_| !body.is_empty()) {
            assert_eq!(length.parse::<usize>().unwrap(), body.len());
        }
        Self { status, headers, body }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The JSON of an answer that must be 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }
}

fn dechunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("a whole chunk");
        let length =
            usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        rest = &rest[line + 2..];
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[..length]);
        rest = &rest[length + 2..];
    }
}

impl Node {
    /// Kills it without warning, and starts it again on the same folder with other flags.
    pub(crate) fn kill_and_start(&mut self, flags: &[&str]) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.address, self.multiaddr) = run(self.folder.path(), flags);
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks for a connection until there is one: on a busy machine the first attempt may take
    /// longer than the answer waits.
    fn connect_to(&self, other: &Self) {
        eventually("the connection", || {
            let answer = self.post("/admin/v1/peers", &json!([other.multiaddr]));
            if answer.status != 200 {
                println!("not connected yet: {}", answer.text());
            }
            (answer.status == 200 && answer.text() == "OK").then_some(())
        });
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    fn request(&self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        self.request_with(method, path, "host: localhost\r\n", body)
    }

    /// The same with other headers, in which there is a host.
    fn request_with(&self, method: &str, path: &str, more: &str, body: Option<&[u8]>) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\n{more}connection: close\r\n");
        if let Some(body) = body {
            head +=
                &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        stream.write_all(body.unwrap_or_default()).unwrap();
        Answer::read(&mut stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, None)
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.request(method, path, Some(body.to_string().as_bytes()))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, body)
    }

    /// A figure of the metrics, by the whole of its name and labels.
    fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics");
        let line = metrics.text().lines().find(|line| line.rsplit_once(' ').unwrap().0 == name);
        line.unwrap_or_else(|| panic!("no {name}")).rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

pub(crate) fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                (byte as char).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The pubsub topic of a content topic.
pub(crate) fn pubsub_topic(content_topic: &str) -> String {
    let topic = protocol::ContentTopic::parse(content_topic).unwrap();
    format!("/waku/2/rs/16/{}", protocol::autoshard(&topic, NonZeroU16::new(8).unwrap()))
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

pub(crate) fn message(payload: &[u8]) -> Value {
    json!({
        "payload": BASE64.encode(payload),
        "contentTopic": CONTENT_TOPIC,
        "timestamp": now_ns(),
    })
}

pub(crate) fn payload(message: &Value) -> Vec<u8> {
    BASE64.decode(message["payload"].as_str().unwrap()).unwrap()
}

#[test]
fn what_is_published_is_read_by_everybody_who_subscribed() {
    let node = start("", &[]);
    let topic = pubsub_topic(CONTENT_TOPIC);
    let relay = format!("/relay/v1/messages/{}", encoded(&topic));
    let auto = format!("/relay/v1/auto/messages/{}", encoded(CONTENT_TOPIC));
    let filter = format!("/filter/v2/messages/{}", encoded(CONTENT_TOPIC));
    for path in [&auto, &filter] {
        assert_eq!(node.get(path).status, 404, "nobody subscribed");
    }
    assert_eq!(node.get(&relay).ok(), json!([]), "configured shards are subscribed at the start");
    assert_eq!(node.post("/relay/v1/subscriptions", &json!([topic])).text(), "OK");

    let sent = json!({
        "payload": "aGVsbG8=", "contentTopic": CONTENT_TOPIC, "timestamp": now_ns(),
        "version": 2, "ephemeral": true, "meta": "bWV0YQ==",
    });
    assert_eq!(node.post(&relay, &sent).status, 200);
    assert_eq!(node.get(&relay).ok(), json!([sent]), "every field comes back");
    assert_eq!(node.get(&relay).ok(), json!([]), "once");

    // The same by content topic, and as a filter.
    assert_eq!(node.post("/relay/v1/auto/subscriptions", &json!([CONTENT_TOPIC])).status, 200);
    assert_eq!(node.post("/relay/v1/auto/messages", &message(b"auto")).status, 200);
    assert_eq!(payload(&node.get(&auto).ok()[0]), b"auto");
    assert_eq!(payload(&node.get(&relay).ok()[0]), b"auto", "the shard hears it too");

    let ping = node.get("/filter/v2/subscriptions/first");
    assert_eq!((ping.status, &ping.json()["requestId"]), (404, &json!("first")));
    let subscribe =
        json!({ "requestId": "r1", "contentFilters": [CONTENT_TOPIC], "pubsubTopic": topic });
    let subscribed = node.post("/filter/v2/subscriptions", &subscribe).ok();
    assert_eq!(subscribed, json!({ "requestId": "r1", "statusDesc": "OK" }));
    assert_eq!(node.send("PUT", "/filter/v2/subscriptions", &subscribe).status, 200);
    assert_eq!(node.get("/filter/v2/subscriptions/second").ok()["requestId"], "second");
    let pushed = json!({ "pubsubTopic": topic, "message": message(b"pushed") });
    assert_eq!(node.post("/lightpush/v3/message", &pushed).ok(), json!({ "relayPeerCount": 0 }));
    assert_eq!(payload(&node.get(&filter).ok()[0]), b"pushed");

    // Unsubscribing leaves other subscriptions in place.
    assert_eq!(
        node.send("DELETE", "/filter/v2/subscriptions/all", &json!({ "requestId": "r2" })).status,
        200
    );
    assert_eq!(node.send("DELETE", "/filter/v2/subscriptions", &subscribe).status, 404);
    assert_eq!(node.get(&filter).status, 404);
    assert_eq!(node.post("/lightpush/v1/message", &pushed).text(), "OK", "it is known");
    assert_eq!(node.get(&auto).ok(), json!([]), "and was handed on when it came first");
    let again = json!({ "pubsubTopic": topic, "message": message(b"again") });
    assert_eq!(node.post("/lightpush/v1/message", &again).text(), "OK");
    assert_eq!(payload(&node.get(&auto).ok()[0]), b"again");
    let auto_topics = json!([CONTENT_TOPIC]);
    assert_eq!(node.send("DELETE", "/relay/v1/auto/subscriptions", &auto_topics).status, 200);
    assert_eq!(node.send("DELETE", "/relay/v1/subscriptions", &json!([topic])).status, 200);
    assert_eq!((node.get(&auto).status, node.get(&relay).status), (404, 404));
}

#[test]
fn messages_may_be_as_large_as_the_network_has_them_and_lie_in_memory_one_at_a_time() {
    let node = start("", &[]);
    let auto = format!("/relay/v1/auto/messages/{}", encoded(CONTENT_TOPIC));
    assert_eq!(node.post("/relay/v1/auto/subscriptions", &json!([CONTENT_TOPIC])).status, 200);
    let large = |number: usize| -> Vec<u8> {
        (0..150_000_usize).map(|place| (place * 7 + place / 256 + number) as u8).collect()
    };
    // References of 64 are kept at this size of node: the oldest leave.
    for number in 0..70 {
        assert_eq!(node.post("/relay/v1/auto/messages", &message(&large(number))).status, 200);
    }
    let read = node.get(&auto).ok();
    let read = read.as_array().unwrap();
    assert_eq!(read.len(), 64);
    for (number, message) in (6..70).zip(read) {
        assert!(payload(message) == large(number), "message {number}");
    }
    // So is the queue of the shard, which is configured.
    assert_eq!(node.metric("thimble_relay_http_dropped_total"), 12.0);
    for pool in ["responses", "request_bodies", "receiving", "http_connections"] {
        let figure = |name: &str| {
            node.metric(&format!("thimble_relay_pool_{name}_bytes{{pool=\"{pool}\"}}"))
        };
        let (high, cap) = (figure("high_water"), figure("cap"));
        assert!(high > 0.0 && high <= cap, "{pool}: {high} of {cap}");
    }
    let overruns = node.metric("thimble_relay_pool_overruns_total{pool=\"responses\"}");
    assert_eq!(overruns, 0.0);
}

#[test]
fn the_store_is_read_page_by_page() {
    let node = start("", &[]);
    let begin = now_ns() - 1_000_000_000;
    for number in 0..25_i64 {
        let message = json!({
            "payload": BASE64.encode(number.to_string()), "contentTopic": CONTENT_TOPIC,
            "timestamp": begin + number,
        });
        assert_eq!(node.post("/relay/v1/auto/messages", &message).status, 200);
    }
    let ephemeral = json!({ "payload": "aGk=", "contentTopic": CONTENT_TOPIC, "ephemeral": true });
    assert_eq!(node.post("/relay/v1/auto/messages", &ephemeral).status, 200);

    let topics = format!("contentTopics={}", encoded(&format!("{CONTENT_TOPIC},/other/1/x/y")));
    let mut cursor = String::new();
    let (mut numbers, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let path =
            format!("/store/v3/messages?includeData=true&pageSize=10&{topics}&cursor={cursor}");
        let page = node.get(&path).ok();
        assert_eq!((&page["statusCode"], &page["statusDesc"]), (&json!(200), &json!("OK")));
        let messages = page["messages"].as_array().unwrap();
        sizes.push(messages.len());
        for found in messages {
            assert_eq!(found["pubsubTopic"], pubsub_topic(CONTENT_TOPIC));
            numbers.push(String::from_utf8(payload(&found["message"])).unwrap());
        }
        match page["paginationCursor"].as_str() {
            Some(next) => cursor = encoded(next),
            None => break,
        }
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert_eq!(numbers, (0..25).map(|number| number.to_string()).collect::<Vec<_>>());

    // The newest page; the hashes alone; one by its hash, in either way of writing.
    let newest = node.get("/store/v3/messages?ascending=false&pageSize=3").ok();
    let hashes: Vec<&str> = newest["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| {
            assert!(found.get("message").is_none());
            found["messageHash"].as_str().unwrap()
        })
        .collect();
    assert_eq!(hashes.len(), 3);
    let bytes: Vec<u8> = (0..32)
        .map(|place| u8::from_str_radix(&hashes[2][2 + place * 2..4 + place * 2], 16).unwrap())
        .collect();
    for hash in [hashes[2].to_owned(), encoded(&BASE64.encode(bytes))] {
        let found = node.get(&format!("/store/v3/messages?includeData=true&hashes={hash}")).ok();
        let found = found["messages"].as_array().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(payload(&found[0]["message"]), b"24");
    }
    // Both bounds of time are inside.
    let (start_time, end_time) = (begin + 3, begin + 7);
    let window = format!("/store/v3/messages?startTime={start_time}&endTime={end_time}");
    assert_eq!(node.get(&window).ok()["messages"].as_array().unwrap().len(), 5);

    let own = format!("/store/v3/messages?peerAddr={}", encoded(&node.multiaddr));
    assert_eq!(node.get(&own).ok()["messages"].as_array().unwrap().len(), 20, "the default page");
    let other = "/ip4/127.0.0.1/tcp/1/p2p/16Uiu2HAmVFXtAfSj4EiR7mL2KvL4EE2wztuQgUSBoj2Jx2KeXFLN";
    let other = node.get(&format!("/store/v3/messages?peerAddr={}", encoded(other)));
    assert!(other.status == 504 && other.text().contains("cannot be reached"), "{}", other.text());
    let unknown = format!("/store/v3/messages?cursor=0x{}", "ab".repeat(32));
    let unknown = node.get(&unknown);
    assert!(unknown.status == 400 && unknown.text().contains("cursor"), "{}", unknown.text());
    assert_eq!(node.metric("waku_archive_messages{type=\"stored\"}"), 25.0);
}

#[test]
fn what_was_answered_for_is_in_the_store_after_the_process_was_killed() {
    let mut node = start("", &[]);
    for number in 0..10 {
        assert_eq!(node.post("/relay/v1/auto/messages", &message(&[number])).status, 200);
    }
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    let (child, address, multiaddr) = run(node.folder.path(), &[]);
    let before = std::mem::replace(&mut node.multiaddr, multiaddr);
    (node.child, node.address) = (child, address);
    let peer = |address: &str| address.rsplit_once('/').unwrap().1.to_owned();
    assert_eq!(peer(&before), peer(&node.multiaddr), "it is the same node");
    assert_eq!(node.get("/store/v3/messages").ok()["messages"].as_array().unwrap().len(), 10);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn what_cannot_be_served_is_refused_by_its_name() {
    let node = start("store = false\n", &["--shard", "0,1,2,3,4,5,6"]);
    let served = "/waku/2/rs/16/1";
    let relay = &*format!("/relay/v1/messages/{}", encoded(served));
    let push = "/lightpush/v3/message";
    let long = "x".repeat(257);
    let good = json!({ "payload": "", "contentTopic": "/a/1/b/c" });
    let cases: [(&str, &str, Value, u16, &str); 29] = [
        ("POST", relay, json!({}), 400, "payload"),
        ("POST", relay, json!({ "payload": "%%%", "contentTopic": "/a/1/b/c" }), 400, "base64"),
        ("POST", relay, json!({ "payload": "aGk=" }), 400, "contentTopic"),
        ("POST", relay, json!({ "payload": "aGk=", "contentTopic": " " }), 400, "contentTopic"),
        (
            "POST",
            push,
            json!({ "message": { "payload": "aGk=" }, "pubsubTopic": served }),
            400,
            "contentTopic",
        ),
        ("POST", push, json!({ "message": good, "extra": 1 }), 400, "unknown field `extra`"),
        (
            "POST",
            relay,
            json!({ "payload": "aGk=", "contentTopic": "/a/1/b/c", "extraField": "extra" }),
            400,
            "unknown field `extraField`",
        ),
        (
            "POST",
            "/filter/v2/subscriptions",
            json!({ "requestId": "r", "contentFilters": ["/a/1/b/c"], "extraField": "extra" }),
            400,
            "unknown field `extraField`",
        ),
        (
            "POST",
            "/filter/v2/subscriptions",
            json!({ "requestId": "r", "contentFilters": vec!["/a/1/b/c"; 101] }),
            400,
            "exceeds maximum content topics: 100",
        ),
        ("POST", relay, json!({ "payload": "", "contentTopic": long }), 400, "256"),
        ("POST", relay, json!([good]), 400, "the body cannot be read"),
        ("POST", "/relay/v1/messages/other", good.clone(), 400, "not a sharded topic"),
        (
            "POST",
            "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F7",
            good.clone(),
            400,
            "does not serve",
        ),
        ("POST", "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F3%2F1", good.clone(), 400, "cluster 16"),
        ("POST", "/relay/v1/auto/messages", json!({ "payload": "" }), 400, "contentTopic"),
        (
            "POST",
            push,
            json!({ "message": good, "pubsubTopic": "/waku/2/rs/16/7" }),
            421,
            "does not serve",
        ),
        (
            "POST",
            push,
            json!({ "message": { "payload": "", "contentTopic": long }, "pubsubTopic": served }),
            420,
            "256",
        ),
        (
            "POST",
            push,
            json!({ "message": { "payload": "", "contentTopic": "plain" } }),
            421,
            "pubsub topic",
        ),
        ("POST", push, json!({ "pubsubTopic": served }), 400, "message"),
        (
            "POST",
            "/lightpush/v1/message",
            json!({ "message": good, "pubsubTopic": "x" }),
            400,
            "sharded",
        ),
        ("POST", "/relay/v1/subscriptions", json!(["/waku/2/rs/3/7"]), 400, "cluster 16"),
        ("POST", "/relay/v1/subscriptions", json!(vec![served; 257]), 400, "256"),
        ("POST", "/relay/v1/auto/subscriptions", json!([long]), 400, "256"),
        (
            "POST",
            "/filter/v2/subscriptions",
            json!({ "requestId": "r", "contentFilters": [] }),
            400,
            "contentFilters",
        ),
        (
            "POST",
            "/filter/v2/subscriptions",
            json!({ "contentFilters": ["/a/1/b/c"] }),
            400,
            "requestId",
        ),
        (
            "PUT",
            "/filter/v2/subscriptions",
            json!({ "requestId": "r", "contentFilters": ["/a/1/b/c"] }),
            404,
            "peer has no subscriptions",
        ),
        ("POST", "/admin/v1/peers", json!(["nowhere"]), 400, "multiaddress"),
        ("POST", "/admin/v1/peers", json!(["/ip4/127.0.0.1/tcp/1"]), 400, "/p2p/"),
        ("POST", "/admin/v1/peers", json!(vec!["/ip4/127.0.0.1/tcp/1"; 17]), 400, "16"),
    ];
    for (method, path, body, status, why) in cases {
        let answer = node.send(method, path, &body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        let text = match answer.headers["content-type"].as_str() {
            "application/json" => answer.json()["statusDesc"].as_str().unwrap().to_owned(),
            _ => answer.text().to_owned(),
        };
        assert!(text.contains(why), "{method} {path} {body}: {text}");
        let in_json = path.starts_with("/lightpush/v3") || path.starts_with("/filter");
        assert_eq!(in_json, answer.headers["content-type"] == "application/json", "{path}");
    }
    for (path, status, why) in [
        ("/", 404, "nothing at"),
        ("/store/v1/messages", 404, "nothing at"),
        ("/store/v3/messages", 412, "keeps no messages"),
        ("/store/v3/messages?pageSize=many", 400, "pageSize"),
        ("/admin/v1/peer/nobody", 400, "peer id"),
        (
            "/admin/v1/peer/16Uiu2HAmVFXtAfSj4EiR7mL2KvL4EE2wztuQgUSBoj2Jx2KeXFLN",
            404,
            "not connected",
        ),
        ("/admin/v1/peers/mesh/on/1024", 400, "1023"),
        ("/lightpush/v3/message", 405, "POST"),
    ] {
        let answer = node.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().contains(why), "{path}: {}", answer.text());
    }
    assert_eq!(node.get("/relay/v1/subscriptions").headers["allow"], "POST, DELETE");
    assert_eq!(node.request("POST", "/admin/v1/log-level/debug", None).status, 200);
    assert_eq!(node.request("POST", "/admin/v1/log-level/LOUD", None).status, 400);

    // A page of another origin can send forms and plain text without asking; neither is taken.
    let mut stream = node.connect();
    let body = good.to_string();
    write!(
        stream,
        "POST {relay} HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let answer = Answer::read(&mut stream);
    assert!(answer.status == 400 && answer.text().contains("application/json"));
    assert!(
        node.metric("thimble_relay_messages_refused_total{source=\"client\",reason=\"damaged\"}")
            >= 5.0
    );
}

#[test]
fn bodies_and_heads_are_bounded_however_they_are_sent() {
    let node = start("", &[]);
    let body = vec![b' '; 300 << 10];
    let answer = node.request("POST", "/relay/v1/auto/messages", Some(&body));
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("http.body_bytes is 262144"), "{}", answer.text());
    let answer = node.request("POST", "/lightpush/v3/message", Some(&body));
    assert_eq!(answer.status, 413);
    assert!(answer.json()["statusDesc"].as_str().unwrap().contains("262144"));

    let mut stream = node.connect();
    write!(
        stream,
        "POST /relay/v1/auto/messages HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .unwrap();
    for _ in 0..5 {
        write!(stream, "{:x}\r\n", 60 << 10).unwrap();
        stream.write_all(&body[..60 << 10]).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(Answer::read(&mut stream).status, 413, "without an announced length");

    // Quotes of a request are short.
    let topic = json!({ "message": { "payload": "", "contentTopic": "x".repeat(100_000) } });
    let answer = node.post("/lightpush/v3/message", &topic);
    assert!(answer.status == 421 && answer.body.len() < 2048, "{}", answer.text());
    let long = "x".repeat(257);
    let answer = node.get(&format!("/filter/v2/subscriptions/{long}"));
    assert!(answer.status == 400 && answer.text().contains("256"), "{}", answer.text());

    // The body fits, the message is larger than is relayed.
    let message = message(&vec![0; 155 << 10]);
    let answer = node.post("/relay/v1/auto/messages", &message);
    assert!(answer.status == 413 && answer.text().contains("153600"), "{}", answer.text());
    let answer = node.post("/lightpush/v3/message", &json!({ "message": message }));
    assert!(answer.status == 413 && answer.text().contains("split"), "{}", answer.text());
    assert_eq!(node.post("/lightpush/v1/message", &json!({ "message": message })).status, 400);

    let mut stream = node.connect();
    let long = "x".repeat(10 << 10);
    let head = format!("GET /health HTTP/1.1\r\nhost: node\r\nlong: {long}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 431);
    assert_eq!(node.get("/health").status, 200);
    let used = node.metric("thimble_relay_pool_used_bytes{pool=\"request_bodies\"}");
    assert_eq!(used, 0.0, "what was refused is given back");
}

#[test]
fn a_full_pool_is_an_answer_that_names_it() {
    // Room for one body of the largest size.
    let node = start("[limits.http]\nbodies_bytes = 262144\n", &[]);
    let head = |length: usize| {
        format!(
            "POST /relay/v1/auto/messages HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let body = message(&vec![7; 140_000]).to_string();
    let mut first = node.connect();
    first.write_all(head(body.len()).as_bytes()).unwrap();
    first.write_all(&body.as_bytes()[..body.len() - 1]).unwrap();
    eventually("the first body", || {
        let used = node.metric("thimble_relay_pool_used_bytes{pool=\"request_bodies\"}");
        (used >= body.len() as f64 - 1.0).then_some(())
    });
    let refused = node.request("POST", "/relay/v1/auto/messages", Some(body.as_bytes()));
    // It waited its turn first.
    assert_eq!((refused.status, &*refused.headers["retry-after"]), (429, "1"));
    assert!(refused.text().contains("request_bodies"), "{}", refused.text());
    first.write_all(&body.as_bytes()[body.len() - 1..]).unwrap();
    assert_eq!(Answer::read(&mut first).status, 200, "the request that has room is served");
    assert_eq!(node.request("POST", "/relay/v1/auto/messages", Some(body.as_bytes())).status, 200);
    assert!(node.metric("thimble_relay_pool_refused_total{pool=\"request_bodies\"}") >= 1.0);
}

// Promise: P24 - HTTP connections without a request do not exclude clients.
#[test]
fn idle_connections_up_to_the_limit_are_closed_for_new_ones() {
    let node = start("[limits.http]\nconnections = 3\n", &[]);
    let mut between = node.connect();
    between.write_all(b"GET /health HTTP/1.1\r\nhost: node\r\n\r\n").unwrap();
    assert!(between.read(&mut [0; 4096]).unwrap() > 0);
    let silent = node.connect();
    let mut trickling = node.connect();
    trickling.write_all(b"GET /health HTTP/1.1\r\nho").unwrap();
    // They have their places, and have had them for long enough.
    std::thread::sleep(Duration::from_secs(1));
    for _ in 0..4 {
        assert_eq!(node.get("/health").status, 200);
    }
    assert!(node.metric("thimble_relay_http_connections_evicted_total") >= 1.0);
    assert_eq!(node.metric("thimble_relay_http_connections_refused_total"), 0.0);
    between.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let start = std::time::Instant::now();
    // By an end or by a reset.
    let _ = std::io::copy(&mut between, &mut std::io::sink());
    assert!(start.elapsed() < Duration::from_secs(5), "the one that was idle longest is closed");
    drop((silent, trickling));
}

// Promise: P24 - HTTP connections beyond the limit are refused while the others are busy.
#[test]
fn one_connection_too_many_is_told_so() {
    let node = start("[limits.http]\nconnections = 3\n", &[]);
    let mut held: Vec<TcpStream> = (0..3).map(|_| node.connect()).collect();
    for stream in &mut held {
        write!(
            stream,
            "POST /relay/v1/auto/messages HTTP/1.1\r\nhost: node\r\nexpect: 100-continue\r\n\
             content-type: application/json\r\ncontent-length: 100\r\n\r\n"
        )
        .unwrap();
        // Its request is in progress when it is asked for the body.
        let mut asked = [0; 12];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100");
    }
    // Idle connections of this age would be closed for new ones.
    std::thread::sleep(Duration::from_millis(500));
    let mut beyond = node.connect();
    let refused = Answer::read(&mut beyond);
    assert_eq!((refused.status, &*refused.headers["retry-after"]), (503, "1"));
    let text = refused.text();
    assert!(text.contains("http.connections = 3") && text.contains("http_connections"), "{text}");
    drop(beyond);
    held.pop();
    let served =
        eventually("a place", || Some(node.get("/health")).filter(|answer| answer.status == 200));
    assert_eq!(served.json()["nodeHealth"], "READY");
    drop(held);
    eventually("places for the metrics", || {
        Some(node.get("/metrics")).filter(|answer| answer.status == 200)
    });
    assert!(node.metric("thimble_relay_http_connections_refused_total") >= 1.0);
}

#[test]
fn slow_clients_are_cut_off() {
    let node = start("[limits.http]\nread_timeout_millis = 400\n", &[]);
    let mut drip = node.connect();
    drip.write_all(b"GET /health HTTP/1.1\r\nho").unwrap();
    drip.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut ignored = Vec::new();
    // Closed, by an end or by a reset.
    let _ = drip.read_to_end(&mut ignored);
    assert!(
        ignored.is_empty() || ignored.starts_with(b"HTTP/1.1 408"),
        "half a head is no request"
    );

    let mut torn = node.connect();
    write!(
        torn,
        "POST /relay/v1/auto/messages HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{"
    )
    .unwrap();
    let answer = Answer::read(&mut torn);
    assert_eq!((answer.status, &*answer.headers["connection"]), (408, "close"));
    assert!(answer.text().contains("http.read_timeout_millis = 400"), "{}", answer.text());
    assert_eq!(node.metric("thimble_relay_pool_used_bytes{pool=\"request_bodies\"}"), 0.0);

    // A connection without a request frees its place too.
    let mut idle = node.connect();
    idle.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    idle.write_all(b"GET /version HTTP/1.1\r\nhost: node\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    idle.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn metrics_are_prometheus_text_under_the_names_dashboards_use() {
    let node = start("", &[]);
    for number in 0..3 {
        assert_eq!(node.post("/relay/v1/auto/messages", &message(&[number])).status, 200);
    }
    assert_eq!(node.get("/store/v3/messages?cursor=x").status, 400);
    assert_eq!(node.get("/store/v3/messages").status, 200);
    let answer = node.get("/metrics");
    assert!(answer.headers["content-type"].starts_with("application/openmetrics-text"));
    let mut types = BTreeMap::new();
    let mut samples = BTreeMap::new();
    for line in answer.text().lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert!(types.insert(name, kind).is_none(), "{name} is declared once");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffixes = ["_total", "_bucket", "_sum", "_count"];
            let family = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            let family = family.filter(|family| types.contains_key(family)).unwrap_or(name);
            let kind = types.get(family).unwrap_or_else(|| panic!("{name} has no type"));
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
            let value: f64 = value.parse().unwrap();
            assert!(samples.insert(series, value).is_none(), "{series} is there once");
        }
    }
    assert!(answer.text().ends_with("# EOF\n"));
    for (series, value) in [
        ("waku_node_messages_total{type=\"relay\"}", 3.0),
        ("waku_archive_messages{type=\"stored\"}", 3.0),
        ("waku_store_queries_total", 2.0),
        ("waku_store_errors_total{type=\"damaged\"}", 1.0),
        ("waku_filter_subscriptions", 0.0),
        ("waku_lightpush_v3_messages_total{type=\"PushRequest\"}", 3.0),
        (
            "waku_service_requests_total{service=\"/vac/waku/store-query/3.0.0\",state=\"served\"}",
            1.0,
        ),
        ("libp2p_peers", 0.0),
        ("libp2p_pubsub_topics", 8.0),
        ("libp2p_gossipsub_peers_per_topic_mesh{topic=\"/waku/2/rs/16/0\"}", 0.0),
        ("thimble_relay_messages_total{source=\"client\"}", 3.0),
        ("thimble_relay_gossip_without_peer_total", 3.0),
        ("thimble_relay_memory_budget_bytes", (64 << 20) as f64),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
    assert!(samples["process_resident_memory_bytes"] > 1e6);
    assert!(samples["thimble_relay_memory_anonymous_bytes"] < (64 << 20) as f64);

    let status = node.get("/status.json").ok();
    let pools: BTreeSet<&str> = status["pools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pool| pool["name"].as_str().unwrap())
        .collect();
    assert_eq!(pools, relay_limits::pool::ALL.into_iter().collect());
    assert_eq!(status["messages"]["client"]["accepted"], 3);
    assert_eq!(status["store"]["messages"], 3);
    assert_eq!(status["http"]["answers"]["400"], 1);
    assert_eq!((&status["cluster"], &status["peers"]["connections"]), (&json!(16), &json!(0)));
    eventually("rates", || {
        let rates = node.get("/status.json").ok()["rates"].clone();
        (rates["window_seconds"].as_f64()? > 0.5).then_some(())
    });
}

/// The only peer of a node, another of this program, in the lists of peers and in the metrics.
fn check_what_a_peer_says(here: &Node) {
    let peer = eventually("the peer says what it speaks", || {
        let peer = here.get("/admin/v1/peers/service").ok()[0].clone();
        peer["agent"].as_str().is_some_and(|agent| !agent.is_empty()).then_some(peer)
    });
    assert_eq!(peer["agent"], concat!("thimble-relay/", env!("CARGO_PKG_VERSION")));
    let protocols: Vec<&str> =
        peer["protocols"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in [
        protocol::gossip::PROTOCOL,
        protocol::filter::SUBSCRIBE_PROTOCOL,
        protocol::store::PROTOCOL,
        protocol::light_push::PROTOCOL,
        protocol::light_push::PROTOCOL_V2,
        protocol::peer_exchange::PROTOCOL,
        protocol::metadata::PROTOCOL,
        "/ipfs/id/1.0.0",
        "/ipfs/ping/1.0.0",
    ] {
        assert!(protocols.contains(&name), "{name} in {protocols:?}");
    }
    assert_eq!(here.get("/health").ok()["connectionStatus"], "PartiallyConnected");
    let stats = here.get("/admin/v1/peers/stats").ok();
    let by_protocol = &stats["By Protocols"];
    assert_eq!(by_protocol[protocol::store::PROTOCOL], 1, "{by_protocol}");
    assert_eq!(by_protocol[protocol::filter::PUSH_PROTOCOL], 0, "{by_protocol}");
    assert_eq!(here.metric("libp2p_pubsub_peers"), 1.0);
    let per_agent = format!(
        "waku_connected_peers_per_agent{{agent=\"thimble-relay/{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    for (name, expected) in [
        ("waku_store_peers", 1.0),
        ("waku_lightpush_peers", 1.0),
        ("waku_filter_peers", 1.0),
        ("waku_px_peers", 1.0),
        ("waku_connected_peers_per_shard{shard=\"0\"}", 1.0),
        (per_agent.as_str(), 1.0),
        ("libp2p_pubsub_subscriptions_total", 8.0),
        ("libp2p_pubsub_unsubscriptions_total", 0.0),
        ("waku_histogram_message_size_count", 0.0),
    ] {
        assert_eq!(here.metric(name), expected, "{name}");
    }
    let topics = ["no_peers", "low_peers", "healthy_peers"]
        .map(|kind| here.metric(&format!("libp2p_gossipsub_{kind}_topics")));
    assert_eq!(topics.iter().sum::<f64>(), 8.0, "{topics:?}");
    eventually("bytes are counted", || {
        let moved =
            |way| here.metric(&format!("libp2p_network_bytes_total{{direction=\"{way}\"}}"));
        (moved("in") > 0.0 && moved("out") > 0.0).then_some(())
    });
    assert!(here.metric("process_open_fds") > 3.0);
}

#[test]
fn two_nodes_are_introduced_and_one_hears_what_the_other_publishes() {
    let (here, there) = (start("", &[]), start("", &[]));
    assert_eq!(here.get("/admin/v1/peers").ok(), json!([]));
    here.connect_to(&there);
    let peers = here.get("/admin/v1/peers/connected").ok();
    let peers = peers.as_array().unwrap();
    assert_eq!(peers.len(), 1);
    assert_eq!(
        (&peers[0]["connected"], &peers[0]["multiaddr"]),
        (&json!("Connected"), &json!(there.multiaddr))
    );
    let id = there.multiaddr.rsplit_once('/').unwrap().1;
    assert_eq!(here.get(&format!("/admin/v1/peer/{id}")).ok()["origin"], "Static");
    eventually("the other side knows", || {
        (there.get("/admin/v1/peers").ok().as_array().unwrap().len() == 1).then_some(())
    });

    let stats = eventually("the mesh", || {
        let stats = here.get("/admin/v1/peers/stats").ok();
        (stats["Mesh peers"]["Total mesh peers"] == 1).then_some(stats)
    });
    assert_eq!(stats["Relay peers"]["0"], 1);
    assert_eq!(stats["Sum"]["Total peers"], 1);
    let relay = protocol::gossip::PROTOCOL;
    check_what_a_peer_says(&here);
    let direction = format!("waku_connected_peers{{direction=\"Out\",protocol=\"{relay}\"}}");
    assert_eq!(here.metric(&direction), 1.0);

    let topic = pubsub_topic(CONTENT_TOPIC);
    let messages = format!("/relay/v1/messages/{}", encoded(&topic));
    assert_eq!(there.post("/relay/v1/subscriptions", &json!([topic])).status, 200);
    let push = json!({ "message": message(b"across") });
    assert_eq!(here.post("/lightpush/v3/message", &push).ok(), json!({ "relayPeerCount": 1 }));
    let heard = eventually("the message", || {
        let heard = there.get(&messages).ok();
        (!heard.as_array().unwrap().is_empty()).then_some(heard)
    });
    assert_eq!(payload(&heard[0]), b"across");
    for node in [&here, &there] {
        assert_eq!(node.metric("waku_histogram_message_size_count"), 1.0);
        assert_eq!(node.metric("waku_archive_insert_duration_seconds_count"), 1.0);
    }

    let nobody = "/ip4/127.0.0.1/tcp/1/p2p/16Uiu2HAmVFXtAfSj4EiR7mL2KvL4EE2wztuQgUSBoj2Jx2KeXFLN";
    let refused = here.post("/admin/v1/peers", &json!([nobody]));
    assert!(
        refused.status == 400 && refused.text().contains("cannot connect"),
        "{}",
        refused.text()
    );
}

#[test]
fn peers_are_listed_by_shard_with_their_addresses() {
    let (here, there) = (start("", &[]), start("", &[]));
    here.connect_to(&there);
    eventually("the mesh", || {
        let stats = here.get("/admin/v1/peers/stats").ok();
        (stats["Mesh peers"]["3"] == 1).then_some(())
    });
    for kind in ["relay", "mesh"] {
        let on = here.get(&format!("/admin/v1/peers/{kind}/on/3")).ok();
        assert_eq!(on["shard"], 3);
        assert_eq!(on["peers"][0]["multiaddr"], there.multiaddr, "{kind}: {on}");
        let all = here.get(&format!("/admin/v1/peers/{kind}")).ok();
        let all: Vec<&Value> = all.as_array().unwrap().iter().map(|one| &one["shard"]).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
        let other = here.get(&format!("/admin/v1/peers/{kind}/on/9")).ok();
        assert_eq!(other, json!({ "shard": 9, "peers": [] }));
    }
    let on = here.get("/admin/v1/peers/connected/on/3").ok();
    assert_eq!(on[0]["shards"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    assert!(on[0]["score"].is_number());
    assert_eq!(here.get("/admin/v1/peers/connected/on/9").ok(), json!([]));
}

#[test]
fn a_node_that_waits_for_peers_says_so() {
    let node = start("", &["--min-relay-peers", "1"]);
    let health = node.get("/health").ok();
    assert_eq!(health["nodeHealth"], "READY");
    assert_eq!(health["connectionStatus"], "Disconnected");
    let protocols = health["protocolsHealth"].as_array().unwrap();
    let state = |name: &str| protocols.iter().find_map(|one| one[name].as_str());
    for (name, expected) in [
        ("Relay", "NOT_READY"),
        ("Lightpush", "NOT_READY"),
        ("Legacy Lightpush", "NOT_READY"),
        ("Filter", "READY"),
        ("Peer Exchange", "READY"),
        ("Rendezvous", "NOT_MOUNTED"),
    ] {
        assert_eq!(state(name), Some(expected), "{name} in {health}");
    }
    assert_eq!(protocols.len(), 13, "{health}");
    let relay = &protocols[0];
    assert!(relay["desc"].as_str().unwrap().contains("0 relay peers"), "{relay}");
    let push = json!({ "message": message(b"early") });
    let refused = node.post("/lightpush/v3/message", &push);
    assert_eq!((refused.status, &*refused.headers["retry-after"]), (505, "1"));
    assert!(refused.json()["statusDesc"].as_str().unwrap().contains("relay peer"));
    assert_eq!(node.post("/lightpush/v1/message", &push).status, 503);
    assert_eq!(node.post("/relay/v1/auto/messages", &message(b"early")).status, 503);
    assert_eq!(node.metric("waku_lightpush_v3_errors_total{type=\"no_relay_peers\"}"), 3.0);
    for path in ["/info", "/debug/v1/info"] {
        let addresses = node.get(path).ok()["listenAddresses"].clone();
        assert!(addresses.as_array().unwrap().contains(&json!(node.multiaddr)), "{addresses}");
    }
    for path in ["/version", "/debug/v1/version"] {
        assert_eq!(node.get(path).text(), concat!("thimble-relay/", env!("CARGO_PKG_VERSION")));
    }
    assert_eq!(node.get("/admin/v1/filter/subscriptions").ok(), json!([]));
    let probe = node.request("HEAD", "/health", None);
    assert_eq!(probe.status, 200);
}

#[test]
fn the_node_stops_though_clients_hold_connections() {
    let mut node = start("", &[]);
    let mut kept = node.connect();
    kept.write_all(b"GET /health HTTP/1.1\r\nhost: node\r\n\r\n").unwrap();
    assert!(kept.read(&mut [0; 64]).unwrap() > 0);
    let mut begun = node.connect();
    begun.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    let asked =
        Command::new("kill").args(["-TERM", &node.child.id().to_string()]).status().unwrap();
    assert!(asked.success());
    let status = eventually("the end", || node.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(TcpStream::connect(node.address).is_err());
}

// Promise: P16 - Operator pages of the relay are refused to foreign origins and host names.
#[test]
fn operator_pages_are_refused_to_other_web_pages() {
    let node = start("", &["--host-name", "relay.example"]);
    let own = format!("host: {0}\r\norigin: http://{0}\r\n", node.address);
    let foreign = "host: localhost\r\norigin: https://evil.example\r\n";
    for path in ["/metrics", "/status.json", "/dashboard", "/admin/v1/peers"] {
        for headers in [&own[..], "host: 10.0.0.1:8645\r\n", "host: relay.example:8645\r\n"] {
            assert_eq!(node.request_with("GET", path, headers, None).status, 200, "{headers}");
        }
        let refused = node.request_with("GET", path, foreign, None);
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("https://evil.example"), "{}", refused.text());
        // The attacker's name, made to resolve to this address.
        let refused = node.request_with("GET", path, "host: evil.example:8645\r\n", None);
        assert_eq!(refused.status, 421, "{path}: {}", refused.text());
        assert!(refused.text().contains("host_names"), "{}", refused.text());
    }
    let peers = node.request_with("POST", "/admin/v1/peers", foreign, Some(b"[]"));
    assert_eq!(peers.status, 403);
    let browser = "host: evil.example\r\naccept: text/html\r\n";
    assert_eq!(node.request_with("GET", "/", browser, None).status, 421);
    // A link of another page to the operator's page is followed; its data is not read.
    let link = "host: localhost\r\naccept: text/html\r\nsec-fetch-site: cross-site\r\n";
    assert_eq!(node.request_with("GET", "/", link, None).status, 303);
    assert_eq!(node.request_with("GET", "/dashboard", link, None).status, 200);
    assert_eq!(node.request_with("GET", "/status.json", link, None).status, 403);
}

// Promise: P16 - The whole REST interface of the relay is refused to other web pages.
#[test]
fn rest_interface_is_refused_to_other_web_pages_and_queues_stay() {
    let node = start("", &["--host-name", "relay.example"]);
    let topic = json!([CONTENT_TOPIC]);
    assert_eq!(node.post("/relay/v1/auto/subscriptions", &topic).status, 200);
    let queue = format!("/relay/v1/auto/messages/{}", encoded(CONTENT_TOPIC));
    assert_eq!(node.post("/relay/v1/auto/messages", &message(b"kept")).status, 200);

    let body = message(b"evil").to_string();
    let pushed = json!({ "message": message(b"evil") }).to_string();
    let requests = [
        ("GET", "/store/v3/messages?includeData=true", None),
        ("GET", "/info", None),
        ("GET", "/version", None),
        ("GET", queue.as_str(), None),
        ("GET", "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F0", None),
        ("GET", "/filter/v2/messages/%2Fa%2F1%2Fb%2Fproto", None),
        ("POST", "/relay/v1/auto/messages", Some(body.as_bytes())),
        ("POST", "/lightpush/v3/message", Some(pushed.as_bytes())),
        ("GET", "/nothing", None),
    ];
    let foreign = [
        ("host: evil.example:8645\r\n", 421, "--host-name"),
        ("host: localhost\r\norigin: https://evil.example\r\n", 403, "https://evil.example"),
        ("host: localhost\r\norigin: null\r\n", 403, "null"),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", 403, "cross-site"),
        ("host: localhost\r\nsec-fetch-site: same-site\r\n", 403, "same-site"),
    ];
    for (method, path, body) in requests {
        for (headers, status, named) in foreign {
            let refused = node.request_with(method, path, headers, body);
            assert_eq!(refused.status, status, "{method} {path}: {}", refused.text());
            assert!(refused.text().contains(named), "{path}: {}", refused.text());
            assert!(!refused.headers.contains_key("access-control-allow-origin"), "{path}");
        }
    }
    for headers in [foreign[0].0, foreign[1].0, foreign[3].0] {
        assert_eq!(node.request_with("GET", "/health", headers, None).status, 200);
    }
    for host in ["10.0.0.1:8645", "[::1]:8645", "localhost", "relay", "relay.example:8645"] {
        let headers = format!("host: {host}\r\nsec-fetch-site: none\r\n");
        assert_eq!(node.request_with("GET", "/version", &headers, None).status, 200, "{host}");
    }
    // Nothing was published, and nothing was taken from the queue.
    let kept = node.get(&queue).ok();
    assert_eq!(kept.as_array().unwrap().len(), 1, "{kept}");
}

// Promise: P16 - Web pages of other origins are served where the operator allows their origin.
#[test]
fn allowed_origins_reach_the_interface_and_others_do_not() {
    let node = start("", &["--allow-origin", "https://app.example,localhost:*"]);
    for origin in ["https://app.example", "http://localhost:3000"] {
        let headers =
            format!("host: {}\r\norigin: {origin}\r\nsec-fetch-site: cross-site\r\n", node.address);
        for (path, status) in [("/version", 200), ("/admin/v1/peers", 200), ("/nothing", 404)] {
            let answer = node.request_with("GET", path, &headers, None);
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            assert_eq!(answer.headers["access-control-allow-origin"], origin, "{path}");
            assert_eq!(answer.headers["vary"], "Origin", "{path}");
        }
        let asks = format!("{headers}access-control-request-method: POST\r\n");
        let preflight = node.request_with("OPTIONS", "/lightpush/v3/message", &asks, None);
        assert_eq!(preflight.status, 204, "{}", preflight.text());
        assert!(preflight.headers["access-control-allow-methods"].contains("POST"));
        assert_eq!(preflight.headers["access-control-allow-headers"], "Content-Type");
        let pushed = json!({ "message": message(b"from a page") }).to_string();
        let pushed =
            node.request_with("POST", "/lightpush/v3/message", &headers, Some(pushed.as_bytes()));
        assert_eq!(pushed.status, 200, "{}", pushed.text());
    }
    let evil = "host: localhost\r\norigin: https://evil.example\r\n";
    let refused = node.request_with("GET", "/version", evil, None);
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("--allow-origin"), "{}", refused.text());
    let asks = format!("{evil}access-control-request-method: POST\r\n");
    let refused = node.request_with("OPTIONS", "/lightpush/v3/message", &asks, None);
    assert_eq!(refused.status, 403);
    assert!(!refused.headers.contains_key("access-control-allow-origin"));
    // An allowed page under a name that it made resolve to this address.
    let rebound = "host: app.example:8645\r\norigin: https://app.example\r\n";
    assert_eq!(node.request_with("GET", "/version", rebound, None).status, 421);
}

// Promise: P24 - A refused request with a body leaves its connection usable or announces its end.
#[test]
fn refusal_of_a_request_with_a_body_keeps_or_closes_the_connection() {
    let node = start("", &[]);
    let mut kept = node.connect();
    let missing = "POST /nothing HTTP/1.1\r\nhost: node\r\ncontent-length: 4\r\n\r\nbody";
    let version = "GET /version HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n";
    kept.write_all(format!("{missing}{version}").as_bytes()).unwrap();
    kept.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut both = String::new();
    kept.read_to_string(&mut both).unwrap();
    assert!(both.starts_with("HTTP/1.1 404") && both.contains("HTTP/1.1 200"), "{both}");

    let mut closed = node.connect();
    let foreign = "POST /lightpush/v3/message HTTP/1.1\r\nhost: evil.example\r\n\
                   content-length: 100000\r\n\r\n";
    closed.write_all(foreign.as_bytes()).unwrap();
    let refused = Answer::read(&mut closed);
    assert_eq!((refused.status, &*refused.headers["connection"]), (421, "close"));
}

// Promise: P23 - SIGHUP stops the relay like SIGTERM.
#[test]
fn hangup_stops_the_node_in_order() {
    let mut node = start("", &[]);
    testing::process::send(node.child.id(), testing::process::Signal::HUP);
    let status = eventually("the end", || node.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
