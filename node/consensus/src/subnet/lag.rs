//! Says in the log that this node is behind the others and that their blocks bring it closer.

use std::time::{Duration, SystemTime};

use state::Height;

use super::published::SubnetProgress;

/// Blocks behind at which a node says so.
const BEHIND: u64 = 20;
/// Without progress for this time, blocks do not bring a node closer: see [`super::state_sync`].
const STUCK: Duration = Duration::from_secs(20);
/// Minimum interval between two warnings.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Detects lag that nothing else logs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LagWatch {
    executed: Height,
    /// When execution last moved, or there was nothing to execute.
    moved: Option<SystemTime>,
    logged: Option<SystemTime>,
}

impl LagWatch {
    /// To be called every second or so.
    pub(super) fn log_if_behind(&mut self, progress: SubnetProgress, now: SystemTime) {
        if self.is_due(progress, now) {
            self.logged = Some(now);
            let SubnetProgress { finalised, executed, .. } = progress;
            tracing::warn!(
                behind = finalised.0.saturating_sub(executed.0),
                executed = executed.0,
                finalised = finalised.0,
                "behind the subnet, coming closer by its peers' blocks"
            );
        }
    }

    fn is_due(&mut self, progress: SubnetProgress, now: SystemTime) -> bool {
        let SubnetProgress { finalised, executed, .. } = progress;
        if executed > self.executed || finalised.0 <= executed.0 + 1 {
            (self.executed, self.moved) = (executed, Some(now));
        }
        let since = |time: Option<SystemTime>| {
            time.map(|time| now.duration_since(time).unwrap_or_default())
        };
        let behind = finalised.0.saturating_sub(executed.0);
        since(self.moved).is_some_and(|still| still < STUCK)
            && behind > BEHIND
            && since(self.logged).is_none_or(|since| since >= LOG_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn progress(finalised: u64, executed: u64) -> SubnetProgress {
        SubnetProgress {
            finalised: Height(finalised),
            executed: Height(executed),
            ..SubnetProgress::default()
        }
    }

    #[test]
    fn lag_is_logged_every_ten_seconds_while_execution_advances() {
        let mut lag = LagWatch::default();
        assert!(!lag.is_due(progress(20, 0), at(0)), "twenty blocks are no lag");
        lag.log_if_behind(progress(100, 1), at(1));
        assert_eq!(lag.logged, Some(at(1)));
        assert!(!lag.is_due(progress(110, 20), at(10)));
        assert!(lag.is_due(progress(120, 30), at(11)));
        // No progress since second 11.
        assert!(lag.is_due(progress(900, 30), at(30)));
        assert!(!lag.is_due(progress(900, 30), at(31)));
    }
}
