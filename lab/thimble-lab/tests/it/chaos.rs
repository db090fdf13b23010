//! `thimble-lab chaos`, `thimble-lab history` and `thimble-lab hostile` against real nodes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::{LAB, groups, text};

fn lab(words: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", LAB]).args(words.split_whitespace()).stdin(Stdio::null());
    command
}

fn only_folder(of: &Path) -> PathBuf {
    let entries: Vec<PathBuf> =
        fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

fn lines(history: &Path) -> Vec<Value> {
    fs::read_to_string(history)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Writes a history that differs, and has it checked: the exit code and the rules that are broken.
fn checked(lines: &[Value], folder: &Path) -> (Option<i32>, Vec<String>) {
    let path = folder.join("changed.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text).unwrap();
    let output = lab("history check --json").arg(&path).output().unwrap();
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), verdict["broken"].as_object().unwrap().keys().cloned().collect())
}

// Promise: P5 - A single node that is killed at random loses no acknowledged update.
/// A node alone tolerates no fault, so all of them are its death, or that of its workers; what it
/// acknowledged must be there all the same.
#[test]
fn a_node_alone_loses_nothing_whenever_it_is_killed() {
    if !groups() {
        return;
    }
    assert!(
        Path::new(LAB).with_file_name("thimble").exists(),
        "these tests need the node's binary beside {LAB}; build it with `cargo build --release -p \
         thimble`"
    );
    let folder = tempfile::tempdir().unwrap();
    let output =
        lab("chaos --nodes 1 --memory 256MiB --duration 15 --seed 5 --clients 4 --rate 40 --out")
            .arg(folder.path())
            .output()
            .unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("kill -9 0") && said.contains("nothing acknowledged is lost"), "{said}");
    let out = only_folder(folder.path());
    assert!(!out.join("net").exists(), "a net that did well is removed");

    let history = lines(&out.join("history.jsonl"));
    assert_eq!(checked(&history, folder.path()), (Some(0), vec![]));
    let call = |work: &'static str| {
        move |line: &&mut Value| {
            line["kind"] == "call"
                && line["work"].get(work).is_some()
                && line["outcome"].get("acknowledged").is_some()
        }
    };
    // The same history with one acknowledged append gone from the end, and with one acknowledged
    // twice.
    let mut changed = history.clone();
    let lost = changed.iter_mut().find(call("append")).unwrap();
    lost["outcome"]["acknowledged"]["value"] = 1_000_000.into();
    let (code, broken) = checked(&changed, folder.path());
    assert!(code == Some(1) && broken.contains(&"lost".to_owned()), "{broken:?}");
    let mut changed = history.clone();
    changed.retain(|line| line["kind"] != "final");
    assert_eq!(checked(&changed, folder.path()), (Some(1), vec!["incomplete".into()]));
}

// Promise: P17 - Four nodes under random faults lose no acknowledged update.
/// Once through with what hurts whole nodes, their links, disks and descriptors: a test of the
/// tool. All of it, and longer, is `make chaos`.
#[test]
fn four_nodes_lose_nothing_while_they_are_hurt() {
    if !groups() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = lab("chaos --nodes 4 --memory 256MiB --network proxies --duration 20 --seed 1 \
                      --clients 4 --rate 30 --out")
    .arg(folder.path())
    .output()
    .unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("at most 1 hurt at once") && said.contains("nothing acknowledged is lost"),
        "{said}"
    );
    let history = lines(&only_folder(folder.path()).join("history.jsonl"));

    // One node's state differs from the others' in a page; one certificate in its root.
    let mut changed = history.clone();
    let written = changed
        .iter_mut()
        .filter(|line| line["kind"] == "final" && line["endpoint"] == 2)
        .flat_map(|line| line["runs"].as_array_mut().unwrap())
        .find(|run| run[1].as_u64() > Some(0))
        .unwrap_or_else(|| panic!("no page was written:\n{said}"));
    written[1] = 0.into();
    let (code, broken) = checked(&changed, folder.path());
    assert!(code == Some(1) && broken.contains(&"disagreement".to_owned()), "{broken:?}");
    let mut changed = history.clone();
    // The same instant, certified by two nodes: not every node is asked of every instant.
    let mut seen = BTreeMap::new();
    let other = changed
        .iter_mut()
        .filter(|line| line["kind"] == "root")
        .find(|line| {
            let endpoint = line["endpoint"].as_u64();
            *seen.entry(line["time"].as_u64()).or_insert(endpoint) != endpoint
        })
        .unwrap_or_else(|| panic!("no instant has the roots of two nodes:\n{said}"));
    other["root"] = "00".into();
    assert_eq!(checked(&changed, folder.path()), (Some(1), vec!["roots".into()]));
}

