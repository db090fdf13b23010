//! The search: which settings are tried in which order, and when one is better than another.
//!
//! 1. The default, several times: its memory, and the difference between two runs of it.
//! 2. Each knob alone, at its most saving value and, if that does nothing, at its last. A knob that
//!    changes nothing in either is dead (the program overrides it, or it does not matter here).
//! 3. Together: all values that help alone at once; then steps from the best setting, one knob at a
//!    time, the most promising first. A step is taken when it is better by more than its own
//!    spread, over runs of both in turns.
//! 4. Confirmation: the best against the default, in turns, judged by the method of `thimble-lab
//!    compare --pair`. One that fails there makes room for the next.
//!
//! Every step depends only on the measurements and the time spent, both of which are in the
//! journal: a restarted search continues where it stopped.
//!
//! Bounds: the time budget, and [`RUNS_MAX`] runs. Must never know: the execution of a run.

mod combined_knobs;
mod single_knobs;
mod table;

use std::time::Duration;

use anyhow::{Result, bail};
use compare::{PairedEstimate, estimate_change};

pub(crate) use self::table::Objective;
pub(crate) use self::table::{Judge, Table, Trial};
use crate::{
    knob::{Knob, Setting},
    lateness::{Figure, Goal, Lateness},
    run::{Measurement, Outcome},
};

/// Runs of one search.
pub(crate) const RUNS_MAX: usize = 2_000;
/// Runs of the default before anything else.
const DEFAULT_RUNS: usize = 3;
/// Turns of the confirmation, at most and at least.
const TURNS_MOST: usize = 6;
const TURNS_LEAST: usize = 3;
/// Settings that are confirmed, one after the other, until one holds.
const CONFIRMED_MAX: usize = 3;
/// Settings that run a second time before one is confirmed.
const AGAIN_MAX: usize = 4;
/// A lateness without a goal may not be later than the default's by more than this.
const SAME_LATENESS: f64 = 1.25;
const SAME_LATENESS_MILLIS: f64 = 1.0;
/// Caps that are tried when nothing lives under the one that was asked for, each this much larger.
const LADDER_STEP: f64 = 1.25;
const LADDER_MAX: usize = 12;

/// Makes runs, or knows them from before.
pub(crate) trait Bench {
    /// Runs the setting once. Errors end the search: the user's stop, a machine too busy to judge
    /// on.
    async fn run(&mut self, setting: &Setting, why: &str) -> Result<Measurement>;
    /// Runs the default once under another cap.
    async fn run_capped(&mut self, cap_bytes: u64) -> Result<Measurement>;
    /// Reports the peak from which sizes are derived.
    fn set_peak_bytes(&mut self, peak_bytes: u64);
    /// Time that is left of the budget.
    fn time_left(&self) -> Duration;
    /// Reports the best setting so far.
    fn report_best(&mut self, setting: &Setting, table: &Table);
}

/// Specification of a search.
#[derive(Clone, Debug)]
pub(crate) struct SearchSpec {
    pub(crate) knobs: Vec<Knob>,
    pub(crate) objective: Objective,
    pub(crate) goal: Option<Goal>,
    /// Whether lateness is measured.
    pub(crate) is_late_measured: bool,
    pub(crate) cap_bytes: u64,
    /// The largest cap that makes sense on this machine.
    pub(crate) cap_bytes_max: u64,
    /// Whether the cap was asked for: what fails under it may fail for want of memory.
    pub(crate) is_capped: bool,
}

/// The command cannot be searched as it is: how its first run ended.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(pub(crate) Outcome);

/// Status of a knob on its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KnobStatus {
    /// It changes something.
    Alive,
    /// It changes nothing that is measured.
    Dead,
    /// The program does not start or live with any value of it: why.
    Refused(String),
    /// There was no time.
    Untried,
}

