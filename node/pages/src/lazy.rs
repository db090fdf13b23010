//! A file of a memory that is open only while it is in use.
//!
//! Of a hundred thousand memories few are in use at a time, and a process has fewer descriptors
//! than that. Files are therefore opened when mapped or read: a layout only names them, and
//! concurrent users share the descriptor.
//!
//! A file that is about to be unlinked while a layout still names it is opened before, and stays
//! open until the last such layout is dropped ([`PageFile::hold_open`]).

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
};

use crate::{
    PagesError, Result,
    files::{Name, ReaderDir},
    store::lock,
};

/// A file of a memory, to be read or mapped.
#[derive(Debug)]
pub struct PageFile {
    /// Where it is opened; none of a file that is kept from the beginning.
    dir: Option<(Arc<ReaderDir>, Name)>,
    handle: Mutex<Handle>,
}

#[derive(Debug, Default)]
struct Handle {
    used: Weak<File>,
    kept: Option<Arc<File>>,
    /// Its name went and it could not be kept.
    is_gone: bool,
}

impl PageFile {
    pub(crate) fn new(dir: &Arc<ReaderDir>, name: Name) -> Self {
        Self { dir: Some((Arc::clone(dir), name)), handle: Mutex::default() }
    }

    /// One that is open already, and stays open.
    pub fn from_file(file: Arc<File>) -> Self {
        Self { dir: None, handle: Mutex::new(Handle { kept: Some(file), ..Handle::default() }) }
    }

    /// The file, open until its last holder drops it.
    ///
    /// # Errors
    /// The error of opening it, most likely too many open files.
    pub fn open(&self) -> Result<Arc<File>> {
        self.open_locked(&mut lock(&self.handle))
    }

    fn open_locked(&self, handle: &mut Handle) -> Result<Arc<File>> {
        if let Some(file) = handle.kept.clone().or_else(|| handle.used.upgrade()) {
            return Ok(file);
        }
        let Some((dir, name)) = self.dir.as_ref().filter(|_| !handle.is_gone) else {
            return Err(PagesError::Gone { path: self.path() });
        };
        let file = Arc::new(dir.open_read(&dir.path_of(*name))?);
        handle.used = Arc::downgrade(&file);
        Ok(file)
    }

    /// Its name is about to go: it stays open as long as a layout names it.
    ///
    /// # Errors
    /// The errors of opening it, and too many open files if the maximum are kept open already
    /// ([`ReaderDir::reserve_unlinked`]).
    pub(crate) fn hold_open(&self) -> Result<()> {
        let Some((dir, name)) = &self.dir else { return Ok(()) };
        let mut handle = lock(&self.handle);
        if handle.kept.is_some() {
            return Ok(());
        }
        if !dir.reserve_unlinked() {
            let error = io::Error::from_raw_os_error(libc::EMFILE);
            return Err(PagesError::io("keep open", &dir.path_of(*name), error));
        }
        let file = self.open_locked(&mut handle).inspect_err(|_| dir.release_unlinked())?;
        handle.kept = Some(file);
        Ok(())
    }

    /// Unlinks the file for good: it cannot be opened any more. Its readers were given up, and no
    /// descriptor is left to keep it.
    pub(crate) fn mark_gone(&self) {
        lock(&self.handle).is_gone = true;
    }

    /// Whether it was given up.
    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.handle).is_gone
    }

    /// Whether its descriptor gives no right to write.
    pub fn is_read_only(&self) -> bool {
        self.dir.is_some()
    }

    /// For errors.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.as_ref().map_or_else(PathBuf::new, |(dir, name)| dir.path_of(*name))
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some((dir, _)) = &self.dir
            && lock(&self.handle).kept.is_some()
        {
            dir.release_unlinked();
        }
    }
}
