//! Messages that run in slices: grants from execution, and progress reports
//! (docs/internals/sandbox.md, docs/internals/metering.md).
//!
//! A message whose instructions are not used up at the end of its slice is **paused**, and resumed
//! in a later round. Whether a worker kept it or it ran again from its beginning is not observable,
//! because where a slice ends is a function of the message and the grant:
//!
//! At the first *point* at which at least [`Grant::until`] units of work are counted. There is a
//! point after each call of a system function and before each operation on more memory than a step
//! has instructions, where the count is exact; and one whenever [`Grant::step`] instructions were
//! used without any. There the engine does not say how far beyond the step the code is, so the
//! count is a lower bound. Pages that the message touched count from then on, also where the engine
//! does not know of them. The points of a message do not depend on grants; only which of them are
//! pauses does.
//!
//! *Work* bounds the time of a slice, instructions do not: code that reads at random in a large
//! heap waits for memory. Each instruction between two points counts [`work_per_instruction`]
//! times, which grows with the heap that the message has opened by then.

use serde::{Deserialize, Serialize};
use state::{CanisterId, Height};

use crate::Outcome;

/// Instructions a message counts in a round in addition to its own: fetching, mounting, answering,
/// and the kernel's faults for pages that are always readable. About as many as run in that time,
/// so that a round of very many short messages, for example of timers that are due at once, lasts
/// no longer than one of a few long ones.
pub const MESSAGE_OVERHEAD_INSTRUCTIONS: u64 = 1_000_000;

/// Parts of a slice after which it is looked whether it is over.
const STEPS_PER_SLICE: u64 = 32;

/// Wasm pages that a message may open, in addition to those that are always readable, before its
/// instructions count as more work: 4 MiB, which caches of one core hold in part and those of a
/// processor as a whole.
const CACHED_WASM_PAGES: u64 = 64;
/// Work of an instruction beyond: a random access takes 8 ns on the average of such code.
const UNCACHED_WORK: u64 = 8;
/// Wasm pages beyond which page tables do not fit the caches either: 256 MiB.
const MAPPED_WASM_PAGES: u64 = 4_096;
/// Work of an instruction beyond: up to 20 ns.
pub(crate) const WORK_PER_INSTRUCTION_MAX: u64 = 20;

/// Work of an instruction of a message that has opened this number of Wasm pages of its heap.
pub(crate) fn work_per_instruction(opened_wasm_pages: u64) -> u64 {
    if opened_wasm_pages <= CACHED_WASM_PAGES {
        1
    } else if opened_wasm_pages <= MAPPED_WASM_PAGES {
        UNCACHED_WORK
    } else {
        WORK_PER_INSTRUCTION_MAX
    }
}

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
    /// Work after which it is paused, counted from its beginning.
    pub until: u64,
    /// Instructions between two checks of the count.
    pub step: u64,
    /// Work of one slice.
    pub slice: u64,
}

impl Grant {
    /// A grant of `until` units of work in all, which were given in slices of `slice`.
    pub fn new(name: SlicedName, until: u64, slice: u64) -> Self {
        Self { name, until, step: slice.div_ceil(STEPS_PER_SLICE).max(1), slice }
    }

    /// Work that was granted before the last slice.
    pub fn before(&self) -> u64 {
        self.until.saturating_sub(self.slice)
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
    /// Instructions counted.
    pub instructions: u64,
    /// Work counted, at least what was granted.
    pub work: u64,
    /// Size of the heap in Wasm pages.
    pub heap_wasm_pages: u64,
    /// Size of the stable memory in Wasm pages.
    pub stable_wasm_pages: u64,
}
