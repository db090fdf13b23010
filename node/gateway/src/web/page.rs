//! What a person sees in a browser instead of a page.
//!
//! Texts hold parts of what canisters and clients sent, so they are escaped, and the page may load
//! and run nothing.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{self, HeaderValue},
};

use super::room::Rooms;
use crate::{answer::Refused, connection::Outgoing, service::held};

/// Of texts that come from canisters.
const TEXT_CHARS_MAX: usize = 2_000;

/// Whether who asks reads pages.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// A page or a text that is longer than this is shortened to its status where there is no room.
const UNCOUNTED_BYTES: usize = 256;

/// The answer to a request that came to nothing: a page, or its text alone. It is counted among what
/// is written; where there is no room it says only that.
pub(super) fn refusal(refused: &Refused, as_page: bool, rooms: &Rooms) -> Response<Outgoing> {
    let text: String = refused.message.chars().take(TEXT_CHARS_MAX).collect();
    let (kind, body) = if as_page {
        ("text/html; charset=utf-8", html(refused.status, &text))
    } else {
        ("text/plain; charset=utf-8", text)
    };
    let body = match rooms.small(body.len() as u64) {
        _ if body.len() <= UNCOUNTED_BYTES => Bytes::from(body),
        Some(room) => held(body, room),
        None => Bytes::from(format!("{}: there is no room for more", refused.status)),
    };
    let mut response = Response::new(Outgoing::Whole(Full::new(body)));
    *response.status_mut() = refused.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    );
    if let Some(seconds) = refused.retry_after_seconds {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn html(status: StatusCode, text: &str) -> String {
    let escaped = escaped(text);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{status}</title></head><body><h1>{status}</h1>\
         <p>{escaped}</p><p>The HTTP gateway of this node says so, and not the canister.</p>\
         </body></html>\n"
    )
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_canister_becomes_markup() {
        assert_eq!(escaped("<a b='c'>&\""), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;");
        let page = html(StatusCode::BAD_GATEWAY, "<script>alert(1)</script>");
        assert!(!page.contains("<script>") && page.contains("502 Bad Gateway"), "{page}");
    }
}
