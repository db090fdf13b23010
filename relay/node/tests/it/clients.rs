//! The published clients, unmodified, against the relay. `tests/waku/setup.sh` installs them (as
//! `make test` does).

use std::process::Command;

use crate::harness::{Relay, repository, target};

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).current_dir(repository()).output().unwrap_or_else(
            |error| panic!("{program} cannot be started ({error}): `make test` installs it"),
        );
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}\n{errors}",
        output.status
    );
    text.into_owned()
}

/// Output of the program in JavaScript.
pub(crate) fn javascript(arguments: &[&str]) -> String {
    run("node", &[&["tests/waku/js/client.mjs"], arguments].concat())
}

/// Output of the program in Go.
pub(crate) fn go(arguments: &[&str]) -> String {
    let peer = target().join("waku/peer");
    run(peer.to_str().unwrap(), &[&["client"], arguments].concat())
}

// Promise: P23 - @waku/sdk pushes, subscribes and queries over WebSocket.
#[test]
fn javascript_pushes_subscribes_and_queries_over_websocket() {
    let relay = Relay::start(&["--cluster", "2"]);
    let peer = relay.address(true);
    javascript(&[
        "--peer",
        peer,
        "--cluster",
        "2",
        "--shards-in-cluster",
        "8",
        "--foreign-shard",
        "9",
    ]);
}

// Promise: P23 - @waku/sdk works with a fixed shard over TCP.
#[test]
fn javascript_does_so_with_a_fixed_shard_over_tcp() {
    let relay = Relay::start(&["--cluster", "16", "--shard", "32"]);
    let peer = relay.address(false);
    javascript(&["--peer", peer, "--cluster", "16", "--shard", "32", "--foreign-shard", "33"]);
}

// Promise: P24 - Messages at the edges of every field, in both directions, cost no score with
//   go-waku.
#[test]
fn valid_messages_at_every_edge_keep_the_mesh_with_go() {
    let relay = Relay::start(&["--cluster", "2"]);
    let peer = relay.address(false);
    let seed = rand::random::<u32>().to_string();
    println!("seed {seed}");
    go(&["-peer", peer, "-cluster", "2", "-only", "edges", "-edges", "400", "-seed", &seed]);
    // This side of it: the Go node is not at fault either.
    for name in ["rejected", "broken_promises"] {
        assert_eq!(relay.metric(&format!("thimble_relay_gossip_{name}_total")), 0, "{name}");
    }
}

// Promise: P23 - go-waku relays, pushes, subscribes and queries.
#[test]
fn go_relays_pushes_subscribes_and_queries() {
    let relay = Relay::start(&["--cluster", "2"]);
    let peer = relay.address(false);
    go(&["-peer", peer, "-cluster", "2", "-shards", "0,1,2,3", "-foreign-shard", "9"]);
}
