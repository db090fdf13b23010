//! Responses of several replies: the next one is asked for when the last is written.
//!
//! There are places for few of them at once, since each holds its request, and a deadline for each
//! as a whole. A request that waits for a place holds no reply.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use envelope::hash::{Hash, of_bytes};
use http_server::{ErrorResponse, HttpHandler as _, Outgoing, with_reservation};
use hyper::{Response, StatusCode, header};
use ic_http_certification::CERTIFICATE_EXPRESSION_HEADER_NAME;
use limits::HTTP_STREAM_BODY_BYTES;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};

use super::{
    exchange::{Exchange, HttpResult, Piece, Reply, ReplySource, ReplyUse, internal},
    reply::{Streaming, Token},
    respond::{ContentRange, Head, ResponseGuard, guard_response, invalid_response},
    verify::{BodyHasher, BodyHashes, CertifiedContent, HeaderField, VerifiedScope},
};

/// See [`common`].
type CommonHeaders = Option<Vec<HeaderField>>;

/// A place among the long responses, and the memory of each in addition to its piece.
type LongPlace = Arc<(OwnedSemaphorePermit, OwnedSemaphorePermit, accounting::Reservation)>;

/// Hashes of pieces: `None` where nothing is certified.
type Digests = Option<Vec<Hash>>;

impl Exchange {
    /// A place among the long responses. A request that waits for one holds no reply, and asks for
    /// the first piece again; where that cannot be asked for, it cannot wait.
    async fn long_place(
        &self,
        first: Piece,
        is_query: bool,
    ) -> HttpResult<(LongPlace, Option<Piece>)> {
        let (limits, body) = (&self.web.limits, self.request.body.len() as u64);
        if body > HTTP_STREAM_BODY_BYTES {
            return Err(invalid_response(format!(
                "it is of several replies, and answers a request with a body of {body} bytes; the \
                 most is {HTTP_STREAM_BODY_BYTES}"
            )));
        }
        let room = || self.web.rooms.reserve(limits.stream_bytes());
        let (quota, all) = (&self.quota.streams, &self.web.streams);
        if let Ok(of_connection) = quota.clone().try_acquire_owned()
            && let Ok(of_all) = all.clone().try_acquire_owned()
        {
            first.share.settle();
            return Ok((Arc::new((of_connection, of_all, room()?)), Some(first)));
        }
        drop(first);
        let full = || {
            let message = format!(
                "as many long responses are sent as the limit http_gateway.requests_bytes = {} has \
                 room for: {} at once, {} of one connection; retry in a second",
                limits.requests_bytes,
                self.web.rooms.parts.streams,
                self.web.rooms.streams_per_connection(),
            );
            ErrorResponse::unavailable("http_streams", message)
        };
        if !is_query {
            return Err(full());
        }
        let until = Instant::now() + self.web.read_timeout();
        let wait = |places: &Arc<Semaphore>| timeout_at(until, places.clone().acquire_owned());
        let of_connection = wait(quota).await.map_err(|_| full())?.map_err(|_| full())?;
        let of_all = wait(all).await.map_err(|_| full())?.map_err(|_| full())?;
        Ok((Arc::new((of_connection, of_all, room()?)), None))
    }

    /// The whole of something of which the canister sent the first range.
    pub(super) async fn by_ranges(
        mut self,
        reply: Reply,
        verified: Option<VerifiedScope>,
        is_query: bool,
    ) -> HttpResult<Response<Outgoing>> {
        let range = range_of(&reply.head, &reply.body)?;
        let common = common(verified.as_ref())?;
        if range.first != 0 {
            return Err(invalid_response("it is a range that does not begin at the first byte"));
        }
        let mut parts = reply.head.parts(verified.as_ref())?;
        parts.status = StatusCode::OK;
        parts.headers.remove(header::CONTENT_RANGE);
        let (place, first) = self.long_place(reply.into(), is_query).await?;
        self.body = None;
        let hold: ResponseGuard = place.clone();
        let (sending, pieces) = StreamSender::new(self, place);
        tokio::spawn(sending.run(PieceSource::Ranges(first, range, common)));
        Ok(guard_response(parts, Outgoing::Pieces(pieces, Some(range.total)), hold))
    }

