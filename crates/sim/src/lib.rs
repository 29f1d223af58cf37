//! Seeded worlds: an engine and its cleaner, stepped by hand, against a plain map. The same seed
//! gives the same run, so a seed that fails is a bug report.
//!
//! What must hold: every answer is the map's, except that an engine that evicts may miss items, and
//! then no more of them than it says it evicted; a miss is for good until the next write; memory
//! stays in its budget.

mod durable;
mod model;
mod threads;
mod world;

pub use durable::{Anomaly, DurableWorld, Seen};
pub use threads::ThreadedWorld;
pub use world::{Failure, Plan, World};
