//! The node's own figures on `/metrics`: memory as the ledger and as the operating system see it,
//! rounds, messages, checkpoints, workers.
//!
//! Counters are incremented by the round loop. Readings (memory, pools, workers) are taken on each
//! scrape, so an idle node reads nothing.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use consensus::IngressPool;
use execution::{QueryService, RoundResult};
use gateway::report::{LONG_STALL_MILLIS, Stall};
use http_server::metrics::{MetricsWriter, register};
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::Counter, histogram::Histogram},
    registry::Registry,
};
use state::Batch;

use crate::{disk_usage::DiskUsage, watch::Watch};

const ROUND_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// Counters of the round loop. Clones share them.
#[derive(Clone)]
pub(crate) struct RoundMetrics {
    pub(crate) rounds: Counter,
    pub(crate) messages: Counter,
    instructions: Counter,
    ingress: Counter,
    verdicts: Counter,
    checkpoints: Counter,
    round_seconds: Histogram,
    checkpoint_seconds: Histogram,
    /// Times execution waited for memory or for the delta log.
    pub(crate) skipped: Counter,
    height: Arc<AtomicU64>,
    longest_stall_micros: Arc<AtomicU64>,
    long_stall: Arc<Mutex<Option<Stall>>>,
}

impl RoundMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let mut counter = |name, help| register(registry, name, help, Counter::default());
        let rounds = counter("rounds", "Batches executed");
        let messages = counter("messages_executed", "Canister messages executed");
        let instructions = counter("instructions_executed", "Instructions of replicated execution");
        let ingress = counter("ingress_in_blocks", "Ingress messages in blocks");
        let verdicts = counter("verdicts", "Messages rejected by verdicts of operators");
        let help = "Times execution waited for memory or for the delta log";
        let skipped = counter("rounds_skipped", help);
        let checkpoints = counter("checkpoints", "Checkpoints made");
        let mut seconds =
            |name, help| register(registry, name, help, Histogram::new(ROUND_SECONDS));
        Self {
            rounds,
            messages,
            instructions,
            ingress,
            verdicts,
            checkpoints,
            round_seconds: seconds("round_seconds", "Time to execute a batch"),
            checkpoint_seconds: seconds("checkpoint_seconds", "Time to make a checkpoint"),
            skipped,
            height: Arc::default(),
            longest_stall_micros: Arc::default(),
            long_stall: Arc::default(),
        }
    }

    pub(crate) fn round(&self, batch: &Batch, result: &RoundResult, took: Duration) {
        self.rounds.inc();
        self.messages.inc_by(result.messages);
        self.instructions.inc_by(result.instructions);
        self.ingress.inc_by(batch.ingress.len() as u64);
        self.verdicts.inc_by(result.verdicts.len() as u64);
        self.round_seconds.observe(took.as_secs_f64());
        self.height.store(batch.height.0, Ordering::Relaxed);
    }

    /// Work waited for this time for a certified round.
    pub(crate) fn stalled(&self, time: Duration) {
        self.longest_stall_micros.fetch_max(time.as_micros() as u64, Ordering::Relaxed);
        let millis = time.as_millis() as u64;
        if millis >= LONG_STALL_MILLIS {
            let ended_unix_millis = memory::unix_millis();
            let mut long_stall = self.long_stall.lock().unwrap_or_else(PoisonError::into_inner);
            *long_stall = Some(Stall { ended_unix_millis, millis });
        }
    }

    pub(crate) fn report(&self) -> gateway::report::Rounds {
        gateway::report::Rounds {
            height: self.height.load(Ordering::Relaxed),
            rounds: self.rounds.get(),
            skipped: self.skipped.get(),
            longest_stall_millis: self.longest_stall_micros.load(Ordering::Relaxed) / 1000,
            long_stall: self.long_stall.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            messages: self.messages.get(),
            checkpoints: self.checkpoints.get(),
            ..Default::default()
        }
    }

    pub(crate) fn checkpoint(&self, took: Duration) {
        self.checkpoints.inc();
        self.checkpoint_seconds.observe(took.as_secs_f64());
    }
}

pub(crate) struct Readings {
    pub(crate) watch: Arc<Watch>,
    pub(crate) ingress: Arc<IngressPool>,
    pub(crate) rounds: RoundMetrics,
    pub(crate) queries: QueryService,
    pub(crate) disk: DiskUsage,
}

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readings")
    }
}

