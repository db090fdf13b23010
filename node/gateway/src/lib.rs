//! The public HTTP interface.
//!
//! Clients reach the node only through this crate: calls, queries and read_states of the interface
//! specification, its status endpoint, and for the operator `/health`, `/metrics`, `/status.json`
//! and `/dashboard`. The path of a request:
//!
//! ```text
//! accept -> connection -> service -> endpoint -> Node
//!   |          |            |           |
//!   |          |            |           the crate `envelope` (form, who, where), paths (what may
//!   |          |            |           be read), answer
//!   |          |            permits: requests, queries, body, bytes, timeouts
//!   |          head and idle timeouts, slow readers, streams
//!   connections
//! ```
//!
//! Accepting and connections are those of [`http_server`].
//!
//! Canisters are served to browsers by `web`, which has a separate listener and shares
//! connections, permits and endpoints with the rest.
//!
//! Bounds: every resource a client can take has a limit of the limits table and a named answer when
//! it is used up. Nothing is queued without a place: a connection above the limit gets an error and
//! is closed, a request above it is answered 503 or 429 with `Retry-After`, a synchronous call
//! above it becomes an asynchronous one.
//!
//! The crate `envelope` defines an envelope, and checks its sender and its canister.
//!
//! This crate must never know how the node orders, executes or stores. It uses only [`Node`] and
//! [`CertifiedView`], and the node reports certified calls through [`Waiters`].

mod answer;
mod api;
mod endpoints;
mod job_queue;
mod latencies;
mod listener;
mod metrics;
mod paths;
pub mod report;
mod routes;
mod service;
mod signed_answers;
mod waiters;
mod web;

pub use api::{
    CertifiedView, Health, HeapProfileError, NO_QUERY_WORKER, Node, Outcome, PublicMetadata,
    QUERY_OVERDUE, Refusal, RequestFacts, RequestKind,
};
pub use latencies::{Latencies, LatencyWindow};
pub use listener::{
    Gateway, GatewayConfig, GatewayError, GatewayHandle, HttpGatewayConfig, QueryConcurrency,
};
pub use waiters::Waiters;
