//! Disk queries of the round loop.

use std::{fmt, io, path::PathBuf};

/// The disk that holds the node's data.
pub trait DiskProbe: fmt::Display + Send {
    /// Bytes that this process may still use.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Writes a byte and removes it again.
    fn write(&self) -> io::Result<()>;
}

/// The file system of a folder.
#[derive(Clone, Debug)]
pub struct Volume(pub PathBuf);

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl DiskProbe for Volume {
    fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.0)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn write(&self) -> io::Result<()> {
        let probe = self.0.join(".writable");
        std::fs::write(&probe, b"probe")?;
        std::fs::remove_file(&probe)
    }
}
