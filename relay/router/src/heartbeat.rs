//! The heartbeat, once a second: meshes, scores, gossip, expiry.

use std::{cmp::Ordering, collections::BTreeSet, time::Duration};

use rand::seq::SliceRandom;

use crate::{Control, MessageId, Peer, Router, Shard, router::BACKOFF_SLACK};

impl<M: Clone> Router<M> {
    /// To be called once in [`crate::Config::heartbeat`].
    pub fn heartbeat(&mut self, now: Duration) {
        self.heartbeats += 1;
        self.settle_promises(now);
        self.decay(now);
        let shards: Vec<Shard> = self.meshes.keys().copied().collect();
        for shard in shards {
            self.keep_mesh(shard, now);
            self.gossip(shard, now);
        }
        self.keep_fanout(now);
        self.expire(now);
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Checks that meshes and peers name each other, and what is counted. Visits every peer.
    fn check(&self) {
        for (shard, mesh) in &self.meshes {
            assert!(!self.fanout.contains_key(shard), "shard {shard} has a mesh and a fanout");
            let is_member = |peer: &Peer| {
                self.peers.get(peer).is_some_and(|state| {
                    state.score.in_mesh.contains_key(shard) && state.topics.contains(*shard)
                })
            };
            assert!(mesh.iter().all(is_member), "a peer in the mesh of {shard} is not subscribed");
        }
        for (peer, state) in &self.peers {
            let is_in =
                |shard: &Shard| self.meshes.get(shard).is_some_and(|mesh| mesh.contains(peer));
            assert!(state.score.in_mesh.keys().all(is_in), "{peer:?} is in no such mesh");
            let (topics, queued) = (state.topics.len(), state.queue.len());
            assert!(topics <= self.config.topics_per_peer, "{peer:?} has {topics} topics");
            assert!(queued <= self.config.queue_messages.max(1), "{queued} wait for {peer:?}");
        }
        let with_address = self.peers.values().filter(|state| state.address.is_some()).count();
        let counted = self.colocated.values().map(|count| *count as usize).sum::<usize>();
        assert_eq!(counted, with_address, "peers by address");
    }

    fn settle_promises(&mut self, now: Duration) {
        for state in self.peers.values_mut() {
            state.ihave_heard = 0;
            state.ids_asked = 0;
            state.ids_fetched = 0;
            // A message that another peer brought meanwhile was asked for in good faith.
            state.promises.retain(|(id, _)| !self.seen.contains(id));
            let asked = state.promises.len();
            state.promises.retain(|(_, due)| *due > now);
            let broken = asked - state.promises.len();
            state.score.broke_rules(u32::try_from(broken).unwrap_or(u32::MAX));
            self.counters.broken_promises += broken as u64;
        }
    }

    fn decay(&mut self, now: Duration) {
        if now.saturating_sub(self.decayed) < self.config.score.decay_interval {
            return;
        }
        self.decayed = now;
        for state in self.peers.values_mut() {
            state.score.decay(&self.config.score);
        }
        self.forget_debts(now);
    }

    fn keep_mesh(&mut self, shard: Shard, now: Duration) {
        for peer in self.mesh(shard) {
            if !self.scores_at_least(peer, 0.0, now) {
                self.prune(peer, shard, now);
            }
        }
        if self.mesh_size(shard) < self.config.d_low {
            self.fill_mesh(shard, now);
        }
        if self.mesh_size(shard) > self.config.d_high {
            self.thin_mesh(shard, now);
        }
        let outbound = self.count_outbound(&self.mesh(shard));
        let missing = self.config.d_out.saturating_sub(outbound);
        if self.mesh_size(shard) >= self.config.d_low && missing > 0 {
            let dialled = |router: &Self, peer| {
                router.peers.get(&peer).is_some_and(|state| state.outbound)
                    && router.may_graft(peer, shard, now)
            };
            for peer in self.choose(shard, missing, dialled) {
                self.graft(peer, shard, now);
            }
        }
        if self.heartbeats.is_multiple_of(self.config.opportunistic_heartbeats.max(1)) {
            self.graft_better(shard, now);
        }
    }

    fn count_outbound(&self, peers: &[Peer]) -> usize {
        let outbound = |peer: &&Peer| self.peers.get(peer).is_some_and(|state| state.outbound);
        peers.iter().filter(outbound).count()
    }

    pub(crate) fn fill_mesh(&mut self, shard: Shard, now: Duration) {
        let missing = self.config.d.saturating_sub(self.mesh_size(shard));
        for peer in self.choose(shard, missing, |router, peer| router.may_graft(peer, shard, now)) {
            self.graft(peer, shard, now);
        }
    }

    /// Prunes down to `d`: the best stay, and enough that this node dialled; of the rest, chance.
    fn thin_mesh(&mut self, shard: Shard, now: Duration) {
        let mut ranked = self.mesh(shard);
        ranked.shuffle(&mut self.random);
        let score = |router: &Self, peer: &Peer| router.score(*peer, now).unwrap_or(f64::MIN);
        ranked
            .sort_by(|a, b| score(self, b).partial_cmp(&score(self, a)).unwrap_or(Ordering::Equal));
        let best = self.config.d_score.min(ranked.len());
        if let Some(rest) = ranked.get_mut(best..) {
            rest.shuffle(&mut self.random);
        }
        let is_outbound =
            |router: &Self, peer: &Peer| router.peers.get(peer).is_some_and(|state| state.outbound);
        let kept = ranked.iter().take(self.config.d).filter(|peer| is_outbound(self, peer)).count();
        let missing = self.config.d_out.saturating_sub(kept);
        // Dialled peers from behind `d` change places with others before it, never with the best.
        let behind: Vec<usize> = (self.config.d..ranked.len())
            .filter(|at| ranked.get(*at).is_some_and(|peer| is_outbound(self, peer)))
            .take(missing)
            .collect();
        let before: Vec<usize> = (best..self.config.d.min(ranked.len()))
            .rev()
            .filter(|at| ranked.get(*at).is_some_and(|peer| !is_outbound(self, peer)))
            .take(behind.len())
            .collect();
        for (from, to) in behind.into_iter().zip(before) {
            ranked.swap(from, to);
        }
        for peer in ranked.into_iter().skip(self.config.d) {
            self.prune(peer, shard, now);
        }
        debug_assert!(
            self.mesh_size(shard) <= self.config.d,
            "{} peers are left in a mesh of {}",
            self.mesh_size(shard),
            self.config.d
        );
    }

    /// A mesh whose median is poor takes in some that are better than it.
    fn graft_better(&mut self, shard: Shard, now: Duration) {
        let mesh = self.mesh(shard);
        let mut scores: Vec<f64> = mesh.iter().filter_map(|peer| self.score(*peer, now)).collect();
        scores.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        let Some(median) = scores.get(scores.len() / 2).copied() else { return };
        if median >= self.config.score.opportunistic_threshold {
            return;
        }
        let better = |router: &Self, peer| {
            router.may_graft(peer, shard, now)
                && router.score(peer, now).is_some_and(|score| score > median)
        };
        for peer in self.choose(shard, self.config.opportunistic_peers, better) {
            self.graft(peer, shard, now);
        }
    }

    /// Up to `count` peers of a topic by chance, of those that `fits` accepts.
    pub(crate) fn choose(
        &mut self,
        shard: Shard,
        count: usize,
        fits: impl Fn(&Self, Peer) -> bool,
    ) -> BTreeSet<Peer> {
        let topic = self.peers.iter().filter(|(_, state)| state.topics.contains(shard));
        let mut fitting: Vec<Peer> =
            topic.map(|(peer, _)| *peer).filter(|peer| fits(self, *peer)).collect();
        fitting.shuffle(&mut self.random);
        fitting.into_iter().take(count).collect()
    }

    /// Whether a peer may be taken into a mesh: subscribed, outside it, welcome, not backing off.
    pub(crate) fn may_graft(&self, peer: Peer, shard: Shard, now: Duration) -> bool {
        let Some(state) = self.peers.get(&peer) else { return false };
        state.topics.contains(shard)
            && !state.score.in_mesh.contains_key(&shard)
            && !state.in_backoff(shard, now)
            && self.scores_at_least(peer, 0.0, now)
    }

    pub(crate) fn graft(&mut self, peer: Peer, shard: Shard, now: Duration) {
        let (Some(mesh), Some(state)) = (self.meshes.get_mut(&shard), self.peers.get_mut(&peer))
        else {
            return;
        };
        mesh.insert(peer);
        state.score.in_mesh.insert(shard, now);
        state.control.graft(shard);
        state.wake();
    }

    fn prune(&mut self, peer: Peer, shard: Shard, now: Duration) {
        let (Some(mesh), Some(state)) = (self.meshes.get_mut(&shard), self.peers.get_mut(&peer))
        else {
            return;
        };
        mesh.remove(&peer);
        state.score.in_mesh.remove(&shard);
        state.back_off(shard, now + self.config.prune_backoff + BACKOFF_SLACK);
        state.control.prune(shard, self.config.prune_backoff.as_secs());
        state.wake();
    }

    /// Offers the newest history to some peers outside the mesh.
    fn gossip(&mut self, shard: Shard, now: Duration) {
        let mut ids: Vec<MessageId> = self.history.recent(shard).collect();
        if ids.is_empty() {
            return;
        }
        let threshold = self.config.score.gossip_threshold;
        let outside = |router: &Self, peer: Peer| {
            router.peers.get(&peer).is_some_and(|state| !state.score.in_mesh.contains_key(&shard))
                && router.scores_at_least(peer, threshold, now)
        };
        let mut chosen: Vec<Peer> = self.choose(shard, usize::MAX, outside).into_iter().collect();
        chosen.shuffle(&mut self.random);
        let share = (chosen.len() as f64 * self.config.gossip_factor) as usize;
        chosen.truncate(share.max(self.config.d_lazy));
        for peer in chosen {
            if ids.len() > self.config.ihave_ids {
                // Each gets others, so that together they hear of all.
                ids.shuffle(&mut self.random);
            }
            let Some(state) = self.peers.get_mut(&peer) else { continue };
            let waiting: usize = state.control.ihave.iter().map(|(_, ids)| ids.len()).sum();
            let room = self.config.ihave_ids.saturating_sub(waiting);
            let offered: Vec<MessageId> = ids.iter().copied().take(room).collect();
            if offered.is_empty() {
                continue;
            }
            match state.control.ihave.iter_mut().find(|(other, _)| *other == shard) {
                Some((_, ids)) => Control::add_ids(ids, offered, self.config.ihave_ids),
                None => state.control.ihave.push((shard, offered)),
            }
            state.wake();
        }
    }

    fn keep_fanout(&mut self, now: Duration) {
        let keep = self.config.fanout;
        self.fanout.retain(|_, (_, last)| now.saturating_sub(*last) < keep);
    }

    fn expire(&mut self, now: Duration) {
        self.history.shift();
        self.seen.rotate(now);
        let beat = self.heartbeats;
        for state in self.peers.values_mut() {
            state.backoff.retain(|_, until| *until > now);
            state.unwanted.retain(|_, until| *until >= beat);
        }
    }
}
