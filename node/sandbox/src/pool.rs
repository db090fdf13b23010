//! The node's side of sandboxing: a fixed set of worker processes, kept alive
//! (docs/internals/sandbox.md).
//!
//! [`Pool`] implements [`Sandbox`]: modules are prepared by the [`Preparer`], messages are run by
//! the worker of their lane. Threads with different lanes never wait for each other; two messages
//! of one lane run one after the other.
//!
//! # When a worker dies
//!
//! The caller gets [`WorkerTrouble`] and may retry the message, the process is reaped, and the
//! lane's next message starts a new one. State is safe, because a worker only ever appends to what
//! the caller reserved and commits. After a time limit the next one of an update lane is twice as
//! long, up to [`TIMEOUT_FACTOR_MAX`] times, because the machine may just be slow. A lane whose
//! workers keep dying waits before each start, at most [`BACKOFF_MAX`].
//!
//! A query has a deadline ([`Sandbox::execute_until`]). Running code cannot be made to check a
//! clock, so the pool ends the process when it passes; the next query starts a new one at once.
//!
//! # Bounds
//!
//! Processes: one per lane and one per place of a paused message ([`paused_workers`]). Mapped
//! canisters: `sandbox.canisters_max` over all lanes, the least recently used are dropped first;
//! those idle for `sandbox.idle_seconds` are dropped when the node calls [`Pool::evict_idle`], as
//! long as the workers hold more than `sandbox.resident_floor_bytes`. A worker whose anonymous
//! memory exceeds `sandbox.worker_anonymous_bytes` is replaced between two messages.
//!
//! Workers are started by a thread of the pool's own: the kernel ends a worker when the thread that
//! started it ends, which must be when the pool does.

mod lane;
mod paused_workers;
pub(crate) mod verdict;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use accounting::process::{self, Pid, ProcessMemory};
use limits::{ModuleLimits, SandboxLimits};
use pages::MemoryId;
use state::{ModuleHash, ModuleInfo};

use crate::{
    Grant, HeapFigures, Lane, ModuleSource, NotPrepared, Outcome, PrepareError, Preparer,
    PreparerConfig, Priority, Probe, Request, Sandbox, Slice, SlicedName, TimedOutcome,
    UploadedModule, WorkerTrouble,
    ipc::IpcError,
    lock,
    pool::{
        lane::{TimeLimit, Worker, WorkerError},
        paused_workers::{PausedWorker, PausedWorkers},
    },
    worker::spilled_bytes,
};

/// Longest wait before a worker is started again.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// First wait, doubled with every death in a row.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);

/// Messages between two checks of a worker's memory.
const MEMORY_CHECK_MESSAGES: u64 = 64;

/// Under pressure a mapping counts as idle after this.
const PRESSED_IDLE: Duration = Duration::from_secs(1);

/// Kernel mappings per process that a worker counts on.
const MAP_COUNT_MIN: u64 = 65_530;

/// Maximum number of dropped memories that are recorded for a busy lane; beyond that it drops all.
const FORGET_MAX: usize = 4096;

/// Multiple of the usual time limit for a message that is resumed: if its worker were ended for
/// exceeding it, all of it would run again.
const RESUMED_FACTOR: u32 = 4;

/// Time limit for writing a paused message to its file, in addition to the time for its bytes.
const SPILL_GRACE: Duration = Duration::from_secs(30);
/// Bytes of it a second: only a disk that hangs is slower.
const SPILL_RATE: u64 = 1 << 20;

/// Most that the time limit of a message grows when its worker reached it.
const TIMEOUT_FACTOR_MAX: u32 = 8;

