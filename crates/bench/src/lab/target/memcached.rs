//! memcached, in memory and with extstore, and pogocache.

use super::catalogue::{Missing, Recipe};
use super::larder::base;
use super::places::{Places, Programs};
use super::ready::Protocol;
use super::sandbox::{Sandbox, text_of};
use super::server::first_line;
use super::start_plan::{Setting, StartPlan};
use crate::Result;
use crate::launch::{Dialect, Program};

/// memcached, in memory or with extstore's files on one or two devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memcached {
    /// Number of devices of extstore; 0 is memcached without extstore.
    pub(super) devices: usize,
}

impl Recipe for Memcached {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        // ARCUS's program has the same name. If it comes first on the PATH, it is taken for
        // memcached.
        places.need("memcached").map(Programs::only)
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let line = first_line(&programs.server, &["-V"])?;
        Ok(line.strip_prefix("memcached ").unwrap_or(&line).to_owned())
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let program = foreign("memcached", programs, Dialect::Memcached);
        let mut settings = vec![base(&program, sandbox, ports[0])];
        let second = sandbox.second_dir.as_ref().unwrap_or(&sandbox.dir);
        let directories = [&sandbox.dir, second];
        let size = sandbox.disk / self.devices.max(1) as u64;
        for (number, directory) in directories.into_iter().take(self.devices).enumerate() {
            let path = text_of(&directory.join(format!("extstore-{number}")))?;
            settings.push(Setting::new(
                ["-o".to_owned(), format!("ext_path={path}:{size}M")],
                "the space that the experiment gives",
            ));
        }
        if self.devices > 0 {
            settings.push(Setting::new(
                ["-o".to_owned(), format!("ext_threads={}", sandbox.io_threads)],
                "each thread waits for one read at a time, and the default is one thread a device",
            ));
        }
        Ok(StartPlan::new(programs.server.clone(), settings))
    }

    fn protocol(&self) -> Protocol {
        Protocol::Memcached
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pogocache;

impl Recipe for Pogocache {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        match places.program("pogocache") {
            Some(program) => Ok(Programs::only(program)),
            None => Err(Missing {
                why: "pogocache is not on the PATH, and no package registry has it".into(),
                install: "build github.com/tidwall/pogocache with make, and put it on the PATH"
                    .into(),
            }),
        }
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        first_line(&programs.server, &["--version"])
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let program = foreign("pogocache", programs, Dialect::Pogocache);
        Ok(StartPlan::new(programs.server.clone(), vec![base(&program, sandbox, ports[0])]))
    }

    fn protocol(&self) -> Protocol {
        Protocol::Memcached
    }
}

fn foreign(name: &str, programs: &Programs, dialect: Dialect) -> Program {
    Program { name: name.into(), path: programs.server.clone(), dialect, extra: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn extstore_has_a_file_on_each_device() {
        let programs = Programs::only("/bin/memcached".into());
        let sandbox = Sandbox { disk: 1000, second_dir: Some("/other".into()), ..sandbox() };
        let plan =
            |devices| line(&Memcached { devices }.plan(&programs, &sandbox, [9, 10]).unwrap());
        assert!(!plan(0).contains("ext_"));
        assert!(plan(1).ends_with("-o ext_path=/sandbox/extstore-0:1000M -o ext_threads=16"));
        assert!(plan(2).ends_with(
            "-o ext_path=/sandbox/extstore-0:500M -o ext_path=/other/extstore-1:500M \
             -o ext_threads=16"
        ));
    }
}
