//! The last good reading, in a file.
//!
//! One line of text: the kernel's id of this start of the machine, the wall clock (nanoseconds
//! since 1970), and `CLOCK_BOOTTIME` (nanoseconds). It is written when the wall clock was set, not
//! as time passes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::reading::ClockReading;

/// The kernel's id of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A reading is kept anew when the wall clock was set, or slewed, by this amount.
const KEEP_BEYOND: Duration = Duration::from_millis(500);

/// See the module.
pub struct ReadingFile {
    path: PathBuf,
    /// The reading in the file.
    kept: Mutex<Option<ClockReading>>,
}

impl ReadingFile {
    /// The file at `path`, which may be absent. One that cannot be read, or is of another start of
    /// the machine, counts as absent.
    pub fn open(path: PathBuf) -> Self {
        let kept = boot_id().and_then(|boot| kept_reading(&path, &boot));
        Self { path, kept: Mutex::new(kept) }
    }

    /// The reading in the file.
    pub fn reading(&self) -> Option<ClockReading> {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the last reading at which the wall clock was right, if it differs from the one that is
    /// kept. Blocks when it writes.
    pub fn keep(&self, good: ClockReading) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |kept: &ClockReading| kept.set_between(&good).unsigned_abs() <= KEEP_BEYOND.as_nanos();
        if kept.as_ref().is_some_and(same) {
            return;
        }
        let Some(boot) = boot_id() else { return };
        let text = reading_text(&boot, &good);
        match disk::replace_file(&self.path, text.as_bytes(), disk::Readers::Owner) {
            Ok(()) => *kept = Some(good),
            // A full disk, say, of which others report: the next call tries again.
            Err(error) => tracing::debug!(%error, "cannot keep a reading of the clock"),
        }
    }
}

fn boot_id() -> Option<String> {
    fs::read_to_string(BOOT_ID).ok().map(|boot| boot.trim().to_owned())
}

fn reading_text(boot: &str, reading: &ClockReading) -> String {
    format!("{boot} {} {}\n", reading.wall_ns, reading.boot.as_nanos())
}

fn kept_reading(path: &Path, boot: &str) -> Option<ClockReading> {
    let text = fs::read_to_string(path).ok()?;
    let mut parts = text.split_whitespace();
    if parts.next()? != boot {
        return None;
    }
    let mut number = || parts.next()?.parse::<u64>().ok();
    Some(ClockReading { wall_ns: number()?, boot: Duration::from_nanos(number()?) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reading_of_another_start_of_the_machine_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clock-reading.txt");
        assert_eq!(kept_reading(&path, "this"), None);
        let reading = ClockReading { wall_ns: 7_000, boot: Duration::from_nanos(5_000) };
        let write = |text: &str| fs::write(&path, text).unwrap();
        write(&reading_text("this", &reading));
        assert_eq!(kept_reading(&path, "this"), Some(reading));
        assert_eq!(kept_reading(&path, "other"), None);
        for text in ["", "this", "this 7000", "this 7000 x"] {
            write(text);
            assert_eq!(kept_reading(&path, "this"), None, "{text}");
        }
    }

    #[test]
    fn reading_is_written_when_the_clock_was_set_and_not_as_time_passes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clock-reading.txt");
        let file = ReadingFile::open(path.clone());
        let at = |wall: u64, boot: u64| ClockReading {
            wall_ns: wall * 1_000_000_000,
            boot: Duration::from_secs(boot),
        };
        file.keep(at(1_000, 10));
        assert_eq!(ReadingFile::open(path.clone()).reading(), Some(at(1_000, 10)));
        file.keep(at(1_500, 510));
        assert_eq!(ReadingFile::open(path.clone()).reading(), Some(at(1_000, 10)));
        file.keep(at(1_502, 511));
        assert_eq!(ReadingFile::open(path).reading(), Some(at(1_502, 511)));
    }
}
