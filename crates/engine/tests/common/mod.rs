//! What several tests use.

pub(crate) mod store;
pub(crate) mod two_devices;
