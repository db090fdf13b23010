//! The rules of the interface specification for a replica, from outside: one node that all tests
//! share, separate canisters for each test, HTTP. A test's path is the chapter, its name is the
//! rule.
#![allow(clippy::unwrap_used)]

#[path = "../it/harness.rs"]
#[allow(dead_code)]
mod harness;

#[path = "../it/outcalls/kit.rs"]
#[allow(dead_code)]
mod kit;

mod fixture;
mod imports;
mod program;

mod authentication;
mod calls;
mod certification;
mod contexts;
mod cycles;
mod http;
mod ids;
mod management;
mod modules;
mod outcalls;
mod queries;
mod sizes;
mod snapshots;
mod system_api;
