//! Conditions that a node must satisfy in a storm, and their check.

use std::fmt::Write;

use accounting::{MIB, format_size};
use compare::figure::{Better, Figure};
use serde::Serialize;

use memory_cap::{mib, series::Summary};

/// Most anonymous memory of a node with 512 MiB in a hybrid storm.
const HYBRID_PEAK_BYTES_MAX: u64 = 170 * MIB;
/// How much anonymous memory may stay after a storm above what it was before.
const KEPT_BYTES_MAX: u64 = 16 * MIB;
/// Anonymous memory that no pool of the node's ledger holds in a storm, in percent of the budget.
const UNACCOUNTED_STORM_PERCENT_MAX: u64 = 5;
/// The same of small budgets: what their sheet sets aside for the node's process, which does not
/// shrink with them.
const UNACCOUNTED_STORM_BYTES_MIN: u64 = 12 * MIB;
/// Samples of it that a storm must have given for the largest to mean something.
const UNACCOUNTED_SAMPLES_MIN: usize = 10;
/// A process of this role lives for one module and is expected to be restarted.
const COMPILER: &str = "sandbox-compile";

pub(crate) struct Hammer {
    pub(crate) status: String,
    pub(crate) success: bool,
    /// Its JSON, if it wrote any.
    pub(crate) report: Option<serde_json::Value>,
}

/// All that is judged.
pub(crate) struct Findings {
    pub(crate) memory_bytes: u64,
    pub(crate) mode: String,
    pub(crate) cool_down_seconds: u64,
    pub(crate) group: String,
    pub(crate) idle_bytes: u64,
    pub(crate) after_bytes: u64,
    /// Anonymous memory that no pool of the ledger held before the storm, if the node reported it.
    pub(crate) unaccounted_idle_bytes: Option<i64>,
    /// The same, sampled while the hammer worked.
    pub(crate) unaccounted_bytes: Vec<i64>,
    pub(crate) hammer: Hammer,
    /// The text of `/metrics` before the stop.
    pub(crate) metrics: String,
    pub(crate) summary: Summary,
}

/// One line of the verdict.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) goal: String,
    /// `None` without a goal.
    pub(crate) met: Option<bool>,
    /// The figures that can be compared with another run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) figures: Vec<Figure>,
}

impl Row {
    /// The goal, and whether it is met.
    pub(crate) fn goal(&mut self, goal: impl Into<String>, met: bool) -> &mut Self {
        (self.goal, self.met) = (goal.into(), Some(met));
        self
    }

    /// Adds a figure that `thimble-lab compare` reads.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str) -> &mut Self {
        self.figures.push(Figure::new(name, value, unit));
        self
    }
}

/// A table of figures and their goals, while it is made.
#[derive(Default)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// Adds a row without a goal.
    pub(crate) fn add(&mut self, what: &str, measured: impl Into<String>) -> &mut Row {
        let (what, measured) = (what.to_owned(), measured.into());
        self.0.push(Row { what, measured, goal: String::new(), met: None, figures: vec![] });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }
}

/// Compares what was measured with the goals, one row for each figure.
pub(crate) fn evaluate(findings: &Findings) -> Vec<Row> {
    let mut rows = Rows::default();
    survival(&mut rows, findings);
    work(&mut rows, findings);
    memory(&mut rows, findings);
    unaccounted_memory(&mut rows, findings);
    rounds(&mut rows, findings);
    let ended = &findings.summary.ended;
    let last = rows.add("the node's end after SIGTERM", ended).goal("exit 0", ended == "exit 0");
    add_figures(findings, last);
    rows.0
}

