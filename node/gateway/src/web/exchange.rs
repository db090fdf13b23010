//! One request: what the canister is asked, and what of its answers goes to the browser.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use envelope::hash::{Hash, of_bytes};
use http_body_util::Full;
use hyper::{HeaderMap, Response, StatusCode, Uri, header, http::request::Parts};
use ic_http_certification::{CERTIFICATE_EXPRESSION_HEADER_NAME, HttpRequest, HttpResponse};
use ic_principal::Principal;
use state::{Reject, RejectCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{
    Share, Target, Web,
    reply::{self, HttpReply, Streaming, Token},
    respond::{self, ContentRange, Head},
    verify::{self, Asked, BodyHasher, BodyHashes, Unverified, Verified},
};
use crate::{
    answer::Refused,
    api::{PublicMetadata, QueryRequest},
    connection::{Answers as _, Outgoing},
    service::{Work, held},
};

/// Metadata in which a canister says which versions of certification it has.
const VERSIONS_SECTION: &str = "supported_certificate_versions";

/// One request, and what it holds until its response is sent.
pub(super) struct Exchange {
    pub(super) web: Arc<Web>,
    pub(super) target: Target,
    pub(super) request: HttpRequest<'static>,
    pub(super) share: Arc<Share>,
    _place: Place,
}

/// A piece of a response that a callback gives, or a range.
struct Piece {
    body: Bytes,
    next: Option<Token>,
}

/// A body whose hash is wanted.
enum Hashed {
    Whole(Bytes),
    Pieces(BodyHashes),
}

pub(super) type Outcomes<T> = Result<T, Refused>;
/// See [`common`].
type Common = Option<Vec<(String, String)>>;
type Place = OwnedSemaphorePermit;

impl Exchange {
    pub(super) fn new(
        web: Arc<Web>,
        target: Target,
        head: &Parts,
        body: Bytes,
        (place, share): (Place, Arc<Share>),
    ) -> Outcomes<Self> {
        let request = HttpRequest::builder()
            .with_method(head.method.clone())
            .with_url(url(&head.uri))
            .with_headers(lines(&head.headers)?)
            .with_body(body.to_vec())
            .with_certificate_version(verify::VERSION)
            .build();
        Ok(Self { web, target, request, share, _place: place })
    }

    /// Asks the canister and makes the response.
    pub(super) async fn run(self: &Arc<Self>) -> Outcomes<Response<Outgoing>> {
        let (bytes, reply) = self.ask(&self.request).await?;
        if reply.upgrade {
            drop(bytes);
            let bytes = self.update().await?;
            let reply = reply::http(&bytes, self.web.header_bounds()).map_err(respond::bad)?;
            return self.respond(bytes, reply, false).await;
        }
        self.respond(bytes, reply, true).await
    }

    async fn respond(
        self: &Arc<Self>,
        bytes: Bytes,
        reply: HttpReply,
        is_query: bool,
    ) -> Outcomes<Response<Outgoing>> {
        let is_checked = is_query && !self.target.raw;
        let head = Head::new(reply.status, reply.headers)?;
        let body = bytes.slice(reply.body);
        drop(bytes);
        if !is_query && !self.target.raw {
            refuse_more(&head, reply.streaming.as_ref())?;
        }
        if let Some(streaming) = reply.streaming {
            return self.by_callback(head, body, streaming, (is_checked, is_query)).await;
        }
        let asks_for_range =
            self.request.headers().iter().any(|(name, _)| name == header::RANGE.as_str());
        let verified = match is_checked {
            true => Some(self.check(&self.request, &head, Hashed::Whole(body.clone())).await?),
            false => None,
        };
        if head.status == StatusCode::PARTIAL_CONTENT && !asks_for_range {
            return self.by_ranges(&head, body, verified.as_ref(), is_query).await;
        }
        let parts = head.parts(verified.as_ref())?;
        self.share.settle();
        Ok(Response::from_parts(parts, Outgoing::Whole(Full::new(body))))
    }

    /// A place among the long responses. Who waits for one holds no reply, and asks for the first piece
    /// again; where that is none, it cannot wait.
    async fn place(&self, first: Bytes, is_query: bool) -> Outcomes<(Place, Option<Bytes>)> {
        let places = &self.web.streams;
        if let Ok(place) = places.clone().try_acquire_owned() {
            return Ok((place, Some(first)));
        }
        drop(first);
        let full = || {
            let message = "as many long responses are sent as half of the limit \
                           http_gateway.requests_bytes has room for; retry in a second";
            Refused::busy(StatusCode::SERVICE_UNAVAILABLE, "http_streams", message, 1)
        };
        if !is_query {
            return Err(full());
        }
        self.share.pause();
        let waiting = places.clone().acquire_owned();
        let place = tokio::time::timeout(self.web.read_timeout(), waiting).await;
        let place = place.map_err(|_| full())?.map_err(|_| full())?;
        self.share.go_on(&self.web).await?;
        Ok((place, None))
    }

    /// The whole of something of which the canister sent the first range.
    async fn by_ranges(
        self: &Arc<Self>,
        head: &Head,
        body: Bytes,
        verified: Option<&Verified>,
        is_query: bool,
    ) -> Outcomes<Response<Outgoing>> {
        let range = range_of(head, &body)?;
        let common = common(verified)?;
        if range.first != 0 {
            return Err(respond::bad("it is a range that does not begin at the first byte"));
        }
        let mut parts = head.parts(verified)?;
        parts.status = StatusCode::OK;
        parts.headers.remove(header::CONTENT_RANGE);
        let (place, first) = self.place(body, is_query).await?;
        let (sender, pieces) = mpsc::channel(1);
        let exchange = self.clone();
        tokio::spawn(async move {
            let _place = place;
            send_ranges(exchange, sender, first, (range, common)).await;
        });
        Ok(Response::from_parts(parts, Outgoing::Pieces(pieces, Some(range.total))))
    }

    /// A response of which the canister has sent the first piece, and a callback gives the others.
    async fn by_callback(
        self: &Arc<Self>,
        head: Head,
        body: Bytes,
        streaming: Streaming,
        (is_checked, is_query): (bool, bool),
    ) -> Outcomes<Response<Outgoing>> {
        if streaming.canister != self.target.canister {
            return Err(respond::bad("its streaming callback is another canister's method"));
        }
        let (place, mut first) = self.place(body, is_query).await?;
        let is_certified = is_checked && !verify::claims_nothing(&head.headers);
        let (mut digests, mut total, mut verified) = (None, None, None);
        if is_certified {
            let millis = self.web.limits.verify_millis;
            let reading = self.read_through(&head, first.take(), &streaming);
            let read = tokio::time::timeout(Duration::from_millis(millis), reading).await;
            let (hashes, found, bytes) = read.map_err(|_| {
                let message = format!(
                    "the response was not verified within the limit http_gateway.verify_millis = \
                     {millis}"
                );
                Refused::new(StatusCode::GATEWAY_TIMEOUT, "verify_millis", message)
            })??;
            verified = Some(self.check(&self.request, &head, Hashed::Pieces(hashes)).await?);
            (digests, total) = (Some(found), Some(bytes));
        } else if is_checked {
            let nothing = Hashed::Whole(Bytes::new());
            match self.check(&self.request, &head, nothing).await? {
                Verified::Nothing => verified = Some(Verified::Nothing),
                // What follows is not what that certificate is of.
                Verified::Body | Verified::Response(_) => {
                    return Err(self.not_verified(Unverified::Response));
                }
            }
        }
        let parts = head.parts(verified.as_ref())?;
        let (sender, pieces) = mpsc::channel(1);
        let exchange = self.clone();
        tokio::spawn(async move {
            let _place = place;
            send_pieces(exchange, sender, first, streaming, digests).await;
        });
        Ok(Response::from_parts(parts, Outgoing::Pieces(pieces, total)))
    }

    /// Reads all pieces of a response and keeps their hashes: of the whole, and of each. Says how many
    /// bytes there are.
    async fn read_through(
        self: &Arc<Self>,
        head: &Head,
        first: Option<Bytes>,
        streaming: &Streaming,
    ) -> Outcomes<(BodyHashes, Vec<Hash>, u64)> {
        let first = match first {
            Some(first) => first,
            None => first_again(self, None).await?,
        };
        let mut total = first.len() as u64;
        let (mut hasher, digest) = self.hash(BodyHasher::new(&head.headers), first).await?;
        let mut digests = vec![digest];
        let mut token = Some(streaming.token.clone());
        while let Some(next) = token {
            self.check_pieces(digests.len() as u64)?;
            let piece = self.piece(&streaming.method, next).await?;
            total += piece.body.len() as u64;
            token = piece.next;
            let digest;
            (hasher, digest) = self.hash(hasher, piece.body).await?;
            digests.push(digest);
        }
        Ok((hasher.finish(), digests, total))
    }

    async fn hash(&self, mut hasher: BodyHasher, bytes: Bytes) -> Outcomes<(BodyHasher, Hash)> {
        let work = move || {
            hasher.update(&bytes);
            (hasher, of_bytes(&bytes))
        };
        self.web.service.on_thread(Work::Verify, work).await
    }

    fn check_pieces(&self, pieces: u64) -> Outcomes<()> {
        let limit = self.web.limits.response_chunks;
        if pieces <= limit {
            return Ok(());
        }
        Err(respond::bad(format!(
            "it has more pieces than the limit http_gateway.response_chunks = {limit}"
        )))
    }

    /// Asks the canister as a query.
    async fn ask(&self, request: &HttpRequest<'static>) -> Outcomes<(Bytes, HttpReply)> {
        let argument = candid::encode_one(request).map_err(internal)?;
        let bytes = self.query("http_request", argument).await?;
        let reply = reply::http(&bytes, self.web.header_bounds()).map_err(respond::bad)?;
        Ok((bytes, reply))
    }

    async fn piece(&self, method: &str, token: Token) -> Outcomes<Piece> {
        let bytes = self.query(method, token.0).await?;
        let chunk = reply::chunk(&bytes).map_err(respond::bad)?;
        Ok(Piece { body: bytes.slice(chunk.body), next: chunk.token })
    }

    /// Whether a piece is the one that was verified; `digest` as [`next_piece`] has it.
    async fn check_digest(&self, body: &Bytes, digest: Option<Option<Hash>>) -> Outcomes<()> {
        let Some(digest) = digest else { return Ok(()) };
        let bytes = body.clone();
        let work = move || of_bytes(&bytes);
        let found = self.web.service.on_thread(Work::Verify, work).await?;
        if digest == Some(found) {
            return Ok(());
        }
        Err(respond::bad("a piece of it is another than when it was verified"))
    }

    pub(super) fn check_argument(&self, argument: &[u8]) -> Outcomes<()> {
        let limit = self.web.service.call_bytes;
        if argument.len() as u64 <= limit {
            return Ok(());
        }
        Err(Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "message_payload_bytes",
            format!(
                "body, URL and headers of the request make an argument of {} bytes, over the limit \
                 message_payload_bytes = {limit}",
                argument.len()
            ),
        ))
    }

    /// The reply of a query, in the room that was taken for it.
    async fn query(&self, method: &str, argument: Vec<u8>) -> Outcomes<Bytes> {
        self.check_argument(&argument)?;
        let service = &self.web.service;
        let mut room = self.share.room_for_reply().await?;
        let canister = self.target.canister;
        let query = QueryRequest {
            sender: Principal::anonymous(),
            canister_id: canister,
            effective_canister_id: canister,
            method_name: method.to_owned(),
            arg: argument,
            sender_info: None,
        };
        let (node, share, started) = (service.node.clone(), self.share.clone(), Instant::now());
        let asked = service.on_thread(Work::Query, move || {
            let reply = node.query(&query).map_err(|reject| rejected(&reject))?;
            room.try_resize(reply.capacity() as u64).map_err(|full| super::no_room(&full))?;
            Ok(held(reply, (room, share)))
        });
        let reply = asked.await?;
        service.latencies.record_query(started.elapsed());
        reply
    }

    /// Verifies a response on a thread for that.
    async fn check(
        &self,
        request: &HttpRequest<'static>,
        head: &Head,
        body: Hashed,
    ) -> Outcomes<Verified> {
        let service = self.web.service.clone();
        let view = service.latest()?;
        let (canister, request, head) = (self.target.canister, request.clone(), head.clone());
        let work = move || {
            let hashes = match body {
                Hashed::Pieces(hashes) => hashes,
                Hashed::Whole(bytes) => {
                    let mut hasher = BodyHasher::new(&head.headers);
                    hasher.update(&bytes);
                    hasher.finish()
                }
            };
            let response = HttpResponse::builder()
                .with_status_code(head.status)
                .with_headers(head.headers)
                .build();
            let asked = Asked {
                auth: &service.auth,
                now: service.node.now(),
                canister: &canister,
                request: &request,
            };
            verify::verify(&asked, &response, &hashes, || {
                has_no_newer(&view.public_metadata(&canister, VERSIONS_SECTION))
            })
        };
        let verified = self.web.service.on_thread(Work::Verify, work).await?;
        verified.map_err(|unverified| self.not_verified(unverified))
    }

    fn not_verified(&self, unverified: Unverified) -> Refused {
        let canister = self.target.canister;
        let message = format!(
            "the response of {canister} could not be verified: {unverified}. A canister's \
             developer can see it unverified at <canister id>.raw.localhost."
        );
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, "unverified", message)
    }
}

