//! Control messages that wait to be sent to a peer.

use std::collections::BTreeSet;

use crate::{MessageId, Shard};

/// Control messages for one peer, merged while they wait.
///
/// Bounded by kind: subscriptions, grafts and prunes by the number of shards, ids by the number in
/// [`crate::Config`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Topics that this node subscribed to (true) or left (false).
    pub subscriptions: Vec<(Shard, bool)>,
    /// Topics in whose mesh the peer is from now on.
    pub graft: BTreeSet<Shard>,
    /// Topics whose mesh the peer left, with the seconds after which it may graft again.
    pub prune: Vec<(Shard, u64)>,
    /// Messages that can be fetched.
    pub ihave: Vec<(Shard, Vec<MessageId>)>,
    /// Ids of messages that the peer is asked to send.
    pub iwant: Vec<MessageId>,
    /// Messages not wanted.
    pub idontwant: Vec<MessageId>,
}

impl Control {
    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The newest of subscribing and leaving counts.
    pub(crate) fn subscription(&mut self, shard: Shard, subscribed: bool) {
        self.subscriptions.retain(|(other, _)| *other != shard);
        self.subscriptions.push((shard, subscribed));
    }

    pub(crate) fn graft(&mut self, shard: Shard) {
        self.prune.retain(|(other, _)| *other != shard);
        self.graft.insert(shard);
    }

    pub(crate) fn prune(&mut self, shard: Shard, backoff_seconds: u64) {
        self.graft.remove(&shard);
        self.prune.retain(|(other, _)| *other != shard);
        self.prune.push((shard, backoff_seconds));
    }

    /// Adds ids up to `most` waiting; the newest of more are left out.
    pub(crate) fn add_ids(
        ids: &mut Vec<MessageId>,
        more: impl IntoIterator<Item = MessageId>,
        most: usize,
    ) {
        let room = most.saturating_sub(ids.len());
        ids.extend(more.into_iter().take(room));
    }
}

/// The next item to send to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing<M> {
    /// All control messages that wait for the peer.
    Control(Control),
    /// A message of a topic.
    Message(Shard, M),
}
