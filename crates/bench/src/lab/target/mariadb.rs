//! MariaDB in a separate data directory, with the engine MEMORY or InnoDB.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::catalogue::{Missing, Recipe};
use super::places::{INSTALL, Places, Programs};
use super::ready::Protocol;
use super::sandbox::Sandbox;
use super::server::{ANSWER, first_line, is_root};
use super::start_plan::{ConfigFile, Preparation, Setting, StartPlan};
use crate::wire::{Mysql, TableEngine, Wire};
use crate::{Result, supervise};

/// The user that loads log in as, with an empty password.
const USER: &str = "bench";

/// MariaDB with one engine of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mariadb {
    Memory,
    InnoDb,
    /// As `Memory`, for clients that use ActiveRecord.
    ActiveRecord,
}

impl Recipe for Mariadb {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        if *self == Mariadb::ActiveRecord {
            require_active_record(places)?;
        }
        let install = places.need("mariadb-install-db")?;
        Ok(Programs::with(places.need("mariadbd")?, install))
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["--no-defaults", "--version"])?;
        Ok(version_of(&line).unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let data = sandbox.path("data")?;
        let init = sandbox.dir.join("users.sql");
        let mut settings = vec![
            Setting::plain(["--no-defaults".to_owned(), format!("--datadir={data}")]),
            Setting::plain(["--bind-address=127.0.0.1".to_owned(), format!("--port={}", ports[0])]),
            // Relative to the data directory, because the kernel limits the length of a socket's
            // path.
            Setting::plain(["--socket=mariadb.sock", "--pid-file=mariadb.pid"]),
            Setting::plain([format!("--init-file={}", sandbox.path("users.sql")?)]),
            Setting::plain([format!("--max-connections={}", sandbox.connections + 20)]),
            Setting::new(["--skip-name-resolve"], "connecting needs no name service"),
            Setting::new(["--skip-log-bin"], "there is no replica"),
            Setting::new(
                [Mysql::SERVER_OPTION],
                "each connection numbers its statements from 1; the lab keeps its connections open",
            ),
        ];
        settings.extend(self.memory(sandbox.memory));
        if *self == Mariadb::InnoDb {
            settings.push(Setting::new(
                ["--innodb-flush-log-at-trx-commit=1"],
                "a commit is acknowledged after its log is synced",
            ));
        }
        let mut preparation = vec!["--no-defaults".to_owned(), format!("--datadir={data}")];
        let fixed = ["--auth-root-authentication-method=normal", "--skip-test-db"];
        preparation.extend(fixed.map(str::to_owned));
        if is_root() {
            settings.push(Setting::plain(["--user=root"]));
            preparation.push("--user=root".into());
        }
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        plan.preparation.push(Preparation {
            program: programs.companion.clone().unwrap_or_default(),
            arguments: preparation,
        });
        let users = Setting::plain([self.tables(sandbox).user_statements()]);
        plan.files.push(ConfigFile { path: init, settings: vec![users] });
        plan.patience = Duration::from_secs(60);
        Ok(plan)
    }

    fn overhead(&self, sandbox: &Sandbox) -> u64 {
        128 + sandbox.connections as u64 / 2
    }

    fn growth(&self, sandbox: &Sandbox) -> u64 {
        8 + sandbox.connections as u64 / 2
    }

    fn protocol(&self) -> Protocol {
        Protocol::Mysql
    }

    fn wire(&self, sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        Some(Arc::new(self.tables(sandbox)))
    }
}

/// Checks that Ruby finds ActiveRecord and mysql2, which the client needs.
fn require_active_record(places: &Places) -> std::result::Result<(), Missing> {
    let ruby = places.need("ruby")?;
    let mut command = Command::new(ruby);
    command.args(["-e", "require 'active_record'; require 'mysql2'"]);
    let why = match supervise::output(command, b"", ANSWER) {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(_) => "Ruby has no ActiveRecord with mysql2".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Missing { why, install: INSTALL.to_owned() })
}

impl Mariadb {
    fn memory(self, memory: u64) -> Vec<Setting> {
        let size = |name: &str, megabytes: u64| format!("--{name}={megabytes}M");
        match self {
            Mariadb::Memory | Mariadb::ActiveRecord => vec![
                Setting::new(
                    [size("max-heap-table-size", memory)],
                    "the table may use all memory that the experiment gives",
                ),
                Setting::new(
                    ["--innodb-buffer-pool-size=16M"],
                    "only the system's own tables are of this engine",
                ),
            ],
            Mariadb::InnoDb => vec![
                Setting::new(
                    [size("innodb-buffer-pool-size", (memory * 7 / 10).max(16))],
                    "70 % of memory: its documentation advises up to 80 % of a dedicated machine",
                ),
                Setting::new(
                    [size("innodb-log-file-size", (memory / 4).clamp(96, 1024))],
                    "a longer log needs fewer checkpoints; the default is 96 MB",
                ),
            ],
        }
    }

    fn tables(self, sandbox: &Sandbox) -> Mysql {
        let engine = match self {
            Mariadb::Memory | Mariadb::ActiveRecord => TableEngine::Memory,
            Mariadb::InnoDb => TableEngine::InnoDb,
        };
        Mysql { user: USER.into(), engine, value_max: sandbox.value_max }
    }
}

/// Finds the version in `mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu …`.
fn version_of(line: &str) -> Option<&str> {
    line.split_once(" Ver ")?.1.split_ascii_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn each_engine_gets_the_memory() {
        let programs = Programs::with("/m/mariadbd".into(), "/m/mariadb-install-db".into());
        let sandbox = Sandbox { memory: 1000, ..sandbox() };
        let plan = |engine: Mariadb| engine.plan(&programs, &sandbox, [9, 10]).unwrap();
        let memory = line(&plan(Mariadb::Memory));
        assert!(memory.starts_with("/m/mariadbd --no-defaults --datadir=/sandbox/data"));
        assert!(memory.contains("--max-heap-table-size=1000M"));
        assert!(!memory.contains("flush-log"));
        let durable = plan(Mariadb::InnoDb);
        assert!(line(&durable).contains("--innodb-buffer-pool-size=700M"));
        assert!(line(&durable).contains("--innodb-flush-log-at-trx-commit=1"));
        assert!(durable.preparation[0].arguments.contains(&"--skip-test-db".to_owned()));
        assert!(durable.files[0].text().contains("CREATE USER IF NOT EXISTS 'bench'@'%'"));
    }

    #[test]
    fn a_version_is_found_in_its_line() {
        let line = "/usr/sbin/mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu";
        assert_eq!(version_of(line), Some("10.11.19-MariaDB-0+deb12u1"));
        assert_eq!(version_of("mariadbd"), None);
    }
}
