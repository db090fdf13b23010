//! The doors under pressure: each limit is reached over real sockets, answers by its name, and is
//! free again afterwards.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gateway::QueryConcurrency;
use ic_agent::{Identity, identity::AnonymousIdentity};
use ic_principal::Principal;
use ic_transport_types::EnvelopeContent;
use testing::until_async;

use crate::support::{
    self, World, call, canister, ed25519, gateway_limits, now, post, query, receive, sign,
};

fn path(operation: &str) -> String {
    format!("/api/v3/canister/{}/{operation}", canister(1))
}

fn anonymous(content: EnvelopeContent) -> Vec<u8> {
    sign(&AnonymousIdentity, content).encode_bytes()
}

fn echo() -> Vec<u8> {
    anonymous(query(Principal::anonymous(), "echo"))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn keep_alive(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The head of a request whose body the server has to ask for.
fn expecting(path: &str, body_bytes: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\nexpect: 100-continue\r\ncontent-length: {body_bytes}\r\n\r\n"
    );
    head.into_bytes()
}

/// Waits until the server has asked for the body of [`expecting`].
fn is_in_progress(stream: &mut TcpStream) {
    let mut asked = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// Runs `story` on a blocking thread, with the address.
async fn blocking<T: Send + 'static>(
    world: &World,
    story: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> T {
    let address = world.address;
    tokio::task::spawn_blocking(move || story(address)).await.unwrap()
}

/// Whether the peer closed without a word within the time.
fn closes(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 256];
    matches!(stream.read(&mut bytes), Ok(0) | Err(_))
}

// Promise: P2 - Connections beyond the limit get an error, and the others work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_told_and_the_rest_keep_working() {
    let mut limits = gateway_limits();
    limits.connections = 64;
    limits.requests_in_flight = 64;
    limits.read_timeout_millis = 30_000;
    let world = World::with(limits).await;
    let storm = blocking(&world, |address| {
        let body = echo();
        let request = expecting(&path("query"), body.len());
        let mut kept: Vec<TcpStream> = (0..64).map(|_| connect(address)).collect();
        // Each of the first has a request in progress.
        for stream in &mut kept {
            stream.write_all(&request).unwrap();
            is_in_progress(stream);
        }
        // A storm of 20 times the limit: some get an error, the others are closed, none is served
        // and none hangs.
        let storm: Vec<TcpStream> = (0..1280).map(|_| connect(address)).collect();
        let (mut told, mut closed) = (0, 0);
        for mut stream in storm {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            let text = String::from_utf8_lossy(&bytes);
            if text.starts_with("HTTP/1.1 503")
                && text.contains("connections = 64")
                && text.contains("retry-after: 1")
            {
                told += 1;
            } else {
                assert!(bytes.is_empty(), "{text}");
                closed += 1;
            }
        }
        // The connections with requests are not affected.
        for stream in &mut kept {
            stream.write_all(&body).unwrap();
            assert_eq!(receive(stream).status, 200);
        }
        (told, closed)
    })
    .await;
    assert_eq!(storm.0 + storm.1, 1280);
    assert!(storm.0 > 0, "somebody was told");
    // Places are free again once their holders leave.
    until_async("a place", async || {
        let answered = blocking(&world, |address| {
            let mut stream = connect(address);
            let _ = stream.write_all(&post(&path("query"), "application/cbor", &echo()));
            receive(&mut stream).status
        });
        answered.await == 200
    })
    .await;
    assert_eq!(
        world
            .metric("gateway_refusals_total{reason=\"connections\"}")
            .await
            .map(|count| count >= 1280.0),
        Some(true)
    );
    assert_eq!(world.metric("gateway_connections_limit").await, Some(64.0));
}

