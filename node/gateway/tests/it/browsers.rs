//! The HTTP gateway under pressure: clients that send nothing, read nothing or take everything, and
//! canisters that never end. Requests are unverified, so that the canister can be anything.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use accounting::Pool;
use candid::{CandidType, Decode, Encode, Func, define_function};
use gateway::HttpGatewayConfig;
use ic_http_certification::HttpRequest;
use limits::{GatewayLimits, HttpGatewayLimits};
use serde_bytes::ByteBuf;
use state::QueryRequest;
use testing::until_async;

use crate::support::{TestResponse, World, canister, gateway_limits, receive};

/// Bytes of a response that is not small.
const LARGE_BYTES: usize = 190_000;

define_function!(Callback : (u64) -> (Piece) query);

#[derive(CandidType)]
enum Strategy {
    Callback { callback: Callback, token: u64 },
}

#[derive(CandidType)]
struct Page {
    status_code: u16,
    headers: Vec<(String, String)>,
    body: ByteBuf,
    streaming_strategy: Option<Strategy>,
}

#[derive(CandidType)]
struct Piece {
    body: ByteBuf,
    token: Option<u64>,
}

fn page(body: Vec<u8>, callback: Option<&str>) -> Vec<u8> {
    let streaming_strategy = callback.map(|method| Strategy::Callback {
        callback: Callback(Func { principal: canister(1), method: method.to_owned() }),
        token: 1,
    });
    let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
    let body = ByteBuf::from(body);
    Encode!(&Page { status_code: 200, headers, body, streaming_strategy }).unwrap()
}

/// The canister: what it says follows from the path.
fn page_response(query: &QueryRequest) -> Vec<u8> {
    let piece = |bytes: usize, token: Option<u64>| {
        Encode!(&Piece { body: ByteBuf::from(vec![b'#'; bytes]), token }).unwrap()
    };
    match query.method_name.as_str() {
        "http_request" => {}
        "three" => {
            let number = Decode!(&query.arg, u64).unwrap();
            return piece(LARGE_BYTES, (number < 2).then_some(number + 1));
        }
        "hollow" => return piece(0, Some(2)),
        "endless" => {
            // As long as a slow canister takes.
            std::thread::sleep(Duration::from_millis(10));
            return piece(1, Some(1));
        }
        other => panic!("{other} is no method of the canister"),
    }
    let request = Decode!(&query.arg, HttpRequest<'static>).unwrap();
    match request.get_path().unwrap().as_str() {
        "/large" => page(vec![b'l'; LARGE_BYTES], None),
        "/empty" => page(Vec::new(), None),
        "/three" => page(vec![b'#'; LARGE_BYTES], Some("three")),
        "/hollow" => page(vec![b'#'], Some("hollow")),
        "/endless" => page(vec![b'#'], Some("endless")),
        _ => page(request.body().to_vec(), None),
    }
}

struct Site {
    world: World,
    address: SocketAddr,
    requests: Pool,
}

fn limits() -> HttpGatewayLimits {
    HttpGatewayLimits {
        connections: 64,
        requests_in_flight: 64,
        requests_bytes: 4 << 20,
        body_bytes: 100_000,
        response_headers: 96,
        response_header_bytes: 32 << 10,
        response_chunks: 8_192,
        verify_millis: 10_000,
        stream_millis: 500,
        update_wait_millis: 10_000,
    }
}

impl Site {
    async fn start() -> Self {
        Self::with(gateway_limits()).await
    }

    async fn with(of_the_gateway: GatewayLimits) -> Self {
        let mut world = World::with(of_the_gateway).await;
        *world.script.pages.lock().unwrap() = Some(Arc::new(|query| Ok(page_response(query))));
        let limits = limits();
        let connections = limits.connections * limits.connection_bytes();
        let requests = Pool::standalone("http_requests", limits.requests_bytes);
        let config = HttpGatewayConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            connections: Pool::standalone("http_connections", connections),
            requests: requests.clone(),
            limits,
            ingress_history_bytes: 1 << 20,
        };
        let address = world.gateway.serve_browsers(config).await.unwrap();
        Self { world, address, requests }
    }

    /// Runs `story` on a blocking thread, with the address.
    async fn blocking<T: Send + 'static>(
        &self,
        story: impl FnOnce(SocketAddr) -> T + Send + 'static,
    ) -> T {
        let address = self.address;
        tokio::task::spawn_blocking(move || story(address)).await.unwrap()
    }

    async fn get(&self, path: &'static str) -> TestResponse {
        self.blocking(move |address| {
            let mut stream = connect(address);
            stream.write_all(&head("GET", path, "")).unwrap();
            receive(&mut stream)
        })
        .await
    }

    async fn nothing_is_held(&self) {
        until_async("all room to be given back", async || self.requests.used_bytes() == 0).await;
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn host() -> String {
    format!("{}.raw.localhost", canister(1))
}

fn head(method: &str, path: &str, more: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{more}\r\n", host()).into_bytes()
}

/// Requests over HTTP/2 whose bodies are not read, all of one connection: their statuses in the
/// order of arrival.
struct Unread {
    _client: h2::client::SendRequest<bytes::Bytes>,
    statuses: tokio::sync::mpsc::UnboundedReceiver<u16>,
}

async fn unread(address: SocketAddr, path: &str, requests: usize) -> Unread {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (mut client, connection) =
        builder.initial_window_size(0).handshake::<_, bytes::Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    let (sender, statuses) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..requests {
        client = client.ready().await.unwrap();
        let request = hyper::Request::get(format!("http://{}{path}", host())).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let sender = sender.clone();
        tokio::spawn(async move {
            if let Ok(response) = response.await {
                let _ = sender.send(response.status().as_u16());
                // Its body is there for as long as the connection.
                sender.closed().await;
                drop(response);
            }
        });
    }
    Unread { _client: client, statuses }
}

// Promise: P11 - Requests without their body reserve nothing and delay no other request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_do_not_come_hold_nothing_and_keep_nobody_waiting() {
    let mut limits = gateway_limits();
    limits.read_timeout_millis = 10_000;
    let site = Site::with(limits).await;
    let idle = site
        .blocking(|address| {
            let begin = |more: &str| {
                let mut stream = connect(address);
                stream.write_all(&head("POST", "/", more)).unwrap();
                stream
            };
            let chunked = (0..20).map(|_| begin("transfer-encoding: chunked\r\n"));
            let mut idle: Vec<_> = chunked.collect();
            idle.extend((0..20).map(|_| begin("content-length: 100000\r\n")));
            idle
        })
        .await;
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(site.get("/").await.status, 200);
    }
    // None waited for a body.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(site.requests.used_bytes() < 1 << 20, "{}", site.requests.used_bytes());
    // They get an error when their time is over.
    let told: Vec<u16> = site
        .blocking(move |_| idle.into_iter().map(|mut one| receive(&mut one).status).collect())
        .await;
    assert_eq!(told, vec![408; 40]);
    site.nothing_is_held().await;
}

