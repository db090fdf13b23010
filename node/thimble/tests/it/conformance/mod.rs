//! The rules of the interface specification for a replica, from outside: one node that all tests
//! share, separate canisters for each test, HTTP. A test's path is the chapter, its name is the
//! rule.

use crate::{harness, outcalls::kit};

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
