//! The node's binary. Everything else is in the library of this package.

use std::process::ExitCode;

memory::program_allocator!();

fn main() -> ExitCode {
    thimble::main(consensus::Subnet::start)
}
