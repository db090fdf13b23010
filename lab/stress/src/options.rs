//! Command line of `thimble-lab stress`.

use std::{path::PathBuf, time::Duration};

use accounting::parse_size;
use anyhow::{Result, bail, ensure};
use clap::Args;
use libp2p::Multiaddr;

use crate::{
    plan::{self, Case, Phase, Plan, Sizes},
    settings::{Load, Settings},
};

/// Most nodes of a network that is worked on.
pub(crate) const NODES_MAX: usize = 32;

/// Command line of `thimble-lab stress`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Multiaddress of the node: /ip4/127.0.0.1/tcp/60000, /dns4/host/tcp/8000/ws ..., with or
    /// without /p2p/PEER. Repeat it for the nodes of one network: publishers spread over the
    /// first half of them, receivers, relay peers and the store client over the second half,
    /// so that messages cross the network. [default with --command: /ip4/127.0.0.1/tcp/{port}]
    #[arg(long = "node", value_name = "MULTIADDR",
        required_unless_present_any = ["command", "compare", "net", "relays", "print_plan"])]
    pub(crate) nodes: Vec<Multiaddr>,
    /// Process of the node, for its memory and CPU; once for each --node, in the same order.
    #[arg(long = "pid", value_name = "PID", requires = "nodes", conflicts_with_all = ["command", "compare"])]
    pub(crate) pids: Vec<u32>,
    /// Start the node by this command (sh), and stop it in the end. {port} in it is a free port,
    /// {folder} an empty folder, {memory} the bytes of --memory.
    #[arg(long, value_name = "COMMAND", conflicts_with = "compare")]
    pub(crate) command: Option<String>,
    /// Start each of these nodes in turn, LABEL=COMMAND, and print their figures side by side;
    /// repeat.
    #[arg(long, value_name = "LABEL=COMMAND", conflicts_with = "nodes")]
    pub(crate) compare: Vec<String>,
    /// How often each of --compare has its turn; the table has the medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) turns: u32,
    /// Cap the memory of the node that --command or --compare starts, by thimble-lab cap; with
    /// --relays, of each node. [default with --relays: 128MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Work on the relays of a net that runs (thimble-lab net up --relay 8), like repeated --node;
    /// its folder. Without a value thimble-net, where `net up` puts one.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "thimble-net",
        conflicts_with_all = ["nodes", "command", "compare"])]
    pub(crate) net: Option<PathBuf>,
    /// Start a net of this number of relays, each in a memory cap of its own, put load on it, and
    /// remove it.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["nodes", "command", "compare", "net"])]
    pub(crate) relays: Option<usize>,
    /// The program of --relays. [default: thimble-relay in the folder of this program]
    #[arg(long, value_name = "FILE", requires = "relays")]
    pub(crate) relay_program: Option<PathBuf>,
    /// A case of the study. [default: baseline, unless --plan, --rate or --payload is given]
    #[arg(long)]
    pub(crate) case: Option<Case>,
    /// File with the phases, and whatever else is not stated by flags (docs/stress.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["case", "phase", "rate", "payload"])]
    pub(crate) plan: Option<PathBuf>,
    /// Print the plan file that these flags amount to, and do nothing else.
    #[arg(long)]
    pub(crate) print_plan: bool,
    /// Seconds of each phase; of all of them together with --case long. For people: 60, and 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) phase: f64,
    /// Messages per second of all publishers. [default: the case's; without a case, as fast as the
    /// node answers]
    #[arg(long, value_name = "PER SECOND")]
    pub(crate) rate: Option<f64>,
    /// Payload bytes of a single phase, instead of a case.
    #[arg(long, value_name = "MIN-MAX", conflicts_with = "case")]
    pub(crate) payload: Option<Sizes>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Seconds until all clients must be connected.
    #[arg(long, alias = "patience", value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
    /// Write the figures to this file; - is standard output, instead of the table
    /// (docs/stress.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the node's memory and CPU over time into this file (SVG); with --compare one file for
    /// each turn, its label and turn before the extension. Needs --pid, --command, --compare
    /// or a net.
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
}

/// The validated options of an invocation.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) load: Load,
    pub(crate) phases: Vec<Phase>,
}

impl Options {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The plan: of the file or the flags. Errors: the file or its content is invalid.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let below = match (&self.plan, self.case) {
            (Some(plan), _) => plan::read(plan)?,
            (None, Some(case)) => Plan::from_phases(plan::phases(case, self.phase, self.rate)),
            (None, None) if self.rate.is_none() && self.payload.is_none() => {
                Plan::from_phases(plan::phases(Case::Baseline, self.phase, None))
            }
            (None, None) => {
                let payload = self.payload.unwrap_or(Sizes { min: 500, max: 1000 });
                let name = String::from(payload) + " B";
                Plan::from_phases(vec![Phase {
                    name,
                    seconds: self.phase,
                    rate: self.rate,
                    payload,
                }])
            }
        };
        plan::check(&below.phases)?;
        Ok(Plan { settings: self.settings.clone().over(below.settings), phases: below.phases })
    }

    /// The settings of this invocation; `below` has the defaults for settings that neither flags
    /// nor plan state. Errors: as for [`Self::plan`], and flags that do not go together or are out
    /// of bounds.
    pub(crate) fn workload(&self, below: Settings) -> Result<Workload> {
        let started = self.command.is_some() || !self.compare.is_empty() || self.relays.is_some();
        if self.memory.is_some() && !started {
            bail!(
                "--memory caps a node that this program starts: add --command, --compare or \
                 --relays"
            );
        }
        if self.picture.is_some() && !started && self.net.is_none() && self.pids.is_empty() {
            bail!(
                "--picture shows the node's memory: add --pid, --command, --compare, --net or \
                 --relays"
            );
        }
        ensure!(self.nodes.len() <= NODES_MAX, "--node: at most {NODES_MAX} nodes are worked on");
        ensure!(
            self.pids.is_empty() || self.pids.len() == self.nodes.len(),
            "--pid: {} processes for {} nodes; name one for each --node, in the same order",
            self.pids.len(),
            self.nodes.len()
        );
        ensure!(
            self.command.is_none() || self.nodes.len() <= 1,
            "--command starts one node: name at most one --node with it"
        );
        if let Some(count) = self.relays {
            ensure!((2..=NODES_MAX).contains(&count), "--relays {count}: 2 to {NODES_MAX} nodes");
            ensure!(
                self.case != Some(Case::FloodMib),
                "--relays starts nodes that take messages of 150 KiB: use --case flood, or \
                 --command with --message-size 1MiB"
            );
        }
        let plan = self.plan()?;
        Ok(Workload { load: plan.settings.over(below).load()?, phases: plan.phases })
    }
}
