//! Finds programs: on the PATH, in well-known directories, and where `scripts/peers` installs.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::catalogue::Missing;

/// Directories of servers that are often not on the PATH of users.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// The command that installs the systems that package registries offer.
pub(super) const INSTALL: &str = "scripts/peers";

/// Where to look for programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Directories to search for programs, in this order.
    pub(crate) path: Vec<PathBuf>,
    /// The directory into which `scripts/peers` installs.
    pub(crate) peers: PathBuf,
    /// An installation of ARCUS.
    pub(crate) arcus: Option<PathBuf>,
}

/// The programs of a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    /// The server, or the Java runtime that runs it.
    pub(crate) server: PathBuf,
    /// A second program, library or directory of libraries that the system needs.
    pub(crate) companion: Option<PathBuf>,
}

impl Places {
    /// Returns the system's directories and the places that the environment names: `PATH`,
    /// `LARDER_PEERS` or otherwise `HOME`, and `ARCUS_HOME`.
    pub(crate) fn usual() -> Places {
        let path = env::var_os("PATH").unwrap_or_default();
        let peers = peers(env::var_os("LARDER_PEERS"), env::var_os("HOME"));
        Places {
            path: env::split_paths(&path)
                .chain(SYSTEM_DIRECTORIES.map(PathBuf::from))
                .chain([peers.join("bin")])
                .collect(),
            peers,
            arcus: env::var_os("ARCUS_HOME").map(PathBuf::from),
        }
    }

    /// Finds a program on the path.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        self.path.iter().map(|directory| directory.join(name)).find(|path| is_program(path))
    }

    /// Finds a program on the path, or reports that `scripts/peers` installs it.
    pub(super) fn need(&self, name: &str) -> std::result::Result<PathBuf, Missing> {
        self.program(name).ok_or_else(|| Missing {
            why: format!("{name} is not on the PATH"),
            install: INSTALL.to_owned(),
        })
    }

    /// Finds a file or directory that `scripts/peers` has installed.
    pub(super) fn peer(&self, path: &str) -> Option<PathBuf> {
        let path = self.peers.join(path);
        path.exists().then_some(path)
    }
}

/// Finds a program that is no server, such as a load generator.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    Places::usual().program(name)
}

impl Programs {
    pub(super) fn only(server: PathBuf) -> Programs {
        Programs { server, companion: None }
    }

    pub(super) fn with(server: PathBuf, companion: PathBuf) -> Programs {
        Programs { server, companion: Some(companion) }
    }
}

fn peers(named: Option<OsString>, home: Option<OsString>) -> PathBuf {
    match (named, home) {
        (Some(named), _) => named.into(),
        (None, Some(home)) => Path::new(&home).join(".cache/larder-peers"),
        (None, None) => PathBuf::from("/var/cache/larder-peers"),
    }
}

pub(super) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_executable_files_in_the_order_of_the_path() {
        let places = Places {
            path: ["/nowhere", "/etc", "/bin", "/usr/bin"].map(PathBuf::from).to_vec(),
            ..Places::default()
        };
        assert_eq!(places.program("sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(places.program("passwd").filter(|path| path.starts_with("/etc")), None);
        let missing = places.need("no-such-server").unwrap_err();
        assert_eq!(missing.why, "no-such-server is not on the PATH");
        assert_eq!(missing.install, "scripts/peers");
    }

    #[test]
    fn peers_lie_where_the_script_puts_them() {
        assert_eq!(peers(Some("/p".into()), Some("/users/a".into())), Path::new("/p"));
        assert_eq!(peers(None, Some("/users/a".into())), Path::new("/users/a/.cache/larder-peers"));
        assert!(Places::usual().path.contains(&PathBuf::from("/usr/sbin")));
    }
}
