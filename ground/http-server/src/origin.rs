//! The check that a request to an operator page comes from that page or from a program, and not
//! from another web page in the operator's browser.
//!
//! A browser sends requests of any page to any address, loopback included. Three headers
//! distinguish them. `Origin` names the page that sends the request. `Host` names the server as the
//! page knows it: a page that had its own name resolve to this address (DNS rebinding) is
//! same-origin with this server, but its requests carry its own name. `Sec-Fetch-Site` is the only
//! mark of an image, a script or a frame of another page: they come without `Origin`. A page cannot
//! set these headers.
//!
//! IP literals are accepted as `Host`: no name was resolved, so none was rebound. Probes and
//! monitoring systems use them.
//!
//! Bounds: configured names, and bytes of a header that a refusal repeats. A check keeps nothing.

use std::net::{IpAddr, SocketAddr};

use hyper::{
    Method, Request, StatusCode,
    header::{self, HeaderName},
    http::uri,
};

/// Bytes of a foreign header that are repeated in a refusal.
const SHOWN_BYTES_MAX: usize = 100;

const NAMES_MAX: usize = 64;

/// A request that does not come from the server's own page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginError {
    /// The `Host` header is neither an IP literal, a loopback name nor an allowed name.
    ForeignHost(String),
    /// The `Origin` header names another page.
    ForeignOrigin(String),
    /// The browser sends the request for a page of another site.
    ForeignSite(String),
}

impl OriginError {
    /// Short name of the check for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ForeignHost(_) => "foreign_host",
            Self::ForeignOrigin(_) => "foreign_origin",
            Self::ForeignSite(_) => "foreign_site",
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::ForeignHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::ForeignOrigin(_) | Self::ForeignSite(_) => StatusCode::FORBIDDEN,
        }
    }

    /// The text for the client; `what` was asked for (`this page`), and `option` is the setting
    /// that allows further names.
    pub fn message(&self, what: &str, option: &str) -> String {
        match self {
            Self::ForeignHost(host) => format!(
                "the Host header is \"{host}\"; {what} answers to IP addresses, localhost, and the \
                 names of {option}"
            ),
            Self::ForeignOrigin(origin) => format!(
                "the Origin header is \"{origin}\"; {what} does not answer other web pages unless \
                 {option} has the name"
            ),
            Self::ForeignSite(site) => format!(
                "the Sec-Fetch-Site header is \"{site}\"; requests that a browser sends for pages \
                 of other sites are refused"
            ),
        }
    }
}

/// The headers of a request that name its sender and its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginHeaders<'a> {
    /// The authority of the request, or its `Host` header.
    pub host: Option<&'a str>,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// The `Sec-Fetch-Site` header.
    pub site: Option<&'a str>,
}

impl<'a> OriginHeaders<'a> {
    /// The headers of `request`. A header that is not text is "?", which no check accepts.
    pub fn from_request<B>(request: &'a Request<B>) -> Self {
        let text = |name: HeaderName| {
            request.headers().get(name).map(|value| value.to_str().unwrap_or("?"))
        };
        let authority = request.uri().authority().map(uri::Authority::as_str);
        Self {
            host: authority.or_else(|| text(header::HOST)),
            origin: text(header::ORIGIN),
            site: text(HeaderName::from_static("sec-fetch-site")),
        }
    }

    /// The same for a server to whose pages other sites may link: a link that a browser follows
    /// names no site.
    pub fn with_links<B>(request: &'a Request<B>) -> Self {
        let mut sent = Self::from_request(request);
        if is_link(request) {
            sent.site = None;
        }
        sent
    }
}

