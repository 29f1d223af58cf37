//! PostgreSQL with a separate cluster, and trust authentication on loopback.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_client::Address;

use super::catalogue::{Missing, Recipe};
use super::places::{INSTALL, Places, Programs, is_program};
use super::ready::Protocol;
use super::sandbox::Sandbox;
use super::server::{account_of, first_line, is_root};
use super::start_plan::{Account, Preparation, Setting, StartPlan};
use crate::wire::{Postgres, Wire};
use crate::{Error, Result};

/// Where Debian installs a directory for each major version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The role that owns the cluster.
const ROLE: &str = "bench";
/// If the lab runs as root, the server runs as the first of these accounts that exists, because it
/// refuses to run as root.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];

/// PostgreSQL with one degree of durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostgresServer {
    Durable,
    /// Without fsync.
    NoFsync,
    /// With tables that are not logged.
    Unlogged,
}

impl Recipe for PostgresServer {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        let on_path = places.program("postgres").and_then(|path| path.canonicalize().ok());
        let found = newest(Path::new(DEBIAN)).into_iter().chain(on_path).find_map(|server| {
            let initdb = server.with_file_name("initdb");
            let both = is_program(&server) && is_program(&initdb);
            both.then(|| Programs::with(server, initdb))
        });
        found.ok_or_else(|| Missing {
            why: format!("postgres and initdb are neither in {DEBIAN} nor on the PATH"),
            install: INSTALL.into(),
        })
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["--version"])?;
        Ok(line.strip_prefix("postgres (PostgreSQL) ").unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let account = if is_root() { Some(account()?) } else { None };
        let data = sandbox.path("data")?;
        let mut settings = vec![Setting::plain(["-D", &data])];
        let mut set = |name: &str, value: String, why| {
            settings.push(Setting::new(["-c".to_owned(), format!("{name}={value}")], why));
        };
        set("listen_addresses", "127.0.0.1".into(), "");
        set("port", ports[0].to_string(), "");
        set("unix_socket_directories", String::new(), "");
        // After SIGKILL, segments of shared memory would stay behind in /dev/shm.
        set("dynamic_shared_memory_type", "mmap".into(), "");
        set("max_connections", (sandbox.connections + 20).to_string(), "");
        set(
            "shared_buffers",
            format!("{}MB", (sandbox.memory / 4).max(16)),
            "a quarter of memory, as its documentation advises",
        );
        set(
            "effective_cache_size",
            format!("{}MB", (sandbox.memory * 3 / 4).max(16)),
            "the rest of memory is the page cache",
        );
        set("wal_level", "minimal".into(), "there is no replica, so the log can be smaller");
        set("max_wal_senders", "0".into(), "there is no replica");
        set("log_checkpoints", "on".into(), "the report marks checkpoints; the default since 15");
        set("jit", "off".into(), "no statement is long enough to be worth compiling");
        for (name, value, why) in self.durability() {
            set(name, (*value).into(), why);
        }
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        plan.directories.push(data.clone().into());
        plan.preparation.push(initdb(programs, &data));
        plan.account = account;
        // On SIGTERM, PostgreSQL would wait until all clients have left.
        plan.stop_signal = libc::SIGINT;
        plan.patience = Duration::from_secs(60);
        Ok(plan)
    }

    fn overhead(&self, sandbox: &Sandbox) -> u64 {
        // Each connection has a process.
        64 + 2 * sandbox.connections as u64
    }

    fn growth(&self, sandbox: &Sandbox) -> u64 {
        2 * sandbox.connections as u64
    }

    fn writes_checkpoint(
        &self,
        _server: &Address,
        log: &dyn Fn() -> String,
    ) -> Result<Option<bool>> {
        Ok(Some(is_in_checkpoint(&log())))
    }

    fn protocol(&self) -> Protocol {
        Protocol::Postgres
    }

    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        let unlogged = *self == PostgresServer::Unlogged;
        Some(Arc::new(Postgres { user: ROLE.into(), unlogged }))
    }
}

impl PostgresServer {
    fn durability(self) -> &'static [(&'static str, &'static str, &'static str)] {
        match self {
            PostgresServer::Durable => &[
                ("fsync", "on", "a commit is acknowledged after its log is synced"),
                ("synchronous_commit", "on", "a commit waits for the log"),
            ],
            PostgresServer::NoFsync => &[
                ("fsync", "off", "the log is written, but not synced, as in the article"),
                ("full_page_writes", "off", "it protects against crashes, as fsync does"),
            ],
            PostgresServer::Unlogged => &[
                ("fsync", "on", "the default: only the system's own tables are logged"),
                ("synchronous_commit", "off", "a crash empties the table, so no commit need wait"),
            ],
        }
    }
}

/// Returns true if the log has more beginnings than ends of checkpoints.
fn is_in_checkpoint(log: &str) -> bool {
    log.matches("checkpoint starting:").count() > log.matches("checkpoint complete:").count()
}

fn initdb(programs: &Programs, data: &str) -> Preparation {
    let text = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--username", ROLE];
    Preparation {
        program: programs.companion.clone().unwrap_or_default(),
        arguments: ["-D", data].iter().chain(&text).map(|&word| word.to_owned()).collect(),
    }
}

fn account() -> Result<Account> {
    ACCOUNTS.iter().find_map(|name| account_of(name)).ok_or_else(|| {
        Error::usage(
            "PostgreSQL refuses to run as root, and there is no account postgres or nobody",
        )
    })
}

/// Returns the server of the newest major version. `parent` has a directory for each version.
fn newest(parent: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(parent).ok()?.flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    Some(parent.join(numbers.max()?.to_string()).join("bin/postgres"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn settings_follow_the_ground_and_the_durability() {
        let programs = Programs::with("/pg/postgres".into(), "/pg/initdb".into());
        let plan = |server: PostgresServer| server.plan(&programs, &sandbox(), [9, 10]).unwrap();
        let durable = plan(PostgresServer::Durable);
        let text = line(&durable);
        assert!(text.starts_with("/pg/postgres -D /sandbox/data -c listen_addresses=127.0.0.1"));
        for setting in ["port=9", "max_connections=70", "shared_buffers=16MB", "fsync=on"] {
            assert!(text.contains(&format!("-c {setting} ")), "{setting} in {text}");
        }
        assert_eq!(durable.preparation[0].arguments[..2], ["-D", "/sandbox/data"]);
        assert_eq!(durable.stop_signal, libc::SIGINT);
        assert_eq!(durable.account.is_some(), is_root());
        assert!(line(&plan(PostgresServer::NoFsync)).contains("-c fsync=off"));
        assert!(line(&plan(PostgresServer::Unlogged)).ends_with("-c synchronous_commit=off"));
    }

    #[test]
    fn the_log_tells_of_checkpoints() {
        let [begins, ends] =
            ["LOG:  checkpoint starting: wal\n", "LOG:  checkpoint complete: wrote 9\n"];
        assert!(!is_in_checkpoint(&[begins, ends].concat()));
        assert!(is_in_checkpoint(&[begins, ends, begins].concat()));
    }

    #[test]
    fn the_newest_version_is_taken() {
        let parent = std::env::temp_dir().join(format!("larder-newest-{}", std::process::id()));
        assert_eq!(newest(&parent), None);
        for version in ["9", "15", "14", "common"] {
            std::fs::create_dir_all(parent.join(version)).unwrap();
        }
        assert_eq!(newest(&parent), Some(parent.join("15/bin/postgres")));
        std::fs::remove_dir_all(parent).unwrap();
    }
}
