//! The published clients of other languages, unmodified, against a started node.
//! `tests/clients/setup.sh` installs them (as `make test` does).

use std::process::Command;

use crate::harness::*;

async fn client(program: &str, arguments: &[&str]) {
    let node = Node::start().await;
    client_of(&node.url, program, arguments);
}

/// Runs a published client's script against the node at `url`.
pub(crate) fn client_of(url: &str, program: &str, arguments: &[&str]) {
    let fixtures = repository().join("canisters/wasm");
    let output = Command::new(program)
        .args(arguments)
        .args(["--url", url])
        .arg("--fixtures")
        .arg(fixtures)
        .current_dir(repository())
        .output()
        .unwrap_or_else(|error| {
            panic!("{program} cannot be started ({error}); `make test` installs it")
        });
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

// Promise: P10 - @icp-sdk/core 6.1 deploys, calls, queries and verifies.
#[tokio::test]
async fn javascript_deploys_calls_queries_and_verifies() {
    client("node", &["tests/clients/node/deploy.mjs"]).await;
}

// Promise: P10 - @dfinity/agent 3.4 works over the older endpoints.
#[tokio::test]
async fn the_older_javascript_agent_does_so_over_the_older_endpoints() {
    client("node", &["tests/clients/node/legacy.mjs"]).await;
}

// Promise: P10 - icp-py-core 2.3 deploys, calls, queries and verifies.
#[tokio::test]
async fn python_deploys_calls_queries_and_verifies() {
    client(&python(), &["tests/clients/python/deploy.py"]).await;
}

/// The interpreter that has the clients' packages.
pub(crate) fn python() -> String {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    repository().join(target).join("clients-venv/bin/python").to_str().unwrap().to_owned()
}
