//! Which canister a request is for.
//!
//! The host says so: its first label is the id, as in `<id>.localhost`, and `raw` as the second,
//! as in `<id>.raw.localhost`, asks for the response as it is, unverified. Where the host names no
//! canister, the parameter `canisterId` of the query does, and for what such a page loads by
//! relative addresses the same parameter of the page that asked (`Referer`), if it is of this host.

use hyper::{HeaderMap, Uri, header};
use ic_principal::Principal;

/// The parameter of the query.
const PARAMETER: &str = "canisterId";
/// The longest name that the domain name system has.
const HOST_BYTES_MAX: usize = 253;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The canister that is asked.
    pub(crate) canister: Principal,
    /// Whether its response is passed on as it is.
    pub(crate) raw: bool,
}

/// Why it is for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    /// Nothing names a canister.
    Unnamed,
    /// What should be an id is none.
    NoId,
}

/// Finds the canister of a request.
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
    Ok(Target { canister, raw })
}

/// The host that was asked, without its port, in lower case.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(header::HOST)?.to_str().ok()?,
    };
    without_port(authority)
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
    // An id alone, or `raw` as the domain, is no host of a gateway.
    let raw = next == "raw" && labels.next().is_some();
    Some(Target { canister, raw })
}

/// An id in the one form that a host can have.
fn id(label: &str) -> Option<Principal> {
    let id = Principal::from_text(label).ok()?;
    (id.to_text() == label).then_some(id)
}

fn of_query(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| match pair.split_once('=') {
        Some((PARAMETER, value)) => Some(value),
        _ => None,
    })
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

    #[test]
    fn long_hosts_are_none() {
        let host = format!("{ID}.{}", "a.".repeat(200));
        assert_eq!(asked("/", Some(&host), None), Err(NoTarget::Unnamed));
    }
}
