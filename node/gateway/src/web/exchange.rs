//! One request: what the canister is asked, and what of its answers goes to the browser.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use http_server::{ErrorResponse, HttpHandler as _, Outgoing, with_reservation};
use hyper::{Response, StatusCode};
use ic_http_certification::HttpResponse;
use ic_principal::Principal;
use state::{QueryRequest, Reject, RejectCode, RequestId};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Target, Web,
    reply::{self, Streaming, Token},
    request::BrowserRequest,
    request_memory::{BodyReservation, ConnectionQuota, ReplyReservation},
    respond::{Head, ResponseGuard, guard_response, invalid_response},
    verify::{self, CertifiedContent, VerificationContext, VerificationError, VerifiedScope},
};
use crate::{
    api::{NO_QUERY_WORKER, Outcome, PublicMetadata, QUERY_OVERDUE},
    service::{JobKind, no_query_worker},
};

/// Metadata in which a canister says which versions of certification it has.
const VERSIONS_SECTION: &str = "supported_certificate_versions";
/// How often a canister is asked the same because there was no room for its reply: what it says may
/// be longer the second time.
const ASKS_MAX: usize = 3;

pub(super) type HttpResult<T> = Result<T, ErrorResponse>;
/// Among the requests in flight.
pub(super) type RequestPermit = Arc<OwnedSemaphorePermit>;

/// One request, and what it holds until its response is made.
pub(super) struct Exchange {
    pub(super) web: Arc<Web>,
    pub(super) quota: Arc<ConnectionQuota>,
    pub(super) target: Target,
    pub(super) request: Arc<BrowserRequest>,
    pub(super) body: Option<BodyReservation>,
    pub(super) place: RequestPermit,
}

pub(super) struct Reply {
    pub(super) head: Head,
    pub(super) body: Bytes,
    pub(super) share: Arc<ReplyReservation>,
    pub(super) upgrade: bool,
    pub(super) streaming: Option<Streaming>,
}

/// A piece of one.
pub(super) struct Piece {
    pub(super) body: Bytes,
    pub(super) share: Arc<ReplyReservation>,
}

impl From<Reply> for Piece {
    fn from(reply: Reply) -> Self {
        Self { body: reply.body, share: reply.share }
    }
}

