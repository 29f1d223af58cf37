//! The list of settings. Everything that names a setting is generated from here.

use larder_engine::WhenFull;

use super::store::{DURABILITIES, durability_name, set_store, set_sync_interval};
use super::units::{Bare, parse_duration, parse_size, show_size};
use super::values::{
    BACKENDS, LOG_FORMATS, LOG_LEVELS, PROTOCOLS, WHEN_FULL, joined, name_of, one_of, parse_switch,
    path, positive, set_admin, set_listen, set_max_item_size, set_port, set_prefix_delimiter,
    set_socket_mode, set_udp, show_duration, show_path, show_port, show_switch, split,
};
use super::{Settings, extended};

/// How a setting is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With a value; the text is its name in the help.
    Value(&'static str),
    /// With a list of values, separated by commas or given repeatedly.
    List(&'static str),
    /// On by being there; `true` or `false` in the environment and in the file.
    Switch,
    /// Counted: `-vv` is 2.
    Count,
}

/// Where a setting stands in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Network,
    Memory,
    Store,
    Commands,
    Process,
    Log,
    /// memcached's, with no effect here; not in the help of `larder serve`.
    Tuning,
    /// Refused with a reason; not in any help.
    Refused,
}

impl Group {
    pub(super) fn heading(self) -> &'static str {
        match self {
            Group::Network => "Network",
            Group::Memory => "Memory",
            Group::Store => "Store",
            Group::Commands => "Commands",
            Group::Process => "Process",
            Group::Log => "Logging",
            Group::Tuning | Group::Refused => "Other",
        }
    }
}

/// One setting.
pub(super) struct Setting {
    /// The long flag, and the key in the file; `LARDER_KEY` in the environment.
    pub(super) key: &'static str,
    /// memcached's long flag, where it is another one.
    pub(super) alias: Option<&'static str>,
    pub(super) short: Option<char>,
    pub(super) kind: Kind,
    pub(super) group: Group,
    pub(super) help: &'static str,
    /// Takes over a value; the error says what to do.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// The present value, readable by `set`.
    pub(super) show: fn(&Settings) -> String,
}

impl Setting {
    /// Whether the setting says something about how the server runs.
    pub(super) fn is_shown(&self) -> bool {
        !matches!(self.group, Group::Tuning | Group::Refused)
    }

    /// Its name in the environment.
    pub(super) fn environment(&self) -> String {
        format!("LARDER_{}", self.key.to_ascii_uppercase().replace('-', "_"))
    }
}

type Set = fn(&mut Settings, &str) -> Result<(), String>;
type Show = fn(&Settings) -> String;

const fn setting(
    key: &'static str,
    short: Option<char>,
    kind: Kind,
    group: Group,
    help: &'static str,
    (set, show): (Set, Show),
) -> Setting {
    Setting { key, alias: None, short, kind, group, help, set, show }
}

impl Setting {
    /// memcached's name of the flag.
    const fn or(mut self, alias: &'static str) -> Setting {
        self.alias = Some(alias);
        self
    }
}

/// A setting that sets a boolean field.
macro_rules! switch {
    ($field:ident) => {
        switch!($field, true)
    };
    ($field:ident, $on:literal) => {
        (
            |s, text| {
                s.$field = parse_switch(text)? == $on;
                Ok(())
            },
            |s| show_switch(s.$field == $on),
        )
    };
}

/// A tuning flag of memcached's: accepted, checked to be a number, noted.
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

/// A flag that must not be ignored and cannot be done.
macro_rules! refused {
    ($why:literal) => {
        (|_, text| if text == "false" { Ok(()) } else { Err($why.to_owned()) }, |_| String::new())
    };
}

use Group::{Commands, Log, Memory, Network, Process, Refused, Store, Tuning};
use Kind::{Count, List, Switch, Value};

