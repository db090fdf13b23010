//! `thimble-lab compare`: which differences between earlier runs and a change are real.
//!
//! Files of measurements ([`input`]) become tests with a value in each run (`suite`). Each test is
//! judged against its own spread (`stats` has the method and its limits), each gets a verdict
//! (`verdict`), and the report is for people and machines (`report`). With `--pair` it measures two
//! commands itself, in alternating turns (`pair`). [`figure`] is the format that benches write.
//!
//! Bounds: sizes, depths and counts of files in `input` and `suite`; turns and time of `--pair` by
//! flags. Must never know: the meaning of the figures to the measured programs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod figure;
pub mod input;
mod options;
mod pair;
mod report;
mod stats;
mod suite;
mod verdict;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

pub use options::{FailOn, Options};
pub use pair::{
    analysis::{PairedEstimate, TURNS_MIN, estimate_change},
    machine::{Busy, Counters, describe},
};
pub use stats::special::two_sided_inverse;
pub use suite::median;

use input::Run;
use options::{CompareSpec, is_stdout, write};
use report::{Report, Source};
use suite::Directions;
use verdict::Verdict;

/// When something cannot be read or measured; 1 is for `--fail-on`.
const EXIT_FAULT: u8 = 2;
/// From this probability on the whole counts as slower.
const WHOLE_SLOWER: f64 = 0.025;

/// Compares and prints. Exit status: 0, 1 when something is found that `--fail-on` names, 2 when a
/// file cannot be read, 130 after Ctrl-C.
pub async fn run(options: Options) -> Result<ExitCode> {
    let done = match options.validate() {
        Ok(spec) if !options.pair.pair.is_empty() => pair::run(&options.pair, &spec).await,
        Ok(spec) => compare(&spec),
        Err(error) => Err(error),
    };
    done.or_else(|error| {
        eprintln!("thimble-lab compare: {error:#}");
        Ok(ExitCode::from(EXIT_FAULT))
    })
}

fn compare(spec: &CompareSpec) -> Result<ExitCode> {
    let baseline = read_all(&spec.baseline)?;
    let candidate = read_all(&spec.candidate)?;
    let directions = Directions { more: &spec.more, less: &spec.less };
    let report = build_report(&baseline, &candidate, &directions, (spec.error, spec.least))?;
    print(&report, spec)?;
    Ok(status(&report, &spec.fail_on))
}

/// Table, Markdown, JSON and page of a comparison, for programs. Errors: too many runs or tests.
pub fn render(baseline: &[Run], candidate: &[Run]) -> Result<[String; 4]> {
    let bounds = (options::ERROR, 0.0);
    let report = build_report(baseline, candidate, &Directions::default(), bounds)?;
    let json = serde_json::to_string_pretty(&report)?;
    Ok([report::text(&report, true), report::markdown(&report), json, report::page(&report)])
}

/// Reads every file, and reports skipped values on standard error.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for path in paths {
        let run = input::read(path)?;
        let readings = &run.readings;
        if let Some(first) = &readings.unusable_first {
            eprintln!(
                "compare: {}: {} values are no numbers and are left out, such as: {}",
                path.display(),
                readings.unusable,
                report::clean(first)
            );
        }
        if readings.failed > 0 {
            eprintln!(
                "compare: {}: {} tests failed; their times are left out",
                path.display(),
                readings.failed
            );
        }
        runs.push(run);
    }
    Ok(runs)
}

/// `error` and `least` as of [`verdict::judge_suite`].
fn build_report(
    baseline: &[Run],
    candidate: &[Run],
    directions: &Directions<'_>,
    (error, least): (f64, f64),
) -> Result<Report> {
    let suite = suite::assemble(baseline, candidate, directions)?;
    Ok(Report {
        format: report::FORMAT,
        baseline: baseline.iter().map(Source::from_run).collect(),
        candidate: candidate.iter().map(Source::from_run).collect(),
        outcome: verdict::judge_suite(&suite, error, least),
    })
}

fn print(report: &Report, spec: &CompareSpec) -> Result<()> {
    if !is_stdout(spec.json.as_ref()) && !is_stdout(spec.markdown.as_ref()) {
        print!("{}", report::text(report, spec.all));
    }
    write(spec.json.as_ref(), || Ok(serde_json::to_string_pretty(report)? + "\n"))?;
    write(spec.markdown.as_ref(), || Ok(report::markdown(report)))?;
    write(spec.html.as_ref(), || Ok(report::page(report)))
}

fn status(report: &Report, fail_on: &[FailOn]) -> ExitCode {
    let whole = &report.outcome.whole;
    let any = |verdict: Verdict| whole.count(verdict) > 0;
    let judged = report.outcome.tests.iter().any(|test| test.p.is_some());
    let found = |fail_on: &FailOn| match fail_on {
        FailOn::Slower => any(Verdict::Slower),
        FailOn::WholeSlower => whole.p_faster.is_some_and(|p| p < WHOLE_SLOWER),
        FailOn::Outlier => any(Verdict::Slower) || any(Verdict::Outlier),
        FailOn::Gone => any(Verdict::Gone),
        FailOn::Unknown => !judged,
    };
    if !fail_on.is_empty() && !judged {
        eprintln!(
            "compare: no test could be judged, so --fail-on says nothing (--fail-on unknown fails on it)"
        );
    }
    if fail_on.iter().any(found) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
