//! From a canister's response to the head of an HTTP response.
//!
//! Status, names and values are the canister's, so they are checked here; none of them can end a
//! line or a header. Headers of the connection, and the length, are set by the gateway alone.

use bytes::Bytes;
use http_body_util::Full;
use http_server::{ErrorResponse, Outgoing, with_reservation};
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
    http::response::Parts,
};
use ic_http_certification::CERTIFICATE_HEADER_NAME;

use limits::HTTP_LINE_BYTES;

use super::verify::VerifiedScope;

/// Headers of a connection (RFC 9110, 7.6.1), and those that say how long a body is.
const OF_THE_CONNECTION: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Defaults for pages of other origins: headers that they may read and requests that they may make.
const READABLE: &str = "content-length,content-range";
const METHODS: &str = "GET, POST, HEAD, OPTIONS";
const ASKABLE: &str = "DNT,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,\
                       Content-Type,Range,Cookie";
/// Seconds for which a browser may remember the answer to a preflight request.
const PREFLIGHT_SECONDS: &str = "7200";

/// Something that lasts as long as what it stands for.
pub(super) type ResponseGuard = std::sync::Arc<dyn std::any::Any + Send + Sync>;

/// The canister says who may read its response, and that is not passed on.
#[derive(Clone, Copy, Debug)]
struct ReadersUncertified;

/// Status and headers as the canister sent them, the status within HTTP's.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(String, String)>,
}

impl Head {
    pub(super) fn new(status: u16, headers: Vec<(String, String)>) -> Result<Self, ErrorResponse> {
        let found = StatusCode::from_u16(status).ok().filter(|_| (200..600).contains(&status));
        let status = found.ok_or_else(|| {
            invalid_response(format!("it has the status {status}, which no HTTP response can have"))
        })?;
        Ok(Self { status, headers })
    }

    /// The value of the only header of this name.
    pub(super) fn single_value(&self, name: &HeaderName) -> Option<&str> {
        let mut found =
            self.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name.as_str()));
        let first = found.next()?;
        found.next().is_none().then_some(first.1.as_str())
    }

    /// The head of the response. Of what was verified only the certified headers are passed on, and
    /// all but how long it may be kept where no header can be certified; `None` is a response that
    /// needs no verification.
    pub(super) fn parts(&self, verified: Option<&VerifiedScope>) -> Result<Parts, ErrorResponse> {
        let mut parts = Response::new(()).into_parts().0;
        parts.status = self.status;
        match verified {
            None | Some(VerifiedScope::Nothing) => {
                append_headers(&mut parts.headers, &self.headers)?
            }
            Some(VerifiedScope::Body) => {
                append_headers(&mut parts.headers, &self.headers)?;
                parts.headers.remove(header::CACHE_CONTROL);
            }
            Some(VerifiedScope::Response(headers)) => {
                append_headers(&mut parts.headers, headers)?;
                let certificate = |(name, _): &&(String, String)| {
                    name.eq_ignore_ascii_case(CERTIFICATE_HEADER_NAME)
                };
                let certificate: Vec<_> =
                    self.headers.iter().filter(certificate).cloned().collect();
                append_headers(&mut parts.headers, &certificate)?;
            }
        }
        let readers = header::ACCESS_CONTROL_ALLOW_ORIGIN;
        let says = |(name, _): &(String, String)| name.eq_ignore_ascii_case(readers.as_str());
        if self.headers.iter().any(says) && !parts.headers.contains_key(&readers) {
            parts.extensions.insert(ReadersUncertified);
        }
        Ok(parts)
    }

    /// Bytes that it holds until it is written, as it is and in its encoded form.
    pub(super) fn held_bytes(&self) -> u64 {
        let line = |(name, value): &(String, String)| {
            let bytes = (name.len() + value.len()) as u64;
            bytes.saturating_mul(2).saturating_add(HTTP_LINE_BYTES)
        };
        self.headers.iter().map(line).sum()
    }
}

