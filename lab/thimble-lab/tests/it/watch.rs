//! `thimble-lab watch` as its user meets it: real programs whose collectors report, and their
//! faults.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::LAB;

/// Nothing here takes as long; what has not happened by then will not.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(own: &[&str]) -> Command {
    let mut watch = Command::new("env");
    watch.args(["--default-signal", LAB, "watch"]).args(own);
    watch.stdin(Stdio::null());
    watch
}

/// Watches to the end: status, standard output, standard error.
fn run(own: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = watch(own).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Starts a program with its output in a file, and waits until the file has the words.
fn start(command: &mut Command, log: &Path, words: &str) -> Program {
    let file = File::create(log).unwrap();
    let child = command.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file).spawn();
    let program = Program(child.unwrap());
    let start = Instant::now();
    while !fs::read_to_string(log).unwrap_or_default().contains(words) {
        assert!(start.elapsed() < TIMEOUT, "{words:?} never came: {:?}", fs::read_to_string(log));
        std::thread::sleep(Duration::from_millis(10));
    }
    program
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/tuner/programs").canonicalize().unwrap()
}

/// Collections in the summary.
fn collections(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with("collections: "))
        .unwrap_or_else(|| panic!("{text}"));
    line["collections: ".len()..].split(' ').next().unwrap().parse().unwrap()
}

// Promise: P25 - Collections of a Node program are counted and shown on a page.
#[test]
fn what_node_collects_is_counted_and_a_page_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("out");
    let script = "let kept=[];setInterval(()=>{kept=Array.from({length:2e4},(_,i)=>({i}))},20);\
                  console.log('ready')";
    let program = start(Command::new("node").args(["--trace-gc", "-e", script]), &log, "ready");
    let pid = program.0.id().to_string();
    let json = folder.path().join("samples.jsonl");
    let mut watching =
        watch(&["--pid", &pid, "--interval", "0.2", "--json", json.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut said = BufReader::new(watching.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = said.find_map(|line| line.split("http://").nth(1).map(str::to_owned)).unwrap();
    let address = address.trim_end_matches('/').to_owned();
    let ask = |path: &str, host: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let page = ask("/", &address);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-security-policy"), "{page}");
    assert!(ask("/", "evil.example").starts_with("HTTP/1.1 421"));
    // Until some have been counted.
    let start = Instant::now();
    let report = loop {
        let text = ask("/status.json", &address);
        let report: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let newest = report["samples"].as_array().unwrap().last().cloned().unwrap_or_default();
        if newest["collections"].as_u64().unwrap_or(0) >= 5
            && newest["anonymous_bytes"].as_u64() > Some(1 << 20)
            && report["samples"].as_array().unwrap().len() >= 5
        {
            break report;
        }
        assert!(start.elapsed() < TIMEOUT, "{report}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(report["runtimes"][0], "node");
    kill_process(Pid::from_child(&watching), Signal::INT).unwrap();
    let mut text = String::new();
    watching.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(watching.wait().unwrap().code(), Some(0), "{text}");
    assert!(collections(&text) >= 5, "{text}");
    let samples = fs::read_to_string(json).unwrap();
    assert!(samples.lines().any(|line| line.contains("anonymous_bytes")), "{samples}");
}

// Promise: P25 - Collections of Go and Java programs are counted.
#[test]
fn what_go_and_java_collect_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default());
    let server = folder.path().join("goserver");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&server)
        .arg(".")
        .current_dir(programs().join("goserver"))
        .env("PATH", path)
        .status();
    match built {
        Ok(status) => assert!(status.success()),
        Err(error) => return testing::missing(format!("go: {error}")),
    }
    let log = folder.path().join("go.log");
    let program =
        start(Command::new(&server).args(["0", "40"]).env("GODEBUG", "gctrace=1"), &log, "ready");
    let (status, text, said) = run(&["--pid", &program.0.id().to_string(), "--for", "1"]);
    assert_eq!(status, 0, "{text}{said}");
    assert!(collections(&text) >= 2 && text.contains(", go"), "{text}");
    drop(program);

    let built = Command::new("javac")
        .arg("-d")
        .arg(folder.path())
        .arg(programs().join("Server.java"))
        .status();
    match built {
        Ok(status) => assert!(status.success()),
        Err(error) => return testing::missing(format!("javac: {error}")),
    }
    let gc = folder.path().join("gc.log");
    let mut java = Command::new("java");
    java.arg("-Xmx96m").arg(format!("-Xlog:gc*:file={}", gc.display()));
    java.arg("-cp").arg(folder.path()).args(["Server", "0", "60"]);
    let program = start(&mut java, &folder.path().join("java.log"), "ready");
    let (status, text, said) =
        run(&["--pid", &program.0.id().to_string(), "--for", "1", "--no-page"]);
    assert_eq!(status, 0, "{text}{said}");
    assert!(collections(&text) >= 1 && text.contains("jvm"), "{text}{said}");
}

// Promise: P25 - A leak is reported, and an invalid log changes nothing.
#[test]
fn a_leak_is_named_as_one_and_a_log_of_garbage_hurts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("out");
    let script = "const kept=[];setInterval(()=>{kept.push(new \
                  Array(4e5).fill(kept.length+0.5));gc()},150);console.log('ready \\x00\\xff \
                  99999999999999999999 ms: Mark-Compact -> (((')";
    let mut node = Command::new("node");
    let program = start(node.args(["--trace-gc", "--expose-gc", "-e", script]), &log, "ready");
    let pid = program.0.id().to_string();
    let (status, text, said) =
        run(&["--pid", &pid, "--interval", "0.2", "--for", "12", "--no-page"]);
    assert_eq!(status, 0, "{text}{said}");
    assert!(text.contains("finding live_grows"), "{text}");
}

