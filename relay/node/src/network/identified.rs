//! What a connected peer says of itself by the identify protocol: its protocols and its program.
//!
//! Nothing of it is relied on; it is shown to the operator. Bounds: a set over a fixed list of
//! names, eight bytes for each connection, so a peer that lists many protocols costs no more than
//! another; names that are not in the list are not kept. A program's name is cut at
//! [`AGENT_BYTES_MAX`]. Both are a part of [`relay_limits::ConnectionLimits::connection_bytes`].

use std::sync::Arc;

use protocol::{filter, gossip, light_push, metadata, peer_exchange, store};

/// Names of the Waku network and of libp2p, services of Waku first.
static NAMES: [&str; NAMES_COUNT] = [
    gossip::PROTOCOL,
    filter::SUBSCRIBE_PROTOCOL,
    filter::PUSH_PROTOCOL,
    store::PROTOCOL,
    light_push::PROTOCOL,
    light_push::PROTOCOL_V2,
    peer_exchange::PROTOCOL,
    RECONCILIATION,
    TRANSFER,
    metadata::PROTOCOL,
    "/vac/waku/filter/2.0.0-beta1",
    "/vac/waku/store/2.0.0-beta4",
    "/vac/waku/rendezvous/1.0.0",
    "/rendezvous/1.0.0",
    "/mix/1.0.0",
    "/ipfs/kad/1.0.0",
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/libp2p/autonat/1.0.0",
    "/libp2p/autonat/2/dial-request",
    "/libp2p/autonat/2/dial-back",
    "/libp2p/circuit/relay/0.2.0/hop",
    "/libp2p/circuit/relay/0.2.0/stop",
    "/libp2p/dcutr",
    "/meshsub/1.1.0",
    "/meshsub/1.0.0",
    "/floodsub/1.0.0",
];
const NAMES_COUNT: usize = 28;
/// Store synchronisation of reference nodes.
const RECONCILIATION: &str = "/vac/waku/reconciliation/1.0.0";
const TRANSFER: &str = "/vac/waku/transfer/1.0.0";
/// The first of the names: services that a client can ask for, as reference nodes list them.
const SERVICES: usize = 9;
/// Longest name of a program that is kept, in bytes.
const AGENT_BYTES_MAX: usize = 64;

const _: () = assert!(NAMES_COUNT <= u64::BITS as usize && SERVICES <= NAMES_COUNT);

/// The protocols that a peer speaks, of those that are known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpokenProtocols(u64);

impl SpokenProtocols {
    /// Those of a list.
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut spoken = Self::default();
        names.into_iter().for_each(|name| spoken.insert(name));
        spoken
    }

    /// Adds one, if it is known.
    pub(crate) fn insert(&mut self, name: &str) {
        self.0 |= bit(name);
    }

    /// Whether one of them is a service of Waku.
    pub(crate) fn has_service(self) -> bool {
        self.0 & ((1 << SERVICES) - 1) != 0
    }

    /// Their names.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let all = NAMES.iter().copied().enumerate();
        all.filter(move |(at, _)| (self.0 >> at) & 1 == 1).map(|(_, name)| name)
    }
}

/// The services of Waku.
pub(crate) fn services() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().take(SERVICES)
}

/// Zero for a name that is not known.
fn bit(name: &str) -> u64 {
    NAMES.iter().position(|known| *known == name).map_or(0, |at| 1 << at)
}

/// The name of a peer's program as it is shown, in metrics too: without control characters, quotes
/// and backslashes, and not too long.
pub(crate) fn agent(text: &str) -> Arc<str> {
    let is_plain = |char: &char| !char.is_control() && !['"', '\\'].contains(char);
    let mut kept: String = text.chars().filter(is_plain).take(AGENT_BYTES_MAX).collect();
    kept.truncate(kept.floor_char_boundary(AGENT_BYTES_MAX));
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_kept_by_name_and_unknown_ones_are_not() {
        let said = ["/ipfs/ping/1.0.0", "/nobody/knows/1", gossip::PROTOCOL, "/ipfs/ping/1.0.0"];
        let spoken = SpokenProtocols::of(said);
        assert_eq!(spoken.names().collect::<Vec<_>>(), [gossip::PROTOCOL, "/ipfs/ping/1.0.0"]);
        assert!(spoken.has_service());
        let client = SpokenProtocols::of(["/ipfs/id/1.0.0", metadata::PROTOCOL]);
        assert!(!client.has_service());
        assert_eq!(SpokenProtocols::of(NAMES).names().collect::<Vec<_>>(), NAMES);
    }

    #[test]
    fn every_name_is_there_once_and_services_come_first() {
        for (at, name) in NAMES.iter().enumerate() {
            assert_eq!(NAMES.iter().position(|other| other == name), Some(at), "{name}");
            assert_eq!(SpokenProtocols::of([*name]).has_service(), at < SERVICES, "{name}");
        }
        assert!(
            NAMES[..SERVICES].contains(&TRANSFER)
                && !NAMES[..SERVICES].contains(&metadata::PROTOCOL)
        );
    }

    #[test]
    fn a_programs_name_is_short_and_printable() {
        assert_eq!(&*agent("nwaku-v0.38.0"), "nwaku-v0.38.0");
        assert_eq!(&*agent("a\nb\u{1b}[31m\0\"\\"), "ab[31m");
        assert_eq!(agent(&"x".repeat(4096)).len(), AGENT_BYTES_MAX);
        let wide = agent(&"ä€".repeat(100));
        assert!(wide.len() <= AGENT_BYTES_MAX && wide.starts_with("ä€"));
    }
}
