//! `compare --pair`: two commands in alternating turns.
//!
//! A turn runs both, and the order swaps from turn to turn (A B, B A, ...), so that a machine that
//! gets slower does not favour one. A turn during which the machine was busy with other work is
//! discarded and repeated. Compared figures: wall time, CPU time, peak memory, and with `--read`
//! the figures of a file that the commands write.
//!
//! Bounds: turns and minutes by flags; at most as many turns are dropped as are requested. Must
//! never know: what the commands do.

pub(crate) mod analysis;
pub(crate) mod machine;
mod process;
mod report;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use cli::StopSignals;
use rustix::process::Signal;
use serde::Serialize;

use crate::{
    figure::{Better, Unit, by_name},
    input,
    options::{CompareSpec, is_stdout, percent, write},
    stats::correct,
    suite::median,
    verdict::Verdict,
};
use analysis::TURNS_MIN;
use machine::{Busy, Counters};
use process::{Running, Usage};

/// From asking a command to end until it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// Pressure above that of the calmest turns, as a share of the time, from which a turn is dropped.
const PRESSURE_ABOVE: f64 = 0.2;
/// Most figures of a file that are compared.
const FIGURES_MAX: usize = 1_000;

/// Measuring by itself.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Measure two commands (sh) in alternating turns: wall time, CPU time, peak memory.
    #[arg(long, num_args = 2, value_names = ["BASELINE", "CANDIDATE"],
        conflicts_with_all = ["baseline", "candidate", "html", "markdown"])]
    pub(crate) pair: Vec<String>,
    /// With --pair: most turns that count. [default: 20]
    #[arg(long, requires = "pair", value_parser = clap::value_parser!(u16).range(1..=1000))]
    turns: Option<u16>,
    /// With --pair: end as soon as a change of wall time by this much would be detected.
    #[arg(long, value_name = "PERCENT", requires = "pair", value_parser = percent)]
    tell: Option<f64>,
    /// With --pair: also compare what each command writes to this file (any format above).
    #[arg(long, value_name = "FILE", requires = "pair")]
    read: Option<PathBuf>,
    /// With --pair: drop a turn when others took more of all processors. [default: 10%]
    #[arg(long, value_name = "PERCENT", requires = "pair", value_parser = percent)]
    busy: Option<f64>,
    /// With --pair: most minutes in all. [default: 30]
    #[arg(long, requires = "pair", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: Option<u32>,
    /// With --pair: most seconds of one run. [default: 600]
    #[arg(long, alias = "patience", value_name = "SECONDS", requires = "pair",
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: Option<u32>,
}

impl Options {
    fn turns(&self) -> usize {
        usize::from(self.turns.unwrap_or(20))
    }
}

/// What is compared: its name and unit.
pub(crate) type Key = (String, Unit);
/// Figures of one run.
pub(crate) type Figures = BTreeMap<Key, f64>;

/// One run of the baseline and one of the candidate, and what else ran meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct PairedRun {
    pub(crate) candidate_first: bool,
    pub(crate) baseline: Figures,
    pub(crate) candidate: Figures,
    pub(crate) busy: [Busy; 2],
}

/// Result of all turns for one figure; ordered as in tables.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
    /// Over the turns that count.
    pub(crate) baseline_median: f64,
    /// Median of the candidate over the turns that count.
    pub(crate) candidate_median: f64,
    /// Candidate over baseline less 1, geometric mean over turns; none with zeros or negative
    /// values.
    pub(crate) change: Option<f64>,
    /// The 95 % confidence interval.
    pub(crate) between: Option<[f64; 2]>,
    /// Standard deviation of a turn's change.
    pub(crate) spread: Option<f64>,
    pub(crate) p: Option<f64>,
    /// Corrected for the number of figures (Benjamini and Hochberg).
    pub(crate) q: Option<f64>,
    pub(crate) verdict: Verdict,
    /// Turns that a change of the wanted size needs in all; none where nothing is known.
    pub(crate) turns_needed: Option<usize>,
    #[serde(skip)]
    pub(crate) key: Key,
}

