//! The HTTP server of the programs: connections and their limit, slow readers, and the check that
//! requests come from the server's own pages.
//!
//! A program's interface decides routes and responses. The server closes idle connections for new
//! ones ([`connections`]), drops a peer that does not read ([`stall_guard`]), and serves operator
//! pages to programs and to the program's own pages only ([`origin`]).
//!
//! Bounds: connections are at most the limit of their listener, and each is charged to the pool of
//! connection buffers for as long as it is open.
//!
//! It must never know routes, or the meaning of a body.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod connections;
pub mod origin;
mod request_body;
mod response;
pub mod stall_guard;

pub use request_body::{
    BodyBudget, BodyError, DISCARDED_BODIES, PoolBudget, discard, discard_within, read_body,
    with_unread,
};
pub use response::{ErrorResponse, TEXT, set_common_headers, with_reservation};
