//! The nodes' memory and CPU over time, from the kernel: for the report, and as a series from which
//! a picture is drawn.
//!
//! Bounds: a sample, and a line of the series, every [`EVERY`]. Must never know: the work of a
//! node.

use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use accounting::{
    cgroup::Cgroup,
    process::{self, Pid},
};
use anyhow::{Context, Result};
use memory_cap::{
    info::Info,
    machine,
    series::{self, Event, FORMAT, Header, Line, ProcessSample, Sample, What},
};

use crate::{report::Memory, tally::lock};

/// Between two samples.
const EVERY: Duration = Duration::from_millis(100);

/// Where figures of a node come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Process(Pid),
    /// A group that `thimble-lab cap` made, by its info file: a node that is started again has
    /// another group, and the same file.
    Capped {
        info_file: PathBuf,
        group: Option<Cgroup>,
    },
}

/// Figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    memory: Memory,
    cpu: Duration,
    oom_kills: u64,
}

impl Source {
    /// Whether the node is known by now.
    pub(crate) fn try_resolve(&mut self) -> bool {
        match self {
            Self::Process(_) => true,
            Self::Capped { info_file, group } => {
                *group = Info::read(info_file).map(|info| info.cgroup());
                group.is_some()
            }
        }
    }

    /// How it ended, and the kernel's kills for lack of memory, where a cap reports them.
    pub(crate) fn ended(&self) -> Option<(String, u64)> {
        match self {
            Self::Process(_) => None,
            Self::Capped { info_file, .. } => {
                Info::read(info_file)?.ended.map(|ended| (ended.how, ended.oom_kills))
            }
        }
    }

    /// `None` when the node is gone.
    fn read(&mut self) -> Option<Reading> {
        match self {
            Self::Process(pid) => {
                let memory = process::memory(*pid).ok()?;
                // One that ended but was not waited for holds none.
                (memory.resident_bytes() > 0).then_some(Reading {
                    memory: Memory {
                        anonymous_bytes: memory.anonymous_bytes + memory.shared_bytes,
                        file_bytes: memory.file_bytes,
                    },
                    cpu: process::cpu_time(*pid).ok()?,
                    oom_kills: 0,
                })
            }
            Self::Capped { group, .. } => {
                if let Some(reading) = group.as_ref().and_then(group_reading) {
                    return Some(reading);
                }
                self.try_resolve();
                let Self::Capped { group, .. } = self else { return None };
                group.as_ref().and_then(group_reading)
            }
        }
    }
}

fn group_reading(group: &Cgroup) -> Option<Reading> {
    let pids = group.processes().ok().filter(|pids| !pids.is_empty())?;
    let memory = group.memory().ok()?;
    let alive = || process::cpu_time_of(pids).unwrap_or_default();
    Some(Reading {
        memory: Memory { anonymous_bytes: memory.anonymous_bytes, file_bytes: memory.file_bytes },
        cpu: group.cpu_time().unwrap_or_else(alive),
        oom_kills: memory.oom_kills,
    })
}

#[derive(Clone, Debug)]
pub(crate) struct WatchedNode {
    pub(crate) label: String,
    pub(crate) source: Source,
    /// 0 for none.
    pub(crate) cap_bytes: u64,
    /// Series of its cap: shows which processes took another's place.
    pub(crate) series: Option<PathBuf>,
}

impl WatchedNode {
    /// Processes that took another's place so far, where a cap counts them.
    pub(crate) fn restarts(&self) -> u64 {
        let mut restarts = 0;
        if let Some(path) = &self.series {
            // A series that is not there yet has none.
            let _ = series::read(path, |line| {
                restarts +=
                    u64::from(matches!(line, Line::Event(event) if event.what == What::Restart));
            });
        }
        restarts
    }
}

/// Figures of the watch about a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeStats {
    pub(crate) now: Memory,
    /// Since the watch began.
    pub(crate) cpu: Duration,
    pub(crate) oom_kills: u64,
    /// Since [`Watch::begin_phase`], the highest of each.
    pub(crate) peak: Memory,
    sum: [u128; 2],
    samples: u64,
    pub(crate) gone: bool,
    last: Option<Reading>,
}

impl NodeStats {
    fn begin_phase(&mut self) {
        (self.peak, self.sum, self.samples) = (self.now, [0; 2], 0);
    }

    fn record(&mut self, reading: Option<Reading>) {
        self.gone = reading.is_none();
        let Some(reading) = reading else { return };
        if let Some(before) = self.last {
            // Figures of a node that was started again begin at nothing.
            self.cpu += reading.cpu.checked_sub(before.cpu).unwrap_or(reading.cpu);
            let kills = reading.oom_kills.checked_sub(before.oom_kills);
            self.oom_kills += kills.unwrap_or(reading.oom_kills);
        }
        self.last = Some(reading);
        self.now = reading.memory;
        self.peak.anonymous_bytes = self.peak.anonymous_bytes.max(self.now.anonymous_bytes);
        self.peak.file_bytes = self.peak.file_bytes.max(self.now.file_bytes);
        self.sum[0] += u128::from(self.now.anonymous_bytes);
        self.sum[1] += u128::from(self.now.file_bytes);
        self.samples += 1;
    }

    /// Over the samples since [`Watch::begin_phase`].
    pub(crate) fn mean(&self) -> Memory {
        let mean =
            |sum: u128| u64::try_from(sum / u128::from(self.samples.max(1))).unwrap_or(u64::MAX);
        match self.samples {
            0 => self.now,
            _ => Memory { anonymous_bytes: mean(self.sum[0]), file_bytes: mean(self.sum[1]) },
        }
    }
}

