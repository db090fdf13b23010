//! `thimble-image`: the subcommands of `thimble-lab image` as a program of their own, for machines
//! that need nothing else of the lab, and for this crate's tests.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "thimble-image", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: images::command::Command,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(images::command::run(command, &[])),
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("thimble-image: {error:#}");
        ExitCode::FAILURE
    })
}
