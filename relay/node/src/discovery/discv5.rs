//! The discovery protocol (discv5 with Waku's protocol id): other nodes find this one, and this one
//! finds them. The protocol itself is a published crate; here are its limits and the handling of
//! its results.
//!
//! Bounds. Its table is cut to [`Options::table`] records at each look; the crate itself holds 16
//! for each of 256 distances. As many sessions are kept. Unsolicited packets are taken at
//! [`Options::packets`] a second from all senders, and at half of it from one node; that bounds
//! handshakes in flight and records of unknown nodes. Limits by address are off: the sender's
//! address can be forged, so a flood would have others banned, and would grow the table of
//! addresses. Packets of an address from which an answer is waited for pass at any rate; those are
//! bounded by how often the tasks run ([`super::paced_executor`]). One search runs at a time, every
//! [`SEARCH_WANTED`] while peers are wanted, else every [`SEARCH_IDLE`].

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use discv5::{
    ConfigBuilder, Discv5, Enr, Event, ListenConfig, ProtocolIdentity, RateLimiterBuilder,
};
use enr::{CombinedKey, NodeId};
use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::record::NodeRecord;
use tokio::{net::UdpSocket, sync::mpsc, task::JoinHandle};

use super::{candidate::Candidate, known::Origin, paced_executor::PacedExecutor};
use crate::node::Node;

/// Waku's network is not Ethereum's. Source: vacp2p/rfc-index 33.
const IDENTITY: ProtocolIdentity =
    ProtocolIdentity { protocol_id: *b"d5waku", protocol_version: [0, 1] };
/// Between two searches while peers are wanted, and else.
const SEARCH_WANTED: Duration = Duration::from_secs(10);
const SEARCH_IDLE: Duration = Duration::from_secs(300);
/// Interval of checks of the table, and whether to search.
const LOOK: Duration = Duration::from_secs(2);
/// Nodes that fit, of one search.
const FOUND_MAX: usize = 16;
/// A node that sends more than half of all packets is not heard for so long. Nodes of other
/// programs search without a pause while their network is small.
const BAN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Records in the table, and sessions.
    pub(crate) table: usize,
    /// Unsolicited packets a second.
    pub(crate) packets: u64,
    /// Whether this node may learn its address from peers: not if the operator stated it.
    pub(crate) learn_address: bool,
}

/// UDP sockets, bound to the addresses that are listened on by TCP.
pub(crate) async fn bind(listen: &[Multiaddr], port: u16) -> Result<Vec<UdpSocket>> {
    let ips = listen.iter().filter_map(|address| match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(IpAddr::V4(ip)),
        Some(Protocol::Ip6(ip)) => Some(IpAddr::V6(ip)),
        _ => None,
    });
    let ips: Vec<IpAddr> = ips.collect();
    let four = ips.iter().find(|ip| ip.is_ipv4());
    let six = ips.iter().find(|ip| ip.is_ipv6());
    let mut sockets = Vec::new();
    for ip in four.into_iter().chain(six) {
        let socket = UdpSocket::bind((*ip, port)).await;
        sockets.push(socket.with_context(|| {
            format!("cannot listen on UDP port {port} of {ip}: choose another with --discv5-port")
        })?);
    }
    if sockets.is_empty() {
        sockets.push(UdpSocket::bind(("0.0.0.0", port)).await.context("binding a UDP socket")?);
    }
    Ok(sockets)
}

pub(crate) struct Service {
    node: Arc<Node>,
    pub(crate) discv5: Arc<Discv5>,
    events: mpsc::Receiver<Event>,
    options: Options,
    search: Option<JoinHandle<Vec<Enr>>>,
    searched: Option<Instant>,
}

