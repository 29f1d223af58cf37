//! The settings of the store.

use larder_engine::{Durability, LaneNumber, MAX_LANES};

use super::paths::StorePath;
use super::types::Settings;
use super::values::{name_of, positive_duration, split};

/// The values of `--durability`.
pub(super) const DURABILITIES: &[(&str, Durability)] =
    &[("none", Durability::None), ("async", Durability::Async), ("sync", Durability::Sync)];

/// Returns the name of a durability in the settings.
pub(crate) fn durability_name(durability: Durability) -> String {
    name_of(durability, DURABILITIES)
}

/// Sets `--store`.
pub(super) fn set_store(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.store = split(text).map(StorePath::parse).collect::<Result<_, _>>()?;
    Ok(())
}

/// Sets `--forget`.
pub(super) fn set_forget(settings: &mut Settings, text: &str) -> Result<(), String> {
    let lane = |text: &str| {
        let known = text.parse().ok().map(LaneNumber).filter(|lane| lane.index() < MAX_LANES);
        let last = MAX_LANES - 1;
        known.ok_or_else(|| format!("{text:?} is not the number of a lane: those are 0 to {last}"))
    };
    settings.forget = split(text).map(lane).collect::<Result<_, _>>()?;
    Ok(())
}

/// Returns the lanes in the form that `--forget` accepts.
pub(super) fn show_forget(settings: &Settings) -> String {
    let lanes: Vec<_> = settings.forget.iter().map(ToString::to_string).collect();
    lanes.join(",")
}

/// Sets `--sync-interval`.
pub(super) fn set_sync_interval(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.sync_interval = positive_duration(text)
        .map_err(|reason| format!("{reason}; --durability sync waits for each write"))?;
    Ok(())
}

/// Sets memcached's `-o ext_path=PATH:SIZE`. As in memcached, items kept there end with the
/// process, unless a durability is given.
pub(super) fn set_ext_path(settings: &mut Settings, text: &str) -> Result<(), String> {
    if settings.is_asked("store") {
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
