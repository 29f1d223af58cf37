//! A running system: how it is prepared, started, stopped, restarted and removed.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use larder_client::Address;

use super::catalogue::{Found, System};
use super::confine::Confinement;
use super::places::Programs;
use super::ready;
use super::sandbox::{self, Sandbox};
use super::start_plan::{Account, StartPlan};
use crate::interrupt::is_interrupted;
use crate::lab::disk;
use crate::process::Probe;
use crate::supervise::{self, POLL_INTERVAL, Processes, free_port};
use crate::wire::Wire;
use crate::{Error, Result};

/// The longest time that a server may take to end after its stop signal.
const STOP: Duration = Duration::from_secs(5);
/// The longest time that a preparation, such as the creation of a database, may take.
const PREPARATION: Duration = Duration::from_secs(180);
/// The longest time that a program may take to print its version, or to look for its libraries.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// Interval between two attempts to reach a server that starts.
const ATTEMPT: Duration = Duration::from_millis(1);
/// The file in the directory of a server with everything that its programs print.
const LOG: &str = "log";
/// The largest number of bytes of the log that an error message quotes.
const LOG_TAIL: usize = 2000;

/// A running system. Dropping it stops the server and removes its directories.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: Address,
    /// The version of the program.
    pub(crate) version: String,
    /// The command line, and the settings that matter, with their reasons.
    pub(crate) settings: Vec<String>,
    system: System,
    plan: StartPlan,
    sandbox: Sandbox,
    /// `None` before the first start.
    processes: Option<Processes>,
    /// The group that bounds the page cache. It is dropped after the processes have ended.
    confinement: Option<Confinement>,
}

impl Server {
    /// Prepares the sandbox and starts the system. If the preparation or the start fails, nothing
    /// stays behind.
    pub(super) fn start(found: &Found, sandbox: &Sandbox) -> Result<Server> {
        let (system, programs) = (&found.system, &found.programs);
        let recipe = system.recipe();
        let ports = [free_port()?, free_port()?];
        let plan = recipe.plan(programs, sandbox, ports)?;
        let mut server = Server {
            address: Address::Tcp(format!("127.0.0.1:{}", ports[0])),
            version: recipe.version(programs)?,
            settings: explained(&plan, programs, sandbox, ports),
            system: system.clone(),
            plan,
            sandbox: sandbox.clone(),
            processes: None,
            confinement: None,
        };
        server.require_space()?;
        server.prepare()?;
        server.make_confinement();
        server.start_again()?;
        recipe.verify(&server.address)?;
        Ok(server)
    }

    /// Returns the [`Wire`] of a protocol other than memcached's; `None` for memcached's.
    pub(crate) fn wire(&self) -> Option<Arc<dyn Wire>> {
        self.system.recipe().wire(&self.sandbox)
    }

    /// Returns a probe of all processes of the server. After [`Server::start_again`], the server
    /// has other processes, and the caller needs a new probe.
    pub(crate) fn probe(&self) -> Probe {
        match &self.processes {
            Some(processes) => processes.probe(),
            None => Probe::process(0),
        }
    }

    /// Returns the bytes of the device blocks that the server's files take.
    pub(crate) fn disk_used(&self) -> u64 {
        let directories = std::iter::once(&self.sandbox.dir).chain(&self.sandbox.second_dir);
        directories.map(|directory| blocks_below(directory)).sum()
    }

