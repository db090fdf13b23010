//! Merging what canisters did: calls find their callee, answers their caller, users' calls their
//! status; and what time does to calls that wait.
//!
//! Two pools bound the messages of all canisters together. A guaranteed-response call counts its
//! request and room for the largest response from the moment it is made, so its answer always fits;
//! a call that finds no room is answered by the system at once (`SYS_TRANSIENT`), as is one beyond
//! the number of such calls that may be open. Best-effort
//! messages count their bytes, and users' messages that wait count with them; a request that finds
//! no room is refused, a response is replaced by `SYS_UNKNOWN`.
//!
//! Cycles of a best-effort call whose answer came too late go back to its caller all the same:
//! nothing is lost on the way.

use std::collections::BTreeSet;

use ic_principal::Principal;
use limits::{SMALL_MANAGEMENT_CALLS_BYTES, SubnetLimits};
use state::{
    CallRequest, CallResponse, CanisterId, CanisterState, CanisterStatus, MESSAGE_OVERHEAD_BYTES,
    Origin, Payload, Reject, ReplicatedState, StateArc, SubnetCall, Time, state_heap,
};

use crate::core::Core;
use crate::message::Effects;
use crate::reject::{self, refused};

/// Calls of the management canister of up to this many bytes find room where larger ones find none
/// any more.
pub(crate) const SMALL_MANAGEMENT_CALL_BYTES: u64 = 64 << 10;

/// Message memory in use while effects are merged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageMemory {
    guaranteed: u64,
    guaranteed_calls: u64,
    best_effort: u64,
    /// Calls of canisters that wait for the management canister; part of the first.
    management: u64,
}

impl MessageMemory {
    /// The current use; the indexes must be fresh.
    pub(crate) fn from_state(state: &ReplicatedState) -> Self {
        let totals = state.totals();
        let (mut of_users, mut management) = (0, 0);
        for call in state.subnet.waiting_calls() {
            match call.origin {
                Origin::Ingress { .. } => of_users += call.accounted_bytes(),
                Origin::Canister { .. } | Origin::System => management += call.accounted_bytes(),
            }
        }
        Self {
            guaranteed: totals.guaranteed_message_bytes + management,
            guaranteed_calls: totals.guaranteed_calls,
            best_effort: totals.best_effort_message_bytes + of_users,
            // Calls that wait for a paused message join the others when it is over.
            management: management + totals.waiting_call_bytes,
        }
    }

    /// Takes room for an ingress message. It counts to the share of `canister`, if that is given:
    /// messages that wait for one canister, or are paused there, may use at most as much as remains
    /// free for all others. So `n` canisters that use their maximum leave one part in `n + 1`,
    /// however large the pool is, and a message to a canister without others only needs to fit.
    pub(crate) fn take_ingress(
        &mut self,
        core: &Core,
        bytes: u64,
        canister: Option<&CanisterState>,
    ) -> Result<(), Reject> {
        let (used, limit) = (self.best_effort, core.limits().subnet.best_effort_message_bytes);
        if used + bytes > limit {
            return refused!(
                queue_full,
                "The message needs {bytes} bytes; users' and best-effort messages that wait take \
                 {used} bytes of the subnet's {limit} (subnet.best_effort_message_bytes). Try \
                 again."
            );
        }
        let left = limit - used;
        let taken = canister.map_or(0, CanisterState::user_message_bytes);
        if taken > 0
            && taken + bytes > left
            && let Some(canister) = canister
        {
            return refused!(
                queue_full,
                "The message needs {bytes} bytes; those that wait for canister {}, or are paused \
                 there, take {taken} bytes and may take no more than is left for others, {left} \
                 bytes of {limit} (subnet.best_effort_message_bytes). Try again.",
                canister.id
            );
        }
        self.best_effort += bytes;
        Ok(())
    }

    /// Takes room for a canister's call, or says what it lacks; a refused call takes nothing.
    fn take_call(
        &mut self,
        limits: &SubnetLimits,
        request: &CallRequest,
        is_known: bool,
    ) -> Result<(), Reject> {
        let bytes = request.accounted_bytes();
        let is_management = request.receiver == Principal::management_canister();
        if is_management {
            self.check_management(limits, bytes)?;
        } else if !is_known {
            return Err(reject::canister_not_found(&request.receiver));
        }
        match request.deadline {
            None => self.take_guaranteed(limits, bytes)?,
            Some(_) => self.take_best_effort(limits, bytes)?,
        }
        if is_management {
            self.management += bytes;
        }
        Ok(())
    }

