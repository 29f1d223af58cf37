//! The list of systems, and what the lab must know to run one of them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use larder_client::Address;
use serde::{Deserialize, Serialize};

use super::arcus::Arcus;
use super::cassandra::Cassandra;
use super::larder::Larder;
use super::mariadb::Mariadb;
use super::memcached::{Memcached, Pogocache};
use super::mongo::{Ferretdb, MongoJavaServer};
use super::places::{Places, Programs};
use super::postgres::PostgresServer;
use super::ready::Protocol;
use super::redis::RedisServer;
use super::sandbox::Sandbox;
use super::server::Server;
use super::start_plan::StartPlan;
use crate::Result;
use crate::wire::Wire;

/// How durable an acknowledged write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// None: data is only in memory, or lost with the process.
    None,
    /// A write is acknowledged before it is on the device.
    Async,
    /// A write is acknowledged after it is on the device.
    Sync,
}

impl Durability {
    /// Returns the name in result files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Async => "async",
            Durability::Sync => "sync",
        }
    }
}

/// A server program with one durability setting.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// The name in files and options.
    pub(crate) id: &'static str,
    /// The name in reports.
    pub(crate) name: &'static str,
    pub(crate) family: &'static str,
    pub(crate) durability: Durability,
    /// A note for the report, such as "stands in for MySQL", if this system replaces a system of an
    /// article.
    pub(crate) stand_in: Option<&'static str>,
    recipe: Arc<dyn Recipe>,
}

/// A system that cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) why: String,
    /// The command that installs the system, or words if there is none.
    pub(crate) install: String,
}

/// A system whose programs were found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) system: System,
    pub(crate) programs: Programs,
}

/// The facts about a system that the lab needs to find, start and load it.
pub(super) trait Recipe: fmt::Debug + Send + Sync {
    /// Finds the programs.
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing>;

    /// Asks the programs for the version.
    fn version(&self, programs: &Programs) -> Result<String>;

    /// Returns the file to execute in order to start `program`.
    fn file<'a>(&self, program: &'a Path) -> &'a Path {
        program
    }

    /// Returns how to start the system on the first of two free loopback ports. The second is for
    /// systems that also listen on an internal port.
    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan>;

    fn protocol(&self) -> Protocol;

    /// Returns the memory in MiB that the system needs besides the sandbox's memory and page cache:
    /// for code, threads, and buffers of connections. Used only where the page cache is bounded.
    fn overhead(&self, _sandbox: &Sandbox) -> u64 {
        64
    }

    /// Returns the memory in MiB by which the system may grow after a fill, for example for buffers
    /// of connections.
    fn growth(&self, _sandbox: &Sandbox) -> u64 {
        8
    }

    /// Returns the [`Wire`] of a protocol other than memcached's; `None` for memcached's.
    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        None
    }

    /// Asks the server whether it is writing a checkpoint: a copy of its data, or all changes since
    /// the last checkpoint, so that it can discard its log. `log` returns everything that the
    /// server has printed. Returns `None` if the system writes no checkpoints, or writes them in
    /// small parts all the time.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    fn writes_checkpoint(
        &self,
        _server: &Address,
        _log: &dyn Fn() -> String,
    ) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Checks that a started server has the durability of its system. Needed for programs that may
    /// lack a durability and ignore its settings silently.
    fn verify(&self, _server: &Address) -> Result<()> {
        Ok(())
    }
}

impl System {
    /// Finds the programs of the system in the usual places.
    ///
    /// # Errors
    /// Returns what is missing, and how to install it.
    pub(crate) fn find(&self) -> std::result::Result<Found, Missing> {
        self.find_in(&Places::usual())
    }

    /// Finds the programs of the system in `places`, as [`System::find`] does.
    ///
    /// # Errors
    /// Returns what is missing, and how to install it.
    pub(crate) fn find_in(&self, places: &Places) -> std::result::Result<Found, Missing> {
        let programs = self.recipe.find(places)?;
        Ok(Found { system: self.clone(), programs })
    }

