//! Operating-system calls for the whole process: limits, rights, daemon mode, memory.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Processor time of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

/// Returns the processor time used so far.
pub(crate) fn usage() -> Usage {
    // SAFETY: all-zero bytes are a valid `rusage`, which consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a whole `rusage`. The call cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let duration = |time: libc::timeval| {
        Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u32 * 1000)
    };
    Usage { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
}

/// Returns the resident memory in bytes, or 0 if the kernel does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn limit(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a whole `rlimit`.
    check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok(limit)
}

fn set_limit(resource: libc::__rlimit_resource_t, limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is a whole `rlimit`.
    check(unsafe { libc::setrlimit(resource, &limit) })
}

/// Raises the limit of open files to the hard limit, or to `descriptors` if that is higher and the
/// process may raise the hard limit. Returns the new limit.
///
/// # Errors
/// Returns the kernel's error if it does not report the limits.
pub fn raise_file_limit(descriptors: u64) -> io::Result<u64> {
    let now = limit(libc::RLIMIT_NOFILE)?;
    let wanted = now.rlim_max.max(descriptors);
    let more = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
    if set_limit(libc::RLIMIT_NOFILE, more).is_ok() {
        return Ok(wanted);
    }
    // Without the right to raise the hard limit, raise the soft limit to the hard limit. If the
    // hard limit is greater than the kernel's present maximum, this fails too, and the limit stays
    // as it is.
    let most = libc::rlimit { rlim_cur: now.rlim_max, ..now };
    Ok(set_limit(libc::RLIMIT_NOFILE, most).map_or(now.rlim_cur, |()| now.rlim_max))
}

/// Returns the memory of the machine, or the lowest limit of the process's control groups (cgroups)
/// if that is lower, in bytes. Returns `None` if the kernel does not report it.
pub(crate) fn machine_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/meminfo");
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
    let groups = read("/proc/self/cgroup");
    let limits = memory_files(&groups).filter_map(|file| read(&file).trim().parse::<u64>().ok());
    Some(limits.fold(total, u64::min))
}

/// Returns the files with the memory limits of the process's control group and of the groups that
/// contain it. `groups` is the content of `/proc/self/cgroup`. Only groups of version 2 count.
fn memory_files(groups: &str) -> impl Iterator<Item = String> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    Path::new(path).ancestors().map(|group| {
        let group = group.strip_prefix("/").unwrap_or(group);
        Path::new("/sys/fs/cgroup").join(group).join("memory.max").display().to_string()
    })
}

/// The shortest time slice that the kernel allows.
const TURN: Duration = Duration::from_micros(100);

/// Gives this thread, and all threads that it starts later, the shortest possible time slices. So
/// on a busy processor, a thread runs sooner after it wakes up, and no thread of this process keeps
/// another waiting for long. The share of the processor that the threads receive stays the same.
/// Linux supports this from 6.12 on. A thread with a real-time or other special scheduling policy
/// is left alone.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the change.
pub fn take_short_turns() -> io::Result<()> {
    let now = scheduling()?;
    if now.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    let short = libc::sched_attr { sched_runtime: TURN.as_nanos() as u64, ..now };
    // SAFETY: `short` is a whole `sched_attr`, which contains its own size.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const short, 0) } as libc::c_int)
}

/// Returns the scheduling attributes of this thread.
fn scheduling() -> io::Result<libc::sched_attr> {
    // SAFETY: all-zero bytes are a valid `sched_attr`, which consists of integers.
    let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
    let (at, size) = (&raw mut now, size_of::<libc::sched_attr>() as u32);
    // SAFETY: the kernel fills at most `size` bytes, which is the length of `now`.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, at, size, 0) } as libc::c_int)?;
    Ok(now)
}

/// Lets the kernel write core files of any size. If the process may not raise the hard limit, lets
/// the kernel write core files up to this limit.
pub(crate) fn enable_core_dumps() -> io::Result<()> {
    let all = libc::RLIM_INFINITY;
    if set_limit(libc::RLIMIT_CORE, libc::rlimit { rlim_cur: all, rlim_max: all }).is_err() {
        let now = limit(libc::RLIMIT_CORE)?;
        set_limit(libc::RLIMIT_CORE, libc::rlimit { rlim_cur: now.rlim_max, ..now })?;
    }
    match limit(libc::RLIMIT_CORE)?.rlim_cur {
        0 => Err(io::Error::other("the hard limit of core files is 0")),
        _ => Ok(()),
    }
}

/// Locks all present and future memory. A page is locked from its first use on, because Larder
/// reserves far more addresses than it uses.
pub(crate) fn lock_memory() -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })
}

