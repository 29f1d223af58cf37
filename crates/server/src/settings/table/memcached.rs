//! The flags of memcached that the other tables of settings lack. Some flags tune mechanisms, and
//! Larder lacks most of these mechanisms. The other flags are refused, because Larder can neither
//! support nor ignore them.

use super::super::extended;
use super::super::setting::Group::{Refused, Tuning};
use super::super::setting::Kind::{List, Switch, Value};
use super::super::setting::{Setting, field, setting};
use super::super::values::{parse_backlog, set_udp};

/// Declares a flag that has no effect in Larder. The flag is accepted, with a note that says why it
/// has no effect.
macro_rules! ignored {
    ($key:literal, $short:literal, $kind:expr, $why:literal) => {
        setting(
            $key,
            Some($short),
            $kind,
            Tuning,
            concat!("Ignored: ", $why),
            (
                |s, text| {
                    if text != "false" {
                        let note =
                            concat!("-", $short, " has no meaning here, ", $why, ": ignored");
                        s.notes.push(note.to_owned());
                    }
                    Ok(())
                },
                |_| String::new(),
            ),
        )
    };
}

/// Declares a flag that is refused with a reason.
macro_rules! refused {
    ($key:literal, $short:literal, $kind:expr, $why:expr) => {
        setting(
            $key,
            Some($short),
            $kind,
            Refused,
            "",
            (
                |_, text| if text == "false" { Ok(()) } else { Err($why.to_owned()) },
                |_| String::new(),
            ),
        )
    };
}

const NO_LOGIN: &str = "there is no authentication: listen on a trusted network or a Unix socket";
const NO_TLS: &str =
    "there is no TLS on the data port: put a TLS proxy in front, or leave this out";
const NO_MEMORY_FILE: &str =
    "memory is not kept in a file: give --store PATH, which keeps items through restarts";

pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "extended",
        Some('o'),
        List("NAME[=VALUE]"),
        Tuning,
        "memcached's extended options: idle_timeout=SECONDS and the one for a store take effect, \
         options for tuning are ignored with a note in the log",
        (extended::apply, |s| s.extended.clone()),
    ),
    setting(
        "udp-port",
        Some('U'),
        Value("PORT"),
        Tuning,
        "There is no UDP: give 0 or leave this out",
        (set_udp, |_| "0".to_owned()),
    ),
    ignored!(
        "max-reqs-per-event",
        'R',
        Value("N"),
        "workers switch between connections by bytes, not by requests"
    ),
    setting(
        "listen-backlog",
        Some('b'),
        Value("N"),
        Tuning,
        "Clients that may wait to be accepted (default 4096); the kernel may have a lower limit",
        field!(listen_backlog, parse_backlog, |s| s.listen_backlog.to_string()),
    ),
    ignored!("slab-growth-factor", 'f', Value("FACTOR"), "there are no slabs"),
    ignored!("slab-min-size", 'n', Value("BYTES"), "there are no slabs"),
    ignored!("enable-largepages", 'L', Switch, "large pages follow the kernel's settings"),
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
    ignored!("napi-ids", 'N', Value("N"), "connections go to the least loaded worker")
        .or("napi_ids"),
    refused!("enable-sasl", 'S', Switch, NO_LOGIN),
    refused!("auth-file", 'Y', Value("FILE"), NO_LOGIN),
    refused!("enable-ssl", 'Z', Switch, NO_TLS),
    refused!("memory-file", 'e', Value("FILE"), NO_MEMORY_FILE),
];
