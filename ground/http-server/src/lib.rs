//! The HTTP server of the programs: connections, bodies, refusals, and the check that requests come
//! from the server's own pages.
//!
//! A program implements [`HttpHandler`], which answers requests, and opens a [`Server`] with it.
//! Figures for its metrics page are written by [`metrics::MetricsWriter`]. The path of a request:
//!
//! ```text
//! accept -> slot -> connection -> HttpHandler::answer -> response
//!             |         |             |                     |
//!             |         |             |                     whole, pieces, or a List (Outgoing)
//!             |         |             check_origin, read_body, ErrorResponse
//!             |         head and idle timeouts, slow readers (stall_guard)
//!             connections: limit, memory; an idle one is closed for a new one
//! ```
//!
//! Memory bounds:
//!
//! - connections: at most the limit of their listener, each charged to the pool of connection
//!   buffers for as long as it is open: the read buffer and the head are at most
//!   [`ConnectionSettings::head_bytes`], an HTTP/2 connection has 64 KiB of unread bodies and each
//!   of its streams 64 KiB of response. A connection has one task, and
//!   [`ConnectionSettings::refusals`] tasks refuse others;
//! - bodies: the limit that a handler states, charged to its [`BodyBudget`] before buffers grow;
//! - responses: their makers charge them ([`with_reservation`]); a [`List`] is never in memory as a
//!   whole: each piece is charged before it is made.
//!
//! It must never know routes, or the meaning of a body.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
pub mod connections;
mod list;
mod listener;
pub mod metrics;
pub mod origin;
mod request_body;
mod response;
pub mod stall_guard;

pub use connection::{ConnectionSettings, HttpHandler, Outgoing, STREAMS_MAX, Stage};
pub use list::{List, Pieces};
pub use listener::{ACCEPT_ERROR, ListenError, RUNTIME_THREADS, Server, bind, runtime};
pub use request_body::{
    BodyBudget, BodyError, PoolBudget, RequestBody, check_content_type, discard, read_body,
    with_unread,
};
pub use response::{ErrorResponse, TEXT, respond, set_common_headers, with_reservation};
