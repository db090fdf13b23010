//! Operator views: the report, the page that draws it, and its latencies.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gateway::{
    LatencyWindow,
    report::{
        CANISTERS_MAX, Canister, EVENTS_MAX, Event, HISTORY_MAX, Level, Memory, Pool, Process,
        Report, Sample, Throttling,
    },
};
use ic_agent::{Identity, identity::AnonymousIdentity};
use ic_principal::Principal;
use ic_transport_types::EnvelopeContent;
use testing::until_async;

use crate::support::{
    self, TestResponse, World, call, canister, ed25519, gateway_limits, query, sign,
};

/// As large as a report gets.
fn largest() -> Report {
    let sentence = "canister-memory holds 4611686018427387904 of 4611686018427387904 bytes; \
                    queries wait until it does not";
    let rate = 123_456.789_012_345_67;
    Report {
        version: "0.1.0".to_owned(),
        unix_millis: 1_790_000_000_000,
        memory: Memory {
            budget_bytes: 1 << 62,
            unaccounted_bytes: -(1 << 62),
            ..Memory::default()
        },
        pools: (0..48)
            .map(|number| Pool {
                name: format!("a-pool-with-a-long-name-{number}"),
                used_bytes: 1 << 62,
                cap_bytes: 1 << 62,
                high_water_bytes: 1 << 62,
                refused: u64::MAX,
            })
            .collect(),
        processes: (0..32)
            .map(|pid| Process {
                role: "update worker".to_owned(),
                pid,
                anonymous_bytes: 1 << 62,
                file_bytes: 1 << 62,
            })
            .collect(),
        throttling: Throttling {
            level: Level::Execution,
            reason: Some(sentence.to_owned()),
            events: (0..EVENTS_MAX as u64)
                .map(|number| Event {
                    unix_millis: 1_790_000_000_000 + number,
                    level: Level::Execution,
                    reason: sentence.to_owned(),
                })
                .collect(),
        },
        canisters: (0..CANISTERS_MAX)
            .map(|number| Canister {
                id: Principal::self_authenticating(number.to_be_bytes()).to_text(),
                memory_bytes: 1 << 62,
                status: "stopping".to_owned(),
            })
            .collect(),
        history: (0..HISTORY_MAX as u64)
            .map(|number| Sample {
                unix_millis: 1_790_000_000_000 + 1000 * number,
                anonymous_bytes: 1 << 62,
                file_bytes: 1 << 62,
                rounds_rate: rate,
                messages_rate: rate,
                queries_rate: rate,
                update_p50_millis: Some(rate),
                update_p99_millis: Some(rate),
                query_p50_millis: Some(rate),
                query_p99_millis: Some(rate),
                level: Level::Execution,
            })
            .collect(),
        ..Report::default()
    }
}

async fn get_with(world: &World, path: &str, headers: &str) -> TestResponse {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: node\r\n{headers}connection: close\r\n\r\n");
    world.send(request.into_bytes()).await
}

