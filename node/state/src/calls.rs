//! Call contexts (calls a canister has to answer) and callbacks (calls it waits for), as one table
//! per canister.
//!
//! A call context lives from the first message of a call until it is answered *and* no callback of
//! it is open. Every callback belongs to one context. A callback is answered once: the first
//! response that is queued for it marks it, later ones (a late answer to a best-effort call whose
//! deadline has passed) are dropped. The table counts open callbacks per callee, so that the used
//! slots of a queue are known without counting. This module must not know how messages are
//! executed.

use std::collections::{BTreeMap, BTreeSet};

use ic_principal::Principal;
use serde::{Deserialize, Serialize};

use crate::numbered_map::NumberedMap;
use crate::resting::{rest_map, rest_set};
use crate::{CallbackId, CanisterId, Cycles, RequestId, SenderInfo, Time, state_heap};

/// A call context, as its canister numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallContextId(pub u64);

/// The caller that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A user waits, through the ingress history.
    Ingress {
        /// Id of the ingress message.
        request_id: RequestId,
        /// Its sender.
        sender: Principal,
        /// Data that came with the sender's signature.
        sender_info: Option<SenderInfo>,
    },
    /// A canister waits, in one of its callbacks.
    Canister {
        /// The canister that called.
        caller: CanisterId,
        /// Callback of the caller that the response runs.
        callback: CallbackId,
        /// Deadline of a best-effort call.
        deadline: Option<Time>,
    },
    /// No caller: timer, heartbeat, low-memory hook.
    System,
}

impl Origin {
    /// Value of `ic0.msg_caller` in every message of the context.
    pub fn caller(&self) -> Principal {
        match self {
            Self::Ingress { sender, .. } => *sender,
            Self::Canister { caller, .. } => *caller,
            Self::System => Principal::management_canister(),
        }
    }
}

/// A call being processed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallContext {
    /// The caller that waits for the response.
    pub origin: Origin,
    /// Answered (or there is no caller).
    pub responded: bool,
    /// The code that served it is gone: callbacks only bring cycles back.
    pub deleted: bool,
    /// Cycles that came with the call and were not accepted yet.
    pub cycles_available: Cycles,
    /// Number of callbacks of this context that wait for a response.
    pub open_callbacks: u64,
    /// Instructions spent in the context so far.
    pub instructions: u64,
}

/// A call made and not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The context the call was made in.
    pub context: CallContextId,
    /// The canister called, or the management canister.
    pub callee: Principal,
    /// Table index and argument of the reply callback.
    pub on_reply: (u64, u64),
    /// The same of the reject callback.
    pub on_reject: (u64, u64),
    /// The same of the cleanup callback.
    pub on_cleanup: Option<(u64, u64)>,
    /// Cycles sent along.
    pub cycles_sent: Cycles,
    /// Taken from the balance for transmission, the response and the callback's execution; the
    /// unused part is returned.
    pub prepaid: Cycles,
    /// Bytes of the request that transmission is charged for.
    pub request_bytes: u64,
    /// Deadline of a best-effort call.
    pub deadline: Option<Time>,
    /// A response is queued; later ones are dropped.
    pub answered: bool,
}

/// Number of open calls towards one callee from which on it is listed as crowded
/// ([`CallTable::crowded`]).
pub const CROWD: u64 = 16;

/// Call contexts and callbacks of one canister.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CallRecord")]
pub struct CallTable {
    contexts: NumberedMap<CallContext>,
    callbacks: NumberedMap<Callback>,
    next_context: u64,
    next_callback: u64,

    // Derived data.
    /// Open callbacks per callee.
    #[serde(skip)]
    towards: BTreeMap<Principal, u64>,
    /// Those of them with [`CROWD`] or more.
    #[serde(skip)]
    crowded: BTreeSet<Principal>,
    /// Unanswered callbacks of best-effort calls by deadline.
    #[serde(skip)]
    deadlines: BTreeSet<(Time, CallbackId)>,
    /// Unanswered callbacks with guaranteed responses.
    #[serde(skip)]
    pub(crate) reserved_responses: u64,
    #[serde(skip)]
    pub(crate) guaranteed_open: u64,
}

#[derive(Deserialize)]
struct CallRecord {
    contexts: NumberedMap<CallContext>,
    callbacks: NumberedMap<Callback>,
    next_context: u64,
    next_callback: u64,
}

impl From<CallRecord> for CallTable {
    fn from(record: CallRecord) -> Self {
        let CallRecord { contexts, callbacks, next_context, next_callback } = record;
        let mut table = Self { contexts, next_context, next_callback, ..Self::default() };
        callbacks.iter().for_each(|(id, callback)| table.count(CallbackId(id), callback));
        table.callbacks = callbacks;
        table
    }
}

impl CallTable {
    /// Moves to the state's heap what is elsewhere.
    pub(crate) fn rest(&mut self) {
        self.contexts.rest();
        self.callbacks.rest();
        rest_map(&mut self.towards);
        rest_set(&mut self.crowded);
        rest_set(&mut self.deadlines);
    }

