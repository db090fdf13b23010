//! Envelopes: the signed requests of clients, and the facts derived from them.
//!
//! A request of the interface specification comes as an envelope around its content. This crate
//! defines envelopes and their request ids, authenticates the sender, and determines the canister
//! that a request is for; and it reads the Candid messages of clients and canisters
//! ([`candid_wire`]). The HTTP interface, agreement between nodes, and the replay of a block log
//! use the same rules.
//!
//! ```text
//! bytes -> cbor -> decode: Envelope -> auth: AuthenticatedSender -> effective: the id it is for
//!                    |                                           |
//!                    hash: request id, canonical form            verify: a call as execution
//!                                                                takes it in
//! ```
//!
//! Everything here is a function of the bytes, a key, ids and limits that are passed in. Input is
//! bounded before it is decoded ([`EnvelopeBounds`]), and undecodable input is refused with the
//! place and the reason.
//!
//! It must never know HTTP, clocks, the state, or how calls are ordered.

pub mod auth;
pub mod candid_wire;
pub mod cbor;
mod decode;
pub mod effective;
pub mod hash;
pub mod tree;
mod verify;

pub use cbor::CborError;
pub use decode::{
    Content, Envelope, EnvelopeBounds, EnvelopeError, MethodCall, Permissions, Request,
    SignedDelegation, SignedSenderInfo, canonical, may_install_code,
};
pub use hash::NotHashable;
pub use verify::{CallVerifier, Envelopes, ingress};
