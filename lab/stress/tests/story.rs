//! The driver against a real node: accepted messages are found again, and errors are reported.
//!
//! The node is this workspace's own, `thimble-relay` in the folder of the tests or at
//! `THIMBLE_RELAY`.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use clap::Parser;
use stress::{
    Options, Stop, measure,
    report::{Report, StoreSample},
};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Path of the node's program; reports when there is none.
fn relay() -> Option<PathBuf> {
    let beside = || {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("thimble-relay")
    };
    let path = std::env::var_os("THIMBLE_RELAY").map_or_else(beside, PathBuf::from);
    if !path.is_file() {
        testing::missing(format!("{}: cargo build --release -p thimble-relay", path.display()));
        return None;
    }
    Some(path)
}

/// A command that runs the node on one shard, perhaps by another command.
fn command(relay: &Path, by: &str) -> String {
    format!(
        "{by} {} run --memory 128MiB --cluster 16 --shard 3 --listen /ip4/127.0.0.1/tcp/{{port}} \
         --http 127.0.0.1:0 --data-dir {{folder}}/data --log warn",
        relay.display()
    )
}

async fn stress(command: &str, plan: &str, flags: &[&str]) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, plan).unwrap();
    let usual = ["stress", "--cluster", "16", "--shard", "3", "--after", "0", "--command", command];
    let plan = ["--plan", path.to_str().unwrap()];
    let options = Cli::parse_from(usual.iter().chain(&plan).chain(flags)).options;
    measure(&options, &Stop::never()).await
}

const STEADY: &str = "\
    [[phase]]\nname = \"small\"\nseconds = 2\nrate = 50\npayload = \"500-1000\"\n\
    [[phase]]\nname = \"large\"\nseconds = 2\nrate = 10\npayload = \"130000-149000\"\n";
const FLOOD: &str = "[[phase]]\nname = \"flood\"\nseconds = 1\npayload = \"500-1000\"\n";
const PATIENT: &str =
    "[[phase]]\nname = \"long\"\nseconds = 60\nrate = 50\npayload = \"500-1000\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_accepted_reaches_receivers_relay_peers_and_the_store() {
    let Some(relay) = relay() else { return };
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("run.svg");
    let flags = ["--store-queries", "5", "--picture", picture.to_str().unwrap()];
    let report = stress(&command(&relay, ""), STEADY, &flags).await.unwrap();
    println!("{}", report.text());
    assert!(report.good, "{}", report.verdict);
    assert_eq!(report.light_push, "/vac/waku/lightpush/3.0.0");
    assert_eq!(report.phases.len(), 2);
    for (phase, due) in report.phases.iter().zip([100, 20]) {
        assert_eq!((phase.due, phase.sent, phase.accepted), (due, due, due), "{}", phase.name);
        assert_eq!((phase.receivers.len(), phase.relay_peers.len()), (2, 2));
        for delivery in phase.receivers.iter().chain(&phase.relay_peers) {
            assert_eq!((delivery.delivered, delivery.missing), (due, 0), "{}", phase.name);
            assert_eq!((delivery.damaged, delivery.double, delivery.late), (0, 0, 0));
        }
        assert_eq!(phase.store, Some(StoreSample { looked: due, found: due, unanswered: 0 }));
        let queries = phase.queries.as_ref().unwrap();
        assert!(queries.codes.iter().all(|(code, _)| *code == 200), "{:?}", queries.codes);
        assert!(queries.latency.count > 0 && phase.nodes[0].peak.anonymous_bytes > 0);
        assert!(phase.cpu_millis_per_accepted.unwrap() > 0.0);
    }
    let node = &report.nodes[0];
    assert!(node.idle.is_some() && node.after.len() == 1 && node.agent.contains("thimble-relay"));
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("small") && picture.contains("large"), "phases are marked");
    assert!(!picture.contains("gone"), "that it was stopped in the end is not news");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_fast_as_the_node_answers_refusals_have_names_and_nothing_accepted_is_lost() {
    let Some(relay) = relay() else { return };
    let flags = ["--lost-percent-max", "0.1"];
    let report = stress(&command(&relay, ""), FLOOD, &flags).await.unwrap();
    println!("{}", report.text());
    assert!(report.good, "{}", report.verdict);
    let phase = &report.phases[0];
    assert!(phase.accepted > 0);
    let answered: u64 = phase.answers.iter().map(|answers| answers.latency.count).sum();
    assert_eq!(answered, phase.sent, "every request has an answer of some kind");
    for answers in phase.answers.iter().filter(|answers| answers.answer != "200") {
        assert!(!answers.example.is_empty(), "{} without a text", answers.answer);
    }
}

// Promise: P25 - A node that dies under load gives a failed result and no hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_death_during_load_fails_the_run_without_hanging() {
    let Some(relay) = relay() else { return };
    let dying = command(&relay, "timeout -s KILL 8");
    let began = std::time::Instant::now();
    let report = stress(&dying, PATIENT, &[]).await.unwrap();
    assert!(began.elapsed().as_secs() < 50, "the rest of the phase is not waited for");
    assert!(report.nodes[0].died && !report.good);
    assert!(report.verdict.contains("died"), "{}", report.verdict);
    assert!(report.phases[0].accepted > 0, "it worked before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_there_is_named() {
    let flags = ["--timeout", "2"];
    let error = stress("sleep 60 # {port}", FLOOD, &flags).await.unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("was not ready within") && text.contains("/ip4/127.0.0.1/tcp/"),
        "{text}"
    );
    let error = stress("sh -c 'echo no such shard; exit 3'", FLOOD, &flags).await.unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("the node ended") && text.contains("no such shard"), "{text}");
}
