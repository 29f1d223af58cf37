//! The list of all settings, in one file per subject. Flags, help texts and everything else that
//! names settings are generated from this list.

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
