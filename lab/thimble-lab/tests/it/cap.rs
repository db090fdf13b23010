//! `thimble-lab cap` as its user meets it: real commands in real groups of the machine the test
//! runs on.
//!
//! Where no group can be made (an unprivileged container, say) a test reports that on standard
//! error and ends; `cap` itself decides that, so a machine that can make groups skips nothing.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use testing::{
    process::{Signal, is_running, send},
    until,
};

fn lab() -> Command {
    // The tests may run in the background with signals ignored, and a shell cannot trap a signal
    // that was ignored at its start.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_thimble-lab")]);
    command.stdin(Stdio::null());
    command
}

/// `thimble-lab cap` with its own arguments and the command's.
fn cap(own: &[&str], command: &[&str]) -> Command {
    let mut cap = lab();
    cap.arg("cap").args(own).arg("--").args(command);
    cap
}

fn run(own: &[&str], command: &[&str]) -> Output {
    cap(own, command).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether groups can be made here; reports why not.
fn possible() -> bool {
    let output = run(&["--memory", "64MiB"], &["true"]);
    let refused = output.status.code() == Some(125);
    if refused {
        let reason = text(&output.stderr);
        assert!(reason.contains("no memory-capped process group can be made here"), "{reason}");
        testing::missing(reason);
    }
    !refused
}

/// The lines of a series, as far as they are whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn of_kind(lines: &[Value], kind: &str) -> Vec<Value> {
    lines.iter().filter(|line| line["kind"] == kind).cloned().collect()
}

fn has_event(lines: &[Value], what: &str, part: &str) -> bool {
    of_kind(lines, "event").iter().any(|event| {
        event["what"] == what && event["text"].as_str().is_some_and(|text| text.contains(part))
    })
}

/// A cap under way; when the test fails, it does not stay.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The first signal asks, the second kills the group. A process that has ended gets no
        // signal.
        for _ in 0..2 {
            if matches!(self.0.try_wait(), Ok(None)) {
                send(self.0.id(), Signal::TERM);
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        let _ = self.0.wait();
    }
}

/// Groups of the cap that has this process id, in every hierarchy.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("thimble-cap-") && name.split('-').nth(3) == Some(&pid.to_string())
            {
                found.push(entry.path());
            }
            folders.push(entry.path());
        }
    }
    found
}

#[test]
fn a_command_within_the_cap_is_measured() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    // dd fills its buffer, then waits for a reader of the pipe: so it holds 40 MiB for as long as
    // needed. Opening a pipe for both reading and writing does not block.
    let mut pipe = fs::OpenOptions::new().read(true).write(true).open(path("fifo")).unwrap();
    let script = format!(
        "echo 'half way' >> {}; exec dd if=/dev/zero of={} bs=40M count=1 status=none",
        path("marks"),
        path("fifo")
    );
    let child = cap(
        &[
            "--memory",
            "128MiB",
            "--interval-millis",
            "20",
            "--name",
            "forty",
            "--json",
            &path("series"),
            "--picture",
            &path("run.svg"),
            "--mark-file",
            &path("marks"),
        ],
        &["sh", "-c", &script],
    )
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut child = Running(child);
    let holds =
        |sample: &Value| sample["anonymous_bytes"].as_u64().is_some_and(|bytes| bytes >= 40 << 20);
    let series = folder.path().join("series");
    until("40 MiB in the series while the command runs", || {
        of_kind(&lines(&series), "sample").iter().any(holds)
    });
    pipe.read_exact(&mut vec![0; 40 << 20]).unwrap();
    let pid = child.0.id();
    let mut told = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0), "{told}");

    let lines = lines(&series);
    assert_eq!(lines[0]["kind"], "header");
    assert_eq!(
        (&lines[0]["cap_bytes"], &lines[0]["name"]),
        (&Value::from(128 << 20), &Value::from("forty"))
    );
    let held = of_kind(&lines, "sample").into_iter().find(holds).unwrap();
    let process = &held["processes"][0];
    assert!(process["anonymous_bytes"].as_u64().unwrap() >= 40 << 20, "{held}");
    assert_eq!(process["role"], "dd");
    assert!(has_event(&lines, "mark", "half way") && has_event(&lines, "exit", "exit 0"));
    let summary = lines.last().unwrap();
    assert_eq!(
        (&summary["kind"], &summary["oom_kills"]),
        (&Value::from("summary"), &Value::from(0))
    );
    let peak = summary["anonymous_peak_bytes"].as_u64().unwrap();
    assert!((40 << 20..64 << 20).contains(&peak), "{summary}");
    assert!(summary["charged_peak_bytes"].as_u64().unwrap() >= peak);
    assert!(told.contains("forty ran") && told.contains("OOM kills   0"), "{told}");

    let picture = fs::read_to_string(path("run.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    for part in ["forty in 128 MiB: exit 0", "cap 128 MiB", "anonymous peak 4", "half way"] {
        assert!(picture.contains(part), "{part} is not in the picture");
    }
    assert!(groups_of(pid).is_empty());
}

