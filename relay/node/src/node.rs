//! State shared by all parts of the running node, and the task that drives the swarm.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use accounting::{Ledger, Pool, cgroup::Cgroup};
use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm,
    core::transport::ListenerId,
    identify, identity,
    multiaddr::Protocol,
    ping,
    swarm::{self, ConnectionId, DialError, NetworkBehaviour, SwarmEvent, dial_opts::DialOpts},
};
use memory::Record;
use protocol::{PubsubTopic, record::NodeRecord, signed::ShardKey};
use relay_limits::{Limits, pool};
use router::{Router, Shard, Topics};
use store::{Message, Store};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    arrival::Delays,
    client::{Client, StreamRequest},
    clock::RelayClock,
    config::Config,
    counters::Counters,
    discovery::{
        self,
        candidate::{Candidate, PeerCriteria},
        known::{Connections, KnownPeers, Origin, Target},
    },
    filter::Filter,
    governor::Watch,
    ingest::RejectReason,
    latencies::Latencies,
    network::{
        admission::Admission,
        behaviour::Behaviour,
        handler::Protocols,
        identified::SpokenProtocols,
        meter::{Meters, Traffic},
        offers::Offers,
        stream_slots::StreamSlots,
        transport::{Tls, transport},
    },
    observed::ObservedPools,
    pace::Paces,
    rates::{Rate, Rates},
    rln::{Validator, contract::RootsFeed},
    services,
    settings::{self, Settings, count},
    subscribers::Subscribers,
    sync::SyncState,
};

/// Between two requests for further peers.
const ASK_PEERS: Duration = Duration::from_secs(30);
/// A peer that answers no ping is gone if nothing else arrived of it within this time, twice the
/// one in which pings are answered.
const PING_TIME: Duration = Duration::from_secs(40);
/// Interval of checks for stalled connections, and of noting that this node reads.
pub(crate) const SWEEP: Duration = Duration::from_millis(250);
/// A pause in reading that is logged: peers close connections on which nothing is answered.
const LONG_PAUSE: Duration = Duration::from_secs(10);
/// After a longer pause between two checks this process was stopped, or got no processor.
const SWEEP_LATE: Duration = Duration::from_secs(2);

/// Pools of the ledger that connections take from.
#[derive(Debug)]
pub(crate) struct Pools {
    /// [`Settings::connection_bytes`] for each connection.
    pub(crate) connections: Pool,
    /// One [`relay_limits::REQUEST_BYTES`] for each light push being served.
    pub(crate) push_requests: Pool,
    pub(crate) receiving: Pool,
    pub(crate) sending: Pool,
}

pub(crate) struct Node {
    pub(crate) settings: Settings,
    /// Shards that are served now: those of the configuration, and what REST clients changed.
    shards: RwLock<Topics>,
    /// Notified after a change of the shards; this node's record follows.
    pub(crate) shards_changed: Notify,
    /// Keys of the shards whose messages must be signed.
    pub(crate) protected: BTreeMap<Shard, ShardKey>,
    pub(crate) protocols: Protocols,
    pub(crate) clock_drift: Duration,
    /// Pauses of this node, which do not make a message late.
    pub(crate) delays: Delays,
    pub(crate) time: Arc<RelayClock>,
    /// Nanoseconds since 1970, by that clock.
    pub(crate) clock: Arc<dyn Fn() -> i64 + Send + Sync>,
    pub(crate) started: Instant,

    pub(crate) ledger: Ledger,
    pub(crate) pools: Pools,
    /// Large frames that are being received.
    pub(crate) admission: Admission,
    pub(crate) places: StreamSlots,
    pub(crate) store: Store,
    router: Mutex<Router<Message>>,
    pub(crate) filter: Filter,
    /// Of clients' messages.
    pub(crate) paces: Paces,
    pub(crate) subscribers: Subscribers,
    /// Roots of valid proofs, in a network that demands a proof with each message (RLN).
    pub(crate) roots: Option<Arc<RootsFeed>>,
    pub(crate) rates: Rates,
    /// Where the network's messages carry proofs of a rate limit.
    pub(crate) rln: Option<Validator>,
    pub(crate) counters: Counters,
    pub(crate) latencies: Latencies,
    pub(crate) client: Client,
    pub(crate) sync: SyncState,
    pub(crate) watch: Watch,
    pub(crate) connections: AtomicU64,
    /// Which nodes can be peers, but for the shards.
    terms: PeerCriteria,
    peers: Mutex<KnownPeers>,
    /// This node's record, once it is known where it listens.
    own_record: Mutex<Option<NodeRecord>>,
    /// Whether peers are to be searched for; checked once per heartbeat.
    pub(crate) wants_peers: AtomicBool,
    /// Records in the table of the discovery protocol.
    pub(crate) discovery_table: AtomicU64,
    /// Bytes of all connections, as of the last heartbeat.
    pub(crate) traffic: Traffic,
    /// Names of the shards' topics, made once: most messages are of few shards.
    topics: Vec<Arc<str>>,
}

