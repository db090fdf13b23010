//! Envelopes and Candid messages from outside: decoding and authentication.
#![allow(clippy::unwrap_used, missing_docs)]

mod auth;
mod candid_wire;
mod decoder;
mod signing;
