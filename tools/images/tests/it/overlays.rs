//! Disks of machines: made, used again, grown, and what becomes of them when their base does not
//! stay.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::kit::{Lab, Running, content, tool};
use testing::until;

/// Writes into a disk as a machine does.
fn guest_writes(disk: &Path, byte: u8) {
    tool(
        Path::new("."),
        "qemu-io",
        ["-f", "qcow2", "-c", &format!("write -P {byte} 1M 128k"), disk.to_str().unwrap()],
    );
}

fn guest_reads(disk: &Path, byte: u8) -> bool {
    let read = format!("read -P {byte} 1M 128k");
    let run =
        Command::new("qemu-io").args(["-f", "qcow2", "-c", &read]).arg(disk).output().unwrap();
    let out = String::from_utf8(run.stdout).unwrap();
    assert!(out.contains("read 131072/131072"), "{out}");
    !out.contains("verification failed")
}

fn info(disk: &Path) -> Value {
    serde_json::from_slice(&tool(
        Path::new("."),
        "qemu-img",
        ["info", "--output=json", disk.to_str().unwrap()],
    ))
    .unwrap()
}

impl Lab {
    #[track_caller]
    fn overlay(&self, base: &str, name: &str, flags: &[&str]) -> Value {
        let place = self.path(name);
        let arguments = ["--json", base, place.to_str().unwrap()];
        self.run("overlay", arguments.iter().chain(flags)).good().json()[0].clone()
    }

    #[track_caller]
    fn base(&self, seed: u64) -> (String, std::path::PathBuf) {
        let added = self.add(&self.disk(&format!("disk-{seed}"), 4 << 20, seed));
        (added["id"].as_str().unwrap().to_owned(), added["path"].as_str().unwrap().into())
    }
}

