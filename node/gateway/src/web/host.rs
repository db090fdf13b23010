//! Which canister a request is for.
//!
//! The host says so: its first label is the id, as in `<id>.localhost`, and `raw` as the second,
//! as in `<id>.raw.localhost`, asks for the response as it is, unverified. Where the host names no
//! canister, the parameter `canisterId` of the query does, and for what such a page loads by
//! relative addresses the same parameter of the page that asked (`Referer`), if it is of this host.
//!
//! All canisters that are named by the parameter would share one origin in a browser, and with it
//! storage and service workers. So a browser that opens such a page on this machine is sent to the
//! canister's own host, and no service worker is given out at a host that is shared.

use hyper::{HeaderMap, Method, Uri, header};
use ic_principal::Principal;

const PARAMETER: &str = "canisterId";
/// The longest name that the domain name system has.
const HOST_BYTES_MAX: usize = 253;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) canister: Principal,
    /// Whether its response is passed on as it is.
    pub(crate) raw: bool,
    /// Whether the host is that of other canisters, too.
    pub(crate) shared: bool,
}

/// Why it is for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    /// Nothing names a canister.
    Unnamed,
    /// The value of the id is invalid.
    NoId,
}

pub(crate) fn target(uri: &Uri, headers: &HeaderMap) -> Result<Target, NoTarget> {
    let host = host(uri, headers).unwrap_or_default();
    if let Some(target) = of_host(&host) {
        return Ok(target);
    }
    let raw = host.split('.').next() == Some("raw");
    let named = match of_query(uri.query()) {
        Some(named) => named,
        None => of_referer(headers, &host).ok_or(NoTarget::Unnamed)?,
    };
    let canister = Principal::from_text(named).map_err(|_| NoTarget::NoId)?;
    Ok(Target { canister, raw, shared: true })
}

impl Target {
    /// Where a browser should open this instead: at the canister's own host. `None` unless it opens
    /// a page, at a host that is shared and of this machine.
    pub(crate) fn own_address(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<String> {
        let authority = authority(uri, headers)?;
        let reads = *method == Method::GET || *method == Method::HEAD;
        if !self.shared || !reads || !opens_page(headers) || !is_local(&without_port(authority)?) {
            return None;
        }
        let port = authority.rsplit_once(':').map(|(_, port)| port);
        let port = port.filter(|port| port.parse::<u16>().is_ok());
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let raw = if self.raw { "raw." } else { "" };
        let query = uri.query().unwrap_or_default().split('&');
        let kept: Vec<&str> =
            query.filter(|pair| parameter(pair).is_none() && !pair.is_empty()).collect();
        let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
        // Without the scheme: it is the one that the browser used.
        Some(format!("//{}.{raw}localhost{port}{}{query}", self.canister, uri.path()))
    }

    /// Whether a browser asks for a service worker, at a host that is shared.
    pub(crate) fn shares_worker(&self, headers: &HeaderMap) -> bool {
        self.shared && headers.contains_key("service-worker")
    }
}

/// Whether a browser opens a page. All of them say so to a host of this machine, but for old ones.
fn opens_page(headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-mode") {
        Some(mode) => mode == "navigate",
        None => super::page::is_wanted(headers),
    }
}

fn is_local(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    matches!(host, "localhost" | "raw.localhost")
        || address.is_ok_and(|address| address.is_loopback())
}

/// The host that was asked, without its port, in lower case.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    without_port(authority(uri, headers)?)
}

fn authority<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST)?.to_str().ok(),
    }
}

/// `None` for what no host can be.
fn without_port(authority: &str) -> Option<String> {
    // Nothing that a browser sends has a user.
    if authority.contains('@') {
        return None;
    }
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']')?.0,
        None => authority.split(':').next().unwrap_or_default(),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    (host.len() <= HOST_BYTES_MAX).then(|| host.to_ascii_lowercase())
}

