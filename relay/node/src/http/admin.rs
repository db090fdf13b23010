//! The operator's queries about peers: connected peers, members of each mesh, subscribers.
//!
//! A peer here is a connection, or a known peer that is not connected. Bounds: connections, known
//! peers, and rows that are made as they are sent. Dialling waits [`DIAL_TIME`] at most.
//!
//! Source: `/admin/v1` of the OpenAPI files in waku-org/waku-rest-api.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

use http_server::Pieces;
use hyper::StatusCode;
use libp2p::{Multiaddr, PeerId};
use protocol::{filter, gossip};
use router::{Peer, PeerView, SHARDS, Shard};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    answer::{self, Row, Rows},
    message::{Names, json_text_bytes_max, put_text},
    service::{HttpResult, ReceivedBody, Service},
};
use crate::{
    discovery::known::{KnownPeer, Origin, named_peer},
    network::identified::{SpokenProtocols, services},
    node::{ConnectedPeer, Node, SwarmRequest},
};

/// Peers to connect to in one request.
const DIALS_MAX: usize = 16;
/// How long a request waits for them.
const DIAL_TIME: Duration = Duration::from_secs(5);
/// Between two looks whether they are there.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of the JSON of a peer in addition to its address, shards, protocols and program.
const PEER_BYTES_MAX: usize = 256;

/// `WakuPeer` of the specification.
#[derive(Debug, Serialize)]
struct WakuPeer {
    multiaddr: String,
    /// Those that it says it speaks, and those this node has seen in use.
    protocols: Vec<&'static str>,
    shards: Vec<Shard>,
    connected: &'static str,
    /// Name and version of its program, as it says; empty before.
    agent: String,
    origin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

/// `PeersOfShard` of the specification.
#[derive(Debug, Serialize)]
struct PeersOfShard {
    shard: Shard,
    peers: Vec<WakuPeer>,
}

impl Row for WakuPeer {
    fn bytes_max(&self) -> usize {
        let protocols: usize = self.protocols.iter().map(|name| name.len() + 3).sum();
        PEER_BYTES_MAX
            + self.multiaddr.len()
            + self.shards.len() * 6
            + protocols
            + json_text_bytes_max(&self.agent)
    }
}

impl Row for PeersOfShard {
    fn bytes_max(&self) -> usize {
        64 + self.peers.iter().map(|peer| peer.bytes_max() + 1).sum::<usize>()
    }
}

/// All connected peers, as the swarm and the router know them.
#[derive(Clone)]
struct PeerSnapshot {
    connected: Arc<Vec<ConnectedPeer>>,
    views: Arc<HashMap<Peer, PeerView>>,
}

impl PeerSnapshot {
    fn view(&self, connected: &ConnectedPeer) -> Option<&PeerView> {
        self.views.get(&connected.number)
    }

    fn peer(&self, node: &Node, connected: &ConnectedPeer) -> WakuPeer {
        let view = self.view(connected);
        WakuPeer {
            multiaddr: with_peer(&connected.address, connected.peer),
            protocols: spoken(node, connected).names().collect(),
            shards: view.map(|view| view.topics.iter().collect()).unwrap_or_default(),
            connected: "Connected",
            agent: connected.agent.as_deref().unwrap_or_default().to_owned(),
            origin: node.peers().origin(&connected.peer).map_or("UnknownOrigin", Origin::name),
            score: view.map(|view| view.score),
        }
    }

