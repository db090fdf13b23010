//! Dependencies of the task of state roots.

use std::sync::Arc;

use futures::channel::mpsc;
use tokio::sync::watch;

use crate::subnet::{Input, deps::Deps, peers::PeerScorer, published::CertificationProgress};

pub(in crate::subnet) struct Config<S> {
    pub(in crate::subnet) deps: Arc<Deps>,
    /// Limits that all members must have alike.
    pub(in crate::subnet) agreed: Vec<(String, u64)>,
    pub(in crate::subnet) certification_tx: watch::Sender<CertificationProgress>,
    pub(in crate::subnet) sender: S,
    pub(in crate::subnet) input_tx: mpsc::Sender<Input>,
    pub(in crate::subnet) scorer: PeerScorer,
}
