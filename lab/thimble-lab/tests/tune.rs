//! `thimble-lab tune` as its user meets it: real programs in Python, Go, Node and Java under real
//! caps.
//!
//! Whatever else this machine does must not decide a test, so runs count however busy it is; that
//! busy runs do not count is a test of its own.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing here takes as long; what has not happened by then will not.
const TIMEOUT: Duration = Duration::from_secs(120);
/// One search at a time: they measure.
static ALONE: Mutex<()> = Mutex::new(());

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/tuner/programs").canonicalize().unwrap()
}

fn tune(folder: &Path, own: &[&str], command: &[&str]) -> Command {
    let mut tune = Command::new("env");
    tune.args(["--default-signal", env!("CARGO_BIN_EXE_thimble-lab"), "tune", "--state"]);
    tune.arg(folder.join("state")).args(own).arg("--").args(command);
    tune.stdin(Stdio::null()).current_dir(folder);
    tune
}

/// Runs to the end; status, standard output and standard error.
fn run(folder: &Path, own: &[&str], command: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tune(folder, own, command).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("state/report.json")).unwrap()).unwrap()
}

/// The knobs of `holder.py`: what it holds, how late it is, and one that does nothing.
fn knobs(folder: &Path) -> String {
    let path = folder.join("holder.toml");
    let text = r#"
name = "holder"
title = "holder"
[[knob]]
name = "hold"
why = "MB that are held."
values = ["16", "40"]
argument = "--hold={}"
[[knob]]
name = "late"
why = "How late each beat is."
values = ["30", "2"]
argument = "--late={}"
[[knob]]
name = "idle"
why = "Changes nothing at all."
values = ["1", "2"]
argument = "--idle={}"
"#;
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn holder() -> String {
    programs().join("holder.py").to_str().unwrap().to_owned()
}

const BEATS: [&str; 6] = ["--beat", "late ([0-9.]+) ms", "--seconds", "0.3", "--busy", "100"];

/// Ends of every process whose command line has the word.
fn running(word: &str) -> usize {
    let of = |entry: fs::DirEntry| {
        let text = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        text.contains(word) && !text.contains("thimble-lab")
    };
    fs::read_dir("/proc").unwrap().flatten().filter(|_| true).map(of).filter(|found| *found).count()
}

// Promise: P25 - The saving setting of a program is found and confirmed.
#[test]
fn the_setting_that_saves_is_found_and_what_does_nothing_is_named() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let own =
        [&BEATS[..], &["--knobs", &knobs, "--budget", "30s", "--lateness", "p99<20ms"]].concat();
    let (status, text, progress) = run(folder.path(), &own, &["python3", &holder()]);
    assert_eq!(status, 0, "{text}{progress}");
    let report = report(folder.path());
    assert_eq!(report["verdict"], "better", "{text}");
    assert_eq!(report["winner"]["setting"], serde_json::json!([["hold", "16"]]), "{text}");
    let fate = |name: &str| {
        let knobs = report["knobs"].as_array().unwrap();
        knobs.iter().find(|knob| knob["name"] == name).unwrap()["fate"].as_str().unwrap().to_owned()
    };
    assert_eq!((fate("hold").as_str(), fate("idle").as_str()), ("alive", "dead"), "{text}");
    // 48 of 64 MiB, and what Python itself takes.
    let change = report["confirmation"]["memory_percent"]["change"].as_f64().unwrap();
    assert!((-75.0..-50.0).contains(&change), "{change}");
    assert!(
        text.contains("python3") && text.contains("--hold=16") && text.contains("[Service]"),
        "{text}"
    );
    assert!(text.contains("MB that are held."), "{text}");
    assert!(progress.contains("the default") && progress.contains("confirmation"), "{progress}");

    // A search that is done is not done again.
    let before = fs::read_to_string(folder.path().join("state/runs.jsonl")).unwrap();
    let (status, again, progress) = run(folder.path(), &own, &["python3", &holder()]);
    assert_eq!(status, 0);
    assert!(progress.contains("continues:") && again.contains("--hold=16"), "{progress}{again}");
    assert_eq!(before, fs::read_to_string(folder.path().join("state/runs.jsonl")).unwrap());

    // Another search does not mix with it.
    let (status, _, said) = run(folder.path(), &own, &["python3", &holder(), "--idle=7"]);
    assert_eq!(status, 2);
    assert!(said.contains("--fresh") && said.contains("--state"), "{said}");
}

