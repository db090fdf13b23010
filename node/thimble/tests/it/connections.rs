//! Clients that occupy resources: idle connections, requests that trickle, answers that are not
//! read, and more connections than there are descriptors.

use std::time::Duration;

use candid::{Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::{CanisterInstallMode, InstallCodeArgs};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::harness::*;
use testing::until_async;

const MIB: u64 = 1 << 20;
/// For one answer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is kept, and what can be asked over it. At its limit of connections the node
/// may close it between requests, or refuse a new one for a moment: then it is opened again.
struct KeepAliveConnection {
    address: std::net::SocketAddr,
    stream: TcpStream,
    ahead: Vec<u8>,
}

fn address(node: &Node) -> std::net::SocketAddr {
    node.url.strip_prefix("http://").unwrap().parse().unwrap()
}

fn head(path: &str, body_bytes: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
}

impl KeepAliveConnection {
    async fn open(node: &Node) -> Self {
        let address = address(node);
        let stream = TcpStream::connect(address).await.unwrap();
        Self { address, stream, ahead: vec![] }
    }

    async fn get(&mut self, path: &str) -> (u16, Vec<u8>) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await
    }

    async fn post(&mut self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        self.send(&[head(path, body.len()).as_bytes(), body].concat()).await
    }

    async fn send(&mut self, request: &[u8]) -> (u16, Vec<u8>) {
        let asking = async {
            loop {
                match self.try_send(request).await {
                    Ok((503, text))
                        if String::from_utf8_lossy(&text).contains("the limit connections = ") => {}
                    Ok(answer) => return answer,
                    Err(error) => println!("the kept connection was closed: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.stream = TcpStream::connect(self.address).await.unwrap();
                self.ahead.clear();
            }
        };
        timeout(PATIENCE, asking).await.expect("an answer within a minute")
    }

    async fn try_send(&mut self, request: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        let end = loop {
            if let Some(at) = self.ahead.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8(self.ahead.drain(..end).collect()).unwrap().to_lowercase();
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |text| text.parse().unwrap());
        while self.ahead.len() < length {
            self.more().await?;
        }
        Ok((status, self.ahead.drain(..length).collect()))
    }

    async fn more(&mut self) -> std::io::Result<()> {
        match self.stream.read_buf(&mut self.ahead).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn metrics(&mut self) -> String {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200);
        String::from_utf8(text).unwrap()
    }
}

/// An update over this very connection; the agent's own would be opened anew.
async fn count(kept: &mut KeepAliveConnection, agent: &Agent, counter: Principal) {
    let signed = agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap();
    let (status, text) =
        kept.post(&format!("/api/v4/canister/{counter}/call"), &signed.signed_update).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&text));
}

async fn counted(agent: &Agent, counter: Principal) -> u64 {
    u64::from_le_bytes(query(agent, counter, "get", vec![]).await.unwrap().try_into().unwrap())
}

/// Allows this process as many descriptors as the system does; how many.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

/// Opens this many connections that say nothing.
async fn silent(node: &Node, connections: usize) -> Vec<TcpStream> {
    let address = address(node);
    let mut opening = JoinSet::new();
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        if opening.len() == 64 {
            open.extend(opening.join_next().await.unwrap().unwrap());
        }
        opening.spawn(async move { TcpStream::connect(address).await.ok() });
    }
    while let Some(opened) = opening.join_next().await {
        open.extend(opened.unwrap());
    }
    open
}

/// Reads what the node said before it closed.
async fn last_words(mut stream: TcpStream) -> String {
    let mut bytes = vec![];
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the node closes it");
    String::from_utf8_lossy(&bytes).into_owned()
}

// Promise: P2 - Ten thousand silent connections use at most 24 MiB more than none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_silent_connections_are_bounded_and_disturb_nobody() {
    let descriptors = raise_descriptor_limit();
    let connections = usize::try_from(descriptors.saturating_sub(1000)).unwrap().min(10_000);
    if connections < 10_000 {
        return testing::missing(format!(
            "ten thousand connections need 11,000 descriptors, {descriptors} are allowed: run as \
             root, or raise ulimit -n"
        ));
    }
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let mut kept = KeepAliveConnection::open(&node).await;
    count(&mut kept, &agent, counter).await;
    let before = kept.metrics().await;
    let idle = figure(&before, "thimble_memory_anonymous_bytes");
    let limit = figure(&before, "thimble_gateway_connections_limit");

    let mut most = idle;
    let mut silent_ones = vec![];
    for _ in 0..10 {
        silent_ones.extend(silent(&node, connections / 10).await);
        assert_eq!(kept.get("/health").await.0, 200);
        count(&mut kept, &agent, counter).await;
        let metrics = kept.metrics().await;
        most = most.max(figure(&metrics, "thimble_memory_anonymous_bytes"));
        assert!(figure(&metrics, "thimble_gateway_connections_used") <= limit);
    }
    println!(
        "{} connections: {} KiB of {} KiB at rest",
        silent_ones.len(),
        (most - idle) >> 10,
        idle >> 10
    );
    assert!(silent_ones.len() > connections * 9 / 10, "{} connected", silent_ones.len());
    assert!(most < idle + 24 * MIB, "{idle} at rest, {most} with {connections} connections");

    // Connections beyond the limit were closed for later ones or got an error, unless too many came
    // at once; none is left hanging.
    let mut refused = 0_u64;
    for stream in silent_ones {
        let words = last_words(stream).await;
        if words.contains(&format!("the limit connections = {limit} allows")) {
            assert!(words.starts_with("HTTP/1.1 503"), "{words}");
            refused += 1;
        }
    }
    let evicted = figure(&kept.metrics().await, "thimble_gateway_connections_evicted_total");
    println!("{refused} were refused, {evicted} were closed for others");
    assert!(refused + evicted > 0);
    until_async("places are free again", async || {
        figure(&kept.metrics().await, "thimble_gateway_connections_used") < 16
    })
    .await;
    assert_eq!(counted(&agent, counter).await, 11);
    count(&mut KeepAliveConnection::open(&node).await, &agent, counter).await;
}

