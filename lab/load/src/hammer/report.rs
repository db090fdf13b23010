//! The table and the JSON.

use std::fmt::Write;

use serde::Serialize;

use super::{
    modes::{ModeReport, ProbeExpectation},
    options::Parameters,
    stats::{Classes, Phase, QUANTILES, millis},
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

    /// For a person.
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
            if self.probes_unmet > 0 {
                format!(", {} probes not as expected", self.probes_unmet)
            } else {
                String::new()
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
    if !mode.phases.is_empty() {
        let _ = write!(
            out,
            "{:<14}{:<19}{:>9}{:>8}{:>10}",
            "phase", "operation", "seconds", "done", "per s"
        );
        for (quantile, _) in QUANTILES {
            let _ = write!(out, "{:>10}", format!("{quantile} ms"));
        }
        let _ = writeln!(
            out,
            "{:>12}{:>12}{:>12}{:>10}{:>8}{:>8}{:>6}",
            "sent", "received", "touched", "MiB/s", "errors", "refused", "wrong"
        );
    }
    for phase in &mode.phases {
        phase_rows(out, phase);
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

fn phase_rows(out: &mut String, phase: &Phase) {
    let size = budget::format_size;
    for (kind, stats) in &phase.kinds {
        let per_second = |count: f64| if phase.seconds > 0.0 { count / phase.seconds } else { 0.0 };
        let _ = write!(
            out,
            "{:<14}{:<19}{:>9.3}{:>8}{:>10.1}",
            phase.name,
            kind.name(),
            phase.seconds,
            stats.done,
            per_second(stats.done as f64)
        );
        for (_, quantile) in QUANTILES {
            let _ = write!(out, "{:>10.1}", millis(&stats.latency, quantile));
        }
        let _ = writeln!(
            out,
            "{:>12}{:>12}{:>12}{:>10.1}{:>8}{:>8}{:>6}",
            size(stats.sent_bytes),
            size(stats.received_bytes),
            size(stats.touched_bytes),
            per_second(stats.touched_bytes as f64 / 1048576.0),
            stats.errors.total(),
            stats.refusals.total() + stats.polls_refused,
            stats.verification_failures.count
        );
    }
}

fn phase_texts(out: &mut String, phase: &Phase) {
    for (kind, stats) in &phase.kinds {
        let mut lines = |classes: &Classes| {
            for (class, counted) in &classes.0 {
                let _ = writeln!(
                    out,
                    "{} / {}: {} x {class}: {}",
                    phase.name,
                    kind.name(),
                    counted.count,
                    counted.text
                );
            }
        };
        lines(&stats.errors);
        lines(&stats.refusals);
        if stats.polls_refused > 0 {
            let _ = writeln!(
                out,
                "{} / {}: {} polls were refused and repeated",
                phase.name,
                kind.name(),
                stats.polls_refused
            );
        }
        if stats.given_up > 0 {
            let _ = writeln!(
                out,
                "{} / {}: {} operations were refused to the end of the phase",
                phase.name,
                kind.name(),
                stats.given_up
            );
        }
        for text in &stats.verification_failures.texts {
            let _ = writeln!(out, "WRONG: {} / {}: {text}", phase.name, kind.name());
        }
    }
    if phase.not_started > 0 {
        let _ = writeln!(
            out,
            "{}: {} operations found no room at their time and were not started",
            phase.name, phase.not_started
        );
    }
    if phase.interrupted {
        let _ = writeln!(
            out,
            "{}: stopped with operations in flight, whose outcome is unknown",
            phase.name
        );
    }
}
