//! The two processes of the Sinatra application. They are killed when the lab ends, as servers are.

use std::io::{self, PipeReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use larder_client::Address;

use super::http::Http;
use crate::interrupt::is_interrupted;
use crate::process::Sample;
use crate::supervise::{Processes, free_port};
use crate::{Error, Result};

/// The script of the application. It contains the code of Larder's gem, so the gem need not be
/// installed.
const SCRIPT: &str = concat!(
    include_str!("../../../../../../adapters/ruby-rack-attack/lib/rack/attack/larder.rb"),
    include_str!("table_store.rb"),
    include_str!("application.rb"),
);
/// The command that installs the dependencies of the application.
const INSTALL: &str = "apt-get install ruby ruby-sinatra puma ruby-rack-attack ruby-dalli \
                       ruby-redis ruby-mysql2 ruby-activesupport ruby-connection-pool";
/// The path that returns the versions of the gems. Rack::Attack does not count requests for it.
const VERSIONS: &str = "/versions";
/// The longest time until a process answers.
const START: Duration = Duration::from_secs(60);
/// Interval between two attempts to reach a process that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The largest part of a process's output that is searched for an error, in bytes.
const OUTPUT_MAX: u64 = 64 * 1024;

/// Two processes of the application, which share a store.
#[derive(Debug)]
pub(super) struct Application {
    pub(super) processes: [Process; 2],
    /// The versions of Ruby and the gems.
    pub(super) versions: String,
}

/// One process of the application. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) address: Address,
    processes: Processes,
    output: PipeReader,
}

impl Application {
    /// Starts both processes and waits until they answer.
    ///
    /// # Errors
    /// Returns an error if they do not start. If a gem is missing, the error names the command that
    /// installs it.
    pub(super) fn start(store: &str, server: &Address, limit: u64, threads: usize) -> Result<Self> {
        let Address::Tcp(server) = server else {
            return Err(Error::usage("the application needs a server on a TCP port"));
        };
        let start = || Process::start(store, server, limit, threads);
        let mut processes = [start()?, start()?];
        let mut versions = String::new();
        for process in &mut processes {
            versions = process.wait_until_it_answers()?;
        }
        Ok(Application { processes, versions })
    }

    /// Returns the processor time and the memory of both processes together.
    pub(super) fn sample(&self) -> Result<Sample> {
        let [one, other] = &self.processes;
        let (one, other) = (one.processes.probe().sample()?, other.processes.probe().sample()?);
        Ok(Sample {
            cpu_ns: one.cpu_ns + other.cpu_ns,
            rss: one.rss + other.rss,
            ..Sample::default()
        })
    }
}

impl Process {
    fn start(store: &str, server: &str, limit: u64, threads: usize) -> Result<Process> {
        let doing = |e| Error::io("cannot start a process of the application", e);
        let port = free_port()?;
        let (script, mut text) = io::pipe().map_err(doing)?;
        let (output, end) = io::pipe().map_err(doing)?;
        let mut command = Command::new("ruby");
        command.args(["-", store, server, &port.to_string(), &limit.to_string()]);
        command.arg(threads.to_string()).env("RACK_ENV", "production").env("APP_ENV", "production");
        command.stdin(script).stdout(Stdio::null()).stderr(end);
        let processes = Processes::start(command, None).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing("ruby is not on the PATH"),
            _ => doing(error),
        })?;
        // A write error is ignored: if the process has ended, `wait_until_it_answers` reports that.
        let _ = text.write_all(SCRIPT.as_bytes());
        Ok(Process { address: Address::Tcp(format!("127.0.0.1:{port}")), processes, output })
    }

    /// Returns the versions of the gems once the process answers.
    fn wait_until_it_answers(&mut self) -> Result<String> {
        let started = Instant::now();
        loop {
            let answer = Http::connect(&self.address).and_then(|mut http| http.get(VERSIONS));
            match answer {
                Ok(answer) if answer.status == 200 => return Ok(answer.body),
                Ok(answer) => {
                    let text =
                        format!("the application answered {}: {}", answer.status, answer.body);
                    return Err(Error::server(text));
                }
                Err(_) => {}
            }
            if self.processes.ended().is_some() {
                return Err(self.failure());
            }
            if is_interrupted() {
                return Err(Error::server("interrupted"));
            }
            if started.elapsed() > START {
                return Err(Error::server("the application did not answer after its start"));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the reason why the process has ended, from its output. Kills the remaining child
    /// processes first. Otherwise they could hold the output open, and the read of it would not
    /// end.
    fn failure(&mut self) -> Error {
        self.processes.kill();
        let mut text = Vec::new();
        let _ = (&self.output).take(OUTPUT_MAX).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().filter(|line| !line.contains("warning:"));
        match text.lines().find(|line| line.contains("LoadError")) {
            Some(line) => missing(line),
            None => Error::server(format!(
                "the application ended at once: {}",
                lines.next().unwrap_or("it printed no reason")
            )),
        }
    }
}

fn missing(why: &str) -> Error {
    Error::server(format!("{why}; to install the dependencies: {INSTALL}"))
}
