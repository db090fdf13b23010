//! `thimble-lab net`: several nodes on this machine, each in its own memory-capped group, started
//! as a subnet, with commands to inject faults and to inspect it.
//!
//! A net is a folder (`state`). Each command takes its lock, performs one action (`session`)
//! and ends; the processes it started continue to run. Nodes find each other over one of three
//! networks: namespaces (`namespaces`), a relay (`relay`), or nothing at all. Faults of the
//! links are data (`links`), the same for all three.
//!
//! Only the start distinguishes whether the nodes are one subnet (`ceremony`) or each its own;
//! everything after is the same.

mod ceremony;
pub(crate) mod handle;
pub(crate) mod links;
mod logs;
pub(crate) mod machine;
mod namespaces;
mod ports;
pub(crate) mod reading;
mod relay;
pub mod relays;
pub(crate) mod session;
pub mod spawn;
pub(crate) mod state;
pub(crate) mod status;
mod topology;
mod up;
pub(crate) mod wait;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use cli::Stop;

pub use self::state::Network;
use self::{
    links::{Quality, parse_groups, parse_latency, parse_loss},
    reading::Asker,
    session::Session,
    state::{Backend, NetFolder},
    wait::Goal,
};

/// Until a node that was restarted serves again: it may have a state to fetch.
const SERVING_AGAIN: Duration = Duration::from_secs(120);
/// The same of a machine: a kernel comes first, and its processor may be emulated.
const MACHINE_SERVING_AGAIN: Duration = Duration::from_secs(300);

/// Command line of `thimble-lab net`.
#[derive(Args)]
pub struct Options {
    /// Folder of the net.
    #[arg(long, global = true, value_name = "DIR", default_value = "thimble-net")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a net: a new one, or the stopped nodes of an existing one.
    ///
    /// With --relay the nodes are Waku relays (thimble-relay) that gossip with each other on one
    /// shard, for `thimble-lab stress --net`; kill, pause, partition and the other commands act
    /// on them as on nodes of a subnet.
    ///
    /// A new net holds the ceremony of genesis with the node's own commands: every node makes its
    /// keys, all deal, no party knows the subnet's key. Then the nodes are started, each in a
    /// process group of its own with a cap of --memory, and the command waits until every one
    /// serves and the certified heights increase. Nodes continue to run when this command has
    /// ended. Ctrl-C while it waits stops the nodes that it started.
    ///
    /// Networks: `namespaces` gives every node a network namespace of its own on a bridge;
    /// partitions and delays are made by the kernel. It needs root, ip, tc and nsenter. `proxies`
    /// is plain loopback with a relay process that every link goes through and that cuts and slows
    /// links itself; it has no requirements. Without --network, namespaces are used where they
    /// support all faults (root, and a kernel with netem), else proxies. `direct` puts nothing
    /// between the nodes, for measuring; partition and slow are then refused. The nodes' HTTP
    /// endpoints are reachable from this machine in all three, partitioned or not.
    ///
    /// With --backend vm every node is a QEMU machine with a kernel and a disk of its own, started
    /// from an image that `thimble-lab image build` made; --memory is then the machine's, and a
    /// node's budget what its kernel leaves of it, or `--memory` after `--`. It needs no root.
    /// Without KVM it is slow, which is reported.
    ///
    /// Example: thimble-lab net up --nodes 4 --memory 512MiB
    ///
    /// Example: thimble-lab net up --backend vm --nodes 4 --memory 384MiB -- --memory 256MiB
    ///
    /// Example: thimble-lab net up --relay 8 --memory 128MiB
    Up(up::Options),
    /// Stop all nodes cleanly; their data stays, and `up` starts them again.
    ///
    /// Example: thimble-lab net down
    Down {
        /// Remove the folder as well.
        #[arg(long)]
        delete: bool,
    },
    /// Show every node: height, rounds behind, memory now and at its peak, restarts, and the faults
    /// of the links.
    ///
    /// Exit status: 0 when every node runs and answers, 1 when one does not.
    Status {
        /// Print the status as JSON.
        #[arg(long)]
        json: bool,
    },
    /// kill -9 of nodes, with all their processes.
    ///
    /// Example: thimble-lab net kill 2
    Kill {
        /// Nodes; several are killed at once.
        #[arg(required = true)]
        nodes: Vec<usize>,
    },
    /// Start a node again; one that runs is stopped cleanly before.
    Restart {
        /// Index of the node, from 0.
        node: usize,
        /// Remove its state before, but not its keys: it has to fetch all of it from the others.
        #[arg(long)]
        empty: bool,
        /// Do not wait until it serves.
        #[arg(long)]
        no_wait: bool,
    },
    /// Stop time for nodes (SIGSTOP for all their processes).
    Pause {
        /// Indexes of the nodes, from 0.
        #[arg(required = true)]
        nodes: Vec<usize>,
    },
    /// Resume paused nodes.
    Resume {
        /// Indexes of the nodes, from 0.
        #[arg(required = true)]
        nodes: Vec<usize>,
    },
    /// Cut all links between groups of nodes.
    ///
    /// A node that is in no group keeps its links. A new partition replaces the one before.
    ///
    /// Example: thimble-lab net partition '0,1|2,3'
    Partition {
        /// `0,1|2,3`, or one argument per group.
        #[arg(required = true)]
        groups: Vec<String>,
    },
    /// Cut links are links again. (Slow ones stay slow.)
    Heal,
    /// Make all links of a node slow or lossy, in both directions.
    ///
    /// With proxies, loss is what TCP makes of it: what was lost arrives a retransmission later,
    /// and everything behind it too.
    ///
    /// Example: thimble-lab net slow 2 --latency 50ms --loss 1%
    Slow {
        /// Index of the node, from 0.
        node: usize,
        /// Added in each direction.
        #[arg(long, value_parser = parse_latency, required_unless_present_any = ["loss", "off"])]
        latency: Option<u64>,
        /// Share of packets that are lost.
        #[arg(long, value_parser = parse_loss)]
        loss: Option<f64>,
        /// As good as they were built.
        #[arg(long, conflicts_with_all = ["latency", "loss"])]
        off: bool,
    },
    /// Print the output of a node.
    Logs {
        /// Index of the node, from 0.
        node: usize,
        /// Continue with new output.
        #[arg(short, long)]
        follow: bool,
        /// Only this number of last lines.
        #[arg(short = 'n', long)]
        lines: Option<usize>,
    },
    /// The process between nodes that are connected by proxies, or are machines.
    #[command(hide = true)]
    Relay,
    /// Keeps the machine of one node.
    #[command(hide = true)]
    Machine {
        #[arg(long)]
        index: usize,
    },
}

