//! Measurements of each setting, and the comparison of two of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{knob::Setting, lateness::Goal, run::Measurement};

/// Spread of a score that is taken for granted: no two runs are more alike.
const SPREAD_MIN: f64 = 0.004;
/// Weight of CPU time where memory is what counts, so that nothing is paid for nothing: a percent
/// of memory is worth twenty percent of CPU time.
const CPU_BESIDE_MEMORY: f64 = 0.05;

/// The figure to minimize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Objective {
    /// Peak of anonymous memory; CPU time decides where that is the same.
    #[default]
    Memory,
    /// CPU time; memory decides where that is the same.
    Cpu,
    /// Both: a percent of one is worth a percent of the other.
    Balance,
}

/// Criteria for a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge {
    pub(crate) objective: Objective,
    pub(crate) goal: Option<Goal>,
}

impl Judge {
    /// Logarithm of what is to be made small; none for a run that did not live or missed the goal.
    pub(crate) fn score(&self, run: &Measurement) -> Option<f64> {
        self.meets(run).then(|| self.cost(run))
    }

    /// Whether a run lived and met the goal.
    pub(crate) fn meets(&self, run: &Measurement) -> bool {
        let met = match (self.goal, &run.lateness) {
            (Some(goal), Some(lateness)) => goal.is_met(lateness),
            (Some(_), None) => false,
            (None, _) => true,
        };
        run.outcome.lived() && met
    }

    pub(crate) fn cost(&self, run: &Measurement) -> f64 {
        let memory = (run.peak_bytes.max(1) as f64).ln();
        let cpu = run.cpu_seconds.max(0.01).ln();
        match self.objective {
            Objective::Memory => (memory + CPU_BESIDE_MEMORY * cpu) / (1.0 + CPU_BESIDE_MEMORY),
            Objective::Cpu => (cpu + CPU_BESIDE_MEMORY * memory) / (1.0 + CPU_BESIDE_MEMORY),
            Objective::Balance => (memory + cpu) / 2.0,
        }
    }
}

/// Runs of one setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    pub(crate) runs: Vec<Measurement>,
}

/// Runs of all settings so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(pub(crate) BTreeMap<Setting, Trial>);

impl Trial {
    /// Mean score; none when a run of it did not live, or half of them missed the goal.
    pub(crate) fn score(&self, judge: &Judge) -> Option<f64> {
        let scores: Vec<f64> = self.runs.iter().filter_map(|run| judge.score(run)).collect();
        let missed = self.runs.len() - scores.len();
        let died = self.runs.iter().any(|run| !run.outcome.lived());
        (!scores.is_empty() && !died && 2 * missed < self.runs.len())
            .then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// The median of a figure over the runs that have it.
    pub(crate) fn median(&self, of: impl Fn(&Measurement) -> Option<f64>) -> Option<f64> {
        compare::median(&self.runs.iter().filter_map(of).collect::<Vec<_>>())
    }

    pub(crate) fn peak(&self) -> f64 {
        self.median(|run| Some(run.peak_bytes as f64)).unwrap_or(0.0)
    }

    pub(crate) fn cpu(&self) -> f64 {
        self.median(|run| Some(run.cpu_seconds)).unwrap_or(0.0)
    }

    pub(crate) fn lived(&self) -> bool {
        !self.runs.is_empty() && self.runs.iter().all(|run| run.outcome.lived())
    }
}

/// The mean of values and the sum of squares about it; none without values.
pub(super) fn squares(values: &[f64]) -> Option<(f64, f64)> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let sum = values.iter().map(|value| (value - mean).powi(2)).sum();
    (!values.is_empty()).then_some((mean, sum))
}

impl Table {
    pub(crate) fn trial(&self, setting: &Setting) -> Option<&Trial> {
        self.0.get(setting)
    }

    pub(crate) fn add(&mut self, setting: &Setting, run: Measurement) {
        self.0.entry(setting.clone()).or_default().runs.push(run);
    }

    pub(crate) fn score(&self, setting: &Setting, judge: &Judge) -> Option<f64> {
        self.trial(setting)?.score(judge)
    }

    pub(crate) fn runs_of(&self, setting: &Setting) -> usize {
        self.trial(setting).map_or(0, |trial| trial.runs.len())
    }

