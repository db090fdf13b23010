//! A network of relays under load: a running one, or one that is started for this run only.
//!
//! Started and removed by `thimble-lab net`, which this program is. Bounds: waits have ends. Must
//! never know: how a net starts its nodes.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use cli::{Child, OnDrop};
use libp2p::Multiaddr;
use tempfile::TempDir;
use testnet::net::{relays::Relays, spawn};

use crate::{
    Stop,
    options::{NODES_MAX, Options},
    settings::{Load, Settings},
    watch::{Source, WatchedNode},
};

/// Until all nodes of a net that is started have met each other.
const UP_SECONDS: u64 = 120;
/// Between a Ctrl-C and the end of a start that is being undone.
const UNDONE_WITHIN: Duration = Duration::from_secs(90);
/// More than a start waits for its nodes.
const UP_ENDS_WITHIN: Duration = Duration::from_secs(3600);
/// Memory of a relay if not stated: the same as the default of `net up`.
const MEMORY_BYTES: u64 = 128 << 20;

/// The nodes of a network.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) addresses: Vec<Multiaddr>,
    pub(crate) watched: Vec<WatchedNode>,
    /// Settings that the network reports.
    pub(crate) settings: Settings,
}

impl Members {
    /// Of the net in a folder. Errors: it has no relays, or does not run.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let net = Relays::read(folder)?;
        ensure!(net.relays.len() <= NODES_MAX, "--net: at most {NODES_MAX} nodes are worked on");
        let mut members = Self {
            addresses: Vec::new(),
            watched: Vec::new(),
            settings: Settings {
                cluster: Some(net.cluster),
                shard: Some(net.shard),
                ..Settings::default()
            },
        };
        for (index, relay) in net.relays.into_iter().enumerate() {
            let mut source = Source::Capped { info_file: relay.info_file, group: None };
            ensure!(
                source.try_resolve(),
                "node {index} of the net in {} does not run; start it with: thimble-lab net up",
                folder.display()
            );
            members.addresses.push(relay.multiaddr.parse().context("the address of a relay")?);
            members.watched.push(WatchedNode {
                label: format!("node {index}"),
                source,
                cap_bytes: relay.memory_bytes,
                series: Some(relay.series),
            });
        }
        Ok(members)
    }
}

/// A net for this run only; removed when it is dropped.
pub(crate) struct RelayNet {
    program: PathBuf,
    folder: PathBuf,
    /// Holds that folder, and the output of its start.
    scratch: TempDir,
}

impl RelayNet {
    /// Starts `count` relays. Errors: they do not start, or a stop was requested.
    pub(crate) async fn start(
        count: usize,
        options: &Options,
        load: &Load,
        stop: &Stop,
    ) -> Result<Self> {
        let scratch = tempfile::tempdir().context("making a folder for the net")?;
        let program = cli::this_program()?;
        let net = Self { program, folder: scratch.path().join("net"), scratch };
        let memory = options.memory.unwrap_or(MEMORY_BYTES).to_string();
        let (cluster, shard) = (load.cluster.to_string(), load.shard.to_string());
        let mut command = spawn::command(&net.program, net.folder());
        command.args(["up", "--relay", &count.to_string(), "--memory", &memory]);
        command.args(["--cluster", &cluster, "--shard", &shard]);
        command.args(["--network", "direct", "--wait", &UP_SECONDS.to_string()]);
        if let Some(program) = &options.relay_program {
            command.arg("--node").arg(program);
        }
        let log = net.scratch.path().join("up.log");
        cli::detach(&mut command, &log)?;
        eprintln!("stress: a net of {count} relays is started");
        let mut child = Child::spawn(&mut command, "thimble-lab net")?
            .logging_to([log])
            .with_on_drop(OnDrop::Ask);
        let Some(status) = stop.race(child.ended_within(UP_ENDS_WITHIN)).await else {
            // It stops what it started.
            let ended = child.stop_within(UNDONE_WITHIN).await;
            ensure!(ended.is_ok(), "thimble-lab net (process {}) does not end", child.id());
            bail!("stopped while the net was started: nothing was measured");
        };
        let status = status?;
        ensure!(
            status.success(),
            "the net of {count} relays was not started:\n{}",
            child.log_tail().trim()
        );
        Ok(net)
    }

    /// The net's own folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for RelayNet {
    fn drop(&mut self) {
        let mut command = spawn::command(&self.program, self.folder());
        command.arg("down").stdout(Stdio::null());
        // A start that was undone, or never came that far, has none.
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("stress: the net in {} could not be stopped", self.folder().display());
        }
    }
}
