//! The governor: checks the relay's memory a few times a second, returns freed memory, decides how
//! far work is held back, and samples for the dashboard.
//!
//! Its steps are those of every program ([`memory::Steps`]). [`WorkKind`] defines the work refused
//! at each level; it is checked where work arrives; accepted work is not lost.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use accounting::process::{self, Pid};
use anyhow::{Context, Result};
use memory::{GovernorThread, Steps, allocator, unix_millis};
use relay_limits::GovernorLimits;
use serde::{Deserialize, Serialize};

use crate::node::Node;

/// How far work is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Everything is taken.
    #[default]
    None,
    /// Store queries and REST reads are refused.
    Queries,
    /// Light pushes, subscriptions and new connections are refused too.
    Pushes,
    /// And no stream is read.
    Reading,
}

impl From<accounting::Level> for Level {
    fn from(level: accounting::Level) -> Self {
        match level {
            accounting::Level::None => Self::None,
            accounting::Level::Queries => Self::Queries,
            accounting::Level::Ingress => Self::Pushes,
            accounting::Level::Execution => Self::Reading,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// Store queries and REST reads.
    Queries,
    /// Light pushes, subscriptions and new connections.
    Pushes,
    /// Reading of streams.
    Reading,
}

/// A moment, for the dashboard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) unix_millis: u64,
    pub(crate) anonymous_bytes: u64,
    pub(crate) file_bytes: u64,
    /// Messages accepted of clients, per second.
    pub(crate) client_rate: f64,
    /// Messages accepted of relay peers, per second.
    pub(crate) relay_rate: f64,
    /// Filter pushes that receivers took, per second.
    pub(crate) push_rate: f64,
    /// Store queries, answered or not, per second.
    pub(crate) query_rate: f64,
    /// Open connections of peers.
    pub(crate) connections: u64,
    pub(crate) level: Level,
}

pub(crate) struct Watch {
    pub(crate) record: memory::Record<Sample, Level>,
    levels: [u64; 3],
}

impl Watch {
    pub(crate) fn new(record: memory::Record<Sample, Level>, limits: &GovernorLimits) -> Self {
        Self { record, levels: limits.levels() }
    }

    /// Why work is held back, in a sentence with the measured value and the limit; `None` while it
    /// is taken.
    pub(crate) fn held_back(&self, work: WorkKind) -> Option<String> {
        let [queries, pushes, reading] = self.levels;
        let (from, what, limit, percent) = match work {
            WorkKind::Queries => (
                accounting::Level::Queries,
                "no store queries and REST reads",
                "refuse_queries_percent",
                queries,
            ),
            WorkKind::Pushes => (
                accounting::Level::Ingress,
                "no pushes, subscriptions and connections",
                "refuse_pushes_percent",
                pushes,
            ),
            WorkKind::Reading => {
                (accounting::Level::Execution, "nothing", "pause_reading_percent", reading)
            }
        };
        if self.record.level() < from {
            return None;
        }
        let reason = self.record.reason().unwrap_or_default();
        Some(format!(
            "this node takes {what} until memory was given back: {reason}, and governor.{limit} is \
             {percent}; try again in a second"
        ))
    }

    pub(crate) fn reads(&self) -> bool {
        self.record.level() < accounting::Level::Execution
    }
}

pub(crate) fn start(node: Arc<Node>, limits: &GovernorLimits) -> Result<GovernorThread> {
    let record = &node.watch.record;
    let steps =
        Steps::new(&limits.hand_back, limits.levels(), record.budget_bytes, record.cgroup.as_ref());
    let mut worker = Worker { node, steps, before: [0; 4] };
    GovernorThread::start(move || worker.run_round()).context("starting the governor's thread")
}

struct Worker {
    node: Arc<Node>,
    steps: Steps,
    /// Counters at the last sample.
    before: [u64; 4],
}

impl Worker {
    /// One round; returns how long to wait until the next.
    fn run_round(&mut self) -> std::time::Duration {
        let node = &self.node;
        let record = &node.watch.record;
        let now = record.started.elapsed();
        let counts = node.counters.done();
        // Refused work is work, too: it is read and answered.
        let refused = node.counters.refused();
        self.steps.worked(now, counts.iter().sum::<u64>() + refused, false);
        // A kernel that does not report memory shows as no use: then pools alone hold work back.
        let memory = process::memory(Pid::own()).unwrap_or_default();
        let anonymous_bytes = memory.anonymous_bytes + memory.shared_bytes;
        let (stalled, own) = record.stalled();
        self.steps.hold_back(record, anonymous_bytes);
        let heap = allocator::heap(false);
        let purge = || allocator::heap(true).returned_bytes;
        self.steps.hand_back(record, now, heap, anonymous_bytes, stalled.filter(|_| own), purge);
        if let Some(seconds) = self.steps.sample_due(now) {
            node.time.keep();
            let mut rates = counts
                .iter()
                .zip(self.before)
                .map(|(now, before)| now.saturating_sub(before) as f64 / seconds);
            let mut next = || rates.next().unwrap_or_default();
            record.sample(Sample {
                unix_millis: unix_millis(),
                anonymous_bytes,
                file_bytes: memory.file_bytes,
                client_rate: next(),
                relay_rate: next(),
                push_rate: next(),
                query_rate: next(),
                connections: node.connections.load(Relaxed),
                level: record.level().into(),
            });
            self.before = counts;
        }
        self.steps.tick(now, record.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P24 - Each refusal names the measured memory and the limit.
    #[test]
    fn levels_refuse_queries_pushes_reading_in_order_with_memory_and_limit() {
        let limits = relay_limits::Limits::preset("tiny").unwrap().governor;
        let watch = Watch::new(memory::Record::new(None, 64 << 20), &limits);
        assert!(watch.held_back(WorkKind::Queries).is_none() && watch.reads());
        let reason = "anonymous memory is 56 MiB, 87 % of the budget of 64 MiB";
        watch.record.set_level(accounting::Level::Queries, reason.into());
        let text = watch.held_back(WorkKind::Queries).unwrap();
        assert!(
            text.contains(reason) && text.contains("governor.refuse_queries_percent is 85"),
            "{text}"
        );
        assert!(watch.held_back(WorkKind::Pushes).is_none());
        watch.record.set_level(accounting::Level::Ingress, reason.into());
        let text = watch.held_back(WorkKind::Pushes).unwrap();
        assert!(text.contains("governor.refuse_pushes_percent is 90"), "{text}");
        assert!(watch.held_back(WorkKind::Reading).is_none() && watch.reads());
        watch.record.set_level(accounting::Level::Execution, reason.into());
        assert!(watch.held_back(WorkKind::Queries).is_some() && !watch.reads());
        let text = watch.held_back(WorkKind::Reading).unwrap();
        assert!(text.contains("governor.pause_reading_percent is 95"), "{text}");
    }
}
