//! `thimble-pocket`: the server that the clients of PocketIC launch, over this repository's
//! replica.
//!
//! A test asks for an instance with some subnets, moves its time and its rounds as it likes, calls
//! canisters, and deletes it. Each instance is a replicated state of its own ([`instance`]), whose
//! rounds are executed one by one by the executor that a node uses; there is no agreement and no
//! block log, and a round is executed when a client says so, or as time goes by where it asked for
//! that. All subnets of an instance are in one state ([`subnets`]).
//!
//! ```text
//! request -> routes -> operations -> instance (one thread each): rounds -> execution
//!                \-> the gateway's endpoints, mounted per instance -> instance
//! ```
//!
//! | to change | start at |
//! |---|---|
//! | which requests are answered, and in which form | `routes`, `rest` |
//! | what an operation does | `operations` |
//! | how a round comes about, and when | `replica`, `instance` |
//! | which subnets there are, and what ids they have | `subnets` |
//! | how HTTPS outcalls are listed and answered; how a live instance makes them | `outcalls`, `live_outcalls` |
//! | how an instance is kept in a folder | `state_archive` |
//! | which web pages, folders, networks and addresses are refused | `access` |
//! | what bounds the server | `bounds` |
//!
//! Bounds: instances, the memory that each takes, operations that wait for an instance, operations
//! that are polled for, blobs; every refusal names its limit. It must never know what a message
//! means.

mod access;
mod blobs;
mod bounds;
mod cli;
mod dashboard_page;
mod gateways;
mod graph;
mod instance;
mod keys;
mod live_outcalls;
mod node;
mod operations;
mod outcalls;
mod port_file;
mod reject;
mod replica;
mod rest;
mod routes;
mod sandboxes;
mod scratch;
mod server;
mod state_archive;
mod subnets;

use std::{io::Write, process::ExitCode};

memory::program_allocator!();

fn main() -> ExitCode {
    // Workers and compilers are started by the server itself.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-worker") => return sandbox::worker_main_with(arguments, sandboxes::heap),
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        _ => {}
    }
    let done = cli::Cli::read().and_then(|(cli, client)| match &cli.command {
        Some(command) => command.run(),
        None => server::run(cli, client),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone; the exit code still reports the failure.
            let _ = writeln!(std::io::stderr(), "thimble-pocket: {error:#}");
            ExitCode::FAILURE
        }
    }
}
