//! One connection: its streams, and their handling.
//!
//! Everything of a connection runs in the connection's own task: the streams that the peer opened
//! (each served by a function of [`crate::services`]), the one gossip stream to the peer, and
//! filter pushes to it. Bounded: streams served at once, pushes in flight. A peer that opens more
//! streams than are served has them reset, counted.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Instant,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    PeerId, Stream, StreamProtocol,
    core::UpgradeInfo,
    core::upgrade::{InboundUpgrade, ReadyUpgrade},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, SubstreamProtocol,
        handler::{
            ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
            ProtocolsChange,
        },
    },
};
use router::{Peer, Shard};
use store::Message;
use tokio::sync::oneshot;

use super::{
    offers::Offer,
    stream_slots::{Activity, SlotStream},
};
use crate::{
    client::StreamRequest,
    node::Node,
    services::{self, ServeOutcome},
    settings::count,
};

/// A choice of protocols; the output is the negotiated one.
#[derive(Clone, Debug)]
pub(crate) struct Protocols(Arc<[StreamProtocol]>);

impl Protocols {
    pub(crate) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(StreamProtocol::new).collect())
    }
}

impl UpgradeInfo for Protocols {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        Vec::from(self.0.as_ref()).into_iter()
    }
}

impl InboundUpgrade<Stream> for Protocols {
    type Output = (StreamProtocol, Stream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, name: StreamProtocol) -> Self::Future {
        ready(Ok((name, stream)))
    }
}

/// The protocol of a stream that this node opens.
type Outbound = ReadyUpgrade<StreamProtocol>;

#[derive(Debug)]
pub(crate) enum Purpose {
    Gossip,
    Metadata,
    Peers,
    Push(Shard, Message),
    /// For another task.
    Client(oneshot::Sender<Stream>),
}

/// Events from the connection to the swarm's task.
#[derive(Debug)]
pub(crate) enum HandlerEvent {
    /// The peer speaks the relay protocol; is it to be gossiped with?
    Relays,
    /// The peer said that it serves something.
    Offers(Offer),
    /// The gossip stream ended.
    GossipEnded,
    /// Close the connection: why.
    Close(String),
}

/// Commands from the swarm's task to the connection.
#[derive(Debug)]
pub(crate) enum HandlerCommand {
    /// Open the gossip stream.
    Gossip,
    /// Ask the peer for other peers.
    AskPeers,
    /// Open a stream for another task.
    Open(StreamRequest),
}

enum Gossip {
    Off,
    Wanted,
    Opening,
    Open(BoxFuture<'static, ()>),
}

pub(crate) struct Handler {
    node: Arc<Node>,
    peer: PeerId,
    connection: Peer,
    activity: Arc<Activity>,
    listens: Protocols,
    served: FuturesUnordered<BoxFuture<'static, ServeOutcome>>,
    gossip: Gossip,
    wants_metadata: bool,
    metadata_asked: bool,
    wants_peers: bool,
    /// Streams that other tasks asked for: as many as those tasks are.
    wanted: VecDeque<StreamRequest>,
    relays: bool,
    pushes: FuturesUnordered<BoxFuture<'static, bool>>,
    pushes_opening: usize,
    events: VecDeque<HandlerEvent>,
}

impl Handler {
    pub(crate) fn new(
        node: Arc<Node>,
        peer: PeerId,
        connection: Peer,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            listens: node.protocols.clone(),
            node,
            peer,
            connection,
            activity,
            served: FuturesUnordered::new(),
            gossip: Gossip::Off,
            wants_metadata: false,
            metadata_asked: false,
            wants_peers: false,
            wanted: VecDeque::new(),
            relays: false,
            pushes: FuturesUnordered::new(),
            pushes_opening: 0,
            events: VecDeque::new(),
        }
    }

    fn open(
        &self,
        name: &'static str,
        purpose: Purpose,
    ) -> ConnectionHandlerEvent<Outbound, Purpose, HandlerEvent> {
        let name = StreamProtocol::new(name);
        let protocol = SubstreamProtocol::new(ReadyUpgrade::new(name), purpose);
        ConnectionHandlerEvent::OutboundSubstreamRequest { protocol }
    }

    fn on_inbound(&mut self, name: &StreamProtocol, mut stream: Stream) {
        let Some(mut place) = self.node.places.take(self.connection) else {
            // Dropped, which resets it.
            self.node.counters.streams_refused.fetch_add(1, Relaxed);
            return;
        };
        if *name == protocol::gossip::PROTOCOL {
            // It stays open, and may be quiet for long.
            place.claim();
            stream.ignore_for_keep_alive();
            self.relays();
        }
        let stream = SlotStream::new(stream, place, self.activity.clone());
        let (node, peer, connection) = (self.node.clone(), self.peer, self.connection);
        self.served.push(services::serve(node, peer, connection, name.as_ref(), stream));
    }

    /// The peer speaks the relay protocol, as announced or observed.
    fn relays(&mut self) {
        if !std::mem::replace(&mut self.relays, true) {
            self.events.push_back(HandlerEvent::Relays);
        }
    }

