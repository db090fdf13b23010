//! Query statistics: this node's own table, and the totals that members agree on
//! (docs/query-stats.md).
//!
//! The table is in memory alone: a node that restarts has lost its counts since its last report.
//! The table of the current period and the one that is being reported have
//! `execution.query_stats_canisters` canisters each. When a table is full, queries of further
//! canisters are not counted before the next period. Counts that could not be reported within a
//! period are dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ic_principal::Principal;
use limits::ExecutionLimits;
use state::{
    Batch, CanisterId, Height, QUERY_REPORT_CANISTERS_MAX, QueryCounts, QueryReport,
    ReplicatedState,
};

/// Parts of the table, so that queries of different canisters seldom wait for each other.
const SHARDS: usize = 16;

/// Canisters whose totals change in one round: each is a record that is encoded again.
const TOTALS_PER_ROUND: usize = 1_000;

type Table = BTreeMap<CanisterId, QueryCounts>;

/// Number of the period that a round belongs to.
fn period(height: Height, limits: &ExecutionLimits) -> u64 {
    height.0 / limits.query_stats_period_rounds.max(1)
}

/// Queries that this node answered.
pub struct QueryTally {
    node: Principal,
    limits: ExecutionLimits,
    shards: [Mutex<Table>; SHARDS],
    /// Canisters in all shards; a few more while several are new at once, none of which is kept.
    held: AtomicU64,
    closed: Mutex<ClosedPeriod>,
}