impl Service {
    /// Starts it on `sockets`. `record` is this node's own, `secret` its key.
    pub(crate) async fn start(
        node: Arc<Node>,
        options: Options,
        sockets: Vec<UdpSocket>,
        record: &NodeRecord,
        secret: &[u8; 32],
        bootstrap: &[NodeRecord],
    ) -> Result<Self> {
        let (mut ipv4, mut ipv6) = (None, None);
        for socket in sockets {
            match socket.local_addr()? {
                SocketAddr::V4(_) => ipv4 = Some(Arc::new(socket)),
                SocketAddr::V6(_) => ipv6 = Some(Arc::new(socket)),
            }
        }
        let limiter = RateLimiterBuilder::new()
            .total_n_every(options.packets, Duration::from_secs(1))
            .node_n_every(options.packets.div_ceil(2), Duration::from_secs(1))
            .build()
            .map_err(|error| anyhow!("the rate of discovery packets: {error}"))?;
        let mut config = ConfigBuilder::new(ListenConfig::FromSockets { ipv4, ipv6 });
        config
            .protocol_identity(IDENTITY)
            .executor(Box::new(PacedExecutor))
            .session_cache_capacity(options.table)
            .enable_packet_filter()
            .filter_rate_limiter(Some(limiter))
            .filter_max_nodes_per_ip(None)
            .filter_max_bans_per_ip(None)
            .ban_duration(Some(BAN));
        if !options.learn_address {
            config.disable_enr_update().auto_nat_listen_duration(None);
        }
        let mut bytes = *secret;
        let key = CombinedKey::secp256k1_from_bytes(&mut bytes)
            .map_err(|error| anyhow!("the node's key: {error}"))?;
        let own = enr_of(record).context("the node's own record")?;
        let mut discv5 =
            Discv5::new(own, key, config.build()).map_err(|error| anyhow!("discovery: {error}"))?;
        discv5.start().await.map_err(|error| anyhow!("starting discovery: {error:?}"))?;
        let events =
            discv5.event_stream().await.map_err(|error| anyhow!("discovery: {error:?}"))?;
        for known in bootstrap {
            add(&discv5, known);
            node.heard_of(known, Origin::Discv5);
        }
        let discv5 = Arc::new(discv5);
        Ok(Self { node, discv5, events, options, search: None, searched: None })
    }

    /// Runs until its task is ended.
    pub(crate) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::SessionEstablished(enr, _) | Event::Discovered(enr)) => {
                        self.heard_of(&enr);
                    }
                    Some(Event::SocketUpdated(_)) => self.note_own(),
                    Some(_) => {}
                    None => {
                        tracing::error!("discovery ended");
                        return;
                    }
                },
                found = async {
                    match &mut self.search {
                        Some(search) => search.await,
                        None => std::future::pending().await,
                    }
                } => {
                    self.search = None;
                    found.unwrap_or_default().iter().for_each(|enr| self.heard_of(enr));
                }
                _ = look.tick() => {
                    self.note_own();
                    self.cut();
                    self.search();
                }
            }
        }
    }

    fn heard_of(&self, enr: &Enr) {
        if let Ok(record) = enr.to_base64().parse() {
            self.node.heard_of(&record, Origin::Discv5);
        }
    }

    /// The own record as the protocol has it now: this node may have learned its address from
    /// peers.
    fn note_own(&self) {
        if let Ok(record) = self.discv5.local_enr().to_base64().parse() {
            self.node.set_own_record(record);
        }
    }

    /// Has nodes leave a table that is too large, those first that do not answer.
    fn cut(&self) {
        let count = self.discv5.with_kbuckets(|table| table.read().iter_ref().count());
        if count > self.options.table {
            let mut nodes = self.discv5.table_entries();
            nodes.sort_by_key(|(_, _, status)| status.is_connected());
            for (id, _, _) in nodes.iter().take(count - self.options.table) {
                self.discv5.remove_node(id);
            }
        }
        self.node.discovery_table.store(count.min(self.options.table) as u64, Relaxed);
    }

    fn search(&mut self) {
        let pause = if self.node.wants_peers.load(Relaxed) { SEARCH_WANTED } else { SEARCH_IDLE };
        let nobody = self.node.discovery_table.load(Relaxed) == 0;
        if nobody
            || self.search.is_some()
            || self.searched.is_some_and(|last| last.elapsed() < pause)
        {
            return;
        }
        self.searched = Some(Instant::now());
        let terms = self.node.criteria();
        let fits = move |enr: &Enr| {
            let record: Option<NodeRecord> = enr.to_base64().parse().ok();
            record.is_some_and(|record| Candidate::read(&record, &terms).is_ok())
        };
        let search = self.discv5.find_node_predicate(NodeId::random(), Box::new(fits), FOUND_MAX);
        self.search = Some(tokio::spawn(async move { search.await.unwrap_or_default() }));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(search) = &self.search {
            search.abort();
        }
    }
}

fn enr_of(record: &NodeRecord) -> Result<Enr> {
    record.to_string().parse().map_err(|error: String| anyhow!(error))
}

/// Adds a node to the table; it is asked at the next search.
pub(crate) fn add(discv5: &Discv5, record: &NodeRecord) {
    // A node without a UDP socket in its record is not asked, which is not an error.
    if record.udp.is_some()
        && let Ok(enr) = enr_of(record)
        && let Err(why) = discv5.add_enr(enr)
    {
        tracing::debug!(why, "a record did not get into the discovery table");
    }
}
