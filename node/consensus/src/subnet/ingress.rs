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

/// A finalised block whose receiver says when it is durable.
pub(super) struct DeliveredBlock {
    pub(super) block: FinalisedBlock,
    pub(super) durable_tx: oneshot::Sender<()>,
}
