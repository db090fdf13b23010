//! Killed at any instruction, an add leaves the whole base or nothing that is taken for it.

use std::{
    ffi::OsStr,
    fs,
    process::{Command, Output, Stdio},
    time::Duration,
};

use crate::kit::{Lab, PROGRAM, Run, content, names, pack};

/// System calls that change something on a disk, or come between two that do.
const CALLS: &str = "openat,mkdir,rename,renameat,renameat2,unlink,unlinkat,rmdir,linkat,link,\
                     symlink,symlinkat,fsync,fdatasync,ftruncate,fchmod,chmod,flock,write,pwrite64,\
                     utimensat,close,newfstatat,statx,fstatfs";
/// More calls than an add of a small image makes in one thread.
const KILLS_MAX: usize = 2000;

/// The cache never counts an incomplete base; the next add completes it and leaves nothing else.
#[track_caller]
fn check(lab: &Lab, image: &std::path::Path, disk: &[u8], moment: &str) {
    let bases = names(&lab.cache.join("bases"));
    assert!(bases.len() <= 1, "{moment}: {bases:?}");
    if !bases.is_empty() {
        // A listed base is the whole disk.
        let listed = lab.run("list", ["--json"]).good().json();
        assert_eq!(listed[0]["state"], "whole", "{moment}: {listed}");
        assert!(
            fs::read(listed[0]["path"].as_str().unwrap()).unwrap() == disk,
            "{moment}: half a base"
        );
    }
    let added = lab.add(image);
    assert!(fs::read(added["path"].as_str().unwrap()).unwrap() == disk, "{moment}");
    if !bases.is_empty() {
        assert_eq!(added["is_new"], false, "{moment}: made twice");
    } else {
        // The process that makes it removes the remains.
        assert_eq!(names(&lab.cache.join("scratch")), [""; 0], "{moment}");
    }
}

/// Whether strace works; where it does not and all has to run, the test fails.
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    let can = traced.is_ok_and(|run| run.status.success());
    if !can {
        testing::missing("strace cannot trace here: install it, and permit ptrace");
    }
    can
}

/// This crate's program with `arguments`, killed at its `when`-th call of `call`.
fn killed_at(call: &str, when: usize, arguments: &[&OsStr]) -> Output {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
    strace.arg(format!("inject={call}:signal=KILL:when={when}")).arg(PROGRAM).args(arguments);
    strace.stdin(Stdio::null()).output().unwrap()
}

// Promise: P25 - An `add` killed at any system call leaves a whole base or none.
/// Every system call of these kinds that an add makes, in turn, is the last one it makes.
#[test]
fn add_killed_at_every_system_call_leaves_no_partial_base() {
    if !can_trace() {
        return;
    }
    let lab = Lab::new();
    let image = pack(&lab.disk("disk", 300 << 10, 7), "tar.zst");
    let disk = content(300 << 10, 7);
    let mut kills = 0;
    let mut left = 0;
    for call in CALLS.split(',') {
        for when in 1..=KILLS_MAX {
            let _ = fs::remove_dir_all(&lab.cache);
            let arguments = ["add", "--quiet", "--reserve", "0", "--cache"].map(OsStr::new);
            let arguments = [&arguments[..], &[lab.cache.as_ref(), image.as_ref()]].concat();
            let run = killed_at(call, when, &arguments);
            if run.status.success() {
                break;
            }
            assert!(
                run.status.code().is_none(),
                "{call} {when} was not killed: {}",
                String::from_utf8_lossy(&run.stderr)
            );
            assert!(when < KILLS_MAX, "{call}: no end");
            kills += 1;
            left += usize::from(!names(&lab.cache.join("scratch")).is_empty());
            check(&lab, &image, &disk, &format!("{call} {when}"));
        }
    }
    // Otherwise nothing was injected, or nothing was under way when it was.
    assert!(kills > 50 && left > 10, "{kills} kills, {left} with remains");
    eprintln!("{kills} kills, {left} of them with remains");
}

// Promise: P25 - An `add` killed at 24 moments is completed by the next one.
/// At arbitrary moments, spread over the whole of a longer add.
#[test]
fn add_killed_at_spread_moments_leaves_no_partial_base() {
    let lab = Lab::new();
    let image = pack(&lab.disk("disk", 4 << 20, 8), "xz");
    let disk = content(4 << 20, 8);
    let began = std::time::Instant::now();
    lab.add(&image);
    let whole = began.elapsed();
    let mut killed = 0;
    for step in 0..24 {
        fs::remove_dir_all(&lab.cache).unwrap();
        let mut child = lab
            .command("add")
            .arg("--quiet")
            .arg(&image)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_nanos((whole.as_nanos() as u64) / 20 * step));
        child.kill().unwrap();
        let run = Run::new(child.wait_with_output().unwrap());
        killed += usize::from(run.code.is_none());
        check(&lab, &image, &disk, &format!("step {step}"));
    }
    assert!(killed > 0, "every add was done before it was killed");
}

// Promise: P25 - A `remove` killed at any system call is completed by the next one.
/// Removing is as whole as adding: a base is there with all of it, or it is gone.
#[test]
fn remove_killed_at_every_system_call_leaves_no_partial_base() {
    if !can_trace() {
        return;
    }
    let lab = Lab::new();
    let image = lab.disk("disk", 300 << 10, 7);
    let disk = content(300 << 10, 7);
    let (mut kills, mut left) = (0, 0);
    for call in [
        "openat",
        "rename",
        "renameat",
        "unlink",
        "unlinkat",
        "rmdir",
        "fsync",
        "flock",
        "ftruncate",
    ] {
        for when in 1..=KILLS_MAX {
            let _ = fs::remove_dir_all(&lab.cache);
            let id = lab.add(&image)["id"].as_str().unwrap().to_owned();
            let arguments =
                ["remove".as_ref(), "--cache".as_ref(), lab.cache.as_ref(), id.as_ref()];
            if killed_at(call, when, &arguments).status.success() {
                break;
            }
            kills += 1;
            left += usize::from(!names(&lab.cache.join("scratch")).is_empty());
            check(&lab, &image, &disk, &format!("remove, {call} {when}"));
        }
    }
    assert!(kills > 10 && left > 2, "{kills} kills, {left} with remains");
}
