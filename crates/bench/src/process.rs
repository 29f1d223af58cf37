//! The kernel's figures about a server's processes: processor time to the nanosecond, memory and
//! device traffic. Also finds the process that listens on an address.

pub(crate) mod tree;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_client::Address;
use serde::Serialize;

use crate::{Error, Result};

/// The largest number of processes whose shared memory is counted exactly. The shared memory of
/// more processes is estimated, because an exact count takes long: the kernel walks the page tables
/// of each process.
const EXACT_MEMORY: usize = 4;

/// The processes to measure, or some threads of one process.
#[derive(Clone, Debug)]
pub struct Probe {
    pid: u32,
    scope: Scope,
}

#[derive(Clone, Debug)]
enum Scope {
    /// All threads of one process.
    Process,
    /// The threads of one process whose names begin with one of these prefixes.
    Threads(&'static [&'static str]),
    /// A server's process and the other members of its group, see [`tree::members`].
    Group { leader: u32, floor: Arc<Floor> },
}

/// The largest sums of a group's counters so far. If a member ends and its parent does not wait for
/// it, the member's counters vanish from the sums. The floor keeps the sums from falling.
#[derive(Debug, Default)]
struct Floor {
    cpu_ns: AtomicU64,
    system_ns: AtomicU64,
    wait_ns: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
}

/// Resource counts at one moment. The difference of two samples is the use between them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Nanoseconds on a processor, summed over all threads. If a probe measures only some threads
    /// of a process, the time of ended threads is not included.
    pub cpu_ns: u64,
    /// Nanoseconds in the kernel, a part of `cpu_ns`, counted in coarse clock ticks.
    pub system_ns: u64,
    /// Nanoseconds for which threads were ready but had no processor; 0 if unknown. A large value
    /// means that other work occupied the machine.
    pub wait_ns: u64,
    /// Resident bytes.
    pub rss: u64,
    /// Bytes written for the process to devices or to the page cache; 0 if unknown.
    pub written: u64,
    /// Bytes read for the process from devices; 0 if unknown.
    pub read: u64,
}

impl Probe {
    /// Returns a probe of all threads of a process.
    pub fn process(pid: u32) -> Probe {
        Probe { pid, scope: Scope::Process }
    }

    /// Returns a probe of a server and the other processes of its group. `leader`, the leader of
    /// the group, belongs to the lab and is not measured.
    pub(crate) fn group(server: u32, leader: u32) -> Probe {
        Probe { pid: server, scope: Scope::Group { leader, floor: Arc::default() } }
    }

    /// Returns a probe of the threads of this process whose names begin with one of `names`.
    pub(crate) fn own_threads(names: &'static [&'static str]) -> Probe {
        Probe { pid: std::process::id(), scope: Scope::Threads(names) }
    }

    /// Returns a probe of the process that listens on `address`: a TCP address of the loopback
    /// interface or a Unix socket. The process may also listen on the wildcard address. Returns
    /// `None` if no such process is found, or if this user may not see it.
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

    /// Returns the leader of the measured group.
    #[cfg(test)]
    pub(crate) fn leader(&self) -> u32 {
        match self.scope {
            Scope::Group { leader, .. } => leader,
            Scope::Process | Scope::Threads(_) => self.pid,
        }
    }

    /// Reads the counters of the processes.
    ///
    /// # Errors
    /// Returns [`Error::Server`] if the process has ended; for a group, if the server itself has
    /// ended.
    pub fn sample(&self) -> Result<Sample> {
        let sample = match &self.scope {
            Scope::Process => self.sample_process(&[]),
            Scope::Threads(names) => self.sample_process(names),
            Scope::Group { leader, floor } => sample_group(self.pid, *leader, floor),
        };
        sample.ok_or_else(|| {
            Error::server(format!("process {} cannot be measured: has it ended?", self.pid))
        })
    }

    fn sample_process(&self, threads: &[&str]) -> Option<Sample> {
        let (mut cpu_ns, wait_ns) = process_times(self.pid, threads)?;
        if threads.is_empty() {
            cpu_ns = process_clock(self.pid).unwrap_or(cpu_ns);
        }
        // These three counts are measured only for whole processes.
        let (mut system_ns, mut written, mut read) = (0, 0, 0);
        if threads.is_empty() {
            let system_ticks = tree::member(self.pid).map_or(0, |member| member.system_ticks);
            system_ns = nanoseconds(system_ticks);
            (written, read) = device_bytes(self.pid).unwrap_or_default();
        }
        Some(Sample { cpu_ns, system_ns, wait_ns, rss: resident(self.pid)?, written, read })
    }
}

