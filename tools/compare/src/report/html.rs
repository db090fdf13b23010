//! One page that needs nothing else: no network, no script.
//!
//! Bounds: [`ROWS_MAX`]. Must never know: how verdicts are computed.

use std::fmt::Write;

use super::{Report, cells, clean, how, picture, summary};
use crate::verdict::{TestResult, VERDICTS, Verdict};

/// Rows of the table.
const ROWS_MAX: usize = 5_000;

const STYLE: &str = include_str!("page.css");

/// Escapes text for elements and attributes.
pub(crate) fn escape(text: &str) -> String {
    svg::XmlEscaped(&clean(text)).to_string()
}

#[expect(clippy::too_many_lines, reason = "one page, from top to bottom")]
pub(crate) fn page(report: &Report) -> String {
    let outcome = &report.outcome;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Comparison</title>\n<style>\n{STYLE}</style></head><body><main>\n\
         <h1>Comparison with earlier runs</h1>\n"
    );
    html.push_str("<ul class=\"cards\">\n");
    for verdict in VERDICTS {
        let count = outcome.whole.count(verdict);
        if count > 0 {
            let _ = writeln!(
                html,
                "<li class=\"{}\"><b>{count}</b> {}</li>",
                picture::class(verdict),
                verdict.label()
            );
        }
    }
    html.push_str("</ul>\n<ul class=\"summary\">\n");
    for line in summary(report).iter().skip(1) {
        let _ = writeln!(html, "<li>{}</li>", escape(line));
    }
    html.push_str("</ul>\n");
    for note in &outcome.notes {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
    }
    let scatter = picture::scatter(&outcome.tests);
    if !scatter.is_empty() {
        let _ = writeln!(
            html,
            "<h2>Each test's change against its own spread</h2>\n<figure>{scatter}<figcaption>One point a \
             test. Shaded: one and three standard deviations of a single value. Point at one for its \
             name.</figcaption></figure>"
        );
    }
    let rows = picture::rows(&outcome.tests);
    if !rows.is_empty() {
        let any = outcome.tests.iter().any(|test| {
            matches!(test.verdict, Verdict::Slower | Verdict::Faster | Verdict::Outlier)
        });
        let head =
            if any { "Tests that stand out" } else { "Nothing stands out; the nearest to it" };
        let _ = writeln!(
            html,
            "<h2>{head}</h2>\n<figure>{rows}<figcaption>Strokes: baseline runs. Points: candidate runs. Shaded: \
             one standard deviation of a value. Relative to the mean of the baseline.</figcaption></figure>"
        );
    }
    table(&mut html, &outcome.tests);
    html.push_str(
        "<h2>Files</h2>\n<table class=\"files\"><thead><tr><th>side</th><th>file</th><th>read as</th>\
         <th>values</th><th>failed</th><th>skipped</th><th>no numbers</th></tr></thead><tbody>\n",
    );
    for (side, sources) in [("baseline", &report.baseline), ("candidate", &report.candidate)] {
        for source in sources {
            let _ = writeln!(
                html,
                "<tr><td>{side}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</\
                 td><td>{}</td></tr>",
                escape(&source.path),
                source.kind,
                source.values,
                source.failed,
                source.skipped,
                source.unusable
            );
        }
    }
    let _ = writeln!(
        html,
        "</tbody></table>\n<p class=\"how\">Judged {}.</p>\n</main></body></html>",
        how(report)
    );
    html
}

fn table(html: &mut String, tests: &[TestResult]) {
    html.push_str("<h2>All tests</h2>\n");
    for verdict in VERDICTS {
        let of: Vec<&TestResult> = tests.iter().filter(|test| test.verdict == verdict).collect();
        if of.is_empty() {
            continue;
        }
        let open = if verdict == Verdict::Noise { "" } else { " open" };
        let _ = writeln!(
            html,
            "<details{open}><summary class=\"{}\">{} {}</summary>\n<table><thead><tr><th>test</th>\
             <th title=\"which values are better\">better</th><th>baseline</th><th>candidate</th>\
             <th>change</th><th title=\"standard deviation of one value\">noise</th>\
             <th title=\"smallest change that would be called one\">tells</th>\
             <th title=\"probability by chance, corrected for the number of tests\">q</th><th></th></tr>\
             </thead><tbody>",
            picture::class(verdict),
            of.len(),
            verdict.label()
        );
        for test in of.iter().take(ROWS_MAX) {
            row(html, test);
        }
        html.push_str("</tbody></table>");
        if of.len() > ROWS_MAX {
            let _ = writeln!(html, "<p>and {} more</p>", of.len() - ROWS_MAX);
        }
        html.push_str("</details>\n");
    }
}

fn row(html: &mut String, test: &TestResult) {
    let [better, baseline, candidate, change, noise, tells, q] =
        cells(test).map(|cell| escape(&cell));
    let _ = writeln!(
        html,
        "<tr><td>{}</td><td>{better}</td><td>{baseline}</td><td>{candidate}</td>\
         <td class=\"change {}\">{change}</td><td>{noise}</td>\
         <td>{tells}</td><td>{q}</td><td>{}</td></tr>",
        escape(&test.name),
        picture::class(test.verdict),
        escape(test.why.as_deref().unwrap_or_default())
    );
}
