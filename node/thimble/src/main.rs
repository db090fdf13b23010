//! The node's binary: wires the parts, owns configuration, signals and exit codes, and decides
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

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

/// How jemalloc is set up in every process of the node, read by it before `main`. Few arenas,
/// because each keeps memory of its own; unused address space goes back (`retain:false`), because
/// caps on address space count it; freed pages go back to the kernel within a second of further use.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"background_thread:false,narenas:2,tcache_max:4096,retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0";
    // SAFETY: the pointer is to a constant string that ends in zero.
    Some(unsafe { &*TEXT.as_ptr() })
};

fn main() -> ExitCode {
    // Workers and compilers are started by the node itself, many times: they skip everything a
    // person's command needs.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-worker") => return sandbox::worker_main_with(arguments, allocator::heap),
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        _ => {}
    }
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone or on a full disk; the exit code still tells.
            let _ = writeln!(std::io::stderr(), "thimble: {error:#}");
            ExitCode::FAILURE
        }
    }
}
