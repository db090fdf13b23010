//! The dashboard in a real browser, headless. `tests/clients/node/dashboard.mjs` contains the
//! steps; `make test` installs its dependencies.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::harness::*;

/// Where the browser's pictures go: `THIMBLE_SCREENSHOTS`, or `screenshots` in the build directory.
fn screenshots() -> PathBuf {
    std::env::var_os("THIMBLE_SCREENSHOTS").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots"),
        PathBuf::from,
    )
}

#[tokio::test]
async fn a_browser_sees_the_node_live_hanging_and_gone() {
    let node = Node::start().await;
    let output = Command::new("node")
        .arg("tests/clients/node/dashboard.mjs")
        .args(["--url", &node.url, "--pid", &node.pid().to_string()])
        .arg("--fixtures")
        .arg(repository().join("canisters/wasm"))
        .arg("--screenshots")
        .arg(screenshots())
        .current_dir(repository())
        .output()
        .unwrap_or_else(|error| {
            panic!("node cannot be started ({error}); `make test` installs it")
        });
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success(),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
