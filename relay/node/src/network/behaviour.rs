//! Which connections there are, and which of their peers are gossiped with.
//!
//! Runs in the swarm's task and does little: messages never pass through here. Bounds: connections
//! being negotiated, in all, of one peer and from one address; when nearly all places are taken, a
//! connection that is of no use gives way to each new one. So do gossip peers that behave badly, or
//! that share no topic with this node, when all places in the gossip are taken.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use accounting::Reservation;
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    multiaddr::Protocol,
    swarm::{
        CloseConnection, ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm,
        ListenFailure, NetworkBehaviour, NotifyHandler, ToSwarm,
    },
};
use router::Peer;
use thiserror::Error;

use super::{
    handler::{Handler, HandlerCommand, HandlerEvent},
    identified::{self, SpokenProtocols},
    offers::{Offer, Offers},
    stream_slots::Activity,
};
use crate::{client::StreamRequest, governor::WorkKind, node::Node, settings::count};

/// One place in `FREE_OF` is kept free for the next connection, as long as idle connections can
/// give way.
const FREE_OF: usize = 16;

#[derive(Clone, Debug, Error)]
pub(crate) enum ConnectionRefusal {
    #[error("{0}")]
    Memory(String),
    #[error("{0} connections are open, the most this node takes")]
    All(usize),
    #[error("{0} connections of this peer are open, the most one peer has")]
    PerPeer(usize),
    #[error("{0} connections are being negotiated, the most this node does at once")]
    Handshakes(usize),
    #[error("{0} connections from this address are open, the most one address has")]
    PerAddress(usize),
}

#[derive(Debug)]
pub(crate) struct Open {
    /// As the router knows it.
    pub(crate) number: Peer,
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    pub(crate) outbound: bool,
    pub(crate) gossips: bool,
    /// What its peer says of itself, once it did.
    pub(crate) protocols: SpokenProtocols,
    pub(crate) agent: Option<Arc<str>>,
    /// Whether its peer speaks the relay protocol.
    pub(crate) relays: bool,
    /// What its peer serves.
    pub(crate) offers: Offers,
    pub(crate) since: Instant,
    activity: Arc<Activity>,
    /// Whether it is being closed.
    leaving: bool,
    /// Its reservation in the ledger.
    _held: Reservation,
}

pub(crate) struct Behaviour {
    node: Arc<Node>,
    open: BTreeMap<ConnectionId, Open>,
    next: u64,
    per_peer: HashMap<PeerId, usize>,
    per_address: HashMap<IpAddr, usize>,
    /// Connections that came in and are being negotiated.
    handshakes: BTreeSet<ConnectionId>,
    waiting: VecDeque<ToSwarm<(), HandlerCommand>>,
}

