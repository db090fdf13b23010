//! Markdown for a pull request: what changed in a table, the rest folded away.

use std::fmt::Write;

use super::{Report, cells, clean, how, summary};
use crate::{
    figure::shortened,
    verdict::{TestResult, Verdict},
};

/// Rows of the folded table; a comment has a limit too.
const ROWS_MAX: usize = 200;
/// Bytes that are shown of the name of a test.
const NAME_BYTES_MAX: usize = 120;

/// The whole comment.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = String::from("### Comparison with earlier runs\n\n");
    for line in summary(report) {
        let _ = writeln!(text, "- {line}");
    }
    let (loud, quiet): (Vec<&TestResult>, Vec<&TestResult>) =
        report.outcome.tests.iter().partition(|test| test.verdict != Verdict::Noise);
    if !loud.is_empty() {
        text.push('\n');
        table(&mut text, &loud);
    }
    if !quiet.is_empty() {
        let _ =
            writeln!(text, "\n<details><summary>{} within their noise</summary>\n", quiet.len());
        table(&mut text, &quiet);
        text.push_str("\n</details>\n");
    }
    let _ = writeln!(text, "\n<sub>Judged {}.</sub>", how(report));
    for note in &report.outcome.notes {
        let _ = writeln!(text, "\n<sub>Note: {note}.</sub>");
    }
    text
}

fn table(text: &mut String, tests: &[&TestResult]) {
    text.push_str("| verdict | test | baseline | candidate | change | noise | q |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---:|\n");
    for test in tests.iter().take(ROWS_MAX) {
        let [_, baseline, candidate, change, noise, _, q] = cells(test).map(|cell| plain(&cell));
        let _ = writeln!(
            text,
            "| {} | {} | {baseline} | {candidate} | {change} | {noise} | {q} |",
            test.verdict.label_for(&test.unit),
            code(&shortened(&test.name, NAME_BYTES_MAX)),
        );
    }
    if tests.len() > ROWS_MAX {
        let _ = writeln!(text, "\nand {} more", tests.len() - ROWS_MAX);
    }
}

/// As code, which nothing in it can leave.
fn code(name: &str) -> String {
    let name: String = clean(name).chars().map(|c| if c == '`' { '\'' } else { c }).collect();
    format!("`{}`", name.replace('|', "\\|"))
}

/// Units are of others too.
fn plain(text: &str) -> String {
    let is_markup =
        |c: char| matches!(c, '|' | '<' | '>' | '`' | '@' | '#' | '[' | ']' | '*' | '_' | '&');
    text.chars().map(|c| if is_markup(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_cell() {
        assert_eq!(code("a`|b @all <img>"), "`a'\\|b @all <img>`");
        assert_eq!(plain("1 @x|y"), "1  x y");
    }
}
