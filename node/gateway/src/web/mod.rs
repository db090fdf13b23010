//! The HTTP gateway: canisters in browsers, by the HTTP gateway protocol specification.
//!
//! A listener of its own beside the public interface. The way of a request:
//!
//! ```text
//! host: which canister -> permits, room, body -> http_request, as a query
//!                                                   |  or, if it says so, http_request_update
//!                                                   v
//!        browser <- pieces, one at a time <- verify: certified, and how
//! ```
//!
//! It asks through [`crate::Node`], as the query and call endpoints do for a client, and it is its
//! own client: what a query says counts only once it is verified against the root key. What
//! `raw` hosts ask for is passed on unverified, and so are answers to update calls, which are in
//! the certified state.
//!
//! **Bounds.** A request takes all that it may hold at once, so that none waits for another with
//! something in its hands: [`limits::HTTP_REQUEST_BYTES`], three times its body, and the largest
//! reply ([`Share`]). Where there is no room it waits, as long as a client may take to send one, and
//! is then refused with the limit. When the response is there, all is given back but what it has.
//! Responses longer than one reply go out piece by piece: the next one is asked for when the last
//! is written, so they hold one reply, however long they are; and half of the room at most is
//! theirs. Nothing is kept from one request to the next.
//!
//! **Long responses.** There are two ways. A canister may answer 206 to a request without a range:
//! then the rest is asked for by ranges, and each piece is certified for itself. Or it names a
//! callback: then the hash of all pieces is certified, so they are read twice. The first time they
//! are hashed and forgotten, but for 32 bytes each; when the whole is verified, they are asked for
//! again and sent, and a piece that is not the same as before ends the connection.
//!
//! Requests of the public interface, which a page sends to where it came from, are served here as
//! there (`/api/v2`, `/api/v3`, `/api/v4`).
//!
//! What it must never know: who may see what. It asks as nobody (the anonymous principal) for
//! everybody.

mod exchange;
mod expression;
mod host;
mod page;
mod reply;
mod respond;
mod update;
mod verify;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use budget::{Pool, PoolFull, Reservation};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body as _, Incoming},
    header,
};
use limits::{HTTP_REPLY_BESIDE_BYTES, HTTP_REQUEST_BYTES, HttpGatewayLimits};
use tokio::sync::Semaphore;

use self::{
    exchange::Exchange,
    host::{NoTarget, Target},
    reply::HeaderBounds,
};
use crate::{
    answer::Refused,
    api::RequestKind,
    connection::{Answers, Outgoing},
    service::{BodyBounds, ReceivedBody, Service, permits},
};

/// How often a request that waits looks for room.
const ROOM_LOOK: Duration = Duration::from_millis(10);
/// How long a piece waits for the one before to be written: longer than the slowest reader has.
const PIECE_WAIT: Duration = Duration::from_secs(300);
/// Of the room, the part that long responses may take.
const STREAMS_PART: u64 = 2;

/// Everything that requests need. One per gateway.
pub(crate) struct Web {
    // Interfaces.
    service: Arc<Service>,
    // Configuration.
    limits: HttpGatewayLimits,
    // Permits.
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    pool: Pool,
    // State.
    /// Update calls so far: a part of their nonces.
    updates: AtomicU64,
}

impl Web {
    pub(crate) fn new(service: Arc<Service>, limits: HttpGatewayLimits, pool: Pool) -> Self {
        let requests = Arc::new(Semaphore::new(permits(limits.requests_in_flight)));
        let each = HttpGatewayLimits::request_bytes(0, service.call_bytes);
        let streams = (pool.cap_bytes() / STREAMS_PART / each.max(1)).max(1);
        let streams = Arc::new(Semaphore::new(permits(streams)));
        Self { service, limits, requests, streams, pool, updates: AtomicU64::new(0) }
    }

    fn header_bounds(&self) -> HeaderBounds {
        HeaderBounds {
            lines: self.limits.response_headers,
            bytes: self.limits.response_header_bytes,
        }
    }

    /// Room for a request with a body of so many bytes.
    async fn share(&self, body_bytes: u64) -> Result<Arc<Share>, Refused> {
        let call_bytes = self.service.call_bytes;
        let bytes = HttpGatewayLimits::request_bytes(body_bytes, call_bytes);
        let all = room(&self.pool, bytes, self.read_timeout()).await?;
        let reply = call_bytes.saturating_add(HTTP_REPLY_BESIDE_BYTES);
        Ok(Arc::new(Share { all: Mutex::new(all), replies: Pool::standalone("reply", reply) }))
    }

