//! One look at the memory, step by step, and the thread that looks.
//!
//! While nothing happens the thread looks once a second, which costs an idle program a few hundred
//! microseconds.

use std::{
    io,
    sync::{
        atomic::Ordering::Relaxed,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use accounting::{Governor, Level, Moment, Throttle, Trim, cgroup::Cgroup, format_size};
use memory_budget::{HandBackLimits, throttle_config};

use crate::{Record, allocator::Heap};

/// Time between two looks while something happens.
const BUSY_TICK: Duration = Duration::from_millis(250);
/// And while nothing does.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Without work for so long, the program counts as idle for the ticks.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// How long its owner waits for the thread to end, and how often it checks.
const END_WITHIN: Duration = Duration::from_secs(5);
const END_LOOK: Duration = Duration::from_millis(1);
/// Time between samples of the history.
const SAMPLE_EVERY: Duration = Duration::from_millis(950);
/// Samples of an idle program.
const IDLE_SAMPLE_EVERY: Duration = Duration::from_millis(4_950);

/// The running thread; dropping it ends it.
#[derive(Debug)]
pub struct GovernorThread {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GovernorThread {
    /// Starts the thread. `round` returns how long to wait until it is called again.
    pub fn start(mut round: impl FnMut() -> Duration + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("governor".into()).spawn(move || {
            let mut tick = BUSY_TICK;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(tick) {
                tick = round();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for GovernorThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // A look may wait for a process that does not answer.
        let deadline = Instant::now() + END_WITHIN;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(END_LOOK);
        }
        if thread.is_finished() {
            // A governor that panicked has no result.
            let _ = thread.join();
        }
    }
}

/// State shared by all looks, and the readings of the last one. Times are since the program
/// started.
#[derive(Debug)]
pub struct Steps {
    governor: Governor,
    throttle: Throttle,
    short_percent: u64,
    budget_bytes: u64,
    work: u64,
    last_activity: Duration,
    sampled: Duration,
}

impl Steps {
    /// `levels` are the thresholds of the program. Where the group may take less than the budget,
    /// shares are of what it may take.
    pub fn new(
        limits: &HandBackLimits,
        levels: [u64; 3],
        budget_bytes: u64,
        group: Option<&Cgroup>,
    ) -> Self {
        let group_limit =
            group.and_then(|group| group.memory().ok()?.limit_bytes).unwrap_or(u64::MAX);
        Self {
            governor: Governor::new(limits.config()),
            throttle: Throttle::new(throttle_config(levels)),
            short_percent: limits.short_percent,
            budget_bytes: budget_bytes.min(group_limit),
            work: 0,
            last_activity: Duration::ZERO,
            sampled: Duration::ZERO,
        }
    }

    /// Notes how much was done since the start; `busy` is work that is not counted.
    pub fn worked(&mut self, now: Duration, work: u64, busy: bool) {
        if work != self.work || busy {
            self.work = work;
            self.last_activity = now;
        }
    }

    /// How long nothing has been done.
    pub fn idle_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_activity)
    }

    /// Whether memory counts as short.
    pub fn is_short(&self, anonymous_bytes: u64) -> bool {
        u128::from(anonymous_bytes) * 100
            >= u128::from(self.budget_bytes) * u128::from(self.short_percent)
    }

    /// Decides how far work is held back.
    pub fn hold_back<S: Clone, L: Clone + From<Level>>(
        &mut self,
        record: &Record<S, L>,
        anonymous_bytes: u64,
    ) {
        let level = self.throttle.decide(anonymous_bytes, self.budget_bytes);
        if level != record.level() {
            let percent = anonymous_bytes.saturating_mul(100) / self.budget_bytes.max(1);
            let reason = format!(
                "anonymous memory is {}, {percent} % of the budget of {}",
                format_size(anonymous_bytes),
                format_size(self.budget_bytes)
            );
            record.set_level(level, reason);
        }
    }

    /// Hands freed memory back when it is time to. `heap` is of the process that holds most above
    /// what it uses; `stalled_hundredths` of the program's own group; `purge` hands back and says
    /// how many bytes.
    pub fn hand_back<S: Clone, L: Clone + From<Level>>(
        &mut self,
        record: &Record<S, L>,
        now: Duration,
        heap: Heap,
        anonymous_bytes: u64,
        stalled_hundredths: Option<u32>,
        purge: impl FnOnce() -> u64,
    ) {
        let moment = Moment {
            now,
            last_activity: self.last_activity,
            live_bytes: heap.live_bytes,
            resident_bytes: heap.resident_bytes,
            anonymous_bytes,
            budget_bytes: self.budget_bytes,
            stalled_hundredths,
        };
        let Some(trim) = self.governor.decide(&moment) else { return };
        let started = thread_cpu();
        let returned = purge();
        let purges = &record.purges;
        let counter = if trim == Trim::Idle { &purges.idle } else { &purges.pressure };
        counter.fetch_add(1, Relaxed);
        purges.returned_bytes.fetch_add(returned, Relaxed);
        let nanos = thread_cpu().saturating_sub(started).as_nanos() as u64;
        purges.cpu_nanos.fetch_add(nanos, Relaxed);
        tracing::debug!(?trim, returned, "handed memory back");
    }

    /// Whether a sample is due, and of how many seconds it then is.
    pub fn sample_due(&mut self, now: Duration) -> Option<f64> {
        let due = if self.idle_for(now) >= IDLE_AFTER { IDLE_SAMPLE_EVERY } else { SAMPLE_EVERY };
        let since = now.saturating_sub(self.sampled);
        (since >= due).then(|| {
            self.sampled = now;
            since.as_secs_f64()
        })
    }

    /// How long to wait until the next look.
    pub fn tick(&self, now: Duration, level: Level) -> Duration {
        let idle = self.idle_for(now) >= IDLE_AFTER;
        if idle && level == Level::None { IDLE_TICK } else { BUSY_TICK }
    }
}

fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn steps() -> Steps {
        Steps::new(&HandBackLimits::MEASURED, [85, 90, 95], 100 * MIB, None)
    }

    #[test]
    fn a_level_is_recorded_with_the_measured_memory_and_the_budget() {
        let record: Record<(), Level> = Record::new(None, 100 * MIB);
        let mut steps = steps();
        steps.hold_back(&record, 84 * MIB);
        assert_eq!((record.level(), record.reason()), (Level::None, None));
        steps.hold_back(&record, 91 * MIB);
        assert_eq!(record.level(), Level::Ingress);
        assert_eq!(
            record.reason().unwrap(),
            "anonymous memory is 91 MiB, 91 % of the budget of 100 MiB"
        );
        steps.hold_back(&record, 79 * MIB);
        assert_eq!((record.level(), record.reason()), (Level::None, None));
        assert!(steps.is_short(80 * MIB) && !steps.is_short(80 * MIB - 1));
    }

    #[test]
    fn an_idle_program_looks_and_samples_more_rarely() {
        let mut steps = steps();
        let second = Duration::from_secs;
        steps.worked(second(10), 5, false);
        assert_eq!(steps.tick(second(11), Level::None), BUSY_TICK);
        assert_eq!(steps.sample_due(second(11)), Some(11.0));
        assert_eq!(steps.sample_due(second(11) + SAMPLE_EVERY / 2), None);
        steps.worked(second(12), 5, false);
        assert_eq!(steps.idle_for(second(14)), second(4));
        assert_eq!(steps.tick(second(14), Level::None), IDLE_TICK);
        assert_eq!(steps.tick(second(14), Level::Queries), BUSY_TICK);
        assert_eq!(steps.sample_due(second(14)), None);
        assert_eq!(steps.sample_due(second(16)), Some(5.0));
        steps.worked(second(17), 5, true);
        assert_eq!(steps.tick(second(17), Level::None), BUSY_TICK);
    }

    #[test]
    fn what_is_handed_back_is_counted() {
        let record: Record<(), Level> = Record::new(None, 100 * MIB);
        let mut steps = steps();
        let heap = Heap { live_bytes: MIB, resident_bytes: 9 * MIB, returned_bytes: 0 };
        steps.hand_back(&record, Duration::from_secs(1), heap, 10 * MIB, None, || 7);
        steps.hand_back(&record, Duration::from_secs(2), heap, 10 * MIB, None, || {
            panic!("too soon")
        });
        steps.hand_back(&record, Duration::from_secs(9), heap, 90 * MIB, None, || 5);
        let allocator = record.allocator();
        assert_eq!((allocator.purges_idle, allocator.purges_pressure), (1, 1));
        assert_eq!(allocator.returned_bytes, 12);
    }

    #[test]
    fn the_thread_looks_until_it_is_dropped() {
        let (looked, looks) = channel();
        let thread = GovernorThread::start(move || {
            let _ = looked.send(());
            Duration::ZERO
        });
        looks.recv().unwrap();
        drop(thread.unwrap());
        while looks.try_recv().is_ok() {}
        assert!(looks.recv().is_err(), "it has ended");
    }
}
