//! The node under load as a process: started, perhaps in a memory-capped group, watched, stopped.
//!
//! What bounds it: waits have ends; a series line every [`EVERY`]. What it must never know: what the
//! node does. Everything here comes from the kernel and from `thimble-lab cap`.

use std::{
    fs::{self, File},
    io::Write,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use budget::{
    cgroup::{Cgroup, Place, Version},
    process::{self, Pid},
};
use rustix::process::{Signal, kill_process};
use serde::Deserialize;
use testnet::{
    cap::series::{self, Event, FORMAT, Header, Line, Sample, What},
    machine,
};

use crate::tally::lock;

/// Between two samples.
const EVERY: Duration = Duration::from_millis(100);
const STARTED_WITHIN: Duration = Duration::from_secs(10);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is shown of a node's log when it does not start.
const LOG_TAIL_BYTES: usize = 2000;

/// Where figures of a node come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Process(Pid),
    Group(Cgroup),
}

/// Figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) cpu: Duration,
    pub(crate) oom_kills: u64,
}

impl Source {
    /// `None` when the node is gone.
    fn read(&self) -> Option<Reading> {
        match self {
            Self::Process(pid) => {
                let memory = process::memory(*pid).ok()?;
                // One that ended but was not waited for holds none.
                (memory.resident_bytes() > 0).then_some(Reading {
                    anonymous_bytes: memory.anonymous_bytes + memory.shared_bytes,
                    file_bytes: memory.file_bytes,
                    cpu: process::cpu_time(*pid).ok()?,
                    oom_kills: 0,
                })
            }
            Self::Group(group) => {
                let pids = group.processes().ok().filter(|pids| !pids.is_empty())?;
                let memory = group.memory().ok()?;
                let alive = || process::cpu_time_of(pids).map(|sum| sum.total).unwrap_or_default();
                Some(Reading {
                    anonymous_bytes: memory.anonymous_bytes,
                    file_bytes: memory.file_bytes,
                    cpu: group.cpu_time().unwrap_or_else(alive),
                    oom_kills: memory.oom_kills,
                })
            }
        }
    }
}

/// What the watch has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) now: Reading,
    /// Since [`Watch::begin_phase`].
    pub(crate) anonymous_peak_bytes: u64,
    pub(crate) file_peak_bytes: u64,
    pub(crate) gone: bool,
}

#[derive(Default)]
struct State {
    seen: Seen,
    marks: Vec<String>,
    stop: bool,
}

/// Samples a node from a thread of its own: the driver may be busy.
pub(crate) struct Watch {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
    series: PathBuf,
}

impl Watch {
    /// Watches `source` and writes a series, from which a picture can be drawn.
    pub(crate) fn start(
        source: Source,
        name: &str,
        command: Option<&str>,
        cap_bytes: u64,
        series: PathBuf,
    ) -> Result<Self> {
        let file = File::create(&series).with_context(|| format!("making {}", series.display()))?;
        let header = Header {
            format: FORMAT,
            name: name.to_owned(),
            machine: machine::describe(),
            cap_bytes,
            command: command.map(str::to_owned).into_iter().collect(),
            group: if cap_bytes > 0 { "cap" } else { "none" }.into(),
            pressure_of: "none".into(),
            interval_millis: EVERY.as_millis() as u64,
            started: machine::now().0,
            ..Header::default()
        };
        let state = Arc::new(Mutex::new(State::default()));
        let theirs = state.clone();
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            if let Err(error) = watch(&source, &theirs, file, header) {
                eprintln!("stress: the series cannot be written: {error}");
            }
        })?;
        Ok(Self { state, thread: Some(thread), series })
    }

    pub(crate) fn seen(&self) -> Seen {
        lock(&self.state).seen
    }

    /// Peaks count from here on.
    pub(crate) fn begin_phase(&self, name: &str) {
        let mut state = lock(&self.state);
        let now = state.seen.now;
        state.seen.anonymous_peak_bytes = now.anonymous_bytes;
        state.seen.file_peak_bytes = now.file_bytes;
        state.marks.push(name.to_owned());
    }

    pub(crate) fn mark(&self, text: &str) {
        lock(&self.state).marks.push(text.to_owned());
    }

    /// Ends the series; gives where it is.
    pub(crate) fn finish(mut self) -> PathBuf {
        self.end();
        std::mem::take(&mut self.series)
    }

    fn end(&mut self) {
        lock(&self.state).stop = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn watch(source: &Source, state: &Mutex<State>, file: File, header: Header) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(file);
    let mut line = |line: Line| {
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")
    };
    line(Line::Header(header))?;
    let started = Instant::now();
    let (mut cpu_before, mut oom_kills) = (None, 0);
    loop {
        let reading = source.read();
        let seconds = started.elapsed().as_secs_f64();
        let (marks, stop, newly_gone) = {
            let mut state = lock(state);
            let seen = &mut state.seen;
            let newly_gone = reading.is_none() && !seen.gone;
            seen.gone = reading.is_none();
            if let Some(now) = reading {
                seen.now = now;
                seen.anonymous_peak_bytes = seen.anonymous_peak_bytes.max(now.anonymous_bytes);
                seen.file_peak_bytes = seen.file_peak_bytes.max(now.file_bytes);
            }
            (std::mem::take(&mut state.marks), state.stop, newly_gone)
        };
        for text in marks {
            line(Line::Event(Event { seconds, what: What::Mark, text, pid: None }))?;
        }
        if newly_gone {
            let text = "the node is gone".to_owned();
            line(Line::Event(Event { seconds, what: What::Exit, text, pid: None }))?;
        }
        if let Some(now) = reading {
            if now.oom_kills > oom_kills {
                let text = "OOM kill".to_owned();
                line(Line::Event(Event { seconds, what: What::OomKill, text, pid: None }))?;
                oom_kills = now.oom_kills;
            }
            let cpu_from = *cpu_before.get_or_insert(now.cpu);
            line(Line::Sample(Sample {
                seconds,
                anonymous_bytes: now.anonymous_bytes,
                file_bytes: now.file_bytes,
                cpu_seconds: now.cpu.saturating_sub(cpu_from).as_secs_f64(),
                oom_kills,
                load: machine::load(),
                ..Sample::default()
            }))?;
        }
        if stop {
            break;
        }
        std::thread::sleep(EVERY);
    }
    file.flush()
}

