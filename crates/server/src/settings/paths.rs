//! The devices of the store, in the form in which users name them.

use std::fmt;
use std::path::PathBuf;

use super::units::{DefaultUnit, parse_size, show_size};

/// The smallest size of a store's device, in bytes: 16 segments of the smallest size, and the
/// store's overhead.
const MIN_STORE: u64 = 2 << 20;

/// A directory, file or block device of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePath {
    /// The path, as the user wrote it.
    pub path: PathBuf,
    /// The size in bytes. With `None`, an existing store keeps its size, and a new one gets a
    /// default.
    pub size: Option<u64>,
    /// The name of the device's tier, if the user names tiers.
    pub tier: Option<String>,
}

/// The devices of a lane: one device, or one of each tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePaths<'a> {
    /// The device for new items.
    pub first: &'a StorePath,
    /// The lower device, to which items that are seldom read are moved.
    pub lower: Option<&'a StorePath>,
}

/// Returns the lanes of a store with the devices `stores`. Without tiers, each device is a lane.
/// With two tiers, the tier of the first device is the fast one, and the nth lane has the nth
/// device of each tier.
pub(super) fn lanes(stores: &[StorePath]) -> Result<Vec<LanePaths<'_>>, String> {
    let Some(tier) = stores.first().map(|store| &store.tier) else { return Ok(Vec::new()) };
    let (first, lower): (Vec<_>, Vec<_>) = stores.iter().partition(|store| store.tier == *tier);
    let lane = |(first, lower)| LanePaths { first, lower };
    if lower.is_empty() {
        return match tier {
            None => Ok(first.into_iter().map(|first| (first, None)).map(lane).collect()),
            Some(tier) => Err(format!(
                "@{tier} is the only tier: leave it out, or name another one, as in \
                 --store /mnt/nvme@fast --store /mnt/disk@big"
            )),
        };
    }
    if lower.iter().any(|store| store.tier != lower[0].tier) {
        return Err("there can be two tiers, the one that is named first being the fast one".into());
    }
    if tier.is_none() || lower[0].tier.is_none() {
        return Err("either all devices have a tier or none has".to_owned());
    }
    if first.len() != lower.len() {
        return Err("every device of one tier needs one of the other".to_owned());
    }
    Ok(first.into_iter().zip(lower.into_iter().map(Some)).map(lane).collect())
}

impl StorePath {
    /// Reads `PATH[:SIZE][@TIER]`.
    pub(super) fn parse(text: &str) -> Result<StorePath, String> {
        let whole = text;
        let bad = |why: &str| {
            Err(format!("{whole:?}: {why}; write for example /var/lib/larder or /dev/sdb:100GB"))
        };
        let (text, tier) = match text.rsplit_once('@') {
            // An `@` that a slash follows belongs to a directory's name and begins no tier.
            Some((text, tier)) if !tier.contains('/') => (text, Some(tier.to_owned())),
            _ => (text, None),
        };
        if tier.as_ref().is_some_and(|tier| tier.is_empty() || tier.contains(':')) {
            return bad("the name of the tier is missing, or comes before the size");
        }
        let (path, size) = match text.rsplit_once(':') {
            // A colon that a slash follows belongs to a directory's name and begins no size.
            Some((path, size)) if !size.contains('/') => (path, Some(size)),
            _ => (text, None),
        };
        if path.is_empty() {
            return bad("the path is missing");
        }
        let size = match size.map(parse_store_size).transpose() {
            Ok(size) => size,
            Err(reason) => return bad(&reason),
        };
        Ok(StorePath { path: path.into(), size, tier })
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        if let Some(size) = self.size {
            write!(f, ":{}", show_size(size))?;
        }
        match &self.tier {
            Some(tier) => write!(f, "@{tier}"),
            None => Ok(()),
        }
    }
}

/// Parses the size of a device in the form that `--store` accepts.
///
/// # Errors
/// Returns what is wrong with the size.
pub fn parse_store_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text, DefaultUnit::Mebibytes)?;
    match size < MIN_STORE {
        true => Err(format!("a store has at least {}", show_size(MIN_STORE))),
        false => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_split_into_path_size_and_tier() {
        type Parts<'a> = Option<(&'a str, Option<u64>, Option<&'a str>)>;
        let cases: &[(&str, Parts<'_>)] = &[
            ("/var/lib/larder", Some(("/var/lib/larder", None, None))),
            ("data", Some(("data", None, None))),
            ("/dev/sdb:100GB", Some(("/dev/sdb", Some(100 << 30), None))),
            ("/data:64", Some(("/data", Some(64 << 20), None))),
            ("/mnt/a:b/c", Some(("/mnt/a:b/c", None, None))),
            ("/mnt/a:b/c:1g", Some(("/mnt/a:b/c", Some(1 << 30), None))),
            ("/srv/me@work/data", Some(("/srv/me@work/data", None, None))),
            ("", None),
            (":5g", None),
            ("/data:0", None),
            ("/data:1MB", None),
            ("/data:2MB", Some(("/data", Some(2 << 20), None))),
            ("/data:", None),
            ("/data:much", None),
            ("/data:5g@hot", Some(("/data", Some(5 << 30), Some("hot")))),
            ("/data@hot", Some(("/data", None, Some("hot")))),
            ("/data@", None),
            ("/data@hot:5g", None),
            ("@hot", None),
        ];
        for (text, expected) in cases {
            let parsed = StorePath::parse(text);
            let found = parsed
                .as_ref()
                .ok()
                .map(|store| (store.path.to_str().unwrap(), store.size, store.tier.as_deref()));
            assert_eq!(found, *expected, "{text}: {parsed:?}");
            if let Ok(store) = parsed {
                assert_eq!(StorePath::parse(&store.to_string()), Ok(store));
            }
        }
    }

    #[test]
    fn tiers_join_devices() {
        let lanes_of = |texts: &[&str]| {
            let stores: Vec<_> = texts.iter().map(|text| StorePath::parse(text).unwrap()).collect();
            let path = |store: &StorePath| store.path.display().to_string();
            lanes(&stores).map(|lanes| {
                let lane = |lane: &LanePaths<'_>| (path(lane.first), lane.lower.map(path));
                lanes.iter().map(lane).collect::<Vec<_>>()
            })
        };
        let plain = |name: &str| (name.to_owned(), None);
        let joined = |first: &str, lower: &str| (first.to_owned(), Some(lower.to_owned()));
        assert_eq!(lanes_of(&["/a", "/b:5g"]), Ok(vec![plain("/a"), plain("/b")]));
        assert_eq!(
            lanes_of(&["/a@fast", "/x@big", "/b@fast", "/y@big"]),
            Ok(vec![joined("/a", "/x"), joined("/b", "/y")])
        );
        for wrong in [
            &["/a@fast"][..],
            &["/a@fast", "/b"],
            &["/a", "/b@big"],
            &["/a@x", "/b@y", "/c@z"],
            &["/a@x", "/b@y", "/c@y"],
        ] {
            assert!(lanes_of(wrong).is_err(), "{wrong:?}");
        }
    }
}
