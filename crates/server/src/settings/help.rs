//! Help texts, generated from the table of settings.

use super::setting::{Group, Kind, Setting};
use super::table;
use super::types::Settings;

/// The version of memcached whose replies Larder reproduces. `memcached -V` and the `version`
/// command return it. Clients and test harnesses compare it with the versions that have a feature.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// The text below the flags in `larder serve --help`.
pub(super) const AFTER_HELP: &str = "\
Sizes:      512k, 64MB, 1.5GB; units are powers of 1024. A number without a unit is in MiB,
            for --max-item-size in bytes
Durations:  30 (seconds), 500ms, 5m, 1h
Sources:    a flag overrides a LARDER_* variable, which overrides the file of --config

Examples:
  larder serve --memory 2GB --listen 0.0.0.0 --threads 4
  LARDER_MEMORY=2GB LARDER_ADMIN=off larder serve

Signals:
  SIGTERM, SIGINT, SIGUSR1   stop: accept no new connections, finish the commands in flight
  a second one of these      stop at once
  SIGHUP                     read the file of --config again; settings that a running server can
                             change take effect at once, the log names those that need a restart

Exit codes:
  0  stopped on request
  1  failed while running
  2  wrong command line, environment or file
  3  could not start, for example: an address is in use, or memory or a permission is missing";

/// Returns the default of a setting if the help should show it.
fn default_of(setting: &Setting) -> Option<String> {
    if !setting.is_shown() || setting.kind == Kind::Switch {
        return None;
    }
    let default = match setting.key {
        // The real default depends on the machine, so it must not appear in the text.
        "threads" => "the number of cores".to_owned(),
        "durability" => "async with a store".to_owned(),
        _ => (setting.show)(&Settings::default()),
    };
    (!default.is_empty()).then_some(default)
}

/// Returns the output of `larder serve -h`: the flags that are needed most, on one screen of 24
/// lines and 80 columns.
pub fn short_help() -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    for setting in table::all().filter(|setting| !setting.brief.is_empty()) {
        let short = setting.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
        let value = match setting.kind {
            Kind::Value(name) | Kind::List(name) => format!(" {name}"),
            Kind::Switch | Kind::Count => String::new(),
        };
        let default = default_of(setting).filter(|_| setting.kind != Kind::Count);
        let default = default.map_or(String::new(), |default| format!(" [{default}]"));
        rows.push((
            format!("{short}--{}{value}", setting.key),
            setting.brief.to_owned() + &default,
        ));
    }
    rows.push(("    --config FILE".to_owned(), "TOML file with settings".to_owned()));
    let width = rows.iter().map(|(flag, _)| flag.len()).max().unwrap_or(0);
    let mut text = "Serve the memcached protocols: larder serve [FLAGS]\n\n".to_owned();
    for (flag, what) in rows {
        text += &format!("  {flag:<width$}  {what}\n");
    }
    text + "\nlarder serve --help shows all flags, variables, units, signals and exit codes\n"
}

/// Returns the long help of a flag: its effect, default and name in the environment.
pub(super) fn long_help(setting: &Setting) -> String {
    let mut text = setting.help.to_owned();
    if let Some(default) = default_of(setting) {
        text += &format!("\n[default: {default}]");
    }
    text += &format!("\n[env: {}]", setting.environment());
    text
}

/// Returns the output of `memcached -h` when Larder was started by that name. Test harnesses read
/// the version from its first line and search the text for the flags that they may use.
pub fn memcached_help() -> String {
    let mut text = format!(
        "memcached {MEMCACHED_VERSION}\nThis is Larder {}, started under the name memcached.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for setting in table::all().filter(|setting| setting.group != Group::Refused) {
        let short = setting.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
        let long = setting.alias.unwrap_or(setting.key);
        let value = match setting.kind {
            Kind::Value(name) | Kind::List(name) => format!("=<{}>", name.to_ascii_lowercase()),
            Kind::Switch | Kind::Count => String::new(),
        };
        text += &format!("{:<38} {}\n", format!("{short}--{long}{value}"), setting.help);
    }
    for (flag, what) in [
        ("    --config=<file>", "TOML file with settings"),
        ("-h, --help", "Print this help and exit"),
        ("-i, --license", "Print the licence and exit"),
        ("-V, --version", "Print the version and exit"),
    ] {
        text += &format!("{flag:<38} {what}\n");
    }
    text
}
