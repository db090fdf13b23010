//! The operator's page: one file that draws the report of `/status.json`.
//!
//! It is part of the binary and loads nothing but that document. The content security policy holds
//! it to this: scripts and styles run by their hash only, so that nothing that comes with the data
//! can become code, and nothing can be fetched from elsewhere or shown inside another page.

use std::sync::LazyLock;

use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};
use sha2::{Digest, Sha256};

/// Where the page is; a browser that asks for `/` is sent there.
pub const PATH: &str = "/dashboard";
/// The page, as `text/html; charset=utf-8`.
pub const PAGE: &str = include_str!("dashboard.html");
/// The mark of the product in a tab: a value of `href` of a page's `rel="icon"`.
pub const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
                        viewBox='0 0 16 16'%3E%3Cpath d='M4 14 5 5a3 3 0 0 1 6 0l1 9z' \
                        fill='%232a78b8'/%3E%3C/svg%3E";

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| policy(PAGE));

/// Content security policy of a page with one script and one style, both inline: these two run, by
/// their hash, the page may ask its own server, and nothing else may be done.
pub fn policy(page: &str) -> HeaderValue {
    let hash = |tag| BASE64_STANDARD.encode(Sha256::digest(inline(page, tag).unwrap_or_default()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    );
    // Base64 has no character that a header may not have.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

/// Content security policy of a page that has this one inline style and no script, and fetches
/// nothing.
pub fn style_policy(style: &str) -> HeaderValue {
    let hash = BASE64_STANDARD.encode(Sha256::digest(style));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

/// Content of the page's only element `tag`.
fn inline<'a>(page: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>")).map(|(content, _)| content)
}

/// The page, without the headers of every response.
pub fn response() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(PAGE.as_bytes())));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

/// Sends a browser to the page.
pub fn redirect() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(PATH));
    response
}

/// Whether the request is from a person who entered the program's address in a browser. Other
/// programs that request `/` get the list of endpoints.
pub fn is_where_a_browser_starts<B>(request: &Request<B>) -> bool {
    let accepts_html = || {
        let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
        accept.is_some_and(|accept| accept.split(',').any(|kind| essence(kind) == "text/html"))
    };
    matches!(*request.method(), Method::GET | Method::HEAD)
        && request.uri().path() == "/"
        && accepts_html()
}

fn essence(kind: &str) -> &str {
    kind.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_small_file_that_names_no_other_place() {
        assert!(PAGE.len() < 64 * 1024, "the page has {} bytes", PAGE.len());
        for tag in ["script", "style"] {
            assert_eq!(
                PAGE.matches(&format!("<{tag}")).count(),
                1,
                "one {tag}, without attributes"
            );
            assert!(inline(PAGE, tag).unwrap().len() > 1000);
        }
        // The namespace of SVG is a name and is not fetched.
        let places = PAGE.replace("http://www.w3.org/2000/svg", "");
        for place in ["http:", "https:", "//cdn", "@import", "url(", "innerHTML", " style=\""] {
            assert!(!places.contains(place), "{place}");
        }
    }

    #[test]
    fn pages_have_one_icon() {
        assert!(PAGE.contains(&format!("href=\"{ICON}\"")));
    }

    #[test]
    fn only_browsers_at_the_root_are_sent_on() {
        let starts = |method: Method, path: &str, accept: Option<&str>| {
            let mut request = Request::builder().method(method).uri(path);
            if let Some(accept) = accept {
                request = request.header(header::ACCEPT, accept);
            }
            is_where_a_browser_starts(&request.body(()).unwrap())
        };
        let browser = Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");
        assert!(starts(Method::GET, "/", browser));
        assert!(starts(Method::HEAD, "/", Some("application/json, text/html;q=0.5")));
        assert!(!starts(Method::GET, "/", Some("*/*")));
        assert!(!starts(Method::GET, "/", None));
        assert!(!starts(Method::POST, "/", browser));
        assert!(!starts(Method::GET, "/health", browser));
    }
}
