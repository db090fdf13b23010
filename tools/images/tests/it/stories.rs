//! Tasks of an operator with the cache.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
    time::{Duration, SystemTime},
};

use rustix::process::Signal;
use serde_json::json;

use crate::kit::{Lab, Run, Running, content, halfway, names, pack, tool};
use testing::until;

/// However an image is packed, the same disk comes out, with its holes, and it is there for good.
#[test]
fn every_packing_gives_the_same_disk() {
    let lab = Lab::new();
    let raw = lab.disk("disk.raw", 6 << 20, 1);
    for (index, extension) in
        ["", "zst", "gz", "xz", "tar", "tar.zst", "tar.gz", "tar.xz", "zst.tar.gz"]
            .iter()
            .enumerate()
    {
        let image = if extension.is_empty() { raw.clone() } else { pack(&raw, extension) };
        let added = lab.add(&image);
        assert_eq!((&added["is_new"], &added["format"]), (&json!(true), &json!("raw")), "{added}");
        assert_eq!(added["virtual_bytes"], 6 << 20);
        assert_eq!(
            added["layers"].as_array().unwrap().len(),
            extension.split_terminator('.').count()
        );
        // The key is the sum that publishers state with a download.
        let sum = String::from_utf8(tool(lab.folder.path(), "sha256sum", [&image])).unwrap();
        assert_eq!(added["id"], format!("{}-raw", sum.split(' ').next().unwrap()));
        let base = added["path"].as_str().unwrap();
        assert!(fs::read(base).unwrap() == content(6 << 20, 1), "{extension}");
        let metadata = fs::metadata(base).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
        assert!(metadata.blocks() * 512 < 5 << 20, "{extension}: holes take room");
        assert_eq!(lab.add(&image)["is_new"], false);
        lab.assert_only(index + 1);
    }
}

/// qcow2 files serve overlays as they are, and are unpacked when asked; a raw one can be packed.
#[test]
fn a_qcow2_file_stays_packed_unless_asked() {
    let lab = Lab::new();
    let raw = lab.disk("disk.raw", 8 << 20, 2);
    let folder = lab.folder.path();
    tool(
        folder,
        "qemu-img",
        ["convert", "-c", "-O", "qcow2", "-o", "compression_type=zstd", "disk.raw", "disk.qcow2"],
    );
    let qcow2 = lab.path("disk.qcow2");
    for image in [qcow2.clone(), pack(&qcow2, "tar.gz")] {
        let kept = lab.add(&image);
        assert_eq!((&kept["format"], &kept["virtual_bytes"]), (&json!("qcow2"), &json!(8 << 20)));
        assert!(fs::read(kept["path"].as_str().unwrap()).unwrap() == fs::read(&qcow2).unwrap());
        let unpacked = lab
            .run("add", ["--json".as_ref(), "--unpacked".as_ref(), image.as_os_str()])
            .good()
            .json();
        assert_eq!((&unpacked["format"], &unpacked["is_new"]), (&json!("raw"), &json!(true)));
        assert!(fs::read(unpacked["path"].as_str().unwrap()).unwrap() == fs::read(&raw).unwrap());
    }
    let packed =
        lab.run("add", ["--json".as_ref(), "--compressed".as_ref(), raw.as_os_str()]).good().json();
    assert!(packed["id"].as_str().unwrap().ends_with("-zstd"), "{packed}");
    let path = packed["path"].as_str().unwrap();
    tool(folder, "qemu-img", ["compare", "-f", "qcow2", "-F", "raw", path, "disk.raw"]);
    let info = String::from_utf8(tool(folder, "qemu-img", ["info", path])).unwrap();
    assert!(info.contains("compression type: zstd"), "{info}");
    lab.assert_only(5);
    // Two forms of one file: its digits alone do not determine which.
    let digits =
        lab.run("list", ["--json"]).good().json()[0]["id"].as_str().unwrap()[..20].to_owned();
    let same = lab.run("overlay", [digits.as_ref(), lab.path("vm").as_os_str()]);
    if same.code != Some(0) {
        same.bad(&["several bases begin with"]);
    }
}

/// One unpacks, the other waits and reports the holder; the lock is free again afterwards.
#[test]
fn two_processes_add_the_same_image_at_once() {
    let lab = Lab::new();
    let (mut first, image) = halfway(&lab);
    let mut second = Running::start(lab.command("add").args(["--json".as_ref(), image.as_path()]));
    let words = second.line();
    let expected = format!(
        "image: waiting for process {}, which is adding {} since 20",
        first.pid(),
        image.display()
    );
    assert!(words.starts_with(&expected), "{words}");
    first.signal(Signal::CONT);
    let (first, second) = (first.end().good().json(), second.end().good().json());
    assert_eq!((&first["is_new"], &second["is_new"]), (&json!(true), &json!(false)));
    assert_eq!(first["path"], second["path"]);
    let bases = names(&lab.cache.join("bases")).len();
    lab.assert_only(bases);
}

