//! A power cut: the file system forgets everything that was not synced. Needs root and a loop
//! device; says so and passes otherwise.
//!
//! An ext4 image is shut down in mid-use without flushing its journal (`EXT4_IOC_SHUTDOWN`, what
//! file system test suites use), mounted again, and the store reopened from the durable index that
//! survived. A missing fsync shows up here as a missing, short or stale file.

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pages::{MemoryId, PAGE_BYTES, PagesError};

use crate::common::*;

const SEED: u64 = 0x90_3e7;
const CUTS: u64 = 12;
/// `_IOR('X', 125, __u32)`.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Nothing is flushed, not even the journal.
const GOING_FLAGS_NOLOGFLUSH: u32 = 2;

struct Mount {
    image: PathBuf,
    at: PathBuf,
}

impl Mount {
    fn new(image: &Path, at: &Path) -> Option<Self> {
        let mounted = run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        mounted.then(|| Self { image: image.to_path_buf(), at: at.to_path_buf() })
    }

    fn cut_power(self) -> Self {
        self.shut_down();
        let (image, at) = (self.image.clone(), self.at.clone());
        drop(self);
        Self::new(&image, &at).expect("the file system mounts again")
    }

    /// From here on every access that needs the device fails.
    fn shut_down(&self) {
        let root = File::open(&self.at).unwrap();
        // SAFETY: the ioctl reads one u32, which lives until the call returns.
        let result =
            unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &GOING_FLAGS_NOLOGFLUSH) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.at));
    }
}

fn run(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A fresh ext4 of 96 MiB, or a message about why there is none.
fn mount(dir: &Path) -> Option<Mount> {
    let (image, at) = (dir.join("image"), dir.join("mount"));
    File::create(&image).unwrap().set_len(96 * MIB).unwrap();
    std::fs::create_dir(&at).unwrap();
    let made = run(Command::new("mkfs.ext4").arg("-q").arg(&image));
    let mount = made.then(|| Mount::new(&image, &at)).flatten();
    if mount.is_none() {
        testing::missing(
            "no ext4 on a loop device: run as root, with loop devices and mkfs.ext4 (e2fsprogs)",
        );
    }
    mount
}

// Promise: P6 - Canister memory survives a power cut on a loop device.
#[test]
fn a_power_cut_loses_nothing_that_a_durable_index_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut mount) = mount(dir.path()) else { return };
    let at = mount.at.clone();
    let mut rng = Rng::new(SEED);
    // On another file system, so that syncing the index does not by the way commit the journal that
    // the pages depend on.
    let index_file = IndexFile::new(dir.path());
    for _ in 0..CUTS {
        let (mut step, mut index) = index_file.load();
        let store = open(&at.join("pages"), &index).unwrap();
        let mut model = history(SEED, step);
        assert_same(&store, &model);
        for _ in 0..60 + rng.below(120) {
            step += 1;
            let change = change(SEED, step, &model);
            change_model(&mut model, &change, step);
            change_store(&store, &change, step);
            match rng.below(16) {
                0 => {
                    let ticket = store.begin_checkpoint().unwrap();
                    ticket.sync().unwrap();
                    merge(&mut index, &ticket.changed);
                    index_file.store(step, &index);
                    store.finish_checkpoint(ticket);
                }
                1..5 => {
                    store.fold(rng.below(64) * PAGE_BYTES).unwrap();
                }
                _ => {}
            }
        }
        drop(store);
        mount = mount.cut_power();
    }
    let (step, index) = index_file.load();
    let store = open(&at.join("pages"), &index).unwrap();
    assert_same(&store, &history(SEED, step));
    drop(store);
    drop(mount);
}

#[test]
fn a_sync_that_failed_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = mount(dir.path()) else { return };
    let path = mount.at.join("pages");
    let id = MemoryId(1);
    let mut index = Index::new();
    let store = open(&path, &index).unwrap();
    store.create(id, 64 * PAGE_BYTES).unwrap();
    put(&store, id, &[(0, 8)], 1).unwrap();
    checkpoint(&store, &mut index);
    put(&store, id, &[(4, 8)], 2).unwrap();
    let ticket = store.begin_checkpoint().unwrap();
    mount.shut_down();
    assert!(matches!(ticket.sync(), Err(PagesError::Io { .. })));
    // The kernel reports a lost page once. Asking again must not succeed.
    assert!(matches!(ticket.sync(), Err(PagesError::SyncLost)));
    assert!(matches!(store.begin_checkpoint(), Err(PagesError::SyncLost)));
    assert!(matches!(store.reserve(id, 1), Err(PagesError::SyncLost)));
    drop((ticket, store));

    let mount = mount.cut_power();
    let mut model = Model::from([(id, vec![0; 64])]);
    apply(&mut model, id, &[(0, 8)], 1);
    let store = open(&path, &index).unwrap();
    assert_same(&store, &model);
    drop(store);
    drop(mount);
}