// Promise: P2 - Connections without a request do not exclude clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_up_to_the_limit_are_closed_for_new_ones() {
    let mut limits = gateway_limits();
    limits.connections = 16;
    limits.read_timeout_millis = 60_000;
    let world = World::with(limits).await;
    let mut idle = blocking(&world, |address| {
        // The first is between requests, and has been idle for the longest time.
        let mut between = connect(address);
        between.write_all(&keep_alive(&path("query"), &echo())).unwrap();
        assert_eq!(receive(&mut between).status, 200);
        std::thread::sleep(Duration::from_millis(10));
        let mut idle = vec![between];
        for number in 0..15 {
            let mut stream = connect(address);
            if number % 2 == 0 {
                stream.write_all(b"POST /api/v2/ HTTP/1.1\r\nho").unwrap();
            }
            idle.push(stream);
        }
        // The slots may be taken after the connections are.
        std::thread::sleep(Duration::from_secs(1));
        idle
    })
    .await;
    for _ in 0..4 {
        assert_eq!(world.get("/health").await.status, 200);
        assert_eq!(world.post(&path("query"), &echo()).await.status, 200);
    }
    let evicted = world.metric("gateway_connections_evicted_total").await.unwrap();
    assert!(evicted >= 1.0, "{evicted}");
    assert_eq!(world.metric("gateway_refusals_total{reason=\"connections\"}").await, None);
    let first = idle.remove(0);
    blocking(&world, move |_| {
        let mut first = first;
        assert!(closes(&mut first), "the one that was idle longest");
    })
    .await;
}

// Promise: P2 - HTTP/2 connections without a stream do not exclude clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_connections_are_idle_without_a_stream_and_busy_with_one() {
    let mut limits = gateway_limits();
    limits.connections = 2;
    limits.read_timeout_millis = 30_000;
    let world = World::with(limits).await;
    let http2 = async || {
        let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        (client, tokio::spawn(connection))
    };
    let request = || {
        hyper::Request::post(format!("http://node{}", path("query")))
            .header("content-type", "application/cbor")
            .body(())
            .unwrap()
    };
    let (_idle, closed) = http2().await;
    let (busy, open) = http2().await;
    let mut busy = busy.ready().await.unwrap();
    let (response, mut body) = busy.send_request(request(), false).unwrap();
    until_async("the request", async || {
        // It may take the slot of the idle connection, which is the point.
        world.metric("gateway_requests_in_flight_used").await == Some(1.0)
    })
    .await;
    // An error means that the connection was closed.
    let _ = closed.await.unwrap();
    assert!(!open.is_finished(), "its stream is open");
    body.send_data(echo().into(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
}

// Promise: P2 - A slow request ends at its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_requests_are_ended() {
    let world = World::start().await;
    blocking(&world, |address| {
        let start = Instant::now();
        // Nothing at all; a byte now and then; a preface that never ends; and HTTP/2 that never
        // asks.
        let mut silent = connect(address);
        let mut drip = connect(address);
        let mut preface = connect(address);
        preface.write_all(b"PRI * HT").unwrap();
        let mut http2 = connect(address);
        http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        for byte in b"POST /api/v2/" {
            if drip.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(closes(&mut silent));
        assert!(closes(&mut drip));
        assert!(closes(&mut preface));
        let mut rest = Vec::new();
        let _ = http2.read_to_end(&mut rest);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "all within the read timeout and a little more"
        );

        // A body that does not arrive is 408, named.
        let mut body = connect(address);
        body.write_all(&keep_alive(&path("query"), &echo())[..200]).unwrap();
        let answered = receive(&mut body);
        assert_eq!(answered.status, 408);
        assert!(answered.text().contains("read_timeout_millis = 1000"), "{}", answered.text());

        // Between requests a connection may rest longer than the read timeout.
        let mut resting = connect(address);
        resting.write_all(&keep_alive(&path("query"), &echo())).unwrap();
        assert_eq!(receive(&mut resting).status, 200);
        std::thread::sleep(Duration::from_millis(1_500));
        resting.write_all(&keep_alive(&path("query"), &echo())).unwrap();
        assert_eq!(receive(&mut resting).status, 200);
        // But not within one.
        resting.write_all(b"POST /api").unwrap();
        let start = Instant::now();
        assert!(closes(&mut resting));
        assert!(start.elapsed() < Duration::from_secs(8));
    })
    .await;
    assert_eq!(world.bodies.used_bytes(), 0);
}

