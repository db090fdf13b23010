//! Two clocks of one machine, read at one moment.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The two clocks are read again if that took longer.
pub(crate) const READING_SPREAD: Duration = Duration::from_millis(100);
/// Times that they are read again; the closest reading counts.
const READINGS_MAX: usize = 8;

/// The machine's wall clock: nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Two clocks of one machine.
pub trait Clocks: Send + Sync {
    /// The wall clock, which may be set: nanoseconds since 1970.
    fn wall_ns(&self) -> u64;

    /// Time since the machine started, suspension included: never set, never decreases.
    fn boot(&self) -> Duration;
}

/// The machine's.
pub struct MachineClocks;

impl Clocks for MachineClocks {
    fn wall_ns(&self) -> u64 {
        wall_ns()
    }

    fn boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The wall clock: nanoseconds since 1970.
    pub wall_ns: u64,
    /// `CLOCK_BOOTTIME`.
    pub boot: Duration,
}

impl ClockReading {
    /// Reads `clocks`. A process that is not scheduled between two readings of its clocks would see
    /// a jump, so the second clock is read between two readings of the first.
    pub(crate) fn read_from(clocks: &impl Clocks) -> Self {
        let mut reading = Self::read_once(clocks);
        for _ in 0..READINGS_MAX {
            let (Self { wall_ns, boot }, spread) = reading;
            if spread <= READING_SPREAD {
                return Self { wall_ns, boot };
            }
            let next = Self::read_once(clocks);
            if next.1 < spread {
                reading = next;
            }
        }
        reading.0
    }

    /// A reading, and how long it took.
    fn read_once(clocks: &impl Clocks) -> (Self, Duration) {
        let before = clocks.boot();
        let wall_ns = clocks.wall_ns();
        let boot = clocks.boot();
        (Self { wall_ns, boot }, boot.saturating_sub(before))
    }

    /// By how many nanoseconds the wall clock was set between this reading and `other`.
    pub fn set_between(&self, other: &Self) -> i128 {
        let wall = i128::from(other.wall_ns) - i128::from(self.wall_ns);
        let boot = |reading: &Self| i128::try_from(reading.boot.as_nanos()).unwrap_or(i128::MAX);
        wall.saturating_sub(boot(other).saturating_sub(boot(self)))
    }

    /// Expected wall-clock time at `boot` if the clock is not set meanwhile.
    pub(crate) fn expected_at(&self, boot: Duration) -> u64 {
        let passed = boot.saturating_sub(self.boot).as_nanos();
        self.wall_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}