    /// Calls that wait for the management canister are stored with the subnet's own record, so they
    /// are bounded however many messages there may be; but some with the largest argument, such as
    /// installs, wait in the smallest memory too.
    fn check_management(&self, limits: &SubnetLimits, bytes: u64) -> Result<(), Reject> {
        let (used, mut limit) = (self.management, limits.management_call_bytes());
        // Large calls leave room for `raw_rand` or `stop_canister` of other canisters.
        if bytes <= SMALL_MANAGEMENT_CALL_BYTES {
            limit = limit.saturating_add(SMALL_MANAGEMENT_CALLS_BYTES);
        }
        if used > 0 && used + bytes > limit {
            return refused!(
                queue_full,
                "The call needs {bytes} bytes; calls that wait for the management canister take \
                 {used} bytes of {limit} (the larger of subnet.best_effort_message_bytes and 4 \
                 times subnet.message_payload_bytes, and 1 MiB more for calls of at most 64 KiB). \
                 Try again."
            );
        }
        Ok(())
    }

    fn take_guaranteed(&mut self, limits: &SubnetLimits, bytes: u64) -> Result<(), Reject> {
        let needed = bytes + limits.message_payload_bytes;
        let (used, limit) = (self.guaranteed, limits.guaranteed_response_message_bytes);
        if used + needed > limit {
            return refused!(
                queue_full,
                "The call needs {needed} bytes for its request and the largest response; messages \
                 with guaranteed responses take {used} bytes of the subnet's {limit} \
                 (subnet.guaranteed_response_message_bytes). Try again, or use a best-effort call."
            );
        }
        let (open, most) = (self.guaranteed_calls, limits.guaranteed_response_calls);
        if open >= most {
            return refused!(
                queue_full,
                "{open} calls with guaranteed responses are open, which is all that the subnet \
                 takes (subnet.guaranteed_response_calls). Try again, or use a best-effort call."
            );
        }
        self.guaranteed += needed;
        self.guaranteed_calls += 1;
        debug_assert!(
            self.guaranteed <= limit && self.guaranteed_calls <= most,
            "{} bytes of {limit} and {} calls of {most} with guaranteed responses",
            self.guaranteed,
            self.guaranteed_calls
        );
        Ok(())
    }

    fn take_best_effort(&mut self, limits: &SubnetLimits, bytes: u64) -> Result<(), Reject> {
        let (used, limit) = (self.best_effort, limits.best_effort_message_bytes);
        let bytes = bytes + MESSAGE_OVERHEAD_BYTES;
        if used + bytes > limit {
            return refused!(
                queue_full,
                "The call needs {bytes} bytes; best-effort messages take {used} bytes of the \
                 subnet's {limit} (subnet.best_effort_message_bytes). Try again."
            );
        }
        self.best_effort += bytes;
        Ok(())
    }

    /// Takes room out that is about to be given to calls one by one: the totals hold it already,
    /// because the callers hold the callbacks.
    fn release<'a>(&mut self, core: &Core, calls: impl IntoIterator<Item = &'a CallRequest>) {
        for call in calls {
            match call.deadline {
                None => {
                    self.guaranteed =
                        self.guaranteed.saturating_sub(core.limits().subnet.message_payload_bytes);
                    self.guaranteed_calls = self.guaranteed_calls.saturating_sub(1);
                }
                Some(_) => {
                    self.best_effort = self.best_effort.saturating_sub(MESSAGE_OVERHEAD_BYTES)
                }
            }
        }
    }
}

/// The message memory in use, computed when a message first asks for room: most merges only answer
/// users, and the sum visits each call that waits for the management canister.
///
/// Merging calls changes the data that the sum is made of, so it is computed before those. Merging
/// anything else does not.
#[derive(Debug, Default)]
pub(crate) struct LazyMemory(Option<MessageMemory>);

impl LazyMemory {
    /// For effects that are merged next; the indexes must be fresh.
    pub(crate) fn for_merge(core: &Core, state: &ReplicatedState, all: &[Effects]) -> Self {
        if all.iter().all(|effects| effects.requests.is_empty()) {
            return Self::default();
        }
        let mut memory = MessageMemory::from_state(state);
        memory.release(core, all.iter().flat_map(|effects| &effects.requests));
        Self(Some(memory))
    }

    fn get(&mut self, state: &ReplicatedState) -> &mut MessageMemory {
        self.0.get_or_insert_with(|| MessageMemory::from_state(state))
    }
}