/// Configuration of a pool.
#[derive(Clone)]
pub struct SandboxConfig {
    /// The node's own binary, or another with the subcommands `sandbox-worker` and
    /// `sandbox-compile`.
    pub exe: PathBuf,
    /// Directory of compiled modules.
    pub cache_dir: PathBuf,
    /// Lanes of [`Lane::Update`], at least 1: execution threads.
    pub update_workers: usize,
    /// Lanes of [`Lane::Query`], at least 1: query threads.
    pub query_workers: usize,
    /// Limits on modules.
    pub module: ModuleLimits,
    /// Limits on workers and compilation.
    pub sandbox: SandboxLimits,
    /// Disk space of all paused messages together: one that takes more is not kept.
    pub paused_spill_bytes: u64,
    /// Anonymous memory that a worker which keeps a paused message may hold.
    pub paused_anonymous_bytes: u64,
    /// For modules whose artefact is gone.
    pub source: Option<Arc<dyn ModuleSource>>,
    /// Workers take [`Probe`]s. Never in a node.
    pub probes: bool,
}

/// The pool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Compilation or the cache.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The kernel allows too few mappings.
    #[error(
        "vm.max_map_count is {0}, workers need {MAP_COUNT_MIN}: run `sysctl -w \
         vm.max_map_count={MAP_COUNT_MIN}`"
    )]
    MapCount(u64),
    /// A worker cannot be started.
    #[error(
        "{0}; the kernel must allow seccomp filters, and the machine must have memory for {1} \
         workers"
    )]
    Worker(String, usize),
    /// A thread cannot be started.
    #[error("the thread that starts workers cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Process id and allocator figures of one worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerFigures {
    /// The lane it serves.
    pub lane: Lane,
    /// Its process id.
    pub pid: u32,
    /// Memory held by its allocator when it was last asked; `None` while it is busy.
    pub heap: Option<HeapFigures>,
}

/// Counters since the pool was opened, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages handed to a worker, those without an outcome included.
    pub messages: u64,
    /// Workers started after the first of each lane, but for those of which the one before left
    /// with a paused message or ended with an overdue query.
    pub restarts: u64,
    /// Workers ended because they reported the impossible.
    pub lies: u64,
    /// Workers ended because they took too long.
    pub timeouts: u64,
    /// Workers ended because the deadline of their query passed.
    pub overdue: u64,
    /// Workers replaced because their anonymous memory grew beyond the limit.
    pub replaced: u64,
    /// Memories mapped now, over all workers that are not busy.
    pub mapped: u64,
    /// Paused messages that a worker keeps.
    pub paused: u64,
    /// Slices of messages that had run before and that no worker had kept: all of it ran again.
    pub repeated: u64,
}

/// Worker processes. See the module's documentation.
pub struct Pool {
    preparer: Arc<Preparer>,
    globals_max: usize,
    sandbox: SandboxLimits,
    paused_spill_bytes: u64,
    paused_anonymous_bytes: u64,
    update_workers: usize,
    lanes: Vec<LaneCell>,
    /// The lane that last ran a message with a place to append to a memory. As many as there are
    /// memories.
    writers: Mutex<Writers>,
    /// Workers that hold a paused message.
    paused_workers: Mutex<PausedWorkers>,
    starter: Starter,
    /// The counters; the gauges are read when they are asked for.
    counters: Mutex<Statistics>,
}

#[derive(Default)]
struct LaneCell {
    state: Mutex<LaneState>,
    /// Changes recorded while the lane was busy.
    pending: Mutex<Pending>,
    /// Process id of the worker; 0 without one.
    pid: AtomicU32,
}

impl LaneCell {
    fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    fn put(&self, state: &mut LaneState, worker: Worker) {
        self.pid.store(worker.pid(), Ordering::Relaxed);
        state.worker = Some(worker);
    }
}

#[derive(Default)]
struct Pending {
    memories: BTreeSet<MemoryId>,
    everything: bool,
}

struct LaneState {
    worker: Option<Worker>,
    /// By how much the time limit of the next message is longer.
    timeout_factor: u32,
    /// Deaths in a row.
    deaths: u32,
    /// The first token of the next worker: tokens never repeat within a lane.
    next_token: u64,
    /// The worker left with a paused message, or ended with an overdue query: the start of the next
    /// one does not indicate a fault.
    lent: bool,
}

