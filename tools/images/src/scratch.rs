//! Folders for work that is not done yet.
//!
//! Such a folder's name begins with the id whose lock its maker holds, and ends in 128 random bits.
//! It is removed when its maker drops it; what a killed maker left is removed by the next one who
//! holds the lock of that id, and by `collect`, which takes that lock for it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Result, files, id::BaseId};

#[derive(Debug)]
pub(crate) struct Scratch(Option<PathBuf>);

impl Scratch {
    /// Makes one. The caller holds the exclusive lock of `id`.
    pub(crate) fn new(scratch: &Path, id: &BaseId) -> Result<Self> {
        let path = name(scratch, id);
        fs::create_dir(&path).map_err(Error::io("making", &path))?;
        Ok(Self(Some(path)))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// Gives the folder its name in the cache, with all that is in it; it stays there from now on.
    pub(crate) fn rename(mut self, to: &Path) -> Result<()> {
        if let Some(path) = &self.0 {
            fs::rename(path, to).map_err(Error::io("renaming to", to))?;
        }
        self.0 = None;
        Ok(())
    }

    /// Takes a folder out of the cache, at once; it is removed when this is dropped.
    pub(crate) fn take_in(scratch: &Path, id: &BaseId, folder: &Path) -> Result<Self> {
        let path = name(scratch, id);
        fs::rename(folder, &path).map_err(Error::io("renaming", folder))?;
        Ok(Self(Some(path)))
    }
}

fn name(scratch: &Path, id: &BaseId) -> PathBuf {
    scratch.join(format!("{id}.{}", files::unique()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // The next operation removes the remains.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Removes what earlier holders of the lock of `id` left. The caller holds it.
pub(crate) fn tidy(scratch: &Path, id: &BaseId) -> Result<()> {
    for name in files::names(scratch)? {
        if owner(&name) == Some(*id) {
            let path = scratch.join(name);
            fs::remove_dir_all(&path).map_err(Error::io("removing", &path))?;
        }
    }
    Ok(())
}

/// Whose lock a scratch folder of this name is made under.
pub(crate) fn owner(name: &str) -> Option<BaseId> {
    name.split_once('.')?.0.parse().ok()
}
