//! A member that sends what it should not: every node's messages about calls, state roots and
//! states go through here, and one node's are changed, cut, or sent again and again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use commonware_actor::{Feedback, Unreliable};
use commonware_p2p::{CheckedSender, LimitedSender, Recipients};
use commonware_runtime::IoBufs;
use consensus::Channels;

/// Times a message is repeated.
const FLOOD: usize = 20;

/// Falsification of the messages that a node sends; may change while it runs.
#[derive(Default)]
pub(crate) struct Falsifier {
    pub(crate) on: AtomicBool,
    /// Number of messages sent. The change to a message depends on its number only.
    sent: AtomicU64,
}

enum Treatment {
    True,
    /// The byte at this part of its length is another.
    Changed(u64),
    Cut(u64),
    Repeated,
}

impl Falsifier {
    fn next(&self) -> Treatment {
        if !self.on.load(Ordering::Relaxed) {
            return Treatment::True;
        }
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        // Weyl's sequence: spread evenly over the length, and the same in every run.
        let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        match number % 8 {
            0 | 3 => Treatment::Changed(part),
            5 => Treatment::Cut(part),
            6 => Treatment::Repeated,
            _ => Treatment::True,
        }
    }
}

/// A sender that may falsify the node's messages.
#[derive(Clone)]
pub(crate) struct FalsifyingSender<S> {
    inner: S,
    falsifier: Arc<Falsifier>,
}

/// The same, checked.
pub(crate) struct FalsifyingCheckedSender<S, C> {
    inner: C,
    /// For what is sent more than once.
    again: S,
    falsifier: Arc<Falsifier>,
}

impl<S: LimitedSender> LimitedSender for FalsifyingSender<S> {
    type PublicKey = S::PublicKey;
    type Checked<'a>
        = FalsifyingCheckedSender<S, S::Checked<'a>>
    where
        S: 'a;

    fn check(
        &mut self,
        recipients: Recipients<S::PublicKey>,
    ) -> Result<Self::Checked<'_>, SystemTime> {
        let again = self.inner.clone();
        Ok(FalsifyingCheckedSender {
            inner: self.inner.check(recipients)?,
            again,
            falsifier: self.falsifier.clone(),
        })
    }
}

impl<S: LimitedSender, C: CheckedSender<PublicKey = S::PublicKey>> CheckedSender
    for FalsifyingCheckedSender<S, C>
{
    type PublicKey = S::PublicKey;

    fn recipients(&self) -> Vec<S::PublicKey> {
        self.inner.recipients()
    }

    fn send(mut self, message: impl Into<IoBufs> + Send, priority: bool) -> Unreliable<Feedback> {
        let treatment = self.falsifier.next();
        if matches!(treatment, Treatment::True) {
            return self.inner.send(message, priority);
        }
        let mut bytes = message.into().coalesce().as_ref().to_vec();
        let length = bytes.len() as u64;
        match treatment {
            Treatment::Changed(part) if length > 0 => bytes[((part * length) >> 32) as usize] ^= 1,
            Treatment::Cut(part) => bytes.truncate(((part * length) >> 32) as usize),
            Treatment::Repeated => {
                for _ in 0..FLOOD {
                    let recipients = Recipients::Some(self.inner.recipients());
                    // A quota that is used up is what the flood meets.
                    if let Ok(checked) = self.again.check(recipients) {
                        let _ = checked.send(bytes.clone(), priority);
                    }
                }
            }
            _ => {}
        }
        self.inner.send(bytes, priority)
    }
}

/// Makes the node send false calls, state roots and states. The messages of its engine stay true:
/// see [`crate::simulation::net::twins`] for those.
pub(crate) fn falsify<S, R>(
    channels: Channels<S, R>,
    falsifier: &Arc<Falsifier>,
) -> Channels<FalsifyingSender<S>, R> {
    // An engine whose sender is of one kind is compiled once.
    let honest =
        |(inner, receiver)| (FalsifyingSender { inner, falsifier: Arc::default() }, receiver);
    let falsifying =
        |(inner, receiver)| (FalsifyingSender { inner, falsifier: falsifier.clone() }, receiver);
    Channels {
        votes: honest(channels.votes),
        certificates: honest(channels.certificates),
        resolver: honest(channels.resolver),
        broadcast: honest(channels.broadcast),
        backfill: honest(channels.backfill),
        calls: falsifying(channels.calls),
        roots: falsifying(channels.roots),
        sync: falsifying(channels.sync),
        outcalls: falsifying(channels.outcalls),
    }
}
