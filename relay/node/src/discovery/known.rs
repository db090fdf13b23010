//! The peers this node knows, and which it dials next. A state machine: times, outcomes and
//! randomness are passed in.
//!
//! There are two kinds. *Static* peers were named by the operator: they are dialled first, forever,
//! and never leave. *Found* peers are learned from their signed records, from the discovery
//! protocol, node lists and other peers; all of them are of this node's cluster and share a shard
//! with it.
//!
//! Rules. A dial is begun while fewer than [`Bounds::dials`] are under way. Found peers are dialled
//! while fewer than [`Bounds::outbound`] relay peers were dialled, or while a shard has too few
//! relay peers and a peer that serves it is known; first those that serve such a shard, then those
//! with the fewest failures, otherwise in random order. A peer that could not be reached, or was
//! lost soon after, is dialled again after a time that doubles with each failure, plus up to a
//! quarter of it at random so that nodes that lost the same peer do not redial it at once.
//!
//! Bounds: [`Bounds`]. When there is one found peer too many, the one that has been failing longest
//! is removed; if none fails, the one that was heard of longest ago; never a connected one. Nothing
//! is written to disk: records age, the operator's peers and lists bring others within seconds of a
//! start, and an attacker cannot permanently fill a store that is empty after each restart.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use router::Topics;
use serde::{Deserialize, Serialize};

use super::candidate::Candidate;

/// A static peer is dialled again after this time at the latest.
const STATIC_RETRY_MAX: Duration = Duration::from_secs(60);
/// A connection that lasted this long was not a failure.
const SETTLED: Duration = Duration::from_secs(60);
/// A dial without an outcome counts as failed after so long; transports give up sooner.
const DIAL_LOST: Duration = Duration::from_secs(120);

/// How much of everything; see [`relay_limits::PeerLimits`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) known: usize,
    pub(crate) statics: usize,
    /// Relay peers that this node dialled, at least.
    pub(crate) outbound: usize,
    /// Dials under way.
    pub(crate) dials: usize,
    pub(crate) retry: Duration,
    pub(crate) retry_max: Duration,
}

/// How a peer became known, as reported to REST clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Static,
    Discv5,
    Dns,
    PeerExchange,
}

impl Origin {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Static => "Static",
            Self::Discv5 => "Discv5",
            Self::Dns => "Dns",
            Self::PeerExchange => "PeerExchange",
        }
    }
}

/// The peer that an address names.
pub(crate) fn named_peer(address: &Multiaddr) -> Option<PeerId> {
    address.iter().find_map(|part| match part {
        Protocol::P2p(peer) => Some(peer),
        _ => None,
    })
}

/// The peer that a dial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// A static peer, by its place.
    Static(usize),
    Found(PeerId),
}

/// A dial to begin. Its outcome must be reported: [`KnownPeers::failed`] or
/// [`KnownPeers::connected`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dial {
    pub(crate) target: Target,
    /// Unknown for a static peer whose address does not name it.
    pub(crate) peer: Option<PeerId>,
    pub(crate) addresses: Vec<Multiaddr>,
}

/// The connections there are, as far as dialling depends on them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    /// Relay peers that this node dialled.
    pub(crate) outbound: usize,
    /// Shards of this node with too few relay peers.
    pub(crate) short: Topics,
}

#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    dialling: Option<Duration>,
    connected: Option<Duration>,
    /// In a row.
    failures: u32,
    failing_since: Option<Duration>,
    /// The time before which it is not dialled again.
    next: Duration,
}

impl Attempts {
    fn is_free(&self, now: Duration) -> bool {
        self.dialling.is_none() && self.connected.is_none() && self.next <= now
    }

    fn begin(&mut self, now: Duration) {
        self.dialling = Some(now);
    }

    fn connected(&mut self, now: Duration) {
        self.dialling = None;
        self.connected.get_or_insert(now);
    }

    fn failed(&mut self, now: Duration, retry: Duration, most: Duration, jitter: f64) {
        self.dialling = None;
        self.failing_since.get_or_insert(now);
        let doubled = retry.saturating_mul(1 << self.failures.min(20)).min(most);
        self.failures = self.failures.saturating_add(1);
        self.next = now + doubled + doubled.mul_f64(jitter / 4.0);
    }

