//! Report of alternating turns, for people and machines.

use std::fmt::Write;

use serde::Serialize;

use super::{
    Metric, Options, PairedRun, PairedRuns, analysis::POWER, analysis::TURNS_MIN, machine,
};
use crate::{
    figure::Better,
    report::{clean, or_dash, percent, probability, table, value},
    verdict::Verdict,
};

/// Version of the JSON.
const FORMAT: u32 = 1;

#[derive(Serialize)]
pub(crate) struct Report {
    format: u32,
    machine: String,
    baseline: String,
    candidate: String,
    /// Turns that count.
    turns: usize,
    /// In which the machine was busy with something else.
    dropped: usize,
    interrupted: bool,
    ended: Option<String>,
    /// The change whose turns are counted.
    tell: f64,
    /// One entry for each figure that was compared.
    pub(crate) metrics: Vec<Metric>,
    /// Values of every turn, dropped ones too.
    values: Vec<Values>,
}

#[derive(Serialize)]
struct Values {
    candidate_first: bool,
    counts: bool,
    /// Share of the processors that others took, in the baseline's run and in the candidate's.
    others: [f64; 2],
    pressure: [Option<f64>; 2],
    /// In the order of the metrics.
    baseline: Vec<Option<f64>>,
    candidate: Vec<Option<f64>>,
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        commands: &[String; 2],
        measured: &PairedRuns,
        kept: &[&PairedRun],
        dropped: usize,
        metrics: Vec<Metric>,
    ) -> Self {
        let values = measured.turns.iter().map(|turn| Values {
            candidate_first: turn.candidate_first,
            counts: kept.iter().any(|one| std::ptr::eq(*one, turn)),
            others: turn.busy.map(|busy| busy.others),
            pressure: turn.busy.map(|busy| busy.pressure),
            baseline: metrics
                .iter()
                .map(|metric| turn.baseline.get(&metric.key).copied())
                .collect(),
            candidate: metrics
                .iter()
                .map(|metric| turn.candidate.get(&metric.key).copied())
                .collect(),
        });
        let values = values.collect();
        let [baseline, candidate] = commands.clone();
        Self {
            format: FORMAT,
            machine: machine::describe(),
            baseline,
            candidate,
            turns: kept.len(),
            dropped,
            interrupted: measured.interrupted,
            ended: measured.ended.clone(),
            tell: options.tell.unwrap_or(0.05),
            metrics,
            values,
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "\nmachine: {}\nbaseline: {}\ncandidate: {}\n{} turns count, {} were dropped\n\n",
            self.machine,
            clean(&self.baseline),
            clean(&self.candidate),
            self.turns,
            self.dropped
        );
        let heads = ["figure", "better", "baseline", "candidate", "change", "95 % between"];
        let row = |metric: &Metric| (cells(metric), self.verdict(metric));
        text.push_str(&table(heads, &self.metrics.iter().map(row).collect::<Vec<_>>()));
        text.push('\n');
        let tell = self.tell * 100.0;
        for metric in self.metrics.iter().take(2) {
            let Some(needed) = metric.turns_needed else { continue };
            let _ = match needed.saturating_sub(self.turns) {
                0 => writeln!(
                    text,
                    "{}: enough turns to detect a change of {tell} % (with {:.0} %)",
                    clean(&metric.name),
                    POWER * 100.0
                ),
                more => writeln!(
                    text,
                    "{}: {more} more turns would detect a change of {tell} % (with {:.0} %)",
                    clean(&metric.name),
                    POWER * 100.0
                ),
            };
        }
        if let Some(ended) = &self.ended {
            let _ = writeln!(text, "ended early: {ended}");
        }
        if self.interrupted {
            text.push_str("stopped before it was over\n");
        }
        text
    }

    fn verdict(&self, metric: &Metric) -> String {
        let words = metric.verdict.label_for(&metric.key.1);
        match (metric.verdict, metric.q) {
            (_, Some(q)) => format!("{words} (q {})", probability(q)),
            (Verdict::Unknown, None) if metric.change.is_none() => {
                format!("{words} (zero or negative values, or fewer than two turns)")
            }
            _ => format!("{words} ({TURNS_MIN} turns are needed, {} count)", self.turns),
        }
    }
}

fn cells(metric: &Metric) -> [String; 6] {
    let unit = &metric.key.1;
    [
        clean(&metric.name),
        if metric.better == Better::Less { "less".into() } else { "more".into() },
        value(metric.baseline_median, unit),
        value(metric.candidate_median, unit),
        or_dash(metric.change, percent),
        metric
            .between
            .map_or_else(|| "-".into(), |[a, b]| format!("{} and {}", percent(a), percent(b))),
    ]
}
