//! Configurations that the relay refuses to start with, and their error messages.

use std::{
    fs,
    process::{Command, Stdio},
};

/// Runs it with these arguments to its end, which must be a failure before anything is made in its
/// data folder; its output.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let ended = Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
        .args(["run", "--listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(!data.exists(), "it began: {ended:?}");
    String::from_utf8(ended.stderr).unwrap()
}

// Promise: P23 - Without an RPC server The Waku Network is refused at start before anything is
//   created in the data folder.
#[test]
fn network_whose_messages_carry_proofs_is_refused_without_an_rpc_server() {
    let said = refused(&["--network", "waku"]);
    for reason in ["cluster 1", "RLN", "Ethereum", "--eth-rpc URL", "0xb9cd", "chain 59141"] {
        assert!(said.contains(reason), "{reason} is not named: {said}");
    }
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    // However it is stated.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    fs::write(&file, "cluster = 1\n").unwrap();
    assert_eq!(refused(&["--config", file.to_str().unwrap()]), said);
    assert_eq!(refused(&["--preset", "twn"]), said);
}

#[test]
fn rpc_url_that_cannot_be_used_is_refused_without_being_shown() {
    let said = refused(&["--network", "waku", "--eth-rpc", "wss://user:hidden@a.b/hiddenhidden"]);
    assert!(said.contains("eth_rpc, URL 1") && said.contains("https"), "{said}");
    assert!(!said.contains("hidden"), "{said}");
}
