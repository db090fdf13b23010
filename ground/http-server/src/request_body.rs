//! Request bodies: read within a limit, a time and a budget, and discarded when they are refused.
//!
//! Bounds: a body is at most its limit. Its buffers are at most twice the bytes that have arrived,
//! and while one is copied into a larger one, both are there; [`BodyBudget`] is asked before they
//! are allocated. Discarding keeps nothing.

use std::time::Duration;

use accounting::{Pool, PoolFull, Reservation};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Request, Version,
    body::{Body as _, Bytes, Frame, Incoming, SizeHint},
    header,
};
use tokio::time::timeout;

use crate::ErrorResponse;

/// How much of a refused body is read and thrown away, in times of the limit.
const DISCARDED_BODIES: u64 = 4;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Body of a request refused before it is read: up to this length it is read and thrown away ...
const UNREAD_BODY_BYTES: u64 = 64 << 10;
/// ... if it arrives within this time.
const UNREAD_BODY_TIME: Duration = Duration::from_millis(100);
/// Characters of another content type that are shown.
const CONTENT_TYPE_CHARS_MAX: usize = 64;

/// Checks the content type that a body is declared with, parameters aside. A browser sends
/// `application/json` and `application/cbor` for a page of another origin only after it has asked
/// the server.
///
/// # Errors
/// The declared type, the beginning of it, when it is another one.
pub fn check_content_type(headers: &HeaderMap, expected: &str) -> Result<(), String> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let declared = declared.unwrap_or_default();
    let essence = declared.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(declared.chars().take(CONTENT_TYPE_CHARS_MAX).collect())
}

/// The body of a request, of which a part may be unread.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    /// The client sends it after a `100 Continue`, which hyper writes when the body is first asked
    /// for.
    is_awaited: bool,
}

impl RequestBody {
    /// The body of a request with these headers.
    pub fn new(headers: &HeaderMap, incoming: Incoming) -> Self {
        Self { incoming, is_awaited: headers.contains_key(header::EXPECT) }
    }

    /// The next part of it. Invites the client to send, if it waits for that.
    pub async fn frame(&mut self) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        self.is_awaited = false;
        self.incoming.frame().await
    }

    /// Whether nothing is unread.
    pub fn is_at_end(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Bounds of the bytes that are unread.
    pub fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl From<Request<Incoming>> for RequestBody {
    fn from(request: Request<Incoming>) -> Self {
        let (head, incoming) = request.into_parts();
        Self::new(&head.headers, incoming)
    }
}

/// Where a body is counted while it is read.
pub trait BodyBudget: Send {
    /// Why there is no room.
    type Full;

    /// Counts a body of which `received` bytes have arrived, in buffers of `buffers` bytes.
    fn resize(
        &mut self,
        received: u64,
        buffers: u64,
    ) -> impl Future<Output = Result<(), Self::Full>> + Send;

    /// Counts nothing any more.
    fn release(&mut self);
}

/// A budget in a pool. Its charge is a function of the bytes received and of those of the buffers.
#[derive(Debug)]
pub struct PoolBudget<C> {
    reservation: Reservation,
    charge: C,
}

impl<C: Fn(u64, u64) -> u64 + Send> PoolBudget<C> {
    /// Nothing yet of `pool`.
    ///
    /// # Errors
    /// When the pool is full.
    pub fn new(pool: &Pool, charge: C) -> Result<Self, PoolFull> {
        Ok(Self { reservation: pool.try_reserve(0)?, charge })
    }

    /// The charge, to be kept for as long as the request holds what was in the body.
    pub fn into_reservation(self) -> Reservation {
        self.reservation
    }
}

impl<C: Fn(u64, u64) -> u64 + Send> BodyBudget for PoolBudget<C> {
    type Full = PoolFull;

    async fn resize(&mut self, received: u64, buffers: u64) -> Result<(), PoolFull> {
        self.reservation.try_resize((self.charge)(received, buffers))
    }

    fn release(&mut self) {
        self.reservation.shrink(self.reservation.bytes());
    }
}

/// Why a body was not read.
#[derive(Debug)]
pub enum BodyError<F> {
    /// It has as many bytes or more, and the limit is lower.
    TooLarge(u64),
    /// It ended before its end.
    Incomplete(hyper::Error),
    /// The budget has no room for it.
    Full(F),
    /// It did not arrive in time.
    TimedOut,
}

/// Reads a body.
///
/// # Errors
/// When it is longer than `limit`, ends early, does not arrive within `time`, or `budget` is full.
/// The part that has arrived is dropped; the rest is unread.
pub async fn read_body<B: BodyBudget>(
    body: &mut RequestBody,
    budget: &mut B,
    limit: u64,
    time: Duration,
) -> Result<Bytes, BodyError<B::Full>> {
    timeout(time, read_within(body, budget, limit)).await.unwrap_or(Err(BodyError::TimedOut))
}

async fn read_within<B: BodyBudget>(
    body: &mut RequestBody,
    budget: &mut B,
    limit: u64,
) -> Result<Bytes, BodyError<B::Full>> {
    let announced = body.size_hint().lower();
    if announced > limit {
        return Err(BodyError::TooLarge(announced));
    }
    let mut first = Bytes::new();
    let mut joined = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::<B::Full>::Incomplete)?.into_data() else {
            continue;
        };
        let total = (first.len() + joined.len() + data.len()) as u64;
        if total > limit {
            drop((first, joined));
            budget.release();
            return Err(BodyError::TooLarge(total));
        }
        // Most bodies come in one piece, which is taken as it is.
        if first.is_empty() && joined.is_empty() {
            budget.resize(total, 0).await.map_err(BodyError::Full)?;
            first = data;
            continue;
        }
        if total > joined.capacity() as u64 {
            let most = if announced >= total { announced } else { limit };
            let capacity = total.saturating_mul(2).min(most);
            // Both are there while one goes over into the other.
            let before = (joined.capacity() + first.len()) as u64;
            let both = before.saturating_add(capacity);
            budget.resize(total, both).await.map_err(BodyError::Full)?;
            let mut larger = Vec::with_capacity(usize::try_from(capacity).unwrap_or(0));
            larger.extend_from_slice(&std::mem::take(&mut first));
            larger.extend_from_slice(&joined);
            joined = larger;
            budget.resize(total, capacity).await.map_err(BodyError::Full)?;
        } else {
            budget.resize(total, joined.capacity() as u64).await.map_err(BodyError::Full)?;
        }
        joined.extend_from_slice(&data);
    }
    Ok(if joined.is_empty() { first } else { joined.into() })
}

