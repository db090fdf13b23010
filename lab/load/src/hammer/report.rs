//! The table and the JSON.

use std::fmt::Write;

use accounting::format_size;
use cli::{Column, table_head, table_row};
use serde::Serialize;

use super::{
    modes::{ModeReport, ProbeExpectation},
    options::Parameters,
    stats::{Kind, KindStats, Phase, millis},
};
use crate::endpoints::{self, NodeSeen};

/// Everything of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this form.
    pub(crate) format: u32,
    pub(crate) machine: String,
    /// Seconds since 1970 when the run began.
    pub(crate) began_unix_seconds: u64,
    pub(crate) thimble_lab: &'static str,
    pub(crate) client: &'static str,
    /// The node's own word for its version.
    pub(crate) node: String,
    pub(crate) parameters: Parameters,
    pub(crate) canisters: Vec<String>,
    pub(crate) modes: Vec<ModeReport>,
    /// The nodes behind the endpoints, when there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<Vec<NodeSeen>>,
    pub(crate) interrupted: bool,
    pub(crate) verification_failures: u64,
    pub(crate) probes_unmet: u64,
    pub(crate) errors: u64,
    pub(crate) exit_code: u8,
}

impl Report {
    /// Sums up and decides the exit code.
    pub(crate) fn finish(&mut self) {
        self.verification_failures = self.modes.iter().map(ModeReport::wrong).sum();
        self.probes_unmet = self.modes.iter().map(ModeReport::unmet).sum();
        self.errors = self.modes.iter().map(ModeReport::errors).sum();
        let failed = self.verification_failures > 0
            || self.probes_unmet > 0
            || (self.parameters.strict && self.errors > 0);
        self.exit_code = match (self.interrupted, failed) {
            (true, _) => 130,
            (false, true) => 1,
            (false, false) => 0,
        };
    }

    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let p = &self.parameters;
        let _ = writeln!(out, "machine: {}", self.machine);
        let loop_kind = match p.rate {
            Some(rate) => {
                format!("open loop, {rate} operations/s, at most {} in flight", p.outstanding)
            }
            None => format!("closed loop, {} in flight", p.concurrency),
        };
        let _ = writeln!(
            out,
            "node {}; {} canisters; {loop_kind}; seed {}; thimble-lab {}, {}",
            self.node, p.canister_count, p.seed, self.thimble_lab, self.client
        );
        for mode in &self.modes {
            mode_table(&mut out, mode);
        }
        if let Some(nodes) = &self.nodes {
            let _ = write!(out, "\n{}", endpoints::table(nodes));
        }
        let _ = writeln!(
            out,
            "\n{}: {} verification failures, {} errors{}",
            match self.exit_code {
                0 => "ok",
                130 => "stopped",
                _ => "FAILED",
            },
            self.verification_failures,
            self.errors,
            match self.probes_unmet {
                0 => String::new(),
                unmet => format!(", {unmet} probes not as expected"),
            }
        );
        out
    }
}

fn mode_table(out: &mut String, mode: &ModeReport) {
    let name = mode.mode.name();
    let _ = writeln!(out, "\n== {name}");
    for probe in &mode.probes {
        let outcome = match &probe.failure {
            None => format!("succeeded in {:.0} ms", probe.milliseconds),
            Some((class, text)) => format!("{class}: {text}"),
        };
        let verdict = match (probe.expected, probe.met) {
            (ProbeExpectation::Anything, _) => "     ",
            (_, true) => "ok   ",
            (_, false) => "UNMET",
        };
        let _ = writeln!(out, "{verdict} {}: {outcome}", probe.name);
    }
    let columns = columns();
    if !mode.phases.is_empty() {
        *out += &table_head(&columns);
    }
    for phase in &mode.phases {
        for (kind, stats) in &phase.kinds {
            *out += &table_row(&columns, &(phase, *kind, stats));
        }
    }
    if let Some(rate) = mode.inter_canister_messages_per_second {
        let _ = writeln!(out, "inter-canister messages: {rate:.0}/s");
    }
    for phase in &mode.phases {
        phase_texts(out, phase);
    }
    for text in &mode.counters.texts {
        let _ = writeln!(out, "WRONG: {text}");
    }
    if let Some(text) = &mode.incomplete {
        let _ = writeln!(out, "INCOMPLETE: {text}");
    }
}

