//! The HTTP gateway: canisters in browsers, by the HTTP gateway protocol specification.
//!
//! A listener in addition to the public interface. The path of a request:
//!
//! ```text
//! host: which canister -> permits, room, body -> http_request, as a query
//!                                                   |  or, if it says so, http_request_update
//!                                                   v
//!        browser <- pieces, one at a time <- verify: certified, and how
//! ```
//!
//! It asks through [`crate::Node`], as the query and call endpoints do for a client, and it is its
//! own client: the reply of a query counts only once it is verified against the root key. Replies
//! for `raw` hosts are passed on unverified, and so are answers to update calls, which are in the
//! certified state.
//!
//! **Bounds.** The memory is divided ([`request_memory`]): a part for bodies while they arrive,
//! a part for asking canisters, a part for responses being written. A request reserves room to ask
//! when its body has arrived, by its bytes: [`limits::HTTP_REQUEST_BYTES`], the encoding of the
//! body, and the largest reply. When the response has arrived, everything but its size is
//! released, until it is written. Requests wait for room in line, as long as a client may take to
//! send a request, and are then refused with the limit. Responses longer than one reply are sent
//! piece by piece: the next one is asked for when the last is written, so they hold one reply,
//! however long they are; and there is a deadline for each as a whole. Of the responses being
//! written, one connection has a part. Nothing is kept from one request to the next.
//!
//! **Long responses.** There are two ways. A canister may answer 206 to a request without a range:
//! then the rest is asked for by ranges, and each piece is certified by itself. Or it names a
//! callback: then the hash of all pieces is certified, so they are read twice. The first time they
//! are hashed and dropped, except for 32 bytes each; when the whole is verified, they are asked for
//! again and sent, and a piece that differs from the first time ends the connection.
//!
//! Requests of the public interface, which a page sends to its origin, are served here as there
//! (`/api/v2`, `/api/v3`, `/api/v4`).
//!
//! This module must never know access rules. It asks as the anonymous principal for all clients.

mod exchange;
mod expression;
mod host;
mod page;
mod reply;
mod request;
mod request_memory;
mod respond;
mod stream;
mod update;
mod verify;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use http_server::{
    ConnectionSettings, ErrorResponse, HttpHandler, Outgoing, RequestBody, STREAMS_MAX, with_unread,
};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
};
use limits::HttpGatewayLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::{
    exchange::Exchange,
    host::{NoTarget, Target},
    reply::HeaderBounds,
    request::BrowserRequest,
    request_memory::{BodyReservation, ConnectionQuota, RequestMemory},
};
use crate::{
    HttpGatewayConfig,
    api::RequestKind,
    job_queue::JobQueue,
    service::{Service, permits},
};

/// Of the requests in flight, the part of one connection.
const CONNECTION_PART: u64 = 4;
/// Of the threads that verify, the part of browsers' responses.
const VERIFY_PART: u64 = 2;

/// Everything that requests need. One per gateway.
pub(crate) struct Web {
    // Interfaces.
    service: Arc<Service>,
    // Configuration.
    limits: HttpGatewayLimits,
    ingress_history_bytes: u64,
    // Permits.
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Where responses are verified: apart from envelopes, which other clients wait for.
    verify: Arc<JobQueue>,
    rooms: Arc<RequestMemory>,
    // State.
    /// Update calls so far: a part of their nonces.
    updates: AtomicU64,
}

impl Web {
    pub(crate) fn new(service: Arc<Service>, config: HttpGatewayConfig) -> Self {
        let HttpGatewayConfig { limits, requests: pool, ingress_history_bytes, .. } = config;
        let requests = Arc::new(Semaphore::new(permits(limits.requests_in_flight)));
        let rooms = Arc::new(RequestMemory::new(&limits, service.config.call_bytes, pool));
        let streams = Arc::new(Semaphore::new(permits(rooms.parts.streams)));
        let verify = JobQueue::new(permits(service.config.verify_threads.div_ceil(VERIFY_PART)));
        Self {
            service,
            limits,
            ingress_history_bytes,
            requests,
            streams,
            verify,
            rooms,
            updates: AtomicU64::new(0),
        }
    }

    fn header_bounds(&self) -> HeaderBounds {
        HeaderBounds {
            lines: self.limits.response_headers,
            bytes: self.limits.response_header_bytes,
        }
    }

    async fn serve(
        self: &Arc<Self>,
        request: Request<Incoming>,
        quota: Arc<ConnectionQuota>,
    ) -> Result<Response<Outgoing>, ErrorResponse> {
        let (target, place, mut room) = match self.admit(&request) {
            Ok(Admission::Served { target, place, room }) => (target, place, room),
            Ok(Admission::Answered(response)) => return Ok(response),
            Err(refused) => return Err(with_unread(request, refused).await),
        };
        let (head, body) = request.into_parts();
        let body = RequestBody::new(&head.headers, body);
        let limit = ("http_gateway.body_bytes", self.limits.body_bytes);
        let reading = self.service.read_body_into(body, &mut room, limit, std::convert::identity);
        let body = reading.await?;
        let request = Arc::new(BrowserRequest::new(&head, body)?);
        drop(head);
        let (web, body, place) = (self.clone(), Some(room), Arc::new(place));
        Exchange { web, quota, target, request, body, place }.run().await
    }

