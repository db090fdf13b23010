//! Free ports, in one block per net.

use std::{
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use anyhow::{Context, Result, ensure};

/// Blocks are looked for from here on, below the ports that the kernel gives to outgoing
/// connections.
const FIRST: u16 = 18_000;
const LAST: u16 = 32_000;
/// Between the ports of HTTP and those of the other nodes: as many as there may be nodes.
pub(crate) const P2P_OFFSET: u16 = 100;
/// To those of the links.
pub(crate) const LINKS_OFFSET: u16 = 200;

/// Ports of a net that is being started, kept from other starts until this is dropped: then the
/// nodes hold them themselves.
pub(crate) struct Claim {
    pub(crate) base: u16,
    _claim: UnixListener,
}

/// How many ports a net takes from its base on.
fn size(nodes: usize, links: bool) -> usize {
    LINKS_OFFSET as usize + if links { nodes * nodes } else { 0 }
}

/// The block from `base` on, or the first free one.
pub(crate) fn claim(nodes: usize, links: bool, base: Option<u16>) -> Result<Claim> {
    let size = size(nodes, links);
    if let Some(base) = base {
        ensure!(
            usize::from(base) + size <= usize::from(u16::MAX),
            "--base-port {base}: {nodes} nodes take {size} ports from there on, and there are \
             none above {}",
            u16::MAX
        );
        // Nodes report ports in use by name; but two concurrent starts would not detect each other.
        return take(base)
            .map(|claim| Claim { base, _claim: claim })
            .with_context(|| format!("another net is just being started from port {base} on"));
    }
    let mut base = usize::from(FIRST);
    while base + size <= usize::from(LAST) {
        let first = base as u16;
        if let Ok(claim) = take(first)
            && is_free(first, nodes, links)
        {
            return Ok(Claim { base: first, _claim: claim });
        }
        base += size.next_multiple_of(1000);
    }
    anyhow::bail!(
        "no {size} free ports in a row between {FIRST} and {LAST}; name some with --base-port"
    )
}

fn take(base: u16) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("thimble-lab-net-{base}"))?)
}

fn is_free(base: u16, nodes: usize, links: bool) -> bool {
    let nodes = nodes as u16;
    let links = if links { nodes * nodes } else { 0 };
    let of = |offset: u16, count: u16| (base + offset)..(base + offset + count);
    of(0, nodes)
        .chain(of(P2P_OFFSET, nodes))
        .chain(of(LINKS_OFFSET, links))
        .all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_starts_at_once_get_different_ports() {
        let first = claim(4, true, None).unwrap();
        let second = claim(4, true, None).unwrap();
        assert_ne!(first.base, second.base);
        assert!(claim(4, true, Some(first.base)).is_err());
        let base = first.base;
        drop(first);
        assert_eq!(claim(4, true, Some(base)).unwrap().base, base);
        assert!(claim(100, true, Some(60_000)).is_err());
    }

    #[test]
    fn a_block_with_a_taken_port_is_passed_over() {
        let free = claim(4, true, None).unwrap().base;
        let _taken = TcpListener::bind(("127.0.0.1", free + LINKS_OFFSET + 7)).unwrap();
        assert_ne!(claim(4, true, None).unwrap().base, free);
    }
}
