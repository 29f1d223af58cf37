//! Changes to the settings of a running server, which SIGHUP requests. A reload changes the
//! settings in `RELOADED` and the policies. The other settings took effect when sockets, threads
//! and memory were created. If one of these settings has changed, a reload only reports that the
//! change needs a restart. The `verbosity` command changes the log level without a reload.

use std::fmt;
use std::sync::Arc;

use super::prepare::{reachable_connections, too_few_files};
use super::running::Running;
use crate::settings::{Settings, log_level_name};

/// The keys of settings that a running server can change.
const RELOADED: [&str; 16] = [
    "admin-host",
    "admin-token-file",
    "disable-control",
    "disable-dumping",
    "disable-flush-all",
    "disable-key-sampling",
    "disable-latency",
    "drain-timeout",
    "enable-shutdown",
    "idle-timeout",
    "lab-report",
    "log-level",
    "max-connections",
    "memory",
    "slow-command",
    "verbose",
];

/// Settings that only set the values of other settings. A reload reports those other settings
/// instead.
const ALIASES: [&str; 2] = ["disable-evictions", "extended"];

/// Settings whose default values depend on the machine.
const ADAPTED: [&str; 2] = ["max-connections", "threads"];

/// Gives a server new settings, from any thread.
#[derive(Clone, Debug)]
pub struct Reloader(pub(super) Arc<Running>);

/// The result of a reload. Each list holds texts for a log line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Settings that changed: `memory 64MB -> 128MB`.
    pub changed: Vec<String>,
    /// Settings whose new values take effect only after a restart.
    pub needs_restart: Vec<String>,
    /// Settings that could not change, with the reason.
    pub refused: Vec<String>,
}

/// Formats a list for a log line.
pub struct Listed<'a>(pub &'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nothing"),
            texts => f.write_str(&texts.join(", ")),
        }
    }
}

impl Reloader {
    /// Applies the differences between `new` and the settings in use, as far as a running server
    /// can.
    pub fn reload(&self, new: &Settings) -> Reloaded {
        let running = &self.0;
        let old = running.settings();
        let mut merged = Settings::clone(&old);
        let mut reloaded = Reloaded::default();
        for (key, from, to) in old.differences(new) {
            if ALIASES.contains(&key) {
                continue;
            }
            let changed = change(key, &from, &to);
            // The value of a setting in `ADAPTED` may differ although the user changed nothing: its
            // default depends on the machine. If neither `old` nor `new` gives the setting, it is
            // not reported.
            let adapted = ADAPTED.contains(&key) && !old.is_given(key) && !new.is_given(key);
            if !RELOADED.contains(&key) {
                if !adapted {
                    reloaded.needs_restart.push(changed);
                }
                continue;
            }
            let possible = match key {
                "memory" => running.set_memory_limit(new.memory).map_err(|error| error.to_string()),
                "admin-token-file" => running.read_admin_token(new).map(|_| ()),
                "max-connections" if adapted => continue,
                "max-connections" => allow_connections(new),
                _ => Ok(()),
            };
            if let Err(reason) = possible {
                reloaded.refused.push(format!("{changed}: {reason}"));
                continue;
            }
            merged.take_over(key, new);
            // The log level is reported below, because a `verbosity` command may have changed it
            // too.
            if !matches!(key, "log-level" | "verbose") {
                reloaded.changed.push(changed);
            }
        }
        if old.detail != new.detail && old.prefix_delimiter == new.prefix_delimiter {
            // Giving `prefix-delimiter` turns `stats detail` on. If the user gives the default
            // delimiter, only `detail` differs, so the loop above has not found the change.
            let shown = |settings: &Settings| match settings.detail {
                true => settings.prefix_delimiter.to_string(),
                false => String::new(),
            };
            reloaded.needs_restart.push(change("prefix-delimiter", &shown(&old), &shown(new)));
        }
        if let Some(file) = new.admin_token_file.as_ref()
            && old.admin_token_file.as_ref() == Some(file)
        {
            // The content of the token file may have changed although its path has not.
            match running.read_admin_token(new) {
                Ok(true) => reloaded.changed.push("the token of the admin page".to_owned()),
                Ok(false) => {}
                Err(reason) => {
                    reloaded.refused.push(format!("admin-token-file {}: {reason}", file.display()));
                }
            }
        }
        let policies = old.policy_differences(new);
        let policies =
            policies.iter().map(|(name, from, to)| change(&format!("limit {name}"), from, to));
        match old.check_policies(&new.policies) {
            Ok(()) => {
                reloaded.changed.extend(policies);
                merged.policies.clone_from(&new.policies);
            }
            Err(reason) => reloaded.refused.push(reason),
        }
        let before = running.log_level();
        running.set_settings(merged);
        running.set_verbosity(new.verbosity);
        let now = running.log_level();
        if before != now {
            reloaded.changed.push(change(
                "log level",
                &log_level_name(before),
                &log_level_name(now),
            ));
        }
        reloaded
    }
}

