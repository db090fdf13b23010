//! The command line. Help text is the manual; every flag can also be set in the configuration file.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::{
    StartSubnet, clock,
    config::{Config, HttpGateway, listen_address},
    disk_budget,
    genesis::{self, GenesisCommand},
    init,
    members::MembersCommand,
    node, replay, status, verdicts,
};

/// Whose functions `thimble heap` takes for the program's own.
const PROGRAM: heap_profiler::Program = heap_profiler::Program {
    name: "thimble",
    own: &[
        "thimble",
        "gateway",
        "rounds",
        "consensus",
        "envelope",
        "execution",
        "statesync",
        "sandbox",
        "state",
        "pages",
        "genesis",
        "nidkg",
        "limits",
        "memory_budget",
        "lifecycle",
        "accounting",
        "memory",
        "dashboard",
        "http_server",
        "disk",
        "heap_profiler",
    ],
};

/// An Internet-Computer-compatible replica that lives inside a stated memory budget.
///
/// State how much memory the node may take; every pool, cache and queue is sized from that one
/// number, the sum is checked before anything starts, and the node slows down before it outgrows
/// it.
#[derive(Parser)]
#[command(name = "thimble", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the node; Ctrl-C stops it cleanly.
    ///
    /// The first start makes the keys and an empty state in the data folder; later starts find
    /// them. After a crash the node executes again what its block log holds above the newest
    /// checkpoint and compares every state root with the one it certified before.
    ///
    /// SIGINT, SIGTERM and SIGHUP stop it. Exit status: 0 after a clean stop; 3 if a round or the
    /// last checkpoint did not end in time, which loses nothing; 1 after an error.
    ///
    /// Example: thimble run --memory 512MiB --disk 100GiB --listen 127.0.0.1:8080 --data-dir
    /// /var/lib/thimble
    Run {
        #[command(flatten)]
        settings: Settings,
        /// Write the address being served to this file once it is, for scripts that listen on port
        /// 0.
        #[arg(long, value_name = "FILE")]
        address_file: Option<PathBuf>,
    },
    /// Write a commented configuration file into the data folder, and with --systemd a unit whose
    /// memory cap is the budget.
    ///
    /// A file that is there and says something else stays.
    ///
    /// Example: thimble init --memory 512MiB --data-dir /var/lib/thimble --systemd
    Init {
        #[command(flatten)]
        settings: Settings,
        /// Also write thimble.service.
        #[arg(long)]
        systemd: bool,
    },
    /// Make this node's keys, and print the record that other nodes need of it: the first step
    /// towards a subnet of several nodes.
    ///
    /// Existing keys are kept, so it may be run again: for the same record, or with another
    /// address. The record is public; the keys in the data folder are not.
    ///
    /// Example: thimble keygen --data-dir /var/lib/thimble --address node1.example.org:4000 --out
    /// node1.json
    Keygen {
        /// Folder of keys and state.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// Where other nodes reach this one.
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        /// Where to write the record. [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// The ceremony in which the nodes of a subnet make its key, which none of them knows: plan,
    /// deal, assemble, verify.
    #[command(subcommand)]
    Genesis(GenesisCommand),
    /// Take this node's share out of a genesis: the data folder then belongs to that subnet, and
    /// `thimble run` starts a node of it.
    ///
    /// The genesis is verified from scratch first. May be run again; a data folder of another
    /// subnet is refused. A node that is not in the genesis gets to know the subnet, and takes
    /// part once its members admit it: see `thimble members`.
    ///
    /// Example: thimble join --data-dir /var/lib/thimble --genesis genesis.json
    Join {
        /// Folder of this node's keys.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// The genesis, as `thimble genesis assemble` wrote it.
        #[arg(long, value_name = "FILE")]
        genesis: PathBuf,
    },
    /// Who holds the subnet's key, and changes of who does, signed by the members.
    #[command(subcommand)]
    Members(MembersCommand),
    /// Reject one message that kills every worker, never ends, or makes the node panic. Use the
    /// command that the node prints.
    ///
    /// The message is rejected at its height with a fixed text (IC0521), and nothing of it is
    /// executed. The command works on a running and on a stopped node, and takes effect at the next
    /// start: run it, stop the node with SIGTERM, which works while a round waits, and start the
    /// node. In a subnet of several nodes, run it on every node. The log says when the verdict
    /// takes effect.
    ///
    /// Verdicts are in verdicts.txt of the data folder, one per line; delete a line to withdraw a
    /// verdict that has not taken effect. A height that was executed already is refused, unless the
    /// node runs. Message n of canister aaaaa-aa is the nth management call of the round, from 0.
    ///
    /// Example: thimble reject --data-dir /var/lib/thimble 1204 rwlgt-iiaaa-aaaaa-aaaaa-cai 0
    Reject {
        /// The node's data folder.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// Height of the batch.
        height: u64,
        /// The canister whose message it is.
        canister: String,
        /// Which message that the canister takes up in the round, from 0.
        ordinal: u64,
    },
    /// Set block time back towards this machine's clock, in a node alone whose state is far ahead
    /// of it.
    ///
    /// A node that followed a clock that was ahead has a state that is ahead: block time does not
    /// decrease by itself, and calls of clients whose clocks are right are refused as expired. With
    /// this, the first block of the next start is ahead of the clock by no more than calls may be
    /// signed ahead (5 minutes and 1 minute of drift, unless the limits say otherwise), so that no
    /// call that was executed before can be executed again. The block log records it. Block time
    /// then advances at half speed until the clock has caught up, 12 minutes later. A state that is
    /// ahead by less is left alone, because that resolves itself within twice its length.
    ///
    /// The node must be stopped, and this machine's clock must be right. The order is in
    /// clock-order.txt of the data folder; removing the file cancels it. The next start is refused
    /// if the clock then shows an earlier time than now, or one that is more than 7 days later.
    ///
    /// At first calls of clients whose clocks are right are still refused: for 2 minutes those that
    /// expire 5 minutes ahead, for 4 minutes those that expire 4 minutes ahead, for 6 minutes those
    /// that expire 3 minutes ahead. /health reports it until block time is ahead by no more than a
    /// minute.
    ///
    /// Effects on canisters and clients: time() decreases once. Timers set by ic0.global_timer_set
    /// are moved back as far; but a canister that keeps times in its own memory, as the timers of
    /// development kits do, waits until time gets there again: upgrade it. Best-effort calls, HTTPS
    /// outcalls and requests to stop a canister that are open end as if their time was over. The
    /// statuses of answered calls are dropped. A call that was signed for the time ahead can be
    /// sent again when that time comes. Storage that was paid for the time ahead is not paid again.
    ///
    /// Example: thimble recover-clock --data-dir /var/lib/thimble
    RecoverClock {
        /// The node's data folder.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
    },
    /// Execute again what a data folder's block log holds above its newest checkpoint, and compare
    /// every state root with the one that the node recorded.
    ///
    /// The folder stays as it is, and its node must not run: a copy of the state is executed, in a
    /// temporary folder. Every height and its root are printed; with --check the log is executed by
    /// one thread, by as many as the node has, and by twice as many, and the outcome is printed.
    /// The first root that differs ends the command with exit status 1, and so does a log without a
    /// root to compare with. A node that stops makes a checkpoint, after which there is nothing
    /// left to execute: copy the folder of one that was killed, or while it does not advance.
    ///
    /// Example: thimble replay --check /var/lib/thimble
    Replay {
        /// The data folder.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Execute with several numbers of threads.
        #[arg(long)]
        check: bool,
        /// Numbers of threads, one execution for each: 1,2,4. [default: as many as the node has]
        #[arg(long, value_name = "COUNT", value_delimiter = ',')]
        threads: Vec<u64>,
        /// Where the copy is made; it needs as much room as the state. [default: the folder for
        /// temporary files]
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        /// For machines: print what was executed and compared as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the budget sheets, of memory and of disk: every pool with its cap, owner and reason,
    /// and every other limit.
    ///
    /// The sum of the memory lines never exceeds the memory, and that of the disk lines never the
    /// disk; a table that does not add up is refused with the line that does not fit.
    ///
    /// Example: thimble limits --memory 256MiB --disk 20GiB --json
    Limits {
        #[command(flatten)]
        settings: Settings,
        /// Print the sheet as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what a running node does with its memory: anonymous memory against the budget, every
    /// pool, allocator, rounds, throttling, processes.
    ///
    /// The same figures are at /status.json, drawn at /dashboard, and for monitoring at /metrics.
    ///
    /// Example: thimble status --address 127.0.0.1:8080
    Status {
        #[command(flatten)]
        node: NodeAddress,
        /// For machines: the report as it is.
        #[arg(long)]
        json: bool,
    },
    /// Print where a running node's memory went, by the functions that allocated it.
    ///
    /// For each site: live bytes, which are not freed, and total bytes, which are all that were
    /// allocated since the node started, freed or not. The node must have been started with
    /// --heap-profile; workers, which run canisters, are not included. --svg draws a flame graph,
    /// --pprof writes a profile for `go tool pprof`. To compare two points in time: --save before,
    /// later --since before. All figures are estimates from samples; the cost of sampling is
    /// printed as well.
    ///
    /// Example: thimble heap --address 127.0.0.1:8080 --svg heap.svg
    Heap {
        #[command(flatten)]
        node: NodeAddress,
        #[command(flatten)]
        options: heap_profiler::Options,
    },
    /// Print the effective configuration: defaults, then the file, then the flags.
    ///
    /// The output is itself a configuration file. It states every limit, and stated limits do not
    /// follow --memory and --disk: to change a single limit, state only that limit in a file of
    /// `thimble init`.
    ///
    /// Example: thimble config --memory 1GiB
    Config {
        #[command(flatten)]
        settings: Settings,
        /// Print JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
    /// Write the manual pages and the completions for bash, zsh and fish below a folder.
    ///
    /// Example: sudo thimble manual --share /usr/local/share
    Manual {
        /// The folder: man/man1, bash-completion, zsh and fish are made in it.
        #[arg(long, value_name = "DIR", default_value = "share")]
        share: PathBuf,
    },
}

/// Where a running node is asked.
#[derive(Args)]
struct NodeAddress {
    /// Address of the node's public HTTP interface. [default: as in --config, else
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
    address: Option<SocketAddr>,
    /// The node's configuration file, for its address.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl NodeAddress {
    fn resolve(&self) -> Result<SocketAddr> {
        self.address.map_or_else(|| listen_address(self.config.as_deref()), Ok)
    }
}

/// Settings of the configuration file and the command line.
#[derive(Args, Clone, Default)]
pub(crate) struct Settings {
    /// Configuration file (TOML). Command-line flags override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory all processes of the node may take together: 256MiB, 512MiB, 1GiB ... [default:
    /// 512MiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "preset")]
    pub(crate) memory: Option<String>,
    /// What the node may keep on disk: state, delta log, compiled code, blocks. The capacity for
    /// canisters follows from it. In a subnet of several the same on all nodes. [default: for a
    /// node alone what is free at its first start; in a subnet of several it follows from the
    /// memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// A named size: micro (256 MiB), nano (512 MiB), small (1 GiB).
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Address of the public HTTP interface, as 127.0.0.1:8080 or localhost:8080; port 0 takes a
    /// free one. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// A name under which operator pages (/dashboard, /status.json, /metrics, /debug/heap) are
    /// served, without port, once for each. They are always served as localhost and by IP address;
    /// a request with another Host is refused, because a web page may have sent it. Example:
    /// --host-name thimble for http://thimble:8080
    #[arg(long = "host-name", value_name = "NAME")]
    pub(crate) host_names: Vec<String>,
    /// Where canisters are served to browsers, as http://<canister id>.localhost:8081/, or `off`.
    /// Needs 192 MiB of memory. [default: 127.0.0.1:8081 for a node alone, if that address is free;
    /// off in a subnet of several]
    #[arg(long, value_name = "ADDRESS|off")]
    pub(crate) http_gateway: Option<HttpGateway>,
    /// Folder of keys and state, made at the first start. [default: thimble-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Address on which this node waits for its peers, in a subnet of several nodes.
    #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
    pub(crate) p2p_listen: Option<SocketAddr>,
    /// Where a peer is reached, if elsewhere than the genesis says; once for each peer.
    #[arg(long = "p2p-peer", value_name = "NODE_ID=HOST:PORT", value_parser = peer)]
    pub(crate) p2p_peers: Vec<(String, String)>,
    /// Enable the provisional methods (create canisters and cycles). The same on all nodes of a
    /// subnet. [default: true for a node alone, false in a subnet of several]
    #[arg(long, value_name = "BOOL")]
    pub(crate) provisional: Option<bool>,
    /// Enable HTTPS outcalls: canisters send requests to servers outside. The same on all nodes of
    /// a subnet. Needs 512 MiB of memory. [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) outcalls: Option<bool>,
    /// Sample allocations, so that `thimble heap` can say where memory went. Costs some memory and
    /// time, which that command prints. [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) heap_profile: Option<bool>,
    /// What is logged to standard error: error, warn, info, debug, or a filter like
    /// `info,gateway=debug`. [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

/// A node id and an address; what they are worth is checked with the rest of the configuration.
fn peer(text: &str) -> Result<(String, String), String> {
    let (node, address) = text.split_once('=').ok_or("NODE_ID=HOST:PORT is meant")?;
    Ok((node.to_owned(), address.to_owned()))
}

impl Cli {
    pub(crate) fn run(self, start: StartSubnet) -> Result<()> {
        // A running node starts its own logging, because it may become another process first. The
        // output of the other commands is for users of all kinds.
        if !matches!(
            self.command,
            Command::Run { .. } | Command::Manual { .. } | Command::Heap { .. }
        ) {
            disk::restrict_new_files();
        }
        match self.command {
            Command::Run { settings, address_file } => {
                node::run(Config::load(&settings)?, address_file.as_deref(), start)
            }
            Command::Init { settings, systemd } => init::run(&Config::load(&settings)?, systemd),
            Command::Keygen { data_dir, address, out } => {
                genesis::keygen(&data_dir, &address, out.as_deref())
            }
            Command::Genesis(command) => command.run(),
            Command::Join { data_dir, genesis } => genesis::join(&data_dir, &genesis),
            Command::Members(command) => command.run(),
            Command::Reject { data_dir, height, canister, ordinal } => {
                verdicts::reject(&data_dir, height, &canister, ordinal)
            }
            Command::RecoverClock { data_dir } => clock::recover(&data_dir),
            Command::Replay { folder, check, threads, scratch, json } => {
                replay::run(&replay::Options { folder, check, threads, scratch, json })
            }
            Command::Manual { share } => {
                for file in setup::write_manual(<Self as clap::CommandFactory>::command(), &share)?
                {
                    println!("{}", file.display());
                }
                Ok(())
            }
            Command::Limits { settings, json } => {
                let config = Config::load(&settings)?;
                let sheet = config.limits.sheet();
                if json {
                    println!("{}", sheet.to_json(&config.limits));
                } else {
                    print!("{}", sheet.to_text(&config.limits));
                }
                if let Some(shortage) = disk_budget::shortage(&config)? {
                    eprintln!("thimble: warning: {shortage}");
                }
                Ok(())
            }
            Command::Status { node, json } => status::run(node.resolve()?, json),
            Command::Heap { node, options } => {
                heap_profiler::run(&PROGRAM, || node.resolve(), &options)
            }
            Command::Config { settings, json } => {
                let config = Config::load(&settings)?;
                print!("{}", if json { config.to_json()? } else { config.to_toml()? });
                Ok(())
            }
        }
    }
}
