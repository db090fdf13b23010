//! Each knob alone: whether it does anything, and what.

use anyhow::Result;
use compare::two_sided_inverse;

use super::{Bench, KnobStatus, Search, Trial, table::squares};
use crate::{
    knob::{KnobChoice, Setting},
    run::{Measurement, Outcome},
};

/// Part of the time that knobs alone may take.
const PART_OF_TIME: f64 = 0.5;
/// Number of standard deviations from which a change counts as one.
const DEVIATIONS: f64 = 4.0;
/// Probability at most with which chance alone brings two settings so far apart. Where few runs
/// give the standard deviation, it takes more of them than [`DEVIATIONS`].
const CHANCE: f64 = 0.002;
/// Runs of a setting from which it does not run again to be judged alone.
const RUNS_ALONE_MAX: usize = 12;
/// Values of a knob that are tried alone although they are late.
const TRIED_MAX: usize = 3;
/// CPU time that counts little.
const CPU_SECONDS_SMALL: f64 = 1.0;
/// A number of collections that is small.
const COLLECTIONS_SMALL: f64 = 10.0;

/// A figure by which an effect shows, and the least standard deviation of it that is believed.
type Sign = (fn(&Measurement) -> Option<f64>, f64);

const SIGNS: [Sign; 5] = [
    (|run| Some((run.peak_bytes.max(1) as f64).ln()), 0.006),
    (|run| Some((run.end_bytes.max(1) as f64).ln()), 0.01),
    // Of a program that hardly works, a part of a second is what others on the machine cost it.
    (|run| Some((run.cpu_seconds + CPU_SECONDS_SMALL).ln()), 0.015),
    // Of a program that hardly collects, one collection more may follow from where a run ended. A
    // run without any is a figure, too: the collector may be switched off.
    (|run| Some((run.collections.unwrap_or(0) as f64 + COLLECTIONS_SMALL).ln()), 0.03),
    (|run| run.collector_percent.map(|percent| (percent + 0.5).ln()), 0.1),
];

