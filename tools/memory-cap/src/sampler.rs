//! Takes samples, and detects events between two of them: kills, processes that came and went,
//! restarts.
//!
//! A process is announced in the second sample that sees it, under the time of the first: between
//! fork and exec it would have the name of its parent. One that lives for less than a sample is not
//! seen at all. Memory is bounded by the number of live processes, never by the duration of the
//! run.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use accounting::{
    cgroup::Cgroup,
    pressure,
    process::{self, Pid},
};

use super::series::{Event, ProcessSample, Restarts, Sample, What};
use crate::machine;

/// Most processes listed in a sample, the largest first.
const LISTED_MAX: usize = 64;
/// Most processes watched; a group with more is sampled as a whole, and the rest of its processes
/// are only counted.
const WATCHED_MAX: usize = 512;
/// Most roles whose restarts are counted.
const ROLES_MAX: usize = 128;

/// A process that is, or was in the sample before.
struct TrackedProcess {
    role: String,
    first_seconds: f64,
    announced: bool,
    cpu: Duration,
}

/// History of the processes of one role.
#[derive(Default)]
struct Role {
    /// Processes that died and were not yet replaced.
    missed: u64,
    restarts: u64,
}

pub(crate) struct Sampler {
    started: Instant,
    main: Pid,
    watched: BTreeMap<Pid, TrackedProcess>,
    roles: BTreeMap<String, Role>,
    oom_kills: u64,
    /// CPU time of processes that ended; for groups that do not count it themselves.
    cpu_of_the_dead: Duration,
    stalled_micros_before: u64,
    stalled_micros: Option<u64>,
}

impl Sampler {
    pub(crate) fn new(group: &Cgroup, main: Pid, started: Instant) -> Self {
        Self {
            started,
            main,
            watched: BTreeMap::new(),
            roles: BTreeMap::new(),
            oom_kills: 0,
            cpu_of_the_dead: Duration::ZERO,
            // The machine's counter has run since long before.
            stalled_micros_before: match group.tells_pressure() {
                true => 0,
                false => {
                    pressure::machine_memory().map_or(0, |pressure| pressure.some.total_micros)
                }
            },
            stalled_micros: None,
        }
    }

    /// One sample, and what was noticed since the one before.
    pub(crate) fn take(&mut self, group: &Cgroup) -> anyhow::Result<(Sample, Vec<Event>)> {
        let memory = group.memory()?;
        let pressure = group.pressure();
        let seconds = round(self.started.elapsed().as_secs_f64());
        let mut events = Vec::new();
        if memory.oom_kills > self.oom_kills {
            let kills = memory.oom_kills - self.oom_kills;
            let text =
                if kills == 1 { "OOM kill".to_owned() } else { format!("{kills} OOM kills") };
            events.push(Event { seconds, what: What::OomKill, text, pid: None });
            self.oom_kills = memory.oom_kills;
        }
        let pids = group.processes()?;
        let mut processes = self.watch(&pids, seconds, &mut events);
        processes.sort_by_key(|process| std::cmp::Reverse(process.anonymous_bytes));
        processes.truncate(LISTED_MAX);
        let alive = self.watched.values().map(|watched| watched.cpu).sum::<Duration>();
        let percent = |hundredths: u32| f64::from(hundredths) / 100.0;
        if let Some(pressure) = pressure {
            self.stalled_micros =
                Some(pressure.some.total_micros.saturating_sub(self.stalled_micros_before));
        }
        let sample = Sample {
            seconds,
            anonymous_bytes: memory.anonymous_bytes,
            file_bytes: memory.file_bytes,
            shared_bytes: memory.shared_bytes,
            charged_bytes: memory.usage_bytes,
            kernel_bytes: memory.kernel_bytes,
            swap_bytes: memory.swap_bytes,
            pressure_some_percent: pressure.map(|pressure| percent(pressure.some.avg10_hundredths)),
            pressure_full_percent: pressure.map(|pressure| percent(pressure.full.avg10_hundredths)),
            cpu_seconds: round(
                group.cpu_time().unwrap_or(self.cpu_of_the_dead + alive).as_secs_f64(),
            ),
            major_faults: memory.major_faults,
            oom_kills: memory.oom_kills,
            load: machine::load(),
            processes_not_listed: pids.len().saturating_sub(processes.len()),
            processes,
        };
        Ok((sample, events))
    }

