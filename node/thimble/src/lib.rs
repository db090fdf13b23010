//! The node's program: wires the parts, owns configuration, signals and exit codes, and decides
//! nothing about messages or state.
//!
//! The same binary is the worker and the compiler of the sandbox (hidden subcommands): one file to
//! install, and its code pages are shared.

mod adapter;
mod ahead;
mod allocator;
mod cli;
mod clock;
mod config;
mod disk_budget;
mod disk_usage;
mod genesis;
mod governor;
mod hint;
mod init;
mod keys;
mod keystore;
mod members;
mod metrics;
mod node;
mod observer;
mod outcalls;
mod replay;
mod retry;
mod rules;
mod status;
mod verdicts;
mod watch;
mod watchdog;

use std::{io::Write, process::ExitCode};

use clap::Parser;
use consensus::{ConsensusDeps, Subnet, SubnetConfig};

/// Starts a node's part in a subnet of several.
pub type StartSubnet =
    fn(ConsensusDeps, SubnetConfig, state::Height) -> Result<Subnet, consensus::StartError>;

/// The program: the node takes part in its subnet by `start`.
pub fn main(start: StartSubnet) -> ExitCode {
    // Workers and compilers are started by the node itself, many times: they skip everything a
    // person's command needs.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-worker") => return sandbox::worker_main_with(arguments, allocator::heap),
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        _ => {}
    }
    match cli::Cli::parse().run(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone or on a full disk; the exit code still reports the
            // failure.
            let _ = writeln!(std::io::stderr(), "thimble: {error:#}");
            ExitCode::FAILURE
        }
    }
}
