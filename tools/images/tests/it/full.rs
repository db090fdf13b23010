//! A file system that is full: words, and nothing left.

use std::{fs, process::Command};

use crate::kit::{Lab, PROGRAM, Run, names, pack};
use testing::SmallDisk;

// Promise: P25 - An image that does not fit the file system leaves nothing.
#[test]
fn a_disk_that_does_not_fit_leaves_nothing() {
    let mut lab = Lab::new();
    let Some(small) = SmallDisk::mount(&lab.path("small"), "24m") else { return };
    lab.cache = small.path().join("cache");
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
    let filler = small.path().join("filler");
    let _ = fs::write(&filler, vec![1; 24 << 20]);
    lab.run("overlay", [id.as_ref(), lab.path("vm").as_os_str()]).good();
    fs::remove_file(lab.path("vm")).unwrap();
    lab.run("remove", [&id]).good();
    assert_eq!(names(&lab.cache.join("bases")), [""; 0]);
}
