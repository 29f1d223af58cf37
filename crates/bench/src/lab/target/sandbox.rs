//! A [`Sandbox`] is what a server gets: a directory, and limits of memory, threads and space.
//!
//! The name of the directory contains the id of the lab's process. If that process is gone although
//! its directory exists, the lab was killed. The next lab then removes the directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::confine::{self, Confinement};
use crate::process::tree;
use crate::{Error, Result};

/// How the names of directories begin. The process id, the start time of the process, and a number
/// follow.
const PREFIX: &str = ".larder-sandbox-";
/// The name of a file that marks a directory as the lab's.
const MARK: &str = "made-by-larder-bench";
/// The default of [`Sandbox::io_threads`], more than memcached's own default, because each thread
/// waits for one read at a time.
const IO_THREADS: usize = 16;
/// The default of the longest value, in bytes.
const VALUE_MAX: usize = 1024;

/// The directory and the resources of one server.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// A fresh directory that only this server uses. It is removed with the server.
    pub(crate) dir: PathBuf,
    /// Memory in MiB.
    pub(crate) memory: u64,
    pub(crate) threads: usize,
    /// The largest number of connections.
    pub(crate) connections: usize,
    /// The space in MiB for systems that have such a limit: Larder for its stores, and memcached
    /// for the files of extstore.
    pub(crate) disk: u64,
    /// Threads of memcached that read from a flash device.
    pub(crate) io_threads: usize,
    /// The longest value that will be stored, in bytes. Rows of MEMORY tables all take this space.
    pub(crate) value_max: usize,
    /// Page cache in MiB that the server may use besides its memory; `None` is no limit.
    pub(crate) page_cache: Option<u64>,
    /// Another fresh directory, for systems that use two devices. Without it, their files for both
    /// devices are in `dir`.
    pub(crate) second_dir: Option<PathBuf>,
}

impl Sandbox {
    /// Makes a fresh directory in `parent`, and removes the directories of labs that were killed.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be made.
    pub(crate) fn new(
        parent: &Path,
        memory: u64,
        threads: usize,
        connections: usize,
    ) -> Result<Sandbox> {
        let dir = fresh_directory(parent)?;
        Ok(Sandbox {
            dir,
            memory,
            threads,
            connections,
            disk: memory.saturating_mul(4).max(1024),
            io_threads: IO_THREADS,
            value_max: VALUE_MAX,
            page_cache: None,
            second_dir: None,
        })
    }

    /// Adds a fresh directory in `parent`, which should be on another device.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be made.
    pub(crate) fn with_second(self, parent: &Path) -> Result<Sandbox> {
        Ok(Sandbox { second_dir: Some(fresh_directory(parent)?), ..self })
    }

    /// Returns the path of a file or directory of the server, as text.
    ///
    /// # Errors
    /// Returns an error if the path is not UTF-8.
    pub(super) fn path(&self, name: &str) -> Result<String> {
        text_of(&self.dir.join(name))
    }
}

/// Returns true if the lab can bound the page cache of servers whose values lie on a device.
pub(crate) fn bounds_page_cache() -> bool {
    Confinement::new(&fresh_name()).is_some()
}

/// Returns a name for a directory or a control group. No other has this name.
fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", prefix_of_this_process(), NEXT.fetch_add(1, Relaxed))
}

fn fresh_directory(parent: &Path) -> Result<PathBuf> {
    sweep(parent);
    let dir = parent.join(fresh_name());
    fs::create_dir_all(&dir)
        .map_err(|e| Error::io(format!("cannot create {}", dir.display()), e))?;
    fs::write(dir.join(MARK), "larder bench removes this directory\n")
        .map_err(|e| Error::io(format!("cannot write to {}", dir.display()), e))?;
    // The path must be absolute: servers get it in options, and some change their working
    // directory.
    fs::canonicalize(&dir).map_err(|e| Error::io(format!("cannot find {}", dir.display()), e))
}

/// Returns a path as text, for command lines and configuration files.
pub(super) fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str();
    let bad = || Error::usage(format!("the path {} is not UTF-8", path.display()));
    text.map(str::to_owned).ok_or_else(bad)
}

fn prefix_of_this_process() -> String {
    let pid = std::process::id();
    let start = tree::member(pid).map_or(0, |member| member.started);
    format!("{PREFIX}{pid}-{start}")
}

/// Removes directories and control groups of lab processes that no longer exist. A directory is
/// removed only if it also has the file [`MARK`]. Failures are ignored.
pub(super) fn sweep(parent: &Path) {
    confine::sweep(is_abandoned);
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_marked = entry.path().join(MARK).is_file();
        if is_marked && entry.file_name().to_str().is_some_and(is_abandoned) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns true for the name of a directory whose process is gone.
fn is_abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let numbers: Option<Vec<u64>> = rest.split('-').map(|part| part.parse().ok()).collect();
    let Some(&[pid, start, _]) = numbers.as_deref() else { return false };
    let Ok(pid) = u32::try_from(pid) else { return false };
    tree::member(pid).is_none_or(|member| member.started != start || member.ended)
}

/// Removes a server's directory. A directory that is gone is fine.
pub(super) fn remove(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            crate::complain!("cannot remove {}: {error}", dir.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_is_bounded_where_a_group_can_be_made() {
        let name = fresh_name();
        assert_eq!(bounds_page_cache(), Confinement::new(&name).is_some());
        assert!(name != fresh_name() && !is_abandoned(&name));
    }

    #[test]
    fn only_directories_of_dead_labs_are_swept() {
        let parent = std::env::temp_dir().join(format!("larder-sweep-{}", std::process::id()));
        let own = Sandbox::new(&parent, 64, 1, 1).unwrap().dir;
        let other = Sandbox::new(&parent, 64, 1, 1).unwrap().dir;
        assert_ne!(own, other);
        let pid = std::process::id();
        let dead = [".larder-sandbox-4294967295-1-0".to_owned(), format!("{PREFIX}{pid}-1-0")];
        let foreign = [
            ".larder-sandbox-x",
            ".larder-sandbox-1-2",
            ".larder-sandbox-1-2-3-x",
            "larder-lab-2026-11-26",
            "larder-dip-1",
        ];
        for name in dead.iter().map(String::as_str).chain(foreign) {
            fs::create_dir_all(parent.join(name).join("data")).unwrap();
            fs::write(parent.join(name).join(MARK), "").unwrap();
        }
        // A directory with the right name but without the mark must stay.
        fs::create_dir_all(parent.join(".larder-sandbox-4294967295-1-1")).unwrap();
        sweep(&parent);
        assert!(own.exists() && other.exists());
        assert!(dead.iter().all(|name| !parent.join(name).exists()));
        assert!(foreign.iter().all(|name| parent.join(name).exists()));
        assert!(parent.join(".larder-sandbox-4294967295-1-1").exists());
        fs::remove_dir_all(parent).unwrap();
    }
}