#[test]
fn a_command_beyond_the_cap_is_killed_and_that_is_said() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let series = folder.path().join("series");
    let own = ["--memory", "64MiB", "--json", series.to_str().unwrap()];
    let hog = "dd if=/dev/zero of=/dev/null bs=300M count=1 status=none";
    // The command itself; a child of a command that ignores it; a child of one with an exit status
    // for it.
    for (script, status) in [
        (format!("exec {hog}"), 137),
        (format!("{hog}; exit 0"), 137),
        (format!("{hog}; exit 3"), 3),
    ] {
        let output = run(&own, &["sh", "-c", &script]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{script}: {told}");
        assert!(told.contains("OOM kills   1"), "{script}: {told}");
        let lines = lines(&series);
        assert!(has_event(&lines, "oom_kill", "OOM kill"), "{script}");
        let summary = lines.last().unwrap();
        assert_eq!(
            (&summary["oom_kills"], &summary["exit_status"]),
            (&Value::from(1), &Value::from(status))
        );
        assert!(summary["charged_peak_bytes"].as_u64().unwrap() <= 64 << 20, "{summary}");
    }
}

#[test]
fn the_exit_status_is_the_commands() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("no-program");
    fs::write(&plain, "text").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let commands: [(&[&str], i32); 5] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["no-such-command-anywhere"], 127),
        (&[plain.to_str().unwrap()], 126),
    ];
    for (command, status) in commands {
        let mut child =
            cap(&["--memory", "64MiB"], command).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status), "{command:?}: {told}");
        assert!(groups_of(pid).is_empty(), "{command:?}");
    }
}

/// Starts a script that prints `ready` when its traps are set.
fn start_script(own: &[&str], script: &str) -> (Running, BufReader<std::process::ChildStdout>) {
    let child = cap(own, &["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Running(child);
    let mut output = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

#[test]
fn a_signal_is_passed_on_and_a_clean_end_is_waited_for() {
    if !possible() {
        return;
    }
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP)] {
        let script =
            format!("trap 'echo clean; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut output) = start_script(&["--memory", "64MiB"], &script);
        send(child.0.id(), signal);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), child.0.wait().unwrap().code()), ("clean\n", Some(7)), "{name}");
    }
}

#[test]
fn a_second_signal_kills_what_does_not_stop() {
    if !possible() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let series = folder.path().join("series");
    let (mut child, _output) = start_script(
        &["--memory", "64MiB", "--json", series.to_str().unwrap()],
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    );
    let pid = child.0.id();
    send(child.0.id(), Signal::TERM);
    until("the first signal in the series", || has_event(&lines(&series), "signal", "SIGTERM"));
    assert!(child.0.try_wait().unwrap().is_none(), "the first signal kills nothing");
    send(child.0.id(), Signal::TERM);
    assert_eq!(child.0.wait().unwrap().code(), Some(137));
    assert!(groups_of(pid).is_empty());
}