    /// Returns the path of a file that is removed with the server.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.sandbox.dir.join(name)
    }

    /// Returns everything that the server's programs have printed so far.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.sandbox.dir.join(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Asks the server whether it is writing a checkpoint; `None` if the system writes none, or
    /// writes them in small parts all the time.
    pub(super) fn writes_checkpoint(&self) -> Result<Option<bool>> {
        self.system.recipe().writes_checkpoint(&self.address, &|| self.log())
    }

    /// Kills all processes of the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(processes) = &mut self.processes {
            processes.kill();
        }
    }

    /// Stops the server as an operator would. Returns false if it had to be killed after
    /// `patience`.
    pub(crate) fn stop(&mut self, patience: Duration) -> bool {
        let signal = self.plan.stop_signal;
        self.processes.as_mut().is_none_or(|processes| processes.stop(signal, patience))
    }

    /// Starts the server in the same directory, on the same port, and waits until it answers.
    ///
    /// # Errors
    /// Returns an error if the server does not start. The message contains the end of its output.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.kill();
        let arguments = self.plan.arguments().map(str::to_owned).collect::<Vec<_>>();
        let command = self.command(&self.plan.program, &arguments)?;
        self.processes = Some(start(command)?);
        self.wait_until_it_answers()?;
        self.confine()
    }

    /// If the sandbox bounds the page cache, makes the memory control group, provided that the
    /// machine allows it. A line in the settings then tells whether the page cache is bounded.
    fn make_confinement(&mut self) {
        let Some(page_cache) = self.sandbox.page_cache else { return };
        let name = self.sandbox.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.confinement = Confinement::new(&name);
        self.settings.push(match &self.confinement {
            Some(_) => {
                let (mebibytes, spare) = (self.group_memory(page_cache), self.spare_memory());
                format!(
                    "memory control group of {mebibytes} MiB, page cache included; after the fill \
                     its limit falls to what the server holds and {spare} MiB"
                )
            }
            None => "page cache not bounded: no memory control group may be made here".to_owned(),
        });
    }

    /// Returns the limit of the memory control group in MiB.
    fn group_memory(&self, page_cache: u64) -> u64 {
        self.sandbox.memory + page_cache + self.system.recipe().overhead(&self.sandbox)
    }

    /// Returns the memory in MiB that the group has after the fill besides what the server holds:
    /// the page cache, and room for growth.
    fn spare_memory(&self) -> u64 {
        self.sandbox.page_cache.unwrap_or(0) + self.system.recipe().growth(&self.sandbox)
    }

    /// Lowers the limit of the group to the memory that the server holds now, plus the sandbox's
    /// page cache and room for growth. Before, the server's unused memory could serve as page
    /// cache. Returns the limit in bytes, or `None` without a group.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot free the memory above the limit.
    pub(crate) fn tighten(&self) -> Result<Option<u64>> {
        let Some(group) = &self.confinement else { return Ok(None) };
        let limit = group.tighten(self.spare_memory() << 20);
        limit.map(Some).map_err(|e| Error::io("cannot bound the page cache", e))
    }

    /// Moves all processes into the group.
    fn confine(&self) -> Result<()> {
        let (Some(group), Some(processes)) = (&self.confinement, &self.processes) else {
            return Ok(());
        };
        let mebibytes = self.group_memory(self.sandbox.page_cache.unwrap_or(0));
        group
            .hold(&processes.pids(), mebibytes << 20)
            .map_err(|e| Error::io("cannot bound the page cache", e))
    }

    /// Checks that the devices have the space that the server may need. A server without space
    /// would answer writes with errors, which would look like a fault of the server.
    fn require_space(&self) -> Result<()> {
        let Sandbox { dir, second_dir, disk, .. } = &self.sandbox;
        let [first, second] = self.system.space(*disk);
        let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
        match second_dir {
            Some(other) if device(other) != device(dir) => {
                disk::require_space(dir, first)?;
                disk::require_space(other, second)
            }
            _ => disk::require_space(dir, first + second),
        }
    }

    /// Creates directories and files, and runs the preparations.
    fn prepare(&self) -> Result<()> {
        if self.plan.account.is_some() {
            require_open(&self.sandbox.dir)?;
        }
        for directory in &self.plan.directories {
            fs::create_dir_all(directory)
                .map_err(|e| Error::io(format!("cannot create {}", directory.display()), e))?;
            self.give(directory)?;
        }
        for file in &self.plan.files {
            fs::write(&file.path, file.text())
                .map_err(|e| Error::io(format!("cannot write {}", file.path.display()), e))?;
            self.give(&file.path)?;
        }
        for preparation in &self.plan.preparation {
            let command = self.command(&preparation.program, &preparation.arguments)?;
            let mut processes = start(command)?;
            let name = preparation.program.display();
            match processes.wait(PREPARATION, POLL_INTERVAL, |_| {})? {
                Some(status) if status.success() => {}
                Some(status) => return Err(self.failed(format!("{name} failed: {status}"))),
                None => return Err(self.failed(format!("{name} does not end"))),
            }
        }
        Ok(())
    }

    /// Makes the server's account the owner of a file or directory.
    fn give(&self, path: &Path) -> Result<()> {
        let Some(Account { user, group }) = self.plan.account else { return Ok(()) };
        chown(path, Some(user), Some(group))
            .map_err(|e| Error::io(format!("cannot change the owner of {}", path.display()), e))
    }

    fn command(&self, program: &Path, arguments: &[String]) -> Result<Command> {
        let path = self.sandbox.dir.join(LOG);
        let failed = |e| Error::io(format!("cannot write {}", path.display()), e);
        let log = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        let second = log.try_clone().map_err(failed)?;
        let mut command = Command::new(self.system.recipe().file(program));
        command.arg0(program).args(arguments).current_dir(&self.sandbox.dir);
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        if let Some(Account { user, group }) = self.plan.account {
            command.uid(user).gid(group);
        }
        Ok(command)
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let Err(last) = ready::ask(self.system.recipe().protocol(), &self.address) else {
                return Ok(());
            };
            let ended = self.processes.as_mut().and_then(Processes::ended);
            if let Some(status) = ended {
                return Err(self.failed(format!("{} ended at once: {status}", self.system.name)));
            }
            if is_interrupted() {
                return Err(Error::server("interrupted"));
            }
            if begun.elapsed() > self.plan.patience {
                let name = self.system.name;
                return Err(self.failed(format!("{name} does not answer ({last})")));
            }
            thread::sleep(ATTEMPT);
        }
    }

    /// Returns an error that quotes the end of the log.
    fn failed(&self, text: String) -> Error {
        let log = self.log();
        let from = log.len().saturating_sub(LOG_TAIL);
        let from = (from..=log.len()).find(|&at| log.is_char_boundary(at)).unwrap_or(log.len());
        match log[from..].trim() {
            "" => Error::server(text),
            tail => Error::server(format!("{text}; its last words:\n{tail}")),
        }
    }
}