// Promise: P25 - A command that cannot be measured is refused with the reason.
#[test]
fn unmeasurable_command_is_refused_with_a_reason() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let holder = holder();
    let own = [&BEATS[..], &["--knobs", &knobs, "--fresh", "--ready-within", "1s"]].concat();
    for (arguments, words) in [
        (vec!["--end=3"], vec!["exit 3", "cannot open the chain"]),
        (vec!["--end=0"], vec!["ended by itself", "cannot open the chain"]),
        (vec!["--silent"], vec!["never ready", "--ready-within", "--beat"]),
        (vec!["--leave", "--silent"], vec!["went into the background"]),
    ] {
        let command = [&["python3", holder.as_str()], &arguments[..]].concat();
        let (status, text, said) = run(folder.path(), &own, &command);
        assert_eq!(status, 2, "{arguments:?}: {said}{text}");
        for words in words {
            assert!(said.contains(words), "{arguments:?}: {said}");
        }
    }
    let (status, _, said) = run(folder.path(), &own, &["no-such-program"]);
    assert_eq!(status, 2);
    assert!(said.contains("cannot run no-such-program"), "{said}");
    // Without beats there is no deadline.
    let (status, _, said) =
        run(folder.path(), &["--knobs", &knobs, "--lateness", "p99<1ms"], &["python3", &holder]);
    assert_eq!(status, 2);
    assert!(said.contains("--beat") && said.contains("--http"), "{said}");
    // A program of no runtime that is known.
    let script = folder.path().join("script");
    fs::write(&script, "#!/bin/nothing\n").unwrap();
    let (status, _, said) = run(folder.path(), &[], &[script.to_str().unwrap()]);
    assert_eq!(status, 2);
    assert!(said.contains("--runtime") && said.contains("--knobs"), "{said}");
}

// Promise: P25 - A foreign process on the port is not measured.
#[test]
fn occupied_port_is_refused() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let somebody = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = somebody.local_addr().unwrap().to_string();
    let (status, _, said) =
        run(folder.path(), &["--knobs", &knobs, "--tcp", &address], &["python3", &holder()]);
    assert_eq!(status, 2);
    assert!(said.contains("something answers") && said.contains("{port}"), "{said}");
}

// Promise: P25 - An unmet goal is reported with the distance of each setting.
#[test]
fn a_goal_that_nothing_meets_says_how_close_each_came() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let own =
        [&BEATS[..], &["--knobs", &knobs, "--budget", "30s", "--lateness", "p99<100us"]].concat();
    let (status, text, _) = run(folder.path(), &own, &["python3", &holder()]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("Nothing that was tried meets the goal p99<0.1ms"), "{text}");
    assert!(
        text.contains("How close each setting was") && text.contains("1.00  default"),
        "{text}"
    );
}

// Promise: P25 - A cap that kills every setting is answered with the smallest that does not.
#[test]
fn a_cap_that_kills_everything_names_the_smallest_that_does_not() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let own = [&BEATS[..], &["--knobs", &knobs, "--budget", "30s", "--memory", "16MiB"]].concat();
    let (status, text, _) = run(folder.path(), &own, &["python3", &holder()]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("Nothing that was tried lives in 16 MiB"), "{text}");
    assert!(text.contains("The smallest cap in which the default lived is"), "{text}");
    // 64 MiB and Python.
    let lived = text.split("lived is ").nth(1).unwrap();
    let mib: f64 = lived.split_whitespace().next().unwrap().parse().unwrap();
    assert!((70.0..110.0).contains(&mib), "{mib}: {text}");

    // One that leaves room for less finds what lives.
    let folder = tempfile::tempdir().unwrap();
    let own = [&BEATS[..], &["--knobs", &knobs, "--budget", "30s", "--memory", "40MiB"]].concat();
    let (status, text, _) = run(folder.path(), &own, &["python3", &holder()]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("the default does not") && text.contains("--hold=16"), "{text}");
    assert!(text.contains("MemoryMax=41943040"), "{text}");
}

