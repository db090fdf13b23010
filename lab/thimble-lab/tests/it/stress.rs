//! `thimble-lab stress` and `net up --relay` from the user's view: real relays in real groups.
//!
//! The relay is this workspace's own, `thimble-relay` in the folder of the tests or at
//! `THIMBLE_RELAY`. Where it is missing, or no memory-capped group can be made, a test reports it
//! and ends.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{LAB, text};

/// Where the relay's program is, if it is there and groups can be made; otherwise this is reported.
fn relay() -> Option<PathBuf> {
    let output =
        Command::new(LAB).args(["cap", "--memory", "64MiB", "--", "true"]).output().unwrap();
    if output.status.code() == Some(125) {
        testing::missing(text(&output));
        return None;
    }
    let beside = || Path::new(LAB).with_file_name("thimble-relay");
    let path = std::env::var_os("THIMBLE_RELAY").map_or_else(beside, PathBuf::from);
    if !path.is_file() {
        testing::missing(format!("{}: cargo build --release -p thimble-relay", path.display()));
        return None;
    }
    Some(path)
}

/// The tests may run in the background with signals ignored.
fn lab() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", LAB]).stdin(Stdio::null());
    command
}

/// A second of load, as little as shows anything.
const LITTLE: [&str; 8] = ["--rate", "20", "--phase", "1", "--after", "0", "--json", "-"];

