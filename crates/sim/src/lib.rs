//! Seeded worlds: each is an engine with its cleaner, stepped by hand and compared with a plain
//! map. The same seed gives the same run, so a failing seed is a complete bug report.
//!
//! Every answer must match the map. An engine that evicts may miss items, but no more than it
//! reports as evicted. A missing item must stay missing until the next write. Memory must stay
//! within its budget.
//!
//! ```
//! use sim::{Plan, World};
//!
//! World::run(Plan { seed: 7, steps: 500 })?;
//! # Ok::<(), sim::Failure>(())
//! ```

mod durable;
mod model;
mod threads;
mod world;

pub use durable::{Anomaly, DurableWorld, WorldCounts};
pub use threads::ThreadedWorld;
pub use world::{Failure, Plan, World};