impl Default for LaneState {
    fn default() -> Self {
        Self { worker: None, timeout_factor: 1, deaths: 0, next_token: 0, lent: false }
    }
}

/// Memories of which it is known which lane wrote to them last.
const WRITERS_MAX: usize = 8_192;

/// Which lane wrote to a memory last.
#[derive(Debug, Default)]
struct Writers {
    lanes: BTreeMap<MemoryId, Lane>,
    /// Some were forgotten: one that is not there may have been written by any.
    some_forgotten: bool,
}

impl Writers {
    /// Notes that `lane` may write to the memory; whether another may have since this one did.
    fn record(&mut self, memory: MemoryId, lane: Lane) -> bool {
        if self.lanes.len() >= WRITERS_MAX && !self.lanes.contains_key(&memory) {
            self.lanes.clear();
            self.some_forgotten = true;
        }
        let before = self.lanes.insert(memory, lane);
        before.map_or(self.some_forgotten, |before| before != lane)
    }
}

impl Pool {
    /// Opens the cache and starts a worker for every lane.
    pub fn open(config: SandboxConfig) -> Result<Self, PoolError> {
        let map_count = std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        if let Some(count) = map_count.filter(|count| *count < MAP_COUNT_MIN) {
            return Err(PoolError::MapCount(count));
        }
        let preparer = Arc::new(Preparer::open(PreparerConfig {
            exe: config.exe.clone(),
            arguments: vec!["sandbox-compile".into()],
            cache_dir: config.cache_dir.clone(),
            module: config.module.clone(),
            sandbox: config.sandbox.clone(),
            source: config.source.clone(),
        })?);
        Self::with_preparer(config, preparer)
    }

    /// The same with a cache of compiled modules, and compilations, that several pools share;
    /// `cache_dir` and `source` of the configuration are those of `preparer`.
    ///
    /// # Errors
    /// When a worker cannot be started.
    pub fn with_preparer(
        config: SandboxConfig,
        preparer: Arc<Preparer>,
    ) -> Result<Self, PoolError> {
        let update_workers = config.update_workers.max(1);
        let lanes = update_workers + config.query_workers.max(1);
        // A canister has two memories.
        let canisters = usize::try_from(config.sandbox.canisters_max)
            .unwrap_or(usize::MAX)
            .div_ceil(lanes)
            .max(1);
        let ring_bytes = usize::try_from(config.sandbox.ring_bytes).unwrap_or(usize::MAX);
        let starter =
            Starter::new(config.exe, canisters.saturating_mul(2), ring_bytes, config.probes)
                .map_err(PoolError::Thread)?;
        let paused_workers = PausedWorkers::new(config.sandbox.paused_workers);
        let pool = Self {
            paused_workers: Mutex::new(paused_workers),
            preparer,
            globals_max: usize::try_from(config.module.globals).unwrap_or(usize::MAX),
            sandbox: config.sandbox,
            paused_spill_bytes: config.paused_spill_bytes,
            paused_anonymous_bytes: config.paused_anonymous_bytes,
            update_workers,
            lanes: (0..lanes).map(|_| LaneCell::default()).collect(),
            writers: Mutex::default(),
            starter,
            counters: Mutex::default(),
        };
        for cell in &pool.lanes {
            let mut state = lock(&cell.state);
            pool.start(cell, &mut state)
                .map_err(|error| PoolError::Worker(error.to_string(), lanes))?;
        }
        Ok(pool)
    }

    /// Where modules are compiled and looked up.
    pub fn preparer(&self) -> &Preparer {
        &self.preparer
    }

    /// Process ids of the workers, for accounting their memory.
    pub fn pids(&self) -> Vec<u32> {
        self.lanes.iter().filter_map(LaneCell::pid).chain(self.paused_pids()).collect()
    }

