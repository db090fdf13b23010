//! Messages of the engine to the driver.

use futures::channel::oneshot;
use state::Height;

use super::{greeting::LimitsDiffer, state_sync::SyncTarget};
use crate::{Certificate, FinalisedBlock, certifier::CertifyError};

pub(super) enum Input {
    Block(DeliveredBlock),
    Certified(Certificate),
    Failed(CertifyError),
    /// The blocks that are needed are kept nowhere any more.
    Behind(Box<SyncTarget>),
    Differs(LimitsDiffer),
    /// This node is not a member from here on, or cannot be.
    Left(Height),
    /// Something outside changed: look.
    Wake,
    Ended,
}

/// A finalised block whose receiver says when it is in the block log.
pub(super) struct DeliveredBlock {
    pub(super) block: FinalisedBlock,
    /// The engine holds the block and its calls on disk until they are durable in the block log.
    pub(super) is_held: bool,
    /// Takes the height up to which the block log is durable.
    pub(super) logged_tx: oneshot::Sender<Height>,
}