    /// Opens a context.
    pub fn open_context(&mut self, origin: Origin, cycles_available: Cycles) -> CallContextId {
        let id = CallContextId(self.next_context);
        debug_assert!(self.contexts.last() < Some(id.0), "context {} is open already", id.0);
        self.next_context += 1;
        let responded = matches!(origin, Origin::System);
        // Copies of the table share it, wherever it is allocated.
        let origin = state_heap::within(|| origin.clone());
        self.contexts.insert(
            id.0,
            CallContext {
                origin,
                responded,
                deleted: false,
                cycles_available,
                open_callbacks: 0,
                instructions: 0,
            },
        );
        id
    }

    /// The context with this id, if it is open.
    pub fn context(&self, id: CallContextId) -> Option<&CallContext> {
        self.contexts.get(id.0)
    }

    /// A context, to be changed.
    pub fn context_mut(&mut self, id: CallContextId) -> Option<&mut CallContext> {
        self.contexts.get_mut(id.0)
    }

    /// All contexts in order.
    pub fn contexts(&self) -> impl Iterator<Item = (CallContextId, &CallContext)> {
        self.contexts.iter().map(|(id, context)| (CallContextId(id), context))
    }

    /// Whether no call is open.
    pub fn has_no_contexts(&self) -> bool {
        self.contexts.is_empty()
    }

    /// Removes the context when it was answered and waits for nothing; it is returned then.
    pub fn close_if_done(&mut self, id: CallContextId) -> Option<CallContext> {
        let context = self.contexts.get(id.0)?;
        if context.responded && context.open_callbacks == 0 {
            self.contexts.remove(id.0)
        } else {
            None
        }
    }

    /// The code is gone: every context is deleted. Those that were not answered are returned, as
    /// they were, to be rejected.
    pub fn delete_contexts(&mut self) -> Vec<CallContext> {
        let mut unanswered = Vec::new();
        self.contexts.for_each_mut(|_, context| {
            if !context.responded {
                unanswered.push(context.clone());
            }
            context.responded = true;
            context.deleted = true;
            context.cycles_available = 0;
        });
        self.contexts.retain(|_, context| context.open_callbacks > 0);
        debug_assert!(
            self.contexts.len() <= self.callbacks.len(),
            "{} contexts wait for {} callbacks",
            self.contexts.len(),
            self.callbacks.len()
        );
        unanswered
    }

    /// Registers a call.
    pub fn open_callback(&mut self, callback: Callback) -> CallbackId {
        let id = CallbackId(self.next_callback);
        debug_assert!(self.callbacks.last() < Some(id.0), "callback {} is open already", id.0);
        debug_assert!(
            self.contexts.get(callback.context.0).is_some(),
            "callback {} is of context {}, which is closed",
            id.0,
            callback.context.0
        );
        self.next_callback += 1;
        if let Some(context) = self.contexts.get_mut(callback.context.0) {
            context.open_callbacks += 1;
        }
        self.count(id, &callback);
        self.callbacks.insert(id.0, callback);
        id
    }

    fn count(&mut self, id: CallbackId, callback: &Callback) {
        let open = self.towards.entry(callback.callee).or_default();
        *open += 1;
        if *open == CROWD {
            self.crowded.insert(callback.callee);
        }
        self.guaranteed_open += u64::from(callback.deadline.is_none());
        match callback.deadline {
            _ if callback.answered => {}
            Some(deadline) => {
                self.deadlines.insert((deadline, id));
            }
            None => self.reserved_responses += 1,
        }
    }

    /// The callback with this id, if its response is still to come.
    pub fn callback(&self, id: CallbackId) -> Option<&Callback> {
        self.callbacks.get(id.0)
    }

    /// All callbacks in order.
    pub fn callbacks(&self) -> impl Iterator<Item = (CallbackId, &Callback)> {
        self.callbacks.iter().map(|(id, callback)| (CallbackId(id), callback))
    }

    /// Number of callbacks that wait for a response.
    pub fn callbacks_open(&self) -> u64 {
        self.callbacks.len() as u64
    }

    /// Open callbacks per callee.
    pub fn towards(&self) -> impl Iterator<Item = (Principal, u64)> {
        self.towards.iter().map(|(callee, open)| (*callee, *open))
    }

    /// Number of callees with open callbacks.
    pub fn callees(&self) -> usize {
        self.towards.len()
    }

    /// Open callbacks per callee, of those with [`CROWD`] or more: at most one callee for every
    /// [`CROWD`] callbacks.
    pub fn crowded(&self) -> impl Iterator<Item = (Principal, u64)> {
        let open = |callee| self.towards.get(callee).copied().unwrap_or_default();
        self.crowded.iter().map(move |callee| (*callee, open(callee)))
    }