/// Sends `bytes` one at a time until the node has had enough; what it said.
async fn trickle(node: std::net::SocketAddr, at_once: usize, bytes: Vec<u8>) -> String {
    let mut stream = TcpStream::connect(node).await.unwrap();
    stream.write_all(&bytes[..at_once]).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let writing = tokio::spawn(async move {
        for byte in &bytes[at_once..] {
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        writer
    });
    let mut words = vec![];
    let _ =
        timeout(PATIENCE, reader.read_to_end(&mut words)).await.expect("the node has enough of it");
    writing.abort();
    String::from_utf8_lossy(&words).into_owned()
}

// Promise: P2 - A request that trickles loses its connection, and other clients are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_trickle_lose_their_connection_and_others_go_on() {
    let config = "[limits.gateway]\nread_timeout_millis = 2000\n";
    let node = Node::start_as("512MiB", config, "").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let path = format!("/api/v4/canister/{counter}/call");
    let request = [head(&path, 10_000).into_bytes(), vec![0; 10_000]].concat();
    let long_head =
        format!("POST {path} HTTP/1.1\r\nhost: node\r\nx-padding: {}\r\n\r\n", "x".repeat(10_000));
    let mut slow = JoinSet::new();
    for _ in 0..100 {
        let (address, body, head) = (address(&node), request.clone(), long_head.clone());
        slow.spawn(async move { ("body", trickle(address, body.len() - 9_999, body).await) });
        slow.spawn(async move { ("head", trickle(address, 10, head.into_bytes()).await) });
    }
    until_async("bodies trickle", async || {
        node.metric("thimble_gateway_requests_in_flight_used").await == 100
    })
    .await;
    let mut kept = KeepAliveConnection::open(&node).await;
    let mut calls = 0;
    while !slow.is_empty() {
        count(&mut kept, &agent, counter).await;
        calls += 1;
        while let Some(done) = slow.try_join_next() {
            let (kind, words) = done.unwrap();
            match kind {
                "body" => assert!(
                    words.starts_with("HTTP/1.1 408")
                        && words.contains("read_timeout_millis = 2000"),
                    "{words}"
                ),
                // No request can be answered yet.
                _ => assert!(words.is_empty() || words.starts_with("HTTP/1.1 4"), "{words}"),
            }
        }
    }
    assert_eq!(counted(&agent, counter).await, calls);
    assert_eq!(node.metric("thimble_gateway_bodies_used_bytes").await, 0);
    assert_eq!(node.metric("thimble_gateway_requests_in_flight_used").await, 0);
}

/// A query of the workbench whose answer has this size.
fn large_query(agent: &Agent, bench: Principal, bytes: u64) -> (String, Vec<u8>) {
    let argument = Encode!(&u32::try_from(bytes).unwrap()).unwrap();
    let signed = agent.query(&bench, "reply_bytes").with_arg(argument).sign().unwrap();
    (format!("/api/v3/canister/{bench}/query"), signed.signed_query)
}

