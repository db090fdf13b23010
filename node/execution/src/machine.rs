//! One execution of a canister's code: mounting its memories, running a worker, and keeping or
//! dropping its changes.
//!
//! A worker's answer was checked against the request before it comes here (see
//! `sandbox::Sandbox::execute`), and once.
//!
//! For lack of a resource of this machine (a worker that died or hangs, memory, disk, descriptors,
//! a compiled module) this module waits in place, with [`Attempts`]: the same step is retried until
//! it succeeds, so such a failure never becomes a result. A message that kills every worker waits
//! until an operator decides to reject it. Nothing here knows why a message runs or who waits for
//! it.

use std::collections::BTreeMap;

use ic_principal::Principal;
use pages::{AppendTarget, MemoryId, PAGE_BYTES, PagesError, Run};
use sandbox::{
    CallbackKind, Changes, Entry, Grant, Lane, MessageLimits, Mount, Outcome, Progress, Request,
    RunState, Slice, SystemContext, WorkerTrouble,
};
use serde::{Deserialize, Serialize};
use state::{
    CROWD, CanisterState, CanisterStatus, Carrier, Cycles, ExecutionState, LowMemoryHook, Memory,
    PoppedMessage, Reject, SenderInfo, Settings, StateArc, StoredPayload, WASM_PAGE_BYTES,
};

use crate::config::FatalError;
use crate::core::{Core, EnsureError, RoundFacts};
use crate::management::is_scratch;
use crate::reject;
use crate::retry::{Attempts, ExecutionPoint};

/// Longest a best-effort call may wait.
pub(crate) const CALL_TIMEOUT_SECONDS_MAX: u32 = 300;

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
    pub(crate) growable_bytes: u64,
    /// Whether `wasm_memory_limit` applies.
    pub(crate) heap_limited: bool,
    /// Whether memories may grow although the canister cannot pay for them until its freezing
    /// threshold.
    pub(crate) grows_frozen: bool,
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

/// A message as it is when it begins: all that it may ever see and use. Written down while it is
/// paused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExecutionInput {
    pub(crate) entry: Entry,
    pub(crate) context: SystemContext,
    pub(crate) limits: MessageLimits,
    /// See [`Invocation`].
    pub(crate) grows_frozen: bool,
    /// See [`Invocation`].
    pub(crate) keeps_changes: bool,
}

impl ExecutionInput {
    pub(crate) fn message_bytes(&self) -> u64 {
        self.payload_parts().iter().map(|part| part.len() as u64).sum()
    }

    /// The parts of the message's payload, as queues have them.
    pub(crate) fn payload_parts(&self) -> [&[u8]; 2] {
        match &self.entry {
            Entry::Update(name) => [name.as_bytes(), &self.context.arg],
            Entry::Callback { kind: CallbackKind::Reject { message, .. }, .. } => {
                [&[], message.as_bytes()]
            }
            _ => [&[], &self.context.arg],
        }
    }

    /// The same without its payload.
    pub(crate) fn emptied(mut self) -> Self {
        match &mut self.entry {
            Entry::Update(name) => *name = String::new(),
            Entry::Callback { kind: CallbackKind::Reject { message, .. }, .. } => {
                *message = String::new();
            }
            _ => {}
        }
        self.context.arg = Vec::new();
        self
    }

    /// The same with the payload that was taken away; `None` if it cannot be its own.
    pub(crate) fn filled(mut self, mut content: Vec<u8>, payload: &StoredPayload) -> Option<Self> {
        match &mut self.entry {
            Entry::Update(name) => {
                let name_bytes = usize::try_from(payload.name_bytes).ok()?;
                let arg = content.get(name_bytes..)?.to_vec();
                content.truncate(name_bytes);
                *name = String::from_utf8(content).ok()?;
                self.context.arg = arg;
            }
            Entry::Callback { kind: CallbackKind::Reject { message, .. }, .. } => {
                *message = String::from_utf8(content).ok()?;
            }
            Entry::Callback { .. } => self.context.arg = content,
            _ => return None,
        }
        Some(self)
    }

    /// The same without the data that [`Self::restore_canister_context`] restores, so that the
    /// stored record of a message is small apart from its payload.
    pub(crate) fn without_canister_context(mut self) -> Self {
        self.context.controllers = Vec::new();
        self.context.env_vars = Vec::new();
        self.context.queue_slots_left = BTreeMap::new();
        self
    }

