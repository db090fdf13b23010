//! In place of sysinfo: the consensus engine asks for the memory of its own process every ten
//! seconds, for two metrics of its own.

use std::fs;

/// Bytes of a page on x86-64.
const PAGE_BYTES: u64 = 4096;

/// A process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(u32);

impl Pid {
    /// The process with this id.
    pub fn from_u32(pid: u32) -> Self {
        Self(pid)
    }
}

/// Processes to be read.
#[derive(Clone, Copy, Debug)]
pub enum ProcessesToUpdate<'a> {
    /// These; the first of them.
    Some(&'a [Pid]),
}

/// Figures to be read: always memory.
#[derive(Clone, Copy, Debug)]
pub struct ProcessRefreshKind(());

impl ProcessRefreshKind {
    /// No figures.
    pub fn nothing() -> Self {
        Self(())
    }

    /// And memory.
    #[must_use]
    pub fn with_memory(self) -> Self {
        self
    }
}

/// Memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pid: Pid,
    resident_bytes: u64,
    virtual_bytes: u64,
}

impl Process {
    /// Resident bytes.
    pub fn memory(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes of address space.
    pub fn virtual_memory(&self) -> u64 {
        self.virtual_bytes
    }
}

/// The newest reading.
#[derive(Debug, Default)]
pub struct System(Option<Process>);

impl System {
    /// Without a reading.
    pub fn new() -> Self {
        Self(None)
    }

    /// Reads the process; it is forgotten if it has gone.
    pub fn refresh_processes_specifics(
        &mut self,
        processes: ProcessesToUpdate<'_>,
        _remove_dead: bool,
        _figures: ProcessRefreshKind,
    ) {
        let ProcessesToUpdate::Some(pids) = processes;
        self.0 = pids.first().copied().and_then(read);
    }

    /// The process, if it was read.
    pub fn process(&self, pid: Pid) -> Option<&Process> {
        self.0.as_ref().filter(|process| process.pid == pid)
    }
}

/// `/proc/PID/statm` has pages: all, resident, and others.
fn read(pid: Pid) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{}/statm", pid.0)).ok()?;
    let mut pages = text.split_ascii_whitespace().map(str::parse::<u64>);
    let virtual_bytes = pages.next()?.ok()? * PAGE_BYTES;
    let resident_bytes = pages.next()?.ok()? * PAGE_BYTES;
    Some(Process { pid, resident_bytes, virtual_bytes })
}