    /// Those of them that hold a message which was paused.
    pub fn paused_pids(&self) -> Vec<u32> {
        lock(&self.paused_workers).pids().collect()
    }

    /// Process ids of compilations that run.
    pub fn compiler_pids(&self) -> Vec<u32> {
        self.preparer.children()
    }

    /// The workers, with the memory their allocators held when they were last asked; without it for
    /// a worker that is busy now.
    pub fn workers(&self) -> Vec<WorkerFigures> {
        let lanes = self.lanes.iter().enumerate().map(|(at, cell)| {
            let lane = match at.checked_sub(self.update_workers) {
                None => Lane::Update(at),
                Some(query) => Lane::Query(query),
            };
            (lane, cell)
        });
        lanes
            .filter_map(|(lane, cell)| {
                let pid = cell.pid()?;
                let heap =
                    cell.state.try_lock().ok().and_then(|state| Some(state.worker.as_ref()?.heap));
                Some(WorkerFigures { lane, pid, heap })
            })
            .collect()
    }

    /// Asks every worker that is not busy how much memory its allocator holds, and has it return
    /// freed memory to the system if `trim`. Returns the bytes returned in all.
    pub fn poll_allocators(&self, trim: bool) -> u64 {
        let mut returned = 0;
        for cell in &self.lanes {
            let Ok(mut state) = cell.state.try_lock() else { continue };
            let Some(worker) = &mut state.worker else { continue };
            match worker.poll_allocator(trim) {
                Ok(figures) => returned += figures.returned_bytes,
                Err(error) => self.handle_death(cell, &mut state, &error),
            }
        }
        returned
    }

    /// Counters and gauges.
    pub fn statistics(&self) -> Statistics {
        let mapped = self
            .lanes
            .iter()
            .filter_map(|cell| cell.state.try_lock().ok()?.worker.as_ref().map(Worker::mapped))
            .sum::<usize>();
        Statistics {
            mapped: mapped as u64,
            paused: lock(&self.paused_workers).waiting() as u64,
            ..*lock(&self.counters)
        }
    }

    /// Drops memories and modules not used for `sandbox.idle_seconds`, lane by lane, while the
    /// workers hold more than `sandbox.resident_floor_bytes` and until about
    /// `sandbox.eviction_batch_bytes` are freed; and sends idle workers their pending drops. Busy
    /// lanes are skipped. The node calls this every few seconds.
    pub fn evict_idle(&self) {
        self.evict(
            Duration::from_secs(self.sandbox.idle_seconds),
            self.sandbox.resident_floor_bytes,
        );
    }

    /// For when memory is short: drops memories and modules not used for a second, one batch of
    /// them, however little the workers hold; and the youngest of the paused messages that are
    /// kept, which runs again.
    pub fn evict_pressed(&self) {
        self.free_memory();
        self.evict(PRESSED_IDLE, 0);
    }

    fn evict(&self, idle: Duration, floor_bytes: u64) {
        let resident = |pid| memory_of(pid).map_or(0, |memory| memory.resident_bytes());
        let before: u64 = self.pids().into_iter().map(resident).sum();
        // The excess, but at most one batch at once.
        let mut to_free = before.saturating_sub(floor_bytes).min(self.sandbox.eviction_batch_bytes);
        let idle_since = Instant::now().checked_sub(idle);
        for cell in &self.lanes {
            let Ok(mut state) = cell.state.try_lock() else { continue };
            self.take_pending(cell, &mut state);
            let Some(worker) = &mut state.worker else { continue };
            let had = resident(worker.pid());
            let result = match idle_since.filter(|_| to_free > 0) {
                Some(idle_since) => worker.evict(idle_since),
                None => worker.flush(),
            };
            match result {
                Ok(()) => {
                    to_free = to_free.saturating_sub(had.saturating_sub(resident(worker.pid())));
                    self.replace_if_large(cell, &mut state);
                }
                Err(error) => self.handle_death(cell, &mut state, &error),
            }
        }
    }