impl Behaviour {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            open: BTreeMap::new(),
            next: 0,
            per_peer: HashMap::new(),
            per_address: HashMap::new(),
            handshakes: BTreeSet::new(),
            waiting: VecDeque::new(),
        }
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.values()
    }

    /// Whether a connection is in use: something arrived on one of its streams within this time, or
    /// waits for this node.
    pub(crate) fn is_in_use(&self, id: ConnectionId, within: Duration) -> bool {
        self.open.get(&id).is_some_and(|open| open.activity.is_recent(within))
    }

    /// Asks one of the peers that can be asked for further ones, chosen by `random`. Returns
    /// whether there is any.
    pub(crate) fn ask_peers(&mut self, random: u32) -> bool {
        let can: Vec<_> =
            self.open.iter().filter(|(_, open)| open.offers.has(Offer::Exchange)).collect();
        let Some((id, open)) = can.get(random as usize % can.len().max(1)) else { return false };
        self.waiting.push_back(ToSwarm::NotifyHandler {
            peer_id: open.peer,
            handler: NotifyHandler::One(**id),
            event: HandlerCommand::AskPeers,
        });
        true
    }

    /// Has a stream opened on a connection of a peer. Returns the request if there is none.
    pub(crate) fn open_stream(
        &mut self,
        peer: PeerId,
        request: StreamRequest,
    ) -> Result<(), StreamRequest> {
        let usable = |open: &Open| open.peer == peer && !open.leaving;
        let Some((id, _)) = self.open.iter().find(|(_, open)| usable(open)) else {
            return Err(request);
        };
        self.waiting.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(*id),
            event: HandlerCommand::Open(request),
        });
        Ok(())
    }

    /// Notes what a peer says of itself.
    pub(crate) fn identified(&mut self, id: ConnectionId, protocols: SpokenProtocols, agent: &str) {
        if let Some(open) = self.open.get_mut(&id) {
            open.protocols = protocols;
            open.agent = Some(identified::agent(agent));
        }
    }

    fn check_room(&mut self, peer: &PeerId, address: &Multiaddr) -> Result<(), ConnectionDenied> {
        let limits = &self.node.settings.limits.connections;
        let refused = |why: ConnectionRefusal| Err(ConnectionDenied::new(why));
        let most = count(limits.connections_per_peer);
        if self.per_peer.get(peer).is_some_and(|open| *open >= most) {
            return refused(ConnectionRefusal::PerPeer(most));
        }
        let most = count(limits.connections_per_address);
        let from_there = counted_address(address).and_then(|ip| self.per_address.get(&ip));
        if from_there.is_some_and(|open| *open >= most) {
            return refused(ConnectionRefusal::PerAddress(most));
        }
        let most = count(limits.connections);
        let is_full = self.open.len() >= most;
        if self.open.len() + most / FREE_OF >= most {
            self.make_room();
        }
        if is_full { refused(ConnectionRefusal::All(most)) } else { Ok(()) }
    }

    /// Closes a connection that is of no use: the oldest on which nothing was ever asked, else the
    /// one on which nothing was asked for longest; if that is long enough.
    fn make_room(&mut self) {
        let limits = &self.node.settings.limits.connections;
        let idle = Duration::from_secs(limits.idle_seconds);
        let unused = Duration::from_secs(limits.unused_seconds);
        let useless = |open: &Open| {
            let (asked, least) = match open.activity.idle() {
                Some(ago) => (true, idle.saturating_sub(ago)),
                None => (false, unused.saturating_sub(open.since.elapsed())),
            };
            let is_useless = least.is_zero()
                && !open.leaving
                && !open.gossips
                && !self.node.filter.is_receiver(&open.peer);
            is_useless.then(|| (asked, std::cmp::Reverse(open.activity.idle()), open.since))
        };
        let ranked = self.open.iter().filter_map(|(id, open)| Some((useless(open)?, *id)));
        if let Some((_, id)) = ranked.min() {
            self.leave(id);
        }
    }

    /// Closes a connection through no fault of its peer.
    fn leave(&mut self, id: ConnectionId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.leaving = true;
        self.waiting.push_back(ToSwarm::CloseConnection {
            peer_id: open.peer,
            connection: CloseConnection::One(id),
        });
    }

    /// Peers that came when all places in the gossip were taken try again. To be called at each
    /// heartbeat.
    pub(crate) fn fill_gossip(&mut self) {
        let waits = |open: &Open| open.relays && !open.gossips && !open.leaving;
        let waiting: Vec<ConnectionId> =
            self.open.iter().filter(|(_, open)| waits(open)).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.relays(id));
    }

    /// Has a gossip peer give way to a new one, if one should. Whether there is a place now.
    fn make_room_in_gossip(&mut self) -> bool {
        let now = self.node.now();
        let mut router = self.node.router();
        let Some(number) = router.gives_way(now) else { return false };
        router.disconnected(number, now);
        drop(router);
        let found = self.open.iter_mut().find(|(_, open)| open.number == number);
        if let Some((id, open)) = found {
            (open.gossips, open.relays) = (false, false);
            let id = *id;
            self.leave(id);
        }
        true
    }

    fn established(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        outbound: bool,
    ) -> Result<Handler, ConnectionDenied> {
        self.check_room(&peer, address)?;
        let bytes = self.node.settings.limits.connections.connection_bytes;
        let held = self.node.pools.connections.try_reserve(bytes).map_err(ConnectionDenied::new)?;
        self.next += 1;
        let number = Peer(self.next);
        *self.per_peer.entry(peer).or_default() += 1;
        if let Some(ip) = counted_address(address) {
            *self.per_address.entry(ip).or_default() += 1;
        }
        let activity = Arc::new(Activity::new());
        let open = Open {
            number,
            peer,
            address: address.clone(),
            outbound,
            gossips: false,
            protocols: SpokenProtocols::default(),
            agent: None,
            relays: false,
            offers: Offers::default(),
            since: Instant::now(),
            activity: activity.clone(),
            leaving: false,
            _held: held,
        };
        self.open.insert(id, open);
        self.node.connections.store(self.open.len() as u64, Relaxed);
        Ok(Handler::new(self.node.clone(), peer, number, activity))
    }

    fn closed(&mut self, id: ConnectionId) {
        let Some(open) = self.open.remove(&id) else { return };
        self.node.router().disconnected(open.number, self.node.now());
        self.node.connections.store(self.open.len() as u64, Relaxed);
        leave(&mut self.per_peer, &open.peer);
        if open.gossips {
            // Its place is free: for another connection of the same peer first.
            let same = |other: &&ConnectionId| {
                self.open.get(other).is_some_and(|other| other.relays && other.peer == open.peer)
            };
            let waiting = |other: &&ConnectionId| {
                self.open.get(other).is_some_and(|other| other.relays && !other.gossips)
            };
            let next = self.open.keys().find(same).or_else(|| self.open.keys().find(waiting));
            if let Some(next) = next.copied() {
                self.relays(next);
            }
        }
        if let Some(ip) = counted_address(&open.address) {
            leave(&mut self.per_address, &ip);
        }
    }

    fn relays(&mut self, id: ConnectionId) {
        if !self.node.settings.relay {
            return;
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        open.relays = true;
        let Some(open) = self.open.get(&id) else { return };
        let gossips = |other: &Open| other.peer == open.peer && other.gossips;
        if self.open.values().any(gossips) {
            return;
        }
        let (number, peer, outbound) = (open.number, open.peer, open.outbound);
        let address = counted_address(&open.address).map(|ip| ip.to_string().into_bytes());
        let connect = |node: &Node| {
            node.router().connected(number, peer.to_bytes(), address.clone(), outbound)
        };
        let taken = connect(&self.node) || (self.make_room_in_gossip() && connect(&self.node));
        if let Some(open) = self.open.get_mut(&id).filter(|_| taken) {
            open.gossips = true;
            self.waiting.push_back(ToSwarm::NotifyHandler {
                peer_id: peer,
                handler: NotifyHandler::One(id),
                event: HandlerCommand::Gossip,
            });
        }
    }

    fn close(&mut self, peer: PeerId, id: ConnectionId) {
        self.node.counters.connections_closed.fetch_add(1, Relaxed);
        self.waiting.push_back(ToSwarm::CloseConnection {
            peer_id: peer,
            connection: CloseConnection::One(id),
        });
    }
}

