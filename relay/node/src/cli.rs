//! The command line. Help text is the manual; every flag can also be in the configuration file.

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf};

use anyhow::Result;
use clap::{ArgAction, Args, Parser, Subcommand};
use libp2p::Multiaddr;

use crate::{
    config::Config, discovery, init, key, presets::Network, rln::rpc::RpcUrl, run, status,
};

/// The program, and the crates whose functions `thimble-relay heap` counts as its own.
const PROGRAM: heap_profiler::Program = heap_profiler::Program {
    name: "thimble-relay",
    own: &[
        "thimble_relay",
        "router",
        "store",
        "protocol",
        "relay_limits",
        "memory_budget",
        "accounting",
        "memory",
        "dashboard",
        "http_server",
        "disk",
        "heap_profiler",
    ],
};

/// A Waku service node that lives inside a stated memory budget.
///
/// State how much memory the node may take; every pool, cache and queue is sized from that one
/// number, and the node refuses work before it outgrows it. Serves relay, light push, filter,
/// store, peer exchange and metadata to stock clients.
#[derive(Parser)]
#[command(name = "thimble-relay", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the node; Ctrl-C stops it cleanly.
    ///
    /// The first start makes the node's key in the data folder. After a crash the node finds every
    /// message it answered for.
    ///
    /// Example: thimble-relay run --memory 128MiB --cluster 16 --shard 32 --data-dir /var/lib/relay
    Run {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Write the addresses being served to this file once they are, one on each line, for
        /// scripts that listen on port 0: multiaddresses, and the URL of the HTTP
        /// interface last.
        #[arg(long, value_name = "FILE")]
        address_file: Option<PathBuf>,
    },
    /// Print the budget sheet: every pool with its cap, owner and reason, and every other limit.
    ///
    /// Example: thimble-relay limits --memory 64MiB --json
    Limits {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Print the sheet as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a commented configuration file into the data folder, and a unit for systemd.
    ///
    /// Doing it again changes nothing; a file with other content stays as it is.
    ///
    /// Example: thimble-relay init --memory 128MiB --cluster 16 --data-dir /var/lib/relay --systemd
    Init {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Also write thimble-relay.service, whose MemoryMax is the budget.
        #[arg(long)]
        systemd: bool,
    },
    /// Print the state of a running relay: memory against the budget, every pool, rates, peers,
    /// pushes, the store, refusals by reason, and how far work is held back.
    ///
    /// The same figures are at /status.json, drawn at /dashboard, and for monitoring at /metrics.
    ///
    /// Example: thimble-relay status --http 127.0.0.1:8645
    Status {
        /// Address of the relay's HTTP interface. [default: as in --config, else 127.0.0.1:8645]
        #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
        http: Option<SocketAddr>,
        /// The relay's configuration file, for its address.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// For machines: the report as it is.
        #[arg(long)]
        json: bool,
    },
    /// Print the effective configuration: defaults, then the file, then the flags.
    ///
    /// The output is itself a configuration file.
    ///
    /// Example: thimble-relay config --memory 256MiB > relay.toml
    Config {
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Print a running node's memory use, by the functions that allocated it.
    ///
    /// For each site: live bytes, which are not freed, and total bytes, which are all that were
    /// allocated since the node started, freed or not. The node must have been started with
    /// --heap-profile. --svg draws a flame graph, --pprof writes a profile for `go tool pprof`. For
    /// the changes between two moments: --save before, later --since before. All figures are
    /// estimates from samples, and the cost of sampling is printed with them.
    ///
    /// Example: thimble-relay heap --http 127.0.0.1:8645 --svg heap.svg
    Heap {
        /// Address of the node's HTTP interface. [default: as in --config, else 127.0.0.1:8645]
        #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
        http: Option<SocketAddr>,
        /// The node's configuration file, for its address.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        options: heap_profiler::Options,
    },
    /// Print the node's peer id, and its record (ENR) with --record; makes its key if there is
    /// none.
    ///
    /// The record states the services of a node with the same flags. Others find the node by it, so
    /// it needs --announce; a node that runs prints its own, which knows more.
    ///
    /// Example: thimble-relay key --data-dir /var/lib/relay
    Key {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Print the record instead.
        #[arg(long)]
        record: bool,
    },
    /// Print the memberships in a keystore of the reference implementation (RLN): contract, index
    /// and messages per epoch.
    ///
    /// Secrets are not printed.
    ///
    /// Example: thimble-relay membership --rln-keystore keystore.json --rln-password-file password
    Membership {
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Write the manual pages and the completions for bash, zsh and fish below a folder.
    ///
    /// Example: sudo thimble-relay manual --share /usr/local/share
    Manual {
        /// The folder: man/man1, bash-completion, zsh and fish are made in it.
        #[arg(long, value_name = "DIR", default_value = "share")]
        share: PathBuf,
    },
}

/// Settings of the configuration file and the command line.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Configuration file (TOML). Command-line flags override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory the node may take: 64MiB, 128MiB, 1GiB ... [default: 128MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Folder of the key and the messages, made at the first start. [default: relay-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where to wait for peers, once for each address: a multiaddress, or HOST:PORT for TCP; port 0
    /// takes a free one. [default: /ip4/0.0.0.0/tcp/60000 and /ip4/0.0.0.0/tcp/8000/ws]
    #[arg(long, value_name = "MULTIADDR", value_parser = crate::config::listen_address)]
    pub(crate) listen: Vec<Multiaddr>,
    /// Where others reach this node, if elsewhere than it listens; once for each address.
    #[arg(long, value_name = "MULTIADDR", visible_alias = "ext-multiaddr")]
    pub(crate) announce: Vec<Multiaddr>,
    /// A relay peer to connect to, and to connect to again; once for each.
    #[arg(long = "peer", value_name = "MULTIADDR", visible_alias = "staticnode")]
    pub(crate) peers: Vec<Multiaddr>,
    /// Address of the HTTP interface (REST, metrics, health), as 127.0.0.1:8645 or localhost:8645;
    /// port 0 takes a free one. [default: 127.0.0.1:8645]
    #[arg(long, value_name = "ADDRESS", value_parser = setup::socket_address)]
    pub(crate) http: Option<SocketAddr>,
    /// A name under which the HTTP interface is served, without port, once for each. It is always
    /// served as localhost, by IP address and by names without a dot; a request with another Host
    /// is refused, because a web page may have sent it. Example: --host-name relay.example for
    /// http://relay.example:8645
    #[allow(rustdoc::bare_urls, reason = "it is the text of `--help`")]
    #[arg(long = "host-name", value_name = "NAME")]
    pub(crate) host_names: Vec<String>,
    /// Origin of web pages that may use the HTTP interface, all of it, once for each: `*` stands
    /// for any text and `?` for one character or none, and an origin without a scheme is one of
    /// http and https. Without it pages of other origins are refused.
    /// Example: --allow-origin https://app.example --allow-origin localhost:*
    #[allow(rustdoc::bare_urls, reason = "it is the text of `--help`")]
    #[arg(
        long = "allow-origin",
        value_name = "ORIGIN",
        visible_alias = "rest-allow-origin",
        value_delimiter = ','
    )]
    pub(crate) allow_origins: Vec<String>,
    /// A public network by its name: cluster, shards, largest message, nodes to begin with. What is
    /// stated otherwise stays, but cluster and number of shards cannot be others. The Waku Network
    /// also needs --eth-rpc.
    #[arg(long, value_name = "NAME", visible_alias = "preset", value_enum)]
    pub(crate) network: Option<Network>,
    /// The cluster: nodes of another are not talked to. [default: that of --network, else 0]
    #[arg(long, value_name = "NUMBER", visible_alias = "cluster-id")]
    pub(crate) cluster: Option<u16>,
    /// A shard to serve, once for each. [default: those of --network, else all of
    /// --shards-in-cluster]
    #[arg(long = "shard", value_name = "NUMBER", value_delimiter = ',')]
    pub(crate) shards: Vec<u16>,
    /// Shards of the cluster, over which content topics are spread (autosharding). [default: that
    /// of --network, else 8]
    #[arg(long, value_name = "COUNT", visible_alias = "num-shards-in-network")]
    pub(crate) shards_in_cluster: Option<NonZeroU16>,
    /// A content topic that REST clients read from the start on (/relay/v1/auto/messages), once for
    /// each; its shard is served too.
    #[arg(long = "content-topic", value_name = "NAME")]
    pub(crate) content_topics: Vec<String>,
    /// Largest message of the network: 150KiB, or up to 1MiB. In the file it is
    /// `messages.message_bytes` among the limits. [default: 150KiB]
    #[arg(long, value_name = "SIZE", visible_alias = "max-msg-size")]
    pub(crate) message_size: Option<String>,
    /// A shard whose messages must be signed, and the public key that signs them (secp256k1,
    /// hexadecimal), as SHARD:KEY, once for each. Messages on it that are not signed are neither
    /// relayed nor stored. Example: --protected-shard 7:029c5fac802da41e07e6cdf5...
    #[arg(long = "protected-shard", value_name = "SHARD:KEY")]
    pub(crate) protected_shards: Vec<String>,
    /// Whether messages are kept for store queries. [default: true, and false with --relay=false]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) store: Option<bool>,
    /// Whether messages that this node missed while it was away are fetched from the store of
    /// another node: --storenode, else a connected one. [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) store_resume: Option<bool>,
    /// Whether the last hour of the store is compared with the stores of peers every few minutes,
    /// and each is sent what it lacks. [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) store_sync: Option<bool>,
    /// Whether this node relays messages between others. If not, it is a client of other nodes: it
    /// pushes messages to one (--lightpushnode), receives them from one (--filternode), and asks
    /// the store of one (--storenode), each the named node, else a connected one. [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) relay: Option<bool>,
    /// The node to which light pushes of the HTTP interface are sent, with /p2p/ID at its end.
    #[arg(long, value_name = "MULTIADDR")]
    pub(crate) lightpushnode: Option<Multiaddr>,
    /// The node that has the filter subscriptions of the HTTP interface, with /p2p/ID at its end.
    #[arg(long, value_name = "MULTIADDR")]
    pub(crate) filternode: Option<Multiaddr>,
    /// The node whose store is queried, where this one has none, and for --store-resume, with
    /// /p2p/ID at its end.
    #[arg(long, value_name = "MULTIADDR")]
    pub(crate) storenode: Option<Multiaddr>,
    /// Whether other nodes find this one, and it them, by the discovery protocol (discv5).
    /// [default: true with --discv5-bootstrap, else false]
    #[arg(
        long,
        value_name = "BOOL",
        visible_alias = "discv5-discovery",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) discv5: Option<bool>,
    /// UDP port of the discovery protocol, on the addresses of --listen; 0 takes a free one.
    /// [default: 9000]
    #[arg(long, value_name = "PORT", visible_alias = "discv5-udp-port")]
    pub(crate) discv5_port: Option<u16>,
    /// Record (enr:...) of a node at which discovery begins; once for each.
    #[arg(long, value_name = "ENR", visible_alias = "discv5-bootstrap-node")]
    pub(crate) discv5_bootstrap: Vec<String>,
    /// A list of nodes in the DNS, read at the start and every half hour; once for each.
    /// Example: enrtree://AKA3AM6LPBYEUDMVNU3BSVQJ5AD45Y7YPOHJLEF6W26QOE4VTUDPE@nodes.example.org
    #[arg(long = "dns-discovery-url", value_name = "ENRTREE")]
    pub(crate) dns_discovery_urls: Vec<String>,
    /// DNS server to ask for these lists, once for each; with a port if it is not 53.
    /// [default: those of the system]
    #[arg(
        long = "dns-server",
        value_name = "ADDRESS",
        visible_alias = "dns-addrs-name-server",
        value_parser = crate::config::dns_server,
    )]
    pub(crate) dns_servers: Vec<SocketAddr>,
    /// Whether connected peers are asked for further ones (peer exchange) while there are too few.
    /// [default: true if peers are looked for by discv5 or a list, else false]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) ask_peers: Option<bool>,
    /// Refuse light push while fewer relay peers are connected. [default: 1 if there are to
    /// be any: with --peer, --discv5, --dns-discovery-url or --ask-peers; else 0]
    #[arg(long, value_name = "COUNT")]
    pub(crate) min_relay_peers: Option<u64>,
    /// URL (https or http) of a server with the JSON-RPC interface of Ethereum, once for each, at
    /// most 4: valid roots of proofs (RLN) are read from it. Networks with RLN need one; with two
    /// or more, each new root must be reported by most of them. A URL with a key in it belongs into
    /// the configuration file: other users of the machine can read command lines.
    #[arg(long = "eth-rpc", value_name = "URL", visible_alias = "rln-relay-eth-client-address")]
    pub(crate) eth_rpc: Vec<RpcUrl>,
    /// Address (0x...) of the membership contract of a network without a name; with --rln-chain-id.
    #[arg(long, value_name = "ADDRESS", visible_alias = "rln-relay-eth-contract-address")]
    pub(crate) rln_contract: Option<String>,
    /// Chain of --rln-contract.
    #[arg(long, value_name = "NUMBER", visible_alias = "rln-relay-chain-id")]
    pub(crate) rln_chain_id: Option<u64>,
    /// Keystore file of the reference implementation with this operator's membership, to be shown.
    /// Proofs are not made with it: messages must have theirs when they arrive.
    #[arg(long, value_name = "FILE", visible_alias = "rln-relay-cred-path")]
    pub(crate) rln_keystore: Option<PathBuf>,
    /// File with the password of --rln-keystore.
    #[arg(long, value_name = "FILE")]
    pub(crate) rln_password_file: Option<PathBuf>,
    /// Certificate chain (PEM) for secure WebSocket addresses (/wss).
    #[arg(long, value_name = "FILE", visible_alias = "websocket-secure-cert-path")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Its key (PEM, PKCS#8).
    #[arg(long, value_name = "FILE", visible_alias = "websocket-secure-key-path")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Sample allocations, so that `thimble-relay heap` can report where memory was allocated.
    /// Costs some memory and time, which that command prints. [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true",
    )]
    pub(crate) heap_profile: Option<bool>,
    /// Log level on standard error: error, warn, info, debug, or a filter like `info,store=debug`.
    /// [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

