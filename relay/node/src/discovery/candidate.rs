//! Evaluation of node records: whether a node can be a peer of this one, and at which addresses it
//! is dialled.
//!
//! Records come from unknown nodes. Bounds of one: [`ADDRESSES_MAX`] addresses, each no longer than
//! a record. An address is dialled only if it is of a form this node's transports take, and of a
//! network this node is itself in: no party on the Internet can make a node dial into its own
//! network.

use std::net::IpAddr;

use bytes::Bytes;
use libp2p::{
    Multiaddr, PeerId,
    identity::{PublicKey, secp256k1},
    multiaddr::Protocol,
};
use protocol::{enr_keys::Capabilities, record::NodeRecord};
use router::Topics;
use thiserror::Error;

/// Addresses kept of one node.
pub(crate) const ADDRESSES_MAX: usize = 4;

/// Criteria for a node to be known as a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerCriteria {
    pub(crate) own: PeerId,
    pub(crate) cluster: u16,
    pub(crate) shards: Topics,
    /// Whether this node is reached on this machine only, so that others on it are too.
    pub(crate) loopback: bool,
}

/// Why a record is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unfit {
    #[error("its key is no libp2p key")]
    Key,
    #[error("it is this node's own")]
    Own,
    #[error("it names no Waku services or shards")]
    NotWaku,
    #[error("it is of cluster {0}")]
    Cluster(u16),
    #[error("it shares no shard")]
    Shards,
    #[error("it has no address that can be dialled")]
    Address,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) peer: PeerId,
    pub(crate) sequence: u64,
    /// The record, to be given to others.
    pub(crate) record: Bytes,
    /// Whether every stock client takes it.
    pub(crate) shareable: bool,
    /// Shards that it serves; this node's may change.
    pub(crate) shards: Topics,
    /// Whether it relays.
    pub(crate) relays: bool,
    /// At least one; each with the peer id at its end.
    pub(crate) addresses: Vec<Multiaddr>,
}

/// The peer id that follows from a record's key.
pub(crate) fn peer_of(record: &NodeRecord) -> Option<PeerId> {
    let key = secp256k1::PublicKey::try_from_bytes(&record.public_key).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

impl Candidate {
    /// Reads a record. Errors: see [`Unfit`].
    pub(crate) fn read(record: &NodeRecord, terms: &PeerCriteria) -> Result<Self, Unfit> {
        let (Some(capabilities), Some(theirs)) = (record.capabilities, &record.shards) else {
            return Err(Unfit::NotWaku);
        };
        if theirs.cluster() != terms.cluster {
            return Err(Unfit::Cluster(theirs.cluster()));
        }
        let mut shards = Topics::default();
        for shard in theirs.shards() {
            shards.insert(*shard);
        }
        if !shards.shares(&terms.shards) {
            return Err(Unfit::Shards);
        }
        let peer = peer_of(record).ok_or(Unfit::Key)?;
        if peer == terms.own {
            return Err(Unfit::Own);
        }
        let plain = record
            .tcp
            .iter()
            .map(|socket| Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port())));
        let mut readable = true;
        let further = record.addresses.iter().filter_map(|bytes| {
            let address = Multiaddr::try_from(bytes.to_vec()).ok();
            readable &= address.is_some();
            address
        });
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for address in plain.chain(further) {
            if let Some(address) = dialable(&address, peer, terms.loopback)
                && !addresses.contains(&address)
                && addresses.len() < ADDRESSES_MAX
            {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(Unfit::Address);
        }
        Ok(Self {
            peer,
            sequence: record.sequence,
            record: record.bytes.clone(),
            shareable: readable && !record.tcp_without_ip,
            shards,
            relays: capabilities.has(Capabilities::RELAY),
            addresses,
        })
    }
}

/// The address with the peer at its end, if this node's transports take it.
fn dialable(address: &Multiaddr, peer: PeerId, loopback: bool) -> Option<Multiaddr> {
    let mut parts = address.iter();
    let host = parts.next()?;
    match &host {
        Protocol::Ip4(ip) if is_reachable(IpAddr::V4(*ip), loopback) => {}
        Protocol::Ip6(ip) if is_reachable(IpAddr::V6(*ip), loopback) => {}
        Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) => {}
        _ => return None,
    }
    let port @ Protocol::Tcp(1..) = parts.next()? else { return None };
    let mut dialled = Multiaddr::empty().with(host).with(port);
    for part in parts {
        match part {
            Protocol::Ws(_) | Protocol::Wss(_) | Protocol::Tls | Protocol::Sni(_) => {
                dialled.push(part)
            }
            Protocol::P2p(named) if named == peer => break,
            _ => return None,
        }
    }
    Some(dialled.with(Protocol::P2p(peer)))
}

