//! Reports of a machine to its host, one JSON document a line, on its second serial port.
//!
//! The host treats them as untrusted: lines are at most [`LINE_BYTES_MAX`] long, invalid lines are
//! skipped.

use serde::{Deserialize, Serialize};

/// Longest line; a sample of sixty processes has half of it.
pub const LINE_BYTES_MAX: usize = 16 << 10;
/// Processes in a sample.
pub const PROCESSES_MAX: usize = 64;

/// One report of a machine to its host.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The node is about to be started.
    Started(StartReport),
    /// Figures of the kernel at one moment.
    Sample(Sample),
    /// The node ended, or could not be started; the machine powers off or restarts after it.
    Ended(EndReport),
}

/// The sum of the machine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct StartReport {
    /// Memory of the machine, as stated by its host.
    pub machine_bytes: u64,
    /// Memory reserved for the kernel, before and while the node runs.
    pub kernel_bytes: u64,
    /// Memory that remains for the node.
    pub left_bytes: u64,
    /// The node's budget.
    pub budget_bytes: u64,
}

/// Figures of the kernel at one moment, in bytes; times since the start of the kernel.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Sample {
    /// Seconds since the start of the kernel.
    pub seconds: f64,
    /// Anonymous memory of all processes, shared memory included.
    pub anonymous_bytes: u64,
    /// Page cache without shared memory.
    pub file_bytes: u64,
    /// The part of `anonymous_bytes` that is shared memory and tmpfs.
    pub shared_bytes: u64,
    /// The kernel's own: slab, page tables, stacks, and what it took before the first process.
    pub kernel_bytes: u64,
    /// Available memory.
    pub available_bytes: u64,
    /// CPU time of all processes and the kernel.
    pub cpu_seconds: f64,
    /// Page faults so far that read from disk.
    pub major_faults: u64,
    /// Processes killed for lack of memory so far.
    pub oom_kills: u64,
    /// Share of the last 10 s in which at least one task waited for memory, where the kernel
    /// reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure_some_percent: Option<f64>,
    /// The node's processes, the largest first, at most [`PROCESSES_MAX`].
    pub processes: Vec<Process>,
}

/// One process at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Process {
    /// Its id in the machine.
    pub pid: u32,
    /// Its program and subcommand.
    pub role: String,
    /// Anonymous and shared memory.
    pub anonymous_bytes: u64,
    /// File pages it maps.
    pub file_bytes: u64,
}

/// How the node ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct EndReport {
    /// A text: `exit 1`, `ended by SIGKILL`, `not started: ...`.
    pub how: String,
    /// The machine was asked to stop before.
    pub was_asked: bool,
    /// The next action of the machine: `power off` or `start anew`.
    pub then: String,
}

/// Reads a line; `None` when it does not have this format.
pub fn parse(bytes: &[u8]) -> Option<Line> {
    if bytes.len() > LINE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written_and_anything_else_is_none() {
        let process = Process { pid: 7, role: "thimble run".into(), ..Process::default() };
        let sample =
            Sample { seconds: 1.5, processes: vec![process; PROCESSES_MAX], ..Sample::default() };
        for line in [
            Line::Started(StartReport { machine_bytes: 1 << 28, ..StartReport::default() }),
            Line::Sample(sample),
            Line::Ended(EndReport {
                how: "exit 1".into(),
                was_asked: false,
                then: "power off".into(),
            }),
        ] {
            let text = serde_json::to_vec(&line).unwrap();
            assert!(text.len() < LINE_BYTES_MAX / 2, "{}", text.len());
            assert_eq!(parse(&text), Some(line));
        }
        for text in ["", "{}", "{\"kind\":\"sample\"}", "[1", "\u{0}\u{0}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(&vec![b' '; LINE_BYTES_MAX + 1]), None);
    }
}
