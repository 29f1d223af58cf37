//! Addresses to listen on, in Larder's form or in memcached's form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// One address of `--listen`. An address without a port uses the port of `--port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An IP address or a host name; `*` is every address of the machine.
    pub host: String,
    /// The port. With 0, the kernel chooses a port.
    pub port: Option<u16>,
}

impl ListenAddress {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let address = strip_memcached_prefix(text.trim())?;
        let bad = |why: &str| {
            format!("{text:?} is not an address: {why}; write for example 127.0.0.1 or [::1]:11211")
        };
        if address.is_empty() {
            return Err(bad("it is empty"));
        }
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(|| bad("`]` is missing"))?;
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(bad("only a port may follow `]`")),
                }
            }
            // A bare IPv6 address has no port.
            None if address.parse::<Ipv6Addr>().is_ok() => (address, None),
            None => match address.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return Err(bad("an IPv6 address with a port needs brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        if host.contains(|c: char| c.is_whitespace() || c == '/') {
            return Err(bad("it holds a space or a slash"));
        }
        let port = match port {
            None => None,
            Some(port) => {
                Some(port.parse().map_err(|_| bad("the port is not a number up to 65535"))?)
            }
        };
        let host = if host.is_empty() { "*" } else { host };
        Ok(ListenAddress { host: host.to_owned(), port })
    }

    /// Returns the socket addresses of the host. `*` stands for the unspecified addresses of both
    /// IPv4 and IPv6.
    pub(crate) fn resolve(&self, default_port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let port = self.port.unwrap_or(default_port);
        if self.host == "*" {
            return Ok(vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
                SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
            ]);
        }
        let mut found: Vec<SocketAddr> = Vec::new();
        for address in (self.host.as_str(), port).to_socket_addrs()? {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        Ok(found)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v6 = self.host.contains(':');
        match (self.port, v6) {
            (None, _) => f.write_str(&self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

/// Removes the prefixes of memcached's form `proto[ascii]:tag_name_:notls:host:port`. Drops only
/// prefixes that have no effect in Larder. Refuses prefixes that ask for TLS or for one protocol,
/// because ignoring them would weaken the protection that the user asked for.
fn strip_memcached_prefix(text: &str) -> Result<&str, String> {
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix("notls:") {
            rest = after;
        } else if let Some(after) = rest.strip_prefix("tag") {
            let end = match after.as_bytes().first() {
                Some(b'[') => after.find("]:").map(|at| at + 2),
                Some(b'_') => after.find("_:").map(|at| at + 2),
                _ => return Ok(rest),
            };
            rest = &after[end.ok_or_else(|| format!("{text:?}: the tag has no end"))?..];
        } else if ["tls:", "btls:", "mtls:"].iter().any(|prefix| rest.starts_with(prefix)) {
            return Err(format!(
                "{text:?}: there is no TLS on the data port: put a TLS proxy in front, or leave this out"
            ));
        } else if rest.starts_with("proto[") || rest.starts_with("proto_") {
            return Err(format!(
                "{text:?}: one address cannot have its own protocol: use --protocol for all"
            ));
        } else {
            return Ok(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_accepted_in_all_forms() {
        let cases = [
            ("127.0.0.1", Some(("127.0.0.1", None))),
            ("127.0.0.1:0", Some(("127.0.0.1", Some(0)))),
            ("localhost:11300", Some(("localhost", Some(11300)))),
            ("::1", Some(("::1", None))),
            ("[::1]", Some(("::1", None))),
            ("[::]:11211", Some(("::", Some(11211)))),
            (":11300", Some(("*", Some(11300)))),
            ("*", Some(("*", None))),
            ("notls:127.0.0.1:11300", Some(("127.0.0.1", Some(11300)))),
            ("tag_web_:127.0.0.1", Some(("127.0.0.1", None))),
            ("tag[web]:127.0.0.1:1", Some(("127.0.0.1", Some(1)))),
            ("tagus.example", Some(("tagus.example", None))),
            ("", None),
            ("::1:x", None),
            ("[::1", None),
            ("[::1]11211", None),
            ("host:70000", None),
            ("/run/larder.sock", None),
            ("tls:127.0.0.1", None),
            ("proto[ascii]:127.0.0.1", None),
        ];
        for (text, expected) in cases {
            let parsed = ListenAddress::parse(text).ok();
            let parsed = parsed.as_ref().map(|address| (address.host.as_str(), address.port));
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn shown_addresses_read_back() {
        for text in ["127.0.0.1", "[::1]:11300", "*:1", "::1"] {
            let address = ListenAddress::parse(text).unwrap();
            assert_eq!(ListenAddress::parse(&address.to_string()), Ok(address));
        }
    }
}
