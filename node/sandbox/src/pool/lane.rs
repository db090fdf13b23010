//! One worker process and the pool's end of its wire.
//!
//! A [`Worker`] is exclusive: its holder sends an order and waits for the report. Any failure of it
//! — the wire, the time limit, an impossible outcome — ends the process; the lane starts another
//! one for the next message, waiting longer the more often that happens in a row.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use accounting::processor;
use pages::{AppendTarget, MemoryId, MemoryLayout, PageFile, PagesError, SegmentId};
use state::ModuleHash;

use super::{
    verdict,
    view::{Plan, View},
};
use crate::{
    Grant, MessageLimits, Mount, Outcome, Request, Slice, WorkerTrouble,
    ipc::{Channel, IpcError},
    prepare::{PrepareError, Preparer},
    slices::WORK_PER_INSTRUCTION_MAX,
    worker::{
        PROBES_ARGUMENT,
        protocol::{
            AppendOrder, Execute, Forget, HeapFigures, MapOrder, MapPart, MountOrder, Order, Probe,
            Report, Resume, SliceOrder,
        },
    },
};

/// The hidden subcommand.
const SUBCOMMAND: &str = "sandbox-worker";

/// Composite queries one worker keeps.
const KEPT_MAX: usize = 8;

/// Longest report that has no outcome in it.
const SHORT_REPORT_BYTES_MAX: usize = 64 << 10;

/// How long a worker may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a message in addition to its instructions.
const GRACE: Duration = Duration::from_secs(30);

/// Least time of a message with a deadline: one that begins late does not cost a worker that would
/// answer at once.
const TIME_MIN: Duration = Duration::from_millis(50);

/// Far below what any machine executes: only a worker that hangs is slower.
const INSTRUCTIONS_PER_SECOND: u64 = 20_000_000;

/// More than one operation costs for each byte that it writes, first writes included.
const OPERATION_INSTRUCTIONS_PER_BYTE: u64 = 4;

/// More than any one operation takes: it writes no more than may be dirty.
fn operation_instructions_max(limits: &MessageLimits) -> u64 {
    let bytes = limits.heap_dirty_bytes.max(limits.stable_dirty_bytes);
    bytes.saturating_mul(OPERATION_INSTRUCTIONS_PER_BYTE)
}

/// How long the worker may take for what is granted, of which it used `granted` before.
fn time_limit(limits: &MessageLimits, grant: Option<&Grant>, granted: u64) -> Duration {
    let most = limits.instructions.saturating_mul(WORK_PER_INSTRUCTION_MAX);
    // Where a slice ends there may be one long operation more.
    let until = grant.map_or(most, |grant| {
        grant.until.saturating_add(operation_instructions_max(limits)).min(most)
    });
    let seconds = until.saturating_sub(granted) / INSTRUCTIONS_PER_SECOND;
    GRACE + Duration::from_secs(seconds)
}

/// How long a worker whose wire is closed may take to end, and how often it is looked at.
const EXIT_PATIENCE: Duration = Duration::from_millis(200);
const EXIT_LOOK: Duration = Duration::from_millis(1);

/// Why a message has no outcome.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error("the worker cannot be started: {0}")]
    Start(String),
    #[error("the worker is gone: {0}")]
    Wire(#[from] IpcError),
    #[error("the worker ended ({0})")]
    Ended(ExitStatus),
    #[error("the worker gave up: {0}")]
    Failed(String),
    #[error("the worker reported the impossible: {0}")]
    InvalidReport(String),
    /// No artefact of the module can be had.
    #[error(transparent)]
    Artefact(#[from] PrepareError),
    #[error("the file of a paused message: {0}")]
    Spill(String),
    /// A file of a memory cannot be opened.
    #[error(transparent)]
    Memory(#[from] PagesError),
    #[error("the composite query is no longer kept: its worker was restarted")]
    NotKept,
    #[error("the message ran until its deadline")]
    Overdue,
    /// The artefact of the module is not in the cache, and the message has a deadline.
    #[error("the module has to be compiled first")]
    Unprepared,
}

/// How long a message may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeLimit {
    /// As many times the limit that only a hanging worker reaches.
    Hanging(u32),
    /// Until then: for queries, whose outcome no other node has to reproduce.
    Until(Instant),
}

impl WorkerError {
    /// The error reported to the caller.
    pub(super) fn into_trouble(self) -> WorkerTrouble {
        match self {
            Self::Memory(error) if !error.can_heal() => WorkerTrouble::Damage(error.to_string()),
            Self::Start(_) | Self::Memory(_) | Self::Artefact(PrepareError::Cache(_)) => {
                WorkerTrouble::Machine(self.to_string())
            }
            error => WorkerTrouble::Worker(error.to_string()),
        }
    }

    /// Whether the worker can be used further.
    pub(super) fn worker_is_usable(&self) -> bool {
        matches!(self, Self::Artefact(_) | Self::Memory(_) | Self::NotKept | Self::Unprepared)
    }
}

/// A running worker process.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    channel: Channel,
    modules: BTreeMap<ModuleHash, Instant>,
    memories: BTreeMap<MemoryId, View>,
    kept: BTreeMap<u64, KeptQueryViews>,
    /// The first token that it, or a successor, may give out: none is ever given twice.
    pub(super) next_token: u64,
    /// To be sent with the next order.
    pub(super) forget: Forget,
    /// Memories it may have mapped at once.
    memories_max: usize,
    pub(super) messages: u64,
    /// The processor that it was brought to.
    processor: Option<usize>,
    /// Whether it and the caller may run at the same time.
    several_processors: bool,
    /// As it last said.
    pub(super) heap: HeapFigures,
}

