//! Seeded worlds: an engine and its cleaner, stepped by hand and compared with a plain map. The
//! same seed gives the same run, so a failing seed is a bug report.
//!
//! Every answer must match the map. An engine that evicts may miss items, but no more than it
//! reports as evicted. A missing item stays missing until the next write. Memory stays within its
//! budget.
//!
//! ```
//! use larder_sim::{Plan, World};
//!
//! World::run(Plan { seed: 7, steps: 500 })?;
//! # Ok::<(), larder_sim::Failure>(())
//! ```

mod durable;
mod model;
mod threads;
mod world;

pub use durable::{Anomaly, DurableWorld, Seen};
pub use threads::ThreadedWorld;
pub use world::{Failure, Plan, World};
