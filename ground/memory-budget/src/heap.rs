//! Limits of sampling allocations, which every program of ours can do.

use accounting::{KIB, MIB};
use serde::{Deserialize, Serialize};

use crate::{LimitValue, Rules};

/// Limits of sampling allocations. They do not apply to a program that does not sample
/// (`--heap-profile`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeapLimits {
    /// One allocation is sampled for each such number of bytes allocated, on average; a power of
    /// two.
    pub sample_bytes: u64,
    /// The allocator's records of call stacks, of the line of the process. Beyond it nothing new is
    /// sampled.
    pub profiler_bytes: u64,
    /// Largest answer of `/debug/heap`, of the pool `responses`. Beyond it 500.
    pub answer_bytes: u64,
}

impl HeapLimits {
    /// The limits where the records of call stacks may take `profiler_bytes` bytes.
    pub fn with_profiler_bytes(profiler_bytes: u64) -> Self {
        Self { sample_bytes: 128 * KIB, profiler_bytes, answer_bytes: 256 * KIB }
    }

    /// The rules between these limits, the room for responses, and half of what the process has.
    pub fn check(&self, rules: &mut Rules, responses: LimitValue, half: LimitValue) {
        let sample = LimitValue::limit("heap.sample_bytes", self.sample_bytes);
        rules.at_least(sample, 16 * KIB, "each live sample takes this much");
        rules.at_most(sample, 16 * MIB, "hardly anything would be sampled");
        let answer = LimitValue::limit("heap.answer_bytes", self.answer_bytes);
        rules.at_least(answer, 16 * KIB, "no answer would fit");
        rules.within(answer, responses, "an answer must fit");
        let profiler = LimitValue::limit("heap.profiler_bytes", self.profiler_bytes);
        rules.within(profiler, half, "the process needs the rest itself");
    }
}
