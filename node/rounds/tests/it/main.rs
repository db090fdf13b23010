//! Rounds under faults: of one machine, and of subnets in simulated histories.
#![allow(clippy::unwrap_used)]

mod local_faults;
mod simulation;
