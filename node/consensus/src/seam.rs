//! The seam itself.

use std::sync::Arc;

use envelope::Envelopes;
use futures::future::BoxFuture;
use limits::ConsensusLimits;
use serde::{Deserialize, Serialize};
use state::{
    AgreedRound, AwaitedRoots, Batch, Fault, Height, OutcallAnswer, QueryReport, Randomness,
    SignedIngress, SubnetKey, Time,
};
use thiserror::Error;

use crate::{
    BlockLog, Certificate, CertifyError, ChunkRequest, FetchedChunks, IngressPool, LimitsDiffer,
    LogError, OutcallAnswers, StateOffer, StateServer, WallClock,
};

/// Recorded result of an earlier execution of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedOutcome {
    /// State root after the batch.
    pub root: [u8; 32],
    /// Messages that were rejected because operators said so, to be rejected again.
    pub faults: Vec<Fault>,
}

/// A block that will not change any more, as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalisedBlock {
    /// Height of the block, one above its parent's.
    pub height: Height,
    /// Time of the block in nanoseconds of the Unix epoch, after its parent's.
    pub time: Time,
    /// Randomness for execution: see [`Randomness`].
    pub randomness: Randomness,
    /// Calls in the order they are to be inducted, and answers to outcalls among them.
    pub ingress: Vec<SignedIngress>,
    /// How the subnet's key is held from here on, if this block changed it.
    pub key: Option<SubnetKey>,
    /// The round that the block was made in. None for a node alone.
    pub agreed: Option<AgreedRound>,
    /// Queries that the block's maker counted, in few blocks.
    pub queries: Option<Box<QueryReport>>,
}

impl FinalisedBlock {
    /// The batch for execution. Calls were verified before they were put into a block.
    pub(crate) fn batch(&self, envelopes: &dyn Envelopes) -> Result<Batch, ConsensusError> {
        let unreadable = |reason| ConsensusError::UnreadableCall { height: self.height.0, reason };
        let (mut ingress, mut outcalls) = (Vec::new(), Vec::new());
        for signed in &self.ingress {
            if OutcallAnswer::is_in(signed) {
                outcalls.push(OutcallAnswer::read(signed).map_err(unreadable)?.0);
            } else {
                ingress.push(envelopes.read(signed).map_err(unreadable)?);
            }
        }
        Ok(Batch {
            height: self.height,
            time: self.time,
            randomness: self.randomness.clone(),
            ingress,
            outcalls,
            key: self.key.clone(),
            agreed: self.agreed,
            queries: self.queries.clone(),
        })
    }
}

/// Dependencies of every implementation of [`Consensus`].
pub struct ConsensusDeps {
    /// Calls that wait for a block.
    pub pool: Arc<IngressPool>,
    /// Where blocks become durable.
    pub log: BlockLog,
    /// Where block times come from.
    pub clock: Arc<dyn WallClock>,
    /// Reads and verifies calls.
    pub envelopes: Arc<dyn Envelopes>,
    /// Sizes and intervals.
    pub limits: ConsensusLimits,
    /// State sync server and client. `None` disables state sync.
    pub states: Option<Arc<dyn StateServer>>,
    /// Where answers to outcalls come from. None: this node makes no requests, and the subnet none.
    pub outcalls: Option<Arc<OutcallAnswers>>,
    /// Queries that this node counted. None: it reports none.
    pub queries: Option<Arc<dyn CountedQueries>>,
}

/// This node's counts of the queries that it answered.
pub trait CountedQueries: Send + Sync {
    /// Report for a block of this height by its maker, of queries that no executed block reported.
    fn report(&self, height: Height) -> Option<QueryReport>;
}

/// A batch that will not change any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalisedBatch {
    /// The batch to execute.
    pub batch: Batch,
    /// Present when the batch was executed before: the root must come out the same.
    pub recorded: Option<RecordedOutcome>,
}

/// Work that execution has left, so that rounds come as fast as there is work and no faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Messages are waiting: the next batch is due now.
    pub more: bool,
    /// A canister timer is due then.
    pub next_timer: Option<Time>,
    /// Roots of executed states whose signatures execution waits for, as randomness. A node alone
    /// gives randomness with every block; members put the signatures into their blocks.
    pub awaited: AwaitedRoots,
}

