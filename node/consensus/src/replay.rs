//! Replays the block log and nothing more: executes again the batches that were executed before,
//! without agreement.
//!
//! For a start whose limits differ from those that the log was executed with: the node has to reach
//! the end of the log first, alone, before it sends anything to its peers. Nothing is signed,
//! certified or appended; every root is compared with the recorded one.

use std::sync::Arc;

use envelope::Envelopes;
use futures::future::BoxFuture;
use state::{Fault, Height};

use crate::{
    BlockLog, Certificate, Consensus, ConsensusDeps, ConsensusError, Demand, FinalisedBatch,
    FinalisedBlock, RecordedOutcome, Step, block_log::Replay,
};

/// Replays the block log.
pub struct LogReplay {
    /// Held open so that no other process writes to it meanwhile.
    _log: BlockLog,
    replay: Replay,
    batches: BatchSequence,
}

impl LogReplay {
    /// `resume_from` is the height of the state that execution restarted from.
    ///
    /// # Errors
    /// [`crate::LogError::Missing`] when the log ends below what was certified.
    pub fn new(deps: ConsensusDeps, resume_from: Height) -> Result<Self, ConsensusError> {
        let ConsensusDeps { log, envelopes, .. } = deps;
        log.check_complete(resume_from)?;
        let replay = log.read_from(resume_from);
        Ok(Self { _log: log, replay, batches: BatchSequence::new(envelopes, resume_from) })
    }
}

impl Consensus for LogReplay {
    fn next(&mut self, _: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(async move {
            let Some(logged) = self.replay.next_block()? else { return Ok(Step::Closing) };
            self.batches.hand_out(&logged.block, logged.recorded).map(Step::Execute)
        })
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        _: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async move { self.batches.was_recorded(height, root).map(|_| Vec::new()) })
    }

    /// The log stays as it is: the next start prunes it.
    fn checkpointed(&mut self, _: Height) -> Result<(), ConsensusError> {
        Ok(())
    }

    fn certificates_pending(&self) -> u64 {
        0
    }
}

/// Batches in order of height, with the results that were recorded of them.
pub(crate) struct BatchSequence {
    envelopes: Arc<dyn Envelopes>,
    /// Height of the last batch handed out.
    pub(crate) height: Height,
    recorded: Option<RecordedOutcome>,
}

impl BatchSequence {
    pub(crate) fn new(envelopes: Arc<dyn Envelopes>, height: Height) -> Self {
        Self { envelopes, height, recorded: None }
    }

    pub(crate) fn hand_out(
        &mut self,
        block: &FinalisedBlock,
        recorded: Option<RecordedOutcome>,
    ) -> Result<FinalisedBatch, ConsensusError> {
        let expected = self.height.0 + 1;
        if block.height.0 != expected {
            return Err(ConsensusError::OutOfOrder { found: block.height.0, expected });
        }
        let batch = block.batch(self.envelopes.as_ref())?;
        self.height = block.height;
        self.recorded.clone_from(&recorded);
        Ok(FinalisedBatch { batch, recorded })
    }

    /// Whether the outcome of the last batch was recorded before. Errors: it was, with another
    /// root, or the batch of this height is not the last.
    pub(crate) fn was_recorded(
        &mut self,
        height: Height,
        root: [u8; 32],
    ) -> Result<bool, ConsensusError> {
        if height != self.height {
            return Err(ConsensusError::OutOfOrder { found: height.0, expected: self.height.0 });
        }
        match self.recorded.take() {
            Some(recorded) if recorded.root != root => Err(ConsensusError::Diverged {
                height: height.0,
                found: hex::encode(root),
                recorded: hex::encode(recorded.root),
            }),
            recorded => Ok(recorded.is_some()),
        }
    }
}
