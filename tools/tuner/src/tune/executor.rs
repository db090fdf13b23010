//! Executes the runs that the search requests, or takes them from the journal, and reports
//! progress.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    journal::{Journal, Record},
    knob::{Knob, Setting, Way},
    run::{self, Measurement, Outcome, Plan, Stop},
    search::{Bench, Table},
};

/// Runs in a row during which the machine was busy before the search gives up.
const BUSY_IN_A_ROW: u32 = 6;
/// How long the first repetition waits for the machine to calm down; each further one as long
/// again.
const CALM_WAIT: Duration = Duration::from_secs(2);
/// A load may take this many times as long as the longest one that ended.
const LOAD_TIMEOUT: u32 = 3;

/// The machine does other things.
#[derive(Debug, thiserror::Error)]
#[error(
    "this machine is too busy to judge on: in {BUSY_IN_A_ROW} runs one after the other, others \
     took {list} of all processors, and {limit:.0} % is the limit (--busy). What was measured is \
     kept; begin again when it is calm."
)]
pub(crate) struct TooNoisy {
    list: String,
    limit: f64,
}

pub(super) struct Executor<'a> {
    pub(super) plan: Plan,
    pub(super) knobs: &'a [Knob],
    pub(super) journal: Journal,
    pub(super) budget: Duration,
    pub(super) busy_percent: f64,
    pub(super) stop: Stop,
    /// Peak from which sizes are derived.
    peak_bytes: u64,
    spent: Duration,
    pub(super) made: usize,
    pub(super) discarded: usize,
    best: String,
    /// The longest run in which the load ended, where that bounds the next ones.
    loaded: Option<Duration>,
    is_load_bounded: bool,
}

impl<'a> Executor<'a> {
    pub(super) fn new(
        plan: Plan,
        knobs: &'a [Knob],
        journal: Journal,
        (budget, busy_percent): (Duration, f64),
        stop: Stop,
    ) -> Self {
        let peak_bytes = plan.cap_bytes;
        let is_load_bounded = plan.until_load_ends && !plan.is_phase_asked;
        Self {
            plan,
            knobs,
            journal,
            budget,
            busy_percent,
            stop,
            peak_bytes,
            spent: Duration::ZERO,
            made: 0,
            discarded: 0,
            best: String::new(),
            loaded: None,
            is_load_bounded,
        }
    }

    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    async fn run_at(
        &mut self,
        setting: &Setting,
        cap_bytes: u64,
        why: &str,
    ) -> Result<Measurement> {
        let named = setting.names_and_values(self.knobs, self.peak_bytes);
        if let Some(known) = self.journal.take(&named, cap_bytes) {
            self.spent = self.spent.max(Duration::from_secs_f64(known.spent_seconds));
            self.made += 1;
            self.update_load_duration(&known.measured);
            return Ok(known.measured);
        }
        // Time spent on runs that the search no longer requests counts as spent all the same.
        if self.journal.is_used_up() {
            self.spent = self.spent.max(Duration::from_secs_f64(self.journal.spent_seconds));
        }
        let turned = setting.turned(self.knobs, self.peak_bytes).into_iter();
        let ways: Vec<(&Way, String)> = turned.map(|(knob, value)| (&knob.way, value)).collect();
        let mut plan = Plan { cap_bytes, ..self.plan.clone() };
        if let Some(loaded) = self.loaded {
            plan.phase = plan.phase.min(loaded * LOAD_TIMEOUT);
        }
        let mut seen = Vec::new();
        loop {
            let started = Instant::now();
            let measured = run::run(&plan, &ways, &self.stop).await?;
            self.spent += started.elapsed();
            // A kill for lack of memory counts regardless of the load of other processes.
            let is_sure = matches!(measured.outcome, Outcome::OutOfMemory(_));
            let busy = measured.others_percent > self.busy_percent && !is_sure;
            let discarded = busy
                .then(|| format!("others took {:.0} % of all processors", measured.others_percent));
            let record = Record {
                setting: named.clone(),
                cap_bytes,
                why: why.to_owned(),
                discarded: discarded.clone(),
                spent_seconds: self.spent.as_secs_f64(),
                measured: measured.clone(),
            };
            self.journal.write(&record)?;
            self.journal.spent_seconds = record.spent_seconds;
            self.print_run(&record);
            if !busy {
                self.made += 1;
                self.update_load_duration(&measured);
                return Ok(measured);
            }
            self.discarded += 1;
            seen.push(format!("{:.0} %", measured.others_percent));
            if seen.len() >= BUSY_IN_A_ROW as usize {
                bail!(TooNoisy { list: seen.join(", "), limit: self.busy_percent });
            }
            let wait = CALM_WAIT * seen.len() as u32;
            self.spent += wait;
            let mut stop = self.stop.clone();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(|stop| *stop) => bail!(run::StoppedByUser),
            }
        }
    }

    /// Updates the estimated duration of the load after a run.
    fn update_load_duration(&mut self, measured: &Measurement) {
        if self.is_load_bounded && measured.outcome.lived() {
            let took = Duration::from_secs_f64(measured.seconds.max(1.0));
            self.loaded = Some(self.loaded.map_or(took, |longest| longest.max(took)));
        }
    }

    /// One line for each run.
    fn print_run(&self, record: &Record) {
        let measured = &record.measured;
        let outcome = if measured.outcome.lived() {
            figures(measured)
        } else {
            measured.outcome.label().to_owned()
        };
        // The settings come last: they may be long.
        let mut line = format!(
            "{:>5}  run {:<3} {:<26} {outcome:<38}  {}",
            clock(self.spent),
            self.made + self.discarded + 1,
            record.why,
            format_setting(&record.setting)
        );
        if let Some(discarded) = &record.discarded {
            line.push_str(&format!("  not counted: {discarded}"));
        }
        eprintln!("{line}");
        if !self.best.is_empty() && std::io::stderr().is_terminal() {
            eprint!("       of {}; best so far: {}\r", clock(self.budget), self.best);
        }
    }
}