    /// Returns true if the system keeps values on a device because they do not fit into memory.
    pub(crate) fn uses_flash(&self) -> bool {
        matches!(
            self.id,
            "larder-flash"
                | "larder-flash-2"
                | "larder-tiers"
                | "memcached-extstore"
                | "memcached-extstore-2"
        )
    }

    /// Returns true if a Ruby process loads the system instead of the generator.
    pub(crate) fn is_loaded_by_ruby(&self) -> bool {
        self.id == "mariadb-activerecord"
    }

    /// Returns true if experiments that first fill a system, but not on flash, can measure this
    /// one. FerretDB is excluded because it stores only some hundred values per second.
    pub(crate) fn takes_any_load(&self) -> bool {
        !self.uses_flash() && !self.is_loaded_by_ruby() && self.id != "ferretdb"
    }

    /// Returns the space in MiB that the system's files may need in its directory and in its second
    /// directory, if `disk` is the space that the experiment gives. A system that keeps its data
    /// only in memory needs none, because its files do not grow.
    pub(super) fn space(&self, disk: u64) -> [u64; 2] {
        let has_files = self.uses_flash()
            || self.durability != Durability::None
            // An unlogged table lies in files, although a crash empties it.
            || self.family == "PostgreSQL";
        match self.id {
            "larder-flash-2" | "memcached-extstore-2" => [disk / 2, disk / 2],
            "larder-tiers" => [disk / 4, disk - disk / 4],
            _ if has_files => [disk, 0],
            _ => [0, 0],
        }
    }

    pub(super) fn recipe(&self) -> &dyn Recipe {
        &*self.recipe
    }
}

impl Found {
    /// Asks the programs for the version.
    ///
    /// # Errors
    /// Returns an error if a program does not report one.
    pub(crate) fn version(&self) -> Result<String> {
        self.system.recipe().version(&self.programs)
    }

    /// Starts the system and waits until it answers.
    ///
    /// # Errors
    /// Returns an error if the system does not start. The message contains the end of its output.
    pub(crate) fn start(&self, sandbox: &Sandbox) -> Result<Server> {
        Server::start(self, sandbox)
    }
}

/// The values of [`System::stand_in`].
const MYSQL: &str = "stands in for MySQL";
const SCYLLA: &str = "stands in for ScyllaDB";
const MONGO: &str = "stands in for MongoDB";

/// Returns every system that the lab knows, in the order in which they take turns.
pub(crate) fn catalogue() -> Vec<System> {
    [caches(), redis_servers(), sql_databases(), other_databases()].concat()
}

fn system(
    id: &'static str,
    name: &'static str,
    family: &'static str,
    durability: Durability,
    recipe: Arc<dyn Recipe>,
) -> System {
    System { id, name, family, durability, stand_in: None, recipe }
}

fn stand_in(stand_in: &'static str, system: System) -> System {
    System { stand_in: Some(stand_in), ..system }
}

/// Returns Larder and the other servers with memcached's protocol.
fn caches() -> Vec<System> {
    use Durability::{Async, None as Volatile, Sync};
    vec![
        system("larder", "Larder, memory", "Larder", Volatile, Arc::new(Larder::Memory)),
        system("larder-async", "Larder, async", "Larder", Async, Arc::new(Larder::Async)),
        system("larder-sync", "Larder, sync", "Larder", Sync, Arc::new(Larder::Sync)),
        system("larder-flash", "Larder, flash", "Larder", Volatile, Arc::new(Larder::Flash)),
        system(
            "larder-flash-2",
            "Larder, flash on two devices",
            "Larder",
            Volatile,
            Arc::new(Larder::Flash2),
        ),
        system(
            "larder-tiers",
            "Larder, fast and large device",
            "Larder",
            Volatile,
            Arc::new(Larder::Tiers),
        ),
        system("memcached", "memcached", "memcached", Volatile, Arc::new(Memcached { devices: 0 })),
        system(
            "memcached-extstore",
            "memcached, extstore",
            "memcached",
            Volatile,
            Arc::new(Memcached { devices: 1 }),
        ),
        system(
            "memcached-extstore-2",
            "memcached, extstore on two paths",
            "memcached",
            Volatile,
            Arc::new(Memcached { devices: 2 }),
        ),
        system("arcus", "ARCUS, no persistence", "ARCUS", Volatile, Arc::new(Arcus::Off)),
        system("arcus-async", "ARCUS, async", "ARCUS", Async, Arc::new(Arcus::Async)),
        system("arcus-sync", "ARCUS, sync", "ARCUS", Sync, Arc::new(Arcus::Sync)),
        system("pogocache", "pogocache", "pogocache", Volatile, Arc::new(Pogocache)),
    ]
}

