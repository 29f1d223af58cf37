//! The server under test: a real process that is started, queried and killed.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use larder_client::{Address, Client, Options};

use crate::operation::{Key, Operation};
use crate::reply::{self, Reply, Seen};

/// The longest time for a start of the server, including its recovery.
const START: Duration = Duration::from_secs(30);
/// The longest time for the server to stop after SIGTERM.
const STOP: Duration = Duration::from_secs(30);
/// The longest wait for an answer on one of the test's own connections.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of keys read in one pipeline after a restart.
const TOGETHER: usize = 16;

/// The durability promised for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Durability {
    Sync,
    Async,
}

/// How to start the server.
#[derive(Clone, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) binary: PathBuf,
    /// The directory of the store.
    pub(crate) store: PathBuf,
    /// The size of the store in MiB.
    pub(crate) store_mib: u64,
    /// The values of `--store` if there are several devices; they replace `store`.
    pub(crate) devices: Vec<String>,
    /// If true, a full store evicts items; otherwise it refuses writes.
    pub(crate) evicts: bool,
    pub(crate) memory_mib: u64,
    pub(crate) durability: Durability,
    pub(crate) sync_interval: Duration,
    /// Arguments for the server besides those that the other fields give.
    pub(crate) arguments: Vec<String>,
    /// The file that receives the server's output.
    pub(crate) log: PathBuf,
}

impl ServerPlan {
    fn command(&self, port: u16) -> io::Result<Command> {
        let durability = match self.durability {
            Durability::Sync => "sync",
            Durability::Async => "async",
        };
        let mut command = Command::new(&self.binary);
        let when_full = if self.evicts { "evict" } else { "refuse" };
        command.args([
            "serve",
            "--listen",
            "127.0.0.1",
            "--admin",
            "off",
            "--when-full",
            when_full,
        ]);
        command.args(["--port", &port.to_string(), "--memory", &format!("{}MB", self.memory_mib)]);
        let one = [format!("{}:{}MB", self.store.display(), self.store_mib)];
        for store in if self.devices.is_empty() { &one[..] } else { &self.devices } {
            command.args(["--store", store]);
        }
        command.args(["--durability", durability, "--sync-interval"]);
        command.arg(format!("{}ms", self.sync_interval.as_millis()));
        command.args(&self.arguments);
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Starts the server, and kills it when `after` has passed, even during its recovery.
    pub(crate) fn start_and_kill(&self, after: Duration) -> io::Result<()> {
        let mut child = self.command(free_port()?)?.spawn()?;
        thread::sleep(after);
        child.kill()?;
        child.wait().map(drop)
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// Returns an error with the end of the server's output if the server ends or does not answer.
    pub(crate) fn start(&self) -> io::Result<Server> {
        let port = free_port()?;
        let begun = Instant::now();
        let child = self.command(port)?.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", self.binary.display()))
        })?;
        let mut server = Server { child, port, ready_after: Duration::ZERO };
        loop {
            if server.connect().and_then(|mut talk| talk.line("version")).is_ok() {
                server.ready_after = begun.elapsed();
                return Ok(server);
            }
            let why = match server.child.try_wait()? {
                Some(status) => format!("the server ended at its start: {status}"),
                None if begun.elapsed() > START => {
                    format!("the server did not answer within {} s", START.as_secs())
                }
                None => {
                    thread::sleep(Duration::from_millis(3));
                    continue;
                }
            };
            return Err(io::Error::other(format!("{why}; it printed:\n{}", tail(&self.log))));
        }
    }
}

/// Returns the item in the reply to a get of `key`.
fn content(key: Key, reply: Reply) -> io::Result<Option<Seen>> {
    match reply {
        Reply::Item(seen) => Ok(Some(seen)),
        Reply::Miss => Ok(None),
        other => Err(io::Error::other(format!("get of {} was answered {other:?}", key.name()))),
    }
}

/// Returns true if the other side has closed the connection.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Returns the last part of a text file.
pub(crate) fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// A running server. Dropping the value kills the server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// Time from the server's start until it answered.
    pub(crate) ready_after: Duration,
}

impl Server {
    pub(crate) fn connect(&self) -> io::Result<Talk> {
        Talk::new(self.port)
    }

    /// Returns true if the process still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the server with SIGKILL and waits until its process has ended.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Sends SIGKILL without waiting: a process that waits for its disk ends only when the disk
    /// answers.
    pub(crate) fn signal_kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Asks the server to stop with SIGTERM, and waits until its process has ended. Fails after
    /// [`STOP`].
    pub(crate) fn terminate(mut self) -> io::Result<ExitStatus> {
        let id = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        // SAFETY: the call accesses no memory. The child was not waited for, so the id still names
        // this child.
        if unsafe { libc::kill(id, libc::SIGTERM) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let asked = Instant::now();
        while asked.elapsed() < STOP {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(3));
        }
        Err(io::Error::other(format!("the server did not stop within {} s", STOP.as_secs())))
    }

