//! A worker and the thread that waits for it, on one processor.
//!
//! Most messages take less time than it takes to wake a processor that sleeps. Left alone, the
//! kernel puts whoever is woken on an idle processor, so an order and its report wake one each,
//! while the two never run at the same time. So the thread that sends an order keeps itself and the
//! worker on the processor it is on, for as long as the message is short: after [`PATIENCE`] both go
//! wherever there is room.
//!
//! This changes where something runs, never what it computes; where the system permits none of it,
//! nothing is lost but time.

use std::time::Duration;

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

/// How long a message is short.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Together {
    worker: Option<Pid>,
    /// Where either may run; `None` where there is nothing to choose.
    all: Option<CpuSet>,
    /// Where the worker is kept.
    worker_on: Option<usize>,
    /// Whether this thread is kept there too.
    is_kept: bool,
}

impl Together {
    /// For the worker of this process id, started by a thread that may run wherever the node may.
    pub(super) fn new(worker: u32) -> Self {
        let worker = i32::try_from(worker).ok().and_then(Pid::from_raw);
        let all = worker.and_then(|worker| sched_getaffinity(Some(worker)).ok());
        Self {
            worker,
            all: all.filter(|all| all.count() > 1),
            worker_on: None,
            is_kept: false,
        }
    }

    /// Before an order: both stay where this thread is.
    pub(super) fn begin(&mut self) {
        if self.all.is_none() {
            return;
        }
        let here = sched_getcpu();
        let mut one = CpuSet::new();
        if here >= CpuSet::MAX_CPU {
            return;
        }
        one.set(here);
        self.is_kept = sched_setaffinity(None, &one).is_ok();
        if self.is_kept && self.worker_on != Some(here) {
            self.worker_on = sched_setaffinity(self.worker, &one).is_ok().then_some(here);
        }
    }

    /// After the report: this thread runs where it likes.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_kept)
            && let Some(all) = &self.all
        {
            // It was permitted a moment ago; if not, the thread stays where it is.
            let _ = sched_setaffinity(None, all);
        }
    }

    /// The message is long: both run where they like.
    pub(super) fn part(&mut self) {
        self.end();
        if self.worker_on.take().is_some()
            && let Some(all) = &self.all
        {
            let _ = sched_setaffinity(self.worker, all);
        }
    }
}