/// Measures and prints. Exit status as for comparing files, 130 after Ctrl-C.
pub(crate) async fn run(options: &Options, spec: &CompareSpec) -> Result<ExitCode> {
    let [first, second] = options.pair.as_slice() else {
        anyhow::bail!("--pair takes two commands")
    };
    let commands = [first.clone(), second.clone()];
    let running = Arc::new(Running::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = StopSignals::listen()?;
    let work = {
        let (options, commands) = (options.clone(), commands.clone());
        let (running, stop) = (running.clone(), stop.clone());
        tokio::task::spawn_blocking(move || measure(&options, &commands, &running, &stop))
    };
    let ender = tokio::spawn(async move {
        signals.next().await;
        eprintln!("compare: stopping, with what was measured so far");
        stop.store(true, Ordering::SeqCst);
        running.signal(Signal::TERM);
        tokio::time::sleep(GRACE).await;
        running.signal(Signal::KILL);
    });
    let measured = work.await.context("measuring")??;
    ender.abort();
    let (kept, dropped) = sift(&measured.turns, options.busy.unwrap_or(0.1));
    let metrics = build_metrics(&kept, spec, options);
    let report = report::Report::new(options, &commands, &measured, &kept, dropped, metrics);
    if !is_stdout(spec.json.as_ref()) {
        print!("{}", report.text());
    }
    write(spec.json.as_ref(), || Ok(serde_json::to_string_pretty(&report)? + "\n"))?;
    if measured.interrupted {
        return Ok(cli::interrupted());
    }
    ensure!(
        !kept.is_empty(),
        "the machine was busy with something else in all {} turns; wait until it is calm, or \
         allow more (--busy)",
        measured.turns.len()
    );
    let slower = report.metrics.iter().any(|metric| metric.verdict == Verdict::Slower);
    let unknown = report.metrics.iter().all(|metric| metric.p.is_none());
    let fails = spec.fail_on.iter().any(|on| match on {
        crate::FailOn::Unknown => unknown,
        crate::FailOn::Gone => false,
        _ => slower,
    });
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The turns that were made, dropped ones included.
pub(crate) struct PairedRuns {
    pub(crate) turns: Vec<PairedRun>,
    pub(crate) interrupted: bool,
    /// Why it ended before all turns were made.
    pub(crate) ended: Option<String>,
}

fn measure(
    options: &Options,
    commands: &[String; 2],
    running: &Running,
    stop: &AtomicBool,
) -> Result<PairedRuns> {
    let limit = Duration::from_secs(options.timeout.unwrap_or(600).into());
    let deadline =
        Instant::now() + Duration::from_secs(u64::from(options.minutes.unwrap_or(30)) * 60);
    let mut measured = PairedRuns { turns: Vec::new(), interrupted: false, ended: None };
    let one = |side: usize| -> Result<(Figures, Busy)> {
        let who = if side == 0 { "the baseline" } else { "the candidate" };
        let command = commands.get(side).map_or("", String::as_str);
        figures(command, options.read.as_ref(), limit, running).with_context(|| who.to_owned())
    };
    let stopped = || stop.load(Ordering::SeqCst);
    // Caches are filled by a run of each that counts for nothing.
    for side in 0..2 {
        let done = one(side);
        if stopped() {
            measured.interrupted = true;
            return Ok(measured);
        }
        done?;
    }
    for index in 0..2 * options.turns() {
        let candidate_first = index % 2 == 1;
        let mut sides = [None, None];
        for side in if candidate_first { [1, 0] } else { [0, 1] } {
            let done = one(side);
            if stopped() {
                measured.interrupted = true;
                return Ok(measured);
            }
            if let Some(place) = sides.get_mut(side) {
                *place = Some(done?);
            }
        }
        let [Some((baseline, before)), Some((candidate, after))] = sides else { continue };
        measured.turns.push(PairedRun {
            candidate_first,
            baseline,
            candidate,
            busy: [before, after],
        });
        let (kept, dropped) = sift(&measured.turns, options.busy.unwrap_or(0.1));
        let needed = needed(&kept, options.tell);
        let more =
            needed.map_or_else(String::new, |needed| match needed.saturating_sub(kept.len()) {
                0 => "; enough to detect the change".to_owned(),
                more => format!("; {more} more needed"),
            });
        eprintln!("compare: {} of {} turns, {dropped} dropped{more}", kept.len(), options.turns());
        let enough = options.tell.is_some() && needed.is_some_and(|needed| kept.len() >= needed);
        if enough || kept.len() >= options.turns() {
            return Ok(measured);
        }
        if Instant::now() > deadline {
            measured.ended = Some("the time is over (--minutes)".into());
            return Ok(measured);
        }
    }
    measured.ended =
        Some("too many turns were dropped: the machine is busy with something else".into());
    Ok(measured)
}

/// Turns in total after which a change of wall time by `tell` would be detected.
fn needed(kept: &[&PairedRun], tell: Option<f64>) -> Option<usize> {
    let differences = differences(kept, &wall())?;
    if kept.len() < TURNS_MIN {
        return None;
    }
    Some(analysis::turns_needed(
        analysis::estimate_change(&differences)?.spread,
        tell?,
        keys(kept).len(),
    ))
}

/// Figures that both commands have.
fn keys<'a>(kept: &[&'a PairedRun]) -> Vec<&'a Key> {
    let both = |turn: &&'a PairedRun| {
        let turn: &'a PairedRun = turn;
        turn.baseline.keys().filter(|key| turn.candidate.contains_key(*key)).collect()
    };
    kept.first().map(both).unwrap_or_default()
}

