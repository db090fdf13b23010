//! Where a running relay's memory went, as an operator asks.

use std::{
    io::Read,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use protocol::filter::Action;

use crate::{
    harness::Relay,
    peer::{Client, message},
};

const TOPIC: &str = "/test/1/heap/proto";
/// A relay returns its memory profile once a second.
const TIMEOUT: Duration = Duration::from_secs(30);

fn heap(relay: &Relay, arguments: &[&str]) -> Output {
    let address = relay.http.strip_prefix("http://").unwrap();
    Command::new(env!("CARGO_BIN_EXE_thimble-relay"))
        .args(["heap", "--http", address])
        .args(arguments)
        .output()
        .unwrap()
}

/// Asks until it is answered.
fn answered(relay: &Relay, arguments: &[&str]) -> String {
    let started = Instant::now();
    loop {
        let output = heap(relay, arguments);
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("try again"), "{words}");
        assert!(started.elapsed() < TIMEOUT, "{words}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn report(relay: &Relay, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&answered(relay, &[&["--json"], arguments].concat())).unwrap()
}

async fn work(relay: &Relay) {
    let mut receiver = Client::connect(relay.address(false)).await;
    assert_eq!(receiver.filter(Action::Subscribe, &[TOPIC]).await, 200);
    let mut sender = Client::connect(relay.address(false)).await;
    for _ in 0..200 {
        let sent = message(TOPIC, &[7; 100_000]);
        assert_eq!(sender.push(&sent).await.unwrap().status.code(), 200);
        receiver.pushed().await;
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

// Promise: P24 - A heap profile attributes live and total bytes of the relay to functions.
#[tokio::test]
async fn an_operator_sees_which_functions_took_memory() {
    let relay = Relay::start(&["--heap-profile"]);
    let folder = tempfile::tempdir().unwrap();
    let [before, svg, pprof] = ["before", "heap.svg", "heap.pb.gz"]
        .map(|name| folder.path().join(name).display().to_string());
    answered(&relay, &["--save", &before]);
    work(&relay).await;
    let all = report(&relay, &["--by", "total", "--top", "1000", "--svg", &svg, "--pprof", &pprof]);
    let since = report(&relay, &["--since", &before, "--by", "total"]);

    let bytes = |report: &serde_json::Value, name: &str| report[name].as_i64().unwrap();
    assert!(bytes(&all, "total_bytes") > 20_000_000, "200 messages of 100 kB came in: {all}");
    assert!(bytes(&all, "live_bytes") < bytes(&all, "total_bytes"));
    assert!(bytes(&since, "total_bytes") > 20_000_000);
    assert!(bytes(&since, "total_bytes") <= bytes(&all, "total_bytes") * 2);
    assert!(bytes(&all["cost"], "profiler_bytes") <= bytes(&all["cost"], "profiler_bytes_max"));
    let sites = all["sites"].as_array().unwrap();
    let named = |start: &str| {
        sites.iter().any(|site| {
            ["site", "caller"]
                .iter()
                .any(|key| site[key].as_str().is_some_and(|name| name.starts_with(start)))
        })
    };
    assert!(named("thimble_relay::") && named("store::"), "{all:#}");
    // The allocator's own functions are not a site.
    assert!(!named("_rjem") && !named("malloc") && !named("prof_"), "{all:#}");

    let svg = text(svg.as_ref());
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("thimble_relay::") && !svg.contains("<T"), "{svg}");
    let mut profile = Vec::new();
    let packed = std::fs::File::open(&pprof).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut profile).unwrap();
    let texts = texts(&profile);
    for name in ["inuse_space", "alloc_space", "bytes"] {
        assert!(texts.iter().any(|text| text == name), "{name} is missing in {texts:?}");
    }
    assert!(texts.iter().any(|text| text.starts_with("thimble_relay::")), "{texts:?}");

    let table = answered(&relay, &[]);
    for words in ["live", "allocated since sampling began", "cost", "sampled", "share"] {
        assert!(table.contains(words), "{words} is missing in\n{table}");
    }
}

/// The string table of a profile: field 6 of `profile.proto`.
fn texts(mut profile: &[u8]) -> Vec<String> {
    use prost::encoding::{DecodeContext, WireType, decode_key, skip_field, string};
    let mut texts = Vec::new();
    while !profile.is_empty() {
        let (tag, wire) = decode_key(&mut profile).unwrap();
        if tag == 6 {
            assert_eq!(wire, WireType::LengthDelimited);
            let mut text = String::new();
            string::merge(wire, &mut text, &mut profile, DecodeContext::default()).unwrap();
            texts.push(text);
        } else {
            skip_field(wire, tag, &mut profile, DecodeContext::default()).unwrap();
        }
    }
    texts
}

// Promise: P24 - Heap sampling of the relay is off by default, and the refusal names the option.
#[tokio::test]
async fn a_relay_that_does_not_sample_says_how_to_have_it_sample() {
    let relay = Relay::start(&[]);
    let output = heap(&relay, &[]);
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    for expected in ["404", "thimble-relay run --heap-profile", "heap_profile = true"] {
        assert!(words.contains(expected), "{expected} is missing in {words}");
    }
}

// Promise: P24 - Heap sampling stops at its memory limit.
#[tokio::test]
async fn sampling_that_would_take_too_much_stops_and_says_so() {
    let limits = "heap_profile = true\n[limits.heap]\nprofiler_bytes = 1\nsample_bytes = 16384\n";
    let relay = Relay::start_after("", limits, &[]);
    let started = Instant::now();
    loop {
        let stopped = report(&relay, &[])["cost"]["stopped"].as_bool().unwrap();
        if stopped {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "sampling continues beyond its limit");
    }
    let at_the_end = report(&relay, &[])["total_bytes"].as_i64().unwrap();
    work(&relay).await;
    assert_eq!(report(&relay, &[])["total_bytes"].as_i64().unwrap(), at_the_end);
    assert!(answered(&relay, &[]).contains("heap.profiler_bytes"));
}

#[tokio::test]
async fn names_are_not_taken_from_another_program() {
    let relay = Relay::start(&["--heap-profile"]);
    let output = heap(&relay, &["--program", "/bin/sh"]);
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("/exe") && words.contains("build"), "{words}");
}
