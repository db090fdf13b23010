//! Tests from outside: a real node process, real canisters, published clients.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod budget;
mod byzantine;
mod canisters;
mod clients;
mod command_line;
mod conformance;
mod connections;
mod crash;
mod dashboard;
mod data_folder;
mod disk;
mod disk_budget;
mod genesis;
mod harness;
mod heap;
mod http;
mod http_gateway;
mod installs;
mod members;
mod memory;
mod outcalls;
mod provisional;
mod query_stats;
mod randomness;
mod reference;
mod replay;
mod resharing;
mod situations;
mod snapshots;
mod subnet;
mod wall_clock;
mod watchdog;
