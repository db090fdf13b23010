//! `thimble-lab stress`: puts load on any Waku node, given its multiaddress, and tells what came of it.
//!
//! Clients of three kinds work in this process: publishers push messages by light push (version 3, or
//! 2 where the node has no other), receivers get them by filter, relay peers by gossip; another asks
//! the store. Every message says who sent it, which one it is and when, and carries a checksum
//! ([`payload`]), so that what arrives can be told from what was only promised. The node's memory and
//! CPU come from the kernel.
//!
//! The clients use libp2p's transports, encryption and multiplexer, and open streams on them without
//! its swarm ([`session`]): a push costs the driver so little that the node's cost shows, on a
//! machine that both share. Nothing here shares code with the services or the router of a node but
//! the message formats.
//!
//! What bounds it: clients, phases and requests in flight by flags with maxima; a bit for each
//! message, sender and receiver; one histogram for each kind of answer. What it must never know: the
//! insides of a node.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
mod channel;
mod compare;
mod dial;
mod drive;
mod node;
mod options;
pub mod payload;
pub mod plan;
mod publisher;
mod pushed;
mod receiver;
mod relay_peer;
pub mod report;
mod request;
mod session;
mod shared;
mod tally;
mod target;

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

pub use options::Options;

/// After Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs the load and prints the table. Exit status: 0 when nothing accepted was lost and the node
/// lived, 1 otherwise, 130 after Ctrl-C. Errors: the node cannot be started or reached.
pub async fn run(options: Options) -> Result<ExitCode> {
    options.check()?;
    let phases = options.phases()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let work = async {
        if !options.compare.is_empty() {
            return compare::run(&options, &phases).await;
        }
        let report = measure(&options, &phases).await?;
        print!("{}", report.text());
        if let Some(path) = &options.json {
            std::fs::write(path, serde_json::to_vec_pretty(&report)?)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(report.good)
    };
    let good = tokio::select! {
        good = work => good?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
        _ = terminate.recv() => return Ok(ExitCode::from(EXIT_INTERRUPTED)),
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run against one node, with what came of it. Errors: the node cannot be started or reached.
pub async fn measure(options: &Options, phases: &[plan::Phase]) -> Result<report::Report> {
    let start = drive::Start {
        label: "node",
        command: options.command.as_deref(),
        picture: options.picture.as_deref(),
    };
    drive::run(options, phases, &start).await
}
