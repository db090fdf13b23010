//! Limits of the governor: when memory is returned, and when work is held back.

use memory_budget::{HandBackLimits, Rules, limit};

use crate::{Limits, SCALE};

const _: () = {
    assert!(rows::refuse_calls_percent.covers(&rows::refuse_queries_percent));
    assert!(rows::pause_execution_percent.covers(&rows::refuse_calls_percent));
    assert!(SCALE.fixed(100).covers(&rows::pause_execution_percent), "percent of the budget");
};

memory_budget::limits! {
    SCALE;
    /// When memory is returned, and when work is held back. Unknown fields are refused by
    /// [`memory_budget::apply_overrides`]: serde cannot for a flattened struct.
    pub struct GovernorLimits as governor of Limits,
        flattens hand_back: HandBackLimits, rules check
    {
        /// Anonymous memory in percent of the budget from which on queries are refused.
        refuse_queries_percent: u64 = fixed(85), local,
            reason "of the budget; a query is the cheapest to ask again: 429 with Retry-After";
        /// Anonymous memory in percent of the budget from which on new calls are refused.
        refuse_calls_percent: u64 = fixed(90), local,
            reason "of the budget; new calls are answered 503 with Retry-After";
        /// Anonymous memory in percent of the budget from which on the next batch waits.
        pause_execution_percent: u64 = fixed(95), local,
            reason "of the budget; the next batch waits, up to 10 s, for memory to be given back";
    }
}

memory_budget::limits! {
    shared HandBackLimits as governor.hand_back of Limits = |_| HandBackLimits::MEASURED;
    {
        idle_millis: local,
            reason "shorter, and every pause between two requests pays for page faults";
        interval_millis: local,
            reason "a hand-back costs a third of a millisecond; more often brings nothing more";
        growth_percent: local,
            reason "an idle process keeps a tenth above what it uses; less is asked for again at \
                    once";
        initial_bytes: local, pays none("a threshold takes no room"),
            reason "of each process; below it handing back only costs page faults";
        pressure_interval_millis: local,
            reason "pressure does not end within one hand-back";
        stalled_percent: local,
            reason "of the last 10 s, in the node's own group; page cache at the cap alone stays \
                    below";
        short_percent: local,
            reason "of the budget; freed memory goes back at once, idle mappings are dropped";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let levels = [
        limit!(limits.governor.refuse_queries_percent),
        limit!(limits.governor.refuse_calls_percent),
        limit!(limits.governor.pause_execution_percent),
    ];
    let because =
        ["queries are refused before calls", "calls are refused before those accepted wait"];
    limits.governor.hand_back.check(rules, levels, because);
}

impl GovernorLimits {
    /// The thresholds, in the order in which they are reached.
    pub fn levels(&self) -> [u64; 3] {
        [self.refuse_queries_percent, self.refuse_calls_percent, self.pause_execution_percent]
    }
}
