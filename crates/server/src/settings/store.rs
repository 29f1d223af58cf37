//! Where the store lies, as people write it, and as memcached's `ext_path` does.

use std::fmt;
use std::path::PathBuf;

use larder_engine::Durability;

use super::Settings;
use super::units::{Bare, parse_size, show_size};
use super::values::{name_of, positive_duration, split};

/// The values of `--durability`.
pub(super) const DURABILITIES: &[(&str, Durability)] =
    &[("none", Durability::None), ("async", Durability::Async), ("sync", Durability::Sync)];

/// Its name in the settings.
pub(crate) fn durability_name(durability: Durability) -> String {
    name_of(durability, DURABILITIES)
}

/// A directory, file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePath {
    /// As it was given.
    pub path: PathBuf,
    /// The size in bytes. Without one a store keeps the size it has, and a new one chooses.
    pub size: Option<u64>,
}

impl StorePath {
    /// Reads `PATH[:SIZE]`.
    pub(super) fn parse(text: &str) -> Result<StorePath, String> {
        let bad = |why: &str| {
            Err(format!("{text:?}: {why}; write for example /var/lib/larder or /dev/sdb:100GB"))
        };
        let (path, size) = match text.rsplit_once(':') {
            // A colon may stand in the name of a directory.
            Some((path, size)) if !size.contains('/') => (path, Some(size)),
            _ => (text, None),
        };
        if path.is_empty() {
            return bad("the path is missing");
        }
        let name = size.unwrap_or(path).rsplit('/').next().unwrap_or_default();
        if name.contains('@') {
            return Err(format!(
                "{text:?}: a store has no tiers yet: leave @ and what follows it out, or give the \
                 directory of a file whose name has one"
            ));
        }
        let size = match size.map(|size| parse_size(size, Bare::Mebibytes)).transpose() {
            Ok(size) => size,
            Err(reason) => return bad(&reason),
        };
        Ok(StorePath { path: path.into(), size })
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        match self.size {
            Some(size) => write!(f, ":{}", show_size(size)),
            None => Ok(()),
        }
    }
}

/// `--store`.
pub(super) fn set_store(settings: &mut Settings, text: &str) -> Result<(), String> {
    let mut stores = split(text).map(StorePath::parse);
    let store = stores.next().transpose()?;
    if stores.next().is_some() {
        return Err(
            "one store is all there can be yet: join devices below it, with LVM or as a RAID"
                .to_owned(),
        );
    }
    settings.store = store;
    Ok(())
}

/// `--sync-interval`.
pub(super) fn set_sync_interval(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.sync_interval = positive_duration(text)
        .map_err(|reason| format!("{reason}; --durability sync waits for each write"))?;
    Ok(())
}

/// memcached's `-o ext_path=PATH:SIZE`. What it keeps there ends with the process, and so it does
/// here unless a durability is asked for.
pub(super) fn set_ext_path(settings: &mut Settings, text: &str) -> Result<(), String> {
    if settings.is_asked("store") {
        return Err("--store names a store already: leave one of the two out".to_owned());
    }
    if settings.ext_path {
        return Err("one store is all there can be yet: leave the others out".to_owned());
    }
    let store = StorePath::parse(text)?;
    if store.size.is_none() {
        return Err(format!("{text:?} has no size: write for example {text}:64GB"));
    }
    settings.store = Some(store);
    settings.ext_path = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_sizes() {
        type Parts<'a> = Option<(&'a str, Option<u64>)>;
        let cases: &[(&str, Parts<'_>)] = &[
            ("/var/lib/larder", Some(("/var/lib/larder", None))),
            ("data", Some(("data", None))),
            ("/dev/sdb:100GB", Some(("/dev/sdb", Some(100 << 30)))),
            ("/data:64", Some(("/data", Some(64 << 20)))),
            ("/mnt/a:b/c", Some(("/mnt/a:b/c", None))),
            ("/mnt/a:b/c:1g", Some(("/mnt/a:b/c", Some(1 << 30)))),
            ("/srv/me@work/data", Some(("/srv/me@work/data", None))),
            ("", None),
            (":5g", None),
            ("/data:", None),
            ("/data:much", None),
            ("/data:5g@hot", None),
            ("/data@hot", None),
        ];
        for (text, expected) in cases {
            let parsed = StorePath::parse(text);
            let found =
                parsed.as_ref().ok().map(|store| (store.path.to_str().unwrap(), store.size));
            assert_eq!(found, *expected, "{text}: {parsed:?}");
            if let Ok(store) = parsed {
                assert_eq!(StorePath::parse(&store.to_string()), Ok(store));
            }
        }
    }
}
