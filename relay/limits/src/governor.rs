//! Limits of the governor: when memory is returned, and when work is held back.

use memory_budget::{HandBackLimits, Rules, limit};

use crate::{Limits, SCALE};

const _: () = {
    assert!(rows::refuse_pushes_percent.covers(&rows::refuse_queries_percent));
    assert!(rows::pause_reading_percent.covers(&rows::refuse_pushes_percent));
    assert!(SCALE.fixed(100).covers(&rows::pause_reading_percent), "percent of the budget");
};

memory_budget::limits! {
    SCALE;
    /// When memory is returned, and when work is held back. Unknown fields are refused by
    /// [`memory_budget::apply_overrides`]: serde cannot for a flattened struct.
    pub struct GovernorLimits as governor of Limits,
        flattens hand_back: HandBackLimits, rules check
    {
        /// Anonymous memory in percent of the budget from which on store queries and REST reads are
        /// refused.
        refuse_queries_percent: u64 = fixed(85), local,
            reason "of the budget; a query is the cheapest to ask again: 429";
        /// Anonymous memory in percent of the budget from which on light pushes, subscriptions and
        /// new connections are refused.
        refuse_pushes_percent: u64 = fixed(90), local,
            reason "of the budget; the client keeps its message: 429";
        /// Anonymous memory in percent of the budget from which on no stream is read.
        pause_reading_percent: u64 = fixed(95), local,
            reason "of the budget; peers' own queues hold what comes";
    }
}

memory_budget::limits! {
    shared HandBackLimits as governor.hand_back of Limits = |_| HandBackLimits::MEASURED;
    {
        idle_millis: local, reason "a pause between two bursts is shorter";
        interval_millis: local, reason "handing back costs page faults at the next request";
        growth_percent: local, reason "less is not worth the page faults";
        initial_bytes: local, pays none("a threshold takes no room"),
            reason "a relay at rest has little to hand back";
        pressure_interval_millis: local, reason "pressure does not end within one hand-back";
        stalled_percent: local,
            reason "of the last 10 s; page cache at the cap alone stays below";
        short_percent: local, reason "of the budget; freed memory goes back at once";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let levels = [
        limit!(limits.governor.refuse_queries_percent),
        limit!(limits.governor.refuse_pushes_percent),
        limit!(limits.governor.pause_reading_percent),
    ];
    let because =
        ["queries are refused before messages", "messages are refused before everything waits"];
    limits.governor.hand_back.check(rules, levels, because);
}

impl GovernorLimits {
    /// The thresholds, in the order in which they are reached.
    pub fn levels(&self) -> [u64; 3] {
        [self.refuse_queries_percent, self.refuse_pushes_percent, self.pause_reading_percent]
    }
}
