//! The clocks that block times follow; `docs/internals/clock.md` states the rules.
//!
//! [`BlockClock`] follows the wall clock unless it has jumped ([`wall_clock::SteadyClock`]). Block
//! time must never decrease: where it is ahead of its clock it advances at half the speed of
//! `CLOCK_BOOTTIME`.
//!
//! In a subnet of several members a block's time is judged by the others
//! (`subnet/application.rs`), so members use [`SystemClock`].

use std::time::Duration;

use commonware_utils::sync::Mutex;
use state::Time;
use wall_clock::{ClockReading, Clocks, Jump, SteadyClock};

/// Where block times come from.
pub trait WallClock: Send + Sync {
    /// Nanoseconds since 1970.
    fn now(&self) -> Time;

    /// The time that a block has which is made now, after one of `previous`.
    fn next_block_time(&self, previous: Time) -> Time {
        self.now().max(Time(previous.0.saturating_add(1)))
    }

    /// How long until a block made after one of `_previous` has at least `time`.
    fn duration_until(&self, time: Time, _previous: Time) -> Duration {
        Duration::from_nanos(time.0.saturating_sub(self.now().0))
    }

    /// The newest block has this time.
    fn set_newest_block_time(&self, _time: Time) {}
}

/// The machine's wall clock.
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now(&self) -> Time {
        Time(wall_clock::wall_ns())
    }
}

/// Clock status for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockStatus {
    /// The wall clock has jumped and is not followed.
    pub jump: Option<Jump>,
    /// By how much block time is ahead of the clock that it follows.
    pub block_time_ahead: Duration,
}

/// Block times from the clocks of the machine.
pub struct BlockClock<C> {
    clock: SteadyClock<C>,
    /// Time of the newest block, and the moment at which it was made.
    newest: Mutex<Option<(Time, Duration)>>,
}

impl<C: Clocks> BlockClock<C> {
    /// Takes the wall clock to have been right at `good`, which is of this start of the machine, or
    /// to be right now.
    pub fn new(clocks: C, good: Option<ClockReading>) -> Self {
        Self { clock: SteadyClock::new(clocks, good), newest: Mutex::new(None) }
    }

    /// The last reading at which the wall clock was right.
    pub fn good(&self) -> ClockReading {
        self.clock.good()
    }

    /// What the clock shows, and the block time now if the newest block has `previous`.
    fn follow(&self, newest: Option<(Time, Duration)>, previous: Time) -> (Time, Time) {
        let read = self.clock.read();
        let since = match newest {
            Some((time, made)) if time == previous => read.boot.saturating_sub(made),
            _ => Duration::ZERO,
        };
        let good = Time(read.now_ns);
        (good, good.max(later(previous, since / 2)))
    }

    /// The time by which a call is judged now: that of a block made now, if block time is ahead.
    pub fn block_time(&self) -> Time {
        let newest = *self.newest.lock();
        match newest {
            Some((time, _)) => self.follow(newest, time).1,
            None => self.now(),
        }
    }

    /// Clock status for operators.
    pub fn status(&self) -> ClockStatus {
        let newest = *self.newest.lock();
        let read = self.clock.read();
        let (good, newest) = match newest {
            Some((time, _)) => self.follow(newest, time),
            None => (Time(read.now_ns), Time(read.now_ns)),
        };
        ClockStatus {
            jump: read.jump,
            block_time_ahead: Duration::from_nanos(newest.0.saturating_sub(good.0)),
        }
    }
}

