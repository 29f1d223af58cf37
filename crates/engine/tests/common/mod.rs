//! Helpers that several tests share.

pub(crate) mod store;
pub(crate) mod two_devices;