    /// A response of which the canister has sent the first piece, and a callback gives the others.
    pub(super) async fn by_callback(
        mut self,
        mut reply: Reply,
        certified: Option<CertifiedContent>,
        is_query: bool,
    ) -> HttpResult<Response<Outgoing>> {
        let Some(streaming) = reply.streaming.take() else {
            return Err(internal("a response without a callback has none"));
        };
        if streaming.canister != self.target.canister {
            return Err(invalid_response("its streaming callback is another canister's method"));
        }
        let head = reply.head.clone();
        let (place, mut first) = self.long_place(reply.into(), is_query).await?;
        self.body = None;
        let (mut digests, mut total, mut verified) = (None, None, None);
        if let Some(certified) = certified {
            if certified.is_nothing() {
                verified = Some(VerifiedScope::Nothing);
            } else {
                let reading = self.read_through(&certified, first.take(), &streaming);
                let read = self.in_time("the response was not verified", reading).await?;
                let judged = certified.verify_body(&read.0);
                verified = Some(judged.map_err(|unverified| self.not_verified(unverified))?);
                (digests, total) = (Some(read.1), Some(read.2));
            }
        }
        let parts = head.parts(verified.as_ref())?;
        let hold: ResponseGuard = place.clone();
        let (sending, pieces) = StreamSender::new(self, place);
        tokio::spawn(sending.run(PieceSource::Pieces(first, streaming, digests)));
        Ok(guard_response(parts, Outgoing::Pieces(pieces, total), hold))
    }

    /// Reads all pieces of a response and keeps their hashes: of the whole, and of each. Says how
    /// many bytes there are.
    async fn read_through(
        &self,
        certified: &CertifiedContent,
        first: Option<Piece>,
        streaming: &Streaming,
    ) -> HttpResult<(BodyHashes, Vec<Hash>, u64)> {
        let first = match first {
            Some(first) => first.body,
            None => self.reply(ReplySource::Request(&self.request), ReplyUse::Read).await?.body,
        };
        let mut total = first.len() as u64;
        let (mut hasher, digest) = self.hash_piece(certified.hasher(), first).await?;
        let mut digests = vec![digest];
        let mut token = Some(streaming.token.clone());
        while let Some(next) = token {
            self.check_pieces(digests.len() as u64)?;
            let (piece, next) = self.piece(&streaming.method, &next, ReplyUse::Read).await?;
            total += piece.body.len() as u64;
            token = next;
            let (hashed, digest) = self.hash_piece(hasher, piece.body).await?;
            hasher = hashed;
            digests.push(digest);
        }
        Ok((hasher.finish(), digests, total))
    }

    /// Adds a piece to the hash of the whole; its own hash, too.
    async fn hash_piece(
        &self,
        mut hasher: BodyHasher,
        bytes: Bytes,
    ) -> HttpResult<(BodyHasher, Hash)> {
        self.on_thread(move || {
            hasher.update(&bytes);
            (hasher, of_bytes(&bytes))
        })
        .await
    }

    async fn digest(&self, bytes: &Bytes) -> HttpResult<Hash> {
        let bytes = bytes.clone();
        self.on_thread(move || of_bytes(&bytes)).await
    }

    fn check_pieces(&self, pieces: u64) -> HttpResult<()> {
        let limit = self.web.limits.response_chunks;
        if pieces <= limit {
            return Ok(());
        }
        Err(invalid_response(format!(
            "it has more pieces than the limit http_gateway.response_chunks = {limit}"
        )))
    }

    /// Whether a piece is the one that was verified.
    async fn check_digest(&self, body: &Bytes, number: u64, digests: &Digests) -> HttpResult<()> {
        let Some(digests) = digests else { return Ok(()) };
        let expected = usize::try_from(number).ok().and_then(|number| digests.get(number));
        if expected == Some(&self.digest(body).await?) {
            return Ok(());
        }
        Err(invalid_response("a piece of it is another than when it was verified"))
    }
}

