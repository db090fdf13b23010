//! This node's own record: its addresses and services, signed with its key.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use discv5::{Discv5, Enr};
use enr::CombinedKey;
use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::{
    enr_keys::{ADDRESSES_KEY, Capabilities, SHARD_BITS_KEY, SHARD_LIST_KEY, ShardList},
    record::RecordContent,
};

use super::known::Origin;
use crate::{node::Node, settings::Settings};

/// Has the record follow the shards that the node serves.
pub(crate) struct Follower {
    node: Arc<Node>,
    /// The discovery protocol, which has the record then, with an address that it may have learned.
    discv5: Option<Arc<Discv5>>,
    key: CombinedKey,
}

impl Follower {
    /// Errors: the secret is not a key.
    pub(crate) fn new(
        node: Arc<Node>,
        discv5: Option<Arc<Discv5>>,
        secret: &[u8; 32],
    ) -> Result<Self> {
        let mut bytes = *secret;
        let key = CombinedKey::secp256k1_from_bytes(&mut bytes)
            .map_err(|error| anyhow!("the node's key: {error}"))?;
        Ok(Self { node, discv5, key })
    }

    /// Runs until its task is ended.
    pub(crate) async fn run(self) {
        loop {
            self.node.shards_changed.notified().await;
            match self.update() {
                Ok(record) => tracing::info!(record, "this node's record names the shards"),
                Err(error) => tracing::warn!(
                    error = %format!("{error:#}"),
                    "this node's record does not name the shards that it serves now"
                ),
            }
            self.look_again();
        }
    }

    /// Makes the record of the shards served now; its text.
    fn update(&self) -> Result<String> {
        let shards = ShardList::new(self.node.settings.cluster, self.node.shards().iter())?;
        let text = match &self.discv5 {
            Some(discv5) => {
                let record = discv5.external_enr();
                let mut record = record.write();
                set_shards(&mut record, &self.key, &shards)?;
                record.to_base64()
            }
            None => {
                let record = self.node.own_record().context("there is no record yet")?;
                let record: Result<Enr, String> = record.to_string().parse();
                let mut record = record.map_err(|error| anyhow!(error))?;
                set_shards(&mut record, &self.key, &shards)?;
                record.to_base64()
            }
        };
        self.node.set_own_record(text.parse()?);
        Ok(text)
    }

    /// Nodes of the discovery table that served none of the shards before may serve one now.
    fn look_again(&self) {
        for record in self.discv5.iter().flat_map(|discv5| discv5.table_entries_enr()) {
            if let Ok(record) = record.to_base64().parse() {
                self.node.heard_of(&record, Origin::Discv5);
            }
        }
    }
}

/// Has the record name these shards, under the next number. Addresses for which the list leaves no
/// space go, as in a record that is made new. Errors: the shards alone do not fit.
fn set_shards(record: &mut Enr, key: &CombinedKey, shards: &ShardList) -> Result<()> {
    let (name, value) = shards.encode();
    let other = if name == SHARD_LIST_KEY { SHARD_BITS_KEY } else { SHARD_LIST_KEY };
    for left_out in [&[other][..], &[other, ADDRESSES_KEY][..]] {
        let set = record.remove_insert(left_out.iter(), [(name, &*value)].into_iter(), key);
        if set.is_ok() {
            return Ok(());
        }
    }
    Err(anyhow!("the shards do not fit a record"))
}

