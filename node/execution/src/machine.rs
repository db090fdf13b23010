//! One execution of a canister's code: mounting its memories, running a worker, and keeping or dropping what it changed.
//!
//! Whatever comes back from a worker is checked before anything of it counts: cycles must add up, memories may only grow and only within their
//! limits, calls must be within their bounds. A worker that returns the impossible costs its message an error (`IC0521`) and nothing else.
//!
//! A worker that dies is asked twice more. Then the execution is a recorded fault: its message fails with a fixed text, and whoever repeats the batch with
//! the recorded faults gets the same state without running it. Nothing here knows why a message runs or who waits for it.

use ic_principal::Principal;
use pages::{AppendTarget, MemoryLayout, PAGE_BYTES, PagesError, Run, read_pages};
use sandbox::{Changes, Entry, Lane, MessageLimits, Mount, Outcome, Request, RunState, SystemContext, Trap};
use state::{
    CanisterState, CanisterStatus, Cycles, CyclesTotal, ExecutionState, Fault, LowMemoryHook, Memory, Reject,
    SenderInfo, WASM_PAGE_BYTES,
};

use crate::config::{FatalError, FaultKind};
use crate::core::{Core, EnsureError, RoundFacts};
use crate::reject;

/// Times a message is given to a worker before its deaths count.
const ATTEMPTS: u32 = 3;
/// Longest a best-effort call may wait.
pub(crate) const CALL_TIMEOUT_SECONDS_MAX: u32 = 300;
/// Bytes of certified data.
const CERTIFIED_DATA_BYTES_MAX: usize = 32;
/// Pages copied at once when a commit is taken back.
const COPY_PAGES: u64 = 64;

/// Why code runs, and what it may know of that.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) entry: Entry,
    pub(crate) caller: Principal,
    pub(crate) caller_info: Option<SenderInfo>,
    pub(crate) arg: Vec<u8>,
    pub(crate) deadline: state::Time,
    pub(crate) already_responded: bool,
    pub(crate) cycles_available: Cycles,
    pub(crate) cycles_refunded: Cycles,
    pub(crate) context_instructions: u64,
    pub(crate) limits: MessageLimits,
    /// Bytes memories may grow by.
    pub(crate) growable_bytes: u64,
    /// Whether `wasm_memory_limit` applies.
    pub(crate) heap_limited: bool,
    /// Whether memories may grow although the canister cannot pay for them until its freezing threshold.
    pub(crate) grows_frozen: bool,
    /// Whether changes are kept.
    pub(crate) keeps_changes: bool,
}

impl Invocation {
    /// Code run for the system's own reasons.
    pub(crate) fn system(entry: Entry, limits: MessageLimits) -> Self {
        Self {
            entry,
            caller: Principal::management_canister(),
            caller_info: None,
            arg: Vec::new(),
            deadline: state::Time(0),
            already_responded: true,
            cycles_available: 0,
            cycles_refunded: 0,
            context_instructions: 0,
            limits,
            growable_bytes: 0,
            heap_limited: false,
            grows_frozen: false,
            keeps_changes: true,
        }
    }
}

/// Room for the dirty pages of one execution.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) heap: AppendTarget,
    pub(crate) stable: AppendTarget,
}

/// Whether an execution can start.
pub(crate) enum Reservation {
    Ready(Targets),
    /// The delta log is full (now, or when the batch ran first): the canister waits for the next round.
    Full,
}

/// What an execution did, as far as it counts.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) instructions: u64,
    pub(crate) result: Result<sandbox::Response, Reject>,
    /// Checked and committed, but for what concerns cycles and calls, which is the caller's to apply.
    pub(crate) changes: Option<Changes>,
    pub(crate) log: Vec<serde_bytes::ByteBuf>,
    /// Bytes of delta written.
    pub(crate) delta_bytes: u64,
}

