//! One message of one canister: its checks, its price, its answer.
//!
//! A [`MessageExecutor`] works only on canisters it was handed, so that those of different
//! canisters can run in parallel. Effects on others (calls, answers, statuses of ingress messages)
//! are collected in [`Effects`] and merged later, in an order that does not depend on timing.
//!
//! Every message is prepaid for all the instructions it may use; the unused part is returned. A
//! call context that is neither answered nor waiting for anything is answered by the system. So
//! every call is answered exactly once.

use sandbox::{Call, CallbackKind, Entry, MESSAGE_OVERHEAD_INSTRUCTIONS, MessageLimits, Response};
use state::{
    CallContextId, CallRequest, CallResponse, Callback, CanisterState, CanisterStatus, Cycles,
    Fault, HookTurn, Ingress, Input, LowMemoryHook, Origin, Payload, PoppedMessage, Reject,
    RequestId, SenderInfo, StateArc, StoredPayload, SubnetCall, Time, state_heap,
};

use crate::config::FatalError;
use crate::core::{Core, RoundFacts};
use crate::machine::{
    CALL_TIMEOUT_SECONDS_MAX, ExecutionResult, Invocation, Machine, Targets, watch_memory,
};
use crate::reject::{self, refused};
use crate::retry::ExecutionPoint;
use crate::slices::Task;

/// Part of a callback's instructions that is kept for its cleanup.
const CLEANUP_PART: u64 = 20;

/// Effects of messages apart from changes of the canister itself.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Calls to other canisters and to the management canister.
    pub(crate) requests: Vec<CallRequest>,
    pub(crate) responses: Vec<CallResponse>,
    /// Calls of the management canister that waited for a message which is over.
    pub(crate) management: Vec<SubnetCall>,
    pub(crate) answers: Vec<(RequestId, Result<Vec<u8>, Reject>)>,
    /// Users' calls that are being worked on.
    pub(crate) processing: Vec<RequestId>,
    /// Messages that were rejected because an operator said so.
    pub(crate) verdicts: Vec<Fault>,
    /// Instructions that canister code used, System API work included.
    pub(crate) instructions: u64,
    /// Work of the same code (`sandbox::slices`): at least its instructions.
    pub(crate) execution_work: u64,
    /// The same with the overhead of messages.
    pub(crate) work: u64,
    /// Bytes of delta pages (4 KiB each) committed to canister memories.
    pub(crate) delta_bytes: u64,
    /// Bytes of payloads of the calls and answers in here.
    pub(crate) payload_bytes: u64,
    /// Canister messages executed, a cleanup callback counting separately, plus management calls
    /// served.
    pub(crate) messages: u64,
}

/// How far a message was when its slice began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SliceStart {
    pub(crate) instructions: u64,
    pub(crate) work: u64,
    pub(crate) grown_bytes: u64,
}

impl Effects {
    /// Counts canister code that ran.
    pub(crate) fn executed(&mut self, instructions: u64, work: u64) {
        self.instructions += instructions;
        self.execution_work += work;
        self.work += work;
    }