/// Sends all ranges, each verified for itself.
async fn send_ranges(
    exchange: Arc<Exchange>,
    sender: mpsc::Sender<io::Result<Bytes>>,
    mut first: Option<Bytes>,
    (range, common): (ContentRange, Common),
) {
    let (mut next, mut pieces) = (0, 0);
    while next < range.total {
        let Ok(place) = sender.reserve().await else { return };
        pieces += 1;
        let piece = match first.take() {
            Some(first) => Ok(first),
            None => next_range(&exchange, pieces, next, (range.total, &common)).await,
        };
        match piece {
            Ok(piece) => {
                next += piece.len() as u64;
                place.send(Ok(piece));
            }
            Err(refused) => return place.send(Err(broken_off(&refused))),
        }
    }
}

async fn next_range(
    exchange: &Arc<Exchange>,
    pieces: u64,
    next: u64,
    (total, common): (u64, &Common),
) -> Outcomes<Bytes> {
    exchange.check_pieces(pieces)?;
    let mut request = exchange.request.clone();
    // The first range is what is answered to a request without one.
    if next > 0 {
        request.headers_mut().push((header::RANGE.to_string(), format!("bytes={next}-")));
    }
    let (bytes, reply) = exchange.ask(&request).await?;
    if reply.streaming.is_some() || reply.upgrade {
        return Err(respond::bad("it is a range, and wants more than a range can be"));
    }
    let head = Head::new(reply.status, reply.headers)?;
    let body = bytes.slice(reply.body);
    let verified = match exchange.target.raw {
        true => None,
        false => Some(exchange.check(&request, &head, Hashed::Whole(body.clone())).await?),
    };
    if self::common(verified.as_ref())? != *common {
        return Err(respond::bad("its ranges are of different responses"));
    }
    let range = range_of(&head, &body)?;
    if head.status != StatusCode::PARTIAL_CONTENT
        || range.total != total
        || range.first > next
        || range.last < next
    {
        return Err(respond::bad("a range of it is not the one that was asked for"));
    }
    let known = usize::try_from(next - range.first).map_err(internal)?;
    Ok(body.slice(known..))
}