impl Bench for Executor<'_> {
    async fn run(&mut self, setting: &Setting, why: &str) -> Result<Measurement> {
        self.run_at(setting, self.plan.cap_bytes, why).await
    }

    async fn run_capped(&mut self, cap_bytes: u64) -> Result<Measurement> {
        let why = format!("the default in {}", accounting::format_size(cap_bytes));
        self.run_at(&Setting::default(), cap_bytes, &why).await
    }

    fn set_peak_bytes(&mut self, peak_bytes: u64) {
        self.peak_bytes = peak_bytes;
    }

    fn time_left(&self) -> Duration {
        self.budget.saturating_sub(self.spent)
    }

    fn report_best(&mut self, setting: &Setting, table: &Table) {
        let named = setting.names_and_values(self.knobs, self.peak_bytes);
        let peak = table.trial(setting).map_or(0.0, |trial| trial.peak());
        let best = format!("{}, {}", format_setting(&named), accounting::format_size(peak as u64));
        if best != self.best && !std::io::stderr().is_terminal() && !setting.is_default() {
            eprintln!("       best so far: {best}");
        }
        self.best = best;
    }
}

/// A time in minutes and seconds, such as `3:20`.
pub(super) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// A setting in one line.
pub(super) fn format_setting(setting: &[(String, String)]) -> String {
    if setting.is_empty() {
        return "default".to_owned();
    }
    // A value that names its knob itself is shown alone.
    let word = |(name, value): &(String, String)| {
        if value.starts_with('-') { value.clone() } else { format!("{name} {value}") }
    };
    setting.iter().map(word).collect::<Vec<_>>().join(", ")
}

pub(super) fn figures(measured: &Measurement) -> String {
    let mut text =
        format!("{:>9}  {:>6.1} s CPU", mib(measured.peak_bytes as f64), measured.cpu_seconds);
    if let Some(lateness) = &measured.lateness {
        text.push_str(&format!("  p99 {:.1} ms", lateness.p99_millis));
        if lateness.misses > 0 {
            text.push_str(&format!(", {} missed", lateness.misses));
        }
    }
    text
}

pub(super) fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / 1_048_576.0)
}
