//! When messages arrived, and whether their timestamps are near enough to be stored.
//!
//! A message is judged by the time at which it could have been read at the earliest, so that this
//! node's own delay never counts against its sender: time in the node's queues is measured from the
//! first byte of its request; time in a socket, while the process did not run or did not read, by
//! the pauses of a task that should run every [`crate::node::SWEEP`]. Bounds: one pause, of at most
//! [`DELAY_MAX`]. It must never know a clock: times are arguments.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A shorter pause is not one: tasks wait for each other.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Bytes that came during a pause are read within this time of its end.
const BACKLOG: Duration = Duration::from_secs(60);
/// Messages that waited longer are stored only if their timestamps are near.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// Pauses in which the node read nothing. Times are those since the node's start.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the node last read; `None` before the first time.
    read: Option<Duration>,
    /// Pauses whose backlog may not be read yet, together, and until when.
    paused: Duration,
    until: Duration,
}

impl Delays {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether the node reads; to be called at every sweep. Returns the length of a pause
    /// that ended.
    pub(crate) fn sweep(&self, now: Duration, reads: bool) -> Option<Duration> {
        let mut state = self.lock();
        if !reads {
            return None;
        }
        let ended = state.pause(now);
        if let Some(pause) = ended {
            let before = if now < state.until { state.paused } else { Duration::ZERO };
            state.paused = (before + pause).min(DELAY_MAX);
            state.until = now + BACKLOG;
        }
        state.read = Some(now);
        ended
    }

    /// How long a message that is read now may have waited for this node to read it.
    pub(crate) fn longest(&self, now: Duration) -> Duration {
        let state = self.lock();
        let before = if now < state.until { state.paused } else { Duration::ZERO };
        (before + state.pause(now).unwrap_or_default()).min(DELAY_MAX)
    }
}

impl State {
    /// The pause that goes on, if there is one.
    fn pause(&self, now: Duration) -> Option<Duration> {
        let since = now.saturating_sub(self.read?);
        (since >= PAUSE_MIN).then_some(since)
    }
}

/// Of the times from a message's arrival, `waited` ago, until now the one nearest to its timestamp.
pub(crate) fn nearest(timestamp_ns: i64, now_ns: i64, waited: Duration) -> i64 {
    let waited_ns = i64::try_from(waited.as_nanos()).unwrap_or(i64::MAX);
    timestamp_ns.clamp(now_ns.saturating_sub(waited_ns), now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn off_by(timestamp_ns: i64, now_ns: i64, waited: Duration) -> Duration {
        Duration::from_nanos(timestamp_ns.abs_diff(nearest(timestamp_ns, now_ns, waited)))
    }

    #[test]
    fn timestamp_is_off_before_arrival_and_after_now_only() {
        let now = 1_000_000_000_000;
        let of = |seconds: i64, waited| off_by(now + seconds * 1_000_000_000, now, waited);
        assert_eq!(of(-20, Duration::ZERO), 20 * SECOND);
        assert_eq!(of(-20, 22 * SECOND), Duration::ZERO);
        assert_eq!(of(-30, 22 * SECOND), 8 * SECOND);
        assert_eq!(of(0, Duration::ZERO), Duration::ZERO);
        // Waiting is no reason to come from the future.
        assert_eq!(of(5, 22 * SECOND), 5 * SECOND);
        for timestamp in [i64::MIN, 0, i64::MAX] {
            assert!(off_by(timestamp, now, SECOND) > 20 * SECOND);
            assert!(off_by(timestamp, i64::MIN, Duration::MAX) <= Duration::from_nanos(u64::MAX));
        }
    }

    #[test]
    fn pause_counts_for_what_waited_in_sockets_until_it_is_read() {
        let delays = Delays::default();
        assert_eq!(delays.longest(50 * SECOND), Duration::ZERO);
        assert_eq!(delays.sweep(50 * SECOND, true), None);
        assert_eq!(delays.sweep(50 * SECOND + SECOND / 4, true), None);
        assert_eq!(delays.longest(51 * SECOND), Duration::ZERO);
        // Stopped for 22 s: what is read before the first sweep waited as long.
        assert_eq!(delays.longest(72 * SECOND), 21 * SECOND + SECOND * 3 / 4);
        assert_eq!(delays.sweep(72 * SECOND, true), Some(21 * SECOND + SECOND * 3 / 4));
        assert_eq!(delays.longest(73 * SECOND - SECOND / 4), 21 * SECOND + SECOND * 3 / 4);
        // Twice in a row: both.
        assert_eq!(delays.sweep(82 * SECOND, true), Some(10 * SECOND));
        assert_eq!(delays.longest(82 * SECOND), 31 * SECOND + SECOND * 3 / 4);
        for quarter in 1..=4 * 60 {
            assert_eq!(delays.sweep(82 * SECOND + quarter * SECOND / 4, true), None);
        }
        assert_eq!(delays.longest(142 * SECOND), Duration::ZERO);
    }

    #[test]
    fn reading_that_is_held_back_counts_as_a_pause() {
        let delays = Delays::default();
        delays.sweep(SECOND, true);
        (2..100).for_each(|second| assert_eq!(delays.sweep(second * SECOND, false), None));
        assert_eq!(delays.longest(99 * SECOND), 98 * SECOND);
        assert_eq!(delays.sweep(100 * SECOND, true), Some(99 * SECOND));
        assert_eq!(delays.sweep(9999 * SECOND, true), Some(9899 * SECOND));
        assert_eq!(delays.longest(9999 * SECOND), DELAY_MAX);
    }
}