#[test]
fn folder_without_a_net_is_refused() {
    let output = lab("chaos --dir /no/such/net --duration 1 --out")
        .arg(std::env::temp_dir().join("chaos-none"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("there is no net in /no/such/net"), "{}", text(&output));
    let output = lab("history check /no/such/file").output().unwrap();
    assert!(
        output.status.code() == Some(1) && text(&output).contains("/no/such/file"),
        "{}",
        text(&output)
    );
}

fn report(folder: &Path) -> Value {
    let text = fs::read_to_string(only_folder(folder).join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

// Promise: P15 - One minute of generated hostile input and faults finds no violation.
/// A minute of `make hostile` with a seed of its own each time, on the build of the tests. Failures
/// are printed with the command that reproduces them.
#[test]
fn nothing_is_found_in_a_minute_of_hostile_cases() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lab("hostile --seconds 30 --round-within 60 --findings 2 --out");
    command.arg(folder.path());
    let byzantine = Path::new(LAB).with_file_name("thimble-byzantine");
    if byzantine.exists() {
        command.arg("--byzantine").arg(byzantine);
    }
    let output = command.output().unwrap();
    let said = text(&output);
    println!("{said}");
    if output.status.code() != Some(0) {
        // Logs and data of what was found stay.
        panic!("the run ended with {}; see {}", output.status, folder.keep().display());
    }
    let report = report(folder.path());
    for reason in report["not_run"].as_array().unwrap() {
        testing::missing(reason.to_string());
    }
    // It did something: messages reached the nodes, modules were installed, and all was replayed.
    let ended = |family: &str, way: &str| report["cases"][family][way].as_u64().unwrap_or(0);
    assert!(ended("candid", "rejected") >= 5, "{said}");
    assert!(ended("module", "replied") + ended("module", "open") >= 2, "{said}");
    assert!(report["replays"].as_u64() >= Some(4) && report["roots_compared"].as_u64() > Some(50));
    assert!(report["restarts_with_other_memory"].as_u64() >= Some(2), "{said}");
}

/// A build whose roots are others is found, and named with what does the same again.
#[test]
fn a_build_that_replays_to_another_root_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (other, out) = (folder.path().join("other"), folder.path().join("out"));
    let node = Path::new(LAB).with_file_name("thimble");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != replay ] || {{ echo 'state root of height 7' >&2; exit 1; }}\n\
         exec '{}' \"$@\"\n",
        node.display()
    );
    testing::executable(&other, script.as_bytes());
    let output = lab("hostile --seed 3 --on alone --case nested-opt-settings --round-within 60")
        .arg("--node")
        .arg(&other)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let report = report(&out);
    let finding = &report["findings"][0];
    assert!(finding["what"].as_str().unwrap().contains("state root of height 7"), "{said}");
    assert_eq!((&finding["isolated"], &report["seed"]), (&true.into(), &3.into()));
    let again = finding["reproduce"].as_str().unwrap();
    assert!(again.contains("--seed 3") && again.contains("--case nested-opt-settings"), "{again}");
    assert!(Path::new(finding["folder"].as_str().unwrap()).join("node0").exists(), "{said}");
}
