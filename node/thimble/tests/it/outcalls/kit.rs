//! Support for tests of outcalls.

#[path = "canister.rs"]
mod canister;
#[path = "server.rs"]
mod server;

pub(crate) use self::{canister::*, server::*};
