//! What stories about outcalls need.

#[path = "canister.rs"]
mod canister;
#[path = "server.rs"]
mod server;

pub(crate) use self::{canister::*, server::*};
