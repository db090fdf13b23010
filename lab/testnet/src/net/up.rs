//! `net up`: starts a new net, or what does not run of one that is there.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use accounting::{format_size, parse_size};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::{
    ceremony,
    links::Links,
    machine::{self, Machines},
    namespaces,
    ports::{self, Claim, LINKS_OFFSET, P2P_OFFSET},
    reading::{self, Asker},
    relays,
    session::Session,
    state::{Backend, Kind, LastCommand, Net, NetFolder, Network, Node},
    status,
    topology::Topology,
    wait::{self, Goal},
};

/// `thimble-lab net up`
#[derive(Args)]
pub(crate) struct Options {
    /// How many nodes. [default: 4]
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// Start this number of Waku relays instead of nodes of a subnet. Each dials its three next
    /// neighbours in a ring; messages reach the others by gossip.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["nodes", "topology", "independent"])]
    pub(crate) relay: Option<usize>,
    /// Cluster of the relays.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "relay")]
    pub(crate) cluster: u16,
    /// Shard of the relays.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "relay")]
    pub(crate) shard: u16,
    /// Budget of each node, and cap of its process group. [default: 512MiB, of relays 128MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// A file for nets whose nodes or links are not all alike (docs/net.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "memory"])]
    pub(crate) topology: Option<PathBuf>,
    /// First port: the nodes' HTTP endpoints from there on, their ports for each other from 100
    /// above, links from 200 above. [default: the first free block from 18000 on]
    #[arg(long, value_name = "N")]
    pub(crate) base_port: Option<u16>,
    /// What holds each node within its memory. [default: process]
    #[arg(long)]
    pub(crate) backend: Option<Backend>,
    /// With --backend vm: folder of the cache with the image. [default: as `thimble-lab image`]
    #[arg(long, value_name = "DIR")]
    pub(crate) image_cache: Option<PathBuf>,
    /// With --backend vm: size of each machine's disk; it takes room on this host as it is
    /// written. [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// With --backend vm: a node's budget may be more than its machine has left.
    #[arg(long)]
    pub(crate) overcommit: bool,
    /// How nodes reach each other. [default: see above]
    #[arg(long, conflicts_with_all = ["image_cache", "overcommit", "disk"])]
    pub(crate) network: Option<Network>,
    /// The node's binary. [default: thimble, or thimble-relay, in the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) node: Option<PathBuf>,
    /// How long the nodes may take until all serve. [default: 60, with --backend vm 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
    /// Time between two samples of a node's memory.
    #[arg(long, value_name = "MILLIS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub(crate) sample_millis: u64,
    /// Every node a subnet of its own: no ceremony, and no links.
    #[arg(long, hide = true)]
    pub(crate) independent: bool,
    /// More arguments for every `thimble run`.
    #[arg(last = true, value_name = "NODE ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

/// Of a node, when nothing is stated.
const MEMORY: &str = "512MiB";
/// Until all serve.
const WAIT_SECONDS: u64 = 60;
/// The same of machines, whose processors may be emulated.
const MACHINE_WAIT_SECONDS: u64 = 300;
/// Of a machine's disk: more than a node's stores grow to in a day of tests.
const MACHINE_DISK: &str = "4GiB";
/// Of a relay.
const RELAY_MEMORY: &str = "128MiB";

impl Options {
    fn backend(&self) -> Backend {
        self.backend.unwrap_or_default()
    }

    fn count(&self) -> Option<usize> {
        self.relay.or(self.nodes)
    }

