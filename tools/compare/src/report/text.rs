//! The table for a terminal.

use std::fmt::Write;

use super::{Report, cells, clean, how, summary, table};
use crate::verdict::{TestResult, Verdict};

/// Rows of tests within their noise that are shown without being asked for.
const QUIET_ROWS_MAX: usize = 30;
const ROWS_MAX: usize = 10_000;
/// Widest name; of a longer one the end is shown, which is more informative.
const NAME_CHARS_MAX: usize = 60;

/// The table and its summary. `all` shows every test within its noise too.
pub(crate) fn text(report: &Report, all: bool) -> String {
    let quiet_max = if all { ROWS_MAX } else { QUIET_ROWS_MAX };
    let (loud, quiet): (Vec<&TestResult>, Vec<&TestResult>) =
        report.outcome.tests.iter().partition(|test| test.verdict != Verdict::Noise);
    let shown: Vec<&TestResult> =
        loud.iter().take(ROWS_MAX).chain(quiet.iter().take(quiet_max)).copied().collect();
    let rows: Vec<_> = shown.iter().map(|test| row(test)).collect();
    let mut text =
        table(["test", "better", "baseline", "candidate", "change", "noise", "tells", "q"], &rows);
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

fn row(test: &TestResult) -> ([String; 8], String) {
    let name = clean(&test.name);
    let count = name.chars().count();
    let name = if count > NAME_CHARS_MAX {
        let tail: String = name.chars().skip(count - NAME_CHARS_MAX + 3).collect();
        format!("...{tail}")
    } else {
        name
    };
    let [better, baseline, candidate, change, noise, tells, q] = cells(test);
    let words = test.verdict.label_for(&test.unit);
    let verdict = match &test.why {
        Some(why) => format!("{words} ({why})"),
        None => words.to_owned(),
    };
    ([name, better, baseline, candidate, change, noise, tells, q], verdict)
}
