//! In the first file system: find the disk, and move there.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount, mount_move};

use super::{IN_ROOT, LATE, ROOT_DEVICE, Shutdown, modules, mounts};

/// A disk is there a moment after its driver.
const DISK_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Where the root is mounted before it is the root.
const NEW_ROOT: &str = "/root";
/// Mounts that move to the new root.
const KERNEL_MOUNTS: [&str; 3] = ["/dev", "/proc", "/sys"];

pub(super) fn run() -> Result<Shutdown> {
    mounts::kernel()?;
    modules::load()?;
    wait_for(Path::new(ROOT_DEVICE))?;
    fs::create_dir_all(NEW_ROOT)?;
    mount(ROOT_DEVICE, NEW_ROOT, "ext4", MountFlags::RDONLY | MountFlags::NODEV, None)
        .with_context(|| format!("mounting the root, {ROOT_DEVICE}"))?;
    for from in KERNEL_MOUNTS {
        mount_move(from, format!("{NEW_ROOT}{from}")).with_context(|| format!("moving {from}"))?;
    }
    // What stays in the first file system takes memory for as long as the machine runs.
    empty(Path::new("/"));
    std::env::set_current_dir(NEW_ROOT)?;
    mount_move(".", "/").context("moving the root")?;
    rustix::process::chroot(".").context("changing the root")?;
    std::env::set_current_dir("/")?;
    // Comes back only if it could not be started.
    Err(Command::new(IN_ROOT).arg(LATE).exec())
        .with_context(|| format!("starting {IN_ROOT} from the root"))
}

fn wait_for(device: &Path) -> Result<()> {
    let deadline = Instant::now() + DISK_TIMEOUT;
    while !device.exists() {
        ensure!(
            Instant::now() < deadline,
            "there is no {} after {} s; is the machine's disk an image of thimble-lab image build?",
            device.display(),
            DISK_TIMEOUT.as_secs()
        );
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Removes the files below a folder of the first file system; other file systems are not entered.
fn empty(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if !kind.is_dir() {
            let _ = fs::remove_file(&path);
        } else if path != Path::new(NEW_ROOT)
            && !KERNEL_MOUNTS.iter().any(|mount| path == Path::new(mount))
        {
            empty(&path);
        }
    }
}