fn wall() -> Key {
    ("wall time".to_owned(), Unit::Seconds)
}

/// Runs a command once.
fn figures(
    command: &str,
    read: Option<&PathBuf>,
    limit: Duration,
    running: &Running,
) -> Result<(Figures, Busy)> {
    if let Some(path) = read {
        // Output of an earlier run must not count for this one.
        cli::if_there(std::fs::remove_file(path))
            .with_context(|| format!("removing {}", path.display()))?;
    }
    let before = Counters::now();
    let Usage { wall_seconds, cpu_seconds, peak_bytes } = process::run(command, limit, running)?;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let busy = before.until(&Counters::now(), cpu_seconds, ticks);
    let mut figures = Figures::new();
    figures.insert(wall(), wall_seconds);
    figures.insert(("CPU time".to_owned(), Unit::Seconds), cpu_seconds);
    figures.insert(("peak memory of the largest process".to_owned(), Unit::Bytes), peak_bytes);
    if let Some(path) = read {
        let run = input::read(path).context("--read")?;
        let mut values: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        for reading in run.readings.list {
            if let Some(value) = reading.value {
                values.entry((reading.name, reading.unit)).or_default().push(value);
            }
        }
        ensure!(
            values.len() <= FIGURES_MAX,
            "--read: {} has {} figures; at most {FIGURES_MAX} are compared",
            path.display(),
            values.len()
        );
        figures.extend(values.into_iter().filter_map(|(key, all)| Some((key, median(&all)?))));
    }
    Ok((figures, busy))
}

/// The turns that count, and how many do not.
fn sift(turns: &[PairedRun], others_max: f64) -> (Vec<&PairedRun>, usize) {
    // The calmest runs show the pressure caused by the command itself.
    let calmest = |side: usize| {
        let all = turns.iter().filter_map(|turn| turn.busy.get(side)?.pressure);
        all.fold(1.0, f64::min)
    };
    let calm = [calmest(0), calmest(1)];
    let counts = |turn: &&PairedRun| {
        turn.busy.iter().zip(calm).all(|(busy, calm)| {
            let pressed = busy.pressure.is_some_and(|pressure| pressure > calm + PRESSURE_ABOVE);
            // Pressure alone may be the command's own; it counts when others took a part of it.
            let near = others_max < 1.0 && busy.others > others_max / 2.0;
            busy.others <= others_max && !(pressed && near)
        })
    };
    let kept: Vec<&PairedRun> = turns.iter().filter(counts).collect();
    let dropped = turns.len() - kept.len();
    (kept, dropped)
}

