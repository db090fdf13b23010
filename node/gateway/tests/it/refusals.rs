//! Every way to send a request that must not be served, and its refusal.

use std::{io::Write, net::TcpStream, sync::atomic::Ordering, time::Duration};

use gateway::Refusal;
use ic_agent::{Identity, identity::AnonymousIdentity};
use ic_principal::Principal;
use ic_transport_types::EnvelopeContent;

use crate::support::{
    self, TestResponse, World, call, canister, ed25519, now, post, query, read_state, sign,
};

fn body(identity: &dyn Identity, content: EnvelopeContent) -> Vec<u8> {
    sign(identity, content).encode_bytes()
}

fn anonymous(content: EnvelopeContent) -> Vec<u8> {
    body(&AnonymousIdentity, content)
}

fn path(operation: &str) -> String {
    format!("/api/v3/canister/{}/{operation}", canister(1))
}

/// Status and a part of the text.
fn assert_refusal(answered: &TestResponse, status: u16, part: &str) {
    assert_eq!(answered.status, status, "{}", answered.text());
    assert!(answered.text().contains(part), "{} lacks {part}", answered.text());
    assert_eq!(answered.headers.get("access-control-allow-origin").map(String::as_str), Some("*"));
}

/// Like `told`, where no page of another origin may read it.
fn assert_closed(answered: &TestResponse, status: u16, part: &str) {
    assert_eq!(answered.status, status, "{}", answered.text());
    assert!(answered.text().contains(part), "{} lacks {part}", answered.text());
    assert!(!answered.headers.contains_key("access-control-allow-origin"));
}

