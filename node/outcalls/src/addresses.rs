//! Which addresses canisters may reach: those of the public network, and those that the operator
//! allows.
//!
//! A node is in a network with services that trust their neighbours (its own among them), and
//! the author of a canister chooses the URL. So an address is checked after its name was resolved,
//! and the connection goes to exactly that address: a name that resolves differently a moment later
//! gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

pub(crate) fn is_allowed(address: IpAddr, networks: &[IpNet]) -> bool {
    let inner = embedded(address);
    let listed = |address: &IpAddr| networks.iter().any(|network| network.contains(address));
    if listed(&address) || inner.as_ref().is_some_and(listed) {
        return true;
    }
    match (address, inner) {
        // The inner address is the one that is reached.
        (_, Some(inner)) => is_public(inner),
        (address, None) => is_public(address),
    }
}

/// The IPv4 address that an IPv6 address represents, or leads to through a translator or a tunnel.
fn embedded(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let segments = address.segments();
    let low = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // ::ffff:0:0/96 and ::ffff:0:0:0/96 (mapped), ::/96 (compatible), but not :: and ::1.
        [0, 0, 0, 0, 0, 0xffff, high, last]
        | [0, 0, 0, 0, 0xffff, 0, high, last]
        | [0, 0, 0, 0, 0, 0, high, last]
            if segments[..7] != [0; 7] =>
        {
            Some(low(high, last))
        }
        // 64:ff9b::/96, translated; 64:ff9b:1::/48 is for local use and not public.
        [0x64, 0xff9b, 0, 0, 0, 0, high, last] => Some(low(high, last)),
        // 2002::/16, 6to4.
        [0x2002, high, last, ..] => Some(low(high, last)),
        _ => None,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// IANA's registry of special-purpose addresses, and what follows 224.0.0.0.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(matches!(a, 0 | 10 | 127 | 224..=255)
        || (a == 100 && (64..128).contains(&b))
        || (a == 169 && b == 254)
        || (a == 172 && (16..32).contains(&b))
        || (a == 192 && b == 168)
        || (a == 198 && matches!(b, 18 | 19))
        || matches!(
            (a, b, c),
            (192, 0, 0 | 2)
                | (192, 31, 196)
                | (192, 52, 193)
                | (192, 88, 99)
                | (192, 175, 48)
                | (198, 51, 100)
                | (203, 0, 113)
        ))
}

/// Only global unicast is public, except the ranges that IANA excluded.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_global = a & 0xe000 == 0x2000;
    let is_taken_out = match a {
        // Protocols, Teredo, benchmarking, ORCHID; documentation.
        0x2001 => b < 0x200 || b == 0xdb8,
        // Documentation.
        0x3fff => b < 0x1000,
        // AS112.
        0x2620 => b == 0x4f,
        _ => false,
    };
    is_global && !is_taken_out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    // Promise: P12 - A non-public address is refused in every form.
    #[test]
    fn what_is_not_public_is_refused_in_every_form() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2001:10::1",
            "3fff::1",
            "64:ff9b:1::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:c0a8:101::1",
            "4000::1",
            "::2",
        ] {
            assert!(!is_allowed(text.parse().unwrap(), &[]), "{text}");
        }
    }

    #[test]
    fn what_is_public_is_allowed_in_every_form() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(is_allowed(text.parse().unwrap(), &[]), "{text}");
        }
    }

    #[test]
    fn an_operator_allows_networks_and_no_more() {
        let networks = ["127.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        for text in ["127.0.0.1", "fd12::1", "::ffff:127.0.0.1"] {
            assert!(is_allowed(text.parse().unwrap(), &networks), "{text}");
        }
        for text in ["::1", "10.0.0.1", "fc00::1", "::ffff:10.0.0.1"] {
            assert!(!is_allowed(text.parse().unwrap(), &networks), "{text}");
        }
    }
}
