//! Drivers that put load on a node through its public endpoint only, with the published client
//! library.
//!
//! `bench` starts a node of its own and prints the table of speed and memory. `hammer` puts every
//! sort of load on a running node, and checks every byte that it returns. `history` records the
//! client-visible responses of a subnet under faults, and checks them for consistency violations.
//! `misuse` sends adversarial traffic, and checks that no node is affected. `hostile` attacks nodes
//! that it starts itself. This crate does not depend on the node's internals: it reads memory
//! figures from the operating system.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
mod endpoints;
pub mod hammer;
pub mod history;
pub mod hostile;
pub mod misuse;
mod node_cost;

/// The machine, in one line, and how busy it is.
fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{}, load {}", compare::describe(), load.split_whitespace().next().unwrap_or("?"))
}