/// A response that holds something until it is written: its body does, and since there may be none,
/// its head.
pub(super) fn guard_response(
    parts: Parts,
    body: Outgoing,
    hold: ResponseGuard,
) -> Response<Outgoing> {
    let mut response = Response::from_parts(parts, body);
    response.extensions_mut().insert(hold);
    response
}

/// Ties what the response holds to its head: to the value of one of its headers, which lasts until
/// the head is written to the connection's buffer. HTTP/2 would keep it longer in the table of its
/// compression, but for values that are never indexed.
fn guard_head(response: &mut Response<Outgoing>) {
    let Some(hold) = response.extensions_mut().remove::<ResponseGuard>() else { return };
    let Some((_, value)) = response.headers_mut().iter_mut().next() else { return };
    let bytes = with_reservation(Bytes::copy_from_slice(value.as_bytes()), hold);
    if let Ok(mut carrying) = HeaderValue::from_maybe_shared(bytes) {
        carrying.set_sensitive(true);
        *value = carrying;
    }
}

fn append_headers(
    headers: &mut HeaderMap,
    lines: &[(String, String)],
) -> Result<(), ErrorResponse> {
    for (name, value) in lines {
        let wrong = || {
            let name: String = name.chars().take(64).collect();
            invalid_response(format!("its header {name:?} is none that HTTP allows"))
        };
        let found = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?;
        if !OF_THE_CONNECTION.contains(&found.as_str()) {
            headers.append(found, value);
        }
    }
    Ok(())
}

/// A response of a canister that cannot be passed on.
pub(super) fn invalid_response(why: impl std::fmt::Display) -> ErrorResponse {
    let message = format!("the canister's response cannot be passed on: {why}");
    ErrorResponse::new(StatusCode::BAD_GATEWAY, "canister_response", message)
}

/// What a page of another origin may ask: anything, as it could ask the canister itself.
pub(super) fn preflight() -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::Whole(Full::default()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ASKABLE));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
    response
}

/// Sends a browser to another address, where it asks the same.
pub(super) fn redirect(address: HeaderValue) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::Whole(Full::default()));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, address);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Lets pages of any origin read the response, unless the canister sets the rule: an uncertified
/// rule lets no page read it.
pub(super) fn allow_any_origin(mut response: Response<Outgoing>) -> Response<Outgoing> {
    let is_said = response.extensions_mut().remove::<ReadersUncertified>().is_some();
    let headers = response.headers_mut();
    if !is_said && !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers
            .entry(header::ACCESS_CONTROL_EXPOSE_HEADERS)
            .or_insert(HeaderValue::from_static(READABLE));
    }
    guard_head(&mut response);
    response
}

/// `Content-Range`: the first byte, the last, and how many there are in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) total: u64,
}

impl ContentRange {
    /// Reads the value of the header; `None` unless it is one range of a known whole.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let range = Self { first: number(first)?, last: number(last)?, total: number(total)? };
        (range.first <= range.last && range.last < range.total).then_some(range)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.last - self.first + 1
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn head(headers: &[(&str, &str)]) -> Head {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Head::new(200, headers.collect()).unwrap()
    }

    // Promise: P11 - Headers of a canister cannot split a response or control the connection.
    #[test]
    fn nothing_of_a_canister_splits_a_response_or_steers_the_connection() {
        for (name, value) in [
            ("a\r\nb", "c"),
            ("a", "b\r\nset-cookie: c"),
            ("a", "b\nc"),
            ("a", "\0"),
            ("a b", "c"),
            ("", "c"),
            ("a:", "c"),
        ] {
            let refused = head(&[(name, value)]).parts(None).unwrap_err();
            assert_eq!(refused.status, StatusCode::BAD_GATEWAY, "{name:?}: {value:?}");
        }
        for status in [0, 99, 100, 101, 199, 600, 999, u16::MAX] {
            assert!(Head::new(status, Vec::new()).is_err(), "{status}");
        }
        let lies = [
            ("Content-Length", "1"),
            ("transfer-encoding", "chunked"),
            ("CONNECTION", "upgrade"),
            ("Upgrade", "websocket"),
            ("x", "y"),
            ("X", "z"),
        ];
        let parts = head(&lies).parts(None).unwrap();
        assert_eq!(parts.headers.len(), 2);
        assert_eq!(parts.headers.get_all("x").iter().count(), 2);
    }