/// Result of a search.
#[derive(Debug)]
pub(crate) struct SearchResult {
    pub(crate) table: Table,
    pub(crate) judge: Judge,
    /// In the order of the knobs.
    pub(crate) statuses: Vec<KnobStatus>,
    pub(crate) end: End,
    /// A goal that was taken from the default's lateness.
    pub(crate) goal_of_default: Option<Goal>,
    pub(crate) peak_bytes: u64,
}

#[derive(Debug)]
pub(crate) enum End {
    /// A setting that is better than the default.
    Better(BaselineComparison),
    /// The default is as good as anything that was tried; with the best that was confirmed and was
    /// not.
    Default(Option<BaselineComparison>),
    /// Nothing lives under the cap: the smallest larger one under which the default did.
    Killed { lived_at: Option<u64>, tried: Vec<u64> },
    /// Nothing that lives meets the goal.
    Late,
    /// Nothing was searched.
    Measured,
}

/// The winner against the default.
#[derive(Clone, Debug)]
pub(crate) struct BaselineComparison {
    pub(crate) setting: Setting,
    pub(crate) turns: usize,
    /// Logarithms of the setting's figure over the default's, over turns; none where the default
    /// does not live or meet the goal.
    pub(crate) memory: Option<PairedEstimate>,
    pub(crate) cpu: Option<PairedEstimate>,
    /// Settings that came before it and did not hold.
    pub(crate) failed: Vec<Setting>,
}

fn lateness_of(run: &Measurement) -> Option<&Lateness> {
    run.lateness.as_ref()
}

/// The state of a search.
pub(crate) struct Search<'a, B> {
    bench: &'a mut B,
    spec: &'a SearchSpec,
    judge: Judge,
    table: Table,
    statuses: Vec<KnobStatus>,
    runs: usize,
    /// The time there was in the beginning.
    total: Duration,
}

/// Searches until the time is spent or nothing is left to try.
pub(crate) async fn search<B: Bench>(bench: &mut B, spec: &SearchSpec) -> Result<SearchResult> {
    let mut search = Search::new(bench, spec);
    let default = Setting::default();
    for _ in 0..DEFAULT_RUNS {
        let run = search.run(&default, "the default").await?;
        let is_memory = matches!(run.outcome, Outcome::OutOfMemory(_))
            || spec.is_capped
                && !matches!(run.outcome, Outcome::LeftBehind(_) | Outcome::LoadFailed(_));
        if !run.outcome.lived() && !is_memory {
            bail!(Unusable(run.outcome));
        }
        // A run that was killed will be killed again: twice is enough evidence.
        if !run.outcome.lived() && search.table.runs_of(&default) >= 2 {
            break;
        }
    }
    let trial = search.table.trial(&default).cloned().unwrap_or_default();
    let peak_bytes = if trial.lived() { trial.peak() as u64 } else { spec.cap_bytes };
    search.bench.set_peak_bytes(peak_bytes);
    let goal_of_default = search.goal_of(&trial);
    if let Some(goal) = goal_of_default {
        search.judge.goal = Some(goal);
    }
    search.try_single_knobs().await?;
    search.try_combinations().await?;
    let end = search.confirm_best().await?;
    search.revise_statuses(match &end {
        End::Better(confirmed) => Some(&confirmed.setting),
        _ => None,
    });
    let Search { judge, table, statuses, .. } = search;
    Ok(SearchResult { table, judge, statuses, end, goal_of_default, peak_bytes })
}

/// Runs the default `runs` times, without a search.
pub(crate) async fn measure<B: Bench>(
    bench: &mut B,
    spec: &SearchSpec,
    runs: usize,
) -> Result<SearchResult> {
    let mut search = Search::new(bench, spec);
    for _ in 0..runs {
        search.run(&Setting::default(), "as it is").await?;
    }
    let Search { judge, table, .. } = search;
    Ok(SearchResult {
        table,
        judge,
        statuses: Vec::new(),
        end: End::Measured,
        goal_of_default: None,
        peak_bytes: 0,
    })
}

