//! The router's state, and its changes by messages and peers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    task::{Context, Poll},
    time::Duration,
};

use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};

use crate::{
    Config, Control, MessageId, Outgoing, Peer, Shard, Topics, history::History, peer::PeerState,
    score::Score, seen::SeenCache,
};

/// Added to back-offs of this side: for peers whose clock is a little ahead.
pub(crate) const BACKOFF_SLACK: Duration = Duration::from_secs(1);

/// How to handle a message that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Not received before: validate it, then accept, reject or forget it.
    New,
    /// It was seen before.
    Duplicate,
    /// It is ignored.
    Refused(Refusal),
}

/// Why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sender's score is below the graylist threshold, or it is not a peer.
    Graylisted,
    /// This node is not subscribed to the topic.
    NotSubscribed,
}

/// Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// New messages that were valid, those of this node's own clients included.
    pub accepted: u64,
    /// Messages seen before.
    pub duplicates: u64,
    /// New messages that broke the protocol.
    pub rejected: u64,
    /// Messages ignored.
    pub refused: u64,
    /// References put into peers' queues.
    pub queued: u64,
    /// References that left a full queue unsent.
    pub dropped: u64,
    /// References sent because a peer fetched them.
    pub fetched: u64,
    /// Messages of this node's clients that no peer got.
    pub without_peer: u64,
    /// Promises that peers broke.
    pub broken_promises: u64,
    /// Grafts that were answered with a prune.
    pub grafts_refused: u64,
    /// Message ids forgotten early because more came than are kept.
    pub seen_cut_short: u64,
    /// History that left early.
    pub history_dropped: u64,
    /// Topics that this node subscribed to.
    pub subscriptions: u64,
    /// Topics that it left.
    pub unsubscriptions: u64,
}

/// Entries a router holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterUsage {
    /// Peers that are connected.
    pub peers: usize,
    /// Ids of messages seen.
    pub seen: usize,
    /// References that peers may fetch.
    pub history: usize,
    /// References in the queues of peers.
    pub waiting: usize,
}

/// One peer, to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerView {
    /// The number that identifies the peer's connection.
    pub peer: Peer,
    /// Its score at the moment of the view.
    pub score: f64,
    /// Topics it subscribed to.
    pub topics: Topics,
    /// In whose mesh it is.
    pub mesh: Vec<Shard>,
    /// References waiting for it.
    pub waiting: usize,
}

/// The router; `M` is a reference to a message. See the crate's documentation.
#[derive(Debug)]
pub struct Router<M> {
    pub(crate) config: Config,
    pub(crate) random: ChaCha20Rng,
    pub(crate) heartbeats: u64,
    pub(crate) decayed: Duration,
    pub(crate) counters: Counters,

    /// Topics this node subscribed to, with the mesh of each.
    pub(crate) meshes: BTreeMap<Shard, BTreeSet<Peer>>,
    /// Topics this node publishes to without subscribing, with when that was last.
    pub(crate) fanout: BTreeMap<Shard, (BTreeSet<Peer>, Duration)>,
    pub(crate) peers: BTreeMap<Peer, PeerState<M>>,
    /// Peers at an address.
    pub(crate) colocated: BTreeMap<Vec<u8>, u32>,
    /// Debts of peers that left, oldest first: name, until when, score.
    retained: VecDeque<(Vec<u8>, Duration, Score)>,

    pub(crate) seen: SeenCache,
    pub(crate) history: History<M>,
}