impl Readings {
    fn memory(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let memory = self.watch.memory();
        let help = "Anonymous memory of all processes of the node";
        out.amount("memory_anonymous_bytes", help, memory.anonymous_bytes)?;
        let help = "Mapped file memory of all processes, shared pages counted in each";
        out.amount("memory_file_bytes", help, memory.file_bytes)?;
        out.amount("processes", "Processes of the node", memory.processes.len() as u64)?;
        let help = "Anonymous memory that no pool of the ledger holds";
        out.gauge("memory_unaccounted_bytes", help, memory.unaccounted_bytes())?;
        let budget = self.watch.record.budget_bytes;
        out.amount("memory_budget_bytes", "What the operator stated", budget)?;
        let group = self.watch.record.cgroup.as_ref().and_then(|group| group.memory().ok());
        let group = group.as_ref();
        for (name, help, value) in [
            (
                "cgroup_usage_bytes",
                "Charged to the process group, page cache included",
                group.map(|group| group.usage_bytes),
            ),
            (
                "cgroup_anonymous_bytes",
                "Anonymous memory of the process group",
                group.map(|group| group.anonymous_bytes),
            ),
            (
                "cgroup_file_bytes",
                "Page cache of the process group",
                group.map(|group| group.file_bytes),
            ),
            (
                "cgroup_limit_bytes",
                "The process group's cap",
                group.and_then(|group| group.limit_bytes),
            ),
            (
                "memory_pressure_some_avg10_hundredths",
                "Share of the last 10 s in which a task waited for memory, in hundredths of a \
                 percent",
                self.watch.record.stalled().0.map(u64::from),
            ),
        ] {
            out.amount_if_any(name, help, value)?;
        }
        Ok(())
    }

    /// The allocator of the node process, and what was handed back by all processes.
    fn allocator(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let heap = memory::allocator::heap(false);
        out.amount("allocator_live_bytes", "Allocated by the node process", heap.live_bytes)?;
        let help = "In pages of the node process that hold an allocation";
        out.amount("allocator_active_bytes", help, memory::allocator::active_bytes())?;
        let help = "Resident for the allocator of the node process, freed pages included";
        out.amount("allocator_resident_bytes", help, heap.resident_bytes)?;
        let workers = self.watch.sandbox.workers();
        let heaps: Vec<_> = workers
            .iter()
            .filter_map(|worker| Some((format!("{:?}", worker.lane), worker.heap?)))
            .collect();
        let live = heaps.iter().map(|(lane, heap)| ([("lane", lane.as_str())], heap.live_bytes));
        out.amounts("worker_live_bytes", "Allocated by a worker when it was last asked", live)?;
        let resident =
            heaps.iter().map(|(lane, heap)| ([("lane", lane.as_str())], heap.resident_bytes));
        let help = "Resident for a worker's allocator when it was last asked";
        out.amounts("worker_resident_bytes", help, resident)?;
        let purges = &self.watch.record.purges;
        for (name, help, counter) in [
            ("purges_idle", "Times an idle node handed memory back", &purges.idle),
            ("purges_pressure", "Times memory was handed back under pressure", &purges.pressure),
            ("returned_bytes", "Handed back to the operating system", &purges.returned_bytes),
        ] {
            out.counter(name, help, counter.load(Ordering::Relaxed))?;
        }
        let seconds = purges.cpu_nanos.load(Ordering::Relaxed) as f64 / 1e9;
        out.counter("purge_cpu_seconds", "CPU time spent on handing memory back", seconds)
    }

    fn workers(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let workers = self.watch.sandbox.statistics();
        let help = "Messages that a worker keeps between two slices";
        out.amount("paused_messages", help, workers.paused)?;
        let help = "Slices for which a message ran again from its beginning: no worker had kept it";
        out.counter("repeated_slices", help, workers.repeated)?;
        let help = "Workers that died and were started again";
        out.counter("worker_restarts", help, workers.restarts)
    }

