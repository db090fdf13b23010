//! A machine's reports, turned into a series like that of a process group.
//!
//! The guest is not trusted: figures are bounded by the machine's memory, text by its length, and
//! the time of everything is ours. Counters restart with the kernel; the series continues them.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use guest::line;
use machines::console::harmless;

use memory_cap::{
    info, machine, round,
    series::{self, Event, Header, Line, ProcessSample, Restarts, Sample, Summary, What, Writer},
};

/// Letters of a text of the guest's.
const TEXT_CHARS_MAX: usize = 200;
/// A year of a hundred processors.
const SECONDS_MAX: f64 = 3e9;

/// Counters of the kernel since its start.
#[derive(Clone, Copy, Default)]
struct Counters {
    cpu_seconds: f64,
    major_faults: u64,
    oom_kills: u64,
}

pub(super) struct Report {
    writer: Option<Writer>,
    started: Instant,
    machine_bytes: u64,
    summary: Summary,
    /// Of kernels that were before this one.
    before: Counters,
    /// Of this one.
    now: Counters,
    pub(super) node_starts: u64,
    /// How often the machine was reset.
    pub(super) resets: u64,
    /// Since its node was last started.
    pub(super) resets_without_node: u64,
    /// The guest's last word.
    pub(super) ended: Option<line::EndReport>,
}

impl Report {
    pub(super) fn begin(path: &Path, bytes_max: u64, header: Header) -> Result<Self> {
        let writer = Writer::create(path, Some(bytes_max))
            .with_context(|| format!("making the series file {}", path.display()))?;
        let mut report = Self {
            writer: Some(writer),
            started: Instant::now(),
            machine_bytes: header.cap_bytes,
            summary: Summary::default(),
            before: Counters::default(),
            now: Counters::default(),
            node_starts: 0,
            resets: 0,
            resets_without_node: 0,
            ended: None,
        };
        let name = header.name.clone();
        report.write(&Line::Header(header));
        report.event(What::Start, format!("start of {name}"));
        Ok(report)
    }

    /// Whether the machine's node runs, per its reports.
    pub(super) fn has_node(&self) -> bool {
        self.node_starts > 0 && self.resets_without_node == 0 && self.ended.is_none()
    }

    /// One line of the guest's.
    pub(super) fn line(&mut self, bytes: &[u8]) {
        match line::parse(bytes) {
            Some(line::Line::Started(started)) => {
                let again = self.node_starts > 0;
                let text = format!(
                    "the node {} with {} of {} bytes",
                    if again { "again" } else { "is started" },
                    started.budget_bytes,
                    self.machine_bytes
                );
                self.node_starts += 1;
                (self.resets_without_node, self.ended) = (0, None);
                self.event(if again { What::Restart } else { What::ProcessStarted }, text);
            }
            Some(line::Line::Sample(sample)) => self.sample(sample),
            Some(line::Line::Ended(ended)) => {
                let ended =
                    line::EndReport { how: text(&ended.how), then: text(&ended.then), ..ended };
                self.event(What::ProcessDied, format!("the node ended: {}", ended.how));
                self.ended = Some(ended);
            }
            None => {}
        }
    }

    /// The machine was reset: by its kernel, after a panic or on purpose.
    pub(super) fn reset(&mut self) {
        self.resets += 1;
        self.resets_without_node += 1;
        self.before = self.counted();
        self.now = Counters::default();
        self.event(What::Restart, format!("the machine again, reset {}", self.resets));
    }

    fn counted(&self) -> Counters {
        Counters {
            cpu_seconds: self.before.cpu_seconds + self.now.cpu_seconds,
            major_faults: self.before.major_faults.saturating_add(self.now.major_faults),
            oom_kills: self.before.oom_kills.saturating_add(self.now.oom_kills),
        }
    }

    fn sample(&mut self, said: line::Sample) {
        let most = self.machine_bytes;
        let bytes = |bytes: u64| bytes.min(most);
        let percent = |share: f64| if share.is_finite() { share.clamp(0.0, 100.0) } else { 0.0 };
        let shared_bytes = bytes(said.shared_bytes);
        // Here shared memory counts as a file's, as control groups count it.
        let anonymous_bytes = bytes(said.anonymous_bytes).saturating_sub(shared_bytes);
        let file_bytes = bytes(bytes(said.file_bytes) + shared_bytes);
        let kernel_bytes = bytes(said.kernel_bytes);
        let kills_before = self.counted().oom_kills;
        let cpu = if said.cpu_seconds.is_finite() {
            said.cpu_seconds.clamp(0.0, SECONDS_MAX)
        } else {
            0.0
        };
        self.now = Counters {
            cpu_seconds: cpu,
            major_faults: said.major_faults,
            oom_kills: said.oom_kills,
        };
        let counted = self.counted();
        if counted.oom_kills > kills_before {
            self.event(What::OomKill, "OOM kill in the machine".to_owned());
        }
        let process = |process: &line::Process| ProcessSample {
            pid: process.pid,
            role: text(&process.role),
            anonymous_bytes: bytes(process.anonymous_bytes),
            file_bytes: bytes(process.file_bytes),
        };
        let processes: Vec<ProcessSample> =
            said.processes.iter().take(line::PROCESSES_MAX).map(process).collect();
        let sample = Sample {
            seconds: self.seconds(),
            anonymous_bytes,
            file_bytes,
            shared_bytes,
            charged_bytes: bytes(
                anonymous_bytes.saturating_add(file_bytes).saturating_add(kernel_bytes),
            ),
            kernel_bytes: Some(kernel_bytes),
            swap_bytes: None,
            pressure_some_percent: said.pressure_some_percent.map(percent),
            pressure_full_percent: None,
            cpu_seconds: counted.cpu_seconds,
            major_faults: counted.major_faults,
            oom_kills: counted.oom_kills,
            load: machine::load(),
            processes_not_listed: said.processes.len().saturating_sub(processes.len()),
            processes,
        };
        self.summary.add(&sample, true);
        self.write(&Line::Sample(sample));
    }

