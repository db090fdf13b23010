//! `thimble-lab`: the tools that put work on a node and measure what it does with it. The node's binary carries none of this.
//!
//! Each subcommand is a crate's or a module's own; this file only names them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work for a node, and what it cost.
#[derive(Parser)]
#[command(name = "thimble-lab", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Deploy a sample canister with a published client, call it, verify what comes back, show the node's memory.
    Demo(load::demo::Options),
    /// Start a node in a scratch folder and measure it: start, idle, latency, rates, large writes, memory.
    Bench(load::bench::Options),
    /// Put every sort of load on a running node, check every byte that comes back, report latencies and errors.
    Hammer(Box<load::hammer::Options>),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(options) => load::demo::run(options).await.map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => load::bench::run(options).await.map(|()| ExitCode::SUCCESS),
        Command::Hammer(options) => load::hammer::run(*options).await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("thimble-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