/// Where pieces come from, with the first if it is there.
enum PieceSource {
    Ranges(Option<Piece>, ContentRange, CommonHeaders),
    Pieces(Option<Piece>, Streaming, Digests),
}

struct StreamSender {
    exchange: Exchange,
    place: LongPlace,
    sender: mpsc::Sender<io::Result<Bytes>>,
    /// For the one piece that is written.
    one: Arc<Semaphore>,
    until: Instant,
    /// Pieces asked for so far, without the first.
    pieces: u64,
    /// Size of the last piece, since the next is likely to be as large.
    expected: u64,
}

impl StreamSender {
    fn new(exchange: Exchange, place: LongPlace) -> (Self, mpsc::Receiver<io::Result<Bytes>>) {
        let (sender, pieces) = mpsc::channel(1);
        let until = Instant::now() + Duration::from_millis(exchange.web.limits.stream_millis);
        let one = Arc::new(Semaphore::new(1));
        let sending = Self { exchange, place, sender, one, until, pieces: 0, expected: 0 };
        (sending, pieces)
    }

    /// Sends until the deadline; then the response breaks off.
    async fn run(mut self, source: PieceSource) {
        let until = self.until;
        let sending = async {
            match source {
                PieceSource::Ranges(first, range, common) => {
                    self.ranges(first, (range, common)).await
                }
                PieceSource::Pieces(first, streaming, digests) => {
                    self.pieces(first, streaming, digests).await;
                }
            }
        };
        if timeout_at(until, sending).await.is_err() {
            let limit = self.exchange.web.limits.stream_millis;
            tracing::debug!(
                "a response broke off: it was not sent within the limit http_gateway.stream_millis \
                 = {limit}"
            );
        }
    }

    /// Sends all ranges, each verified for itself.
    async fn ranges(
        &mut self,
        mut first: Option<Piece>,
        (range, common): (ContentRange, CommonHeaders),
    ) {
        let mut next = 0;
        while next < range.total {
            let Some(written) = self.last_is_written().await else { return };
            let made = match first.take() {
                Some(first) => Ok(first),
                None => {
                    let making = self.next_range(next, (range.total, &common));
                    self.exchange.in_time("a range of the response was not made", making).await
                }
            };
            self.pieces += 1;
            match made {
                Ok(made) => {
                    next += made.body.len() as u64;
                    self.send(made, written).await;
                }
                Err(refused) => return self.break_off(&refused).await,
            }
        }
    }

    async fn next_range(
        &self,
        next: u64,
        (total, common): (u64, &CommonHeaders),
    ) -> HttpResult<Piece> {
        let exchange = &self.exchange;
        exchange.check_pieces(self.pieces + 1)?;
        // The first range is what is answered to a request without one.
        let request = match next {
            0 => exchange.request.clone(),
            next => Arc::new(exchange.request.with_range_from(next)),
        };
        let (question, wants) = (ReplySource::Request(&request), ReplyUse::Written(self.expected));
        let reply = exchange.reply(question, wants).await?;
        if reply.streaming.is_some() || reply.upgrade {
            return Err(invalid_response("it is a range, and wants more than a range can be"));
        }
        let certified = match exchange.target.raw {
            true => None,
            false => Some(exchange.check_certificate(&request, &reply.head).await?),
        };
        let verified = exchange.verified(certified, &reply.body).await?;
        if self::common(verified.as_ref())? != *common {
            return Err(invalid_response("its ranges are of different responses"));
        }
        let range = range_of(&reply.head, &reply.body)?;
        if reply.head.status != StatusCode::PARTIAL_CONTENT
            || range.total != total
            || range.first > next
            || range.last < next
        {
            return Err(invalid_response("a range of it is not the one that was asked for"));
        }
        let known = usize::try_from(next - range.first).map_err(internal)?;
        Ok(Piece { body: reply.body.slice(known..), share: reply.share })
    }

