//! Answers, and refusals with instructions: each names the error or the limit that was met, with
//! its value and a remedy.

use std::io;

use accounting::{Pool, PoolFull};
use dashboard::page;
use http_server::{ErrorResponse, List, Outgoing, Pieces, TEXT, respond, set_common_headers};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use serde::Serialize;

/// Longest message of a refusal: it may quote what a client sent, which may be long.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Seconds after which to try again, where trying again helps.
const RETRY_AFTER: u64 = 1;

/// A refusal that trying again does not change.
pub(crate) fn refusal(status: StatusCode, message: impl Into<String>) -> ErrorResponse {
    let mut message = message.into();
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message += " ...";
    }
    ErrorResponse::new(status, status.canonical_reason().unwrap_or("refused"), message)
}

/// A refusal with status 400: the request is at fault.
pub(crate) fn bad(message: impl Into<String>) -> ErrorResponse {
    refusal(StatusCode::BAD_REQUEST, message)
}

/// A refusal with status 404: the requested object does not exist.
pub(crate) fn not_found(message: impl Into<String>) -> ErrorResponse {
    refusal(StatusCode::NOT_FOUND, message)
}

/// A refusal that time cures.
pub(crate) fn busy(status: StatusCode, message: impl Into<String>) -> ErrorResponse {
    ErrorResponse { retry_after_seconds: Some(RETRY_AFTER), ..refusal(status, message) }
}

/// The refusal of a request for which a pool has no room.
pub(crate) fn no_room(full: PoolFull) -> ErrorResponse {
    busy(StatusCode::SERVICE_UNAVAILABLE, format!("{full}; try again in a second"))
}

/// A refusal as text.
pub(crate) fn refused(refused: ErrorResponse) -> Response<Outgoing> {
    let text = format!("{}\n", refused.message);
    with_headers(refused.with_body(TEXT, Outgoing::short(text)))
}

/// A refusal with its JSON body.
pub(crate) fn refused_in_json(
    refused: ErrorResponse,
    body: &serde_json::Value,
) -> Response<Outgoing> {
    with_headers(refused.with_body("application/json", Outgoing::short(body.to_string())))
}

fn with_headers(mut response: Response<Outgoing>) -> Response<Outgoing> {
    set_common_headers(response.headers_mut());
    response
}

/// An answer with the headers of every answer.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: Outgoing,
) -> Response<Outgoing> {
    with_headers(respond(status, content_type, body))
}

/// 200 with a short text.
pub(crate) fn text(text: &'static str) -> Response<Outgoing> {
    answer(StatusCode::OK, TEXT, Outgoing::short(text))
}

/// The operator's page.
pub(crate) fn page() -> Response<Outgoing> {
    with_headers(page::response().map(Outgoing::Whole))
}

/// Where a browser finds it.
pub(crate) fn to_page() -> Response<Outgoing> {
    let mut response = page::redirect().map(Outgoing::Whole);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(TEXT));
    with_headers(response)
}

/// JSON, charged to the pool. Errors: the pool is full.
pub(crate) fn json(
    status: StatusCode,
    value: &impl Serialize,
    responses: &Pool,
) -> Result<Response<Outgoing>, ErrorResponse> {
    let bytes = serde_json::to_vec(value).map_err(|error| {
        let message = format!("the answer could not be encoded: {error}");
        refusal(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(answer(status, "application/json", Outgoing::charged(bytes, responses).map_err(no_room)?))
}

/// A JSON list that is made as it is sent, for lists whose length has no small bound ([`Rows`]);
/// [`json`] is for bodies that are small. Errors: the pool is full.
pub(crate) fn list(
    pieces: impl Pieces + 'static,
    responses: &Pool,
) -> Result<Response<Outgoing>, ErrorResponse> {
    let list = List::reserve(pieces, responses).map_err(no_room)?;
    Ok(answer(StatusCode::OK, "application/json", Outgoing::List(list)))
}

/// A row of a list.
pub(crate) trait Row: Serialize + Send {
    /// The most bytes of its JSON.
    fn bytes_max(&self) -> usize;
}

/// A list that is made row by row.
pub(crate) struct Rows<T> {
    rows: Box<dyn Iterator<Item = T> + Send>,
    next: Option<T>,
    begun: bool,
    ended: bool,
}

impl<T: Row + 'static> Rows<T> {
    pub(crate) fn new(rows: impl Iterator<Item = T> + Send + 'static) -> Self {
        Self { rows: Box::new(rows), next: None, begun: false, ended: false }
    }
}

impl<T: Row> Pieces for Rows<T> {
    fn next_bytes(&mut self) -> Option<usize> {
        if self.ended {
            return None;
        }
        if self.next.is_none() {
            self.next = self.rows.next();
        }
        Some(2 + self.next.as_ref().map_or(0, Row::bytes_max))
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if !self.begun {
            out.push(b'[');
        }
        match self.next.take() {
            Some(row) => {
                if self.begun {
                    out.push(b',');
                }
                serde_json::to_writer(out, &row).map_err(io::Error::other)?;
            }
            None => {
                out.push(b']');
                self.ended = true;
            }
        }
        self.begun = true;
        Ok(())
    }
}
