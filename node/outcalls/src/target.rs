//! The target of a request and its content: the URL and the headers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request,
    header::{
        CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, USER_AGENT,
    },
};
use state::Outcall;
use url::{Host, Url};

use crate::Failure;

/// Sent where the canister names no other (interface specification, `http_request`).
const AGENT: &str = "ic/1.0";
/// Of this connection, which is the node's, and not the canister's.
const OF_CONNECTION: [HeaderName; 6] =
    [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) is_tls: bool,
    pub(crate) host: Host<String>,
    pub(crate) port: u16,
}

impl Target {
    /// As texts show it.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

pub(crate) fn prepare(
    outcall: &Outcall,
    allow_http: bool,
) -> Result<(Target, Request<Full<Bytes>>), Failure> {
    let url = Url::parse(&outcall.url).map_err(|_| Failure::Url)?;
    let is_tls = match url.scheme() {
        "https" => true,
        "http" if allow_http => false,
        _ => return Err(Failure::Scheme),
    };
    let host = url.host().ok_or(Failure::Url)?.to_owned();
    let port = url.port_or_known_default().ok_or(Failure::Url)?;
    let headers = headers(outcall, &url)?;
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let body = Full::new(Bytes::from(outcall.body.clone()));
    let request = Request::builder().method(outcall.method.name()).uri(path).body(body);
    let mut request = request.map_err(|_| Failure::Url)?;
    *request.headers_mut() = headers;
    Ok((Target { is_tls, host, port }, request))
}

fn headers(outcall: &Outcall, url: &Url) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::with_capacity(outcall.headers.len() + 3);
    for (number, (name, value)) in outcall.headers.iter().enumerate() {
        let name: HeaderName = name.parse().map_err(|_| Failure::Header(number))?;
        let value = HeaderValue::from_str(value).map_err(|_| Failure::Header(number))?;
        if !OF_CONNECTION.contains(&name) {
            headers.append(name, value);
        }
    }
    if !headers.contains_key(HOST) {
        let authority = match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (host, _) => host.unwrap_or_default().to_owned(),
        };
        headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| Failure::Url)?);
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    // Nothing else: servers sign or compare the headers of a request. The connection is closed
    // after the response without `connection: close`.
    Ok(headers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use state::{Origin, OutcallMethod, Time};

    use super::*;

    fn outcall(url: &str, headers: &[(&str, &str)]) -> Outcall {
        Outcall {
            origin: Origin::System,
            cycles: 0,
            url: url.into(),
            method: OutcallMethod::Get,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            body: vec![],
            response_bytes_asked: Some(100),
            transform: None,
            until: Time(1),
            askers: state::Askers::All,
            height: state::Height(1),
        }
    }

    #[test]
    fn a_url_says_where_and_what() {
        let (target, request) =
            prepare(&outcall("https://A.Example:8443/p/q?x=1&y=%20#part", &[]), false).unwrap();
        assert_eq!((target.is_tls, target.name().as_str()), (true, "a.example:8443"));
        assert_eq!(request.uri().to_string(), "/p/q?x=1&y=%20");
        assert_eq!(request.headers()[HOST], "a.example:8443");
        assert_eq!(request.headers()[USER_AGENT], "ic/1.0");
        let (target, request) = prepare(&outcall("https://[2606:4700::1]", &[]), false).unwrap();
        assert_eq!(
            (target.port, &request.headers()[HOST]),
            (443, &"[2606:4700::1]".parse().unwrap())
        );
        // Letters beyond ASCII, as RFC 3987 allows them.
        let (target, request) = prepare(&outcall("https://bücher.example/ä", &[]), false).unwrap();
        assert_eq!(target.host.to_string(), "xn--bcher-kva.example");
        assert_eq!(request.uri().to_string(), "/%C3%A4");
    }

    #[test]
    fn target_rejects_urls_that_are_not_https() {
        let told = |url: &str, http| prepare(&outcall(url, &[]), http).unwrap_err();
        assert_eq!(told("nonsense", false), Failure::Url);
        assert_eq!(told("https://", false), Failure::Url);
        assert_eq!(told("http://a.example/", false), Failure::Scheme);
        assert_eq!(told("ftp://a.example/", true), Failure::Scheme);
        assert_eq!(told("file:///etc/passwd", true), Failure::Scheme);
        let (target, _) = prepare(&outcall("http://a.example/", &[]), true).unwrap();
        assert_eq!((target.is_tls, target.port), (false, 80));
    }

    #[test]
    fn user_agent_is_the_only_header_added_by_the_node() {
        let names = |own: &[(&str, &str)]| {
            let (_, request) = prepare(&outcall("https://a.example/", own), false).unwrap();
            let mut names: Vec<_> =
                request.headers().keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&[]), ["host", "user-agent"]);
        assert_eq!(names(&[("connection", "keep-alive"), ("x", "1")]), ["host", "user-agent", "x"]);
    }

    #[test]
    fn headers_are_the_canisters_but_for_those_of_the_connection() {
        let own = [
            ("User-Agent", "mine"),
            ("x-twice", "1"),
            ("X-Twice", "2"),
            ("Content-Length", "7"),
            ("Transfer-Encoding", "chunked"),
            ("host", "other.example"),
        ];
        let (_, request) = prepare(&outcall("https://a.example/", &own), false).unwrap();
        let headers = request.headers();
        assert_eq!(
            (&headers[USER_AGENT], &headers[HOST]),
            (&"mine".parse().unwrap(), &"other.example".parse().unwrap())
        );
        assert_eq!(headers.get_all("x-twice").iter().count(), 2);
        assert!(!headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(TRANSFER_ENCODING));
        for wrong in [("", "v"), ("a b", "v"), ("a", "line\r\nbreak: 1"), ("a\r\n", "v")] {
            let told = prepare(&outcall("https://a.example/", &[("fine", "1"), wrong]), false);
            assert_eq!(told.unwrap_err(), Failure::Header(1), "{wrong:?}");
        }
    }
}
