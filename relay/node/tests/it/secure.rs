//! Secure WebSocket, with a self-signed certificate: the published client in Node and in a browser.
//! `tests/waku/setup.sh` installs the client and makes the page's bundle,
//! `scripts/setup.sh clients` the browser and openssl (`make test` runs both).

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;

use crate::harness::{Relay, repository, target};

/// A relay with a certificate of its own; both are gone with the folder.
struct Secure {
    relay: Relay,
    folder: TempDir,
}

impl Secure {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (certificate, key) = (path("certificate.pem"), path("key.pem"));
        run(Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ])
            .args(["-days", "2", "-subj", "/CN=relay", "-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-keyout", &key, "-out", &certificate]));
        let listen = ["--listen", "/ip4/127.0.0.1/tcp/0/wss"];
        let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
        let relay = Relay::start(&[arguments, &listen, &tls].concat());
        Self { relay, folder }
    }

    fn address(&self) -> &str {
        let secure = |address: &&String| address.contains("/wss") || address.contains("/tls/");
        self.relay.addresses.iter().find(secure).unwrap()
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }
}

fn run(command: &mut Command) {
    let output = command.current_dir(repository()).output().unwrap_or_else(|error| {
        panic!("{command:?} cannot be started ({error}): `make test` installs it")
    });
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
}

// Promise: P23 - @waku/sdk works over secure WebSocket with a self-signed certificate.
#[test]
fn javascript_does_all_it_does_over_secure_websocket() {
    let secure = Secure::start(&["--cluster", "2"]);
    run(Command::new("node")
        .env("NODE_EXTRA_CA_CERTS", secure.certificate())
        .args(["tests/waku/js/client.mjs", "--peer", secure.address()])
        .args(["--cluster", "2", "--shards-in-cluster", "8"]));
}

// Promise: P23 - A page in Chromium pushes, subscribes and queries over secure WebSocket.
#[test]
fn a_browser_pushes_subscribes_and_queries_over_secure_websocket() {
    let secure = Secure::start(&["--cluster", "2"]);
    run(Command::new("node")
        .args(["tests/waku/js/browser.mjs", "--cluster", "2", "--peer", secure.address()])
        .arg("--certificate")
        .arg(secure.certificate())
        .arg("--bundle")
        .arg(target().join("waku/page.js")));
}
