//! The governor: looks at the node's memory a few times a second, hands freed memory back, drops idle mappings, and says how far work is held back.
//!
//! The rules are `budget`'s and pure; this is the thread that reads for them and does what they say. While nothing happens it looks once a second, which costs an
//! idle node a few hundred microseconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use budget::{Governor, GovernorConfig, Level, Moment, Throttle, ThrottleConfig, Trim, format_size};
use execution::QueryService;
use gateway::report::Sample;
use limits::{GovernorLimits, Limits};

use crate::{
    allocator,
    metrics::RoundMetrics,
    watch::{Reading, Watch, shown, unix_millis},
};

/// Time between two looks while something happens.
const BUSY_TICK: Duration = Duration::from_millis(250);
/// And while nothing does.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Without work for so long, the node counts as idle for the ticks.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// Time between looks for mappings that nobody used for a while.
const EVICT_EVERY: Duration = Duration::from_secs(5);
/// Without work for so long, replies of queries are no longer kept.
const FORGET_REPLIES_AFTER: Duration = Duration::from_secs(30);
/// Time between looks for gaps between allocations of an idle node.
const CLOSE_GAPS_EVERY: Duration = Duration::from_secs(10);
/// Gaps below this are left: every program has some.
const GAPS_WORTH_BYTES: u64 = 3 << 20;
/// Time between samples of the history.
const SAMPLE_EVERY: Duration = Duration::from_millis(950);
/// Samples of an idle node.
const IDLE_SAMPLE_EVERY: Duration = Duration::from_millis(4_950);

/// The running thread; dropping it ends it.
pub(crate) struct GovernorThread {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for GovernorThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A governor that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

/// Everything the thread works with.
pub(crate) struct Parts {
    pub(crate) watch: Arc<Watch>,
    pub(crate) rounds: RoundMetrics,
    pub(crate) latencies: gateway::Latencies,
    pub(crate) queries: QueryService,
    /// Set while checkpoints or folding run, which is work too.
    pub(crate) busy: Arc<AtomicBool>,
}

/// Starts the thread.
pub(crate) fn start(parts: Parts, limits: &Limits) -> Result<GovernorThread> {
    let mut worker = Worker::new(parts, limits);
    let (stop, stopped) = sync_channel::<()>(0);
    let thread = std::thread::Builder::new()
        .name("governor".into())
        .spawn(move || {
            let mut tick = BUSY_TICK;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(tick) {
                tick = worker.look();
            }
        })
        .context("starting the governor's thread")?;
    Ok(GovernorThread { stop: Some(stop), thread: Some(thread) })
}

struct Worker {
    parts: Parts,
    governor: Governor,
    throttle: Throttle,
    short_percent: u64,
    budget_bytes: u64,
    // What the last look saw.
    work: u64,
    last_activity: Duration,
    /// Kept replies were let go since.
    forgotten: bool,
    gaps_looked_at: Duration,
    evicted: Instant,
    pressed: Instant,
    sampled: Instant,
    before: Counted,
}

/// Counters at the last sample.
#[derive(Clone, Copy, Default)]
struct Counted {
    rounds: u64,
    messages: u64,
    queries: u64,
}

impl Worker {
    fn new(parts: Parts, limits: &Limits) -> Self {
        let settings = &limits.governor;
        let group_limit = parts
            .watch
            .cgroup
            .as_ref()
            .and_then(|group| group.memory().ok()?.limit_bytes)
            .unwrap_or(u64::MAX);
        let now = Instant::now();
        Self {
            governor: Governor::new(governor_config(settings)),
            throttle: Throttle::new(throttle_config(settings)),
            short_percent: settings.short_percent,
            budget_bytes: limits.memory_budget_bytes.min(group_limit),
            work: 0,
            last_activity: Duration::ZERO,
            forgotten: false,
            gaps_looked_at: Duration::ZERO,
            evicted: now,
            pressed: now,
            sampled: now,
            before: Counted::default(),
            parts,
        }
    }

    /// One look; how long to wait until the next.
    fn look(&mut self) -> Duration {
        let watch = self.parts.watch.clone();
        let now = watch.started.elapsed();
        let counted = self.counted();
        // Empty rounds of an idle node are not work.
        let work = counted.messages + counted.queries;
        if work != self.work || self.parts.busy.load(Relaxed) {
            self.work = work;
            self.last_activity = now;
        }
        let memory = watch.memory();
        let (stalled, own) = watch.stalled();
        self.hold_back(&memory);
        self.hand_back(now, &memory, stalled.filter(|_| own));
        self.evict(&memory);
        self.forget_replies(now);
        let idle = now.saturating_sub(self.last_activity) >= IDLE_AFTER;
        let due = if idle { IDLE_SAMPLE_EVERY } else { SAMPLE_EVERY };
        if self.sampled.elapsed() >= due {
            self.sample(&memory, counted);
        }
        if idle && watch.level() == Level::None { IDLE_TICK } else { BUSY_TICK }
    }

    fn counted(&self) -> Counted {
        Counted {
            rounds: self.parts.rounds.rounds(),
            messages: self.parts.rounds.messages(),
            queries: self.parts.watch.queries.load(Relaxed),
        }
    }

