//! The clients of a run: started together, notified of phases, read while they work.
//!
//! Bounds: clients as stated. Must never know: the use of their figures.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    publisher::{Order, Publisher},
    push_stats::PushStats,
    receiver::Receiver,
    relay_peer::RelayPeer,
    session::IdentifyMessage,
    shared::{ClientState, Ready, RunContext, is_ready},
    store_client::{StoreClient, StoreLookup, StoreQueryStats},
    tally::{Bits, ReceiverTally, lock},
};

/// Whether a client works by now.
struct Readiness {
    what: String,
    node: usize,
    state_rx: watch::Receiver<ClientState>,
}

/// The clients of a run; they end when this is dropped.
pub(crate) struct Clients {
    pub(crate) order_txs: Vec<mpsc::Sender<Order>>,
    pub(crate) pushed: Vec<Arc<Mutex<Vec<PushStats>>>>,
    pub(crate) receivers: Vec<Arc<Mutex<ReceiverTally>>>,
    pub(crate) relay_peers: Vec<Arc<Mutex<ReceiverTally>>>,
    pub(crate) queried: Arc<Mutex<Vec<StoreQueryStats>>>,
    pub(crate) query_phase_tx: watch::Sender<Option<usize>>,
    pub(crate) lookup_tx: mpsc::Sender<StoreLookup>,
    readiness: Vec<Readiness>,
    tasks: JoinSet<()>,
}

impl Clients {
    pub(crate) fn start(shared: &Arc<RunContext>, phases: usize) -> Self {
        let (load, places) = (&shared.load, &shared.places);
        let mut tasks = JoinSet::new();
        let mut readiness = Vec::new();
        let mut ready = |what: String, node: usize| {
            let (ready, state_rx) = Ready::new();
            readiness.push(Readiness { what, node, state_rx });
            ready
        };
        let received = || Arc::new(Mutex::new(ReceiverTally::new(phases, load.publishers)));
        let (mut receivers, mut relay_peers) = (Vec::new(), Vec::new());
        for index in 0..load.relay_peers {
            let received = received();
            let node = places.node_for_relay_peer(index);
            let peer = RelayPeer::new(shared.clone(), node, received.clone());
            tasks.spawn(peer.run(ready(format!("relay peer {}", index + 1), node)));
            relay_peers.push(received);
        }
        for index in 0..load.receivers {
            let received = received();
            let node = places.node_for_receiver(index);
            let receiver = Receiver::new(shared.clone(), node, received.clone());
            tasks.spawn(receiver.run(ready(format!("receiver {}", index + 1), node)));
            receivers.push(received);
        }
        let (mut order_txs, mut pushed) = (Vec::new(), Vec::new());
        for index in 0..load.publishers {
            let node = places.node_for_publisher(index);
            let (publisher, order_tx, theirs) = Publisher::new(shared.clone(), index, node, phases);
            tasks.spawn(publisher.run(ready(format!("publisher {}", index + 1), node)));
            order_txs.push(order_tx);
            pushed.push(theirs);
        }
        let queried = (0..phases).map(|_| StoreQueryStats::default()).collect();
        let queried = Arc::new(Mutex::new(queried));
        let (query_phase_tx, query_phase_rx) = watch::channel(None);
        let (lookup_tx, lookup_rx) = mpsc::channel(1);
        let node = places.node_for_store_client();
        let store_client = StoreClient {
            shared: shared.clone(),
            node,
            queried: queried.clone(),
            query_phase_rx,
            lookup_rx,
        };
        tasks.spawn(store_client.run(ready("the store client".into(), node)));
        Self {
            order_txs,
            pushed,
            receivers,
            relay_peers,
            queried,
            query_phase_tx,
            lookup_tx,
            readiness,
            tasks,
        }
    }

    /// Pushes of all publishers in a phase, and which messages were accepted, by publisher.
    pub(crate) fn pushed(&self, phase: usize) -> (PushStats, Vec<Bits>) {
        let mut sum = PushStats::default();
        let mut accepted = Vec::new();
        for pushed in &self.pushed {
            if let Some(pushed) = lock(pushed).get(phase) {
                sum.add(pushed);
                accepted.push(pushed.accepted.clone());
            }
        }
        (sum, accepted)
    }

    pub(crate) fn accepted_count(&self, phase: usize) -> u64 {
        let count = |pushed: &Arc<Mutex<Vec<PushStats>>>| {
            lock(pushed).get(phase).map_or(0, |pushed| pushed.accepted_count)
        };
        self.pushed.iter().map(count).sum()
    }

    /// Whether every accepted message reached every receiver.
    pub(crate) fn all_arrived(&self, phase: usize, accepted: &[Bits]) -> bool {
        let wanted: u64 = accepted.iter().map(Bits::count).sum();
        self.receivers
            .iter()
            .chain(&self.relay_peers)
            .all(|received| delivered(&lock(received), phase, accepted) == wanted)
    }

    /// Ends all clients; what they counted stays.
    pub(crate) async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Waits until all clients work; returns the identify message of each node. Errors: one does
    /// not work within `timeout`, or `ended` reports that the node ended.
    pub(crate) async fn all_ready(
        &mut self,
        shared: &RunContext,
        timeout: Duration,
        mut ended: impl FnMut() -> bool,
    ) -> Result<Vec<IdentifyMessage>> {
        let deadline = Instant::now() + timeout;
        let mut all = vec![IdentifyMessage::default(); shared.target.addresses.len()];
        for Readiness { what, node, state_rx } in &mut self.readiness {
            let about = loop {
                // A node that ended will not answer later.
                let look = Duration::from_secs(1).min(deadline - Instant::now());
                match is_ready(state_rx, look).await {
                    Ok(about) => break about,
                    Err(why) => {
                        if ended() {
                            bail!("the node ended before {what} was ready: {why}");
                        }
                        if Instant::now() >= deadline {
                            let address = shared.target.addresses.get(*node).context("a node")?;
                            let seconds = timeout.as_secs();
                            bail!(
                                "{what} was not ready within {seconds} s (--timeout) at \
                                 {address}: {why}"
                            );
                        }
                    }
                }
            };
            if let Some(one) = all.get_mut(*node) {
                *one = about;
            }
        }
        Ok(all)
    }
}

/// How many of the accepted messages of a phase came whole.
pub(crate) fn delivered(received: &ReceiverTally, phase: usize, accepted: &[Bits]) -> u64 {
    let Some(phase) = received.phase(phase) else { return 0 };
    accepted.iter().enumerate().map(|(sender, accepted)| phase.delivered(sender, accepted)).sum()
}
