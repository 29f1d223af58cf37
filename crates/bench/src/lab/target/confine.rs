//! A memory control group around a server, so that the page cache cannot hold the values that
//! should lie on a device.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Where the kernel shows the controllers of version 1, and the only tree of version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
/// Number of attempts to remove a group. The kernel needs a moment after the last process.
const ATTEMPTS: usize = 50;

/// A memory control group. Dropping it removes it; its processes must have ended.
#[derive(Debug)]
pub(super) struct Confinement {
    directory: PathBuf,
    limit: PathBuf,
}

impl Confinement {
    /// Makes a group. Returns `None` if the kernel or the account does not allow it.
    pub(super) fn new(name: &str) -> Option<Confinement> {
        ROOTS.iter().find_map(|root| Confinement::in_root(Path::new(root), name))
    }

    fn in_root(root: &Path, name: &str) -> Option<Confinement> {
        // In version 2 the root must hand the controller on.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        let directory = root.join(name);
        fs::create_dir(&directory).ok()?;
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| directory.join(file));
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
}

impl Drop for Confinement {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Removes the groups of labs that were killed, which `is_abandoned` knows by their names.
pub(super) fn sweep(is_abandoned: impl Fn(&str) -> bool) {
    ROOTS.iter().for_each(|root| sweep_root(Path::new(root), &is_abandoned));
}

fn sweep_root(root: &Path, is_abandoned: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(&is_abandoned) {
            // The kernel refuses this for a group that has processes or groups.
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
        // The kernel needs a moment after the last process.
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
        child.kill().unwrap();
        child.wait().unwrap();
        let directory = group.directory.clone();
        drop(group);
        assert!(!directory.exists());
    }
}
