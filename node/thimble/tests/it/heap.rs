//! Where a running node's memory went, as an operator asks.

use std::time::{Duration, Instant};

use crate::harness::*;

/// The command's output, once it is answered: a node says where its memory went once a second.
fn heap(node: &Node, arguments: &[&str]) -> String {
    let address = node.url.strip_prefix("http://").unwrap();
    let started = Instant::now();
    loop {
        let output =
            thimble().args(["heap", "--address", address]).args(arguments).output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("try again"), "{words}");
        assert!(started.elapsed() < testing::TIMEOUT, "{words}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

const REQUESTS: usize = 32;
/// So much larger than the mean distance of two samples (128 KiB) that a sample falls into each.
const REQUEST_BYTES: usize = 1 << 20;

/// Requests that are read whole before they are refused.
async fn requests(node: &Node) {
    let url = format!("{}/api/v2/canister/aaaaa-aa/call", node.url);
    for _ in 0..REQUESTS {
        let request = reqwest::Client::new().post(&url).header("content-type", "application/cbor");
        let response = request.body(vec![0; REQUEST_BYTES]).send().await.unwrap();
        assert_eq!(response.status(), 400);
    }
}

// Promise: P1 - A heap profile attributes live and total bytes of the node to functions.
#[tokio::test]
async fn an_operator_sees_which_functions_of_the_node_took_memory() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut node = Node::prepared(data, "512MiB", vec!["--heap-profile".into()]);
    node.spawn();
    let pid = node.pid();
    node.healthy().await;
    requests(&node).await;
    let report: serde_json::Value =
        serde_json::from_str(&heap(&node, &["--json", "--by", "total", "--top", "1000"])).unwrap();
    // It became another program in place: who watches the process sees one.
    assert_eq!(report["pid"].as_u64(), Some(u64::from(pid)));
    assert!(
        report["total_bytes"].as_i64().unwrap() > (REQUESTS * REQUEST_BYTES / 2) as i64,
        "{report}"
    );
    let named = report["sites"].as_array().unwrap().iter().any(|site| {
        ["site", "caller"].iter().any(|key| {
            site[key].as_str().is_some_and(|name| name.starts_with("http_server::request_body"))
        })
    });
    assert!(named, "{report:#}");
    let svg = folder.path().join("heap.svg");
    heap(&node, &["--svg", svg.to_str().unwrap()]);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    // Pages of other origins cannot read interfaces with clients' data.
    let response = reqwest::get(format!("{}/debug/heap", node.url)).await.unwrap();
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    for worker in node.workers() {
        let environment = std::fs::read(format!("/proc/{worker}/environ")).unwrap();
        assert!(environment.is_empty(), "a worker samples too");
    }
    node.stop();
}

// Promise: P1 - Heap sampling is off by default, and the refusal names the option.
#[tokio::test]
async fn a_node_that_does_not_sample_says_how_to_have_it_sample() {
    let node = Node::start_with("256MiB").await;
    let address = node.url.strip_prefix("http://").unwrap();
    let output = thimble().args(["heap", "--address", address]).output().unwrap();
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    for expected in ["404", "thimble run --heap-profile", "heap_profile = true"] {
        assert!(words.contains(expected), "{expected} is missing in {words}");
    }
}
