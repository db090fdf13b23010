//! The clocks that block times follow; `docs/internals/clock.md` states the rules.
//!
//! [`BlockClock`] compares the wall clock, which may be set, with `CLOCK_BOOTTIME`, which cannot. A
//! wall clock that moves away by more than [`JUMP_BOUND`] has **jumped**, and is not followed until
//! it is back or has been steady for [`STEADY_FOR`]. Block time must never decrease: where it is
//! ahead of its clock it advances at half the speed of `CLOCK_BOOTTIME`.
//!
//! In a subnet of several members a block's time is judged by the others
//! (`subnet/application.rs`), so members use [`SystemClock`].

use std::{fmt, time::Duration};

use commonware_utils::sync::Mutex;
use state::Time;

/// A wall clock that differs by more from `CLOCK_BOOTTIME` since the last good reading has jumped.
/// A time service slews by far less between two readings, and corrects what a suspended machine's
/// clock lost, about a second, by a step.
pub const JUMP_BOUND: Duration = Duration::from_secs(3);
/// Block time follows a wall clock that has jumped when it has been steady for this time. Long
/// enough for a person or a time service to correct a wrong clock; a client's call is valid for
/// longer.
pub const STEADY_FOR: Duration = Duration::from_secs(120);
/// The good reading that the next ones are compared with is replaced after this time. With
/// [`JUMP_BOUND`] it bounds the drift that is followed.
const RENEW_AFTER: Duration = Duration::from_secs(30);
/// The two clocks are read again if that took longer.
const READING_SPREAD: Duration = Duration::from_millis(100);
/// Times that they are read again; the closest reading counts.
const READINGS_MAX: usize = 8;
const _: () = assert!(READING_SPREAD.as_nanos() < JUMP_BOUND.as_nanos(), "a reading is no jump");
const _: () = assert!(RENEW_AFTER.as_nanos() < STEADY_FOR.as_nanos(), "a clock is renewed sooner");

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
        let since =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Two clocks of one machine.
pub trait Clocks: Send + Sync {
    /// The wall clock, which may be set.
    fn wall(&self) -> Time;

    /// Time since the machine started, suspension included: never set, never decreases.
    fn boot(&self) -> Duration;
}

/// The machine's.
pub struct MachineClocks;

impl Clocks for MachineClocks {
    fn wall(&self) -> Time {
        SystemClock.now()
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
    /// The wall clock.
    pub wall: Time,
    /// `CLOCK_BOOTTIME`.
    pub boot: Duration,
}

impl ClockReading {
    /// Reads `clocks`. A process that is not scheduled between two readings of its clocks would see
    /// a jump, so the second clock is read between two readings of the first.
    fn read_from(clocks: &impl Clocks) -> Self {
        let mut reading = Self::read_once(clocks);
        for _ in 0..READINGS_MAX {
            let (Self { wall, boot }, spread) = reading;
            if spread <= READING_SPREAD {
                return Self { wall, boot };
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
        let wall = clocks.wall();
        let boot = clocks.boot();
        (Self { wall, boot }, boot.saturating_sub(before))
    }

    /// By how many nanoseconds the wall clock was set between this reading and `other`.
    pub fn set_between(&self, other: &Self) -> i128 {
        let wall = i128::from(other.wall.0) - i128::from(self.wall.0);
        let boot = |reading: &Self| i128::try_from(reading.boot.as_nanos()).unwrap_or(i128::MAX);
        wall.saturating_sub(boot(other).saturating_sub(boot(self)))
    }

    /// Expected wall-clock time at `boot` if the clock is not set meanwhile.
    fn expected_at(&self, boot: Duration) -> Time {
        later(self.wall, boot.saturating_sub(self.boot))
    }
}

#[derive(Debug)]
struct State {
    /// The wall clock was right here.
    good: ClockReading,
    /// The first reading after a jump.
    jumped: Option<ClockReading>,
    /// Time of the newest block, and the moment at which it was made.
    newest: Option<(Time, Duration)>,
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
            "the wall clock jumped {direction} by {} s against CLOCK_BOOTTIME {} s ago; block time \
             continues from before the jump and follows the wall clock in {} s if it stays as it \
             is; until then calls are judged by the time before the jump: correct the clock if it \
             is wrong",
            self.ahead_nanos.unsigned_abs() / 1_000_000_000,
            self.steady.as_secs(),
            STEADY_FOR.saturating_sub(self.steady).as_secs()
        )
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
    clocks: C,
    state: Mutex<State>,
}

impl<C: Clocks> BlockClock<C> {
    /// Takes the wall clock to have been right at `good`, which is of this start of the machine, or
    /// to be right now.
    pub fn new(clocks: C, good: Option<ClockReading>) -> Self {
        let good = good.unwrap_or_else(|| ClockReading::read_from(&clocks));
        Self { clocks, state: Mutex::new(State { good, jumped: None, newest: None }) }
    }

