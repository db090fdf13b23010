//! Knobs together: all that helps at once, then one step after the other.

use anyhow::Result;

use super::{Bench, KnobStatus, Search};
use crate::knob::{KnobChoice, Setting};

/// Runs of each of two settings, in turns, before a step between them is decided.
const DECIDED_BY: usize = 3;
/// Steps that were tried in vain before the search ends.
const IN_VAIN_MAX: usize = 24;
/// A value that was not tried is expected to do this part of what its neighbour did.
const NEIGHBOUR: f64 = 0.9;
/// Expected change of an unknown value, and of one that did not survive or was late.
const UNKNOWN: f64 = 0.0;
const BAD: f64 = 0.5;

impl<B: Bench> Search<'_, B> {
    pub(super) async fn try_combinations(&mut self) -> Result<()> {
        self.all_at_once().await?;
        let mut in_vain = 0;
        while in_vain < IN_VAIN_MAX && self.has_time_for(1) {
            let best = self.best();
            let Some(next) = self.next_step(&best) else { break };
            in_vain = if self.step(&best, &next).await? { 0 } else { in_vain + 1 };
        }
        Ok(())
    }

    /// The best so far; the default where nothing lives and meets the goal.
    fn best(&self) -> Setting {
        self.table
            .ranked(&self.judge)
            .first()
            .map(|(_, setting)| (*setting).clone())
            .unwrap_or_default()
    }

    /// Every knob at the value that did best alone, if it did any good.
    async fn all_at_once(&mut self) -> Result<()> {
        let default = self.table.score(&Setting::default(), &self.judge);
        let mut gains: Vec<(f64, KnobChoice)> = Vec::new();
        for knob in self.alive() {
            let values = self.spec.knobs.get(knob).map_or(0, |knob| knob.values.len());
            let scored = (0..values).filter_map(|value| {
                let choice = KnobChoice { knob, value };
                Some((self.table.score(&Setting::single(choice), &self.judge)?, choice))
            });
            if let Some((score, choice)) = scored.min_by(|a, b| a.0.total_cmp(&b.0)) {
                let gain = default.map_or(0.0, |default| default - score);
                if default.is_none() || gain > self.table.score_spread(&self.judge) {
                    gains.push((gain, choice));
                }
            }
        }
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        // All, then half of them: together they may be too much.
        let mut count = gains.len();
        while count >= 2 && self.has_time_for(1) {
            let setting = gains
                .iter()
                .take(count)
                .fold(Setting::default(), |all, (_, choice)| all.with(*choice));
            let run = self.run(&setting, "all that helps at once").await?;
            if self.judge.meets(&run) {
                break;
            }
            count /= 2;
        }
        // Where nothing lives, the most saving values of all knobs at once are the last hope.
        if self.table.ranked(&self.judge).is_empty() && self.has_time_for(1) {
            let all = self.statuses.iter().enumerate().filter_map(|(knob, status)| {
                matches!(status, KnobStatus::Alive | KnobStatus::Dead).then_some(knob)
            });
            let setting =
                all.fold(Setting::default(), |all, knob| all.with(KnobChoice { knob, value: 0 }));
            self.run(&setting, "the most saving of all").await?;
        }
        Ok(())
    }

    fn alive(&self) -> Vec<usize> {
        let alive =
            |(knob, status): (usize, &KnobStatus)| (*status == KnobStatus::Alive).then_some(knob);
        self.statuses.iter().enumerate().filter_map(alive).collect()
    }

    /// The most promising setting that is one knob away and was not tried.
    fn next_step(&self, best: &Setting) -> Option<Setting> {
        let mut steps: Vec<(f64, Setting)> = Vec::new();
        for knob in self.alive() {
            let now = best.value_of(knob);
            let values = self.spec.knobs.get(knob).map_or(0, |knob| knob.values.len());
            let was = now.map_or(0.0, |value| self.expected(KnobChoice { knob, value }));
            for value in (0..values).filter(|value| Some(*value) != now) {
                let choice = KnobChoice { knob, value };
                steps.push((self.expected(choice) - was, best.with(choice)));
            }
            if now.is_some() {
                // Without it: nothing is changed for nothing.
                steps.push((-was, best.without(knob)));
            }
        }
        steps.retain(|(_, setting)| self.table.runs_of(setting) == 0);
        steps.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting)
    }

    /// Expected change of the score by a value, from its own effect alone or its neighbour's.
    fn expected(&self, choice: KnobChoice) -> f64 {
        let default = self.table.score(&Setting::default(), &self.judge);
        let known = |value: usize| {
            let setting = Setting::single(KnobChoice { knob: choice.knob, value });
            let trial = self.table.trial(&setting)?;
            Some(match (trial.score(&self.judge), default) {
                (Some(score), Some(default)) => score - default,
                (Some(_), None) => -BAD,
                (None, _) => BAD,
            })
        };
        if let Some(known) = known(choice.value) {
            return known;
        }
        let beside = [choice.value.checked_sub(1), choice.value.checked_add(1)];
        let known: Vec<f64> = beside.into_iter().flatten().filter_map(known).collect();
        match known.iter().copied().reduce(f64::min) {
            // A neighbour of one that went too far may be just right.
            Some(change) if change >= BAD => -0.01,
            Some(change) => change * NEIGHBOUR,
            None => UNKNOWN,
        }
    }

    /// Tries the next setting against the best; true when it is better.
    async fn step(&mut self, best: &Setting, next: &Setting) -> Result<bool> {
        let run = self.run(next, "a step").await?;
        if !self.judge.meets(&run) {
            return Ok(false);
        }
        loop {
            let (Some(new), Some(old)) =
                (self.table.score(next, &self.judge), self.table.score(best, &self.judge))
            else {
                // The best failed on repetition, or there was none.
                return Ok(self.table.score(next, &self.judge).is_some());
            };
            let margin = self.table.margin(best, next, &self.judge);
            if new > old || !self.has_time_for(2) {
                return Ok(new < old - margin);
            }
            if self.table.runs_of(next) >= DECIDED_BY && self.table.runs_of(best) >= DECIDED_BY {
                return Ok(new < old - margin);
            }
            if new < old - 2.0 * margin && self.table.runs_of(next) >= 2 {
                return Ok(true);
            }
            // In doubt: both again, in turns, whichever ran less first.
            if self.table.runs_of(best) < self.table.runs_of(next) {
                self.run(best, "again, in turns").await?;
            } else {
                let run = self.run(next, "again, in turns").await?;
                if !run.outcome.lived() {
                    return Ok(false);
                }
            }
        }
    }
}