    /// Restores the data that is not stored, because the canister does not change it while a
    /// message is paused: changes of its settings wait, and it neither makes calls nor takes
    /// responses.
    pub(crate) fn restore_canister_context(&mut self, canister: &CanisterState, queue_slots: u64) {
        self.context.controllers.clone_from(&canister.controllers);
        self.context.env_vars.clone_from(&canister.settings.environment);
        let slots = QueueSlots::for_canister(canister, queue_slots);
        (self.context.queue_slots_left, self.context.queue_slots) = (slots.left, slots.others);
    }

    /// The cleanup of this callback, which failed after `instructions` instructions.
    pub(crate) fn cleanup(
        self,
        entry: Entry,
        limit: u64,
        growable_bytes: u64,
        instructions: u64,
    ) -> Invocation {
        let context = self.context;
        let limits = MessageLimits { instructions: limit, ..self.limits };
        Invocation {
            caller: context.caller,
            caller_info: context.caller_info,
            deadline: context.deadline,
            already_responded: context.already_responded,
            cycles_available: context.cycles_available,
            context_instructions: context.context_instructions.saturating_add(instructions),
            growable_bytes,
            grows_frozen: self.grows_frozen,
            keeps_changes: self.keeps_changes,
            ..Invocation::system(entry, limits)
        }
    }
}

/// Result of running a message, or a slice of it.
#[derive(Debug)]
pub(crate) enum SliceOutcome {
    /// It is over. Nothing is committed: the targets are returned with what is written in them,
    /// and only together with changes.
    Ended(Box<ExecutionResult>, Option<Targets>),
    /// It is resumed in a later round.
    Paused(Progress),
}

/// Room for the dirty pages of one execution.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) heap: AppendTarget,
    pub(crate) stable: AppendTarget,
}

/// Effects of an execution, as far as they count.
#[derive(Debug)]
pub(crate) struct ExecutionResult {
    pub(crate) instructions: u64,
    /// For slices and rounds, at least the instructions (`sandbox::slices`).
    pub(crate) work: u64,
    pub(crate) result: Result<sandbox::Response, Reject>,
    /// Checked and committed, but for what concerns cycles and calls, which is the caller's to
    /// apply.
    pub(crate) changes: Option<Changes>,
    pub(crate) log: Vec<serde_bytes::ByteBuf>,
    pub(crate) delta_bytes: u64,
}

/// A payload with the hash that its message states, which cannot be that message's.
pub(crate) fn foreign_payload(number: u64) -> FatalError {
    FatalError::Record {
        what: format!("message {number}"),
        reason: "its payload is that of another kind of message".into(),
    }
}