#[derive(Clone, Copy)]
pub(super) enum ReplySource<'a> {
    Request(&'a BrowserRequest),
    Piece(&'a str, &'a Token),
    /// The outcome of an update call, which is known.
    Update(&'a RequestId),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyUse {
    /// It is written; this number of bytes is expected, 0 where that is not known.
    Written(u64),
    /// It is read and dropped.
    Read,
}

impl Exchange {
    /// Asks the canister and makes the response.
    pub(super) async fn run(mut self) -> HttpResult<Response<Outgoing>> {
        let request = self.request.clone();
        let reply = self.reply(ReplySource::Request(&request), ReplyUse::Written(0)).await?;
        if reply.upgrade {
            drop((reply, request));
            let reply = self.update().await?;
            return self.respond(reply, false).await;
        }
        drop(request);
        self.respond(reply, true).await
    }

    async fn respond(self, reply: Reply, is_query: bool) -> HttpResult<Response<Outgoing>> {
        if !is_query && !self.target.raw {
            refuse_more(&reply)?;
        }
        let certified = match is_query && !self.target.raw {
            true => Some(self.check_certificate(&self.request, &reply.head).await?),
            false => None,
        };
        if reply.streaming.is_some() {
            return self.by_callback(reply, certified, is_query).await;
        }
        let verified = self.verified(certified, &reply.body).await?;
        if reply.head.status == StatusCode::PARTIAL_CONTENT && !self.request.has_range() {
            return self.by_ranges(reply, verified, is_query).await;
        }
        let parts = reply.head.parts(verified.as_ref())?;
        reply.share.settle();
        let hold: ResponseGuard = Arc::new((reply.share, self.place));
        let body = with_reservation(reply.body, hold.clone());
        Ok(guard_response(parts, Outgoing::Whole(Full::new(body)), hold))
    }

    /// A response, to whatever was asked.
    pub(super) async fn reply(
        &self,
        question: ReplySource<'_>,
        wants: ReplyUse,
    ) -> HttpResult<Reply> {
        let bounds = self.web.header_bounds();
        let (bytes, share, (reply, head)) = self
            .in_room(question, wants, |bytes| {
                let mut reply = reply::http(bytes, bounds).map_err(invalid_response)?;
                let head = Head::new(reply.status, std::mem::take(&mut reply.headers))?;
                let beside = head.held_bytes();
                Ok(((reply, head), beside))
            })
            .await?;
        let body = bytes.slice(reply.body);
        Ok(Reply { head, body, share, upgrade: reply.upgrade, streaming: reply.streaming })
    }

    /// A piece of a response that a callback gives, and the token of the next one. A piece that is
    /// empty is the last.
    pub(super) async fn piece(
        &self,
        method: &str,
        token: &Token,
        wants: ReplyUse,
    ) -> HttpResult<(Piece, Option<Token>)> {
        let question = ReplySource::Piece(method, token);
        let read = |bytes: &[u8]| Ok((reply::chunk(bytes).map_err(invalid_response)?, 0));
        let (bytes, share, chunk) = self.in_room(question, wants, read).await?;
        if chunk.body.is_empty() && chunk.token.is_some() {
            return Err(invalid_response("a piece of it is empty and names a next one"));
        }
        Ok((Piece { body: bytes.slice(chunk.body), share }, chunk.token))
    }

    /// Asks as soon as there is room. Where there is no room to keep the reply, the reply is
    /// dropped and asked for again when there is: a request that waits holds nothing that others
    /// wait for.
    async fn in_room<T>(
        &self,
        question: ReplySource<'_>,
        wants: ReplyUse,
        read: impl Fn(&[u8]) -> HttpResult<(T, u64)>,
    ) -> HttpResult<(Bytes, Arc<ReplyReservation>, T)> {
        let until = Instant::now() + self.web.read_timeout();
        let body = match question {
            ReplySource::Request(request) => request.body.len() as u64,
            ReplySource::Piece(..) | ReplySource::Update(_) => 0,
        };
        let rooms = &self.web.rooms;
        let mut keeps = match wants {
            ReplyUse::Written(bytes) => bytes,
            ReplyUse::Read => 0,
        };
        for _ in 0..ASKS_MAX {
            let share = rooms.share(&self.quota, body, keeps, until).await?;
            let (bytes, capacity) = self.answer(question, &share).await?;
            let (read, beside) = read(&bytes)?;
            keeps = capacity.saturating_add(beside);
            if wants == ReplyUse::Read || share.keep(rooms, &self.quota, keeps) {
                return Ok((bytes, share, read));
            }
        }
        let message = format!(
            "the canister's response grew each of the {ASKS_MAX} times that it was asked for; there \
             was no room for it within the limit http_gateway.requests_bytes = {}",
            self.web.limits.requests_bytes
        );
        Err(ErrorResponse::unavailable("http_requests", message))
    }

    /// The answer, in the room that was taken for it, and what it takes.
    async fn answer(
        &self,
        question: ReplySource<'_>,
        share: &Arc<ReplyReservation>,
    ) -> HttpResult<(Bytes, u64)> {
        let (method, argument) = match question {
            ReplySource::Update(id) => return self.kept_answer(id, share),
            ReplySource::Request(request) => ("http_request", request.argument()),
            ReplySource::Piece(method, token) => (method, token.0.clone()),
        };
        self.check_argument(&argument)?;
        let service = &self.web.service;
        let canister = self.target.canister;
        let query = QueryRequest {
            sender: Principal::anonymous(),
            canister_id: canister,
            method_name: method.to_owned(),
            arg: argument,
            sender_info: None,
        };
        let (node, share, started) = (service.node.clone(), share.clone(), Instant::now());
        let most = self.web.rooms.reply_bytes();
        let wait = service.config.queries.wait;
        let asked = service.on_thread(JobKind::Query(canister), move || {
            let reply = node.query(query).map_err(|reject| not_executed(&reject, wait))?;
            guard_reply(reply, share, most)
        });
        let answer = asked.await.map_err(|mut refused| {
            // Browsers and crawlers know 503 as the status to come back after.
            if refused.status == StatusCode::TOO_MANY_REQUESTS {
                refused.status = StatusCode::SERVICE_UNAVAILABLE;
            }
            refused
        })?;
        service.config.latencies.record_query(started.elapsed());
        answer
    }

    fn kept_answer(
        &self,
        id: &RequestId,
        share: &Arc<ReplyReservation>,
    ) -> HttpResult<(Bytes, u64)> {
        match self.web.service.latest()?.outcome(id) {
            Some(Outcome::Replied(reply)) => {
                guard_reply(reply, share.clone(), self.web.rooms.reply_bytes())
            }
            Some(Outcome::Rejected(reject)) => Err(rejected(&reject)),
            Some(Outcome::Done) | None => Err(invalid_response(format!(
                "the node keeps it no longer, or has no room for it within the limit \
                 subnet.ingress_history_bytes = {}",
                self.web.ingress_history_bytes
            ))),
        }
    }

    pub(super) fn check_argument(&self, argument: &[u8]) -> HttpResult<()> {
        let limit = self.web.service.config.call_bytes;
        let bytes = argument.len() as u64;
        if bytes <= limit {
            return Ok(());
        }
        let message = format!(
            "body, URL and headers of the request make an argument of {bytes} bytes, over the \
             limit subnet.message_payload_bytes = {limit}"
        );
        Err(ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "message_payload_bytes", message))
    }

    /// Looks at the certificate of a response to this request.
    pub(super) async fn check_certificate(
        &self,
        request: &Arc<BrowserRequest>,
        head: &Head,
    ) -> HttpResult<CertifiedContent> {
        let service = self.web.service.clone();
        let view = service.latest()?;
        let (canister, request, head) = (self.target.canister, request.clone(), head.clone());
        let certified = self.on_thread(move || {
            let response = HttpResponse::builder()
                .with_status_code(head.status)
                .with_headers(head.headers)
                .build();
            let asked = VerificationContext {
                auth: &service.auth,
                now: service.node.now(),
                canister: &canister,
                request: &request.to_http_request(),
            };
            verify::check_certificate(&asked, &response, || {
                has_no_newer(&view.public_metadata(&canister, VERSIONS_SECTION))
            })
        });
        certified.await?.map_err(|unverified| self.not_verified(unverified))
    }

    /// Whether this is the body that is certified; nothing where nothing is to be.
    pub(super) async fn verified(
        &self,
        certified: Option<CertifiedContent>,
        body: &Bytes,
    ) -> HttpResult<Option<VerifiedScope>> {
        let Some(certified) = certified else { return Ok(None) };
        if certified.is_nothing() {
            return Ok(Some(VerifiedScope::Nothing));
        }
        let body = body.clone();
        let judged = self.on_thread(move || {
            let mut hasher = certified.hasher();
            hasher.update(&body);
            certified.verify_body(&hasher.finish())
        });
        judged.await?.map(Some).map_err(|unverified| self.not_verified(unverified))
    }

    /// Runs work in the places where responses are verified.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> HttpResult<T> {
        self.web.service.on_places(&self.web.verify, work).await
    }

    pub(super) fn not_verified(&self, unverified: VerificationError) -> ErrorResponse {
        let canister = self.target.canister;
        let message = format!(
            "the response of {canister} could not be verified: {unverified}. A canister's \
             developer can see it unverified at <canister id>.raw.localhost."
        );
        ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "unverified", message)
    }

    /// Time for a response to be verified, and for each piece of it to be made.
    pub(super) async fn in_time<T>(
        &self,
        what: &str,
        making: impl Future<Output = HttpResult<T>>,
    ) -> HttpResult<T> {
        let millis = self.web.limits.verify_millis;
        let made = tokio::time::timeout(Duration::from_millis(millis), making).await;
        made.map_err(|_| {
            let message = format!("{what} within the limit http_gateway.verify_millis = {millis}");
            ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, "verify_millis", message)
        })?
    }
}