/// Errors after which consensus cannot continue.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ConsensusError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// Executing a batch again gave another state: the disk, the memory or the program changed
    /// under us. Nothing is certified from here on.
    #[error(
        "state root of height {height} is {found} but {recorded} was certified before: the state \
         on disk is damaged or was written by another version; see docs/operating.md, \"When the \
         disk was damaged\""
    )]
    Diverged { height: u64, found: String, recorded: String },
    #[error(
        "a call of block {height} cannot be read: {reason}; the block log is damaged, or another \
         version wrote it"
    )]
    UnreadableCall { height: u64, reason: String },
    #[error("height {found} came where {expected} was due")]
    OutOfOrder { found: u64, expected: u64 },
    #[error("certifying height {height}: {source}")]
    Certify { height: u64, source: CertifyError },
    #[error(transparent)]
    LimitsDiffer(LimitsDiffer),
    #[error(
        "this node does not belong to the subnet's members after block {height}: either a change \
         of the members removed it, and it can be shut down, or it could not obtain \
         its share of the subnet's key, as logged above"
    )]
    Left { height: u64 },
    #[error("the consensus engine ended; see its message above")]
    EngineEnded,
    #[error("state-sync floor: {0}")]
    Floor(disk::records::RecordError),
}

impl ConsensusError {
    /// Whether the same call may succeed later in the same process, because what is in its way can
    /// be freed or mended from outside. Everything else ends the node.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::Log(error) => error.can_heal(),
            Self::Floor(error) => error.can_heal(),
            _ => false,
        }
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, most of them the large one")]
pub enum Step {
    /// A batch is final and durable: in the block log, or until it is there in the storage of the
    /// engine, which hands it out again after a crash.
    Execute(FinalisedBatch),
    /// A certificate became complete. Heights rise and need not be contiguous: a certificate covers
    /// what earlier states hold.
    Certified(Certificate),
    /// No peer retains the blocks this node needs. A newer state has to be taken
    /// over: with [`Consensus::fetch`] until it is complete, then [`Consensus::installed`]; after
    /// that the node starts again on top of it.
    Behind(StateOffer),
    /// The node is closing.
    Closing,
}

/// Batches out, certificates back.
///
/// Operations that wait are futures, so that one thread can drive several nodes in a simulation. A
/// future may block instead of waiting when its consensus is the only thing its thread drives
/// ([`crate::SingleNode`]).
pub trait Consensus: Send {
    /// Waits for the next step. Batches come in height order: after a start, those behind the
    /// height execution restarted from; then new ones.
    ///
    /// # Errors
    /// When a batch cannot be made durable. The call may be repeated: no message is lost by the
    /// failure, and none is executed.
    fn next(&mut self, demand: Demand) -> BoxFuture<'_, Result<Step, ConsensusError>>;

    /// Execution of `height` is complete. Contributes this node's share on `root` and returns the
    /// certificates that became complete by it alone, in height order; those that need other
    /// nodes come out of [`Self::next`].
    ///
    /// # Errors
    /// [`ConsensusError::Diverged`] when an earlier run recorded another root.
    fn executed(
        &mut self,
        height: Height,
        root: [u8; 32],
        faults: Vec<Fault>,
    ) -> BoxFuture<'_, Result<Vec<Certificate>, ConsensusError>>;

    /// A checkpoint of what was executed is about to be made. What it covers must be in the block
    /// log by then: the log must not end below a checkpoint.
    ///
    /// # Errors
    /// If the disk fails; the call may be repeated.
    fn before_checkpoint(&mut self) -> Result<(), ConsensusError> {
        Ok(())
    }

    /// A checkpoint at `height` is durable: batches up to it will not be asked for again.
    fn checkpointed(&mut self, height: Height) -> Result<(), ConsensusError>;

    /// Heights whose certificate is not complete yet.
    fn certificates_pending(&self) -> u64;

    /// Fetches parts of the state of the last [`Step::Behind`]: says what is wanted, and waits a
    /// moment for some of it.
    fn fetch(
        &mut self,
        want: ChunkRequest,
    ) -> BoxFuture<'_, Result<FetchedChunks, ConsensusError>> {
        drop(want);
        Box::pin(async { Ok(FetchedChunks { over: true, ..FetchedChunks::default() }) })
    }

    /// Writes durably the floor above the state of the last [`Step::Behind`]: the block from which
    /// consensus continues. To be called before that state counts.
    ///
    /// # Errors
    /// If the disk fails; the call may be repeated.
    fn installed(&mut self) -> Result<(), ConsensusError> {
        Ok(())
    }
}