/// A composite query in a worker.
#[derive(Debug)]
struct KeptQueryViews {
    /// Views that its memories were mapped from.
    views: Vec<(MemoryId, View)>,
    /// Keeps the files as they are while callbacks may read them.
    _layouts: [MemoryLayout; 2],
}

impl Worker {
    /// Starts a process. Must be called on a thread that lives as long as the worker should: the
    /// kernel kills the worker when that thread ends.
    pub(super) fn start(
        exe: &Path,
        memories_max: usize,
        first_token: u64,
        ring_bytes: usize,
        probes: bool,
    ) -> Result<Self, WorkerError> {
        let start = |error: io::Error| WorkerError::Start(format!("{}: {error}", exe.display()));
        let (ours, theirs) = UnixStream::pair().map_err(start)?;
        let channel = Channel::open(ours, ring_bytes)
            .map_err(|error| WorkerError::Start(format!("memory to share with it: {error}")))?;
        let child = Command::new(exe)
            .arg(SUBCOMMAND)
            .arg(std::process::id().to_string())
            .args(probes.then_some(PROBES_ARGUMENT))
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(start)?;
        let mut worker = Self {
            child,
            channel,
            modules: BTreeMap::new(),
            memories: BTreeMap::new(),
            kept: BTreeMap::new(),
            next_token: first_token,
            forget: Forget::default(),
            memories_max,
            messages: 0,
            processor: None,
            several_processors: std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
            heap: HeapFigures::default(),
        };
        worker.channel.set_timeout(Some(START_TIMEOUT));
        worker.channel.set_apart(worker.several_processors);
        match worker.channel.receive::<Report>(SHORT_REPORT_BYTES_MAX) {
            Ok((Report::Ready, _)) => Ok(worker),
            Ok((Report::Failed(text), _)) => Err(WorkerError::Start(text)),
            Ok(_) => Err(WorkerError::Start("its first word was not that it is ready".into())),
            Err(error) => Err(WorkerError::Start(worker.explain(error.into()).to_string())),
        }
    }

