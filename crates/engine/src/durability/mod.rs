//! Durability: the committer's thread, what waits for it, and what is undone when it fails.
//!
//! In sync mode every change is noted with what its slot held before, until it is durable. If a
//! commit fails, the changes that are not durable are undone, newest first, before anybody who
//! waits for them is answered. In async mode what was acknowledged stays: it is still in memory, and
//! written again until the device takes it. What is not durable yet is written [early](early) there.

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