fn is_reachable(ip: IpAddr, loopback: bool) -> bool {
    let ip = match ip {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    };
    if ip.is_unspecified() || ip.is_multicast() || (ip.is_loopback() && !loopback) {
        return false;
    }
    match ip {
        IpAddr::V4(four) => !four.is_broadcast() && !four.is_link_local(),
        IpAddr::V6(six) => !six.is_unicast_link_local(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use protocol::{enr_keys::ShardList, record::RecordContent};

    use super::*;

    pub(crate) fn terms() -> PeerCriteria {
        let mut shards = Topics::default();
        assert!((0..8).all(|shard| shards.insert(shard)));
        PeerCriteria { own: PeerId::random(), cluster: 16, shards, loopback: false }
    }

    pub(crate) fn record(number: u8, cluster: u16, shards: &[u16], ip: Ipv4Addr) -> RecordContent {
        RecordContent {
            sequence: u64::from(number),
            capabilities: Capabilities::RELAY,
            shards: ShardList::new(cluster, shards.iter().copied()).unwrap(),
            ip4: Some((ip, Some(60_000))),
            ..RecordContent::default()
        }
    }

    const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

    fn read(content: &RecordContent, terms: &PeerCriteria) -> Result<Candidate, Unfit> {
        Candidate::read(&content.sign(&[9; 32]).unwrap(), terms)
    }

    #[test]
    fn only_nodes_of_the_cluster_that_share_a_shard_are_known() {
        let terms = terms();
        let known = read(&record(1, 16, &[7, 8], PUBLIC), &terms).unwrap();
        assert!(known.relays && known.shareable);
        assert_eq!(known.shards.iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(
            known.addresses[0].to_string(),
            format!("/ip4/203.0.113.7/tcp/60000/p2p/{}", known.peer)
        );
        assert_eq!(read(&record(1, 2, &[7], PUBLIC), &terms), Err(Unfit::Cluster(2)));
        assert_eq!(read(&record(1, 16, &[8, 9], PUBLIC), &terms), Err(Unfit::Shards));
        let own = PeerCriteria { own: known.peer, ..terms };
        assert_eq!(read(&record(1, 16, &[7], PUBLIC), &own), Err(Unfit::Own));
    }

    #[test]
    fn loopback_and_special_addresses_are_unfit_by_default() {
        let terms = terms();
        for ip in
            [[127, 0, 0, 1], [0, 0, 0, 0], [224, 0, 0, 1], [255, 255, 255, 255], [169, 254, 1, 1]]
        {
            let content = record(1, 16, &[1], ip.into());
            assert_eq!(read(&content, &terms), Err(Unfit::Address), "{ip:?}");
        }
        let local = PeerCriteria { loopback: true, ..terms };
        assert!(read(&record(1, 16, &[1], Ipv4Addr::LOCALHOST), &local).is_ok());
    }

    #[test]
    fn addresses_of_other_transports_and_peers_are_left_out() {
        let other = PeerId::random();
        let texts = [
            "/ip4/203.0.113.7/udp/60000/quic-v1".to_owned(),
            format!("/ip4/203.0.113.7/tcp/1/p2p/{other}/p2p-circuit"),
            "/dns4/node.example.org/tcp/8000/wss".to_owned(),
        ];
        let addresses =
            texts.iter().map(|text| text.parse::<Multiaddr>().unwrap().to_vec()).collect();
        let content = RecordContent { ip4: None, addresses, ..record(1, 16, &[1], PUBLIC) };
        let known = read(&content, &terms()).unwrap();
        assert_eq!(known.addresses.len(), 1);
        assert!(
            known.addresses[0].to_string().starts_with("/dns4/node.example.org/tcp/8000/wss/p2p/")
        );
        let damaged =
            RecordContent { addresses: vec![vec![255; 9]], ..record(1, 16, &[1], PUBLIC) };
        assert!(!read(&damaged, &terms()).unwrap().shareable, "a Go client would read it for ever");
    }
}
