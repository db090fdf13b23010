//! Envelopes: what a client signs, and what follows from it.
//!
//! A request of the interface specification comes as an envelope around its content. This crate
//! says what an envelope is, what its request id is, whether its sender is who it claims to be, and
//! which canister it is for; and it reads the Candid messages of clients and canisters
//! ([`candid_wire`]). It is one set of rules for whoever meets envelopes: the HTTP
//! interface, agreement between nodes, and the replay of a block log.
//!
//! ```text
//! bytes -> cbor -> decode: Envelope -> auth: Authenticated -> effective: the id it is for
//!                    |                                           |
//!                    hash: request id, canonical form            verify: a call as execution takes it in
//! ```
//!
//! Everything here is a function of the bytes, a key, ids and limits that are handed in. Input is
//! bounded before it is decoded ([`EnvelopeBounds`]), and what cannot be decoded is refused with
//! the place and the reason.
//!
//! What it must never know: HTTP, clocks, the state, how calls are ordered.

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
pub use verify::{CallError, CallVerifier, Envelopes, ingress};
