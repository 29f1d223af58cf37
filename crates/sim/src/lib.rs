//! Simulated worlds. A world runs random operations on an engine and compares every answer with a
//! plain map. Except in worlds with threads, the world also decides when the cleaner runs, so the
//! same seed gives the same run. A failing seed is then a complete bug report.
//!
//! Every answer must match the map, except that an engine that evicts may miss items. A world in
//! memory also checks three rules. The engine misses no more items than it reports as evicted. A
//! missing item stays missing until the next write. Memory stays within its budget.
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