// Promise: P15 - Bodies that are not envelopes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn bodies_that_are_no_envelopes() {
    let world = World::start().await;
    let good = anonymous(query(Principal::anonymous(), "echo"));
    let unhex = |text: &str| hex::decode(text.replace(' ', "")).unwrap();
    let map = |entries: &[(&str, serde_cbor_2::Value)]| {
        let entries = entries
            .iter()
            .map(|(key, value)| (serde_cbor_2::Value::Text((*key).to_owned()), value.clone()));
        serde_cbor_2::Value::Map(entries.collect())
    };
    let fields = [
        ("request_type", serde_cbor_2::Value::Text("query".to_owned())),
        ("sender", serde_cbor_2::Value::Bytes(vec![4])),
        ("ingress_expiry", serde_cbor_2::Value::Integer(i128::from(now().0))),
        ("canister_id", serde_cbor_2::Value::Bytes(canister(1).as_slice().to_vec())),
        ("method_name", serde_cbor_2::Value::Text("echo".to_owned())),
        ("arg", serde_cbor_2::Value::Bytes(Vec::new())),
    ];
    let with = |name: &str, value: Option<serde_cbor_2::Value>| {
        let mut entries: Vec<_> = fields.iter().filter(|(key, _)| *key != name).cloned().collect();
        entries.extend(
            value
                .map(|value| (name, value))
                .map(|(name, value)| (Box::leak(name.to_owned().into_boxed_str()) as &str, value)),
        );
        serde_cbor_2::to_vec(&map(&[("content", map(&entries))])).unwrap()
    };
    use serde_cbor_2::Value::{Array, Bool, Bytes, Float, Integer, Null, Text};
    let cases: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("empty", Vec::new(), 400, "ends at byte 0"),
        ("text", b"hello".to_vec(), 400, ""),
        ("json", br#"{"content":{}}"#.to_vec(), 400, ""),
        ("truncated", good[..good.len() - 3].to_vec(), 400, "in the middle of an item"),
        ("trailing", [&good[..], &[0]].concat(), 400, "1 bytes after its end"),
        ("deep", [vec![0x81; 10_000], vec![0]].concat(), 400, "nests deeper than 16 levels"),
        ("wide", [unhex("9a 00010000"), vec![0; 1 << 16]].concat(), 400, "more than"),
        ("announces more than there is", unhex("9b 00ffffffffffffff"), 400, "in the middle"),
        ("not a map", unhex("83 01 02 03"), 400, "must be a CBOR map"),
        ("no content", unhex("a1 6161 01"), 400, "`content` is missing"),
        (
            "content is no map",
            unhex("a1 67 636f6e74656e74 01"),
            400,
            "`content` is a natural number; it must be a map",
        ),
        (
            "key twice",
            unhex("a2 67 636f6e74656e74 01 67 636f6e74656e74 01"),
            400,
            "repeats the key content",
        ),
        ("no type", with("request_type", None), 400, "`request_type` is missing"),
        ("unknown type", with("request_type", Some(Text("update".to_owned()))), 400, "\"update\""),
        ("no sender", with("sender", None), 400, "`sender` is missing"),
        (
            "sender as text",
            with("sender", Some(Text("2vxsx-fae".to_owned()))),
            400,
            "`sender` is a text string",
        ),
        (
            "long principal",
            with("sender", Some(Bytes(vec![1; 30]))),
            400,
            "30 bytes; a principal has at most 29",
        ),
        ("no expiry", with("ingress_expiry", None), 400, "`ingress_expiry` is missing"),
        ("expiry null", with("ingress_expiry", Some(Null)), 400, "`ingress_expiry` is missing"),
        ("expiry float", with("ingress_expiry", Some(Float(1.5))), 400, "floating-point"),
        ("expiry negative", with("ingress_expiry", Some(Integer(-1))), 400, "negative"),
        ("no method", with("method_name", None), 400, "`method_name` is missing"),
        ("no arg", with("arg", None), 400, "`arg` is missing"),
        ("arg as array", with("arg", Some(Array(vec![Integer(1)]))), 400, "`arg` is an array"),
        ("boolean", with("extra", Some(Bool(true))), 400, "a boolean"),
        ("long nonce", with("nonce", Some(Bytes(vec![0; 33]))), 400, "33 exceeds the limit of 32"),
        ("fields that are not known are part of the id", with("extra", Some(Integer(1))), 200, ""),
        ("fields that are null are omitted", with("nonce", Some(Null)), 200, ""),
        ("as it should be", good.clone(), 200, ""),
    ];
    for (name, body, status, part) in cases {
        let answered = world.post(&path("query"), &body).await;
        assert_eq!(answered.status, status, "{name}: {}", answered.text());
        assert!(answered.text().contains(part), "{name}: {} lacks {part}", answered.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn requests_at_the_wrong_place() {
    let world = World::start().await;
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    let good = anonymous(query(Principal::anonymous(), "echo"));
    assert_refusal(&world.get("/").await, 404, "/api/v2/status");
    assert_refusal(&world.get("/api/v2/stat").await, 404, "/api/v2/status");
    assert_refusal(&world.get("/api/v3/status").await, 404, "use v2");
    assert_refusal(&world.get(&path("query")).await, 405, "it takes POST");
    assert_eq!(world.get(&path("query")).await.headers["allow"], "POST, OPTIONS");
    assert_refusal(&world.post("/health", &good).await, 405, "GET");
    assert_refusal(&world.post("/api/v4/canister/aaaaa-aa/query", &good).await, 404, "v2 or v3");
    assert_refusal(
        &world.post("/api/v3/canister/nonsense/query", &good).await,
        400,
        "no textual principal",
    );
    assert_refusal(
        &world.send(post(&path("query"), "application/json", &good)).await,
        415,
        "takes application/cbor",
    );
    assert_refusal(
        &world.send(post(&path("query"), "text/plain", &good)).await,
        415,
        "\"text/plain\"",
    );
    assert_eq!(
        world.send(post(&path("query"), "Application/CBOR; charset=x", &good)).await.status,
        200
    );

    assert_refusal(&world.post(&path("call"), &good).await, 400, "send it to the query endpoint");
    assert_refusal(
        &world.post(&path("query"), &anonymous(read_state(Principal::anonymous(), &[]))).await,
        400,
        "send it to the read_state endpoint",
    );
    assert_refusal(
        &world.post(&format!("/api/v3/canister/{}/query", canister(2)), &good).await,
        400,
        &format!("use {} as the effective", canister(1)),
    );
    let mut elsewhere = query(Principal::anonymous(), "echo");
    let EnvelopeContent::Query { canister_id, .. } = &mut elsewhere else { panic!("a query") };
    *canister_id = canister(200);
    assert_refusal(
        &world
            .post(&format!("/api/v3/canister/{}/query", canister(200)), &anonymous(elsewhere))
            .await,
        400,
        "in no canister range",
    );
    assert_refusal(
        &world.post(&format!("/api/v3/subnet/{}/query", world.script.key.id()), &good).await,
        400,
        "only serves `list_canisters`",
    );
    assert_refusal(
        &world
            .post(
                &format!("/api/v4/subnet/{}/call", world.script.key.id()),
                &body(&identity, call(me, "echo")),
            )
            .await,
        400,
        "`create_canister`",
    );
    let time = anonymous(read_state(Principal::anonymous(), &[&[b"time"]]));
    assert_refusal(
        &world.post(&format!("/api/v3/subnet/{}/read_state", canister(1)), &time).await,
        400,
        "this node belongs to subnet",
    );
    assert_refusal(
        &world.post("/api/v2/canister/aaaaa-aa/read_state", &time).await,
        400,
        "in no canister range",
    );

    let ask = |identity: &dyn Identity, paths: &[&[&[u8]]]| {
        body(identity, read_state(identity.sender().unwrap(), paths))
    };
    assert_refusal(
        &world.post(&path("read_state"), &ask(&identity, &[&[]])).await,
        400,
        "the whole tree",
    );
    assert_refusal(
        &world
            .post(
                &path("read_state"),
                &ask(&identity, &[&[b"canister", canister(1).as_slice(), b"certified_data"]]),
            )
            .await,
        400,
        "cannot be requested",
    );
    assert_refusal(
        &world
            .post(
                &path("read_state"),
                &ask(&identity, &[&[b"canister", canister(2).as_slice(), b"module_hash"]]),
            )
            .await,
        400,
        "another canister",
    );
    assert_refusal(
        &world
            .post(
                &path("read_state"),
                &ask(&identity, &[&[b"canister", canister(1).as_slice(), b"metadata", b"secret"]]),
            )
            .await,
        403,
        "only controllers",
    );
    assert_refusal(
        &world
            .post(
                &path("read_state"),
                &ask(&identity, &[&[b"request_status", &[1; 32]], &[b"request_status", &[2; 32]]]),
            )
            .await,
        400,
        "same request id",
    );
    assert_refusal(
        &world.post(&path("read_state"), &ask(&identity, &[&[&b"time"[..]][..]; 101])).await,
        400,
        "101 exceeds the limit of 100",
    );
    assert_refusal(
        &world.post(&path("read_state"), &ask(&identity, &[&[&b"a"[..]; 17][..]])).await,
        400,
        "17 exceeds the limit of 16",
    );
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_not_authentic() {
    let world = World::start().await;
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    let mut expired = call(me, "echo");
    let EnvelopeContent::Call { ingress_expiry, .. } = &mut expired else { panic!("a call") };
    *ingress_expiry = now().0 - 1;
    let answered = world.post(&path("call"), &body(&identity, expired)).await;
    assert_refusal(&answered, 400, "before this node's time");
    assert!(
        answered.text().starts_with("Invalid request expiry: "),
        "clients resynchronise on this"
    );
    let mut far = call(me, "echo");
    let EnvelopeContent::Call { ingress_expiry, .. } = &mut far else { panic!("a call") };
    *ingress_expiry = now().0 + 3_600_000_000_000;
    assert_refusal(
        &world.post(&path("call"), &body(&identity, far)).await,
        400,
        "more than 360 s after",
    );
    let mut forged = sign(&identity, call(me, "echo"));
    forged.sender_sig.as_mut().unwrap()[0] ^= 1;
    assert_refusal(
        &world.post(&path("call"), &forged.encode_bytes()).await,
        400,
        "no valid Ed25519 signature",
    );
    let stranger = ed25519(2).sender().unwrap();
    assert_refusal(
        &world.post(&path("call"), &body(&identity, call(stranger, "echo"))).await,
        400,
        "is not the principal of",
    );
    assert_eq!(world.script.inspected.load(Ordering::SeqCst), 0);
    assert_eq!(world.metric("gateway_refusals_total{reason=\"signature\"}").await, Some(1.0));
    assert_eq!(world.metric("gateway_refusals_total{reason=\"expired\"}").await, Some(1.0));
    assert_eq!(
        world.metric("gateway_requests_total{route=\"call\",status=\"400\"}").await,
        Some(4.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_larger_than_a_message_may_be_is_refused_at_once() {
    let world = World::start().await;
    let identity = ed25519(1);
    let mut large = call(identity.sender().unwrap(), "echo");
    let EnvelopeContent::Call { arg, .. } = &mut large else { panic!("a call") };
    *arg = vec![7; 200_001];
    let answered = world.post(&path("call"), &body(&identity, large)).await;
    assert_refusal(&answered, 413, "message_payload_bytes = 200000");
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_call_is_not_submitted_again() {
    let world = World::start().await;
    let identity = ed25519(1);
    let sent = body(&identity, call(identity.sender().unwrap(), "echo"));
    let first = world.post(&path("call"), &sent).await;
    let again = world.post(&path("call"), &sent).await;
    let asynchronous = world.post(&format!("/api/v2/canister/{}/call", canister(1)), &sent).await;
    assert_eq!((first.status, again.status, asynchronous.status), (200, 200, 202));
    assert!(asynchronous.body.is_empty());
    let serde_cbor_2::Value::Map(map) = again.cbor() else { panic!("a map") };
    assert_eq!(
        map[&serde_cbor_2::Value::Text("status".to_owned())],
        serde_cbor_2::Value::Text("replied".to_owned())
    );
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 1);
    assert_eq!(world.script.inspected.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_node_refuses_is_passed_on() {
    let world = World::start().await;
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    *world.script.refuse.lock().unwrap() = Some(Refusal::Full {
        message: "the ingress pool holds 4096 of 4096 bytes".to_owned(),
        retry_after_seconds: 3,
    });
    let full = world.post(&path("call"), &body(&identity, call(me, "echo"))).await;
    assert_refusal(&full, 503, "4096 of 4096");
    assert_eq!(full.headers["retry-after"], "3");
    assert!(world.script.waiters.is_empty());
    *world.script.refuse.lock().unwrap() =
        Some(Refusal::Invalid { message: "too large".to_owned() });
    assert_refusal(
        &world.post(&path("call"), &body(&identity, call(me, "echo"))).await,
        400,
        "too large",
    );
    *world.script.refuse.lock().unwrap() =
        Some(Refusal::Unavailable { message: "the disk is full".to_owned() });
    assert_refusal(
        &world.post(&path("call"), &body(&identity, call(me, "echo"))).await,
        503,
        "the disk is full",
    );
    *world.script.refuse.lock().unwrap() = None;

    // Rejected before submission: v2 without, v3 with the status.
    let inspected = body(&identity, call(me, "inspected_away"));
    for (version, entries) in [("v2", 3), ("v3", 4), ("v4", 4)] {
        let answered =
            world.post(&format!("/api/{version}/canister/{}/call", canister(1)), &inspected).await;
        let serde_cbor_2::Value::Map(map) = answered.cbor() else { panic!("a map") };
        assert_eq!((answered.status, map.len()), (200, entries), "{version}");
    }
    // A node that fails costs the request, not the gateway.
    assert_refusal(
        &world.post(&path("query"), &anonymous(query(Principal::anonymous(), "panic"))).await,
        500,
        "failed while serving",
    );
    assert_eq!(
        world.post(&path("query"), &anonymous(query(Principal::anonymous(), "echo"))).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_certified_state_says_so() {
    let world = World::start().await;
    world.script.starting.store(true, Ordering::SeqCst);
    let health = world.get("/health").await;
    assert_closed(&health, 503, "\"starting in ");
    assert_eq!(health.headers["content-type"], "application/json");
    for (operation, content) in [
        ("query", query(Principal::anonymous(), "echo")),
        ("call", call(Principal::anonymous(), "echo")),
        ("read_state", read_state(Principal::anonymous(), &[])),
    ] {
        let answered = world.post(&path(operation), &anonymous(content)).await;
        assert_refusal(&answered, 503, "no certified state yet");
        assert_eq!(answered.headers["retry-after"], "1");
    }
    let status = world.get("/api/v2/status").await;
    assert_eq!(status.status, 200);
    world.script.starting.store(false, Ordering::SeqCst);
    let health = world.get("/health").await;
    assert_eq!(health.status, 200);
    assert!(health.text().contains("\"certified_height\":5"), "{}", health.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_may_be_clients() {
    let world = World::start().await;
    let preflight = format!(
        "OPTIONS {} HTTP/1.1\r\nhost: node\r\norigin: https://example.org\r\naccess-control-request-method: POST\r\naccess-control-request-headers: content-type\r\nconnection: close\r\n\r\n",
        path("call")
    );
    let answered = world.send(preflight.into_bytes()).await;
    assert_eq!(answered.status, 204);
    assert_eq!(answered.headers["access-control-allow-origin"], "*");
    assert!(answered.headers["access-control-allow-methods"].contains("POST"));
    assert!(answered.headers["access-control-allow-headers"].contains("content-type"));
}

// Promise: P15 - A request without a valid signature does not pass the gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_signed_does_not_get_past_the_gateway() {
    use serde_cbor_2::Value::{Array, Bytes, Map, Null, Text};
    let world = World::start().await;
    let key = ed25519(1);
    let sent = body(&key, call(key.sender().unwrap(), "echo"));
    let Map(envelope) = serde_cbor_2::from_slice(&sent).unwrap() else { panic!("no map") };
    let bounds = envelope::EnvelopeBounds::new(&support::gateway_limits());
    let canonical = envelope::canonical(&sent, &bounds).unwrap();
    let id = envelope::Envelope::decode(&sent, &bounds).unwrap().request_id;

    // Room for anything outside of what is signed, and of what it is signed with.
    let mut padded = envelope.clone();
    padded.insert(Text("padding".into()), Bytes(vec![7; 100_000]));
    padded.insert(Text("more".into()), Array(vec![Null; 50]));
    let Some(Map(content)) = padded.get_mut(&Text("content".into())) else { panic!("no content") };
    content.insert(Text("x".repeat(50_000)), Null);
    let padded = serde_cbor_2::to_vec(&Map(padded)).unwrap();
    assert!(padded.len() > 150_000);
    assert_eq!(envelope::canonical(&padded, &bounds).unwrap(), canonical);
    assert_eq!(envelope::canonical(&canonical, &bounds).unwrap(), canonical);
    assert_eq!(envelope::Envelope::decode(&canonical, &bounds).unwrap().request_id, id);
    assert!(canonical.len() <= sent.len());

    let answered = world.post(&path("call"), &padded).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    let signed = world.script.last_signed.lock().unwrap().take().unwrap();
    assert_eq!(signed.envelope, canonical);
}

// Promise: P15 - A refusal of a request whose body was not read announces the end of the
//   connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_with_an_unread_body_keeps_or_closes_the_connection() {
    let world = World::start().await;
    let address = world.address;
    let (query_path, good) = (path("query"), anonymous(query(Principal::anonymous(), "echo")));
    let story = move || {
        let head = |path: &str, kind: &str, host: &str, length: usize| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\n\
                 content-length: {length}\r\n\r\n"
            )
        };
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream
        };
        let cbor = "application/cbor";
        let cases = [
            ("/nothing", cbor, "node", 404),
            ("/metrics", cbor, "evil.example", 421),
            (query_path.as_str(), "text/plain", "node", 415),
        ];
        for (path, kind, host, status) in cases {
            // A short body that arrives: the next request is served.
            let mut kept = connect();
            kept.write_all(head(path, kind, host, 4).as_bytes()).unwrap();
            kept.write_all(b"body").unwrap();
            let refused = support::receive(&mut kept);
            assert_eq!(refused.status, status, "{}", refused.text());
            assert!(!refused.headers.contains_key("connection"), "{path}");
            kept.write_all(head(&query_path, cbor, "node", good.len()).as_bytes()).unwrap();
            kept.write_all(&good).unwrap();
            assert_eq!(support::receive(&mut kept).status, 200, "after {path}");

            // A body that is missing, or long.
            for length in [4, 200_000] {
                let mut closed = connect();
                closed.write_all(head(path, kind, host, length).as_bytes()).unwrap();
                let refused = support::receive(&mut closed);
                assert_eq!(refused.status, status, "{}", refused.text());
                assert_eq!(refused.headers["connection"], "close", "{path}: {length}");
            }
        }
        let mut large = connect();
        large.write_all(head(&query_path, cbor, "node", 300_000).as_bytes()).unwrap();
        let refused = support::receive(&mut large);
        assert_eq!((refused.status, &refused.headers["connection"][..]), (413, "close"));
    };
    tokio::task::spawn_blocking(story).await.unwrap();
}

// Promise: P16 - Operator pages return 403 to foreign origins and 421 under foreign host names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_pages_are_refused_to_other_web_pages() {
    let world = World::start().await;
    let get = async |path: &str, headers: &str| {
        let request = format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        world.send(request.into_bytes()).await
    };
    let own = format!("host: {0}\r\norigin: http://{0}\r\n", world.address);
    let foreign = "host: localhost\r\norigin: https://evil.example\r\n";
    for path in ["/metrics", "/status.json", "/dashboard"] {
        // By its address, an address in front of it, and the name that is configured.
        for headers in [&own[..], "host: 10.0.0.1:9090\r\n", "host: node:8080\r\n"] {
            let answered = get(path, headers).await;
            assert_eq!(answered.status, 200, "{path} with {headers}: {}", answered.text());
            assert!(!answered.headers.contains_key("access-control-allow-origin"), "{path}");
        }
        let refused = get(path, foreign).await;
        assert_closed(&refused, 403, "https://evil.example");
        // The attacker's name, made to resolve to this address.
        let refused = get(path, "host: evil.example:8080\r\n").await;
        assert_closed(&refused, 421, "host_names (--host-name NAME)");
        // Embedded in a page of another site, which sends no `Origin`.
        let embedded = "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n\
                        sec-fetch-dest: image\r\n";
        assert_closed(&get(path, embedded).await, 403, "pages of other sites");
        let link = "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n\
                    sec-fetch-dest: document\r\n";
        assert_eq!(get(path, link).await.status, 200, "{path}");
        let preflight =
            format!("OPTIONS {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let preflight = world.send(preflight.into_bytes()).await;
        assert_eq!(preflight.status, 204);
        assert!(!preflight.headers.contains_key("access-control-allow-origin"));
    }
    assert_closed(&get("/debug/heap", foreign).await, 403, "evil.example");
    let browser = "host: evil.example\r\naccept: text/html\r\n";
    assert_closed(&get("/", browser).await, 421, "evil.example");
    // Probes have any host; pages of other origins learn nothing.
    let health = get("/health", "host: evil.example\r\n").await;
    assert_eq!(health.status, 200);
    assert!(!health.headers.contains_key("access-control-allow-origin"));
    let refusals = world.metric("gateway_refusals_total{reason=\"foreign_host\"}").await;
    assert_eq!(refusals, Some(4.0));
    // The public interface has clients in pages of any origin and under any name.
    let status =
        get("/api/v2/status", "host: any.example\r\norigin: https://app.example\r\n").await;
    assert_eq!((status.status, &status.headers["access-control-allow-origin"][..]), (200, "*"));
}
