//! Number of blocks that each node made, and that it failed to make.
//!
//! Nodes lead rounds in turn, in the order of their keys, so the maker of a block follows from the
//! round it was made in, and failed leaders from the rounds that were given up before it. A block
//! names its round. A single node makes all blocks.

use std::collections::{BTreeMap, VecDeque};

use ic_principal::Principal;
use serde::{Deserialize, Serialize};

use crate::{NodeInfo, Time};

const DAYS_KEPT: usize = 60;
const DAY_NANOS: u64 = 24 * 3_600 * 1_000_000_000;

/// The round that a block was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgreedRound {
    /// Rounds are counted anew in each.
    pub epoch: u64,
    /// From 1.
    pub view: u64,
}

/// Blocks of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCounts {
    /// Blocks it made.
    pub proposed: u64,
    /// Rounds that it led and that produced no block.
    pub failed: u64,
}

/// The counts at the end of a day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSample {
    /// Of the last block of that day.
    pub time: Time,
    /// Nodes whose counts changed that day.
    pub nodes: Vec<(Principal, BlockCounts)>,
}

/// See the module. Its size is bounded by the days kept and by the members of a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMetrics {
    /// Possible makers of the last block, in the order of their turns.
    members: Vec<Principal>,
    /// The round of the last block.
    agreed: Option<AgreedRound>,
    /// When the last block was.
    time: Time,
    counts: BTreeMap<Principal, BlockCounts>,
    /// The same at the beginning of the day.
    before: BTreeMap<Principal, BlockCounts>,
    days: VecDeque<NodeSample>,
}

fn day(time: Time) -> u64 {
    time.0 / DAY_NANOS
}

impl NodeMetrics {
    /// Counts a block of this time, which one of `nodes` made in `round`.
    pub fn record_round(&mut self, time: Time, round: Option<AgreedRound>, nodes: &[NodeInfo]) {
        if !self.members.is_empty() && day(time) > day(self.time) {
            self.end_day();
        }
        self.time = time;
        if self.members.len() != nodes.len()
            || !nodes.iter().all(|node| self.members.contains(&node.node_id))
        {
            let mut nodes: Vec<_> = nodes.iter().collect();
            // Keys of one kind and length: their encodings have the order of the keys.
            nodes.sort_by(|one, other| one.public_key_der.cmp(&other.public_key_der));
            self.members = nodes.into_iter().map(|node| node.node_id).collect();
        }
        match round {
            Some(round) => self.count(round),
            None if self.members.len() == 1 => self.add(0, 1, 0),
            None => {}
        }
    }

    fn count(&mut self, round: AgreedRound) {
        let members = self.members.len() as u64;
        if members == 0 {
            return;
        }
        let turn = |view: u64| ((round.epoch % members + view % members) % members) as usize;
        let before = self.agreed.filter(|before| before.epoch == round.epoch);
        let first = before.map_or(0, |before| before.view).saturating_add(1);
        self.agreed = Some(round);
        // Each led as many of them as any other, but for those that are left over.
        let given_up = round.view.saturating_sub(first);
        if given_up >= members {
            (0..members as usize).for_each(|node| self.add(node, 0, given_up / members));
        }
        for view in (first..round.view).take((given_up % members) as usize) {
            self.add(turn(view), 0, 1);
        }
        self.add(turn(round.view), 1, 0);
    }

    fn add(&mut self, member: usize, proposed: u64, failed: u64) {
        let Some(node) = self.members.get(member) else { return };
        let counts = self.counts.entry(*node).or_default();
        counts.proposed = counts.proposed.saturating_add(proposed);
        counts.failed = counts.failed.saturating_add(failed);
    }

    /// The day that runs, so far.
    fn today(&self) -> NodeSample {
        let changed = |(node, counts): (&Principal, &BlockCounts)| {
            (self.before.get(node) != Some(counts)).then_some((*node, *counts))
        };
        NodeSample { time: self.time, nodes: self.counts.iter().filter_map(changed).collect() }
    }

    /// A node that did nothing that day begins at 0 when it is back.
    fn end_day(&mut self) {
        let sample = self.today();
        self.counts = sample.nodes.iter().copied().collect();
        self.before = self.counts.clone();
        self.days.push_back(sample);
        while self.days.len() >= DAYS_KEPT {
            self.days.pop_front();
        }
        debug_assert!(
            self.days.len() < DAYS_KEPT,
            "{} days and the one that runs",
            self.days.len()
        );
    }