    /// The error with how the process ended, where the wire failed because it did.
    pub(super) fn explain(&mut self, error: WorkerError) -> WorkerError {
        if !matches!(error, WorkerError::Wire(IpcError::Closed | IpcError::Io(_))) {
            return error;
        }
        // The kernel closes the wire some time before the process counts as ended.
        let until = Instant::now() + EXIT_PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return WorkerError::Ended(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(EXIT_LOOK),
                Ok(None) | Err(_) => return error,
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether composite queries wait here.
    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Runs one message, to its end or as far as it is granted. `settle` says of heap and stable
    /// memory whether another worker appended to it since this one did. A worker whose message is
    /// paused takes no other order than [`Self::resume`].
    pub(super) fn execute(
        &mut self,
        request: &Request,
        grant: Option<&Grant>,
        preparer: &Preparer,
        globals_max: usize,
        settle: [bool; 2],
        time: TimeLimit,
    ) -> Result<Slice, WorkerError> {
        self.messages += 1;
        if request.keep_token.is_some_and(|token| !self.kept.contains_key(&token)) {
            return Err(WorkerError::NotKept);
        }
        for _ in 0..2 {
            self.expect(request, grant, 0, time);
            let now = Instant::now();
            let keep_as = (request.keep_token.is_none()
                && !request.context.replicated
                && self.kept.len() < KEPT_MAX)
                .then_some(self.next_token);
            let ordered = self
                .artefact(&request.module, preparer, time)
                .and_then(|artefact| self.order(request, grant, artefact, keep_as, settle, now));
            if let Err(error) = ordered {
                // It was not informed that another worker wrote to a memory, and would not be
                // informed again: its mapping must not be trusted.
                self.forget([request.heap.layout.id, request.stable.layout.id]);
                return Err(error);
            }
            let received = self.channel.receive::<Report>(verdict::outcome_bytes_max(request));
            let (report, _) = received.map_err(|error| match (error, time) {
                (IpcError::TimedOut(_), TimeLimit::Until(deadline))
                    if deadline <= Instant::now() =>
                {
                    WorkerError::Overdue
                }
                (error, _) => error.into(),
            })?;
            match report {
                Report::Missing => {
                    // It dropped something on its own. Everything is sent again.
                    self.modules.remove(&request.module);
                    self.memories.remove(&request.heap.layout.id);
                    self.memories.remove(&request.stable.layout.id);
                }
                report => {
                    let result = check_report(report, request, grant, globals_max, keep_as)?;
                    if let Slice::Ended(outcome) = &result {
                        self.settle(request, outcome, keep_as);
                    }
                    return Ok(result);
                }
            }
        }
        Err(WorkerError::Failed("it misses what it was just sent".into()))
    }

    /// Resumes the message that is paused here, whose `request` it is, after `granted`
    /// instructions.
    pub(super) fn resume(
        &mut self,
        request: &Request,
        grant: &Grant,
        granted: u64,
        globals_max: usize,
        timeout_factor: u32,
    ) -> Result<Slice, WorkerError> {
        self.expect(request, Some(grant), granted, TimeLimit::Hanging(timeout_factor));
        let mut files = Files::default();
        let mut append = |mount: &Mount| Some(files.append(mount.append.as_ref()?, true));
        let (heap, stable) = (append(&request.heap), append(&request.stable));
        let order = Order::Resume(Resume { until: grant.until, heap, stable });
        let descriptors: Vec<_> = files.owned.iter().map(|file| file.as_fd()).collect();
        self.channel.send(&order, &descriptors)?;
        let (report, _) = self.channel.receive::<Report>(verdict::outcome_bytes_max(request))?;
        check_report(report, request, Some(grant), globals_max, None)
    }

    /// Brings it to where the caller stays, or lets it go if the caller stays nowhere.
    fn follow_caller_processor(&mut self) {
        let here = processor::stays_on();
        if here == self.processor {
            return;
        }
        // It runs elsewhere where that is refused, and is not asked again there.
        match here {
            Some(here) => drop(processor::bring(self.pid(), here)),
            None => processor::release_process(self.pid()),
        }
        self.channel.set_apart(here.is_none() && self.several_processors);
        self.processor = here;
    }

    /// Has the message that is paused here put what it holds into `file`.
    pub(super) fn spill(&mut self, file: &File, timeout: Duration) -> Result<(), WorkerError> {
        match self.ask(&Order::Spill, &[file.as_fd()], timeout)? {
            Report::Spilled => Ok(()),
            report => Err(out_of_turn(report)),
        }
    }

    /// Sets how long the next report may take: a message that begins runs all it is granted.
    fn expect(&mut self, request: &Request, grant: Option<&Grant>, granted: u64, time: TimeLimit) {
        self.follow_caller_processor();
        let limit = match time {
            TimeLimit::Hanging(factor) => {
                time_limit(&request.limits, grant, granted).saturating_mul(factor)
            }
            TimeLimit::Until(deadline) => {
                deadline.saturating_duration_since(Instant::now()).max(TIME_MIN)
            }
        };
        self.channel.set_timeout(Some(limit));
    }

    /// The artefact, if the worker has to be sent it.
    fn artefact(
        &self,
        module: &ModuleHash,
        preparer: &Preparer,
        time: TimeLimit,
    ) -> Result<Option<File>, WorkerError> {
        if self.modules.contains_key(module) {
            return Ok(None);
        }
        match time {
            TimeLimit::Hanging(_) => Ok(Some(preparer.open_artefact(module)?)),
            TimeLimit::Until(_) => {
                // A compilation would outlast the deadline, and this lane would wait for it.
                preparer.cached_artefact(module)?.ok_or(WorkerError::Unprepared).map(Some)
            }
        }
    }

    fn order(
        &mut self,
        request: &Request,
        grant: Option<&Grant>,
        artefact: Option<File>,
        keep_as: Option<u64>,
        settle: [bool; 2],
        now: Instant,
    ) -> Result<(), WorkerError> {
        let mut files = Files::default();
        let has_artefact = artefact.is_some();
        files.owned.extend(artefact.map(Arc::new));
        let continues = request.keep_token.is_some();
        let heap = self.mount(&request.heap, continues, settle[0], &mut files)?;
        let stable = self.mount(&request.stable, continues, settle[1], &mut files)?;
        // All files are open: from here on nothing fails but the worker.
        self.memories.retain(|id, _| !files.fresh.contains(id));
        let execute = Execute {
            forget: std::mem::take(&mut self.forget),
            module: request.module,
            artefact: has_artefact,
            entry: Cow::Borrowed(&request.entry),
            globals: Cow::Borrowed(&request.globals),
            heap,
            stable,
            context: Cow::Borrowed(&request.context),
            limits: request.limits,
            keep_token: request.keep_token,
            keep_as,
            slice: grant.map(|grant| SliceOrder { until: grant.until, step: grant.step }),
        };
        let descriptors: Vec<_> = files.owned.iter().map(|file| file.as_fd()).collect();
        self.channel.send(&Order::Execute(Box::new(execute)), &descriptors)?;
        // All mapped files are the worker's now; a failure ends it, so nothing has to be undone.
        self.modules.insert(request.module, now);
        if !continues {
            for mount in [&request.heap, &request.stable] {
                let view = self
                    .memories
                    .entry(mount.layout.id)
                    .or_insert_with(|| View::new(&mount.layout, now));
                view.planned(&mount.layout, now);
                if let Some(append) = &mount.append {
                    view.append = Some(append.segment);
                }
            }
        }
        Ok(())
    }

    /// The order to the worker for one memory; the descriptors that go with it are added to
    /// `files`.
    fn mount(
        &mut self,
        mount: &Mount,
        continues: bool,
        settle: bool,
        files: &mut Files,
    ) -> Result<MountOrder, PagesError> {
        let layout = &mount.layout;
        let mut order = MountOrder {
            id: layout.id,
            wasm_pages: mount.wasm_pages,
            settle,
            map: None,
            append: None,
        };
        if continues {
            return Ok(order);
        }
        let plan = self.memories.get(&layout.id).map_or(Plan::Fresh, |view| view.plan(layout));
        order.map = match plan {
            Plan::Current => None,
            Plan::Runs(runs) => Some(files.map(layout, runs)?),
            Plan::Fresh => {
                files.owned.push(read_only(&layout.base)?);
                let (bases, parts) = files.parts(layout)?;
                let runs = files.map(layout, layout.runs.to_vec())?;
                files.fresh.push(layout.id);
                Some(MapOrder { base: Some(layout.base_bytes), bases, parts, ..runs })
            }
        };
        order.append = mount.append.as_ref().map(|append| {
            let known = self.memories.get(&layout.id).and_then(|view| view.append);
            let file = files.fresh.contains(&layout.id) || known != Some(append.segment);
            files.append(append, file)
        });
        Ok(order)
    }

    /// Keeps the views in step with what the worker did.
    fn settle(&mut self, request: &Request, outcome: &Outcome, keep_as: Option<u64>) {
        let (heap, stable) = (request.heap.layout.id, request.stable.layout.id);
        if let Some(changes) = &outcome.changes {
            for (id, runs) in [(heap, &changes.heap_runs), (stable, &changes.stable_runs)] {
                if let (Some(view), false) = (self.memories.get_mut(&id), runs.is_empty()) {
                    view.appended(runs);
                }
            }
        }
        if let (Some(token), None) = (outcome.keep_token, request.keep_token) {
            debug_assert_eq!(Some(token), keep_as, "the token that the worker was given");
            debug_assert!(
                self.kept.len() < KEPT_MAX && !self.kept.contains_key(&token),
                "query {token} is kept again, or {} others are",
                self.kept.len()
            );
            self.next_token += 1;
            let views = [heap, stable]
                .into_iter()
                .filter_map(|id| self.memories.remove(&id).map(|view| (id, view)))
                .collect();
            self.kept.insert(
                token,
                KeptQueryViews {
                    views,
                    _layouts: [request.heap.layout.clone(), request.stable.layout.clone()],
                },
            );
        }
        self.trim();
    }

    /// A composite query is over.
    pub(super) fn release(&mut self, token: u64) {
        if let Some(kept) = self.kept.remove(&token) {
            self.forget.tokens.push(token);
            for (id, view) in kept.views {
                // The worker does the same: a newer mapping wins.
                self.memories.entry(id).or_insert(view);
            }
        }
    }

    /// Drops memories.
    pub(super) fn forget(&mut self, memories: impl IntoIterator<Item = MemoryId>) {
        for id in memories {
            if self.memories.remove(&id).is_some() {
                self.forget.memories.push(id);
            }
        }
    }

    fn forget_modules(&mut self, modules: impl IntoIterator<Item = ModuleHash>) {
        for module in modules {
            self.modules.remove(&module);
            self.forget.modules.push(module);
        }
    }

    /// Drops all memories: the worker's view of them is not kept up to date any more.
    pub(super) fn forget_all(&mut self) {
        let all: Vec<MemoryId> = self.memories.keys().copied().collect();
        self.forget(all);
    }

    /// Drops the least recently used while the worker holds more than its maximum.
    fn trim(&mut self) {
        while self.memories.len() > self.memories_max {
            let oldest = self.memories.iter().min_by_key(|(_, view)| view.used).map(|(id, _)| *id);
            self.forget(oldest);
        }
        while self.modules.len() > self.memories_max.div_ceil(2) {
            let oldest = self.modules.iter().min_by_key(|(_, used)| **used).map(|(hash, _)| *hash);
            self.forget_modules(oldest);
        }
        debug_assert!(
            self.memories.len() <= self.memories_max && self.modules.len() <= self.memories_max,
            "{} memories and {} modules are mapped, the most is {}",
            self.memories.len(),
            self.modules.len(),
            self.memories_max
        );
    }

    /// Drops what was not used since `before`, and informs the worker now.
    pub(super) fn evict(&mut self, before: Instant) -> Result<(), WorkerError> {
        let idle: Vec<MemoryId> = self
            .memories
            .iter()
            .filter(|(_, view)| view.used < before)
            .map(|(id, _)| *id)
            .collect();
        self.forget(idle);
        let modules: Vec<ModuleHash> = self
            .modules
            .iter()
            .filter(|(_, used)| **used < before)
            .map(|(hash, _)| *hash)
            .collect();
        self.forget_modules(modules);
        self.flush()
    }

    /// Sends the worker its pending drops.
    pub(super) fn flush(&mut self) -> Result<(), WorkerError> {
        if self.forget.is_empty() {
            return Ok(());
        }
        let order = Order::Forget(std::mem::take(&mut self.forget));
        self.have_done(&order, GRACE)
    }

    /// Memory held by its allocator, after returning freed memory to the system if `trim`.
    pub(super) fn poll_allocator(&mut self, trim: bool) -> Result<HeapFigures, WorkerError> {
        match self.ask(&Order::Heap { trim }, &[], GRACE)? {
            Report::Heap(figures) => {
                self.heap = figures;
                Ok(figures)
            }
            report => Err(out_of_turn(report)),
        }
    }

    /// Has the worker try something forbidden.
    pub(super) fn probe(&mut self, probe: Probe, timeout: Duration) -> Result<(), WorkerError> {
        self.have_done(&Order::Probe(probe), timeout)
    }

    fn have_done(&mut self, order: &Order<'_>, timeout: Duration) -> Result<(), WorkerError> {
        match self.ask(order, &[], timeout)? {
            Report::Done => Ok(()),
            report => Err(out_of_turn(report)),
        }
    }

    /// Gives an order that no message comes with, and waits for the report.
    fn ask(
        &mut self,
        order: &Order<'_>,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Report, WorkerError> {
        self.channel.set_timeout(Some(timeout));
        self.channel.send(order, descriptors)?;
        Ok(self.channel.receive::<Report>(SHORT_REPORT_BYTES_MAX)?.0)
    }

    /// Number of memories mapped, those of kept composite queries included.
    pub(super) fn mapped(&self) -> usize {
        self.memories.len() + self.kept.values().map(|kept| kept.views.len()).sum::<usize>()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be gone already; either way it is waited for, so that nothing is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Result of an order to run, by the report on it.
fn check_report(
    report: Report,
    request: &Request,
    grant: Option<&Grant>,
    globals_max: usize,
    keep_as: Option<u64>,
) -> Result<Slice, WorkerError> {
    match report {
        Report::Outcome(outcome) => {
            verdict::check(request, &outcome, globals_max, keep_as).map(|()| Slice::Ended(outcome))
        }
        Report::Paused(paused) => {
            verdict::check_paused(request, grant, &paused).map(|()| Slice::Paused(paused))
        }
        report => return Err(out_of_turn(report)),
    }
    .map_err(WorkerError::InvalidReport)
}

/// The error of a report that is none to the order.
fn out_of_turn(report: Report) -> WorkerError {
    match report {
        Report::Failed(text) => WorkerError::Failed(text),
        _ => WorkerError::InvalidReport("a report out of turn".into()),
    }
}

/// Descriptors of an order.
#[derive(Default)]
struct Files {
    owned: Vec<Arc<File>>,
    /// Memories that are mapped anew.
    fresh: Vec<MemoryId>,
}

impl Files {
    /// The order to append to `target`; its file is added if it has to be sent.
    fn append(&mut self, target: &AppendTarget, file: bool) -> AppendOrder {
        if file {
            self.owned.push(target.file.clone());
        }
        let AppendTarget { segment, offset_page, pages_max, .. } = *target;
        let (free_page, free_pages) = (target.free.start, target.free.end - target.free.start);
        AppendOrder { segment, offset_page, pages_max, free_page, free_pages, file }
    }

    /// The other base files of `layout`, which are added, and the parts that are in them.
    fn parts(&mut self, layout: &MemoryLayout) -> Result<(usize, Vec<MapPart>), PagesError> {
        let mut bases: Vec<&Arc<PageFile>> = Vec::new();
        let mut parts = Vec::with_capacity(layout.parts.len());
        for part in layout.parts.iter() {
            let known = bases.iter().position(|base| Arc::ptr_eq(base, &part.file));
            let base = match known {
                Some(base) => base,
                None => {
                    self.owned.push(read_only(&part.file)?);
                    bases.push(&part.file);
                    bases.len() - 1
                }
            };
            parts.push(MapPart { start_page: part.start_page, pages: part.pages, base });
        }
        Ok((bases.len(), parts))
    }

    /// The order to map `runs` of `layout`; their segments are added.
    fn map(
        &mut self,
        layout: &MemoryLayout,
        runs: Vec<pages::Run>,
    ) -> Result<MapOrder, PagesError> {
        let mut segments: Vec<SegmentId> = runs.iter().map(|run| run.segment).collect();
        segments.sort_unstable();
        segments.dedup();
        segments.retain(|segment| layout.segments.iter().any(|(id, _)| id == segment));
        for segment in &segments {
            if let Some((_, file)) = layout.segments.iter().find(|(id, _)| id == segment) {
                self.owned.push(read_only(file)?);
            }
        }
        Ok(MapOrder { base: None, bases: 0, parts: Vec::new(), segments, runs })
    }
}

/// The file without the right to write. Where the system does not let it be opened again, as it is.
fn read_only(file: &PageFile) -> Result<Arc<File>, PagesError> {
    let open = file.open()?;
    if file.is_read_only() {
        return Ok(open);
    }
    Ok(File::open(format!("/proc/self/fd/{}", open.as_raw_fd())).map_or(open, Arc::new))
}

#[cfg(test)]
mod tests {
    use ic_principal::Principal;
    use state::Height;

    use super::*;
    use crate::SlicedName;

    // Promise: P13 - The time limit of a slice does not depend on earlier slices.
    #[test]
    fn a_slice_may_take_as_long_however_many_came_before() {
        const SLICE: u64 = 1_000_000_000;
        let limits = MessageLimits {
            instructions: 40 * SLICE,
            stable_dirty_bytes: 32 << 20,
            stable_accessed_bytes: 1 << 30,
            heap_dirty_bytes: 64 << 20,
            heap_max_bytes: [4 << 30, 6 << 30],
            stable_max_bytes: 1 << 40,
            log_max_bytes: 4096,
        };
        let name = SlicedName { since: Height(1), canister_id: Principal::anonymous(), part: 0 };
        let slice = |number: u64| {
            let grant = Grant::new(name, number * SLICE, SLICE);
            time_limit(&limits, Some(&grant), (number - 1) * SLICE)
        };
        assert!(slice(2) < Duration::from_secs(120), "{:?}", slice(2));
        assert!((2..40).all(|number| slice(number) == slice(2)));
        assert!(slice(40) <= slice(2), "nothing comes behind the last");
        assert!(time_limit(&limits, None, 0) > 100 * slice(2));
        // One that was lost has all of it to do again.
        let again = time_limit(&limits, Some(&Grant::new(name, 30 * SLICE, SLICE)), 0);
        assert!(again > 10 * slice(2));
    }
}