    /// The end of the machine.
    pub(super) fn finish(mut self, how: String, exit_status: u8) -> info::CapExit {
        self.event(What::Exit, how.clone());
        let mut summary = std::mem::take(&mut self.summary);
        summary.seconds = self.seconds();
        summary.ended = how;
        summary.exit_status = exit_status;
        let count = |role: &str, count: u64| Restarts { role: role.to_owned(), count };
        summary.restarts =
            [count("machine", self.resets), count("node", self.node_starts.saturating_sub(1))]
                .into_iter()
                .filter(|restarts| restarts.count > 0)
                .collect();
        let ended = info::CapExit::from_summary(&summary, 0);
        self.write(&Line::Summary(summary));
        ended
    }

    pub(super) fn event(&mut self, what: What, text: String) {
        self.write(&Line::Event(Event { seconds: self.seconds(), what, text, pid: None }));
    }

    fn seconds(&self) -> f64 {
        round(self.started.elapsed().as_secs_f64())
    }

    /// A series that cannot be written any more must not end the machine.
    fn write(&mut self, line: &Line) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.write(line)
        {
            eprintln!(
                "the series ends here, {} cannot be written: {error}",
                writer.path().display()
            );
            self.writer = None;
        }
    }
}

/// Of the guest's, for a file that people read.
fn text(said: &str) -> String {
    harmless(said.chars().take(TEXT_CHARS_MAX).collect::<String>().as_bytes())
}

/// How a machine is called in its series.
pub(super) fn header(
    name: String,
    command: Vec<String>,
    cap_bytes: u64,
    interval_millis: u64,
) -> Header {
    Header {
        format: series::FORMAT,
        name,
        command,
        machine: machine::describe(),
        cap_bytes,
        swap_bytes: 0,
        group: super::GROUP.to_owned(),
        pressure_of: super::GROUP.to_owned(),
        interval_millis,
        started: machine::now().0,
        started_monotonic_seconds: cli::monotonic().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use guest::line::{EndReport, Line as Said, StartReport};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn guest_reports_are_bounded_and_counters_continue_over_resets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("series.jsonl");
        let header = header("node 0".into(), vec![], 256 * MIB, 500);
        let mut report = Report::begin(&path, 1 << 20, header).unwrap();
        let say =
            |report: &mut Report, line: Said| report.line(&serde_json::to_vec(&line).unwrap());
        say(&mut report, Said::Started(StartReport { budget_bytes: 7, ..StartReport::default() }));
        assert!(report.has_node());
        let sample = line::Sample {
            anonymous_bytes: 30 * MIB,
            shared_bytes: 10 * MIB,
            file_bytes: 5 * MIB,
            cpu_seconds: 2.0,
            oom_kills: 1,
            ..line::Sample::default()
        };
        say(&mut report, Said::Sample(sample.clone()));
        report.reset();
        assert!(!report.has_node() && report.resets_without_node == 1);
        say(&mut report, Said::Started(StartReport::default()));
        say(&mut report, Said::Sample(sample));
        let role = "\u{1b}[2J".repeat(500);
        say(
            &mut report,
            Said::Sample(line::Sample {
                anonymous_bytes: u64::MAX,
                file_bytes: u64::MAX,
                shared_bytes: 0,
                cpu_seconds: 1e300,
                processes: vec![line::Process { role, ..line::Process::default() }; 2],
                ..line::Sample::default()
            }),
        );
        say(
            &mut report,
            Said::Ended(EndReport { how: "exit\n1".into(), was_asked: false, then: "x".into() }),
        );
        assert!(!report.has_node());
        report.line(b"no line at all");
        let ended = report.finish("exit 0".into(), 0);
        assert_eq!(ended.anonymous_peak_bytes, 256 * MIB);

        let mut samples = vec![];
        let mut events = vec![];
        series::read(&path, |line| match line {
            Line::Sample(sample) => samples.push(sample),
            Line::Event(event) => events.push((event.what, event.text)),
            _ => {}
        })
        .unwrap();
        assert_eq!((samples[0].anonymous_bytes, samples[0].file_bytes), (20 * MIB, 15 * MIB));
        assert_eq!((samples[1].cpu_seconds, samples[1].oom_kills), (4.0, 2));
        assert_eq!(samples[2].charged_bytes, 256 * MIB);
        assert!(samples[2].processes[0].role.chars().count() < 10 * TEXT_CHARS_MAX);
        assert!(!samples[2].processes[0].role.contains('\u{1b}'));
        let kinds: Vec<What> = events.iter().map(|(what, _)| *what).collect();
        let expected = [
            What::Start,
            What::ProcessStarted,
            What::OomKill,
            What::Restart,
            What::Restart,
            What::OomKill,
            What::ProcessDied,
            What::Exit,
        ];
        assert_eq!(kinds, expected);
        assert!(events[6].1.contains("exit\\n1"));
    }
}
