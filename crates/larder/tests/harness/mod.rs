//! Runs the real binary as a separate process, and gives tests its log, its signals and its exit
//! code.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_larder");
/// The longest time that a test waits for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time that a test waits until all writes are durable. After a build of all tests, the
/// machine may first have to write gigabytes of build output to the same device.
pub(crate) const DEVICE_PATIENCE: Duration = Duration::from_secs(180);

/// A running binary and its log.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) log: BufReader<ChildStderr>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Process {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        let log = BufReader::new(child.stderr.take().expect("stderr is piped"));
        Process { child, log }
    }

    /// Returns the next log line with this event.
    pub(crate) fn event(&mut self, name: &str) -> String {
        let wanted = format!("event={name}");
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).expect("the log is text") > 0, "no {name}");
            if line.split_whitespace().any(|word| word == wanted) {
                return line.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Waits for the end of the process. Returns its exit code and the rest of its log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("the log is text");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn serve() -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "off", "-t", "2"]);
    command
}

/// A directory that is deleted when this value is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a writable directory");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the resident bytes of a server.
pub(crate) fn resident(server: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is resident");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("a number of KiB") << 10
}

/// Checks that a server with a budget of `memory` MiB keeps its promise: its resident memory
/// exceeds the budget by at most a tenth plus 32 MiB.
pub(crate) fn assert_within_budget(server: &Child, memory: u64) {
    // The promise does not cover the memory that a sanitizer uses. `scripts/asan` sets this
    // variable.
    if std::env::var_os("INSTRUMENTED").is_some() {
        return;
    }
    let limit = (memory << 20) * 11 / 10 + (32 << 20);
    let resident = resident(server);
    assert!(resident <= limit, "{} of {} MiB resident", resident >> 20, limit >> 20);
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream
}

pub(crate) fn ask(client: &mut TcpStream, request: &str, expected: &str) {
    client.write_all(request.as_bytes()).expect("it reads");
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).expect("it answers");
    assert_eq!(String::from_utf8_lossy(&reply), expected, "{request}");
}

/// A server that is ready for clients.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: String,
    /// The server's log line about its recovery.
    pub(crate) recovered: String,
}

impl Server {
    pub(crate) fn start(store: &Path, more: &[&str]) -> Server {
        let mut command = serve();
        command.arg("--store").arg(format!("{}:64MB", store.display())).args(more);
        Server::spawn(&mut command)
    }

    /// Starts a server. The command's flags must name a store.
    pub(crate) fn spawn(command: &mut Command) -> Server {
        let mut process = Process::spawn(command);
        let recovered = process.event("recovered");
        let listening = process.event("listening");
        let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
        process.event("serving");
        Server { process, address, recovered }
    }

    pub(crate) fn ask(&self, request: &str, expected: &str) {
        ask(&mut connect(&self.address), request, expected);
    }

    pub(crate) fn stats(&self, group: &str) -> String {
        let mut client = connect(&self.address);
        client.write_all(format!("stats{group}\r\n").as_bytes()).expect("it reads");
        let mut lines = BufReader::new(client);
        let mut reply = String::new();
        while !reply.ends_with("END\r\n") {
            assert!(lines.read_line(&mut reply).expect("it answers") > 0, "{reply}");
        }
        reply
    }

    pub(crate) fn stat(&self, name: &str) -> String {
        let stats = self.stats("");
        let row = format!("STAT {name} ");
        let line = stats.lines().find_map(|line| line.strip_prefix(&row));
        line.unwrap_or_else(|| panic!("no {name} in {stats}")).to_owned()
    }

    /// Waits until a crash would lose nothing.
    pub(crate) fn until_durable(&self) {
        let begun = Instant::now();
        while self.stat("larder_unsynced_bytes") != "0" {
            assert!(begun.elapsed() < DEVICE_PATIENCE, "it is never durable");
            std::thread::yield_now();
        }
    }

    pub(crate) fn kill(mut self) {
        self.process.child.kill().expect("it runs");
        self.process.child.wait().expect("it ends");
    }

    pub(crate) fn stop(self) {
        self.process.signal("-TERM");
        let (code, log) = self.process.end();
        assert_eq!(code, Some(0), "{log}");
    }
}
