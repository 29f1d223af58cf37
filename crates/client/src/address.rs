//! Addresses of servers, as people write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Error;

/// The port that memcached and Larder use when none is given.
pub const DEFAULT_PORT: u16 = 11211;

/// A TCP endpoint or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`; the host may be a name and is resolved at each connect.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    /// Accepts `host:port`, `host`, `:port` (on 127.0.0.1), `[v6]:port`, `[v6]` and `unix:PATH`.
    /// The default port is [`DEFAULT_PORT`]. A string that begins with `/` or `.` is the path of a
    /// Unix socket.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(bad(text, "the path after unix: is empty")),
                path => Ok(Address::Unix(path.into())),
            };
        }
        if text.starts_with(['/', '.']) {
            return Ok(Address::Unix(text.into()));
        }
        let (host, port) = split_port(text)?;
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        Ok(Address::Tcp(format!("{host}:{port}")))
    }
}

fn split_port(text: &str) -> Result<(&str, u16), Error> {
    if text.is_empty() {
        return Err(bad(text, "it is empty"));
    }
    // A colon inside the brackets of an IPv6 address does not begin a port.
    let after_host = text.rfind(']').map_or(0, |bracket| bracket + 1);
    if after_host == 0 && text.matches(':').count() > 1 {
        return Err(bad(text, "write an IPv6 address in brackets"));
    }
    match text[after_host..].rfind(':') {
        None => Ok((text, DEFAULT_PORT)),
        Some(colon) => {
            let (host, port) = text.split_at(after_host + colon);
            let port = port[1..].parse().map_err(|_| bad(text, "the port is not a number"))?;
            Ok((host, port))
        }
    }
}

fn bad(text: &str, why: &str) -> Error {
    Error::Usage(format!("{text:?} is not an address: {why}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(endpoint) => f.write_str(endpoint),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> String {
        match text.parse().unwrap() {
            Address::Tcp(endpoint) => endpoint,
            Address::Unix(path) => panic!("{text} became the socket {path:?}"),
        }
    }

    #[test]
    fn tcp_forms() {
        assert_eq!(tcp("cache:11311"), "cache:11311");
        assert_eq!(tcp("cache"), "cache:11211");
        assert_eq!(tcp(":11311"), "127.0.0.1:11311");
        assert_eq!(tcp("[::1]:11311"), "[::1]:11311");
        assert_eq!(tcp("[::1]"), "[::1]:11211");
    }

    #[test]
    fn unix_forms() {
        for text in ["unix:/run/larder.sock", "/run/larder.sock"] {
            assert_eq!(text.parse::<Address>().unwrap(), Address::Unix("/run/larder.sock".into()));
        }
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in ["", "unix:", "host:port", "host:70000", "::1"] {
            assert!(matches!(text.parse::<Address>(), Err(Error::Usage(_))), "{text:?}");
        }
    }
}
