//! Locks between threads and processes: `flock` on a file.
//!
//! A lock belongs to one opening of the file, so two threads exclude each other as two processes
//! do. The descriptor is closed when a child becomes another program (`O_CLOEXEC`), and the lock is
//! released explicitly before the descriptor is closed, so that a child that another thread is just
//! starting cannot hold it for a moment longer. The kernel releases it when its holder dies.
//!
//! The holder of an exclusive lock writes its process and the time into the file; a waiting process
//! reports them. A lock's file may be removed by its exclusive holder: after getting a lock, a
//! process checks whether the file is still the one of that name, and otherwise starts again.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Settings, files};

/// Time between two attempts: short compared with the long operations under a lock.
const TRY_EVERY: Duration = Duration::from_millis(10);
/// Waits shorter than this are not worth a line.
const SAID_AFTER: Duration = Duration::from_millis(500);
/// A holder's record is far shorter.
const HOLDER_BYTES_MAX: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Several at once: uses of a base.
    Shared,
    /// One: making and removing it.
    Exclusive,
}

/// Who holds an exclusive lock.
#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
    /// Two hosts can share a cache.
    host: String,
    since: String,
    doing: String,
}

impl Holder {
    fn new(doing: &str) -> Self {
        Self { pid: std::process::id(), host: host(), since: cli::now().0, doing: doing.to_owned() }
    }

    /// As in "waiting for ...".
    fn describe(&self) -> String {
        let Self { pid, host: on, since, doing } = self;
        let on = if *on == host() { String::new() } else { format!(" on {on}") };
        let who = match (*pid == std::process::id(), on.is_empty()) {
            (true, true) => "another thread of this process".to_owned(),
            _ => format!("process {pid}{on}"),
        };
        format!("{who}, which is {doing} since {since}")
    }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    mode: Mode,
}

impl Lock {
    /// Waits for the lock, until [`crate::Stop`] asks. `doing` is what the holder does, as in
    /// "unpacking x".
    pub(crate) fn take(path: &Path, mode: Mode, doing: &str, settings: &Settings) -> Result<Self> {
        let began = Instant::now();
        let mut said = None;
        loop {
            if let Some(lock) = Self::try_take(path, mode, doing)? {
                return Ok(lock);
            }
            if settings.talks && began.elapsed() >= SAID_AFTER {
                let words = holder(path)
                    .map_or_else(|| "others that use it".to_owned(), |it| it.describe());
                if said.as_ref() != Some(&words) {
                    eprintln!("image: waiting for {words}");
                    said = Some(words);
                }
            }
            settings.stop.check()?;
            thread::sleep(TRY_EVERY);
        }
    }

    /// `None` while others hold it.
    pub(crate) fn try_take(path: &Path, mode: Mode, doing: &str) -> Result<Option<Self>> {
        let fail = Error::io("locking", path);
        // Rust opens every file with O_CLOEXEC.
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(&fail)?;
        let operation = match mode {
            Mode::Shared => FlockOperation::NonBlockingLockShared,
            Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&file, operation) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(error) => return Err(fail(error.into())),
        }
        let mut lock = Self { file, path: path.to_owned(), mode };
        if !lock.is_current()? {
            return Ok(None);
        }
        if mode == Mode::Exclusive {
            lock.sign(doing).map_err(&fail)?;
        }
        Ok(Some(lock))
    }

    /// Whether the file still has its name.
    fn is_current(&self) -> Result<bool> {
        let own = self.file.metadata().map_err(Error::io("looking at", &self.path))?;
        let named = cli::if_there(fs::metadata(&self.path));
        let named = named.map_err(Error::io("looking at", &self.path))?;
        Ok(named.is_some_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())))
    }

    fn sign(&mut self, doing: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        match serde_json::to_vec(&Holder::new(doing)) {
            // The holder's record is informative only: a full disk must not prevent a cleanup.
            Ok(bytes) => drop(self.file.write_all(&bytes)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Removes the file with the lock, when it will not be needed soon.
    pub(crate) fn discard(self) {
        debug_assert_eq!(self.mode, Mode::Exclusive, "others may hold it");
        // The next holder recreates it; a file that remains is empty.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.mode == Mode::Exclusive {
            let _ = self.file.set_len(0);
        }
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Who holds it exclusively, where that is known.
fn holder(path: &Path) -> Option<Holder> {
    serde_json::from_slice(&files::read_small(path, HOLDER_BYTES_MAX).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::AsFd,
        process::Command,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        (folder, path)
    }

    #[test]
    fn threads_exclude_each_other_also_when_the_file_is_removed_each_time() {
        let (_folder, path) = place();
        let inside = AtomicU32::new(0);
        let rounds = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..20 {
                        let settings = Settings { talks: false, ..Settings::default() };
                        let lock =
                            Lock::take(&path, Mode::Exclusive, "testing", &settings).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        rounds.fetch_add(1, Ordering::SeqCst);
                        if round % 2 == 0 {
                            lock.discard();
                        }
                    }
                });
            }
        });
        assert_eq!(rounds.load(Ordering::SeqCst), 160);
    }

    // Promise: P25 - A child process does not inherit the lock of an image.
    #[test]
    fn a_child_does_not_inherit_the_lock() {
        let (_folder, path) = place();
        let lock = Lock::try_take(&path, Mode::Exclusive, "testing").unwrap().unwrap();
        let flags = rustix::io::fcntl_getfd(lock.file.as_fd()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        // A child that outlives the release of the lock, checked from outside, too.
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let held = fs::read_dir(format!("/proc/{}/fd", child.id()))
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .any(|target| target == path);
        drop(lock);
        let again = Lock::try_take(&path, Mode::Exclusive, "testing").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!held, "the child has the lock's descriptor");
        assert!(again.is_some(), "the lock is held although its holder gave it back");
    }

    #[test]
    fn shared_locks_go_together_and_the_holder_is_named() {
        let (_folder, path) = place();
        let one = Lock::try_take(&path, Mode::Shared, "using").unwrap().unwrap();
        let two = Lock::try_take(&path, Mode::Shared, "using").unwrap().unwrap();
        assert!(Lock::try_take(&path, Mode::Exclusive, "removing").unwrap().is_none());
        drop((one, two));
        let lock = Lock::try_take(&path, Mode::Exclusive, "unpacking x").unwrap().unwrap();
        assert!(Lock::try_take(&path, Mode::Shared, "using").unwrap().is_none());
        let words = holder(&path).unwrap().describe();
        assert!(
            words.contains("another thread of this process, which is unpacking x since 20"),
            "{words}"
        );
        let other = Holder { pid: 1, ..Holder::new("unpacking y") }.describe();
        assert!(other.starts_with("process 1, which is unpacking y"), "{other}");
        drop(lock);
        assert!(holder(&path).is_none());
    }
}