// Promise: P2 - Unread responses are bounded in bytes and time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_bounded_and_given_up() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let bench = deploy(&agent, "workbench.wasm").await;
    let idle = node.anonymous_bytes().await;
    let cap = node.metric("thimble_gateway_responses_limit_bytes").await;
    let (path, body) = large_query(&agent, bench, MIB);

    // One request after the other on each connection, without waiting for answers, into a small
    // window.
    let mut deaf = vec![];
    for _ in 0..32 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(address(&node)).await.unwrap();
        for _ in 0..8 {
            stream.write_all(&[head(&path, body.len()).as_bytes(), &body].concat()).await.unwrap();
        }
        deaf.push(stream);
    }
    // And over HTTP/2, where the window is the client's to say: none, while it keeps the connection
    // alive.
    let (path, body) = large_query(&agent, bench, MIB / 4);
    let (streams, driver) = no_window(&node, &path, &body).await;

    until_async("answers wait to be read", async || {
        node.metric("thimble_gateway_responses_used_bytes").await >= cap / 2
    })
    .await;
    let mut kept = KeepAliveConnection::open(&node).await;
    let mut calls = 0;
    let mut most = 0;
    let deadline = std::time::Instant::now() + 2 * PATIENCE;
    loop {
        let metrics = kept.metrics().await;
        let used = figure(&metrics, "thimble_gateway_responses_used_bytes");
        most = most.max(figure(&metrics, "thimble_memory_anonymous_bytes"));
        assert!(used <= cap, "{used} bytes of answers, the limit is {cap}");
        if used == 0 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{used} bytes of answers still wait for readers"
        );
        // Others are served; small answers pass where large ones have no room.
        count(&mut kept, &agent, counter).await;
        calls += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{calls} calls meanwhile; {} KiB at rest, {} KiB at most", idle >> 10, most >> 10);
    assert!(most < idle + cap + 24 * MIB, "{idle} bytes at rest, {most} at most");
    assert_eq!(counted(&agent, counter).await, calls);
    // Connections that were being answered were cut off; those that found no room got an error.
    let mut cut = 0;
    for stream in deaf {
        let words = last_words(stream).await;
        cut += usize::from(words.matches("HTTP/1.1 ").count() < 8);
        if words.starts_with("HTTP/1.1 503") {
            assert!(words.contains("responses") && words.contains("retry"), "{words}");
        }
    }
    assert!(cut > 0);
    drop(streams);
    driver.abort();
    let reply = query(&agent, bench, "reply_bytes", Encode!(&(MIB as u32)).unwrap()).await.unwrap();
    assert!(reply.len() as u64 > MIB);
}

type Streams = Vec<h2::client::ResponseFuture>;

/// Asks for answers that have no window to be sent in.
async fn no_window(node: &Node, path: &str, body: &[u8]) -> (Streams, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(address(node)).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (client, mut connection) = builder.handshake::<_, bytes::Bytes>(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let driver = tokio::spawn(async move {
        let alive = async {
            while pings.ping(h2::Ping::opaque()).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            _ = connection => {}
            () = alive => {}
        }
    });
    let mut client = client.ready().await.unwrap();
    let mut answers = vec![];
    for _ in 0..4 {
        let request = hyper::Request::post(format!("{}{path}", node.url))
            .header("content-type", "application/cbor")
            .body(())
            .unwrap();
        let (answer, mut sending) = client.send_request(request, false).unwrap();
        sending.send_data(body.to_vec().into(), true).unwrap();
        answers.push(answer);
        client = client.ready().await.unwrap();
    }
    (answers, driver)
}

// Promise: P2 - A node with few descriptors serves clients while connections exceed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_few_descriptors_goes_on_with_more_connections_than_it_can_hold() {
    // With this few descriptors, no node of this size starts: it could halt later.
    let folder = tempfile::tempdir().unwrap();
    let refused = thimble_after("ulimit -n 256")
        .arg("run")
        .arg("--data-dir")
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(text.contains("256 open files") && text.contains("pages.open_files"), "{text}");
    // A node configured to hold less starts.
    let node = Node::start_as(
        "512MiB",
        "[limits.pages]\nopen_files = 16\n[limits.gateway]\nconnections = 90\n",
        "ulimit -n 256",
    )
    .await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let empty = create(&agent).await;
    let mut kept = KeepAliveConnection::open(&node).await;
    count(&mut kept, &agent, counter).await;
    let silent_ones = silent(&node, 300).await;
    for _ in 0..10 {
        assert_eq!(kept.get("/health").await.0, 200);
        count(&mut kept, &agent, counter).await;
    }
    // A canister that comes new needs descriptors of its own, and may be refused for want of them.
    let arguments = InstallCodeArgs {
        mode: CanisterInstallMode::Install,
        canister_id: empty,
        wasm_module: std::fs::read(fixture("counter-c.wasm")).unwrap(),
        arg: vec![],
        sender_canister_version: None,
    };
    let signed = agent
        .update(&management(), "install_code")
        .with_effective_canister_id(empty)
        .with_arg(Encode!(&arguments).unwrap())
        .sign()
        .unwrap();
    let (status, text) =
        kept.post(&format!("/api/v4/canister/{empty}/call"), &signed.signed_update).await;
    assert!(matches!(status, 200 | 202), "{status} {}", String::from_utf8_lossy(&text));
    assert_eq!(kept.get("/health").await.0, 200);

    drop(silent_ones);
    until_async("the new canister counts", async || {
        let module = arguments.wasm_module.clone();
        let _ = install(&agent, empty, CanisterInstallMode::Install, module, vec![]).await;
        update(&agent, empty, "inc", vec![]).await.is_ok()
    })
    .await;
    count(&mut kept, &agent, counter).await;
    assert_eq!(counted(&agent, counter).await, 12);
}