/// What the ranges of one response have in common: their certified headers, but for those that say
/// which range it is. None where nothing is certified.
fn common(verified: Option<&Verified>) -> Outcomes<Common> {
    let headers = match verified {
        None | Some(Verified::Nothing) => return Ok(None),
        Some(Verified::Body) => {
            return Err(respond::bad(
                "it is a range, and version 1 of the certification does not say which",
            ));
        }
        Some(Verified::Response(headers)) => headers,
    };
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let range = header::CONTENT_RANGE.as_str();
    if !headers.iter().any(|(name, _)| is(name, range)) {
        return Err(respond::bad("it is a range, and its header content-range is not certified"));
    }
    // The expression may name the request's range.
    let own = [range, header::CONTENT_LENGTH.as_str(), CERTIFICATE_EXPRESSION_HEADER_NAME];
    let same = headers.iter().filter(|(name, _)| !own.iter().any(|own| is(name, own)));
    let mut same: Vec<_> =
        same.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    same.sort();
    Ok(Some(same))
}

/// The answer to an update call is certified as it is: nothing that follows it would be.
fn refuse_more(head: &Head, streaming: Option<&Streaming>) -> Outcomes<()> {
    if streaming.is_some() || head.status == StatusCode::PARTIAL_CONTENT {
        return Err(respond::bad(
            "it answers an update call and goes on beyond that, which nothing certifies",
        ));
    }
    Ok(())
}

