//! The HTTP gateway: a canister's page in a browser, and everything that canisters answer, the
//! hostile ones too. The canister is `canisters/frontend`.

use std::{io::Write, net::TcpListener, process::Command};

use candid::Principal;
use reqwest::{Client, Method, Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::harness::*;
use testing::until_async;

/// Bytes of the long assets, and of one piece of them, as in the canister's source.
const LONG_BYTES: usize = 5_000_000;
const PIECE_BYTES: usize = 1_500_000;

/// A node, its gateway, and the canister.
struct Site {
    node: Node,
    _folder: tempfile::TempDir,
    address: String,
    canister: Principal,
}

impl Site {
    async fn start() -> Self {
        Self::with("").await
    }

    async fn with(limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_addresses(1).remove(0);
        let arguments = vec!["--http-gateway".to_owned(), address.clone()];
        let mut node = Node::prepared(folder.path().join("data"), "512MiB", arguments);
        if !limits.is_empty() {
            node.configure(&format!("[limits.http_gateway]\n{limits}"));
        }
        node.launch().await;
        let canister = deploy(&node.agent(1).await, "frontend.wasm").await;
        Self { node, _folder: folder, address, canister }
    }

    fn host(&self) -> String {
        format!("{}.localhost", self.canister)
    }

    /// Asks for a path of the canister, with these headers.
    async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
        self.try_ask(method, path, headers).await.unwrap()
    }

    async fn try_ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> reqwest::Result<Response> {
        let url = format!("http://{}{path}", self.address);
        let mut request = Client::new().request(method, url);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", self.host());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body("abc").send().await
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(Method::GET, path, &[]).await
    }

    /// Status and text of what is refused.
    async fn refused(&self, path: &str) -> (StatusCode, String) {
        let response = self.get(path).await;
        (response.status(), response.text().await.unwrap())
    }

    /// Bytes that requests hold.
    async fn held_bytes(&self) -> u64 {
        let pools = self.node.status().await["pools"].clone();
        let pool = pools.as_array().unwrap().iter().find(|pool| pool["name"] == "http_requests");
        pool.unwrap()["used_bytes"].as_u64().unwrap()
    }
}

fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

fn long() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8).collect()
}

