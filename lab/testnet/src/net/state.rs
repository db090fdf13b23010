//! State of a net between two commands: a folder with a file that lists the nodes, their addresses,
//! their processes, and the faults of their links.
//!
//! ```text
//! DIR/net.json              this file
//! DIR/net.lock              held by the command that changes it
//! DIR/ceremony/             the plan, the dealings and the genesis
//! DIR/links.json orders for the relay, and relay.json, relay.log
//! DIR/node-N/data           the node's data folder
//! DIR/node-N/log, log.1 its output, bounded
//! DIR/node-N/series.jsonl   samples of its memory since its last start (thimble-lab cap), bounded
//! DIR/node-N/info.json      its process and its group
//! DIR/node-N/disk.qcow2 with machines: its disk, and config.img, its configuration
//! DIR/sockets/              with machines: between QEMU, the switch and us
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    handle::Handle,
    links::{Link, Links},
    machine::Machines,
};
use memory_cap::info::Info;

/// Version of the file.
const FORMAT: u32 = 1;
/// A hundred nodes and all their links take less.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest that a command waits for another one on the same net.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);

/// How nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Every node in a network namespace of its own, on a bridge. Needs root, ip and tc; slow needs
    /// a kernel with netem.
    Namespaces,
    /// Plain loopback; every link goes through a relay process, which can cut it and slow it. Needs
    /// nothing.
    Proxies,
    /// Plain loopback and nothing between the nodes: links cannot be cut or slowed.
    Direct,
    /// A switch between virtual machines, which can cut and slow links; it comes with `--backend
    /// vm`.
    #[value(skip)]
    Machines,
}

/// The mechanism that limits a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// A process group with a cap.
    #[default]
    Process,
    /// A virtual machine of QEMU's, with a kernel and a disk of its own. Needs no root, but an
    /// image: `thimble-lab image build`.
    Vm,
}

impl Backend {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Network {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Proxies => "proxies",
            Self::Direct => "direct",
            Self::Machines => "machines",
        }
    }
}

/// Kind of the nodes of a net.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// `thimble`: members of one subnet, or each its own.
    #[default]
    Subnet,
    /// `thimble-relay`: Waku nodes that gossip with each other, on one shard.
    Relays { cluster: u16, shard: u16 },
}

/// Last order to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LastCommand {
    #[default]
    Nothing,
    Run,
    Pause,
    Stop,
    Kill,
}