// Promise: P25 - A busy machine ends the search with status 3.
#[test]
fn a_busy_machine_is_said_to_be_busy() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let cores = std::thread::available_parallelism().unwrap().get();
    // They end by themselves if the test does not end them.
    let spinning = (0..cores).map(|_| {
        Command::new("sh").args(["-c", "ulimit -t 60; while :; do :; done"]).spawn().unwrap()
    });
    let mut spinning: Vec<Child> = spinning.collect();
    let own =
        ["--knobs", &knobs, "--beat", "late ([0-9.]+) ms", "--seconds", "0.3", "--busy", "5%"];
    let (status, text, said) = run(folder.path(), &own, &["python3", &holder()]);
    for child in &mut spinning {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(status, 3, "{text}{said}");
    assert!(
        said.contains("too busy") && said.contains("--busy") && said.contains("not counted"),
        "{said}"
    );
    assert_eq!(text, "", "nothing is guessed");
}

// Promise: P25 - Ctrl-C leaves no process, and the search can continue.
#[test]
fn ctrl_c_leaves_no_process_and_a_search_that_goes_on() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let knobs = knobs(folder.path());
    let word = format!("--idle={}", std::process::id());
    let own = [&BEATS[..], &["--knobs", &knobs, "--budget", "30s"]].concat();
    let holder = holder();
    let command = ["python3", &holder, &word];
    let mut search = tune(folder.path(), &own, &command).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(search.stderr.take().unwrap()).lines();
    // In the middle of the third run.
    lines.by_ref().map(Result::unwrap).find(|line| line.contains("run 2")).unwrap();
    let start = Instant::now();
    while running(&word) == 0 {
        assert!(start.elapsed() < TIMEOUT, "the next run never began");
    }
    kill_process(Pid::from_child(&search), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(search.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.last().unwrap().contains("continues where it stopped"), "{rest:?}");
    assert_eq!(running(&word), 0, "nothing is left");

    // Killed without a chance to tidy up, its command ends as well.
    let mut search = tune(folder.path(), &own, &command).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(search.stderr.take().unwrap()).lines();
    lines.by_ref().map(Result::unwrap).find(|line| line.contains("run 4")).unwrap();
    search.kill().unwrap();
    search.wait().unwrap();
    let start = Instant::now();
    while running(&word) > 0 {
        assert!(start.elapsed() < TIMEOUT, "the command outlived the search");
        std::thread::sleep(Duration::from_millis(10));
    }

    let (status, text, progress) = run(folder.path(), &own, &command);
    assert_eq!(status, 0, "{text}{progress}");
    assert!(
        progress.contains("continues: 4 runs") && text.contains("--hold=16"),
        "{progress}{text}"
    );
}

/// Builds a program once for all tests; reports what is missing where it cannot.
fn built(what: &str, command: &mut Command) -> bool {
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => panic!("{what}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            testing::missing(format!("{what} cannot be built: {error}"));
            false
        }
    }
}

fn asked(seconds: &'static str, budget: &'static str) -> Vec<&'static str> {
    vec![
        "--http",
        "http://127.0.0.1:{port}/",
        "--rate",
        "50",
        "--busy",
        "100",
        "--lateness",
        "p50<1s",
        "--seconds",
        seconds,
        "--budget",
        budget,
    ]
}

