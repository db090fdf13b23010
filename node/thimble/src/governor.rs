//! The governor: reads the node's memory use a few times a second, returns freed memory, drops idle
//! mappings, and says how far work is held back.
//!
//! Its steps are those of every program ([`memory::Steps`]); this adds what the node alone has:
//! workers, mappings, kept replies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use consensus::IngressPool;
use execution::QueryService;
use gateway::report::Sample;
use lifecycle::Cause;
use limits::Limits;
use memory::{
    GovernorThread, Steps,
    allocator::{self, Heap},
    unix_millis,
};

use crate::{
    clock::{BlockTimeEvent, BlockTimeLog},
    metrics::RoundMetrics,
    watch::{Reading, Watch},
    watchdog::{REFUSE_AFTER, StallEvent, StallLog},
};

/// Time between looks for mappings while memory is short.
const PRESS_EVERY: Duration = Duration::from_secs(1);
/// Time between checks for mappings that were not used for a while.
const EVICT_EVERY: Duration = Duration::from_secs(5);
/// Without work for this time, replies of queries are no longer kept.
const FORGET_REPLIES_AFTER: Duration = Duration::from_secs(30);

pub(crate) struct GovernorInputs {
    pub(crate) watch: Arc<Watch>,
    pub(crate) pool: Arc<IngressPool>,
    pub(crate) rounds: RoundMetrics,
    pub(crate) latencies: gateway::Latencies,
    pub(crate) queries: QueryService,
    /// Set while checkpoints or folding run, which is work too.
    pub(crate) busy: Arc<AtomicBool>,
}

pub(crate) fn start(inputs: GovernorInputs, limits: &Limits) -> Result<GovernorThread> {
    let mut worker = Worker::new(inputs, limits);
    GovernorThread::start(move || worker.step()).context("starting the governor's thread")
}

struct Worker {
    inputs: GovernorInputs,
    steps: Steps,
    // Results of the last check.
    /// Kept replies were dropped since.
    forgotten: bool,
    evicted: Instant,
    pressed: Instant,
    before: WorkCounters,
    stalls: StallLog,
    block_time: BlockTimeLog,
}

/// Counters at the last sample.
#[derive(Clone, Copy, Default)]
struct WorkCounters {
    rounds: u64,
    messages: u64,
    queries: u64,
}

impl Worker {
    fn new(inputs: GovernorInputs, limits: &Limits) -> Self {
        let settings = &limits.governor;
        let record = &inputs.watch.record;
        let now = Instant::now();
        Self {
            steps: Steps::new(
                &settings.hand_back,
                settings.levels(),
                record.budget_bytes,
                record.cgroup.as_ref(),
            ),
            forgotten: false,
            evicted: now,
            pressed: now,
            before: WorkCounters::default(),
            stalls: StallLog::default(),
            block_time: BlockTimeLog::default(),
            inputs,
        }
    }

    /// One step; returns how long to wait until the next.
    fn step(&mut self) -> Duration {
        self.watch_rounds();
        if let Some(sampler) = crate::allocator::sampler() {
            sampler.tend();
        }
        let watch = self.inputs.watch.clone();
        let now = watch.record.started.elapsed();
        watch.clock.keep();
        match self.block_time.next(watch.clock.block_time_ahead()) {
            Some(BlockTimeEvent::Ahead) => {
                if let Some(fault) = watch.clock.fault() {
                    tracing::warn!("{fault}");
                }
            }
            Some(BlockTimeEvent::CaughtUp) => {
                tracing::info!("the wall clock has caught up with block time");
            }
            None => {}
        }
        let counted = self.read_counters();
        // Empty rounds of an idle node are not work.
        let work = counted.messages + counted.queries;
        self.steps.worked(now, work, self.inputs.busy.load(Relaxed));
        let memory = watch.memory();
        let (stalled, own) = watch.record.stalled();
        self.steps.hold_back(&watch.record, memory.anonymous_bytes);
        self.hand_back(now, &memory, stalled.filter(|_| own));
        self.evict(&memory);
        self.forget_replies(now);
        if let Some(seconds) = self.steps.sample_due(now) {
            self.sample(&memory, counted, seconds);
        }
        self.steps.tick(now, watch.record.level())
    }

