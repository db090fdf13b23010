//! Senders through which the attacker changes what the node sends.

use std::{sync::Arc, time::SystemTime};

use commonware_actor::{Feedback, Unreliable};
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{CheckedSender, LimitedSender, Recipients, Sender};
use commonware_runtime::IoBufs;
use consensus::{ChannelName, SenderLayer};

use crate::attacker::Attacker;

pub(crate) struct AttackLayer(pub(crate) Arc<Attacker>);

impl SenderLayer for AttackLayer {
    type Sender<S: Sender<PublicKey = PublicKey>> = AttackSender<S>;

    fn layer<S: Sender<PublicKey = PublicKey>>(
        &self,
        channel: ChannelName,
        inner: S,
    ) -> AttackSender<S> {
        AttackSender { inner, channel, attacker: self.0.clone() }
    }
}

/// A sender of one channel.
#[derive(Clone)]
pub(crate) struct AttackSender<S> {
    inner: S,
    channel: ChannelName,
    attacker: Arc<Attacker>,
}

/// The same, for recipients that take a message now.
pub(crate) struct CheckedAttackSender<S, C> {
    inner: C,
    /// Sends what the node did not mean to send.
    own: S,
    channel: ChannelName,
    attacker: Arc<Attacker>,
}

impl<S: LimitedSender<PublicKey = PublicKey>> LimitedSender for AttackSender<S> {
    type PublicKey = PublicKey;
    type Checked<'a>
        = CheckedAttackSender<S, S::Checked<'a>>
    where
        S: 'a;

    fn check(
        &mut self,
        recipients: Recipients<PublicKey>,
    ) -> Result<Self::Checked<'_>, SystemTime> {
        let own = self.inner.clone();
        Ok(CheckedAttackSender {
            inner: self.inner.check(recipients)?,
            own,
            channel: self.channel,
            attacker: self.attacker.clone(),
        })
    }
}

impl<S, C> CheckedSender for CheckedAttackSender<S, C>
where
    S: LimitedSender<PublicKey = PublicKey>,
    C: CheckedSender<PublicKey = PublicKey>,
{
    type PublicKey = PublicKey;

    fn recipients(&self) -> Vec<PublicKey> {
        self.inner.recipients()
    }

    fn send(mut self, message: impl Into<IoBufs> + Send, priority: bool) -> Unreliable<Feedback> {
        let bytes = message.into().coalesce().as_ref().to_vec();
        let recipients = self.inner.recipients();
        let Some(sent) = self.attacker.outgoing(self.channel, &recipients, &bytes) else {
            return self.inner.send(bytes, priority);
        };
        for (to, bytes) in sent {
            // The quota of the channel bounds attacks as it bounds everything.
            if let Ok(checked) = self.own.check(Recipients::Some(to)) {
                let _ = checked.send(bytes, priority);
            }
        }
        Unreliable::new(Feedback::Ok)
    }
}
