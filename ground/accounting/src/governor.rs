//! When freed memory goes back to the operating system.
//!
//! An allocator keeps what was freed, hoping it is needed again. Kept forever, one busy minute sets
//! the footprint of the whole month; handed back at every pause, the node pays for page faults at
//! the next request. The rule here is between the two: hand back when the node has been idle for a
//! moment, no more often than a set interval, and at once when memory is short. It is a pure
//! function of what it is shown: it reads no clock and calls no allocator, so its rule can be
//! tested to the millisecond.

use std::time::Duration;

/// The governor's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernorConfig {
    /// How long nothing must have happened before memory is handed back. Too short, and every
    /// pause between two requests pays for page faults.
    pub idle: Duration,
    /// The least time between two hand-backs of an idle node.
    pub interval: Duration,
    /// How far resident memory may exceed live memory, in percent of the latter, before an idle
    /// node hands back. 100 keeps nothing.
    pub growth_percent: u32,
    /// Resident memory up to which an idle node hands nothing back: what it needs again with the
    /// next request anyway.
    pub initial_bytes: u64,
    /// The least time between two hand-backs under pressure: handing back is work, and pressure
    /// does not end within one step.
    pub pressure_interval: Duration,
    /// Share of the last 10 seconds in which some task waited for memory, in hundredths of a
    /// percent, from which on memory counts as short.
    pub pressure_hundredths: u32,
    /// Share of the budget, in percent, that anonymous memory may reach before memory counts as
    /// short.
    pub budget_percent: u32,
}

/// Freed bytes kept by the allocator below which handing back is not worth it even under pressure.
const WORTH_BYTES: u64 = 256 << 10;

/// Readings for one decision of the governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time since the node started, from a monotonic clock.
    pub now: Duration,
    /// When something last happened, on the same clock.
    pub last_activity: Duration,
    /// Bytes allocated by the program, as its allocator counts.
    pub live_bytes: u64,
    /// Bytes that the allocator keeps resident for it.
    pub resident_bytes: u64,
    /// Anonymous memory of all processes of the node.
    pub anonymous_bytes: u64,
    /// The memory budget.
    pub budget_bytes: u64,
    /// Stalls over the last 10 seconds, in hundredths of a percent; `None` where the kernel does
    /// not report them.
    pub stalled_hundredths: Option<u32>,
}

/// Hand memory back, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Nothing else to do.
    Idle,
    /// The kernel reports that tasks wait for memory.
    Stalled,
    /// Anonymous memory comes near the budget.
    NearBudget,
}

/// Remembers when memory was last handed back.
#[derive(Clone, Debug)]
pub struct Governor {
    config: GovernorConfig,
    last: Option<Duration>,
}

impl Governor {
    /// A governor that has not handed anything back yet.
    pub fn new(config: GovernorConfig) -> Self {
        Self { config, last: None }
    }

    /// Whether to hand memory back now. An answer is counted as followed.
    pub fn decide(&mut self, moment: &Moment) -> Option<Trim> {
        let config = &self.config;
        if moment.resident_bytes.saturating_sub(moment.live_bytes) < WORTH_BYTES {
            return None;
        }
        let grown = u128::from(moment.resident_bytes) * 100
            > u128::from(moment.live_bytes) * u128::from(config.growth_percent);
        let since =
            |interval| self.last.is_none_or(|last| moment.now.saturating_sub(last) >= interval);
        let near = u128::from(moment.anonymous_bytes) * 100
            >= u128::from(moment.budget_bytes) * u128::from(config.budget_percent);
        let reason = if moment
            .stalled_hundredths
            .is_some_and(|stalled| stalled >= config.pressure_hundredths)
        {
            Trim::Stalled
        } else if near {
            Trim::NearBudget
        } else if moment.now.saturating_sub(moment.last_activity) >= config.idle
            && moment.resident_bytes > config.initial_bytes
            && grown
        {
            Trim::Idle
        } else {
            return None;
        };
        let interval =
            if reason == Trim::Idle { config.interval } else { config.pressure_interval };
        since(interval).then(|| {
            self.last = Some(moment.now);
            reason
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: GovernorConfig = GovernorConfig {
        idle: Duration::from_millis(500),
        interval: Duration::from_secs(10),
        growth_percent: 120,
        initial_bytes: 16 << 20,
        pressure_interval: Duration::from_secs(1),
        pressure_hundredths: 500,
        budget_percent: 85,
    };

    fn moment(now_millis: u64) -> Moment {
        Moment {
            now: Duration::from_millis(now_millis),
            last_activity: Duration::ZERO,
            live_bytes: 10 << 20,
            resident_bytes: 30 << 20,
            anonymous_bytes: 40 << 20,
            budget_bytes: 512 << 20,
            stalled_hundredths: Some(0),
        }
    }

    #[test]
    fn an_idle_node_hands_back_once_per_interval() {
        let mut governor = Governor::new(CONFIG);
        assert_eq!(governor.decide(&moment(499)), None);
        assert_eq!(governor.decide(&moment(500)), Some(Trim::Idle));
        assert_eq!(governor.decide(&moment(10_499)), None);
        assert_eq!(governor.decide(&moment(10_500)), Some(Trim::Idle));
    }

    #[test]
    fn a_busy_node_keeps_its_memory() {
        let mut governor = Governor::new(CONFIG);
        let busy = Moment { last_activity: Duration::from_millis(99_900), ..moment(100_000) };
        assert_eq!(governor.decide(&busy), None);
    }

    #[test]
    fn pressure_does_not_wait_for_idleness_but_is_limited_too() {
        let mut governor = Governor::new(CONFIG);
        let busy = |now| Moment { last_activity: Duration::from_millis(now), ..moment(now) };
        assert_eq!(
            governor.decide(&Moment { stalled_hundredths: Some(500), ..busy(100) }),
            Some(Trim::Stalled)
        );
        assert_eq!(
            governor.decide(&Moment { stalled_hundredths: Some(9_000), ..busy(1_099) }),
            None
        );
        assert_eq!(
            governor.decide(&Moment {
                anonymous_bytes: 436 << 20,
                stalled_hundredths: None,
                ..busy(1_100)
            }),
            Some(Trim::NearBudget)
        );
    }

    #[test]
    fn an_idle_node_keeps_its_initial_memory_and_its_growth() {
        let mut governor = Governor::new(CONFIG);
        assert_eq!(governor.decide(&Moment { resident_bytes: 16 << 20, ..moment(60_000) }), None);
        let grown_little =
            Moment { live_bytes: 50 << 20, resident_bytes: 60 << 20, ..moment(60_000) };
        assert_eq!(governor.decide(&grown_little), None);
        // Under pressure neither counts.
        let stalled = Moment { stalled_hundredths: Some(500), ..grown_little };
        assert_eq!(governor.decide(&stalled), Some(Trim::Stalled));
    }

    #[test]
    fn nothing_to_hand_back_is_no_work() {
        let mut governor = Governor::new(CONFIG);
        assert_eq!(governor.decide(&Moment { resident_bytes: 10 << 20, ..moment(60_000) }), None);
        assert_eq!(governor.decide(&Moment { resident_bytes: 0, ..moment(60_000) }), None);
    }
}
