//! State of a watch: the figures of the samples and the log, and the conclusions from them.

use std::{collections::VecDeque, time::Duration};

use accounting::process::ProcessMemory;

use super::{
    findings::{Facts, IDLE_CPU_PERCENT},
    history::LowestValues,
};
use crate::gc::Collection;

/// The time over which the collector's share is taken.
const SHARE_SECONDS: f64 = 30.0;
/// Most samples of that time; with an interval of 0.1 s all of them.
const SHARES_MAX: usize = 320;
/// Shares are not computed for less CPU time than this.
const SHARE_CPU_SECONDS_MIN: f64 = 0.5;
const VALUES_MAX: usize = 256;

/// Events between two samples.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    seconds: f64,
    cpu_seconds: f64,
    collector_seconds: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) collections: u64,
    pub(crate) collections_major: u64,
    pub(crate) pause_millis: f64,
    /// Since the watch began.
    pub(crate) pause_max_millis: f64,
    pub(crate) pauses_long: u64,
    pub(crate) live_bytes: Option<u64>,
    pub(crate) heap_bytes: Option<u64>,
    pub(crate) anonymous_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) peak_seconds: f64,
    before_peak_bytes: u64,
    low_bytes: u64,
    pub(crate) idle_seconds: f64,
    threads_first: u64,
    threads: u64,
    swap_bytes: u64,
    lives: LowestValues<VALUES_MAX>,
    residents: LowestValues<VALUES_MAX>,
    outsides: LowestValues<VALUES_MAX>,
    steps: VecDeque<Step>,
    step: Step,
    /// Of collections since the sample before.
    pub(crate) step_pause_millis: f64,
    pub(crate) step_pause_max_millis: f64,
    sampled: u64,
}

impl Tally {
    /// One collection of the log. `backlog`: it was in the log before the watch began.
    pub(crate) fn collection(
        &mut self,
        collection: &Collection,
        seconds: f64,
        backlog: bool,
        pause_limit_millis: f64,
    ) {
        self.collections += 1;
        self.collections_major += u64::from(collection.major);
        self.heap_bytes = collection.heap_bytes.or(self.heap_bytes);
        if let Some(live) = collection.live_bytes.filter(|_| collection.major) {
            self.live_bytes = Some(live);
            self.lives.push((collection.seconds.unwrap_or(seconds), live));
        }
        if backlog {
            return;
        }
        let pause = collection.pause_millis;
        self.pause_millis += pause;
        self.pause_max_millis = self.pause_max_millis.max(pause);
        self.pauses_long += u64::from(pause > pause_limit_millis);
        self.step_pause_millis += pause;
        self.step_pause_max_millis = self.step_pause_max_millis.max(pause);
        // That of at least one thread, where the CPU time is not reported.
        self.step.collector_seconds += collection.cpu_millis.unwrap_or(pause) / 1000.0;
    }

