//! The relay's binary: wires the parts, owns configuration, signals and exit codes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arrival;
mod cli;
mod client;
mod clock;
mod config;
mod counters;
mod discovery;
mod filter;
mod governor;
mod http;
mod ingest;
mod init;
mod key;
mod latencies;
mod log;
mod network;
mod node;
mod observed;
mod pace;
mod presets;
mod rates;
mod rln;
mod run;
mod services;
mod settings;
mod status;
mod subscribers;
mod sync;

use std::{io::Write, process::ExitCode};

use clap::Parser;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How jemalloc is set up: few arenas, because each keeps memory of its own; freed pages go back to
/// the kernel within a second of further use.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr =
        c"background_thread:false,narenas:2,tcache_max:4096,retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0";
    // SAFETY: the pointer is to a constant string that ends in zero.
    Some(unsafe { &*TEXT.as_ptr() })
};

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone or on a full disk; the exit code still reports it.
            let _ = writeln!(std::io::stderr(), "thimble-relay: {error:#}");
            ExitCode::FAILURE
        }
    }
}
