//! The series file: JSON lines, written during the run and read back as a stream.
//!
//! The first line is the header. Then samples and events come in the order in which they were
//! noticed; an event carries the time at which it happened, which may be one sample earlier. The
//! last line is the summary; a run that was killed has none, and its last line may be cut off. A
//! reader skips lines it does not understand, so that later versions may add kinds and fields.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::rotating::Rotating;

/// Version of the format, in the header.
pub const FORMAT: u32 = 1;
/// Longest line that is read; a sample with the most processes shown stays far below.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// One line of the file.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The command, the machine and the cap.
    Header(Header),
    /// Figures of the kernel at one moment.
    Sample(Sample),
    /// Something that happened.
    Event(Event),
    /// Result of the run.
    Summary(Summary),
}

/// The command, the machine and the cap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Header {
    /// Version of the format, [`FORMAT`].
    pub format: u32,
    /// Name of the run.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Processor, memory, kernel.
    pub machine: String,
    /// The cap on memory; 0 for none.
    pub cap_bytes: u64,
    /// The cap on swap.
    pub swap_bytes: u64,
    /// `v1`, `v2` or `systemd`.
    pub group: String,
    /// Scope of the memory pressure in samples: `group`, `machine` or `none`.
    pub pressure_of: String,
    /// Time between samples.
    pub interval_millis: u64,
    /// When the command was started, in UTC.
    pub started: String,
    /// The same on the machine's monotonic clock, so that series of several commands can be laid
    /// on one axis.
    #[serde(default)]
    pub started_monotonic_seconds: f64,
}

/// Figures of the kernel at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Sample {
    /// Since the start of the command.
    pub seconds: f64,
    /// Anonymous memory of the group: what the kernel cannot take back without swap. Shared memory
    /// is not in it.
    pub anonymous_bytes: u64,
    /// Page cache of the group, shared memory included.
    pub file_bytes: u64,
    /// The part of `file_bytes` that is shared memory and tmpfs, which cannot be dropped either.
    pub shared_bytes: u64,
    /// All that counts against the cap.
    pub charged_bytes: u64,
    /// The kernel's own memory for the group, where it reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernel_bytes: Option<u64>,
    /// Swap used, where it is counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub swap_bytes: Option<u64>,
    /// Share of the last 10 s in which at least one task waited for memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pressure_some_percent: Option<f64>,
    /// Share of the last 10 s in which all tasks waited for memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pressure_full_percent: Option<f64>,
    /// CPU time so far.
    pub cpu_seconds: f64,
    /// Page faults so far that read from disk.
    pub major_faults: u64,
    /// Processes killed for lack of memory so far.
    pub oom_kills: u64,
    /// Load average of the machine over a minute.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load: Option<f64>,
    /// The processes, largest first.
    pub processes: Vec<ProcessSample>,
    /// Processes that are there but not listed, because there are too many.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub processes_not_listed: usize,
}

/// One process at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct ProcessSample {
    /// Id of the process.
    pub pid: u32,
    /// Its program and subcommand.
    pub role: String,
    /// Anonymous and shared memory.
    pub anonymous_bytes: u64,
    /// File pages it maps; those that several processes map count in each.
    pub file_bytes: u64,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Event {
    /// When, since the start of the command.
    pub seconds: f64,
    /// Kind of the event.
    pub what: What,
    /// Description of the event.
    pub text: String,
    /// The process concerned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
}

/// Kinds of events, the more important ones first: where a picture has no room for all, the later
/// ones have no label.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The kernel killed for lack of memory.
    OomKill,
    /// The command ended.
    Exit,
    /// A line that was appended to the mark file.
    Mark,
    /// A process takes the place of one of the same role that died.
    Restart,
    /// This program received a signal.
    Signal,
    /// The command was started.
    Start,
    /// A process ended.
    ProcessDied,
    /// A process is there.
    ProcessStarted,
}

/// Restarts of one role.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Restarts {
    /// Program and subcommand.
    pub role: String,
    /// How often one took the place of another.
    pub count: u64,
}

/// Result of the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// How long the command ran.
    pub seconds: f64,
    /// Exit status of this program.
    pub exit_status: u8,
    /// Description of how the command ended.
    pub ended: String,
    /// Most anonymous memory in any sample.
    pub anonymous_peak_bytes: u64,
    /// When that was.
    pub anonymous_peak_seconds: f64,
    /// Anonymous memory in the last sample in which the command was alive.
    pub anonymous_last_bytes: u64,
    /// Most page cache in any sample.
    pub file_peak_bytes: u64,
    /// Most shared memory in any sample.
    pub shared_peak_bytes: u64,
    /// Most that was ever charged: as the kernel keeps it, between samples too, where it does;
    /// else of the samples.
    pub charged_peak_bytes: u64,
    /// Processes killed for lack of memory.
    pub oom_kills: u64,
    /// Restarts of each role.
    pub restarts: Vec<Restarts>,
    /// Worst share of 10 s in which at least one task waited for memory.
    pub pressure_some_percent_max: Option<f64>,
    /// Worst share of 10 s in which all tasks waited for memory.
    pub pressure_full_percent_max: Option<f64>,
    /// Total time in which at least one task waited for memory.
    pub stalled_some_seconds: Option<f64>,
    /// CPU time in seconds, as of the last sample.
    pub cpu_seconds: f64,
    /// Page faults that read from disk.
    pub major_faults: u64,
    /// How many samples were taken.
    pub samples: u64,
}