// Promise: P11 - Connections without a request do not exclude browsers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_for_new_ones_and_busy_ones_are_not() {
    let site = Site::start().await;
    let most = limits().connections;
    let idle =
        site.blocking(move |address| (0..most).map(|_| connect(address)).collect::<Vec<_>>()).await;
    // It is refused while none of them has been idle for long enough.
    until_async("a new connection is served", async || site.get("/").await.status == 200).await;
    assert!(site.world.metric("gateway_connections_evicted_total").await >= Some(1.0));
    drop(idle);

    let site = Site::start().await;
    let busy = site
        .blocking(move |address| {
            let begin = |_| {
                let mut stream = connect(address);
                let more = "expect: 100-continue\r\ncontent-length: 1000\r\n";
                stream.write_all(&head("POST", "/", more)).unwrap();
                // Its request is in progress when it is asked for the body.
                let mut asked = [0; b"HTTP/1.1 100".len()];
                stream.read_exact(&mut asked).unwrap();
                assert_eq!(&asked, b"HTTP/1.1 100");
                stream
            };
            (0..most).map(begin).collect::<Vec<_>>()
        })
        .await;
    // Idle connections of this age would be closed for new ones.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = site.get("/").await;
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (503, "1"));
    let text = refused.text();
    assert!(text.contains("http_gateway.connections = 64"), "{text}");
    drop(busy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_what_was_sent_however_it_comes() {
    let site = Site::start().await;
    let sent: Vec<u8> = (0..90_000_u32).map(|at| (at % 251) as u8).collect();
    let expected = sent.clone();
    let answered = site
        .blocking(move |address| {
            let mut stream = connect(address);
            let more = format!("content-length: {}\r\n", sent.len());
            stream.write_all(&head("POST", "/", &more)).unwrap();
            for part in sent.chunks(7_000) {
                stream.write_all(part).unwrap();
                stream.flush().unwrap();
            }
            let known = receive(&mut stream);
            stream.write_all(&head("POST", "/", "transfer-encoding: chunked\r\n")).unwrap();
            for part in sent.chunks(900) {
                stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).unwrap();
                stream.write_all(part).unwrap();
                stream.write_all(b"\r\n").unwrap();
            }
            stream.write_all(b"0\r\n\r\n").unwrap();
            [known, receive(&mut stream)]
        })
        .await;
    for one in answered {
        assert_eq!((one.status, one.body.len()), (200, expected.len()));
        assert!(one.body == expected);
    }
    site.nothing_is_held().await;
}