/// Returns free pages of the C library's allocator to the kernel, unless memory is locked. The call
/// holds the allocator's locks, so threads that allocate may have to wait for it.
pub(crate) fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Drops resident pages of the program and its libraries that are identical to their files. Most of
/// these pages were needed only at the start. A page that is needed again comes back from the page
/// cache. Locked memory stays resident.
pub(crate) fn give_back_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for (first, end) in unchanged_files(&maps) {
        let bytes = end.saturating_sub(first);
        // SAFETY: these pages belong to private, read-only file mappings without changed pages, so
        // they come back as they were. Mappings with code and constants are never unmapped. An
        // error leaves the pages where they are.
        unsafe { libc::madvise(first as *mut libc::c_void, bytes, libc::MADV_DONTNEED) };
    }
}

/// Returns the address ranges of those read-only file mappings in `/proc/self/smaps` that have no
/// changed page. This excludes patched code, and mappings that the loader wrote to before it made
/// them read-only.
fn unchanged_files(maps: &str) -> Vec<(usize, usize)> {
    let (mut mapping, mut unchanged) = (None, Vec::new());
    for line in maps.lines() {
        match line.split_once(':') {
            Some(("Anonymous" | "Swap", bytes)) if bytes.trim() != "0 kB" => mapping = None,
            Some((name, _)) if !name.contains('-') => {}
            _ => {
                unchanged.extend(mapping);
                mapping = file_mapping(line);
            }
        }
    }
    unchanged.extend(mapping);
    unchanged
}

/// Returns the address range in a mapping's line if it is a private, read-only mapping of a file.
fn file_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (first, end) = fields.next()?.split_once('-')?;
    let is_private = matches!(fields.next()?, "r--p" | "r-xp");
    let is_file = fields.nth(2)? != "0" && fields.next()?.starts_with('/');
    let parse = |address| usize::from_str_radix(address, 16).ok();
    (is_private && is_file).then_some((parse(first)?, parse(end)?))
}

/// Returns unpredictable random bytes from the kernel.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "the kernel returns more bytes in parts") };
    let mut bytes = [0; N];
    // SAFETY: `bytes` has room for `N` bytes.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        count if usize::try_from(count) == Ok(N) => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if the process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Switches to `user` permanently, with only that user's groups.
pub(crate) fn become_user(user: &str) -> io::Result<()> {
    let name = CString::new(user).map_err(|_| io::Error::other("the name holds a zero byte"))?;
    // SAFETY: the name ends in a zero byte. No other thread of this process uses the password
    // database.
    let entry = unsafe { libc::getpwnam(name.as_ptr()) };
    if entry.is_null() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such user"));
    }
    // SAFETY: `entry` is not null, and is valid until the next call that reads the database.
    let (uid, gid) = unsafe { ((*entry).pw_uid, (*entry).pw_gid) };
    // SAFETY: the name ends in a zero byte; the other calls take no pointers. Groups go first:
    // after `setuid` the right to change them is gone.
    unsafe {
        check(libc::initgroups(name.as_ptr(), gid))?;
        check(libc::setgid(gid))?;
        check(libc::setuid(uid))
    }
}

/// The two processes after [`daemonize`].
#[derive(Debug)]
pub enum Daemon {
    /// The calling process. It must exit with this code.
    Parent(u8),
    /// The background process, which continues.
    Child(Background),
}

/// The pipe on which the background process reports the result of its start to its parent.
#[derive(Debug)]
pub struct Background {
    pipe: File,
}

/// Continues in a background process. The parent waits until the child
/// [settles](Background::settle) or fails, so an error in the start becomes the parent's error too.
///
/// Must be called before any other thread exists.
///
/// # Errors
/// Fails if the kernel has no process or pipe left.
pub fn daemonize() -> io::Result<Daemon> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both descriptors were just opened and have no other owner.
    let (mut read, write) =
        unsafe { (File::from_raw_fd(ends[0]), File::from(OwnedFd::from_raw_fd(ends[1]))) };
    // SAFETY: there is one thread, as the caller promises, so no other thread holds a lock that the
    // child could wait for.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: the call takes no arguments. It succeeds, because a freshly forked process
            // leads no process group.
            check(unsafe { libc::setsid() })?;
            Ok(Daemon::Child(Background { pipe: write }))
        }
        _ => {
            drop(write);
            let mut code = [1];
            // If the child died before it wrote a code, the code stays 1, a failure.
            let _ = read.read_exact(&mut code);
            Ok(Daemon::Parent(code[0]))
        }
    }
}