#[test]
fn ctrl_c_at_a_terminal_reaches_the_command_once() {
    if !possible() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        return testing::missing(
            "there is no `script` to make a terminal with: install util-linux's (bsdutils)",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let inner = path("inner.sh");
    fs::write(
        &inner,
        format!(
            "trap 'echo x >> {got}' INT; : > {got}; echo $PPID > {cap}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexit $(wc -l < {got})\n",
            got = path("got").display(),
            cap = path("cap").display(),
            go = path("go").display()
        ),
    )
    .unwrap();
    // The shell around it gets the Ctrl-C as well, and stays.
    let line = format!(
        "trap : INT; {} cap --memory 64MiB --json {} -- sh {}; exit $?",
        env!("CARGO_BIN_EXE_thimble-lab"),
        path("series").display(),
        inner.display()
    );
    // A terminal of its own, in whose foreground the command runs; what we write is what is typed.
    let mut terminal = Command::new("env")
        .args(["--default-signal", "script"])
        .args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let read = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
    until("the trap", || read("cap").ends_with('\n'));
    let cap: u32 = read("cap").trim().parse().unwrap();
    // The cap is held up until the command has dealt with the signal: one that was passed on at
    // once could melt into the first.
    send(cap, Signal::STOP);
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    keyboard.flush().unwrap();
    until("the signal at the command", || !read("got").is_empty());
    send(cap, Signal::CONT);
    until("the signal at the cap", || has_event(&lines(&path("series")), "signal", "SIGINT"));
    fs::write(path("go"), "").unwrap();
    assert_eq!(
        terminal.wait().unwrap().code(),
        Some(1),
        "the status is how often the command got the signal"
    );
}

#[test]
fn what_the_command_leaves_running_is_killed() {
    if !possible() {
        return;
    }
    let output = run(&["--memory", "64MiB"], &["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("left over   1 processes"), "{told}");
    assert!(!is_running(text(&output.stdout).trim().parse().unwrap()));
}

#[test]
fn the_group_of_a_run_that_was_killed_is_removed_by_the_next() {
    if !possible() {
        return;
    }
    let (mut child, mut output) =
        start_script(&["--memory", "64MiB"], "echo ready; echo $$; exec sleep 1000");
    let mut inner = String::new();
    output.read_line(&mut inner).unwrap();
    let pid = child.0.id();
    let before = groups_of(pid);
    send(child.0.id(), Signal::KILL);
    child.0.wait().unwrap();
    if before.is_empty() {
        send(inner.trim().parse().unwrap(), Signal::KILL);
        return testing::missing(
            "groups are scopes of systemd here, which go with their last process: run as root",
        );
    }
    // Another test's run may have removed it already, which is as good.
    assert_eq!(run(&["--memory", "64MiB"], &["true"]).status.code(), Some(0));
    until("the group to go", || groups_of(pid).is_empty());
    until("the command to die", || !is_running(inner.trim().parse().unwrap()));
}

#[test]
fn missing_cgroup_support_is_reported_with_a_remedy() {
    if !rustix::process::geteuid().is_root() {
        return testing::missing(
            "only root can become a user who may not make groups: run as root",
        );
    }
    // The user `nobody` may lack read access to our build folder.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("thimble-lab");
    testing::executable(&copy, &fs::read(env!("CARGO_BIN_EXE_thimble-lab")).unwrap());
    let output = Command::new(&copy)
        .args(["cap", "--memory", "64MiB", "--", "true"])
        .current_dir("/")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("DBUS_SESSION_BUS_ADDRESS")
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{told}");
    for part in [
        "no memory-capped process group can be made here",
        "\n  v2: ",
        "\n  v1: ",
        "\n  systemd: ",
        "What helps: run it as root",
    ] {
        assert!(told.contains(part), "{part:?} is not in: {told}");
    }
}

#[test]
fn invalid_size_is_refused_before_the_command_runs() {
    for (size, part) in [("5kB", "the smallest cap is 1 MiB"), ("lots", "512MiB")] {
        let output = run(&["--memory", size], &["sh", "-c", "echo ran"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            text(&output.stderr).contains(part) && output.stdout.is_empty(),
            "{}",
            text(&output.stderr)
        );
    }
}