    #[test]
    fn what_is_not_certified_is_not_passed_on() {
        let sent = head(&[("A", "1"), ("Cache-Control", "max-age=9"), ("IC-Certificate", "c")]);
        let body = sent.parts(Some(&VerifiedScope::Body)).unwrap();
        assert!(body.headers.contains_key("a") && !body.headers.contains_key("cache-control"));
        let certified = vec![("cache-control".to_owned(), "no-store".to_owned())];
        let response = sent.parts(Some(&VerifiedScope::Response(certified))).unwrap();
        assert!(!response.headers.contains_key("a"));
        assert_eq!(response.headers.get("cache-control").unwrap(), "no-store");
        assert!(response.headers.contains_key("ic-certificate"));
        for all in [None, Some(&VerifiedScope::Nothing)] {
            assert_eq!(sent.parts(all).unwrap().headers.len(), 3);
        }
    }

    fn answered(sent: &Head, verified: Option<&VerifiedScope>) -> Response<Outgoing> {
        let body = Outgoing::Whole(Full::default());
        allow_any_origin(Response::from_parts(sent.parts(verified).unwrap(), body))
    }

    #[test]
    fn who_may_read_is_everybody_or_whom_the_canister_certifies() {
        let readers = |response: Response<Outgoing>| {
            let value = response.headers().get("access-control-allow-origin");
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        let open = head(&[("a", "b")]);
        assert_eq!(readers(answered(&open, None)).as_deref(), Some("*"));
        let closed = head(&[("Access-Control-Allow-Origin", "https://me")]);
        for all in [None, Some(&VerifiedScope::Nothing), Some(&VerifiedScope::Body)] {
            assert_eq!(readers(answered(&closed, all)).as_deref(), Some("https://me"));
        }
        let uncertified = VerifiedScope::Response(vec![("a".to_owned(), "b".to_owned())]);
        assert_eq!(readers(answered(&closed, Some(&uncertified))), None);
        assert_eq!(readers(answered(&open, Some(&uncertified))).as_deref(), Some("*"));
    }

    #[test]
    fn a_response_without_a_body_holds_what_it_has_until_its_head_is_gone() {
        let hold: ResponseGuard = std::sync::Arc::new(());
        let parts = head(&[("a", "b")]).parts(None).unwrap();
        let body = Outgoing::Whole(Full::default());
        let response = allow_any_origin(guard_response(parts, body, hold.clone()));
        let (mut parts, body) = response.into_parts();
        drop(body);
        assert_eq!(std::sync::Arc::strong_count(&hold), 2);
        assert_eq!(parts.headers.get("a").unwrap(), "b");
        assert!(parts.headers.values().any(HeaderValue::is_sensitive), "it is not indexed");
        parts.headers.clear();
        assert_eq!(std::sync::Arc::strong_count(&hold), 1);
    }

    #[test]
    fn ranges_are_read_and_nothing_else() {
        let range = ContentRange::read("bytes 10-19/100").unwrap();
        assert_eq!((range.first, range.last, range.total, range.bytes()), (10, 19, 100, 10));
        for bad in [
            "",
            "bytes",
            "bytes 0-0/0",
            "bytes 5-4/10",
            "bytes 0-10/10",
            "bytes 0-9/*",
            "bytes */10",
            "bytes +0-9/10",
            "bytes 0-9/99999999999999999999",
            "octets 0-9/10",
        ] {
            assert_eq!(ContentRange::read(bad), None, "{bad}");
        }
    }
}
