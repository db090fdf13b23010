//! Mounts of the machine.
//!
//! ```text
//! / first partition of the disk, read-only
//! /state second partition: the node's data, and /tmp
//! /run         in memory, at most 1 MiB
//! ```

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom},
    path::Path,
};

use anyhow::{Context, Result};
use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount},
};

use super::{STATE_DEVICE, print_line};

/// Makes an ext4 file system larger: EXT4_IOC_RESIZE_FS of the kernel's uapi.
const RESIZE: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<u64>(b'f', 16);
/// A part of this of the disk may stay unused: tables, and the end of it.
const GROWTH_SHARE: u64 = 16;

/// The kernel's own.
pub(super) fn kernel() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(target)?;
        match mount(kind, target, kind, MountFlags::NOSUID, None) {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(error).with_context(|| format!("mounting {target}")),
        }
    }
    Ok(())
}

/// Mounts `/run` in memory and the node's disk on `/state`, and grows its file system to the disk.
pub(super) fn state() -> Result<()> {
    // Compiled modules of the node are executed from /state.
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/run", "tmpfs", plain, Some(c"size=1m,mode=755")).context("mounting /run")?;
    // A disk error stops the machine: clients would trust a node that continues after one.
    mount(STATE_DEVICE, "/state", "ext4", plain | MountFlags::NOATIME, Some(c"errors=panic"))
        .with_context(|| format!("mounting {STATE_DEVICE}"))?;
    if let Err(error) = grow() {
        // The node has less room than its disk.
        print_line(&format!("the state cannot be made as large as the disk: {error:#}"));
    }
    let temporary = Path::new("/state/tmp");
    // Remains of an earlier run are not needed.
    let _ = fs::remove_dir_all(temporary);
    fs::create_dir_all(temporary)?;
    fs::set_permissions(temporary, std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    mount_bind(temporary, "/tmp").context("mounting /tmp")
}

/// Makes the file system of the state as large as its part of the disk; the kernel does it while it
/// is in use.
fn grow() -> Result<()> {
    let bytes = File::open(STATE_DEVICE)?.seek(SeekFrom::End(0))?;
    let state = File::open("/state")?;
    let now = rustix::fs::fstatvfs(&state)?;
    let blocks = bytes / now.f_bsize;
    if now.f_blocks < blocks - blocks / GROWTH_SHARE {
        // SAFETY: the request reads a number of blocks, and that is what it is given.
        unsafe { rustix::ioctl::ioctl(&state, rustix::ioctl::Setter::<RESIZE, u64>::new(blocks)) }?;
    }
    Ok(())
}

/// Everything on the disk, and no longer in use.
pub(super) fn end() {
    rustix::fs::sync();
    for target in ["/tmp", "/state"] {
        let _ = unmount(target, UnmountFlags::empty());
    }
    rustix::fs::sync();
}