impl Node {
    /// The router, for as long as the guard lives: never across a wait.
    pub(crate) fn router(&self) -> MutexGuard<'_, Router<Message>> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shards that are served now.
    pub(crate) fn shards(&self) -> Topics {
        *self.shards.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards served, for people.
    pub(crate) fn served(&self) -> String {
        let shards: Vec<String> = self.shards().iter().map(|shard| shard.to_string()).collect();
        let cluster = self.settings.cluster;
        if shards.is_empty() {
            return format!("no shard of cluster {cluster}");
        }
        format!("shards {} of cluster {cluster}", shards.join(", "))
    }

    /// Serves exactly these shards from now on: gossip subscribes to the new ones and leaves the
    /// others, and answers about this node, its record and its search for peers follow.
    pub(crate) fn serve_shards(&self, shards: Topics) {
        let before = {
            let mut served = self.shards.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *served, shards)
        };
        if before == shards {
            return;
        }
        if self.settings.relay {
            let now = self.now();
            let mut router = self.router();
            for shard in shards.iter().filter(|shard| !before.contains(*shard)) {
                router.subscribe(shard, now);
            }
            for shard in before.iter().filter(|shard| !shards.contains(*shard)) {
                router.unsubscribe(shard, now);
            }
        }
        self.peers().forget_strangers(&shards);
        self.shards_changed.notify_one();
        tracing::info!(serves = self.served(), "other shards are served");
    }

    /// Which nodes can be peers now.
    pub(crate) fn criteria(&self) -> PeerCriteria {
        PeerCriteria { shards: self.shards(), ..self.terms.clone() }
    }

    /// Whether this node is reached on this machine only.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.terms.loopback
    }

    /// The name of a shard's topic.
    pub(crate) fn topic(&self, shard: Shard) -> Arc<str> {
        match self.topics.get(usize::from(shard)) {
            Some(topic) => topic.clone(),
            None => Arc::from(self.topic_name(shard)),
        }
    }

    /// The same, for messages to people.
    pub(crate) fn topic_name(&self, shard: Shard) -> String {
        PubsubTopic::new(self.settings.cluster, shard).to_string()
    }

    /// Counts a client's message that did not get as far as being published.
    pub(crate) fn refused(&self, rejected: RejectReason) -> RejectReason {
        self.counters.client_refused.add(rejected.reason());
        rejected
    }

    /// The known peers, for as long as the guard lives: never across a wait.
    pub(crate) fn peers(&self) -> MutexGuard<'_, KnownPeers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records of other nodes for a peer that asks, at most `most`.
    pub(crate) fn known_records(&self, asking: &PeerId, most: usize) -> Vec<Bytes> {
        let answered_max = count(self.settings.limits.peers.peer_exchange_peers);
        self.peers().records(asking, most.min(answered_max))
    }

    /// Takes note of a node, if it can be a peer; returns whether it is new.
    pub(crate) fn heard_of(&self, record: &NodeRecord, origin: Origin) -> bool {
        match Candidate::read(record, &self.criteria()) {
            Ok(candidate) => self.peers().add(candidate, origin, self.now()),
            Err(unfit) => {
                tracing::trace!(%unfit, ?origin, "a node is not kept");
                false
            }
        }
    }

    pub(crate) fn own_record(&self) -> Option<NodeRecord> {
        self.own_record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it by a later one.
    pub(crate) fn set_own_record(&self, record: NodeRecord) {
        let mut own = self.own_record.lock().unwrap_or_else(PoisonError::into_inner);
        if own.as_ref().is_none_or(|own| own.sequence < record.sequence) {
            *own = Some(record);
        }
    }
}

pub(crate) fn pool(ledger: &Ledger, name: &'static str) -> Result<Pool> {
    ledger.pool(name).with_context(|| format!("the budget sheet has no pool `{name}`"))
}