// Promise: P11 - A canister serves pages that are verified in both versions.
#[tokio::test]
async fn a_canister_serves_pages_that_are_verified() {
    let site = Site::start().await;
    let page = site.get("/").await;
    assert_eq!(page.status(), 200);
    assert_eq!(header(&page, "content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(header(&page, "access-control-allow-origin"), Some("*"));
    assert!(page.text().await.unwrap().contains("Served by a canister"));
    // What is not there is certified by a wildcard.
    let (status, text) = site.refused("/nothing/like/this?a=b").await;
    assert_eq!((status.as_u16(), text.as_str()), (404, "there is no such page"));
    // Without a name, and what such a page loads.
    let bare = site.address.clone();
    let page = format!("/?canisterId={}", site.canister);
    let found = site.ask(Method::GET, &page, &[("host", &bare)]).await;
    assert!(found.text().await.unwrap().contains("Served by a canister"));
    let referer = format!("http://{bare}{page}");
    let style =
        site.ask(Method::GET, "/style.css", &[("host", &bare), ("referer", &referer)]).await;
    assert_eq!(header(&style, "content-type"), Some("text/css"));
    let head = site.ask(Method::HEAD, "/", &[]).await;
    assert_eq!(head.status(), 200);
    assert!(head.text().await.unwrap().is_empty());
    let old = site.get("/old").await;
    assert_eq!(old.text().await.unwrap(), "certified by version 1");
}

// Promise: P11 - A response that does not verify is refused with the reason.
#[tokio::test]
async fn what_is_forged_is_refused_and_seen_unverified_where_it_is_asked_for() {
    let site = Site::start().await;
    let (status, text) = site.refused("/forged").await;
    assert_eq!(status, 503);
    assert!(text.contains("could not be verified") && text.contains(".raw.localhost"), "{text}");
    let page = site.ask(Method::GET, "/forged", &[("accept", "text/html")]).await;
    assert_eq!(header(&page, "content-type"), Some("text/html; charset=utf-8"));
    assert!(page.text().await.unwrap().contains("<title>503"));
    let raw = format!("{}.raw.localhost", site.canister);
    let seen = site.ask(Method::GET, "/forged", &[("host", &raw)]).await;
    assert_eq!(seen.status(), 200);
    assert_eq!(seen.text().await.unwrap(), "something else");
}

// Promise: P11 - Long assets are streamed in pieces, each within one reply of 2 MiB.
#[tokio::test]
async fn long_assets_go_out_piece_by_piece() {
    let site = Site::start().await;
    let expected = long();
    let digest = Sha256::digest(&expected);
    for path in ["/streamed", "/ranges"] {
        let whole = site.get(path).await;
        assert_eq!(whole.status(), 200, "{path}");
        assert_eq!(whole.content_length(), Some(LONG_BYTES as u64), "{path}");
        assert_eq!(header(&whole, "content-range"), None);
        let bytes = whole.bytes().await.unwrap();
        assert_eq!(Sha256::digest(&bytes), digest, "{path}");
    }
    let range = format!("bytes={PIECE_BYTES}-");
    let part = site.ask(Method::GET, "/ranges", &[("range", &range)]).await;
    assert_eq!(part.status(), 206);
    let last = 2 * PIECE_BYTES - 1;
    let content_range = format!("bytes {PIECE_BYTES}-{last}/{LONG_BYTES}");
    assert_eq!(header(&part, "content-range"), Some(content_range.as_str()));
    let bytes = part.bytes().await.unwrap();
    assert_eq!(&bytes[..], &expected[PIECE_BYTES..=last]);
    // Many at once wait for one another, and all are right; then nothing is held.
    let mut all = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (url, host) = (format!("http://{}/streamed", site.address), site.host());
        all.spawn(async move {
            let response = Client::new().get(url).header("host", host).send().await.unwrap();
            (number, Sha256::digest(response.bytes().await.unwrap()))
        });
    }
    for (number, found) in all.join_all().await {
        assert_eq!(found, digest, "{number}");
    }
    until_async("nothing is held", async || site.held_bytes().await == 0).await;
}

// Promise: P11 - A request becomes an update call where the canister asks for it.
#[tokio::test]
async fn a_request_becomes_an_update_call_where_the_canister_says_so() {
    let site = Site::start().await;
    for count in 1..=3 {
        let answer = site.ask(Method::POST, "/counter", &[]).await;
        assert_eq!(answer.status(), 200);
        let expected = format!("{count}, by POST with 3 bytes");
        assert_eq!(answer.text().await.unwrap(), expected);
    }
}

// Promise: P11 - Hostile responses of a canister end in an error at a bounded cost.
#[tokio::test]
async fn hostile_answers_come_to_an_end_and_to_nothing() {
    let site = Site::with("response_chunks = 20\n").await;
    for (what, says) in [
        ("split", "none that HTTP allows"),
        ("status", "status 42"),
        ("elsewhere", "another canister's method"),
    ] {
        let (status, text) = site.refused(&format!("/hostile?{what}")).await;
        assert_eq!(status, 502, "{what}: {text}");
        assert!(text.contains(says), "{text}");
    }
    let lie = site.get("/hostile?length").await;
    assert_eq!(lie.text().await.unwrap(), "nothing of this is certified");
    // An endless stream is cut off, and its reader gets an error.
    let endless = site.get("/hostile?end").await;
    assert_eq!(endless.status(), 200);
    assert!(endless.bytes().await.is_err());
    assert_eq!(site.get("/").await.status(), 200);
}

#[tokio::test]
async fn only_canisters_of_this_node_are_asked_and_nothing_of_the_operators() {
    let site = Site::start().await;
    let ask = async |host: &str, path: &str| {
        let response = site.ask(Method::GET, path, &[("host", host)]).await;
        (response.status().as_u16(), response.text().await.unwrap())
    };
    // An id that the node may give, and has not.
    let (status, text) = ask("qoctq-giaaa-aaaaa-aaaea-cai.localhost", "/").await;
    assert!(status == 404 && text.contains("did not answer"), "{status} {text}");
    let elsewhere = Principal::from_slice(&[0, 0, 1, 0, 0, 0, 0, 0, 1, 1]);
    let (status, text) = ask(&format!("{elsewhere}.localhost"), "/").await;
    assert!(status == 404 && text.contains("no canister of this node"), "{status} {text}");
    let (status, text) = ask("example.org", "/").await;
    assert!(status == 400 && text.contains("names no canister"), "{status} {text}");
    for path in ["/metrics", "/status.json", "/dashboard", "/debug/heap", "/health"] {
        assert_eq!(ask("localhost", path).await.0, 400, "{path}");
    }
    assert_eq!(ask(&site.host(), "/api/v2/status").await.0, 200);
    // One that serves no pages.
    let counter = deploy(&site.node.agent(1).await, "counter-c.wasm").await;
    let (status, text) = ask(&format!("{counter}.localhost"), "/").await;
    assert!(status >= 400 && text.contains("http_request"), "{status} {text}");
    let origin = [("origin", "http://a"), ("access-control-request-method", "POST")];
    let preflight = site.ask(Method::OPTIONS, "/", &origin).await;
    assert_eq!(preflight.status(), 204);
    assert!(header(&preflight, "access-control-allow-methods").unwrap().contains("POST"));
}

// Promise: P11 - A request beyond a bound of the gateway is refused with the limit.
#[tokio::test]
async fn what_is_too_much_is_refused_with_the_limit() {
    let site = Site::with("connections = 2\nrequests_in_flight = 2\nbody_bytes = 1000\n").await;
    // Their bodies do not come: the requests remain in progress.
    let request =
        format!("POST /counter HTTP/1.1\r\nhost: {}\r\ncontent-length: 9\r\n\r\n", site.host());
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(&site.address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    until_async("a third connection is refused", async || {
        let Ok(response) = site.try_ask(Method::GET, "/", &[]).await else { return false };
        let (status, text) = (response.status(), response.text().await.unwrap_or_default());
        let is_refused = status == StatusCode::SERVICE_UNAVAILABLE;
        assert!(!is_refused || text.contains("http_gateway.connections = 2"), "{text}");
        is_refused
    })
    .await;
    drop(busy);
    let url = format!("http://{}/counter", site.address);
    let post = || Client::new().post(&url).header("host", site.host()).body(vec![0; 1001]);
    let mut answered = None;
    until_async("there is a place again", async || {
        answered = post().send().await.ok().filter(|response| response.status() != 503);
        answered.is_some()
    })
    .await;
    let refused = answered.unwrap();
    assert_eq!(refused.status(), 413);
    assert!(refused.text().await.unwrap().contains("http_gateway.body_bytes is 1000"));
}

// Promise: P11 - A taken default address of the gateway does not stop the start; a configured one
//   does.
#[tokio::test]
async fn a_taken_address_matters_only_to_who_asked_for_it() {
    // Another process may have it already, which is as good.
    let _taken = TcpListener::bind("127.0.0.1:8081");
    let node = Node::start().await;
    assert!(node.log().contains("the HTTP gateway is off: cannot listen on 127.0.0.1:8081"));
    assert_eq!(node.log().matches("HTTP gateway").count(), 1, "one line");
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let asked = vec!["--http-gateway".to_owned(), address.clone()];
    let mut node = Node::prepared(folder.path().join("data"), "512MiB", asked);
    node.spawn();
    assert!(!node.ended().await.success());
    assert!(node.log().contains(&format!("cannot listen on {address}")), "{}", node.log());
    node.arguments = vec!["--http-gateway".to_owned(), "off".to_owned()];
    node.launch().await;
    assert!(!node.log().contains("the HTTP gateway is o"), "{}", node.log());
}

#[tokio::test]
async fn a_small_node_has_no_gateway_and_says_so() {
    let node = Node::start_with("96MiB").await;
    let why = "the HTTP gateway is off: there is no memory for it in a budget of 96 MiB";
    assert!(node.log().contains(why), "{}", node.log());
    let output = thimble()
        .args(["run", "--memory", "96MiB", "--listen", "127.0.0.1:0"])
        .args(["--http-gateway", "127.0.0.1:0", "--data-dir"])
        .arg(node.data.with_extension("other"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no memory for it") && text.contains("--http-gateway off"), "{text}");
}

// Promise: P11 - A real browser opens the page of a canister.
/// `tests/clients/node/frontend.mjs` contains the steps.
#[tokio::test]
async fn a_browser_opens_the_page_of_a_canister() {
    let site = Site::start().await;
    let port = site.address.rsplit(':').next().unwrap();
    let output = Command::new("node")
        .arg("tests/clients/node/frontend.mjs")
        .args(["--url", &format!("http://{}:{port}", site.host())])
        .arg("--fixtures")
        .arg(repository().join("canisters/wasm"))
        .current_dir(repository())
        .output()
        .unwrap_or_else(|error| {
            panic!("node cannot be started ({error}); `make test` installs it")
        });
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
}