    /// Answers the caller. Returns the cycles that could not be refunded.
    pub(crate) fn answer(&mut self, origin: &Origin, payload: Payload, refund: Cycles) -> Cycles {
        // Effects wait until an iteration's are merged, and answers until they are taken.
        let payload = payload.in_state_heap();
        self.payload_bytes += payload.len();
        match origin {
            Origin::Ingress { request_id, .. } => {
                let response = match payload {
                    Payload::Reply(bytes) => Ok(bytes),
                    Payload::Reject(reject) => Err(reject),
                };
                self.answers.push((*request_id, response));
                refund
            }
            Origin::Canister { caller, callback, deadline } => {
                self.responses.push(CallResponse {
                    originator: *caller,
                    callback: *callback,
                    payload,
                    refund,
                    deadline: *deadline,
                });
                0
            }
            Origin::System => refund,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CanisterRoundState {
    /// Messages and tasks started so far.
    pub(crate) ordinal: u64,
    pub(crate) heartbeat_done: bool,
    pub(crate) timer_done: bool,
    /// Waits for the next round: the canister used up its rate, or nothing it could do is possible
    /// now.
    pub(crate) paused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something; there may be more.
    Done,
    /// Nothing was left to do.
    Idle,
}

/// Executes messages of canisters, one after the other, on one worker.
pub(crate) struct MessageExecutor<'a> {
    pub(crate) machine: Machine<'a>,
    pub(crate) effects: Effects,
    /// Bytes that memories of canisters without allocation may still grow by.
    pub(crate) growable_bytes: u64,
}

struct PreparedCall {
    origin: Origin,
    method_name: String,
    arg: Vec<u8>,
    cycles: Cycles,
    source: MessageSource,
}

/// The message that is executed, and the location of its payload.
#[derive(Clone, Debug)]
pub(crate) struct MessageSource {
    pub(crate) number: u64,
    pub(crate) payload: Option<StateArc<StoredPayload>>,
}

impl MessageSource {
    fn from_popped<T>(taken: &PoppedMessage<T>) -> Self {
        Self { number: taken.number, payload: taken.payload.clone() }
    }
}

impl<'a> MessageExecutor<'a> {
    pub(crate) fn new(
        core: &'a Core,
        round: &'a RoundFacts,
        lane: usize,
        growable_bytes: u64,
    ) -> Self {
        let place = ExecutionPoint { height: round.height, message: None };
        Self {
            machine: Machine::new(core, round, lane, place),
            effects: Effects::default(),
            growable_bytes,
        }
    }

    pub(crate) fn core(&self) -> &'a Core {
        self.machine.core
    }

    fn time(&self) -> Time {
        self.machine.round.time
    }

    /// Takes the next thing to do for `canister` and does it.
    pub(crate) fn step(
        &mut self,
        canister: &mut CanisterState,
        round_state: &mut CanisterRoundState,
    ) -> Result<Step, FatalError> {
        self.machine.place = self.machine.round.place(canister.id, round_state.ordinal);
        let (running, lane) = (&self.machine.core.running, self.machine.lane);
        running.begin(lane, self.machine.place.clone(), "");
        let step = self.choose(canister, round_state);
        running.end(lane);
        step
    }

    /// Counts the message that is started now. Returns whether an operator decided to reject it.
    pub(crate) fn advance_ordinal(
        &mut self,
        canister: &CanisterState,
        round_state: &mut CanisterRoundState,
    ) -> bool {
        let verdict = self.machine.round.verdict(canister.id, round_state.ordinal);
        round_state.ordinal += 1;
        self.effects.verdicts.extend(verdict.clone());
        verdict.is_some()
    }

    fn choose(
        &mut self,
        canister: &mut CanisterState,
        round_state: &mut CanisterRoundState,
    ) -> Result<Step, FatalError> {
        let running = canister.status == CanisterStatus::Running;
        if running && let Some(module) = canister.module() {
            let hooks = module.info.hooks;
            let timer_due = canister.global_timer.0 != 0
                && canister.global_timer <= self.time()
                && hooks.global_timer
                && !round_state.timer_done;
            // A hook that cannot be paid waits; other work continues, and most of it will be
            // refused for the same reason.
            if hooks.on_low_wasm_memory
                && canister.low_memory_hook == LowMemoryHook::Ready
                && self.core().affords_task(canister)
            {
                return self.system_task(canister, round_state, Entry::OnLowWasmMemory);
            }
            let messages = !canister.queues.is_empty();
            let (heartbeat_waits, timer_waits) = match canister.hook_turn {
                HookTurn::Any => (false, false),
                HookTurn::Timer => (timer_due || messages, false),
                HookTurn::Message => (messages, messages),
            };
            if hooks.heartbeat && !round_state.heartbeat_done && !heartbeat_waits {
                canister.hook_turn = HookTurn::Any;
                return self.system_task(canister, round_state, Entry::Heartbeat);
            }
            if timer_due && !timer_waits {
                if canister.hook_turn == HookTurn::Timer {
                    canister.hook_turn = HookTurn::Message;
                }
                return self.system_task(canister, round_state, Entry::GlobalTimer);
            }
        }
        if canister.queues.is_empty() {
            return Ok(Step::Idle);
        }
        let input = if running {
            canister.queues.pop()
        } else {
            canister
                .queues
                .pop_call()
                .or_else(|| canister.queues.pop_response().map(Input::Response))
        };
        match input {
            None => return Ok(Step::Idle),
            Some(input) => {
                let ruled_out = self.advance_ordinal(canister, round_state);
                canister.hook_turn = HookTurn::Any;
                match input {
                    Input::Ingress(ingress) => self.ingress(canister, ingress, ruled_out)?,
                    Input::Request(request) => self.request(canister, request, ruled_out)?,
                    Input::Response(response) => self.response(canister, response, ruled_out)?,
                }
            }
        }
        self.effects.work += MESSAGE_OVERHEAD_INSTRUCTIONS;
        Ok(Step::Done)
    }

    /// Room for what an execution may write; none for a canister without code.
    pub(crate) fn targets(
        &self,
        canister: &CanisterState,
        limits: &MessageLimits,
    ) -> Result<Option<Targets>, FatalError> {
        canister
            .execution
            .as_ref()
            .map(|execution| self.machine.reserve(execution, limits))
            .transpose()
    }

    fn ingress(
        &mut self,
        canister: &mut CanisterState,
        taken: PoppedMessage<Ingress>,
        ruled_out: bool,
    ) -> Result<(), FatalError> {
        let message = taken.message();
        let origin = Origin::Ingress {
            request_id: message.request_id,
            sender: message.sender,
            sender_info: message.sender_info.clone(),
        };
        if message.ingress_expiry < self.time() {
            self.effects.answer(&origin, Payload::Reject(reject::ingress_timeout(&canister.id)), 0);
            return Ok(());
        }
        if let Err(reject) = self.check_call(canister, ruled_out) {
            self.effects.answer(&origin, Payload::Reject(reject), 0);
            return Ok(());
        }
        let source = MessageSource::from_popped(&taken);
        let Ingress { method_name, arg, .. } = self.machine.load_message(taken)?;
        self.call(canister, PreparedCall { origin, method_name, arg, cycles: 0, source })
    }

    fn request(
        &mut self,
        canister: &mut CanisterState,
        taken: PoppedMessage<CallRequest>,
        ruled_out: bool,
    ) -> Result<(), FatalError> {
        let request = taken.message();
        let origin = Origin::Canister {
            caller: request.sender,
            callback: request.callback,
            deadline: request.deadline,
        };
        let minimum = canister.settings.minimum_incoming_call_cycles;
        let checked = if request.sender != canister.id && request.cycles < minimum {
            Err(reject::too_few_cycles_attached(&canister.id, minimum, request.cycles))
        } else {
            self.check_call(canister, ruled_out)
        };
        if let Err(reject) = checked {
            self.effects.answer(&origin, Payload::Reject(reject), request.cycles);
            return Ok(());
        }
        let source = MessageSource::from_popped(&taken);
        let CallRequest { method_name, arg, cycles, .. } = self.machine.load_message(taken)?;
        self.call(canister, PreparedCall { origin, method_name, arg, cycles, source })
    }

    /// Whether the canister takes the call up, as far as that does not depend on what it carries.
    fn check_call(&self, canister: &CanisterState, ruled_out: bool) -> Result<(), Reject> {
        if ruled_out {
            return Err(reject::ruled_out(&canister.id));
        }
        check_callable(self.core(), canister)
    }

    fn call(&mut self, canister: &mut CanisterState, work: PreparedCall) -> Result<(), FatalError> {
        let limits = self.core().message_limits();
        let prepaid = self.core().costs_of(&canister.id).execution(limits.instructions);
        let callable = find_method(canister, &work.method_name)
            .and_then(|is_update| prepay(self.core(), canister, prepaid).map(|()| is_update));
        let is_update = match callable {
            Ok(is_update) => is_update,
            Err(reject) => {
                self.effects.answer(&work.origin, Payload::Reject(reject), work.cycles);
                return Ok(());
            }
        };
        let context = canister.calls.open_context(work.origin.clone(), work.cycles);
        let invocation = Invocation {
            caller: work.origin.caller(),
            caller_info: sender_info(&work.origin),
            arg: work.arg,
            deadline: deadline(&work.origin),
            already_responded: false,
            cycles_available: work.cycles,
            growable_bytes: self.growable(canister, false),
            heap_limited: is_update,
            keeps_changes: is_update,
            ..Invocation::system(Entry::Update(work.method_name), limits)
        };
        let guaranteed = matches!(work.origin, Origin::Canister { deadline: None, .. });
        let task = Task::Call { guaranteed };
        self.begin(canister, task, context, (invocation, Some(work.source)), prepaid)?;
        if let Origin::Ingress { request_id, .. } = work.origin
            && canister.calls.context(context).is_some_and(|context| !context.responded)
        {
            self.effects.processing.push(request_id);
        }
        Ok(())
    }

    /// An answer to a call that the canister made.
    fn response(
        &mut self,
        canister: &mut CanisterState,
        taken: PoppedMessage<CallResponse>,
        ruled_out: bool,
    ) -> Result<(), FatalError> {
        let core = self.core();
        let response = taken.message();
        canister.credit(response.refund);
        let Some(callback) = canister.calls.close_callback(response.callback) else {
            return Ok(());
        };
        let limits = core.message_limits();
        let cleanup_instructions = self.cleanup_instructions();
        let costs = core.costs_of(&canister.id);
        let execution_prepaid = costs.execution(limits.instructions);
        // The part of the rest that transmission did not use is returned now.
        let transmission = costs.transmission(callback.request_bytes, taken.payload_bytes());
        let transmission_prepaid = callback.prepaid.saturating_sub(execution_prepaid);
        let transmission = transmission.min(transmission_prepaid);
        let execution_prepaid = callback.prepaid.min(execution_prepaid);
        canister.credit(transmission_prepaid - transmission);
        canister.consumption.transmission += transmission;

        let context =
            canister.calls.context(callback.context).filter(|context| !context.deleted).cloned();
        let Some(context) = context.filter(|_| canister.execution.is_some()) else {
            canister.credit(execution_prepaid);
            canister.calls.close_if_done(callback.context);
            return Ok(());
        };
        if ruled_out {
            // Its cleanup is part of the same message.
            canister.credit(execution_prepaid);
            let ran = ExecutionResult::failed(reject::ruled_out(&canister.id));
            self.conclude(canister, callback.context, canister.version, ran);
            return Ok(());
        }
        let source = MessageSource::from_popped(&taken);
        let response = self.machine.load_message(taken)?;
        let reject_code = match &response.payload {
            Payload::Reply(_) => 0,
            Payload::Reject(reject) => reject.code as u32,
        };
        let (kind, (fun, env), arg) = match response.payload {
            Payload::Reply(bytes) => (CallbackKind::Reply, callback.on_reply, bytes),
            Payload::Reject(reject) => (
                CallbackKind::Reject { code: reject.code as u32, message: reject.message },
                callback.on_reject,
                Vec::new(),
            ),
        };
        let callback_limits =
            MessageLimits { instructions: limits.instructions - cleanup_instructions, ..limits };
        let invocation = Invocation {
            caller: context.origin.caller(),
            caller_info: sender_info(&context.origin),
            arg,
            deadline: deadline(&context.origin),
            already_responded: context.responded,
            cycles_available: context.cycles_available,
            cycles_refunded: response.refund,
            context_instructions: context.instructions,
            growable_bytes: self.growable(canister, true),
            grows_frozen: true,
            ..Invocation::system(Entry::Callback { fun, env, kind }, callback_limits)
        };
        let guaranteed = callback.deadline.is_none();
        let task = Task::Callback { on_cleanup: callback.on_cleanup, reject_code, guaranteed };
        let invocation = (invocation, Some(source));
        self.begin(canister, task, callback.context, invocation, execution_prepaid)
    }

    /// Instructions of a callback that are kept for its cleanup.
    pub(crate) fn cleanup_instructions(&self) -> u64 {
        self.core().message_limits().instructions / CLEANUP_PART
    }

    /// Timer, heartbeat, low-memory hook.
    fn system_task(
        &mut self,
        canister: &mut CanisterState,
        round_state: &mut CanisterRoundState,
        entry: Entry,
    ) -> Result<Step, FatalError> {
        let limits = self.core().message_limits();
        let prepaid = self.core().costs_of(&canister.id).execution(limits.instructions);
        let affordable = self.core().affords_task(canister);
        let ruled_out = self.advance_ordinal(canister, round_state);
        match entry {
            Entry::Heartbeat => round_state.heartbeat_done = true,
            Entry::GlobalTimer => {
                round_state.timer_done = true;
                if affordable {
                    canister.global_timer = Time(0);
                }
            }
            _ => canister.low_memory_hook = LowMemoryHook::Executed,
        }
        if !affordable || ruled_out {
            return Ok(Step::Done);
        }
        canister.debit(prepaid);
        let context = canister.calls.open_context(Origin::System, 0);
        let growable_bytes = self.growable(canister, false);
        let invocation = Invocation { growable_bytes, ..Invocation::system(entry, limits) };
        self.begin(canister, Task::System, context, (invocation, None), prepaid)?;
        self.effects.work += MESSAGE_OVERHEAD_INSTRUCTIONS;
        Ok(Step::Done)
    }

    pub(crate) fn growable(&self, canister: &CanisterState, is_response: bool) -> u64 {
        let reserved = if is_response {
            0
        } else {
            self.core().limits().execution.response_callback_reservation_bytes
        };
        let set_aside =
            canister.settings.memory_allocation.saturating_sub(canister.memory_usage().total());
        set_aside + self.growable_bytes.saturating_sub(reserved)
    }

    /// Commits what a message wrote, settles what it cost, and takes over what it did with cycles.
    /// Calls are left in the changes. `before` are the instructions and the growth that were
    /// counted when it was paused.
    pub(crate) fn settle(
        &mut self,
        canister: &mut CanisterState,
        mut ran: ExecutionResult,
        targets: Option<Targets>,
        prepaid: Cycles,
        before: SliceStart,
    ) -> Result<ExecutionResult, FatalError> {
        let taken_before = canister.memory_taken();
        if let Some((changes, targets)) = ran.changes.as_ref().zip(targets) {
            ran.delta_bytes = self.machine.commit(canister, changes, targets)?;
        }
        if let Some(changes) = &ran.changes {
            canister.cycles = changes.balance;
            canister.consumption.burned += changes.cycles_burned;
        }
        let costs = self.core().costs_of(&canister.id);
        let cost = costs.execution(ran.instructions).min(prepaid);
        canister.credit(prepaid - cost);
        canister.consumption.instructions += cost;
        let log_bytes_max =
            canister.settings.log_memory_limit.min(self.core().limits().subnet.canister_log_bytes);
        for line in &ran.log {
            canister.log.push(self.machine.round.time, line.to_vec(), log_bytes_max);
        }
        let grown = canister.memory_taken().saturating_sub(taken_before);
        self.growable_bytes =
            self.growable_bytes.saturating_sub(grown.saturating_sub(before.grown_bytes));
        let instructions = ran.instructions.saturating_sub(before.instructions);
        self.effects.executed(instructions, ran.work.saturating_sub(before.work));
        self.effects.delta_bytes += ran.delta_bytes;
        self.effects.messages += 1;
        watch_memory(self.core(), canister);
        Ok(ran)
    }

    /// Applies the results of a message of a context: calls, an answer, the end of the context.
    /// `version` is the canister's when the message began.
    pub(crate) fn conclude(
        &mut self,
        canister: &mut CanisterState,
        id: CallContextId,
        version: u64,
        ran: ExecutionResult,
    ) {
        let mut accepted = 0;
        if let Some(changes) = ran.changes {
            accepted = changes.cycles_accepted;
            for call in changes.calls {
                self.perform(canister, id, version, call);
            }
        }
        // Of a query as well: it paid, and the balance is part of what has a version.
        if ran.result.is_ok() {
            canister.version += 1;
        }
        let Some(context) = canister.calls.context_mut(id) else { return };
        debug_assert!(
            accepted <= context.cycles_available,
            "{accepted} cycles are accepted of {}",
            context.cycles_available
        );
        context.cycles_available = context.cycles_available.saturating_sub(accepted);
        context.instructions = context.instructions.saturating_add(ran.instructions);
        let (response, error) = match ran.result {
            Ok(Response::None) => (None, None),
            Ok(Response::Reply(bytes)) => (Some(Payload::Reply(bytes)), None),
            Ok(Response::Reject(message)) => {
                (Some(Payload::Reject(reject::rejected_message(message))), None)
            }
            Err(error) => (None, Some(error)),
        };
        let starved = !context.responded && context.open_callbacks == 0;
        let response = response.or_else(|| {
            starved.then(|| {
                Payload::Reject(error.unwrap_or_else(|| reject::did_not_reply(&canister.id)))
            })
        });
        if let Some(payload) = response
            && !context.responded
        {
            context.responded = true;
            let refund = std::mem::take(&mut context.cycles_available);
            let origin = context.origin.clone();
            let unclaimed = self.effects.answer(&origin, payload, refund);
            canister.consumption.burned += unclaimed;
        }
        canister.calls.close_if_done(id);
    }

    fn perform(
        &mut self,
        canister: &mut CanisterState,
        context: CallContextId,
        version: u64,
        call: Call,
    ) {
        let deadline = call.timeout_seconds.map(|seconds| {
            let nanos = u64::from(seconds.min(CALL_TIMEOUT_SECONDS_MAX)) * 1_000_000_000;
            Time(self.time().0.saturating_add(nanos))
        });
        let callback = canister.calls.open_callback(Callback {
            context,
            callee: call.callee,
            on_reply: call.on_reply,
            on_reject: call.on_reject,
            on_cleanup: call.on_cleanup,
            cycles_sent: call.cycles,
            prepaid: call.prepaid,
            request_bytes: (call.method_name.len() + call.arg.len()) as u64,
            deadline,
            answered: false,
        });
        self.effects.payload_bytes += (call.method_name.len() + call.arg.len()) as u64;
        self.effects.requests.push(CallRequest {
            sender: canister.id,
            sender_version: version,
            receiver: call.callee,
            callback,
            method_name: state_heap::move_text(call.method_name),
            arg: state_heap::move_bytes(call.arg),
            cycles: call.cycles,
            deadline,
        });
    }
}

pub(crate) fn check_callable(core: &Core, canister: &CanisterState) -> Result<(), Reject> {
    match canister.status {
        CanisterStatus::Stopped => return Err(reject::stopped(&canister.id)),
        CanisterStatus::Stopping(_) => return Err(reject::stopping(&canister.id)),
        CanisterStatus::Running => {}
    }
    if canister.execution.is_none() {
        return Err(reject::no_module(&canister.id));
    }
    let frozen_below = core.costs_of(&canister.id).freezing_limit(canister);
    if canister.cycles < frozen_below {
        return refused!(
            207,
            "Canister {} is frozen: it has {} cycles and must keep {frozen_below} to last its \
             freezing threshold; top it up.",
            canister.id,
            canister.cycles
        );
    }
    Ok(())
}

/// Whether the method changes state. Queries can be called as updates, composite queries cannot.
fn find_method(canister: &CanisterState, name: &str) -> Result<bool, Reject> {
    let Some(module) = canister.module() else { return Err(reject::no_module(&canister.id)) };
    let listed = |methods: &[String]| methods.iter().any(|method| method == name);
    if listed(&module.info.updates) {
        Ok(true)
    } else if listed(&module.info.queries) {
        Ok(false)
    } else if listed(&module.info.composite_queries) {
        refused!(
            527,
            "Error from Canister {}: Composite query method '{name}' cannot be called in \
             replicated mode.",
            canister.id
        )
    } else {
        Err(reject::no_method(&canister.id, "update", name))
    }
}

/// Takes the prepayment, unless that would freeze the canister.
fn prepay(core: &Core, canister: &mut CanisterState, amount: Cycles) -> Result<(), Reject> {
    core.check_affordable(canister, amount, "prepaying the execution of a message")?;
    canister.debit(amount);
    Ok(())
}

fn deadline(origin: &Origin) -> Time {
    match origin {
        Origin::Canister { deadline: Some(deadline), .. } => *deadline,
        _ => Time(0),
    }
}

fn sender_info(origin: &Origin) -> Option<SenderInfo> {
    match origin {
        Origin::Ingress { sender_info, .. } => sender_info.clone(),
        _ => None,
    }
}
