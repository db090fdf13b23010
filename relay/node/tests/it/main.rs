//! The relay as its users see it: the real program, stock clients, hostile peers.

#![allow(clippy::unwrap_used)]

mod clients;
mod connections;
mod damage;
mod discovery;
mod disk;
mod flood;
mod gossip;
mod harness;
mod heap;
mod hostile;
mod http;
mod log;
mod memory;
mod peer;
mod protected;
mod raw;
mod reference;
mod refusals;
mod rest;
mod secure;
mod stories;
mod streams;