impl<M: Clone> Router<M> {
    /// A router without peers or topics. `seed` decides all its choices.
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        assert!(config.d_low <= config.d && config.d <= config.d_high, "d is within its range");
        assert!(config.d_out < config.d_low && config.d_out * 2 <= config.d, "d_out is possible");
        assert!(config.history_gossip <= config.history, "what is offered can be fetched");
        Self {
            random: ChaCha20Rng::from_seed(seed),
            heartbeats: 0,
            decayed: Duration::ZERO,
            counters: Counters::default(),
            meshes: BTreeMap::new(),
            fanout: BTreeMap::new(),
            peers: BTreeMap::new(),
            colocated: BTreeMap::new(),
            retained: VecDeque::new(),
            seen: SeenCache::new(config.seen, config.seen_entries),
            history: History::new(config.history, config.history_gossip, config.history_entries),
            config,
        }
    }

    // Topics of this node.

    /// Subscribes to a topic, and fills its mesh from the peers that are there.
    pub fn subscribe(&mut self, shard: Shard, now: Duration) {
        if shard >= crate::SHARDS || self.meshes.contains_key(&shard) {
            return;
        }
        self.counters.subscriptions += 1;
        for state in self.peers.values_mut() {
            state.control.subscription(shard, true);
            state.wake();
        }
        let known = self.fanout.remove(&shard).map(|(peers, _)| peers).unwrap_or_default();
        self.meshes.insert(shard, BTreeSet::new());
        for peer in known.into_iter().take(self.config.d) {
            if self.may_graft(peer, shard, now) {
                self.graft(peer, shard, now);
            }
        }
        self.fill_mesh(shard, now);
    }

    /// Leaves a topic.
    pub fn unsubscribe(&mut self, shard: Shard, now: Duration) {
        let Some(mesh) = self.meshes.remove(&shard) else { return };
        self.counters.unsubscriptions += 1;
        for (peer, state) in &mut self.peers {
            if mesh.contains(peer) {
                state.score.in_mesh.remove(&shard);
                state.back_off(shard, now + self.config.unsubscribe_backoff);
                state.control.prune(shard, self.config.unsubscribe_backoff.as_secs());
            }
            state.control.subscription(shard, false);
            state.wake();
        }
    }

    // Peers.

    /// A peer that speaks the protocol is connected: `name` is what it is called across
    /// connections, `address` where it is (`None` if that has no information, as on this machine).
    ///
    /// Returns whether it is accepted: there are at most `peers` of them.
    pub fn connected(
        &mut self,
        peer: Peer,
        name: Vec<u8>,
        address: Option<Vec<u8>>,
        outbound: bool,
    ) -> bool {
        if self.peers.len() >= self.config.peers || self.peers.contains_key(&peer) {
            return false;
        }
        let owed = self.retained.iter().position(|(other, _, _)| *other == name);
        let score = owed.and_then(|at| self.retained.remove(at)).map(|(_, _, score)| score);
        if let Some(address) = &address {
            *self.colocated.entry(address.clone()).or_default() += 1;
        }
        let mut state =
            PeerState::new(name, address, outbound, score.unwrap_or_default(), self.heartbeats);
        state.control.subscriptions = self.meshes.keys().map(|shard| (*shard, true)).collect();
        self.peers.insert(peer, state);
        debug_assert!(
            self.peers.len() <= self.config.peers,
            "{} peers, the most is {}",
            self.peers.len(),
            self.config.peers
        );
        true
    }

    /// The peer that gives way to a new one when all places are taken: the worst of those that
    /// behaved badly, else one that had time to subscribe to a topic of this node and did not.
    /// Peers that this node dialled stay unless they behave badly.
    pub fn gives_way(&self, now: Duration) -> Option<Peer> {
        if self.peers.len() < self.config.peers {
            return None;
        }
        let bad = self.peers.keys().filter_map(|peer| Some((*peer, self.score(*peer, now)?)));
        let worst = bad.filter(|(_, score)| *score < 0.0).min_by(|(_, a), (_, b)| a.total_cmp(b));
        let stranger = |state: &PeerState<M>| {
            let heartbeats = self.heartbeats.saturating_sub(state.since_heartbeat);
            !state.outbound
                && heartbeats >= self.config.newcomer_heartbeats
                && !self.meshes.keys().any(|shard| state.topics.contains(*shard))
        };
        let strangers =
            || self.peers.iter().find(|(_, state)| stranger(state)).map(|(peer, _)| *peer);
        worst.map(|(peer, _)| peer).or_else(strangers)
    }

    /// A peer is gone.
    pub fn disconnected(&mut self, peer: Peer, now: Duration) {
        let Some(state) = self.peers.remove(&peer) else { return };
        for mesh in self.meshes.values_mut() {
            mesh.remove(&peer);
        }
        for (peers, _) in self.fanout.values_mut() {
            peers.remove(&peer);
        }
        if let Some(address) = &state.address
            && let Some(count) = self.colocated.get_mut(address)
        {
            debug_assert!(*count > 0, "no peer of an address was counted");
            *count -= 1;
            if *count == 0 {
                self.colocated.remove(address);
            }
        }
        if let Some(debts) = state.score.debts() {
            while self.retained.len() >= self.config.score.retained.max(1) {
                self.retained.pop_front();
            }
            let until = now + self.config.score.retain;
            self.retained.push_back((state.name, until, debts));
            debug_assert!(
                self.retained.len() <= self.config.score.retained.max(1),
                "debts of {} peers are retained",
                self.retained.len()
            );
        }
    }

    pub(crate) fn forget_debts(&mut self, now: Duration) {
        for (_, _, score) in &mut self.retained {
            score.decay(&self.config.score);
        }
        self.retained.retain(|(_, until, _)| *until > now);
    }

    /// A peer's score; nothing for one that is not there.
    pub fn score(&self, peer: Peer, now: Duration) -> Option<f64> {
        let state = self.peers.get(&peer)?;
        let colocated = state.address.as_ref().and_then(|address| self.colocated.get(address));
        Some(state.score.value(&self.config.score, colocated.copied().unwrap_or(0), now))
    }

    pub(crate) fn scores_at_least(&self, peer: Peer, threshold: f64, now: Duration) -> bool {
        self.score(peer, now).is_some_and(|score| score >= threshold)
    }

    /// Whether input of this peer is handled.
    pub fn is_heard(&self, peer: Peer, now: Duration) -> bool {
        self.scores_at_least(peer, self.config.score.graylist_threshold, now)
    }

    /// A peer broke a rule of the framing: something that no honest one sends.
    pub fn misbehaved(&mut self, peer: Peer) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.score.broke_rules(1);
        }
    }

    // Input of peers.

    /// A peer subscribed to a topic, or left it.
    pub fn on_subscription(&mut self, peer: Peer, shard: Shard, subscribed: bool, now: Duration) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if subscribed {
            if state.topics.len() >= self.config.topics_per_peer || !state.topics.insert(shard) {
                return;
            }
            let wanting =
                self.meshes.get(&shard).is_some_and(|mesh| mesh.len() < self.config.d_low);
            if wanting && self.may_graft(peer, shard, now) {
                self.graft(peer, shard, now);
            }
        } else if state.topics.remove(shard) {
            state.score.in_mesh.remove(&shard);
            if let Some(mesh) = self.meshes.get_mut(&shard) {
                mesh.remove(&peer);
            }
            if let Some((peers, _)) = self.fanout.get_mut(&shard) {
                peers.remove(&peer);
            }
        }
    }

    /// A peer put this node into its mesh of a topic.
    pub fn on_graft(&mut self, peer: Peer, shard: Shard, now: Duration) {
        // There is no answer for a topic that this node does not know: it would amplify.
        let Some(mesh) = self.meshes.get(&shard) else { return };
        let (full, there) = (mesh.len() >= self.config.d_high, mesh.contains(&peer));
        let poor = !self.scores_at_least(peer, 0.0, now);
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if there {
            return;
        }
        if state.topics.len() >= self.config.topics_per_peer && !state.topics.contains(shard) {
            return;
        }
        // Grafting implies that it is subscribed, whatever order the messages came in.
        state.topics.insert(shard);
        let early = state.in_backoff(shard, now);
        // This side remembers the back-off a little longer than it asked for.
        if state.in_backoff(shard, now + BACKOFF_SLACK) {
            state.score.broke_rules(1);
        }
        if early || poor || (full && !state.outbound) {
            let backoff = self.config.prune_backoff;
            state.back_off(shard, now + backoff);
            state.control.prune(shard, backoff.as_secs());
            state.wake();
            self.counters.grafts_refused += 1;
            return;
        }
        state.score.in_mesh.insert(shard, now);
        if let Some(mesh) = self.meshes.get_mut(&shard) {
            mesh.insert(peer);
        }
    }

    /// A peer left this node's mesh of a topic, and does not want to be grafted for a time.
    pub fn on_prune(
        &mut self,
        peer: Peer,
        shard: Shard,
        backoff_seconds: Option<u64>,
        now: Duration,
    ) {
        let Some(mesh) = self.meshes.get_mut(&shard) else { return };
        mesh.remove(&peer);
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.score.in_mesh.remove(&shard);
        // A back-off of years would be a way to keep a topic's mesh from being filled for good.
        let most = self.config.prune_backoff * 10;
        let asked = backoff_seconds.map_or(self.config.prune_backoff, Duration::from_secs);
        state.back_off(shard, now + asked.min(most));
    }

    /// A peer offers messages of its history.
    pub fn on_ihave(
        &mut self,
        peer: Peer,
        shard: Shard,
        ids: impl IntoIterator<Item = MessageId>,
        now: Duration,
    ) {
        let threshold = self.config.score.gossip_threshold;
        if !self.meshes.contains_key(&shard) || !self.scores_at_least(peer, threshold, now) {
            return;
        }
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.ihave_heard += 1;
        let room = self.config.ihave_ids.saturating_sub(state.ids_asked);
        if state.ihave_heard > self.config.ihave_messages || room == 0 {
            return;
        }
        let mut wanted: Vec<MessageId> = ids
            .into_iter()
            .take(self.config.ihave_ids)
            .filter(|id| !self.seen.contains(id))
            .collect();
        // Which ones are asked for is chance, so that two peers' offers complete one another.
        wanted.shuffle(&mut self.random);
        wanted.truncate(room);
        let Some(promised) = wanted.first() else { return };
        state.promises.push((*promised, now + self.config.iwant_followup));
        state.ids_asked += wanted.len();
        Control::add_ids(&mut state.control.iwant, wanted, self.config.ihave_ids);
        state.wake();
    }

    /// A peer fetches messages.
    pub fn on_iwant(
        &mut self,
        peer: Peer,
        ids: impl IntoIterator<Item = MessageId>,
        now: Duration,
    ) {
        if !self.scores_at_least(peer, self.config.score.gossip_threshold, now) {
            return;
        }
        let Some(state) = self.peers.get_mut(&peer) else { return };
        for id in ids.into_iter().take(self.config.ihave_ids) {
            if state.ids_fetched >= self.config.iwant_ids {
                return;
            }
            let most = self.config.retransmissions;
            if let Some((shard, message)) = self.history.fetch(&id, peer, most) {
                state.ids_fetched += 1;
                self.counters.fetched += 1;
                let dropped = state.push(shard, id, message, self.config.queue_messages);
                self.counters.dropped += dropped;
            }
        }
    }

    /// A peer brought a message that is ignored unread, as if this node had never heard of it.
    pub fn delivered(&mut self, peer: Peer, id: &MessageId) {
        self.counters.refused += 1;
        if let Some(state) = self.peers.get_mut(&peer) {
            state.promises.retain(|(promised, _)| promised != id);
        }
    }

    /// A peer sent messages that were not read: all that was asked of it may be among them.
    pub fn delivered_unread(&mut self, peer: Peer) {
        self.counters.refused += 1;
        if let Some(state) = self.peers.get_mut(&peer) {
            state.promises.clear();
        }
    }

    /// This node read nothing for a time: messages that were asked for are due that much later.
    pub fn extend_promises(&mut self, by: Duration) {
        for state in self.peers.values_mut() {
            for (_, due) in &mut state.promises {
                *due += by;
            }
        }
    }

    /// A peer has messages already.
    pub fn on_idontwant(&mut self, peer: Peer, ids: impl IntoIterator<Item = MessageId>) {
        let until = self.heartbeats + u64::from(self.config.idontwant_heartbeats);
        let Some(state) = self.peers.get_mut(&peer) else { return };
        for id in ids.into_iter().take(self.config.idontwant_ids) {
            state.does_not_want(id, until, self.config.idontwant_ids);
        }
    }

    // Messages.

    /// A peer brought a message of `bytes` bytes. A new one is remembered as seen from here on.
    pub fn offer(
        &mut self,
        peer: Peer,
        shard: Shard,
        id: MessageId,
        bytes: usize,
        now: Duration,
    ) -> Offer {
        if !self.is_heard(peer, now) {
            self.counters.refused += 1;
            return Offer::Refused(Refusal::Graylisted);
        }
        let Some(mesh) = self.meshes.get(&shard) else {
            self.counters.refused += 1;
            return Offer::Refused(Refusal::NotSubscribed);
        };
        if let Some(state) = self.peers.get_mut(&peer) {
            state.promises.retain(|(promised, _)| *promised != id);
        }
        if !self.seen.insert(id, now) {
            self.counters.duplicates += 1;
            return Offer::Duplicate;
        }
        if bytes >= self.config.idontwant_bytes {
            for other in mesh.iter().filter(|other| **other != peer) {
                if let Some(state) = self.peers.get_mut(other) {
                    let ids = &mut state.control.idontwant;
                    Control::add_ids(ids, [id], self.config.idontwant_ids);
                    state.wake();
                }
            }
        }
        Offer::New
    }

    /// A new message is valid and written: it goes to the mesh. How many peers get it.
    pub fn accept(&mut self, peer: Peer, shard: Shard, id: MessageId, message: M) -> usize {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.score.delivered_first(&self.config.score);
        }
        self.counters.accepted += 1;
        self.history.insert(id, shard, message.clone());
        let mesh = self.meshes.get(&shard).cloned().unwrap_or_default();
        self.send(mesh.into_iter().filter(|other| *other != peer), shard, id, message)
    }

    /// A message of a client of this node, valid and written. How many peers get it; none if it
    /// was seen before.
    pub fn publish(&mut self, shard: Shard, id: MessageId, message: M, now: Duration) -> usize {
        if !self.seen.insert(id, now) {
            self.counters.duplicates += 1;
            return 0;
        }
        self.counters.accepted += 1;
        self.history.insert(id, shard, message.clone());
        let to = self.publish_to(shard, now);
        let count = self.send(to, shard, id, message);
        if count == 0 {
            self.counters.without_peer += 1;
        }
        count
    }

    /// Peers that a message of this node's clients would go to.
    pub fn reachable(&self, shard: Shard, now: Duration) -> usize {
        let threshold = self.config.score.publish_threshold;
        let peers = self.peers.iter().filter(|(_, state)| state.topics.contains(shard));
        peers.filter(|(peer, _)| self.scores_at_least(**peer, threshold, now)).count()
    }

    /// Whether a message of this node's clients would reach a peer: any peer of the topic's mesh
    /// has room in its queue for as many as wait in it, or the mesh is empty.
    pub fn has_room(&self, shard: Shard) -> bool {
        let mesh =
            self.meshes.get(&shard).or_else(|| self.fanout.get(&shard).map(|(peers, _)| peers));
        let Some(mesh) = mesh.filter(|mesh| !mesh.is_empty()) else { return true };
        let most = self.config.queue_messages / 2;
        mesh.iter()
            .filter_map(|peer| self.peers.get(peer))
            .any(|state| state.queue.len() < most.max(1))
    }

    fn publish_to(&mut self, shard: Shard, now: Duration) -> Vec<Peer> {
        let threshold = self.config.score.publish_threshold;
        let worth = |router: &Self, peer: &Peer| router.scores_at_least(*peer, threshold, now);
        if self.config.flood_publish {
            let all = self.peers.iter().filter(|(_, state)| state.topics.contains(shard));
            return all.map(|(peer, _)| *peer).filter(|peer| worth(self, peer)).collect();
        }
        if let Some(mesh) = self.meshes.get(&shard) {
            return mesh.iter().copied().collect();
        }
        let chosen = match self.fanout.remove(&shard) {
            Some((peers, _)) if !peers.is_empty() => peers,
            _ => self.choose(shard, self.config.d, |router, peer| worth(router, &peer)),
        };
        let to = chosen.iter().copied().collect();
        self.fanout.insert(shard, (chosen, now));
        to
    }

    fn send(
        &mut self,
        to: impl IntoIterator<Item = Peer>,
        shard: Shard,
        id: MessageId,
        message: M,
    ) -> usize {
        let mut count = 0;
        for peer in to {
            let Some(state) = self.peers.get_mut(&peer) else { continue };
            self.counters.dropped +=
                state.push(shard, id, message.clone(), self.config.queue_messages);
            count += 1;
        }
        self.counters.queued += count as u64;
        count
    }

    /// A new message breaks the protocol.
    pub fn reject(&mut self, peer: Peer) {
        self.counters.rejected += 1;
        if let Some(state) = self.peers.get_mut(&peer) {
            state.score.sent_invalid();
        }
    }

    /// A new message is not passed on, through no fault of its sender. It is not taken again.
    pub fn ignore(&mut self) {
        self.counters.refused += 1;
    }

    /// A new message could not be kept by this machine: it may come again.
    pub fn forget(&mut self, id: &MessageId) {
        self.seen.remove(id);
    }

    // Sending.

    /// The next item to send to a peer; nothing more once it is gone.
    pub fn poll_next(&mut self, peer: Peer, cx: &mut Context<'_>) -> Poll<Option<Outgoing<M>>> {
        match self.next(peer) {
            None => Poll::Ready(None),
            Some(Some(outgoing)) => Poll::Ready(Some(outgoing)),
            Some(None) => {
                if let Some(state) = self.peers.get_mut(&peer) {
                    state.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// The same without waiting: `None` for a peer that is gone, `Some(None)` when there is
    /// nothing.
    pub fn next(&mut self, peer: Peer) -> Option<Option<Outgoing<M>>> {
        let state = self.peers.get_mut(&peer)?;
        if !state.control.is_empty() {
            return Some(Some(Outgoing::Control(std::mem::take(&mut state.control))));
        }
        let next = state.pop();
        if state.queue.is_empty() {
            // Memory taken by a burst is released.
            state.queue.shrink_to(16);
        }
        Some(next.map(|(shard, message)| Outgoing::Message(shard, message)))
    }

    // For people.

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        Counters {
            seen_cut_short: self.seen.cut_short,
            history_dropped: self.history.dropped,
            ..self.counters
        }
    }

    /// A view of every connected peer, with its score at `now`.
    pub fn peers(&self, now: Duration) -> Vec<PeerView> {
        let view = |(peer, state): (&Peer, &PeerState<M>)| PeerView {
            peer: *peer,
            score: self.score(*peer, now).unwrap_or(0.0),
            topics: state.topics,
            mesh: state.score.in_mesh.keys().copied().collect(),
            waiting: state.queue.len(),
        };
        self.peers.iter().map(view).collect()
    }

    /// Peers in the mesh of a topic.
    pub fn mesh(&self, shard: Shard) -> Vec<Peer> {
        self.meshes.get(&shard).map(|mesh| mesh.iter().copied().collect()).unwrap_or_default()
    }

    /// Number of peers in the mesh of a topic.
    pub fn mesh_size(&self, shard: Shard) -> usize {
        self.meshes.get(&shard).map_or(0, BTreeSet::len)
    }

    /// How much is held.
    pub fn usage(&self) -> RouterUsage {
        RouterUsage {
            peers: self.peers.len(),
            seen: self.seen.len(),
            history: self.history.len(),
            waiting: self.peers.values().map(|state| state.queue.len()).sum(),
        }
    }
}
