//! The hidden subcommands of the node's binary alone, for the tests of this crate, and one that
//! tries what a compile child must not be able to do.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-compile") => sandbox::compile_main(arguments),
        Some("sandbox-worker") => sandbox::worker_main(arguments),
        Some("compile-probe") => sandbox::compile_probe_main(),
        _ => {
            eprintln!(
                "usage: sandbox-test-host sandbox-compile <job> | sandbox-worker <parent> | \
                 compile-probe"
            );
            ExitCode::FAILURE
        }
    }
}