/// Reads what a client still sends of a body over `limit` or otherwise refused, so that it gets to
/// read the refusal: closing on unread data resets the connection, and the answer is lost with it.
/// A client that waits to be asked for it is not asked. Returns whether the body was read to its
/// end.
pub async fn discard(body: &mut RequestBody, limit: u64) -> bool {
    discard_within(body, limit.saturating_mul(DISCARDED_BODIES), DISCARD_TIME).await
}

async fn discard_within(body: &mut RequestBody, bytes_max: u64, time: Duration) -> bool {
    if body.is_awaited {
        return body.is_at_end();
    }
    let reading = async {
        let mut left = bytes_max;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            if bytes > left {
                return false;
            }
            left -= bytes;
        }
        true
    };
    timeout(time, reading).await.unwrap_or(false)
}

/// The refusal of a request whose body was not read. A short body on its way is read and thrown
/// away, so that the connection can be used again; otherwise the answer announces its end.
pub async fn with_unread(request: Request<Incoming>, refused: ErrorResponse) -> ErrorResponse {
    let version = request.version();
    let mut body = RequestBody::from(request);
    if version == Version::HTTP_2 || body.is_at_end() {
        return refused;
    }
    let is_short = body.size_hint().upper().is_some_and(|bytes| bytes <= UNREAD_BODY_BYTES);
    if is_short && discard_within(&mut body, UNREAD_BODY_BYTES, UNREAD_BODY_TIME).await {
        return refused;
    }
    ErrorResponse { close: true, ..refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_json() {
        for (declared, expected) in [
            (Some("application/json"), true),
            (Some("Application/JSON; charset=utf-8"), true),
            (Some("text/plain"), false),
            (Some("application/jsonp"), false),
            (Some("application/x-www-form-urlencoded"), false),
            (None, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(declared) = declared {
                headers.insert(header::CONTENT_TYPE, declared.parse().unwrap());
            }
            let found = check_content_type(&headers, "application/json");
            assert_eq!(found.is_ok(), expected, "{declared:?}");
        }
    }
}
