//! Figures of the operating system about a node: the memory and CPU of all its processes.

use accounting::process::{self, Pid};
use anyhow::Result;

/// One process of the node.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Process {
    /// Process id, as the kernel counts.
    pub pid: u32,
    /// Its role, from its command line.
    pub role: String,
    /// Private memory the kernel cannot take back.
    pub anonymous_bytes: u64,
    /// Mapped files (counted in every process that maps them).
    pub file_bytes: u64,
    /// CPU time so far.
    pub cpu_seconds: f64,
}

/// The node's process and everything below it.
pub fn processes(root: u32) -> Result<Vec<Process>> {
    let all = process::descendants(Pid(root));
    let mut found: Vec<Process> = all.into_iter().filter_map(|pid| process(pid.0).ok()).collect();
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(pid: u32) -> Result<Process> {
    let memory = process::memory(Pid(pid))?;
    let cpu_seconds = process::cpu_time(Pid(pid))?.as_secs_f64();
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let role = command.split('\0').nth(1).filter(|word| !word.is_empty()).unwrap_or("?").to_owned();
    let anonymous_bytes = memory.anonymous_bytes + memory.shared_bytes;
    Ok(Process { pid, role, anonymous_bytes, file_bytes: memory.file_bytes, cpu_seconds })
}

/// Anonymous memory and CPU seconds of all of them.
pub fn totals(processes: &[Process]) -> (u64, f64) {
    processes.iter().fold((0, 0.0), |(bytes, cpu), process| {
        (bytes + process.anonymous_bytes, cpu + process.cpu_seconds)
    })
}

/// Bytes as MiB with one decimal: `12.3 MiB`.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}
