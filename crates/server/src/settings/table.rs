//! The list of settings, in a file per group of them. Everything that names a setting is generated
//! from here.

use super::setting::Setting;

mod memcached;
mod network;
mod process;
mod storage;

/// All settings, in the order of the help.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> + Clone {
    [network::SETTINGS, storage::SETTINGS, process::SETTINGS, memcached::SETTINGS]
        .into_iter()
        .flatten()
}
