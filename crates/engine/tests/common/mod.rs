//! What several tests use.

pub(crate) mod two_devices;