    fn kind(&self) -> Kind {
        match self.relay {
            Some(_) => Kind::Relays { cluster: self.cluster, shard: self.shard },
            None => Kind::Subnet,
        }
    }
}

fn say(words: &str) {
    println!("net: {words}");
}

/// Runs until all nodes serve, or `stop`.
pub(crate) async fn run(
    place: NetFolder,
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<ExitCode> {
    let began = Instant::now();
    let (mut session, _ports) = prepare(place, &options)?;
    let mut started = Vec::new();
    let done = {
        let work = async {
            let all: Vec<usize> = (0..session.net.nodes.len()).collect();
            if session.net.backend == Backend::Vm {
                let to_start = all.iter().filter(|index| !session.condition(**index).runs());
                let sizes = to_start.map(|index| session.net.nodes[*index].memory_bytes);
                machine::ensure_room(&sizes.collect::<Vec<_>>())?;
            }
            session.connect()?;
            if session.net.is_subnet() {
                ceremony::perform(&mut session.net, &session.place, say)?;
                session.save()?;
            }
            if let Kind::Relays { .. } = session.net.kind {
                relays::make_keys(&mut session.net, &session.place)?;
                session.save()?;
            }
            for index in &all {
                // A chance for Ctrl-C between two of them.
                tokio::task::yield_now().await;
                if session.start(*index)? {
                    started.push(*index);
                }
            }
            let words = match started.len() {
                0 => "all of them run already".to_owned(),
                count if count == all.len() => format!("{count} nodes are started"),
                count => {
                    format!("{count} of {} nodes are started, the others run already", all.len())
                }
            };
            say(&format!("{words}; waiting until every one serves"));
            let timeout = Duration::from_secs(options.wait.unwrap_or(match session.net.backend {
                Backend::Process => WAIT_SECONDS,
                Backend::Vm => MACHINE_WAIT_SECONDS,
            }));
            let goal = Goal { moving: session.net.is_subnet(), timeout };
            let asker = Asker::new()?;
            wait::until_serving(&session, &asker, &all, goal, say).await?;
            anyhow::Ok(reading::rows(&session.net, &session.place, &asker).await)
        };
        tokio::select! {
            done = work => Some(done),
            () = stop => None,
        }
    };
    let Some(done) = done else {
        say("stopping what was started");
        session.stop(&started)?;
        if started.len() == session.net.nodes.len() {
            session.disconnect()?;
        }
        return Ok(cli::interrupted());
    };
    // A net that no node was ever started of leaves nothing behind.
    if done.is_err() && session.net.nodes.iter().all(|node| node.starts == 0) {
        session.disconnect()?;
    }
    let rows = done?;
    say(&format!("every node serves, {:.1} s after the command", began.elapsed().as_secs_f64()));
    print!("{}", status::table(&session.net, &rows));
    if let Some(words) = status::machines_summary(&session.net, &rows) {
        say(&words);
    }
    say(&format!("in {}; stop it with: thimble-lab net down", session.place.dir().display()));
    Ok(ExitCode::SUCCESS)
}

/// The net as it is, or a new one that nothing was started of yet; and its ports, kept for as long
/// as they are not taken.
fn prepare(place: NetFolder, options: &Options) -> Result<(Session, Option<Claim>)> {
    let lock = place.lock()?;
    let wanted = match &options.topology {
        Some(file) => Some(Topology::read(file)?),
        None if options.count().is_none() && options.memory.is_none() && place.exists() => None,
        None => {
            let nodes = match options.count() {
                Some(nodes) => nodes,
                None if place.exists() => place.load()?.nodes.len(),
                None => 4,
            };
            let memory = if options.relay.is_some() { RELAY_MEMORY } else { MEMORY };
            Some(Topology::uniform(nodes, options.memory.as_deref().unwrap_or(memory), None)?)
        }
    };
    if place.exists() {
        let net = place.load()?;
        let memory: Vec<u64> = net.nodes.iter().map(|node| node.memory_bytes).collect();
        let kind = options.relay.map(|_| options.kind()).filter(|kind| *kind != net.kind);
        let kind = kind.map(|_| match net.kind {
            Kind::Subnet => "has no relays but nodes of a subnet".to_owned(),
            Kind::Relays { cluster, shard } => {
                format!("has relays on cluster {cluster} and shard {shard}")
            }
        });
        let other = kind.or_else(|| wanted?.differs_from(&memory)).or_else(|| {
            let other = options.network.filter(|network| *network != net.network)?;
            Some(format!("is connected by {}, not {}", net.network.name(), other.name()))
        });
        let other = other.or_else(|| {
            let other = options.backend.filter(|backend| *backend != net.backend)?;
            Some(format!("has the backend {}, not {}", net.backend.name(), other.name()))
        });
        if let Some(how) = other {
            bail!(
                "the net in {} {how}; name another folder with --dir, or remove this net with: \
                 thimble-lab net down --delete",
                place.dir().display()
            );
        }
        // Detected again: QEMU or the image may be newer than at the last start.
        return Ok((Session::new(place, net, lock), None));
    }
    let topology = wanted.context("a new net has a topology")?;
    let (net, claim) = plan(&place, options, &topology)?;
    let sum: u64 = net.nodes.iter().map(|node| node.memory_bytes).sum();
    say(&format!(
        "{} nodes, {} in all, connected by {}",
        net.nodes.len(),
        format_size(sum),
        if net.is_linked() { net.network.name() } else { "nothing" }
    ));
    place.save(&net)?;
    Ok((Session::new(place, net, lock), Some(claim)))
}

/// A net that is not there yet.
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn plan(place: &NetFolder, options: &Options, topology: &Topology) -> Result<(Net, Claim)> {
    let count = topology.nodes.len();
    let network = match options.backend() {
        Backend::Process => {
            for (given, flag) in [
                (options.image_cache.is_some(), "--image-cache"),
                (options.overcommit, "--overcommit"),
                (options.disk.is_some(), "--disk"),
            ] {
                ensure!(!given, "{flag} is for machines: --backend vm");
            }
            choose(options.network)?
        }
        Backend::Vm => {
            ensure!(
                options.network.is_none(),
                "--network is for process groups; with --backend vm a switch lies between the \
                 machines"
            );
            Network::Machines
        }
    };
    let mut net = Net::new(place, binary(options)?, network);
    net.kind = options.kind();
    net.backend = options.backend();
    if net.backend == Backend::Vm {
        let wanted = machine::MachineOptions {
            cache: options.image_cache.as_deref(),
            disk_bytes: parse_size(options.disk.as_deref().unwrap_or(MACHINE_DISK))?,
            overcommit: options.overcommit,
        };
        net.machines = Some(Machines::find(place, &net.id, net.kind, &net.binary, wanted, say)?);
    }
    if let Kind::Relays { .. } = net.kind {
        ensure!(count > 1, "--relay {count}: a net of relays has two at least");
    }
    net.independent = options.independent;
    net.sample_millis = options.sample_millis;
    net.links = Links::from_topology(topology.links.clone());
    if network == Network::Namespaces {
        net.netem = namespaces::has_netem();
        net.address_block = namespaces::free_block(&net.id)?;
        ensure!(
            net.netem || !net.links.any_slow(),
            "the topology has slow links, which this kernel cannot make (tc knows no netem); \
             --network proxies can"
        );
    }
    let links = network == Network::Proxies && count > 1 && !options.independent;
    let claim = ports::claim(count, links, options.base_port.or(topology.base_port))?;
    net.links_port = claim.base + LINKS_OFFSET;
    for (index, plan) in topology.nodes.iter().enumerate() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ip = match network {
            Network::Namespaces => IpAddr::from(namespaces::address(net.address_block, index)),
            Network::Proxies | Network::Direct | Network::Machines => local,
        };
        let port =
            |named: Option<u16>, offset: u16| named.unwrap_or(claim.base + offset + index as u16);
        let arguments: Vec<String> =
            plan.arguments.iter().chain(&options.arguments).cloned().collect();
        let own = SocketAddr::new(ip, port(plan.p2p_port, P2P_OFFSET));
        // Between machines every node has an address of its own; what is forwarded from this host
        // is for clients.
        let (p2p, clients) = match net.backend {
            Backend::Process => (own, None),
            Backend::Vm => {
                machine::check_arguments(&arguments)?;
                (
                    machine::p2p_address(index),
                    matches!(net.kind, Kind::Relays { .. }).then_some(own),
                )
            }
        };
        net.nodes.push(Node {
            index,
            memory_bytes: plan.memory_bytes,
            http: SocketAddr::new(ip, port(plan.http_port, 0)),
            p2p,
            clients,
            node_id: None,
            arguments,
            told: LastCommand::Nothing,
            keeper: None,
            starts: 0,
        });
    }
    Ok((net, claim))
}

/// The network asked for, if it can be had; else the one with which all faults can be made.
fn choose(wanted: Option<Network>) -> Result<Network> {
    match wanted {
        Some(Network::Namespaces) => match namespaces::unavailable() {
            Some(reason) => bail!("{reason}; --network proxies needs nothing of the kind"),
            None => Ok(Network::Namespaces),
        },
        Some(network) => Ok(network),
        None if namespaces::unavailable().is_none() && namespaces::has_netem() => {
            Ok(Network::Namespaces)
        }
        None => Ok(Network::Proxies),
    }
}

fn binary(options: &Options) -> Result<PathBuf> {
    let usual = if options.relay.is_some() { "thimble-relay" } else { "thimble" };
    let named = options.node.as_deref().map(std::path::absolute).transpose()?;
    cli::program(named.as_deref(), usual, "node")
}
