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
    archive::{Archive, Look, Queried},
    publisher::{Order, Publisher},
    pushed::Pushed,
    receiver::Receiver,
    relay_peer::RelayPeer,
    session::About,
    shared::{Ready, Shared, State, is_ready},
    tally::{Bits, Received, lock},
};

/// Whether a client works by now.
struct Readiness {
    what: String,
    node: usize,
    receiver: watch::Receiver<State>,
}

/// The clients of a run; they end when this is dropped.
pub(crate) struct Clients {
    pub(crate) orders: Vec<mpsc::Sender<Order>>,
    pub(crate) pushed: Vec<Arc<Mutex<Vec<Pushed>>>>,
    pub(crate) receivers: Vec<Arc<Mutex<Received>>>,
    pub(crate) relay_peers: Vec<Arc<Mutex<Received>>>,
    pub(crate) queried: Arc<Mutex<Vec<Queried>>>,
    pub(crate) query_phase: watch::Sender<Option<usize>>,
    pub(crate) looks: mpsc::Sender<Look>,
    readiness: Vec<Readiness>,
    tasks: JoinSet<()>,
}

impl Clients {
    pub(crate) fn start(shared: &Arc<Shared>, phases: usize) -> Self {
        let (load, places) = (&shared.load, &shared.places);
        let mut tasks = JoinSet::new();
        let mut readiness = Vec::new();
        let mut ready = |what: String, node: usize| {
            let (ready, receiver) = Ready::new();
            readiness.push(Readiness { what, node, receiver });
            ready
        };
        let received = || Arc::new(Mutex::new(Received::new(phases, load.publishers)));
        let (mut receivers, mut relay_peers) = (Vec::new(), Vec::new());
        for index in 0..load.relay_peers {
            let received = received();
            let node = places.of_relay_peer(index);
            let peer = RelayPeer::new(shared.clone(), node, received.clone());
            tasks.spawn(peer.run(ready(format!("relay peer {}", index + 1), node)));
            relay_peers.push(received);
        }
        for index in 0..load.receivers {
            let received = received();
            let node = places.of_receiver(index);
            let receiver = Receiver::new(shared.clone(), node, received.clone());
            tasks.spawn(receiver.run(ready(format!("receiver {}", index + 1), node)));
            receivers.push(received);
        }
        let (mut orders, mut pushed) = (Vec::new(), Vec::new());
        for index in 0..load.publishers {
            let node = places.of_publisher(index);
            let (publisher, sender, theirs) = Publisher::new(shared.clone(), index, node, phases);
            tasks.spawn(publisher.run(ready(format!("publisher {}", index + 1), node)));
            orders.push(sender);
            pushed.push(theirs);
        }
        let queried = (0..phases).map(|_| Queried::default()).collect();
        let queried = Arc::new(Mutex::new(queried));
        let (query_phase, phase) = watch::channel(None);
        let (looks, looked) = mpsc::channel(1);
        let node = places.of_store_client();
        let archive = Archive {
            shared: shared.clone(),
            node,
            queried: queried.clone(),
            phase,
            looks: looked,
        };
        tasks.spawn(archive.run(ready("the store client".into(), node)));
        Self {
            orders,
            pushed,
            receivers,
            relay_peers,
            queried,
            query_phase,
            looks,
            readiness,
            tasks,
        }
    }

    /// Pushes of all publishers in a phase, and which messages were accepted, by publisher.
    pub(crate) fn pushed(&self, phase: usize) -> (Pushed, Vec<Bits>) {
        let mut sum = Pushed::default();
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
        let count = |pushed: &Arc<Mutex<Vec<Pushed>>>| {
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
        shared: &Shared,
        timeout: Duration,
        mut ended: impl FnMut() -> bool,
    ) -> Result<Vec<About>> {
        let deadline = Instant::now() + timeout;
        let mut all = vec![About::default(); shared.target.addresses.len()];
        for Readiness { what, node, receiver } in &mut self.readiness {
            let about = loop {
                // A node that ended will not answer later.
                let look = Duration::from_secs(1).min(deadline - Instant::now());
                match is_ready(receiver, look).await {
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
pub(crate) fn delivered(received: &Received, phase: usize, accepted: &[Bits]) -> u64 {
    let Some(phase) = received.phase(phase) else { return 0 };
    accepted.iter().enumerate().map(|(sender, accepted)| phase.delivered(sender, accepted)).sum()
}