/// All settings, in the order of the help.
pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "listen",
        Some('l'),
        List("ADDR"),
        Network,
        "Address or address:port to listen on; repeatable, * is every address",
        (set_listen, |s| joined(s.listen_addresses())),
    ),
    setting(
        "port",
        Some('p'),
        Value("PORT"),
        Network,
        "TCP port; 0 is no TCP, -1 lets the kernel choose",
        (set_port, show_port),
    ),
    setting(
        "socket",
        Some('s'),
        Value("PATH"),
        Network,
        "Unix socket; without --listen and --port there is no TCP then",
        (
            |s, text| {
                s.socket = path(text)?;
                Ok(())
            },
            |s| show_path(s.socket.as_ref()),
        ),
    )
    .or("unix-socket"),
    setting(
        "socket-mode",
        Some('a'),
        Value("MODE"),
        Network,
        "Permissions of the Unix socket, in octal",
        (set_socket_mode, |s| format!("{:o}", s.socket_mode)),
    )
    .or("unix-mask"),
    setting(
        "max-connections",
        Some('c'),
        Value("N"),
        Network,
        "Connections at a time",
        (
            |s, text| {
                s.max_connections = positive(text)?;
                Ok(())
            },
            |s| s.max_connections.to_string(),
        ),
    )
    .or("conn-limit"),
    setting(
        "idle-timeout",
        None,
        Value("DURATION"),
        Network,
        "Close connections that are silent for this long; 0 is never",
        (
            |s, text| {
                let timeout = parse_duration(text)?;
                s.idle_timeout = (!timeout.is_zero()).then_some(timeout);
                Ok(())
            },
            |s| show_duration(s.idle_timeout.unwrap_or_default()),
        ),
    ),
    setting(
        "protocol",
        Some('B'),
        Value("auto|ascii|binary"),
        Network,
        "Protocol that connections may speak",
        (
            |s, text| {
                s.protocol = one_of(text, PROTOCOLS)?;
                Ok(())
            },
            |s| name_of(s.protocol, PROTOCOLS),
        ),
    ),
    setting(
        "io",
        None,
        Value("auto|uring|epoll"),
        Network,
        "Kernel interface of the event loops; auto takes io_uring where the kernel allows it",
        (
            |s, text| {
                s.io = one_of(text, BACKENDS)?;
                Ok(())
            },
            |s| name_of(s.io, BACKENDS),
        ),
    ),
    setting(
        "admin",
        None,
        Value("ADDR|off"),
        Network,
        "Address of the admin page, health checks and metrics",
        (set_admin, |s| s.admin.map_or("off".to_owned(), |address| address.to_string())),
    ),
    setting(
        "admin-host",
        None,
        List("NAME"),
        Network,
        "Host name under which the admin page may be asked for; addresses and localhost always may",
        (
            |s, text| {
                s.admin_hosts = split(text).map(str::to_ascii_lowercase).collect();
                Ok(())
            },
            |s| s.admin_hosts.join(","),
        ),
    ),
    setting(
        "memory",
        Some('m'),
        Value("SIZE"),
        Memory,
        "RAM for data and index together: 64 (MiB), 512MB, 2GB",
        (
            |s, text| {
                s.memory = parse_size(text, Bare::Mebibytes)?;
                Ok(())
            },
            |s| show_size(s.memory),
        ),
    )
    .or("memory-limit"),
    setting(
        "max-item-size",
        Some('I'),
        Value("SIZE"),
        Memory,
        "Largest item: 1m, 512k, 1GB at most",
        (set_max_item_size, |s| show_size(s.max_item_size)),
    ),
    setting(
        "when-full",
        None,
        Value("evict|refuse"),
        Memory,
        "When there is no room: the least valuable items make some, or writes are refused",
        (
            |s, text| {
                s.when_full = one_of(text, WHEN_FULL)?;
                Ok(())
            },
            |s| name_of(s.when_full, WHEN_FULL),
        ),
    ),
    setting(
        "disable-evictions",
        Some('M'),
        Switch,
        Memory,
        "Same as --when-full refuse",
        (
            |s, text| {
                if parse_switch(text)? {
                    s.when_full = WhenFull::Refuse;
                }
                Ok(())
            },
            |s| show_switch(s.when_full == WhenFull::Refuse),
        ),
    ),
    setting(
        "lock-memory",
        Some('k'),
        Switch,
        Memory,
        "Keep all memory out of swap",
        switch!(lock_memory),
    ),
    setting(
        "store",
        None,
        List("PATH[:SIZE]"),
        Store,
        "Keep items in this directory, file or block device, too: /var/lib/larder, /dev/sdb:100GB",
        (set_store, |s| s.store.as_ref().map(ToString::to_string).unwrap_or_default()),
    ),
    setting(
        "durability",
        None,
        Value("none|async|sync"),
        Store,
        "What an acknowledged write survives: nothing (none), a crash, but for the writes of the last \
         --sync-interval (async), or a crash (sync)",
        (
            |s, text| {
                s.durability = Some(one_of(text, DURABILITIES)?);
                Ok(())
            },
            |s| durability_name(s.durability()),
        ),
    ),
    setting(
        "sync-interval",
        None,
        Value("DURATION"),
        Store,
        "With --durability async: how long an acknowledged write may not be durable yet",
        (set_sync_interval, |s| show_duration(s.sync_interval)),
    ),
    setting(
        "accept-damage",
        None,
        Switch,
        Store,
        "Start although the store is damaged, without what is lost; with --when-full refuse a \
         damaged store is an error otherwise",
        switch!(accept_damage),
    ),
    setting(
        "disable-flush-all",
        Some('F'),
        Switch,
        Commands,
        "Refuse flush_all",
        switch!(flush_all, false),
    ),
    setting(
        "disable-dumping",
        Some('X'),
        Switch,
        Commands,
        "Refuse commands that list keys",
        switch!(dumping, false),
    ),
    setting("disable-watch", Some('W'), Switch, Commands, "Refuse watch", switch!(watch, false)),
    setting(
        "enable-shutdown",
        Some('A'),
        Switch,
        Commands,
        "Allow the shutdown command",
        switch!(shutdown_command),
    ),
    setting(
        "prefix-delimiter",
        Some('D'),
        Value("CHAR"),
        Commands,
        "Turn stats detail on; a prefix ends at this character",
        (set_prefix_delimiter, |s| s.prefix_delimiter.to_string()),
    ),
    setting(
        "threads",
        Some('t'),
        Value("N"),
        Process,
        "Worker threads; the number of cores unless given",
        (
            |s, text| {
                s.threads = positive(text)?;
                if s.threads > 1024 {
                    return Err("more than 1024 threads help nobody: use one per core".to_owned());
                }
                Ok(())
            },
            |s| s.threads.to_string(),
        ),
    ),
    setting("daemon", Some('d'), Switch, Process, "Run in the background", switch!(daemon)),
    setting(
        "user",
        Some('u'),
        Value("USER"),
        Process,
        "User to become when started as root",
        (
            |s, text| {
                s.user = (!text.is_empty()).then(|| text.to_owned());
                Ok(())
            },
            |s| s.user.clone().unwrap_or_default(),
        ),
    ),
    setting(
        "pidfile",
        Some('P'),
        Value("FILE"),
        Process,
        "File for the process number",
        (
            |s, text| {
                s.pidfile = path(text)?;
                Ok(())
            },
            |s| show_path(s.pidfile.as_ref()),
        ),
    ),
    setting(
        "enable-coredumps",
        Some('r'),
        Switch,
        Process,
        "Raise the limit of core files",
        switch!(core_dumps),
    ),
    setting(
        "drain-timeout",
        None,
        Value("DURATION"),
        Process,
        "How long a stop waits for commands in flight",
        (
            |s, text| {
                s.drain_timeout = parse_duration(text)?;
                Ok(())
            },
            |s| show_duration(s.drain_timeout),
        ),
    ),
    setting(
        "verbose",
        Some('v'),
        Count,
        Log,
        "Log more: -v is level debug, -vv is trace",
        (
            |s, text| {
                s.verbosity =
                    text.parse().map_err(|_| format!("{text:?} is not a number from 0"))?;
                Ok(())
            },
            |s| s.verbosity.to_string(),
        ),
    ),
    setting(
        "log-level",
        None,
        Value("LEVEL"),
        Log,
        "error, warn, info, debug or trace",
        (
            |s, text| {
                s.log_level = one_of(text, LOG_LEVELS)?;
                Ok(())
            },
            |s| s.log_level.name().to_owned(),
        ),
    ),
    setting(
        "log-format",
        None,
        Value("logfmt|json"),
        Log,
        "Form of log lines",
        (
            |s, text| {
                s.log_format = one_of(text, LOG_FORMATS)?;
                Ok(())
            },
            |s| name_of(s.log_format, LOG_FORMATS),
        ),
    ),
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
        "Ignored: the backlog is as long as the kernel allows",
        tuning!("-b has no meaning here, the backlog is as long as the kernel allows: ignored"),
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
        tuning!("-C has no meaning here, cas ids cost nothing: ignored"),
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
        refused!("there is no TLS on the data port: put a TLS proxy in front or remove it"),
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
