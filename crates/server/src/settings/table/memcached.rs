//! memcached's other flags: flags that tune mechanisms Larder does not have, and flags that it
//! refuses because it can neither support nor ignore them.

use super::super::extended;
use super::super::setting::Group::{Refused, Tuning};
use super::super::setting::Kind::{List, Switch, Value};
use super::super::setting::{Setting, setting};
use super::super::values::{self, set_udp};

/// `set` and `show` of a tuning flag, which is accepted with a note.
macro_rules! tuning {
    ($why:literal) => {
        (
            |s, text| {
                if text != "false" {
                    s.notes.push($why.to_owned());
                }
                Ok(())
            },
            |_| String::new(),
        )
    };
}

/// `set` and `show` of a flag that is refused.
macro_rules! refused {
    ($why:literal) => {
        (|_, text| if text == "false" { Ok(()) } else { Err($why.to_owned()) }, |_| String::new())
    };
}

pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "extended",
        Some('o'),
        List("NAME[=VALUE]"),
        Tuning,
        "memcached's extended options: idle_timeout=SECONDS, a store; other tuning is ignored with a note",
        (extended::apply, |s| s.extended.clone()),
    ),
    setting(
        "udp-port",
        Some('U'),
        Value("PORT"),
        Tuning,
        "0: there is no UDP",
        (set_udp, |_| "0".to_owned()),
    ),
    setting(
        "max-reqs-per-event",
        Some('R'),
        Value("N"),
        Tuning,
        "Ignored: connections take turns by bytes",
        tuning!("-R has no meaning here, connections take turns by bytes: ignored"),
    ),
    setting(
        "listen-backlog",
        Some('b'),
        Value("N"),
        Tuning,
        "Clients that may wait to be accepted; the kernel may have a lower limit",
        (
            |s, text| {
                s.listen_backlog = i32::try_from(values::positive(text)?).unwrap_or(i32::MAX);
                Ok(())
            },
            |s| s.listen_backlog.to_string(),
        ),
    ),
    setting(
        "slab-growth-factor",
        Some('f'),
        Value("FACTOR"),
        Tuning,
        "Ignored: there are no slabs",
        tuning!("-f has no meaning here, there are no slabs: ignored"),
    ),
    setting(
        "slab-min-size",
        Some('n'),
        Value("BYTES"),
        Tuning,
        "Ignored: there are no slabs",
        tuning!("-n has no meaning here, there are no slabs: ignored"),
    ),
    setting(
        "enable-largepages",
        Some('L'),
        Switch,
        Tuning,
        "Ignored: large pages follow the kernel's settings",
        tuning!("-L has no meaning here, large pages follow the kernel's settings: ignored"),
    ),
    setting(
        "disable-cas",
        Some('C'),
        Switch,
        Tuning,
        "Ignored: cas ids cost nothing",
        (
            |s, text| {
                s.disable_cas = text != "false";
                if s.disable_cas {
                    s.notes
                        .push("-C has no meaning here, cas ids cost nothing: ignored".to_owned());
                }
                Ok(())
            },
            |s| if s.disable_cas { "true".to_owned() } else { String::new() },
        ),
    ),
    setting(
        "napi-ids",
        Some('N'),
        Value("N"),
        Tuning,
        "Ignored: connections go to the least loaded worker",
        tuning!("-N has no meaning here, connections go to the least loaded worker: ignored"),
    )
    .or("napi_ids"),
    setting(
        "enable-sasl",
        Some('S'),
        Switch,
        Refused,
        "",
        refused!("there is no authentication: listen on a trusted network or a Unix socket"),
    ),
    setting(
        "auth-file",
        Some('Y'),
        Value("FILE"),
        Refused,
        "",
        refused!("there is no authentication: listen on a trusted network or a Unix socket"),
    ),
    setting(
        "enable-ssl",
        Some('Z'),
        Switch,
        Refused,
        "",
        refused!("there is no TLS on the data port: put a TLS proxy in front, or leave this out"),
    ),
    setting(
        "memory-file",
        Some('e'),
        Value("FILE"),
        Refused,
        "",
        refused!(
            "memory is not kept in a file: give --store PATH, which keeps items through restarts"
        ),
    ),
];
