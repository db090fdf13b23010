//! Dependencies of state sync.

use std::sync::Arc;

use futures::channel::mpsc;
use tokio::sync::watch;

use super::Command;
use crate::{
    SyncProgress,
    subnet::{Input, deps::Deps, engine::Mailbox, peers::PeerScorer},
};

/// The finalised block of an offer is at most this far below the first block after its state. Few
/// blocks lack a finalization of their own.
pub(in crate::subnet) const FLOOR_DEPTH: u64 = 16;

pub(in crate::subnet) struct Config<S> {
    pub(in crate::subnet) deps: Arc<Deps>,
    pub(in crate::subnet) state_sync_tx: watch::Sender<Option<SyncProgress>>,
    pub(in crate::subnet) marshal: Mailbox,
    pub(in crate::subnet) sender: S,
    pub(in crate::subnet) input_tx: mpsc::Sender<Input>,
    pub(in crate::subnet) commands_rx: mpsc::Receiver<Command>,
    pub(in crate::subnet) scorer: PeerScorer,
}
