//! The relay as its users see it: the real program, stock clients, hostile peers.

#![allow(clippy::unwrap_used)]

mod clients;
mod clock;
mod connections;
mod damage;
mod discovery;
mod disk;
mod edge;
mod flood;
mod gossip;
mod harness;
mod heap;
mod hostile;
mod http;
mod large_messages;
mod log;
mod manners;
mod memory;
mod overload;
mod peer;
mod protected;
mod raw;
mod reference;
mod refusals;
mod rest;
mod roots;
mod secure;
mod shards;
mod stories;
mod streams;
mod validity;