/// The Go program, built in the folder.
fn go_server(folder: &Path) -> Option<String> {
    let server = folder.join("goserver");
    let mut build = Command::new("go");
    let path = std::env::var("PATH").unwrap_or_default();
    build.env("PATH", format!("{path}:/usr/local/go/bin"));
    build.args(["build", "-o"]).arg(&server).arg(".").current_dir(programs().join("goserver"));
    built("the Go program", &mut build).then(|| server.to_str().unwrap().to_owned())
}

/// Options of a search among the settings of Go's collector.
fn of_go() -> Vec<&'static str> {
    [&asked("1", "40s")[..], &["--skip", "GOMAXPROCS", "--skip", "madvdontneed"]].concat()
}

// Promise: P25 - A Go program that overrides its collector's target has a knob without effect.
#[test]
fn a_go_program_that_overrides_its_collectors_target_has_a_dead_knob() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = go_server(folder.path()) else { return };
    let (status, text, said) =
        run(folder.path(), &of_go(), &["env", "OVERRIDE=1", &server, "{port}", "20"]);
    assert_eq!(status, 0, "{text}{said}");
    let dead = text
        .lines()
        .find(|line| line.starts_with("Does nothing here"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(dead.contains("GOGC"), "{text}");
    // Its collector reports, so its share of the CPU time is known.
    assert!(
        report(folder.path())["default"]["collector_percent"].as_f64().unwrap() > 0.0,
        "{text}"
    );
}

/// The same program, left to its runtime.
#[test]
fn a_go_program_that_leaves_its_collectors_target_has_a_live_knob() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = go_server(folder.path()) else { return };
    let (status, text, said) = run(folder.path(), &of_go(), &[server.as_str(), "{port}", "20"]);
    assert_eq!(status, 0, "{text}{said}");
    let alive = text.lines().find(|line| line.starts_with("Changes something")).unwrap();
    assert!(alive.contains("GOGC"), "{text}");
    assert_eq!(report(folder.path())["verdict"], "better", "{text}");
}

// Promise: P25 - The saving setting of a Node server is found.
#[test]
#[ignore = "half a minute of a machine to itself: make test-long"]
fn a_node_server_keeps_less_garbage() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let server = programs().join("server.js");
    let skip =
        ["--skip", "helper threads", "--skip", "compiled code", "--skip", "UV_THREADPOOL_SIZE"];
    let runtime = ["--runtime", "node", "--skip", "--gc-global", "--skip", "--max-old-space-size"];
    let own = [&asked("1", "40s")[..], &skip, &runtime].concat();
    let (status, text, said) =
        run(folder.path(), &own, &["node", server.to_str().unwrap(), "{port}", "20"]);
    assert_eq!(status, 0, "{text}{said}");
    assert_eq!(report(folder.path())["verdict"], "better", "{text}");
    assert!(
        text.contains("node --max-semi-space-size=") || text.contains("node --optimize-for-size"),
        "{text}"
    );
    assert!(report(folder.path())["default"]["live_bytes"].as_f64().is_some(), "{text}");
}

// Promise: P25 - The saving setting of a Java server is found.
#[test]
#[ignore = "half a minute of a machine to itself: make test-long"]
fn a_java_server_keeps_less_garbage() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let mut build = Command::new("javac");
    build.arg("-d").arg(folder.path()).arg(programs().join("Server.java"));
    if !built("the Java program", &mut build) {
        return;
    }
    let mut own = asked("1", "40s");
    own.extend(["--runtime", "jvm"]);
    for knob in [
        "-Xss",
        "ReservedCodeCacheSize",
        "MaxMetaspaceSize",
        "G1PeriodicGCInterval",
        "MaxHeapFreeRatio",
    ] {
        own.extend(["--skip", knob]);
    }
    let classes = folder.path().to_str().unwrap();
    let (status, text, said) =
        run(folder.path(), &own, &["java", "-cp", classes, "Server", "{port}", "20"]);
    assert_eq!(status, 0, "{text}{said}");
    let report = report(folder.path());
    assert_eq!(report["verdict"], "better", "{text}");
    let change = report["confirmation"]["memory_percent"]["change"].as_f64().unwrap();
    assert!(change < -10.0, "{text}");
}