impl Node {
    /// `cgroup` is the process group, if there is one; `own` is this node's peer id; `seed` is
    /// where its randomness comes from; `roots` are those of the network's contract, if it has one,
    /// and `rln` verifies proofs against them.
    #[expect(
        clippy::too_many_lines,
        reason = "wiring: every part is made once, in the order in which they need each other"
    )]
    pub(crate) fn open(
        config: &Config,
        cgroup: Option<Cgroup>,
        own: PeerId,
        seed: [u8; 32],
        roots: Option<Arc<RootsFeed>>,
        rln: Option<Validator>,
    ) -> Result<Arc<Self>> {
        let limits = &config.limits;
        let ledger = limits.ledger()?;
        let settings = config.settings();
        let time = Arc::new(RelayClock::new(&config.data_dir));
        let clock: Arc<dyn Fn() -> i64 + Send + Sync> = {
            let time = time.clone();
            Arc::new(move || time.now_ns())
        };
        let folder = config.data_dir.join("messages");
        let store =
            Store::open(settings::store(limits, folder), Arc::new(disk::RealDisk), time.clone())?;
        let mut router = Router::new(settings::gossip(limits), seed);
        if settings.relay {
            settings.shards.iter().for_each(|shard| router.subscribe(shard, Duration::ZERO));
        }
        let peers = count(limits.connections.connections) * 2;
        let rate = |what, per_second, burst| Rate::new(what, per_second, burst, peers);
        let (push, filter) = (&limits.light_push, &limits.filter);
        let (query, exchange) = (&limits.store, &limits.peers);
        let rates = Rates {
            light_push: rate("light push", push.messages_per_second, push.messages_burst),
            filter: rate("filter requests", filter.requests_per_second, filter.requests_burst),
            store: rate("store queries", query.requests_per_second, query.requests_burst),
            peer_exchange: rate(
                "peer exchange requests",
                exchange.requests_per_second,
                exchange.requests_burst,
            ),
        };
        let terms = PeerCriteria {
            own,
            cluster: config.cluster,
            shards: settings.shards,
            loopback: config.announce.is_empty() && config.listen.iter().all(is_loopback),
        };
        let mut known = KnownPeers::new(discovery::bounds(limits), seed);
        for address in config.static_peers() {
            if !known.add_static(address.clone()) {
                tracing::warn!(
                    %address,
                    most = limits.gossip.peers,
                    "more static peers than gossip.peers"
                );
            }
        }
        let topics = (0..router::SHARDS)
            .map(|shard| Arc::from(PubsubTopic::new(config.cluster, shard).to_string()))
            .collect();
        Ok(Arc::new(Self {
            shards: RwLock::new(settings.shards),
            shards_changed: Notify::new(),
            protected: config.protected_shards()?,
            protocols: Protocols::new(services::protocols(&settings)),
            clock_drift: Duration::from_secs(limits.messages.clock_seconds),
            delays: Delays::default(),
            time,
            clock,
            started: Instant::now(),
            pools: Pools {
                connections: pool(&ledger, pool::CONNECTIONS)?,
                push_requests: pool(&ledger, pool::PUSH_REQUESTS)?,
                receiving: pool(&ledger, pool::RECEIVING)?,
                sending: pool(&ledger, pool::SENDING)?,
            },
            admission: Admission::new(limits.messages.admitted_bytes),
            places: StreamSlots::new(
                pool(&ledger, pool::STREAMS)?,
                relay_limits::STREAM_BYTES,
                count(limits.connections.connections),
                count(limits.connections.streams_per_connection),
            ),
            ledger,
            store,
            router: Mutex::new(router),
            filter: Filter::new(settings::filter(limits)),
            paces: Paces::new(settings::floor(limits)),
            subscribers: Subscribers::new(
                limits.http.cache_bytes,
                count(limits.http.cache_messages),
            ),
            roots,
            rates,
            rln,
            counters: Counters::default(),
            latencies: Latencies::default(),
            client: Client::new(&limits.client),
            sync: SyncState::new(limits, peers),
            watch: Watch::new(Record::new(cgroup, limits.memory_budget_bytes), &limits.governor),
            connections: AtomicU64::new(0),
            terms,
            peers: Mutex::new(known),
            own_record: Mutex::default(),
            wants_peers: AtomicBool::new(false),
            discovery_table: AtomicU64::new(0),
            traffic: Traffic::default(),
            topics,
            settings,
        }))
    }
}

