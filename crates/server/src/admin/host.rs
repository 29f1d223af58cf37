//! Checks the host that a request names in its header `Host`. In an attack by DNS rebinding, the
//! host name of a foreign page resolves to this server, and requests of that page have that name as
//! `Host`. So the check accepts only hosts that cannot be the name of a foreign page.

use std::net::IpAddr;

const LOCALHOST: &str = "localhost";

/// Returns true if `host`, which may have a port, cannot be the name of a foreign page.
pub(crate) fn is_known(host: &str, names: &[String]) -> bool {
    name_of(host).is_some_and(|name| is_ours(name, names))
}

/// Returns true if `host`, which may have a port, is localhost or a loopback address.
pub(super) fn is_this_machine(host: &str) -> bool {
    let is_loopback = |name: &str| {
        let address = name.parse::<IpAddr>();
        address.is_ok_and(|address| address.to_canonical().is_loopback())
    };
    name_of(host).is_some_and(|name| name.eq_ignore_ascii_case(LOCALHOST) || is_loopback(name))
}

/// Returns the host without its port and brackets; `None` if `host` is malformed.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// Returns true for an IP address, which DNS rebinding cannot affect, for localhost, and for a name
/// that the operator allows.
fn is_ours(name: &str, names: &[String]) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case(LOCALHOST)
        || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_and_localhost_are_this_machine() {
        for host in ["127.0.0.1", "127.9.9.9:1", "[::1]:11212", "LocalHost:1", "[::ffff:127.0.0.1]"]
        {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["10.0.0.5:1", "0.0.0.0", "[::]:1", "cache.example", "", "[::1].evil.example"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_port_is_a_number_and_an_address_in_brackets_ends_with_them() {
        let of = |host| name_of(host);
        assert_eq!(of("[::1]:11212"), Some("::1"));
        assert_eq!(of("[::1]"), Some("::1"));
        assert_eq!(of("cache.example:80"), Some("cache.example"));
        assert_eq!(of(""), Some(""));
        for host in
            ["[::1].evil.example", "[::1]:1.evil", "[::1", "a:b", "a:1:2", "::1", "[::1] :1"]
        {
            assert_eq!(of(host), None, "{host}");
        }
    }
}