/// No process was killed or restarted.
fn survival(rows: &mut Rows, findings: &Findings) {
    let summary = &findings.summary;
    rows.add("OOM kills", summary.oom_kills.to_string()).goal("0", summary.oom_kills == 0);
    let restarts = metric(&findings.metrics, "thimble_worker_restarts_total");
    rows.add("worker restarts (the node's word)", metric_text(restarts, 0))
        .goal("0", restarts.is_some_and(|restarts| restarts < 0.5));
    let restarted: Vec<String> = summary
        .restarts
        .iter()
        .filter(|restarts| !restarts.role.contains(COMPILER))
        .map(|restarts| format!("{} {}", restarts.role, restarts.count))
        .collect();
    let none = restarted.is_empty();
    let said = if none { "0".into() } else { restarted.join(", ") };
    rows.add("process restarts (seen from outside)", said).goal("0", none);
}

/// What the hammer did, and found right.
fn work(rows: &mut Rows, findings: &Findings) {
    let hammer = &findings.hammer;
    rows.add("hammer", &hammer.status).goal("exit status: 0", hammer.success);
    let report = hammer.report.as_ref();
    let wrong = report.and_then(|report| report.get("verification_failures")?.as_u64());
    let said = wrong.map_or_else(|| "no report".to_owned(), |wrong| wrong.to_string());
    rows.add("verification failures", said).goal("0", wrong == Some(0));
    let done = report.map_or(0, operations);
    // A storm in which nothing was done proves nothing.
    rows.add("operations done", done.to_string()).goal("some", done > 0);
    if let Some(errors) = report.and_then(|report| report.get("errors")?.as_u64()) {
        rows.add("errors the hammer was answered with", errors.to_string());
    }
}

fn memory(rows: &mut Rows, findings: &Findings) {
    let peak = findings.summary.anonymous_peak_bytes;
    let peak_max = match (findings.memory_bytes, findings.mode.as_str()) {
        (bytes, "hybrid") if bytes == 512 * MIB => HYBRID_PEAK_BYTES_MAX,
        (bytes, _) => bytes,
    };
    rows.add("anonymous memory, peak", mib(peak))
        .goal(format!("at most {}", format_size(peak_max)), peak <= peak_max);
    rows.add("anonymous memory, idle before", mib(findings.idle_bytes));
    let what = format!("anonymous memory, {} s after", findings.cool_down_seconds);
    let goal = format!("at most {} above idle", format_size(KEPT_BYTES_MAX));
    let met = findings.after_bytes <= findings.idle_bytes + KEPT_BYTES_MAX;
    rows.add(&what, mib(findings.after_bytes)).goal(goal, met);
}

fn unaccounted_memory(rows: &mut Rows, findings: &Findings) {
    let signed = |bytes: i64| format!("{:.1} MiB", bytes as f64 / MIB as f64);
    let idle = findings.unaccounted_idle_bytes;
    let said = idle.map_or_else(|| "not told".to_owned(), signed);
    rows.add("memory that no pool holds, idle before", said);
    let samples = &findings.unaccounted_bytes;
    let part = findings.memory_bytes / 100 * UNACCOUNTED_STORM_PERCENT_MAX;
    let most = part.max(UNACCOUNTED_STORM_BYTES_MIN);
    let peak = samples.iter().copied().max();
    let said = peak.map_or_else(
        || "not told".to_owned(),
        |peak| format!("{} in {} samples", signed(peak), samples.len()),
    );
    let enough = samples.len() >= UNACCOUNTED_SAMPLES_MIN;
    let goal = format!("at most {} ({UNACCOUNTED_STORM_PERCENT_MAX} % or 12 MiB)", mib(most));
    rows.add("memory that no pool holds, peak", said)
        .goal(goal, enough && peak.is_some_and(|peak| peak <= most as i64));
}