/// Runs code on one worker.
pub(crate) struct Machine<'a> {
    pub(crate) core: &'a Core,
    pub(crate) round: &'a RoundFacts,
    pub(crate) lane: usize,
    /// Faults found here.
    pub(crate) faults: Vec<Fault>,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(core: &'a Core, round: &'a RoundFacts, lane: usize) -> Self {
        Self { core, round, lane, faults: Vec::new() }
    }

    /// Finds room for an execution of `canister`, the `ordinal`th of the round.
    pub(crate) fn reserve(
        &mut self,
        canister: &CanisterState,
        execution: &ExecutionState,
        limits: &MessageLimits,
        ordinal: u64,
    ) -> Result<Reservation, FatalError> {
        if self.round.recorded(FaultKind::NotStarted, canister.id, ordinal) {
            self.faults.push(FaultKind::NotStarted.fault(canister.id, ordinal));
            return Ok(Reservation::Full);
        }
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
        let reserved =
            self.core.pages.reserve(execution.heap.id, pages(limits.heap_dirty_bytes)).and_then(|heap| {
                Ok(Targets {
                    heap,
                    stable: self.core.pages.reserve(execution.stable.id, pages(limits.stable_dirty_bytes))?,
                })
            });
        match reserved {
            Ok(targets) => Ok(Reservation::Ready(targets)),
            Err(PagesError::DeltaFull { limit_bytes, used_bytes }) => {
                tracing::info!(canister = %canister.id, used_bytes, limit_bytes, "delta log full: the canister waits for a checkpoint");
                self.faults.push(FaultKind::NotStarted.fault(canister.id, ordinal));
                Ok(Reservation::Full)
            }
            Err(error @ (PagesError::DiskFull { .. } | PagesError::TooManyOpenFiles { .. })) => {
                // Bad luck of this node, as a full log is: recorded, so that a replay waits where this round did.
                tracing::warn!(canister = %canister.id, %error, "the canister waits");
                self.faults.push(FaultKind::NotStarted.fault(canister.id, ordinal));
                Ok(Reservation::Full)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Runs `invocation` and commits what it changed in memories, globals, certified data and timer. Cycles and calls are left to the caller: the
    /// balance of `canister` must already lack the prepayment, and is not changed here.
    pub(crate) fn run(
        &mut self,
        canister: &mut CanisterState,
        invocation: Invocation,
        targets: Option<Targets>,
        ordinal: u64,
    ) -> Result<Ran, FatalError> {
        let (mut ran, targets) = self.attempt(canister, invocation, targets, ordinal)?;
        if let Some((changes, targets)) = ran.changes.as_ref().zip(targets) {
            match self.commit(canister, changes, targets) {
                Ok(delta_bytes) => ran.delta_bytes = delta_bytes,
                Err(error) if error.is_worker_fault() => {
                    tracing::error!(canister = %canister.id, %error, "worker returned bad runs");
                    ran.result = Err(reject::engine_fault(&canister.id, "pages it cannot have written"));
                    ran.changes = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ran)
    }

    /// Runs `invocation` and checks what came back, but commits nothing: the targets are returned with what is written in them. They are given back only
    /// together with changes.
    pub(crate) fn attempt(
        &mut self,
        canister: &CanisterState,
        invocation: Invocation,
        targets: Option<Targets>,
        ordinal: u64,
    ) -> Result<(Ran, Option<Targets>), FatalError> {
        let failed = |reject| Ok((Ran::failed(reject), None));
        let Some(execution) = canister.execution.as_ref() else {
            return failed(reject::no_module(&canister.id));
        };
        if self.round.recorded(FaultKind::WorkerDied, canister.id, ordinal) {
            self.faults.push(FaultKind::WorkerDied.fault(canister.id, ordinal));
            return failed(reject::worker_died(&canister.id));
        }
        if self.round.recorded(FaultKind::NotCompiled, canister.id, ordinal) {
            self.faults.push(FaultKind::NotCompiled.fault(canister.id, ordinal));
            return failed(reject::not_compiled(&canister.id));
        }
        let module = execution.module.hash;
        match self.core.ensure_prepared(module, &canister.id) {
            Ok(()) => {}
            Err(EnsureError::Fatal(error)) => return Err(error),
            Err(EnsureError::Trouble(reason)) => {
                tracing::warn!(canister = %canister.id, reason, "installed module cannot be compiled");
                self.faults.push(FaultKind::NotCompiled.fault(canister.id, ordinal));
                return failed(reject::not_compiled(&canister.id));
            }
        }
        let limits = invocation.limits;
        let growable_bytes = invocation.growable_bytes;
        let keeps_changes = invocation.keeps_changes;
        let grows_frozen = invocation.grows_frozen;
        let (heap_target, stable_target) = match targets {
            Some(targets) => (Some(targets.heap), Some(targets.stable)),
            None => (None, None),
        };
        let mut request = self.request(canister, execution, invocation, heap_target, stable_target)?;
        let mut outcome = None;
        for _ in 0..ATTEMPTS {
            let attempt = self.core.sandbox.execute(Lane::Update(self.lane), &request);
            let died = matches!(&attempt.result, Err(trap) if trap.worker_died);
            if !died {
                outcome = Some(attempt);
                break;
            }
            tracing::warn!(canister = %canister.id, "worker died while executing");
        }
        let Some(outcome) = outcome else {
            self.faults.push(FaultKind::WorkerDied.fault(canister.id, ordinal));
            return failed(reject::worker_died(&canister.id));
        };
        let Outcome { instructions, result, changes, log, .. } = outcome;
        let instructions = instructions.min(limits.instructions);
        let mut ran =
            Ran { instructions, result: Ok(sandbox::Response::None), changes: None, log, delta_bytes: 0 };
        let response = match result {
            Ok(response) => response,
            Err(Trap { reject, .. }) => {
                ran.result = Err(reject::from_canister(&canister.id, reject));
                return Ok((ran, None));
            }
        };
        let fault = |what: &str| Err(reject::engine_fault(&canister.id, what));
        let Some(changes) = changes else {
            ran.result = if keeps_changes { fault("no changes") } else { Ok(response) };
            return Ok((ran, None));
        };
        if let Err(what) =
            check(self.core, canister, execution, &request.context, &changes, growable_bytes, keeps_changes)
        {
            ran.result = fault(what);
            return Ok((ran, None));
        }
        if !keeps_changes {
            ran.result = Ok(response);
            ran.changes = Some(changes);
            return Ok((ran, None));
        }
        let pages_before = execution.heap.wasm_pages + execution.stable.wasm_pages;
        let grown = (changes.heap_wasm_pages + changes.stable_wasm_pages - pages_before) * WASM_PAGE_BYTES;
        let needed = self.core.costs.freezing_limit_with(canister, canister.memory_usage().total() + grown);
        if grown > 0 && !grows_frozen && changes.balance < needed {
            ran.result = Err(reject::memory_too_dear(&canister.id, grown, changes.balance, needed));
            return Ok((ran, None));
        }
        let targets = request.heap.append.take().zip(request.stable.append.take());
        // Nothing may hold the layouts of the version before while the next one is made, or folding would wait for them.
        drop(request);
        let Some((heap, stable)) = targets else {
            ran.result = fault("nowhere to write");
            return Ok((ran, None));
        };
        ran.result = Ok(response);
        ran.changes = Some(changes);
        Ok((ran, Some(Targets { heap, stable })))
    }

    fn request(
        &self,
        canister: &CanisterState,
        execution: &ExecutionState,
        invocation: Invocation,
        heap: Option<AppendTarget>,
        stable: Option<AppendTarget>,
    ) -> Result<Request, FatalError> {
        let mount = |memory: &Memory, append| -> Result<Mount, FatalError> {
            let layout = match &memory.layout {
                Some(layout) => layout.clone(),
                None => self.core.pages.layout(memory.id)?,
            };
            Ok(Mount { layout, wasm_pages: memory.wasm_pages, append })
        };
        Ok(Request {
            module: execution.module.hash,
            entry: invocation.entry.clone(),
            globals: execution.globals.clone(),
            heap: mount(&execution.heap, heap)?,
            stable: mount(&execution.stable, stable)?,
            limits: invocation.limits,
            context: system_context(self.core, canister, invocation, self.round.time, true, None),
            keep_token: None,
        })
    }

    /// Makes the pages the newest version, and takes over everything but cycles and calls. Returns the bytes of delta.
    pub(crate) fn commit(
        &self,
        canister: &mut CanisterState,
        changes: &Changes,
        targets: Targets,
    ) -> Result<u64, PagesError> {
        let Targets { heap, stable } = targets;
        let Some(execution) = canister.execution.as_mut() else { return Ok(0) };
        let pages = |runs: &[Run]| runs.iter().map(|run| run.pages).sum::<u64>();
        if changes.heap_runs.is_empty() {
            drop(heap);
        } else {
            let old = execution.heap.layout.take();
            match self.core.pages.commit(heap, changes.heap_runs.clone()) {
                Ok(layout) => execution.heap.layout = Some(layout),
                Err(error) => {
                    execution.heap.layout = old;
                    return Err(error);
                }
            }
            // Kept until the stable part is committed too, which may still fail.
            if !changes.stable_runs.is_empty() {
                let old_stable = execution.stable.layout.clone();
                match self.core.pages.commit(stable, changes.stable_runs.clone()) {
                    Ok(layout) => execution.stable.layout = Some(layout),
                    Err(error) => {
                        execution.stable.layout = old_stable;
                        if let Some(old) = old {
                            execution.heap.layout = Some(take_back(self.core, &old, &changes.heap_runs)?);
                        }
                        return Err(error);
                    }
                }
            }
            return Ok(self.adopt(
                canister,
                changes,
                pages(&changes.heap_runs) + pages(&changes.stable_runs),
            ));
        }
        if !changes.stable_runs.is_empty() {
            execution.stable.layout = Some(self.core.pages.commit(stable, changes.stable_runs.clone())?);
        }
        Ok(self.adopt(canister, changes, pages(&changes.stable_runs)))
    }

    fn adopt(&self, canister: &mut CanisterState, changes: &Changes, pages: u64) -> u64 {
        if let Some(execution) = canister.execution.as_mut() {
            execution.globals.clone_from(&changes.globals);
            execution.heap.wasm_pages = changes.heap_wasm_pages;
            execution.stable.wasm_pages = changes.stable_wasm_pages;
        }
        if let Some(data) = &changes.certified_data {
            canister.certified_data = data.to_vec();
        }
        if let Some(timer) = changes.global_timer {
            canister.global_timer = timer;
        }
        let delta_bytes = pages * PAGE_BYTES;
        canister.delta_debit += delta_bytes;
        delta_bytes
    }
}

impl Ran {
    pub(crate) fn failed(reject: Reject) -> Self {
        Self { instructions: 0, result: Err(reject), changes: None, log: Vec::new(), delta_bytes: 0 }
    }
}

/// Everything the System API may tell.
pub(crate) fn system_context(
    core: &Core,
    canister: &CanisterState,
    invocation: Invocation,
    time: state::Time,
    replicated: bool,
    data_certificate: Option<Vec<u8>>,
) -> SystemContext {
    let limits = core.limits();
    let settings = &canister.settings;
    let slots = limits.subnet.queue_slots;
    SystemContext {
        canister_id: canister.id,
        subnet_id: core.config.subnet.subnet_id,
        subnet_nodes: core.subnet_nodes(),
        root_key: core.config.root_key_der.clone(),
        time,
        canister_version: canister.version,
        run_state: match canister.status {
            CanisterStatus::Running => RunState::Running,
            CanisterStatus::Stopping(_) => RunState::Stopping,
            CanisterStatus::Stopped => RunState::Stopped,
        },
        controllers: canister.controllers.clone(),
        env_vars: settings.environment.clone(),
        caller: invocation.caller,
        caller_info: invocation.caller_info,
        arg: invocation.arg,
        deadline: invocation.deadline,
        already_responded: invocation.already_responded,
        balance: canister.cycles,
        freezing_threshold: core.costs.freezing_limit(canister),
        cycles_available: invocation.cycles_available,
        cycles_refunded: invocation.cycles_refunded,
        global_timer: canister.global_timer,
        data_certificate: data_certificate.map(serde_bytes::ByteBuf::from),
        context_instructions: invocation.context_instructions,
        replicated,
        growable_bytes: invocation.growable_bytes,
        wasm_memory_limit: (invocation.heap_limited && settings.wasm_memory_limit > 0)
            .then_some(settings.wasm_memory_limit),
        calls_max: limits.subnet.callback_soft_limit.saturating_sub(canister.calls.callbacks_open()),
        queue_slots_left: canister
            .calls
            .towards()
            .map(|(callee, open)| (callee, slots.saturating_sub(open)))
            .collect(),
        queue_slots: slots,
        costs: core.cost_table.clone(),
        payload_max_bytes: limits.subnet.message_payload_bytes,
        reject_guaranteed_response_calls: limits.execution.reject_guaranteed_response_calls,
    }
}

/// Whether what a worker says it changed is possible.
fn check(
    core: &Core,
    canister: &CanisterState,
    execution: &ExecutionState,
    context: &SystemContext,
    changes: &Changes,
    growable_bytes: u64,
    keeps_changes: bool,
) -> Result<(), &'static str> {
    let limits = core.limits();
    if changes.cycles_accepted > context.cycles_available {
        return Err("more cycles accepted than were there");
    }
    let mut left = CyclesTotal::from(changes.balance) + changes.cycles_burned;
    let costs = &core.cost_table;
    for call in &changes.calls {
        let payload = (call.method_name.len() + call.arg.len()) as u64;
        if payload > limits.subnet.message_payload_bytes {
            return Err("a call larger than the limit");
        }
        let prepaid = costs.call_base
            + costs.call_per_byte * Cycles::from(payload)
            + costs.response_reservation
            + costs.callback_execution_reservation;
        if call.prepaid != prepaid {
            return Err("a call at another price");
        }
        left += call.cycles;
        left += call.prepaid;
    }
    if left != CyclesTotal::from(context.balance) + changes.cycles_accepted {
        return Err("cycles that do not add up");
    }
    if changes.calls.len() as u64 > context.calls_max {
        return Err("more calls than the limit");
    }
    if !keeps_changes {
        return if changes.calls.is_empty() { Ok(()) } else { Err("calls from a query") };
    }
    for call in &changes.calls {
        let made = changes.calls.iter().filter(|other| other.callee == call.callee).count() as u64;
        let left = context.queue_slots_left.iter().find(|(callee, _)| *callee == call.callee);
        if made > left.map_or(context.queue_slots, |(_, left)| *left) {
            return Err("more calls than the queue has slots");
        }
    }
    if changes.certified_data.as_ref().is_some_and(|data| data.len() > CERTIFIED_DATA_BYTES_MAX) {
        return Err("certified data beyond 32 bytes");
    }
    let heap_max =
        if execution.module.info.memory64 { limits.module.heap64_bytes } else { limits.module.heap32_bytes };
    let sizes = [
        (execution.heap.wasm_pages, changes.heap_wasm_pages, heap_max),
        (execution.stable.wasm_pages, changes.stable_wasm_pages, limits.module.stable_bytes),
    ];
    let mut grown = 0;
    for (before, after, max) in sizes {
        if after < before || after > max / WASM_PAGE_BYTES {
            return Err("a memory of impossible size");
        }
        grown += (after - before) * WASM_PAGE_BYTES;
    }
    if grown > growable_bytes {
        return Err("more growth than there was room for");
    }
    if changes.globals.len() as u64 > limits.module.globals {
        return Err("more globals than the limit");
    }
    if canister.execution.is_none() {
        return Err("code that is not there");
    }
    Ok(())
}

/// Takes back a commit: writes what `old` had at the pages of `runs` as the newest version.
fn take_back(core: &Core, old: &MemoryLayout, runs: &[Run]) -> Result<MemoryLayout, PagesError> {
    let pages: u64 = runs.iter().map(|run| run.pages).sum();
    let target = core.pages.reserve(old.id, pages)?;
    let mut written = Vec::with_capacity(runs.len());
    let mut offset_page = target.offset_page;
    let mut buffer = vec![0; usize::try_from(COPY_PAGES * PAGE_BYTES).unwrap_or(0)];
    for run in runs {
        let mut done = 0;
        while done < run.pages {
            let count = (run.pages - done).min(COPY_PAGES);
            let bytes = &mut buffer[..usize::try_from(count * PAGE_BYTES).unwrap_or(0)];
            read_pages(old, run.start_page + done, bytes)?;
            std::os::unix::fs::FileExt::write_all_at(&*target.file, bytes, (offset_page + done) * PAGE_BYTES)
                .map_err(|source| PagesError::Io {
                    action: "write",
                    path: format!("memory {}", old.id.0).into(),
                    source,
                })?;
            done += count;
        }
        written.push(Run { segment: target.segment, offset_page, ..*run });
        offset_page += run.pages;
    }
    core.pages.commit(target, written)
}

/// Moves the low-memory hook on after something changed (interface specification, "Scheduling on low wasm memory hook").
pub(crate) fn watch_memory(core: &Core, canister: &mut CanisterState) {
    let Some(execution) = canister.execution.as_ref() else {
        canister.low_memory_hook = LowMemoryHook::Idle;
        return;
    };
    let limits = core.limits();
    let heap_max =
        if execution.module.info.memory64 { limits.module.heap64_bytes } else { limits.module.heap32_bytes };
    let limit = match canister.settings.wasm_memory_limit {
        0 => heap_max,
        limit => limit.min(heap_max),
    };
    let low = limit.saturating_sub(execution.heap.bytes()) < canister.settings.wasm_memory_threshold;
    canister.low_memory_hook = match (low, canister.low_memory_hook) {
        (false, _) => LowMemoryHook::Idle,
        (true, LowMemoryHook::Idle) => LowMemoryHook::Ready,
        (true, hook) => hook,
    };
}
