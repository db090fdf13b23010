//! Web pages of other origins that the operator allows to use the interface (CORS).
//!
//! A pattern is an origin as `https://app.example:8080`, or without a scheme for both; `*` stands
//! for any text, `?` for one character or none, and `*` alone for every origin. Case means nothing.
//! Bounds: [`PATTERNS_MAX`] patterns of [`PATTERN_BYTES_MAX`] bytes, and an origin of
//! [`ORIGIN_BYTES_MAX`]; matching takes a byte of memory for each byte of the origin.
//!
//! Allowed pages reach all of the interface, operator pages included. The check of `Host` stays: it
//! keeps pages away that had their own name resolve to this address.

use http_server::{Outgoing, TEXT};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{self, HeaderValue},
};

use super::answer;

const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 256;
/// A scheme, the longest host name, and a port.
const ORIGIN_BYTES_MAX: usize = 8 + 253 + 6;
const SCHEMES: [&str; 2] = ["http://", "https://"];
/// Methods of the routes, as a preflight asks for them.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";
/// Seconds for which a browser need not ask again.
const PREFLIGHT_SECONDS: &str = "600";

/// The origins that are allowed.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllowedOrigins {
    every: bool,
    /// In lower case.
    patterns: Vec<String>,
}

impl AllowedOrigins {
    /// Reads patterns; one may hold several, separated by commas. Errors: too many, or one that is
    /// empty, too long, or has characters that no origin has.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for pattern in patterns.iter().flat_map(|text| text.split(',')).map(str::trim) {
            let fits = (1..=PATTERN_BYTES_MAX).contains(&pattern.len());
            if !fits || !pattern.bytes().all(|byte| byte.is_ascii_graphic()) {
                let shown: String = pattern.chars().take(PATTERN_BYTES_MAX).collect();
                return Err(format!(
                    "allow_origins has `{shown}`: an origin has 1 to {PATTERN_BYTES_MAX} bytes of \
                     ASCII without blanks, as https://app.example or localhost:*"
                ));
            }
            allowed.every |= pattern == "*";
            allowed.patterns.push(pattern.to_ascii_lowercase());
        }
        if allowed.patterns.len() > PATTERNS_MAX {
            let count = allowed.patterns.len();
            return Err(format!("allow_origins has {count} origins, the limit is {PATTERNS_MAX}"));
        }
        Ok(allowed)
    }

    /// The value of `Access-Control-Allow-Origin` for a request; `None` for one without an allowed
    /// origin.
    pub(crate) fn granted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else { return None };
        if self.every {
            return Some(HeaderValue::from_static("*"));
        }
        let text = origin.to_str().ok().filter(|text| text.len() <= ORIGIN_BYTES_MAX)?;
        let text = text.to_ascii_lowercase();
        let matches = |pattern: &String| {
            if SCHEMES.iter().any(|scheme| pattern.starts_with(scheme)) {
                return is_match(pattern, &text);
            }
            let host = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
            host.is_some_and(|host| is_match(pattern, host))
        };
        self.patterns.iter().any(matches).then(|| origin.clone())
    }

    /// Adds the headers by which a browser lets the page read the answer. `granted` is what
    /// [`Self::granted`] returned for the request.
    pub(crate) fn add_headers(&self, granted: Option<HeaderValue>, headers: &mut HeaderMap) {
        if !self.every && !self.patterns.is_empty() {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = granted {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            let sent = HeaderValue::from_static("Content-Type");
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, sent);
        }
    }
}