/// Does one thing to a net.
pub async fn run(options: Options) -> Result<ExitCode> {
    let place = NetFolder::new(&options.dir)?;
    if let Command::Relay = options.command {
        // It handles signals itself.
        return relay::run(place).await.map(|()| ExitCode::SUCCESS);
    }
    if let Command::Machine { index } = options.command {
        return machine::run(place, index).await.map(|()| ExitCode::SUCCESS);
    }
    let stop = Stop::by_signal(|| {})?;
    if let Command::Up(up) = options.command {
        return up::run(place, up, stop.requested()).await;
    }
    let done = stop.race(other(place, options.command)).await;
    done.unwrap_or_else(|| Ok(cli::interrupted()))
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
async fn other(place: NetFolder, command: Command) -> Result<ExitCode> {
    match command {
        Command::Up(_) | Command::Relay | Command::Machine { .. } => bail!("is run elsewhere"),
        Command::Down { delete } => down(place, delete)?,
        Command::Status { json } => {
            let net = place.load()?;
            return status::run(&net, &place, json).await;
        }
        Command::Kill { nodes } => {
            let mut session = Session::open(place)?;
            let killed = session.kill(&nodes)?;
            for node in nodes {
                match killed.contains(&node) {
                    true => println!("net: node {node} is killed"),
                    false => println!("net: node {node} did not run"),
                }
            }
        }
        Command::Restart { node, empty, no_wait } => {
            let mut session = Session::open(place)?;
            session.restart(node, empty)?;
            println!("net: node {node} is started");
            if !no_wait {
                let timeout = match session.net.backend {
                    Backend::Process => SERVING_AGAIN,
                    Backend::Vm => MACHINE_SERVING_AGAIN,
                };
                let goal = Goal { moving: false, timeout };
                let say = |words: &str| println!("net: {words}");
                let reports =
                    wait::until_serving(&session, &Asker::new()?, &[node], goal, say).await?;
                let report = reports.into_iter().next().unwrap_or_default();
                match report.relay {
                    Some(relay) => {
                        println!("net: node {node} serves, {} peers in its mesh", relay.mesh)
                    }
                    None => println!("net: node {node} serves at height {}", report.height),
                }
            }
        }
        Command::Pause { nodes } => {
            let mut session = Session::open(place)?;
            for node in nodes {
                let words = if session.pause(node)? { "is paused" } else { "was paused already" };
                println!("net: node {node} {words}");
            }
        }
        Command::Resume { nodes } => {
            let mut session = Session::open(place)?;
            for node in nodes {
                let words = if session.resume(node)? { "goes on" } else { "was not paused" };
                println!("net: node {node} {words}");
            }
        }
        Command::Partition { groups } => {
            let mut session = Session::open(place)?;
            let groups =
                parse_groups(&groups, session.net.nodes.len()).map_err(anyhow::Error::msg)?;
            session.change_links(|links| links.partition(&groups))?;
            print_links(&session);
        }
        Command::Heal => {
            let mut session = Session::open(place)?;
            session.change_links(links::Links::heal)?;
            print_links(&session);
        }
        Command::Slow { node, latency, loss, off } => {
            let mut session = Session::open(place)?;
            session.net.node(node)?;
            let nodes = session.net.nodes.len();
            let quality =
                Quality { latency_micros: latency.unwrap_or(0), loss: loss.unwrap_or(0.0) };
            session.change_links(|links| match off {
                true => links.slow_off(node),
                false => links.slow(node, nodes, quality),
            })?;
            print_links(&session);
        }
        Command::Logs { node, follow, lines } => {
            place.load()?.node(node)?;
            logs::print(&place.log(node), lines, follow).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_links(session: &Session) {
    let words = session.net.links.faults();
    println!(
        "net: links: {}",
        if words.is_empty() { "all well".to_owned() } else { words.join("; ") }
    );
}

fn down(place: NetFolder, delete: bool) -> Result<()> {
    if !place.exists() {
        println!("net: there is no net in {}", place.dir().display());
        return Ok(());
    }
    let mut session = Session::open(place)?;
    let all: Vec<usize> = (0..session.net.nodes.len()).collect();
    session.stop(&all)?;
    session.disconnect()?;
    if delete {
        std::fs::remove_dir_all(session.place.dir())?;
        println!(
            "net: {} nodes are stopped, and {} is removed",
            all.len(),
            session.place.dir().display()
        );
    } else {
        println!("net: {} nodes are stopped; `net up` starts them again", all.len());
    }
    Ok(())
}