/// Raises the limit of open files for the connections of `settings`, or returns why it cannot.
fn allow_connections(settings: &Settings) -> Result<(), String> {
    match reachable_connections(settings) {
        Ok(reachable) if reachable < settings.max_connections => Err(too_few_files(reachable)),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn change(key: &str, from: &str, to: &str) -> String {
    let shown = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
    format!("{key} {} -> {}", shown(from), shown(to))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::command::Switches;
    use crate::policies::Policy;
    use crate::server::{Host, Server};
    use crate::settings::{Environment, Flavor, ListenAddress, LogLevel, command, from_matches};
    use larder_engine::Durability;
    use larder_engine::limit::Limit;

    fn settings() -> Settings {
        Settings {
            listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }],
            admin: None,
            threads: 1,
            ..Settings::default()
        }
    }

    /// Returns the reply to `flush_all` on a new connection, or `None` if the server does not serve
    /// that connection.
    fn served(server: &Server) -> Option<String> {
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(b"flush_all\r\nquit\r\n").unwrap();
        let mut reply = String::new();
        // A connection that is not served may be reset.
        let _ = client.read_to_string(&mut reply);
        Some(reply).filter(|reply| !reply.starts_with("ERROR") && !reply.is_empty())
    }

    #[test]
    fn limits_and_switches_can_change() {
        let asked = |connections: usize| {
            let mut settings = Settings { max_connections: connections, ..settings() };
            settings.given.insert("max-connections");
            settings
        };
        let server = Server::start(asked(1)).unwrap();
        let mut first = TcpStream::connect(server.addresses()[0]).unwrap();
        first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        first.write_all(b"mn\r\n").unwrap();
        first.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(served(&server), None);
        let reloader = server.reloader();
        let reloaded = reloader.reload(&asked(20));
        assert_eq!(reloaded.changed, ["max-connections 1 -> 20"]);
        assert_eq!(served(&server), Some("OK\r\n".to_owned()));

        let switches = Switches { flush: false, ..Switches::default() };
        let new = Settings { switches, ..asked(20) };
        assert_eq!(reloader.reload(&new).changed, ["disable-flush-all false -> true"]);
        assert_eq!(served(&server), Some("CLIENT_ERROR flush_all not allowed\r\n".to_owned()));

        let new = Settings { idle_timeout: Some(Duration::from_millis(100)), ..new };
        assert_eq!(reloader.reload(&new).changed, ["idle-timeout 0s -> 100ms"]);
        assert_eq!(first.read_to_string(&mut String::new()).unwrap(), 0, "silent for too long");

        let reloaded = reloader.reload(&Settings { max_connections: 1 << 40, ..new });
        assert!(reloaded.refused[0].contains("the limit of open files is enough"), "{reloaded:?}");
    }

    #[test]
    fn policies_are_replaced_or_refused_together() {
        let policy = |name: &str, budget| Policy::new(name, Limit::fixed(budget, 0));
        let with = |policies: Vec<Policy>| Settings { policies, ..settings() };
        let server = Server::start(with(vec![policy("a", 1), policy("b", 2)])).unwrap();
        let policies = || server.running.context().unwrap().policies().table();
        let budgets =
            || -> Vec<_> { policies().iter().map(|policy| policy.limit.budget()).collect() };
        assert_eq!(budgets(), [1, 2]);
        let reader = server.running.context().unwrap().policies().reader();
        reader.count_plain(reader.named(b"a").unwrap(), 7);

        let reloaded = server.reloader().reload(&with(vec![policy("a", 5), policy("c", 3)]));
        let changed =
            ["limit a fixed 1 -> fixed 5", "limit b fixed 2 -> none", "limit c none -> fixed 3"];
        assert_eq!(
            reloaded,
            Reloaded { changed: changed.map(str::to_owned).to_vec(), ..Reloaded::default() }
        );
        assert_eq!(budgets(), [5, 3]);
        let counts = policies().named(b"a").unwrap().counters.totals();
        assert_eq!(counts[2], ("over", 1));

        // The new policy needs a store, and the running server has none. So the reload must refuse
        // the policy and keep the old policies.
        let sync = Policy { durability: Some(Durability::Sync), ..policy("a", 9) };
        let reloaded = server.reloader().reload(&with(vec![sync]));
        assert!(reloaded.refused[0].contains("durability sync needs something"), "{reloaded:?}");
        assert_eq!(reloaded.changed, Vec::<String>::new());
        assert_eq!(budgets(), [5, 3]);
    }

    #[test]
    fn changeable_settings_change_and_the_rest_is_reported() {
        let levels = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&levels);
        let host = Host {
            set_log_level: Some(Box::new(move |level| heard.lock().unwrap().push(level))),
            ..Host::default()
        };
        let server = Server::start_in(settings(), host).unwrap();
        let reloader = server.reloader();
        assert_eq!(reloader.reload(&settings()), Reloaded::default());

        let mut new = Settings { memory: 96 << 20, log_level: LogLevel::Warn, ..settings() };
        new.drain_timeout = Duration::from_secs(3);
        new.threads = 2;
        new.given.insert("threads");
        let reloaded = reloader.reload(&new);
        assert_eq!(
            reloaded.changed,
            ["memory 64MB -> 96MB", "drain-timeout 10s -> 3s", "log level info -> warn"]
        );
        assert_eq!(reloaded.needs_restart, ["threads 1 -> 2"]);
        assert_eq!(reloaded.refused, Vec::<String>::new());
        assert_eq!(server.engine().stats().memory_limit, 96 << 20);
        assert_eq!(server.drain_timeout().as_secs(), 3);
        assert_eq!(levels.lock().unwrap().last(), Some(&LogLevel::Warn));

        // A reload must restore the log level of the settings after `verbosity` has changed it.
        server.running.set_verbosity(2);
        assert_eq!(levels.lock().unwrap().last(), Some(&LogLevel::Trace));
        assert_eq!(reloader.reload(&new).changed, ["log level trace -> warn"]);

        let more = Settings { memory: 64 << 30, ..new };
        let reloaded = reloader.reload(&more);
        assert!(reloaded.refused[0].starts_with("memory 96MB -> 64GB: "), "{reloaded:?}");
        assert_eq!(server.engine().stats().memory_limit, 96 << 20);
        assert_eq!(Listed(&[]).to_string(), "nothing");
    }

    /// Loads the settings from the environment, as a reload does.
    fn load(variables: &[(&str, &str)]) -> Settings {
        let name = |key: &str| format!("LARDER_{}", key.to_ascii_uppercase().replace('-', "_"));
        let variables = variables.iter().map(|(key, value)| (name(key), (*value).to_owned()));
        let matches = command().get_matches_from(["larder"]);
        from_matches(Flavor::Larder, &matches, &variables.collect::<Environment>()).unwrap()
    }

    /// Returns a value for the setting `key` that differs from its default.
    fn other_value(key: &str) -> &'static str {
        match key {
            "listen" => "127.0.0.1:11300",
            "port" | "limit-port" => "11399",
            "socket" => "/tmp/s",
            "socket-mode" => "600",
            "max-connections" | "threads" | "verbose" => "2",
            "idle-timeout" | "drain-timeout" => "7s",
            "slow-command" | "sync-interval" => "5ms",
            "protocol" => "ascii",
            "io" => "epoll",
            "admin" => "127.0.0.1:1",
            "admin-host" => "cache.example",
            "memory" => "96MB",
            "max-item-size" => "512KB",
            "when-full" => "refuse",
            "store" => "/data:64GB",
            "forget" => "1",
            "durability" => "sync",
            "log-level" => "warn",
            "log-format" => "json",
            "extended" => "idle_timeout=7",
            "prefix-delimiter" => ":",
            "slab-growth-factor" => "1.5",
            "max-reqs-per-event" | "listen-backlog" | "slab-min-size" | "napi-ids" => "12",
            "udp-port" => "0",
            "disable-flush-all"
            | "disable-dumping"
            | "disable-control"
            | "disable-watch"
            | "disable-evictions"
            | "disable-latency"
            | "disable-key-sampling"
            | "disable-cas"
            | "enable-shutdown"
            | "enable-coredumps"
            | "enable-largepages"
            | "lock-memory"
            | "accept-damage"
            | "daemon" => "true",
            "admin-token-file" | "lab-report" | "user" | "pidfile" | "log-file" => "/tmp/f",
            _ => panic!("give {key} a value"),
        }
    }

    #[test]
    fn every_setting_is_applied_or_named() {
        let base = [("port", "-1"), ("admin", "off"), ("threads", "1")];
        let server = Server::start(load(&base)).unwrap();
        let reloader = server.reloader();
        let command = command();
        let keys = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let keys = keys.filter_map(|argument| argument.get_long());
        let keys = keys.filter(|key| !["help", "config"].contains(key));
        let mut cases: Vec<_> = keys.map(|key| (key, other_value(key))).collect();
        assert!(cases.len() > 45, "{cases:?}");
        cases.extend([("prefix-delimiter", "/"), ("extended", "ext_path=/data:64GB")]);
        for (key, value) in cases {
            let mut variables = base.to_vec();
            if matches!(key, "forget" | "durability" | "accept-damage") {
                variables.push(("store", "/data"));
            }
            variables.push((key, value));
            let new = load(&variables);
            let Reloaded { changed, needs_restart, refused } = reloader.reload(&new);
            assert_eq!(refused, Vec::<String>::new(), "{key}");
            let wanted = match key {
                "verbose" | "log-level" => "log level",
                "disable-evictions" => "when-full",
                "extended" if value.starts_with("ext_path") => "store",
                "extended" => "idle-timeout",
                // These settings exist for memcached's options and have no effect. A reload must
                // not report them.
                "udp-port" | "max-reqs-per-event" | "slab-growth-factor" | "slab-min-size"
                | "enable-largepages" | "napi-ids" => {
                    assert_eq!(changed.len() + needs_restart.len(), 0, "{key}");
                    continue;
                }
                key => key,
            };
            let named = |texts: &[String]| texts.iter().any(|text| text.starts_with(wanted));
            assert!(
                named(&changed) != named(&needs_restart),
                "{key} {value}: changed {changed:?}, needs a restart: {needs_restart:?}"
            );
            let left = server.running.settings().differences(&new);
            let is_left = |text: &String| left.iter().any(|(key, ..)| text.starts_with(key));
            assert!(!changed.iter().any(is_left), "{key}: {left:?}");
            reloader.reload(&load(&base));
            assert_eq!(reloader.reload(&load(&base)), Reloaded::default(), "{key}");
        }
    }
}
