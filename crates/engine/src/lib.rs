//! Larder as a library: an index over a log, with memcached's verbs. It opens no sockets, reads no
//! clock and uses no randomness. The time comes with [`Session::tick`], the hash seed with
//! [`Options`].
//!
//! A thread that uses the engine opens a [`Session`] and calls [`Session::tick`] once per turn of
//! its loop. Every [`Item`] that a session returned stays readable until the session's next tick.
//! Memory is reused only after every session has ticked.

mod cleaner;
mod durability;
mod engine;
mod error;
mod expiry;
mod index;
mod item;
mod key;
mod lane;
mod large;
mod lock;
mod mover;
mod older;
mod options;
mod outcome;
mod reads;
mod record_map;
mod recovery;
mod stats;
mod verbs;

pub use durability::{Durability, Health, LowerDevice, MonotonicClock, StoreDevice, StoreOptions};
pub use engine::drains::{DrainError, LaneState};
pub use engine::growths::GrowError;
pub use engine::session::{Reads, Session};
pub use engine::{Engine, ManualCleaner};
pub use error::{OpenError, StoreError};
pub use expiry::{Expiry, UnixSeconds};
pub use item::{Item, KeptValue, Listed};
pub use key::Key;
pub use lane::memory::{MAX_ITEM_SIZE, MIN_ITEM_SIZE, MIN_MEMORY};
pub use larder_log::GrowError as LogGrowError;
pub use larder_log::format::tier::LABEL_AREA;
pub use larder_log::format::{Content, LabelError, MAX_LANES, SuperblockError};
#[cfg(feature = "breakable")]
pub use larder_log::rule;
pub use large::LargeValue;
pub use options::{Options, WhenFull};
pub use outcome::{CommitPoint, CommitState, Outcome, Refusal};
pub use recovery::{Progress, Recovered};
pub use stats::{Stats, Totals};
pub use verbs::*;