    fn hold_back(&mut self, memory: &Reading) {
        let level = self.throttle.decide(memory.anonymous_bytes, self.budget_bytes);
        let watch = &self.parts.watch;
        if level != watch.level() {
            let percent = memory.anonymous_bytes.saturating_mul(100) / self.budget_bytes.max(1);
            watch.set_level(
                level,
                format!(
                    "anonymous memory is {}, {percent} % of the budget of {}",
                    format_size(memory.anonymous_bytes),
                    format_size(self.budget_bytes)
                ),
            );
        }
    }

    fn hand_back(&mut self, now: Duration, memory: &Reading, stalled_hundredths: Option<u32>) {
        let own = allocator::heap(false);
        let workers = self.parts.watch.sandbox.workers();
        let heaps = workers.iter().filter_map(|worker| {
            // A worker's allocator counts tables that were never touched; the kernel knows what is really there.
            let anonymous =
                memory.processes.iter().find(|process| process.pid == worker.pid)?.anonymous_bytes;
            let heap = worker.heap?;
            Some((heap.live_bytes.min(anonymous), heap.resident_bytes.min(anonymous)))
        });
        // The rule looks at the process that holds most above what it uses.
        let (live_bytes, resident_bytes) = std::iter::once((own.live_bytes, own.resident_bytes))
            .chain(heaps)
            .max_by_key(|(live, resident)| resident.saturating_sub(*live))
            .unwrap_or_default();
        let moment = Moment {
            now,
            last_activity: self.last_activity,
            live_bytes,
            resident_bytes,
            anonymous_bytes: memory.anonymous_bytes,
            budget_bytes: self.budget_bytes,
            stalled_hundredths,
        };
        let Some(trim) = self.governor.decide(&moment) else { return };
        let started = thread_cpu();
        let returned = allocator::heap(true).returned_bytes + self.parts.watch.sandbox.heaps(true);
        let purges = &self.parts.watch.purges;
        let counter = if trim == Trim::Idle { &purges.idle } else { &purges.pressure };
        counter.fetch_add(1, Relaxed);
        purges.returned_bytes.fetch_add(returned, Relaxed);
        let nanos = thread_cpu().saturating_sub(started).as_nanos() as u64;
        purges.cpu_nanos.fetch_add(nanos, Relaxed);
        tracing::debug!(?trim, returned, "handed memory back");
    }

    fn evict(&mut self, memory: &Reading) {
        let sandbox = &self.parts.watch.sandbox;
        let short = u128::from(memory.anonymous_bytes) * 100
            >= u128::from(self.budget_bytes) * u128::from(self.short_percent);
        if short && self.pressed.elapsed() >= IDLE_TICK {
            sandbox.evict_pressed();
            self.parts.queries.clear_cache();
            self.pressed = Instant::now();
        } else if self.evicted.elapsed() >= EVICT_EVERY {
            sandbox.evict_idle();
            // So that the next decision knows what the workers hold.
            sandbox.heaps(false);
            self.evicted = Instant::now();
        }
    }

    /// Kept replies are for bursts of the same question; an idle node has none of those.
    fn forget_replies(&mut self, now: Duration) {
        let idle = now.saturating_sub(self.last_activity) >= FORGET_REPLIES_AFTER;
        if idle && !self.forgotten {
            self.parts.queries.clear_cache();
            self.gaps_looked_at = now;
        }
        self.forgotten = idle;
        if idle && now.saturating_sub(self.gaps_looked_at) >= CLOSE_GAPS_EVERY {
            self.gaps_looked_at = now;
            let gaps = allocator::active_bytes().saturating_sub(allocator::heap(false).live_bytes);
            if gaps >= GAPS_WORTH_BYTES {
                self.parts.watch.close_gaps(gaps);
            }
        }
    }

    fn sample(&mut self, memory: &Reading, counted: Counted) {
        let seconds = self.sampled.elapsed().as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let window = self.parts.latencies.take();
        self.parts.watch.sample(Sample {
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
            level: shown(self.parts.watch.level()),
        });
        self.sampled = Instant::now();
        self.before = counted;
    }
}

fn governor_config(settings: &GovernorLimits) -> GovernorConfig {
    let percent = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    GovernorConfig {
        idle: Duration::from_millis(settings.idle_millis),
        interval: Duration::from_millis(settings.interval_millis),
        growth_percent: percent(settings.growth_percent),
        initial_bytes: settings.initial_bytes,
        pressure_interval: Duration::from_millis(settings.pressure_interval_millis),
        pressure_hundredths: percent(settings.stalled_percent.saturating_mul(100)),
        budget_percent: percent(settings.short_percent),
    }
}

fn throttle_config(settings: &GovernorLimits) -> ThrottleConfig {
    let percent = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    ThrottleConfig {
        queries_percent: percent(settings.refuse_queries_percent),
        ingress_percent: percent(settings.refuse_calls_percent),
        execution_percent: percent(settings.pause_execution_percent),
        release_percent: 5,
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
