//! Messages from their beginning to their end, which may be many rounds later
//! (docs/internals/sandbox.md, "Long messages").
//!
//! Every message runs in slices of `execution.instructions_per_slice`, and so do installations
//! ([`crate::management`]). The first slice runs when the message is taken from its queue. If it is
//! not over then, it is **paused**: its input is stored in its canister ([`state::PausedMessage`]),
//! which runs nothing else, and each round grants some of the paused messages one slice more.
//!
//! The result is the same as without a pause, because the message sees only its stored input: time,
//! balance, settings are those of its beginning. The worker's state between two slices is private
//! to this machine, which may lose it. Three things are settled when the message ends:
//!
//! - **Cycles.** The balance changes by as much as the message's own did. Fees of ingress messages
//!   were charged meanwhile; if the remaining balance does not cover the message's spending, the
//!   message fails.
//! - **Growth.** Its growth counts against the subnet's capacity from pause to pause. Its promise
//!   is a lane's part of the free capacity, as it is in each later slice. If others have taken the
//!   room that it was promised, the message fails.
//! - **Storage** is charged meanwhile, as far as the balance allows. The rest is owed until the
//!   message is over and the unused part of its prepayment is returned.

use sandbox::{Entry, Grant, MESSAGE_OVERHEAD_INSTRUCTIONS, Progress, SlicedName};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use state::{
    CallContextId, CanisterState, Cycles, Height, HookTurn, Origin, PausedMessage, Reject,
    StateArc, StoredPayload, SubnetCall, WASM_PAGE_BYTES, is_large, state_heap,
};

use crate::config::FatalError;
use crate::machine::{
    ExecutionInput, ExecutionResult, Invocation, SliceOutcome, Targets, foreign_payload,
};
use crate::message::{CanisterRoundState, MessageExecutor, MessageSource, SliceStart};
use crate::reject::{self, refused};

/// Version of [`Record`]. The record does not include a large payload.
const RECORD_VERSION: u8 = 2;

/// Why a message runs, as far as it decides what its end leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// A call of an update method, or of a query method as one. Whether a response is guaranteed.
    Call { guaranteed: bool },
    /// A callback; its cleanup, and the reject code that it sees. Whether the response that it runs
    /// for was guaranteed.
    Callback { on_cleanup: Option<(u64, u64)>, reject_code: u32, guaranteed: bool },
    /// The cleanup of a callback that failed: the callback's instructions and its reject.
    Cleanup { instructions: u64, reject: Reject },
    /// Timer, heartbeat, low-memory hook.
    System,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) task: Task,
    pub(crate) context: CallContextId,
    pub(crate) begun: ExecutionInput,
    /// The message of a queue that it began with.
    source: Option<MessageSource>,
    /// Cycles taken from the balance for it.
    pub(crate) prepaid: Cycles,
    since: Height,
    granted: u64,
    /// Of them, those that were counted in rounds before.
    counted: u64,
    /// Bytes of growth that are counted already.
    grown_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    task: Task,
    begun: ExecutionInput,
}

impl Running {
    fn restore(
        canister: &CanisterState,
        paused: &PausedMessage,
        queue_slots: u64,
    ) -> Result<Self, FatalError> {
        let unreadable = |reason: String| FatalError::Record {
            what: format!("the paused message of canister {}", canister.id),
            reason,
        };
        let record = match paused.record.split_first() {
            Some((&RECORD_VERSION, record)) => record,
            Some((version, _)) => return Err(unreadable(format!("it has version {version}"))),
            None => return Err(unreadable("it is empty".into())),
        };
        let Record { task, mut begun } =
            postcard::from_bytes(record).map_err(|error| unreadable(error.to_string()))?;
        begun.restore_canister_context(canister, queue_slots);
        Ok(Self {
            task,
            context: paused.context.ok_or_else(|| unreadable("it has no context".into()))?,
            begun,
            source: paused
                .payload
                .clone()
                .map(|payload| MessageSource { number: payload.number, payload: Some(payload) }),
            prepaid: paused.prepaid,
            since: paused.since,
            granted: paused.granted,
            counted: paused.instructions,
            grown_bytes: paused.grown_bytes,
        })
    }

    fn name(&self, canister: &CanisterState) -> SlicedName {
        SlicedName { since: self.since, canister_id: canister.id, part: 0 }
    }
}

