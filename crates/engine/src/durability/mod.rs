//! Durability: the committer's thread, the calls that wait for it, and the changes that are undone
//! when it fails.
//!
//! In sync mode every change is noted with the previous contents of its slot, until it is durable.
//! If a commit fails, changes that are not durable are undone, newest first, before any call that
//! waits for them is answered. In async mode acknowledged changes stay: they are still in memory,
//! and are written again until the device accepts them. Changes that are not durable yet are
//! written [early](early) in async mode.

mod committer;
mod early;
mod options;
pub(crate) mod state;
mod undo;

#[cfg(test)]
mod tests;

pub(crate) use committer::spawn;
pub(crate) use early::spawn as spawn_early;
pub use options::{Durability, LowerDevice, MonotonicClock, StoreDevice, StoreOptions};
pub use state::Health;
pub(crate) use state::{Change, Changes, Committer, Durable};