// Promise: P25 - An overlay equals the one of `qemu-img create`.
/// QEMU's tools find no difference between our overlay and one of `qemu-img create`.
#[test]
fn an_overlay_is_like_one_that_qemu_img_makes() {
    let lab = Lab::new();
    let folder = lab.folder.path();
    lab.disk("disk.raw", 4 << 20, 1);
    tool(folder, "qemu-img", ["convert", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    for (image, format) in [("disk.raw", "raw"), ("disk.qcow2", "qcow2")] {
        let base = lab.add(&lab.path(image))["path"].as_str().unwrap().to_owned();
        // Up to four terabytes: a table of one entry, of many, of a full cluster.
        for size in ["4M", "513M", "20G", "4T"] {
            let _ = (fs::remove_file(lab.path("ours")), fs::remove_file(lab.path("theirs")));
            lab.overlay(lab.path(image).to_str().unwrap(), "ours", &["--grow", size]);
            tool(
                folder,
                "qemu-img",
                ["create", "-q", "-f", "qcow2", "-F", format, "-b", &base, "theirs", size],
            );
            let (mut ours, mut theirs) = (info(&lab.path("ours")), info(&lab.path("theirs")));
            for one in [&mut ours, &mut theirs] {
                for name in ["filename", "actual-size"] {
                    one.as_object_mut().unwrap().remove(name);
                }
            }
            assert_eq!(ours, theirs);
            let check = tool(folder, "qemu-img", ["check", "--output=json", "ours"]);
            let check: Value = serde_json::from_slice(&check).unwrap();
            assert_eq!(
                (&check["check-errors"], check.get("corruptions"), check.get("leaks")),
                (&json!(0), None, None)
            );
            // The same writes make the same disk, and a file that is whole.
            let end = info(&lab.path("ours"))["virtual-size"].as_u64().unwrap() - (64 << 10);
            for disk in ["ours", "theirs"] {
                let last = format!("write -P 9 {end} 64k");
                tool(
                    folder,
                    "qemu-io",
                    ["-f", "qcow2", "-c", "write -P 7 1M 128k", "-c", &last, disk],
                );
                tool(folder, "qemu-img", ["check", "-q", disk]);
            }
            if size != "4T" {
                tool(folder, "qemu-img", ["compare", "-q", "ours", "theirs"]);
            }
        }
    }
    assert!(fs::read(lab.path("disk.raw")).unwrap() == content(4 << 20, 1), "the base was written");
}

// Promise: P25 - An existing overlay is reused with its writes.
#[test]
fn it_is_used_again_and_made_anew_only_when_asked() {
    let lab = Lab::new();
    let (id, base) = lab.base(1);
    let vm = lab.path("vm");
    assert_eq!(lab.overlay(&id, "vm", &[])["made"], "new");
    guest_writes(&vm, 7);
    assert_eq!(lab.overlay(&id[..12], "vm", &[])["made"], "reused");
    assert!(guest_reads(&vm, 7), "what the machine wrote is gone");
    assert_eq!(lab.overlay(&id, "vm", &["--fresh"])["made"], "afresh");
    assert!(!guest_reads(&vm, 7), "what the machine wrote is still there");
    assert!(fs::read(&base).unwrap() == content(4 << 20, 1), "the base was written");
    // The state after a power cut of an overlay that was never written to.
    fs::write(&vm, b"").unwrap();
    assert_eq!(lab.overlay(&id, "vm", &[])["made"], "afresh");
    tool(lab.folder.path(), "qemu-img", ["check", "-q", "vm"]);
    // The next process for the same path removes the remains of a killed one.
    let left = lab.run("list", ["--json"]).good().json()[0]["overlays"][0].clone();
    assert_eq!(left, vm.to_str().unwrap());
    assert!(!fs::read_dir(lab.folder.path()).unwrap().any(|entry| {
        entry.unwrap().file_name().to_str().unwrap().starts_with(".thimble-overlay")
    }));
}

// Promise: P25 - An overlay never shrinks.
#[test]
fn it_grows_when_asked_and_never_shrinks() {
    let lab = Lab::new();
    let (id, _) = lab.base(1);
    let vm = lab.path("vm");
    assert_eq!(lab.overlay(&id, "vm", &["--grow", "1MiB"])["virtual_bytes"], 4 << 20);
    guest_writes(&vm, 7);
    let grown = lab.overlay(&id, "vm", &["--grow", "1GiB"]);
    assert_eq!((&grown["made"], &grown["virtual_bytes"]), (&json!("grown"), &json!(1 << 30)));
    assert_eq!(info(&vm)["virtual-size"], 1 << 30);
    assert!(guest_reads(&vm, 7));
    for flags in [&[][..], &["--grow", "1MiB"], &["--grow", "1GiB"]] {
        let again = lab.overlay(&id, "vm", flags);
        assert_eq!((&again["made"], &again["virtual_bytes"]), (&json!("reused"), &json!(1 << 30)));
    }
    assert_eq!(info(&vm)["virtual-size"], 1 << 30);
    assert_eq!(lab.overlay(&id, "odd", &["--grow", "5000001"])["virtual_bytes"], 5_000_192);
    let place = lab.path("huge");
    lab.run("overlay", [&id, place.to_str().unwrap(), "--grow", "5TiB"]).bad(&["4 TiB"]);
    assert!(!place.exists());
}

/// While a machine runs on it, an overlay is not replaced, and growing it fails with QEMU's own
/// words.
#[test]
fn an_overlay_in_use_is_left_alone() {
    let lab = Lab::new();
    let (id, _) = lab.base(1);
    lab.overlay(&id, "vm", &[]);
    let vm = lab.path("vm");
    let mut machine = Command::new("qemu-io")
        .args(["-f", "qcow2"])
        .arg(&vm)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = machine.stdin.take().unwrap();
    input.write_all(b"write -P 7 1M 128k\n").unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(machine.stdout.take().unwrap());
    while !line.contains("wrote") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "qemu-io ended");
    }
    lab.run("overlay", ["--fresh", &id, vm.to_str().unwrap()])
        .bad(&["a machine runs on this overlay"]);
    lab.run("overlay", ["--grow", "1GiB", &id, vm.to_str().unwrap()])
        .bad(&["qemu-img resize", "lock"]);
    assert_eq!(lab.overlay(&id, "vm", &[])["made"], "reused");
    drop(input);
    assert!(machine.wait().unwrap().success());
    assert!(guest_reads(&vm, 7));
    assert_eq!(lab.overlay(&id, "vm", &["--fresh"])["made"], "afresh");
}