/// Returns the bytes of the blocks of all files below a directory. Files and directories that
/// cannot be read count as 0.
fn blocks_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => blocks_below(&entry.path()),
        Ok(facts) => facts.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(size).sum()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(STOP);
        sandbox::remove(&self.sandbox.dir);
        self.sandbox.second_dir.iter().for_each(|directory| sandbox::remove(directory));
    }
}

/// Returns the settings of a plan. Names replace the paths of this machine and the ports of this
/// start, so that the settings of two starts can be compared as text.
fn explained(
    plan: &StartPlan,
    programs: &Programs,
    sandbox: &Sandbox,
    ports: [u16; 2],
) -> Vec<String> {
    let name = |path: &'_ Path| path.file_name().and_then(OsStr::to_str).map(str::to_owned);
    let programs = [Some(&programs.server), programs.companion.as_ref()].into_iter().flatten();
    let mut names: Vec<(&Path, String)> = vec![(&sandbox.dir, "DIR".to_owned())];
    names.extend(sandbox.second_dir.iter().map(|dir| (dir.as_path(), "SECOND_DIR".to_owned())));
    names.extend(programs.filter_map(|path| Some((path.as_path(), name(path)?))));
    let names: Vec<(&Path, &str)> = names.iter().map(|(path, name)| (*path, &**name)).collect();
    let names_of_ports = ports.into_iter().zip(["PORT", "SECOND_PORT"]);
    let without_ports = |line: String| {
        names_of_ports.clone().fold(line, |line, (port, name)| with_port(&line, port, name))
    };
    plan.explained(&names).into_iter().map(without_ports).collect()
}

