//! Files of the operating system: which one it is, whether it changed, and small files that are
//! written whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Clocks of file systems tick as rarely as every two seconds (FAT, some servers), and a change
/// within the tick of the last one leaves the time as it is.
const SETTLED_NS: i128 = 3_000_000_000;

/// Identity of a file and of its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mtime_ns: i128,
    pub(crate) ctime_ns: i128,
}

impl Identity {
    pub(crate) fn from_metadata(metadata: &fs::Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            mtime_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a change from now on would show in the times: the last one is long enough ago, by a
    /// clock that is not behind it. Only the ctime is checked, as no program can set it.
    pub(crate) fn is_settled(&self) -> bool {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
        now - self.ctime_ns > SETTLED_NS
    }
}

/// Opens a regular file for reading, and nothing else: a FIFO would wait for ever.
pub(crate) fn open_regular(path: &Path) -> Result<(File, fs::Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(Error::io("opening", path))?;
    let metadata = file.metadata().map_err(Error::io("looking at", path))?;
    if !metadata.is_file() {
        return Err(Error::refused(path, "this is no regular file; copy its content into one"));
    }
    Ok((file, metadata))
}

/// Makes what was renamed, made or removed in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("syncing", path))
}

pub(crate) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io("making", path))
}

/// The content of a file that may be missing, and that is at most so long.
pub(crate) fn read_small(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let opened = cli::if_there(File::open(path)).map_err(Error::io("opening", path))?;
    let Some(file) = opened else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(Error::io("reading", path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::refused(
            path,
            format!("this file of the cache is longer than {bytes_max} bytes"),
        ));
    }
    Ok(Some(bytes))
}

/// The names in a folder that may be missing, sorted; names that are not text are ignored.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = cli::if_there(fs::read_dir(folder)).map_err(Error::io("reading", folder))?;
    let mut names = Vec::new();
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(Error::io("reading", folder))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// 128 random bits: names that no thread, process, machine or restart makes twice.
pub(crate) fn unique() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}