/// State of one node of a net.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) memory_bytes: u64,
    /// Where it serves; reachable from this machine whatever the network.
    pub(crate) http: SocketAddr,
    /// Where it listens for other nodes.
    pub(crate) p2p: SocketAddr,
    /// Where clients on this machine reach a relay that listens elsewhere for the others.
    #[serde(default)]
    pub(crate) clients: Option<SocketAddr>,
    /// Its id in the subnet, once there was a ceremony; of a relay, its peer id.
    pub(crate) node_id: Option<String>,
    /// More arguments for `thimble run`.
    pub(crate) arguments: Vec<String>,
    pub(crate) told: LastCommand,
    /// The process that keeps it within its group: `thimble-lab cap`.
    pub(crate) keeper: Option<Handle>,
    /// How often it was started.
    pub(crate) starts: u64,
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Where Waku clients reach a relay.
    pub(crate) fn multiaddr(&self) -> String {
        super::relays::multiaddr(self.clients.unwrap_or(self.p2p), self.node_id.as_deref())
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Net {
    pub(crate) format: u32,
    /// Names what belongs to it outside of its folder: namespaces, a bridge.
    pub(crate) id: String,
    /// The node's binary.
    pub(crate) binary: PathBuf,
    pub(crate) network: Network,
    /// The mechanism that runs the nodes.
    #[serde(default)]
    pub(crate) backend: Backend,
    /// With machines: what they have in common.
    #[serde(default)]
    pub(crate) machines: Option<Machines>,
    /// Kind of that binary.
    #[serde(default)]
    pub(crate) kind: Kind,
    /// With namespaces: whether this kernel can slow links.
    pub(crate) netem: bool,
    /// With namespaces: third byte of the addresses.
    pub(crate) address_block: u8,
    /// With proxies: first port of the links.
    pub(crate) links_port: u16,
    /// Every node a subnet of its own.
    pub(crate) independent: bool,
    pub(crate) sample_millis: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Links,
    pub(crate) relay: Option<Handle>,
    /// Counts the orders to the relay.
    pub(crate) generation: u64,
}

impl Net {
    pub(crate) fn new(place: &NetFolder, binary: PathBuf, network: Network) -> Self {
        Self {
            format: FORMAT,
            id: place.id(),
            binary,
            network,
            backend: Backend::default(),
            machines: None,
            kind: Kind::default(),
            netem: false,
            address_block: 0,
            links_port: 0,
            independent: false,
            sample_millis: 500,
            nodes: vec![],
            links: Links::default(),
            relay: None,
            generation: 0,
        }
    }

    /// Where node `from` dials node `to`.
    pub(crate) fn dialled(&self, (from, to): Link) -> SocketAddr {
        match self.network {
            Network::Namespaces | Network::Direct | Network::Machines => self.nodes[to].p2p,
            Network::Proxies => {
                let port = self.links_port as usize + from * self.nodes.len() + to;
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port as u16)
            }
        }
    }

    pub(crate) fn node(&self, index: usize) -> Result<&Node> {
        let last = self.nodes.len().saturating_sub(1);
        self.nodes
            .get(index)
            .with_context(|| format!("there is no node {index}; the nodes are 0 to {last}"))
    }

    /// Behind `thimble run`, what makes a node find the other members of its subnet.
    pub(crate) fn peer_arguments(&self, index: usize) -> Result<Vec<String>> {
        let node = self.node(index)?;
        let mut arguments: Vec<String> = Vec::new();
        if !self.is_subnet() {
            return Ok(arguments);
        }
        arguments.extend(["--p2p-listen".to_owned(), node.p2p.to_string()]);
        // All programs of the lab create canisters by the provisional methods. A node's own
        // arguments come later and may override this.
        if !node.arguments.iter().any(|argument| argument.starts_with("--provisional")) {
            arguments.extend(["--provisional".to_owned(), "true".to_owned()]);
        }
        for (peer, other) in self.nodes.iter().enumerate().filter(|(peer, _)| *peer != index) {
            let id = other.node_id.as_deref().context("the ceremony gave every node its id")?;
            arguments
                .extend(["--p2p-peer".to_owned(), format!("{id}={}", self.dialled((index, peer)))]);
        }
        Ok(arguments)
    }

    /// Whether nodes have anything to do with each other.
    pub(crate) fn is_linked(&self) -> bool {
        self.nodes.len() > 1 && !self.independent
    }

    /// Whether nodes agree with each other on anything.
    pub(crate) fn is_subnet(&self) -> bool {
        self.is_linked() && self.kind == Kind::Subnet
    }
}

/// The folder of a net, as an absolute path.
#[derive(Clone, Debug)]
pub(crate) struct NetFolder(PathBuf);

impl NetFolder {
    /// The folder need not be there yet.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        // Started processes outlive the working directory of the command that started them.
        Ok(Self(std::path::absolute(dir).with_context(|| format!("finding {}", dir.display()))?))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn node(&self, index: usize) -> PathBuf {
        self.0.join(format!("node-{index}"))
    }

    pub(crate) fn data(&self, index: usize) -> PathBuf {
        self.node(index).join("data")
    }

    pub(crate) fn log(&self, index: usize) -> PathBuf {
        self.node(index).join("log")
    }

    pub(crate) fn series(&self, index: usize) -> PathBuf {
        self.node(index).join("series.jsonl")
    }

    pub(crate) fn info_file(&self, index: usize) -> PathBuf {
        self.node(index).join("info.json")
    }