    /// A sample for each day from `start` on, the one that runs last.
    pub fn since(&self, start: Time) -> impl Iterator<Item = NodeSample> {
        let today = (!self.members.is_empty()).then(|| self.today());
        self.days.iter().cloned().chain(today).filter(move |sample| sample.time >= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeInfo {
        // Ids in another order than the keys.
        NodeInfo { node_id: Principal::from_slice(&[9 - number]), public_key_der: vec![1, number] }
    }

    fn counts(metrics: &NodeMetrics, number: u8) -> (u64, u64) {
        let counts = metrics.counts.get(&node(number).node_id).copied().unwrap_or_default();
        (counts.proposed, counts.failed)
    }

    fn round(epoch: u64, view: u64) -> Option<AgreedRound> {
        Some(AgreedRound { epoch, view })
    }

    #[test]
    fn rounds_belong_to_their_leaders() {
        let nodes = [node(3), node(0), node(2), node(1)];
        let mut metrics = NodeMetrics::default();
        metrics.record_round(Time(2), round(0, 1), &nodes);
        assert_eq!(counts(&metrics, 1), (1, 0));
        // Rounds 2 and 3 produced no block.
        metrics.record_round(Time(3), round(0, 4), &nodes);
        assert_eq!([2, 3, 0].map(|node| counts(&metrics, node)), [(0, 1), (0, 1), (1, 0)]);
        // Many did: 5 to 14.
        metrics.record_round(Time(4), round(0, 15), &nodes);
        let all = [0, 1, 2, 3].map(|node| counts(&metrics, node));
        assert_eq!(all, [(1, 2), (1, 3), (0, 4), (1, 3)]);
        // Another epoch begins with its first round, and with another leader.
        metrics.record_round(Time(5), round(1, 1), &nodes);
        assert_eq!(counts(&metrics, 2), (1, 4));
        metrics.record_round(Time(6), round(1, 2), &nodes);
        assert_eq!(counts(&metrics, 3), (2, 3));
        // Turns are those of the members that the block was made under.
        let five = [node(3), node(0), node(2), node(1), node(4)];
        metrics.record_round(Time(7), round(2, 2), &five);
        assert_eq!((counts(&metrics, 4), counts(&metrics, 3)), ((1, 0), (2, 4)));
        metrics.record_round(Time(8), round(2, u64::MAX), &five);
    }

    #[test]
    fn a_node_alone_makes_every_block() {
        let mut metrics = NodeMetrics::default();
        (1..=4).for_each(|time| metrics.record_round(Time(time), None, &[node(5)]));
        assert_eq!(counts(&metrics, 5), (4, 0));
    }

    #[test]
    fn a_sample_a_day_of_nodes_that_did_something() {
        let both = [node(0), node(1)];
        let mut metrics = NodeMetrics::default();
        assert_eq!(metrics.since(Time(0)).count(), 0);
        let at = |day: u64, nanos: u64| Time(day * DAY_NANOS + nanos);
        metrics.record_round(at(3, 6), round(0, 1), &both);
        metrics.record_round(at(3, 7), round(0, 2), &both);
        // Node 1 leads round 3; then node 0 leaves.
        metrics.record_round(at(4, 8), round(0, 3), &both);
        metrics.record_round(at(4, 9), round(1, 1), &both[1..]);
        // A block of a subnet's first state, which names no round.
        metrics.record_round(at(6, 1), None, &both);
        let samples: Vec<_> = metrics.since(Time(0)).collect();
        let times: Vec<_> = samples.iter().map(|sample| sample.time).collect();
        assert_eq!(times, [at(3, 7), at(4, 9), at(6, 1)]);
        let lens: Vec<_> = samples.iter().map(|sample| sample.nodes.len()).collect();
        assert_eq!(lens, [2, 1, 0], "{samples:?}");
        assert!(!metrics.counts.contains_key(&node(0).node_id));
        assert_eq!(metrics.since(at(4, 9)).count(), 2);
        // Months later.
        (7..200).for_each(|day| metrics.record_round(at(day, 0), round(1, day), &both[1..]));
        assert_eq!(metrics.since(Time(0)).count(), DAYS_KEPT);
    }
}
