//! The seam itself.

use serde::{Deserialize, Serialize};
use state::{Batch, Fault, Height, Time};
use thiserror::Error;

use crate::{Certificate, LogError};

/// What an earlier run found when it executed the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// State root after the batch.
    pub root: [u8; 32],
    /// Faults to be repeated.
    pub faults: Vec<Fault>,
}

/// A batch that will not change any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalisedBatch {
    /// What to execute.
    pub batch: Batch,
    /// Present when the batch was executed before: the root must come out the same.
    pub recorded: Option<Recorded>,
}

/// What execution still wants, so that rounds come as fast as there is work and no faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Messages are waiting: the next batch is due now.
    pub more: bool,
    /// A canister timer is due then.
    pub next_timer: Option<Time>,
    /// Something runs every round (a heartbeat): a batch per idle interval is wanted.
    pub every_round: bool,
}

/// Why consensus cannot go on.
#[derive(Debug, Error)]
pub enum ConsensusError {
    /// The block log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Executing a batch again gave another state: the disk, the memory or the program changed under us. Nothing is certified from here on.
    #[error(
        "state root of height {height} is {found} but {recorded} was certified before: the state on disk is damaged or \
         was written by another version; restore the data directory from a copy"
    )]
    Diverged {
        /// Height.
        height: u64,
        /// What came out.
        found: String,
        /// What had been recorded.
        recorded: String,
    },
    /// Heights must follow each other.
    #[error("height {found} came where {expected} was due")]
    OutOfOrder {
        /// What came.
        found: u64,
        /// What was due.
        expected: u64,
    },
    /// Signing.
    #[error("certifying height {height}: {source}")]
    Certify {
        /// Height.
        height: u64,
        /// Reason.
        source: nidkg::BlsError,
    },
}

/// Batches out, certificates back.
pub trait Consensus: Send {
    /// Waits for the next finalised batch: after a start, those behind the height execution restarted from; then new ones. `None` when the node is closing.
    ///
    /// # Errors
    /// When a batch cannot be made durable. The call may be repeated: no message is lost by the failure, and none is executed.
    fn next_batch(&mut self, demand: Demand) -> Result<Option<FinalisedBatch>, ConsensusError>;

    /// Execution of `height` is complete. Contributes this node's share on `root` and returns the certificates that became complete, in height order.
    ///
    /// # Errors
    /// [`ConsensusError::Diverged`] when an earlier run recorded another root.
    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> Result<Vec<Certificate>, ConsensusError>;

    /// A checkpoint at `height` is durable: batches up to it will not be asked for again.
    ///
    /// # Errors
    /// When old log files cannot be removed.
    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError>;

    /// Heights whose certificate is not complete yet.
    fn certificates_pending(&self) -> u64;
}