    fn on_outbound(&mut self, mut stream: Stream, purpose: Purpose) {
        let node = self.node.clone();
        match purpose {
            Purpose::Gossip => {
                stream.ignore_for_keep_alive();
                let task = services::relay::send(node, self.connection, stream);
                self.gossip = Gossip::Open(task.boxed());
            }
            Purpose::Metadata => {
                let asking = services::metadata::request_metadata(node, stream);
                self.served.push(asking.boxed());
            }
            Purpose::Peers => {
                let asking = services::peer_exchange::request_peers(node, stream);
                self.served.push(asking.boxed());
            }
            Purpose::Client(reply) => {
                // The task may have given up.
                let _ = reply.send(stream);
            }
            Purpose::Push(shard, message) => {
                self.pushes_opening = self.pushes_opening.saturating_sub(1);
                self.pushes.push(services::filter::push(node, stream, shard, message).boxed());
            }
        }
    }

    fn on_refused(&mut self, purpose: &Purpose) {
        match purpose {
            Purpose::Gossip => {
                self.gossip = Gossip::Off;
                self.events.push_back(HandlerEvent::GossipEnded);
            }
            // The task hears it by the end of its channel.
            Purpose::Metadata | Purpose::Peers | Purpose::Client(_) => {}
            Purpose::Push(..) => {
                self.pushes_opening = self.pushes_opening.saturating_sub(1);
                self.push_ended(false);
            }
        }
    }

    fn push_ended(&self, taken: bool) {
        let counters = &self.node.counters;
        let counter = if taken { &counters.pushed } else { &counters.pushes_failed };
        counter.fetch_add(1, Relaxed);
        self.node.filter.pushed(&self.peer, taken, Instant::now());
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = HandlerCommand;
    type ToBehaviour = HandlerEvent;
    type InboundProtocol = Protocols;
    type OutboundProtocol = Outbound;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Purpose;

    fn listen_protocol(&self) -> SubstreamProtocol<Protocols, ()> {
        SubstreamProtocol::new(self.listens.clone(), ())
    }

    fn connection_keep_alive(&self) -> bool {
        // Idle connections are closed when others need their place, by the swarm's task.
        true
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Outbound, Purpose, HandlerEvent>> {
        while let Poll::Ready(Some(served)) = self.served.poll_next_unpin(cx) {
            self.events.extend(served.err().map(HandlerEvent::Close));
        }
        if self.activity.take_overrun() {
            self.events
                .push_back(HandlerEvent::Close("the peer keeps sending after its request".into()));
        }
        while let Poll::Ready(Some(taken)) = self.pushes.poll_next_unpin(cx) {
            self.push_ended(taken);
        }
        if let Gossip::Open(task) = &mut self.gossip
            && task.poll_unpin(cx).is_ready()
        {
            self.gossip = Gossip::Off;
            self.events.push_back(HandlerEvent::GossipEnded);
        }
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(event));
        }
        if matches!(self.gossip, Gossip::Wanted) {
            self.gossip = Gossip::Opening;
            return Poll::Ready(self.open(protocol::gossip::PROTOCOL, Purpose::Gossip));
        }
        if std::mem::take(&mut self.wants_metadata) {
            return Poll::Ready(self.open(protocol::metadata::PROTOCOL, Purpose::Metadata));
        }
        if std::mem::take(&mut self.wants_peers) {
            return Poll::Ready(self.open(protocol::peer_exchange::PROTOCOL, Purpose::Peers));
        }
        while let Some(StreamRequest { protocol, reply }) = self.wanted.pop_front() {
            if !reply.is_closed() {
                return Poll::Ready(self.open(protocol, Purpose::Client(reply)));
            }
        }
        let pushes_max = count(self.node.settings.limits.filter.pushes_in_flight_per_receiver);
        if self.pushes.len() + self.pushes_opening < pushes_max
            && let Poll::Ready((shard, message)) = self.node.filter.poll_next(&self.peer, cx)
        {
            self.pushes_opening += 1;
            let purpose = Purpose::Push(shard, message);
            return Poll::Ready(self.open(protocol::filter::PUSH_PROTOCOL, purpose));
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: HandlerCommand) {
        match event {
            HandlerCommand::Gossip if matches!(self.gossip, Gossip::Off) => {
                self.gossip = Gossip::Wanted
            }
            HandlerCommand::Gossip => {}
            HandlerCommand::AskPeers => self.wants_peers = true,
            HandlerCommand::Open(request) => self.wanted.push_back(request),
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Protocols, Outbound, (), Purpose>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (name, stream),
                ..
            }) => self.on_inbound(&name, stream),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info,
            }) => self.on_outbound(stream, info),
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, .. }) => {
                self.on_refused(&info);
            }
            ConnectionEvent::RemoteProtocolsChange(ProtocolsChange::Added(added)) => {
                for name in added {
                    if *name == protocol::gossip::PROTOCOL {
                        self.relays();
                    }
                    self.events.extend(Offer::of(name.as_ref()).map(HandlerEvent::Offers));
                    if *name == protocol::metadata::PROTOCOL && !self.metadata_asked {
                        self.metadata_asked = true;
                        self.wants_metadata = true;
                    }
                }
            }
            _ => {}
        }
    }
}
