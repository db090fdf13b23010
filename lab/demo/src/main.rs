//! The demonstration as a program of its own: all that `make run` needs of the lab, so that a new
//! machine builds nothing else.

use std::process::ExitCode;

use clap::Parser;

/// Deploy a sample canister on a running node with a published client, call it, verify what comes
/// back, show the node's memory.
#[derive(Parser)]
#[command(name = "thimble-demo", version)]
struct Cli {
    #[command(flatten)]
    options: demo::Options,
}

fn main() -> ExitCode {
    let options = Cli::parse().options;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(demo::run(options)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("thimble-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
