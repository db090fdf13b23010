//! Reports of a watch: as a line, as a summary, and as JSON.

use std::fmt::Write;

use accounting::{MIB, format_size};
use serde::Serialize;

use super::{findings::Finding, history::Sample};

/// `/status.json`. Its `samples` have the shape of a line of the `--json` file.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) pid: u32,
    /// Name of the program, and its first word.
    pub(crate) program: String,
    /// Runtime first, allocator behind.
    pub(crate) runtimes: Vec<&'static str>,
    /// The file that the collector's log is read from.
    pub(crate) log: Option<String>,
    /// Data that the watch could not get, and how to enable it.
    pub(crate) notes: Vec<String>,
    pub(crate) ended: bool,
    pub(crate) interval_millis: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) peak_seconds: f64,
    pub(crate) cap_bytes: Option<u64>,
    pub(crate) collector_percent: Option<f64>,
    pub(crate) pause_max_millis: f64,
    pub(crate) pause_millis: f64,
    /// Present and past problems, with the times when each was seen first and last.
    pub(crate) findings: Vec<FindingRecord>,
    pub(crate) samples: Vec<Sample>,
}

/// A finding, and when it held.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FindingRecord {
    #[serde(flatten)]
    pub(crate) finding: Finding,
    pub(crate) first_seconds: f64,
    pub(crate) last_seconds: f64,
    pub(crate) now: bool,
}

fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| (bytes / MIB).to_string())
}

/// For a file or a pipe.
pub(crate) fn line(sample: &Sample, longest_millis: f64, findings: &[&str]) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_size);
    let mut line = format!(
        "{:.1} s: live {}, allocated {}, anonymous {}, file {}, returned {}, CPU {:.0} %, \
         collections {} ({} major), longest pause {longest_millis:.1} ms",
        sample.seconds,
        size(sample.live_bytes),
        size(sample.allocated_bytes),
        format_size(sample.anonymous_bytes),
        format_size(sample.file_bytes),
        format_size(sample.returned_bytes),
        sample.cpu_percent,
        sample.collections,
        sample.collections_major,
    );
    if !findings.is_empty() {
        let _ = write!(line, "; {}", findings.join(", "));
    }
    line
}

/// For a terminal of 80 columns, in MiB.
pub(crate) fn short_line(sample: &Sample, longest_millis: f64, findings: usize) -> String {
    let mut line = format!(
        "{:.0}s MiB: live {} heap {} anon {} file {} back {} | cpu {:.0}% | gc {} max \
         {longest_millis:.0}ms",
        sample.seconds,
        mebibytes(sample.live_bytes),
        mebibytes(sample.allocated_bytes),
        mebibytes(Some(sample.anonymous_bytes)),
        mebibytes(Some(sample.file_bytes)),
        mebibytes(Some(sample.returned_bytes)),
        sample.cpu_percent,
        sample.collections,
    );
    if findings > 0 {
        let _ = write!(line, " | {findings} !");
    }
    line.chars().take(79).collect()
}

/// The summary printed at the end.
pub(crate) fn summary(report: &Report) -> String {
    let mut text = String::new();
    let last = report.samples.last().cloned().unwrap_or_default();
    let mut say = |line: String| text.push_str(&(line + "\n"));
    say(format!(
        "{} (pid {}), {}, watched for {:.1} s{}",
        report.program,
        report.pid,
        if report.runtimes.is_empty() {
            "runtime unknown".to_owned()
        } else {
            report.runtimes.join(" on ")
        },
        last.seconds,
        if report.ended { "; it has ended" } else { "" }
    ));
    say(format!(
        "memory: peak {} at {:.0} s, at the end {} anonymous and {} of files; {} returned since \
         the peak",
        format_size(report.peak_bytes),
        report.peak_seconds,
        format_size(last.anonymous_bytes),
        format_size(last.file_bytes),
        format_size(last.returned_bytes)
    ));
    match (&report.log, last.collections) {
        (None, _) => {}
        (Some(log), 0) => say(format!("collections: none in the log {log}")),
        (Some(_), _) => say(format!(
            "collections: {} ({} major), {:.1} ms of pauses during the watch, the longest {:.1} ms{}; live {}",
            last.collections,
            last.collections_major,
            report.pause_millis,
            report.pause_max_millis,
            report
                .collector_percent
                .map(|share| format!(", {share:.0} % of the CPU time lately"))
                .unwrap_or_default(),
            last.live_bytes.map_or("not told".to_owned(), format_size)
        )),
    }
    for note in &report.notes {
        say(format!("note: {note}"));
    }
    if report.findings.is_empty() {
        say("findings: none".to_owned());
    }
    for seen in &report.findings {
        let when = match seen.now {
            true => format!("since {:.0} s", seen.first_seconds),
            false => format!("from {:.0} s to {:.0} s", seen.first_seconds, seen.last_seconds),
        };
        say(format!("finding {} ({when}): {}", seen.finding.name, seen.finding.text));
        for knob in &seen.finding.knobs {
            say(format!("    try {}: {}", knob.setting, knob.why));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_a_terminal_whatever_it_says() {
        let most = Sample {
            seconds: 1e9,
            live_bytes: Some(1 << 50),
            allocated_bytes: Some(1 << 50),
            anonymous_bytes: 1 << 50,
            collections: u64::MAX,
            ..Sample::default()
        };
        assert!(short_line(&most, 1e9, 10).chars().count() < 80);
        assert!(short_line(&Sample::default(), 0.0, 0).starts_with("0s MiB: live - heap -"));
        assert!(line(&Sample::default(), 0.0, &["swap"]).ends_with("; swap"));
    }
}