/// The content of the record.
///
/// `announced` are the addresses that the operator stated, `listening` those of its sockets, `udp`
/// the sockets of discovery. If there are announced addresses, only they count. An address of this
/// machine only, or of a private network, is in the record only if there is no better one.
pub(crate) fn content(
    settings: &Settings,
    announced: &[Multiaddr],
    listening: &[Multiaddr],
    udp: &[SocketAddr],
    sequence: u64,
) -> RecordContent {
    let mut capabilities = Capabilities::default();
    for (serves, capability) in [
        (settings.relay, Capabilities::RELAY),
        (settings.store, Capabilities::STORE),
        (settings.relay, Capabilities::FILTER),
        (settings.relay, Capabilities::LIGHT_PUSH),
        (settings.store_sync, Capabilities::SYNC),
    ] {
        if serves {
            capabilities = capabilities.with(capability);
        }
    }
    let shards = ShardList::new(settings.cluster, settings.shards.iter()).unwrap_or_default();
    let all: Vec<Address> = if announced.is_empty() { listening } else { announced }
        .iter()
        .filter_map(Address::read)
        .collect();
    let widest = all.iter().map(Address::reach).max().unwrap_or(Reach::Machine);
    let all: Vec<Address> = all.into_iter().filter(|address| address.reach() == widest).collect();
    let plain4 = all.iter().find_map(|address| match address {
        Address { host: Host::Ip(IpAddr::V4(ip)), port, is_plain: true, .. } => Some((*ip, *port)),
        _ => None,
    });
    let plain6 = all.iter().find_map(|address| match address {
        Address { host: Host::Ip(IpAddr::V6(ip)), port, is_plain: true, .. } => Some((*ip, *port)),
        _ => None,
    });
    let any4 = all.iter().find_map(|address| match address.host {
        Host::Ip(IpAddr::V4(ip)) => Some(ip),
        _ => None,
    });
    let in_keys = |address: &&Address| match address.host {
        Host::Ip(IpAddr::V4(ip)) => address.is_plain && plain4 == Some((ip, address.port)),
        Host::Ip(IpAddr::V6(ip)) => address.is_plain && plain6 == Some((ip, address.port)),
        Host::Name => false,
    };
    RecordContent {
        sequence,
        capabilities,
        shards,
        ip4: plain4.map(|(ip, port)| (ip, Some(port))).or(any4.map(|ip: Ipv4Addr| (ip, None))),
        ip6: plain6.map(|(ip, port): (Ipv6Addr, u16)| (ip, Some(port))),
        udp: (
            udp.iter().find(|socket| socket.is_ipv4()).map(SocketAddr::port),
            udp.iter().find(|socket| socket.is_ipv6()).map(SocketAddr::port),
        ),
        addresses: all
            .iter()
            .filter(|address| !in_keys(address))
            .map(|address| address.whole.to_vec())
            .collect(),
    }
}

/// The scope of an address, the narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Machine,
    Site,
    World,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Name,
}

#[derive(Clone, Debug)]
struct Address {
    host: Host,
    port: u16,
    /// TCP and nothing above it.
    is_plain: bool,
    /// Without a peer id.
    whole: Multiaddr,
}

impl Address {
    fn read(address: &Multiaddr) -> Option<Self> {
        let whole: Multiaddr =
            address.iter().take_while(|part| !matches!(part, Protocol::P2p(_))).collect();
        let mut parts = whole.iter();
        let host = match parts.next()? {
            Protocol::Ip4(ip) if !ip.is_unspecified() => Host::Ip(ip.into()),
            Protocol::Ip6(ip) if !ip.is_unspecified() => Host::Ip(ip.into()),
            Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) => Host::Name,
            _ => return None,
        };
        let Protocol::Tcp(port) = parts.next()? else { return None };
        let is_plain = parts.next().is_none();
        Some(Self { host, port, is_plain, whole })
    }

    fn reach(&self) -> Reach {
        match self.host {
            Host::Name => Reach::World,
            Host::Ip(ip) if ip.is_loopback() => Reach::Machine,
            Host::Ip(IpAddr::V4(ip)) if ip.is_private() || ip.is_link_local() => Reach::Site,
            Host::Ip(IpAddr::V6(ip)) if ip.is_unique_local() || ip.is_unicast_link_local() => {
                Reach::Site
            }
            Host::Ip(_) => Reach::World,
        }
    }
}

#[cfg(test)]
mod tests {
    use relay_limits::Limits;

    use super::*;

    fn made(announced: &[&str], listening: &[&str]) -> RecordContent {
        let limits = Limits::preset("tiny").unwrap();
        let eight = std::num::NonZeroU16::new(8).unwrap();
        let settings = Settings::new(16, &[1, 5], eight, true, 0, &limits);
        let read =
            |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<Multiaddr>>();
        content(
            &settings,
            &read(announced),
            &read(listening),
            &["0.0.0.0:9000".parse().unwrap()],
            9,
        )
    }

