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

#[cfg(test)]
mod tests {
    use super::*;

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
