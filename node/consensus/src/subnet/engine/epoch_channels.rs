//! The three consensus channels, of which each epoch has a part.
//!
//! Every message begins with the number of its epoch, as those of [`mux`] with that of their
//! subchannel. The engine of one epoch runs at a time, so it reads the network's queue itself, and
//! no task stands between them. Members enter an epoch one after the other, and say nothing twice
//! before a timeout of seconds: messages of the next epoch wait for this node, as many of each
//! member as an epoch begins with. Messages of other epochs are dropped. Votes of other epochs go
//! to a queue of the loop over epochs, which holds as many as the network's.

use std::{collections::VecDeque, fmt, num::NonZeroUsize, sync::Arc, time::SystemTime};

use commonware_consensus::types::Epoch;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{
    Channel, LimitedSender, Message, Receiver, Recipients, Sender,
    utils::mux::{self, CheckedGlobalSender, GlobalSender},
};
use commonware_runtime::IoBuf;
use commonware_utils::{channel::mpsc, sync::AsyncMutex};

/// Messages of the next epoch that wait, of one member: votes of a few views.
const EARLY_MESSAGES: usize = 8;
/// Their bytes.
const EARLY_BYTES: usize = 8 << 10;

/// A message with the epoch that it is of.
pub(super) type EpochMessage = (Channel, Message<PublicKey>);

/// A channel of the network.
pub(super) struct EpochChannel<S: Sender, R> {
    sender: GlobalSender<S>,
    queue: Arc<Queue<R>>,
}

struct Queue<R> {
    incoming: AsyncMutex<Incoming<R>>,
    capacity: NonZeroUsize,
    /// Takes messages of other epochs.
    others_tx: Option<mpsc::Sender<EpochMessage>>,
}

struct Incoming<R> {
    receiver: R,
    /// Messages that came before this node entered their epoch, in order.
    early: VecDeque<EpochMessage>,
}

impl<R> Incoming<R> {
    /// The oldest that waits for `epoch`. Those that wait for an earlier epoch are dropped.
    fn waiting(&mut self, epoch: Channel) -> Option<Message<PublicKey>> {
        self.early.retain(|&(theirs, _)| theirs >= epoch);
        let place = self.early.iter().position(|&(theirs, _)| theirs == epoch)?;
        self.early.remove(place).map(|(_, message)| message)
    }

    /// Has a message wait, unless its sender has as much waiting as one may.
    fn keep(&mut self, epoch: Channel, peer: &PublicKey, bytes: &IoBuf) {
        let (mut messages, mut sum) = (1, bytes.len());
        for (_, (_, bytes)) in self.early.iter().filter(|(_, (sender, _))| sender == peer) {
            messages += 1;
            sum += bytes.len();
        }
        if messages <= EARLY_MESSAGES && sum <= EARLY_BYTES {
            self.early.push_back((epoch, (peer.clone(), bytes.clone())));
        }
    }
}

/// Sends in one epoch.
#[derive(Clone)]
pub(super) struct EpochSender<S: Sender> {
    inner: GlobalSender<S>,
    epoch: Channel,
}

/// Receives in one epoch. Two of one channel take turns: the one of a past epoch is to be dropped.
pub(super) struct EpochReceiver<R> {
    queue: Arc<Queue<R>>,
    epoch: Channel,
}

impl<S, R> EpochChannel<S, R>
where
    S: Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    pub(super) fn new((sender, receiver): (S, R)) -> Self {
        Self::build(sender, receiver, None)
    }

    /// A channel of which messages of other epochs are wanted.
    pub(super) fn with_others((sender, receiver): (S, R)) -> (Self, mpsc::Receiver<EpochMessage>) {
        let (others_tx, others_rx) = mpsc::channel(receiver.capacity().get());
        (Self::build(sender, receiver, Some(others_tx)), others_rx)
    }

    fn build(sender: S, receiver: R, others_tx: Option<mpsc::Sender<EpochMessage>>) -> Self {
        let capacity = receiver.capacity();
        let incoming = AsyncMutex::new(Incoming { receiver, early: VecDeque::new() });
        let queue = Queue { incoming, capacity, others_tx };
        Self { sender: GlobalSender::new(sender), queue: Arc::new(queue) }
    }

    /// The ends of an epoch.
    pub(super) fn ends(&self, epoch: Epoch) -> (EpochSender<S>, EpochReceiver<R>) {
        let epoch = epoch.get();
        (
            EpochSender { inner: self.sender.clone(), epoch },
            EpochReceiver { queue: self.queue.clone(), epoch },
        )
    }
}

impl<S: Sender> LimitedSender for EpochSender<S> {
    type PublicKey = S::PublicKey;
    type Checked<'a> = CheckedGlobalSender<'a, S>;

    fn check(
        &mut self,
        recipients: Recipients<Self::PublicKey>,
    ) -> Result<Self::Checked<'_>, SystemTime> {
        let epoch = self.epoch;
        self.inner.check(recipients).map(|checked| checked.with_subchannel(epoch))
    }
}

impl<R: Receiver<PublicKey = PublicKey>> Receiver for EpochReceiver<R> {
    type Error = R::Error;
    type PublicKey = PublicKey;

