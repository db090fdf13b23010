//! Answers, and refusals with instructions: each names the error or the limit that was met, with
//! its value and a remedy.

use budget::{Pool, PoolFull};
use dashboard::page;
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use serde::Serialize;

use super::body::{Body, Pieces};

/// Longest message of a refusal: it may quote what a client sent, which may be long.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Seconds after which to try again, where trying again helps.
const RETRY_AFTER: &str = "1";

/// A refusal, as text unless its route answers in another form.
#[derive(Clone, Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) status: StatusCode,
    /// For the person who reads it.
    pub(crate) message: String,
    /// Whether time cures it.
    pub(crate) retry: bool,
    /// For the `Allow` header.
    pub(crate) allow: Option<String>,
    /// Whether what the client still sends is in the way of the next request.
    pub(crate) close: bool,
}

impl ErrorResponse {
    /// A refusal that trying again does not change.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message += " ...";
        }
        Self { status, message, retry: false, allow: None, close: false }
    }

    /// A refusal with status 400: the request is at fault.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A refusal with status 404: the requested object does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// A refusal that time cures.
    pub(crate) fn busy(status: StatusCode, message: impl Into<String>) -> Self {
        Self { retry: true, ..Self::new(status, message) }
    }

    /// The same with its JSON body.
    pub(crate) fn in_json(self, body: &serde_json::Value) -> Response<Body> {
        let text = body.to_string();
        self.with("application/json", text)
    }

    fn with(self, content_type: &'static str, body: String) -> Response<Body> {
        let mut response = answer(self.status, content_type, Body::short(body));
        let headers = response.headers_mut();
        if self.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(header::ALLOW, allow);
        }
        response
    }
}

impl From<PoolFull> for ErrorResponse {
    fn from(full: PoolFull) -> Self {
        Self::busy(StatusCode::SERVICE_UNAVAILABLE, format!("{full}; try again in a second"))
    }
}

impl From<ErrorResponse> for Response<Body> {
    fn from(refused: ErrorResponse) -> Self {
        let message = refused.message.clone() + "\n";
        refused.with("text/plain; charset=utf-8", message)
    }
}

/// An answer with the headers of every answer.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// 200 with a short text.
pub(crate) fn text(text: &'static str) -> Response<Body> {
    answer(StatusCode::OK, "text/plain; charset=utf-8", Body::short(text))
}

/// The operator's page.
pub(crate) fn page() -> Response<Body> {
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", Body::short(page::PAGE));
    response.headers_mut().extend(page::headers());
    response
}

/// Where a browser finds it.
pub(crate) fn to_page() -> Response<Body> {
    let mut response = answer(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", Body::short(""));
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(page::PATH));
    response
}

/// JSON, charged to the pool. Errors: the pool is full.
pub(crate) fn json(
    status: StatusCode,
    value: &impl Serialize,
    responses: &Pool,
) -> Result<Response<Body>, ErrorResponse> {
    let bytes = serde_json::to_vec(value).map_err(|error| {
        let message = format!("the answer could not be encoded: {error}");
        ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(answer(status, "application/json", Body::charged(bytes, responses)?))
}

/// A JSON list that is made as it is sent. Errors: the pool is full.
pub(crate) fn list(
    pieces: impl Pieces + 'static,
    responses: &Pool,
) -> Result<Response<Body>, ErrorResponse> {
    Ok(answer(StatusCode::OK, "application/json", Body::list(pieces, responses)?))
}
