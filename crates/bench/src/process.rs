//! The kernel's figures about a server's process: processor time to the nanosecond and resident
//! memory. Also finds the process that listens on an address.

use std::fs;
use std::path::Path;

use larder_client::Address;
use serde::Serialize;

use crate::{Error, Result};

/// A process to measure, or some of its threads.
#[derive(Clone, Debug)]
pub struct Probe {
    pid: u32,
    /// Measure only threads whose names begin with one of these; if empty, all threads.
    threads: &'static [&'static str],
}

/// Resource counts at one moment. The difference of two samples is the use between them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Nanoseconds on a processor, summed over all threads that still exist.
    pub cpu_ns: u64,
    /// Nanoseconds for which threads were ready but had no processor; 0 if unknown. A large value
    /// means that other work occupied the machine.
    pub wait_ns: u64,
    /// Resident bytes.
    pub rss: u64,
    /// Bytes written for the process to devices or to the page cache; 0 if unknown.
    pub written: u64,
}

impl Probe {
    /// Measures all threads of a process.
    pub fn process(pid: u32) -> Probe {
        Probe { pid, threads: &[] }
    }

    /// Measures the threads of this process whose names begin with one of `names`.
    pub(crate) fn own_threads(names: &'static [&'static str]) -> Probe {
        Probe { pid: std::process::id(), threads: names }
    }

    /// Finds the process that listens on a loopback or wildcard address. Returns `None` if this
    /// user may not see it.
    pub fn of_listener(address: &Address) -> Option<Probe> {
        let inode = match address {
            Address::Tcp(endpoint) => {
                let (host, port) = endpoint.rsplit_once(':')?;
                let local = host.starts_with("127.") || matches!(host, "localhost" | "[::1]");
                local.then_some(())?;
                listening_inode(port.parse().ok()?)?
            }
            Address::Unix(path) => unix_inode(path)?,
        };
        process_with_socket(inode).map(Probe::process)
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads the process's counters.
    ///
    /// # Errors
    /// Returns [`Error::Server`] if the process has ended.
    pub fn sample(&self) -> Result<Sample> {
        let times = process_times(self.pid, self.threads);
        let gone =
            || Error::server(format!("process {} cannot be measured: has it ended?", self.pid));
        let (cpu_ns, wait_ns) = times.ok_or_else(gone)?;
        let rss = resident(self.pid).ok_or_else(gone)?;
        // The kernel counts written bytes only per process.
        let written = if self.threads.is_empty() { written(self.pid) } else { None };
        Ok(Sample { cpu_ns, wait_ns, rss, written: written.unwrap_or(0) })
    }
}

/// Returns the time on a processor and the time waiting for one, both in nanoseconds.
fn process_times(pid: u32, threads: &[&str]) -> Option<(u64, u64)> {
    let mut sum = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let task = entry.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if !threads.is_empty() && !threads.iter().any(|wanted| name.starts_with(wanted)) {
            continue;
        }
        match schedstat(task.join("schedstat").to_str()?) {
            Some((cpu, wait)) => sum = (sum.0 + cpu, sum.1 + wait),
            // Either the thread has ended, or the kernel was built without these statistics.
            None if task.exists() && threads.is_empty() => return Some((process_ticks(pid)?, 0)),
            None => {}
        }
    }
    Some(sum)
}

/// Reads from a `schedstat` file the nanoseconds on a processor and those waiting for one.
fn schedstat(path: &str) -> Option<(u64, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

/// Returns user plus system time in nanoseconds. The kernel counts them in coarse clock ticks.
fn process_ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces, so the fields are counted from its closing one.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // SAFETY: the call takes and returns numbers only.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((user + system) * 1_000_000_000 / u64::try_from(per_second).ok()?.max(1))
}

fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Returns the bytes written by the process. The kernel hides them for processes of other users.
fn written(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.parse().ok()
}

/// Returns the inode of the socket that listens on a TCP port.
fn listening_inode(port: u16) -> Option<u64> {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().skip(1).find_map(|line| listening_row(line, port))
    })
}

/// Parses a row of `/proc/net/tcp`: `sl local remote state … uid timeout inode`. State 0A means
/// that the socket listens.
fn listening_row(line: &str, port: u16) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let local = fields.get(1)?.rsplit_once(':')?.1;
    let listening = *fields.get(3)? == "0A" && u16::from_str_radix(local, 16) == Ok(port);
    listening.then(|| fields.get(9)?.parse().ok()).flatten()
}

fn unix_inode(path: &Path) -> Option<u64> {
    let path = path.to_str()?;
    let text = fs::read_to_string("/proc/net/unix").ok()?;
    let mut fields = text
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        // Flag 10000 distinguishes the listening socket from its connections.
        .filter(|fields| fields.get(7) == Some(&path) && fields[3] == "00010000");
    fields.next()?.get(6)?.parse().ok()
}

fn process_with_socket(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn this_process_uses_processor_time_and_memory() {
        let probe = Probe::process(std::process::id());
        let before = probe.sample().unwrap();
        let mut sum = 0u64;
        for number in 0..20_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(number));
        }
        let after = probe.sample().unwrap();
        assert!(after.cpu_ns > before.cpu_ns + 1_000_000, "{before:?} {after:?}");
        assert!(after.rss > 1 << 20);
        assert!(process_ticks(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn the_owner_of_a_listening_socket_is_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(tcp.local_addr().unwrap().to_string());
        assert_eq!(Probe::of_listener(&address).unwrap().pid(), std::process::id());

        let path = std::env::temp_dir().join(format!("larder-probe-{}.sock", std::process::id()));
        let _unix = UnixListener::bind(&path).unwrap();
        let found = Probe::of_listener(&Address::Unix(path.clone())).unwrap().pid();
        assert_eq!(found, std::process::id());
        fs::remove_file(path).unwrap();
        assert!(Probe::of_listener(&Address::Tcp("example.org:11211".into())).is_none());
    }

    #[test]
    fn threads_are_chosen_by_name() {
        let worker = std::thread::Builder::new().name("probed-1".into());
        let busy = || (0..50_000_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        let (ready, wait) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let thread = worker.spawn(move || {
            busy();
            ready.send(()).unwrap();
            end.recv().unwrap_err();
        });
        wait.recv().unwrap();
        let named = Probe::own_threads(&["probed-"]).sample().unwrap().cpu_ns;
        let others = Probe::own_threads(&["nobody-"]).sample().unwrap().cpu_ns;
        drop(done);
        thread.unwrap().join().unwrap();
        assert!(named > 1_000_000, "{named}");
        assert_eq!(others, 0);
    }

    #[test]
    fn an_ended_process_is_an_error() {
        assert!(Probe::process(u32::MAX - 1).sample().is_err());
    }
}
