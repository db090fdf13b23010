//! A wall clock that is not followed when it jumps.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::reading::{ClockReading, Clocks, READING_SPREAD};

/// A wall clock that differs by more from `CLOCK_BOOTTIME` since the last good reading has jumped.
/// A time service slews by far less between two readings, and corrects what a suspended machine's
/// clock lost, about a second, by a step.
pub const JUMP_BOUND: Duration = Duration::from_secs(3);
/// A wall clock that has jumped is followed when it has been steady for this time. Long enough for
/// a person or a time service to correct a wrong clock.
pub const STEADY_FOR: Duration = Duration::from_secs(120);
/// The good reading that the next ones are compared with is replaced after this time. With
/// [`JUMP_BOUND`] it bounds the drift that is followed.
const RENEW_AFTER: Duration = Duration::from_secs(30);
const _: () = assert!(READING_SPREAD.as_nanos() < JUMP_BOUND.as_nanos(), "a reading is no jump");
const _: () = assert!(RENEW_AFTER.as_nanos() < STEADY_FOR.as_nanos(), "a clock is renewed sooner");

#[derive(Debug)]
struct State {
    /// The wall clock was right here.
    good: ClockReading,
    /// The first reading after a jump.
    jumped: Option<ClockReading>,
    /// `CLOCK_BOOTTIME` since which the wall clock that is followed has been steady, as far as
    /// known.
    since: Duration,
}

/// A wall clock that does not agree with `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// By how many nanoseconds the wall clock is ahead of where it should be.
    pub ahead_nanos: i128,
    /// For how long it has been steady since.
    pub steady: Duration,
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.ahead_nanos > 0 { "ahead" } else { "back" };
        write!(
            f,
            "the wall clock jumped {direction} by {} s against CLOCK_BOOTTIME {} s ago; time \
             continues from before the jump and follows the wall clock in {} s if it stays as it is",
            self.ahead_nanos.unsigned_abs() / 1_000_000_000,
            self.steady.as_secs(),
            STEADY_FOR.saturating_sub(self.steady).as_secs()
        )
    }
}

/// The time at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyTime {
    /// The time to follow: nanoseconds since 1970.
    pub now_ns: u64,
    /// The wall clock, which may have jumped.
    pub wall_ns: u64,
    /// `CLOCK_BOOTTIME`.
    pub boot: Duration,
    /// The jump of the wall clock, while it is not followed.
    pub jump: Option<Jump>,
    /// For how long the wall clock has been steady, as far as known; zero while it is not followed.
    pub steady: Duration,
}

/// See the crate.
pub struct SteadyClock<C> {
    clocks: C,
    state: Mutex<State>,
}

