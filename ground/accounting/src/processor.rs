//! Keeping a thread on one processor, with the worker process that it hands work to.
//!
//! The two take turns: one of them always waits. The kernel looks for an idle processor for each
//! woken thread, and waking an idle processor costs more than a short message does: an interrupt,
//! on a virtual machine by way of its host (50 us for each hand-over were measured, 150 of 280 us
//! of CPU for each message). On one processor a hand-over is a switch of context.
//!
//! So a thread that begins to hand over work stays where it is, workers are brought there, and when
//! there is no more work the kernel places it again. Under a load without pauses it shares its
//! processor with whatever else the kernel has put there. Nothing here has an influence on what is
//! computed, and whatever the system refuses is done without.

use std::cell::Cell;

use rustix::process::getpid;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

thread_local! {
    static STAYS_ON: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The processors that a node may use.
#[derive(Clone, Debug)]
pub struct Processors {
    /// In order; empty where there are fewer than two.
    usable: Vec<usize>,
}

impl Processors {
    /// Those of the calling thread.
    pub fn of_this_thread() -> Self {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect();
        if usable.len() < 2 {
            usable.clear();
        }
        Self { usable }
    }

    /// Keeps the calling thread where it is, if it does not stay anywhere yet. The processor.
    pub fn stay(&self) -> Option<usize> {
        if self.usable.is_empty() {
            return None;
        }
        let here = stays_on().unwrap_or_else(sched_getcpu);
        if self.usable.binary_search(&here).is_ok() && stay_on(here) { Some(here) } else { None }
    }

    /// Keeps the calling thread where it is for as long as the value lives.
    pub fn stay_for(&self) -> Staying<'_> {
        self.stay();
        Staying(self)
    }

    /// The `distance`-th processor after `from`, in a circle.
    pub fn beside(&self, from: usize, distance: usize) -> Option<usize> {
        let at = self.usable.binary_search(&from).ok()?;
        self.usable.get((at + distance) % self.usable.len()).copied()
    }

    /// Lets the calling thread go where the kernel puts it.
    pub fn roam(&self) {
        if stays_on().is_some() {
            STAYS_ON.set(None);
            let_roam(None);
        }
    }
}

/// A thread that stays where it is.
#[must_use]
#[derive(Debug)]
pub struct Staying<'a>(&'a Processors);

impl Drop for Staying<'_> {
    fn drop(&mut self) {
        self.0.roam();
    }
}

/// Keeps the calling thread on `processor`; whether it is there.
pub fn stay_on(processor: usize) -> bool {
    if stays_on() == Some(processor) {
        return true;
    }
    let is_there = set(None, &[processor]);
    if is_there {
        STAYS_ON.set(Some(processor));
    }
    is_there
}

/// Where the calling thread stays.
pub fn stays_on() -> Option<usize> {
    STAYS_ON.get()
}

/// Lets a process that was brought somewhere go where the kernel puts it again.
pub fn release_process(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let_roam(Some(pid));
    }
}

/// On what the process may use now: its first thread never stays anywhere.
fn let_roam(pid: Option<Pid>) {
    if let Ok(all) = sched_getaffinity(Some(getpid())) {
        // Without it, a thread works on where it is.
        let _ = sched_setaffinity(pid, &all);
    }
}

/// Brings a process to `processor`; whether it is there.
pub fn bring(pid: u32, processor: usize) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| set(Some(pid), &[processor]))
}

fn set(pid: Option<Pid>, processors: &[usize]) -> bool {
    let mut set = CpuSet::new();
    processors.iter().filter(|n| **n < CpuSet::MAX_CPU).for_each(|n| set.set(*n));
    sched_setaffinity(pid, &set).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_stays_and_roams_again() {
        std::thread::spawn(|| {
            let processors = Processors::of_this_thread();
            let before = sched_getaffinity(None).unwrap();
            let Some(here) = processors.stay() else {
                assert!(processors.usable.is_empty(), "a processor that may be used was refused");
                return;
            };
            let one = sched_getaffinity(None).unwrap();
            assert_eq!((one.count(), one.is_set(here), stays_on()), (1, true, Some(here)));
            assert_eq!(processors.stay(), Some(here), "it stays where it is");
            let next = processors.beside(here, 1).unwrap();
            assert_ne!(next, here);
            assert_eq!(processors.beside(next, processors.usable.len() - 1), Some(here));
            assert!(stay_on(next));
            assert_eq!(sched_getcpu(), next);
            processors.roam();
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            assert_eq!(stays_on(), None);
        })
        .join()
        .unwrap();
    }
}