/// Whether a browser asks what a page may send.
pub(crate) fn is_preflight<B>(request: &Request<B>) -> bool {
    *request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that, for an allowed origin.
pub(crate) fn preflight() -> Response<Outgoing> {
    let mut response = answer::answer(StatusCode::NO_CONTENT, TEXT, Outgoing::short(""));
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
    response
}

/// Whether a whole text is of a pattern. Takes as many steps as the product of their lengths.
fn is_match(pattern: &str, text: &str) -> bool {
    // For each number of the text's first bytes: whether the pattern read so far stands for them.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for wanted in pattern.bytes() {
        match wanted {
            b'*' => {
                let mut any = false;
                for place in &mut reached {
                    any |= *place;
                    *place = any;
                }
            }
            b'?' => {
                for length in (1..reached.len()).rev() {
                    reached[length] |= reached[length - 1];
                }
            }
            _ => {
                for (before, found) in text.bytes().enumerate().rev() {
                    reached[before + 1] = reached[before] && found == wanted;
                }
                reached[0] = false;
            }
        }
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn granted(patterns: &[&str], origin: &str) -> Option<String> {
        let patterns: Vec<String> = patterns.iter().map(|one| (*one).to_owned()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        let granted = AllowedOrigins::new(&patterns).unwrap().granted(&headers)?;
        Some(granted.to_str().unwrap().to_owned())
    }

    #[test]
    fn origins_are_granted_by_pattern_and_scheme() {
        for (pattern, origin, expected) in [
            ("https://app.example", "https://app.example", true),
            ("https://app.example", "https://APP.example", true),
            ("https://app.example", "http://app.example", false),
            ("app.example", "http://app.example", true),
            ("app.example", "https://app.example", true),
            ("app.example", "https://app.example.evil", false),
            ("app.example", "https://evil.app.example", false),
            ("app.example", "ftp://app.example", false),
            ("app.example", "null", false),
            ("localhost:*", "http://localhost:3000", true),
            ("localhost:*", "http://localhost", false),
            ("*.example", "https://a.b.example", true),
            ("10.0.0.?", "http://10.0.0.7", true),
            ("10.0.0.1?", "http://10.0.0.1", true),
            ("10.0.0.1?", "http://10.0.0.123", false),
            ("evil.example,app.example", "https://app.example", true),
        ] {
            let expected = expected.then(|| origin.to_owned());
            assert_eq!(granted(&[pattern], origin), expected, "{pattern} of {origin}");
        }
        assert_eq!(granted(&["*"], "null").as_deref(), Some("*"));
        assert_eq!(granted(&[], "https://app.example"), None);
        assert_eq!(granted(&["*a"], &format!("https://{}", "a".repeat(600))), None);
    }

    #[test]
    fn two_origins_in_one_request_are_not_granted() {
        let mut headers = HeaderMap::new();
        assert_eq!(AllowedOrigins::new(&["*".into()]).unwrap().granted(&headers), None);
        for origin in ["https://a.example", "https://b.example"] {
            headers.append(header::ORIGIN, HeaderValue::from_static(origin));
        }
        assert_eq!(AllowedOrigins::new(&["*".into()]).unwrap().granted(&headers), None);
    }

    #[test]
    fn patterns_that_name_no_origin_are_refused() {
        for pattern in ["", "a,,b", "a b", "ä.example", "a".repeat(257).as_str()] {
            assert!(AllowedOrigins::new(&[pattern.to_owned()]).is_err(), "{pattern}");
        }
        let many = vec!["a.example".to_owned(); PATTERNS_MAX + 1];
        assert!(AllowedOrigins::new(&many).unwrap_err().contains("64"));
    }

    #[test]
    fn answers_vary_by_origin_once_origins_are_configured() {
        let vary = |patterns: &[String]| {
            let mut headers = HeaderMap::new();
            AllowedOrigins::new(patterns).unwrap().add_headers(None, &mut headers);
            headers.contains_key(header::VARY)
        };
        assert!(vary(&["a.example".to_owned()]));
        assert!(!vary(&[]) && !vary(&["*".to_owned()]));
    }

    proptest! {
        #[test]
        fn a_pattern_without_wildcards_is_itself_alone(
            pattern in "[a-c.]{0,6}", text in "[a-c.]{0,6}",
        ) {
            prop_assert_eq!(is_match(&pattern, &text), pattern == text);
            prop_assert!(is_match(&pattern, &pattern));
        }

        #[test]
        fn a_star_stands_for_any_text_between(
            head in "[a-c]{0,4}", tail in "[a-c]{0,4}", text in "[a-c]{0,10}",
        ) {
            let expected = text.len() >= head.len() + tail.len()
                && text.starts_with(&head)
                && text.ends_with(&tail);
            let pattern = format!("{head}*{tail}");
            prop_assert_eq!(is_match(&pattern, &text), expected);
        }
    }
}