// Promise: P2 - Request bodies are bounded each and in total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_have_a_size_each_and_together() {
    let mut limits = gateway_limits();
    limits.read_timeout_millis = 5_000;
    let world = World::with(limits).await;
    let too_large = world.send(format!("POST {} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ncontent-length: 300000\r\n\r\n", path("call")).into_bytes()).await;
    assert_eq!(too_large.status, 413);
    assert!(
        too_large.text().contains("300000 bytes")
            && too_large.text().contains("body_bytes is 262144"),
        "{}",
        too_large.text()
    );
    let chunk = [b"10000\r\n".as_slice(), &vec![0; 0x10000], b"\r\n"].concat();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ntransfer-encoding: chunked\r\n\r\n",
        path("call")
    );
    let chunked = world.send([head.as_bytes(), &chunk.repeat(5), b"0\r\n\r\n"].concat()).await;
    assert_eq!(chunked.status, 413, "{}", chunked.text());
    // Just inside the limit.
    let mut content = query(Principal::anonymous(), "echo");
    let EnvelopeContent::Query { arg, .. } = &mut content else { panic!("a query") };
    *arg = vec![7; 250_000];
    let answered = world.post(&path("query"), &anonymous(content)).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    assert!(answered.body.len() > 250_000);

    // 1 MiB of bodies: five times 200,000 bytes held open fill it, the sixth is refused by the
    // pool's name.
    let held = blocking(&world, |address| {
        let hold = |bytes: usize| {
            let mut stream = connect(address);
            let head = format!("POST {} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ncontent-length: 250000\r\n\r\n", path("call"));
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![0; bytes]).unwrap();
            stream
        };
        (0..5).map(|_| hold(200_000)).collect::<Vec<_>>()
    })
    .await;
    until_async("the bodies", async || world.bodies.used_bytes() == 1_000_000).await;
    let refused = world
        .post(
            &path("query"),
            &anonymous({
                let mut content = query(Principal::anonymous(), "echo");
                let EnvelopeContent::Query { arg, .. } = &mut content else { panic!("a query") };
                *arg = vec![7; 100_000];
                content
            }),
        )
        .await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(
        refused.text().contains("bodies") && refused.headers["retry-after"] == "1",
        "{}",
        refused.text()
    );
    assert_eq!(world.post(&path("query"), &echo()).await.status, 200, "small ones still fit");
    drop(held);
    until_async("the bodies", async || world.bodies.used_bytes() == 0).await;
}

