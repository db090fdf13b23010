//! One run of a command under a setting: started under the cap, ready, loaded, probed, stopped, and
//! measured by the kernel, the runtime and the clock.
//!
//! The command runs under `thimble-lab cap`, in a process of its own, which ends with us and leaves
//! nothing behind; its memory is that of all its processes. The load generator is outside the cap.
//!
//! Bounds: the plan's times; a run ends at most [`STOP_TIMEOUT`] after the request to stop. Must
//! never know: which setting is better.

mod load;
mod outcome;
mod output;
mod plan;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use compare::Counters;
use nix::sys::resource::{UsageWho, getrusage};
use testnet::cap::series::{Line, Summary};
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::Instant,
};

use self::{
    load::Load,
    output::{CollectorTotals, Output},
};
pub(crate) use self::{
    outcome::{Measurement, Outcome},
    output::Patterns,
    plan::{Names, Plan, Probe, Ready},
};
use crate::{
    gc::Reader,
    knob::{TunedCommand, Way},
    lateness::{Lateness, Samples},
    probe,
};

/// How long a command may take to end after the request to stop; then it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two samples of its memory.
const INTERVAL_MILLIS: u32 = 25;
/// A collector's report is read up to here.
const REPORT_BYTES_MAX: u64 = 256 << 20;
/// Longest line of a series file.
const SERIES_LINE_BYTES_MAX: u64 = 1 << 20;
/// Time between two tries whether a program answers.
const READY_EVERY: Duration = Duration::from_millis(20);

/// The user asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(crate) struct StoppedByUser;

/// Turns true when the user asks to stop.
pub(crate) type Stop = watch::Receiver<bool>;

/// Runs the command once with these values of knobs.
pub(crate) async fn run(
    plan: &Plan,
    turned: &[(&Way, String)],
    stop: &Stop,
) -> Result<Measurement> {
    let folder = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(&plan.scratch)
        .with_context(|| format!("making a folder in {}", plan.scratch.display()))?;
    // The command's folder contains only its own files; ours are in the parent folder.
    let own = folder.path().join("own");
    fs::create_dir(&own)?;
    let names = Names::new(&own.to_string_lossy(), &cli::free_ports::<3>()?);
    let files = Files::in_folder(folder.path());
    let report = plan.log.as_ref().map(|log| with_report(&log.way, &files.report));
    measure(plan, turned, report.as_ref(), &names, &files, stop).await
}

/// Example names to check the options before the first run.
pub(crate) fn example_names() -> Names {
    Names::new("/tmp", &[1, 2, 3])
}

/// The way of a collector's report, with its file filled in.
fn with_report(way: &Way, file: &str) -> Way {
    let mut way = Way { text: way.text.replace("{file}", file), ..way.clone() };
    if let Some(argument) = &mut way.argument {
        for word in &mut argument.template {
            *word = word.replace("{file}", file);
        }
    }
    way
}

/// Files of one run, outside the command's folder.
struct Files {
    series: String,
    info: String,
    report: String,
    config: String,
}

