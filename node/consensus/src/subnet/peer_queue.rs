//! A queue of requests of peers, bounded for each peer and in total.

use std::{collections::BTreeMap, sync::Arc};

use commonware_cryptography::ed25519::PublicKey;
use commonware_utils::sync::Mutex;
use futures::{StreamExt as _, channel::mpsc};

/// Requests that wait, by peer.
type Waiting = Arc<Mutex<BTreeMap<PublicKey, usize>>>;

pub(super) struct PeerQueueSender<T> {
    requests_tx: mpsc::Sender<(PublicKey, T)>,
    waiting: Waiting,
    per_peer: usize,
}

pub(super) struct PeerQueueReceiver<T> {
    requests_rx: mpsc::Receiver<(PublicKey, T)>,
    waiting: Waiting,
}

/// A queue that holds `requests_max` requests, `per_peer` of each peer.
pub(super) fn peer_queue<T>(
    requests_max: usize,
    per_peer: usize,
) -> (PeerQueueSender<T>, PeerQueueReceiver<T>) {
    let (requests_tx, requests_rx) = mpsc::channel(requests_max);
    let waiting = Waiting::default();
    (
        PeerQueueSender { requests_tx, waiting: waiting.clone(), per_peer },
        PeerQueueReceiver { requests_rx, waiting },
    )
}

impl<T> PeerQueueSender<T> {
    /// A request that does not fit is dropped: the peer repeats it.
    pub(super) fn enqueue(&mut self, peer: PublicKey, request: T) {
        let mut waiting = self.waiting.lock();
        let count = waiting.get(&peer).copied().unwrap_or_default();
        if count < self.per_peer && self.requests_tx.try_send((peer.clone(), request)).is_ok() {
            waiting.insert(peer, count + 1);
        }
    }
}

impl<T> PeerQueueReceiver<T> {
    /// The next request and its peer; none when the sender is gone.
    pub(super) async fn next(&mut self) -> Option<(PublicKey, T)> {
        let (peer, request) = self.requests_rx.next().await?;
        let mut waiting = self.waiting.lock();
        match waiting.get_mut(&peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(waiting.remove(&peer)),
        }
        Some((peer, request))
    }
}
