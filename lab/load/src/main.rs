//! Drivers that put work on a node through its public endpoint only, with the published client library.
//!
//! `load demo` is what `make run` shows: deploy, call, verify, remember. `load bench` starts a node of its own and prints the table of speed and memory.
//! Nothing here knows the node's insides: what it reports of memory it reads from the operating system.

mod bench;
mod client;
mod demo;
mod measure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work for a node, and what it cost.
#[derive(Parser)]
#[command(name = "load", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Deploy a sample canister with a published client, call it, verify what comes back, show the node's memory.
    Demo(demo::Options),
    /// Start a node in a scratch folder and measure it: start, idle, latency, rates, large writes, memory.
    Bench(bench::Options),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(options) => demo::run(options).await,
        Command::Bench(options) => bench::run(options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
