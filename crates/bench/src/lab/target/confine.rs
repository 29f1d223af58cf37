//! Runs a server in a memory control group that bounds the page cache. Otherwise the page cache
//! would hold values that should be read from a device.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The directories of the memory controller of version 1, and of the unified tree of version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
/// The files of a group in each version.
const FILES: [Files; 2] = [
    Files {
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: "total_cache",
        shared: "total_shmem",
    },
    Files { limit: "memory.max", usage: "memory.current", cache: "file", shared: "shmem" },
];
/// Number of attempts to remove a group, or to lower its limit. The kernel removes a group only a
/// moment after its last process has ended, and lowers a limit only after writing dirty pages.
const ATTEMPTS: usize = 100;
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The names of a group's files, and of the rows of its `memory.stat`.
#[derive(Clone, Copy, Debug)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// The row of the page cache, in which shared memory is included.
    cache: &'static str,
    /// The row of shared memory.
    shared: &'static str,
}

/// A memory control group. Dropping this value removes the group. Its processes must have ended.
#[derive(Debug)]
pub(super) struct Confinement {
    directory: PathBuf,
    limit: PathBuf,
}

impl Confinement {
    /// Makes a group. Returns `None` if the kernel has no memory controller or this account may not
    /// make a group.
    pub(super) fn new(name: &str) -> Option<Confinement> {
        ROOTS.iter().find_map(|root| Confinement::in_root(Path::new(root), name))
    }

    fn in_root(root: &Path, name: &str) -> Option<Confinement> {
        // In version 2, a group has the memory controller only if the root enables it for groups.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        let directory = root.join(name);
        fs::create_dir(&directory).ok()?;
        let files = FILES.map(|files| directory.join(files.limit));
        match files.into_iter().find(|file| file.exists()) {
            Some(limit) => Some(Confinement { directory, limit }),
            None => {
                let _ = fs::remove_dir(&directory);
                None
            }
        }
    }

    /// Moves processes into the group and limits the bytes of their memory and page cache. Memory
    /// that they had before does not count.
    pub(super) fn hold(&self, pids: &[u32], bytes: u64) -> std::io::Result<()> {
        fs::write(&self.limit, bytes.to_string())?;
        for pid in pids {
            match fs::write(self.directory.join("cgroup.procs"), pid.to_string()) {
                // The process has ended since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Lowers the limit to the bytes that the group holds without its page cache, plus `spare`
    /// bytes for page cache and growth. Returns the new limit. Never raises the limit.
    pub(super) fn tighten(&self, spare: u64) -> std::io::Result<u64> {
        let before = fs::read_to_string(&self.limit)?.trim().parse().unwrap_or(u64::MAX);
        let mut attempts = ATTEMPTS;
        loop {
            let limit = self.held()?.saturating_add(spare).min(before);
            match fs::write(&self.limit, limit.to_string()) {
                // The group has dirty pages, which must be written before they can be dropped.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempts > 0 => {
                    attempts -= 1;
                    thread::sleep(PAUSE);
                }
                other => return other.map(|()| limit),
            }
        }
    }

    /// Returns the bytes that the group holds without its page cache.
    fn held(&self) -> std::io::Result<u64> {
        let is_first = self.limit.ends_with(FILES[0].limit);
        let Files { usage, cache, shared, .. } = FILES[usize::from(!is_first)];
        let usage = fs::read_to_string(self.directory.join(usage))?.trim().parse().unwrap_or(0);
        let rows = fs::read_to_string(self.directory.join("memory.stat"))?;
        let row = |name: &str| {
            let fields = rows.lines().filter_map(|line| line.split_once(' '));
            let value =
                fields.filter(|field| field.0 == name).find_map(|field| field.1.parse().ok());
            value.unwrap_or(0u64)
        };
        // The kernel counts shared memory as page cache, but cannot drop it.
        Ok(u64::saturating_sub(usage, row(cache).saturating_sub(row(shared))))
    }
}

impl Drop for Confinement {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Removes the groups of killed labs. `is_abandoned` decides by the name of a group.
pub(super) fn sweep(is_abandoned: impl Fn(&str) -> bool) {
    ROOTS.iter().for_each(|root| sweep_root(Path::new(root), &is_abandoned));
}

fn sweep_root(root: &Path, is_abandoned: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(&is_abandoned) {
            // The kernel does not remove a group that contains processes or other groups.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_groups_of_dead_labs_are_swept() {
        let root = std::env::temp_dir().join(format!("larder-groups-{}", std::process::id()));
        for name in ["dead-1", "dead-2/inner", "living"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        sweep_root(&root, |name| name.starts_with("dead"));
        assert!(!root.join("dead-1").exists());
        assert!(root.join("dead-2/inner").exists() && root.join("living").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_kernel_s_groups_are_swept() {
        let name = format!("larder-swept-{}", std::process::id());
        let Some(group) = Confinement::new(&name) else {
            println!("skipped: this account may not make memory control groups");
            return;
        };
        let directory = group.directory.clone();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        group.hold(&[child.id()], 64 << 20).unwrap();
        sweep(|found| found == name);
        assert!(directory.exists(), "it holds a process");
        child.kill().unwrap();
        child.wait().unwrap();
        // The kernel allows the removal only a moment after the last process has ended.
        let killed = std::time::Instant::now();
        while directory.exists() {
            assert!(killed.elapsed() < Duration::from_secs(60), "the group stays");
            sweep(|found| found == name);
        }
    }

    #[test]
    fn a_group_is_made_and_removed() {
        let Some(group) = Confinement::new(&format!("larder-test-{}", std::process::id())) else {
            eprintln!("skipped: this account may not make memory control groups");
            return;
        };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        group.hold(&[child.id(), u32::MAX >> 1], 64 << 20).unwrap();
        let inside = fs::read_to_string(group.directory.join("cgroup.procs")).unwrap();
        assert_eq!(inside.trim(), child.id().to_string());
        // The child holds little, so the limit falls nearly to the spare bytes.
        let spare = 8 << 20;
        let limit = group.tighten(spare).unwrap();
        assert!((spare..2 * spare).contains(&limit), "{limit}");
        let written = fs::read_to_string(&group.limit).unwrap();
        assert_eq!(written.trim(), (limit / 4096 * 4096).to_string());
        assert_eq!(group.tighten(1 << 40).unwrap(), limit / 4096 * 4096, "the limit rose");
        child.kill().unwrap();
        child.wait().unwrap();
        let directory = group.directory.clone();
        drop(group);
        assert!(!directory.exists());
    }
}