    #[test]
    fn what_was_announced_counts_and_else_the_widest_address() {
        let listening =
            ["/ip4/127.0.0.1/tcp/60000", "/ip4/10.1.2.3/tcp/60000", "/ip4/10.1.2.3/tcp/8000/ws"];
        let site = made(&[], &listening);
        assert_eq!(site.ip4, Some(([10, 1, 2, 3].into(), Some(60_000))));
        assert_eq!((site.addresses.len(), site.udp), (1, (Some(9000), None)));
        let world =
            made(&["/dns4/node.example.org/tcp/443/wss", "/ip4/203.0.113.5/tcp/30303"], &listening);
        assert_eq!(world.ip4, Some(([203, 0, 113, 5].into(), Some(30_303))));
        let name: Multiaddr = "/dns4/node.example.org/tcp/443/wss".parse().unwrap();
        assert_eq!(world.addresses, [name.to_vec()]);
        let machine = made(&[], &listening[..1]);
        assert_eq!(machine.ip4, Some(([127, 0, 0, 1].into(), Some(60_000))));
    }

    #[test]
    fn the_record_says_what_is_served() {
        let record = made(&["/ip4/203.0.113.5/tcp/30303"], &[]).sign(&[4; 32]).unwrap();
        assert_eq!(record.capabilities, Some(Capabilities(0b1111)));
        assert_eq!(record.shards, Some(ShardList::new(16, [1, 5]).unwrap()));
        let web = made(&["/ip4/203.0.113.5/tcp/8000/ws"], &[]);
        assert_eq!((web.ip4, web.addresses.len()), (Some(([203, 0, 113, 5].into(), None)), 1));
    }

    #[test]
    fn a_record_names_other_shards_under_the_next_number() {
        let mut bytes = [4; 32];
        let key = CombinedKey::secp256k1_from_bytes(&mut bytes).unwrap();
        let first = made(&["/ip4/203.0.113.5/tcp/30303", "/dns4/a.example.org/tcp/443/wss"], &[]);
        let first = first.sign(&[4; 32]).unwrap();
        let mut record: Enr = first.to_string().parse().unwrap();
        let mut set = |shards: &ShardList| -> protocol::record::NodeRecord {
            set_shards(&mut record, &key, shards).unwrap();
            record.to_base64().parse().unwrap()
        };
        let few = ShardList::new(16, [7]).unwrap();
        let second = set(&few);
        assert_eq!((second.shards.as_ref(), second.sequence), (Some(&few), first.sequence + 1));
        assert_eq!((&second.tcp, &second.addresses), (&first.tcp, &first.addresses));
        // Many are a field of bits, which takes the place of the list, and back.
        let many = ShardList::new(16, 0..100).unwrap();
        assert_eq!(set(&many).shards, Some(many));
        let none = ShardList::new(16, []).unwrap();
        let last = set(&none);
        assert_eq!((last.shards, last.sequence), (Some(none), first.sequence + 3));
        assert_eq!(last.public_key, first.public_key);
    }

    #[test]
    fn addresses_leave_a_record_whose_shards_need_their_space() {
        let mut bytes = [4; 32];
        let key = CombinedKey::secp256k1_from_bytes(&mut bytes).unwrap();
        let name = format!("/dns4/{}.example.org/tcp/443/wss", "a".repeat(50));
        let first = made(&["/ip4/203.0.113.5/tcp/30303", &name], &[]).sign(&[4; 32]).unwrap();
        assert_eq!(first.addresses.len(), 1);
        let mut record: Enr = first.to_string().parse().unwrap();
        let many = ShardList::new(16, 0..1000).unwrap();
        set_shards(&mut record, &key, &many).unwrap();
        let read: protocol::record::NodeRecord = record.to_base64().parse().unwrap();
        assert_eq!((read.shards, read.addresses.len()), (Some(many), 0));
        assert_eq!(read.tcp, first.tcp);
    }
}