// Promise: P11 - Clients that read nothing do not delay small pages of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_take_nothing_keep_nobody_from_small_pages() {
    let site = Site::start().await;
    let mut all = Vec::new();
    for _ in 0..16 {
        all.push(unread(site.address, "/large", 1).await);
    }
    let mut statuses = Vec::new();
    for one in &mut all {
        statuses.push(one.statuses.recv().await.unwrap());
    }
    let kept = statuses.iter().filter(|status| **status == 200).count();
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert_eq!(kept + refused, 16, "{statuses:?}");
    assert!((4..12).contains(&kept), "{kept}");
    let used = site.requests.used_bytes();
    assert!(used > 4 * LARGE_BYTES as u64 && used <= 2 << 20, "{used}");
    for _ in 0..10 {
        assert_eq!(site.get("/").await.status, 200);
    }
    drop(all);
    assert_eq!(site.get("/large").await.body.len(), LARGE_BYTES);
    site.nothing_is_held().await;
}

// Promise: P11 - One connection holds at most its part of `http_gateway.requests_bytes`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_takes_a_part_and_leaves_the_rest_to_others() {
    let site = Site::start().await;
    let mut greedy = unread(site.address, "/large", 16).await;
    let mut statuses = Vec::new();
    for _ in 0..16 {
        statuses.push(greedy.statuses.recv().await.unwrap());
    }
    let kept = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(kept, 1, "{statuses:?}");
    for _ in 0..4 {
        assert_eq!(site.get("/large").await.body.len(), LARGE_BYTES);
    }
    drop(greedy);
    site.nothing_is_held().await;
}

// Promise: P11 - Responses without a body return their reservation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_without_a_body_give_back_what_they_hold() {
    let site = Site::start().await;
    for _ in 0..10 {
        let empty = site.get("/empty").await;
        assert_eq!((empty.status, empty.body.len()), (200, 0));
    }
    let mut over_http2 = unread(site.address, "/empty", 16).await;
    for _ in 0..16 {
        assert_eq!(over_http2.statuses.recv().await, Some(200));
    }
    // The connection is still there.
    site.nothing_is_held().await;
}

/// The bytes of a response, and whether it ended properly.
fn read_stream(address: SocketAddr, path: &str) -> (usize, bool) {
    let mut stream = connect(address);
    stream.write_all(&head("GET", path, "connection: close\r\n")).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let body = bytes.iter().filter(|byte| **byte == b'#').count();
    (body, bytes.ends_with(b"0\r\n\r\n"))
}

// Promise: P11 - A response is whole or ends at `http_gateway.stream_millis`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_response_is_whole_or_breaks_off_at_its_deadline() {
    let site = Site::start().await;
    let (bytes, whole) = site.blocking(|address| read_stream(address, "/three")).await;
    assert!(whole && bytes == 3 * LARGE_BYTES, "{bytes}");
    let start = Instant::now();
    let (bytes, whole) = site.blocking(|address| read_stream(address, "/endless")).await;
    assert!(!whole && bytes > 1, "{bytes}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(10), "{took:?}");
    let (bytes, whole) = site.blocking(|address| read_stream(address, "/hollow")).await;
    assert!(!whole && bytes == 1, "{bytes}");
    site.nothing_is_held().await;
}

// Promise: P11 - Canisters named by a parameter share no origin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canisters_do_not_share_an_origin() {
    let site = Site::start().await;
    let port = site.address.port();
    let ask = async |path: String, more: &'static str| {
        site.blocking(move |address| {
            let mut stream = connect(address);
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: raw.localhost:{}\r\n{more}\r\n", port);
            stream.write_all(request.as_bytes()).unwrap();
            receive(&mut stream)
        })
        .await
    };
    let page = || format!("/a?b=c&canisterId={}", canister(1));
    let sent = ask(page(), "sec-fetch-mode: navigate\r\n").await;
    assert_eq!(sent.status, 307);
    let own = format!("//{}.raw.localhost:{port}/a?b=c", canister(1));
    assert_eq!(sent.headers.get("location"), Some(&own));
    assert_eq!(ask(page(), "sec-fetch-mode: cors\r\n").await.status, 200);
    let worker = ask(page(), "service-worker: script\r\n").await;
    assert_eq!(worker.status, 403);
    assert!(worker.text().contains("shared by all canisters"), "{}", worker.text());
}