/// Checks the headers of a request to an operator page.
///
/// `listen` is the address of the socket, and `allowed` the names that the operator configured,
/// without port. With `dotless`, names without a dot are accepted as `Host`: names of containers
/// and of a local network, which are no names of public DNS. Requests without the headers are
/// accepted: browsers always send `Host`.
///
/// # Errors
/// When another web page may be the sender.
pub fn check_origin(
    sent: OriginHeaders<'_>,
    listen: SocketAddr,
    allowed: &[String],
    dotless: bool,
) -> Result<(), OriginError> {
    let OriginHeaders { host, origin, site } = sent;
    if let Some(host) = host {
        let is_own = |host: &Authority| {
            host.is_local() || host.is_among(allowed) || dotless && host.is_dotless()
        };
        if !Authority::parse(host).as_ref().is_some_and(is_own) {
            return Err(OriginError::ForeignHost(shown(host)));
        }
    }
    if let Some(origin) = origin
        && !is_own_origin(origin, host, listen, allowed)
    {
        return Err(OriginError::ForeignOrigin(shown(origin)));
    }
    match site {
        // A page of an allowed name is another site to the browser.
        Some(site) if origin.is_none() && is_foreign_site(site) => {
            Err(OriginError::ForeignSite(shown(site)))
        }
        _ => Ok(()),
    }
}

fn is_foreign_site(site: &str) -> bool {
    ["cross-site", "same-site"].iter().any(|foreign| site.trim().eq_ignore_ascii_case(foreign))
}

/// Whether the request follows a link: what a browser shows as a page of its own.
fn is_link<B>(request: &Request<B>) -> bool {
    let is = |name: &str, value: &str| {
        request.headers().get(name).is_some_and(|found| found.as_bytes() == value.as_bytes())
    };
    *request.method() == Method::GET
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
}

/// Checks configured names.
///
/// # Errors
/// When one is not a host name without port, or there are too many.
pub fn check_names(names: &[String]) -> Result<(), String> {
    if names.len() > NAMES_MAX {
        return Err(format!("host_names has {} names, the limit is {NAMES_MAX}", names.len()));
    }
    let is_name = |name: &str| {
        let is_label_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=253).contains(&name.len()) && name.bytes().all(is_label_byte)
    };
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => Err(format!(
            "host_names has \"{}\", which is not a host name without scheme and port",
            shown(name)
        )),
        None => Ok(()),
    }
}

fn is_own_origin(origin: &str, host: Option<&str>, listen: SocketAddr, allowed: &[String]) -> bool {
    let (default_port, authority) = match origin.split_once("://") {
        Some(("http", authority)) => (80, authority),
        Some(("https", authority)) => (443, authority),
        // "null" included: a page without an origin of its own.
        _ => return false,
    };
    let Some(page) = Authority::parse(authority) else { return false };
    if page.is_among(allowed) {
        return true;
    }
    let port = page.port.unwrap_or(default_port);
    let is_requested = host
        .and_then(Authority::parse)
        .is_some_and(|host| host.name == page.name && host.port.unwrap_or(default_port) == port);
    // The same server by another of its addresses.
    let is_listener = port == listen.port()
        && match page.name.parse::<IpAddr>() {
            Ok(address) if listen.ip().is_unspecified() => address.is_loopback(),
            Ok(address) => address == listen.ip(),
            Err(_) => {
                page.name == "localhost"
                    && (listen.ip().is_loopback() || listen.ip().is_unspecified())
            }
        };
    is_requested || is_listener
}

/// Host and port of a header.
struct Authority {
    /// Lower case, without brackets and without the dot of the root.
    name: String,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']')?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (address, rest.strip_prefix(':').or((rest.is_empty()).then_some(""))?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        (!name.is_empty()).then_some(Self { name, port })
    }

    /// Whether no name server was asked for it.
    fn is_local(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok()
    }

    /// Whether public DNS has no such name.
    fn is_dotless(&self) -> bool {
        self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    }

    fn is_among(&self, allowed: &[String]) -> bool {
        allowed.iter().any(|name| name.trim_end_matches('.').eq_ignore_ascii_case(&self.name))
    }
}

