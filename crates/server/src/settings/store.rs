//! The settings of the store.

use std::time::Duration;

use larder_engine::{Durability, LaneNumber, MAX_LANES};

use super::paths::StorePath;
use super::types::Settings;
use super::values::{name_of, one_of, positive_duration, split};

/// The values of `--durability`.
const DURABILITIES: &[(&str, Durability)] =
    &[("none", Durability::None), ("async", Durability::Async), ("sync", Durability::Sync)];

/// Returns the name of a durability in the settings.
pub(crate) fn durability_name(durability: Durability) -> String {
    name_of(durability, DURABILITIES)
}

/// Parses `--store`.
pub(super) fn parse_stores(text: &str) -> Result<Vec<StorePath>, String> {
    split(text).map(StorePath::parse).collect()
}

/// Parses `--forget`.
pub(super) fn parse_lanes(text: &str) -> Result<Vec<LaneNumber>, String> {
    let lane = |text: &str| {
        let known = text.parse().ok().map(LaneNumber).filter(|lane| lane.index() < MAX_LANES);
        let last = MAX_LANES - 1;
        known.ok_or_else(|| format!("{text:?} is not the number of a lane: those are 0 to {last}"))
    };
    split(text).map(lane).collect()
}

/// Parses `--sync-interval`.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    positive_duration(text)
        .map_err(|reason| format!("{reason}; --durability sync waits for each write"))
}

/// Parses `--durability`.
pub(super) fn parse_durability(text: &str) -> Result<Option<Durability>, String> {
    one_of(text, DURABILITIES).map(Some)
}

/// Adds the device of memcached's `-o ext_path=PATH:SIZE` to the store. memcached loses the items
/// on that device when its process ends. So unless `--durability` is given, the durability is
/// `none`.
pub(super) fn set_ext_path(settings: &mut Settings, text: &str) -> Result<(), String> {
    if settings.is_given("store") {
        return Err("--store names a store already: leave one of the two out".to_owned());
    }
    let store = StorePath::parse(text)?;
    if store.size.is_none() {
        return Err(format!("{text:?} has no size: write for example {text}:64GB"));
    }
    settings.store.push(store);
    settings.ext_path = true;
    Ok(())
}