    /// Marks that a response is queued. False when there is no such callback or it has one already:
    /// the response is to be dropped.
    pub fn mark_answered(&mut self, id: CallbackId) -> bool {
        // Looked at first: what `get_mut` gives is copied where a snapshot shares it.
        if self.callbacks.get(id.0).is_none_or(|callback| callback.answered) {
            return false;
        }
        let Some(callback) = self.callbacks.get_mut(id.0) else { return false };
        callback.answered = true;
        match callback.deadline {
            Some(deadline) => {
                let was_there = self.deadlines.remove(&(deadline, id));
                debug_assert!(was_there, "callback {} had no entry of its deadline", id.0);
            }
            None => {
                assert!(self.reserved_responses > 0, "no response is reserved for {}", id.0);
                self.reserved_responses -= 1;
            }
        }
        true
    }

    /// Takes the callback away to run it.
    pub fn close_callback(&mut self, id: CallbackId) -> Option<Callback> {
        self.mark_answered(id);
        let callback = self.callbacks.remove(id.0)?;
        self.guaranteed_open -= u64::from(callback.deadline.is_none());
        if let Some(context) = self.contexts.get_mut(callback.context.0) {
            assert!(context.open_callbacks > 0, "context {} waits for nothing", callback.context.0);
            context.open_callbacks -= 1;
        }
        if let Some(open) = self.towards.get_mut(&callback.callee) {
            *open -= 1;
            if *open + 1 == CROWD {
                self.crowded.remove(&callback.callee);
            }
            if *open == 0 {
                self.towards.remove(&callback.callee);
            }
        }
        Some(callback)
    }

    /// Checks the invariants between messages. Visits every context and callback. `paused` is the
    /// context of a message that is not over.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self, paused: Option<CallContextId>) {
        let mut open: BTreeMap<CallContextId, u64> = BTreeMap::new();
        let mut sums = Self::default();
        self.contexts.check();
        self.callbacks.check();
        for (id, callback) in self.callbacks() {
            assert!(id.0 < self.next_callback, "callback {} has a number yet to be given", id.0);
            *open.entry(callback.context).or_default() += 1;
            sums.count(id, callback);
        }
        assert_eq!(self.guaranteed_open, sums.guaranteed_open, "guaranteed calls");
        let reserved = self.reserved_responses;
        assert!(
            reserved <= self.guaranteed_open,
            "{reserved} responses are reserved for {} guaranteed calls",
            self.guaranteed_open
        );
        for (id, context) in self.contexts() {
            assert!(id.0 < self.next_context, "context {} has a number yet to be given", id.0);
            let callbacks = open.remove(&id).unwrap_or_default();
            assert_eq!(context.open_callbacks, callbacks, "callbacks of context {}", id.0);
            assert!(
                !context.deleted || (context.responded && context.cycles_available == 0),
                "context {} is deleted and holds {} cycles",
                id.0,
                context.cycles_available
            );
            assert!(
                !context.responded || callbacks > 0 || paused == Some(id),
                "context {} is answered and waits for nothing",
                id.0
            );
        }
        assert!(open.is_empty(), "callbacks of contexts that are closed");
        assert_eq!(self.towards, sums.towards, "open callbacks by callee");
        assert_eq!(self.crowded, sums.crowded, "callees with many callbacks");
        assert_eq!(self.deadlines, sums.deadlines, "deadlines of unanswered calls");
        assert_eq!(reserved, sums.reserved_responses, "responses that room is kept for");
    }

    /// Best-effort calls that are not answered.
    pub fn unanswered_best_effort(&self) -> u64 {
        self.deadlines.len() as u64
    }

    /// The earliest deadline of an unanswered best-effort call.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Unanswered best-effort calls whose deadline has passed.
    pub fn expired(&self, now: Time) -> Vec<CallbackId> {
        self.deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline < now)
            .map(|(_, id)| *id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn callback(context: CallContextId, deadline: Option<Time>) -> Callback {
        Callback {
            context,
            callee: Principal::from_slice(&[7, 1]),
            on_reply: (0, 0),
            on_reject: (0, 0),
            on_cleanup: None,
            cycles_sent: 0,
            prepaid: 0,
            request_bytes: 0,
            deadline,
            answered: false,
        }
    }

    #[test]
    fn a_context_closes_when_answered_and_nothing_is_open() {
        let mut table = CallTable::default();
        let context = table.open_context(Origin::System, 0);
        let call = table.open_callback(callback(context, None));
        assert_eq!(table.reserved_responses, 1);
        assert!(table.close_if_done(context).is_none());
        assert!(table.mark_answered(call));
        assert!(!table.mark_answered(call));
        assert_eq!(table.reserved_responses, 0);
        table.close_callback(call).unwrap();
        assert!(table.close_if_done(context).is_some());
        assert!(table.has_no_contexts());
        assert_eq!(table.towards().count(), 0);
    }

    #[test]
    fn a_deadline_is_known_until_an_answer_is_queued() {
        let mut table = CallTable::default();
        let context = table.open_context(Origin::System, 0);
        let early = table.open_callback(callback(context, Some(Time(5))));
        let late = table.open_callback(callback(context, Some(Time(9))));
        assert_eq!(table.next_deadline(), Some(Time(5)));
        assert_eq!(table.expired(Time(6)), [early]);
        assert!(table.mark_answered(early));
        assert_eq!(table.next_deadline(), Some(Time(9)));
        table.close_callback(late);
        assert_eq!(table.next_deadline(), None);
    }
}