impl Summary {
    /// Adds a sample; `alive` is whether the command was.
    pub fn add(&mut self, sample: &Sample, alive: bool) {
        self.samples += 1;
        if sample.anonymous_bytes > self.anonymous_peak_bytes {
            self.anonymous_peak_bytes = sample.anonymous_bytes;
            self.anonymous_peak_seconds = sample.seconds;
        }
        if alive {
            self.anonymous_last_bytes = sample.anonymous_bytes;
        }
        self.file_peak_bytes = self.file_peak_bytes.max(sample.file_bytes);
        self.shared_peak_bytes = self.shared_peak_bytes.max(sample.shared_bytes);
        self.charged_peak_bytes = self.charged_peak_bytes.max(sample.charged_bytes);
        self.oom_kills = sample.oom_kills;
        self.cpu_seconds = sample.cpu_seconds;
        self.major_faults = sample.major_faults;
        for (worst, now) in [
            (&mut self.pressure_some_percent_max, sample.pressure_some_percent),
            (&mut self.pressure_full_percent_max, sample.pressure_full_percent),
        ] {
            *worst = (*worst).into_iter().chain(now).reduce(f64::max);
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Writes the file, line by line.
pub struct Writer {
    file: Rotating,
    /// First line of every file, also after a rotation.
    header: Option<Vec<u8>>,
}

impl Writer {
    /// Begins the file. With `bytes_max`, what is older than about that many bytes is forgotten.
    pub fn create(path: &Path, bytes_max: Option<u64>) -> io::Result<Self> {
        Ok(Self { file: Rotating::create(path, bytes_max.unwrap_or(u64::MAX))?, header: None })
    }

    /// A line is on its way to the disk when this returns: others read the file while it grows.
    pub fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        if let Line::Header(_) = line {
            self.header = Some(bytes.clone());
        }
        if self.file.is_full_with(bytes.len()) {
            self.file.begin_anew()?;
            if let Some(header) = &self.header {
                self.file.write(header)?;
            }
        }
        self.file.write(&bytes)
    }

    /// The newer half, when there are two.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Calls `see` with every line of the file that can be understood.
pub fn read(path: &Path, mut see: impl FnMut(Line)) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        if let Ok(line) = serde_json::from_slice(&line) {
            see(line);
        }
    }
}

/// The lines at the end of a file that still grows, as many as fit into `bytes`.
pub fn read_tail(path: &Path, bytes: u64) -> io::Result<Vec<Line>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    // The first line may be a part of one, and is then no JSON; the last may still be written.
    Ok(tail
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_the_rest_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("series.jsonl");
        let lines = [
            Line::Header(Header { format: FORMAT, cap_bytes: 7, ..Header::default() }),
            Line::Sample(Sample { seconds: 0.25, kernel_bytes: Some(1), ..Sample::default() }),
            Line::Event(Event {
                seconds: 0.5,
                what: What::OomKill,
                text: "x".into(),
                pid: Some(3),
            }),
            Line::Summary(Summary { exit_status: 137, ..Summary::default() }),
        ];
        let mut writer = Writer::create(&path, None).unwrap();
        for line in &lines {
            writer.write(line).unwrap();
        }
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"kind\":\"later\",\"x\":1}\n\n{\"kind\":\"sample\",\"seco").unwrap();
        let mut seen = Vec::new();
        read(&path, |line| seen.push(line)).unwrap();
        assert_eq!(seen, lines);
        assert_eq!(read_tail(&path, 1 << 20).unwrap(), lines);
        let tail = read_tail(&path, 600).unwrap();
        assert!(tail.len() < lines.len() && tail.last() == lines.last(), "{tail:?}");
    }

    #[test]
    fn a_bounded_series_keeps_its_newest_part_and_its_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("series.jsonl");
        let mut writer = Writer::create(&path, Some(64 << 10)).unwrap();
        let header = Line::Header(Header { name: "long".into(), ..Header::default() });
        writer.write(&header).unwrap();
        for index in 0..2000 {
            writer
                .write(&Line::Sample(Sample { seconds: f64::from(index), ..Sample::default() }))
                .unwrap();
        }
        for file in [path.clone(), folder.path().join("series.jsonl.1")] {
            assert!(std::fs::metadata(&file).unwrap().len() <= 32 << 10);
            let mut seen = Vec::new();
            read(&file, |line| seen.push(line)).unwrap();
            assert_eq!(seen.first(), Some(&header));
        }
        let newest = read_tail(&path, 4096).unwrap();
        assert!(matches!(newest.last(), Some(Line::Sample(sample)) if sample.seconds == 1999.0));
    }
}