fn header<'a>(answered: &'a TestResponse, name: &str) -> &'a str {
    answered.headers.get(name).map_or("", String::as_str)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_is_carried_whole_and_read_by_its_own_pages_only() {
    let world = World::start().await;
    for report in [Report::default(), largest()] {
        *world.script.report.lock().unwrap() = report.clone();
        let answered = world.get("/status.json").await;
        assert_eq!(answered.status, 200, "{}", answered.text());
        assert_eq!(header(&answered, "content-type"), "application/json");
        assert_eq!(header(&answered, "cache-control"), "no-store");
        assert_eq!(header(&answered, "x-content-type-options"), "nosniff");
        assert!(!answered.headers.contains_key("access-control-allow-origin"));
        assert_eq!(serde_json::from_slice::<Report>(&answered.body).unwrap(), report);
        println!("{} bytes", answered.body.len());
        assert!(answered.body.len() < 256 << 10);
    }
    until_async("the answers", async || world.responses.used_bytes() == 0).await;
    let refused = world.post("/status.json", b"").await;
    assert_eq!((refused.status, header(&refused, "allow")), (405, "GET, HEAD, OPTIONS"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_may_run_its_own_script_and_ask_its_own_node_only() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use sha2::Digest;

    let world = World::start().await;
    let page = world.get("/dashboard").await;
    assert_eq!(page.status, 200);
    assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
    assert_eq!(header(&page, "cache-control"), "no-store");
    assert_eq!(header(&page, "x-content-type-options"), "nosniff");
    assert_eq!(header(&page, "x-frame-options"), "DENY");
    assert_eq!(header(&page, "referrer-policy"), "no-referrer");
    assert!(!page.headers.contains_key("access-control-allow-origin"));
    let text = page.text();
    let hash = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>")).unwrap();
        let (content, _) = rest.split_once(&format!("</{tag}>")).unwrap();
        format!("'sha256-{}'", BASE64_STANDARD.encode(sha2::Sha256::digest(content)))
    };
    let policy = header(&page, "content-security-policy");
    let directives: Vec<&str> = policy.split("; ").collect();
    let (script, style) =
        (format!("script-src {}", hash("script")), format!("style-src {}", hash("style")));
    for directive in [
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        &script[..],
        &style[..],
    ] {
        assert!(directives.contains(&directive), "{policy} lacks {directive}");
    }
    assert!(!policy.contains("unsafe"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_at_the_root_is_sent_to_the_page_and_a_program_is_told_what_there_is() {
    let world = World::start().await;
    let browser =
        get_with(&world, "/", "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n").await;
    assert_eq!((browser.status, header(&browser, "location")), (303, "/dashboard"));
    for headers in ["", "accept: */*\r\n"] {
        let program = get_with(&world, "/", headers).await;
        assert_eq!(program.status, 404);
        assert!(program.text().contains("GET /status.json, GET /dashboard"), "{}", program.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_node_is_still_seen() {
    let mut limits = gateway_limits();
    limits.requests_in_flight = 1;
    let world = World::with(limits).await;
    let release = world.script.hold_queries();
    let held = sign(&AnonymousIdentity, query(Principal::anonymous(), "hold")).encode_bytes();
    let path = format!("/api/v3/canister/{}/query", canister(1));
    let waiting = {
        let (address, request) = (world.address, support::post(&path, "application/cbor", &held));
        tokio::task::spawn_blocking(move || support::send(address, &request))
    };
    until_async("the queries", async || world.script.queries.load(Ordering::SeqCst) == 1).await;
    let refused = world.post(&path, &held).await;
    assert_eq!(refused.status, 503, "the door is closed: {}", refused.text());
    assert_eq!(world.get("/status.json").await.status, 200);
    assert_eq!(world.get("/dashboard").await.status, 200);
    drop(release);
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_hangs_takes_two_threads_and_no_more() {
    let world = World::start().await;
    let script = world.script.clone();
    let (hold, held) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
    let holder = std::thread::spawn(move || {
        let gate = script.hold_reports();
        held.0.send(()).unwrap();
        let _ = hold.1.recv();
        drop(gate);
    });
    held.1.recv().unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let address = world.address;
            tokio::task::spawn_blocking(move || {
                support::send(
                    address,
                    b"GET /status.json HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n",
                )
            })
        })
        .collect();
    until_async("the reports", async || world.script.reporting.load(Ordering::SeqCst) == 2).await;
    // All eight are connected, and a request that came after them was answered.
    while world.metric("gateway_connections_used").await < Some(9.0) {}
    assert_eq!(world.get("/health").await.status, 200);
    assert_eq!(world.script.reports.load(Ordering::SeqCst), 2);
    drop(hold.0);
    for answered in waiting {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    holder.join().unwrap();
    assert_eq!(world.script.reports.load(Ordering::SeqCst), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_timed_and_nothing_else() {
    let world = World::start().await;
    let identity = ed25519(1);
    let sender = identity.sender().unwrap();
    let numbered = |method: &str, number: u8| {
        let mut content = call(sender, method);
        if let EnvelopeContent::Call { nonce, .. } = &mut content {
            *nonce = Some(vec![number]);
        }
        sign(&identity, content).encode_bytes()
    };
    let path = |version: u8, operation: &str| {
        format!("/api/v{version}/canister/{}/{operation}", canister(1))
    };
    let counts = |window: LatencyWindow| {
        assert_eq!(
            window.updates > 0,
            window.update_p50_millis.is_some() && window.update_p99_millis.is_some()
        );
        assert_eq!(
            window.queries > 0,
            window.query_p50_millis.is_some() && window.query_p99_millis.is_some()
        );
        (window.updates, window.queries)
    };

    let known = numbered("echo", 1);
    assert_eq!(world.post(&path(3, "call"), &known).await.status, 200);
    for (version, method, number) in [(4, "echo", 2), (3, "reject", 3)] {
        assert_eq!(world.post(&path(version, "call"), &numbered(method, number)).await.status, 200);
    }
    assert_eq!(counts(world.latencies.take()), (3, 0));

    // Known already, asynchronous, turned down before consensus, refused.
    assert_eq!(world.post(&path(3, "call"), &known).await.status, 200);
    assert_eq!(world.post(&path(2, "call"), &numbered("echo", 4)).await.status, 202);
    assert_eq!(world.post(&path(3, "call"), &numbered("inspected_away", 5)).await.status, 200);
    assert_eq!(world.post(&path(3, "call"), b"no envelope").await.status, 400);
    assert_eq!(world.post(&path(3, "query"), b"no envelope").await.status, 400);
    world.get("/status.json").await;
    assert_eq!(counts(world.latencies.take()), (0, 0));

    for method in ["echo", "reject"] {
        let body = sign(&identity, query(sender, method)).encode_bytes();
        assert_eq!(world.post(&path(3, "query"), &body).await.status, 200);
    }
    assert_eq!(counts(world.latencies.take()), (0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_an_update_call_includes_its_waiting() {
    let world = World::start().await;
    world.script.at_once.store(false, Ordering::SeqCst);
    let identity = ed25519(1);
    let body = sign(&identity, call(identity.sender().unwrap(), "echo")).encode_bytes();
    let path = format!("/api/v3/canister/{}/call", canister(1));
    let waiting = {
        let (address, request) = (world.address, support::post(&path, "application/cbor", &body));
        tokio::task::spawn_blocking(move || support::send(address, &request))
    };
    until_async("the call", async || world.script.submitted.load(Ordering::SeqCst) == 1).await;
    let waited = Instant::now();
    // A lower bound: what comes later can only take longer.
    until_async("the pause", async || waited.elapsed() >= Duration::from_millis(50)).await;
    world.script.certify();
    assert_eq!(waiting.await.unwrap().status, 200);
    assert!(world.latencies.take().update_p50_millis.unwrap() >= 50.0 * 0.95);
}