    /// Sends all pieces. With their hashes, only what has them.
    async fn pieces(&mut self, first: Option<Piece>, streaming: Streaming, digests: Digests) {
        let Some(written) = self.last_is_written().await else { return };
        let first = match first {
            Some(first) => Ok(first),
            None => {
                let making = self.first_again(&digests);
                self.exchange.in_time("the response was not made again", making).await
            }
        };
        match first {
            Ok(first) => self.send(first, written).await,
            Err(refused) => return self.break_off(&refused).await,
        }
        let mut token = Some(streaming.token);
        while let Some(next) = token {
            let Some(written) = self.last_is_written().await else { return };
            self.pieces += 1;
            let making = self.next_piece(&streaming.method, &next, &digests);
            let made = self.exchange.in_time("a piece of the response was not made", making);
            match made.await {
                Ok((made, next)) => {
                    token = next;
                    self.send(made, written).await;
                }
                Err(refused) => return self.break_off(&refused).await,
            }
        }
        // The end, where it is not known by the number of bytes.
        let _ = self.sender.send(Ok(Bytes::new())).await;
    }

    /// The first piece, which was forgotten.
    async fn first_again(&self, digests: &Digests) -> HttpResult<Piece> {
        let exchange = &self.exchange;
        let question = ReplySource::Request(&exchange.request);
        let reply = exchange.reply(question, ReplyUse::Written(0)).await?;
        exchange.check_digest(&reply.body, 0, digests).await?;
        Ok(reply.into())
    }

    async fn next_piece(
        &self,
        method: &str,
        token: &Token,
        digests: &Digests,
    ) -> HttpResult<(Piece, Option<Token>)> {
        self.exchange.check_pieces(self.pieces)?;
        let wants = ReplyUse::Written(self.expected);
        let (piece, next) = self.exchange.piece(method, token, wants).await?;
        self.exchange.check_digest(&piece.body, self.pieces, digests).await?;
        Ok((piece, next))
    }

    /// Waits until the last piece is written; `None` when the next is not wanted.
    async fn last_is_written(&self) -> Option<OwnedSemaphorePermit> {
        let written = tokio::select! {
            written = self.one.clone().acquire_owned() => written.ok()?,
            () = self.sender.closed() => return None,
        };
        Some(written)
    }

    async fn send(&mut self, made: Piece, written: OwnedSemaphorePermit) {
        let Piece { body, share } = made;
        share.settle();
        if body.is_empty() {
            return;
        }
        self.expected = share.kept_bytes();
        let hold = (share, written, self.place.clone(), self.exchange.place.clone());
        // On an error the receiver is gone.
        let _ = self.sender.send(Ok(with_reservation(body, hold))).await;
    }

    /// The connection ends: what was sent so far is a part of what was announced.
    async fn break_off(&self, refused: &ErrorResponse) {
        tracing::debug!(reason = refused.reason, "a response broke off: {}", refused.message);
        let _ = self.sender.send(Err(io::Error::other(refused.message.clone()))).await;
    }
}

/// What the ranges of one response have in common: their certified headers, but for those that say
/// which range it is. None where nothing is certified.
fn common(verified: Option<&VerifiedScope>) -> HttpResult<CommonHeaders> {
    let headers = match verified {
        None | Some(VerifiedScope::Nothing) => return Ok(None),
        Some(VerifiedScope::Body) => {
            return Err(invalid_response(
                "it is a range, and version 1 of the certification does not say which",
            ));
        }
        Some(VerifiedScope::Response(headers)) => headers,
    };
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let range = header::CONTENT_RANGE.as_str();
    if !headers.iter().any(|(name, _)| is(name, range)) {
        return Err(invalid_response(
            "it is a range, and its header content-range is not certified",
        ));
    }
    // The expression may name the request's range.
    let own = [range, header::CONTENT_LENGTH.as_str(), CERTIFICATE_EXPRESSION_HEADER_NAME];
    let same = headers.iter().filter(|(name, _)| !own.iter().any(|own| is(name, own)));
    let mut same: Vec<_> =
        same.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    same.sort();
    Ok(Some(same))
}

fn range_of(head: &Head, body: &Bytes) -> HttpResult<ContentRange> {
    let range = head.single_value(&header::CONTENT_RANGE).and_then(ContentRange::read);
    range
        .filter(|range| range.bytes() == body.len() as u64)
        .ok_or_else(|| invalid_response("its header content-range does not fit its body"))
}