impl<'a, B: Bench> Search<'a, B> {
    fn new(bench: &'a mut B, spec: &'a SearchSpec) -> Self {
        let judge = Judge { objective: spec.objective, goal: spec.goal };
        let statuses = vec![KnobStatus::Untried; spec.knobs.len()];
        let total = bench.time_left();
        Self { bench, spec, judge, table: Table::default(), statuses, runs: 0, total }
    }

    pub(crate) async fn run(&mut self, setting: &Setting, why: &str) -> Result<Measurement> {
        let run = self.bench.run(setting, why).await?;
        self.runs += 1;
        self.table.add(setting, run.clone());
        if let Some((_, best)) = self.table.ranked(&self.judge).first() {
            self.bench.report_best(best, &self.table);
        }
        Ok(run)
    }

    /// The same lateness as the default's, where it is measured and no goal is set.
    fn goal_of(&self, default: &Trial) -> Option<Goal> {
        if self.judge.goal.is_some() || !self.spec.is_late_measured {
            return None;
        }
        let counts = default.runs.iter().filter_map(lateness_of).any(|lateness| lateness.count > 0);
        let worst = |of: fn(&Lateness) -> f64| {
            default
                .runs
                .iter()
                .filter(|run| run.outcome.lived())
                .filter_map(lateness_of)
                .map(of)
                .reduce(f64::max)
        };
        if counts {
            let p99 = worst(|lateness| lateness.p99_millis)?;
            return Some(Goal {
                figure: Figure::P99,
                below: p99 * SAME_LATENESS + SAME_LATENESS_MILLIS,
            });
        }
        Some(Goal {
            figure: Figure::Misses,
            below: worst(|lateness| lateness.misses as f64)? + 1.0,
        })
    }

    /// How long a run takes, from start to end.
    fn run_length(&self) -> Duration {
        let runs = self.table.0.values().flat_map(|trial| &trial.runs);
        let lengths: Vec<f64> =
            runs.filter(|run| run.outcome.lived()).map(|run| run.seconds + 0.3).collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len().max(1) as f64;
        Duration::from_secs_f64(mean.clamp(0.5, 86_400.0))
    }

    /// Whether there is time for `runs` in addition to the confirmation.
    pub(crate) fn has_time_for(&self, runs: u32) -> bool {
        let confirmation = self.run_length() * 2 * self.turns_within(self.total / 3) as u32;
        self.runs < RUNS_MAX && self.bench.time_left() > confirmation + self.run_length() * runs
    }

    /// Turns of a confirmation that may take so long.
    fn turns_within(&self, time: Duration) -> usize {
        let affordable = time.as_secs_f64() / (2.0 * self.run_length().as_secs_f64());
        (affordable as usize).clamp(TURNS_LEAST, TURNS_MOST)
    }

    async fn confirm_best(&mut self) -> Result<End> {
        let default = Setting::default();
        let mut failed: Vec<Setting> = Vec::new();
        let mut last = None;
        let mut again = 0;
        while failed.len() < CONFIRMED_MAX {
            let Some(best) = self.simplest_of_the_best(&failed) else { break };
            if best.is_default() {
                return Ok(End::Default(last));
            }
            // A setting that ran once may have been lucky, in memory or in its deadline.
            if self.table.runs_of(&best) < 2 {
                self.run(&best, "again, before confirmation").await?;
                again += 1;
                if again <= AGAIN_MAX {
                    continue;
                }
            }
            match self.confirm(&best, &failed).await? {
                Some(confirmed) if self.is_better(&confirmed) => return Ok(End::Better(confirmed)),
                Some(confirmed) => {
                    // It holds and is not better: what comes behind it is not either.
                    last = Some(confirmed);
                    break;
                }
                None => failed.push(best),
            }
        }
        if self.table.score(&default, &self.judge).is_some() {
            return Ok(End::Default(last));
        }
        if self.table.0.values().any(Trial::lived) {
            return Ok(End::Late);
        }
        self.find_survivable_cap().await
    }