    /// Has the worker of `lane` attempt a forbidden operation. Returns whether it survived. For
    /// tests of the confinement; needs [`SandboxConfig::probes`].
    pub fn probe(&self, lane: Lane, probe: Probe, timeout: Duration) -> bool {
        let Some(cell) = self.cell(lane) else { return false };
        let mut state = lock(&cell.state);
        let survived =
            self.worker(cell, &mut state).and_then(|worker| worker.probe(probe, timeout));
        if let Err(error) = &survived {
            self.handle_death(cell, &mut state, error);
        }
        survived.is_ok()
    }

    fn cell(&self, lane: Lane) -> Option<&LaneCell> {
        match lane {
            Lane::Update(n) => self.lanes.get(..self.update_workers)?.get(n),
            Lane::Query(n) => self.lanes.get(self.update_workers..)?.get(n),
        }
    }

    /// Begins a message on the worker of `lane`, which may have a deadline. A worker whose message
    /// is paused is taken out of the lane and returned with the report.
    fn begin(
        &self,
        lane: Lane,
        request: &Request,
        grant: Option<&Grant>,
        deadline: Option<Instant>,
    ) -> Result<(Slice, Option<Worker>), WorkerError> {
        let Some(cell) = self.cell(lane) else {
            return Err(WorkerError::Failed(format!("there is no sandbox worker {lane:?}")));
        };
        lock(&self.counters).messages += 1;
        let mut state = lock(&cell.state);
        let settle = [&request.heap, &request.stable].map(|mount| {
            mount.append.is_some() && lock(&self.writers).record(mount.layout.id, lane)
        });
        let (factor, globals_max) = (state.timeout_factor, self.globals_max);
        let time = deadline.map_or(TimeLimit::Hanging(factor), TimeLimit::Until);
        let executed = self.worker(cell, &mut state).and_then(|worker| {
            worker.execute(request, grant, &self.preparer, globals_max, settle, time)
        });
        match executed {
            Ok(executed) => {
                state.deaths = 0;
                state.timeout_factor = 1;
                let paused = match executed {
                    Slice::Paused(_) => {
                        state.lent = true;
                        self.take_worker(cell, &mut state)
                    }
                    Slice::Ended(_) => None,
                };
                if state
                    .worker
                    .as_ref()
                    .is_some_and(|worker| worker.messages.is_multiple_of(MEMORY_CHECK_MESSAGES))
                {
                    self.replace_if_large(cell, &mut state);
                }
                Ok((executed, paused))
            }
            Err(WorkerError::Overdue) => {
                // Not a fault: the next query gets a new worker without waiting.
                lock(&self.counters).overdue += 1;
                self.end(cell, &mut state);
                if let Err(error) = self.start(cell, &mut state) {
                    tracing::warn!(%error, "a sandbox worker is started by the next query");
                    state.lent = true;
                }
                Err(WorkerError::Overdue)
            }
            Err(error) => {
                let error = match &mut state.worker {
                    Some(worker) => worker.explain(error),
                    None => error,
                };
                if !error.worker_is_usable() {
                    // A query's client does not wait for a slow machine.
                    if matches!(
                        (&error, lane),
                        (WorkerError::Wire(IpcError::TimedOut(_)), Lane::Update(_))
                    ) {
                        state.timeout_factor = (factor * 2).min(TIMEOUT_FACTOR_MAX);
                    }
                    self.handle_death(cell, &mut state, &error);
                }
                Err(error)
            }
        }
    }

