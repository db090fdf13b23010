//! The peer score of gossipsub 1.1.
//!
//! P1 (time in meshes), P2 (first to bring a message), P4 (invalid messages), P6 (peers at one
//! address) and P7 (broken rules). P3, the deficit of deliveries in a mesh, is off in the Waku
//! network: traffic of its shards is too uneven for a threshold. P5 has no source here.

use std::{collections::BTreeMap, time::Duration};

use crate::{ScoreConfig, Shard};

/// Counters of one peer. Decays are applied by [`Score::decay`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Score {
    /// Topics in whose mesh it is, and since when. At most as many as this node's topics.
    pub(crate) in_mesh: BTreeMap<Shard, Duration>,
    first_deliveries: f64,
    invalid: f64,
    behaviour: f64,
}

impl Score {
    /// The score, `colocated` being how many peers share its address, itself included.
    pub(crate) fn value(&self, config: &ScoreConfig, colocated: u32, now: Duration) -> f64 {
        let quantum = config.mesh_time_quantum.as_secs_f64().max(f64::MIN_POSITIVE);
        let in_mesh = |since: &Duration| {
            let quanta = now.saturating_sub(*since).as_secs_f64() / quantum;
            quanta.min(config.mesh_time_cap) * config.mesh_time_weight
        };
        let p1: f64 = self.in_mesh.values().map(in_mesh).sum();
        let p2 = self.first_deliveries * config.first_deliveries_weight;
        let p4 = self.invalid * self.invalid * config.invalid_weight;
        let above = f64::from(colocated.saturating_sub(config.colocation_threshold));
        let p6 = above * above * config.colocation_weight;
        let broken = (self.behaviour - config.behaviour_threshold).max(0.0);
        let p7 = broken * broken * config.behaviour_weight;
        p1 + p2 + p4 + p6 + p7
    }

    pub(crate) fn delivered_first(&mut self, config: &ScoreConfig) {
        self.first_deliveries = (self.first_deliveries + 1.0).min(config.first_deliveries_cap);
    }

    pub(crate) fn sent_invalid(&mut self) {
        self.invalid += 1.0;
    }

    pub(crate) fn broke_rules(&mut self, times: u32) {
        self.behaviour += f64::from(times);
    }

    pub(crate) fn decay(&mut self, config: &ScoreConfig) {
        let decayed = |value: f64, factor: f64| {
            let value = value * factor;
            if value < config.decay_to_zero { 0.0 } else { value }
        };
        self.first_deliveries = decayed(self.first_deliveries, config.first_deliveries_decay);
        self.invalid = decayed(self.invalid, config.invalid_decay);
        self.behaviour = decayed(self.behaviour, config.behaviour_decay);
    }

    /// The part of a departed peer's score that is kept: nothing in its favour.
    pub(crate) fn debts(&self) -> Option<Self> {
        let owes = self.invalid > 0.0 || self.behaviour > 0.0;
        owes.then(|| Self { in_mesh: BTreeMap::new(), first_deliveries: 0.0, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn time_and_first_deliveries_count_up_to_their_caps() {
        let config = ScoreConfig::default();
        let mut score = Score::default();
        assert_eq!(score.value(&config, 1, NOW), 0.0);
        score.in_mesh.insert(1, NOW - Duration::from_secs(5));
        assert!((score.value(&config, 1, NOW) - 0.05).abs() < 1e-9);
        score.in_mesh.insert(1, Duration::ZERO);
        (0..50).for_each(|_| score.delivered_first(&config));
        assert!((score.value(&config, 1, NOW) - 10.1).abs() < 1e-9);
    }

    #[test]
    fn invalid_messages_weigh_by_their_square_and_fade() {
        let config = ScoreConfig::default();
        let mut score = Score::default();
        (0..11).for_each(|_| score.sent_invalid());
        assert!(score.value(&config, 1, NOW) < config.graylist_threshold);
        let debts = score.debts().unwrap();
        assert_eq!(debts.value(&config, 1, NOW), score.value(&config, 1, NOW));
        (0..12).for_each(|_| score.decay(&config));
        assert_eq!((score.value(&config, 1, NOW), score.debts().is_some()), (0.0, false));
    }

    #[test]
    fn a_crowd_at_one_address_is_worth_less() {
        let config = ScoreConfig::default();
        let score = Score::default();
        assert_eq!(score.value(&config, config.colocation_threshold, NOW), 0.0);
        assert_eq!(score.value(&config, config.colocation_threshold + 2, NOW), -200.0);
    }
}
