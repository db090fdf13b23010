//! Refusals with their headers, headers of every response, and bytes that are charged to a pool
//! until they are written.

use http_body_util::Full;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};

use crate::RequestBody;

/// The content type of a text for people.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// A request that is not served: the response it gets, and the label it is counted under.
///
/// Its message names the error, or the limit that was met with its value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// Status of the response.
    pub status: StatusCode,
    /// Label for metrics.
    pub reason: &'static str,
    /// For the person who reads it.
    pub message: String,
    /// For the `Retry-After` header.
    pub retry_after_seconds: Option<u64>,
    /// For the `Allow` header.
    pub allow: Option<String>,
    /// Whether unread bytes of the body end the connection after the answer (HTTP/1.1).
    pub close: bool,
}

impl ErrorResponse {
    /// A refusal that retrying does not change.
    pub fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, reason, message, retry_after_seconds: None, allow: None, close: false }
    }

    /// A refusal with status 400 (Bad Request).
    pub fn bad_request(reason: &'static str, message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason, message.to_string())
    }

    /// A refusal that time cures.
    pub fn busy(
        status: StatusCode,
        reason: &'static str,
        message: impl Into<String>,
        retry_after_seconds: u64,
    ) -> Self {
        let retry_after_seconds = Some(retry_after_seconds);
        Self { retry_after_seconds, ..Self::new(status, reason, message) }
    }

    /// A refusal with status 503 (Service Unavailable) that a second cures.
    pub fn unavailable(reason: &'static str, message: impl Into<String>) -> Self {
        Self::busy(StatusCode::SERVICE_UNAVAILABLE, reason, message, 1)
    }

    /// The same for a request with this body, of which a part may be unread.
    pub fn closing(self, body: &RequestBody) -> Self {
        Self { close: !body.is_at_end(), ..self }
    }

    /// The response with this body.
    pub fn with_body<B>(self, content_type: &'static str, body: B) -> Response<B> {
        let mut response = respond(self.status, content_type, body);
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::try_from(allow).ok()) {
            headers.insert(header::ALLOW, allow);
        }
        // hyper leaves it out over HTTP/2, which ends the stream alone.
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<ErrorResponse> for Response<Full<Bytes>> {
    fn from(mut refused: ErrorResponse) -> Self {
        let message = std::mem::take(&mut refused.message);
        refused.with_body(TEXT, Full::new(Bytes::from(message)))
    }
}

/// A response with this status, content type and body.
pub fn respond<B>(status: StatusCode, content_type: &'static str, body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Sets the headers of every response: no cache keeps it, and a browser takes it for nothing but
/// what its content type says.
pub fn set_common_headers(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// A response body that holds its share of a pool until hyper has written it.
struct ReservedBytes<B, R> {
    bytes: B,
    _reservation: R,
}

/// Bytes that hold their reservation for as long as a part of them is in use.
pub fn with_reservation<B, R>(bytes: B, reservation: R) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
    R: Send + 'static,
{
    Bytes::from_owner(ReservedBytes { bytes, _reservation: reservation })
}

impl<B: AsRef<[u8]>, R> AsRef<[u8]> for ReservedBytes<B, R> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