    /// Resumes a message that a worker keeps.
    fn resume(
        &self,
        lane: Lane,
        request: &Request,
        grant: &Grant,
        mut paused: PausedWorker,
    ) -> Result<Slice, WorkerTrouble> {
        lock(&self.counters).messages += 1;
        let resumed =
            paused.worker.resume(request, grant, paused.granted, self.globals_max, RESUMED_FACTOR);
        // Pages that the disk lost may have been read meanwhile: then nothing of it counts.
        let resumed = resumed.and_then(|executed| paused.check_writeback().map(|()| executed));
        match resumed {
            Ok(Slice::Paused(progress)) => {
                paused.granted = grant.until;
                self.keep_paused(grant.name, paused);
                Ok(Slice::Paused(progress))
            }
            Ok(Slice::Ended(outcome)) => {
                lock(&self.paused_workers).leave(&grant.name);
                self.return_worker(lane, paused.worker);
                Ok(Slice::Ended(outcome))
            }
            Err(error) => {
                lock(&self.paused_workers).leave(&grant.name);
                let error = paused.worker.explain(error);
                self.count_death(&error);
                Err(error.into_trouble())
            }
        }
    }

    /// Keeps a message that was just paused for the first time, if there is a place.
    fn keep_first(&self, request: &Request, grant: &Grant, worker: Worker) {
        let (is_room, given_up) = lock(&self.paused_workers).make_room(grant.name, worker.pid());
        // Ended after the lock is released: this waits for the process.
        drop(given_up);
        if !is_room {
            return;
        }
        match self.spill_file(request) {
            Ok(spill) => {
                let layouts = [request.heap.layout.clone(), request.stable.layout.clone()];
                let paused =
                    PausedWorker { worker, granted: grant.until, spill, spilled_bytes: 0, layouts };
                self.keep_paused(grant.name, paused);
            }
            Err(error) => {
                lock(&self.paused_workers).leave(&grant.name);
                tracing::warn!(%error, "a paused message is not kept and will run again");
            }
        }
    }

    /// The file of a place. It has its full length from the beginning: some file systems take
    /// blocks ahead where a file grows.
    fn spill_file(&self, request: &Request) -> Result<File, WorkerError> {
        let file = self.preparer.unnamed_file()?;
        let full = file.set_len(spilled_bytes(request.stable.layout.base_bytes));
        full.map_err(|error| WorkerError::Spill(error.to_string()))?;
        Ok(file)
    }

    /// Keeps a paused message, or ends the worker: also one that holds more than it may.
    fn keep_paused(&self, name: SlicedName, mut paused: PausedWorker) {
        let timeout = SPILL_GRACE + Duration::from_secs(self.paused_spill_bytes / SPILL_RATE);
        if let Err(error) = paused.worker.spill(&paused.spill, timeout) {
            lock(&self.paused_workers).leave(&name);
            return self.count_death(&error);
        }
        // The kernel reports the memory of the process and the disk space of the file.
        let anonymous = memory_of(paused.worker.pid()).map_or(0, |memory| memory.anonymous_bytes);
        let spilled = paused.spill.metadata().map_or(u64::MAX, |file| file.blocks() * 512);
        let spilled_max =
            self.paused_spill_bytes.saturating_sub(lock(&self.paused_workers).spilled(&name));
        if anonymous > self.paused_anonymous_bytes || spilled > spilled_max {
            lock(&self.paused_workers).leave(&name);
            let anonymous_max = self.paused_anonymous_bytes;
            tracing::warn!(
                message = ?name,
                anonymous,
                anonymous_max,
                spilled,
                spilled_max,
                "a paused message is too large to be kept and runs again in every round"
            );
            return;
        }
        paused.spilled_bytes = spilled;
        let given_up = lock(&self.paused_workers).keep(name, paused);
        drop(given_up);
    }

    /// Gives a worker whose paused message is over to a lane that has none; it is ended otherwise.
    fn return_worker(&self, lane: Lane, mut worker: Worker) {
        let Some(cell) = self.cell(lane) else { return };
        let mut state = lock(&cell.state);
        if state.worker.is_none() && state.deaths == 0 {
            // It was not informed of writes by others meanwhile.
            worker.forget_all();
            state.lent = false;
            cell.put(&mut state, worker);
        }
    }

