//! Finding peers: records of nodes from the discovery protocol, from lists in the DNS and from
//! other peers, and the choice of peers to dial.
//!
//! `known` and `walk` decide, without sockets, clocks or randomness of their own; `discv5`,
//! `node_lists` and [`crate::services::peer_exchange`] bring records; the swarm's task asks `known`
//! once per heartbeat which peers to dial, and reports the outcomes to it. A node without bootstrap
//! nodes and lists runs only `known`, which then holds static peers.

pub(crate) mod candidate;
pub(crate) mod discv5;
pub(crate) mod known;
mod node_lists;
pub(crate) mod own_record;
mod paced_executor;
mod walk;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use libp2p::Multiaddr;
use protocol::record::NodeRecord;
use tokio::task::JoinSet;

use self::{
    discv5::{Options, Service},
    node_lists::Lists,
};
use crate::{
    config::Config,
    node::Node,
    settings::{Settings, count},
};

/// Makes this node's record and starts the configured services; `addresses` are those that are
/// listened on. Dropping the tasks ends them.
pub(crate) async fn start(
    node: &Arc<Node>,
    config: &Config,
    secret: &[u8; 32],
    addresses: &[Multiaddr],
) -> Result<JoinSet<()>> {
    let sockets = if config.runs_discv5() {
        discv5::bind(&config.listen, config.discv5_port).await?
    } else {
        Vec::new()
    };
    let udp =
        sockets.iter().map(|socket| socket.local_addr()).collect::<Result<Vec<SocketAddr>, _>>()?;
    // Milliseconds since 1970: of two runs the later one has the higher number.
    let sequence = u64::try_from((node.clock)() / 1_000_000).unwrap_or(1);
    let settings = Settings { shards: node.shards(), ..node.settings.clone() };
    let content = own_record::content(&settings, &config.announce, addresses, &udp, sequence);
    let record = content.sign(secret).context("this node's record")?;
    node.set_own_record(record.clone());
    let mut tasks = JoinSet::new();
    let mut table = None;
    if config.runs_discv5() {
        let peers = &config.limits.peers;
        let options = Options {
            table: count(peers.discovery_table),
            packets: peers.discovery_packets_per_second,
            learn_address: config.announce.is_empty() && !node.is_on_loopback(),
        };
        let bootstrap = config.bootstrap_records()?;
        let service =
            Service::start(node.clone(), options, sockets, &record, secret, &bootstrap).await?;
        for socket in &udp {
            tracing::info!(%socket, "discovery listens");
        }
        table = Some(service.discv5.clone());
        tasks.spawn(service.run());
    }
    let follower = own_record::Follower::new(node.clone(), table.clone(), secret)?;
    tasks.spawn(follower.run());
    let lists = config.node_lists()?;
    if !lists.is_empty() {
        let names = count(config.limits.peers.node_list_names);
        let lists = Lists { lists, servers: config.dns_servers.clone(), names };
        tasks.spawn(node_lists::run(node.clone(), lists, table));
    }
    Ok(tasks)
}

/// The record of a node that does not run: of what it would serve at the addresses that were
/// announced or stated.
pub(crate) fn record_of(config: &Config, secret: &[u8; 32]) -> Result<NodeRecord> {
    let settings = config.settings();
    let udp = config.runs_discv5().then(|| SocketAddr::from(([0, 0, 0, 0], config.discv5_port)));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let sequence = u64::try_from(now.as_millis()).unwrap_or(1);
    let content =
        own_record::content(&settings, &config.announce, &config.listen, udp.as_slice(), sequence);
    content.sign(secret).context("this node's record")
}

pub(crate) fn bounds(limits: &relay_limits::Limits) -> known::Bounds {
    let peers = &limits.peers;
    known::Bounds {
        known: count(peers.known_peers),
        statics: count(limits.gossip.peers),
        outbound: count(peers.outbound_relay_peers),
        dials: count(peers.dials),
        retry: Duration::from_secs(peers.retry_seconds),
        retry_max: Duration::from_secs(peers.retry_seconds_max),
    }
}