    /// Gossip peers of a shard: subscribed to it or, with `mesh`, in its mesh.
    fn of_shard(&self, node: &Node, shard: Shard, mesh: bool) -> PeersOfShard {
        let is_in = |view: &PeerView| {
            if mesh { view.mesh.contains(&shard) } else { view.topics.contains(shard) }
        };
        let peers = self.connected.iter().filter(|one| self.view(one).is_some_and(is_in));
        PeersOfShard { shard, peers: peers.map(|one| self.peer(node, one)).collect() }
    }
}

/// The protocols that a connected peer says it speaks, and those in use with it.
fn spoken(node: &Node, connected: &ConnectedPeer) -> SpokenProtocols {
    let mut spoken = connected.protocols;
    if connected.gossips {
        spoken.insert(gossip::PROTOCOL);
    }
    if node.filter.is_receiver(&connected.peer) {
        spoken.insert(filter::PUSH_PROTOCOL);
    }
    spoken
}

/// Connected peers that speak each service of Waku.
pub(super) fn by_protocol(
    node: &Node,
    connected: &[ConnectedPeer],
) -> BTreeMap<&'static str, usize> {
    let mut counts: BTreeMap<_, _> = services().map(|name| (name, 0)).collect();
    for one in connected {
        for name in spoken(node, one).names() {
            if let Some(count) = counts.get_mut(name) {
                *count += 1;
            }
        }
    }
    counts
}

/// A known peer that is not connected.
fn absent(known: &KnownPeer) -> WakuPeer {
    WakuPeer {
        multiaddr: with_peer(&known.address, known.peer),
        protocols: if known.relays { vec![gossip::PROTOCOL] } else { Vec::new() },
        shards: known.shards.iter().collect(),
        connected: if known.fails { "CannotConnect" } else { "NotConnected" },
        agent: String::new(),
        origin: known.origin.name(),
        score: None,
    }
}

fn with_peer(address: &Multiaddr, peer: PeerId) -> String {
    if named_peer(address).is_some() {
        address.to_string()
    } else {
        format!("{address}/p2p/{peer}")
    }
}

impl Service {
    async fn peer_snapshot(&self) -> HttpResult<PeerSnapshot> {
        let connected = Arc::new(self.query_swarm(SwarmRequest::Peers).await?);
        let views = self.node.router().peers(self.node.now());
        let views = Arc::new(views.into_iter().map(|view| (view.peer, view)).collect());
        Ok(PeerSnapshot { connected, views })
    }

    async fn list_peers(
        &self,
        wanted: impl Fn(&PeerSnapshot, &ConnectedPeer) -> bool + Send + 'static,
    ) -> HttpResult {
        let (known, node) = (self.peer_snapshot().await?, self.node.clone());
        let rows = (0..known.connected.len()).filter_map(move |place| {
            let one = known.connected.get(place).filter(|one| wanted(&known, one))?;
            Some(known.peer(&node, one))
        });
        answer::list(Rows::new(rows), &self.responses)
    }

    /// `GET /admin/v1/peers`: connections, then known peers that have none.
    pub(crate) async fn all_peers(&self) -> HttpResult {
        let (known, node) = (self.peer_snapshot().await?, self.node.clone());
        let others = node.peers().not_connected();
        let connected = (0..known.connected.len())
            .filter_map(move |place| Some(known.peer(&node, known.connected.get(place)?)));
        answer::list(
            Rows::new(connected.chain(others.into_iter().map(|one| absent(&one)))),
            &self.responses,
        )
    }

    /// `GET /admin/v1/peers/connected` and `/connected/on/{shardId}`.
    pub(crate) async fn connected_peers(&self, shard: Option<Shard>) -> HttpResult {
        if let Some(shard) = shard {
            known_shard(shard)?;
        }
        self.list_peers(move |known, one| {
            let on = |shard| known.view(one).is_some_and(|view| view.topics.contains(shard));
            shard.is_none_or(on)
        })
        .await
    }

    /// `GET /admin/v1/peers/service`: peers that speak a protocol of Waku which is a service.
    pub(crate) async fn service_peers(&self) -> HttpResult {
        let node = self.node.clone();
        self.list_peers(move |_, one| spoken(&node, one).has_service()).await
    }

