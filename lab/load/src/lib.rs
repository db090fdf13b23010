//! Drivers that put work on a node through its public endpoint only, with the published client
//! library.
//!
//! `bench` starts a node of its
//! own and prints the table of speed and memory. `hammer` puts every sort of load on a node that
//! runs already, and checks every byte that comes back. `history` records what clients of a subnet
//! that is being hurt are told, and checks whether it can be true. `misuse` sends what no node may
//! suffer from, and checks that none does. `hostile` attacks nodes that it starts itself. Nothing here knows the node's insides: what it reports
//! of memory it reads from the operating system.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
mod endpoints;
pub mod hammer;
pub mod history;
pub mod hostile;
pub mod misuse;

/// The machine, in one line, and how busy it is.
fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{}, load {}", compare::describe(), load.split_whitespace().next().unwrap_or("?"))
}
