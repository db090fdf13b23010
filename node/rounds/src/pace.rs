//! How many calls are taken while the ingress history fills up.
//!
//! Every call is remembered until its expiry has passed, so a burst at full speed could use up the
//! capacity, and no call would be accepted for minutes. Instead, while less than half is free, the
//! rate per second is such that the remainder would last for a minute.
//!
//! Which calls a node accepts is local; nothing of this enters replicated state. The caller passes
//! the time; this module reads no clock.

use std::time::Duration;

/// For how long the room that is left should last.
const LASTS_SECONDS: f64 = 60.0;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Calls that may be taken now.
    calls: f64,
    at: Duration,
}

impl Pace {
    /// How many calls may be taken until the next round, after one that took `taken` of them in;
    /// `room` of `capacity` are free.
    pub(crate) fn after_round(
        &mut self,
        now: Duration,
        taken: u64,
        room: u64,
        capacity: u64,
    ) -> u64 {
        let per_second = (room as f64 / LASTS_SECONDS).max(1.0);
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        // The allowance saved in an idle second may be spent at once, and no more than that.
        self.calls = (self.calls - taken as f64 + elapsed * per_second).clamp(0.0, per_second);
        if room.saturating_mul(2) >= capacity { room } else { room.min(self.calls as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers `rate` calls a second for this time, with rounds of 10 ms, each call remembered for
    /// 240 s; what was taken in each second.
    fn taken_per_second(rate: u64, seconds: usize, capacity: u64) -> Vec<u64> {
        let mut pace = Pace::default();
        let mut per_second = vec![0; seconds];
        let (mut held, mut allowed) = (0_u64, capacity);
        for round in 0..seconds * 100 {
            let second = round / 100;
            if round % 100 == 0 && second >= 240 {
                held -= per_second[second - 240];
            }
            let taken = (rate / 100).min(allowed);
            per_second[second] += taken;
            held += taken;
            assert!(held <= capacity, "more taken than there is room for");
            let now = Duration::from_millis(10 * (round as u64 + 1));
            allowed = pace.after_round(now, taken, capacity - held, capacity);
        }
        per_second
    }

    // Promise: P2 - Ingress is slowed as the history fills and never stopped for long.
    #[test]
    fn a_burst_is_taken_at_full_speed_and_then_slowed_but_never_stopped() {
        let taken = taken_per_second(2_500, 600, 38_000);
        assert!(taken[..7].iter().all(|calls| *calls == 2_500), "{:?}", &taken[..10]);
        assert!(taken.iter().all(|calls| *calls > 0), "{taken:?}");
        // Down without a jump to nothing.
        assert!(taken[9] > 200 && taken[60] > 50, "{taken:?}");
    }

    // Promise: P2 - An ingress rate that the history sustains is never slowed.
    #[test]
    fn sustainable_rate_is_never_slowed() {
        let capacity = 38_000;
        let bearable = capacity / 2 / 240 / 100 * 100;
        assert!(taken_per_second(bearable, 900, capacity).iter().all(|calls| *calls == bearable));
    }
}