impl Cli {
    pub(crate) fn run(self) -> Result<()> {
        // A running relay does this itself: it may become another process first. Files written by
        // the other commands are for all users.
        if !matches!(
            self.command,
            Command::Run { .. } | Command::Manual { .. } | Command::Heap { .. }
        ) {
            disk::restrict_new_files();
        }
        match self.command {
            Command::Run { settings, address_file } => {
                run::run(&Config::load(&settings)?, address_file.as_deref())
            }
            Command::Manual { share } => {
                for file in setup::write_manual(<Self as clap::CommandFactory>::command(), &share)?
                {
                    println!("{}", file.display());
                }
                Ok(())
            }
            Command::Limits { settings, json } => {
                let limits = Config::load(&settings)?.limits;
                let sheet = limits.sheet();
                if json {
                    println!("{}", sheet.to_json(&limits));
                } else {
                    print!("{}", sheet.to_text(&limits));
                }
                Ok(())
            }
            Command::Init { settings, systemd } => init::run(&Config::load(&settings)?, systemd),
            Command::Status { http, config, json } => {
                status::run(http_address(http, config)?, json)
            }
            Command::Config { settings } => {
                print!("{}", Config::load(&settings)?.to_toml()?);
                Ok(())
            }
            Command::Heap { http, config, options } => {
                heap_profiler::run(&PROGRAM, || http_address(http, config), &options)
            }
            Command::Membership { settings } => {
                let found = Config::load(&settings)?.memberships()?;
                println!("{}", serde_json::to_string_pretty(&found)?);
                Ok(())
            }
            Command::Key { settings, record } => {
                let config = Config::load(&settings)?;
                let keys = key::load_or_create(&config.data_dir.join("relay.key"))?;
                if record {
                    println!("{}", discovery::record_of(&config, &*key::secret(&keys)?)?);
                } else {
                    println!("{}", keys.public().to_peer_id());
                }
                Ok(())
            }
        }
    }
}

/// The address that is stated, or that of the configuration.
fn http_address(stated: Option<SocketAddr>, config: Option<PathBuf>) -> Result<SocketAddr> {
    match stated {
        Some(address) => Ok(address),
        None => Ok(Config::load(&Settings { config, ..Settings::default() })?.http),
    }
}