/// Returns Redis and Valkey.
fn redis_servers() -> Vec<System> {
    use Durability::{Async, None as Volatile, Sync};
    vec![
        system("redis", "Redis, no AOF", "Redis", Volatile, Arc::new(RedisServer::redis(None))),
        system(
            "redis-everysec",
            "Redis, fsync every second",
            "Redis",
            Async,
            Arc::new(RedisServer::redis(Some("everysec"))),
        ),
        system(
            "redis-always",
            "Redis, fsync always",
            "Redis",
            Sync,
            Arc::new(RedisServer::redis(Some("always"))),
        ),
        system("valkey", "Valkey, no AOF", "Valkey", Volatile, Arc::new(RedisServer::valkey(None))),
        system(
            "valkey-everysec",
            "Valkey, fsync every second",
            "Valkey",
            Async,
            Arc::new(RedisServer::valkey(Some("everysec"))),
        ),
        system(
            "valkey-always",
            "Valkey, fsync always",
            "Valkey",
            Sync,
            Arc::new(RedisServer::valkey(Some("always"))),
        ),
    ]
}

fn sql_databases() -> Vec<System> {
    use Durability::{Async, None as Volatile, Sync};
    vec![
        system(
            "postgres",
            "PostgreSQL, fsync on",
            "PostgreSQL",
            Sync,
            Arc::new(PostgresServer::Durable),
        ),
        system(
            "postgres-nofsync",
            "PostgreSQL, fsync off",
            "PostgreSQL",
            Async,
            Arc::new(PostgresServer::NoFsync),
        ),
        system(
            "postgres-unlogged",
            "PostgreSQL, unlogged table",
            "PostgreSQL",
            Volatile,
            Arc::new(PostgresServer::Unlogged),
        ),
        stand_in(
            MYSQL,
            system(
                "mariadb-memory",
                "MariaDB, MEMORY table",
                "MariaDB",
                Volatile,
                Arc::new(Mariadb::Memory),
            ),
        ),
        stand_in(
            MYSQL,
            system("mariadb-innodb", "MariaDB, InnoDB", "MariaDB", Sync, Arc::new(Mariadb::InnoDb)),
        ),
        stand_in(
            MYSQL,
            system(
                "mariadb-activerecord",
                "MariaDB, MEMORY table by ActiveRecord",
                "MariaDB",
                Volatile,
                Arc::new(Mariadb::ActiveRecord),
            ),
        ),
    ]
}

/// Returns the databases without SQL.
fn other_databases() -> Vec<System> {
    use Durability::{Async, None as Volatile, Sync};
    vec![
        stand_in(
            SCYLLA,
            system(
                "cassandra",
                "Cassandra, commit log synced",
                "Cassandra",
                Sync,
                Arc::new(Cassandra::Batch),
            ),
        ),
        stand_in(
            SCYLLA,
            system(
                "cassandra-periodic",
                "Cassandra, commit log synced every 10 s",
                "Cassandra",
                Async,
                Arc::new(Cassandra::Periodic),
            ),
        ),
        stand_in(
            SCYLLA,
            system(
                "cassandra-grouped",
                "Cassandra, many rows per partition",
                "Cassandra",
                Async,
                Arc::new(Cassandra::Grouped),
            ),
        ),
        stand_in(
            MONGO,
            system("mongo", "mongo-java-server", "MongoDB", Volatile, Arc::new(MongoJavaServer)),
        ),
        stand_in(
            MONGO,
            system("ferretdb", "FerretDB, SQLite", "MongoDB", Sync, Arc::new(Ferretdb)),
        ),
    ]
}