    /// Returns whether the connection was too short to count.
    fn disconnected(&mut self, now: Duration) -> bool {
        let Some(since) = self.connected.take() else { return false };
        if now.saturating_sub(since) < SETTLED {
            return true;
        }
        (self.failures, self.failing_since, self.next) = (0, None, now);
        false
    }
}

#[derive(Debug)]
struct Static {
    address: Multiaddr,
    /// Named by the address, or learned from the first connection.
    peer: Option<PeerId>,
    attempts: Attempts,
}

#[derive(Debug)]
struct FoundPeer {
    candidate: Candidate,
    origin: Origin,
    heard: Duration,
    /// Whether the connection there is was dialled by this node.
    dialled: bool,
    attempts: Attempts,
}

/// A peer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownPeer {
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    pub(crate) origin: Origin,
    pub(crate) shards: Topics,
    pub(crate) relays: bool,
    /// Whether the last attempt to reach it failed.
    pub(crate) fails: bool,
}

/// Counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) dials: u64,
    pub(crate) dials_failed: u64,
    /// Found peers that left because there were too many.
    pub(crate) evicted: u64,
}

#[derive(Debug)]
pub(crate) struct KnownPeers {
    bounds: Bounds,
    statics: Vec<Static>,
    found: BTreeMap<PeerId, FoundPeer>,
    /// All connected peers, and since when: as many as the swarm has.
    connected: BTreeMap<PeerId, Duration>,
    random: ChaCha8Rng,
    counts: Counts,
}

impl KnownPeers {
    pub(crate) fn new(bounds: Bounds, seed: [u8; 32]) -> Self {
        Self {
            bounds,
            statics: Vec::new(),
            found: BTreeMap::new(),
            connected: BTreeMap::new(),
            random: ChaCha8Rng::from_seed(seed),
            counts: Counts::default(),
        }
    }

    /// Adds a peer to stay connected to. Returns whether it was added: not beyond
    /// [`Bounds::statics`].
    pub(crate) fn add_static(&mut self, address: Multiaddr) -> bool {
        if let Some(known) = self.statics.iter_mut().find(|known| known.address == address) {
            // Naming it again requests a dial now.
            known.attempts.next = Duration::ZERO;
            return true;
        }
        if self.statics.len() >= self.bounds.statics {
            return false;
        }
        let peer = named_peer(&address);
        let attempts = self.attempts_of(peer.as_ref());
        self.statics.push(Static { address, peer, attempts });
        true
    }

    /// Heard of a peer. Returns whether it is new. Of two records of a peer the later one counts.
    pub(crate) fn add(&mut self, candidate: Candidate, origin: Origin, now: Duration) -> bool {
        if let Some(known) = self.found.get_mut(&candidate.peer) {
            known.heard = now;
            if candidate.sequence > known.candidate.sequence {
                let moved = candidate.addresses != known.candidate.addresses;
                known.candidate = candidate;
                if moved && known.attempts.failures > 0 {
                    // The failures were at its old addresses.
                    known.attempts.next = known.attempts.next.min(now);
                }
            }
            return false;
        }
        if self.found.len() >= self.bounds.known && !self.evict() {
            return false;
        }
        let attempts = self.attempts_of(Some(&candidate.peer));
        self.found.insert(
            candidate.peer,
            FoundPeer { candidate, origin, heard: now, dialled: false, attempts },
        );
        debug_assert!(self.found.len() <= self.bounds.known);
        true
    }

    /// Where a peer that was not known begins: it may be connected already.
    fn attempts_of(&self, peer: Option<&PeerId>) -> Attempts {
        let connected = peer.and_then(|peer| self.connected.get(peer)).copied();
        Attempts { connected, ..Attempts::default() }
    }

    fn evict(&mut self) -> bool {
        let idle = |known: &FoundPeer| {
            known.attempts.connected.is_none() && known.attempts.dialling.is_none()
        };
        let worst = self.found.iter().filter(|(_, known)| idle(known)).min_by_key(|(_, known)| {
            (known.attempts.failing_since.is_none(), known.attempts.failing_since, known.heard)
        });
        let Some((peer, _)) = worst else { return false };
        let peer = *peer;
        self.found.remove(&peer);
        self.counts.evicted += 1;
        true
    }

