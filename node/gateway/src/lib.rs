//! The public HTTP interface.
//!
//! Clients reach the node through here and nowhere else: calls, queries and read_states of the
//! interface specification, its status endpoint, and for the operator `/health`, `/metrics`,
//! `/status.json` and `/dashboard`. The way of a request:
//!
//! ```text
//! accept -> connection -> service -> endpoint -> Node
//!   |          |            |           |
//!   |          |            |           the crate `envelope` (form, who, where), paths (what may be read), answer
//!   |          |            permits: requests, queries, body, bytes, timeouts
//!   |          head and idle timeouts, slow readers, streams
//!   connections
//! ```
//!
//! Canisters are served to browsers by [`web`], which has a listener of its own and shares
//! connections, permits and endpoints with the rest.
//!
//! What bounds it: every resource a client can take has a limit of the limits table and a named
//! answer when it is used up. Nothing is queued without a place: a connection beyond the limit is
//! told so and closed, a request beyond it is answered 503 or 429 with `Retry-After`, a synchronous
//! call beyond it becomes an asynchronous one.
//!
//! What an envelope is, whether its sender sent it and which canister it is for is said by the
//! crate `envelope`.
//!
//! What it must never know: how the node orders, executes or stores. It speaks to [`Node`] and
//! [`CertifiedView`] only, and the node tells it through [`Waiters`] which calls were certified.

mod answer;
mod api;
mod connection;
mod endpoints;
mod latencies;
mod listener;
mod metrics;
mod page;
mod paths;
mod places;
pub mod report;
mod routes;
mod service;
mod waiters;
mod web;

pub use api::{
    CertifiedView, Health, NO_QUERY_WORKER, NoProfile, Node, Outcome, PublicMetadata,
    QUERY_OVERDUE, QueryRequest, Refusal, RequestFacts, RequestKind, Submitted,
};
pub use connection::{Answers, Outgoing};
pub use latencies::{Latencies, LatencyWindow};
pub use listener::{
    Gateway, GatewayConfig, GatewayError, GatewayHandle, HttpGatewayConfig, OtherListener,
    QueryPlaces,
};
pub use waiters::Waiters;
