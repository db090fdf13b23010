//! State of a worker between messages, and the handling of the pages a message wrote:
//!
//! | the message | its pages |
//! |---|---|
//! | changes state and ended well | appended to the segment, mapped from there |
//! | a composite query that made calls, and its callbacks | stay private to the worker under a token until released |
//! | anything else | dropped |
//!
//! # Bounds
//!
//! The pool decides how many memories, modules and kept executions there are and says what to
//! forget. Three bounds are the worker's own: [`MAPPINGS_ALL_MAX`] kernel mappings over all
//! memories (the memory used longest ago goes first), [`MEMORIES_MAX`] memories, and for all kept
//! executions together as many dirty bytes as one message may write.

use std::{
    collections::BTreeMap,
    fs::File,
    ops::Range,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use pages::{MemoryId, PAGE_BYTES, Run};
use state::{Global, ModuleHash, WASM_PAGE_BYTES};
use wasmtime::{Engine, Linker};

use super::{
    Allocator, Stable,
    heap::{Creator, HeapCell, Undo},
    mapping::{Kind, Mapping},
    pacer::{AppendAnew, Pacer, Wire},
    protocol::{AppendOrder, Execute, Forget, MountOrder, Report, SliceOrder},
    run::{LoadedModule, Message, RunOutput, run},
    stable::StableTrackers,
    stack::Stacks,
    watch::Watcher,
};
use crate::{
    Changes, MessageLimits, Outcome, Response, engine,
    system_api::{Failure, Host, linker},
};

/// Kernel mappings of all memories together. The rest of the 65,530 a process may have is for the
/// pages of the running message, see [`super::dirty`].
const MAPPINGS_ALL_MAX: usize = 24_000;

/// Messages of a module whose pages are counted by faults from the beginning after one had to be
/// repeated: so repetitions cost little on average.
const MESSAGES_BY_FAULTS: u32 = 100;

/// Memories mapped at once.
const MEMORIES_MAX: usize = 4096;

pub(super) struct Keeper {
    engine: Engine,
    linkers: [Linker<Host>; 2],
    heap: Arc<HeapCell>,
    trackers: StableTrackers,
    modules: BTreeMap<ModuleHash, LoadedModule>,
    memories: BTreeMap<MemoryId, Memory>,
    kept: BTreeMap<u64, KeptQuery>,
    /// Counts messages: the age of memories.
    clock: u64,
    /// For a message that is paused.
    wire: Wire,
    allocator: Arc<Allocator>,
}

pub(super) struct Memory {
    mapping: Mapping,
    used: u64,
}

/// A composite query waiting for its calls.
struct KeptQuery {
    module: ModuleHash,
    globals: Vec<Global>,
    heap: Option<KeptMemory>,
    stable: KeptMemory,
}

struct KeptMemory {
    mapping: Mapping,
    /// Pages written since the query began.
    dirty: Vec<Range<u64>>,
    /// Size before the query.
    size_before: usize,
}

/// A memory as it was before its message.
struct MemoryBaseline {
    size_before: usize,
    /// Of a kept execution: its dirty pages and the size before it began.
    kept: Option<(Vec<Range<u64>>, usize)>,
}

/// One memory after its message.
struct MemoryOutcome {
    mapping: Mapping,
    dirty: Vec<Range<u64>>,
    undo: Option<Undo>,
    baseline: MemoryBaseline,
}

/// Parts of a message that are available here.
struct Ready {
    /// Whether the module has a heap at all.
    has_memory: bool,
    heap: bool,
    stable: bool,
}

/// Initial state of a message: globals, heap, stable memory.
type InitialState = (Vec<Global>, Option<(Mapping, MemoryBaseline)>, (Mapping, MemoryBaseline));

/// The parts of an order by which its message runs.
struct Rules {
    module: ModuleHash,
    limits: MessageLimits,
    slice: Option<SliceOrder>,
    /// Size of a heap that the module cannot reach because it has no memory, in Wasm pages.
    heap_aside: Option<u64>,
    /// Sizes of the memories before the message, in bytes.
    heap_size_before: Option<usize>,
    stable_size_before: usize,
}

/// The parts of an order that decide what happens to the pages that its message wrote.
struct Settlement {
    changes_state: bool,
    module: ModuleHash,
    limits: MessageLimits,
    /// The kept execution that the message continued.
    keep_token: Option<u64>,
    /// Where a new one may be kept.
    keep_as: Option<u64>,
    /// Those before the message.
    globals: Vec<Global>,
    heap_order: MountOrder,
    stable_order: MountOrder,
    /// Where the pages go in place of what the orders say.
    append_anew: AppendAnew,
}

enum Disposition {
    Commit,
    Keep(u64),
    Drop,
}

impl Settlement {
    fn disposition(&self, ended: &mut RunOutput) -> Disposition {
        let composite = self.keep_token.is_some() || !ended.effects.changes.calls.is_empty();
        let failed = ended.failure.is_some();
        if !failed && self.changes_state && !ended.query_for_update {
            return Disposition::Commit;
        }
        if self.changes_state || !composite {
            return Disposition::Drop;
        }
        // Also after a failure: the cleanup callback runs on what was before it.
        if let Some(token) = self.keep_token.or(self.keep_as.filter(|_| !failed)) {
            return Disposition::Keep(token);
        }
        ended.failure.get_or_insert_with(|| {
            Failure::out_of_memory("too many composite queries wait for their calls at once")
        });
        Disposition::Drop
    }
}

impl Keeper {
    /// Builds the engine, before the process is confined. Without a watcher, all written pages are
    /// counted by faults.
    pub(super) fn new(
        wire: Wire,
        allocator: Arc<Allocator>,
        watcher: Option<Watcher>,
    ) -> wasmtime::Result<Self> {
        let heap = Arc::new(HeapCell::new(watcher));
        let mut config = engine::config()?;
        config.with_host_memory(Arc::new(Creator(heap.clone())));
        config.with_host_stack(Arc::new(Stacks::default()));
        let engine = Engine::new(&config)?;
        let linkers = [linker(&engine, false)?, linker(&engine, true)?];
        Ok(Self {
            engine,
            linkers,
            heap,
            trackers: StableTrackers::default(),
            modules: BTreeMap::new(),
            memories: BTreeMap::new(),
            kept: BTreeMap::new(),
            clock: 0,
            wire,
            allocator,
        })
    }

    /// Drops what is named.
    pub(super) fn forget(&mut self, forget: &Forget) -> Result<(), String> {
        for token in &forget.tokens {
            if let Some(kept) = self.kept.remove(token) {
                for memory in kept.heap.into_iter().chain([kept.stable]) {
                    let KeptMemory { mut mapping, dirty, size_before } = memory;
                    mapping
                        .discard(&dirty, size_before)
                        .map_err(text("dropping a kept execution"))?;
                    // A newer mapping of the same memory wins.
                    if !self.memories.contains_key(&mapping.id()) {
                        self.put(mapping);
                    }
                }
            }
        }
        for memory in &forget.memories {
            self.memories.remove(memory);
        }
        for module in &forget.modules {
            self.modules.remove(module);
        }
        Ok(())
    }

    /// Runs one message. An error ends the worker.
    pub(super) fn execute(
        &mut self,
        order: Execute<'_>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Report, String> {
        self.clock += 1;
        self.forget(&order.forget)?;
        let Some(ready) = self.receive(&order, descriptors)? else { return Ok(Report::Missing) };
        let (globals, heap, stable) = match self.take_all(&order, ready)? {
            Ok(state) => state,
            Err(report) => return Ok(report),
        };

        let (mapping, stable_baseline) = stable;
        let may_watch = (order.slice.is_some() || !order.context.replicated)
            && mapping.can_discard()
            && self.is_seldom_repeated(&order.module);
        let mut heap_baseline = None;
        if let Some((mapping, baseline)) = heap {
            let kept = baseline.kept.as_ref().map(|(dirty, _)| dirty.as_slice());
            self.heap
                .enter(mapping, &order.limits, kept, may_watch)
                .map_err(text("preparing a heap"))?;
            heap_baseline = Some(baseline);
        }
        let stable = self.enter_stable(mapping, &order.limits, &stable_baseline);
        let rules = Rules {
            module: order.module,
            limits: order.limits,
            slice: order.slice,
            heap_aside: heap_baseline.is_none().then_some(order.heap.wasm_pages),
            heap_size_before: heap_baseline.as_ref().map(|baseline| baseline.size_before),
            stable_size_before: stable_baseline.size_before,
        };
        let mut settlement = Settlement {
            changes_state: order.entry.changes_state(order.context.replicated),
            module: order.module,
            limits: order.limits,
            keep_token: order.keep_token,
            keep_as: order.keep_as,
            globals,
            heap_order: order.heap,
            stable_order: order.stable,
            append_anew: AppendAnew::default(),
        };
        let message = Message {
            entry: order.entry.into_owned(),
            globals: settlement.globals.clone(),
            context: order.context.into_owned(),
            limits: order.limits,
        };
        let (ended, stable, append_anew) = self.run(&rules, message, stable)?;
        settlement.append_anew = append_anew;

        let heap =
            heap_baseline.zip(self.heap.leave()).map(|(baseline, (mapping, dirty, undo))| {
                MemoryOutcome { mapping, dirty, undo, baseline }
            });
        let (mapping, dirty, undo, trackers) = stable.leave();
        self.trackers = trackers;
        let stable = MemoryOutcome { mapping, dirty, undo, baseline: stable_baseline };
        let outcome = self.settle(settlement, ended, heap, stable)?;
        self.evict();
        Ok(Report::Outcome(Box::new(outcome)))
    }

    /// Runs a message on the memories in place, again from its beginning if its result may depend
    /// on when its pages were counted.
    fn run(
        &mut self,
        rules: &Rules,
        mut message: Message,
        mut stable: Arc<Mutex<Stable>>,
    ) -> Result<(RunOutput, Stable, AppendAnew), String> {
        loop {
            let pacer = self.pacer(rules, &stable);
            let module = self.modules.get(&rules.module).ok_or("a message without its module")?;
            let (mut ended, held) =
                run(&self.engine, module, message, &self.heap, stable, pacer.as_ref())
                    .map_err(text("running a message"))?;
            let mut append_anew = AppendAnew::default();
            if let Some(pacer) = pacer {
                self.memories = pacer.take_others();
                append_anew = pacer.append_anew();
            }
            let left = Arc::into_inner(held).ok_or("a message that is over holds its memory")?;
            let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
            // Whatever the canister observed instead must not count: another machine would not
            // have returned it.
            if self.heap.kernel_refused() || left.kernel_refused() {
                return Err("the kernel refused to change the protection of a memory: \
                            memory is short, or vm.max_map_count too low"
                    .into());
            }
            let Some(repeat) = ended.repeat.take() else { return Ok((ended, left, append_anew)) };
            message = *repeat;
            stable = self.begin_again(rules, left)?;
            if let Some(module) = self.modules.get_mut(&rules.module) {
                module.by_faults = MESSAGES_BY_FAULTS;
            }
        }
    }

    /// Puts the memories of a message in place as they were before it. From now on its pages are
    /// counted by faults.
    fn begin_again(&mut self, rules: &Rules, stable: Stable) -> Result<Arc<Mutex<Stable>>, String> {
        let doing = "dropping the changes of a message that is repeated";
        if let Some((mut mapping, dirty, _)) = self.heap.leave() {
            let size_before = rules.heap_size_before.unwrap_or_default();
            mapping.discard(&dirty, size_before).map_err(text(doing))?;
            mapping.close().map_err(text(doing))?;
            if mapping.broken() {
                return Err(doing.into());
            }
            self.heap.enter(mapping, &rules.limits, None, false).map_err(text(doing))?;
        }
        let (mut mapping, dirty, _, trackers) = stable.leave();
        self.trackers = trackers;
        let baseline = MemoryBaseline { size_before: rules.stable_size_before, kept: None };
        mapping.discard(&dirty, baseline.size_before).map_err(text(doing))?;
        if mapping.broken() {
            return Err(doing.into());
        }
        Ok(self.enter_stable(mapping, &rules.limits, &baseline))
    }

    /// Whether no message of `module` was repeated lately; called once for each message.
    fn is_seldom_repeated(&mut self, module: &ModuleHash) -> bool {
        let Some(module) = self.modules.get_mut(module) else { return true };
        let by_faults = module.by_faults;
        module.by_faults = by_faults.saturating_sub(1);
        by_faults == 0
    }

    /// Pages are counted by faults from now on, as where the kernel does not note writes.
    pub(super) fn count_by_faults(&self) {
        self.heap.stop_watching();
    }

    /// Prepares the stable memory of a message.
    fn enter_stable(
        &mut self,
        mapping: Mapping,
        limits: &MessageLimits,
        baseline: &MemoryBaseline,
    ) -> Arc<Mutex<Stable>> {
        Arc::new(Mutex::new(Stable::enter(
            mapping,
            std::mem::take(&mut self.trackers),
            limits.stable_dirty_bytes / PAGE_BYTES,
            limits.stable_accessed_bytes / PAGE_BYTES,
            baseline.kept.as_ref().map(|(dirty, _)| dirty.as_slice()),
        )))
    }

    /// For a message that runs in slices. The worker's other mappings are lent to it.
    fn pacer(&mut self, rules: &Rules, stable: &Arc<Mutex<Stable>>) -> Option<Arc<Pacer>> {
        rules.slice.map(|slice| {
            let (wire, heap) = (Arc::clone(&self.wire), (Arc::clone(&self.heap), rules.heap_aside));
            let others = (std::mem::take(&mut self.memories), Arc::clone(&self.allocator));
            Arc::new(Pacer::new(
                wire,
                heap,
                Arc::clone(stable),
                slice,
                rules.limits.instructions,
                others,
            ))
        })
    }

    /// Loads and mounts what came with the order; `None` when the module is not here. Both mounts
    /// are brought up to date before anything may be found missing, so that what came with the
    /// order is never lost.
    fn receive(
        &mut self,
        order: &Execute<'_>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Ready>, String> {
        let mut files = descriptors.into_iter().map(File::from);
        if order.artefact {
            let file = files.next().ok_or("an artefact was announced and not sent")?;
            // SAFETY: the pool hands out only artefacts of its cache, which are verified and never
            // modified.
            let module = unsafe { engine::load(&self.engine, &file) }
                .map_err(text("loading an artefact"))?;
            let module =
                LoadedModule::new(&module, &self.linkers).map_err(text("linking a module"))?;
            self.modules.insert(order.module, module);
        }
        let Some(module) = self.modules.get(&order.module) else { return Ok(None) };
        let has_memory = module.has_memory;
        let heap = self.mount(Kind::Heap, &order.heap, &mut files)?;
        let stable = self.mount(Kind::Stable, &order.stable, &mut files)?;
        Ok(Some(Ready { has_memory, heap, stable }))
    }

    /// Takes out what the message runs on: globals, heap, stable memory. `Err` is the report that
    /// it cannot run.
    fn take_all(
        &mut self,
        order: &Execute<'_>,
        ready: Ready,
    ) -> Result<Result<InitialState, Report>, String> {
        let (globals, heap, stable) = if let Some(token) = order.keep_token {
            let Some(kept) = self.kept.remove(&token).filter(|kept| kept.module == order.module)
            else {
                let failure = Failure::engine("the composite query is no longer kept");
                return Ok(Err(Report::Outcome(Box::new(failed(failure)))));
            };
            let resume = |memory: KeptMemory| {
                let size_before = memory.mapping.size_bytes();
                let kept = Some((memory.dirty, memory.size_before));
                (memory.mapping, MemoryBaseline { size_before, kept })
            };
            (kept.globals, kept.heap.map(resume), resume(kept.stable))
        } else {
            if !ready.stable || (ready.has_memory && !ready.heap) {
                return Ok(Err(Report::Missing));
            }
            let heap = if ready.has_memory { self.take(&order.heap)? } else { None };
            let Some(stable) = self.take(&order.stable)? else { return Ok(Err(Report::Missing)) };
            (order.globals.to_vec(), heap, stable)
        };
        if ready.has_memory && heap.is_none() {
            return Ok(Err(Report::Missing));
        }
        Ok(Ok((globals, heap, stable)))
    }

    /// Keeps or drops what a message wrote, see the table above.
    fn settle(
        &mut self,
        settlement: Settlement,
        mut ended: RunOutput,
        heap: Option<MemoryOutcome>,
        stable: MemoryOutcome,
    ) -> Result<Outcome, String> {
        match settlement.disposition(&mut ended) {
            Disposition::Commit => {
                let Settlement { heap_order, stable_order, append_anew, .. } = settlement;
                self.commit(ended, heap, stable, (heap_order, stable_order), append_anew)
            }
            Disposition::Keep(token) => {
                let Settlement { module, globals, limits, .. } = settlement;
                self.keep_query(token, module, ended, globals, heap, stable, &limits)
            }
            Disposition::Drop => {
                let heap_wasm_pages =
                    heap.as_ref().map_or(settlement.heap_order.wasm_pages, |heap| {
                        wasm_pages(heap.baseline.size_before)
                    });
                let stable_wasm_pages = wasm_pages(stable.baseline.size_before);
                for memory in heap.into_iter().chain([stable]) {
                    self.drop_changes(memory)?;
                }
                let query_for_update = ended.failure.is_none() && ended.query_for_update;
                let changes = query_for_update.then(|| Changes {
                    globals: settlement.globals,
                    heap_wasm_pages,
                    stable_wasm_pages,
                    ..cycle_changes(&ended.effects.changes)
                });
                Ok(outcome(ended, changes, Vec::new(), None))
            }
        }
    }

    /// Maps what the order brings; whether the memory is mapped now, with its append file if it has
    /// one.
    fn mount(
        &mut self,
        kind: Kind,
        order: &MountOrder,
        files: &mut impl Iterator<Item = File>,
    ) -> Result<bool, String> {
        if let Some(memory) = self.memories.get_mut(&order.id).filter(|_| order.settle) {
            memory.mapping.settle_after_append().map_err(text("settling a memory"))?;
        }
        if let Some(map) = &order.map {
            let mut next = || files.next().ok_or("a file was announced and not sent");
            let base = map.base.map(|bytes| next().map(|file| (file, bytes))).transpose()?;
            let bases = (0..map.bases).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
            let segments = map.segments.iter().map(|_| next()).collect::<Result<Vec<_>, _>>()?;
            if let Some((base, base_bytes)) = base {
                // Two reservations of one memory are never needed.
                self.memories.remove(&order.id);
                let mut mapping = Mapping::new(order.id, kind, &base, base_bytes)
                    .map_err(text("mapping a memory"))?;
                mapping
                    .set_size(order.wasm_pages.saturating_mul(WASM_PAGE_BYTES) as usize)
                    .map_err(text("sizing a memory"))?;
                mapping.map_parts(map, &bases).map_err(text("mapping the parts of a memory"))?;
                self.put(mapping);
            }
            if let Some(memory) = self.memories.get_mut(&order.id) {
                memory
                    .mapping
                    .map_runs(map, &segments)
                    .map_err(text("mapping the runs of a memory"))?;
            }
        }
        let memory = self.memories.get_mut(&order.id).filter(|memory| !memory.mapping.broken());
        if let Some(append) = &order.append {
            let file = if append.file {
                Some(files.next().ok_or("an append file was announced and not sent")?)
            } else {
                None
            };
            let Some(memory) = memory else { return Ok(false) };
            if let Some(file) = file {
                memory
                    .mapping
                    .set_append(append.segment, file)
                    .map_err(text("changing the append file"))?;
            }
            return Ok(memory.mapping.has_append(append.segment));
        }
        Ok(memory.is_some())
    }

    /// Takes a memory out for a message, sized as the order says.
    fn take(&mut self, order: &MountOrder) -> Result<Option<(Mapping, MemoryBaseline)>, String> {
        let Some(Memory { mut mapping, .. }) = self.memories.remove(&order.id) else {
            return Ok(None);
        };
        let size_before = order.wasm_pages.saturating_mul(WASM_PAGE_BYTES) as usize;
        if mapping.size_bytes() != size_before {
            mapping.set_size(size_before).map_err(text("sizing a memory"))?;
        }
        Ok(Some((mapping, MemoryBaseline { size_before, kept: None })))
    }

    fn put(&mut self, mut mapping: Mapping) {
        // One that cannot be closed is mapped afresh.
        if !mapping.broken() && mapping.close().is_ok() {
            self.memories.insert(mapping.id(), Memory { mapping, used: self.clock });
        }
    }

    fn commit(
        &mut self,
        mut ended: RunOutput,
        heap: Option<MemoryOutcome>,
        stable: MemoryOutcome,
        (heap_order, stable_order): (MountOrder, MountOrder),
        anew: AppendAnew,
    ) -> Result<Outcome, String> {
        // A module without a memory leaves the heap it was given as it is.
        let (mut heap_wasm_pages, mut heap_runs) = (heap_order.wasm_pages, Vec::new());
        if let Some(heap) = heap {
            (heap_wasm_pages, heap_runs) =
                self.commit_memory(heap, heap_order.append, anew.heap)?;
        }
        let (stable_wasm_pages, stable_runs) =
            self.commit_memory(stable, stable_order.append, anew.stable)?;
        let changes = Changes {
            globals: std::mem::take(&mut ended.globals),
            heap_wasm_pages,
            stable_wasm_pages,
            heap_runs,
            stable_runs,
            ..std::mem::take(&mut ended.effects.changes)
        };
        Ok(outcome(ended, Some(changes), Vec::new(), None))
    }

    /// Appends what a message wrote to where its order says, or, after a pause, where that of its
    /// last resumption says.
    fn commit_memory(
        &mut self,
        memory: MemoryOutcome,
        append: Option<AppendOrder>,
        anew: Option<(AppendOrder, File)>,
    ) -> Result<(u64, Vec<Run>), String> {
        let MemoryOutcome { mut mapping, dirty, .. } = memory;
        let at = match anew {
            Some((order, file)) => {
                mapping
                    .replace_append(order.segment, file, &dirty)
                    .map_err(text("changing the append file of a paused message"))?;
                Some(order)
            }
            None => append,
        };
        let runs = match at {
            _ if dirty.is_empty() => Vec::new(),
            Some(append) => {
                mapping.commit(&dirty, &append).map_err(text("appending dirty pages"))?
            }
            None => {
                return Err("a message that keeps its changes has nowhere to append them".into());
            }
        };
        let size = wasm_pages(mapping.size_bytes());
        self.put(mapping);
        Ok((size, runs))
    }

    fn drop_changes(&mut self, memory: MemoryOutcome) -> Result<(), String> {
        let MemoryOutcome { mut mapping, dirty, baseline, .. } = memory;
        mapping
            .discard(&dirty, baseline.size_before)
            .map_err(text("dropping the changes of a message"))?;
        self.put(mapping);
        Ok(())
    }

    /// Keeps a composite query, or, after a failure, what was before it.
    #[allow(clippy::too_many_arguments)]
    fn keep_query(
        &mut self,
        token: u64,
        module: ModuleHash,
        mut ended: RunOutput,
        globals_before: Vec<Global>,
        heap: Option<MemoryOutcome>,
        stable: MemoryOutcome,
        limits: &MessageLimits,
    ) -> Result<Outcome, String> {
        let failed = ended.failure.is_some();
        let globals = if failed { globals_before } else { std::mem::take(&mut ended.globals) };
        let heap = heap.map(|heap| keep_memory(heap, failed)).transpose()?;
        let stable = keep_memory(stable, failed)?;
        let kept = KeptQuery { module, globals, heap, stable };
        let bytes_max = limits.heap_dirty_bytes.saturating_add(limits.stable_dirty_bytes);
        let bytes: u64 = self.kept.values().chain([&kept]).map(KeptQuery::dirty_bytes).sum();
        if !failed && bytes > bytes_max {
            ended.failure = Some(Failure::memory_access(
                "bytes that waiting composite queries of one worker hold",
                bytes_max,
            ));
        }
        self.kept.insert(token, kept);
        let calls = if ended.failure.is_some() {
            Vec::new()
        } else {
            std::mem::take(&mut ended.effects.changes.calls)
        };
        Ok(outcome(ended, None, calls, Some(token)))
    }

    /// Drops memories used longest ago while there are too many.
    fn evict(&mut self) {
        let mappings = |memories: &BTreeMap<MemoryId, Memory>| {
            memories.values().map(|memory| memory.mapping.mappings()).sum::<usize>()
        };
        while self.memories.len() > MEMORIES_MAX
            || (self.memories.len() > 2 && mappings(&self.memories) > MAPPINGS_ALL_MAX)
        {
            let oldest =
                self.memories.iter().min_by_key(|(_, memory)| memory.used).map(|(id, _)| *id);
            match oldest {
                Some(id) => self.memories.remove(&id),
                None => return,
            };
        }
    }
}

impl KeptQuery {
    fn dirty_bytes(&self) -> u64 {
        let pages = |memory: &KeptMemory| {
            memory.dirty.iter().map(|range| range.end - range.start).sum::<u64>()
        };
        (self.heap.as_ref().map_or(0, pages) + pages(&self.stable)) * PAGE_BYTES
    }
}

/// A memory of an execution that is kept: with what it wrote, or, when it failed, as it was before.
fn keep_memory(memory: MemoryOutcome, failed: bool) -> Result<KeptMemory, String> {
    let MemoryOutcome { mut mapping, dirty, undo, baseline } = memory;
    let (mut all, size_before) = baseline.kept.unwrap_or((Vec::new(), baseline.size_before));
    if failed {
        let undo = undo.ok_or("a failed execution that was not kept before")?;
        undo.restore(mapping.base());
        let fresh = subtract(&dirty, &undo);
        mapping
            .discard(&fresh, baseline.size_before)
            .map_err(text("dropping the changes of a callback"))?;
    } else {
        all = union(all, dirty);
    }
    mapping.close().map_err(text("protecting a kept memory"))?;
    Ok(KeptMemory { mapping, dirty: all, size_before })
}

/// The pages of `dirty` that were not dirty before.
fn subtract(dirty: &[Range<u64>], before: &Undo) -> Vec<Range<u64>> {
    let mut fresh: Vec<Range<u64>> = Vec::new();
    for page in dirty.iter().cloned().flatten().filter(|page| !before.was_dirty(*page)) {
        match fresh.last_mut() {
            Some(last) if last.end == page => last.end = page + 1,
            _ => fresh.push(page..page + 1),
        }
    }
    fresh
}

/// The pages of either, as ordered, disjoint, non-adjacent ranges.
fn union(mut one: Vec<Range<u64>>, other: Vec<Range<u64>>) -> Vec<Range<u64>> {
    one.extend(other);
    one.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(one.len());
    for range in one {
        match all.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// What a message did with cycles, and no other change.
fn cycle_changes(changes: &Changes) -> Changes {
    Changes {
        balance: changes.balance,
        cycles_accepted: changes.cycles_accepted,
        cycles_burned: changes.cycles_burned,
        ..Changes::default()
    }
}

fn outcome(
    mut ended: RunOutput,
    changes: Option<Changes>,
    query_calls: Vec<crate::Call>,
    keep_token: Option<u64>,
) -> Outcome {
    let result = match ended.failure {
        Some(failure) => {
            ended.effects.log.push(failure.logged.as_bytes());
            Err(failure.trap())
        }
        None => Ok(std::mem::replace(&mut ended.effects.response, Response::None)),
    };
    let ended_well = result.is_ok();
    Outcome {
        instructions: ended.instructions,
        work: ended.work,
        result,
        changes: changes.filter(|_| ended_well),
        accepted: ended.effects.accepted && ended_well,
        height_read: ended.effects.height_read,
        log: ended.effects.log.take(),
        query_calls,
        keep_token,
    }
}

fn failed(failure: Failure) -> Outcome {
    Outcome {
        instructions: 0,
        work: 0,
        result: Err(failure.trap()),
        changes: None,
        accepted: false,
        height_read: false,
        log: Vec::new(),
        query_calls: Vec::new(),
        keep_token: None,
    }
}

/// An outcome no honest worker returns: it creates cycles.
pub(super) fn invalid_outcome() -> Outcome {
    let changes = Changes { balance: u128::MAX, ..Changes::default() };
    Outcome {
        instructions: 0,
        result: Ok(Response::None),
        changes: Some(changes),
        ..failed(Failure::engine(""))
    }
}

fn wasm_pages(bytes: usize) -> u64 {
    bytes as u64 / WASM_PAGE_BYTES
}

/// Says what was being done when an error came.
fn text<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("{doing}: {error}")
}
