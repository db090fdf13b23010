//! Stories of execution over a scripted sandbox.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod installs;
mod long;
mod management;
mod messages;
mod outcalls;
mod queries;
mod query_stats;
mod simulation;
mod snapshots;
mod sums;
mod sync;
mod trouble;