    /// Adds the kernel's figures at `seconds`, `elapsed` after the previous sample. Returns the CPU
    /// share in per cent of one processor.
    pub(crate) fn sample(
        &mut self,
        seconds: f64,
        elapsed: Duration,
        cpu: Duration,
        memory: &ProcessMemory,
        threads: u64,
    ) -> f64 {
        let bytes = memory.anonymous_bytes;
        if self.sampled == 0 {
            (self.low_bytes, self.before_peak_bytes, self.threads_first) = (bytes, bytes, threads);
        }
        self.sampled += 1;
        self.low_bytes = self.low_bytes.min(bytes);
        if bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_seconds) = (bytes, seconds);
            self.before_peak_bytes = self.low_bytes;
        }
        (self.anonymous_bytes, self.threads, self.swap_bytes) = (bytes, threads, memory.swap_bytes);
        self.residents.push((seconds, bytes));
        if let Some(heap) = self.heap_bytes {
            self.outsides.push((seconds, bytes.saturating_sub(heap)));
        }
        let step = Step {
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            ..std::mem::take(&mut self.step)
        };
        let percent =
            if step.seconds > 0.0 { 100.0 * step.cpu_seconds / step.seconds } else { 0.0 };
        self.idle_seconds =
            if percent < IDLE_CPU_PERCENT { self.idle_seconds + step.seconds } else { 0.0 };
        self.steps.push_back(step);
        let all = |steps: &VecDeque<Step>| steps.iter().map(|step| step.seconds).sum::<f64>();
        while self.steps.len() > SHARES_MAX
            || (self.steps.len() > 1 && all(&self.steps) > SHARE_SECONDS)
        {
            self.steps.pop_front();
        }
        percent
    }

    /// Pauses since the sample before: all, and the longest.
    pub(crate) fn take_pauses(&mut self) -> (f64, f64) {
        (
            std::mem::take(&mut self.step_pause_millis),
            std::mem::take(&mut self.step_pause_max_millis),
        )
    }

    /// Share of the collector in the CPU time of the last half minute, in per cent.
    pub(crate) fn collector_percent(&self) -> Option<f64> {
        let cpu: f64 = self.steps.iter().map(|step| step.cpu_seconds).sum();
        let collector: f64 = self.steps.iter().map(|step| step.collector_seconds).sum();
        let known = self.collections > 0 && cpu >= SHARE_CPU_SECONDS_MIN;
        known.then(|| (100.0 * collector / cpu).min(100.0))
    }

    /// For the rules; what is not known here is left as it is by default.
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            idle_seconds: self.idle_seconds,
            anonymous_bytes: self.anonymous_bytes,
            peak_bytes: self.peak_bytes,
            before_peak_bytes: self.before_peak_bytes,
            live_bytes: self.live_bytes,
            heap_bytes: self.heap_bytes,
            lives: self.lives.values(),
            residents: self.residents.values(),
            outsides: self.outsides.values(),
            threads_first: self.threads_first,
            threads: self.threads,
            collector_percent: self.collector_percent(),
            pause_max_millis: self.pause_max_millis,
            pauses_long: self.pauses_long,
            swap_bytes: self.swap_bytes,
            ..Facts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn memory(bytes: u64) -> ProcessMemory {
        ProcessMemory { anonymous_bytes: bytes, ..ProcessMemory::default() }
    }

    #[test]
    fn peaks_rest_and_shares_are_kept() {
        let mut tally = Tally::default();
        for (second, bytes) in [100_u64, 50, 400, 390].into_iter().enumerate() {
            let cpu = if second < 3 { SECOND } else { Duration::ZERO };
            tally.sample(second as f64, SECOND, cpu, &memory(bytes), 4);
        }
        assert_eq!((tally.peak_bytes, tally.before_peak_bytes, tally.peak_seconds), (400, 50, 2.0));
        assert_eq!(tally.idle_seconds, 1.0);
        assert_eq!(tally.collector_percent(), None);
        let collection = Collection {
            major: true,
            pause_millis: 600.0,
            live_bytes: Some(7),
            ..Collection::default()
        };
        tally.collection(&collection, 4.0, true, 100.0);
        assert_eq!((tally.pauses_long, tally.live_bytes, tally.collections), (0, Some(7), 1));
        tally.collection(&collection, 4.0, false, 100.0);
        assert_eq!((tally.pauses_long, tally.take_pauses()), (1, (600.0, 600.0)));
        tally.sample(4.0, SECOND, Duration::ZERO, &memory(1), 4);
        assert_eq!(tally.collector_percent().map(f64::round), Some(20.0));
    }

    #[test]
    fn nothing_grows_with_time() {
        let mut tally = Tally::default();
        for second in 0..50_000_u32 {
            let collection = Collection {
                major: true,
                live_bytes: Some(1),
                heap_bytes: Some(2),
                ..Collection::default()
            };
            tally.collection(&collection, f64::from(second), false, 1.0);
            tally.sample(
                f64::from(second),
                Duration::from_millis(100),
                Duration::ZERO,
                &memory(5),
                1,
            );
        }
        assert!(tally.steps.len() <= SHARES_MAX);
        let facts = tally.facts();
        assert!(
            [facts.lives, facts.residents, facts.outsides]
                .iter()
                .all(|values| values.len() <= VALUES_MAX)
        );
    }
}
