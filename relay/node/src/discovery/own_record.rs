//! This node's own record: its addresses and services, signed with its key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::{
    enr_keys::{Capabilities, ShardList},
    record::RecordContent,
};

use crate::settings::Settings;

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
}