/// Sums up the members of a group. Returns `None` if the server itself has ended.
fn sample_group(server: u32, leader: u32, floor: &Floor) -> Option<Sample> {
    let members = tree::members(leader);
    if !members.iter().any(|member| member.pid == server && !member.ended) {
        return None;
    }
    let mut sum = Sample { rss: group_memory(&members), ..Sample::default() };
    for member in &members {
        sum.cpu_ns += process_clock(member.pid).unwrap_or_else(|| nanoseconds(member.ticks));
        sum.cpu_ns += nanoseconds(member.children_ticks);
        sum.system_ns += nanoseconds(member.system_ticks);
        sum.wait_ns += process_times(member.pid, &[]).map_or(0, |times| times.1);
        // The counts of a parent already include the bytes of ended children that it waited for.
        let (written, read) = device_bytes(member.pid).unwrap_or_default();
        sum.written += written;
        sum.read += read;
    }
    let raise = |count: &mut u64, floor: &AtomicU64| {
        *count = floor.fetch_max(*count, Relaxed).max(*count);
    };
    raise(&mut sum.cpu_ns, &floor.cpu_ns);
    raise(&mut sum.system_ns, &floor.system_ns);
    raise(&mut sum.wait_ns, &floor.wait_ns);
    raise(&mut sum.written, &floor.written);
    raise(&mut sum.read, &floor.read);
    Some(sum)
}

/// Returns the resident bytes of processes that share memory. Shared memory counts once. For more
/// than [`EXACT_MEMORY`] processes, it is estimated: the largest shared part of any one process.
fn group_memory(members: &[tree::Member]) -> u64 {
    if let [member] = members {
        return resident(member.pid).unwrap_or(0);
    }
    if members.len() <= EXACT_MEMORY {
        return members.iter().filter_map(|member| proportional(member.pid)).sum();
    }
    let parts = members.iter().filter_map(|member| own_and_shared(member.pid));
    let (own, shared) = parts.fold((0, 0), |sum, part| (sum.0 + part.0, part.1.max(sum.1)));
    own + shared
}

/// Returns the time that all threads of a process were on a processor, in nanoseconds. The time of
/// threads that have ended is included; `process_times` does not include it.
fn process_clock(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write only to the local variable that they get, during the call.
    let read = unsafe {
        libc::clock_getcpuclockid(pid, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    let seconds = read.then(|| u64::try_from(time.tv_sec).ok()).flatten()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// Converts clock ticks, the unit of times in `/proc`, to nanoseconds.
fn nanoseconds(ticks: u64) -> u64 {
    // SAFETY: the call takes and returns numbers only.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks * 1_000_000_000 / u64::try_from(per_second).unwrap_or(100).max(1)
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
            // The kernel was built without scheduler statistics, so coarse clock ticks must do.
            None if task.exists() && threads.is_empty() => return Some((process_ticks(pid)?, 0)),
            // The thread has ended, or the kernel has no statistics of single threads.
            None => {}
        }
    }
    Some(sum)
}

/// Reads two times of a thread from its `schedstat` file, in nanoseconds: how long it has run on a
/// processor, and how long it has waited for one.
fn schedstat(path: &str) -> Option<(u64, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

/// Returns user plus system time in nanoseconds. The kernel counts them in coarse clock ticks.
fn process_ticks(pid: u32) -> Option<u64> {
    tree::member(pid).map(|member| nanoseconds(member.ticks))
}

fn resident(pid: u32) -> Option<u64> {
    bytes_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Returns the resident bytes of a process. A page that n processes share counts as 1/n page.
fn proportional(pid: u32) -> Option<u64> {
    bytes_of(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// Returns the resident bytes that only this process has, and those that it may share.
fn own_and_shared(pid: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let shared = bytes_of(&text, "RssFile:")? + bytes_of(&text, "RssShmem:")?;
    Some((bytes_of(&text, "RssAnon:")?, shared))
}

/// Returns the bytes in the row `name` of a `/proc` file. The row has them in kilobytes.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let row = text.lines().find_map(|line| line.strip_prefix(name))?;
    row.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Returns the bytes that the process has written to devices or to the page cache, and those that
/// it has read from devices. The kernel hides these counts of other users' processes.
fn device_bytes(pid: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let row = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.parse().ok();
    Some((row("write_bytes: ")?, row("read_bytes: ")?))
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
        // Clock ticks are coarse, so this loop may run for a while.
        while process_ticks(std::process::id()).unwrap() == 0 {}
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
