//! The relay's clock: the wall clock, unless it has jumped ([`wall_clock::SteadyClock`]).
//!
//! The store judges the age of messages of an earlier process by it, and only when it has been
//! steady for [`SETTLED_AFTER`]. It must never know what is stored.

use std::{path::Path, time::Duration};

use wall_clock::{MachineClocks, ReadingFile, SteadyClock};

/// The file of the last reading at which the wall clock was right, in the data folder.
pub(crate) const READING_FILE: &str = "clock-reading.txt";
/// For how long the wall clock was steady when messages are removed by it. As long as a partition:
/// retention removes no more exactly than that.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(3600);
const _: () = assert!(
    SETTLED_AFTER.as_nanos() > wall_clock::STEADY_FOR.as_nanos(),
    "a jump is followed before it counts"
);

/// See the module.
pub(crate) struct RelayClock {
    clock: SteadyClock<MachineClocks>,
    kept: ReadingFile,
}

impl RelayClock {
    /// Of the relay whose data folder this is.
    pub(crate) fn new(data_dir: &Path) -> Self {
        let kept = ReadingFile::open(data_dir.join(READING_FILE));
        Self { clock: SteadyClock::new(MachineClocks, kept.reading()), kept }
    }

    /// Nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        to_i64(self.clock.read().now_ns)
    }

    /// The times that a sender's timestamp is compared with, of which the nearer one counts. Until
    /// a jump is followed, neither the time before it nor the wall clock is known to be wrong.
    pub(crate) fn times_ns(&self) -> [i64; 2] {
        let read = self.clock.read();
        [to_i64(read.now_ns), to_i64(read.wall_ns)]
    }

    /// What is wrong with the wall clock, for the operator.
    pub(crate) fn trouble(&self) -> Option<String> {
        let jump = self.clock.read().jump?;
        Some(format!("{jump}; messages are kept meanwhile: correct the clock if it is wrong"))
    }

    /// Keeps the last reading at which the wall clock was right for the next start. To be called
    /// about once a second; blocks when it writes.
    pub(crate) fn keep(&self) {
        self.kept.keep(self.clock.good());
    }
}

impl store::Clock for RelayClock {
    fn now_ns(&self) -> i64 {
        Self::now_ns(self)
    }

    fn boot_ns(&self) -> i64 {
        i64::try_from(self.clock.boot().as_nanos()).unwrap_or(i64::MAX)
    }

    fn is_settled(&self) -> bool {
        self.clock.read().steady >= SETTLED_AFTER
    }
}

fn to_i64(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use store::Clock as _;

    use super::*;

    #[test]
    fn clock_of_a_first_start_is_right_and_not_settled() {
        let folder = tempfile::tempdir().unwrap();
        let clock = RelayClock::new(folder.path());
        assert_eq!(clock.trouble(), None);
        assert!(!clock.is_settled());
        let now_ns = RelayClock::now_ns(&clock);
        let times_ns = clock.times_ns();
        assert!(times_ns[0] == times_ns[1] && times_ns[0] >= now_ns, "{times_ns:?}");
        clock.keep();
        assert!(folder.path().join(READING_FILE).exists());
    }

    #[test]
    fn jump_before_the_start_is_reported_and_timestamps_of_both_clocks_count() {
        let folder = tempfile::tempdir().unwrap();
        RelayClock::new(folder.path()).keep();
        // As if the clock had been two hours behind when it was right.
        let path = folder.path().join(READING_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut parts = text.split_whitespace();
        let (boot_id, wall, boot) =
            (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let behind_ns = 7_200_000_000_000;
        let wall = wall.parse::<u64>().unwrap() - behind_ns;
        std::fs::write(&path, format!("{boot_id} {wall} {boot}\n")).unwrap();
        let clock = RelayClock::new(folder.path());
        let trouble = clock.trouble().unwrap();
        assert!(trouble.contains("jumped ahead by 7") && !clock.is_settled(), "{trouble}");
        let [now_ns, wall_ns] = clock.times_ns();
        let off_ns = (wall_ns - now_ns).abs_diff(behind_ns as i64);
        assert!(off_ns < 60_000_000_000, "{off_ns}");
    }
}
