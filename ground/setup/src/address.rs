//! Addresses that an operator states: numbers, or the name of a host.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// Reads `ADDRESS:PORT` or `HOST:PORT`. A name is resolved now; of several addresses the first in
/// a fixed order is taken: IPv4 before IPv6, then by number.
///
/// # Errors
/// The text and the reason, for a person.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(':'));
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parts else {
        return Err(format!(
            "`{text}` is not an address with a port: expected 127.0.0.1:8080, [::1]:8080 or \
             localhost:8080"
        ));
    };
    Ok(SocketAddr::new(resolve(host)?, port))
}

/// Reads an address or the name of a host, resolved as by [`socket_address`].
///
/// # Errors
/// The text and the reason, for a person.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    text.parse().or_else(|_| resolve(text))
}

fn resolve(host: &str) -> Result<IpAddr, String> {
    let found = (host, 0).to_socket_addrs();
    let found = found.map_err(|error| format!("cannot resolve the host name `{host}`: {error}"))?;
    first(found.map(|address| address.ip()))
        .ok_or_else(|| format!("the host name `{host}` has no address"))
}

fn first(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    addresses.min_by_key(|ip| (ip.is_ipv6(), *ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P16 - A listen address may be a host name.
    #[test]
    fn address_is_read_as_it_is_and_host_name_is_resolved() {
        for text in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:4000"] {
            assert_eq!(socket_address(text).unwrap().to_string(), text);
        }
        let local = socket_address("localhost:8080").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 8080, "{local}");
        assert!(ip_address("localhost").unwrap().is_loopback());
        assert_eq!(ip_address("::1").unwrap().to_string(), "::1");
    }

    #[test]
    fn ipv4_address_comes_before_ipv6_and_the_smallest_is_taken() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let found = [ip("::1"), ip("192.0.2.7"), ip("192.0.2.1")];
        assert_eq!(first(found.into_iter()), Some(ip("192.0.2.1")));
        assert_eq!(first(found.into_iter().take(1)), Some(ip("::1")));
    }

    // Promise: P16 - A host name that does not resolve is refused by name.
    #[test]
    fn text_without_address_is_refused_with_the_reason() {
        for text in ["8080", "localhost", ":8080", "localhost:80800", "::1:8080", ""] {
            let error = socket_address(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        let error = socket_address("no-such-host.invalid:80").unwrap_err();
        assert!(error.contains("cannot resolve the host name `no-such-host.invalid`"), "{error}");
    }
}