/// A reply with its room, and what it takes.
fn guard_reply(
    reply: Vec<u8>,
    share: Arc<ReplyReservation>,
    most: u64,
) -> HttpResult<(Bytes, u64)> {
    let capacity = reply.capacity() as u64;
    if capacity > most {
        return Err(invalid_response(format!(
            "it takes {capacity} bytes, and {most} are there for the limit \
             subnet.message_payload_bytes"
        )));
    }
    Ok((with_reservation(reply, share), capacity))
}

/// The answer to an update call is certified as it is: nothing that follows it would be.
fn refuse_more(reply: &Reply) -> HttpResult<()> {
    if reply.streaming.is_some() || reply.head.status == StatusCode::PARTIAL_CONTENT {
        return Err(invalid_response(
            "it answers an update call and continues after the reply, which is not certified",
        ));
    }
    Ok(())
}

/// Whether a canister's metadata leaves version 1 to it.
fn has_no_newer(metadata: &PublicMetadata) -> bool {
    match metadata {
        PublicMetadata::Absent => true,
        PublicMetadata::Private => false,
        PublicMetadata::Public(versions) => {
            let versions = String::from_utf8_lossy(versions);
            !versions.split(',').any(|version| version.trim() == "2")
        }
    }
}

/// The reject of a query, or of the check of a call.
pub(super) fn not_executed(reject: &Reject, wait: Duration) -> ErrorResponse {
    match reject.error_code {
        NO_QUERY_WORKER => no_query_worker(wait, StatusCode::SERVICE_UNAVAILABLE),
        _ => rejected(reject),
    }
}

fn rejected(reject: &Reject) -> ErrorResponse {
    let message = format!(
        "the canister did not answer: {} (reject code {}, {})",
        reject.message, reject.code as u64, reject.error_code
    );
    match reject.code {
        _ if reject.error_code == QUERY_OVERDUE => {
            ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, "query_overdue", message)
        }
        RejectCode::DestinationInvalid => {
            ErrorResponse::new(StatusCode::NOT_FOUND, "canister_rejects", message)
        }
        RejectCode::SysTransient => ErrorResponse::unavailable("canister_rejects", message),
        _ => ErrorResponse::new(StatusCode::BAD_GATEWAY, "canister_rejects", message),
    }
}

pub(super) fn internal(error: impl std::fmt::Display) -> ErrorResponse {
    let message = format!("the gateway failed while serving this request: {error}");
    ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canister_that_has_version_2_or_does_not_say_may_not_answer_with_version_1() {
        let says = |versions: &str| has_no_newer(&PublicMetadata::Public(versions.into()));
        assert!(has_no_newer(&PublicMetadata::Absent) && says("1") && says(""));
        assert!(!has_no_newer(&PublicMetadata::Private) && !says("1,2") && !says(" 2 "));
    }
}
