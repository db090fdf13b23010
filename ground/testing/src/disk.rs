//! A small file system of a test's own, which can be full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A tmpfs; gone when it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of `size` (as mount takes it: `2m`; `1m,ro` is read-only) at a folder, which is
    /// created if absent. `None` where none can be mounted, which was reported by
    /// [`crate::missing`].
    #[track_caller]
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        let made = fs::create_dir_all(at).is_ok();
        if made && run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], at) {
            return Some(Self(at.to_owned()));
        }
        crate::missing("a tmpfs cannot be mounted: run as root, or with CAP_SYS_ADMIN");
        None
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Gives it another size, with all that is on it.
    ///
    /// # Panics
    ///
    /// If the operating system refuses.
    #[track_caller]
    pub fn resize(&self, size: &str) {
        assert!(run("mount", &["-o", &format!("remount,size={size}")], &self.0), "a remount");
    }

    /// Bytes that can still be written.
    ///
    /// # Panics
    ///
    /// If its state cannot be read.
    pub fn free_bytes(&self) -> u64 {
        let room = rustix::fs::statvfs(&self.0).expect("a file system reports its free space");
        room.f_bavail * room.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached at once: a process that is being ended may hold files open for a moment.
        let _ = run("umount", &["-l"], &self.0);
    }
}

fn run(program: &str, arguments: &[&str], at: &Path) -> bool {
    let output = Command::new(program).args(arguments).arg(at).output();
    output.is_ok_and(|output| output.status.success())
}
