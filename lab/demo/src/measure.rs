//! Figures of the operating system about a node: the memory and CPU of all its processes.

use anyhow::{Context, Result};

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
    let mut pids = vec![root];
    let mut found = Vec::new();
    while let Some(pid) = pids.pop() {
        if let Ok(process) = process(pid) {
            found.push(process);
        }
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        // Children may have been started by other threads of the process.
        if let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) {
            for task in tasks.flatten().filter(|task| task.file_name() != *pid.to_string()) {
                let children =
                    std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
                pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(pid: u32) -> Result<Process> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> u64 {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            * 1024
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("a process's stat line has a name")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks =
        |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let role = command.split('\0').nth(1).filter(|word| !word.is_empty()).unwrap_or("?").to_owned();
    Ok(Process {
        pid,
        role,
        anonymous_bytes: field("RssAnon:") + field("RssShmem:"),
        file_bytes: field("RssFile:"),
        cpu_seconds: (ticks(11) + ticks(12)) as f64 / ticks_per_second,
    })
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