/// What `thimble-lab cap --info-file` writes, as far as it is used.
#[derive(Deserialize)]
struct Info {
    group: String,
    directory: PathBuf,
}

/// How a node ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    /// In words.
    pub(crate) how: String,
    pub(crate) oom_kills: u64,
    pub(crate) restarts: u64,
}

/// A node that this run started. Stopped when it is dropped.
pub(crate) struct Node {
    child: Child,
    /// Folder of logs and of the node's own files.
    folder: PathBuf,
    capped: bool,
}

/// A port nobody listens on at the moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

impl Node {
    /// Starts `command` by `sh`, in a group of `memory_bytes` if that is given, which needs this
    /// program to be `thimble-lab`. Its placeholders are filled in: `{port}`, `{folder}`, `{memory}`.
    pub(crate) fn start(command: &str, memory_bytes: Option<u64>, folder: &Path, port: u16) -> Result<Self> {
        let home = folder.join("node");
        fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
        let memory = memory_bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let command = command
            .replace("{port}", &port.to_string())
            .replace("{folder}", &home.to_string_lossy())
            .replace("{memory}", &memory);
        let line = format!("exec {command}");
        let log = folder.join("node.log");
        let mut starting = match memory_bytes {
            None => {
                let log = File::create(&log)?;
                let mut starting = Command::new("sh");
                starting.args(["-c", &line]).stdout(log.try_clone()?).stderr(log);
                starting
            }
            Some(_) => {
                let mut starting = Command::new(std::env::current_exe()?);
                starting.args(["cap", "--memory", &memory, "--info-file"]);
                starting.arg(folder.join("info.json")).arg("--json").arg(folder.join("cap.jsonl"));
                starting.arg("--log").arg(&log).args(["--", "sh", "-c", &line]);
                starting.stdout(Stdio::null()).stderr(File::create(folder.join("cap.log"))?);
                starting
            }
        };
        // Out of reach of the terminal: a Ctrl-C is ours to pass on, once.
        starting.stdin(Stdio::null()).process_group(0);
        let child = starting.spawn().with_context(|| format!("starting {command}"))?;
        Ok(Self { child, folder: folder.to_owned(), capped: memory_bytes.is_some() })
    }

    /// Where its figures come from.
    pub(crate) async fn source(&mut self) -> Result<Source> {
        if !self.capped {
            return Ok(Source::Process(Pid(self.child.id())));
        }
        let deadline = Instant::now() + STARTED_WITHIN;
        loop {
            if let Ok(bytes) = fs::read(self.folder.join("info.json"))
                && let Ok(info) = serde_json::from_slice::<Info>(&bytes)
            {
                let version = if info.group == "v1" { Version::V1 } else { Version::V2 };
                let place = Place { directory: info.directory.clone(), mount: info.directory };
                return Ok(Source::Group(Cgroup::at(version, place, None)));
            }
            if self.has_ended() || Instant::now() > deadline {
                bail!("the node could not be started under a cap:\n{}", self.last_words());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it and its cap printed.
    pub(crate) fn last_words(&self) -> String {
        let read = |name: &str| fs::read(self.folder.join(name)).unwrap_or_default();
        let text = [read("cap.log"), read("node.log")].concat();
        let tail = text.get(text.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    fn terminate(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Stops it and says how it ended. Errors: it does not stop.
    pub(crate) async fn stop(mut self) -> Result<Ended> {
        let before = self.has_ended();
        if !before {
            self.terminate();
        }
        let deadline = Instant::now() + STOPPED_WITHIN;
        while !self.has_ended() {
            if Instant::now() > deadline {
                bail!("the node did not stop within {} s of SIGTERM", STOPPED_WITHIN.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let status = self.child.wait()?;
        let mut ended = Ended { how: status.to_string(), ..Ended::default() };
        if before {
            ended.how = format!("by itself, {status}");
        }
        if self.capped {
            series::read(&self.folder.join("cap.jsonl"), |line| {
                if let Line::Summary(summary) = line {
                    ended.oom_kills = summary.oom_kills;
                    ended.restarts = summary.restarts.iter().map(|restarts| restarts.count).sum();
                    ended.how =
                        if before { format!("by itself, {}", summary.ended) } else { summary.ended.clone() };
                }
            })?;
        }
        Ok(ended)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The second SIGTERM makes a cap kill its group; a cap itself is never killed, because it has
        // the group to remove.
        for _ in 0..2 {
            if self.has_ended() {
                return;
            }
            self.terminate();
            let deadline = Instant::now() + STOPPED_WITHIN;
            while Instant::now() < deadline {
                if self.has_ended() {
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if !self.capped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