/// Requeues calls of the management canister that waited for a message which is over, in the order
/// of canisters: before the remaining room is computed, because they have occupied theirs all
/// along.
pub(crate) fn release(state: &mut ReplicatedState, all: &mut [Effects]) {
    // They came before those that wait in the queue.
    let released = all
        .iter_mut()
        .rev()
        .flat_map(|effects| std::mem::take(&mut effects.management).into_iter().rev());
    state_heap::within(|| released.for_each(|call| state.subnet.calls.push_front(call)));
}

pub(crate) fn merge(
    core: &Core,
    state: &mut ReplicatedState,
    memory: &mut LazyMemory,
    effects: Effects,
) {
    let now = state.subnet.time;
    for id in effects.processing {
        state.history.processing(&id);
    }
    for (id, response) in effects.answers {
        state.history.finish(&id, response, now);
    }
    for request in effects.requests {
        route(core, state, memory, request);
    }
    for response in effects.responses {
        deliver(core, state, memory, response);
    }
    state.subnet.update_transactions += effects.messages;
}

fn route(
    core: &Core,
    state: &mut ReplicatedState,
    memory: &mut LazyMemory,
    mut request: CallRequest,
) {
    // A subnet's id names its management canister (interface specification, "The IC management
    // canister").
    if core.config.is_subnet(&request.receiver) {
        request.receiver = Principal::management_canister();
    }
    let is_known = state.contains(&request.receiver);
    if let Err(reject) = memory.get(state).take_call(&core.limits().subnet, &request, is_known) {
        let response = CallResponse {
            originator: request.sender,
            callback: request.callback,
            payload: Payload::Reject(reject),
            refund: request.cycles,
            deadline: request.deadline,
        };
        deliver(core, state, memory, response);
        return;
    }
    let number = state.number_message();
    match state.get_mut(&request.receiver) {
        Some(callee) => callee.queues.push_request(number, StateArc::new(request)),
        None => {
            debug_assert_eq!(
                request.receiver,
                Principal::management_canister(),
                "the receiver of a call that is not refused"
            );
            let call = SubnetCall {
                origin: Origin::Canister {
                    caller: request.sender,
                    callback: request.callback,
                    deadline: request.deadline,
                },
                sender_version: Some(request.sender_version),
                method_name: request.method_name,
                arg: request.arg,
                cycles: request.cycles,
                released_by: None,
            };
            state_heap::within(|| state.subnet.calls.push_back(call));
        }
    }
}

/// Queues an answer with the canister that waits for it.
pub(crate) fn deliver(
    core: &Core,
    state: &mut ReplicatedState,
    memory: &mut LazyMemory,
    mut response: CallResponse,
) {
    let limit = core.limits().subnet.best_effort_message_bytes;
    if response.deadline.is_some() {
        let memory = memory.get(state);
        if memory.best_effort + response.accounted_bytes() > limit {
            response.payload = Payload::Reject(reject::response_dropped(limit));
        }
        memory.best_effort += response.accounted_bytes();
    }
    let refund = response.refund;
    let number = state.number_message();
    match state.get_mut(&response.originator) {
        Some(caller) => {
            if caller.calls.mark_answered(response.callback) {
                caller.queues.push_response(number, StateArc::new(response));
            } else {
                caller.credit(refund);
            }
        }
        // The caller is gone, and its cycles with it.
        None => state.subnet.consumption.uninstall += refund,
    }
}

/// Answers best-effort calls whose deadline has passed, and takes their requests out of the queues
/// they still wait in.
pub(crate) fn expire_calls(state: &mut ReplicatedState, now: Time) {
    for id in state.due_deadlines(now) {
        let expired = state.get(&id).map(|caller| caller.calls.expired(now)).unwrap_or_default();
        let mut callees: BTreeSet<CanisterId> = BTreeSet::new();
        for callback_id in expired {
            let number = state.number_message();
            let Some(caller) = state.get_mut(&id) else { break };
            let Some(callback) = caller.calls.callback(callback_id) else { continue };
            let (callee, deadline) = (callback.callee, callback.deadline);
            callees.insert(callee);
            let is_answered_now = caller.calls.mark_answered(callback_id);
            debug_assert!(is_answered_now, "call {} of {id} was answered before", callback_id.0);
            let response = StateArc::new(CallResponse {
                originator: id,
                callback: callback_id,
                payload: Payload::Reject(reject::reject(
                    601,
                    "The call's deadline passed before a response came; it may or may not have \
                     been executed.",
                )),
                refund: 0,
                deadline,
            });
            caller.queues.push_response(number, response);
        }
        for callee in callees {
            let expired = state
                .get_mut(&callee)
                .map(|callee| callee.queues.remove_expired_requests(now))
                .unwrap_or_default();
            for request in expired {
                match state.get_mut(&request.sender) {
                    Some(sender) => sender.credit(request.cycles),
                    None => state.subnet.consumption.uninstall += request.cycles,
                }
            }
        }
    }
}

