//! Durability: the committer's thread, the calls that wait for commits, and the undo of the changes
//! of a failed commit.
//!
//! In sync mode, each change is recorded with the previous contents of its slot until it is
//! durable. If a commit fails, changes that are not durable are undone, newest first, before any
//! call that waits for them is answered. In async mode acknowledged changes stay: they are still in
//! memory, and are written again until the device accepts them. Acknowledged changes are also
//! written [early], before their commit.

mod committer;
mod early;
mod gather;
mod options;
pub(crate) mod state;
mod times;
mod undo;

#[cfg(test)]
mod tests;

pub(crate) use committer::spawn;
pub(crate) use early::spawn as spawn_early;
pub use options::{Durability, LowerDevice, StoreDevice, StoreOptions};
pub use state::Health;
pub(crate) use state::{Change, Changes, Durable};
pub use times::StoreHistograms;
pub(crate) use times::{TierTimes, timed};
