//! The outcome, for people and machines.
//!
//! Names come from untrusted files: control characters, markup and mentions in them have no effect.
//!
//! Bounds: rows by each form. Must never know: how verdicts are computed.

mod html;
mod markdown;
mod picture;
mod text;

pub(crate) use html::page;
pub(crate) use markdown::markdown;
pub(crate) use text::text;

use std::fmt::Write;

use serde::Serialize;

use crate::{
    figure::{Better, Unit},
    input::Run,
    verdict::{Outcome, TestResult, Verdict},
};

/// Version of the JSON.
pub(crate) const FORMAT: u32 = 1;

/// A file that was read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    /// As it was named.
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    pub(crate) values: usize,
    /// Tests that failed in it, whose times do not count.
    pub(crate) failed: usize,
    /// Tests that were skipped in it.
    pub(crate) skipped: usize,
    /// Values that are not numbers.
    pub(crate) unusable: usize,
}

impl Source {
    pub(crate) fn from_run(run: &Run) -> Self {
        let readings = &run.readings;
        Self {
            path: clean(&run.path.display().to_string()),
            kind: run.kind.name(),
            values: readings.list.iter().filter(|reading| reading.value.is_some()).count(),
            failed: readings.failed,
            skipped: readings.skipped,
            unusable: readings.unusable,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this form.
    pub(crate) format: u32,
    /// Files and folders of the earlier runs.
    pub(crate) baseline: Vec<Source>,
    /// Runs of the change.
    pub(crate) candidate: Vec<Source>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// Without what a terminal would act on.
pub(crate) fn clean(text: &str) -> String {
    let is_odd =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_odd(c) { '\u{fffd}' } else { c }).collect()
}

/// `1.23 s`, `12.3 ms`, `4.5 MiB`, `123/s`, `99.9 %`, `7`.
pub(crate) fn value(value: f64, unit: &Unit) -> String {
    let digits = |value: f64| {
        let size = value.abs();
        let decimals = if size >= 99.95 || size == 0.0 {
            0
        } else if size >= 9.995 {
            1
        } else {
            2
        };
        if size < 1e7 && (size >= 0.01 || size == 0.0) {
            format!("{value:.decimals$}")
        } else {
            format!("{value:.2e}")
        }
    };
    match unit {
        Unit::Seconds => {
            let size = value.abs();
            let (scale, name) = if size >= 1.0 || size == 0.0 {
                (1.0, "s")
            } else if size >= 1e-3 {
                (1e3, "ms")
            } else if size >= 1e-6 {
                (1e6, "µs")
            } else {
                (1e9, "ns")
            };
            format!("{} {name}", digits(value * scale))
        }
        Unit::Bytes if value.abs() >= 1_048_576.0 => format!("{} MiB", digits(value / 1_048_576.0)),
        Unit::Bytes if value.abs() >= 1024.0 => format!("{} KiB", digits(value / 1024.0)),
        Unit::Bytes => format!("{} B", digits(value)),
        Unit::PerSecond => format!("{}/s", digits(value)),
        Unit::Percent => format!("{} %", digits(value)),
        Unit::Other(name) if name.is_empty() => digits(value),
        Unit::Other(name) => format!("{} {}", digits(value), clean(name)),
    }
}

/// A change as a signed percentage, such as `+12.3 %`; from 1000 % on, as a factor.
pub(crate) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() >= 1000.0 { format!("x{:.1}", part + 1.0) } else { format!("{percent:+.1} %") }
}

/// A change as [`percent`] writes it, without a plus sign: `12.3 %`.
pub(crate) fn unsigned(part: f64) -> String {
    percent(part).trim_start_matches('+').to_owned()
}

/// The smallest change that would be called one, as far as it is meaningful.
pub(crate) fn tells(part: f64) -> String {
    const MOST: f64 = 9.0;
    if part > MOST { "over x10".into() } else { unsigned(part) }
}

/// A probability with three decimals, such as `0.012`; below 0.001 as `3e-5`.
pub(crate) fn probability(p: f64) -> String {
    if p >= 0.001 { format!("{p:.3}") } else { format!("{p:.0e}") }
}

/// A value, or a dash where there is none.
pub(crate) fn or_dash(value: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// Which values are better, the means of both sides, the change, the noise, the smallest change
/// that would be called one, and the corrected probability.
pub(crate) fn cells(test: &TestResult) -> [String; 7] {
    [
        if test.better == Better::Less { "less".into() } else { "more".into() },
        or_dash(test.baseline_mean, |mean| value(mean, &test.unit)),
        or_dash(test.candidate_mean, |mean| value(mean, &test.unit)),
        change(test),
        or_dash(test.noise, unsigned),
        or_dash(test.tells, tells),
        or_dash(test.q, probability),
    ]
}

/// A table for a terminal: two columns at the left, figures at the right, and the verdict.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[([String; N], String)]) -> String {
    let mut widths = heads.map(str::len);
    for (row, _) in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let heads = (heads.map(str::to_owned), "verdict".to_owned());
    for (cells, verdict) in std::iter::once(&heads).chain(rows) {
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = match index {
                0 | 1 => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(text, "{verdict}");
    }
    text
}

/// How the change of a test is written: as a ratio, else as a difference.
pub(crate) fn change(test: &TestResult) -> String {
    match (test.change, test.baseline_mean, test.candidate_mean) {
        (Some(change), ..) => percent(change),
        (None, Some(before), Some(after)) => {
            let sign = if after >= before { "+" } else { "" };
            format!("{sign}{}", value(after - before, &test.unit))
        }
        _ => "-".into(),
    }
}

/// The sentences above a table.
pub(crate) fn summary(report: &Report) -> Vec<String> {
    let Outcome { whole, method, .. } = &report.outcome;
    let mut lines = Vec::new();
    let counts: Vec<String> = whole
        .counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(verdict, count)| format!("{count} {}", verdict.label()))
        .collect();
    lines.push(format!("{} tests: {}", report.outcome.tests.len(), counts.join(", ")));
    if whole.count(Verdict::Outlier) > 0 && whole.outliers_by_chance >= 0.1 {
        lines.push(format!(
            "about {:.1} lone outliers are expected when nothing changed",
            whole.outliers_by_chance
        ));
    }
    if let (Some(before), Some(after)) = (whole.sum_baseline_seconds, whole.sum_candidate_seconds) {
        let change = if before > 0.0 { percent(after / before - 1.0) } else { "-".into() };
        lines.push(format!(
            "sum of times: {} -> {} ({change})",
            value(before, &Unit::Seconds),
            value(after, &Unit::Seconds)
        ));
    }
    let better = |part: f64| {
        let word = if part >= 0.0 { "better" } else { "worse" };
        format!("{} {word}", unsigned(part.abs()))
    };
    if let (Some(median), Some(mean)) = (whole.median_improvement, whole.mean_improvement) {
        lines.push(format!("median test {}, mean {}", better(median), better(mean)));
    }
    lines.push(match whole.p_faster {
        Some(p) => format!(
            "probability that the whole is faster: {:.1} % (each of {} tests counts the same)",
            p * 100.0,
            whole.tests
        ),
        None => "probability that the whole is faster: cannot be known from these runs".into(),
    });
    if let Some(noise) = method.run_noise {
        lines.push(format!("whole runs differ by {} (standard deviation)", unsigned(noise)));
    }
    lines
}

/// How it was judged, in a sentence.
pub(crate) fn how(report: &Report) -> String {
    let method = &report.outcome.method;
    let pooled = match method.pooled_over {
        0 => "each test by its own spread alone".to_owned(),
        over => format!(
            "each test by its own spread, moderated by those of {over} tests (worth {:.0} degrees \
             of freedom)",
            method.pooled_df
        ),
    };
    let tail = match (method.tail_values, method.tail_df) {
        (0, _) => String::new(),
        (values, None) => format!("; {values} values of runs left out show no heavy tails"),
        (values, Some(df)) => {
            format!(
                "; {values} values of runs left out show tails like Student's with {df} degrees \
                 of freedom"
            )
        }
    };
    format!(
        "{pooled}{tail}; corrected for many tests by Benjamini and Hochberg: at most {:.0} % of \
         calls wrong",
        method.error * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_with_their_unit() {
        for (number, unit, text) in [
            (0.0123, Unit::Seconds, "12.3 ms"),
            (0.0, Unit::Seconds, "0 s"),
            (1.5e-7, Unit::Seconds, "150 ns"),
            (4_718_592.0, Unit::Bytes, "4.50 MiB"),
            (-3.0, Unit::Bytes, "-3.00 B"),
            (1234.0, Unit::PerSecond, "1234/s"),
            (7.0, Unit::Other(String::new()), "7.00"),
            (1e12, Unit::Other("x".into()), "1.00e12 x"),
        ] {
            assert_eq!(value(number, &unit), text);
        }
        assert_eq!(percent(0.123), "+12.3 %");
        assert_eq!(percent(20.0), "x21.0");
    }

    #[test]
    fn terminals_are_told_nothing_by_names() {
        assert_eq!(clean("a\u{1b}[31m\u{202e}b\n"), "a\u{fffd}[31m\u{fffd}b\u{fffd}");
    }
}
