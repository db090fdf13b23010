//! Query statistics per canister: counted by each member for itself, merged in the state
//! (docs/query-stats.md has the periods and the losses).
//!
//! Only the member that answered a query saw it, so a report cannot be checked. Each figure of a
//! canister is cut, per member, to the `f+1`th largest that a member reported of it, which is at
//! most what an honest one reported, and then summed: faulty members add at most `f` times what
//! some honest member saw. A figure that every member reports alike is exact. Multiplying a median
//! by the number of members is robust as well, but it counts queries that were never sent if they
//! are spread unevenly; too low a figure is the better error.
//!
//! This module must not know how queries run, nor how reports come into blocks.

use std::collections::BTreeMap;

use ic_principal::Principal;
use serde::{Deserialize, Serialize};

use crate::{CanisterId, state_heap};

/// Canisters in one report: 15 KB of a block at most.
pub const QUERY_REPORT_CANISTERS_MAX: usize = 200;

/// Queries of one canister, as one member counted them in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryCounts {
    /// Query methods that were evaluated.
    pub calls: u64,
    /// Instructions that this took.
    pub instructions: u64,
    /// Bytes of arguments.
    pub request_bytes: u64,
    /// Bytes of replies, and of the messages of rejects.
    pub response_bytes: u64,
}

impl QueryCounts {
    /// Counts further queries; no figure passes its end.
    pub fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.request_bytes = self.request_bytes.saturating_add(other.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(other.response_bytes);
    }

    fn figures(&self) -> [u64; 4] {
        [self.calls, self.instructions, self.request_bytes, self.response_bytes]
    }
}

/// All queries of a canister since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see `QueryCounts`")]
pub struct QueryTotals {
    pub calls: u128,
    pub instructions: u128,
    pub request_bytes: u128,
    pub response_bytes: u128,
}

impl QueryTotals {
    fn from_figures(figures: [u128; 4]) -> Self {
        let [calls, instructions, request_bytes, response_bytes] = figures;
        Self { calls, instructions, request_bytes, response_bytes }
    }

    /// Adds those of a period.
    pub fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.request_bytes = self.request_bytes.saturating_add(other.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(other.response_bytes);
    }
}

/// Counts of a block's maker in the period before the block's, or a part of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryReport {
    /// The block's maker.
    pub node: Principal,
    /// In the order of ids, each once, [`QUERY_REPORT_CANISTERS_MAX`] at most.
    pub canisters: Vec<(CanisterId, QueryCounts)>,
}

impl QueryReport {
    /// Checks the rules that hold in a block of any maker.
    ///
    /// # Errors
    /// When it is empty, too long, or out of order.
    pub fn check(&self) -> Result<(), String> {
        let reported = self.canisters.len();
        if reported == 0 || reported > QUERY_REPORT_CANISTERS_MAX {
            return Err(format!(
                "it reports queries of {reported} canisters, and a report has 1 to \
                 {QUERY_REPORT_CANISTERS_MAX}"
            ));
        }
        if !self.canisters.is_sorted_by(|(one, _), (next, _)| one < next) {
            return Err("it reports queries of canisters out of order".into());
        }
        Ok(())
    }
}

/// What members reported of one period, until it is brought together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryReports {
    /// In which they reported it: it is that of the period before.
    period: u64,
    members: BTreeMap<Principal, BTreeMap<CanisterId, QueryCounts>>,
    /// Sums of the period before, until the next one begins: clients of the public network's server
    /// for tests count on it.
    held: BTreeMap<CanisterId, QueryTotals>,
    /// Sums that no canister's totals have yet.
    due: BTreeMap<CanisterId, QueryTotals>,
}