    fn watch(&mut self, pids: &[Pid], seconds: f64, events: &mut Vec<Event>) -> Vec<ProcessSample> {
        let mut now = BTreeMap::new();
        let mut samples = Vec::new();
        let mut arrived = Vec::new();
        for pid in pids.iter().copied().take(WATCHED_MAX) {
            // One that ends while it is read is missed by the next sample.
            let (Ok(memory), Ok(role)) = (process::memory(pid), process::role(pid)) else {
                continue;
            };
            let cpu = process::cpu_time(pid).unwrap_or_default();
            let watched = match self.watched.remove(&pid) {
                // Less CPU time than before: another process with its id.
                Some(before) if before.cpu <= cpu => {
                    if !before.announced {
                        arrived.push((pid, role.clone(), before.first_seconds));
                    }
                    // The name of a process is settled once it is announced. The command itself is
                    // not, and may be a shell that became another program.
                    let settled = before.announced && pid != self.main;
                    let role = if settled { before.role } else { role };
                    TrackedProcess { role, announced: true, cpu, ..before }
                }
                other => {
                    if let Some(before) = other {
                        self.watched.insert(pid, before);
                    }
                    TrackedProcess { role, first_seconds: seconds, announced: false, cpu }
                }
            };
            samples.push(ProcessSample {
                pid: pid.0,
                role: watched.role.clone(),
                anonymous_bytes: memory.anonymous_bytes.saturating_add(memory.shared_bytes),
                file_bytes: memory.file_bytes,
            });
            now.insert(pid, watched);
        }
        // Deaths first: a new process may take the place of one that died in the same interval.
        let gone = std::mem::replace(&mut self.watched, now);
        for (pid, watched) in gone {
            self.cpu_of_the_dead += watched.cpu;
            if !watched.announced {
                self.announce(pid, watched.role.clone(), watched.first_seconds, events);
            }
            self.role(&watched.role).missed += 1;
            if pid != self.main {
                let text = format!("{} ended", watched.role);
                events.push(Event { seconds, what: What::ProcessDied, text, pid: Some(pid.0) });
            }
        }
        for (pid, role, first_seconds) in arrived {
            self.announce(pid, role, first_seconds, events);
        }
        samples
    }

    fn announce(&mut self, pid: Pid, role: String, seconds: f64, events: &mut Vec<Event>) {
        if pid == self.main {
            return;
        }
        let known = self.role(&role);
        let (what, text) = if known.missed > 0 {
            known.missed -= 1;
            known.restarts += 1;
            (What::Restart, format!("{role} again"))
        } else {
            (What::ProcessStarted, role)
        };
        events.push(Event { seconds, what, text, pid: Some(pid.0) });
    }

    fn role(&mut self, role: &str) -> &mut Role {
        let known = self.roles.contains_key(role) || self.roles.len() < ROLES_MAX;
        // Beyond that many, the rest share one line.
        self.roles.entry(if known { role.to_owned() } else { "others".to_owned() }).or_default()
    }

    /// By role, those that happened.
    pub(crate) fn restarts(&self) -> Vec<Restarts> {
        let restarted = self.roles.iter().filter(|(_, role)| role.restarts > 0);
        restarted
            .map(|(name, role)| Restarts { role: name.clone(), count: role.restarts })
            .collect()
    }

    /// Time since the start in which at least one task waited for memory.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        self.stalled_micros.map(Duration::from_micros)
    }
}

/// To milliseconds: more digits would only make the file longer.
pub fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