    async fn recv(&mut self) -> Result<Message<PublicKey>, R::Error> {
        let mut incoming = self.queue.incoming.lock().await;
        if let Some(message) = incoming.waiting(self.epoch) {
            return Ok(message);
        }
        loop {
            let (peer, bytes) = incoming.receiver.recv().await?;
            match mux::parse(bytes) {
                Ok((epoch, bytes)) if epoch == self.epoch => return Ok((peer, bytes)),
                Ok((epoch, bytes)) => {
                    if Some(epoch) == self.epoch.checked_add(1) {
                        incoming.keep(epoch, &peer, &bytes);
                    }
                    // One that finds no room says nothing that those in front of it do not.
                    if let Some(others_tx) = &self.queue.others_tx {
                        let _ = others_tx.try_send((epoch, (peer, bytes)));
                    }
                }
                Err(error) => tracing::debug!(?peer, %error, "a message without its epoch"),
            }
        }
    }

    fn capacity(&self) -> NonZeroUsize {
        self.queue.capacity
    }
}

impl<R> fmt::Debug for EpochReceiver<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EpochReceiver({})", self.epoch)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_cryptography::Signer as _;
    use commonware_p2p::simulated::{self, Link, Network};
    use commonware_runtime::{Clock as _, Quota, Runner as _, Supervisor as _, deterministic};
    use commonware_utils::{NZU32, NZUsize, Probability};
    use std::time::Duration;

    use super::*;
    use crate::subnet::key;

    #[test]
    fn a_member_has_no_more_waiting_than_an_epoch_begins_with() {
        let peer = |number| key::node_key(&[number; 32]).unwrap().public_key();
        let (loud, quiet) = (peer(1), peer(2));
        let mut incoming = Incoming { receiver: (), early: VecDeque::new() };
        for number in 0..20 {
            incoming.keep(5, &loud, &IoBuf::from(vec![number; 1 << 10]));
        }
        incoming.keep(5, &quiet, &IoBuf::from(vec![0; EARLY_BYTES + 1]));
        incoming.keep(5, &quiet, &IoBuf::from(vec![100]));
        let numbers: Vec<_> = std::iter::from_fn(|| incoming.waiting(5))
            .map(|(_, bytes)| bytes.as_ref()[0])
            .collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 100]);
        incoming.keep(5, &quiet, &IoBuf::from(vec![1]));
        incoming.keep(6, &quiet, &IoBuf::from(vec![2]));
        assert_eq!(incoming.waiting(6).unwrap().1.as_ref(), [2]);
        assert!(incoming.early.is_empty(), "the past epoch's are dropped");
    }

    #[test]
    fn an_epoch_receives_its_messages_and_the_loop_those_of_others() {
        deterministic::Runner::timed(Duration::from_secs(60)).start(|context| async move {
            let keys: Vec<_> =
                (1..=2).map(|number| key::node_key(&[number; 32]).unwrap().public_key()).collect();
            let config = simulated::Config {
                max_size: 1 << 10,
                max_peers_per_set: NZUsize!(2),
                disconnect_on_block: true,
                tracked_peer_sets: NZUsize!(1),
            };
            let (network, oracle) =
                Network::new_with_peers(context.child("network"), config, keys.clone()).await;
            network.start();
            let mut channels = Vec::new();
            for key in &keys {
                let quota = Quota::per_second(NZU32!(100));
                let ends = oracle.control(key.clone()).register(0, quota).await.unwrap();
                channels.push(EpochChannel::with_others(ends));
            }
            let link = Link {
                latency: Duration::from_millis(1),
                jitter: Duration::ZERO,
                success_rate: Probability::try_from(1.0).unwrap(),
            };
            oracle.add_link(keys[0].clone(), keys[1].clone(), link).await.unwrap();
            let (theirs, mut others_rx) = channels.remove(1);
            let (mine, _) = channels.remove(0);
            let sent = [(3, "past"), (5, "early"), (6, "too early"), (4, "now"), (5, "later")];
            for (epoch, text) in sent {
                let (mut sender, _) = mine.ends(Epoch::new(epoch));
                let sent = sender.send(
                    Recipients::One(keys[1].clone()),
                    IoBuf::from(text.as_bytes().to_vec()),
                    false,
                );
                assert_eq!(sent, [keys[1].clone()]);
                // In order.
                context.sleep(Duration::from_millis(5)).await;
            }
            let (_, mut receiver) = theirs.ends(Epoch::new(4));
            let (peer, bytes) = receiver.recv().await.unwrap();
            assert_eq!((peer, bytes.as_ref()), (keys[0].clone(), &b"now"[..]));
            drop(receiver);
            // Nothing that came after it was taken by the epoch that ended.
            let (_, mut receiver) = theirs.ends(Epoch::new(5));
            assert_eq!(receiver.recv().await.unwrap().1.as_ref(), b"early");
            assert_eq!(receiver.recv().await.unwrap().1.as_ref(), b"later");
            for expected in [(3, &b"past"[..]), (5, b"early"), (6, b"too early")] {
                let (epoch, (_, bytes)) = others_rx.recv().await.unwrap();
                assert_eq!((epoch, bytes.as_ref()), expected);
            }
        });
    }
}