impl Files {
    fn in_folder(folder: &Path) -> Self {
        let name = |name: &str| folder.join(name).to_string_lossy().into_owned();
        Self {
            series: name("series.jsonl"),
            info: name("info.json"),
            report: name("report.log"),
            config: name("config.toml"),
        }
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
async fn measure(
    plan: &Plan,
    turned: &[(&Way, String)],
    report: Option<&Way>,
    names: &Names,
    files: &Files,
    stop: &Stop,
) -> Result<Measurement> {
    let command: Vec<String> = plan.command.iter().map(|word| names.fill(word)).collect();
    let mut all = turned.to_vec();
    all.extend(report.map(|way| (way, String::new())));
    let applied =
        TunedCommand::with_knobs(&command, &all, plan.by, |name| std::env::var(name).ok());
    if !applied.config.is_empty() {
        fs::write(&files.config, applied.config.join("\n") + "\n")
            .context("writing the configuration file")?;
    }
    let applied = applied.with_config_at(&files.config);
    let target = plan.probe.as_ref().map(|probe| probe.target(names)).transpose()?.map(Arc::new);
    let ready_target = match &plan.ready {
        Some(Ready::Answer(probe)) => Some(Arc::new(probe.target(names)?)),
        Some(Ready::Line(_)) => None,
        None => target.clone(),
    };
    if let Some(target) = &ready_target
        && !matches!(**target, probe::Target::Command(_))
        && target.ask().await.is_ok()
    {
        bail!(
            "something answers before the command is started: it would be measured in its place; \
             stop it, or write {{port}} in the command and in what is asked"
        );
    }

    let (counters, own_before) = (Counters::now(), own_cpu_seconds());
    let started = Instant::now();
    let mut child = start(plan, &applied, files)?;
    let patterns = Patterns {
        ready: match &plan.ready {
            Some(Ready::Line(pattern)) => Some(pattern.clone()),
            _ => None,
        },
        beat: plan.beat.clone(),
        beat_period: plan.beat_period,
        miss: plan.miss.clone(),
        dialect: plan.log.as_ref().filter(|log| !log.has_file()).map(|log| log.dialect),
    };
    let waits_for_line =
        patterns.ready.is_some() || (plan.beat.is_some() && ready_target.is_none());
    let output = Output::new(patterns);
    let readers = [
        child.stdout.take().map(|pipe| tokio::spawn(output.clone().read(pipe))),
        child.stderr.take().map(|pipe| tokio::spawn(output.clone().read(pipe))),
    ];
    if ready_target.is_none() && !waits_for_line {
        output.mark_ready();
    }

    let under_way = ActiveRun { plan, names, output: &output, target, ready_target, started, stop };
    let (verdict, progress) = under_way.until_end(&mut child).await?;
    let stopped_by_us = progress.ended.is_none();
    end(&mut child, progress.ended.is_some()).await?;
    for reader in readers.into_iter().flatten() {
        // The pipe's end is there once all processes of the group are gone, and they are.
        let _ = tokio::time::timeout(Duration::from_secs(5), reader).await;
    }
    let own_seconds = own_cpu_seconds() - own_before;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let busy = counters.until(&Counters::now(), own_seconds, ticks);

    let Some((summary, held)) = read_series(&files.series)? else {
        // Its own words, which came the way of the command's.
        bail!("the command could not be run under its cap: {}", output.tail());
    };
    let collected = match &plan.log {
        Some(log) if log.has_file() => read_report(log.dialect, &files.report),
        _ => output.collector_totals(),
    };
    let lateness = progress.lateness;
    let outcome =
        outcome(verdict, &summary, stopped_by_us, read_processes_left(&files.info), &output);
    Ok(Measurement {
        outcome,
        peak_bytes: held.peak_bytes,
        end_bytes: held.end_bytes,
        cpu_seconds: summary.cpu_seconds,
        start_millis: progress.ready_at.map(|at| (at - started).as_secs_f64() * 1_000.0),
        seconds: summary.seconds,
        live_bytes: collected.live_bytes_max,
        collector_percent: (collected.tells_cpu && summary.cpu_seconds > 0.0)
            .then(|| (collected.cpu_millis / 10.0 / summary.cpu_seconds).min(100.0)),
        collections: (collected.count > 0).then_some(collected.count),
        pause_max_millis: (collected.count > 0).then_some(collected.pause_max_millis),
        lateness,
        others_percent: busy.others * 100.0,
    })
}

/// Starts the command under its cap.
fn start(plan: &Plan, applied: &TunedCommand, files: &Files) -> Result<Child> {
    let mut cap = Command::new(&plan.exe);
    cap.args(["cap", "--with-parent", "--quiet", "--memory", &plan.cap_bytes.to_string()]);
    cap.args(["--interval-millis", &INTERVAL_MILLIS.to_string()]);
    cap.args(["--json", &files.series, "--info-file", &files.info, "--"]).args(&applied.command);
    for (name, value) in &applied.environment {
        cap.env(name, value);
    }
    cap.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Only this program gets Ctrl-C of a terminal, and it ends the command in order.
    cap.process_group(0).kill_on_drop(true).spawn().context("starting thimble-lab cap")
}

/// Result of the run while it lasted.
enum Verdict {
    Fine,
    NotReady(Duration),
    Load(String),
    Stalled(String),
}

struct RunProgress {
    ready_at: Option<Instant>,
    /// Whether the command ended by itself.
    ended: Option<()>,
    lateness: Option<Lateness>,
}

struct ActiveRun<'a> {
    plan: &'a Plan,
    names: &'a Names,
    output: &'a Arc<Output>,
    target: Option<Arc<probe::Target>>,
    ready_target: Option<Arc<probe::Target>>,
    started: Instant,
    stop: &'a Stop,
}

impl ActiveRun<'_> {
    /// Until the command is ready, has been worked on and asked for as long as planned, or ended
    /// before.
    #[expect(
        clippy::too_many_lines,
        reason = "steps of one matter, each on what those before it left"
    )]
    async fn until_end(&self, child: &mut Child) -> Result<(Verdict, RunProgress)> {
        let mut progress = RunProgress { ready_at: None, ended: None, lateness: None };
        let mut stop = self.stop.clone();
        let waited = tokio::select! {
            at = self.output.until_ready() => Some(at),
            at = self.first_answer() => Some(at),
            _ = child.wait() => { progress.ended = Some(()); None }
            () = tokio::time::sleep(self.plan.ready_within) => None,
            _ = stop.wait_for(|stop| *stop) => return self.abort(child).await,
        };
        let Some(at) = waited else {
            let verdict = if progress.ended.is_some() {
                Verdict::Fine
            } else {
                Verdict::NotReady(self.started.elapsed())
            };
            return Ok((verdict, progress));
        };
        progress.ready_at = Some(at);
        self.output.forget_samples();

        let samples = Arc::new(Mutex::new(Samples::default()));
        let (end_asking, asking) = watch::channel(false);
        let asker = self.target.clone().map(|target| {
            tokio::spawn(probe::ask(target, self.plan.per_second, samples.clone(), asking))
        });
        let mut load = match &self.plan.load {
            Some(load) => Some(Load::start(&self.names.fill(load), &self.plan.exe)?),
            None => None,
        };
        let phase_end = Instant::now() + self.plan.phase;
        let mut verdict = Verdict::Fine;
        loop {
            let load_ended = async {
                match &mut load {
                    Some(load) => load.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = load_ended => {
                    if let Some(words) = ended? {
                        verdict = Verdict::Load(words);
                        break;
                    }
                    load = None;
                    if self.plan.until_load_ends {
                        break;
                    }
                }
                _ = child.wait() => { progress.ended = Some(()); break }
                () = tokio::time::sleep_until(phase_end) => {
                    if load.is_some() && self.plan.until_load_ends {
                        verdict = Verdict::Stalled(format!(
                            "the load did not end within {:.0} s (--seconds)",
                            self.plan.phase.as_secs_f64()
                        ));
                    }
                    break;
                }
                _ = stop.wait_for(|stop| *stop) => {
                    drop(load);
                    return self.abort(child).await;
                }
            }
        }
        // The command's own beats end here; answers under way are waited for while it is alive.
        let mut all = self.output.samples();
        let _ = end_asking.send(true);
        if let Some(asker) = asker {
            if progress.ended.is_some() {
                asker.abort();
            } else {
                let _ = asker.await;
            }
            let asked =
                std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
            all.add(asked);
        }
        if let Some(load) = load {
            load.stop().await;
        }
        let is_asked =
            self.plan.probe.is_some() || self.plan.beat.is_some() || self.plan.miss.is_some();
        progress.lateness = is_asked.then(|| all.summary());
        Ok((verdict, progress))
    }

    async fn first_answer(&self) -> Instant {
        let Some(target) = &self.ready_target else { return std::future::pending().await };
        loop {
            if target.ask().await.is_ok() {
                self.output.mark_ready();
                return Instant::now();
            }
            tokio::time::sleep(READY_EVERY).await;
        }
    }

    async fn abort(&self, child: &mut Child) -> Result<(Verdict, RunProgress)> {
        end(child, false).await?;
        Err(StoppedByUser.into())
    }
}

