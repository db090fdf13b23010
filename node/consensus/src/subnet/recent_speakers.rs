//! Recently heard members, for the engine of an epoch that begins.
//!
//! The engine skips a leader it has not heard for some time, and a new engine has heard no member:
//! the member that speaks last counts as gone, and a round that it leads lasts until its longest
//! timeout. So members that were heard within that time, in any epoch, count as heard when the
//! engine begins.
//!
//! This affects a timeout only: which blocks get a vote does not depend on it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_codec::Encode as _;
use commonware_consensus::{
    simplex::types::{Nullify, Vote},
    types::{Epoch, Round, View},
};
use commonware_cryptography::{certificate::Scheme as _, ed25519::PublicKey};
use commonware_p2p::{Message, Receiver};
use commonware_runtime::{Clock, IoBuf};
use commonware_utils::sync::Mutex;

use super::{block::Digest, key::Scheme};

pub(super) struct RecentSpeakers<C> {
    clock: C,
    me: PublicKey,
    /// Members silent for this time are skipped.
    timeout: Duration,
    /// No member can have been heard before.
    started: SystemTime,
    heard: Mutex<BTreeMap<PublicKey, SystemTime>>,
}

impl<C: Clock> RecentSpeakers<C> {
    pub(super) fn new(clock: C, me: PublicKey, timeout: Duration) -> Arc<Self> {
        let started = clock.current();
        Arc::new(Self { clock, me, timeout, started, heard: Mutex::default() })
    }

    fn record(&self, peer: &PublicKey) {
        self.heard.lock().insert(peer.clone(), self.clock.current());
    }

    /// Members for which it is too early to say that they are gone. Drops those that are not
    /// members.
    fn recent_members(&self, scheme: &Scheme) -> Vec<PublicKey> {
        let members = scheme.participants();
        let now = self.clock.current();
        let mut heard = self.heard.lock();
        heard.retain(|peer, _| members.position(peer).is_some());
        let is_present = |peer: &&PublicKey| {
            let last = heard.get(*peer).unwrap_or(&self.started);
            **peer != self.me && now.duration_since(*last).is_ok_and(|silent| silent < self.timeout)
        };
        members.iter().filter(is_present).cloned().collect()
    }

    /// The votes that the engine of an epoch receives. The engine records the sender of each vote,
    /// and drops, unread, votes of rounds far ahead of its own: so the first votes are of a round
    /// that never comes, as if from each member that was heard recently. They are made here and are
    /// never sent.
    pub(super) fn prime_votes<R>(
        self: &Arc<Self>,
        inner: R,
        scheme: &Scheme,
        epoch: Epoch,
    ) -> PrimedVotes<C, R> {
        let mut first = VecDeque::new();
        let round = Round::new(epoch, View::new(u64::MAX));
        // Who has no share gives no round up.
        if let Some(vote) = Nullify::sign::<Digest>(scheme, round) {
            let vote = IoBuf::from(Vote::<Scheme, Digest>::Nullify(vote).encode());
            first.extend(self.recent_members(scheme).into_iter().map(|peer| (peer, vote.clone())));
        }
        PrimedVotes { inner, first, speakers: self.clone() }
    }
}

pub(super) struct PrimedVotes<C, R> {
    inner: R,
    first: VecDeque<Message<PublicKey>>,
    speakers: Arc<RecentSpeakers<C>>,
}

impl<C, R: fmt::Debug> fmt::Debug for PrimedVotes<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrimedVotes").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<C: Clock, R: Receiver<PublicKey = PublicKey>> Receiver for PrimedVotes<C, R> {
    type Error = R::Error;
    type PublicKey = PublicKey;

    async fn recv(&mut self) -> Result<Message<PublicKey>, R::Error> {
        if let Some(message) = self.first.pop_front() {
            return Ok(message);
        }
        let message = self.inner.recv().await?;
        self.speakers.record(&message.0);
        Ok(message)
    }

    fn capacity(&self) -> NonZeroUsize {
        self.inner.capacity()
    }
}