/// Counts of the last completed period that are in no executed block.
#[derive(Default)]
struct ClosedPeriod {
    /// The one that runs.
    period: u64,
    table: Table,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insertion or removal, or takes everything.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QueryTally {
    /// Of this node, which executed rounds up to `height`.
    pub(crate) fn new(node: Principal, limits: &ExecutionLimits, height: Height) -> Self {
        let closed = ClosedPeriod { period: period(height, limits), table: Table::new() };
        Self {
            node,
            limits: limits.clone(),
            shards: Default::default(),
            held: AtomicU64::new(0),
            closed: Mutex::new(closed),
        }
    }

    fn shard(&self, canister: &CanisterId) -> &Mutex<Table> {
        // The lowest byte of its number; ids of other forms have some place, too.
        let byte = canister.as_slice().get(7).copied().unwrap_or_default();
        &self.shards[usize::from(byte) % SHARDS]
    }

    /// Counts a query of a canister, if the table has the canister or room for it.
    pub(crate) fn count(&self, canister: &CanisterId, counts: &QueryCounts) {
        let mut shard = lock(self.shard(canister));
        if let Some(known) = shard.get_mut(canister) {
            known.add(counts);
        } else if self.held.fetch_add(1, Ordering::Relaxed) < self.limits.query_stats_canisters {
            shard.insert(*canister, *counts);
        } else {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Report for a block of this height made by this node: a part of the counts of the period
    /// before the block's that are in no executed block.
    pub fn report(&self, height: Height) -> Option<QueryReport> {
        let closed = lock(&self.closed);
        // A node that executes slowly still has the table of an older one.
        if closed.table.is_empty() || closed.period != period(height, &self.limits) {
            return None;
        }
        let canisters = closed.table.iter().take(QUERY_REPORT_CANISTERS_MAX);
        let canisters = canisters.map(|(canister, counts)| (*canister, *counts)).collect();
        Some(QueryReport { node: self.node, canisters })
    }

    /// The batch was executed: what it reports of this node's is reported, and with the first of a
    /// period the one before it is closed.
    pub(crate) fn executed(&self, batch: &Batch) {
        let period = period(batch.height, &self.limits);
        let mut closed = lock(&self.closed);
        if closed.period != period {
            // Unreported counts are dropped before new ones are collected.
            *closed = ClosedPeriod { period, table: Table::new() };
            closed.table = self.close();
        }
        if let Some(report) = batch.queries.as_ref().filter(|report| report.node == self.node) {
            for (canister, _) in &report.canisters {
                closed.table.remove(canister);
            }
        }
    }

    fn close(&self) -> Table {
        let mut all = Table::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            self.held.fetch_sub(shard.len() as u64, Ordering::Relaxed);
            all.append(&mut shard);
        }
        all
    }
}

/// Takes the batch's report into the state, and adds what is due to the totals of canisters.
pub(crate) fn account(
    state: &mut ReplicatedState,
    batch: &Batch,
    members: &[Principal],
    limits: &ExecutionLimits,
) {
    let reports = &mut state.subnet.query_reports;
    reports.begin(period(batch.height, limits), members);
    if let Some(report) = &batch.queries {
        reports.take(report, members, limits.query_stats_canisters);
    }
    for (canister, totals) in reports.take_due(TOTALS_PER_ROUND) {
        // One that was deleted meanwhile takes its queries with it.
        if let Some(canister) = state.get_mut(&canister) {
            canister.query_totals.add(&totals);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use state::{Randomness, Time};

    use super::*;
    use crate::ExecutorConfig;

    fn limits(canisters: u64) -> ExecutionLimits {
        ExecutionLimits {
            query_stats_period_rounds: 10,
            query_stats_canisters: canisters,
            ..limits::Limits::derive(512 << 20).unwrap().execution
        }
    }

    fn me() -> Principal {
        Principal::from_slice(&[1])
    }

    fn id(number: u64) -> CanisterId {
        ExecutorConfig::canister_id(number)
    }

    fn one() -> QueryCounts {
        QueryCounts { calls: 1, instructions: 100, request_bytes: 3, response_bytes: 5 }
    }

    fn batch(height: u64, queries: Option<QueryReport>) -> Batch {
        Batch {
            height: Height(height),
            time: Time(height),
            randomness: Randomness::NONE,
            ingress: vec![],
            outcalls: vec![],
            key: None,
            agreed: None,
            queries: queries.map(Box::new),
        }
    }

    fn reported(tally: &QueryTally, height: u64) -> Vec<(CanisterId, u64)> {
        let report = tally.report(Height(height));
        let canisters = report.into_iter().flat_map(|report| report.canisters);
        canisters.map(|(canister, counts)| (canister, counts.calls)).collect()
    }

    #[test]
    fn a_period_is_reported_in_the_next_one_until_blocks_have_it() {
        let tally = QueryTally::new(me(), &limits(1_000), Height(12));
        (0..3).for_each(|_| tally.count(&id(1), &one()));
        tally.count(&id(2), &one());
        assert!(reported(&tally, 13).is_empty(), "the period is not over");
        tally.executed(&batch(19, None));
        assert!(reported(&tally, 20).is_empty(), "its last round was not followed by the next");
        tally.executed(&batch(20, None));
        tally.count(&id(1), &one());
        assert_eq!(reported(&tally, 21), [(id(1), 3), (id(2), 1)]);
        assert!(reported(&tally, 30).is_empty(), "no block of a later period has it");
        // A report of another node changes nothing.
        let report = tally.report(Height(21)).unwrap();
        report.check().unwrap();
        let theirs = QueryReport { node: Principal::from_slice(&[2]), ..report.clone() };
        tally.executed(&batch(21, Some(theirs)));
        assert_eq!(reported(&tally, 22).len(), 2);
        let part = QueryReport { canisters: report.canisters[..1].to_vec(), ..report };
        tally.executed(&batch(22, Some(part)));
        assert_eq!(reported(&tally, 23), [(id(2), 1)]);
        tally.executed(&batch(30, None));
        assert_eq!(reported(&tally, 31), [(id(1), 1)], "what was not reported in time is dropped");
    }

    // Promise: P9 - A member counts queries of at most `execution.query_stats_canisters` canisters.
    #[test]
    fn a_full_table_counts_those_it_has_and_has_room_again_in_the_next_period() {
        let tally = QueryTally::new(me(), &limits(300), Height(0));
        (0..500).for_each(|number| tally.count(&id(number), &one()));
        tally.count(&id(7), &one());
        tally.executed(&batch(10, None));
        let mut height = 10;
        let mut all = vec![];
        while let Some(report) = tally.report(Height(height)) {
            assert!(report.canisters.len() <= QUERY_REPORT_CANISTERS_MAX);
            all.extend(report.canisters.iter().map(|(canister, counts)| (*canister, counts.calls)));
            height += 1;
            tally.executed(&batch(height, Some(report)));
        }
        let expected: Vec<_> =
            (0..300).map(|number| (id(number), 1 + u64::from(number == 7))).collect();
        assert_eq!((all, height), (expected, 12));
        tally.count(&id(499), &one());
        tally.executed(&batch(20, None));
        assert_eq!(reported(&tally, 21), [(id(499), 1)]);
    }

    #[test]
    fn no_count_is_lost_between_threads_and_periods() {
        let tally = QueryTally::new(me(), &limits(1_000), Height(0));
        let close = |period: u64| -> u64 {
            tally.executed(&batch(period * 10, None));
            reported(&tally, period * 10).iter().map(|(_, calls)| calls).sum()
        };
        let before: u64 = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..4_000).for_each(|at| tally.count(&id(at % 40), &one())));
            }
            (1..=50).map(close).sum()
        });
        assert_eq!(before + close(51), 16_000);
        assert_eq!(tally.held.load(Ordering::Relaxed), 0);
    }
}
