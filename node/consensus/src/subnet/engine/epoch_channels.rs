//! The three consensus channels, of which each epoch has a part.
//!
//! Every message begins with the number of its epoch, as those of [`mux`] with that of their
//! subchannel. The engine of one epoch runs at a time, so it reads the network's queue itself, and
//! no task stands between them. What is of another epoch is dropped; votes of other epochs go to a
//! queue of the loop over epochs, which holds as many as the network's.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::SystemTime};

use commonware_consensus::types::Epoch;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{
    Channel, LimitedSender, Message, Receiver, Recipients, Sender,
    utils::mux::{self, CheckedGlobalSender, GlobalSender},
};
use commonware_utils::{channel::mpsc, sync::AsyncMutex};

/// A message with the epoch that it is of.
pub(super) type EpochMessage = (Channel, Message<PublicKey>);

/// A channel of the network.
pub(super) struct EpochChannel<S: Sender, R> {
    sender: GlobalSender<S>,
    queue: Arc<Queue<R>>,
}

struct Queue<R> {
    receiver: AsyncMutex<R>,
    capacity: NonZeroUsize,
    /// Takes messages of other epochs.
    others_tx: Option<mpsc::Sender<EpochMessage>>,
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
        let queue = Queue { receiver: AsyncMutex::new(receiver), capacity, others_tx };
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
        let mut receiver = self.queue.receiver.lock().await;
        loop {
            let (peer, bytes) = receiver.recv().await?;
            match mux::parse(bytes) {
                Ok((epoch, bytes)) if epoch == self.epoch => return Ok((peer, bytes)),
                Ok((epoch, bytes)) => {
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
    use commonware_runtime::{
        Clock as _, IoBuf, Quota, Runner as _, Supervisor as _, deterministic,
    };
    use commonware_utils::{NZU32, NZUsize, Probability};
    use std::time::Duration;

    use super::*;
    use crate::subnet::key;

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
            for (epoch, text) in [(3, "early"), (4, "now"), (5, "later")] {
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
            assert_eq!(receiver.recv().await.unwrap().1.as_ref(), b"later");
            let (epoch, (_, bytes)) = others_rx.recv().await.unwrap();
            assert_eq!((epoch, bytes.as_ref()), (3, &b"early"[..]));
        });
    }
}
