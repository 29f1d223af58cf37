//! Processes of servers: how they start and end, and that none of them survives the lab.
//!
//! A server and its child processes form a process group. The group's leader is a watcher: a shell
//! that reads from a pipe of the lab. When the lab ends, even by SIGKILL, the pipe closes, and the
//! watcher kills its group. PostgreSQL moves its child processes to other groups, but they end when
//! their parent, which stays in the watcher's group, is killed.

mod helper;

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::interrupt::is_interrupted;
use crate::machine::pin_thread;
use crate::process::Probe;
use crate::process::tree::{Member, members};
use crate::{Error, Result};

pub(crate) use helper::output;

/// The watcher's program. It waits until its input closes, then kills its process group. It ignores
/// the signals that a terminal sends, because the watcher must not end while the lab still runs.
const WATCH: &str = "trap '' HUP INT QUIT TERM
while read -r line; do :; done
kill -KILL 0";
/// Interval between two checks whether a process has ended.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time that the kernel may take to end a killed process. A process that waits for a
/// device ends only after the device has answered.
const KILL: Duration = Duration::from_secs(30);

/// A started server with all its processes. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Processes {
    server: Child,
    watcher: Child,
}

impl Processes {
    /// Starts a server. If `cpu` is given, the server runs on this processor only.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(crate) fn start(mut command: Command, cpu: Option<usize>) -> io::Result<Processes> {
        let mut watcher = Command::new("sh");
        watcher.args(["-c", WATCH]).stdin(Stdio::piped());
        watcher.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut watcher = watcher.spawn()?;
        command.process_group(watcher.id().try_into().unwrap_or(0));
        unblock_signals(&mut command);
        match spawn_on(cpu, command) {
            Ok(server) => Ok(Processes { server, watcher }),
            Err(error) => {
                let _ = watcher.kill();
                let _ = watcher.wait();
                Err(error)
            }
        }
    }

    /// Returns a probe of all processes of the server.
    pub(crate) fn probe(&self) -> Probe {
        Probe::group(self.server.id(), self.watcher.id())
    }

    /// Returns the ids of all processes of the server.
    pub(crate) fn pids(&self) -> Vec<u32> {
        members(self.watcher.id()).iter().map(|member| member.pid).collect()
    }

    /// Returns how the server has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.server.try_wait().ok().flatten()
    }

    /// Waits until the server ends by itself, and returns its exit status. Meanwhile calls `look`
    /// at intervals of `every`. Returns `None` if the server runs for longer than `limit`.
    ///
    /// # Errors
    /// Returns an error if the lab gets SIGINT or SIGTERM.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        every: Duration,
        mut look: impl FnMut(&Processes),
    ) -> Result<Option<ExitStatus>> {
        let began = Instant::now();
        loop {
            match self.ended() {
                Some(status) => return Ok(Some(status)),
                None if is_interrupted() => return Err(Error::server("interrupted")),
                None if began.elapsed() > limit => return Ok(None),
                None => look(self),
            }
            thread::sleep(every);
        }
    }

    /// Sends `signal` to the server, as an operator would. Waits until its first process ends, but
    /// at most `patience`. Then kills everything that is left. Returns true if the first process
    /// ended in that time.
    pub(crate) fn stop(&mut self, signal: libc::c_int, patience: Duration) -> bool {
        let known = members(self.watcher.id());
        if self.ended().is_none() {
            send(self.server.id(), signal);
        }
        let asked = Instant::now();
        let mut ended = self.ended().is_some();
        while !ended && asked.elapsed() < patience {
            thread::sleep(POLL_INTERVAL);
            ended = self.ended().is_some();
        }
        self.kill_with(known);
        ended
    }

    /// Kills all processes with SIGKILL and waits for their ends.
    pub(crate) fn kill(&mut self) {
        self.kill_with(Vec::new());
    }

    /// Kills all processes of the server, and those in `known`. [`members`] finds a process outside
    /// the group only through its parent. So if the parent has ended, only `known` has the process.
    fn kill_with(&mut self, mut known: Vec<Member>) {
        let asked = Instant::now();
        loop {
            known.extend(members(self.watcher.id()));
            known.retain(Member::is_running);
            if self.ended().is_none() {
                let _ = self.server.kill();
            }
            known.iter().for_each(|member| send(member.pid, libc::SIGKILL));
            if known.is_empty() || asked.elapsed() > KILL {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        for child in [&mut self.server, &mut self.watcher] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a process on a processor. A child process inherits the affinity of the thread that starts
/// it, so a separate thread is pinned first.
fn spawn_on(cpu: Option<usize>, mut command: Command) -> io::Result<Child> {
    let Some(cpu) = cpu else { return command.spawn() };
    thread::scope(|scope| {
        let spawn = scope.spawn(move || {
            pin_thread(cpu).map_err(|error| io::Error::other(error.to_string()))?;
            command.spawn()
        });
        spawn.join().unwrap_or_else(|_| Err(io::Error::other("the starting thread panicked")))
    })
}

/// Lets the child receive all signals. Otherwise the child would inherit the lab's signal mask,
/// which blocks SIGINT and SIGTERM, and these signals could not stop most servers.
fn unblock_signals(command: &mut Command) {
    let unblock = || {
        // SAFETY: the set is local, and `sigemptyset` initializes it.
        let result = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
        };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
    };
    // SAFETY: between fork and exec, the closure calls functions that are safe in signal handlers,
    // and allocates nothing.
    unsafe { command.pre_exec(unblock) };
}

fn send(pid: u32, signal: libc::c_int) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: the call takes numbers. The process was just seen among those of this server. Its id
    // is neither 0 nor negative, so the signal does not go to a process group.
    unsafe { libc::kill(pid, signal) };
}

/// The lowest port that [`free_port`] tries.
const FIRST_PORT: u16 = 15_000;

/// Finds a free loopback port, if possible below the range from which the kernel takes ports for
/// outgoing connections. If a server had a port of that range, a client that retries while the
/// server is down could connect to itself.
///
/// # Errors
/// Returns an error if there is no free port.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range.ok().and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
    let ports = FIRST_PORT..lowest.unwrap_or(32_768u16);
    for _ in ports.clone() {
        // Labs that run at the same time begin at different ports.
        let count = NEXT.fetch_add(1, Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = ports.start + (count % u32::from(ports.end - ports.start)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|e| Error::io("cannot find a free port", e))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::process::tree;

    /// A server that ends on SIGTERM. It has one child in its process group and another in a
    /// separate session.
    const SERVER: &str = "trap 'exit 0' TERM; setsid sleep 1000 & sleep 1000 & echo up; wait";

    fn shell(script: &str) -> (Processes, Vec<u32>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut processes = Processes::start(command, None).unwrap();
        let mut line = [0; 3];
        processes.server.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"up\n");
        let pids = await_members(&processes, 3);
        (processes, pids)
    }

    fn await_members(processes: &Processes, count: usize) -> Vec<u32> {
        loop {
            let found = tree::members(processes.watcher.id());
            if found.len() == count {
                return found.iter().map(|member| member.pid).collect();
            }
            thread::yield_now();
        }
    }

    fn state(pid: u32) -> Option<char> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next().filter(|&state| state != 'Z')
    }

    #[test]
    fn a_server_can_be_stopped_although_the_lab_blocks_the_signal() {
        let stopping = thread::spawn(|| {
            // SAFETY: the set is local, and only this thread's mask changes.
            unsafe {
                let mut term: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut term);
                libc::sigaddset(&mut term, libc::SIGTERM);
                libc::pthread_sigmask(libc::SIG_BLOCK, &term, std::ptr::null_mut());
            }
            let mut command = Command::new("sleep");
            command.arg("1000");
            let mut processes = Processes::start(command, None).unwrap();
            processes.stop(libc::SIGTERM, Duration::from_secs(60))
        });
        assert!(stopping.join().unwrap(), "it had to be killed");
    }

    #[test]
    fn all_processes_end() {
        let (mut processes, pids) = shell(SERVER);
        assert!(pids.iter().all(|&pid| state(pid).is_some()));
        assert!(processes.probe().sample().unwrap().rss > 0);
        assert!(processes.stop(libc::SIGTERM, Duration::from_secs(10)));
        assert!(processes.ended().unwrap().success());
        assert!(pids.iter().all(|&pid| state(pid).is_none()), "{pids:?}");
    }

    #[test]
    fn a_server_that_does_not_end_is_killed() {
        let (mut processes, pids) = shell("trap '' TERM; sleep 1000 & sleep 1000 & echo up; wait");
        assert!(!processes.stop(libc::SIGTERM, Duration::ZERO));
        assert_eq!(processes.ended().unwrap().signal(), Some(libc::SIGKILL));
        assert!(pids.iter().all(|&pid| state(pid).is_none()), "{pids:?}");
        assert!(processes.probe().sample().is_err());
    }

    #[test]
    fn the_end_of_the_lab_kills_the_group() {
        let (mut processes, pids) = shell("sleep 1000 & sleep 1000 & echo up; wait");
        // Closes the watcher's pipe, as the end of the lab would.
        drop(processes.watcher.stdin.take());
        let _ = processes.server.wait();
        let _ = processes.watcher.wait();
        while pids.iter().any(|&pid| state(pid).is_some()) {
            thread::yield_now();
        }
    }

    /// The environment variable that makes [`a_lab_to_be_killed`] start a server. Only other tests
    /// set it, for a separate process.
    const SACRIFICE: &str = "LARDER_BENCH_SACRIFICE";

    #[test]
    #[ignore = "does nothing unless another test starts it"]
    fn a_lab_to_be_killed() {
        if std::env::var_os(SACRIFICE).is_some() {
            let (_processes, pids) = shell("sleep 1000 & sleep 1000 & echo up; wait");
            println!("members {pids:?}");
            loop {
                thread::park();
            }
        }
    }

    #[test]
    fn no_process_survives_a_lab_that_is_killed() {
        let mut lab = Command::new(std::env::current_exe().unwrap());
        lab.args(["--ignored", "--exact", "--nocapture", "supervise::tests::a_lab_to_be_killed"]);
        let mut lab = lab.env(SACRIFICE, "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines().map(io::Result::unwrap);
        let pids = lines.find(|line| line.contains("members [")).unwrap();
        let pids = pids.split("members [").nth(1).unwrap().trim_end_matches(']').to_owned();
        let pids: Vec<u32> = pids.split(", ").map(|pid| pid.parse().unwrap()).collect();
        assert!(pids.len() == 3 && pids.iter().all(|&pid| state(pid).is_some()), "{pids:?}");
        lab.kill().unwrap();
        lab.wait().unwrap();
        while pids.iter().any(|&pid| state(pid).is_some()) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_group_keeps_the_time_of_children_that_ended() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("sleep 1000 & sleep 1000 & ( {busy} ); echo up; wait");
        let (processes, _) = shell(&script);
        let sample = processes.probe().sample().unwrap();
        assert!(sample.cpu_ns > 20_000_000, "{sample:?}");
    }

    #[test]
    fn free_ports_differ_and_are_not_those_of_clients() {
        let (one, other) = (free_port().unwrap(), free_port().unwrap());
        assert_ne!(one, other);
        assert!((FIRST_PORT..32_768).contains(&one), "{one}");
    }

    #[test]
    fn a_missing_program_leaves_no_watcher() {
        let error = Processes::start(Command::new("/nowhere/server"), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