fn later(time: Time, by: Duration) -> Time {
    Time(time.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

impl<C: Clocks> WallClock for BlockClock<C> {
    fn now(&self) -> Time {
        Time(self.clock.read().now_ns)
    }

    fn next_block_time(&self, previous: Time) -> Time {
        let newest = *self.newest.lock();
        let (_, time) = self.follow(newest, previous);
        time.max(Time(previous.0.saturating_add(1)))
    }

    fn duration_until(&self, time: Time, previous: Time) -> Duration {
        let newest = *self.newest.lock();
        let (good, block_time) = self.follow(newest, previous);
        // Whichever is first: the clock gets there, or block time at half its speed.
        let by_clock = Duration::from_nanos(time.0.saturating_sub(good.0));
        by_clock.min(Duration::from_nanos(time.0.saturating_sub(block_time.0)).saturating_mul(2))
    }

    fn set_newest_block_time(&self, time: Time) {
        *self.newest.lock() = Some((time, self.clock.boot()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    };

    use wall_clock::STEADY_FOR;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_800_000_000 * SECOND;
    const HOUR: i64 = 3_600;

    /// Clocks that a test moves.
    #[derive(Clone, Default)]
    struct ManualClocks {
        boot: Arc<AtomicU64>,
        /// Nanoseconds that the wall clock was set by.
        set: Arc<AtomicI64>,
    }

    impl ManualClocks {
        fn pass(&self, seconds: f64) {
            self.boot.fetch_add((seconds * SECOND as f64) as u64, Relaxed);
        }

        fn set_by(&self, seconds: i64) {
            self.set.fetch_add(seconds * SECOND as i64, Relaxed);
        }
    }

    impl Clocks for ManualClocks {
        fn wall_ns(&self) -> u64 {
            let set = i128::from(self.set.load(Relaxed));
            let wall = i128::from(START + self.boot.load(Relaxed)) + set;
            u64::try_from(wall).unwrap_or_default()
        }

        fn boot(&self) -> Duration {
            Duration::from_nanos(self.boot.load(Relaxed))
        }
    }

    impl ManualClocks {
        fn wall(&self) -> Time {
            Time(self.wall_ns())
        }
    }

    fn clock() -> (ManualClocks, BlockClock<ManualClocks>) {
        let clocks = ManualClocks::default();
        (clocks.clone(), BlockClock::new(clocks, None))
    }

    fn at(seconds: u64) -> Time {
        Time(START + seconds * SECOND)
    }

    // Promise: P21 - A clock jump is not followed for 120 s; time continues by `CLOCK_BOOTTIME`.
    #[test]
    fn jump_is_not_followed_and_time_continues_by_boottime() {
        for seconds in [HOUR, -HOUR, 365 * 24 * HOUR, 4, -4] {
            let (clocks, clock) = clock();
            clocks.pass(10.0);
            assert_eq!(clock.now(), at(10));
            clocks.set_by(seconds);
            clocks.pass(4.0);
            assert_eq!(clock.now(), at(14), "{seconds}");
            let jump = clock.status().jump;
            assert_eq!(
                jump.map(|jump| jump.ahead_nanos / i128::from(SECOND)),
                Some(seconds.into()),
                "{seconds}"
            );
            // It is right again: nothing is left of the jump.
            clocks.set_by(-seconds);
            clocks.pass(1.0);
            assert_eq!(clock.now(), at(15), "{seconds}");
            assert_eq!(clock.status(), ClockStatus::default(), "{seconds}");
        }
    }

    // Promise: P21 - A clock jump that lasts 120 s is followed.
    #[test]
    fn jump_is_followed_once_the_clock_has_been_steady() {
        let (clocks, clock) = clock();
        clocks.set_by(HOUR);
        assert_eq!(clock.now(), at(0));
        clocks.pass(STEADY_FOR.as_secs_f64() - 1.0);
        assert_eq!(clock.now(), at(STEADY_FOR.as_secs() - 1));
        clocks.pass(1.0);
        let followed = at(STEADY_FOR.as_secs() + HOUR as u64);
        assert_eq!(clock.now(), followed);
        assert_eq!(clock.status(), ClockStatus::default());
        // And from there on a jump back is a jump.
        clocks.set_by(-HOUR);
        assert_eq!(clock.now(), followed);
        assert!(clock.status().jump.is_some());
    }

    // Promise: P21 - A restart during a clock jump detects it.
    #[test]
    fn jump_is_known_to_the_next_start() {
        let (clocks, clock) = clock();
        clocks.pass(40.0);
        let good = clock.good();
        clocks.set_by(HOUR);
        clocks.pass(5.0);
        assert_eq!(clock.good(), good, "a jump is no good reading");
        let next = BlockClock::new(clocks.clone(), Some(good));
        assert_eq!(next.now(), at(45));
        assert!(next.status().jump.is_some());
        assert_eq!(next.good().set_between(&good), 0);
        clocks.pass(STEADY_FOR.as_secs_f64());
        assert_eq!(next.now(), clocks.wall());
        assert_eq!(good.set_between(&next.good()), i128::from(HOUR) * i128::from(SECOND));
        // Without the reading, the clock is taken to be right.
        assert_eq!(BlockClock::new(clocks.clone(), None).status(), ClockStatus::default());
    }

    #[test]
    fn process_that_is_not_scheduled_between_two_readings_sees_no_jump() {
        /// Clocks between whose readings ten seconds pass, for some readings.
        struct Slow(ManualClocks, Arc<AtomicU64>);
        impl Clocks for Slow {
            fn wall_ns(&self) -> u64 {
                if self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    self.0.pass(10.0);
                }
                self.0.wall_ns()
            }
            fn boot(&self) -> Duration {
                self.0.boot()
            }
        }
        let left = Arc::new(AtomicU64::new(0));
        let clock = BlockClock::new(Slow(ManualClocks::default(), left.clone()), None);
        for slow in [1, 2, 5] {
            left.store(slow, Relaxed);
            assert_eq!(clock.status(), ClockStatus::default(), "{slow} slow readings");
        }
    }

    #[test]
    fn another_jump_restarts_the_steady_time() {
        let (clocks, clock) = clock();
        clocks.set_by(HOUR);
        assert_eq!(clock.now(), at(0));
        clocks.pass(100.0);
        clocks.set_by(HOUR);
        assert_eq!(clock.now(), at(100));
        clocks.pass(100.0);
        assert_eq!(clock.now(), at(200), "steady for 100 s only");
        clocks.pass(20.0);
        assert_eq!(clock.now(), at(220 + 2 * HOUR as u64));
    }

    // Promise: P21 - Corrections up to 3 s and suspension are followed at once.
    #[test]
    fn small_corrections_and_suspension_are_followed_at_once() {
        let (clocks, clock) = clock();
        for correction in [1, -1, 3, -3, 2] {
            clocks.pass(31.0);
            clocks.set_by(correction);
            assert_eq!(clock.now(), clocks.wall());
        }
        // A suspended machine: both clocks move on.
        clocks.pass(8.0 * 3_600.0);
        assert_eq!(clock.now(), clocks.wall());
        assert_eq!(clock.status(), ClockStatus::default());
    }

    // Promise: P21 - Slow clock drift is followed, and fast drift is treated as a jump.
    #[test]
    fn slow_drift_is_followed_and_fast_drift_is_a_jump() {
        // 1 ms each second is 1,000 ppm, twice what a kernel slews by.
        let (clocks, slow) = clock();
        for _ in 0..10_000 {
            clocks.pass(1.0);
            clocks.set.fetch_add(1_000_000, Relaxed);
            assert_eq!(slow.now(), clocks.wall());
        }
        let (clocks, fast) = clock();
        for _ in 0..60 {
            clocks.pass(1.0);
            clocks.set_by(1);
            let _ = fast.now();
        }
        assert!(fast.now() < at(70), "a clock at double speed is not followed");
    }

    // Promise: P21 - Block time ahead of the clock advances at half speed.
    #[test]
    fn block_time_ahead_advances_at_half_speed_until_the_clock_caught_up() {
        let (clocks, clock) = clock();
        let ahead = at(600);
        clock.set_newest_block_time(ahead);
        let mut newest = ahead;
        let mut passed = 0;
        while clock.status().block_time_ahead > Duration::ZERO {
            clocks.pass(2.0);
            passed += 2;
            let next = clock.next_block_time(newest);
            assert!(next > newest, "block time never stands still");
            clock.set_newest_block_time(next);
            newest = next;
            assert!(passed <= 1_300, "it ends");
        }
        // 600 s at half speed.
        assert_eq!(passed, 1_200);
        clocks.pass(1.0);
        assert_eq!(clock.next_block_time(newest), clocks.wall());
    }

    // Promise: P21 - Call expiry is checked against block time where it is ahead.
    #[test]
    fn calls_are_judged_by_block_time_where_it_is_ahead() {
        let (clocks, clock) = clock();
        assert_eq!(clock.block_time(), at(0));
        clock.set_newest_block_time(at(600));
        clocks.pass(10.0);
        assert_eq!(clock.block_time(), at(605));
        assert_eq!(clock.status().block_time_ahead, Duration::from_secs(595));
        assert_eq!(clock.now(), at(10), "queries are judged by the clock");
    }

    #[test]
    fn wait_for_a_timer_ends_when_block_time_reaches_it() {
        let (clocks, clock) = clock();
        clock.set_newest_block_time(at(600));
        let wait = clock.duration_until(at(610), at(600));
        assert_eq!(wait, Duration::from_secs(20));
        clocks.pass(wait.as_secs_f64());
        assert_eq!(clock.next_block_time(at(600)), at(610));
        // Where it is not ahead, it is the clock's.
        clock.set_newest_block_time(clocks.wall());
        assert_eq!(
            clock.duration_until(Time(clocks.wall().0 + SECOND), clocks.wall()).as_secs(),
            1
        );
    }
}