/// Replaces a port by a name, but not where its digits are a part of a longer number or word.
fn with_port(line: &str, port: u16, name: &str) -> String {
    let port = port.to_string();
    let (mut named, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(&port) {
        let (before, after) = (&rest[..at], &rest[at + port.len()..]);
        named.push_str(before);
        let is_inside = named.ends_with(|c: char| c.is_ascii_alphanumeric())
            || after.starts_with(|c: char| c.is_ascii_alphanumeric());
        named.push_str(if is_inside { &port } else { name });
        rest = after;
    }
    named + rest
}

fn start(command: Command) -> Result<Processes> {
    let program = PathBuf::from(command.get_program());
    Processes::start(command, None)
        .map_err(|e| Error::io(format!("cannot start {}", program.display()), e))
}

/// Checks that other accounts may enter a directory.
fn require_open(directory: &Path) -> Result<()> {
    let closed = directory.ancestors().find(|path| {
        path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0)
    });
    match closed {
        None => Ok(()),
        Some(path) => Err(Error::usage(format!(
            "PostgreSQL cannot run as root, and other accounts may not enter {}: choose another \
             directory",
            path.display()
        ))),
    }
}

/// Runs a program that ends at once, and returns the first line of its standard output that is not
/// empty.
pub(super) fn first_line(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = supervise::output(command, b"", ANSWER)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    line.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Error::server(format!("{} printed no version: {}", program.display(), errors.trim()))
    })
}

/// Returns true if the lab runs as root.
pub(super) fn is_root() -> bool {
    // The kernel makes the effective user the owner of this directory.
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Finds an account by its name.
pub(super) fn account_of(name: &str) -> Option<Account> {
    account_in(&fs::read_to_string("/etc/passwd").ok()?, name)
}

fn account_in(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        let user = fields.nth(1)?.parse().ok()?;
        Some(Account { user, group: fields.next()?.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:admin,,,:/var:/bin/sh\n";
        let postgres = Account { user: 101, group: 104 };
        assert_eq!(account_in(passwd, "postgres"), Some(postgres));
        assert_eq!(account_in(passwd, "post"), None);
        assert_eq!(account_in("postgres:x:a:b", "postgres"), None);
    }

    #[test]
    fn the_first_line_is_that_of_the_standard_output() {
        let shell = Path::new("/bin/sh");
        let line = first_line(shell, &["-c", "echo x >&2; echo; echo ' v1 '; echo v2; exit 1"]);
        assert_eq!(line.unwrap(), "v1");
        let error = first_line(shell, &["-c", "echo no such option >&2"]).unwrap_err();
        assert!(error.to_string().contains("no such option"), "{error}");
        assert!(first_line(Path::new("/nowhere/server"), &[]).is_err());
    }

    #[test]
    fn ports_have_names_in_settings() {
        assert_eq!(with_port("-p 16000 -m 160001", 16_000, "PORT"), "-p PORT -m 160001");
        assert_eq!(with_port("--port=16000:16000M", 16_000, "PORT"), "--port=PORT:16000M");
        assert_eq!(with_port("16000", 16_000, "PORT"), "PORT");
        assert_eq!(with_port("-p 1600016000", 16_000, "PORT"), "-p 1600016000");
    }

    #[test]
    fn a_closed_directory_is_named() {
        let directory = std::env::temp_dir().join(format!("larder-open-{}", std::process::id()));
        fs::create_dir_all(directory.join("inner")).unwrap();
        assert!(require_open(&directory.join("inner")).is_ok());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        let error = require_open(&directory.join("inner")).unwrap_err().to_string();
        assert!(error.contains(&directory.display().to_string()), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }
}