/// Asks the command to end, kills it after the timeout, and waits until no process of it remains.
async fn end(child: &mut Child, has_ended: bool) -> Result<()> {
    let signal = |child: &Child| {
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended, which is what is wanted.
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        }
    };
    if !has_ended {
        signal(child);
        if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
            // The second one kills the whole group.
            signal(child);
        }
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        bail!("the command's processes did not die within {} s", STOP_TIMEOUT.as_secs());
    }
    Ok(())
}

fn outcome(
    verdict: Verdict,
    summary: &Summary,
    stopped_by_us: bool,
    left: u64,
    output: &Output,
) -> Outcome {
    let tail = || output.tail();
    if summary.oom_kills > 0 {
        let at = budget::format_size(summary.anonymous_peak_bytes.max(summary.shared_peak_bytes));
        return Outcome::OutOfMemory(format!(
            "after {:.1} s, with {at} of anonymous memory at most\n{}",
            summary.seconds,
            tail()
        ));
    }
    match verdict {
        Verdict::NotReady(waited) => {
            return Outcome::NeverReady(format!(
                "not within {:.0} s\n{}",
                waited.as_secs_f64(),
                tail()
            ));
        }
        Verdict::Load(words) => return Outcome::LoadFailed(words),
        Verdict::Stalled(words) => return Outcome::Stalled(words),
        Verdict::Fine => {}
    }
    if stopped_by_us {
        return Outcome::Lived;
    }
    if left > 0 {
        return Outcome::LeftBehind(format!(
            "it ended after {:.1} s ({}) and left {left} processes running; it must stay in the \
             foreground",
            summary.seconds, summary.ended
        ));
    }
    // A program that does its work and ends well is a run as well, when it was ready.
    if summary.exit_status == 0 && output.was_ready() && summary.seconds >= 0.2 {
        return Outcome::Lived;
    }
    Outcome::Ended(format!("{} after {:.1} s\n{}", summary.ended, summary.seconds, tail()))
}

