//! Chunks for peers that take over this node's state.
//!
//! One task reads and sends, one chunk at a time and no faster than the limit; the disk is read off the asynchronous threads. A peer may have
//! [`ASKED_MAX`] requests waiting, beyond which they are dropped and asked again. While a peer fetches it has a lease on its state; a peer that asks for
//! nothing more loses it.

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
use futures::{StreamExt as _, channel::mpsc};
use state::Height;

use super::{Message, encode};
use crate::StateServer;

/// Requests of one peer that may wait.
const ASKED_MAX: usize = 8;
/// A peer that asked for nothing for so long is not fetching any more.
const LEASE_IDLE: Duration = Duration::from_secs(30);
/// Between two looks at that.
const LOOK: Duration = Duration::from_secs(5);

struct Job {
    place: usize,
    to: PublicKey,
    height: Height,
    name: Vec<u8>,
}

/// How many requests of each peer wait.
type Waiting = Arc<Mutex<BTreeMap<usize, usize>>>;

/// Takes requests. See the module.
pub(super) struct Serving {
    jobs: mpsc::Sender<Job>,
    waiting: Waiting,
}

impl Serving {
    pub(super) fn start<E: Clock + Spawner, S: Sender<PublicKey = PublicKey>>(
        context: &E,
        states: Arc<dyn StateServer>,
        sender: S,
        members: usize,
        bytes_per_second: u64,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(ASKED_MAX * members);
        let waiting = Waiting::default();
        let worker = Worker {
            states,
            sender,
            waiting: waiting.clone(),
            leases: BTreeMap::new(),
            bytes_per_second: bytes_per_second.max(1),
        };
        context.child("serving").spawn(move |context| worker.run(context, queue));
        Self { jobs, waiting }
    }

    pub(super) fn ask(&mut self, place: usize, to: PublicKey, height: Height, name: &[u8]) {
        let mut waiting = self.waiting.lock();
        let count = waiting.entry(place).or_default();
        let job = Job { place, to, height, name: name.to_vec() };
        if *count < ASKED_MAX && self.jobs.try_send(job).is_ok() {
            *count += 1;
        }
    }
}

struct Lease {
    height: Height,
    used: SystemTime,
    _kept: Option<Box<dyn Any + Send>>,
}

struct Worker<S> {
    states: Arc<dyn StateServer>,
    sender: S,
    waiting: Waiting,
    leases: BTreeMap<usize, Lease>,
    bytes_per_second: u64,
}

impl<S: Sender<PublicKey = PublicKey>> Worker<S> {
    async fn run<E: Clock + Spawner>(mut self, context: E, mut queue: mpsc::Receiver<Job>) {
        loop {
            let look_at = context.current() + LOOK;
            select! {
                job = queue.next() => match job {
                    Some(job) => self.serve(&context, job).await,
                    None => return,
                },
                () = context.sleep_until(look_at) => {
                    let now = context.current();
                    self.leases.retain(|_, lease| now.duration_since(lease.used).unwrap_or_default() < LEASE_IDLE);
                },
            }
        }
    }

    async fn serve<E: Clock + Spawner>(&mut self, context: &E, job: Job) {
        let Job { place, to, height, name } = job;
        if let Some(count) = self.waiting.lock().get_mut(&place) {
            *count -= 1;
        }
        let now = context.current();
        match self.leases.get_mut(&place).filter(|lease| lease.height == height) {
            Some(lease) => lease.used = now,
            None => {
                let kept = self.states.lease(height);
                self.leases.insert(place, Lease { height, used: now, _kept: kept });
            }
        }
        let states = self.states.clone();
        let read = {
            let name = name.clone();
            context.child("read").shared(true).spawn(move |_| async move { states.chunk(height, &name) })
        };
        let message = match read.await {
            Ok(Ok(bytes)) => encode(&Message::Chunk { height, name: &name, bytes: &bytes }),
            Ok(Err(reason)) => {
                tracing::debug!(peer = %to, %reason, "a peer asked for a chunk that is not kept");
                encode(&Message::Not { height, name: &name })
            }
            // The node is ending.
            Err(_) => return,
        };
        let bytes = message.len() as u64;
        self.sender.send(Recipients::One(to), message, false);
        context.sleep(Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)).await;
    }
}
