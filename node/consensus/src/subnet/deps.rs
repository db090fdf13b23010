//! Dependencies of a member's tasks.

use std::sync::Arc;

use commonware_consensus::types::FixedEpocher;
use commonware_cryptography::ed25519::PublicKey;
use commonware_utils::sync::Mutex;
use envelope::Envelopes;
use limits::ConsensusLimits;

use super::{
    blobs::BlobLog,
    block::{BlockBounds, NameBounds},
    engine::{Schemes, block_bounds},
    journal::Journal,
    published::ProgressReaders,
    resharing::Resharing,
    voters::Voters,
};
use crate::{
    BlockLog, CountedQueries, IngressPool, OutcallAnswers, StateServer, WallClock,
    certifier::CommitteeSchedule,
};

/// The block log, which the driver writes, and which peers that are behind read.
pub(super) type Log = Arc<Mutex<BlockLog>>;

/// Everything that the tasks of one member share. What has one owner (an end of a channel, a part
/// of the network) is in the configuration of that task instead.
pub(super) struct Deps {
    /// This node, as peers know it.
    pub(super) me: PublicKey,
    pub(super) public_key: nidkg::PublicKey,
    /// Precedes everything that members sign for the engine.
    pub(super) namespace: Vec<u8>,
    /// Keys that sign votes of the subnet's first epoch.
    pub(super) first_voters: Voters,
    pub(super) limits: ConsensusLimits,
    /// Most bytes of an envelope.
    pub(super) call_bytes: u64,
    pub(super) epocher: FixedEpocher,
    pub(super) pool: Arc<IngressPool>,
    pub(super) envelopes: Arc<dyn Envelopes>,
    pub(super) log: Log,
    pub(super) journal: Arc<Journal>,
    /// The engine's storage.
    pub(super) blobs: BlobLog,
    /// Clock of block times and the validity of calls. Everything else uses the runtime's clock,
    /// which never jumps.
    pub(super) clock: Arc<dyn WallClock>,
    /// State sync server and client. None disables state sync.
    pub(super) states: Option<Arc<dyn StateServer>>,
    /// None where the subnet makes no outcalls.
    pub(super) outcalls: Option<Arc<OutcallAnswers>>,
    pub(super) queries: Option<Arc<dyn CountedQueries>>,
    pub(super) published: Arc<ProgressReaders>,
    pub(super) resharing: Arc<Resharing>,
    pub(super) schemes: Schemes,
    pub(super) schedule: CommitteeSchedule,
}

impl Deps {
    pub(super) fn block_bounds(&self) -> BlockBounds {
        block_bounds(usize::try_from(self.limits.block_ingress_messages).unwrap_or(usize::MAX))
    }

    pub(super) fn name_bounds(&self) -> NameBounds {
        NameBounds {
            calls: self.limits.block_ingress_messages,
            bytes: self.limits.block_ingress_bytes,
            call_bytes: self.call_bytes,
        }
    }
}
