//! Who looks on: metrics, clients that wait, the memory governor, the simulation.

use std::time::Duration;

use consensus::{Certificate, FinalisedBatch};
use execution::RoundResult;
use state::{Height, RequestId};

/// Observes the round loop, on its thread. An observer never affects the result of a round;
/// [`Self::is_held`] alone affects when it runs.
#[allow(unused_variables, reason = "what an observer does not look at")]
pub trait Observer<R>: Send {
    /// Whether the next batch should wait, because memory is short.
    fn is_held(&self) -> bool {
        false
    }

    /// The next batch waited for memory.
    fn waited_for_memory(&mut self) {}

    /// A batch is about to be executed; its calls take `ingress_bytes`.
    fn begins(&mut self, finalised: &FinalisedBatch, ingress_bytes: u64) {}

    /// The batch was executed. The result is not visible elsewhere yet.
    fn executed(&mut self, replica: &R, finalised: &FinalisedBatch, result: &RoundResult) {}

    /// Consensus has the root of the batch, and its outcome is in the block log.
    fn recorded(&mut self, replica: &R, round: &Round<'_>) {}

    /// Work waited for this time for a certified round.
    fn stalled(&mut self, time: Duration) {}

    /// The state of a height can be seen from outside.
    fn certified(&mut self, replica: &R, certificate: &Certificate) {}

    /// These calls were answered in a state that is certified now.
    fn answered(&mut self, calls: &[RequestId]) {}

    /// A checkpoint is being made.
    fn checkpoint_begins(&mut self, replica: &R) {}

    /// It ended; `height` if it is durable.
    fn checkpoint_ends(&mut self, replica: &R, height: Option<Height>, took: Duration) {}

    /// A state fetched from peers waits to be put in place.
    fn took_over(&mut self, height: Height) {}
}

/// A batch and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The batch with its block.
    pub finalised: &'a FinalisedBatch,
    /// Its result; the `finished` calls wait for [`Observer::answered`].
    pub result: &'a RoundResult,
    /// How long it took, recording its outcome included.
    pub took: Duration,
    /// Heights whose certificate is not complete yet.
    pub certificates_pending: u64,
}