#[test]
fn nothing_else_is_overwritten() {
    let lab = Lab::new();
    let (one, _) = lab.base(1);
    let (two, _) = lab.base(2);
    let place = lab.path("place");
    fs::write(&place, b"somebody's thesis").unwrap();
    let run =
        |flags: &[&str]| lab.run("overlay", [&*one, place.to_str().unwrap()].iter().chain(flags));
    run(&[]).bad(&["something else than an overlay"]);
    run(&["--fresh"]).bad(&["something else than an overlay"]);
    assert_eq!(fs::read(&place).unwrap(), b"somebody's thesis");
    fs::remove_file(&place).unwrap();
    tool(lab.folder.path(), "qemu-img", ["create", "-q", "-f", "qcow2", "place", "1M"]);
    run(&["--fresh"]).bad(&["no overlay"]);
    tool(
        lab.folder.path(),
        "qemu-img",
        ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "disk-1", "place"],
    );
    run(&["--fresh"]).bad(&["no base of a cache"]);
    fs::remove_file(&place).unwrap();
    lab.overlay(&two, "place", &[]);
    run(&[]).bad(&["an overlay of", &two, "--fresh"]);
    assert_eq!(lab.overlay(&one, "place", &["--fresh"])["made"], "afresh");
    // The other base is free again, and this one is not.
    lab.run("remove", [&two]).good();
    lab.run("remove", [&one]).bad(&["in use by overlay", place.to_str().unwrap()]);
    let within = lab.cache.join("vm");
    lab.run("overlay", [&one, within.to_str().unwrap()]).bad(&["do not belong into the cache"]);
    lab.run("overlay", [&one, lab.path("nowhere/vm").to_str().unwrap()])
        .bad(&["nowhere", "No such file"]);
    lab.run("overlay", ["abcdef", place.to_str().unwrap()])
        .bad(&["there is no base abcdef", "image list"]);
}

#[test]
fn many_processes_make_one_overlay() {
    let lab = Lab::new();
    let (id, _) = lab.base(1);
    let vm = lab.path("vm");
    let all: Vec<_> = (0..8)
        .map(|_| Running::start(lab.command("overlay").args(["--json", &id]).arg(&vm)))
        .collect();
    let made: Vec<_> =
        all.into_iter().map(|one| one.end().good().json()[0]["made"].clone()).collect();
    assert_eq!(made.iter().filter(|made| **made == "new").count(), 1, "{made:?}");
    assert_eq!(made.iter().filter(|made| **made == "reused").count(), 7, "{made:?}");
}

// Promise: P25 - A base in use is not removed.
/// A base in use is not removed, and its users are named; an overlay that was deleted by hand is
/// forgotten.
#[test]
fn a_base_in_use_is_not_removed() {
    let lab = Lab::new();
    let (id, base) = lab.base(1);
    for index in 0..12 {
        lab.overlay(&id, &format!("vm-{index}"), &[]);
    }
    lab.run("remove", [&id]).bad(&[
        "in use by overlays",
        lab.path("vm-0").to_str().unwrap(),
        "and 4 more",
    ]);
    for index in 1..12 {
        fs::remove_file(lab.path(&format!("vm-{index}"))).unwrap();
    }
    let listed = lab.run("list", ["--json"]).good().json();
    assert_eq!(listed[0]["overlays"], json!([lab.path("vm-0")]));
    lab.run("remove", [&id]).bad(&["in use by overlay ", "vm-0"]);
    assert!(base.exists());
    fs::remove_file(lab.path("vm-0")).unwrap();
    lab.run("remove", [&id]).good();
    lab.assert_only(0);
    lab.run("remove", [&id]).bad(&["there is no base"]);
}

// Promise: P25 - A missing base is reported with its overlays and restored by `add`.
#[test]
fn a_base_deleted_under_overlays_is_named_with_them_and_comes_back() {
    let lab = Lab::new();
    let (id, base) = lab.base(1);
    lab.overlay(&id, "vm", &[]);
    let vm = lab.path("vm");
    guest_writes(&vm, 7);
    for whole_folder in [false, true] {
        if whole_folder {
            fs::remove_dir_all(base.parent().unwrap()).unwrap();
        } else {
            fs::remove_file(&base).unwrap();
        }
        let words = ["is missing", vm.to_str().unwrap(), "image add", "brings it back"];
        lab.run("overlay", [&*id, lab.path("another").to_str().unwrap()]).bad(&words);
        let verified = lab.run("verify", ["--json"]);
        assert_eq!(verified.code, Some(1));
        let verified = verified.json();
        assert_eq!(
            (&verified[0]["state"], &verified[0]["overlays"]),
            (&json!("missing"), &json!([vm]))
        );
        let listed = lab.run("list", [""; 0]).good().out;
        assert!(listed.contains("MISSING") && listed.contains(vm.to_str().unwrap()), "{listed}");
        // What is needed is not forgotten, whatever is collected.
        lab.run("collect", ["--keep", "0"]).good();
        let healed = lab.add(&lab.path("disk-1"));
        assert_eq!((&healed["is_new"], &healed["healed"]), (&json!(true), &json!([vm])));
        assert_eq!(lab.overlay(&id, "vm", &[])["made"], "reused");
        assert!(guest_reads(&vm, 7));
        lab.assert_only(1);
    }
}