    /// Standard deviation of a run's figure about the mean of its setting, over all settings that
    /// ran more than once.
    pub(crate) fn spread(&self, least: f64, of: impl Fn(&Measurement) -> Option<f64>) -> f64 {
        let (mut all, mut freedom) = (0.0, 0.0);
        for trial in self.0.values() {
            let values: Vec<f64> =
                trial.runs.iter().filter(|run| run.outcome.lived()).filter_map(&of).collect();
            if let Some((_, sum)) = squares(&values) {
                all += sum;
                freedom += values.len() as f64 - 1.0;
            }
        }
        if freedom < 1.0 { least } else { (all / freedom).sqrt().max(least) }
    }

    pub(crate) fn score_spread(&self, judge: &Judge) -> f64 {
        self.spread(SPREAD_MIN, |run| Some(judge.cost(run)))
    }

    /// By how much `second` must be below `first` to be distinguished from chance.
    pub(crate) fn margin(&self, first: &Setting, second: &Setting, judge: &Judge) -> f64 {
        let count = |setting| self.runs_of(setting).max(1) as f64;
        let spread = self.score_spread(judge);
        2.0 * spread * (1.0 / count(first) + 1.0 / count(second)).sqrt()
    }

    /// Settings that live and meet the goal, the best first: by what they may be with bad luck, so
    /// that one lucky run is not the best of all.
    pub(crate) fn ranked(&self, judge: &Judge) -> Vec<(f64, &Setting)> {
        let spread = self.score_spread(judge);
        let mut ranked: Vec<(f64, &Setting)> = self
            .0
            .iter()
            .filter_map(|(setting, trial)| {
                Some((trial.score(judge)? + spread / (trial.runs.len() as f64).sqrt(), setting))
            })
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        ranked
    }

    /// Settings that live and meet the goal, and than which none has both less memory and less CPU
    /// time.
    pub(crate) fn frontier(&self, judge: &Judge) -> Vec<&Setting> {
        let mut good: Vec<(f64, f64, &Setting)> = self
            .0
            .iter()
            .filter(|(_, trial)| trial.score(judge).is_some())
            .map(|(setting, trial)| (trial.peak(), trial.cpu(), setting))
            .collect();
        good.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut least = f64::INFINITY;
        good.retain(|(_, cpu, _)| {
            let better = *cpu < least;
            least = least.min(*cpu);
            better
        });
        good.into_iter().map(|(_, _, setting)| setting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{knob::KnobChoice, run::Outcome};

    fn run(mib: u64, cpu_seconds: f64) -> Measurement {
        Measurement { peak_bytes: mib << 20, cpu_seconds, ..Measurement::default() }
    }

    fn value(value: usize) -> Setting {
        Setting::single(KnobChoice { knob: 0, value })
    }

    #[test]
    fn the_frontier_is_what_nothing_beats_in_both() {
        let mut table = Table::default();
        for (index, (mib, cpu)) in
            [(100, 9.0), (120, 5.0), (130, 6.0), (200, 2.0)].into_iter().enumerate()
        {
            table.add(&value(index), run(mib, cpu));
        }
        let mut dead = run(50, 1.0);
        dead.outcome = Outcome::OutOfMemory(String::new());
        table.add(&value(9), dead);
        let judge = Judge { objective: Objective::Memory, goal: None };
        assert_eq!(table.frontier(&judge), [&value(0), &value(1), &value(3)]);
        assert_eq!(table.ranked(&judge).first().unwrap().1, &value(0));
        let judge = Judge { objective: Objective::Cpu, goal: None };
        assert_eq!(table.ranked(&judge).first().unwrap().1, &value(3));
    }

    #[test]
    fn a_setting_that_died_once_or_missed_half_the_time_has_no_score() {
        let judge = Judge { objective: Objective::Memory, goal: Some("max<1ms".parse().unwrap()) };
        let late = |millis: f64| Measurement {
            lateness: Some(crate::lateness::Lateness { max_millis: millis, ..Default::default() }),
            ..run(100, 1.0)
        };
        let mut trial = Trial { runs: vec![late(0.5), late(0.5), late(2.0)] };
        assert!(trial.score(&judge).is_some());
        trial.runs.push(late(2.0));
        assert_eq!(trial.score(&judge), None);
        let mut died = late(0.5);
        died.outcome = Outcome::Ended(String::new());
        assert_eq!(Trial { runs: vec![late(0.5), late(0.5), died] }.score(&judge), None);
        assert!(!judge.meets(&run(1, 1.0)), "a goal without beats is not met");
    }
}
