//! A message that used up its slice, as its canister keeps it until it goes on.
//!
//! The message has begun: it left its queue, its call context is open and its execution is prepaid.
//! What it saw when it began lies here, as execution wrote it down; nothing it did counts before it
//! is over. Until then its canister runs nothing else. This module must not know how a message is
//! run.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::{CallContextId, Cycles, CyclesTotal, Height, Origin, Shared, SubnetCall};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedMessage {
    /// Height of the batch in which it began: the oldest are granted slices first.
    pub since: Height,
    /// Its call context, which stays open until it is over.
    pub context: CallContextId,
    /// Instructions granted so far.
    pub granted: u64,
    /// Instructions counted when it was paused last.
    pub instructions: u64,
    /// Cycles taken from the balance for its execution.
    pub prepaid: Cycles,
    /// Bytes that its memories have grown by, which count against the subnet's capacity.
    pub grown_bytes: u64,
    /// Bytes of the message in the pools of messages, as long as it is here.
    pub message_bytes: u64,
    /// Whether it is a call with a guaranteed response, whose bytes are of that pool.
    pub is_guaranteed: bool,
    /// Whether it wrote more than a worker keeps: it runs again from its beginning each time, so it is
    /// granted twice the slices, and only one such message goes on in a round.
    pub is_large: bool,
    /// What execution needs to go on: its own encoding, with a version of its own.
    pub record: Shared<ByteBuf>,
    /// Calls of the management canister that must wait for the end of the message, in order.
    pub waiting: Vec<Shared<SubnetCall>>,
}

impl PausedMessage {
    /// Bytes in the pool of guaranteed responses and in that of other messages.
    pub(crate) fn message_memory(&self) -> (u64, u64) {
        let own =
            if self.is_guaranteed { (self.message_bytes, 0) } else { (0, self.message_bytes) };
        let all: u64 = self.waiting.iter().map(|call| call.accounted_bytes()).sum();
        let of_canisters = self.waiting_call_bytes();
        (own.0 + of_canisters, own.1 + all - of_canisters)
    }

    /// Bytes of calls of canisters that wait.
    pub(crate) fn waiting_call_bytes(&self) -> u64 {
        let is_user = |call: &&Shared<SubnetCall>| matches!(call.origin, Origin::Ingress { .. });
        let calls = self.waiting.iter().filter(|call| !is_user(call));
        calls.map(|call| call.accounted_bytes()).sum()
    }

    /// Cycles held for the message and for the calls that wait.
    pub(crate) fn cycles_held(&self) -> CyclesTotal {
        let waiting: CyclesTotal = self.waiting.iter().map(|call| call.cycles).sum();
        waiting + self.prepaid
    }
}