    async fn serve(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Outgoing>, Refused> {
        let target = host::target(request.uri(), request.headers()).map_err(no_target)?;
        if !self.service.node.hosts(&target.canister) {
            let canister = target.canister;
            let message = format!("{canister} is no canister of this node's subnet");
            return Err(Refused::new(StatusCode::NOT_FOUND, "not_hosted", message));
        }
        if is_preflight(&request) {
            return Ok(respond::preflight());
        }
        let place = self.service.enter(
            &self.requests,
            "http_gateway.requests_in_flight",
            StatusCode::SERVICE_UNAVAILABLE,
            self.limits.requests_in_flight,
        )?;
        self.service.node.check_load(RequestKind::Query)?;
        let (head, body) = request.into_parts();
        let most = self.limits.body_bytes;
        let share = self.share(body.size_hint().upper().unwrap_or(most).min(most)).await?;
        let bounds = BodyBounds {
            limit: ("http_gateway.body_bytes", most),
            pool: "http_requests",
            // It has its room.
            times: 0,
        };
        let ReceivedBody { bytes, .. } =
            self.service.read_body_into(body, self.pool.try_reserve(0), bounds).await?;
        let exchange = Exchange::new(self.clone(), target, &head, bytes, (place, share))?;
        Arc::new(exchange).run().await
    }
}

/// What one request may hold of the pool. It lives as long as the last piece of its response.
struct Share {
    all: Mutex<Reservation>,
    /// Of it, the room for replies.
    replies: Pool,
}

impl Share {
    /// Room for the largest reply: once the one before is gone.
    async fn room_for_reply(&self) -> Result<Reservation, Refused> {
        room(&self.replies, self.replies.cap_bytes(), PIECE_WAIT).await
    }

    /// Gives back what a request takes beside its body, for as long as it asks nothing. No reply may
    /// be left.
    fn pause(&self) {
        self.all().shrink(self.asking_bytes());
    }

    /// Takes it again.
    async fn go_on(&self, web: &Web) -> Result<(), Refused> {
        let again = room(&web.pool, self.asking_bytes(), web.read_timeout()).await?;
        // It is of the same pool.
        let _ = self.all().merge(again);
        Ok(())
    }

    fn asking_bytes(&self) -> u64 {
        HTTP_REQUEST_BYTES.saturating_add(self.replies.cap_bytes())
    }

    fn all(&self) -> MutexGuard<'_, Reservation> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more is asked: what is left are replies.
    fn settle(&self) {
        let mut all = self.all();
        let beside = all.bytes().saturating_sub(self.replies.used_bytes());
        all.shrink(beside);
    }
}

/// So many bytes of a pool, waiting for them for so long.
async fn room(pool: &Pool, bytes: u64, patience: Duration) -> Result<Reservation, Refused> {
    let deadline = Instant::now() + patience;
    loop {
        if pool.free_bytes() >= bytes || Instant::now() >= deadline {
            // Others look, too.
            match pool.try_reserve(bytes) {
                Err(full) if Instant::now() >= deadline => return Err(no_room(&full)),
                Err(_) => {}
                Ok(reserved) => return Ok(reserved),
            }
        }
        tokio::time::sleep(ROOM_LOOK).await;
    }
}

impl Answers for Web {
    fn read_timeout(&self) -> Duration {
        self.service.read_timeout()
    }

    fn connections_limit(&self) -> (&'static str, u64) {
        ("http_gateway.connections", self.limits.connections)
    }

    fn refused(&self, reason: &'static str) {
        self.service.refused(reason);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Outgoing> {
        if is_of_public_interface(request.uri().path()) {
            return self.service.serve(request).await.map(Outgoing::Whole);
        }
        let started = Instant::now();
        let as_page = page::is_wanted(request.headers());
        let response = match self.serve(request).await {
            Ok(response) => response,
            Err(refused) => {
                self.service.refused(refused.reason);
                page::refusal(&refused, as_page)
            }
        };
        // Canisters choose the status: the class of it is a label that no canister can make more
        // of.
        let class = response.status().as_u16() / 100 * 100;
        self.service.metrics.answered("http_gateway", class, started.elapsed());
        respond::for_everybody(response)
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

fn no_room(full: &PoolFull) -> Refused {
    Refused::busy(
        StatusCode::SERVICE_UNAVAILABLE,
        "http_requests",
        format!("{full} (the limit http_gateway.requests_bytes); retry in a second"),
        1,
    )
}

fn no_target(none: NoTarget) -> Refused {
    let how = "open http://<canister id>.localhost:<port>/, or http://localhost:<port>/ with \
               ?canisterId=<canister id>";
    match none {
        NoTarget::Unnamed => {
            Refused::bad("no_canister", format!("the address names no canister; {how}"))
        }
        NoTarget::NoId => {
            Refused::bad("no_canister", format!("canisterId is no canister's id; {how}"))
        }
    }
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