impl<B: Bench> Search<'_, B> {
    pub(super) async fn try_single_knobs(&mut self) -> Result<()> {
        let all = self.bench.time_left().as_secs_f64();
        for knob in 0..self.spec.knobs.len() {
            let spent = all - self.bench.time_left().as_secs_f64();
            if spent > all * PART_OF_TIME || !self.has_time_for(1) {
                break;
            }
            let status = self.try_knob(knob).await?;
            if let Some(known) = self.statuses.get_mut(knob) {
                *known = status;
            }
        }
        Ok(())
    }

    /// The most saving value, then the others from the mildest on until one shows an effect.
    async fn try_knob(&mut self, knob: usize) -> Result<KnobStatus> {
        let values = self.spec.knobs.get(knob).map_or(0, |knob| knob.values.len());
        let mut words = None;
        let mut order: Vec<usize> = vec![0];
        order.extend((1..values).rev());
        let (mut lived, mut killed, mut is_alive) = (0, 0, false);
        for value in order {
            let setting = Setting::single(KnobChoice { knob, value });
            let run = self.run(&setting, "alone").await?;
            match &run.outcome {
                Outcome::Lived => lived += 1,
                Outcome::Ended(why) | Outcome::NeverReady(why) => {
                    words = Some(why.clone());
                    continue;
                }
                // Killed as the default is, or for the work put on it: no proof of an effect, and
                // none against.
                Outcome::OutOfMemory(_)
                | Outcome::LoadFailed(_)
                | Outcome::Stalled(_)
                | Outcome::LeftBehind(_) => killed += 1,
            }
            is_alive = is_alive || self.has_effect(&setting).await?;
            // A value that went too far gives no information about milder ones.
            if is_alive && (self.judge.meets(&run) || lived >= TRIED_MAX) {
                break;
            }
            if is_alive {
                continue;
            }
            if lived >= 2 || lived + killed >= TRIED_MAX {
                break;
            }
        }
        Ok(match words {
            _ if is_alive => KnobStatus::Alive,
            // A value that ends the program has an effect, but not a useful one.
            Some(words) if lived == 0 => KnobStatus::Refused(words),
            _ => KnobStatus::Dead,
        })
    }

    /// Whether the setting's runs differ from the default's by more than chance. A setting that
    /// seems to has to do so twice, as far as there is time, and against a default that ran again:
    /// what others on the machine cost a single run has no bound, and all knobs are held against
    /// the same few runs of the default. Both run once more where the spread of so few runs does
    /// not decide it.
    async fn has_effect(&mut self, setting: &Setting) -> Result<bool> {
        let default = Setting::default();
        for (turn, again) in [setting, &default, setting, &default].into_iter().enumerate() {
            let seeming = self.effect(setting, |_| DEVIATIONS);
            if seeming < 1.0 || seeming.is_infinite() {
                return Ok(seeming >= 1.0);
            }
            if turn >= 2 && self.effect(setting, deviations) >= 1.0 {
                return Ok(true);
            }
            if self.table.runs_of(again) >= RUNS_ALONE_MAX {
                continue;
            }
            if !self.has_time_for(1) {
                break;
            }
            self.run(again, "alone, again").await?;
        }
        Ok(self.effect(setting, deviations) >= 1.0)
    }

    /// A knob that counted as effective after few runs, but has no effect over all runs made since,
    /// is dead, unless it is part of the result.
    pub(super) fn revise_statuses(&mut self, found: Option<&Setting>) {
        let is_found =
            |knob| found.is_some_and(|found| found.choices().any(|choice| choice.knob == knob));
        for knob in 0..self.statuses.len() {
            let values = self.spec.knobs.get(knob).map_or(0, |knob| knob.values.len());
            let is_alive = is_found(knob)
                || (0..values).any(|value| {
                    self.effect(&Setting::single(KnobChoice { knob, value }), deviations) >= 1.0
                });
            match self.statuses.get_mut(knob) {
                Some(status @ KnobStatus::Alive) if !is_alive => *status = KnobStatus::Dead,
                _ => {}
            }
        }
    }

    /// The largest difference from the default in any sign, as a multiple of what may be chance;
    /// of the setting's runs, the one counts that is nearest to the default. The spread is that of
    /// the runs of these two settings: another setting may make the program far less steady.
    /// `deviations`: how many standard deviations may be chance, by the degrees of freedom.
    fn effect(&self, setting: &Setting, deviations: fn(f64) -> f64) -> f64 {
        let trials = (self.table.trial(&Setting::default()), self.table.trial(setting));
        let (Some(default), Some(trial)) = trials else { return 0.0 };
        // Under a cap that kills the default, a knob does something if it saves it.
        if !default.lived() {
            return if trial.lived() { f64::INFINITY } else { 0.0 };
        }
        if !trial.lived() {
            return f64::INFINITY;
        }
        let of_sign = |(of, least): &Sign| {
            let figures =
                |trial: &Trial| -> Vec<f64> { trial.runs.iter().filter_map(of).collect() };
            let (usual, changed) = (figures(default), figures(trial));
            let found = squares(&usual).zip(squares(&changed));
            let Some(((mean, usual_squares), (_, changed_squares))) = found else { return 0.0 };
            let (count, changed_count) = (usual.len() as f64, changed.len() as f64);
            let df = count + changed_count - 2.0;
            if df < 1.0 {
                return 0.0;
            }
            let spread = ((usual_squares + changed_squares) / df).sqrt();
            let chance = (deviations(df) * spread).max(DEVIATIONS * least);
            let nearest = changed.iter().map(|value| (value - mean).abs()).reduce(f64::min);
            nearest.unwrap_or(0.0) / (chance * (1.0 / count + 1.0 / changed_count).sqrt())
        };
        SIGNS.iter().map(of_sign).fold(0.0, f64::max)
    }
}

/// Standard deviations from which a change counts as one, if they are estimated with `df` degrees
/// of freedom.
fn deviations(df: f64) -> f64 {
    two_sided_inverse(CHANCE, df).max(DEVIATIONS)
}