impl QueryReports {
    /// Begins a round of this period. With the first round of a period, the reports of the period
    /// before, from nodes that are `members` now, become sums, and the sums before those are due.
    pub fn begin(&mut self, period: u64, members: &[Principal]) {
        if self.period == period {
            return;
        }
        self.period = period;
        let mut reported: BTreeMap<CanisterId, Vec<QueryCounts>> = BTreeMap::new();
        for (member, canisters) in std::mem::take(&mut self.members) {
            if members.contains(&member) {
                for (canister, counts) in canisters {
                    reported.entry(canister).or_default().push(counts);
                }
            }
        }
        let faulty = members.len().saturating_sub(1) / 3;
        state_heap::within(|| {
            for (canister, totals) in std::mem::take(&mut self.held) {
                self.due.entry(canister).or_default().add(&totals);
            }
            let sums = reported.into_iter().map(|(id, counts)| (id, sum(&counts, faulty)));
            self.held = sums.filter(|(_, totals)| *totals != QueryTotals::default()).collect();
        });
    }

    /// The sums to add to the totals of canisters in this round: at most `most`, in the order of
    /// ids.
    pub fn take_due(&mut self, most: usize) -> Vec<(CanisterId, QueryTotals)> {
        std::iter::from_fn(|| self.due.pop_first()).take(most).collect()
    }

    /// Records a report of one of the `members`, in the period that has begun. Only a member's
    /// first report of a canister counts, and only the first `canisters_max` canisters of a member.
    pub fn take(&mut self, report: &QueryReport, members: &[Principal], canisters_max: u64) {
        if !members.contains(&report.node) {
            return;
        }
        state_heap::within(|| {
            let known = self.members.entry(report.node).or_default();
            for (canister, counts) in &report.canisters {
                if (known.len() as u64) < canisters_max {
                    known.entry(*canister).or_insert(*counts);
                }
            }
        });
    }
}

