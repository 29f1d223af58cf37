//! Larder itself: this executable.

use std::env;
use std::path::{Path, PathBuf};

use super::catalogue::{Missing, Recipe};
use super::places::{Places, Programs, is_program};
use super::ready::Protocol;
use super::sandbox::{Sandbox, text_of};
use super::server::first_line;
use super::start_plan::{Setting, StartPlan};
use crate::launch::{Allowance, Program};
use crate::{Error, Result};

/// The file of the running program. It stays the same if a build replaces the file at the program's
/// path during a run.
pub(crate) const RUNNING: &str = "/proc/self/exe";

/// Larder with one kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Larder {
    /// No store.
    Memory,
    Async,
    Sync,
    /// A store that only adds space to memory.
    Flash,
    /// As `Flash`, on two devices with half of the space each.
    Flash2,
    /// As `Flash`, on a fast device with a quarter of the space and a large one with the rest.
    Tiers,
}

impl Larder {
    fn durability(self) -> Option<(&'static str, &'static str)> {
        match self {
            Larder::Memory => None,
            Larder::Async => Some(("async", "a crash loses at most the last second")),
            Larder::Sync => {
                Some(("sync", "a write is acknowledged after its commit is on the device"))
            }
            Larder::Flash | Larder::Flash2 | Larder::Tiers => {
                Some(("none", "the store only adds space to memory"))
            }
        }
    }
}

impl Larder {
    /// Returns the values of `--store`. If the sandbox has only one directory, the stores of both
    /// devices are directories in it.
    fn stores(self, sandbox: &Sandbox) -> Result<Vec<String>> {
        let second = sandbox.second_dir.as_ref().unwrap_or(&sandbox.dir);
        let (first, second) = (sandbox.path("store")?, text_of(&second.join("store-2"))?);
        let (half, quarter) = (sandbox.disk / 2, sandbox.disk / 4);
        Ok(match self {
            Larder::Memory => Vec::new(),
            Larder::Async | Larder::Sync | Larder::Flash => {
                vec![format!("{first}:{}MB", sandbox.disk)]
            }
            Larder::Flash2 => vec![format!("{first}:{half}MB"), format!("{second}:{half}MB")],
            Larder::Tiers => vec![
                format!("{first}:{quarter}MB@fast"),
                format!("{second}:{}MB@large", sandbox.disk - quarter),
            ],
        })
    }
}

impl Recipe for Larder {
    fn find(&self, _places: &Places) -> std::result::Result<Programs, Missing> {
        let missing = |why: String| Missing { why, install: "cargo build --release".into() };
        let program = executable().map_err(|error| missing(error.to_string()))?;
        match is_program(&program) {
            true => Ok(Programs::only(program)),
            false => Err(missing(format!("{} is not a program", program.display()))),
        }
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(self.file(&programs.server), &["--version"])?;
        Ok(line.strip_prefix("larder ").unwrap_or(&line).to_owned())
    }

    /// Returns the running program, so that all servers of a run are the same build.
    fn file<'a>(&self, program: &'a Path) -> &'a Path {
        if cfg!(test) { program } else { Path::new(RUNNING) }
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let program = Program::larder(Some(&programs.server), "auto")?;
        let mut settings = vec![base(&program, sandbox, ports[0])];
        if let Some((durability, why)) = self.durability() {
            for store in self.stores(sandbox)? {
                let why = "the space that the experiment gives";
                settings.push(Setting::new(["--store", &store], why));
            }
            settings.push(Setting::new(["--durability", durability], why));
        }
        let mut plan = StartPlan::new(programs.server.clone(), settings);
        if *self != Larder::Memory {
            plan.directories.push(sandbox.dir.join("store"));
        }
        if matches!(self, Larder::Flash2 | Larder::Tiers) {
            let second = sandbox.second_dir.as_ref().unwrap_or(&sandbox.dir);
            plan.directories.push(second.join("store-2"));
        }
        Ok(plan)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Memcached
    }
}

/// Returns the arguments that the lab always gives to Larder, memcached and pogocache.
pub(super) fn base(program: &Program, sandbox: &Sandbox, port: u16) -> Setting {
    let allowance = Allowance { memory: sandbox.memory, threads: sandbox.threads, cpu: None };
    Setting::plain(program.arguments(port, allowance))
}

/// Returns the Larder to measure: this executable. A test executable contains no server, so in a
/// test it is the program that `LARDER` names, or the `larder` that was built beside the test.
fn executable() -> Result<PathBuf> {
    let own = env::current_exe().map_err(|e| Error::io("cannot find the own executable", e))?;
    if !cfg!(test) {
        return Ok(own);
    }
    let beside = own.parent().and_then(|deps| Some(deps.parent()?.join("larder")));
    Ok(env::var_os("LARDER").map(PathBuf::from).or(beside).unwrap_or(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn the_running_program_can_be_started() {
        // A test executable lists its tests, one a line.
        let line = first_line(Path::new(RUNNING), &["--list"]).unwrap();
        assert!(line.ends_with(": test"), "{line}");
    }

    #[test]
    fn each_store_has_its_durability() {
        let programs = Programs::only("/bin/larder".into());
        let sandbox = Sandbox { disk: 512, ..sandbox() };
        let plan = |larder: Larder| line(&larder.plan(&programs, &sandbox, [9, 10]).unwrap());
        let base = "/bin/larder serve -l 127.0.0.1 -p 9 -m 64 -t 2 -c 10000 --admin off --io auto";
        assert_eq!(plan(Larder::Memory), base);
        let store = format!("{base} --store /sandbox/store:512MB --durability");
        assert_eq!(plan(Larder::Async), format!("{store} async"));
        assert_eq!(plan(Larder::Sync), format!("{store} sync"));
        assert_eq!(plan(Larder::Flash), format!("{store} none"));
    }
}
