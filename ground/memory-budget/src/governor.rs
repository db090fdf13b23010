//! The limits of a governor that every program has: when freed memory goes back to the operating
//! system. Each program defines the shares of the budget from which work is held back; the rules
//! between these shares are the same for all.

use accounting::{GovernorConfig, MIB, ThrottleConfig};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::{LimitValue, Rules};

/// How far below its threshold a level is taken back, in percent of the budget.
const RELEASE_PERCENT: u32 = 5;

/// Part of the group `governor` of a table. A program flattens it into the group, alongside its own
/// thresholds; serde cannot refuse unknown fields of such a group, and [`crate::apply_overrides`]
/// does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandBackLimits {
    /// Time without work after which freed memory is handed back.
    pub idle_millis: u64,
    /// Least time between two hand-backs of an idle program.
    pub interval_millis: u64,
    /// Resident memory in percent of live memory up to which an idle program hands nothing back.
    pub growth_percent: u64,
    /// Resident memory of a process up to which an idle program hands nothing back.
    pub initial_bytes: u64,
    /// Least time between two hand-backs under pressure.
    pub pressure_interval_millis: u64,
    /// Share of the last 10 seconds in which a task of the program's group waited for memory, from
    /// which on memory counts as short.
    pub stalled_percent: u64,
    /// Anonymous memory in percent of the budget from which on memory counts as short: it is
    /// handed back at once.
    pub short_percent: u64,
}

impl HandBackLimits {
    /// Measured with bursts of load and pauses between them; the table is in docs/operating.md.
    pub const MEASURED: Self = Self {
        idle_millis: 500,
        interval_millis: 2_000,
        growth_percent: 110,
        initial_bytes: 4 * MIB,
        pressure_interval_millis: 1_000,
        stalled_percent: 5,
        short_percent: 80,
    };

    /// As the rule takes it.
    pub fn config(&self) -> GovernorConfig {
        GovernorConfig {
            idle: Duration::from_millis(self.idle_millis),
            interval: Duration::from_millis(self.interval_millis),
            growth_percent: percent(self.growth_percent),
            initial_bytes: self.initial_bytes,
            pressure_interval: Duration::from_millis(self.pressure_interval_millis),
            pressure_hundredths: percent(self.stalled_percent.saturating_mul(100)),
            budget_percent: percent(self.short_percent),
        }
    }

    /// The rules between these limits and the program's thresholds, in the order in which they are
    /// reached; `because` gives the reason of each but the first to come after the one before.
    pub fn check(&self, rules: &mut Rules, levels: [LimitValue; 3], because: [&str; 2]) {
        let short = LimitValue::limit("governor.short_percent", self.short_percent);
        let growth = LimitValue::limit("governor.growth_percent", self.growth_percent);
        let stalled = LimitValue::limit("governor.stalled_percent", self.stalled_percent);
        let [first, second, third] = levels;
        rules.at_least(growth, 100, "resident memory is never below live memory");
        rules.at_least(
            short,
            1,
            "a program always takes some memory, so it would always count as short",
        );
        rules.within(short, first, "memory is handed back before work is refused");
        rules.within(first, second, because[0]);
        rules.within(second, third, because[1]);
        rules.at_most(third, 100, "beyond the budget it would be too late");
        rules.at_most(stalled, 100, "it is a share of time");
    }
}

/// Thresholds in percent of the budget, as the rule takes them.
pub fn throttle_config([queries, ingress, execution]: [u64; 3]) -> ThrottleConfig {
    ThrottleConfig {
        queries_percent: percent(queries),
        ingress_percent: percent(ingress),
        execution_percent: percent(execution),
        release_percent: RELEASE_PERCENT,
    }
}

fn percent(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_gets_what_the_table_says() {
        let config = HandBackLimits::MEASURED.config();
        assert_eq!(
            (config.idle, config.interval),
            (Duration::from_millis(500), Duration::from_secs(2))
        );
        assert_eq!((config.growth_percent, config.initial_bytes), (110, 4 * MIB));
        assert_eq!((config.pressure_hundredths, config.budget_percent), (500, 80));
        assert_eq!(config.pressure_interval, Duration::from_secs(1));
        let levels = throttle_config([85, 90, u64::MAX]);
        assert_eq!((levels.queries_percent, levels.ingress_percent), (85, 90));
        assert_eq!((levels.execution_percent, levels.release_percent), (u32::MAX, 5));
    }
}
