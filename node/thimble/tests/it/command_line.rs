//! The command line as an operator meets it.

use crate::harness::*;

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = thimble().args(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn the_sheet_adds_up_for_every_preset_and_size() {
    for size in ["256MiB", "512MiB", "700MiB", "1GiB", "4GiB"] {
        let (ok, out, err) = run(&["limits", "--memory", size, "--json"]);
        assert!(ok, "{size}: {err}");
        let sheet: serde_json::Value = serde_json::from_str(&out).unwrap();
        let budget = sheet["memory_budget_bytes"].as_u64().unwrap();
        let sum = sheet["sum_bytes"].as_u64().unwrap();
        assert!(sum <= budget, "{size}: {sum} of {budget}");
        for line in sheet["lines"].as_array().unwrap() {
            for key in ["name", "owner", "reason"] {
                assert!(!line[key].as_str().unwrap().is_empty(), "{line}");
            }
        }
    }
}

#[test]
fn a_budget_that_is_too_small_is_refused_naming_the_line() {
    let (ok, out, err) = run(&["limits", "--memory", "64MiB"]);
    assert!(!ok);
    assert!(out.is_empty());
    assert!(err.contains("64 MiB"), "{err}");
    assert!(err.contains("line"), "{err}");
}

#[test]
fn config_prints_what_the_node_runs_with() {
    let (ok, out, err) = run(&["config", "--memory", "256MiB", "--listen", "127.0.0.1:9"]);
    assert!(ok, "{err}");
    assert!(out.contains("memory = \"256 MiB\"") || out.contains("memory = \"256MiB\""), "{out}");
    assert!(out.contains("listen = \"127.0.0.1:9\""), "{out}");
}

#[test]
fn help_teaches() {
    let (ok, out, _) = run(&["run", "--help"]);
    assert!(ok);
    for word in ["--memory", "--data-dir", "Example", "default"] {
        assert!(out.contains(word), "{word} in\n{out}");
    }
    let (ok, _, err) = run(&["run", "--memory", "lots"]);
    assert!(!ok);
    assert!(err.contains("lots") && err.contains("MiB"), "{err}");
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let node = Node::start().await;
    let address = node.url.strip_prefix("http://").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (ok, _, err) = run(&["run", "--listen", address, "--data-dir", data.to_str().unwrap()]);
    assert!(!ok);
    assert!(err.contains(address), "{err}");
}
