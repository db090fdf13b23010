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
    RecordedOutcome, Step, block_log::Replay,
};

/// See the module.
pub struct LogReplay {
    /// Held open so that no other process writes to it meanwhile.
    _log: BlockLog,
    envelopes: Arc<dyn Envelopes>,
    replay: Replay,
    /// Height of the last batch handed out.
    height: Height,
    recorded: Option<RecordedOutcome>,
}

impl LogReplay {
    /// `resume_from` is the height of the state that execution restarted from.
    ///
    /// # Errors
    /// [`crate::LogError::Missing`] when the log ends below what was certified.
    pub fn new(deps: ConsensusDeps, resume_from: Height) -> Result<Self, ConsensusError> {
        let ConsensusDeps { log, envelopes, .. } = deps;
        log.check_complete(resume_from)?;
        let replay = log.read_from(resume_from)?;
        Ok(Self { _log: log, envelopes, replay, height: resume_from, recorded: None })
    }
}

impl Consensus for LogReplay {
    fn next(&mut self, _: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>> {
        Box::pin(async move { self.hand_out() })
    }

    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        _: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>> {
        Box::pin(async move { self.compare(height, root) })
    }

    /// The log stays as it is: the next start prunes it.
    fn checkpointed(&mut self, _: Height) -> Result<(), ConsensusError> {
        Ok(())
    }

    fn certificates_pending(&self) -> u64 {
        0
    }
}

impl LogReplay {
    fn hand_out(&mut self) -> Result<Step, ConsensusError> {
        let Some(logged) = self.replay.next_block()? else {
            return Ok(Step::Closing);
        };
        let expected = self.height.0 + 1;
        if logged.block.height.0 != expected {
            return Err(ConsensusError::OutOfOrder { found: logged.block.height.0, expected });
        }
        let batch = logged.block.batch(self.envelopes.as_ref())?;
        self.height = logged.block.height;
        self.recorded.clone_from(&logged.recorded);
        Ok(Step::Execute(FinalisedBatch { batch, recorded: logged.recorded }))
    }

    fn compare(
        &mut self,
        height: Height,
        root: [u8; 32],
    ) -> Result<Vec<Certificate>, ConsensusError> {
        if height != self.height {
            return Err(ConsensusError::OutOfOrder { found: height.0, expected: self.height.0 });
        }
        was_recorded(self.recorded.take(), height, root)?;
        Ok(Vec::new())
    }
}

/// Whether the outcome of a batch was recorded before. Errors: it was, with another root.
pub(crate) fn was_recorded(
    recorded: Option<RecordedOutcome>,
    height: Height,
    root: [u8; 32],
) -> Result<bool, ConsensusError> {
    match recorded {
        Some(recorded) if recorded.root != root => Err(ConsensusError::Diverged {
            height: height.0,
            found: hex::encode(root),
            recorded: hex::encode(recorded.root),
        }),
        recorded => Ok(recorded.is_some()),
    }
}