    /// Logs a round or checkpoint that does not end, and refuses calls if it lasts.
    fn watch_rounds(&mut self) {
        let health = self.inputs.pool.health();
        let stall = self.inputs.watch.watchdog.stall(Instant::now());
        if let Some(stall) = stall.as_ref().filter(|stall| stall.lasts > REFUSE_AFTER) {
            health.refuse_with(Cause::Stalled, stall.reason());
        } else {
            health.withdraw(Cause::Stalled);
        }
        // A step that waits for this machine has reported that itself.
        let is_explained = [Cause::Round, Cause::Log].into_iter().any(|cause| health.has(cause));
        let stall = stall.filter(|_| !is_explained);
        match self.stalls.next(stall) {
            Some(StallEvent::Lasts(stall)) => tracing::error!("{stall}"),
            Some(StallEvent::Ended(stage, height)) => {
                tracing::info!(height = height.0, ?stage, "the stall is over");
            }
            None => {}
        }
    }

    fn read_counters(&self) -> WorkCounters {
        WorkCounters {
            rounds: self.inputs.rounds.rounds.get(),
            messages: self.inputs.rounds.messages.get(),
            queries: self.inputs.watch.queries.load(Relaxed),
        }
    }

    fn hand_back(&mut self, now: Duration, memory: &Reading, stalled_hundredths: Option<u32>) {
        let own = allocator::heap(false);
        let workers = self.inputs.watch.sandbox.workers();
        let heaps = workers.iter().filter_map(|worker| {
            // A worker's allocator counts tables that were never touched; the kernel knows what is
            // really there.
            let anonymous =
                memory.processes.iter().find(|process| process.pid == worker.pid)?.anonymous_bytes;
            let heap = worker.heap?;
            Some(Heap {
                live_bytes: heap.live_bytes.min(anonymous),
                resident_bytes: heap.resident_bytes.min(anonymous),
                returned_bytes: 0,
            })
        });
        // The rule considers the process that holds most above its use.
        let heap = std::iter::once(own)
            .chain(heaps)
            .max_by_key(|heap| heap.resident_bytes.saturating_sub(heap.live_bytes))
            .unwrap_or_default();
        let watch = &self.inputs.watch;
        let purge = || allocator::heap(true).returned_bytes + watch.sandbox.poll_allocators(true);
        self.steps.hand_back(
            &watch.record,
            now,
            heap,
            memory.anonymous_bytes,
            stalled_hundredths,
            purge,
        );
    }

    fn evict(&mut self, memory: &Reading) {
        let sandbox = &self.inputs.watch.sandbox;
        let short = self.steps.is_short(memory.anonymous_bytes);
        if short && self.pressed.elapsed() >= PRESS_EVERY {
            sandbox.evict_pressed();
            self.inputs.queries.clear_cache();
            self.pressed = Instant::now();
        } else if self.evicted.elapsed() >= EVICT_EVERY {
            sandbox.evict_idle();
            // So that the next decision knows what the workers hold.
            sandbox.poll_allocators(false);
            self.evicted = Instant::now();
        }
    }

    /// Kept replies are for bursts of the same question; an idle node has none of those.
    fn forget_replies(&mut self, now: Duration) {
        let idle = self.steps.idle_for(now) >= FORGET_REPLIES_AFTER;
        if idle && !self.forgotten {
            self.inputs.queries.clear_cache();
        }
        self.forgotten = idle;
    }

    fn sample(&mut self, memory: &Reading, counted: WorkCounters, seconds: f64) {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let window = self.inputs.latencies.take();
        self.inputs.watch.record.sample(Sample {
            unix_millis: unix_millis(),
            anonymous_bytes: memory.anonymous_bytes,
            file_bytes: memory.file_bytes,
            rounds_rate: rate(counted.rounds, self.before.rounds),
            messages_rate: rate(counted.messages, self.before.messages),
            queries_rate: rate(counted.queries, self.before.queries),
            update_p50_millis: window.update_p50_millis,
            update_p99_millis: window.update_p99_millis,
            query_p50_millis: window.query_p50_millis,
            query_p99_millis: window.query_p99_millis,
            level: self.inputs.watch.record.level().into(),
        });
        self.before = counted;
    }
}
