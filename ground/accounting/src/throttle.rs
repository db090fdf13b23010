//! How far work is held back when memory runs short.
//!
//! Caps of pools bound what each consumer takes; this is what happens when their sum comes near the
//! budget all the same. Work is refused in the order in which it is cheapest to ask again: queries
//! first, then new calls, then the execution of calls already accepted waits. Each step has a
//! threshold, and is taken back only when anonymous memory has fallen some way below it, so that
//! the node does not flutter. A pure rule: it reads nothing and refuses nothing itself.

/// How far work is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Everything is taken.
    #[default]
    None,
    /// Queries are refused.
    Queries,
    /// New calls are refused too.
    Ingress,
    /// And the next batch waits.
    Execution,
}

/// Thresholds in percent of the budget, rising.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// From here on queries are refused.
    pub queries_percent: u32,
    /// From here on new calls are refused.
    pub ingress_percent: u32,
    /// From here on execution waits.
    pub execution_percent: u32,
    /// How far below its threshold a step is taken back.
    pub release_percent: u32,
}

/// Remembers the level.
#[derive(Clone, Debug)]
pub struct Throttle {
    config: ThrottleConfig,
    level: Level,
}

impl Throttle {
    /// Nothing is held back yet.
    pub fn new(config: ThrottleConfig) -> Self {
        Self { config, level: Level::None }
    }

    /// The level for this much anonymous memory.
    pub fn decide(&mut self, anonymous_bytes: u64, budget_bytes: u64) -> Level {
        let reached = |percent: u32| {
            u128::from(anonymous_bytes) * 100 >= u128::from(budget_bytes) * u128::from(percent)
        };
        let config = &self.config;
        let steps = [
            (Level::Execution, config.execution_percent),
            (Level::Ingress, config.ingress_percent),
            (Level::Queries, config.queries_percent),
        ];
        self.level = steps
            .into_iter()
            .find(|(level, percent)| {
                let held = self.level >= *level;
                reached(if held {
                    percent.saturating_sub(config.release_percent)
                } else {
                    *percent
                })
            })
            .map_or(Level::None, |(level, _)| level);
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle() -> Throttle {
        Throttle::new(ThrottleConfig {
            queries_percent: 85,
            ingress_percent: 90,
            execution_percent: 95,
            release_percent: 5,
        })
    }

    #[test]
    fn steps_are_taken_in_order_and_taken_back_late() {
        let mut throttle = throttle();
        let mut levels = Vec::new();
        for percent in [0, 84, 85, 84, 80, 79, 90, 95, 90, 89, 84, 79] {
            levels.push(throttle.decide(percent, 100));
        }
        use Level::{Execution, Ingress, None, Queries};
        assert_eq!(
            levels,
            [
                None, None, Queries, Queries, Queries, None, Ingress, Execution, Execution,
                Ingress, Queries, None
            ]
        );
    }

    #[test]
    fn a_jump_takes_all_steps_at_once() {
        let mut throttle = throttle();
        assert_eq!(throttle.decide(u64::MAX, 1), Level::Execution);
        assert_eq!(throttle.decide(0, 1), Level::None);
    }
}
