//! Encodings of the Waku protocols, and input of hostile peers.
#![allow(clippy::unwrap_used)]

mod frames;
mod gossip;
mod messages;
mod records;
mod signed;
mod sync;
mod topics;
mod validity;
