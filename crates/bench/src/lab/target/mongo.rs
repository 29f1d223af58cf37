//! Servers that speak MongoDB's protocol: mongo-java-server, which keeps everything in memory, and
//! FerretDB over SQLite. MongoDB itself is in no package registry that the lab may count on.

use std::sync::Arc;
use std::time::Duration;

use super::cassandra::{jar, jars, tmpdir};
use super::catalogue::{Missing, Recipe};
use super::places::{INSTALL, Places, Programs};
use super::ready::Protocol;
use super::sandbox::{Sandbox, text_of};
use super::server::first_line;
use super::start_plan::{ConfigFile, Setting, StartPlan};
use crate::wire::{Mongo, Wire};
use crate::{Error, Result};

/// The program that runs the library, which has no main program.
const LAUNCHER: &str = include_str!("MongoLauncher.java");
/// The name of the library's jar, up to its version.
const LIBRARY: &str = "mongo-java-server-core-";

#[derive(Clone, Copy, Debug)]
pub(super) struct MongoJavaServer;

impl Recipe for MongoJavaServer {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        let missing = |why: String| Missing { why, install: INSTALL.into() };
        // Java compiles the launcher when it runs it, which needs the compiler of a development
        // kit.
        let java = places.program("java").filter(|_| places.program("javac").is_some());
        let java = java.ok_or_else(|| missing("there is no Java development kit".into()))?;
        let jars = places.peer("mongo").filter(|jars| jar(jars, LIBRARY).is_some());
        match jars {
            Some(jars) => Ok(Programs::with(java, jars)),
            None => Err(missing(format!("{}/mongo has no jars", places.peers.display()))),
        }
    }

    /// Takes the version from the name of the jar. The server itself reports another version: that
    /// of the MongoDB that it emulates.
    fn version(&self, programs: &Programs) -> Result<String> {
        let path = jar(jars(programs), LIBRARY);
        let name = path.as_ref().and_then(|path| path.file_stem()?.to_str());
        let version = name.and_then(|name| name.strip_prefix(LIBRARY)).map(str::to_owned);
        version.ok_or_else(|| Error::server("mongo-java-server is gone"))
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let launcher = sandbox.dir.join("MongoLauncher.java");
        let settings = vec![
            Setting::new(
                [format!("-Xmx{}M", sandbox.memory.max(256))],
                "all memory that the experiment gives",
            ),
            // Without these options, Java would leave files in /tmp.
            Setting::plain(["-XX:+PerfDisableSharedMem".to_owned(), tmpdir(sandbox)?]),
            Setting::plain(["-cp".to_owned(), format!("{}/*", text_of(jars(programs))?)]),
            Setting::plain([text_of(&launcher)?, ports[0].to_string()]),
        ];
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        plan.directories.push(sandbox.dir.join("tmp"));
        plan.files.push(ConfigFile { path: launcher, settings: vec![Setting::plain([LAUNCHER])] });
        plan.patience = Duration::from_secs(60);
        Ok(plan)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Mongo
    }

    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        Some(Arc::new(Mongo))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ferretdb;

impl Recipe for Ferretdb {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        places.need("ferretdb").map(Programs::only)
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["--version"])?;
        Ok(line.strip_prefix("version: ").unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let directory = sandbox.path("data")?;
        let settings = vec![
            Setting::plain([format!("--listen-addr=127.0.0.1:{}", ports[0])]),
            Setting::new(["--handler=sqlite"], "the back-end that needs no other server"),
            Setting::new(
                [format!("--sqlite-url=file:{directory}/?_pragma=synchronous(full)")],
                "a write is acknowledged after SQLite's log is synced",
            ),
            Setting::plain([format!("--state-dir={directory}")]),
            Setting::plain(["--telemetry=disable", "--debug-addr=-"]),
            Setting::new(["--log-level=error"], "a log line for each request would cost time"),
        ];
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        plan.directories.push(directory.into());
        Ok(plan)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Mongo
    }

    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        Some(Arc::new(Mongo))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn the_launcher_gets_the_port() {
        let programs = Programs::with("/j/java".into(), "/jars".into());
        let plan = MongoJavaServer.plan(&programs, &sandbox(), [9, 10]).unwrap();
        assert!(line(&plan).ends_with("-cp /jars/* /sandbox/MongoLauncher.java 9"));
        assert!(plan.files[0].text().contains("class MongoLauncher"));
        let ferret = Ferretdb.plan(&programs, &sandbox(), [9, 10]).unwrap();
        assert!(line(&ferret).contains("--listen-addr=127.0.0.1:9 --handler=sqlite"));
    }
}