// Promise: P25 - A killed `add` is taken over by a waiting one.
/// The one that unpacks is killed: the one that waits does it, and nothing of the first is left.
#[test]
fn one_of_two_is_killed_half_way() {
    let lab = Lab::new();
    let (mut first, image) = halfway(&lab);
    let mut second = Running::start(lab.command("add").args(["--json".as_ref(), image.as_path()]));
    assert!(second.line().contains("waiting for process"));
    let left = names(&lab.cache.join("scratch"));
    first.signal(Signal::KILL);
    assert_eq!(first.end().code, None);
    let second = second.end().good().json();
    assert_eq!(second["is_new"], true);
    assert_eq!(left.len(), 1);
    let bases = names(&lab.cache.join("bases")).len();
    lab.assert_only(bases);
}

// Promise: P25 - Concurrent adds of one image unpack it once.
/// Eight processes and one image: it is unpacked once.
#[test]
fn many_at_once_unpack_once() {
    let lab = Lab::new();
    let image = pack(&lab.disk("disk", 16 << 20, 3), "zst");
    let all: Vec<_> = (0..8)
        .map(|_| Running::start(lab.command("add").args(["--json".as_ref(), image.as_path()])))
        .collect();
    let all: Vec<_> = all.into_iter().map(|one| one.end().good().json()).collect();
    assert_eq!(all.iter().filter(|one| one["is_new"] == true).count(), 1, "{all:?}");
    lab.assert_only(1);
}

// Promise: P25 - Ctrl-C during an `add` leaves nothing.
#[test]
fn ctrl_c_leaves_nothing() {
    let lab = Lab::new();
    for signal in [Signal::INT, Signal::TERM] {
        let (mut running, _) = halfway(&lab);
        running.signal(signal);
        running.signal(Signal::CONT);
        let run = running.end();
        assert_eq!(run.code, Some(130), "{run:?}");
        assert!(run.err.contains("stopped; nothing is left half done"), "{run:?}");
        assert_eq!(names(&lab.cache.join("scratch")), [""; 0]);
    }
    // A child is ended, too.
    let (mut running, child) = hanging(&lab);
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(130));
    assert!(!std::path::Path::new(&format!("/proc/{}", child.trim())).exists());
    assert_eq!(names(&lab.cache.join("scratch")), [""; 0]);
}