/// Runs code on one worker.
pub(crate) struct Machine<'a> {
    pub(crate) core: &'a Core,
    pub(crate) round: &'a RoundFacts,
    pub(crate) lane: usize,
    /// The execution's place, as operators see it.
    pub(crate) place: ExecutionPoint,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        core: &'a Core,
        round: &'a RoundFacts,
        lane: usize,
        place: ExecutionPoint,
    ) -> Self {
        Self { core, round, lane, place }
    }

    /// Finds room for an execution of `execution`'s code.
    pub(crate) fn reserve(
        &self,
        execution: &ExecutionState,
        limits: &MessageLimits,
    ) -> Result<Targets, FatalError> {
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
        Ok(Targets {
            heap: self.reserve_pages(execution.heap.id, pages(limits.heap_dirty_bytes))?,
            stable: self.reserve_pages(execution.stable.id, pages(limits.stable_dirty_bytes))?,
        })
    }

    /// Finds room for the pages that a message writes to a memory.
    fn reserve_pages(&self, memory: MemoryId, pages_max: u64) -> Result<AppendTarget, FatalError> {
        self.attempts().until(|| self.core.pages.reserve_reusing(memory, pages_max))
    }

    fn attempts(&self) -> Attempts<'_> {
        self.core.attempts(self.place.clone())
    }

    pub(crate) fn read_payload(&self, payload: &StoredPayload) -> Result<Vec<u8>, FatalError> {
        self.attempts().until(|| self.core.payloads.read(payload))
    }

    pub(crate) fn load_message<T: Carrier>(
        &self,
        taken: PoppedMessage<T>,
    ) -> Result<T, FatalError> {
        let number = taken.number;
        taken.load(|payload| self.read_payload(payload))?.ok_or_else(|| foreign_payload(number))
    }

    /// Puts the payload of a message that is paused into a file.
    pub(crate) fn store_payload(
        &self,
        number: u64,
        parts: [&[u8]; 2],
    ) -> Result<StateArc<StoredPayload>, FatalError> {
        self.attempts().until(|| self.core.write_payload(number, parts))
    }

    /// Fixes what a message sees: the balance of `canister` must already lack the prepayment.
    pub(crate) fn begin(&self, canister: &CanisterState, invocation: Invocation) -> ExecutionInput {
        ExecutionInput {
            entry: invocation.entry.clone(),
            limits: invocation.limits,
            grows_frozen: invocation.grows_frozen,
            keeps_changes: invocation.keeps_changes,
            context: system_context(self.core, canister, invocation, self.round.time, true, None),
        }
    }

    /// Runs an execution of an installation as far as it is granted. [`Self::evaluate`] judges the
    /// outcome.
    pub(crate) fn run(
        &self,
        canister: &CanisterState,
        begun: ExecutionInput,
        targets: Targets,
        grant: &Grant,
    ) -> Result<Slice, FatalError> {
        let Some(execution) = canister.execution.as_ref() else {
            return Err(FatalError::Record {
                what: format!("canister {}", canister.id),
                reason: "an execution of an installation has no code".into(),
            });
        };
        self.ensure_prepared(canister, execution)?;
        let Targets { heap, stable } = targets;
        let request = self.request(execution, begun, Some(heap), Some(stable))?;
        self.execute(&request, Some(grant))
    }

    /// Evaluates an outcome of [`Self::run`] for a canister as it is now.
    pub(crate) fn evaluate(
        &self,
        canister: &CanisterState,
        begun: &ExecutionInput,
        outcome: Outcome,
    ) -> ExecutionResult {
        match canister.execution.as_ref() {
            Some(execution) => self.evaluate_code(canister, execution, begun, outcome),
            None => ExecutionResult::failed(reject::no_module(&canister.id)),
        }
    }

    /// Runs a message, or as much of it as is granted. It is returned as it was handed in.
    pub(crate) fn attempt(
        &self,
        canister: &CanisterState,
        begun: ExecutionInput,
        targets: Option<Targets>,
        grant: Option<&Grant>,
    ) -> Result<(ExecutionInput, SliceOutcome), FatalError> {
        let Some(execution) = canister.execution.as_ref() else {
            let ran = ExecutionResult::failed(reject::no_module(&canister.id));
            return Ok((begun, SliceOutcome::Ended(ran.into(), None)));
        };
        self.ensure_prepared(canister, execution)?;
        let (grows_frozen, keeps_changes) = (begun.grows_frozen, begun.keeps_changes);
        let (heap_target, stable_target) =
            targets.map(|targets| (targets.heap, targets.stable)).unzip();
        let mut request = self.request(execution, begun, heap_target, stable_target)?;
        let slice = self.execute(&request, grant)?;
        let targets = request.heap.append.take().zip(request.stable.append.take());
        let targets = targets.map(|(heap, stable)| Targets { heap, stable });
        // Nothing may hold the layouts of the version before while the next one is made, or folding
        // would wait for them.
        let Request { entry, context, limits, .. } = request;
        let begun = ExecutionInput { entry, context, limits, grows_frozen, keeps_changes };
        let attempted = match slice {
            Slice::Paused(progress) => SliceOutcome::Paused(progress),
            Slice::Ended(outcome) => {
                let ran = self.evaluate_code(canister, execution, &begun, *outcome);
                let targets = targets.filter(|_| keeps_changes && ran.changes.is_some());
                SliceOutcome::Ended(ran.into(), targets)
            }
        };
        Ok((begun, attempted))
    }

    /// Evaluates an outcome for a canister as it is now, which may have paid and been paid since
    /// the message began.
    fn evaluate_code(
        &self,
        canister: &CanisterState,
        execution: &ExecutionState,
        begun: &ExecutionInput,
        outcome: Outcome,
    ) -> ExecutionResult {
        let Outcome { instructions, work, result, changes, log, .. } = outcome;
        let mut ran = ExecutionResult {
            instructions,
            work,
            result: Ok(sandbox::Response::None),
            changes: None,
            log,
            delta_bytes: 0,
        };
        match result {
            Ok(response) => ran.result = Ok(response),
            Err(trap) => {
                ran.result = Err(reject::of_trap(canister, &begun.context.caller, trap));
                return ran;
            }
        }
        let Some(mut changes) = changes else { return ran };
        match balance_after(canister, begun.context.balance, changes.balance) {
            Ok(balance) => changes.balance = balance,
            Err(reject) => {
                ran.fail(reject);
                return ran;
            }
        }
        let pages_before = execution.heap.wasm_pages + execution.stable.wasm_pages;
        let grown = (changes.heap_wasm_pages + changes.stable_wasm_pages)
            .saturating_sub(pages_before)
            * WASM_PAGE_BYTES;
        let costs = self.core.costs_of(&canister.id);
        let needed = costs.freezing_limit_with(canister, canister.memory_usage().total() + grown);
        if begun.keeps_changes && grown > 0 && !begun.grows_frozen && changes.balance < needed {
            ran.fail(reject::memory_too_dear(&canister.id, grown, changes.balance, needed));
            return ran;
        }
        ran.changes = Some(changes);
        ran
    }

    /// Has the worker run the message, again and again until there is an outcome.
    fn execute(&self, request: &Request, grant: Option<&Grant>) -> Result<Slice, FatalError> {
        let mut attempts = self.attempts().of_a_message();
        let (sandbox, lane) = (&self.core.sandbox, Lane::Update(self.lane));
        loop {
            let run = match grant {
                Some(grant) => sandbox.run_slice(lane, request, grant),
                None => sandbox.execute(lane, request).map(|outcome| Slice::Ended(outcome.into())),
            };
            let what = match run {
                Ok(Slice::Paused(progress)) => return Ok(Slice::Paused(progress)),
                Ok(Slice::Ended(outcome)) => match self.verify(request, &outcome) {
                    Ok(()) => return Ok(Slice::Ended(outcome)),
                    Err(error) if error.is_worker_fault() || error.can_heal() => error.to_string(),
                    Err(error) => return Err(error.into()),
                },
                Err(WorkerTrouble::Machine(what)) => {
                    attempts.wait_for_machine(what)?;
                    continue;
                }
                Err(WorkerTrouble::Damage(reason)) => {
                    let what = format!("canister {}", request.context.canister_id);
                    return Err(FatalError::Record { what, reason });
                }
                Err(WorkerTrouble::Worker(what)) => what,
            };
            attempts.wait(what)?;
        }
    }

    /// Whether the pages of an outcome are where it says. Found out before any memory has a new
    /// version, when the message can still run again.
    fn verify(&self, request: &Request, outcome: &Outcome) -> Result<(), PagesError> {
        let Some(changes) = &outcome.changes else { return Ok(()) };
        for (mount, runs) in
            [(&request.heap, &changes.heap_runs), (&request.stable, &changes.stable_runs)]
        {
            let pages = &self.core.pages;
            match mount.append.as_ref().filter(|_| !runs.is_empty()) {
                Some(append) if is_scratch(append.segment) => {
                    pages.verify_scratch(mount.layout.base_bytes, append, runs)?;
                }
                Some(append) => pages.verify(append, runs)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Sees to it that the canister's module can run.
    fn ensure_prepared(
        &self,
        canister: &CanisterState,
        execution: &ExecutionState,
    ) -> Result<(), FatalError> {
        let mut attempts = self.attempts();
        loop {
            match self.core.ensure_prepared(execution.module.hash, &canister.id) {
                Ok(()) => return Ok(()),
                Err(EnsureError::Fatal(error)) => return Err(error),
                Err(EnsureError::Trouble(what)) => attempts.wait(what)?,
            }
        }
    }

    fn request(
        &self,
        execution: &ExecutionState,
        begun: ExecutionInput,
        heap: Option<AppendTarget>,
        stable: Option<AppendTarget>,
    ) -> Result<Request, FatalError> {
        let mount = |memory: &Memory, append| -> Result<Mount, FatalError> {
            let layout = match &memory.layout {
                Some(layout) => layout.clone(),
                None => self.attempts().until(|| self.core.pages.layout(memory.id))?,
            };
            Ok(Mount { layout, wasm_pages: memory.wasm_pages, append })
        };
        Ok(Request {
            module: execution.module.hash,
            entry: begun.entry,
            globals: execution.globals.clone(),
            heap: mount(&execution.heap, heap)?,
            stable: mount(&execution.stable, stable)?,
            limits: begun.limits,
            context: begun.context,
            keep_token: None,
        })
    }

    /// Makes the pages the newest version, and takes over everything but cycles and calls. Returns
    /// the bytes of delta.
    pub(crate) fn commit(
        &self,
        canister: &mut CanisterState,
        changes: &Changes,
        targets: Targets,
    ) -> Result<u64, FatalError> {
        let Some(execution) = canister.execution.as_mut() else { return Ok(0) };
        let Targets { heap, stable } = targets;
        // Both were verified, so each succeeds; if the node closes between them, the whole round
        // does not count.
        let mut pages = 0;
        for (memory, target, runs) in [
            (&mut execution.heap, heap, &changes.heap_runs),
            (&mut execution.stable, stable, &changes.stable_runs),
        ] {
            if runs.is_empty() {
                continue;
            }
            // Dropped first: a layout of the previous version blocks folding.
            memory.layout = None;
            memory.layout = Some(self.attempts().until(|| self.core.pages.commit(&target, runs))?);
            pages += runs.iter().map(|run: &Run| run.pages).sum::<u64>();
        }
        Ok(self.adopt(canister, changes, pages))
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

impl ExecutionResult {
    pub(crate) fn failed(reject: Reject) -> Self {
        Self {
            instructions: 0,
            work: 0,
            result: Err(reject),
            changes: None,
            log: Vec::new(),
            delta_bytes: 0,
        }
    }

    /// It did not end well after all.
    pub(crate) fn fail(&mut self, reject: Reject) {
        self.result = Err(reject);
        self.changes = None;
    }
}

/// The balance of `canister` after a message that saw its own change from `before` to `after`.
///
/// # Errors
/// When what is there now does not cover what the message spent, or cannot take what it gained.
fn balance_after(
    canister: &CanisterState,
    before: Cycles,
    after: Cycles,
) -> Result<Cycles, Reject> {
    if let Some(gained) = after.checked_sub(before) {
        let balance = canister.cycles.checked_add(gained);
        return balance.ok_or_else(|| reject::balance_full(canister, gained));
    }
    let spent = before - after;
    canister.cycles.checked_sub(spent).ok_or_else(|| {
        let what = "what a message spent that was paused while fees were taken";
        reject::out_of_cycles(&canister.id, canister.cycles, spent, what)
    })
}

/// Callees up to which the list of a caller's remaining calls is complete.
const CALLEES_LISTED_MAX: usize = 256;

/// Number of calls that a message may make towards each callee.
struct QueueSlots {
    left: BTreeMap<Principal, u64>,
    /// Towards any other.
    others: u64,
}

impl QueueSlots {
    /// For a canister with thousands of callees the list contains only those with many open calls,
    /// because each message carries the list; towards any other it has fewer than [`CROWD`] open
    /// calls, and one message may make that many fewer.
    fn for_canister(canister: &CanisterState, slots: u64) -> Self {
        let calls = &canister.calls;
        let left = |(callee, open)| (callee, slots.saturating_sub(open));
        if calls.callees() <= CALLEES_LISTED_MAX || slots < 4 * CROWD {
            return Self { left: calls.towards().map(left).collect(), others: slots };
        }
        Self { left: calls.crowded().map(left).collect(), others: slots - (CROWD - 1) }
    }
}

/// Everything the System API may return to a canister.
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
    let slots = QueueSlots::for_canister(canister, limits.subnet.queue_slots);
    SystemContext {
        canister_id: canister.id,
        subnet_id: core.config.subnet_of(&canister.id),
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
        freezing_threshold: core.costs_of(&canister.id).freezing_limit(canister),
        cycles_available: invocation.cycles_available,
        cycles_refunded: invocation.cycles_refunded,
        global_timer: canister.global_timer,
        data_certificate: data_certificate.map(serde_bytes::ByteBuf::from),
        context_instructions: invocation.context_instructions,
        replicated,
        growable_bytes: invocation.growable_bytes,
        wasm_memory_limit: (invocation.heap_limited && settings.wasm_memory_limit > 0)
            .then_some(settings.wasm_memory_limit),
        calls_max: limits
            .subnet
            .callback_soft_limit
            .saturating_sub(canister.calls.callbacks_open()),
        queue_slots_left: slots.left,
        queue_slots: slots.others,
        costs: core.cost_table_of(&canister.id).clone(),
        payload_max_bytes: limits.subnet.message_payload_bytes,
        reject_guaranteed_response_calls: limits.execution.reject_guaranteed_response_calls,
    }
}

/// Moves the low-memory hook on after something changed (interface specification, "Scheduling on
/// low wasm memory hook").
pub(crate) fn watch_memory(core: &Core, canister: &mut CanisterState) {
    let Some(execution) = canister.execution.as_ref() else {
        canister.low_memory_hook = LowMemoryHook::Idle;
        return;
    };
    let is_memory64 = execution.module.info.memory64;
    let low = is_memory_low(core, &canister.settings, is_memory64, execution.heap.bytes());
    canister.low_memory_hook = match (low, canister.low_memory_hook) {
        (false, _) => LowMemoryHook::Idle,
        (true, LowMemoryHook::Idle) => LowMemoryHook::Ready,
        (true, hook) => hook,
    };
}

/// Whether a heap of `bytes` bytes comes near its limit.
pub(crate) fn is_memory_low(
    core: &Core,
    settings: &Settings,
    is_memory64: bool,
    heap_bytes: u64,
) -> bool {
    let sizes = &core.limits().module;
    let heap_max = if is_memory64 { sizes.heap64_bytes } else { sizes.heap32_bytes };
    let limit = match settings.wasm_memory_limit {
        0 => heap_max,
        limit => limit.min(heap_max),
    };
    limit.saturating_sub(heap_bytes) < settings.wasm_memory_threshold
}

#[cfg(test)]
mod tests {
    use state::{CallContextId, Callback, Origin, Time};

    use super::*;

    fn callee(number: u64) -> Principal {
        Principal::from_slice(&[&number.to_be_bytes()[..], &[1, 1]].concat())
    }

    #[test]
    fn a_caller_of_many_is_told_of_those_it_calls_often() {
        let id = Principal::from_slice(&[1, 1]);
        let mut canister = CanisterState::new(id, vec![], Settings::default(), 0, Time(1));
        let context = canister.calls.open_context(Origin::System, 0);
        let open = |canister: &mut CanisterState, context: CallContextId, number| {
            canister.calls.open_callback(Callback {
                context,
                callee: callee(number),
                on_reply: (0, 0),
                on_reject: (0, 0),
                on_cleanup: None,
                cycles_sent: 0,
                prepaid: 0,
                request_bytes: 0,
                deadline: None,
                answered: false,
            })
        };
        for number in 0..256 {
            open(&mut canister, context, number);
        }
        let slots = QueueSlots::for_canister(&canister, 500);
        assert_eq!((slots.left.len(), slots.left[&callee(7)], slots.others), (256, 499, 500));
        // One callee more than a complete list may have.
        let last = open(&mut canister, context, 256);
        let often: Vec<_> = (0..19).map(|_| open(&mut canister, context, 7)).collect();
        for _ in 0..14 {
            open(&mut canister, context, 8);
        }
        let slots = QueueSlots::for_canister(&canister, 500);
        assert_eq!((slots.left, slots.others), ([(callee(7), 480)].into(), 485));
        // Fifteen are open towards the other, which has no more than all slots then.
        open(&mut canister, context, 8);
        let slots = QueueSlots::for_canister(&canister, 500);
        assert_eq!(slots.left, [(callee(7), 480), (callee(8), 484)].into());
        for call in often.into_iter().take(5) {
            canister.calls.close_callback(call);
        }
        let slots = QueueSlots::for_canister(&canister, 500);
        assert_eq!(slots.left, [(callee(8), 484)].into());
        // With few slots the list has all callees, as it has with few callees.
        let few = QueueSlots::for_canister(&canister, 20);
        assert_eq!((few.left.len(), few.left[&callee(7)], few.others), (257, 5, 20));
        canister.calls.close_callback(last);
        assert_eq!(QueueSlots::for_canister(&canister, 500).left.len(), 256);
    }
}
