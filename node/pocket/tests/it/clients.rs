//! The published clients, unmodified, which launch the server themselves. `tests/clients/setup.sh`
//! installs them (as `make test` does).

use std::process::Command;

use crate::harness::repository;

fn target() -> std::path::PathBuf {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    repository().join(target)
}

/// Runs a client's tests.
fn client(command: &mut Command) {
    let asker = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(asker.path(), crate::asker::module()).unwrap();
    let output = command
        .env("POCKET_IC_BIN", env!("CARGO_BIN_EXE_thimble-pocket"))
        .env("POCKET_MODULES", repository().join("canisters/wasm"))
        // A canister that asks servers outside.
        .env("POCKET_ASKER", asker.path())
        // One of its tests has a live instance ask a server on this machine.
        .env("THIMBLE_POCKET_ALLOW_NETWORK", "127.0.0.0/8")
        // The server outlives the client by its time to live: it must not hold the output.
        .env("POCKET_IC_MUTE_SERVER", "1")
        .current_dir(repository())
        .output()
        .unwrap_or_else(|error| {
            panic!("{command:?} cannot be started ({error}); `make test` installs it")
        });
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

// Promise: P10 - pocket-ic 3.1 for Python tests canisters on `thimble-pocket`, unmodified.
#[test]
fn pocket_ic_for_python_tests_canisters() {
    let python = target().join("pocket-venv/bin/python");
    let script = "tests/clients/pocket/python/counter.py";
    client(Command::new(python).args([script, "canisters/wasm"]));
}

// Promise: P10 - @dfinity/pic 0.23 tests canisters on `thimble-pocket`, unmodified.
#[test]
fn dfinity_pic_tests_canisters() {
    client(Command::new("node").args(["tests/clients/pocket/node/counter.mjs", "canisters/wasm"]));
}

// Promise: P10 - pocket-ic 16.1 for Rust tests canisters on `thimble-pocket`, unmodified.
#[test]
fn pocket_ic_for_rust_tests_canisters() {
    let manifest = "tests/clients/pocket/rust/Cargo.toml";
    let built = target().join("pocket-clients");
    let arguments = ["test", "--quiet", "--locked", "--offline", "--manifest-path", manifest];
    client(Command::new("cargo").args(arguments).env("CARGO_TARGET_DIR", built));
}
