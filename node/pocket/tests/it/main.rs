//! The server as a client sees it: in its protocol ([`protocol`]), what bounds it ([`bounds`]),
//! what web pages cannot do ([`access`]), and through the published clients themselves
//! ([`clients`]).
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod access;
#[path = "../../../thimble/tests/it/outcalls/canister.rs"]
#[allow(dead_code)]
mod asker;
mod bounds;
mod clients;
mod harness;
mod outcalls;
mod protocol;
mod reference;