#[derive(Default)]
struct State {
    seen: Vec<NodeStats>,
    marks: Vec<String>,
    stop: bool,
}

/// Samples nodes from a thread of its own: the driver may be busy.
pub(crate) struct Watch {
    pub(crate) nodes: Vec<WatchedNode>,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
    series: PathBuf,
}

impl Watch {
    /// Watches `nodes` and writes a series, from which a picture can be drawn.
    pub(crate) fn start(
        nodes: Vec<WatchedNode>,
        name: &str,
        command: Option<&str>,
        series: PathBuf,
    ) -> Result<Self> {
        let file = File::create(&series).with_context(|| format!("making {}", series.display()))?;
        let cap_bytes = nodes.iter().map(|node| node.cap_bytes).sum();
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
        let seen = vec![NodeStats::default(); nodes.len()];
        let state = Arc::new(Mutex::new(State { seen, ..State::default() }));
        let (theirs, mut watched) = (state.clone(), nodes.clone());
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            if let Err(error) = watch(&mut watched, &theirs, file, header) {
                eprintln!("stress: the series cannot be written: {error}");
            }
        })?;
        Ok(Self { nodes, state, thread: Some(thread), series })
    }

    /// What was seen so far of each node, in the order of the nodes.
    pub(crate) fn node_stats(&self) -> Vec<NodeStats> {
        lock(&self.state).seen.clone()
    }

    /// Whether no node is left.
    pub(crate) fn all_gone(&self) -> bool {
        lock(&self.state).seen.iter().all(|seen| seen.gone)
    }

    /// Peaks and means count from here on.
    pub(crate) fn begin_phase(&self, name: &str) {
        let mut state = lock(&self.state);
        state.seen.iter_mut().for_each(NodeStats::begin_phase);
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

fn watch(
    nodes: &mut [WatchedNode],
    state: &Mutex<State>,
    file: File,
    header: Header,
) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(file);
    let mut line = |line: Line| {
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")
    };
    line(Line::Header(header))?;
    let started = Instant::now();
    let several = nodes.len() > 1;
    loop {
        let readings: Vec<_> = nodes.iter_mut().map(|node| node.source.read()).collect();
        let seconds = started.elapsed().as_secs_f64();
        let event =
            |what: What, text: String| Line::Event(Event { seconds, what, text, pid: None });
        let (marks, stop, before, seen) = {
            let mut state = lock(state);
            let before = state.seen.clone();
            state.seen.iter_mut().zip(&readings).for_each(|(seen, reading)| seen.record(*reading));
            (std::mem::take(&mut state.marks), state.stop, before, state.seen.clone())
        };
        for text in marks {
            line(event(What::Mark, text))?;
        }
        for ((node, before), now) in nodes.iter().zip(&before).zip(&seen) {
            let whose = if several { format!("{}: ", node.label) } else { String::new() };
            if now.gone && !before.gone {
                line(event(What::Exit, format!("{whose}gone")))?;
            }
            if now.oom_kills > before.oom_kills {
                line(event(What::OomKill, format!("{whose}OOM kill")))?;
            }
        }
        let alive: Vec<_> =
            nodes.iter().zip(&seen).enumerate().filter(|(_, (_, seen))| !seen.gone).collect();
        if !alive.is_empty() {
            let sum = |of: fn(&NodeStats) -> u64| alive.iter().map(|(_, (_, seen))| of(seen)).sum();
            let each =
                |(index, (node, seen)): &(usize, (&WatchedNode, &NodeStats))| ProcessSample {
                    pid: *index as u32,
                    role: node.label.clone(),
                    anonymous_bytes: seen.now.anonymous_bytes,
                    file_bytes: seen.now.file_bytes,
                };
            line(Line::Sample(Sample {
                seconds,
                anonymous_bytes: sum(|seen| seen.now.anonymous_bytes),
                file_bytes: sum(|seen| seen.now.file_bytes),
                cpu_seconds: seen.iter().map(|seen| seen.cpu.as_secs_f64()).sum(),
                oom_kills: seen.iter().map(|seen| seen.oom_kills).sum(),
                load: machine::load(),
                processes: if several { alive.iter().map(each).collect() } else { vec![] },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(anonymous_bytes: u64, cpu_millis: u64, oom_kills: u64) -> Option<Reading> {
        let memory = Memory { anonymous_bytes, file_bytes: 1 };
        Some(Reading { memory, cpu: Duration::from_millis(cpu_millis), oom_kills })
    }

    #[test]
    fn a_node_that_is_started_again_goes_on_counting() {
        let mut seen = NodeStats::default();
        seen.record(reading(10, 500, 0));
        seen.begin_phase();
        for (bytes, cpu, kills) in [(20, 600, 0), (60, 700, 1)] {
            seen.record(reading(bytes, cpu, kills));
        }
        seen.record(None);
        assert!(seen.gone && seen.now.anonymous_bytes == 60);
        seen.record(reading(10, 50, 1));
        assert!(!seen.gone);
        assert_eq!((seen.cpu.as_millis(), seen.oom_kills), (250, 1));
        assert_eq!((seen.peak.anonymous_bytes, seen.mean().anonymous_bytes), (60, 30));
    }

    #[test]
    fn a_phase_without_samples_has_the_memory_from_before() {
        let mut seen = NodeStats::default();
        seen.record(reading(10, 500, 0));
        seen.begin_phase();
        assert_eq!((seen.peak.anonymous_bytes, seen.mean().anonymous_bytes), (10, 10));
    }
}