fn range_of(head: &Head, body: &Bytes) -> Outcomes<ContentRange> {
    let range = head.only(&header::CONTENT_RANGE).and_then(ContentRange::read);
    range
        .filter(|range| range.bytes() == body.len() as u64)
        .ok_or_else(|| respond::bad("its header content-range does not fit its body"))
}

/// Sends all pieces. With their hashes, only what has them.
async fn send_pieces(
    exchange: Arc<Exchange>,
    sender: mpsc::Sender<io::Result<Bytes>>,
    first: Option<Bytes>,
    streaming: Streaming,
    digests: Option<Vec<Hash>>,
) {
    let digest = |number: usize| digests.as_ref().map(|digests| digests.get(number).copied());
    let first = match first {
        Some(first) => Ok(first),
        None => first_again(&exchange, digest(0)).await,
    };
    let first = first.map_err(|refused| broken_off(&refused));
    let goes_on = first.is_ok();
    if !first.as_ref().is_ok_and(Bytes::is_empty) && send(&sender, first).await.is_err() {
        return;
    }
    let (mut token, mut pieces) = (Some(streaming.token).filter(|_| goes_on), 0);
    while let Some(next) = token {
        let Ok(place) = sender.reserve().await else { return };
        pieces += 1;
        let digest = digest(pieces);
        match next_piece(&exchange, &streaming.method, next, pieces as u64, digest).await {
            Ok(piece) => {
                token = piece.next;
                if !piece.body.is_empty() {
                    place.send(Ok(piece.body));
                }
            }
            Err(refused) => return place.send(Err(broken_off(&refused))),
        }
    }
    // The end, where it is not known by the number of bytes.
    let _ = send(&sender, Ok(Bytes::new())).await;
}