/// Of what members reported of a canister, all others having reported nothing.
fn sum(counts: &[QueryCounts], faulty: usize) -> QueryTotals {
    let figures: Vec<[u64; 4]> = counts.iter().map(QueryCounts::figures).collect();
    QueryTotals::from_figures(std::array::from_fn(|place| {
        let mut reported: Vec<u64> = figures.iter().map(|figures| figures[place]).collect();
        reported.sort_unstable_by(|one, other| other.cmp(one));
        let most = reported.get(faulty).copied().unwrap_or_default();
        reported.into_iter().map(|figure| u128::from(figure.min(most))).sum()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> Principal {
        Principal::from_slice(&[number])
    }

    fn counts(calls: u64) -> QueryCounts {
        QueryCounts {
            calls,
            instructions: calls * 1_000,
            request_bytes: calls * 10,
            response_bytes: calls * 20,
        }
    }

    fn report(node: u8, canisters: &[(u8, u64)]) -> QueryReport {
        let canisters = canisters.iter().map(|(number, calls)| (id(*number), counts(*calls)));
        QueryReport { node: id(node), canisters: canisters.collect() }
    }

    fn members(count: u8) -> Vec<Principal> {
        (100..100 + count).map(id).collect()
    }

    /// The sums that are due when the period after the next has begun.
    fn summed(reports: &mut QueryReports, members: &[Principal]) -> Vec<(Principal, QueryTotals)> {
        for _ in 0..2 {
            assert!(reports.take_due(usize::MAX).is_empty());
            reports.begin(reports.period + 1, members);
        }
        reports.take_due(usize::MAX)
    }

    /// Calls of canister 1 after members of a subnet reported `calls`.
    fn reported_calls(calls: &[u64]) -> u128 {
        let members = members(calls.len() as u8);
        let mut reports = QueryReports::default();
        reports.begin(1, &members);
        for (node, calls) in (100..).zip(calls) {
            reports.take(&report(node, &[(1, *calls)]), &members, 10);
        }
        let summed = summed(&mut reports, &members);
        assert!(reports.members.is_empty());
        let Some((canister, totals)) = summed.first() else { return 0 };
        assert_eq!(*canister, id(1));
        let calls = totals.calls;
        assert_eq!(
            *totals,
            QueryTotals::from_figures([calls, calls * 1_000, calls * 10, calls * 20])
        );
        calls
    }

    #[test]
    fn a_node_alone_is_believed_and_so_are_members_who_agree() {
        assert_eq!(reported_calls(&[7]), 7);
        assert_eq!(reported_calls(&[5, 5, 5, 5]), 20);
        assert_eq!(reported_calls(&[9, 10, 11, 12]), 9 + 10 + 11 + 11);
        assert_eq!(reported_calls(&[3; 13]), 39);
    }

    #[test]
    fn as_many_as_may_lie_add_no_more_than_an_honest_member_saw() {
        let most = u64::MAX / 1_000;
        assert_eq!(reported_calls(&[10, 10, 10, most]), 40);
        assert_eq!(reported_calls(&[0, 0, 0, most]), 0, "one alone is not believed");
        assert_eq!(reported_calls(&[0, 0, 8, most]), 16);
        let mut thirteen = [10; 13];
        thirteen[..4].fill(most);
        assert_eq!(reported_calls(&thirteen), 130);
        thirteen[..4].fill(0);
        assert_eq!(reported_calls(&thirteen), 90, "what they hide is what they saw");
    }

    #[test]
    fn figures_at_their_end_do_not_overflow() {
        let full = QueryCounts { calls: u64::MAX, ..QueryCounts::default() };
        let mut twice = full;
        twice.add(&full);
        assert_eq!(twice, full);
        assert_eq!(sum(&[full; 64], 21).calls, 64 * u128::from(u64::MAX));
        let mut total = QueryTotals::from_figures([u128::MAX; 4]);
        total.add(&QueryTotals::from_figures([1; 4]));
        assert_eq!(total, QueryTotals::from_figures([u128::MAX; 4]));
    }

    // Promise: P9 - The state stores reports for a bounded number of canisters per member.
    #[test]
    fn the_first_report_of_a_canister_counts_and_of_so_many_canisters() {
        let alone = members(1);
        let mut reports = QueryReports::default();
        reports.begin(1, &alone);
        reports.take(&report(100, &[(1, 5), (2, 6)]), &alone, 3);
        reports.take(&report(100, &[(1, 50), (3, 7), (4, 8)]), &alone, 3);
        let calls = |summed: Vec<(Principal, QueryTotals)>| -> Vec<(Principal, u128)> {
            summed.into_iter().map(|(id, totals)| (id, totals.calls)).collect()
        };
        reports.begin(1, &alone);
        assert!(!reports.members.is_empty(), "the period is not over");
        reports.begin(2, &alone);
        assert!(reports.take_due(10).is_empty(), "it is held");
        reports.begin(3, &alone);
        assert_eq!(calls(reports.take_due(2)), [(id(1), 5), (id(2), 6)]);
        assert_eq!(calls(reports.take_due(2)), [(id(3), 7)]);
        assert_eq!(summed(&mut reports, &alone), [], "nothing was reported");
    }

    #[test]
    fn who_is_no_member_is_not_heard() {
        let mut reports = QueryReports::default();
        reports.begin(1, &members(4));
        reports.take(&report(99, &[(1, 5)]), &members(4), 3);
        assert!(reports.members.is_empty());
        reports.take(&report(103, &[(1, 5)]), &members(4), 3);
        reports.take(&report(100, &[(1, 6)]), &members(4), 3);
        let summed = summed(&mut reports, &members(3));
        assert_eq!(summed[0].1.calls, 6, "one left before the period ended");
    }

    #[test]
    fn a_report_is_neither_empty_nor_long_and_has_each_canister_once() {
        let refused = |canisters: &[(u8, u64)]| report(1, canisters).check().err();
        assert_eq!(refused(&[(1, 1), (2, 1)]), None);
        assert!(refused(&[]).is_some_and(|reason| reason.contains("of 0 canisters")));
        for canisters in [[(1, 1), (1, 1)], [(2, 1), (1, 1)]] {
            assert!(refused(&canisters).is_some_and(|reason| reason.contains("out of order")));
        }
        let many: Vec<_> = (0..=200).map(|number| (number, 1)).collect();
        assert!(refused(&many).is_some_and(|reason| reason.contains("of 201 canisters")));
        assert_eq!(refused(&many[..200]), None);
    }
}