    /// Reads all `keys`. If `errors` is true, the server may answer a get with an error, because
    /// the values that it reads or moves at that time leave no memory for the value. This function
    /// then reads that key again, alone.
    pub(crate) fn read_all(
        &self,
        keys: &[Key],
        errors: bool,
    ) -> io::Result<Vec<(Key, Option<Seen>)>> {
        let mut talk = self.connect()?;
        let mut found = Vec::with_capacity(keys.len());
        let mut cut = 0;
        for group in keys.chunks(TOGETHER) {
            loop {
                match talk.get_all(group, errors) {
                    // A server that evicts or moves a large value while sending it closes the
                    // connection. The server counts such closes in its statistics.
                    Err(error) if is_end(&error) && cut < self.values_cut()? => {
                        cut += 1;
                        talk = self.connect()?;
                    }
                    read => break found.extend(read?),
                }
            }
        }
        Ok(found)
    }

    fn values_cut(&self) -> io::Result<u64> {
        self.stat("larder_values_cut")?.parse().map_err(io::Error::other)
    }

    /// Returns the server's statistics: the rows of `stats`.
    pub(crate) fn stats(&self) -> io::Result<Vec<(String, String)>> {
        Ok(self.connect()?.client.stats(None)?)
    }

    /// Returns the row `name` of `stats`.
    pub(crate) fn stat(&self, name: &str) -> io::Result<String> {
        let row = self.stats()?.into_iter().find(|(row, _)| row == name);
        row.map(|(_, value)| value)
            .ok_or_else(|| io::Error::other(format!("no row {name} in stats")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the test's own connections.
#[derive(Debug)]
pub(crate) struct Talk {
    client: Client,
}

impl Talk {
    fn new(port: u16) -> io::Result<Talk> {
        let address = Address::Tcp(format!("127.0.0.1:{port}"));
        let client = Client::connect_to(&address, Options { timeout: Some(PATIENCE) })?;
        Ok(Talk { client })
    }

    /// Reads `keys` in one pipeline. If `errors` is true, reads each key that was answered with an
    /// error again, alone.
    fn get_all(&mut self, keys: &[Key], errors: bool) -> io::Result<Vec<(Key, Option<Seen>)>> {
        for key in keys {
            self.send(*key, &Operation::Get)?;
        }
        let (mut found, mut again) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            match self.receive(&Operation::Get)? {
                Reply::Failed(_) if errors => again.push(*key),
                reply => found.push((*key, content(*key, reply)?)),
            }
        }
        for key in again {
            found.push((key, self.get_at_last(key)?));
        }
        Ok(found)
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        Ok(self.client.send_raw(bytes)?)
    }

    pub(crate) fn read_line(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(self.client.replies().line()?).into_owned())
    }

    /// Sends a line and reads the first line of the answer.
    pub(crate) fn line(&mut self, request: &str) -> io::Result<String> {
        self.raw(format!("{request}\r\n").as_bytes())?;
        self.read_line()
    }

    /// Sends a line. Fails if the reply is not `answer`.
    pub(crate) fn expect(&mut self, request: &str, answer: &str) -> io::Result<()> {
        let got = self.line(request)?;
        if got == answer {
            return Ok(());
        }
        let request = request.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("{request:?} was answered {got:?} instead of {answer:?}")))
    }

    pub(crate) fn send(&mut self, key: Key, operation: &Operation) -> io::Result<()> {
        let mut bytes = Vec::new();
        operation.encode(&key.name(), &mut bytes);
        self.raw(&bytes)
    }

    pub(crate) fn receive(&mut self, operation: &Operation) -> io::Result<Reply> {
        reply::read(self.client.replies(), operation)
    }

    /// Reads a key. Repeats the request until it succeeds or [`PATIENCE`] has passed.
    fn get_at_last(&mut self, key: Key) -> io::Result<Option<Seen>> {
        let begun = Instant::now();
        loop {
            self.send(key, &Operation::Get)?;
            let reply = self.receive(&Operation::Get)?;
            if !matches!(reply, Reply::Failed(_)) || begun.elapsed() > PATIENCE {
                return content(key, reply);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads a short value. Returns `None` for a miss.
    pub(crate) fn get(&mut self, key: &str) -> io::Result<Option<String>> {
        let item = self.client.get(key.as_bytes())?;
        Ok(item.map(|item| String::from_utf8_lossy(&item.value).into_owned()))
    }

    /// Returns true if bytes arrive within `patience`.
    pub(crate) fn answers_within(&mut self, patience: Duration) -> io::Result<bool> {
        self.client.stream().set_timeout(Some(patience))?;
        let waited = self.client.replies().wait();
        self.client.stream().set_timeout(Some(PATIENCE))?;
        match waited {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            waited => waited.map(|()| true),
        }
    }
}
