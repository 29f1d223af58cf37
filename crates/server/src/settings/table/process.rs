//! Settings of commands, process and log.

use super::super::setting::Group::{Commands, Log, Process};
use super::super::setting::Kind::{Count, Switch, Value};
use super::super::setting::{Setting, choice, field, setting, switch};
use super::super::units::parse_duration;
use super::super::values::{
    LOG_FORMATS, LOG_LEVELS, name_of, one_of, optional, optional_duration, parse_switch,
    parse_threads, parse_verbosity, path, set_prefix_delimiter, show_duration, show_path,
    show_switch,
};

pub(super) static SETTINGS: &[Setting] = &[
    switch!(
        "disable-flush-all",
        Some('F'),
        Commands,
        "Refuse the command flush_all",
        switches.flush,
        false
    ),
    switch!(
        "disable-dumping",
        Some('X'),
        Commands,
        "Refuse commands that list keys",
        switches.dump,
        false
    ),
    switch!(
        "disable-control",
        None,
        Commands,
        "Refuse commands that change memory and devices: cache_memlimit, store grow, store drain, \
         store keep",
        switches.control,
        false
    ),
    switch!(
        "disable-watch",
        Some('W'),
        Commands,
        "Accepted for memcached's sake; the command watch is always refused",
        watch,
        false
    ),
    switch!(
        "enable-shutdown",
        Some('A'),
        Commands,
        "Allow the command shutdown",
        switches.shutdown
    ),
    setting(
        "prefix-delimiter",
        Some('D'),
        Value("CHAR"),
        Commands,
        "Character that ends a key's prefix in stats detail; giving it turns stats detail on",
        (set_prefix_delimiter, |s| s.prefix_delimiter.to_string()),
    ),
    setting(
        "threads",
        Some('t'),
        Value("N"),
        Process,
        "Number of worker threads; the default is one per core",
        field!(threads, parse_threads, |s| s.threads.to_string()),
    )
    .brief("Worker threads"),
    switch!("daemon", Some('d'), Process, "Run in the background", daemon)
        .brief("Run in the background"),
    setting(
        "user",
        Some('u'),
        Value("USER"),
        Process,
        "User to switch to when started as root",
        field!(user, optional, |s| s.user.clone().unwrap_or_default()),
    )
    .brief("User to switch to when started as root"),
    setting(
        "pidfile",
        Some('P'),
        Value("FILE"),
        Process,
        "File to write the process id to",
        field!(pidfile, path, |s| show_path(s.pidfile.as_ref())),
    )
    .brief("File to write the process id to"),
    switch!(
        "enable-coredumps",
        Some('r'),
        Process,
        "Raise the size limit of core files as far as the kernel allows",
        core_dumps
    ),
    switch!(
        "disable-latency",
        None,
        Process,
        "Do not measure how long commands take",
        latency,
        false
    ),
    switch!(
        "disable-key-sampling",
        None,
        Process,
        "Do not sample which keys clients use; the admin page's view Keys is then empty",
        key_sampling,
        false
    ),
    setting(
        "slow-command",
        None,
        Value("DURATION"),
        Process,
        "Record commands that take at least this long (stats slow); 0 records none",
        field!(slow_command, optional_duration, |s| {
            show_duration(s.slow_command.unwrap_or_default())
        }),
    ),
    setting(
        "drain-timeout",
        None,
        Value("DURATION"),
        Process,
        "Longest time that a stop waits for commands in flight",
        field!(drain_timeout, parse_duration, |s| show_duration(s.drain_timeout)),
    ),
    setting(
        "verbose",
        Some('v'),
        Count,
        Log,
        "Log more: -v is level debug, -vv is trace",
        field!(verbosity, parse_verbosity, |s| s.verbosity.to_string()),
    )
    .brief("Log more; -vv logs everything"),
    setting(
        "log-level",
        None,
        Value("LEVEL"),
        Log,
        "Least severe level to log: error, warn, info, debug or trace",
        choice!(log_level, LOG_LEVELS),
    )
    .brief("Least severe level to log"),
    setting(
        "log-file",
        None,
        Value("FILE"),
        Log,
        "File to append the log to, instead of stderr; SIGHUP reopens it, for log rotation",
        field!(log_file, path, |s| show_path(s.log_file.as_ref())),
    )
    .brief("File to append the log to, instead of stderr"),
    setting(
        "log-format",
        None,
        Value("logfmt|json"),
        Log,
        "Format of log lines",
        choice!(log_format, LOG_FORMATS),
    ),
];