/// The first piece, which was forgotten.
async fn first_again(exchange: &Arc<Exchange>, digest: Option<Option<Hash>>) -> Outcomes<Bytes> {
    let (bytes, reply) = exchange.ask(&exchange.request).await?;
    let body = bytes.slice(reply.body);
    exchange.check_digest(&body, digest).await?;
    Ok(body)
}

/// `digest` is none where nothing is certified, and in it nothing where there should be no piece.
async fn next_piece(
    exchange: &Arc<Exchange>,
    method: &str,
    token: Token,
    pieces: u64,
    digest: Option<Option<Hash>>,
) -> Outcomes<Piece> {
    exchange.check_pieces(pieces)?;
    let piece = exchange.piece(method, token).await?;
    exchange.check_digest(&piece.body, digest).await?;
    Ok(piece)
}

async fn send(
    sender: &mpsc::Sender<io::Result<Bytes>>,
    piece: io::Result<Bytes>,
) -> Result<(), ()> {
    sender.send(piece).await.map_err(drop)
}

/// The connection ends: what was sent so far is a part of what was announced.
fn broken_off(refused: &Refused) -> io::Error {
    tracing::debug!(reason = refused.reason, "a response broke off: {}", refused.message);
    io::Error::other(refused.message.clone())
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

/// Path and query, as they stand in the request line.
fn url(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
}

fn lines(headers: &HeaderMap) -> Outcomes<Vec<(String, String)>> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = std::str::from_utf8(value.as_bytes()).map_err(|_| {
                Refused::bad("header", format!("the header {name} is not encoded as UTF-8"))
            })?;
            Ok((name.to_string(), value.to_owned()))
        })
        .collect()
}

pub(super) fn rejected(reject: &Reject) -> Refused {
    let message = format!(
        "the canister did not answer: {} (reject code {}, {})",
        reject.message, reject.code as u64, reject.error_code
    );
    match reject.code {
        RejectCode::DestinationInvalid => {
            Refused::new(StatusCode::NOT_FOUND, "canister_rejects", message)
        }
        RejectCode::SysTransient => {
            Refused::busy(StatusCode::SERVICE_UNAVAILABLE, "canister_rejects", message, 1)
        }
        _ => Refused::new(StatusCode::BAD_GATEWAY, "canister_rejects", message),
    }
}

pub(super) fn internal(error: impl std::fmt::Display) -> Refused {
    let message = format!("the gateway failed while serving this request: {error}");
    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
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
