//! Progress on standard error, for work of more than a second: how far, how fast.

use std::{
    io::{IsTerminal, Write},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use accounting::format_size;

use crate::{Result, Settings, Stop};

const FIRST_AFTER: Duration = Duration::from_secs(1);
/// On a terminal a line is rewritten; in a log each is one more.
const EVERY_ON_TERMINAL: Duration = Duration::from_millis(500);
const EVERY_IN_LOG: Duration = Duration::from_secs(5);

/// One piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    /// Bytes of the file to read, 0 where that is unknown.
    total: u64,
    read: AtomicU64,
    made: AtomicU64,
    began: Instant,
    said: Mutex<Option<Instant>>,
    talks: bool,
    terminal: bool,
    stop: Stop,
}

impl Progress {
    /// `doing` as in "unpacking".
    pub(crate) fn new(doing: &str, path: &Path, total: u64, settings: &Settings) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self {
            what: format!("{doing} {}", name.escape_debug()),
            total,
            read: AtomicU64::new(0),
            made: AtomicU64::new(0),
            began: Instant::now(),
            said: Mutex::new(None),
            talks: settings.talks,
            terminal: std::io::stderr().is_terminal(),
            stop: settings.stop.clone(),
        }
    }

    /// So much more was read of the file, and made of the disk.
    pub(crate) fn advance(&self, read: u64, made: u64) -> Result<()> {
        self.read.fetch_add(read, Ordering::Relaxed);
        self.made.fetch_add(made, Ordering::Relaxed);
        self.stop.check()?;
        self.report();
        Ok(())
    }

    /// So much was made of the disk in all.
    pub(crate) fn made(&self, bytes: u64) {
        self.made.store(bytes, Ordering::Relaxed);
        self.report();
    }

    /// Bytes of the file so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Prints the progress, when it is due.
    fn report(&self) {
        let elapsed = self.began.elapsed();
        if !self.talks || elapsed < FIRST_AFTER {
            return;
        }
        let every = if self.terminal { EVERY_ON_TERMINAL } else { EVERY_IN_LOG };
        let Ok(mut said) = self.said.try_lock() else { return };
        if said.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        *said = Some(Instant::now());
        let (read, made) = (self.read_bytes(), self.made.load(Ordering::Relaxed));
        let mut words = format!("image: {}", self.what);
        if read > 0 {
            words.push_str(&format!(": {}", format_size(read)));
        }
        if self.total > 0 && read > 0 {
            let percent = (read as f64 / self.total as f64 * 100.0).min(100.0);
            words.push_str(&format!(" of {} ({percent:.0} %)", format_size(self.total)));
        }
        if made > 0 {
            words.push_str(&format!(
                "{} {} of disk",
                if read > 0 { "," } else { ":" },
                format_size(made)
            ));
        }
        let rate = made.max(read) as f64 / elapsed.as_secs_f64();
        words.push_str(&format!(", {:.0} MB/s, {:.0} s", rate / 1e6, elapsed.as_secs_f64()));
        let mut out = std::io::stderr().lock();
        // Standard error may be closed.
        let _ =
            if self.terminal { write!(out, "\r\x1b[K{words}") } else { writeln!(out, "{words}") };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.said.lock().is_ok_and(|said| said.is_some()) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