    pub(crate) fn dials(&mut self, now: Duration, connections: &Connections) -> Vec<Dial> {
        self.lose_dials(now);
        let mut places = self.bounds.dials.saturating_sub(self.dialling());
        let mut dials = Vec::new();
        for (place, known) in self.statics.iter_mut().enumerate() {
            if places == 0 {
                return dials;
            }
            if known.attempts.is_free(now) {
                known.attempts.begin(now);
                places -= 1;
                let (peer, addresses) = (known.peer, vec![known.address.clone()]);
                dials.push(Dial { target: Target::Static(place), peer, addresses });
            }
        }
        for peer in self.choose(now, connections, places) {
            if let Some(known) = self.found.get_mut(&peer) {
                known.attempts.begin(now);
                known.dialled = true;
                let addresses = known.candidate.addresses.clone();
                dials.push(Dial { target: Target::Found(peer), peer: Some(peer), addresses });
            }
        }
        self.counts.dials += dials.len() as u64;
        dials
    }

    /// Drops found peers that serve none of these shards, except connected ones and those being
    /// dialled.
    pub(crate) fn forget_strangers(&mut self, shards: &Topics) {
        self.found.retain(|_, known| {
            known.attempts.connected.is_some()
                || known.attempts.dialling.is_some()
                || known.candidate.shards.shares(shards)
        });
    }

    /// Found peers to dial, at most `places`.
    fn choose(&mut self, now: Duration, connections: &Connections, places: usize) -> Vec<PeerId> {
        if places == 0 || self.found.is_empty() {
            return Vec::new();
        }
        let under_way =
            self.found.values().filter(|known| known.attempts.dialling.is_some()).count();
        let missing = self.bounds.outbound.saturating_sub(connections.outbound + under_way);
        // Those that turn out not to relay hold a connection each: not more of them than of others.
        let held =
            self.found.values().filter(|known| known.dialled && known.attempts.connected.is_some());
        let room = (2 * self.bounds.outbound).saturating_sub(held.count() + under_way).min(places);
        if room == 0 || (missing == 0 && connections.short.is_empty()) {
            return Vec::new();
        }
        let is_static = |peer: &PeerId| self.statics.iter().any(|known| known.peer == Some(*peer));
        let serves_short = |known: &FoundPeer| known.candidate.shards.shares(&connections.short);
        let mut ready: Vec<(bool, u32, PeerId)> = self
            .found
            .iter()
            .filter(|(peer, known)| {
                known.candidate.relays && known.attempts.is_free(now) && !is_static(peer)
            })
            .map(|(peer, known)| (!serves_short(known), known.attempts.failures, *peer))
            .collect();
        ready.shuffle(&mut self.random);
        ready.sort_by_key(|(other, failures, _)| (*other, *failures));
        let short = ready.iter().filter(|(other, _, _)| !other).count();
        ready.into_iter().take(room.min(missing.max(short))).map(|(_, _, peer)| peer).collect()
    }

    fn dialling(&self) -> usize {
        let statics = self.statics.iter().map(|known| &known.attempts);
        let all = statics.chain(self.found.values().map(|known| &known.attempts));
        all.filter(|attempts| attempts.dialling.is_some()).count()
    }

    fn lose_dials(&mut self, now: Duration) {
        let lost = |attempts: &Attempts| {
            attempts.dialling.is_some_and(|since| now.saturating_sub(since) >= DIAL_LOST)
        };
        let statics = self.statics.iter().enumerate().filter(|(_, known)| lost(&known.attempts));
        let mut targets: Vec<Target> = statics.map(|(place, _)| Target::Static(place)).collect();
        let found = self.found.iter().filter(|(_, known)| lost(&known.attempts));
        targets.extend(found.map(|(peer, _)| Target::Found(*peer)));
        for target in targets {
            self.failed(target, now);
        }
    }

    pub(crate) fn failed(&mut self, target: Target, now: Duration) {
        self.counts.dials_failed += 1;
        let jitter = self.random.gen_range(0.0..1.0);
        let Bounds { retry, retry_max, .. } = self.bounds;
        match target {
            Target::Static(place) => {
                if let Some(known) = self.statics.get_mut(place) {
                    known.attempts.failed(now, retry, retry_max.min(STATIC_RETRY_MAX), jitter);
                }
            }
            Target::Found(peer) => {
                if let Some(known) = self.found.get_mut(&peer) {
                    known.attempts.failed(now, retry, retry_max, jitter);
                }
            }
        }
    }