    /// The lane's worker, started if there is none.
    fn worker<'a>(
        &self,
        cell: &LaneCell,
        state: &'a mut LaneState,
    ) -> Result<&'a mut Worker, WorkerError> {
        if state.worker.is_none() {
            if state.deaths > 1 {
                // The first start after a death is immediate, so that one crash costs one message
                // nothing but its retry.
                std::thread::sleep(
                    BACKOFF_FIRST.saturating_mul(1 << (state.deaths - 2).min(10)).min(BACKOFF_MAX),
                );
            }
            if !std::mem::take(&mut state.lent) {
                lock(&self.counters).restarts += 1;
            }
            self.start(cell, state)?;
        }
        self.take_pending(cell, state);
        state.worker.as_mut().ok_or_else(|| WorkerError::Start("there is none".into()))
    }

    fn start(&self, cell: &LaneCell, state: &mut LaneState) -> Result<(), WorkerError> {
        let worker = self.starter.start(state.next_token)?;
        cell.put(state, worker);
        Ok(())
    }

    fn take_pending(&self, cell: &LaneCell, state: &mut LaneState) {
        let pending = std::mem::take(&mut *lock(&cell.pending));
        if pending.everything {
            // Rare enough that a new process is the simplest way.
            self.end(cell, state);
        } else if let Some(worker) = &mut state.worker {
            worker.forget(pending.memories);
        }
    }

    /// Ends the lane's worker.
    fn end(&self, cell: &LaneCell, state: &mut LaneState) {
        drop(self.take_worker(cell, state));
    }

    /// Takes the lane's worker away.
    fn take_worker(&self, cell: &LaneCell, state: &mut LaneState) -> Option<Worker> {
        cell.pid.store(0, Ordering::Relaxed);
        state.worker.take().inspect(|worker| state.next_token = worker.next_token)
    }

    fn handle_death(&self, cell: &LaneCell, state: &mut LaneState, error: &WorkerError) {
        self.count_death(error);
        state.deaths = state.deaths.saturating_add(1);
        self.end(cell, state);
    }

    fn count_death(&self, error: &WorkerError) {
        tracing::warn!(%error, "a sandbox worker failed and will be started again");
        match error {
            WorkerError::InvalidReport(_) => lock(&self.counters).lies += 1,
            WorkerError::Wire(IpcError::TimedOut(_)) => lock(&self.counters).timeouts += 1,
            _ => {}
        }
    }

    fn replace_if_large(&self, cell: &LaneCell, state: &mut LaneState) {
        let Some(worker) = state.worker.as_ref().filter(|worker| !worker.keeps_any()) else {
            return;
        };
        let limit = self.sandbox.worker_anonymous_bytes;
        if let Some(memory) =
            memory_of(worker.pid()).filter(|memory| memory.anonymous_bytes > limit)
        {
            tracing::info!(
                anonymous_bytes = memory.anonymous_bytes,
                limit,
                "a sandbox worker holds more than `sandbox.worker_anonymous_bytes` and is replaced"
            );
            lock(&self.counters).replaced += 1;
            self.end(cell, state);
        }
    }
}

impl Sandbox for Pool {
    fn is_prepared(&self, module: &ModuleHash) -> bool {
        self.preparer.info(module).is_some()
    }

    fn prepare(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        self.preparer.prepare(hash, uploaded, priority)
    }

    fn end_ahead(&self) {
        self.preparer.end_ahead();
    }

    fn has_artefact_room(&self) -> bool {
        self.preparer.has_room()
    }

    fn execute(&self, lane: Lane, request: &Request) -> Result<Outcome, WorkerTrouble> {
        match self.begin(lane, request, None, None).map_err(WorkerError::into_trouble)? {
            (Slice::Ended(outcome), _) => Ok(*outcome),
            // The verdict on it says so before.
            (Slice::Paused(_), _) => Err(WorkerTrouble::Worker("a pause nobody asked".into())),
        }
    }