// Promise: P25 - A base with other content is reported with its overlays.
#[test]
fn a_base_with_other_content_is_named_with_its_overlays() {
    let lab = Lab::new();
    let (id, base) = lab.base(1);
    lab.overlay(&id, "vm", &[]);
    let vm = lab.path("vm");
    // A byte is changed with sufficient rights, and the times are set back.
    let before = fs::metadata(&base).unwrap().modified().unwrap();
    tool(lab.folder.path(), "chmod", ["u+w".as_ref(), base.as_os_str()]);
    let mut changed = fs::read(&base).unwrap();
    changed[3 << 20] ^= 1;
    fs::write(&base, &changed).unwrap();
    fs::File::options().write(true).open(&base).unwrap().set_modified(before).unwrap();
    let words = ["has other content", vm.to_str().unwrap(), "image add"];
    lab.run("overlay", [&*id, vm.to_str().unwrap()]).bad(&words);
    let verified = lab.run("verify", [&id]);
    assert_eq!(verified.code, Some(1));
    assert!(
        verified.out.contains("HAS FAULTS") && verified.out.contains(vm.to_str().unwrap()),
        "{}",
        verified.out
    );
    assert_eq!(lab.add(&lab.path("disk-1"))["healed"], json!([vm]));
    lab.overlay(&id, "vm", &[]);
    lab.assert_only(1);
    // A change of times alone is not a change: the file is only read once more.
    fs::File::open(&base).unwrap().set_modified(before).unwrap();
    assert_eq!(lab.run("list", ["--json"]).good().json()[0]["state"], "touched");
    lab.overlay(&id, "vm", &[]);
    assert_eq!(lab.run("list", ["--json"]).good().json()[0]["state"], "whole");
}

#[test]
fn a_cache_that_was_moved_says_how_its_overlays_are_mended() {
    let mut lab = Lab::new();
    let (id, _) = lab.base(1);
    lab.overlay(&id, "vm", &[]);
    let vm = lab.path("vm");
    guest_writes(&vm, 7);
    fs::rename(&lab.cache, lab.path("elsewhere")).unwrap();
    lab.cache = lab.path("elsewhere");
    let verified = lab.run("verify", ["--json"]);
    assert_eq!(verified.code, Some(1));
    let verified = verified.json();
    assert_eq!((&verified[0]["state"], &verified[0]["overlays"]), (&json!("whole"), &json!([vm])));
    let why = verified[0]["findings"][0]["why"].as_str().unwrap();
    assert!(why.contains("was moved from"), "{why}");
    lab.run("overlay", [&*id, vm.to_str().unwrap()]).bad(&["was moved from", "qemu-img rebase"]);
    lab.run("remove", [&id]).bad(&["in use"]);
    // The command it gives is the cure.
    let command = why.split_once("this mends it: ").unwrap().1;
    tool(lab.folder.path(), "sh", ["-c", command]);
    lab.run("verify", [""; 0]).good();
    assert_eq!(lab.overlay(&id, "vm", &[])["made"], "reused");
    assert!(guest_reads(&vm, 7));
}

/// While one process makes overlays of a base, another one cannot remove it.
#[test]
fn a_base_is_not_removed_while_it_is_used() {
    let lab = Lab::new();
    let (id, base) = lab.base(1);
    for round in 0..20 {
        let vm = lab.path(&format!("vm-{round}"));
        let remove = Running::start(lab.command("remove").arg(&id));
        let made = Running::start(lab.command("overlay").arg(&id).arg(&vm)).end();
        let removed = remove.end();
        // In either order, there is never an overlay without a base.
        if made.code == Some(0) {
            assert_eq!(removed.code, Some(1), "{removed:?}");
            assert!(base.exists());
            fs::remove_file(&vm).unwrap();
        } else {
            assert!(made.err.contains("there is no base"), "{made:?}");
            assert!(!vm.exists());
            lab.add(&lab.path("disk-1"));
        }
    }
    until("its removal", || lab.run("remove", [&id]).code == Some(0));
}
