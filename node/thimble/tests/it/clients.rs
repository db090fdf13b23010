//! The published clients of other languages, unmodified, against a started node. `tests/clients/setup.sh` installs them (as `make test` does).

use std::process::Command;

use crate::harness::*;

async fn client(program: &str, arguments: &[&str]) {
    let node = Node::start().await;
    let fixtures = repository().join("canisters/wasm");
    let output = Command::new(program)
        .args(arguments)
        .args(["--url", &node.url])
        .arg("--fixtures")
        .arg(fixtures)
        .current_dir(repository())
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be started ({error}); `make test` installs it"));
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn javascript_deploys_calls_queries_and_verifies() {
    client("node", &["tests/clients/node/deploy.mjs"]).await;
}

#[tokio::test]
async fn the_older_javascript_agent_does_so_over_the_older_endpoints() {
    client("node", &["tests/clients/node/legacy.mjs"]).await;
}

#[tokio::test]
async fn python_deploys_calls_queries_and_verifies() {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let python = repository().join(target).join("clients-venv/bin/python");
    client(python.to_str().unwrap(), &["tests/clients/python/deploy.py"]).await;
}