#[derive(NetworkBehaviour)]
struct All {
    waku: Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

/// Requests of other tasks to the swarm.
pub(crate) enum SwarmRequest {
    /// Connect to a peer, and keep connecting.
    Dial(Multiaddr),
    /// Connected peers.
    Peers(oneshot::Sender<Vec<ConnectedPeer>>),
    /// Where this node is reached.
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    /// A stream to a peer, which is dialled at the address if it is not connected.
    Open { peer: PeerId, address: Option<Multiaddr>, request: StreamRequest },
}

#[derive(Clone, Debug)]
pub(crate) struct ConnectedPeer {
    /// As the router knows it.
    pub(crate) number: router::Peer,
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    pub(crate) outbound: bool,
    pub(crate) gossips: bool,
    pub(crate) offers: Offers,
    /// What it says of itself, once it did.
    pub(crate) protocols: SpokenProtocols,
    pub(crate) agent: Option<Arc<str>>,
}

/// Streams of one connection for which a protocol is being agreed on. Further ones wait in the
/// multiplexer.
const NEGOTIATING: usize = 16;
/// Requests of other tasks that wait at once.
const SWARM_REQUESTS: usize = 64;

/// The swarm, ready to run.
pub(crate) struct Network {
    node: Arc<Node>,
    swarm: Swarm<All>,
    meters: Meters,
    requests_rx: mpsc::Receiver<SwarmRequest>,
    /// Dials under way: at most as many as the known peers allow.
    dials: HashMap<ConnectionId, Target>,
    /// Streams that wait for a dial: as many as the tasks that ask others.
    opening: Vec<(PeerId, StreamRequest)>,
    /// Whether there can be peers that were not configured.
    finds_peers: bool,
    /// Whether peers are asked for further ones, and when they were last.
    asks_peers: bool,
    asked_peers: Option<Instant>,
    observed: ObservedPools,
    heartbeat: Duration,
    /// Addresses that were configured, and those that have a socket by now.
    listeners: usize,
    listening: HashSet<ListenerId>,
}

impl Network {
    pub(crate) fn new(
        node: Arc<Node>,
        config: &Config,
        keys: &identity::Keypair,
        tls: Option<Tls>,
    ) -> Result<(Self, mpsc::Sender<SwarmRequest>)> {
        let limits: &Limits = &config.limits;
        let unread = pool(&node.ledger, pool::UNREAD)?;
        let meters = Meters::new(
            unread,
            limits.connections.unread_bytes_per_connection,
            Duration::from_secs(limits.connections.stalled_seconds),
            limits.connections.streams,
            {
                let node = node.clone();
                Arc::new(move || node.watch.reads())
            },
        );
        let handshake = Duration::from_secs(limits.connections.handshake_seconds);
        let streams = count(limits.connections.streams_per_connection);
        let transport = transport(
            keys,
            streams,
            count(limits.connections.socket_buffer_bytes),
            handshake,
            &meters,
            tls,
        )?;
        let agent = concat!("thimble-relay/", env!("CARGO_PKG_VERSION"));
        let about = identify::Config::new("/ipfs/0.1.0".into(), keys.public())
            .with_agent_version(agent.into())
            .with_cache_size(0)
            .with_interval(Duration::from_secs(300));
        let behaviour = All {
            waku: Behaviour::new(node.clone()),
            identify: identify::Behaviour::new(about),
            ping: ping::Behaviour::new(ping::Config::new()),
        };
        let swarm_config = swarm::Config::with_tokio_executor()
            .with_substream_upgrade_protocol_override(libp2p::core::upgrade::Version::V1Lazy)
            .with_max_negotiating_inbound_streams(NEGOTIATING.min(streams));
        let mut swarm = Swarm::new(transport, behaviour, keys.public().to_peer_id(), swarm_config);
        for address in &config.listen {
            swarm.listen_on(address.clone()).with_context(|| format!("listening on {address}"))?;
        }
        for address in &config.announce {
            swarm.add_external_address(address.clone());
        }
        let (requests_tx, requests_rx) = mpsc::channel(SWARM_REQUESTS);
        node.client.connect(requests_tx.clone());
        let observed = ObservedPools::new(&node)?;
        let network = Self {
            node,
            swarm,
            meters,
            requests_rx,
            dials: HashMap::new(),
            opening: Vec::new(),
            finds_peers: config.finds_peers(),
            asks_peers: config.asks_peers(),
            asked_peers: None,
            observed,
            heartbeat: Duration::from_millis(limits.gossip.heartbeat_millis),
            listeners: config.listen.len(),
            listening: HashSet::new(),
        };
        Ok((network, requests_tx))
    }

