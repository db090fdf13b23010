//! `thimble-lab cap`: a command in a memory-capped process group, and what its memory did.
//!
//! One thread does everything: it sleeps until the next sample is due or a signal arrives
//! (`signals`), reads the group (`group`, `sampler`), and writes what it read to the series
//! file ([`series`]), from which the picture ([`picture`]) is made at the end. Nothing is kept in
//! memory in proportion to time.
//!
//! The command stays in the process group of the terminal's foreground, and in the group of the cap
//! from its first instruction on. We stay outside the cap: the measuring must neither count nor die
//! with what is measured.
//!
//! [`machine`] describes the machine of a measurement. Must never know: which program it runs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod group;
pub mod info;
mod log;
pub mod machine;
mod marks;
pub mod picture;
mod rotating;
mod sampler;
pub mod series;
mod signals;
mod summary;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use accounting::{cgroup::Cgroup, format_size, parse_size, process::Pid};
use anyhow::{Context, Result};
use clap::Args;
use nix::sys::signal::Signal;
use rustix::process::{WaitOptions, WaitStatus};

pub use self::{
    group::Kind,
    rotating::{Rotating, older},
    sampler::round,
    summary::mib,
};
use self::{
    group::{Caps, Group},
    info::Info,
    log::Pump,
    marks::Marks,
    sampler::Sampler,
    series::{Event, Header, Line, Summary, What, Writer},
    signals::{SignalEvent, Signals},
};

/// Exit status for failures of this program, as in `env` and `timeout`.
const EXIT_FAILURE: u8 = 125;
/// The command is there but cannot be run.
const EXIT_NOT_RUNNABLE: u8 = 126;
/// There is no such command.
const EXIT_NOT_FOUND: u8 = 127;
/// A process was killed for lack of memory: the status that a shell returns after SIGKILL.
const EXIT_OOM_KILLED: u8 = 137;
/// Less holds no process at all.
const MEMORY_BYTES_MIN: u64 = accounting::MIB;
/// Least size of a log or a series that is kept bounded.
const KEPT_BYTES_MIN: u64 = 64 << 10;