/// Rejects users' calls that waited in a queue until their expiry passed.
pub(crate) fn expire_ingress(state: &mut ReplicatedState, now: Time) {
    for id in state.due_ingress(now) {
        let canister = state.get_mut(&id);
        let expired = canister.map(|canister| canister.queues.remove_expired_ingress(now));
        for ingress in expired.unwrap_or_default() {
            let request_id = ingress.request_id;
            state.history.finish(&request_id, Err(reject::ingress_timeout(&id)), now);
        }
    }
}

/// Rejects calls that have waited too long for a canister to stop.
pub(crate) fn expire_stops(state: &mut ReplicatedState, now: Time, seconds: u64) -> Effects {
    let mut effects = Effects::default();
    for id in state.due_stops(now) {
        let Some(canister) = state.get_mut(&id) else { continue };
        let CanisterStatus::Stopping(waiters) = &mut canister.status else { continue };
        let (late, patient): (Vec<_>, Vec<_>) =
            std::mem::take(waiters).into_iter().partition(|waiter| waiter.deadline <= now);
        *waiters = patient;
        for waiter in late {
            let timeout = Payload::Reject(reject::stop_timeout(&id, seconds));
            canister.consumption.uninstall +=
                effects.answer(&waiter.origin, timeout, waiter.cycles);
        }
    }
    effects
}

/// Stops the stopping canisters that have no call open any more. The indexes must be fresh.
pub(crate) fn finish_stops(state: &mut ReplicatedState) -> Effects {
    let mut effects = Effects::default();
    let done: Vec<CanisterId> = state
        .stopping()
        .iter()
        .filter(|id| state.get(id).is_some_and(|canister| canister.calls.has_no_contexts()))
        .copied()
        .collect();
    for id in done {
        let Some(canister) = state.get_mut(&id) else { continue };
        if let CanisterStatus::Stopping(waiters) =
            std::mem::replace(&mut canister.status, CanisterStatus::Stopped)
        {
            canister.version += 1;
            for waiter in waiters {
                let stopped = Payload::Reply(crate::management::no_value());
                canister.consumption.uninstall +=
                    effects.answer(&waiter.origin, stopped, waiter.cycles);
            }
        }
    }
    effects
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limits::Limits;
    use state::CallbackId;

    use super::*;

    fn call(receiver: Principal, bytes: u64) -> CallRequest {
        CallRequest {
            sender: Principal::from_slice(&[1, 1]),
            sender_version: 1,
            receiver,
            callback: CallbackId(1),
            method_name: String::new(),
            arg: vec![0; usize::try_from(bytes).unwrap()],
            cycles: 0,
            deadline: None,
        }
    }

    #[test]
    fn calls_that_are_refused_take_no_room_and_the_smallest_memory_takes_installs() {
        let limits = Limits::derive(96 << 20).unwrap().subnet;
        let payload = limits.message_payload_bytes;
        let largest = call(Principal::management_canister(), payload - MESSAGE_OVERHEAD_BYTES);
        let other = call(Principal::from_slice(&[2, 1]), 1_000);
        let mut memory =
            MessageMemory { guaranteed: 0, guaranteed_calls: 0, best_effort: 0, management: 0 };
        for _ in 0..4 {
            memory.take_call(&limits, &largest, false).unwrap();
        }
        let full = (8 * payload, 4 * payload);
        assert_eq!((memory.guaranteed, memory.management), full);
        let text = memory.take_call(&limits, &largest, false).unwrap_err().message;
        assert!(text.contains("subnet.message_payload_bytes"), "{text}");
        let small = call(Principal::management_canister(), 100);
        memory.take_call(&limits, &small, false).unwrap();
        memory = MessageMemory { guaranteed: full.0, management: full.1, ..memory };
        memory.take_call(&limits, &other, false).unwrap_err();
        assert_eq!((memory.guaranteed, memory.management), full);
        memory.take_call(&limits, &other, true).unwrap();
        // One that lacks the room for its response holds no place among those that wait.
        memory = MessageMemory { management: 0, guaranteed: 9 * payload, ..memory };
        memory.take_call(&limits, &largest, false).unwrap_err();
        assert_eq!((memory.guaranteed, memory.management), (9 * payload, 0));
    }
}