    fn execute_until(
        &self,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<TimedOutcome, WorkerTrouble> {
        match self.begin(lane, request, None, Some(deadline)) {
            Ok((Slice::Ended(outcome), _)) => Ok(TimedOutcome::Ended(outcome)),
            Ok((Slice::Paused(_), _)) => {
                Err(WorkerTrouble::Worker("a pause without a grant".into()))
            }
            Err(WorkerError::Overdue) => Ok(TimedOutcome::Overdue),
            Err(WorkerError::Unprepared) => Ok(TimedOutcome::Unprepared),
            Err(error) => Err(error.into_trouble()),
        }
    }

    fn run_slice(
        &self,
        lane: Lane,
        request: &Request,
        grant: &Grant,
    ) -> Result<Slice, WorkerTrouble> {
        let kept = lock(&self.paused_workers).take(&grant.name);
        if let Some(paused) = kept {
            return self.resume(lane, request, grant, paused);
        }
        if !grant.is_first() {
            lock(&self.counters).repeated += 1;
        }
        let (slice, paused) =
            self.begin(lane, request, Some(grant), None).map_err(WorkerError::into_trouble)?;
        if let Some(worker) = paused {
            self.keep_first(request, grant, worker);
        }
        Ok(slice)
    }

    fn free_memory(&self) {
        let given_up = lock(&self.paused_workers).evict_youngest();
        drop(given_up);
    }

    fn abandon(&self, name: &SlicedName) {
        let abandoned = lock(&self.paused_workers).abandon(name);
        drop(abandoned);
    }

    fn release(&self, lane: Lane, keep_token: u64) {
        if let Some(cell) = self.cell(lane)
            && let Some(worker) = &mut lock(&cell.state).worker
        {
            worker.release(keep_token);
        }
    }

    fn forget(&self, memories: &[MemoryId]) {
        // The next lane to write to one of them maps it afresh, if it survives.
        let mut writers = lock(&self.writers);
        for id in memories {
            writers.lanes.remove(id);
        }
        drop(writers);
        // A worker that waits with one of them mapped takes no order.
        let given_up = lock(&self.paused_workers).forget(memories);
        drop(given_up);
        for cell in &self.lanes {
            let mut pending = lock(&cell.pending);
            pending.memories.extend(memories);
            if pending.memories.len() > FORGET_MAX {
                *pending = Pending { memories: BTreeSet::new(), everything: true };
            }
        }
    }
}

/// Memory of a process as the kernel counts it.
fn memory_of(pid: u32) -> Option<ProcessMemory> {
    process::memory(Pid(pid)).ok()
}

/// The thread that starts workers.
struct Starter {
    /// Closed to end the thread.
    orders_tx: mpsc::SyncSender<(u64, mpsc::SyncSender<Result<Worker, WorkerError>>)>,
}

impl Starter {
    fn new(
        exe: PathBuf,
        memories_max: usize,
        ring_bytes: usize,
        probes: bool,
    ) -> std::io::Result<Self> {
        let (orders_tx, orders_rx) =
            mpsc::sync_channel::<(u64, mpsc::SyncSender<Result<Worker, WorkerError>>)>(1);
        std::thread::Builder::new().name("sandbox-starter".into()).spawn(move || {
            for (first_token, worker_tx) in orders_rx {
                // The caller waits for the answer; if it is gone, the worker is dropped and so
                // ended.
                let started = Worker::start(&exe, memories_max, first_token, ring_bytes, probes);
                let _ = worker_tx.send(started);
            }
        })?;
        Ok(Self { orders_tx })
    }

    fn start(&self, first_token: u64) -> Result<Worker, WorkerError> {
        let gone = || WorkerError::Start("the thread that starts workers is gone".into());
        let (worker_tx, worker_rx) = mpsc::sync_channel(1);
        self.orders_tx.send((first_token, worker_tx)).map_err(|_| gone())?;
        worker_rx.recv().map_err(|_| gone())?
    }
}