impl Background {
    /// Reports a successful start: detaches from the terminal and the working directory, and lets
    /// the parent exit. With `keep_output`, standard output and standard error stay as they are.
    ///
    /// # Errors
    /// Fails if `/dev/null` or `/` cannot be opened.
    pub fn settle(mut self, keep_output: bool) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let last = if keep_output { 0 } else { 2 };
        for stream in 0..=last {
            // SAFETY: the call takes no pointers. `null` is open, and no `OwnedFd` of this process
            // owns a standard stream that the call replaces.
            check(unsafe { libc::dup2(null.as_raw_fd(), stream) })?;
        }
        self.pipe.write_all(&[0])
    }

    /// Reports a failed start with this exit code.
    pub fn fail(mut self, code: u8) {
        // If the write fails, the parent is gone and does not need the code.
        let _ = self.pipe.write_all(&[code]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_processor_time_and_memory() {
        assert!(usage().user + usage().system < Duration::from_secs(86_400));
        assert!(resident_bytes() > 1 << 20);
    }

    #[test]
    fn the_limits_of_all_groups_around_the_process_count() {
        let files = |groups| memory_files(groups).collect::<Vec<_>>();
        let expected = [
            "/sys/fs/cgroup/system.slice/larder.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files("1:name=systemd:/a\n0::/system.slice/larder.service\n"), expected);
        for groups in ["0::/\n", "", "4:memory:/old\n"] {
            assert_eq!(files(groups), expected[2..], "{groups:?}");
        }
        assert!(machine_memory().is_some_and(|memory| memory > 1 << 20));
    }

    #[test]
    fn only_unchanged_file_mappings_are_given_back() {
        let unchanged = |mapping: &str, anonymous: u32| {
            unchanged_files(&format!(
                "{mapping}\nSize: 1024 kB\nAnonymous:     {anonymous} kB\nSwap: 0 kB\nVmFlags: rd ex mr mw me\n"
            ))
        };
        let code = "55d0c0a00000-55d0c0b00000 r-xp 00001000 fe:00 1234   /usr/bin/larder";
        assert_eq!(unchanged(code, 0), [(0x55d0_c0a0_0000, 0x55d0_c0b0_0000)]);
        assert_eq!(unchanged(code, 4), []);
        assert_eq!(unchanged_files(&format!("{code}\nAnonymous: 0 kB\nSwap: 4 kB\n")), []);
        for other in [
            "55d0c0a00000-55d0c0b00000 rw-p 00001000 fe:00 1234   /usr/bin/larder",
            "55d0c0a00000-55d0c0b00000 r-xp 00000000 00:00 0",
            "7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0      [vdso]",
            "7f0000000000-7f0000100000 r--s 00000000 fe:00 77     /var/cache/fonts",
        ] {
            assert_eq!(unchanged(other, 0), [], "{other}");
            let both = format!("{code}\nAnonymous: 8 kB\n{other}\nAnonymous: 0 kB\n");
            assert_eq!(unchanged_files(&both), [], "{other}");
        }
    }

    #[test]
    fn dropped_code_pages_leave_memory_and_load_again() {
        let resident_files = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let before = resident_files();
        give_back_code();
        let after = resident_files();
        assert!(after < before, "{before} KiB, then {after}");
        the_kernel_reports_processor_time_and_memory();
    }

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        let hard = limit(libc::RLIMIT_NOFILE).unwrap().rlim_max;
        assert_eq!(raise_file_limit(1).unwrap(), hard);
        assert_eq!(limit(libc::RLIMIT_NOFILE).unwrap().rlim_cur, hard);
    }

    #[test]
    fn the_machine_has_memory() {
        assert!(machine_memory().unwrap() > 64 << 20);
    }

    #[test]
    fn short_turns_change_only_the_time_slice() {
        let before = scheduling().unwrap();
        take_short_turns().unwrap();
        let of_this = scheduling().unwrap();
        let inherited = std::thread::spawn(scheduling).join().unwrap().unwrap();
        for now in [of_this, inherited] {
            assert_eq!(now.sched_policy, before.sched_policy);
            assert_eq!(now.sched_nice, before.sched_nice);
            // A kernel before Linux 6.12 has no time slices per thread and reports 0.
            assert!([0, 100_000].contains(&now.sched_runtime), "{}", now.sched_runtime);
        }
    }

    #[test]
    fn becoming_an_unknown_user_is_an_error() {
        let error = become_user("no-such-user-here").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(become_user("zero\0byte").is_err());
    }
}