    /// `GET /admin/v1/peer/{peerId}`: one peer, connected or known; otherwise 404.
    pub(crate) async fn peer(&self, peer: &str) -> HttpResult {
        let peer: PeerId =
            peer.parse().map_err(|error| answer::bad(format!("this is no peer id: {error}")))?;
        let known = self.peer_snapshot().await?;
        if let Some(one) = known.connected.iter().find(|one| one.peer == peer) {
            return answer::json(StatusCode::OK, &known.peer(&self.node, one), &self.responses);
        }
        let others = self.node.peers().not_connected();
        let Some(one) = others.iter().find(|one| one.peer == peer) else {
            return Err(answer::not_found(format!(
                "peer {peer} is not connected, nor known otherwise"
            )));
        };
        answer::json(StatusCode::OK, &absent(one), &self.responses)
    }

    /// `GET /admin/v1/peers/relay`: connected peers subscribed to each shard of this node.
    pub(crate) async fn relay_peers(&self) -> HttpResult {
        self.by_shard(false).await
    }

    /// `GET /admin/v1/peers/mesh`: peers in the mesh of each shard of this node.
    pub(crate) async fn mesh_peers(&self) -> HttpResult {
        self.by_shard(true).await
    }

    async fn by_shard(&self, mesh: bool) -> HttpResult {
        let (known, node) = (self.peer_snapshot().await?, self.node.clone());
        let shards: Vec<Shard> = self.node.shards().iter().collect();
        let rows = shards.into_iter().map(move |shard| known.of_shard(&node, shard, mesh));
        answer::list(Rows::new(rows), &self.responses)
    }

    /// `GET /admin/v1/peers/relay/on/{shardId}`: connected peers subscribed to one shard.
    pub(crate) async fn relay_peers_on(&self, shard: Shard) -> HttpResult {
        known_shard(shard)?;
        let peers = self.peer_snapshot().await?.of_shard(&self.node, shard, false);
        answer::json(StatusCode::OK, &peers, &self.responses)
    }

    /// `GET /admin/v1/peers/mesh/on/{shardId}`: peers in the mesh of one shard.
    pub(crate) async fn mesh_peers_on(&self, shard: Shard) -> HttpResult {
        known_shard(shard)?;
        let peers = self.peer_snapshot().await?.of_shard(&self.node, shard, true);
        answer::json(StatusCode::OK, &peers, &self.responses)
    }

    /// `GET /admin/v1/peers/stats`: numbers of peers by state, shard and protocol.
    pub(crate) async fn peer_stats(&self) -> HttpResult {
        let known = self.peer_snapshot().await?;
        let count = known.connected.len();
        let others = self.node.peers().not_connected();
        let failing = others.iter().filter(|one| one.fails).count();
        let mut relay = serde_json::Map::new();
        let mut mesh = serde_json::Map::new();
        for shard in self.node.shards().iter() {
            let subscribed = known.views.values().filter(|view| view.topics.contains(shard));
            relay.insert(shard.to_string(), subscribed.count().into());
            let meshed = known.views.values().filter(|view| view.mesh.contains(&shard));
            mesh.insert(shard.to_string(), meshed.count().into());
        }
        let gossip = known.connected.iter().filter(|one| one.gossips).count();
        let in_mesh = known.views.values().filter(|view| !view.mesh.is_empty()).count();
        relay.insert("Total relay peers".into(), gossip.into());
        mesh.insert("Total mesh peers".into(), in_mesh.into());
        let by_protocol = by_protocol(&self.node, &known.connected);
        let stats = serde_json::json!({
            "Sum": { "Total peers": count + others.len() },
            "By Connectedness": {
                "Connected": count, "NotConnected": others.len() - failing,
                "CannotConnect": failing, "CanConnect": 0,
            },
            "Relay peers": relay,
            "Mesh peers": mesh,
            "By Protocols": by_protocol,
        });
        answer::json(StatusCode::OK, &stats, &self.responses)
    }