// Promise: P2 - Responses are bounded by a pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_have_a_pool_too() {
    let mut limits = gateway_limits();
    limits.responses_bytes = 3 << 19;
    let world = World::with(limits).await;
    let large = anonymous(query(Principal::anonymous(), "large"));
    // A reader that does not read holds the first response; the second does not fit in addition.
    let reader = blocking(&world, {
        let large = large.clone();
        move |address| {
            let mut stream = connect(address);
            // Pipelined, so that more than the socket's buffers is to be written.
            for _ in 0..8 {
                stream.write_all(&keep_alive(&path("query"), &large)).unwrap();
            }
            stream
        }
    })
    .await;
    until_async("the answers", async || world.responses.used_bytes() >= 1 << 20).await;
    until_async("a refusal", async || {
        let refused = world.post(&path("query"), &large).await;
        let is_refused = refused.status == 503;
        assert!(!is_refused || refused.text().contains("responses"), "{}", refused.text());
        is_refused
    })
    .await;
    drop(reader);
    until_async("the answers", async || world.responses.used_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_and_requests_in_flight_are_capped_apart() {
    let mut limits = gateway_limits();
    limits.requests_in_flight = 6;
    let world = World::with(limits).await;
    let release = world.script.hold_queries();
    let held = anonymous(query(Principal::anonymous(), "hold"));
    let hold = |path: String, body: Vec<u8>| {
        let address = world.address;
        tokio::task::spawn_blocking(move || {
            support::send(address, &post(&path, "application/cbor", &body))
        })
    };
    let mut waiting: Vec<_> = (0..4).map(|_| hold(path("query"), held.clone())).collect();
    // Two run, two wait for a thread; all four have places.
    until_async("the queries", async || world.script.queries.load(Ordering::SeqCst) == 2).await;
    let mut fifth = None;
    until_async("a refusal", async || {
        let answered = world.post(&path("query"), &echo()).await;
        fifth = (answered.status == 429).then_some(answered);
        fifth.is_some()
    })
    .await;
    let fifth = fifth.unwrap();
    assert!(
        fifth.text().contains("queries_in_flight = 4") && fifth.headers["retry-after"] == "1",
        "{}",
        fifth.text()
    );
    // Calls have places still, until those are taken as well.
    world.script.at_once.store(false, Ordering::SeqCst);
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    for seed in 0..2 {
        let mut content = call(me, "echo");
        let EnvelopeContent::Call { nonce, .. } = &mut content else { panic!("a call") };
        *nonce = Some(vec![seed]);
        waiting.push(hold(path("call"), sign(&identity, content).encode_bytes()));
    }
    until_async("the waiting calls", async || world.script.waiters.len() == 2).await;
    let refused = world
        .post(
            &path("read_state"),
            &anonymous(support::read_state(Principal::anonymous(), &[&[b"time"]])),
        )
        .await;
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("requests_in_flight = 6"), "{}", refused.text());
    // An operator still sees the node.
    assert_eq!(world.get("/health").await.status, 200);
    assert_eq!(world.metric("gateway_requests_in_flight_used").await, Some(6.0));
    assert_eq!(world.metric("gateway_queries_in_flight_used").await, Some(4.0));
    assert_eq!(world.metric("gateway_sync_calls_waiting_used").await, Some(2.0));
    drop(release);
    world.script.certify();
    for answered in waiting {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    assert_eq!(world.metric("gateway_requests_in_flight_used").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_that_take_their_time_keep_no_place_of_queries() {
    let mut limits = gateway_limits();
    limits.read_timeout_millis = 60_000;
    let places = limits.queries_in_flight;
    let world = World::with(limits).await;
    // Each sends a head and the first byte of its body.
    let slow = blocking(&world, move |address| {
        let request = keep_alive(&path("query"), &echo());
        let begun = request.len() - echo().len() + 1;
        let slow = (0..places).map(|_| {
            let mut stream = connect(address);
            stream.write_all(&request[..begun]).unwrap();
            stream
        });
        slow.collect::<Vec<_>>()
    })
    .await;
    until_async("the bodies", async || {
        world.metric("gateway_requests_in_flight_used").await == Some(places as f64)
    })
    .await;
    assert_eq!(world.post(&path("query"), &echo()).await.status, 200);
    drop(slow);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synchronous_calls_beyond_the_limit_become_asynchronous() {
    let world = World::start().await;
    world.script.at_once.store(false, Ordering::SeqCst);
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    let body = |seed: u8| {
        let mut content = call(me, "echo");
        let EnvelopeContent::Call { nonce, .. } = &mut content else { panic!("a call") };
        *nonce = Some(vec![seed]);
        sign(&identity, content).encode_bytes()
    };
    let address = world.address;
    let waiting: Vec<_> = (0..4)
        .map(|seed| {
            let request = post(&path("call"), "application/cbor", &body(seed));
            tokio::task::spawn_blocking(move || support::send(address, &request))
        })
        .collect();
    until_async("the waiting calls", async || world.script.waiters.len() == 4).await;
    let fifth = world.post(&path("call"), &body(5)).await;
    assert_eq!((fifth.status, fifth.body.len()), (202, 0), "it was submitted and is polled for");
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 5);
    assert_eq!(world.script.certify().len(), 5);
    for answered in waiting {
        assert_eq!(answered.await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_place_with_it() {
    let mut limits = gateway_limits();
    limits.sync_call_wait_millis = 60_000;
    let world = World::with(limits).await;
    world.script.at_once.store(false, Ordering::SeqCst);
    let identity = ed25519(1);
    let request = post(
        &path("call"),
        "application/cbor",
        &sign(&identity, call(identity.sender().unwrap(), "echo")).encode_bytes(),
    );
    let stream = blocking(&world, move |address| {
        let mut stream = connect(address);
        stream.write_all(&request).unwrap();
        stream
    })
    .await;
    until_async("the waiting calls", async || world.script.waiters.len() == 1).await;
    assert_eq!(world.bodies.used_bytes(), 0, "a waiting call holds no body");
    drop(stream);
    until_async("the waiting calls", async || world.script.waiters.is_empty()).await;
    until_async("the bodies", async || world.bodies.used_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_are_bounded() {
    let world = World::start().await;
    let many: String = (0..100).map(|number| format!("x-header-{number}: value\r\n")).collect();
    let answered =
        world.send(format!("GET /health HTTP/1.1\r\nhost: node\r\n{many}\r\n").into_bytes()).await;
    assert_eq!(answered.status, 431);
    let long =
        format!("GET /health HTTP/1.1\r\nhost: node\r\nx-long: {}\r\n\r\n", "x".repeat(64 << 10));
    assert_eq!(world.send(long.into_bytes()).await.status, 431);
    let uri = format!("GET /{} HTTP/1.1\r\nhost: node\r\n\r\n", "x".repeat(64 << 10));
    assert!([414, 431].contains(&world.send(uri.into_bytes()).await.status));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_with_prior_knowledge_and_a_cap_on_streams() {
    let world = World::start().await;
    let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for _ in 0..100 {
        client = client.ready().await.unwrap();
        let request = hyper::Request::post(format!("http://node{}", path("query")))
            .header("content-type", "application/cbor")
            .body(())
            .unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        body.send_data(echo().into(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let length = data.unwrap().len();
            body.flow_control().release_capacity(length).unwrap();
        }
    }
    assert_eq!(client.current_max_send_streams(), 64);
    drop(client);
    driver.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutting_down_finishes_what_is_in_flight_and_takes_nothing_new() {
    let world = World::start().await;
    let release = world.script.hold_queries();
    world.script.at_once.store(false, Ordering::SeqCst);
    let address = world.address;
    let send =
        |request: Vec<u8>| tokio::task::spawn_blocking(move || support::send(address, &request));
    let held = send(keep_alive(&path("query"), &anonymous(query(Principal::anonymous(), "hold"))));
    until_async("the queries", async || world.script.queries.load(Ordering::SeqCst) == 1).await;
    let identity = ed25519(1);
    let waiting = send(post(
        &path("call"),
        "application/cbor",
        &sign(&identity, call(identity.sender().unwrap(), "echo")).encode_bytes(),
    ));
    until_async("the waiting calls", async || world.script.waiters.len() == 1).await;
    let mut idle = blocking(&world, |address| {
        let mut stream = connect(address);
        stream.write_all(&keep_alive("/nowhere", b"")).unwrap();
        assert_eq!(receive(&mut stream).status, 404);
        stream
    })
    .await;
    let start = Instant::now();
    let gateway = world.gateway;
    let shutdown = tokio::spawn(gateway.shutdown());
    // A waiting call is sent polling at once, an idle connection is closed, a running query is
    // finished.
    assert_eq!(waiting.await.unwrap().status, 202);
    assert!(tokio::task::spawn_blocking(move || closes(&mut idle)).await.unwrap());
    assert!(!shutdown.is_finished());
    drop(release);
    assert_eq!(held.await.unwrap().status, 200);
    assert!(shutdown.await.unwrap(), "everything finished");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutting_down_does_not_wait_for_ever() {
    let mut limits = gateway_limits();
    limits.read_timeout_millis = 60_000;
    let world = World::with(limits).await;
    let mut slow = blocking(&world, |address| {
        let mut stream = connect(address);
        stream.write_all(&keep_alive(&path("query"), &echo())[..200]).unwrap();
        stream
    })
    .await;
    until_async("the bodies", async || world.bodies.used_bytes() > 0).await;
    let start = Instant::now();
    assert!(!world.gateway.shutdown().await, "a body never came");
    assert!(start.elapsed() < Duration::from_secs(30), "the grace is five seconds, not a minute");
    assert!(tokio::task::spawn_blocking(move || closes(&mut slow)).await.unwrap());
    assert!(now().0 > 0);
}

// Promise: P13 - A wait for a query worker ends in 429 with Retry-After.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_canisters_queries_leave_places_to_others_and_do_not_wait_for_ever() {
    let wait = Duration::from_secs(1);
    let queries = QueryConcurrency { threads: 2, per_canister: 1, wait };
    let world = World::with_queries(gateway_limits(), queries).await;
    let release = world.script.hold_queries();
    let hold = anonymous(query(Principal::anonymous(), "hold"));
    let request = post(&path("query"), "application/cbor", &hold);
    let address = world.address;
    let held = tokio::task::spawn_blocking({
        let request = request.clone();
        move || support::send(address, &request)
    });
    let script = world.script.clone();
    until_async("the query", async || script.queries.load(Ordering::SeqCst) == 1).await;
    // Another of the same canister waits; others' are answered meanwhile.
    let second = tokio::task::spawn_blocking(move || support::send(address, &request));
    for _ in 0..10 {
        let mut other = query(Principal::anonymous(), "echo");
        let EnvelopeContent::Query { canister_id, .. } = &mut other else { unreachable!() };
        *canister_id = canister(2);
        let path = format!("/api/v3/canister/{}/query", canister(2));
        assert_eq!(world.post(&path, &anonymous(other)).await.status, 200);
    }
    let refused = second.await.unwrap();
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(refused.text().contains("query_wait_seconds = 1"), "{}", refused.text());
    let refusals = world.metric("gateway_refusals_total{reason=\"query_wait\"}").await;
    assert_eq!(refusals, Some(1.0));
    drop(release);
    assert_eq!(held.await.unwrap().status, 200);
}