/// Logarithms of candidate over baseline, of all turns; none where a value has no logarithm.
fn differences(kept: &[&PairedRun], key: &Key) -> Option<Vec<f64>> {
    let one = |turn: &&PairedRun| {
        let (before, after) = (turn.baseline.get(key)?, turn.candidate.get(key)?);
        (*before > 0.0 && *after > 0.0).then(|| (after / before).ln())
    };
    kept.iter().map(one).collect()
}

fn build_metrics(kept: &[&PairedRun], spec: &CompareSpec, options: &Options) -> Vec<Metric> {
    let mut keys = keys(kept);
    // Wall time first, then CPU time, then the others by name.
    keys.sort_by_key(|key| (**key != wall(), key.0 != "CPU time", *key));
    let count = keys.len();
    let mut metrics: Vec<Metric> =
        keys.into_iter().map(|key| metric(kept, key, count, options)).collect();
    let p: Vec<Option<f64>> = metrics.iter().map(|metric| metric.p).collect();
    for (metric, q) in metrics.iter_mut().zip(correct(&p)) {
        metric.q = q;
        let Some(q) = q else { continue };
        let improves =
            metric.change.is_some_and(|change| change > 0.0) == (metric.better == Better::More);
        let large = metric.change.is_some_and(|change| change.ln_1p().abs() >= spec.least.ln_1p());
        metric.verdict = match (q <= spec.error && large, improves) {
            (true, true) => Verdict::Faster,
            (true, false) => Verdict::Slower,
            (false, _) => Verdict::Noise,
        };
    }
    metrics
}

fn metric(kept: &[&PairedRun], key: &Key, count: usize, options: &Options) -> Metric {
    let side = |of: fn(&PairedRun) -> &Figures| {
        let values: Vec<f64> = kept.iter().filter_map(|turn| of(turn).get(key).copied()).collect();
        median(&values).unwrap_or(0.0)
    };
    let found =
        differences(kept, key).and_then(|differences| analysis::estimate_change(&differences));
    let found = found.as_ref();
    Metric {
        name: key.0.clone(),
        unit: key.1.name().to_owned(),
        better: by_name(&key.0, &key.1),
        baseline_median: side(|turn| &turn.baseline),
        candidate_median: side(|turn| &turn.candidate),
        change: found.map(|found| found.mean.exp_m1()),
        between: found.map(|found| {
            [(found.mean - found.half_width).exp_m1(), (found.mean + found.half_width).exp_m1()]
        }),
        spread: found.map(|found| found.spread.exp_m1()),
        p: found.and_then(|found| found.p),
        q: None,
        verdict: Verdict::Unknown,
        turns_needed: found
            .map(|found| analysis::turns_needed(found.spread, options.tell.unwrap_or(0.05), count)),
        key: key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(others: f64, pressure: Option<f64>) -> PairedRun {
        PairedRun {
            candidate_first: false,
            baseline: Figures::new(),
            candidate: Figures::new(),
            busy: [Busy::default(), Busy { others, pressure }],
        }
    }

    // Promise: P25 - Turns on a busy machine are dropped.
    #[test]
    fn turns_in_which_the_machine_was_busy_are_dropped() {
        let turns = [
            turn(0.0, Some(0.5)),
            turn(0.2, Some(0.5)),
            turn(0.06, Some(0.9)),
            turn(0.0, Some(0.9)),
            turn(0.06, None),
        ];
        let (kept, dropped) = sift(&turns, 0.1);
        assert_eq!((kept.len(), dropped), (3, 2));
        // With all other load allowed, every turn is kept.
        assert_eq!(sift(&[turn(1.0, Some(1.0)), turn(0.0, Some(0.0))], 1.0).0.len(), 2);
        assert_eq!(sift(&turns, 1.0).0.len(), 5);
    }

    #[test]
    fn zero_values_have_no_ratio() {
        let mut one = turn(0.0, None);
        one.baseline.insert(wall(), 0.0);
        one.candidate.insert(wall(), 1.0);
        assert_eq!(differences(&[&one], &wall()), None);
        let metric = metric(&[&one], &wall(), 1, &Options::default());
        assert_eq!((metric.change, metric.p, metric.verdict), (None, None, Verdict::Unknown));
    }
}