// Promise: P25 - A watched process that ends, or is missing, is reported.
#[test]
fn a_process_that_ends_ends_the_watch_and_one_that_is_not_there_is_said() {
    let mut sleep = Command::new("sleep").arg("1.5").spawn().unwrap();
    let pid = sleep.id().to_string();
    let reaper = std::thread::spawn(move || sleep.wait().unwrap());
    let (status, text, said) = run(&["--pid", &pid, "--interval", "0.2", "--no-page"]);
    reaper.join().unwrap();
    assert_eq!(status, 0, "{text}{said}");
    assert!(text.contains("it has ended"), "{text}");

    let (status, text, said) = run(&["--pid", "4194303"]);
    assert_eq!((status, text.as_str()), (1, ""));
    assert!(said.contains("there is no process 4194303"), "{said}");
}

// Promise: P25 - A program without a collector log is watched, with a hint.
#[test]
fn a_program_without_a_report_is_watched_all_the_same_and_told_how_to_make_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(
        Command::new("node").args(["-e", "console.log('ready');setInterval(()=>{},1000)"]),
        &folder.path().join("out"),
        "ready",
    );
    let pid = program.0.id().to_string();
    let (status, text, said) = run(&["--pid", &pid, "--for", "0.5", "--no-page"]);
    assert_eq!(status, 0, "{text}{said}");
    let said = said + &text;
    assert!(said.contains("--trace-gc") || text.contains("none in the log"), "{said}");
    assert!(text.contains("memory: peak"), "{text}");
}