    pub(crate) fn info(&self, index: usize) -> Option<Info> {
        Info::read(&self.info_file(index))
    }

    pub(crate) fn keeper_log(&self, index: usize) -> PathBuf {
        self.node(index).join("keeper.log")
    }

    /// Six hexadecimal digits that follow from the path.
    fn id(&self) -> String {
        hex::encode(&Sha256::digest(self.0.as_os_str().as_encoded_bytes())[..3])
    }

    pub(crate) fn exists(&self) -> bool {
        self.file("net.json").exists()
    }

    /// Reads the file.
    pub(crate) fn load(&self) -> Result<Net> {
        let path = self.file("net.json");
        let read = || -> Result<Net> {
            let size = fs::metadata(&path)?.len();
            ensure!(
                size <= FILE_BYTES_MAX,
                "it has {size} bytes; at most {FILE_BYTES_MAX} make sense"
            );
            let net: Net = serde_json::from_slice(&fs::read(&path)?)?;
            ensure!(
                net.format == FORMAT,
                "its format is {}, this program knows {FORMAT}",
                net.format
            );
            Ok(net)
        };
        if !path.exists() {
            bail!(
                "there is no net in {}; make one with: thimble-lab net up --dir {0}",
                self.0.display()
            );
        }
        read().with_context(|| format!("reading {}", path.display()))
    }

    pub(crate) fn save(&self, net: &Net) -> Result<()> {
        self.write("net.json", &serde_json::to_vec_pretty(net)?)
    }

    /// A reader finds the old file or the new one.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.file(name);
        disk::replace_file(&path, bytes, disk::Readers::All)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Waits until no other command changes the net.
    pub(crate) fn lock(&self) -> Result<Lock> {
        fs::create_dir_all(&self.0)
            .with_context(|| format!("making the folder {}", self.0.display()))?;
        let path = self.file("net.lock");
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let mut said = false;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.rewind();
            let _ = (&file).take(32).read_to_string(&mut holder);
            if Instant::now() > deadline {
                bail!(
                    "process {} has held {} for more than {} s",
                    holder.trim(),
                    path.display(),
                    LOCK_TIMEOUT.as_secs()
                );
            }
            if !std::mem::replace(&mut said, true) {
                eprintln!(
                    "net: waiting for another command on {} (process {})",
                    self.0.display(),
                    holder.trim()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Lock(file))
    }
}

/// Held while a command changes a net.
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it is what frees the lock")] File);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_net_is_what_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let place = NetFolder::new(folder.path()).unwrap();
        assert!(format!("{:#}", place.load().unwrap_err()).contains("there is no net in"));
        let mut net = Net::new(&place, "thimble".into(), Network::Proxies);
        net.links_port = 7000;
        for index in 0..3_u16 {
            let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port + index));
            net.nodes.push(Node {
                index: index.into(),
                memory_bytes: 1,
                http: address(1000),
                p2p: address(2000),
                clients: None,
                node_id: None,
                arguments: vec![],
                told: LastCommand::Run,
                keeper: None,
                starts: 0,
            });
        }
        let _lock = place.lock().unwrap();
        place.save(&net).unwrap();
        let loaded = place.load().unwrap();
        assert_eq!(serde_json::to_value(&loaded).unwrap(), serde_json::to_value(&net).unwrap());
        assert_eq!(loaded.dialled((2, 1)).port(), 7007);
        assert_eq!(Net { network: Network::Direct, ..loaded.clone() }.dialled((2, 1)).port(), 2001);
        assert!(loaded.node(3).unwrap_err().to_string().contains("the nodes are 0 to 2"));
        assert!(loaded.is_subnet() && !Net { independent: true, ..loaded }.is_subnet());

        net.format = 2;
        place.save(&net).unwrap();
        assert!(format!("{:#}", place.load().unwrap_err()).contains("its format is 2"));
    }
}