fn encode(record: &Record) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(record, vec![RECORD_VERSION])
}

impl MessageExecutor<'_> {
    /// Runs the first slice of a message of `context`, whose execution is prepaid.
    pub(crate) fn begin(
        &mut self,
        canister: &mut CanisterState,
        task: Task,
        context: CallContextId,
        (invocation, source): (Invocation, Option<MessageSource>),
        prepaid: Cycles,
    ) -> Result<(), FatalError> {
        self.core().running.name(self.machine.lane, &invocation.entry);
        let running = Running {
            begun: self.machine.begin(canister, invocation),
            task,
            context,
            source,
            prepaid,
            since: self.machine.round.height,
            granted: self.slice(),
            counted: 0,
            grown_bytes: 0,
        };
        self.run(canister, running)
    }

    /// Grants a slice to the paused message of `canister` and runs it.
    pub(crate) fn resume(
        &mut self,
        canister: &mut CanisterState,
        round_state: &mut CanisterRoundState,
    ) -> Result<(), FatalError> {
        self.machine.place = self.machine.round.place(canister.id, round_state.ordinal);
        let Some(paused) = canister.paused.take() else { return Ok(()) };
        let queue_slots = self.core().limits().subnet.queue_slots;
        let mut running = Running::restore(canister, &paused, queue_slots)?;
        let entry = running.begun.entry.clone();
        self.core().running.name(self.machine.lane, &entry);
        let ruled_out = self.advance_ordinal(canister, round_state);
        self.effects.work += MESSAGE_OVERHEAD_INSTRUCTIONS;
        if ruled_out {
            self.core().sandbox.abandon(&running.name(canister));
            let ran = ExecutionResult::failed(reject::ruled_out(&canister.id));
            if let Task::Callback { on_cleanup, .. } = &mut running.task {
                *on_cleanup = None;
            }
            self.end(canister, running, ran, None)?;
        } else {
            running.granted = running.granted.saturating_add(self.slice());
            if let Some(payload) = &paused.payload {
                let content = self.machine.read_payload(payload)?;
                let begun = running.begun.filled(content, payload);
                running.begun = begun.ok_or_else(|| foreign_payload(payload.number))?;
            }
            self.run(canister, running)?;
        }
        if canister.paused.is_none() {
            yield_turn(&entry, canister, round_state);
        }
        match &mut canister.paused {
            Some(still) => still.waiting = paused.waiting,
            // A snapshot may still hold them: a copy is allocated in the same heap.
            None => state_heap::within(|| {
                canister.released = paused.waiting.len() as u64;
                let released = paused.waiting.into_iter().map(StateArc::take);
                let released_by = Some(canister.id);
                let released = released.map(|call| SubnetCall { released_by, ..call });
                self.effects.management.extend(released);
            }),
        }
        Ok(())
    }

    fn slice(&self) -> u64 {
        self.core().limits().execution.instructions_per_slice.max(1)
    }

    /// Work that was granted, and so counted, before this slice. Work beyond a grant counts in the
    /// next slice as well.
    fn worked_before(&self, running: &Running) -> u64 {
        running.granted.saturating_sub(self.slice())
    }

    fn run(&mut self, canister: &mut CanisterState, running: Running) -> Result<(), FatalError> {
        let keeps_changes = running.begun.keeps_changes;
        let targets =
            if keeps_changes { self.targets(canister, &running.begun.limits)? } else { None };
        let grant = Grant::new(running.name(canister), running.granted, self.slice());
        let Running { begun, .. } = running;
        let (begun, attempted) = self.machine.attempt(canister, begun, targets, Some(&grant))?;
        let running = Running { begun, ..running };
        match attempted {
            SliceOutcome::Paused(progress) => {
                let pages = progress.heap_wasm_pages.saturating_add(progress.stable_wasm_pages);
                // Growth that will be dropped takes no room.
                let grown_bytes = if keeps_changes { grown_bytes(canister, pages) } else { 0 };
                if let Err(reject) = self.check_growth(canister, &running, grown_bytes) {
                    self.core().sandbox.abandon(&grant.name);
                    let mut ran = ExecutionResult::failed(reject);
                    (ran.instructions, ran.work) = (progress.instructions, progress.work);
                    return self.end(canister, running, ran, None);
                }
                self.pause(canister, running, progress, grown_bytes)
            }
            SliceOutcome::Ended(mut ran, targets) => {
                let mut targets = targets;
                if let Some(changes) = &ran.changes {
                    let pages = changes.heap_wasm_pages.saturating_add(changes.stable_wasm_pages);
                    let grown = grown_bytes(canister, pages);
                    if let Err(reject) = self.check_growth(canister, &running, grown) {
                        ran.fail(reject);
                        targets = None;
                    }
                }
                self.end(canister, running, *ran, targets)
            }
        }
    }

    /// Whether there is room for what the message grew by since it was counted last. For one that
    /// was never paused there is: its growth was bounded by it.
    fn check_growth(
        &self,
        canister: &CanisterState,
        running: &Running,
        grown_bytes: u64,
    ) -> Result<(), Reject> {
        if running.counted == 0 || !running.begun.keeps_changes {
            return Ok(());
        }
        let more = grown_bytes.saturating_sub(running.grown_bytes);
        let used = canister.memory_usage().total() + running.grown_bytes;
        let set_aside = canister.settings.memory_allocation.saturating_sub(used);
        // Callbacks may use what is kept for them, as when they began.
        let kept = match running.task {
            Task::Callback { .. } | Task::Cleanup { .. } => 0,
            Task::Call { .. } | Task::System => {
                self.core().limits().execution.response_callback_reservation_bytes
            }
        };
        let room = set_aside.saturating_add(self.growable_bytes.saturating_sub(kept));
        if more <= room {
            return Ok(());
        }
        let capacity = self.core().limits().subnet.memory_capacity_bytes;
        refused!(
            subnet_oversubscribed,
            "Canister {}: the message was paused, and {more} bytes that it grew by find no room \
             any more; {room} of the subnet's {capacity} bytes can be had now \
             (subnet.memory_capacity_bytes).",
            canister.id
        )
    }

    fn pause(
        &mut self,
        canister: &mut CanisterState,
        running: Running,
        progress: Progress,
        grown_bytes: u64,
    ) -> Result<(), FatalError> {
        let used = progress.instructions.saturating_sub(running.counted);
        let work = progress.work.saturating_sub(self.worked_before(&running));
        self.effects.executed(used, work);
        self.growable_bytes =
            self.growable_bytes.saturating_sub(grown_bytes.saturating_sub(running.grown_bytes));
        let Running { task, context, begun, source, prepaid, since, granted, .. } = running;
        let is_guaranteed = match task {
            Task::Call { guaranteed, .. } | Task::Callback { guaranteed, .. } => guaranteed,
            Task::Cleanup { .. } | Task::System => false,
        };
        if let Some(context) = canister.calls.context(context)
            && let Origin::Ingress { request_id, .. } = context.origin
            && !context.responded
        {
            self.effects.processing.push(request_id);
        }
        let reject_bytes = match &task {
            Task::Cleanup { reject, .. } => reject.message.len() as u64,
            _ => 0,
        };
        let message_bytes = begun.message_bytes() + reject_bytes;
        let (begun, payload) = self.move_payload_to_file(begun, source)?;
        let begun = begun.without_canister_context();
        let record = encode(&Record { task, begun }).map_err(|error| FatalError::Record {
            what: format!("the paused message of canister {}", canister.id),
            reason: error.to_string(),
        })?;
        canister.paused = Some(PausedMessage {
            since,
            context: Some(context),
            granted,
            instructions: progress.instructions,
            prepaid,
            cycles: 0,
            module: None,
            grown_bytes,
            message_bytes,
            is_guaranteed,
            payload,
            record: StateArc::new(ByteBuf::from(state_heap::move_bytes(record))),
            waiting: Vec::new(),
        });
        Ok(())
    }

    /// Removes a large payload from a message that pauses: it is in a file, or is written to one.
    fn move_payload_to_file(
        &self,
        begun: ExecutionInput,
        source: Option<MessageSource>,
    ) -> Result<(ExecutionInput, Option<StateArc<StoredPayload>>), FatalError> {
        let Some(source) = source.filter(|_| is_large(begun.message_bytes())) else {
            return Ok((begun, None));
        };
        let payload = match source.payload {
            Some(payload) => payload,
            None => self.machine.store_payload(source.number, begun.payload_parts())?,
        };
        Ok((begun.emptied(), Some(payload)))
    }

    /// The message is over: commits what it wrote, settles its cost, and does what follows.
    fn end(
        &mut self,
        canister: &mut CanisterState,
        running: Running,
        ran: ExecutionResult,
        targets: Option<Targets>,
    ) -> Result<(), FatalError> {
        let before = SliceStart {
            instructions: running.counted,
            work: self.worked_before(&running),
            grown_bytes: running.grown_bytes,
        };
        let Running { task, context, begun, prepaid, .. } = running;
        let ran = self.settle(canister, ran, targets, prepaid, before)?;
        let version = begun.context.canister_version;
        match task {
            Task::Call { .. } | Task::System => self.conclude(canister, context, version, ran),
            Task::Callback { on_cleanup: Some(cleanup), reject_code, .. }
                if ran.result.is_err() =>
            {
                return self.clean_up(canister, context, begun, ran, (cleanup, reject_code));
            }
            Task::Callback { .. } => self.conclude(canister, context, version, ran),
            Task::Cleanup { instructions, reject } => {
                if ran.result.is_ok() {
                    canister.version += 1;
                }
                // The result of the callback; the calls of a cleanup, which makes none, do not
                // count.
                let mut failed = ExecutionResult::failed(reject);
                failed.instructions = instructions.saturating_add(ran.instructions);
                self.conclude(canister, context, version, failed);
            }
        }
        Ok(())
    }

    fn clean_up(
        &mut self,
        canister: &mut CanisterState,
        context: CallContextId,
        callback: ExecutionInput,
        ran: ExecutionResult,
        ((fun, env), reject_code): ((u64, u64), u32),
    ) -> Result<(), FatalError> {
        let instructions = self.cleanup_instructions();
        let costs = self.core().costs_of(&canister.id);
        let prepaid = costs.execution(instructions).min(canister.cycles);
        canister.debit(prepaid);
        let entry = Entry::Cleanup { fun, env, reject_code };
        let growable_bytes = self.growable(canister, true);
        let invocation = callback.cleanup(entry, instructions, growable_bytes, ran.instructions);
        let reject = match ran.result {
            Err(reject) => reject,
            Ok(_) => return Ok(()),
        };
        let task = Task::Cleanup { instructions: ran.instructions, reject };
        self.begin(canister, task, context, (invocation, None), prepaid)
    }
}

