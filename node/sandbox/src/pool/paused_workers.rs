//! Workers that hold a paused message, until it is resumed (docs/internals/sandbox.md).
//!
//! Such a worker takes one of `sandbox.paused_workers` places, writes what the message holds into a
//! file without a name, and may not exceed the budget sheet's limits on memory and disk. One that
//! finds no place, cannot do so, or has to give up its place is ended, and its message runs again
//! from its beginning: that costs this machine time and changes nothing else. The oldest messages
//! are granted slices first, so where places are short the youngest loses its own.

use std::{collections::BTreeMap, fs::File, os::fd::AsRawFd};

use pages::{MemoryId, MemoryLayout};

use super::lane::{Worker, WorkerError};
use crate::SlicedName;

/// A worker that holds a paused message.
#[derive(Debug)]
pub(super) struct PausedWorker {
    pub(super) worker: Worker,
    /// Instructions it was granted.
    pub(super) granted: u64,
    /// File of its pages, calls and answer.
    pub(super) spill: File,
    /// Disk space of that file.
    pub(super) spilled_bytes: u64,
    /// The worker still reads from these, so they must not change.
    pub(super) layouts: [MemoryLayout; 2],
}

impl PausedWorker {
    /// Checks that all written data reached the disk: the kernel may have dropped data that could
    /// not be written, which then reads as it was before. It reports that to holders of the open
    /// file.
    pub(super) fn check_writeback(&self) -> Result<(), WorkerError> {
        // Behind the end there is nothing to wait for.
        let (behind, bytes) = (i64::MAX - 1, 1);
        // SAFETY: the descriptor is open; the call takes no pointer.
        let asked = unsafe {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
            libc::sync_file_range(self.spill.as_raw_fd(), behind, bytes, flags)
        };
        let error = std::io::Error::last_os_error();
        // A system without the call cannot report it.
        if asked == 0 || error.raw_os_error() == Some(libc::ENOSYS) {
            return Ok(());
        }
        Err(WorkerError::Spill(error.to_string()))
    }

    /// Whether what it reads was overwritten.
    fn is_cut_off(&self) -> bool {
        self.layouts.iter().any(MemoryLayout::is_cut_off)
    }
}

#[derive(Debug)]
pub(super) struct PausedWorkers {
    most: usize,
    waiting: BTreeMap<SlicedName, PausedWorker>,
    /// Process ids of those that run now, and what they have on disk.
    running: BTreeMap<SlicedName, (u32, u64)>,
}

impl PausedWorkers {
    pub(super) fn new(most: u64) -> Self {
        Self {
            most: usize::try_from(most).unwrap_or(usize::MAX),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Takes the message out to be resumed, if it is here; it keeps its place.
    pub(super) fn take(&mut self, name: &SlicedName) -> Option<PausedWorker> {
        let paused = self.waiting.remove(name).filter(|paused| !paused.is_cut_off())?;
        self.running.insert(*name, (paused.worker.pid(), paused.spilled_bytes));
        Some(paused)
    }

    /// The message that was taken out is over, or its worker is.
    pub(super) fn leave(&mut self, name: &SlicedName) {
        self.running.remove(name);
    }

    /// Makes room for a paused message of the worker `pid`, which is to be kept. Returns whether
    /// there is room, and a place to be ended if one had to be given up.
    pub(super) fn make_room(&mut self, name: SlicedName, pid: u32) -> (bool, Option<PausedWorker>) {
        self.running.insert(name, (pid, 0));
        if self.waiting.len() + self.running.len() <= self.most {
            return (true, None);
        }
        if self.waiting.last_key_value().is_some_and(|(youngest, _)| *youngest > name) {
            return (true, self.waiting.pop_last().map(|(_, paused)| paused));
        }
        self.running.remove(&name);
        (false, None)
    }

    /// Keeps a paused message that there is room for. A returned place is to be ended.
    pub(super) fn keep(&mut self, name: SlicedName, paused: PausedWorker) -> Option<PausedWorker> {
        self.running.remove(&name);
        if paused.is_cut_off() {
            return Some(paused);
        }
        self.waiting.insert(name, paused)
    }

    /// Disk space of all but this one.
    pub(super) fn spilled(&self, but: &SlicedName) -> u64 {
        let waiting = self.waiting.iter().map(|(name, paused)| (name, paused.spilled_bytes));
        let running = self.running.iter().map(|(name, (_, bytes))| (name, *bytes));
        waiting.chain(running).filter(|(name, _)| *name != but).map(|(_, bytes)| bytes).sum()
    }

    /// The message will not be resumed.
    pub(super) fn abandon(&mut self, name: &SlicedName) -> Option<PausedWorker> {
        self.waiting.remove(name)
    }

    /// Gives up the message that began last.
    pub(super) fn evict_youngest(&mut self) -> Option<PausedWorker> {
        self.waiting.pop_last().map(|(_, paused)| paused)
    }

    /// Gives up those that have one of these memories mapped.
    pub(super) fn forget(&mut self, memories: &[MemoryId]) -> Vec<PausedWorker> {
        let maps =
            |paused: &PausedWorker| paused.layouts.iter().any(|at| memories.contains(&at.id));
        let names = self.waiting.iter().filter(|(_, paused)| maps(paused)).map(|(name, _)| *name);
        let names: Vec<SlicedName> = names.collect();
        names.iter().filter_map(|name| self.waiting.remove(name)).collect()
    }

    /// Process ids of all workers here.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        let waiting = self.waiting.values().map(|paused| paused.worker.pid());
        waiting.chain(self.running.values().map(|(pid, _)| *pid))
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
