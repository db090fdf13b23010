//! State shared by the clients of a run.
//!
//! Bounds: numbers and locks of fixed count. Must never know: the work of a client.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

use libp2p::identity::Keypair;
use tokio::sync::watch;

use crate::{
    connections::NodeConnections,
    report::Lost,
    session::{IdentifyMessage, Role, Session},
    settings::Load,
    tally::{SequenceCounters, lock},
    target::Target,
};

/// Between two tries to connect.
const RETRY: Duration = Duration::from_millis(200);

/// Longest reason that is kept.
const EXAMPLE_CHARS_MAX: usize = 160;

pub(crate) struct RunContext {
    pub(crate) target: Target,
    pub(crate) load: Load,
    pub(crate) places: Arc<NodeConnections>,
    pub(crate) issued: SequenceCounters,
    /// Current phase, or the last one between phases.
    pub(crate) phase: AtomicUsize,
    /// Connections that ended before the run did.
    connections_lost: Mutex<BTreeMap<&'static str, Lost>>,
}

impl RunContext {
    pub(crate) fn new(target: Target, load: Load, phases: usize) -> Arc<Self> {
        let issued = SequenceCounters::new(target.run, phases, load.publishers);
        let places = NodeConnections::new(target.addresses.len());
        let (phase, connections_lost) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { target, load, places, issued, phase, connections_lost })
    }

    /// A connection of one of `who` ended: why.
    pub(crate) fn record_connection_lost(&self, who: &'static str, why: &str) {
        let at = self.target.started.elapsed().as_secs_f64();
        let mut all = lock(&self.connections_lost);
        let lost = all.entry(who).or_insert_with(|| Lost {
            who: who.to_owned(),
            count: 0,
            example: format!("after {at:.1} s: {why}").chars().take(EXAMPLE_CHARS_MAX).collect(),
        });
        lost.count += 1;
    }

    /// Connections that ended so far, by whose they were.
    pub(crate) fn connections_lost(&self) -> Vec<Lost> {
        lock(&self.connections_lost).values().cloned().collect()
    }

    /// Connects to `node`, and retries until it succeeds: the node may be starting, or unavailable
    /// for a moment. `failed` receives the reason of each failure.
    pub(crate) async fn connect<R: Role>(
        &self,
        keys: &Keypair,
        node: usize,
        role: &Arc<R>,
        mut failed: impl FnMut(anyhow::Error),
    ) -> (Session<R>, IdentifyMessage) {
        loop {
            match Session::open(keys, &self.target, &self.places, node, role.clone()).await {
                Ok(open) => return open,
                Err(error) => failed(error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// The identify message of the node once a client works; until then, why it does not.
pub(crate) type ClientState = Result<IdentifyMessage, String>;

/// Reports once that a client is ready to work, and until then the reason why it is not.
pub(crate) struct Ready {
    state_tx: watch::Sender<ClientState>,
}

impl Ready {
    pub(crate) fn new() -> (Self, watch::Receiver<ClientState>) {
        let (state_tx, state_rx) = watch::channel(Err("the node has not answered yet".into()));
        (Self { state_tx }, state_rx)
    }

    pub(crate) fn ready(&self, about: &IdentifyMessage) {
        self.state_tx.send_modify(|state| *state = Ok(about.clone()));
    }

    /// Kept only while it was not ready yet.
    pub(crate) fn waiting(&self, why: &anyhow::Error) {
        self.state_tx.send_if_modified(|state| {
            if state.is_err() {
                *state = Err(format!("{why:#}"));
            }
            state.is_err()
        });
    }
}

/// Waits until a client is ready, for at most `timeout`.
pub(crate) async fn is_ready(
    state_rx: &mut watch::Receiver<ClientState>,
    timeout: Duration,
) -> ClientState {
    // The result is read below.
    let _ = tokio::time::timeout(timeout, state_rx.wait_for(ClientState::is_ok)).await;
    state_rx.borrow().clone()
}