impl<C: Clocks> SteadyClock<C> {
    /// Takes the wall clock to have been right at `good`, which is of this start of the machine, or
    /// to be right now.
    pub fn new(clocks: C, good: Option<ClockReading>) -> Self {
        let good = good.unwrap_or_else(|| ClockReading::read_from(&clocks));
        Self { clocks, state: Mutex::new(State { good, jumped: None, since: good.boot }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A reading is whole whatever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last reading at which the wall clock was right.
    pub fn good(&self) -> ClockReading {
        let mut state = self.lock();
        self.read_into(&mut state);
        state.good
    }

    /// `CLOCK_BOOTTIME`.
    pub fn boot(&self) -> Duration {
        self.clocks.boot()
    }

    /// The time, and the state of the wall clock.
    pub fn read(&self) -> SteadyTime {
        self.read_into(&mut self.lock())
    }

    fn read_into(&self, state: &mut State) -> SteadyTime {
        let now = ClockReading::read_from(&self.clocks);
        let ClockReading { wall_ns, boot } = now;
        let followed = |since: Duration| SteadyTime {
            now_ns: wall_ns,
            wall_ns,
            boot,
            jump: None,
            steady: boot.saturating_sub(since),
        };
        let expected = state.good.expected_at(boot);
        let ahead_nanos = i128::from(wall_ns) - i128::from(expected);
        if !is_beyond_bound(ahead_nanos) {
            if state.jumped.take().is_some() {
                tracing::info!("the wall clock is back where it was before its jump");
            }
            if boot.saturating_sub(state.good.boot) >= RENEW_AFTER {
                state.good = now;
            }
            return followed(state.since);
        }
        let off = |since: &ClockReading| i128::from(wall_ns) - i128::from(since.expected_at(boot));
        let jumped = match state.jumped {
            Some(since) if !is_beyond_bound(off(&since)) => since,
            _ => {
                tracing::error!(
                    ahead_seconds = (ahead_nanos / 1_000_000_000) as i64,
                    steady_seconds = STEADY_FOR.as_secs(),
                    "the wall clock jumped against CLOCK_BOOTTIME; it is not followed until it has \
                     been steady for steady_seconds"
                );
                now
            }
        };
        let steady = boot.saturating_sub(jumped.boot);
        if steady >= STEADY_FOR {
            tracing::warn!(
                ahead_seconds = (ahead_nanos / 1_000_000_000) as i64,
                "the wall clock has been steady since its jump; it is followed again"
            );
            *state = State { good: now, jumped: None, since: jumped.boot };
            return followed(jumped.boot);
        }
        state.jumped = Some(jumped);
        let jump = Some(Jump { ahead_nanos, steady });
        SteadyTime { now_ns: expected, wall_ns, boot, jump, steady: Duration::ZERO }
    }
}

fn is_beyond_bound(nanos: i128) -> bool {
    nanos.unsigned_abs() > JUMP_BOUND.as_nanos()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    };

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_800_000_000 * SECOND;
    const HOUR: i64 = 3_600;

    /// Clocks that a test moves.
    #[derive(Clone, Default)]
    struct ManualClocks {
        boot: Arc<AtomicU64>,
        /// Seconds that the wall clock was set by.
        set: Arc<AtomicI64>,
    }

    impl Clocks for ManualClocks {
        fn wall_ns(&self) -> u64 {
            let wall = START + self.boot.load(Relaxed);
            wall.saturating_add_signed(self.set.load(Relaxed) * SECOND as i64)
        }

        fn boot(&self) -> Duration {
            Duration::from_nanos(self.boot.load(Relaxed))
        }
    }

    #[test]
    fn steady_time_is_known_across_jumps_and_starts() {
        let clocks = ManualClocks::default();
        let clock = SteadyClock::new(clocks.clone(), None);
        let pass = |seconds: u64| {
            clocks.boot.fetch_add(seconds * SECOND, Relaxed);
        };
        let set_by = |seconds: i64| {
            clocks.set.fetch_add(seconds, Relaxed);
        };
        let steady = |clock: &SteadyClock<ManualClocks>| clock.read().steady.as_secs();
        pass(500);
        assert_eq!(steady(&clock), 500);
        // One that is back has been steady all the time.
        set_by(80 * HOUR);
        let jumped = clock.read();
        assert_eq!((jumped.now_ns, jumped.steady), (START + 500 * SECOND, Duration::ZERO));
        assert_eq!(jumped.wall_ns - jumped.now_ns, 80 * HOUR as u64 * SECOND);
        pass(8);
        set_by(-80 * HOUR);
        assert_eq!(steady(&clock), 508);
        // One that is followed has been steady since its jump.
        set_by(-HOUR);
        assert_eq!(steady(&clock), 0);
        pass(STEADY_FOR.as_secs());
        assert_eq!(steady(&clock), STEADY_FOR.as_secs());
        pass(80);
        assert_eq!(steady(&clock), 200);
        // The next start knows that it has been since the reading it is given.
        let next = SteadyClock::new(clocks.clone(), Some(clock.good()));
        pass(10);
        assert_eq!(steady(&next), 10);
        assert_eq!(steady(&SteadyClock::new(clocks.clone(), None)), 0);
    }

    #[test]
    fn jump_is_reported_with_its_direction_and_what_is_left_to_wait() {
        let jump = |hours: i64| Jump {
            ahead_nanos: i128::from(hours * HOUR) * i128::from(SECOND),
            steady: Duration::from_secs(20),
        };
        for (hours, direction) in [(80, "ahead by 288000 s"), (-1, "back by 3600 s")] {
            let text = jump(hours).to_string();
            for part in [direction, "20 s ago", "in 100 s"] {
                assert!(text.contains(part), "no `{part}` in {text}");
            }
        }
    }
}