/// Command line of `thimble-lab cap`.
#[derive(Args)]
pub struct Options {
    /// Most memory the group may hold, page cache and the kernel's share included: 256MiB, 1GiB
    /// ...
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: u64,
    /// Most swap it may use in addition.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    swap: u64,
    /// Write every sample and event to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Most bytes of that file: when half of it is written, it is renamed to FILE.1 and a new one
    /// begins. [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_kept, requires = "json")]
    json_size: Option<u64>,
    /// Draw the run into this file (SVG); with --json-size, as much of the run as the file still
    /// holds.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Name of the run in the file and in the picture. [default: the name of the command]
    #[arg(long)]
    name: Option<String>,
    /// Time between two samples.
    #[arg(long, value_name = "MILLIS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    interval_millis: u64,
    /// Lines that other programs append to this file become events of the run.
    #[arg(long, value_name = "FILE")]
    mark_file: Option<PathBuf>,
    /// Append what the command prints to this file, instead of letting it through.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Most bytes of the log: when half of it is written, it is renamed to FILE.1 and a new one
    /// begins.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_kept)]
    log_size: u64,
    /// Write to this file, as JSON, which process runs in which group, and at the end how it
    /// ended.
    #[arg(long, value_name = "FILE")]
    info_file: Option<PathBuf>,
    /// Kind of group. [default: the first that is possible, in this order]
    #[arg(long)]
    group: Option<Kind>,
    /// Do not print the summary.
    #[arg(long)]
    quiet: bool,
    /// End, with the command, when the program that started this one does.
    #[arg(long, hide = true)]
    with_parent: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_memory(text: &str) -> Result<u64, String> {
    parse_at_least(text, MEMORY_BYTES_MIN, "holds no process; the smallest cap is")
}

/// A file that is kept in two halves holds some lines in each.
fn parse_kept(text: &str) -> Result<u64, String> {
    parse_at_least(text, KEPT_BYTES_MIN, "is too little; the least is")
}

fn parse_at_least(text: &str, least: u64, refusal: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes < least {
        true => Err(format!("{} {refusal} {}", format_size(bytes), format_size(least))),
        false => Ok(bytes),
    }
}

/// Runs the command; the exit status is the help text's. Must be called before the process has
/// other threads, because signals are blocked thread by thread.
pub fn run(options: Options) -> ExitCode {
    match run_inner(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("thimble-lab cap: {error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn run_inner(options: &Options) -> Result<u8> {
    let signals = Signals::block()?;
    if options.with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .context("asking to end with the program that started this one")?;
    }
    // Orphans of the group are reparented to us and not to process 1, which in a container may
    // never take their exit status; the group could then not be removed.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("becoming the subreaper")?;
    let caps = Caps { memory_bytes: options.memory, swap_bytes: options.swap };
    let mut group = Group::make(options.group, caps)?;
    let (series_path, scratch) = series_path(options);
    let writer = series_path.as_ref().map(|path| {
        Writer::create(path, options.json_size)
            .with_context(|| format!("making the series file {}", path.display()))
    });
    let writer = writer.transpose()?;
    let log = options.log.as_ref().map(|path| {
        Rotating::append(path, options.log_size)
            .with_context(|| format!("opening the log {}", path.display()))
    });
    let log = log.transpose()?;

    // Before the command runs: its first line is a mark, too.
    let marks = options.mark_file.as_deref().map(Marks::at_end);
    let started = Instant::now();
    let started_at = (machine::now().0, cli::monotonic().as_secs_f64());
    let (mut pump, mut command) = (None, group.command(&options.command));
    if let (Ok(command), Some(log)) = (&mut command, log) {
        pump = Some(Pump::start(command, log).context("collecting what the command prints")?);
    }
    let spawned = command.and_then(|mut command| command.spawn());
    let child = match spawned {
        Ok(child) => child,
        Err(error) => return Ok(not_run(options, &error)),
    };
    let main = Pid(child.id());
    group.entered(main)?;
    let readings =
        group.readings().context("the group is known once the command is in it")?.clone();
    let mut info = Info::for_command(main, &group, &readings)?;
    info.write(options.info_file.as_deref());
    let mut run = Run {
        sampler: Sampler::new(&readings, main, started),
        marks,
        summary: Summary::default(),
        writer,
        started,
        main,
        group: &group,
        readings: &readings,
        stops: 0,
    };
    let header = header(options, &group, &readings, started_at);
    run.write(Line::Header(header.clone()));
    run.event(What::Start, format!("start of {}", header.name), Some(main.0));
    let ended = run.until_end(&signals, Duration::from_millis(options.interval_millis))?;
    let summary = run.finish(ended);
    let left = group.remove().map_err(|reason| anyhow::anyhow!("{reason}"));
    // Nothing of the group is left that could write.
    if let Some(pump) = pump {
        pump.finish();
    }
    info.ended = Some(info::CapExit::from_summary(&summary, left.as_ref().map_or(0, |left| *left)));
    info.write(options.info_file.as_deref());
    if let (Some(path), Some(picture)) = (&series_path, &options.picture) {
        picture::draw(path, picture).with_context(|| format!("drawing {}", picture.display()))?;
    }
    drop(scratch);
    let left = left?;
    if !options.quiet {
        eprint!("{}", summary::text(&summary, &header));
        for (what, path) in [("series", &options.json), ("picture", &options.picture)] {
            if let Some(path) = path {
                eprintln!("  {what:<11} {}", path.display());
            }
        }
        if left > 0 {
            eprintln!("  left over   {left} processes of the group, killed");
        }
    }
    Ok(summary.exit_status)
}

/// Path of the series: as requested, or next to the picture that is drawn from it, until that is
/// done.
fn series_path(options: &Options) -> (Option<PathBuf>, Option<Scratch>) {
    match (&options.json, &options.picture) {
        (Some(path), _) => (Some(path.clone()), None),
        (None, Some(picture)) => {
            let path = picture.with_extension(format!("series-{}", std::process::id()));
            (Some(path.clone()), Some(Scratch(path)))
        }
        (None, None) => (None, None),
    }
}

/// Prints why the command did not start; returns the exit status for it, as in shells.
fn not_run(options: &Options, error: &io::Error) -> u8 {
    let program = options.command.first().map(|program| program.display().to_string());
    eprintln!("thimble-lab cap: cannot run {}: {error}", program.unwrap_or_default());
    match error.kind() {
        io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        io::ErrorKind::PermissionDenied => EXIT_NOT_RUNNABLE,
        _ => EXIT_FAILURE,
    }
}

/// A temporary series.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn command_name(options: &Options) -> String {
    let program = options.command.first().map(Path::new).and_then(Path::file_name);
    program.map_or_else(|| "the command".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn whose_pressure(readings: &Cgroup) -> &'static str {
    match (readings.tells_pressure(), accounting::pressure::machine_memory()) {
        (true, _) => "group",
        (false, Some(_)) => "machine",
        (false, None) => "none",
    }
}

fn header(
    options: &Options,
    group: &Group,
    readings: &Cgroup,
    (started, started_monotonic_seconds): (String, f64),
) -> Header {
    Header {
        format: series::FORMAT,
        name: options.name.clone().unwrap_or_else(|| command_name(options)),
        command: options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        machine: machine::describe(),
        cap_bytes: options.memory,
        swap_bytes: options.swap,
        group: group.kind().to_string(),
        pressure_of: whose_pressure(readings).to_owned(),
        interval_millis: options.interval_millis,
        started,
        started_monotonic_seconds,
    }
}

/// The run under way.
struct Run<'a> {
    group: &'a Group,
    readings: &'a Cgroup,
    main: Pid,
    started: Instant,
    sampler: Sampler,
    marks: Option<Marks>,
    writer: Option<Writer>,
    /// Grows with every sample.
    summary: Summary,
    /// Signals that asked us to stop so far.
    stops: u32,
}

impl Run<'_> {
    /// Samples until the command has ended; then returns its status.
    fn until_end(&mut self, signals: &Signals, interval: Duration) -> Result<WaitStatus> {
        let mut due = self.started;
        loop {
            let now = Instant::now();
            if now >= due {
                self.sample(true)?;
                due += interval;
                // A sample that comes late, because the machine is busy or was asleep, is not made
                // up for.
                due = due.max(Instant::now());
            }
            for arrived in signals.wait(due.saturating_duration_since(Instant::now()))? {
                match arrived {
                    SignalEvent::Child => {}
                    SignalEvent::Stop { signal, by_terminal } => self.stop(signal, by_terminal),
                }
            }
            if let Some(ended) = self.reap() {
                return Ok(ended);
            }
        }
    }