/// A hook that took longer than a slice is over: it does not begin again before others had their
/// turn. Otherwise one that takes a slice and a half and is due in each round would be all that its
/// canister ever runs.
fn yield_turn(hook: &Entry, canister: &mut CanisterState, round_state: &mut CanisterRoundState) {
    match hook {
        Entry::Heartbeat => {
            round_state.heartbeat_done = true;
            canister.hook_turn = HookTurn::Timer;
        }
        Entry::GlobalTimer => {
            (round_state.heartbeat_done, round_state.timer_done) = (true, true);
            canister.hook_turn = HookTurn::Message;
        }
        _ => {}
    }
}

/// Growth in bytes from the memories of `canister` to `wasm_pages` Wasm pages together.
fn grown_bytes(canister: &CanisterState, wasm_pages: u64) -> u64 {
    let before = canister
        .execution
        .as_ref()
        .map_or(0, |execution| execution.heap.wasm_pages + execution.stable.wasm_pages);
    wasm_pages.saturating_sub(before).saturating_mul(WASM_PAGE_BYTES)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use candid::Principal;
    use sandbox::{CallbackKind, CostTable, MessageLimits, RunState, SystemContext};
    use state::{ErrorCode, RejectCode, SenderInfo, Time};

    use super::*;

    const PINNED: testing::formats::Pin = (2, "a9ac8f03a1bd124b63325b32dcbe81e8");

    pub(crate) fn begun(entry: Entry) -> ExecutionInput {
        let principal = |byte| Principal::from_slice(&[byte, 1]);
        let context = SystemContext {
            canister_id: principal(1),
            subnet_id: principal(2),
            subnet_nodes: 3,
            root_key: vec![4],
            time: Time(5),
            canister_version: 6,
            run_state: RunState::Stopping,
            controllers: vec![principal(7)],
            env_vars: vec![("name".into(), "value".into())],
            caller: principal(8),
            caller_info: Some(SenderInfo { info: vec![9], signer: principal(10) }),
            arg: vec![11, 12],
            deadline: Time(13),
            already_responded: true,
            balance: 1 << 100,
            freezing_threshold: 14,
            cycles_available: 15,
            cycles_refunded: 16,
            global_timer: Time(17),
            data_certificate: None,
            context_instructions: 18,
            replicated: true,
            growable_bytes: 19,
            wasm_memory_limit: Some(20),
            calls_max: 21,
            queue_slots_left: BTreeMap::from([(principal(22), 23)]),
            queue_slots: 24,
            costs: CostTable {
                call_base: 25,
                call_per_byte: 26,
                response_reservation: 27,
                callback_execution_reservation: 28,
                create_canister: 29,
                http_request: [30, 31, 32],
                signing: [33, 34, 35],
            },
            payload_max_bytes: 36,
            reject_guaranteed_response_calls: true,
        };
        let limits = MessageLimits {
            instructions: 37,
            stable_dirty_bytes: 38,
            stable_accessed_bytes: 39,
            heap_dirty_bytes: 40,
            heap_max_bytes: [41, 42],
            stable_max_bytes: 43,
            log_max_bytes: 44,
        };
        ExecutionInput { entry, context, limits, grows_frozen: true, keeps_changes: true }
    }

    #[test]
    fn what_is_written_down_has_the_bytes_of_its_format() {
        let reject = Reject {
            code: RejectCode::CanisterError,
            message: "why".into(),
            error_code: ErrorCode(502),
        };
        let callback = |kind| Entry::Callback { fun: 1, env: 2, kind };
        let tasks = [
            ("call", Task::Call { guaranteed: true }, Entry::Update("method".into())),
            (
                "callback",
                Task::Callback { on_cleanup: Some((3, 4)), reject_code: 5, guaranteed: true },
                callback(CallbackKind::Reject { code: 5, message: "why".into() }),
            ),
            (
                "reply",
                Task::Callback { on_cleanup: None, reject_code: 0, guaranteed: false },
                callback(CallbackKind::Reply),
            ),
            (
                "cleanup",
                Task::Cleanup { instructions: 6, reject },
                Entry::Cleanup { fun: 3, env: 4, reject_code: 5 },
            ),
            ("timer", Task::System, Entry::GlobalTimer),
            ("heartbeat", Task::System, Entry::Heartbeat),
            ("hook", Task::System, Entry::OnLowWasmMemory),
        ];
        let samples = tasks.map(|(name, task, entry)| {
            let record = Record { task, begun: begun(entry) };
            let bytes = encode(&record).unwrap();
            assert_eq!(bytes[0], RECORD_VERSION);
            let back: Record = postcard::from_bytes(&bytes[1..]).unwrap();
            assert_eq!(encode(&back).unwrap(), bytes, "{name}");
            (name, bytes)
        });
        testing::formats::check("paused messages", RECORD_VERSION.into(), &samples, PINNED);
    }

    #[test]
    fn states_with_another_manifest_are_of_rules_of_another_version() {
        let manifest = state::manifest::VERSION.to_string();
        let format = "the rules of execution, with the version of the manifest they lead to";
        let version = crate::RULES_VERSION.into();
        testing::formats::check_hash(format, version, &manifest, (11, "7"));
    }

    #[test]
    fn a_record_of_another_version_is_no_message() {
        let mut canister = CanisterState::new(
            Principal::anonymous(),
            vec![],
            state::Settings::default(),
            0,
            Time(0),
        );
        let paused = |record: Vec<u8>| PausedMessage {
            since: Height(1),
            context: Some(CallContextId(1)),
            granted: 1,
            instructions: 1,
            prepaid: 0,
            cycles: 0,
            module: None,
            grown_bytes: 0,
            message_bytes: 0,
            is_guaranteed: false,
            payload: None,
            record: StateArc::new(ByteBuf::from(record)),
            waiting: Vec::new(),
        };
        let record = Record { task: Task::System, begun: begun(Entry::Heartbeat) };
        let mut bytes = encode(&record).unwrap();
        assert!(Running::restore(&canister, &paused(bytes.clone()), 500).is_ok());
        bytes[0] += 1;
        canister.paused = Some(paused(bytes));
        let error =
            Running::restore(&canister, canister.paused.as_ref().unwrap(), 500).unwrap_err();
        assert!(error.to_string().contains("version 3"), "{error}");
        assert!(Running::restore(&canister, &paused(vec![]), 500).is_err());
    }
}
