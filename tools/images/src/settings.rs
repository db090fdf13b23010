//! Limits of a cache, and its stop request.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use accounting::{GIB, MIB};

use crate::{Error, Result};

/// Disks of test machines are a few GiB; a bomb is larger than any disk.
pub(crate) const LIMIT_BYTES_DEFAULT: u64 = 64 * GIB;
/// So that an image that does not fit does not take the last room from everything else.
pub(crate) const RESERVE_BYTES_DEFAULT: u64 = 512 * MIB;

/// See the module.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest disk of a base, in bytes as a machine sees it.
    pub limit_bytes: u64,
    /// Bytes that must stay free on the cache's file system while a base is made.
    pub reserve_bytes: u64,
    /// The program, found on the PATH unless it has a slash.
    pub qemu_img: PathBuf,
    /// Whether progress and waiting are reported on standard error.
    pub talks: bool,
    /// Ends work early.
    pub stop: Stop,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limit_bytes: LIMIT_BYTES_DEFAULT,
            reserve_bytes: RESERVE_BYTES_DEFAULT,
            qemu_img: "qemu-img".into(),
            talks: true,
            stop: Stop::default(),
        }
    }
}

/// A request to end, which work checks several times a second. Clones stop the same work.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes every later [`Stop::check`] fail.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    ///
    /// [`Error::Stopped`] once a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }
}
