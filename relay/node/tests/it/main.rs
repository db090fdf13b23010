//! The relay as its users see it: the real program, stock clients, hostile peers.

#![allow(clippy::unwrap_used)]

mod clients;
mod discovery;
mod harness;
mod hostile;
mod http;
mod memory;
mod peer;
mod stories;