    pub(crate) async fn run(mut self, ready: oneshot::Sender<Vec<Multiaddr>>, stop: impl Future) {
        let mut ready = Some(ready);
        let mut stop = std::pin::pin!(stop);
        let mut beat = tokio::time::interval(self.heartbeat);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut swept = Instant::now();
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = &mut stop => return,
                event = self.swarm.select_next_some() => {
                    self.on_event(event);
                    if self.listening.len() >= self.listeners && let Some(ready) = ready.take() {
                        // The waiting task may have given up.
                        let _ = ready.send(self.addresses());
                    }
                }
                Some(request) = self.requests_rx.recv() => self.on_request(request),
                _ = beat.tick() => {
                    self.note_pause();
                    let now = self.node.now();
                    if !self.node.watch.reads() {
                        self.node.router().extend_promises(self.heartbeat);
                    }
                    self.node.router().heartbeat(now);
                    self.swarm.behaviour_mut().waku.fill_gossip();
                    self.node.filter.expire(Instant::now());
                    self.node.subscribers.expire(Instant::now());
                    self.opening.retain(|(_, request)| !request.reply.is_closed());
                    self.find_peers();
                    self.observed.update(&self.node);
                    let (traffic, noted) = (self.meters.traffic(), &self.node.traffic);
                    noted.received.store(traffic.received.load(Relaxed), Relaxed);
                    noted.sent.store(traffic.sent.load(Relaxed), Relaxed);
                }
                _ = sweep.tick() => {
                    self.note_pause();
                    let pause = swept.elapsed();
                    swept = Instant::now();
                    if pause > SWEEP_LATE {
                        self.meters.excuse(pause);
                    }
                    let closed = self.meters.sweep(Instant::now());
                    self.node.counters.connections_closed.fetch_add(closed as u64, Relaxed);
                }
            }
        }
    }

    /// Notes that this node reads, or has not for a time: its peers are not late then.
    fn note_pause(&self) {
        let node = &self.node;
        if let Some(pause) = node.delays.sweep(node.now(), node.watch.reads()) {
            if pause >= LONG_PAUSE {
                tracing::warn!(seconds = pause.as_secs(), "this node read nothing for a time");
            }
            node.router().extend_promises(pause);
        }
    }

    /// Where this node is reached, with its peer id.
    fn addresses(&self) -> Vec<Multiaddr> {
        let peer = *self.swarm.local_peer_id();
        let all = self.swarm.external_addresses().chain(self.swarm.listeners());
        let mut addresses: Vec<Multiaddr> =
            all.map(|address| with_peer(address.clone(), peer)).collect();
        addresses.dedup();
        addresses
    }

    fn on_event(&mut self, event: SwarmEvent<AllEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, listener_id } => {
                self.listening.insert(listener_id);
                tracing::debug!(%address, "listening");
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener failed"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::error!(?addresses, ?reason, "a listener closed");
            }
            SwarmEvent::IncomingConnectionError { error, send_back_addr, .. } => {
                tracing::debug!(%error, address = %send_back_addr, "a connection was not taken");
            }
            SwarmEvent::Behaviour(AllEvent::Ping(ping::Event {
                connection,
                result: Err(error),
                ..
            })) if !matches!(error, ping::Failure::Unsupported)
                // An answer may be behind the requests that a busy node has not read.
                && !self.swarm.behaviour().waku.is_in_use(connection, PING_TIME) =>
            {
                // The peer is gone; pushes would wait for it.
                self.swarm.close_connection(connection);
            }
            SwarmEvent::Behaviour(AllEvent::Identify(identify::Event::Received {
                connection_id,
                info,
                ..
            })) => {
                let protocols = SpokenProtocols::of(info.protocols.iter().map(AsRef::as_ref));
                let waku = &mut self.swarm.behaviour_mut().waku;
                waku.identified(connection_id, protocols, &info.agent_version);
            }
            SwarmEvent::OutgoingConnectionError { error, peer_id, connection_id } => {
                tracing::debug!(%error, ?peer_id, "dialling failed");
                self.opening.retain(|(peer, _)| Some(*peer) != peer_id);
                if let Some(target) = self.dials.remove(&connection_id) {
                    self.node.peers().failed(target, self.node.now());
                }
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                let target = self.dials.remove(&connection_id);
                self.node.peers().connected(peer_id, target, self.node.now());
                self.open_waiting(peer_id);
            }
            SwarmEvent::ConnectionClosed { peer_id, num_established: 0, .. } => {
                self.node.peers().disconnected(peer_id, self.node.now());
            }
            _ => {}
        }
    }

    fn on_request(&mut self, request: SwarmRequest) {
        match request {
            SwarmRequest::Dial(address) => {
                self.node.peers().add_static(address);
                self.find_peers();
            }
            SwarmRequest::Peers(reply) => {
                let connected = self.swarm.behaviour().waku.open().map(|open| ConnectedPeer {
                    number: open.number,
                    peer: open.peer,
                    address: open.address.clone(),
                    outbound: open.outbound,
                    gossips: open.gossips,
                    offers: open.offers,
                    protocols: open.protocols,
                    agent: open.agent.clone(),
                });
                let _ = reply.send(connected.collect());
            }
            SwarmRequest::Addresses(reply) => drop(reply.send(self.addresses())),
            SwarmRequest::Open { peer, address, request } => {
                self.open_stream(peer, address, request);
            }
        }
    }

    /// Opens a stream, or dials for it. A request that is dropped is refused.
    fn open_stream(&mut self, peer: PeerId, address: Option<Multiaddr>, request: StreamRequest) {
        let Err(request) = self.swarm.behaviour_mut().waku.open_stream(peer, request) else {
            return;
        };
        let Some(address) = address else { return };
        let options = DialOpts::peer_id(peer).addresses(vec![address]).build();
        match self.swarm.dial(options) {
            Ok(()) | Err(DialError::DialPeerConditionFalse(_)) => {
                self.opening.push((peer, request));
            }
            Err(error) => tracing::debug!(%peer, %error, "dialling failed"),
        }
    }

    /// Opens the streams that waited for a peer.
    fn open_waiting(&mut self, peer: PeerId) {
        let opening = std::mem::take(&mut self.opening);
        for (of, request) in opening {
            if of != peer {
                self.opening.push((of, request));
            } else if self.swarm.behaviour_mut().waku.open_stream(peer, request).is_err() {
                tracing::debug!(%peer, "a connection is gone before a stream was opened");
            }
        }
    }

    /// The connections there are, as far as the search for peers depends on them.
    fn connections(&self) -> Connections {
        let open = self.swarm.behaviour().waku.open();
        if !self.node.settings.relay {
            // Any peer may serve a client.
            let outbound = open.filter(|open| open.outbound).count();
            return Connections { outbound, short: Topics::default() };
        }
        let outbound = open.filter(|open| open.gossips && open.outbound).count();
        let mut short = Topics::default();
        let least = count(self.node.settings.limits.gossip.d_low);
        let router = self.node.router();
        for shard in self.node.shards().iter() {
            if router.reachable(shard, self.node.now()) < least {
                short.insert(shard);
            }
        }
        Connections { outbound, short }
    }

    /// Dials the peers that `known` selects, and asks for further ones.
    fn find_peers(&mut self) {
        let connections =
            if self.finds_peers { self.connections() } else { Connections::default() };
        let now = self.node.now();
        let (dials, wants) = {
            let mut peers = self.node.peers();
            let wants = self.finds_peers && peers.wants_more(now, &connections);
            (peers.dials(now, &connections), wants)
        };
        self.node.wants_peers.store(wants, Relaxed);
        for dial in dials {
            let options = match dial.peer {
                Some(peer) => DialOpts::peer_id(peer).addresses(dial.addresses).build(),
                None => dial.addresses.into_iter().next().unwrap_or_else(Multiaddr::empty).into(),
            };
            let connection = options.connection_id();
            match self.swarm.dial(options) {
                Ok(()) => drop(self.dials.insert(connection, dial.target)),
                Err(error) => {
                    tracing::debug!(target = ?dial.target, %error, "dialling failed");
                    self.node.peers().failed(dial.target, now);
                }
            }
        }
        let pause = self.asked_peers.is_some_and(|last| last.elapsed() < ASK_PEERS);
        if self.asks_peers
            && wants
            && !pause
            && self.swarm.behaviour_mut().waku.ask_peers(rand::random())
        {
            self.asked_peers = Some(Instant::now());
        }
    }
}

fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

fn with_peer(address: Multiaddr, peer: PeerId) -> Multiaddr {
    // A listener on all addresses is reached from this machine by the loopback one.
    let local = address.replace(0, |part| match part {
        Protocol::Ip4(ip) if ip.is_unspecified() => Some(Protocol::Ip4(Ipv4Addr::LOCALHOST)),
        _ => None,
    });
    local.unwrap_or(address).with_p2p(peer).unwrap_or_else(|address| address)
}