/// CPU time of this program and of all children that ended.
fn own_cpu_seconds() -> f64 {
    let of = |who| {
        getrusage(who).map_or(0.0, |usage| {
            let seconds =
                |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds(usage.user_time()) + seconds(usage.system_time())
        })
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}

/// Memory that cannot be dropped: anonymous, and shared memory, in which some collectors keep the
/// heap.
#[derive(Clone, Copy, Debug, Default)]
struct UnreclaimableMemory {
    peak_bytes: u64,
    /// When the command was last seen alive.
    end_bytes: u64,
}

/// The summary, and the memory held per the samples; `None` when the command never ran.
fn read_series(path: &str) -> Result<Option<(Summary, UnreclaimableMemory)>> {
    let Ok(file) = fs::File::open(path) else { return Ok(None) };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut held = UnreclaimableMemory::default();
    loop {
        line.clear();
        let count = (&mut reader).take(SERIES_LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(None);
        }
        match serde_json::from_slice(&line) {
            Ok(Line::Sample(sample)) => {
                let bytes = sample.anonymous_bytes.saturating_add(sample.shared_bytes);
                held.peak_bytes = held.peak_bytes.max(bytes);
                if !sample.processes.is_empty() {
                    held.end_bytes = bytes;
                }
            }
            Ok(Line::Summary(summary)) => return Ok(Some((summary, held))),
            _ => {}
        }
    }
}

/// Processes that the command left running.
fn read_processes_left(path: &str) -> u64 {
    let text = fs::read(path).unwrap_or_default();
    let info: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    info.pointer("/ended/left").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn read_report(dialect: crate::gc::Dialect, path: &str) -> CollectorTotals {
    let mut collected = CollectorTotals::default();
    let Ok(file) = fs::File::open(path) else { return collected };
    let mut reader = BufReader::new(file.take(REPORT_BYTES_MAX));
    let mut lines = Reader::new(dialect);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(output::LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return collected,
        }
        if let Some(collection) = lines.line(String::from_utf8_lossy(&line).trim_end()) {
            collected.add(&collection);
        }
    }
}
