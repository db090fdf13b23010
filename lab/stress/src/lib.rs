//! `thimble-lab stress`: puts load on any Waku node, given its multiaddress, and reports the
//! result.
//!
//! Clients of three kinds work in this process: publishers push messages by light push (version 3,
//! or 2 where the node has no other), receivers get them by filter, relay peers by gossip; another
//! queries the store. Every message states its sender, number and time, and carries a checksum
//! (`payload`), so that arrived messages are distinguished from messages that were only
//! acknowledged. The node's memory and CPU come from the kernel.
//!
//! The clients use libp2p's transports, encryption and multiplexer, and open streams on them
//! without its swarm (`session`): a push costs the driver so little that the node's cost is
//! visible on a machine that both share. Only the message formats share code with the services or
//! the router of a node.
//!
//! Bounds: clients, phases and requests in flight by flags with maxima; a bit for each message,
//! sender and receiver; one histogram for each kind of answer. Must never know: the insides of a
//! node.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
mod adversarial_nodes;
pub mod bench;
mod channel;
mod clients;
mod compare;
mod connections;
mod dial;
mod drive;
mod gather;
mod net;
mod node;
mod options;
mod payload;
mod plan;
mod publisher;
mod push_stats;
mod receiver;
mod relay_peer;
pub mod report;
mod request;
mod session;
mod settings;
mod shared;
mod store_client;
mod table;
mod tally;
mod target;
mod watch;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use serde::Serialize;

pub use cli::Stop;
pub use options::Options;

use net::{Members, RelayNet};
use settings::Settings;

/// Runs the load and prints the table. Ctrl-C ends the load and prints what was measured so far; a
/// second one ends everything. Exit status: 0 when nothing accepted was lost and the nodes lived, 1
/// otherwise, 130 after Ctrl-C. Errors: a node cannot be started or reached.
pub async fn run(options: Options) -> Result<ExitCode> {
    if options.print_plan {
        print!("{}", options.plan()?.to_toml()?);
        return Ok(ExitCode::SUCCESS);
    }
    cli::until_done("stress", async |stop| print(&options, &stop).await).await
}

async fn print(options: &Options, stop: &Stop) -> Result<bool> {
    if !options.compare.is_empty() {
        return compare::run(options, &options.workload(Settings::default())?, stop).await;
    }
    let report = measure(options, stop).await?;
    if !to_stdout(options.json.as_deref()) {
        print!("{}", report.text());
    }
    write_json(options.json.as_deref(), &report)?;
    Ok(report.good)
}

/// One run against one node or network, with what came of it. Errors: a node cannot be started or
/// reached, or what is asked for is out of bounds.
pub async fn measure(options: &Options, stop: &Stop) -> Result<report::Report> {
    // Invalid options are reported before anything is started.
    let work = options.workload(Settings::default())?;
    if options.case == Some(plan::Case::Overallocation) && options.memory.is_none() {
        eprintln!(
            "stress: this case is for a node under a cap; this run sets none (--memory with \
             --command)"
        );
    }
    let net = match options.relays {
        Some(count) => Some(RelayNet::start(count, options, &work.load, stop).await?),
        None => None,
    };
    let folder = net.as_ref().map(RelayNet::folder).or(options.net.as_deref());
    let members = folder.map(Members::read).transpose()?;
    let work = match &members {
        Some(members) => options.workload(members.settings.clone())?,
        None => work,
    };
    let start = drive::Start {
        label: if members.is_some() { "net" } else { "node" },
        nodes: &options.nodes,
        pids: &options.pids,
        timeout: options.timeout(),
        command: options.command.as_deref(),
        picture: options.picture.as_deref(),
        memory: options.memory,
        members: members.as_ref(),
        stop,
    };
    drive::run(&work, &start).await
}

/// Whether a machine reads standard output.
fn to_stdout(json: Option<&Path>) -> bool {
    json.is_some_and(|path| path.as_os_str() == "-")
}

fn write_json(json: Option<&Path>, value: &impl Serialize) -> Result<()> {
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(value)? + "\n";
    if to_stdout(json) {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
