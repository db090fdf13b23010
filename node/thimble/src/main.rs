//! The node's binary: wires the parts, owns configuration, signals and exit codes, and decides nothing about messages or state.
//!
//! The same binary is the worker and the compiler of the sandbox (hidden subcommands): one file to install, and its code pages are shared.

mod adapter;
mod cli;
mod config;
mod driver;
mod keys;
mod metrics;
mod node;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Workers and compilers are started by the node itself, many times: they skip everything a person's command needs.
    let mut arguments = std::env::args_os();
    match arguments.nth(1).as_deref().and_then(|name| name.to_str()) {
        Some(sandbox::WORKER_COMMAND) => return sandbox::worker_main(),
        Some(sandbox::COMPILE_COMMAND) => return sandbox::compile_main(),
        _ => {}
    }
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("thimble: {error:#}");
            ExitCode::FAILURE
        }
    }
}