/// An add whose `qemu-img` never ends, and the process id of that.
fn hanging(lab: &Lab) -> (Running, String) {
    let raw = lab.disk("disk", 4 << 20, 9);
    let slow = lab.path("slow");
    testing::executable(&slow, b"#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 600\n");
    let running = Running::start(
        lab.command("add").arg("--compressed").arg("--qemu-img").arg(&slow).arg(&raw),
    );
    let pid = lab.path("slow.pid");
    until("the child", || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')));
    (running, fs::read_to_string(&pid).unwrap())
}

// Promise: P25 - A killed `add` leaves no child process.
/// `qemu-img` dies with the process that started it, even by `kill -9`.
#[test]
fn a_killed_process_leaves_no_child() {
    let lab = Lab::new();
    let (mut running, child) = hanging(&lab);
    running.signal(Signal::KILL);
    running.end();
    let stat = format!("/proc/{}/stat", child.trim());
    until("its end", || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
    // `collect` tidies up what it left, without a new add of the same image.
    assert_eq!(names(&lab.cache.join("scratch")).len(), 1);
    let collected = lab.run("collect", ["--keep", "1TiB", "--json"]).good().json();
    assert_eq!(collected["scratch"], 1);
    lab.assert_only(0);
}

#[test]
fn without_qemu_img_raw_images_work_and_the_rest_says_what_to_install() {
    let lab = Lab::new();
    let raw = lab.disk("disk.raw", 1 << 20, 4);
    tool(lab.folder.path(), "qemu-img", ["convert", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    let nowhere = ["--qemu-img", "/nonexistent/qemu-img"];
    let run = |subcommand: &str, arguments: &[&str]| {
        Run::new(lab.command(subcommand).args(nowhere).args(arguments).output().unwrap())
    };
    run("overlay", &[raw.to_str().unwrap(), lab.path("vm").to_str().unwrap()]).good();
    let install = ["/nonexistent/qemu-img is not installed", "apt-get install qemu-utils"];
    run("add", &[lab.path("disk.qcow2").to_str().unwrap()]).bad(&install);
    run("add", &["--compressed", raw.to_str().unwrap()]).bad(&install);
    run("overlay", &[raw.to_str().unwrap(), lab.path("vm").to_str().unwrap(), "--grow", "1GiB"])
        .bad(&install);
    lab.assert_only(1);
    // One that fails: its own words are shown.
    let broken = lab.path("broken");
    testing::executable(
        &broken,
        b"#!/bin/sh\necho 'qemu-img: the moon is in the way' >&2\nexit 1\n",
    );
    let failed = lab
        .command("add")
        .arg("--qemu-img")
        .arg(&broken)
        .arg(lab.path("disk.qcow2"))
        .output()
        .unwrap();
    Run::new(failed).bad(&["the moon is in the way", "qemu-img info"]);
    lab.assert_only(1);
}

/// Bases that no overlay needs go, the longest unused first; a base in use stays.
#[test]
fn collect_keeps_what_is_used() {
    let lab = Lab::new();
    let mut ids = Vec::new();
    for seed in 0..4 {
        let added = lab.add(&lab.disk(&format!("disk-{seed}"), 3 << 20, seed));
        let id = added["id"].as_str().unwrap().to_owned();
        // Sets the time of the last use to this number of days ago.
        let used = fs::File::options()
            .write(true)
            .open(lab.cache.join("bases").join(&id).join("used"))
            .unwrap();
        used.set_modified(SystemTime::now() - Duration::from_secs(86_400 * (10 - seed))).unwrap();
        ids.push(id);
    }
    let vm = lab.path("vm");
    lab.run("overlay", [ids[0].as_ref(), vm.as_os_str()]).good();
    let used = fs::File::options()
        .write(true)
        .open(lab.cache.join("bases").join(&ids[0]).join("used"))
        .unwrap();
    used.set_modified(SystemTime::now() - Duration::from_secs(86_400 * 20)).unwrap();
    let dry = lab.run("collect", ["--keep", "200h", "--dry-run", "--json"]).good().json();
    assert_eq!((&dry["removed"], &dry["in_use"]), (&json!([ids[1]]), &json!([ids[0]])));
    lab.assert_only(4);
    let done = lab.run("collect", ["--keep", "200h", "--json"]).good().json();
    assert_eq!(done["removed"], json!([ids[1]]));
    lab.assert_only(3);
    // One base of two megabytes stays, and the one in use does anyway.
    let done = lab.run("collect", ["--keep", "5MiB", "--json"]).good().json();
    assert_eq!((&done["removed"], &done["in_use"]), (&json!([ids[2]]), &json!([ids[0]])));
    fs::remove_file(&vm).unwrap();
    let done = lab.run("collect", ["--keep", "0", "--json"]).good().json();
    assert_eq!(done["removed"].as_array().unwrap().len(), 2);
    lab.assert_only(0);
    assert_eq!(names(&lab.cache.join("locks")), [""; 0]);
    lab.run("collect", ["--keep", "soon"]).code.filter(|code| *code == 2).unwrap();
}

// Promise: P25 - An unchanged image file is hashed once.
/// A file that was hashed and did not change is not read again; one that changed is.
#[test]
fn the_same_unchanged_file_is_hashed_once() {
    let lab = Lab::new();
    let image = lab.disk("disk", 3 << 20, 5);
    until("a settled clock", || lab.add(&image)["hash_was_known"] == true);
    // `strace` shows that nothing is read of it, if it is there.
    if Command::new("strace").arg("-V").output().is_ok() {
        let trace = lab.path("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=read,pread64", "-y", "-o"]).arg(&trace);
        strace.args([crate::kit::PROGRAM, "add", "--cache"]).arg(&lab.cache).arg(&image);
        let traced = Run::new(strace.output().unwrap());
        if traced.code == Some(0) {
            let own = format!("<{}>", image.canonicalize().unwrap().display());
            let trace = fs::read_to_string(trace).unwrap();
            let bytes: u64 = trace
                .lines()
                .filter(|line| line.contains(&own))
                .map(|line| line.rsplit("= ").next().unwrap().trim().parse::<u64>().unwrap())
                .sum();
            assert!(bytes <= 512, "{bytes} bytes of an unchanged file were read");
        }
    }
    let mut changed = fs::read(&image).unwrap();
    changed[1 << 20] ^= 1;
    fs::write(&image, changed).unwrap();
    let again = lab.add(&image);
    assert_eq!((&again["hash_was_known"], &again["is_new"]), (&json!(false), &json!(true)));
    let rehashed =
        lab.run("add", ["--rehash".as_ref(), "--json".as_ref(), image.as_os_str()]).good().json();
    assert_eq!(rehashed["hash_was_known"], false);
    lab.assert_only(2);
}