    fn pools(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let snapshot = self.watch.ledger.snapshot();
        type Figure = fn(&accounting::PoolSnapshot) -> u64;
        let figures: [(&str, &str, Figure); 4] = [
            ("pool_refused", "Requests the pool turned down", |pool| pool.refused),
            ("pool_used_bytes", "Reserved in the pool", |pool| pool.used_bytes),
            ("pool_cap_bytes", "The pool's cap", |pool| pool.cap_bytes),
            ("pool_high_water_bytes", "Most that was ever reserved in the pool", |pool| {
                pool.high_water_bytes
            }),
        ];
        for (name, help, figure) in figures {
            let pools = snapshot.pools.iter().map(|pool| ([("pool", pool.name)], figure(pool)));
            out.amounts(name, help, pools)?;
        }
        Ok(())
    }

    fn disk(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let disk = self.disk.report();
        out.amount("disk_budget_bytes", "The disk budget, 0 without one", disk.budget_bytes)?;
        out.amount("disk_free_bytes", "Free on the data folder's disk", disk.free_bytes)?;
        let lines = || disk.lines.iter().map(|line| ([("line", line.name.as_str())], line));
        let used = lines().map(|(labels, line)| (labels, line.used_bytes));
        out.amounts("disk_used_bytes", "Taken of the line on disk", used)?;
        let caps = lines().map(|(labels, line)| (labels, line.cap_bytes));
        out.amounts("disk_cap_bytes", "What the line may take on disk", caps)?;
        out.amount("canisters_max", "Canisters that may exist", self.disk.canisters_max)
    }

    /// The round under way, stalls, and the node's clock.
    fn rounds_and_clock(&self, out: &mut MetricsWriter<'_, '_>) -> fmt::Result {
        let active = self.watch.watchdog.active(Instant::now());
        let lasts = active.map_or(0.0, |(_, _, lasts)| lasts.as_secs_f64());
        let help = "How long the round or checkpoint under way has lasted, 0 between them";
        out.gauge("round_running_seconds", help, lasts)?;
        let clock = self.watch.clock.status();
        let jump = clock.jump.map_or(0.0, |jump| jump.ahead_nanos as f64 / 1e9);
        let help = "By how much the wall clock jumped ahead and is not followed, 0 while it is";
        out.gauge("clock_jump_seconds", help, jump)?;
        let help = "By how much block time is ahead of the wall clock";
        out.gauge("block_time_ahead_seconds", help, clock.block_time_ahead.as_secs_f64())?;
        let stall = self.rounds.longest_stall_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let help = "Longest time that work waited for a certified round";
        out.gauge("longest_stall_seconds", help, stall)
    }
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut MetricsWriter::new(&mut encoder);
        self.memory(out)?;
        self.pools(out)?;
        self.allocator(out)?;
        let help =
            "How far work is held back: 0 not, 1 queries refused, 2 calls too, 3 execution waits";
        out.amount("throttle_level", help, self.watch.record.level() as u64)?;
        self.rounds_and_clock(out)?;
        let height = self.rounds.height.load(Ordering::Relaxed);
        out.amount("certified_height", "Newest certified height", height)?;
        let waiting = self.ingress.status();
        let help = "Ingress messages waiting for a block";
        out.amount("ingress_waiting_messages", help, waiting.messages)?;
        let help = "Bytes of ingress messages waiting for a block";
        out.amount("ingress_waiting_bytes", help, waiting.bytes)?;
        let help = "1 while updates are refused (disk full, shutting down)";
        out.amount("updates_refused", help, u64::from(self.ingress.refusing().is_some()))?;
        let (hits, misses) = self.queries.cache_figures();
        let ended = self.queries.ended();
        for (name, help, count) in [
            (
                "queries_ended_by_wall_clock",
                "Queries, checks of calls and transforms of outcalls that \
                 execution.query_wall_clock_seconds ended",
                ended.wall_clock,
            ),
            (
                "queries_without_worker",
                "The same that found no query worker within execution.query_wait_seconds after \
                 they had a place",
                ended.wait,
            ),
            ("query_cache_hits", "Queries answered with a kept reply", hits),
            ("query_cache_misses", "Queries that had to run", misses),
        ] {
            out.counter(name, help, count)?;
        }
        out.amount("delta_bytes", "Delta segments on disk", self.disk.delta_bytes())?;
        self.disk(out)?;
        self.workers(out)
    }
}
