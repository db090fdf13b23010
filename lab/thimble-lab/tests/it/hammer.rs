//! The load driver against real nodes, as an operator runs it: both binaries, nothing mocked.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use candid::{CandidType, Decode, Encode, Principal};
use ic_agent::{Agent, identity::BasicIdentity};
use ic_management_canister_types::{
    CanisterInstallMode, InstallCodeArgs, ProvisionalCreateCanisterWithCyclesArgs,
};
use serde::Deserialize;
use serde_json::Value;

use crate::support::LAB;

/// A node in a folder of its own.
struct Node {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Node {
    fn start(memory: &str, config: Option<&str>) -> Self {
        let binary = Path::new(LAB).with_file_name("thimble");
        assert!(
            binary.exists(),
            "these tests need the node's binary at {}; build it with `cargo build --release -p \
             thimble` into the same target folder, or run `cargo test --workspace`",
            binary.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("address");
        let mut command = Command::new(binary);
        command.args([
            "run",
            "--memory",
            memory,
            "--listen",
            "127.0.0.1:0",
            "--log",
            "warn",
            "--data-dir",
        ]);
        command.arg(folder.path().join("data")).arg("--address-file").arg(&address);
        if let Some(text) = config {
            let file = folder.path().join("thimble.toml");
            std::fs::write(&file, text).unwrap();
            command.arg("--config").arg(file);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let url = loop {
            if let Ok(text) = std::fs::read_to_string(&address)
                && text.ends_with('\n')
            {
                break format!("http://{}", text.trim());
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the node ended while starting: {status}");
            }
            assert!(Instant::now() < deadline, "the node wrote no address within 60 s");
            std::thread::sleep(Duration::from_millis(5));
        };
        Self { child, url, _folder: folder }
    }

    fn hammer(&self, flags: &str) -> Command {
        let mut command = Command::new(LAB);
        command.args(["hammer", "--url", &self.url]).args(flags.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to the end and returns the exit code and the report.
    fn report(&self, flags: &str) -> (Option<i32>, Value) {
        let output = self.hammer(&format!("--no-progress --json - {flags}")).output().unwrap();
        let report =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(&output)));
        (output.status.code(), report)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shown(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Every kind of operation in every phase: (mode, phase, kind, statistics).
fn kinds(report: &Value) -> Vec<(String, String, String, Value)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut found = Vec::new();
    for mode in report["modes"].as_array().unwrap() {
        for phase in mode["phases"].as_array().unwrap() {
            assert!(phase["seconds"].as_f64().unwrap() > 0.0);
            for (kind, stats) in phase["kinds"].as_object().unwrap() {
                found.push((
                    text(&mode["mode"]),
                    text(&phase["name"]),
                    kind.clone(),
                    stats.clone(),
                ));
            }
        }
    }
    found
}

fn done(report: &Value, mode: &str, kind: &str) -> u64 {
    let of = |found: &(String, String, String, Value)| found.0 == mode && found.2 == kind;
    kinds(report)
        .iter()
        .filter(|found| of(found))
        .map(|found| found.3["done"].as_u64().unwrap())
        .sum()
}

#[test]
fn every_mode_runs_and_every_byte_is_right() {
    let node = Node::start("512MiB", None);
    let (code, report) = node.report(
        "--operations 36 --scale 0.25 --fill 12MiB --grow-to 6MiB --strict --instructions 5000000 \
         --fanout 3 --multiplier 2 --best-effort 60 --verify-every 4 --mode throughput --mode \
         compute --mode dirty --mode growth --mode read --mode heapread --mode calls --mode \
         fanout --mode hybrid --mode soak",
    );
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["verification_failures"], 0);
    assert_eq!(report["modes"].as_array().unwrap().len(), 10);
    for mode in report["modes"].as_array().unwrap() {
        assert_eq!(mode["incomplete"], Value::Null);
    }
    for (mode, kind, expected) in [
        ("throughput", "count", 36),
        ("compute", "compute", 36),
        ("dirty", "write", 36),
        ("growth", "grow", 9),
        ("growth", "rewrite", 27),
        ("calls", "chain", 36),
        ("fanout", "fan", 36),
    ] {
        assert_eq!(done(&report, mode, kind), expected, "{mode} {kind}: {report:#}");
    }
    for (mode, kind) in [
        ("dirty", "verify-read"),
        ("growth", "verify-read"),
        ("read", "fill"),
        ("read", "read-query"),
        ("read", "read-update"),
        ("heapread", "heap-read-query"),
        ("heapread", "heap-read-update"),
        ("hybrid", "read-query"),
        ("hybrid", "write"),
        ("hybrid", "chain"),
        ("hybrid", "verify-read"),
        ("soak", "write"),
    ] {
        assert!(done(&report, mode, kind) > 0, "{mode} {kind}: {report:#}");
    }
    let calls = &report["modes"][6];
    assert_eq!(calls["phases"][0]["kinds"]["chain"]["hops"], 36 * 3);
    assert!(calls["inter_canister_messages_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(report["modes"][7]["phases"][0]["kinds"]["fan"]["hops"], 36 * 6);
}

#[test]
fn named_processes_have_their_cpu_time_in_measured_phases_only() {
    let node = Node::start("512MiB", None);
    let flags = format!(
        "--mode dirty --operations 12 --write-size 1MiB --fill 4MiB --canister-count 1 --pid {}",
        node.child.id()
    );
    let (code, report) = node.report(&flags);
    assert_eq!(code, Some(0), "{report:#}");
    for phase in report["modes"][0]["phases"].as_array().unwrap() {
        let measured = phase["preparation"] == false;
        assert_eq!(phase["cost"].is_object(), measured, "{phase:#}");
        if measured {
            let [all, user, system] = ["cpu_seconds", "user_seconds", "system_seconds"]
                .map(|part| phase["cost"]["nodes"][0][part].as_f64().unwrap());
            assert!(all > 0.0 && (all - user - system).abs() < 1e-6, "{phase:#}");
            assert!(phase["cost"]["blocks"].as_u64().unwrap() > 0, "{phase:#}");
        }
    }
    let output = node
        .hammer("--mode throughput --operations 4 --no-progress --pid 4294967295")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    assert!(shown(&output).contains("reading the CPU time"), "{}", shown(&output));
}

#[test]
fn probes_meet_the_limits_and_the_heap_storm_goes_on() {
    let node = Node::start("512MiB", None);
    let (code, report) = node
        .report("--mode probe --mode heap --operations 12 --write-size 2MiB --canister-count 2");
    assert_eq!(code, Some(0), "{report:#}");
    let probes = report["modes"][0]["probes"].as_array().unwrap();
    assert_eq!(probes.len(), 8);
    let texts: Vec<&str> = probes.iter().filter_map(|probe| probe["failure"][1].as_str()).collect();
    assert_eq!(texts.len(), 2, "{probes:#?}");
    assert!(texts[0].contains("32768 KB") && texts[1].contains("65536 KB"), "{texts:?}");
    assert_eq!(done(&report, "heap", "heap-write"), 12);
    assert!(done(&report, "heap", "heap-read-update") > 0);

    // Twice the sizes: operations that must succeed fail, and the run reports it.
    let output = node.hammer("--mode probe --scale 2 --no-progress").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert!(
        shown(&output).contains("UNMET write 48 MiB of stable memory: reject 5"),
        "{}",
        shown(&output)
    );
}

#[test]
fn back_pressure_is_counted_and_is_no_error() {
    let node = Node::start("512MiB", Some("[limits.gateway]\nqueries_in_flight = 1\n"));
    let flags =
        "--mode read --fill 24MiB --canister-count 1 --concurrency 4 --operations 20 --strict";
    let (code, report) = node.report(flags);
    assert_eq!(code, Some(0), "{report:#}");
    let reads = kinds(&report).into_iter().find(|found| found.2 == "read-query").unwrap().3;
    let refused = &reads["refusals"]["refused 429"];
    assert!(refused["count"].as_u64().unwrap() > 0, "{reads:#}");
    assert!(refused["text"].as_str().unwrap().contains("queries_in_flight"), "{reads:#}");
    assert_eq!(reads["done"], 10, "what was refused was tried again");
}

#[test]
fn ctrl_c_prints_the_partial_report() {
    let node = Node::start("512MiB", None);
    let mut child = node.hammer("--mode throughput --rate 50 --seconds 600").spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    progress.read_line(&mut line).unwrap();
    assert!(line.starts_with("throughput / updates: 5 s, "), "{line}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    progress.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest}");
    let table = shown(&output);
    assert!(
        table.contains("open loop, 50 operations/s") && table.contains("stopped: 0 verification"),
        "{table}"
    );
}

#[test]
fn a_command_line_that_cannot_be_followed_exits_with_2() {
    for flags in ["--concurrency 0", "--url nowhere", "--mode nothing", "--write-size 1TiB"] {
        let output = Command::new(LAB).arg("hammer").args(flags.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags}: {}", shown(&output));
    }
}

#[derive(CandidType, Deserialize)]
struct CanisterIdRecord {
    canister_id: Principal,
}

struct Controller(Agent);

impl Controller {
    async fn manage(&self, method: &str, effective: Principal, argument: Vec<u8>) -> Vec<u8> {
        let call = self.0.update(&Principal::management_canister(), method);
        call.with_effective_canister_id(effective).with_arg(argument).call_and_wait().await.unwrap()
    }

    async fn install(&self, canister: Principal, mode: CanisterInstallMode) {
        let module =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../canisters/wasm/hammer-c.wasm");
        let arguments = InstallCodeArgs {
            mode,
            canister_id: canister,
            wasm_module: std::fs::read(module).unwrap(),
            arg: 7_u64.to_le_bytes().to_vec(),
            sender_canister_version: None,
        };
        self.manage("install_code", canister, Encode!(&arguments).unwrap()).await;
    }

    async fn info(&self, canister: Principal) -> Vec<u64> {
        let reply = self.0.query(&canister, "info").with_arg(vec![]).call().await.unwrap();
        reply.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

// Promise: P25 - The load driver fails a run with lost acknowledgements.
/// Another client empties the canister during the run: acknowledged counts and pages of stable
/// memory are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_acknowledgements_fail_the_run() {
    let node = Node::start("512MiB", None);
    let identity = BasicIdentity::from_raw_key(&[3; 32]);
    let agent = Agent::builder().with_url(&node.url).with_identity(identity).build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while agent.fetch_root_key().await.is_err() {
        assert!(Instant::now() < deadline, "the node is not healthy within 60 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let controller = Controller(agent);
    let management = Principal::management_canister();
    let arguments = Encode!(&ProvisionalCreateCanisterWithCyclesArgs::default()).unwrap();
    let created =
        controller.manage("provisional_create_canister_with_cycles", management, arguments).await;
    let canister = Decode!(&created, CanisterIdRecord).unwrap().canister_id;
    controller.install(canister, CanisterInstallMode::Install).await;

    // (flags, the word of `info` that shows that work has begun, text that the run must print)
    let cases = [
        ("--mode throughput --seconds 4 --concurrency 2", 2, "acknowledged updates are lost"),
        // Every page is written once, so that what was lost is not written again.
        (
            "--mode dirty --operations 250 --concurrency 1 --write-size 1MiB --fill 256MiB",
            4,
            "reading back",
        ),
    ];
    for (flags, begun, said) in cases {
        let before = controller.info(canister).await[begun];
        let flags = format!("--no-progress --canisters {canister} {flags}");
        let child = node.hammer(&flags).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while controller.info(canister).await[begun] < before + 20 {
            assert!(Instant::now() < deadline, "the driver has not begun within 60 s");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        controller.install(canister, CanisterInstallMode::Reinstall).await;
        let output =
            tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
        let text = shown(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(said) && text.contains("WRONG") && text.contains("FAILED"), "{text}");
        assert!(text.contains("lost"), "{text}");
    }
}
