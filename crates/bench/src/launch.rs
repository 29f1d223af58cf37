//! Starts and stops the servers to compare.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use larder_client::{Address, Client};

use crate::process::Probe;
use crate::supervise::{Processes, free_port};
use crate::{Error, Result};

/// The longest time from a server's start to its first answer.
const START: Duration = Duration::from_secs(20);
/// The longest time that a server may take to end after SIGTERM.
const STOP: Duration = Duration::from_secs(5);

/// The kind of command-line options that a server program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `larder serve`.
    Larder,
    /// memcached's flags.
    Memcached,
    /// pogocache's flags.
    Pogocache,
}

/// A server program with its extra options.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The name to print in tables.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) dialect: Dialect,
    pub(crate) extra: Vec<String>,
}

/// The resources that a started server gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Memory limit in MiB.
    pub(crate) memory: u64,
    pub(crate) threads: usize,
    /// The processor to pin the server to.
    pub(crate) cpu: Option<usize>,
}

impl Program {
    /// Returns the program for Larder with the network back-end `io`. Its file is `path`, or this
    /// executable if `path` is `None`.
    pub(crate) fn larder(path: Option<&Path>, io: &str) -> Result<Program> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()
                .map_err(|e| Error::io("cannot find the own executable", e))?,
        };
        Ok(Program {
            name: format!("larder {io}"),
            path,
            dialect: Dialect::Larder,
            extra: vec!["--io".into(), io.into()],
        })
    }

    /// Parses a peer, `[NAME=]PATH[ EXTRA…]`. The last part of `PATH` determines the dialect.
    pub(crate) fn peer(text: &str) -> Result<Program> {
        let mut words = text.split_ascii_whitespace().map(str::to_owned);
        let first = words.next().ok_or_else(|| Error::usage("a peer needs a path"))?;
        let (name, path) = match first.split_once('=') {
            Some((name, path)) => (Some(name.to_owned()), PathBuf::from(path)),
            None => (None, PathBuf::from(&first)),
        };
        let file = path.file_name().map(|file| file.to_string_lossy().into_owned());
        let file = file.ok_or_else(|| Error::usage(format!("{first:?} is not a program")))?;
        let dialect = match file.contains("pogocache") {
            true => Dialect::Pogocache,
            false => Dialect::Memcached,
        };
        Ok(Program { name: name.unwrap_or(file), path, dialect, extra: words.collect() })
    }

    /// Returns the arguments for a server on a loopback port.
    pub(crate) fn arguments(&self, port: u16, allowance: Allowance) -> Vec<String> {
        let Allowance { memory, threads, .. } = allowance;
        let text = match self.dialect {
            Dialect::Larder => format!(
                "serve -l 127.0.0.1 -p {port} -m {memory} -t {threads} -c 10000 --admin off"
            ),
            Dialect::Memcached => format!(
                "-l 127.0.0.1 -p {port} -U 0 -m {memory} -t {threads} -c 10000 -u {}",
                std::env::var("USER").unwrap_or_else(|_| "root".into())
            ),
            Dialect::Pogocache => format!(
                "-h 127.0.0.1 -p {port} --maxmemory {memory}mb --threads {threads} --maxconns 10000"
            ),
        };
        text.split(' ').map(str::to_owned).chain(self.extra.iter().cloned()).collect()
    }

    /// Starts the program on a free loopback port and waits until it answers.
    ///
    /// # Errors
    /// Returns [`Error::Server`] if the server ends or does not answer. What the server wrote to
    /// its standard error then stands above the error message.
    pub(crate) fn start(&self, allowance: Allowance) -> Result<RunningServer> {
        let port = free_port()?;
        let mut command = Command::new(&self.path);
        command.args(self.arguments(port, allowance));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let processes = Processes::start(command, allowance.cpu)
            .map_err(|e| Error::io(format!("cannot start {}", self.path.display()), e))?;
        let address = Address::Tcp(format!("127.0.0.1:{port}"));
        let mut running = RunningServer { processes, address, version: String::new() };
        running.version = running.wait_until_it_answers(&self.name)?;
        Ok(running)
    }
}

/// A started server. Dropping it stops the server.
#[derive(Debug)]
pub(crate) struct RunningServer {
    processes: Processes,
    pub(crate) address: Address,
    /// The server's reply to `version`.
    pub(crate) version: String,
}

impl RunningServer {
    pub(crate) fn probe(&self) -> Probe {
        self.processes.probe()
    }

    pub(crate) fn client(&self) -> Result<Client> {
        Ok(Client::connect_to(&self.address, larder_client::Options::default())?)
    }

    /// Returns the row `name` of the server's `stats` as a number.
    pub(crate) fn stat(&self, name: &str) -> Result<u64> {
        let rows = self.client()?.stats(None)?;
        let value = rows.iter().find(|row| row.0 == name).map(|row| row.1.as_str());
        value.and_then(|value| value.parse().ok()).ok_or_else(|| {
            Error::server(format!("the server at {} has no number {name} in stats", self.address))
        })
    }

    fn wait_until_it_answers(&mut self, name: &str) -> Result<String> {
        let started = Instant::now();
        loop {
            if let Ok(version) = self.client().and_then(|mut client| Ok(client.version()?)) {
                return Ok(version);
            }
            if let Some(status) = self.processes.ended() {
                return Err(Error::server(format!("{name} ended at once: {status}")));
            }
            if started.elapsed() > START {
                return Err(Error::server(format!("{name} does not answer at {}", self.address)));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // A server that does not end is killed, so that it cannot disturb the next measurement.
        self.processes.stop(libc::SIGTERM, STOP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_and_told_apart() {
        let peer = Program::peer("old=/usr/bin/memcached -R 200").unwrap();
        assert_eq!((peer.name.as_str(), peer.dialect), ("old", Dialect::Memcached));
        assert_eq!(peer.extra, ["-R", "200"]);
        let peer = Program::peer("../pogocache").unwrap();
        assert_eq!((peer.name.as_str(), peer.dialect), ("pogocache", Dialect::Pogocache));
        assert!(Program::peer("").is_err());
        assert!(Program::peer("/").is_err());
    }

    #[test]
    fn a_program_that_ends_or_is_missing_is_reported() {
        let allowance = Allowance { memory: 64, threads: 1, cpu: Some(0) };
        let error = Program::peer("/bin/false").unwrap().start(allowance).unwrap_err();
        assert!(error.to_string().contains("false ended at once"), "{error}");
        let error = Program::peer("/nowhere/memcached").unwrap().start(allowance).unwrap_err();
        assert!(error.to_string().contains("/nowhere/memcached"), "{error}");
    }
}
