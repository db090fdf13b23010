//! A lock that one process holds on a file or a folder.

use std::{
    fs::{File, TryLockError},
    io,
};

/// A lock held for the lifetime of this value. The kernel releases it however the process ends.
///
/// It is released explicitly, not by closing the file: a child that was just forked has a copy of
/// every descriptor until it executes its program, and the lock would outlive its holder until
/// then.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// The lock of this file or folder; `None` if another process holds it.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn take(handle: File) -> io::Result<Option<Self>> {
        match handle.try_lock() {
            Ok(()) => Ok(Some(Self(handle))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It fails for descriptors only that are none.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_holder_though_a_child_that_was_forked_still_has_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let held = Lock::take(open()).unwrap().unwrap();
        assert!(Lock::take(open()).unwrap().is_none());
        // As a child has it before it executes its program.
        let copy = held.file().try_clone().unwrap();
        drop(held);
        assert!(Lock::take(open()).unwrap().is_some());
        drop(copy);
    }
}