fn leave<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The address that limits and scores go by: `None` on this machine, where all peers share one.
fn counted_address(address: &Multiaddr) -> Option<IpAddr> {
    let ip = address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
        Protocol::Ip6(ip) => Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)),
        _ => None,
    })?;
    (!ip.is_loopback()).then_some(ip)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = ();

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        if let Some(why) = self.node.watch.held_back(WorkKind::Pushes) {
            self.node.counters.connections_refused.fetch_add(1, Relaxed);
            return Err(ConnectionDenied::new(ConnectionRefusal::Memory(why)));
        }
        let most = count(self.node.settings.limits.connections.handshakes);
        if self.handshakes.len() >= most {
            return Err(ConnectionDenied::new(ConnectionRefusal::Handshakes(most)));
        }
        self.handshakes.insert(id);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        self.handshakes.remove(&id);
        self.established(id, peer, remote, false)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        self.established(id, peer, address, true)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. }) => {
                self.closed(connection_id);
            }
            FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.handshakes.remove(&connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: HandlerEvent) {
        match event {
            HandlerEvent::Relays => self.relays(id),
            HandlerEvent::Offers(offer) => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.offers.add(offer);
                }
            }
            HandlerEvent::GossipEnded => {
                if self.open.get(&id).is_some_and(|open| open.gossips) {
                    self.close(peer, id);
                }
            }
            HandlerEvent::Close(why) => {
                tracing::debug!(%peer, why, "connection closed");
                self.close(peer, id);
            }
        }
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<(), HandlerCommand>> {
        self.waiting.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}