fn shown(header: &str) -> String {
    let mut end = header.len().min(SHOWN_BYTES_MAX);
    while !header.is_char_boundary(end) {
        end -= 1;
    }
    header[..end].escape_debug().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: Option<&str>, origin: Option<&str>) -> Result<(), OriginError> {
        let listen = "127.0.0.1:8080".parse().unwrap();
        let allowed = ["ops.example.org".into(), "thimble".into()];
        check_origin(OriginHeaders { host, origin, site: None }, listen, &allowed, false)
    }

    // Promise: P16 - Operator pages accept IP addresses, `localhost` and configured host names.
    #[test]
    fn ip_literals_localhost_and_allowed_names_are_own_hosts() {
        for host in [
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:8080",
            "[fe80::1]",
            "localhost",
            "LocalHost.:9",
            "thimble:8080",
            "Ops.Example.org",
        ] {
            assert_eq!(check(Some(host), None), Ok(()), "{host}");
        }
        assert_eq!(check(None, None), Ok(()));
    }

    // Promise: P16 - Foreign and malformed host names are refused.
    #[test]
    fn other_names_and_malformed_hosts_are_foreign() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "abcde-fg.localhost:8081",
            "example.org",
            "",
            ":8080",
            "[::1",
            "[evil]:80",
            "[::1]8080",
            "localhost:port",
            "localhost@evil.example",
        ] {
            let refused = check(Some(host), None).unwrap_err();
            assert_eq!(refused, OriginError::ForeignHost(host.into()));
            let message = refused.message("this page", "api.host_names");
            assert!(message.contains("this page answers to IP addresses"), "{message}");
            assert!(message.contains("api.host_names"), "{message}");
        }
    }

    // Promise: P16 - Only pages of the server itself have an own origin.
    #[test]
    fn only_the_servers_own_pages_are_own_origins() {
        for (host, origin) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:8080", "http://127.0.0.1:8080"),
            ("127.0.0.1:8080", "http://localhost:8080"),
            ("10.1.2.3:9090", "http://10.1.2.3:9090"),
            ("10.1.2.3", "http://10.1.2.3"),
            ("10.1.2.3:80", "http://10.1.2.3"),
            ("ops.example.org", "https://ops.example.org"),
            ("127.0.0.1:8080", "https://ops.example.org"),
            ("[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(check(Some(host), Some(origin)), Ok(()), "{origin} at {host}");
        }
        for origin in [
            "http://evil.example",
            "http://abcde-fg.localhost:8080",
            "http://localhost:8081",
            "http://127.0.0.1",
            "http://127.0.0.2:8080",
            "https://10.1.2.3:8080",
            "null",
            "",
            "file://",
            "chrome-extension://thimble",
            "http://ops.example.org.evil.example",
        ] {
            let refused = check(Some("127.0.0.1:8080"), Some(origin)).unwrap_err();
            assert_eq!(refused, OriginError::ForeignOrigin(origin.into()));
        }
    }

    // Promise: P16 - `Sec-Fetch-Site` of another site is refused, and names without a dot are hosts
    //   where that is allowed.
    #[test]
    fn requests_of_other_sites_are_refused_and_dotless_hosts_are_an_option() {
        let listen = "127.0.0.1:8645".parse().unwrap();
        let allowed = ["relay.example".to_owned()];
        let (own, evil) = (Some("127.0.0.1:8645"), "evil.example");
        let refused_host = |host: &str| Err(OriginError::ForeignHost(host.to_owned()));
        let refused_origin = |origin: &str| Err(OriginError::ForeignOrigin(origin.to_owned()));
        let refused_site = |site: &str| Err(OriginError::ForeignSite(site.to_owned()));
        for (host, origin, site, dotless, expected) in [
            (None, None, None, true, Ok(())),
            (own, None, None, true, Ok(())),
            (Some("[::1]:8645"), None, None, true, Ok(())),
            (Some("relay.example:8645"), None, None, true, Ok(())),
            (Some("relay:8645"), None, None, true, Ok(())),
            (Some("relay_1-a."), None, None, true, Ok(())),
            (Some("relay:8645"), Some("http://relay:8645"), Some("same-origin"), true, Ok(())),
            (Some("relay:8645"), None, None, false, refused_host("relay:8645")),
            (Some(evil), None, None, true, refused_host(evil)),
            (Some("relay.evil:80"), None, None, true, refused_host("relay.evil:80")),
            (Some("relay@evil"), None, None, true, refused_host("relay@evil")),
            (Some("rel%61y"), None, None, true, refused_host("rel%61y")),
            (Some(""), None, None, true, refused_host("")),
            (Some("?"), None, None, true, refused_host("?")),
            (own, Some("http://other:8645"), None, true, refused_origin("http://other:8645")),
            (own, Some("null"), Some("cross-site"), true, refused_origin("null")),
            (own, Some("https://relay.example"), Some("cross-site"), true, Ok(())),
            (own, None, Some("none"), true, Ok(())),
            (own, None, Some("same-origin"), true, Ok(())),
            (own, None, Some("cross-site"), true, refused_site("cross-site")),
            (own, None, Some("same-site"), false, refused_site("same-site")),
            (None, None, Some("Cross-Site"), false, refused_site("Cross-Site")),
        ] {
            let sent = OriginHeaders { host, origin, site };
            let found = check_origin(sent, listen, &allowed, dotless);
            assert_eq!(found, expected, "{sent:?}, dotless: {dotless}");
        }
    }

    #[test]
    fn headers_of_a_request_are_found_and_refusals_have_their_status() {
        let request = Request::builder()
            .uri("/")
            .header("host", "node:80")
            .header("origin", b"http://\xff".as_slice())
            .header("sec-fetch-site", "same-site");
        let request = request.body(()).unwrap();
        let sent =
            OriginHeaders { host: Some("node:80"), origin: Some("?"), site: Some("same-site") };
        assert_eq!(OriginHeaders::from_request(&request), sent);
        let request = Request::builder().uri("http://other:81/").header("host", "node:80");
        assert_eq!(OriginHeaders::from_request(&request.body(()).unwrap()).host, Some("other:81"));
        for (refusal, status) in [
            (OriginError::ForeignHost("a.example".into()), 421),
            (OriginError::ForeignOrigin("null".into()), 403),
            (OriginError::ForeignSite("cross-site".into()), 403),
        ] {
            assert_eq!(refusal.status().as_u16(), status);
        }
    }

    #[test]
    fn what_another_site_embeds_is_foreign_and_a_link_is_followed() {
        let is_foreign = |request: &Request<()>| {
            let listen = "127.0.0.1:8080".parse().unwrap();
            check_origin(OriginHeaders::with_links(request), listen, &[], false).is_err()
        };
        for (method, site, mode, dest, expected) in [
            ("GET", "cross-site", "no-cors", "image", true),
            ("GET", "same-site", "no-cors", "script", true),
            ("GET", "cross-site", "navigate", "iframe", true),
            ("POST", "cross-site", "navigate", "document", true),
            ("GET", "cross-site", "navigate", "document", false),
            ("GET", "same-origin", "cors", "empty", false),
            ("GET", "none", "navigate", "document", false),
        ] {
            let request = Request::builder()
                .method(method)
                .header("sec-fetch-site", site)
                .header("sec-fetch-mode", mode)
                .header("sec-fetch-dest", dest)
                .body(())
                .unwrap();
            assert_eq!(is_foreign(&request), expected, "{method} {site} {mode} {dest}");
        }
        assert!(!is_foreign(&Request::new(())), "a program");
    }

    #[test]
    fn a_long_header_is_shown_in_part() {
        let Err(OriginError::ForeignHost(shown)) = check(Some(&"ä".repeat(10_000)), None) else {
            panic!("accepted");
        };
        assert!(shown.len() <= SHOWN_BYTES_MAX);
    }
}