fn rounds(rows: &mut Rows, findings: &Findings) {
    let summary = &findings.summary;
    let charged = mib(summary.charged_peak_bytes);
    rows.add("charged memory, peak (page cache included)", charged);
    for (what, name, digits) in [
        ("longest stall of rounds, seconds", "thimble_longest_stall_seconds", 3),
        ("rounds skipped", "thimble_rounds_skipped_total", 0),
    ] {
        rows.add(what, metric_text(metric(&findings.metrics, name), digits));
    }
    let (some, full) = (summary.pressure_some_percent_max, summary.pressure_full_percent_max);
    if let (Some(some), Some(full)) = (some, full) {
        let said = format!("some {some:.1} %, full {full:.1} %");
        rows.add("memory pressure, worst 10 s", said);
    }
}

fn metric_text(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "not told".to_owned(), |value| format!("{value:.digits$}"))
}

/// Figures for comparing runs, on the last row.
fn add_figures(findings: &Findings, row: &mut Row) {
    let Findings { summary, mode, .. } = findings;
    let mut add = |name: &str, value: f64, unit: &str| {
        row.figure(&format!("storm {mode} > {name}"), value, unit);
    };
    add("anonymous memory, idle before", findings.idle_bytes as f64, "bytes");
    add("anonymous memory, peak", summary.anonymous_peak_bytes as f64, "bytes");
    add("anonymous memory, after", findings.after_bytes as f64, "bytes");
    add("charged memory, peak", summary.charged_peak_bytes as f64, "bytes");
    add("OOM kills", summary.oom_kills as f64, "kills");
    if let Some(peak) = findings.unaccounted_bytes.iter().max() {
        add("memory that no pool holds, peak", *peak as f64, "bytes");
    }
    if let Some(stall) = metric(&findings.metrics, "thimble_longest_stall_seconds") {
        add("longest stall of rounds", stall, "s");
    }
    let operations = findings.hammer.report.as_ref().map_or(0, operations);
    row.figures.push(Figure {
        better: Some(Better::More),
        ..Figure::new(&format!("storm {mode} > operations done"), operations as f64, "operations")
    });
}

