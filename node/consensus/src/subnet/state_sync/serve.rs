//! Chunks of this node's state for peers.
//!
//! One task reads and sends, one chunk at a time and no faster than the limit; the disk is read off
//! the asynchronous threads. A peer may have [`ASKED_MAX`] requests waiting, beyond which they are
//! dropped and asked again. From the moment a state is offered to a peer that needs one, and while
//! it fetches, the peer has a lease on it; a peer that asks for nothing more loses it.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{Recipients, Sender};
use commonware_runtime::{Clock, Spawner};
use commonware_utils::sync::Mutex;
use state::Height;

use super::ingress::{Message, encode};
use crate::{
    StateServer,
    subnet::peer_queue::{PeerQueueReceiver, PeerQueueSender, peer_queue},
};

/// Requests of one peer that may wait.
const ASKED_MAX: usize = 8;
/// Of all peers: names, no chunks.
const WAITING_MAX: usize = 256;
/// A peer that asked for nothing for this time is not fetching any more.
const LEASE_IDLE: Duration = Duration::from_secs(30);
/// Time between two checks of that.
const LOOK: Duration = Duration::from_secs(5);

struct Job {
    height: Height,
    name: Vec<u8>,
}

/// Takes peers' requests for chunks, and has them served by a task.
pub(super) struct ChunkServer {
    jobs_tx: PeerQueueSender<Job>,
    pub(super) leases: Leases,
}

impl ChunkServer {
    pub(super) fn start<E: Clock + Spawner, S: Sender<PublicKey = PublicKey>>(
        context: &E,
        states: Arc<dyn StateServer>,
        sender: S,
        bytes_per_second: u64,
    ) -> Self {
        let (jobs_tx, jobs_rx) = peer_queue(WAITING_MAX, ASKED_MAX);
        let leases = Leases { states, by_peer: Arc::default() };
        let bytes_per_second = bytes_per_second.max(1);
        let worker = Worker { sender, leases: leases.clone(), bytes_per_second };
        context.child("serving").spawn(move |context| worker.run(context, jobs_rx));
        Self { jobs_tx, leases }
    }

    pub(super) fn enqueue(&mut self, to: PublicKey, height: Height, name: &[u8]) {
        self.jobs_tx.enqueue(to, Job { height, name: name.to_vec() });
    }
}

struct Lease {
    height: Height,
    used: SystemTime,
    _kept: Option<Box<dyn Any + Send>>,
}

/// States that are kept for peers: one for each.
#[derive(Clone)]
pub(super) struct Leases {
    states: Arc<dyn StateServer>,
    by_peer: Arc<Mutex<BTreeMap<PublicKey, Lease>>>,
}

impl Leases {
    /// A peer was offered this state, or asked for a part of it: it is kept until the peer had time
    /// to ask for more.
    pub(super) fn renew(&self, to: &PublicKey, height: Height, now: SystemTime) {
        let mut leases = self.by_peer.lock();
        match leases.get_mut(to).filter(|lease| lease.height == height) {
            Some(lease) => lease.used = now,
            None => {
                let kept = self.states.lease(height);
                leases.insert(to.clone(), Lease { height, used: now, _kept: kept });
            }
        }
    }
}

struct Worker<S> {
    sender: S,
    leases: Leases,
    bytes_per_second: u64,
}

impl<S: Sender<PublicKey = PublicKey>> Worker<S> {
    async fn run<E: Clock + Spawner>(mut self, context: E, mut jobs_rx: PeerQueueReceiver<Job>) {
        loop {
            let look_at = context.current() + LOOK;
            select! {
                job = jobs_rx.next() => match job {
                    Some((to, job)) => self.serve(&context, to, job).await,
                    None => return,
                },
                () = context.sleep_until(look_at) => {
                    let now = context.current();
                    self.leases.by_peer.lock().retain(|_, lease| now.duration_since(lease.used).unwrap_or_default() < LEASE_IDLE);
                },
            }
        }
    }

    async fn serve<E: Clock + Spawner>(&mut self, context: &E, to: PublicKey, job: Job) {
        let Job { height, name } = job;
        self.leases.renew(&to, height, context.current());
        let states = self.leases.states.clone();
        let read = {
            let name = name.clone();
            context
                .child("read")
                .shared(true)
                .spawn(move |_| async move { states.chunk(height, &name) })
        };
        let message = match read.await {
            Ok(Ok(bytes)) => encode(&Message::Chunk { height, name: &name, bytes: &bytes }),
            Ok(Err(reason)) => {
                tracing::debug!(peer = %to, %reason, "a peer asked for a chunk that is not kept");
                encode(&Message::NotFound { height, name: &name })
            }
            // The node is ending.
            Err(_) => return,
        };
        let Some(message) = message else { return };
        let bytes = message.len() as u64;
        self.sender.send(Recipients::One(to), message, false);
        context.sleep(Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)).await;
    }
}
