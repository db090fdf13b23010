//! `thimble-lab compare` as its user meets it: files of runs, exit codes, pages, commands in turns.

use std::{
    fmt::Write,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{LAB, text};

fn compare(arguments: &[&str]) -> Output {
    Command::new(LAB).arg("compare").args(arguments).output().unwrap()
}

/// Deviates that are the same in every run of the tests: sums of a linear congruential generator's.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..12 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        }
        sum - 6.0
    }
}

/// A suite of 166 tests at 3 % noise: three runs, and one in which tests 1 to 8 are slower by 30 %,
/// test 20 is gone and another one is new.
fn suite(folder: &Path) -> Vec<PathBuf> {
    let mut noise = Noise(7);
    let names = ["base1.xml", "base2.xml", "base3.xml", "change.xml"];
    let write = |(run, name): (usize, &&str)| {
        let mut xml = String::from("<testsuites><testsuite name=\"system\">\n");
        for test in 1..=166_u32 {
            let changed = run == 3 && test <= 8;
            let level = 1.0 + f64::from(test);
            let seconds = level * (0.03 * noise.next()).exp() * if changed { 1.3 } else { 1.0 };
            if !(run == 3 && test == 20) {
                let _ = writeln!(
                    xml,
                    "<testcase classname=\"net\" name=\"t{test:03} &lt;b&gt;\" \
                     time=\"{seconds:.3}\"/>"
                );
            }
        }
        if run == 3 {
            xml.push_str("<testcase classname=\"net\" name=\"added\" time=\"5\"/>\n");
        }
        let path = folder.join(name);
        fs::write(&path, xml + "</testsuite></testsuites>\n").unwrap();
        path
    };
    names.iter().enumerate().map(write).collect()
}