/// A phase and what it counted of one kind of operation.
type Row<'a> = (&'a Phase, Kind, &'a KindStats);

fn per_second((phase, ..): &Row<'_>, count: f64) -> f64 {
    if phase.seconds > 0.0 { count / phase.seconds } else { 0.0 }
}

fn columns<'a>() -> [Column<Row<'a>>; 17] {
    [
        ("phase", -14, |row| row.0.name.clone()),
        ("operation", -19, |row| row.1.name().into()),
        ("seconds", 9, |row| format!("{:.3}", row.0.seconds)),
        ("done", 8, |row| row.2.done.to_string()),
        ("per s", 10, |row| format!("{:.1}", per_second(row, row.2.done as f64))),
        ("p50 ms", 10, |row| format!("{:.1}", millis(&row.2.latency, 0.5))),
        ("p90 ms", 10, |row| format!("{:.1}", millis(&row.2.latency, 0.9))),
        ("p99 ms", 10, |row| format!("{:.1}", millis(&row.2.latency, 0.99))),
        ("p99.9 ms", 10, |row| format!("{:.1}", millis(&row.2.latency, 0.999))),
        ("max ms", 10, |row| format!("{:.1}", millis(&row.2.latency, 1.0))),
        ("sent", 12, |row| format_size(row.2.sent_bytes)),
        ("received", 12, |row| format_size(row.2.received_bytes)),
        ("touched", 12, |row| format_size(row.2.touched_bytes)),
        ("MiB/s", 10, |row| {
            format!("{:.1}", per_second(row, row.2.touched_bytes as f64 / 1048576.0))
        }),
        ("errors", 8, |row| row.2.errors.total().to_string()),
        ("refused", 8, |row| (row.2.refusals.total() + row.2.polls_refused).to_string()),
        ("wrong", 6, |row| row.2.verification_failures.count.to_string()),
    ]
}

fn phase_texts(out: &mut String, phase: &Phase) {
    let name = &phase.name;
    for (kind, stats) in &phase.kinds {
        let kind = kind.name();
        for (class, counted) in stats.errors.0.iter().chain(&stats.refusals.0) {
            let (count, text) = (counted.count, &counted.text);
            let _ = writeln!(out, "{name} / {kind}: {count} x {class}: {text}");
        }
        for (count, what) in [
            (stats.polls_refused, "polls were refused and repeated"),
            (stats.given_up, "operations were refused to the end of the phase"),
        ] {
            if count > 0 {
                let _ = writeln!(out, "{name} / {kind}: {count} {what}");
            }
        }
        for text in &stats.verification_failures.texts {
            let _ = writeln!(out, "WRONG: {name} / {kind}: {text}");
        }
    }
    if phase.not_started > 0 {
        let count = phase.not_started;
        let what = "operations found no room at their time and were not started";
        let _ = writeln!(out, "{name}: {count} {what}");
    }
    if let Some(cost) = &phase.cost
        && let Some([micros, user, system]) = cost.micros_per(phase.done() as f64)
    {
        let blocks = cost.blocks.map_or(String::new(), |blocks| format!(", in {blocks} blocks"));
        let _ = writeln!(
            out,
            "{name}: CPU of the nodes per operation {micros:.0} us (user {user:.0}, system \
             {system:.0}){blocks}"
        );
    }
    if phase.interrupted {
        let what = "stopped with operations in flight, whose outcome is unknown";
        let _ = writeln!(out, "{name}: {what}");
    }
}
