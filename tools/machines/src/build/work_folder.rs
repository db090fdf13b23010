//! Work folder of an image build: in the folder of the images, and removed afterwards in every
//! case.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use images::Stop;
use rustix::fs::{FlockOperation, flock};

/// Prefix of the names of these folders.
const PREFIX: &str = "building.";

pub(super) struct WorkFolder {
    machines: PathBuf,
    folder: PathBuf,
    stop: Stop,
    /// Held for as long as the folder is in use; an unlocked folder was left by a killed process.
    _lock: File,
}

impl WorkFolder {
    pub(super) fn new(machines: &Path, stop: Stop) -> Result<Self> {
        let make = || -> std::io::Result<(PathBuf, File)> {
            fs::create_dir_all(machines)?;
            remove_left(machines)?;
            let folder = machines.join(format!("{PREFIX}{:016x}", rand::random::<u64>()));
            fs::create_dir(&folder)?;
            let lock = File::open(&folder)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok((folder, lock))
        };
        let (folder, _lock) =
            make().with_context(|| format!("making a folder in {}", machines.display()))?;
        Ok(Self { machines: machines.to_owned(), folder, stop, _lock })
    }

    /// Folder of the cache, which holds the folder of the machines' images.
    pub(super) fn cache(&self) -> &Path {
        self.machines.parent().unwrap_or(&self.machines)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a folder of this name, if there is none, and returns its path.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Returns an error once a stop was requested.
    pub(super) fn check(&self) -> Result<()> {
        Ok(self.stop.check()?)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the folders of processes that were killed.
fn remove_left(machines: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(machines)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Ok(folder) = File::open(entry.path())
            && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Everything in a folder on the disk.
pub(super) fn sync(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        File::open(entry.path())?.sync_all()?;
    }
    Ok(File::open(folder)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_build_left_is_removed_and_what_another_one_uses_stays() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{PREFIX}1"));
        fs::create_dir_all(left.join("root")).unwrap();
        let first = WorkFolder::new(folder.path(), Stop::default()).unwrap();
        assert!(!left.exists());
        let second = WorkFolder::new(folder.path(), Stop::default()).unwrap();
        assert!(first.folder("x").unwrap().exists() && second.folder("x").unwrap().exists());
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
