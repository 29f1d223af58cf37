//! The list of settings, one file per group. Everything that names a setting is generated from it.

use super::setting::Setting;

mod memcached;
mod network;
mod process;
mod storage;

/// Returns all settings, in the order of the help.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> + Clone {
    [network::SETTINGS, storage::SETTINGS, process::SETTINGS, memcached::SETTINGS]
        .into_iter()
        .flatten()
}
