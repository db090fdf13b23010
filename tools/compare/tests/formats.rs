//! Files that real tools wrote are read: recorded ones in `data/`, and those that Go and Node write
//! while the test runs.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use compare::input::{self, Kind, Run};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(path: &Path) -> Run {
    input::read(path).unwrap_or_else(|error| panic!("{error}"))
}

fn value(run: &Run, name: &str) -> f64 {
    let found = run.readings.list.iter().find(|reading| reading.name == name);
    let names: Vec<&str> = run.readings.list.iter().map(|reading| reading.name.as_str()).collect();
    found.unwrap_or_else(|| panic!("{name} is not among {names:#?}")).value.unwrap()
}

#[test]
fn recorded_reports_are_read() {
    let pytest = read(&data("pytest.xml"));
    assert_eq!((pytest.kind, pytest.readings.skipped), (Kind::JUnit, 1));
    assert!(value(&pytest, "py.test_sample > test_of[b <c> & \"d\"]") > 0.015);
    let durations = read(&data("pytest.txt"));
    assert_eq!(durations.kind, Kind::Pytest);
    assert!((value(&durations, "py/test_sample.py::test_quick") - 0.03).abs() < 1e-9);
    let node = read(&data("node.xml"));
    assert_eq!((node.kind, node.readings.skipped), (Kind::JUnit, 1));
    assert!(value(&node, "outer > inner > waits <a bit> & more") > 0.015);
    let events = read(&data("go-test.json"));
    assert_eq!((events.kind, events.readings.skipped), (Kind::Go, 1));
    assert!(value(&events, "sample > TestParts/two_<x>") >= 0.03);
    let text = read(&data("go-test.txt"));
    assert_eq!(text.kind, Kind::Go);
    assert!(value(&text, "sample > TestParts") >= 0.05);
    for file in ["go-bench.json", "go-bench.txt"] {
        let bench = read(&data(file));
        assert!(value(&bench, "sample > BenchmarkSum") < 1e-3);
        assert!(value(&bench, "sample > BenchmarkSum, MB/s") > 1.0);
    }
    let six = read(&data("go-bench.txt")).readings.list;
    assert_eq!(six.iter().filter(|reading| reading.name == "sample > BenchmarkSum").count(), 6);
    let hyperfine = read(&data("hyperfine.json"));
    assert_eq!((hyperfine.kind, hyperfine.readings.list.len()), (Kind::Hyperfine, 12));
    assert!(value(&hyperfine, "sleep 0.02") >= 0.02);
}

#[test]
fn a_folder_of_criterion_is_a_run_and_so_is_a_baseline_saved_in_it() {
    let newest = read(&data("criterion"));
    assert_eq!(newest.kind, Kind::Criterion);
    assert!(value(&newest, "plain") < 1e-6);
    assert!(
        value(&newest, "sums of <numbers>/up to/1000")
            > value(&newest, "sums of <numbers>/up to/100")
    );
    let saved = read(&data("criterion#before"));
    assert_eq!(saved.readings.list.len(), newest.readings.list.len());
    assert_ne!(value(&saved, "plain"), value(&newest, "plain"));
    let none = input::read(&data("criterion#other")).unwrap_err().to_string();
    assert!(none.contains("no other/estimates.json"), "{none}");
}

#[test]
fn what_go_writes_now_is_read() {
    let Ok(version) = Command::new("go").arg("version").output() else {
        return testing::missing("go is not installed (apt-get install golang)");
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("go.mod"), "module live\n\ngo 1.18\n").unwrap();
    let code = "package live\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\n\
        func TestWaits(t *testing.T) { time.Sleep(20 * time.Millisecond) }\n\
        func TestParts(t *testing.T) { t.Run(\"one\", TestWaits) }\n\
        func BenchmarkNothing(b *testing.B) {\n\tfor i := 0; i < b.N; i++ {\n\t}\n}\n";
    fs::write(folder.path().join("live_test.go"), code).unwrap();
    for (flag, file) in [("-json", "go.json"), ("-v", "go.txt")] {
        let mut go = Command::new("go");
        go.args(["test", flag, "-bench", ".", "-benchtime", "10x", "./..."])
            .current_dir(folder.path());
        let output = go.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = folder.path().join(file);
        fs::write(&path, output.stdout).unwrap();
        let run = read(&path);
        assert_eq!(run.kind, Kind::Go);
        assert!(value(&run, "live > TestWaits") >= 0.02);
        assert!(value(&run, "live > TestParts/one") >= 0.02);
        assert!(value(&run, "live > BenchmarkNothing") >= 0.0);
    }
}

#[test]
fn what_node_writes_now_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("live.test.mjs");
    let code = "import { describe, it } from 'node:test';\n\
        describe('outer', () => { it('waits <&>', () => new Promise(done => setTimeout(done, 20))); });\n";
    fs::write(&file, code).unwrap();
    let node = Command::new("node").args(["--test", "--test-reporter=junit"]).arg(&file).output();
    // The reporter came with version 20.
    let Some(output) = node.ok().filter(|output| output.status.success()) else {
        return testing::missing("node with a JUnit reporter (20 or later) is not installed");
    };
    let path = folder.path().join("node.xml");
    fs::write(&path, output.stdout).unwrap();
    let run = read(&path);
    assert_eq!(run.kind, Kind::JUnit);
    // Node's clock and its timers differ by up to a millisecond.
    assert!(value(&run, "outer > waits <&>") >= 0.018);
}

// Promise: P25 - Files are recognised by content, not by name.
#[test]
fn files_that_are_not_what_their_name_says_are_told_by_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    // CSV that is called XML is CSV.
    assert_eq!(read(&write("report.xml", b"name,value\na,1\n")).kind, Kind::Csv);
    for (name, bytes, words) in [
        ("report.xml", &b"<html></html>"[..], "XML of another kind (<html>)"),
        ("bench.json", b"\x1f\x8b\x08\0\0", "a gzip archive; unpack it first"),
        ("values.csv", b"\x7fELF\x02\x01\x01\0", "a program"),
        ("empty.json", b"", "an empty file"),
        ("cut.json", br#"{"results": [{"command": "a", "mea"#, "damaged JSON"),
        ("cut.xml", br#"<testsuite><testcase name="a" time="1"/>"#, "cut short"),
        ("none.xml", b"<testsuites></testsuites>", "no measurement in it"),
    ] {
        let error = input::read(&write(name, bytes)).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(name), "{error}");
    }
    let error = input::read(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(error.contains("absent") && error.contains("No such file"), "{error}");
    let error = input::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("no benchmark in it"), "{error}");
}

// Promise: P25 - An endless file is refused.
#[test]
fn a_file_without_end_is_refused_and_a_long_series_is_read_by_its_summary() {
    let error = input::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("at most 67108864 are read"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let mut text = String::from("{\"kind\":\"header\",\"cap_bytes\":5,\"name\":\"long\"}\n");
    let sample = format!("{{\"kind\":\"sample\",\"role\":\"{}\"}}\n", "x".repeat(1 << 20));
    for _ in 0..70 {
        text.push_str(&sample);
    }
    text.push_str("{\"kind\":\"summary\",\"seconds\":12.5,\"cpu_seconds\":3}\n");
    fs::write(&path, text).unwrap();
    let run = read(&path);
    assert_eq!((run.kind, value(&run, "long > wall time")), (Kind::Lab, 12.5));
}