/// Newest sample of a `--json` file for which `is_it` holds.
fn sample(file: &Path, is_it: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        // The last line may not be whole yet.
        let mut samples =
            text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(sample) = samples.find(|sample| is_it(sample)) {
            return sample;
        }
        assert!(start.elapsed() < TIMEOUT, "{:?}", text.lines().last());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_go_program_that_keeps_its_garbage_at_rest_is_named_with_its_setting() {
    const SOURCE: &str = r#"package main
import ("fmt"; "runtime"; "time")
var kept [][]byte
func main() {
	for i := 0; i < 150; i++ {
		piece := make([]byte, 1<<20)
		for at := range piece { piece[at] = 1 }
		kept = append(kept, piece)
	}
	kept = nil
	// A collection may still write its line when its caller continues, and "ready" would be in the
	// middle of it. It has written it when the next one begins.
	runtime.GC()
	runtime.GC()
	fmt.Println("ready")
	time.Sleep(time.Minute)
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("main.go"), folder.path().join("program"));
    fs::write(&source, SOURCE).unwrap();
    let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap_or_default());
    let mut build = Command::new("go");
    match build.args(["build", "-o"]).args([&program, &source]).env("PATH", path).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return testing::missing(format!("go: {error}")),
    }
    // What is free stays resident until the kernel wants it.
    let mut command = Command::new(&program);
    command.env("GODEBUG", "gctrace=1,madvdontneed=0");
    let program = start(&mut command, &folder.path().join("log"), "ready");
    let pid = program.0.id().to_string();
    let (status, text, said) =
        run(&["--pid", &pid, "--interval", "0.5", "--for", "8", "--no-page"]);
    assert_eq!(status, 0, "{text}{said}");
    for words in ["finding holds_garbage", "madvdontneed=0", "try GOMEMLIMIT"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("live_grows"), "{text}");
}

#[test]
fn a_java_program_with_a_large_first_heap_is_named_with_its_setting() {
    const SOURCE: &str = "public class Rest { public static void main(String[] a) throws \
                          Exception {System.gc(); System.out.println(\"ready\"); \
                          Thread.sleep(60000); } }";
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("Rest.java");
    fs::write(&source, SOURCE).unwrap();
    match Command::new("javac").arg(&source).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return testing::missing(format!("javac: {error}")),
    }
    let mut java = Command::new("java");
    java.args(["-XX:+UseSerialGC", "-Xms256m", "-XX:+AlwaysPreTouch"]);
    java.arg(format!("-Xlog:gc:file={}", folder.path().join("gc.log").display()));
    java.arg("-cp").arg(folder.path()).arg("Rest");
    let program = start(&mut java, &folder.path().join("out"), "ready");
    let pid = program.0.id().to_string();
    let (status, text, said) =
        run(&["--pid", &pid, "--interval", "0.5", "--for", "8", "--no-page"]);
    assert_eq!(status, 0, "{text}{said}");
    for words in ["finding holds_garbage", "-Xms256m", "try -XX:G1PeriodicGCInterval"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_log_that_is_put_aside_or_cut_off_is_read_on() {
    const LINE: &str = "gc 1 @0.001s 10%: 0.11+0.27+0.008 ms clock, 0.22+0.16/0/0+0.017 ms cpu, \
        3->4->1 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P\n";
    let folder = tempfile::tempdir().unwrap();
    let (log, json) = (folder.path().join("gc.log"), folder.path().join("samples"));
    fs::write(&log, LINE.repeat(3)).unwrap();
    let program = Program(Command::new("sleep").arg("60").spawn().unwrap());
    let pid = program.0.id().to_string();
    let own = ["--pid", &pid, "--runtime", "go", "--interval", "0.1", "--no-page"];
    let mut watching = watch(&own)
        .arg("--log")
        .arg(&log)
        .arg("--json")
        .arg(&json)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let counted = |count: u64| sample(&json, |sample| sample["collections"] == count);
    counted(3);
    fs::rename(&log, folder.path().join("gc.log.0")).unwrap();
    fs::write(&log, LINE.repeat(2)).unwrap();
    counted(5);
    fs::write(&log, format!("\0\0{LINE}\u{1b}[2J not a line of ours\n")).unwrap();
    assert_eq!(counted(6)["live_bytes"], 1 << 20);
    kill_process(Pid::from_child(&watching), Signal::INT).unwrap();
    let mut text = String::new();
    watching.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(watching.wait().unwrap().code(), Some(0), "{text}");
    assert!(text.contains("was cut off or replaced 2 times") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn process_of_another_user_is_refused_with_a_reason() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return testing::missing("root, to become another user");
    }
    // A folder that another user may read.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let lab = folder.path().join("thimble-lab");
    testing::executable(&lab, &fs::read(LAB).unwrap());
    let own = std::process::id().to_string();
    let output =
        Command::new(&lab).args(["watch", "--pid", &own]).uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("belongs to another user"), "{said}");
}
