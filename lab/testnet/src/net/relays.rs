//! Nets whose nodes are Waku relays: their keys, their topology, their start; and the addresses for
//! others.
//!
//! Each relay dials its next `NEIGHBOURS` in a ring, so that a node has at most twice as many
//! peers. From eight nodes on, no node is connected to the opposite one in the ring: messages reach
//! it by gossip over others.
//!
//! Bounds: the nodes of a net. Must never know: messages of clients to relays.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::state::{Kind, Net, NetFolder};

/// Relays that each dials: twice as many peers are what gossip wants in a mesh.
const NEIGHBOURS: usize = 3;
/// The key of a relay in its data folder.
pub(crate) const KEY_FILE: &str = "relay.key";
/// A peer id has about 50 letters.
const PEER_ID_CHARS_MAX: usize = 128;

/// Where Waku clients reach it.
pub(crate) fn multiaddr(address: SocketAddr, peer: Option<&str>) -> String {
    let protocol = if address.is_ipv4() { "ip4" } else { "ip6" };
    let peer = peer.map_or_else(String::new, |peer| format!("/p2p/{peer}"));
    format!("/{protocol}/{}/tcp/{}{peer}", address.ip(), address.port())
}

/// Whom node `index` of `count` dials. Of two nodes one dials the other.
fn dialled_by(index: usize, count: usize) -> Vec<usize> {
    (1..=NEIGHBOURS)
        .take_while(|step| step * 2 <= count)
        // Across the ring it is the same from both sides.
        .filter(|step| step * 2 < count || index < count / 2)
        .map(|step| (index + step) % count)
        .collect()
}

/// Makes the keys that are missing, with the relay's own command, and notes the peer ids.
pub(crate) fn make_keys(net: &mut Net, place: &NetFolder) -> Result<()> {
    for index in 0..net.nodes.len() {
        if net.node(index)?.node_id.is_some() {
            continue;
        }
        let data = place.data(index);
        fs::create_dir_all(&data)
            .with_context(|| format!("making the folder {}", data.display()))?;
        let mut command = Command::new(&net.binary);
        command.args(["key", "--data-dir"]).arg(&data);
        let output =
            command.output().with_context(|| format!("running {}", net.binary.display()))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("making the key of node {index}: {}, {why}", output.status);
        }
        let plain = said.chars().all(|letter| letter.is_ascii_alphanumeric());
        ensure!(
            plain && (1..=PEER_ID_CHARS_MAX).contains(&said.len()),
            "{} is no relay: for its peer id it prints something else",
            net.binary.display()
        );
        if let Some(node) = net.nodes.get_mut(index) {
            node.node_id = Some(said);
        }
    }
    Ok(())
}

/// Behind the name of the program, the arguments that start a node.
pub(crate) fn arguments(net: &Net, place: &NetFolder, index: usize) -> Result<Vec<String>> {
    let node = net.node(index)?;
    let mut arguments = vec!["run".to_owned()];
    for (flag, value) in [
        ("--memory", node.memory_bytes.to_string()),
        ("--data-dir", place.data(index).display().to_string()),
    ] {
        if !node.arguments.iter().any(|argument| argument == flag) {
            arguments.extend([flag.to_owned(), value]);
        }
    }
    arguments.extend(network_arguments(net, index, node.p2p, node.http)?);
    Ok(arguments)
}

/// The arguments for its addresses and its peers.
pub(crate) fn network_arguments(
    net: &Net,
    index: usize,
    listen: SocketAddr,
    http: SocketAddr,
) -> Result<Vec<String>> {
    let Kind::Relays { cluster, shard } = net.kind else { bail!("the nodes are no relays") };
    let node = net.node(index)?;
    let mut arguments: Vec<String> = Vec::new();
    for (flag, value) in [
        ("--cluster", cluster.to_string()),
        ("--shard", shard.to_string()),
        ("--listen", multiaddr(listen, None)),
        ("--http", http.to_string()),
        ("--log", "warn".to_owned()),
    ] {
        // A node's own arguments come later, and a flag may be given once.
        if !node.arguments.iter().any(|argument| argument == flag) {
            arguments.extend([flag.to_owned(), value]);
        }
    }
    for peer in dialled_by(index, net.nodes.len()) {
        let id = net.node(peer)?.node_id.as_deref().context("every relay has a key")?;
        arguments.extend(["--peer".to_owned(), multiaddr(net.dialled((index, peer)), Some(id))]);
    }
    Ok(arguments)
}

/// A relay of a net, for programs that work on it.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Where clients reach it.
    pub multiaddr: String,
    /// The cap of its process group.
    pub memory_bytes: u64,
    /// Its process and its group, as `thimble-lab cap` writes it.
    pub info_file: PathBuf,
    /// Samples and events, as `thimble-lab cap` writes them.
    pub series: PathBuf,
}

/// The relays of a net.
#[derive(Clone, Debug)]
pub struct Relays {
    /// Of all of them.
    pub cluster: u16,
    /// Of all of them.
    pub shard: u16,
    /// In the order of their numbers.
    pub relays: Vec<Relay>,
}

impl Relays {
    /// Reads the folder of a net. Errors: there is none, its nodes are not relays, or one was never
    /// started.
    pub fn read(dir: &Path) -> Result<Self> {
        let place = NetFolder::new(dir)?;
        let net = place.load()?;
        let Kind::Relays { cluster, shard } = net.kind else {
            bail!(
                "the nodes of the net in {} are no Waku relays; start some with: thimble-lab net \
                 up --relay 8 --dir DIR",
                place.dir().display()
            );
        };
        let relay = |node: &super::state::Node| {
            ensure!(
                node.node_id.is_some(),
                "node {} was never started; thimble-lab net up does",
                node.index
            );
            Ok(Relay {
                multiaddr: node.multiaddr(),
                memory_bytes: node.memory_bytes,
                info_file: place.info_file(node.index),
                series: place.series(node.index),
            })
        };
        Ok(Self { cluster, shard, relays: net.nodes.iter().map(relay).collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Pairs of connected nodes.
    fn links(count: usize) -> BTreeSet<(usize, usize)> {
        let mut links = BTreeSet::new();
        for index in 0..count {
            for peer in dialled_by(index, count) {
                let new = links.insert((index.min(peer), index.max(peer)));
                assert!(new && peer != index, "{index} and {peer} of {count} dial each other once");
            }
        }
        links
    }

    #[test]
    fn every_relay_has_the_same_number_of_peers_and_the_one_across_the_ring_is_none() {
        for count in 2..=20 {
            let links = links(count);
            let degree =
                |node: usize| links.iter().filter(|(a, b)| *a == node || *b == node).count();
            let expected = (count - 1).min(2 * NEIGHBOURS);
            assert!((0..count).all(|node| degree(node) == expected), "{count}: {links:?}");
        }
        assert!((0..4).all(|node| !links(8).contains(&(node, node + 4))));
    }

    #[test]
    fn addresses_are_written_as_waku_clients_read_them() {
        let address: SocketAddr = "127.0.0.1:60000".parse().unwrap();
        assert_eq!(multiaddr(address, None), "/ip4/127.0.0.1/tcp/60000");
        let six: SocketAddr = "[::1]:7".parse().unwrap();
        assert_eq!(multiaddr(six, Some("16Uiu2")), "/ip6/::1/tcp/7/p2p/16Uiu2");
    }
}
