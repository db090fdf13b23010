//! Messages that run in slices: grants from execution, and progress reports.
//!
//! A message whose instructions are not used up at the end of its slice is **paused**, and resumed
//! in a later round. The end of a slice is a function of what the message did and of the number of
//! instructions that were granted, so it is the same on every machine: whether a worker kept the
//! paused message or it ran again from its beginning is not observable.
//!
//! # Where a slice ends
//!
//! At the first *point* at which at least [`Grant::until`] instructions are counted. There is a
//! point after each call of a system function and before each operation on more memory than a step
//! has instructions, where the count is exact; and one whenever [`Grant::step`] instructions were
//! used without any. There the engine does not say how far beyond the step the code is, so the count
//! is a lower bound.
//! Pages that the message touched count from then on, also where the engine does not know of them.
//! The points of a message do not depend on grants; only which of them are pauses does.

use serde::{Deserialize, Serialize};
use state::{CanisterId, Height};

use crate::Outcome;

/// Parts of a slice after which it is looked whether it is over.
const STEPS_PER_SLICE: u64 = 8;

/// Which message it is among all that were ever paused: a canister has one at a time. The oldest
/// come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlicedName {
    /// Height of the batch in which it began.
    pub since: Height,
    /// The canister that runs it.
    pub canister_id: CanisterId,
    /// Which execution of those that belong to one installation; 0 of a message.
    pub part: u8,
}

/// How far a message may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The message.
    pub name: SlicedName,
    /// Instructions after which it is paused, counted from its beginning.
    pub until: u64,
    /// Instructions between two checks of the count.
    pub step: u64,
    /// Instructions of one slice.
    pub slice: u64,
}

impl Grant {
    /// A grant of `until` instructions in all, which were given in slices of `slice`.
    pub fn new(name: SlicedName, until: u64, slice: u64) -> Self {
        Self { name, until, step: slice.div_ceil(STEPS_PER_SLICE).max(1), slice }
    }

    /// Whether the message begins with it.
    pub fn is_first(&self) -> bool {
        self.until <= self.slice
    }
}

/// Result of a slice.
#[derive(Clone, Debug, PartialEq)]
pub enum Slice {
    /// The message is over.
    Ended(Box<Outcome>),
    /// It continues with the next grant.
    Paused(Progress),
}

/// How far a paused message came. A function of the request and the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Instructions counted, at least those granted.
    pub instructions: u64,
    /// Size of the heap in Wasm pages.
    pub heap_wasm_pages: u64,
    /// Size of the stable memory in Wasm pages.
    pub stable_wasm_pages: u64,
}
