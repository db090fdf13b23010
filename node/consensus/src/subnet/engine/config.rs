//! Configuration of one node's engine: its network, its keys by epoch, its timeouts, its bounds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use commonware_consensus::types::Epoch;
use commonware_cryptography::{
    certificate::{Provider as SchemeProvider, Scoped},
    ed25519::PublicKey,
};
use commonware_p2p::Sender;
use commonware_utils::sync::Mutex;
use genesis::{PAYLOAD_BYTES_MAX, Summary};
use limits::ConsensusLimits;

use super::super::{block::BlockBounds, key::Scheme};
use crate::newest::insert_newest;

/// The channels of a node: a sender and a receiver each, over one network, numbered from 0 in this
/// order.
pub struct Channels<S, R> {
    /// Votes on blocks.
    pub votes: (S, R),
    /// Certificates of votes.
    pub certificates: (S, R),
    /// Certificates that were missed.
    pub resolver: (S, R),
    /// Blocks, from who proposes them to all.
    pub broadcast: (S, R),
    /// Blocks that were missed.
    pub backfill: (S, R),
    /// Calls of clients.
    pub calls: (S, R),
    /// Shares of signatures on state roots.
    pub roots: (S, R),
    /// Questions, offers and chunks of state sync.
    pub sync: (S, R),
    /// Shares of signatures on answers to outcalls, and answers of one member.
    pub outcalls: (S, R),
}

/// Names one of [`Channels`]; as a number, its number in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "see the fields of `Channels`")]
pub enum ChannelName {
    Votes,
    Certificates,
    Resolver,
    Broadcast,
    Backfill,
    Calls,
    Roots,
    Sync,
    Outcalls,
}

/// Changes the senders of a node's channels, before anything uses them.
pub trait SenderLayer: Send + 'static {
    /// The sender that replaces `S`.
    type Sender<S: Sender<PublicKey = PublicKey>>: Sender<PublicKey = PublicKey>;

    /// The sender of this channel.
    fn layer<S: Sender<PublicKey = PublicKey>>(
        &self,
        channel: ChannelName,
        sender: S,
    ) -> Self::Sender<S>;
}

/// Changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct IdentityLayer;

impl SenderLayer for IdentityLayer {
    type Sender<S: Sender<PublicKey = PublicKey>> = S;

    fn layer<S: Sender<PublicKey = PublicKey>>(&self, _: ChannelName, sender: S) -> S {
        sender
    }
}

impl<S: Sender<PublicKey = PublicKey>, R> Channels<S, R> {
    /// The channels with their senders changed.
    pub fn layered<L: SenderLayer>(self, layer: &L) -> Channels<L::Sender<S>, R> {
        let put = |name, (sender, receiver)| (layer.layer(name, sender), receiver);
        Channels {
            votes: put(ChannelName::Votes, self.votes),
            certificates: put(ChannelName::Certificates, self.certificates),
            resolver: put(ChannelName::Resolver, self.resolver),
            broadcast: put(ChannelName::Broadcast, self.broadcast),
            backfill: put(ChannelName::Backfill, self.backfill),
            calls: put(ChannelName::Calls, self.calls),
            roots: put(ChannelName::Roots, self.roots),
            sync: put(ChannelName::Sync, self.sync),
            outcalls: put(ChannelName::Outcalls, self.outcalls),
        }
    }
}

/// Schemes by epoch. Certificates of other epochs than these cannot be verified: a node that is
/// further behind enters one epoch after the other, each of which names the members of the next.
#[derive(Clone, Default)]
pub(in crate::subnet) struct Schemes {
    known: Arc<Mutex<BTreeMap<Epoch, Arc<Scheme>>>>,
}

/// Epochs whose certificates this node can verify: the one that runs and the one before.
const SCHEMES_KEPT: usize = 2;

impl Schemes {
    pub(super) fn get(&self, epoch: Epoch) -> Option<Arc<Scheme>> {
        self.known.lock().get(&epoch).cloned()
    }

    pub(in crate::subnet) fn insert(&self, epoch: Epoch, scheme: Scheme) {
        let mut known = self.known.lock();
        debug_assert!(
            known.last_key_value().is_none_or(|(last, _)| *last <= epoch),
            "the scheme of epoch {epoch} comes after that of a later one"
        );
        insert_newest(&mut known, epoch, Arc::new(scheme), SCHEMES_KEPT);
    }
}

impl SchemeProvider for Schemes {
    type Scope = Epoch;
    type Scheme = Scheme;

    fn scoped(&self, epoch: Epoch) -> Option<Scoped<Scheme>> {
        self.get(epoch).map(Scoped::scheme)
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::subnet) struct Timing {
    pub(in crate::subnet) leader: Duration,
    pub(in crate::subnet) certification: Duration,
    pub(in crate::subnet) retry: Duration,
    pub(in crate::subnet) skip: Duration,
}

impl Timing {
    /// A leader may take the idle interval before it proposes, and some more when the machine is
    /// busy.
    pub(in crate::subnet) fn from_limits(limits: &ConsensusLimits) -> Self {
        let idle = Duration::from_millis(limits.idle_round_millis);
        let leader = idle + Duration::from_millis(1_500);
        Self {
            leader,
            certification: leader + Duration::from_millis(3_000),
            retry: Duration::from_millis(2_000),
            skip: 5 * leader,
        }
    }
}

/// The network of one node, as its engine uses it.
pub struct Transport<S, R, P, B> {
    /// Messages between members.
    pub channels: Channels<S, R>,
    /// Says whom the network is connected to.
    pub peers: P,
    /// Cuts a peer off.
    pub blocker: B,
    /// Sets the peers of the network.
    pub peering: Peering,
}

/// Sets the peers of the network. Called with every epoch.
pub type Peering = Box<dyn FnMut(&Summary) + Send>;

/// Bounds of a block that names at most `ingress` calls.
pub(in crate::subnet) fn block_bounds(ingress: usize) -> BlockBounds {
    BlockBounds { ingress, payload: PAYLOAD_BYTES_MAX }
}