/// A table for people. Columns are as wide as their content.
pub(crate) fn table(rows: &[Row]) -> String {
    let heads = ("what", "measured", "goal");
    let width = |of: fn(&Row) -> &str, head: &str, least: usize| {
        rows.iter().map(|row| of(row).chars().count()).chain([head.len(), least]).max().unwrap_or(0)
            + 2
    };
    let what = width(|row| &row.what, heads.0, 44);
    let measured = width(|row| &row.measured, heads.1, 26);
    let goal = width(|row| &row.goal, heads.2, 26);
    let mut text = format!("\n{:<what$}{:<measured$}{:<goal$}met\n", heads.0, heads.1, heads.2);
    for row in rows {
        let met = row.met.map_or("", |met| if met { "yes" } else { "NO" });
        let line =
            format!("{:<what$}{:<measured$}{:<goal$}{met}", row.what, row.measured, row.goal);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Anonymous memory that no pool of its ledger holds, as reported by the node.
pub(crate) fn unaccounted(metrics: &str) -> Option<i64> {
    metric(metrics, "thimble_memory_unaccounted_bytes").map(|bytes| bytes as i64)
}

/// The value of a metric without labels, or the sum over its labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with([' ', '{']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .reduce(|a, b| a + b)
}

/// Operations that the hammer counts as done, in all modes and phases.
fn operations(report: &serde_json::Value) -> u64 {
    match report {
        serde_json::Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match value.as_u64() {
                Some(count) if name == "done" => count,
                _ => operations(value),
            })
            .sum(),
        serde_json::Value::Array(values) => values.iter().map(operations).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_cap::series::Restarts;

    fn good() -> Findings {
        Findings {
            memory_bytes: 512 * MIB,
            mode: "hybrid".into(),
            cool_down_seconds: 60,
            group: "v1".into(),
            idle_bytes: 10 * MIB,
            after_bytes: 26 * MIB,
            unaccounted_idle_bytes: Some(8 * MIB as i64),
            unaccounted_bytes: [vec![(512 * MIB / 100 * 5) as i64], vec![-5; 9]].concat(),
            hammer: Hammer {
                status: "exit status: 0".into(),
                success: true,
                report: Some(serde_json::json!({
                    "verification_failures": 0, "errors": 2,
                    "modes": [{"phases": [{"kinds": {"query": {"done": 40}, "update": {"done": 2}}}]}],
                })),
            },
            metrics: "# TYPE x counter\nthimble_worker_restarts_total{kind=\"query\"} 0\nthimble_worker_restarts_total{kind=\"update\"} 0\n".into(),
            summary: Summary {
                ended: "exit 0".into(),
                anonymous_peak_bytes: 170 * MIB,
                restarts: vec![Restarts { role: "thimble sandbox-compile".into(), count: 9 }],
                ..Summary::default()
            },
        }
    }

    /// What is not met.
    fn failing(findings: &Findings) -> Vec<String> {
        evaluate(findings)
            .into_iter()
            .filter(|row| row.met == Some(false))
            .map(|row| row.what)
            .collect()
    }

    #[test]
    fn a_calm_storm_is_good_at_the_limit() {
        assert_eq!(failing(&good()), [""; 0]);
        assert!(
            evaluate(&good())
                .iter()
                .any(|row| row.what == "operations done" && row.measured == "42")
        );
    }

    #[test]
    fn each_fault_fails_its_own_line_and_no_other() {
        type Fault = (&'static str, fn(&mut Findings));
        let faults: [Fault; 12] = [
            ("OOM kills", |findings| findings.summary.oom_kills = 1),
            ("worker restarts (the node's word)", |findings| {
                findings.metrics = findings.metrics.replace("update\"} 0", "update\"} 1");
            }),
            ("worker restarts (the node's word)", |findings| findings.metrics.clear()),
            ("process restarts (seen from outside)", |findings| {
                findings
                    .summary
                    .restarts
                    .push(Restarts { role: "thimble sandbox-worker".into(), count: 1 });
            }),
            ("hammer", |findings| findings.hammer.success = false),
            ("verification failures", |findings| {
                findings.hammer.report =
                    Some(serde_json::json!({"verification_failures": 1, "done": 1}));
            }),
            ("operations done", |findings| {
                findings.hammer.report =
                    Some(serde_json::json!({"verification_failures": 0, "done": 0}));
            }),
            ("anonymous memory, peak", |findings| findings.summary.anonymous_peak_bytes += 1),
            ("anonymous memory, 60 s after", |findings| findings.after_bytes += 1),
            ("memory that no pool holds, peak", |findings| findings.unaccounted_bytes[0] += 1),
            ("memory that no pool holds, peak", |findings| findings.unaccounted_bytes.truncate(9)),
            ("the node's end after SIGTERM", |findings| {
                findings.summary.ended = "ended by SIGKILL".into()
            }),
        ];
        for (line, fault) in faults {
            let mut findings = good();
            fault(&mut findings);
            assert_eq!(failing(&findings), [line]);
        }
    }

    #[test]
    fn other_budgets_and_modes_are_held_to_their_budget() {
        let mut findings = good();
        findings.mode = "all".into();
        findings.summary.anonymous_peak_bytes = 512 * MIB;
        assert_eq!(failing(&findings), [""; 0]);
        findings.memory_bytes = 256 * MIB;
        assert_eq!(
            failing(&findings),
            ["anonymous memory, peak", "memory that no pool holds, peak"]
        );
    }

    #[test]
    fn a_metric_is_not_its_longer_sibling() {
        let text = "a_total_other 5\na_total 1.5\nb{x=\"1\"} 2\nb{x=\"2\"} 3\n";
        assert_eq!(metric(text, "a_total"), Some(1.5));
        assert_eq!(metric(text, "b"), Some(5.0));
        assert_eq!(metric(text, "c"), None);
        assert_eq!(unaccounted("thimble_memory_unaccounted_bytes -4096\n"), Some(-4096));
    }
}