    /// A peer is connected, because it was dialled for `target` or because it came.
    pub(crate) fn connected(&mut self, peer: PeerId, target: Option<Target>, now: Duration) {
        self.connected.entry(peer).or_insert(now);
        if let Some(Target::Static(place)) = target
            && let Some(known) = self.statics.get_mut(place)
        {
            known.peer = Some(peer);
        }
        for known in self.statics.iter_mut().filter(|known| known.peer == Some(peer)) {
            known.attempts.connected(now);
        }
        if let Some(known) = self.found.get_mut(&peer) {
            known.dialled &= target.is_some();
            known.attempts.connected(now);
        }
    }

    /// The last connection to a peer is gone.
    pub(crate) fn disconnected(&mut self, peer: PeerId, now: Duration) {
        self.connected.remove(&peer);
        let places = 0..self.statics.len();
        let statics: Vec<usize> = places
            .filter(|place| {
                let known = self.statics.get_mut(*place).filter(|known| known.peer == Some(peer));
                known.is_some_and(|known| known.attempts.disconnected(now))
            })
            .collect();
        for place in statics {
            self.failed(Target::Static(place), now);
        }
        if self.found.get_mut(&peer).is_some_and(|known| known.attempts.disconnected(now)) {
            self.failed(Target::Found(peer), now);
        }
    }

    /// Whether more peers should be searched for: relay peers are missing, and hardly anybody is
    /// left to be dialled.
    pub(crate) fn wants_more(&self, now: Duration, connections: &Connections) -> bool {
        let short = !connections.short.is_empty();
        let missing = self.bounds.outbound.saturating_sub(connections.outbound);
        let ready = |known: &&FoundPeer| known.candidate.relays && known.attempts.is_free(now);
        (missing > 0 || short) && self.found.values().filter(ready).count() < missing.max(1)
    }

    /// Records for a peer that requests them, at most `most`, in random order: of peers that are
    /// connected or did not fail.
    pub(crate) fn records(&mut self, asking: &PeerId, most: usize) -> Vec<Bytes> {
        let good = |known: &&FoundPeer| {
            let attempts = &known.attempts;
            known.candidate.shareable
                && (attempts.connected.is_some() || attempts.failing_since.is_none())
        };
        let others =
            self.found.values().filter(|known| known.candidate.peer != *asking).filter(good);
        let mut records: Vec<&Bytes> = others.map(|known| &known.candidate.record).collect();
        let (chosen, _) = records.partial_shuffle(&mut self.random, most);
        chosen.iter().map(|record| (*record).clone()).collect()
    }

    /// Where a peer became known.
    pub(crate) fn origin(&self, peer: &PeerId) -> Option<Origin> {
        if self.statics.iter().any(|known| known.peer == Some(*peer)) {
            return Some(Origin::Static);
        }
        self.found.get(peer).map(|known| known.origin)
    }

    pub(crate) fn not_connected(&self) -> Vec<KnownPeer> {
        let statics = self.statics.iter().filter(|known| known.attempts.connected.is_none());
        let statics = statics.filter_map(|known| {
            Some(KnownPeer {
                peer: known.peer?,
                address: known.address.clone(),
                origin: Origin::Static,
                shards: Topics::default(),
                relays: true,
                fails: known.attempts.failing_since.is_some(),
            })
        });
        let named = |peer: &PeerId| self.statics.iter().any(|known| known.peer == Some(*peer));
        let found = self
            .found
            .iter()
            .filter(|(peer, known)| known.attempts.connected.is_none() && !named(peer));
        let found = found.filter_map(|(peer, known)| {
            Some(KnownPeer {
                peer: *peer,
                address: known.candidate.addresses.first()?.clone(),
                origin: known.origin,
                shards: known.candidate.shards,
                relays: known.candidate.relays,
                fails: known.attempts.failing_since.is_some(),
            })
        });
        statics.chain(found).collect()
    }

    /// Found peers, connected or not.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
