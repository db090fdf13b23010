//! The table for a terminal.

use std::fmt::Write;

use super::{Report, change, clean, how, probability, summary, tells, unsigned, value};
use crate::{
    figure::Better,
    verdict::{TestResult, Verdict},
};

/// Rows of tests within their noise that are shown without being asked for.
const QUIET_ROWS_MAX: usize = 30;
/// Most rows at all.
const ROWS_MAX: usize = 10_000;
/// Widest name; of a longer one the end is shown, which is more informative.
const NAME_CHARS_MAX: usize = 60;

/// The table and its summary. `all` shows every test within its noise too.
pub(crate) fn text(report: &Report, all: bool) -> String {
    let mut text = String::new();
    let quiet_max = if all { ROWS_MAX } else { QUIET_ROWS_MAX };
    let (loud, quiet): (Vec<&TestResult>, Vec<&TestResult>) =
        report.outcome.tests.iter().partition(|test| test.verdict != Verdict::Noise);
    let shown: Vec<&TestResult> =
        loud.iter().take(ROWS_MAX).chain(quiet.iter().take(quiet_max)).copied().collect();
    const HEADS: [&str; 8] =
        ["test", "better", "baseline", "candidate", "change", "noise", "tells", "q"];
    let rows: Vec<[String; 8]> = shown.iter().map(|test| cells(test)).collect();
    let mut widths = HEADS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: [&str; 8], verdict: &str| {
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let _ = match index {
                0 | 1 => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(text, "{verdict}");
    };
    line(HEADS, "verdict");
    for (row, test) in rows.iter().zip(&shown) {
        let words = test.verdict.label_for(&test.unit);
        let verdict = match &test.why {
            Some(why) => format!("{words} ({why})"),
            None => words.to_owned(),
        };
        line(row.each_ref().map(String::as_str), &verdict);
    }
    let hidden = report.outcome.tests.len() - shown.len();
    if hidden > 0 {
        let _ = writeln!(text, "and {hidden} more within their noise (--all shows them)");
    }
    text.push('\n');
    for line in summary(report) {
        let _ = writeln!(text, "{line}");
    }
    for note in &report.outcome.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(text, "judged: {}", how(report));
    text
}

fn cells(test: &TestResult) -> [String; 8] {
    let name = clean(&test.name);
    let count = name.chars().count();
    let name = if count > NAME_CHARS_MAX {
        let tail: String = name.chars().skip(count - NAME_CHARS_MAX + 3).collect();
        format!("...{tail}")
    } else {
        name
    };
    let of = |mean: Option<f64>| mean.map_or_else(|| "-".into(), |mean| value(mean, &test.unit));
    let part = |part: Option<f64>| part.map_or_else(|| "-".into(), unsigned);
    [
        name,
        match test.better {
            Better::Less => "less".into(),
            Better::More => "more".into(),
        },
        of(test.baseline_mean),
        of(test.candidate_mean),
        change(test),
        part(test.noise),
        test.tells.map_or_else(|| "-".into(), tells),
        test.q.map_or_else(|| "-".into(), probability),
    ]
}
