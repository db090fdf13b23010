//! The built images by role, and their paths.
//!
//! ```text
//! CACHE/bases/ID/disk.raw       the disk, a base like any other
//! CACHE/machines/ID/kernel      what QEMU starts: the distribution's kernel,
//! CACHE/machines/ID/initrd      the modules it needs to find the disk, and the first process
//! CACHE/machines/ID/image.json  what it is made of
//! CACHE/machines/node.json      the same of the newest for nodes (relay.json: for relays)
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use guest::config::Role;
use serde::{Deserialize, Serialize};

/// Version of the record.
pub const FORMAT: u32 = 1;
/// A record has less than 1 KiB.
const BYTES_MAX: u64 = 64 << 10;

/// An image that machines are started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Version of the record, [`FORMAT`].
    pub format: u32,
    /// Which program its machines run.
    pub role: Role,
    /// The base of their disks: `images::BaseId` as text.
    pub base: String,
    /// Folder of the kernel and the first file system in memory.
    pub folder: PathBuf,
    /// Behind the kernel, without what belongs to one machine only.
    pub command_line: String,
    /// Package and version of the kernel.
    pub kernel: String,
    /// SHA-256 of the program, to detect that a newer one was built since.
    pub program_sha256: String,
    /// The base's bytes, as a machine sees it. Disks are grown beyond it: what is behind the root
    /// is the machine's state, and the machine makes its file system as large as that.
    pub disk_bytes: u64,
}

impl Image {
    /// Path of the kernel that QEMU starts.
    pub fn kernel_file(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    /// The first file system in memory.
    pub fn initrd_file(&self) -> PathBuf {
        self.folder.join("initrd")
    }
}

/// Where the images of machines are in a cache.
pub fn folder(cache: &Path) -> PathBuf {
    cache.join("machines")
}

/// The newest image for a role; `None` when none was built.
pub fn newest(cache: &Path, role: Role) -> Result<Option<Image>> {
    let path = record(cache, role);
    let read = || -> Result<Image> {
        let size = fs::metadata(&path)?.len();
        ensure!(size <= BYTES_MAX, "it has {size} bytes");
        let image: Image = serde_json::from_slice(&fs::read(&path)?)?;
        ensure!(
            image.format == FORMAT,
            "its format is {}; this program knows {FORMAT}",
            image.format
        );
        Ok(image)
    };
    if !path.exists() {
        return Ok(None);
    }
    let words = || {
        format!("reading {}; make the image again with: thimble-lab image build", path.display())
    };
    read().map(Some).with_context(words)
}

/// The record of the newest image for a role.
pub(crate) fn record(cache: &Path, role: Role) -> PathBuf {
    folder(cache).join(match role {
        Role::Node => "node.json",
        Role::Relay => "relay.json",
    })
}