fn verdict<'a>(report: &'a Value, name: &str) -> &'a str {
    let tests = report["tests"].as_array().unwrap();
    let test =
        tests.iter().find(|test| test["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    test["verdict"].as_str().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn three_runs_against_one_find_what_changed_and_little_else() {
    let folder = TempDir::new().unwrap();
    let files = suite(folder.path());
    let [a, b, c, d] = files.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>()[..]
    else {
        unreachable!()
    };
    let out = |name: &str| folder.path().join(name);
    let (html, md, report) = (out("out.html"), out("out.md"), out("out.json"));
    let flags = ["--html", html.to_str().unwrap(), "--markdown", md.to_str().unwrap()];
    let more = ["--json", report.to_str().unwrap(), "--fail-on", "slower"];
    let output = compare(&[&[a, b, c, "--", d], &flags[..], &more[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let table = text(&output);
    assert!(table.contains("net > t001 <b>") && table.contains("slower"), "{table}");
    assert!(
        table.contains("sum of times") && table.contains("probability that the whole"),
        "{table}"
    );

    let report = json(&report);
    for test in 1..=8 {
        assert_eq!(verdict(&report, &format!("net > t{test:03} <b>")), "slower");
    }
    assert_eq!(verdict(&report, "net > added"), "new");
    assert_eq!(verdict(&report, "net > t020 <b>"), "gone");
    let tests = report["tests"].as_array().unwrap();
    let called =
        tests.iter().filter(|test| matches!(test["verdict"].as_str(), Some("slower" | "faster")));
    // One in twenty calls may be wrong, on average.
    assert!((8..=10).contains(&called.count()), "{report:#}");
    assert_eq!(report["method"]["pooled_over"], 166);

    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("t001 &lt;b&gt;") && !page.contains("<b>t001"));
    for outside in ["http://", "https://", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "the page has {outside}");
    }
    let markdown = fs::read_to_string(md).unwrap();
    assert!(markdown.contains("| slower | `net > t001 <b>` |"), "{markdown}");

    // Nothing changed between the baseline's own runs.
    let calm = compare(&[a, b, "--", c, "--fail-on", "slower", "--all"]);
    assert_eq!(calm.status.code(), Some(0), "{}", text(&calm));
}

// Promise: P25 - One baseline run gives ratios without a verdict.
#[test]
fn one_baseline_run_gives_ratios_and_says_that_nothing_is_known() {
    let folder = TempDir::new().unwrap();
    let files = suite(folder.path());
    let [a, .., d] = files.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>()[..] else {
        unreachable!()
    };
    let output = compare(&[a, "--", d, "--json", "-", "--fail-on", "slower"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).contains("no test could be judged"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdict(&report, "net > t001 <b>"), "unknown");
    assert!(report["whole"]["p_faster"].is_null());
    assert!(report["notes"][0].as_str().unwrap().contains("nothing says what they mean"));
    assert_eq!(compare(&[a, "--", d, "--fail-on", "unknown"]).status.code(), Some(1));
}

// Promise: P25 - Zero, negative, equal and infinite values get no unsupported verdict.
#[test]
fn odd_values_have_words_and_no_verdict_that_they_do_not_carry() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("name,value,unit\n{text}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let runs = [
        write("1.csv", "zero,0,kills\nequal,5,\nnegative,-3,\nnone,NaN,\nrate,100,/s\nonly,1,\n"),
        write("2.csv", "zero,0,kills\nequal,5,\nnegative,2,\nnone,1,\nrate,101,/s\n"),
        write("3.csv", "zero,0,kills\nequal,5,\nnegative,-1,\nnone,1,\nrate,99,/s\n"),
        write("4.csv", "zero,4,kills\nequal,5,\nnegative,0,\nnone,inf,\nrate,30,/s\nfresh,2,\n"),
    ];
    let [a, b, c, d] = runs.each_ref().map(String::as_str);
    let output = compare(&[a, b, c, "--", d, "--json", "-"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("none is NaN") && said.contains("none is inf"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, wanted) in [
        ("zero", "outlier"),
        ("equal", "noise"),
        ("negative", "noise"),
        ("none", "gone"),
        ("rate", "slower"),
        ("only", "gone"),
        ("fresh", "new"),
    ] {
        assert_eq!(verdict(&report, name), wanted, "{name}");
    }
    // The other way round a lower rate is better.
    let turned = compare(&[a, b, c, "--", d, "--json", "-", "--lower-is-better", "ra*"]);
    let report: Value = serde_json::from_slice(&turned.stdout).unwrap();
    assert_eq!(verdict(&report, "rate"), "faster");
}

// Promise: P25 - A file that cannot be read ends the comparison with status 2 and the reason.
#[test]
fn unreadable_file_exits_with_status_2() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("report.xml");
    fs::write(&path, "<html></html>").unwrap();
    let name = path.to_str().unwrap();
    for (arguments, words) in [
        (&[name, "--", name][..], "looks like XML of another kind"),
        (&["absent", "--", "absent"], "absent: No such file"),
        (&[name, "--", "--all"], "no candidate"),
        (&["--pair", "exit 3", "true"], "the baseline: ended with exit status 3"),
    ] {
        let output = compare(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(words), "{}", text(&output));
    }
}

#[test]
fn what_the_lab_writes_is_read() {
    let folder = TempDir::new().unwrap();
    let mut files = Vec::new();
    for run in 1..=3 {
        let path = folder.path().join(format!("{run}.jsonl"));
        let mut cap = Command::new(LAB);
        cap.args(["cap", "--memory", "64MiB", "--json"]).arg(&path).args(["--", "true"]);
        let output = cap.output().unwrap();
        if output.status.code() == Some(125) {
            return testing::missing(text(&output));
        }
        files.push(path.to_str().unwrap().to_owned());
    }
    let [a, b, c] = &files[..] else { unreachable!() };
    let output = compare(&[a, b, "--", c, "--json", "-"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["baseline"][0]["kind"], "JSON of thimble-lab");
    assert!(
        report["tests"].as_array().unwrap().iter().any(|test| test["name"] == "true > wall time")
    );
}

// Promise: P25 - Two commands are measured in alternating turns and distinguished.
#[test]
fn two_commands_are_measured_in_alternating_turns_and_told_apart() {
    let run = |first: &str, second: &str| {
        let output =
            compare(&["--pair", first, second, "--turns", "12", "--busy", "100%", "--json", "-"]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = run("sleep 0.02", "sleep 0.5");
    assert_eq!(report["metrics"][0]["name"], "wall time");
    assert_eq!(report["metrics"][0]["verdict"], "slower", "{report:#}");
    assert!(report["metrics"][0]["change"].as_f64().unwrap() > 1.0);
    assert_eq!((&report["turns"], &report["dropped"]), (&12.into(), &0.into()));
    let orders: Vec<bool> = report["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| turn["candidate_first"].as_bool().unwrap())
        .collect();
    assert_eq!(orders, [false, true].repeat(6));
}

#[test]
fn what_commands_write_is_compared_too() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("out.csv");
    let file = file.to_str().unwrap();
    let command = |value: u32| format!("printf 'name,value,unit\\nwork,{value},/s\\n' > {file}");
    let flags =
        ["--turns", "12", "--busy", "100%", "--read", file, "--json", "-", "--fail-on", "slower"];
    let output = compare(&[&["--pair", &command(100), &command(90)], &flags[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let metrics = report["metrics"].as_array().unwrap();
    let work = metrics.iter().find(|metric| metric["name"] == "work").unwrap();
    assert_eq!((&work["verdict"], &work["better"]), (&"slower".into(), &"more".into()));
    // A command that writes nothing is reported, and the output of an earlier one is not used for
    // it.
    let output = compare(&[&["--pair", &command(100), "true"], &flags[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("the candidate: --read"), "{}", text(&output));
}

// Promise: P25 - Ctrl-C prints the measured turns and leaves no process.
#[test]
fn ctrl_c_prints_what_was_measured() {
    let folder = TempDir::new().unwrap();
    let pids = folder.path().join("pids");
    let command = format!("echo $$ >> {}; sleep 0.05", pids.display());
    let mut child = Command::new("sh");
    // The tests may run in the background with signals ignored.
    child.args([
        "-c",
        "trap - INT; exec \"$@\"",
        "sh",
        LAB,
        "compare",
        "--pair",
        &command,
        &command,
    ]);
    child.args(["--turns", "1000", "--busy", "100%"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let turn = said.find(|line| line.as_ref().unwrap().contains("2 of 1000 turns"));
    assert!(turn.is_some(), "it ended before");
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    for line in said {
        line.unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("wall time") && table.contains("stopped before it was over"), "{table}");
    // Nothing of the last command runs on.
    let last = fs::read_to_string(&pids).unwrap().lines().last().unwrap().to_owned();
    assert!(!Path::new(&format!("/proc/{last}/stat")).exists(), "{last} still runs");
}

/// The folder of this repository, if it is a checkout with a history; otherwise this is reported.
fn checkout() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut parent = Command::new("git");
    parent.args(["rev-parse", "--verify", "--quiet", "HEAD~1"]).current_dir(&root);
    match parent.output() {
        Ok(output) if output.status.success() => Some(root),
        _ => {
            testing::missing("this is no git checkout with a commit before HEAD");
            None
        }
    }
}

fn script(root: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(root.join("scripts/compare.sh"));
    command.arg(LAB).args(arguments).env("COMPARE_DIR", folder).env_remove("CARGO_TARGET_DIR");
    command
}

fn has_work_tree(root: &Path, folder: &Path) -> bool {
    let list = Command::new("git").args(["worktree", "list"]).current_dir(root).output().unwrap();
    text(&list).contains(folder.to_str().unwrap())
}

#[test]
fn a_comparison_of_commits_refuses_what_cannot_be() {
    let Some(root) = checkout() else { return };
    let folder = TempDir::new().unwrap();
    for (arguments, words) in [
        (&["no-such-commit"][..], "there is no commit no-such-commit"),
        (&["HEAD"], "name another BASE"),
        (&["--help"], "there is no commit --help"),
        (&["HEAD~1", "bench-moon"], "there are bench, bench-net and bench-relay"),
    ] {
        let output = script(&root, folder.path(), arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(words), "{}", text(&output));
    }
    let output = script(&root, folder.path(), &["HEAD~1"]).env("TURNS", "none").output().unwrap();
    assert!(text(&output).contains("1 to 99 turns"), "{}", text(&output));
}

/// A process and its group, which do not outlive the test.
struct Group(std::process::Child);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // It may have ended.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.0.wait();
    }
}

// Promise: P25 - An interrupted comparison of commits leaves no work tree.
#[test]
fn a_comparison_of_commits_that_is_interrupted_leaves_no_work_tree() {
    use std::os::unix::process::CommandExt;
    let Some(root) = checkout() else { return };
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    // The tests may run in the background with signals ignored, and bash keeps them ignored.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT"])
        .arg(root.join("scripts/compare.sh"))
        .args([LAB, "HEAD~1"]);
    command.env("COMPARE_DIR", &folder).env_remove("CARGO_TARGET_DIR").process_group(0);
    let mut child = Group(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    // Until cargo works in it.
    let stderr = BufReader::new(child.0.stderr.take().unwrap());
    let mut lines =
        stderr.lines().map(Result::unwrap).take_while(|line| !line.starts_with("error"));
    assert!(
        lines.any(|line| line.contains("Compiling") || line.contains("Blocking")),
        "no build began"
    );
    assert!(has_work_tree(&root, &folder));
    let second = script(&root, &folder, &["HEAD~1"]).output().unwrap();
    assert!(text(&second).contains("another comparison runs"), "{}", text(&second));
    child.signal(Signal::INT);
    for _ in lines {}
    assert_eq!(child.0.wait().unwrap().code(), Some(130));
    assert!(!has_work_tree(&root, &folder) && !folder.join("tree").exists());
}
