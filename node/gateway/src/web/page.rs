//! The page that a browser shows when the gateway refuses a request.
//!
//! It has the colours of the operator's page, in light and dark. Texts hold parts of what canisters
//! and clients sent, so they are escaped, and the page may load and run nothing but its own style.

use std::sync::LazyLock;

use bytes::Bytes;
use dashboard::page::{ICON, style_policy};
use http_body_util::Full;
use http_server::{ErrorResponse, Outgoing, TEXT, set_common_headers, with_reservation};
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{self, HeaderValue},
};

use super::request_memory::RequestMemory;

/// Of texts that come from canisters.
const TEXT_CHARS_MAX: usize = 2_000;

/// Whether who asks reads pages.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// A page or a text that is longer than this is shortened to its status where there is no room.
const UNCOUNTED_BYTES: usize = 256;

/// The answer to a failed request: a page, or its text alone. It is counted among the responses
/// being written; where there is no room it has only its status.
pub(super) fn refusal(
    refused: ErrorResponse,
    as_page: bool,
    rooms: &RequestMemory,
) -> Response<Outgoing> {
    let text: String = refused.message.chars().take(TEXT_CHARS_MAX).collect();
    let (kind, body) = if as_page {
        ("text/html; charset=utf-8", html(refused.status, &text))
    } else {
        (TEXT, text)
    };
    let body = match rooms.small(body.len() as u64) {
        _ if body.len() <= UNCOUNTED_BYTES => Bytes::from(body),
        Some(room) => with_reservation(body, room),
        None => Bytes::from(format!("{}: there is no room for more", refused.status)),
    };
    let mut response = refused.with_body(kind, Outgoing::Whole(Full::new(body)));
    let headers = response.headers_mut();
    set_common_headers(headers);
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Of the page; its policy names it by its hash.
const STYLE: &str = "\
:root{color-scheme:light dark;--page:light-dark(#f3f5f7,#0e1216);--card:light-dark(#fff,#161b21);\
--line:light-dark(#dde2e7,#2a323b);--ink:light-dark(#171c21,#e7ebef);\
--soft:light-dark(#535e69,#a2adb8);--warn:light-dark(#8f4a00,#f5b04c)}\
*{box-sizing:border-box}\
body{margin:0;min-height:100vh;display:grid;place-items:center;padding:1rem;\
background:var(--page);color:var(--ink);font:100%/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\
\"Noto Sans\",\"Liberation Sans\",Arial,sans-serif}\
main{width:100%;max-width:40rem;background:var(--card);border:1px solid var(--line);\
border-left:6px solid var(--warn);border-radius:8px;padding:1.5rem 1.75rem}\
p,h1{margin:0}\
h1 span{display:block;font-size:1rem;color:var(--warn)}\
h1{font-size:1.5rem;line-height:1.25;letter-spacing:-.01em;margin-bottom:.75rem}\
.text{overflow-wrap:anywhere;white-space:pre-wrap}\
.from{color:var(--soft);font-size:.875rem;margin-top:1.25rem;padding-top:.75rem;\
border-top:1px solid var(--line)}";

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| style_policy(STYLE));

fn html(status: StatusCode, text: &str) -> String {
    let escaped = escaped(text);
    let reason = status.canonical_reason().unwrap_or("Error");
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" \
         content=\"light dark\"><title>{status}</title><link rel=\"icon\" href=\"{ICON}\">\
         <style>{STYLE}</style></head><body><main><h1><span>{code}</span>{reason}</h1>\
         <p class=\"text\">{escaped}</p><p class=\"from\">This page is from the HTTP gateway of a \
         Thimble node, not from the canister.</p></main></body></html>\n",
        code = status.as_u16()
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

    #[test]
    fn page_has_its_own_style_in_light_and_dark() {
        let page = html(StatusCode::NOT_FOUND, "text");
        assert_eq!(page.matches("<style>").count(), 1);
        assert!(page.contains(&format!("<style>{STYLE}</style>")) && !page.contains(" style=\""));
        assert!(STYLE.contains("light-dark(") && !STYLE.contains("url("));
        let begins = "default-src 'none'; style-src 'sha256-";
        assert!(POLICY.to_str().is_ok_and(|policy| policy.starts_with(begins)), "{POLICY:?}");
    }
}
