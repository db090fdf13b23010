//! A file system that is full: words, and nothing left.

use std::{fs, path::PathBuf, process::Command};

use crate::kit::{Lab, PROGRAM, Run, names, pack};

/// A small file system in memory, gone with its test.
struct Small(PathBuf);

impl Small {
    /// `None` where none can be mounted, which was told.
    fn mount(lab: &Lab, size: &str) -> Option<Self> {
        let place = lab.path("small");
        fs::create_dir(&place).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "images"])
            .arg(&place)
            .output();
        if mounted.is_ok_and(|run| run.status.success()) {
            return Some(Self(place));
        }
        testing::missing("no tmpfs can be mounted: run as root");
        None
    }

    fn free_bytes(&self) -> u64 {
        let room = rustix::fs::statvfs(&self.0).unwrap();
        room.f_bavail * room.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_disk_that_does_not_fit_leaves_nothing() {
    let mut lab = Lab::new();
    let Some(small) = Small::mount(&lab, "24m") else { return };
    lab.cache = small.0.join("cache");
    let fits = pack(&lab.disk("fits", 6 << 20, 1), "zst");
    let too_large = lab.disk("large", 60 << 20, 2);
    let packed = pack(&too_large, "zst");
    let id = lab.add(&fits)["id"].as_str().unwrap().to_owned();
    lab.assert_only(1);
    let free = small.free_bytes();
    for image in [&packed, &too_large] {
        lab.run("add", [image]).bad(&["are free", "were needed so far", "image collect"]);
        lab.assert_only(1);
        assert!(
            small.free_bytes().abs_diff(free) <= 16 << 10,
            "{} of {free} bytes are free",
            small.free_bytes()
        );
    }
    // qemu-img is stopped, or fails, with its file removed.
    lab.run("add", ["--compressed".as_ref(), packed.as_os_str()]).bad(&["are free"]);
    lab.assert_only(1);
    // A reserve is kept for others.
    let another = lab.disk("another", 6 << 20, 3);
    let mut command = Command::new(PROGRAM);
    command.args(["add", "--reserve", "22MiB", "--cache"]).arg(&lab.cache).arg(&another);
    Run::new(command.output().unwrap()).bad(&["22 MiB are kept free (--reserve)"]);
    lab.assert_only(1);
    // Full to the last byte: what is there is used, and can be removed.
    let filler = small.0.join("filler");
    let _ = fs::write(&filler, vec![1; 24 << 20]);
    lab.run("overlay", [id.as_ref(), lab.path("vm").as_os_str()]).good();
    fs::remove_file(lab.path("vm")).unwrap();
    lab.run("remove", [&id]).good();
    assert_eq!(names(&lab.cache.join("bases")), [""; 0]);
}