    /// Reaps all ended children: the command, and orphans that were reparented to us.
    fn reap(&self) -> Option<WaitStatus> {
        let mut ended = None;
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if u32::try_from(pid.as_raw_pid()) == Ok(self.main.0) {
                ended = Some(status);
            }
        }
        ended
    }

    fn stop(&mut self, signal: Signal, by_terminal: bool) {
        self.stops += 1;
        if self.stops > 1 {
            self.event(What::Signal, format!("{signal} again: all are killed"), None);
            self.group.kill();
            return;
        }
        let pid = i32::try_from(self.main.0).ok().and_then(rustix::process::Pid::from_raw);
        let number = rustix::process::Signal::from_named_raw(signal as i32);
        if let (false, Some(pid), Some(number)) = (by_terminal, pid, number) {
            // It may have ended in this moment.
            let _ = rustix::process::kill_process(pid, number);
        }
        self.event(What::Signal, signal.to_string(), None);
    }

    fn sample(&mut self, alive: bool) -> Result<()> {
        let (sample, events) = self.sampler.take(self.readings)?;
        self.summary.add(&sample, alive);
        for event in events {
            self.write(Line::Event(event));
        }
        let marks = self.marks.as_mut().map(Marks::new_lines).unwrap_or_default();
        for mark in marks {
            self.event(What::Mark, mark, None);
        }
        self.write(Line::Sample(sample));
        Ok(())
    }

    /// The last sample, the end, and the summary.
    fn finish(mut self, ended: WaitStatus) -> Summary {
        // A scope may be gone with its last process.
        if let Err(error) = self.sample(false)
            && self.group.kind() != Kind::Systemd
        {
            eprintln!("thimble-lab cap: the last sample could not be taken: {error:#}");
        }
        let (status, text) = exit_status(ended);
        self.event(What::Exit, text.clone(), Some(self.main.0));
        let mut summary = std::mem::take(&mut self.summary);
        summary.seconds = sampler::round(self.started.elapsed().as_secs_f64());
        summary.ended = text;
        summary.exit_status = match status {
            0 if summary.oom_kills > 0 => EXIT_OOM_KILLED,
            status => status,
        };
        if let Some(peak) = self.readings.peak_bytes() {
            summary.charged_peak_bytes = summary.charged_peak_bytes.max(peak);
        }
        summary.restarts = self.sampler.restarts();
        summary.stalled_some_seconds =
            self.sampler.stalled().map(|stalled| sampler::round(stalled.as_secs_f64()));
        self.write(Line::Summary(summary.clone()));
        summary
    }

    fn event(&mut self, what: What, text: String, pid: Option<u32>) {
        let seconds = sampler::round(self.started.elapsed().as_secs_f64());
        self.write(Line::Event(Event { seconds, what, text, pid }));
    }

    /// A series that cannot be written any more (a full disk) must not end what is being measured.
    fn write(&mut self, line: Line) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.write(&line)
        {
            eprintln!(
                "thimble-lab cap: the series ends here, {} cannot be written: {error}",
                writer.path().display()
            );
            self.writer = None;
        }
    }
}

/// The status as a shell reports it, and a text.
fn exit_status(ended: WaitStatus) -> (u8, String) {
    if let Some(signal) = ended.terminating_signal() {
        let name = Signal::try_from(signal)
            .map_or_else(|_| signal.to_string(), |signal| signal.to_string());
        return (u8::try_from(128 + signal).unwrap_or(u8::MAX), format!("ended by {name}"));
    }
    let status =
        ended.exit_status().and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX);
    (status, format!("exit {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_hold_no_process_are_refused() {
        assert_eq!(parse_memory("64MiB"), Ok(64 << 20));
        let refusal = parse_memory("12KiB").unwrap_err();
        assert!(refusal.contains("12 KiB") && refusal.contains("1 MiB"), "{refusal}");
        assert!(parse_memory("lots").unwrap_err().contains("512MiB"));
    }
}
