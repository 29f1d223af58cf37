//! ARCUS: memcached's descendant with persistence, set up as in the article about it.

use std::path::{Path, PathBuf};

use larder_client::{Address, Client, Options};

use super::catalogue::{Missing, Recipe};
use super::places::{Places, Programs, is_program};
use super::ready::Protocol;
use super::sandbox::{Sandbox, text_of};
use super::server::first_line;
use super::start_plan::{ConfigFile, Setting, StartPlan};
use crate::{Error, Result};

/// Directories in which ARCUS is usually installed.
const HOMES: [&str; 2] = ["/usr/local/arcus", "/opt/arcus"];
/// Paths of the engine relative to the server: two of an installation, and one of a build tree.
const ENGINES: [&str; 3] =
    ["../lib/default_engine.so", "../lib64/default_engine.so", ".libs/default_engine.so"];

/// ARCUS with one kind of command log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arcus {
    /// No persistence.
    Off,
    Async,
    Sync,
}

impl Recipe for Arcus {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        let given = places.arcus.iter().cloned();
        let homes = given.chain([places.peers.join("arcus")]).chain(HOMES.map(PathBuf::from));
        let found = homes.flat_map(|home| [home.join("bin/memcached"), home.join("memcached")]);
        found.filter(|server| is_program(server)).find_map(with_engine).ok_or_else(|| Missing {
            why: "neither ARCUS_HOME nor the usual places hold arcus-memcached with its \
                  default_engine.so, and no package registry has it"
                .into(),
            install: "build github.com/naver/arcus-memcached with ./configure \
                      --enable-persistence, and set ARCUS_HOME to its prefix"
                .into(),
        })
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["-h"])?;
        Ok(line.rsplit(' ').next().unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let engine = programs.companion.as_deref().unwrap_or(Path::new(""));
        let config = sandbox.dir.join("default_engine.conf");
        let config_option = format!("config_file={}", text_of(&config)?);
        let number = |number: u64| number.to_string();
        let mut settings = vec![
            Setting::plain(["-l", "127.0.0.1", "-U", "0", "-p", &number(ports[0].into())]),
            Setting::new(["-r", "-R", "100", "-b", "8192"], "as in the article"),
            Setting::plain(["-m", &number(sandbox.memory), "-t", &number(sandbox.threads as u64)]),
            // The engine keeps some connections for itself.
            Setting::plain(["-c", &number(sandbox.connections as u64 + 100)]),
            Setting::plain(["-E", &text_of(engine)?, "-e", &config_option]),
        ];
        if super::server::is_root() {
            settings.push(Setting::plain(["-u", "root"]));
        }
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        if *self != Arcus::Off {
            plan.directories.push(sandbox.dir.join("ARCUS-DB"));
        }
        plan.files.push(ConfigFile { path: config, settings: self.engine_settings(sandbox)? });
        Ok(plan)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Memcached
    }

    fn writes_checkpoint(
        &self,
        server: &Address,
        _log: &dyn Fn() -> String,
    ) -> Result<Option<bool>> {
        if *self == Arcus::Off {
            return Ok(None);
        }
        let rows = Client::connect_to(server, Options::default())?.stats(Some("persistence"))?;
        let row = rows.iter().find(|row| row.0 == "last_chkpt_in_progress");
        Ok(row.map(|row| row.1 == "true"))
    }

    /// Asks the server, because a server that was built without persistence ignores the settings.
    fn verify(&self, server: &Address) -> Result<()> {
        if *self == Arcus::Off {
            return Ok(());
        }
        let rows = Client::connect_to(server, Options::default())?.stats(Some("persistence"))?;
        let has = |name: &str, value: &str| rows.iter().any(|row| row.0 == name && row.1 == value);
        let logging = if *self == Arcus::Async { "true" } else { "false" };
        match has("use_persistence", "on") && has("async_logging", logging) {
            true => Ok(()),
            false => Err(Error::server(
                "this ARCUS does not persist: was it built with --enable-persistence?",
            )),
        }
    }
}

impl Arcus {
    fn engine_settings(self, sandbox: &Sandbox) -> Result<Vec<Setting>> {
        if self == Arcus::Off {
            return Ok(vec![Setting::new(["use_persistence=false"], "cache mode of the article")]);
        }
        let directory = sandbox.path("ARCUS-DB")?;
        let (logging, why) = match self {
            Arcus::Async => ("async_logging=true", "asynchronous logging of the article"),
            _ => ("async_logging=false", "synchronous logging of the article"),
        };
        Ok(vec![
            Setting::plain(["use_persistence=true"]),
            Setting::plain([format!("data_path={directory}")]),
            Setting::plain([format!("logs_path={directory}")]),
            Setting::new([logging], why),
            Setting::new(["chkpt_interval_pct_snapshot=100"], "as in the article"),
            Setting::new(["chkpt_interval_min_logsize=256"], "as in the article"),
        ])
    }
}

/// Returns the programs if the server's engine is at one of [`ENGINES`]. The original memcached has
/// the same name but no engine.
fn with_engine(server: PathBuf) -> Option<Programs> {
    let engine =
        ENGINES.iter().map(|path| server.with_file_name(path)).find(|path| path.exists())?;
    Some(Programs::with(server, engine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn the_engine_is_configured_as_in_the_article() {
        let programs = Programs::with("/a/bin/memcached".into(), "/a/lib/default_engine.so".into());
        let plan = Arcus::Async.plan(&programs, &sandbox(), [9, 10]).unwrap();
        let line = line(&plan);
        assert!(line.starts_with("/a/bin/memcached -l 127.0.0.1 -U 0 -p 9 -r -R 100 -b 8192"));
        assert!(
            line.contains(
                "-E /a/lib/default_engine.so -e config_file=/sandbox/default_engine.conf"
            )
        );
        assert_eq!(
            plan.files[0].text(),
            "use_persistence=true\ndata_path=/sandbox/ARCUS-DB\nlogs_path=/sandbox/ARCUS-DB\n\
             async_logging=true\nchkpt_interval_pct_snapshot=100\nchkpt_interval_min_logsize=256\n"
        );
        assert_eq!(plan.directories, [Path::new("/sandbox/ARCUS-DB")]);
        let off = Arcus::Off.plan(&programs, &sandbox(), [9, 10]).unwrap();
        assert_eq!(off.files[0].text(), "use_persistence=false\n");
    }

    #[test]
    fn memcached_is_not_taken_for_arcus() {
        let places = Places { arcus: Some("/usr".into()), ..Places::default() };
        let missing = Arcus::Off.find(&places).err().map(|missing| missing.install);
        assert!(missing.is_none_or(|install| install.contains("--enable-persistence")));
        assert_eq!(with_engine("/usr/bin/memcached".into()), None);
    }
}