fn command(relay: &Path) -> String {
    format!(
        "{} run --memory 64MiB --data-dir {{folder}}/data --listen /ip4/127.0.0.1/tcp/{{port}} \
         --http 127.0.0.1:0 --log warn",
        relay.display()
    )
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

// Promise: P25 - A network of relays is started, loaded and removed.
#[test]
fn a_network_is_started_worked_on_and_removed() {
    let Some(relay) = relay() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut stress = lab();
    stress.env("TMPDIR", scratch.path()).args(["stress", "--relays", "3", "--memory", "64MiB"]);
    let output = stress.arg("--relay-program").arg(relay).args(LITTLE).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let report = json(&output);
    let phase = &report["phases"][0];
    assert_eq!((&phase["accepted"], &phase["sent"]), (&Value::from(20), &Value::from(20)));
    // Publishers are at the first two nodes, all other clients at the last: messages arrived by
    // gossip.
    for delivery in phase["receivers"]
        .as_array()
        .unwrap()
        .iter()
        .chain(phase["relay_peers"].as_array().unwrap())
    {
        assert_eq!(
            (&delivery["node"], &delivery["delivered"]),
            (&Value::from(2), &Value::from(20))
        );
    }
    assert_eq!(phase["store"]["found"], 20, "the last node's store has what the first were pushed");
    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!((nodes.len(), phase["nodes"].as_array().unwrap().len()), (3, 3));
    for node in nodes {
        assert_eq!(node["cap_bytes"], 64 << 20);
        assert!(node["idle"]["anonymous_bytes"].as_u64().unwrap() > 0, "{node}");
    }
    let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_net_of_relays_runs_on_until_it_is_taken_down() {
    let Some(relay) = relay() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("net");
    let net = |words: &[&str]| lab().args(["net", "--dir"]).arg(&dir).args(words).output().unwrap();
    let relay = relay.to_str().unwrap();
    let up = [
        "up",
        "--relay",
        "2",
        "--memory",
        "64MiB",
        "--shard",
        "3",
        "--network",
        "direct",
        "--node",
        relay,
    ];
    let output = net(&up);
    let well = output.status.success();
    let stress = |words: &[&str]| {
        lab().args(["stress", "--net"]).arg(&dir).args(LITTLE).args(words).output().unwrap()
    };
    let done = std::panic::catch_unwind(|| {
        assert!(well, "{}", text(&output));
        assert!(text(&output).contains("every node serves"));
        // Again: they run already. Another kind of net there is refused.
        assert!(text(&net(&up)).contains("all of them run already"));
        let other = net(&["up", "--relay", "2", "--shard", "4", "--memory", "64MiB"]);
        assert!(text(&other).contains("has relays on cluster 0 and shard 3"), "{}", text(&other));
        let status: Value = serde_json::from_slice(&net(&["status", "--json"]).stdout).unwrap();
        assert!(status["nodes"][0]["multiaddr"].as_str().unwrap().contains("/p2p/"), "{status}");
        assert_eq!(status["nodes"][1]["report"]["relay"]["mesh"], 1);
        // The shard is the net's without being stated.
        let output = stress(&[]);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(json(&output)["load"]["shard"], 3);
        assert!(net(&["kill", "1"]).status.success());
        assert!(text(&net(&["status"])).contains("killed"));
        assert!(net(&["restart", "1"]).status.success());
        assert!(stress(&[]).status.success());
    });
    for words in [["down", "--delete"], ["down", "--delete"]] {
        assert!(net(&words).status.success(), "down may be repeated");
    }
    assert!(!dir.exists());
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

// Promise: P25 - Ctrl-C prints the measurements of a stress run.
#[test]
fn ctrl_c_during_a_phase_reports_partial_figures() {
    let Some(relay) = relay() else { return };
    let mut stress = lab();
    stress
        .args(["stress", "--case", "long", "--phase", "3600", "--memory", "64MiB", "--json", "-"]);
    stress.args(["--command", &command(&relay)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = stress.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("phase 1/6, part 1/6: begins")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(
        (report["phases"].as_array().unwrap().len(), &report["phases_asked"]),
        (1, &Value::from(6))
    );
    assert_eq!(report["phases"][0]["cut_short"], true);
    assert_eq!(report["nodes"][0]["died"], false);
}

// Promise: P25 - A process killed at its cap is counted.
#[test]
fn a_process_that_outgrows_the_cap_is_counted_as_killed() {
    let Some(relay) = relay() else { return };
    // In the relay's group, another process grows without bound once the phase has begun.
    let folder = tempfile::tempdir().unwrap();
    let sign = folder.path().join("begun");
    let greedy = format!(
        "sh -c '(until [ -e {} ]; do sleep 0.1; done; exec tail /dev/zero) & exec {}'",
        sign.display(),
        command(&relay)
    );
    let mut stress = lab();
    stress.args(["stress", "--memory", "96MiB", "--command", &greedy, "--receivers", "1"]);
    stress.args(["--rate", "20", "--phase", "8", "--after", "0", "--json", "-"]);
    let mut child = stress.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with(": begins")));
    fs::write(&sign, "").unwrap();
    let rest: Vec<String> = lines.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output), rest.join("\n"));
    let report = json(&output);
    assert!(report["nodes"][0]["oom_kills"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["phases"][0]["nodes"][0]["oom_kills"], 1, "{report}");
    assert!(report["verdict"].as_str().unwrap().contains("OOM kills"), "{report}");
}

#[test]
fn out_of_bounds_options_are_refused_before_start() {
    for (words, part) in [
        ("stress --relays 1", "2 to 32 nodes"),
        ("stress --node /ip4/127.0.0.1/tcp/1 --memory 64MiB", "add --command"),
        ("stress --node /ip4/127.0.0.1/tcp/1 --receivers 300", "at most 256"),
        ("stress --node /ip4/127.0.0.1/tcp/1 --pid 1 --pid 2", "2 processes for 1 nodes"),
        ("stress --net /no/such/net", "there is no net in /no/such/net"),
        ("stress --node /ip4/127.0.0.1/tcp/1 --payload 10-20", "40 to"),
        ("bench-relay --relay /no/such/relay", "there is no relay at /no/such/relay"),
        ("bench-relay --phase 0", "more than 0"),
    ] {
        let output = lab().args(words.split(' ')).output().unwrap();
        assert!(
            !output.status.success() && text(&output).contains(part),
            "{words}: {}",
            text(&output)
        );
    }
}

#[test]
fn a_case_can_be_written_down_changed_and_run() {
    let output = lab()
        .args(["stress", "--case", "baseline", "--publishers", "2", "--print-plan"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(plan.contains("publishers = 2") && plan.matches("[[phase]]").count() == 4, "{plan}");
}