    /// Of the settings that chance may have put behind the best, the one with the fewest knobs:
    /// nothing is changed for nothing.
    fn simplest_of_the_best(&self, failed: &[Setting]) -> Option<Setting> {
        let mut ranked = self.table.ranked(&self.judge);
        ranked.retain(|(_, setting)| !failed.contains(setting));
        let (least, _) = *ranked.first()?;
        let near = least + self.table.score_spread(&self.judge);
        let near = ranked.iter().take_while(|(score, _)| *score <= near);
        near.min_by_key(|(_, setting)| setting.choices().count())
            .map(|(_, setting)| (*setting).clone())
    }

    /// Runs the setting and the default in turns; none if the setting does not hold.
    async fn confirm(
        &mut self,
        best: &Setting,
        failed: &[Setting],
    ) -> Result<Option<BaselineComparison>> {
        let default = Setting::default();
        let default_lives = self.table.trial(&default).is_some_and(Trial::lived);
        let turns = self.turns_within(self.bench.time_left());
        let (mut memory, mut cpu) = (Vec::new(), Vec::new());
        let mut misses = 0;
        for turn in 0..turns {
            let why = format!("confirmation, turn {} of {turns}", turn + 1);
            // The order changes from turn to turn, so that what grows with time favours neither.
            let mut before = None;
            if default_lives && turn % 2 == 0 {
                before = Some(self.run(&default, &why).await?);
            }
            let run = self.run(best, &why).await?;
            if !run.outcome.lived() {
                return Ok(None);
            }
            misses += usize::from(!self.judge.meets(&run));
            if misses >= 2 && 2 * misses > turn + 1 {
                return Ok(None);
            }
            if default_lives && turn % 2 == 1 {
                before = Some(self.run(&default, &why).await?);
            }
            if let Some(before) = before.filter(|before| before.outcome.lived()) {
                memory.push((run.peak_bytes.max(1) as f64 / before.peak_bytes.max(1) as f64).ln());
                cpu.push((run.cpu_seconds.max(0.01) / before.cpu_seconds.max(0.01)).ln());
            }
        }
        let (memory, cpu) = (estimate_change(&memory), estimate_change(&cpu));
        Ok(Some(BaselineComparison {
            setting: best.clone(),
            turns,
            memory,
            cpu,
            failed: failed.to_vec(),
        }))
    }

    /// Better by more than chance: the interval of the change is on one side of zero.
    fn is_better(&self, confirmed: &BaselineComparison) -> bool {
        if self.table.score(&Setting::default(), &self.judge).is_none() {
            return true;
        }
        let below = |paired: &Option<PairedEstimate>| {
            paired.as_ref().is_some_and(|paired| paired.mean + paired.half_width < 0.0)
        };
        match self.judge.objective {
            Objective::Memory => below(&confirmed.memory),
            Objective::Cpu => below(&confirmed.cpu),
            Objective::Balance => {
                let sum = |pick: fn(&PairedEstimate) -> f64| {
                    Some(pick(confirmed.memory.as_ref()?) + pick(confirmed.cpu.as_ref()?))
                };
                sum(|paired| paired.mean)
                    .zip(sum(|paired| paired.half_width))
                    .is_some_and(|(mean, half_width)| mean + half_width < 0.0)
            }
        }
    }

    /// Nothing lives: looks for the smallest cap under which the default does.
    async fn find_survivable_cap(&mut self) -> Result<End> {
        let mut tried = vec![self.spec.cap_bytes];
        let mut cap = self.spec.cap_bytes;
        for _ in 0..LADDER_MAX {
            // Whole MiB, for a short figure in the report.
            cap = ((cap as f64 * LADDER_STEP) as u64 >> 20).max(1) << 20;
            if cap > self.spec.cap_bytes_max {
                break;
            }
            let run = self.bench.run_capped(cap).await?;
            if run.outcome.lived() {
                return Ok(End::Killed { lived_at: Some(cap), tried });
            }
            tried.push(cap);
        }
        Ok(End::Killed { lived_at: None, tried })
    }
}

#[cfg(test)]
mod tests;
