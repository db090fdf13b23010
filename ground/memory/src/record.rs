//! The current state of the program's memory, for all readers.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use accounting::{Level, cgroup::Cgroup};
use dashboard::{Allocator, EVENTS_MAX, Event, Group, HISTORY_MAX, Throttling};

use crate::allocator;

/// See the module. `S` is a sample of the program, `L` a level as the program's report names it.
#[derive(Debug)]
pub struct Record<S, L> {
    // Configuration.
    /// The program's own group, if it has one.
    pub cgroup: Option<Cgroup>,
    /// The memory budget that the operator stated.
    pub budget_bytes: u64,
    // Counters.
    /// When the program started.
    pub started: Instant,
    /// Returned memory.
    pub purges: Purges,
    // State.
    level: AtomicU8,
    throttling: Mutex<ThrottleState<L>>,
    history: Mutex<VecDeque<S>>,
}

/// Memory returned to the operating system.
#[derive(Debug, Default)]
pub struct Purges {
    /// Hand-backs while idle.
    pub idle: AtomicU64,
    /// Hand-backs under pressure.
    pub pressure: AtomicU64,
    /// Bytes of both.
    pub returned_bytes: AtomicU64,
    /// CPU time of both.
    pub cpu_nanos: AtomicU64,
}

#[derive(Debug)]
struct ThrottleState<L> {
    reason: Option<String>,
    events: VecDeque<Event<L>>,
}

impl<S: Clone, L: Clone + From<Level>> Record<S, L> {
    /// Nothing is held back and nothing was sampled.
    pub fn new(cgroup: Option<Cgroup>, budget_bytes: u64) -> Self {
        Self {
            cgroup,
            budget_bytes,
            started: Instant::now(),
            purges: Purges::default(),
            level: AtomicU8::new(0),
            throttling: Mutex::new(ThrottleState { reason: None, events: VecDeque::new() }),
            history: Mutex::new(VecDeque::with_capacity(HISTORY_MAX)),
        }
    }

    /// Share of the last 10 s in which a task waited for memory, in hundredths of a percent, and
    /// whether it is of the program's own group: on a machine with other work its figure says
    /// little about this program.
    pub fn stalled(&self) -> (Option<u32>, bool) {
        match self.cgroup.as_ref().and_then(Cgroup::pressure) {
            Some(own) => (Some(own.some.avg10_hundredths), true),
            None => (
                accounting::pressure::machine_memory().map(|machine| machine.some.avg10_hundredths),
                false,
            ),
        }
    }

    /// How far work is held back.
    pub fn level(&self) -> Level {
        match self.level.load(Relaxed) {
            0 => Level::None,
            1 => Level::Queries,
            2 => Level::Ingress,
            _ => Level::Execution,
        }
    }

    /// Sets the level; a change is an event.
    pub fn set_level(&self, level: Level, reason: String) {
        if level == self.level() {
            return;
        }
        if level == Level::None {
            tracing::info!(%reason, "work is taken again");
        } else {
            tracing::warn!(?level, %reason, "work is held back");
        }
        let mut held = lock(&self.throttling);
        self.level.store(level as u8, Relaxed);
        let event =
            Event { unix_millis: unix_millis(), level: level.into(), reason: reason.clone() };
        push(&mut held.events, event, EVENTS_MAX);
        held.reason = (level != Level::None).then_some(reason);
    }

    /// Why work is held back, if it is.
    pub fn reason(&self) -> Option<String> {
        lock(&self.throttling).reason.clone()
    }

    /// Figures of the process group, if it has a cap. A group without one is usually that of the
    /// whole machine or session: its memory is not the program's.
    pub fn group(&self) -> Option<Group> {
        let memory = self.cgroup.as_ref()?.memory().ok()?;
        memory.limit_bytes?;
        Some(Group {
            limit_bytes: memory.limit_bytes,
            usage_bytes: memory.usage_bytes,
            anonymous_bytes: memory.anonymous_bytes,
            file_bytes: memory.file_bytes,
            oom_kills: memory.oom_kills,
        })
    }

    /// This process's allocator, and what was handed back by all processes.
    pub fn allocator(&self) -> Allocator {
        let heap = allocator::heap(false);
        let cpu = Duration::from_nanos(self.purges.cpu_nanos.load(Relaxed));
        Allocator {
            live_bytes: heap.live_bytes,
            active_bytes: allocator::active_bytes(),
            resident_bytes: heap.resident_bytes,
            returned_bytes: self.purges.returned_bytes.load(Relaxed),
            purges_idle: self.purges.idle.load(Relaxed),
            purges_pressure: self.purges.pressure.load(Relaxed),
            purge_cpu_percent: 100.0 * cpu.as_secs_f64()
                / self.started.elapsed().as_secs_f64().max(1e-9),
        }
    }

    /// Adds a sample.
    pub fn sample(&self, sample: S) {
        push(&mut lock(&self.history), sample, HISTORY_MAX);
    }

    /// All samples, oldest first.
    pub fn history(&self) -> Vec<S> {
        lock(&self.history).iter().cloned().collect()
    }

    /// Throttling, for a report.
    pub fn throttling(&self) -> Throttling<L> {
        let held = lock(&self.throttling);
        Throttling {
            level: self.level().into(),
            reason: held.reason.clone(),
            events: held.events.iter().cloned().collect(),
        }
    }
}

/// The wall clock; nothing but shown times depends on it.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn push<T>(ring: &mut VecDeque<T>, item: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_level_are_events_and_the_oldest_leave() {
        let record: Record<u64, Level> = Record::new(None, 1);
        record.set_level(Level::None, "no change".into());
        assert!(record.throttling().events.is_empty());
        for turn in 0..EVENTS_MAX {
            record.set_level(Level::Queries, format!("full {turn}"));
            assert_eq!(
                (record.level(), record.reason()),
                (Level::Queries, Some(format!("full {turn}")))
            );
            record.set_level(Level::None, format!("empty {turn}"));
            assert_eq!(record.reason(), None);
        }
        let throttling = record.throttling();
        assert_eq!(throttling.events.len(), EVENTS_MAX);
        assert_eq!(throttling.events[0].reason, format!("full {}", EVENTS_MAX / 2));
        for sample in 0..2 * HISTORY_MAX as u64 {
            record.sample(sample);
        }
        assert_eq!(
            (record.history().len(), record.history()[0]),
            (HISTORY_MAX, HISTORY_MAX as u64)
        );
    }
}
