//! `thimble-lab stress`: its flags.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use budget::parse_size;
use clap::Args;
use libp2p::Multiaddr;

use crate::plan::{self, Case, Phase, Sizes};

/// Most publishers, receivers or relay peers.
const CLIENTS_MAX: usize = 256;

/// `thimble-lab stress`
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Multiaddress of the node: /ip4/127.0.0.1/tcp/60000, /dns4/host/tcp/8000/ws ..., with or without
    /// /p2p/PEER. [default with --command: /ip4/127.0.0.1/tcp/{port}]
    #[arg(long, value_name = "MULTIADDR", required_unless_present_any = ["command", "compare"])]
    pub node: Option<Multiaddr>,
    /// Process of the node, for its memory and CPU.
    #[arg(long, conflicts_with_all = ["command", "compare"])]
    pub pid: Option<u32>,
    /// Start the node by this command (sh), and stop it in the end. {port} in it is a free port,
    /// {folder} an empty folder, {memory} the bytes of --memory.
    #[arg(long, value_name = "COMMAND", conflicts_with = "compare")]
    pub command: Option<String>,
    /// Start each of these nodes in turn, LABEL=COMMAND, and print their figures side by side; repeat.
    #[arg(long, value_name = "LABEL=COMMAND", conflicts_with = "node")]
    pub compare: Vec<String>,
    /// How often each of --compare has its turn; the table has the medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub turns: u32,
    /// Cap the memory of the node that --command or --compare starts, by thimble-lab cap.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Clients that push by light push.
    #[arg(long, default_value_t = 4)]
    pub publishers: usize,
    /// Clients that receive by filter.
    #[arg(long, default_value_t = 2)]
    pub receivers: usize,
    /// Peers that receive by relay.
    #[arg(long, default_value_t = 2)]
    pub relay_peers: usize,
    /// Store queries beside the load, in all per second.
    #[arg(long, value_name = "PER SECOND", default_value_t = 0.0)]
    pub store_queries: f64,
    /// A case of the study. [default: baseline, unless --plan, --rate or --payload is given]
    #[arg(long)]
    pub case: Option<Case>,
    /// File with the phases: [[phase]] name = "..", seconds = 10, rate = 100, payload = "500-1000"; a
    /// phase without rate is as fast as the node answers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["case", "phase", "rate", "payload"])]
    pub plan: Option<PathBuf>,
    /// Seconds of each phase; of all of them together with --case long. For people: 60, and 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub phase: f64,
    /// Messages per second of all publishers. [default: the case's; without a case, as fast as the
    /// node answers]
    #[arg(long)]
    pub rate: Option<f64>,
    /// Payload bytes of a single phase, instead of a case.
    #[arg(long, value_name = "MIN-MAX", conflicts_with = "case")]
    pub payload: Option<Sizes>,
    /// Requests in flight of each publisher, where there is no rate.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=192))]
    pub outstanding: u16,
    /// Milliseconds such a request's place stays empty after the node answered 429 or 503.
    #[arg(long, value_name = "MILLIS", default_value_t = 10)]
    pub pause: u64,
    /// The node's cluster.
    #[arg(long, default_value_t = 0)]
    pub cluster: u16,
    /// One of its shards.
    #[arg(long, default_value_t = 0)]
    pub shard: u16,
    /// Shards over which its network spreads content topics (autosharding).
    #[arg(long, default_value_t = 8)]
    pub shards_in_cluster: u16,
    /// Seconds to wait for messages that were accepted and have not arrived when a phase ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub drain: u64,
    /// When to read the node's memory after the last phase. For people: 60,180.
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', default_value = "5")]
    pub after: Vec<u64>,
    /// Percent of what was accepted in a phase that a receiver may miss.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub lost_percent_max: f64,
    /// Seconds until all clients must be connected.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub patience: u64,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the node's memory and CPU over time into this file (SVG); with --compare one file for each
    /// turn, its label and turn before the extension. Needs --pid, --command or --compare.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

impl Options {
    /// The phases. Errors: the plan file, or what it says, is not usable.
    pub(crate) fn phases(&self) -> Result<Vec<Phase>> {
        let phases = match (&self.plan, self.case) {
            (Some(plan), _) => plan::read(plan)?,
            (None, Some(case)) => plan::phases(case, self.phase, self.rate),
            (None, None) if self.rate.is_none() && self.payload.is_none() => {
                plan::phases(Case::Baseline, self.phase, None)
            }
            (None, None) => {
                let payload = self.payload.unwrap_or(Sizes { min: 500, max: 1000 });
                let name = String::from(payload) + " B";
                vec![Phase { name, seconds: self.phase, rate: self.rate, payload }]
            }
        };
        plan::check(&phases)?;
        Ok(phases)
    }

    /// Errors: a flag is out of bounds, or needs another.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, count) in [
            ("--publishers", self.publishers),
            ("--receivers", self.receivers),
            ("--relay-peers", self.relay_peers),
        ] {
            ensure!(count <= CLIENTS_MAX, "{what}: {count}; at most {CLIENTS_MAX} are simulated");
        }
        ensure!(self.publishers > 0, "--publishers: nothing is pushed without any");
        ensure!((0.0..=1000.0).contains(&self.store_queries), "--store-queries: 0 to 1000 a second");
        ensure!((0.0..=100.0).contains(&self.lost_percent_max), "--lost-percent-max: 0 to 100");
        ensure!(self.after.len() <= 16, "--after: at most 16 moments");
        let started = self.command.is_some() || !self.compare.is_empty();
        if self.memory.is_some() && !started {
            bail!("--memory caps a node that this program starts: add --command or --compare");
        }
        if self.picture.is_some() && !started && self.pid.is_none() {
            bail!("--picture shows the node's memory: add --pid, --command or --compare");
        }
        Ok(())
    }

    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain)
    }
}
