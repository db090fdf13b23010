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
use memory_cap::series::{self, Line, Summary};
use nix::sys::resource::{UsageWho, getrusage};
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
/// Names of the files of a run.
const SERIES: &str = "series.jsonl";
const INFO: &str = "info.json";
const REPORT: &str = "report.log";
const CONFIG: &str = "config.toml";
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
    let files = Files(folder.path());
    let report = plan.log.as_ref().map(|log| with_report(&log.way, &files.path(REPORT)));
    measure(plan, turned, report.as_ref(), &names, &files, stop).await
}

/// Example names to check the options before the first run.
pub(crate) fn example_names() -> Names {
    Names::new("/tmp", &[1, 2, 3])
}

/// The way of a collector's report, with its file filled in.
fn with_report(way: &Way, file: &str) -> Way {
    let mut way = way.clone();
    for word in way.argument.iter_mut().chain([&mut way.text]) {
        *word = word.replace("{file}", file);
    }
    way
}

/// Files of one run, outside the command's folder.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
async fn measure(
    plan: &Plan,
    turned: &[(&Way, String)],
    report: Option<&Way>,
    names: &Names,
    files: &Files<'_>,
    stop: &Stop,
) -> Result<Measurement> {
    let command: Vec<String> = plan.command.iter().map(|word| names.fill(word)).collect();
    let mut all = turned.to_vec();
    all.extend(report.map(|way| (way, String::new())));
    let applied =
        TunedCommand::with_knobs(&command, &all, plan.by, |name| std::env::var(name).ok());
    let config = files.path(CONFIG);
    if !applied.config.is_empty() {
        fs::write(&config, applied.config.join("\n") + "\n")
            .context("writing the configuration file")?;
    }
    let applied = applied.with_config_at(&config);
    let target = plan.probe.as_ref().map(|probe| probe.target(names)).transpose()?.map(Arc::new);
    let ready_target = match &plan.ready_probe {
        Some(probe) => Some(Arc::new(probe.target(names)?)),
        None => target.clone().filter(|_| plan.patterns.ready.is_none()),
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
    let patterns = &plan.patterns;
    let waits_for_line =
        patterns.ready.is_some() || (patterns.beat.is_some() && ready_target.is_none());
    let output = Output::new(patterns.clone());
    let readers = [
        child.stdout.take().map(|pipe| tokio::spawn(output.clone().read(pipe))),
        child.stderr.take().map(|pipe| tokio::spawn(output.clone().read(pipe))),
    ];
    if ready_target.is_none() && !waits_for_line {
        output.mark_ready();
    }

    let under_way = ActiveRun { plan, names, output: &output, target, ready_target, started, stop };
    let progress = under_way.until_end(&mut child).await?;
    end(&mut child, progress.has_ended).await?;
    for reader in readers.into_iter().flatten() {
        // The pipe's end is there once all processes of the group are gone, and they are.
        let _ = tokio::time::timeout(Duration::from_secs(5), reader).await;
    }
    let own_seconds = own_cpu_seconds() - own_before;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let busy = counters.until(&Counters::now(), own_seconds, ticks);

    let Some((summary, held)) = read_series(&files.path(SERIES))? else {
        // Its own words, which came the way of the command's.
        bail!("the command could not be run under its cap: {}", output.tail());
    };
    let collected = match &plan.log {
        Some(log) if log.has_file() => read_report(log.dialect, &files.path(REPORT)),
        _ => output.collector_totals(),
    };
    let left = read_processes_left(&files.path(INFO));
    Ok(Measurement {
        start_millis: progress.ready_at.map(|at| (at - started).as_secs_f64() * 1_000.0),
        lateness: progress.lateness.clone(),
        outcome: outcome(progress, &summary, left, &output),
        peak_bytes: held.peak_bytes,
        end_bytes: held.end_bytes,
        cpu_seconds: summary.cpu_seconds,
        seconds: summary.seconds,
        live_bytes: collected.live_bytes_max,
        collector_percent: (collected.tells_cpu && summary.cpu_seconds > 0.0)
            .then(|| (collected.cpu_millis / 10.0 / summary.cpu_seconds).min(100.0)),
        collections: (collected.count > 0).then_some(collected.count),
        pause_max_millis: (collected.count > 0).then_some(collected.pause_max_millis),
        others_percent: busy.others * 100.0,
    })
}

/// Starts the command under its cap.
fn start(plan: &Plan, applied: &TunedCommand, files: &Files<'_>) -> Result<Child> {
    let mut cap = Command::new(&plan.exe);
    cap.args(["cap", "--with-parent", "--quiet", "--memory", &plan.cap_bytes.to_string()]);
    cap.args(["--interval-millis", &INTERVAL_MILLIS.to_string()]);
    cap.args(["--json", &files.path(SERIES), "--info-file", &files.path(INFO), "--"]);
    cap.args(&applied.command);
    for (name, value) in &applied.environment {
        cap.env(name, value);
    }
    cap.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Only this program gets Ctrl-C of a terminal, and it ends the command in order.
    cap.process_group(0).kill_on_drop(true).spawn().context("starting thimble-lab cap")
}

/// The run while it lasted.
#[derive(Default)]
struct RunProgress {
    /// Why it was given up.
    failure: Option<Outcome>,
    ready_at: Option<Instant>,
    /// Whether the command ended by itself.
    has_ended: bool,
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
    async fn until_end(&self, child: &mut Child) -> Result<RunProgress> {
        let mut progress = RunProgress::default();
        let mut stop = self.stop.clone();
        let waited = tokio::select! {
            at = self.output.until_ready() => Some(at),
            at = self.first_answer() => Some(at),
            _ = child.wait() => { progress.has_ended = true; None }
            () = tokio::time::sleep(self.plan.ready_within) => None,
            _ = stop.wait_for(|stop| *stop) => return self.abort(child).await,
        };
        let Some(at) = waited else {
            if !progress.has_ended {
                let seconds = self.started.elapsed().as_secs_f64();
                let words = format!("not within {seconds:.0} s");
                progress.failure = Some(Outcome::NeverReady(words));
            }
            return Ok(progress);
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
                        progress.failure = Some(Outcome::LoadFailed(words));
                        break;
                    }
                    load = None;
                    if self.plan.until_load_ends {
                        break;
                    }
                }
                _ = child.wait() => { progress.has_ended = true; break }
                () = tokio::time::sleep_until(phase_end) => {
                    if load.is_some() && self.plan.until_load_ends {
                        progress.failure = Some(Outcome::Stalled(format!(
                            "the load did not end within {:.0} s (--seconds)",
                            self.plan.phase.as_secs_f64()
                        )));
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
            if progress.has_ended {
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
        progress.lateness = self.plan.is_late_measured().then(|| all.summary());
        Ok(progress)
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

    async fn abort(&self, child: &mut Child) -> Result<RunProgress> {
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

fn outcome(progress: RunProgress, summary: &Summary, left: u64, output: &Output) -> Outcome {
    let tail = || output.tail();
    if summary.oom_kills > 0 {
        let at =
            accounting::format_size(summary.anonymous_peak_bytes.max(summary.shared_peak_bytes));
        return Outcome::OutOfMemory(format!(
            "after {:.1} s, with {at} of anonymous memory at most\n{}",
            summary.seconds,
            tail()
        ));
    }
    match progress.failure {
        Some(Outcome::NeverReady(words)) => {
            return Outcome::NeverReady(format!("{words}\n{}", tail()));
        }
        Some(failure) => return failure,
        // It was stopped by us.
        None if !progress.has_ended => return Outcome::Lived,
        None => {}
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
    let (mut found, mut held) = (None, UnreclaimableMemory::default());
    let read = series::read(Path::new(path), |line| match line {
        Line::Sample(sample) => {
            let bytes = sample.anonymous_bytes.saturating_add(sample.shared_bytes);
            held.peak_bytes = held.peak_bytes.max(bytes);
            if !sample.processes.is_empty() {
                held.end_bytes = bytes;
            }
        }
        Line::Summary(summary) => found = Some(summary),
        _ => {}
    });
    match read {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(found.map(|summary| (summary, held))),
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