    /// `POST /admin/v1/peers`: connects, and keeps connecting; 200 when all are connected.
    pub(crate) async fn add_peers(&self, body: ReceivedBody) -> HttpResult {
        let mut peers = Vec::new();
        {
            let names: Names<'_> = body.json()?;
            if names.0.len() > DIALS_MAX {
                let count = names.0.len();
                return Err(answer::bad(format!(
                    "{count} peers in one request, at most {DIALS_MAX}"
                )));
            }
            for name in &names.0 {
                let address: Multiaddr = name.0.parse().map_err(|error| {
                    answer::bad(format!("`{}` is no multiaddress: {error}", name.0))
                })?;
                let Some(peer) = named_peer(&address) else {
                    let why = format!("{address} names no peer: add its id, /p2p/<peer id>");
                    return Err(answer::bad(why));
                };
                peers.push((peer, address));
            }
        }
        drop(body);
        for (_, address) in &peers {
            self.send_to_swarm(SwarmRequest::Dial(address.clone())).await?;
        }
        let deadline = Instant::now() + DIAL_TIME;
        loop {
            let connected = self.query_swarm(SwarmRequest::Peers).await?;
            let missing =
                peers.iter().find(|(peer, _)| !connected.iter().any(|one| one.peer == *peer));
            let Some((_, address)) = missing else { return Ok(answer::text("OK")) };
            if Instant::now() >= deadline {
                return Err(answer::bad(format!(
                    "cannot connect to {address} within {} s; where places for static peers are \
                     left it goes on trying",
                    DIAL_TIME.as_secs()
                )));
            }
            sleep(LOOK).await;
        }
    }

    /// `GET /admin/v1/filter/subscriptions`: every receiver with its criteria.
    pub(crate) fn filter_subscribers(&self) -> HttpResult {
        let peers = self.node.filter.receivers().into_iter();
        let list = FilterList { node: self.node.clone(), peers, open: None, state: State::Before };
        answer::list(list, &self.responses)
    }
}

fn known_shard(shard: Shard) -> HttpResult<()> {
    if shard < SHARDS {
        return Ok(());
    }
    Err(answer::bad(format!("there is no shard {shard}: a cluster has shards 0 to {}", SHARDS - 1)))
}

/// A list of `FilterSubscription` of the specification, a criterion at a time.
struct FilterList {
    node: Arc<Node>,
    peers: std::vec::IntoIter<PeerId>,
    /// Criteria of the peer whose object is open.
    open: Option<std::vec::IntoIter<(Shard, Arc<str>)>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    First,
    Later,
    After,
}

impl Pieces for FilterList {
    fn next_bytes(&mut self) -> Option<usize> {
        let topic = self.open.as_ref().and_then(|criteria| criteria.as_slice().first());
        let topic = topic.map_or(0, |(_, topic)| json_text_bytes_max(topic));
        (self.state != State::After).then_some(256 + topic)
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(criteria) = &mut self.open {
            match criteria.next() {
                Some((shard, topic)) => {
                    if self.state == State::Later {
                        out.push(b',');
                    }
                    out.extend_from_slice(b"{\"pubsubTopic\":");
                    put_text(&self.node.topic(shard), out)?;
                    out.extend_from_slice(b",\"contentTopic\":");
                    put_text(&topic, out)?;
                    out.push(b'}');
                }
                None => {
                    out.extend_from_slice(b"]}");
                    self.open = None;
                }
            }
            self.state = State::Later;
            return Ok(());
        }
        if self.state == State::Before {
            out.push(b'[');
        }
        match self.peers.next() {
            Some(peer) => {
                if self.state != State::Before {
                    out.push(b',');
                }
                out.extend_from_slice(b"{\"peerId\":");
                put_text(&peer.to_string(), out)?;
                out.extend_from_slice(b",\"filterCriteria\":[");
                self.open = Some(self.node.filter.criteria_of(&peer).into_iter());
                self.state = State::First;
            }
            None => {
                out.push(b']');
                self.state = State::After;
            }
        }
        Ok(())
    }
}
