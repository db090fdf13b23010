//! Lines for the host, and samples of the machine's memory.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::fd::AsRawFd,
    sync::Mutex,
    time::{Duration, Instant},
};

use accounting::process::{self, Pid};
use anyhow::{Context, Result};

use super::REPORT_DEVICE;
use crate::line::{EndReport, Line, PROCESSES_MAX, Process, Sample};

/// The second serial port.
pub(super) struct Port(Mutex<File>);

impl Port {
    pub(super) fn open() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(REPORT_DEVICE)
            .with_context(|| format!("opening {REPORT_DEVICE}"))?;
        // SAFETY: an all-zero termios is a value of it, which tcgetattr overwrites; the descriptor
        // is open.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(file.as_raw_fd(), &mut settings) == 0 {
                libc::cfmakeraw(&mut settings);
                libc::tcsetattr(file.as_raw_fd(), libc::TCSANOW, &settings);
            }
        }
        Ok(Self(Mutex::new(file)))
    }

    /// A host that does not listen misses it.
    pub(super) fn send(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        if let Ok(mut file) = self.0.lock() {
            let _ = file.write_all(&text);
        }
    }

    pub(super) fn ended(&self, ended: EndReport) {
        self.send(&Line::Ended(ended));
        if let Ok(file) = self.0.lock() {
            // Until the last bit has left the port.
            // SAFETY: the descriptor is open.
            unsafe { libc::tcdrain(file.as_raw_fd()) };
        }
    }
}

/// Samples for as long as the machine runs.
pub(super) fn sample_for_ever(port: &Port, machine_bytes: u64, interval: Duration) {
    let mut next = Instant::now();
    loop {
        port.send(&Line::Sample(sample(machine_bytes)));
        next += interval;
        // A machine that was paused does not catch up on samples it missed.
        let now = Instant::now();
        next = next.max(now);
        std::thread::sleep(next - now);
    }
}

/// Reads one sample of the machine's memory from `/proc`.
fn sample(machine_bytes: u64) -> Sample {
    let memory = Table::read("/proc/meminfo");
    let events = Table::read("/proc/vmstat");
    let kib = |name: &str| memory.get(name) << 10;
    let shared = kib("Shmem:");
    let anonymous = kib("AnonPages:") + shared;
    let file = (kib("Cached:") + kib("Buffers:")).saturating_sub(shared);
    Sample {
        seconds: seconds_of("/proc/uptime"),
        anonymous_bytes: anonymous,
        file_bytes: file,
        shared_bytes: shared,
        kernel_bytes: machine_bytes.saturating_sub(kib("MemFree:") + anonymous + file),
        available_bytes: kib("MemAvailable:"),
        cpu_seconds: cpu_seconds(),
        major_faults: events.get("pgmajfault"),
        oom_kills: events.get("oom_kill"),
        pressure_some_percent: accounting::pressure::machine_memory()
            .map(|pressure| f64::from(pressure.some.avg10_hundredths) / 100.0),
        processes: processes(),
    }
}

/// Total memory without the kernel image, and available memory.
pub(super) fn total_and_available_bytes() -> (u64, u64) {
    let memory = Table::read("/proc/meminfo");
    (memory.get("MemTotal:") << 10, memory.get("MemAvailable:") << 10)
}

/// A file of lines `name number ...`.
struct Table(String);

impl Table {
    fn read(path: &str) -> Self {
        Self(fs::read_to_string(path).unwrap_or_default())
    }

    /// 0 if the entry is missing.
    fn get(&self, name: &str) -> u64 {
        let line =
            self.0.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

fn seconds_of(path: &str) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// User, nice and system time of the first line of /proc/stat.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = text
        .lines()
        .next()
        .map(|line| {
            line.split_whitespace()
                .skip(1)
                .take(3)
                .filter_map(|word| word.parse::<u64>().ok())
                .sum()
        })
        .unwrap_or(0);
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Processes that have memory of their own, without this one.
fn processes() -> Vec<Process> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Threads of the kernel have none.
        let Ok(memory) = process::memory(Pid(pid)) else { continue };
        if pid == 1 || memory.resident_bytes() == 0 {
            continue;
        }
        processes.push(Process {
            pid,
            role: process::role(Pid(pid)).unwrap_or_default(),
            anonymous_bytes: memory.anonymous_bytes + memory.shared_bytes,
            file_bytes: memory.file_bytes,
        });
    }
    processes.sort_by_key(|process| (std::cmp::Reverse(process.anonymous_bytes), process.pid));
    processes.truncate(PROCESSES_MAX);
    processes
}
