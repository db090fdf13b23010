//! A message or an installation that used up its slice, as its canister keeps it until it is
//! resumed.
//!
//! The message has begun: it left its queue, its call context is open and its execution is prepaid.
//! Its input is kept here, as execution encoded it; its effects do not count before it is over.
//! Until then its canister runs nothing else. An installation is a call of the management canister
//! that is being served: it has no call context, and names the module that it brings, which stays
//! in the module store for it. This module must not know how a message is run.

use std::collections::BTreeSet;
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::{
    CallContextId, CanisterId, Cycles, CyclesTotal, Height, ModuleHash, Origin, StateArc,
    StoredPayload, SubnetCall,
};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedMessage {
    /// Height of the batch in which it began: the oldest are granted slices first, but for one.
    pub since: Height,
    /// Its call context, which stays open until it is over; none of an installation.
    pub context: Option<CallContextId>,
    /// Instructions granted so far.
    pub granted: u64,
    /// Instructions counted when it was paused last.
    pub instructions: u64,
    /// Cycles taken from the balance for its execution.
    pub prepaid: Cycles,
    /// Cycles that came with the call of an installation.
    pub cycles: Cycles,
    /// The module that an installation brings.
    pub module: Option<ModuleHash>,
    /// Bytes that its memories have grown by, which count against the subnet's capacity.
    pub grown_bytes: u64,
    /// Bytes of the message in the pools of messages, as long as it is here.
    pub message_bytes: u64,
    /// Whether it is a call with a guaranteed response, whose bytes are of that pool.
    pub is_guaranteed: bool,
    /// File of its payload, if that is too large for the record.
    pub payload: Option<StateArc<StoredPayload>>,
    /// Data that execution needs to resume it: its own encoding, with a version of its own.
    pub record: StateArc<ByteBuf>,
    /// Calls of the management canister that must wait for the end of the message, in order.
    pub waiting: Vec<StateArc<SubnetCall>>,
}

impl PausedMessage {
    /// Whether it is an installation.
    pub fn is_installation(&self) -> bool {
        self.context.is_none()
    }

    /// Bytes in the pool of guaranteed responses and in that of other messages.
    pub(crate) fn message_memory(&self) -> (u64, u64) {
        let own =
            if self.is_guaranteed { (self.message_bytes, 0) } else { (0, self.message_bytes) };
        let all: u64 = self.waiting.iter().map(|call| call.accounted_bytes()).sum();
        let of_canisters = self.waiting_call_bytes();
        debug_assert!(of_canisters <= all, "{of_canisters} of {all} bytes are of canisters");
        (own.0 + of_canisters, own.1 + all - of_canisters)
    }

    /// Bytes of calls of canisters that wait.
    pub(crate) fn waiting_call_bytes(&self) -> u64 {
        let is_user = |call: &&StateArc<SubnetCall>| matches!(call.origin, Origin::Ingress { .. });
        let calls = self.waiting.iter().filter(|call| !is_user(call));
        calls.map(|call| call.accounted_bytes()).sum()
    }

    pub(crate) fn cycles_held(&self) -> CyclesTotal {
        let waiting: CyclesTotal = self.waiting.iter().map(|call| call.cycles).sum();
        waiting + self.prepaid + self.cycles
    }
}

/// Canisters with a paused message, by its age and by their ids.
#[derive(Debug, Default)]
pub(crate) struct PausedIndex {
    by_age: BTreeSet<(Height, CanisterId)>,
    by_id: BTreeSet<CanisterId>,
}

impl PausedIndex {
    /// Takes note of when the message of a canister began, or that it has none any more.
    pub(crate) fn change(&mut self, id: CanisterId, old: Option<Height>, new: Option<Height>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            let was_there = self.by_age.remove(&(old, id));
            debug_assert!(was_there, "{id} was not paused since {}", old.0);
            self.by_id.remove(&id);
        }
        if let Some(new) = new {
            self.by_age.insert((new, id));
            self.by_id.insert(id);
        }
        debug_assert_eq!(self.by_age.len(), self.by_id.len(), "canisters by age and by id");
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = CanisterId> + '_ {
        self.by_id.iter().copied()
    }

    /// The `most` whose message began first.
    pub(crate) fn oldest(&self, most: usize) -> impl Iterator<Item = (Height, CanisterId)> + '_ {
        self.by_age.iter().take(most).copied()
    }

    /// The first behind `last`, and from the beginning again, that is not among `others`.
    pub(crate) fn behind(
        &self,
        last: Option<CanisterId>,
        others: &[CanisterId],
    ) -> Option<CanisterId> {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let until = last.map_or(Bound::Unbounded, Bound::Included);
        let behind = self.by_id.range((behind, Bound::Unbounded));
        behind
            .chain(self.by_id.range((Bound::Unbounded, until)))
            .find(|id| !others.contains(id))
            .copied()
    }
}