fn of_host(host: &str) -> Option<Target> {
    let mut labels = host.split('.');
    let canister = id(labels.next()?)?;
    let next = labels.next()?;
    // An id alone, or `raw` as the domain, is not a host of a gateway.
    let raw = next == "raw" && labels.next().is_some();
    Some(Target { canister, raw, shared: false })
}

/// An id in the one form that a host can have.
fn id(label: &str) -> Option<Principal> {
    let id = Principal::from_text(label).ok()?;
    (id.to_text() == label).then_some(id)
}

fn of_query(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(parameter)
}

/// The value, if it is that parameter.
fn parameter(pair: &str) -> Option<&str> {
    match pair.split_once('=') {
        Some((PARAMETER, value)) => Some(value),
        _ => None,
    }
}

fn of_referer<'h>(headers: &'h HeaderMap, host: &str) -> Option<&'h str> {
    let referer = headers.get(header::REFERER)?.to_str().ok()?;
    let (_, rest) = referer.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if without_port(authority)? != host {
        return None;
    }
    let rest = rest.split('#').next().unwrap_or_default();
    of_query(rest.split_once('?').map(|(_, query)| query))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: &str = "bnz7o-iuaaa-aaaaa-qaaaa-cai";
    const OTHER: &str = "rwlgt-iiaaa-aaaaa-aaaaa-cai";

    fn asked(
        uri: &str,
        host: Option<&str>,
        referer: Option<&str>,
    ) -> Result<(String, bool), NoTarget> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().unwrap());
        }
        if let Some(referer) = referer {
            headers.insert(header::REFERER, referer.parse().unwrap());
        }
        target(&uri.parse().unwrap(), &headers)
            .map(|target| (target.canister.to_text(), target.raw))
    }

    #[test]
    fn hosts_name_canisters() {
        for (host, raw) in [
            (format!("{ID}.localhost"), false),
            (format!("{ID}.localhost:8081"), false),
            (format!("{ID}.localhost."), false),
            (ID.to_uppercase() + ".LocalHost:8081", false),
            (format!("{ID}.raw.localhost:8081"), true),
            (format!("{ID}.apps.example.org"), false),
            (format!("{ID}.raw.apps.example.org"), true),
            // `raw` as the last label is a domain like any other.
            (format!("{ID}.raw"), false),
        ] {
            assert_eq!(asked("/", Some(&host), None), Ok((ID.to_owned(), raw)), "{host}");
        }
    }

    #[test]
    fn hosts_that_name_none_need_the_parameter() {
        for host in [
            "localhost:8081",
            "127.0.0.1:8081",
            "[::1]:8081",
            "",
            ":",
            "[",
            ID,
            "em77e-bvlzu-aa.localhost",
            "bnz7oiuaaaaaaaaqaaaacai.localhost",
            "user@localhost",
        ] {
            assert_eq!(asked("/", Some(host), None), Err(NoTarget::Unnamed), "{host}");
            let uri = format!("/index.html?a=b&canisterId={ID}&canisterId={OTHER}");
            assert_eq!(asked(&uri, Some(host), None), Ok((ID.to_owned(), false)), "{host}");
        }
        assert_eq!(asked("/", None, None), Err(NoTarget::Unnamed));
        let uri = format!("/?canisterId={ID}");
        assert_eq!(asked(&uri, Some("raw.localhost:8081"), None), Ok((ID.to_owned(), true)));
        assert_eq!(asked("/?canisterId=nobody", Some("localhost"), None), Err(NoTarget::NoId));
        assert_eq!(asked("/?canisterId=", Some("localhost"), None), Err(NoTarget::NoId));
        assert_eq!(asked("/?canisterid=x", Some("localhost"), None), Err(NoTarget::Unnamed));
    }

    #[test]
    fn the_host_stands_above_the_parameter_and_the_uri_above_the_header() {
        let host = format!("{ID}.localhost");
        let uri = format!("/?canisterId={OTHER}");
        assert_eq!(asked(&uri, Some(&host), None).unwrap().0, ID);
        let absolute = format!("http://{OTHER}.localhost/");
        assert_eq!(asked(&absolute, Some(&host), None).unwrap().0, OTHER);
    }

    #[test]
    fn what_a_page_loads_is_of_the_same_canister() {
        let page = format!("http://localhost:8081/index.html?canisterId={ID}#top");
        let bare = format!("http://localhost:8081?canisterId={ID}");
        for referer in [&page, &bare] {
            let script = asked("/script.js", Some("localhost:8081"), Some(referer));
            assert_eq!(script, Ok((ID.to_owned(), false)));
            let elsewhere = asked("/script.js", Some("127.0.0.1:8081"), Some(referer));
            assert_eq!(elsewhere, Err(NoTarget::Unnamed));
        }
        for referer in ["localhost", "://", "http://localhost:8081/#?canisterId=x", "a://[?"] {
            let none = asked("/", Some("localhost:8081"), Some(referer));
            assert_eq!(none, Err(NoTarget::Unnamed), "{referer}");
        }
    }

    // Promise: P11 - Pages on a shared host redirect to the canister's own host.
    #[test]
    fn pages_of_a_shared_host_are_opened_at_the_canisters_own() {
        let own = |host: &str, uri: &str, name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            headers.insert(name, value.parse().unwrap());
            let uri: Uri = uri.parse().unwrap();
            let target = target(&uri, &headers).unwrap();
            assert_eq!(target.shared, !host.starts_with(ID));
            target.own_address(&Method::GET, &uri, &headers)
        };
        let page = format!("/a/b?x=y&canisterId={ID}&z&canisterId=w");
        let opens = ("sec-fetch-mode", "navigate");
        for (host, address) in [
            ("localhost:8081", format!("//{ID}.localhost:8081/a/b?x=y&z")),
            ("127.0.0.1:8081", format!("//{ID}.localhost:8081/a/b?x=y&z")),
            ("[::1]:8081", format!("//{ID}.localhost:8081/a/b?x=y&z")),
            ("LOCALHOST", format!("//{ID}.localhost/a/b?x=y&z")),
            ("raw.localhost:1", format!("//{ID}.raw.localhost:1/a/b?x=y&z")),
        ] {
            assert_eq!(own(host, &page, opens.0, opens.1), Some(address), "{host}");
        }
        let bare = format!("/?canisterId={ID}");
        let address = Some(format!("//{ID}.localhost/"));
        assert_eq!(own("localhost", &bare, "accept", "text/html,*/*"), address);
        assert_eq!(own("localhost", &bare, "accept", "*/*"), None);
        assert_eq!(own("localhost", &bare, "sec-fetch-mode", "no-cors"), None);
        // Not of this machine, or the canister's own already.
        for host in ["example.org", "192.0.2.1:8081", &format!("{ID}.localhost:8081")] {
            assert_eq!(own(host, &page, opens.0, opens.1), None, "{host}");
        }
    }

    // Promise: P11 - Service workers are served on a canister's own host only.
    #[test]
    fn service_workers_are_of_a_canisters_own_host() {
        let mut headers = HeaderMap::new();
        headers.insert("service-worker", "script".parse().unwrap());
        for (host, shares) in [("localhost", true), (&format!("{ID}.localhost"), false)] {
            headers.insert(header::HOST, host.parse().unwrap());
            let uri = format!("/?canisterId={ID}").parse().unwrap();
            assert_eq!(target(&uri, &headers).unwrap().shares_worker(&headers), shares, "{host}");
        }
    }

    #[test]
    fn host_longer_than_a_dns_name_names_no_canister() {
        let host = format!("{ID}.{}", "a.".repeat(200));
        assert_eq!(asked("/", Some(&host), None), Err(NoTarget::Unnamed));
    }
}