    /// The last reading at which the wall clock was right.
    pub fn good(&self) -> ClockReading {
        let mut state = self.state.lock();
        self.read(&mut state);
        state.good
    }

    /// The time to follow, and what is wrong with the wall clock.
    fn read(&self, state: &mut State) -> (Time, Duration, Option<Jump>) {
        let now = ClockReading::read_from(&self.clocks);
        let expected = state.good.expected_at(now.boot);
        let ahead_nanos = i128::from(now.wall.0) - i128::from(expected.0);
        if !is_beyond_bound(ahead_nanos) {
            if state.jumped.take().is_some() {
                tracing::info!("the wall clock is back where it was before its jump");
            }
            if now.boot.saturating_sub(state.good.boot) >= RENEW_AFTER {
                state.good = now;
            }
            return (now.wall, now.boot, None);
        }
        let off = |since: &ClockReading| {
            i128::from(now.wall.0) - i128::from(since.expected_at(now.boot).0)
        };
        let jumped = match state.jumped {
            Some(since) if !is_beyond_bound(off(&since)) => since,
            _ => {
                tracing::error!(
                    ahead_seconds = (ahead_nanos / 1_000_000_000) as i64,
                    steady_seconds = STEADY_FOR.as_secs(),
                    "the wall clock jumped against CLOCK_BOOTTIME; block time does not follow it \
                     until it has been steady for steady_seconds"
                );
                now
            }
        };
        let steady = now.boot.saturating_sub(jumped.boot);
        if steady >= STEADY_FOR {
            tracing::warn!(
                ahead_seconds = (ahead_nanos / 1_000_000_000) as i64,
                "the wall clock has been steady since its jump; block time follows it again"
            );
            (state.good, state.jumped) = (now, None);
            return (now.wall, now.boot, None);
        }
        state.jumped = Some(jumped);
        (expected, now.boot, Some(Jump { ahead_nanos, steady }))
    }

    /// What the clock shows, and the block time now if the newest block has `previous`.
    fn follow(&self, state: &mut State, previous: Time) -> (Time, Time) {
        let (good, boot, _) = self.read(state);
        let since = match state.newest {
            Some((time, made)) if time == previous => boot.saturating_sub(made),
            _ => Duration::ZERO,
        };
        (good, good.max(later(previous, since / 2)))
    }

    /// The time by which a call is judged now: that of a block made now, if block time is ahead.
    pub fn block_time(&self) -> Time {
        let mut state = self.state.lock();
        match state.newest {
            Some((newest, _)) => self.follow(&mut state, newest).1,
            None => self.read(&mut state).0,
        }
    }

    /// Clock status for operators.
    pub fn status(&self) -> ClockStatus {
        let mut state = self.state.lock();
        let (good, _, jump) = self.read(&mut state);
        let newest = state.newest.map_or(good, |(newest, _)| self.follow(&mut state, newest).1);
        ClockStatus {
            jump,
            block_time_ahead: Duration::from_nanos(newest.0.saturating_sub(good.0)),
        }
    }
}

fn later(time: Time, by: Duration) -> Time {
    Time(time.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

fn is_beyond_bound(nanos: i128) -> bool {
    nanos.unsigned_abs() > JUMP_BOUND.as_nanos()
}

impl<C: Clocks> WallClock for BlockClock<C> {
    fn now(&self) -> Time {
        self.read(&mut self.state.lock()).0
    }

    fn next_block_time(&self, previous: Time) -> Time {
        let (_, time) = self.follow(&mut self.state.lock(), previous);
        time.max(Time(previous.0.saturating_add(1)))
    }

    fn duration_until(&self, time: Time, previous: Time) -> Duration {
        let mut state = self.state.lock();
        let (good, block_time) = self.follow(&mut state, previous);
        // Whichever is first: the clock gets there, or block time at half its speed.
        let by_clock = Duration::from_nanos(time.0.saturating_sub(good.0));
        by_clock.min(Duration::from_nanos(time.0.saturating_sub(block_time.0)).saturating_mul(2))
    }

    fn set_newest_block_time(&self, time: Time) {
        let boot = self.clocks.boot();
        self.state.lock().newest = Some((time, boot));
    }
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
        fn wall(&self) -> Time {
            let set = i128::from(self.set.load(Relaxed));
            let wall = i128::from(START + self.boot.load(Relaxed)) + set;
            Time(u64::try_from(wall).unwrap_or_default())
        }

        fn boot(&self) -> Duration {
            Duration::from_nanos(self.boot.load(Relaxed))
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
        struct Slow(ManualClocks, AtomicU64);
        impl Clocks for Slow {
            fn wall(&self) -> Time {
                if self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    self.0.pass(10.0);
                }
                self.0.wall()
            }
            fn boot(&self) -> Duration {
                self.0.boot()
            }
        }
        let clock = BlockClock::new(Slow(ManualClocks::default(), AtomicU64::new(0)), None);
        for slow in [1, 2, 5] {
            clock.clocks.1.store(slow, Relaxed);
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