    /// Checks a request before its body is read.
    fn admit(&self, request: &Request<Incoming>) -> Result<Admission, ErrorResponse> {
        let target = host::target(request.uri(), request.headers()).map_err(no_target)?;
        if !self.service.node.hosts(&target.canister) {
            let canister = target.canister;
            let message = format!("{canister} is no canister of this node's subnet");
            return Err(ErrorResponse::new(StatusCode::NOT_FOUND, "not_hosted", message));
        }
        if target.shares_worker(request.headers()) {
            return Err(no_worker(&target));
        }
        let own = target.own_address(request.method(), request.uri(), request.headers());
        if let Some(address) = own {
            let address = HeaderValue::try_from(address);
            let address = address.map_err(|_| no_target(NoTarget::Unnamed))?;
            return Ok(Admission::Answered(respond::redirect(address)));
        }
        if is_preflight(request) {
            return Ok(Admission::Answered(respond::preflight()));
        }
        let place = self.service.enter(
            &self.requests,
            "http_gateway.requests_in_flight",
            StatusCode::SERVICE_UNAVAILABLE,
            self.limits.requests_in_flight,
        )?;
        self.service.node.check_load(RequestKind::Query)?;
        let room = self.rooms.body(self.read_timeout())?;
        Ok(Admission::Served { target, place, room })
    }
}

/// A request that passed the checks before its body is read.
enum Admission {
    Answered(Response<Outgoing>),
    Served { target: Target, place: OwnedSemaphorePermit, room: BodyReservation },
}

impl HttpHandler for Web {
    type ConnectionState = ConnectionQuota;

    fn connection_state(&self) -> ConnectionQuota {
        self.rooms.quota()
    }

    fn settings(&self) -> ConnectionSettings {
        let part = (self.limits.requests_in_flight / CONNECTION_PART).max(1);
        let streams = u32::try_from(part).unwrap_or(u32::MAX).min(STREAMS_MAX);
        ConnectionSettings {
            streams: Some(streams),
            any_origin: true,
            ..ConnectionSettings::default()
        }
    }

    fn read_timeout(&self) -> Duration {
        self.service.read_timeout()
    }

    fn connections_limit(&self) -> (&'static str, u64) {
        ("http_gateway.connections", self.limits.connections)
    }

    fn count_refusal(&self, reason: &'static str) {
        self.service.count_refusal(reason);
    }

    fn count_eviction(&self) {
        self.service.count_eviction();
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        quota: Arc<ConnectionQuota>,
    ) -> Response<Outgoing> {
        if is_of_public_interface(request.uri().path()) {
            return self.service.serve(request).await.map(Outgoing::Whole);
        }
        let started = Instant::now();
        let as_page = page::is_wanted(request.headers());
        let response = match self.serve(request, quota).await {
            Ok(response) => response,
            Err(refused) => {
                self.service.count_refusal(refused.reason);
                page::refusal(refused, as_page, &self.rooms)
            }
        };
        // Canisters choose the status: the class of it is a label that no canister can make more
        // of.
        let class = response.status().as_u16() / 100 * 100;
        self.service.metrics.record_response("http_gateway", class, started.elapsed());
        respond::allow_any_origin(response)
    }
}

/// Whether a page asks the public interface, at the address that the page is from.
fn is_of_public_interface(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split('/');
    parts.next() == Some("api")
        && matches!(parts.next(), Some("v2" | "v3" | "v4"))
        && matches!(parts.next(), Some("status" | "canister" | "subnet"))
}

/// Whether a browser asks what a page of another origin may ask.
fn is_preflight(request: &Request<Incoming>) -> bool {
    *request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Refusal of a service worker to a page of a shared host.
fn no_worker(target: &Target) -> ErrorResponse {
    let canister = target.canister;
    let message = format!(
        "this host is shared by all canisters, and a service worker would have them all; open \
         http://{canister}.localhost:<port>/ instead"
    );
    ErrorResponse::new(StatusCode::FORBIDDEN, "shared_host", message)
}

fn no_target(none: NoTarget) -> ErrorResponse {
    let how = "open http://<canister id>.localhost:<port>/, or http://localhost:<port>/ with \
               ?canisterId=<canister id>";
    let why = match none {
        NoTarget::Unnamed => "the address names no canister",
        NoTarget::NoId => "canisterId is no canister's id",
    };
    ErrorResponse::bad_request("no_canister", format!("{why}; {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_reach_the_public_interface_and_nothing_of_the_operators() {
        for path in ["/api/v2/status", "/api/v3/canister/x/query", "/api/v4/subnet/x/call"] {
            assert!(is_of_public_interface(path), "{path}");
        }
        for path in
            ["/", "/metrics", "/status.json", "/dashboard", "/debug/heap", "/api/v1/x", "/api/v2/x"]
        {
            assert!(!is_of_public_interface(path), "{path}");
        }
    }
}
