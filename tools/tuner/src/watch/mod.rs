//! `thimble-lab watch`: the memory of a running program, from outside: figures of the kernel about
//! the process and its descendants, and the log of its runtime's collector. Reports problems and
//! the settings to try.
//!
//! * `tree`: the process and its descendants; `process_settings`: its settings,
//!   and the path of its log; `tail`: following that log.
//! * `tally`: the figures so far; `history`: samples over any time; `findings`: the rules; `knobs`:
//!   their settings.
//! * `report`: lines, summary and JSON; `page`: the same in a browser.
//!
//! Bounds: everything held is bounded by constants of these modules, never by how long the watch
//! takes. It changes nothing in the process that it watches.

mod findings;
mod history;
mod knobs;
mod page;
mod process_settings;
mod report;
mod sink;
mod tail;
mod tally;
mod tree;

use std::{
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use accounting::{
    cgroup::Cgroup,
    process::{self, Pid},
};
use anyhow::{Result, bail};
use clap::Args;
use cli::StopSignals;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use self::{
    findings::{Facts, Finding},
    history::{History, Sample},
    page::SharedReport,
    process_settings::{LogLocation, ProcessSettings},
    report::{FindingRecord, Report},
    sink::Sink,
    tail::Tail,
    tally::Tally,
    tree::{Reader, Tree},
};
use crate::{
    gc::{self, Dialect},
    recognise::{self, Recognition},
};

/// The runtime is detected again after this number of samples, for a program that is started by a
/// script.
const LOOK_AGAIN_SAMPLES: u64 = 5;
/// Most processes of the tree whose runtime is looked for.
const LOOKED_AT_MAX: usize = 16;
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Default bound of a series file.
const JSON_BYTES_MAX: &str = "64MiB";
const JSON_BYTES_MIN: u64 = 64 << 10;

/// Command line of `thimble-lab watch`.
#[derive(Args)]
pub struct Options {
    /// The process to watch, with its descendants.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
    /// The collector's log. [default: the path from the settings of the process]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Whose log it is. [default: found by looking at the process]
    #[arg(long, value_parser = ["ghc", "go", "jvm", "node"])]
    runtime: Option<String>,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// End after this number of seconds. [default: when the process ends, or on Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    end: Option<Duration>,
    /// Write every sample to this file, one JSON object per line; - is standard output.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Most bytes of that file: when half of it is written, it is renamed to FILE.1 and a new one
    /// begins.
    #[arg(long, value_name = "SIZE", default_value = JSON_BYTES_MAX, value_parser = parse_kept)]
    json_size: u64,
    /// Where the page is served.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = setup::socket_address)]
    listen: SocketAddr,
    /// Serve no page.
    #[arg(long, conflicts_with = "listen")]
    no_page: bool,
    /// A pause longer than this is a finding, in milliseconds.
    #[arg(long, value_name = "MILLIS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pause_limit: u64,
    /// A collector that takes more than this of the program's CPU time is a finding, in per cent.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
    collector_limit: u64,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 1e8;
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if !(seconds > 0.0 && seconds <= MOST) {
        return Err(format!("{text} s is out of range; it may be up to {MOST} s"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_seconds(text)?;
    if interval < INTERVAL_MIN || interval > INTERVAL_MAX {
        return Err(format!("{text} s is out of range; it may be from 0.1 s to 60 s"));
    }
    Ok(interval)
}

fn parse_kept(text: &str) -> Result<u64, String> {
    let bytes = accounting::parse_size(text).map_err(|error| error.to_string())?;
    if bytes < JSON_BYTES_MIN {
        return Err(format!(
            "{text} is too little; the least is {}",
            accounting::format_size(JSON_BYTES_MIN)
        ));
    }
    Ok(bytes)
}

/// Watches. Exit status: 0 when the process or the watch ended, 1 when there is no such process, it
/// may not be read, or another resource is not available.
pub async fn run(options: Options) -> Result<ExitCode> {
    // Before anything else: an unhandled signal ends the program without its summary.
    let mut signals = StopSignals::listen()?;
    let mut watch = Watch::begin(&options)?;
    let shown = SharedReport::default();
    let mut sink = Sink::open(options.json.as_deref(), options.json_size)?;
    // However soon it ends, there is one sample.
    if let Some(sample) = watch.sample(&options) {
        sink.write(&sample)?;
    }
    if !options.no_page {
        shown.set(watch.report(&options));
        let address = page::serve(options.listen, shown.clone()).await?;
        eprintln!("watch: the page is at http://{address}/");
    }
    for note in &watch.notes {
        eprintln!("watch: {note}");
    }
    let mut ticks = interval(options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = options.end.map(|end| tokio::time::Instant::now() + end);
    let mut lines = Lines::new(sink.is_stdout());
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = signals.next() => break,
            () = async { match end { Some(end) => sleep_until(end).await, None => std::future::pending().await } } => break,
        }
        let Some(sample) = watch.sample(&options) else { break };
        sink.write(&sample)?;
        lines.show(&sample, &watch);
        shown.set(watch.report(&options));
    }
    // One more sample for the time since the last, unless it is too short for a share of CPU time.
    if watch.sampled.elapsed() >= INTERVAL_MIN
        && let Some(sample) = watch.sample(&options)
    {
        sink.write(&sample)?;
    }
    watch.read_log(&options, false);
    watch.apply_rules(&options);
    lines.end();
    let report = watch.report(&options);
    let summary = report::summary(&report);
    shown.set(report);
    if sink.is_stdout() {
        eprint!("{summary}")
    } else {
        write_stdout(&summary)
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output; a closed reader is ignored.
fn write_stdout(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// The line that is rewritten, or the lines.
struct Lines {
    is_terminal: bool,
    to_stderr: bool,
    written: bool,
}

impl Lines {
    fn new(to_stderr: bool) -> Self {
        let is_terminal =
            if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        Self { is_terminal, to_stderr, written: false }
    }

    fn show(&mut self, sample: &Sample, watch: &Watch) {
        let names: Vec<_> = watch
            .records
            .iter()
            .filter(|record| record.now)
            .map(|record| record.finding.name)
            .collect();
        let longest = watch.tally.pause_max_millis;
        let text = match self.is_terminal {
            true => format!("\r\x1b[2K{}", report::short_line(sample, longest, names.len())),
            false => report::line(sample, longest, &names) + "\n",
        };
        self.write(&text);
        self.written = true;
    }

    fn end(&self) {
        if self.written && self.is_terminal {
            self.write("\n");
        }
    }

    fn write(&self, text: &str) {
        if self.to_stderr {
            eprint!("{text}");
        } else {
            write_stdout(text);
            let _ = io::stdout().flush();
        }
    }
}

/// See the module.
struct Watch {
    pid: Pid,
    program: String,
    started: Instant,
    sampled: Instant,
    tree: Reader,
    recognition: Recognition,
    settings: ProcessSettings,
    /// The program and the processes when the runtime was last looked for.
    looked_at: (PathBuf, usize),
    log: Option<(Tail, gc::Reader, String)>,
    group: Option<Cgroup>,
    kills_before: u64,
    notes: Vec<String>,
    tally: Tally,
    history: History,
    newest: Option<Sample>,
    records: Vec<FindingRecord>,
    samples: u64,
    ended: bool,
}

impl Watch {
    fn begin(options: &Options) -> Result<Self> {
        let pid = Pid(options.pid);
        let Some(stat) = process::stat(pid).ok().filter(|stat| !stat.is_dead) else {
            bail!("there is no process {pid}");
        };
        if let Err(error) = std::fs::read_link(format!("/proc/{pid}/exe")) {
            match error.kind() {
                io::ErrorKind::PermissionDenied => bail!(
                    "process {pid} belongs to another user and may not be read; run this as its \
                     user or as root"
                ),
                _ => {
                    bail!("process {pid} has no program (it is the kernel's, or it ended just now)")
                }
            }
        }
        let group = Cgroup::for_pid(pid).ok().flatten();
        let kills = group
            .as_ref()
            .and_then(|group| group.memory().ok())
            .map_or(0, |memory| memory.oom_kills);
        let now = Instant::now();
        let mut watch = Self {
            pid,
            program: process::role(pid).unwrap_or_default().replace(char::is_control, " "),
            started: now,
            sampled: now,
            tree: Reader::new(pid, stat.started_ticks),
            recognition: Recognition::default(),
            settings: ProcessSettings::default(),
            looked_at: (PathBuf::new(), 0),
            log: None,
            group,
            kills_before: kills,
            notes: Vec::new(),
            tally: Tally::default(),
            history: History::default(),
            newest: None,
            records: Vec::new(),
            samples: 0,
            ended: false,
        };
        let Some((tree, _)) = watch.tree.take() else { bail!("process {pid} ended just now") };
        watch.find_runtime(&tree, options)?;
        Ok(watch)
    }

    /// Which runtime it is and where its log is; again when the program or its processes have
    /// changed.
    fn find_runtime(&mut self, tree: &Tree, options: &Options) -> Result<()> {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        let looked_at = (program, tree.pids.len());
        // Once it is known it does not change, unless the process runs another program.
        let known =
            self.recognition.collected_runtime().is_some() && looked_at.0 == self.looked_at.0;
        if self.log.is_some() || known || looked_at == self.looked_at {
            return Ok(());
        }
        self.looked_at = looked_at;
        // The nearest descendant with a collector; else the process itself.
        let mut at = self.pid;
        let mut found = None;
        for pid in tree.pids.iter().copied().take(LOOKED_AT_MAX) {
            let recognition = recognise::process(pid);
            if recognition.collected_runtime().is_some() {
                (at, found) = (pid, Some(recognition));
                break;
            }
            found.get_or_insert(recognition);
        }
        self.recognition = found.unwrap_or_default();
        self.settings = ProcessSettings::read(at);
        self.notes.clear();
        self.find_log(at, options)
    }

    fn find_log(&mut self, pid: Pid, options: &Options) -> Result<()> {
        let name = options.runtime.as_deref().or_else(|| self.recognition.collected_runtime());
        let dialect = name.and_then(Dialect::of_runtime);
        let Some(dialect) = dialect else {
            if options.log.is_some() {
                bail!("whose log that is cannot be seen from the process; say it with --runtime");
            }
            if name.is_some() {
                self.notes.push(
                    "The log of this runtime's collector cannot be read, so live memory is not \
                     known."
                        .into(),
                );
            }
            return Ok(());
        };
        let place = match &options.log {
            Some(path) => {
                Some(LogLocation { path: path.clone(), name: path.display().to_string() })
            }
            None => self.settings.log(pid, dialect),
        };
        let Some(place) = place else {
            let advice = process_settings::advice(dialect);
            self.notes.push(format!(
                "No log of its collector was found, so live memory is not known. {advice}"
            ));
            return Ok(());
        };
        match Tail::open(&place.path) {
            Ok(tail) => {
                self.log = Some((tail, gc::Reader::new(dialect), place.name));
                self.read_log(options, true);
            }
            Err(error) if options.log.is_some() => return Err(error),
            Err(error) => self.notes.push(format!("{error:#}; the watch continues without it")),
        }
        Ok(())
    }

    /// `backlog`: its lines are from before the watch.
    fn read_log(&mut self, options: &Options, backlog: bool) {
        let Some((tail, reader, name)) = &mut self.log else { return };
        let seconds = self.started.elapsed().as_secs_f64();
        let tally = &mut self.tally;
        let read = tail.poll(|line| {
            if let Some(collection) = reader.line(line) {
                tally.collection(&collection, seconds, backlog, options.pause_limit as f64);
            }
        });
        if let Err(error) = read {
            let note = format!("the log {name} can no longer be read: {error}");
            self.notes.push(note);
            self.log = None;
        }
    }

    /// `None` when the process has ended.
    fn sample(&mut self, options: &Options) -> Option<Sample> {
        self.read_log(options, false);
        let Some((tree, cpu)) = self.tree.take() else {
            self.ended = true;
            return None;
        };
        if self.samples.is_multiple_of(LOOK_AGAIN_SAMPLES)
            && let Err(error) = self.find_runtime(&tree, options)
        {
            self.notes.push(format!("{error:#}"));
        }
        self.samples += 1;
        let elapsed = self.sampled.elapsed();
        self.sampled = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64();
        let cpu_percent = self.tally.sample(seconds, elapsed, cpu, &tree.memory, tree.threads);
        let (pause_millis, pause_max_millis) = self.tally.take_pauses();
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sample = Sample {
            seconds: round(seconds),
            unix_millis: u64::try_from(unix.as_millis()).unwrap_or_default(),
            live_bytes: self.tally.live_bytes,
            allocated_bytes: self.tally.heap_bytes,
            anonymous_bytes: tree.memory.anonymous_bytes,
            file_bytes: tree.memory.file_bytes,
            shared_bytes: tree.memory.shared_bytes,
            swap_bytes: tree.memory.swap_bytes,
            returned_bytes: self.tally.peak_bytes.saturating_sub(tree.memory.anonymous_bytes),
            cpu_percent: round(cpu_percent),
            processes: tree.pids.len(),
            threads: tree.threads,
            collections: self.tally.collections,
            collections_major: self.tally.collections_major,
            pause_millis: round(pause_millis),
            pause_max_millis,
        };
        self.history.push(sample.clone());
        self.newest = Some(sample.clone());
        self.apply_rules(options);
        Some(sample)
    }

    /// Applies the rules, and records their findings with the time.
    fn apply_rules(&mut self, options: &Options) {
        let memory = self.group.as_ref().and_then(|group| group.memory().ok());
        let findings = findings::all(&Facts {
            runtime: self.recognition.runtimes.first().copied().unwrap_or_default(),
            settings: self.settings.clone(),
            pause_limit_millis: options.pause_limit as f64,
            collector_percent_max: options.collector_limit as f64,
            cap_bytes: memory.and_then(|memory| memory.limit_bytes),
            group_bytes: memory.map_or(0, |memory| memory.anonymous_bytes),
            oom_kills: memory
                .map_or(0, |memory| memory.oom_kills.saturating_sub(self.kills_before)),
            ..self.tally.facts()
        });
        self.record_findings(findings);
    }

    /// As many as there are rules, at most.
    fn record_findings(&mut self, findings: Vec<Finding>) {
        let seconds = self.started.elapsed().as_secs_f64().round();
        // A process that ended is no longer idle; earlier findings stay.
        for record in &mut self.records {
            record.now = false;
        }
        for finding in findings {
            match self.records.iter_mut().find(|record| record.finding.name == finding.name) {
                Some(record) => {
                    (record.finding, record.last_seconds, record.now) = (finding, seconds, true);
                }
                None => self.records.push(FindingRecord {
                    finding,
                    first_seconds: seconds,
                    last_seconds: seconds,
                    now: true,
                }),
            }
        }
    }

    fn report(&self, options: &Options) -> Report {
        let mut samples = self.history.samples();
        // The summary speaks of the newest itself, not of it and the one before.
        if let (Some(last), Some(newest)) = (samples.last_mut(), &self.newest) {
            last.anonymous_bytes = newest.anonymous_bytes;
            last.collections = self.tally.collections;
            last.collections_major = self.tally.collections_major;
            last.live_bytes = self.tally.live_bytes;
        }
        let mut notes = self.notes.clone();
        if let Some((tail, _, name)) = &self.log {
            if tail.begun_anew > 0 {
                notes.push(format!(
                    "The log {name} was cut off or replaced {} times.",
                    tail.begun_anew
                ));
            }
            if tail.skipped_bytes > 0 {
                let skipped = accounting::format_size(tail.skipped_bytes);
                notes.push(format!("Of the log {name} {skipped} were not read: it is too long."));
            }
        }
        Report {
            pid: self.pid.0,
            program: self.program.clone(),
            runtimes: self.recognition.runtimes.clone(),
            log: self.log.as_ref().map(|(_, _, name)| name.clone()),
            notes,
            ended: self.ended,
            interval_millis: u64::try_from(options.interval.as_millis()).unwrap_or(u64::MAX),
            peak_bytes: self.tally.peak_bytes,
            peak_seconds: self.tally.peak_seconds,
            cap_bytes: self.group.as_ref().and_then(|group| group.memory().ok()?.limit_bytes),
            collector_percent: self.tally.collector_percent(),
            pause_max_millis: self.tally.pause_max_millis,
            pause_millis: self.tally.pause_millis,
            findings: self.records.clone(),
            samples,
        }
    }
}
