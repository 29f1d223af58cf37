//! Larder as a library: an index over a log, with memcached's verbs. It opens no sockets, reads no
//! clock and uses no randomness. The caller passes the time to [`Session::tick`] or
//! [`Session::tick_at`], and the hash seed in [`Options`].
//!
//! A thread that uses the engine opens a [`Session`] and calls [`Session::tick`] once per turn of
//! its loop. Every [`Item`] that a session returned stays readable until the session ticks or
//! sleeps. Memory is reused only after every session has ticked or is [asleep](Session::sleep).
//!
//! # A cache in one process
//!
//! ```
//! use larder_engine::{Engine, Expiry, Options, Outcome, Store};
//! use std::task::Waker;
//!
//! let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() })?;
//! let mut session = engine.session(Waker::noop().clone());
//! session.tick(1_700_000_000); // the time, in Unix seconds
//!
//! let key = session.key(b"fig");
//! let stored = session.store(&key, Store::set(b"sweet", 0, Expiry::NEVER));
//! assert!(matches!(stored, Outcome::Ready(_)));
//! let Outcome::Ready(Some(item)) = session.get(&key) else { panic!("it was just stored") };
//! assert_eq!(item.value(), b"sweet");
//! # Ok::<(), larder_engine::OpenError>(())
//! ```
//!
//! # A durable store
//!
//! With a store, a call may return [`Outcome::AfterCommit`]. The caller must hold its answer back
//! until the commit is durable.
//!
//! ```
//! use larder_engine::*;
//! use std::{sync::Arc, task::Waker, time::{Duration, Instant}};
//!
//! let device = Arc::new(larder_disk::SimDevice::new(64 << 20, 1)); // or a larder_disk::FileDevice
//! let start = Instant::now();
//! let store = StoreOptions {
//!     devices: vec![StoreDevice { name: "disk".into(), device, lower: None, seeds: [1, 2, 3] }],
//!     forget: Vec::new(),
//!     durability: Durability::Sync,
//!     sync_interval: Duration::from_secs(1),
//!     accept_damage: false,
//!     clock: MonotonicClock(Arc::new(move || start.elapsed())),
//!     opened: MachineTime { wall: 1_700_000_000 * NANOS, ..MachineTime::default() },
//! };
//! let engine = Engine::open(Options { store: Some(store), ..Options::default() })?;
//! let mut session = engine.session(Waker::noop().clone());
//! session.tick(1_700_000_000);
//! let stored = session.store(&session.key(b"fig"), Store::set(b"sweet", 0, Expiry::NEVER));
//! let Outcome::AfterCommit(_, point) = stored else { panic!("it waits for its commit") };
//! session.wake_on_commit(point); // asks for the commit
//! session.sleep();
//! while session.commit_state(point) == CommitState::Pending {
//!     std::thread::yield_now(); // a server waits for the session's waker instead
//! }
//! assert_eq!(session.commit_state(point), CommitState::Durable);
//! engine.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub mod limit;
mod lock;
mod mover;
mod number;
mod older;
mod options;
mod outcome;
mod reads;
mod record_map;
mod recovery;
mod stats;
mod verbs;

pub use durability::{Durability, Health, LowerDevice, StoreDevice, StoreHistograms, StoreOptions};
pub use engine::drains::{DrainError, LaneState};
pub use engine::grow_requests::GrowError;
pub use engine::session::{Reads, Session};
pub use engine::{Engine, ManualCleaner};
pub use error::{OpenError, StoreError};
pub use expiry::{Expiry, UnixSeconds, second_of};
pub use item::{Item, KeptValue, Listed};
pub use key::{Key, SecretHash};
pub use lane::memory::{MAX_ITEM_SIZE, MIN_ITEM_SIZE, MIN_MEMORY};
pub use larder_disk::MonotonicClock;
pub use larder_log::GrowError as LogGrowError;
pub use larder_log::format::tier::LABEL_AREA;
pub use larder_log::format::{
    Content, LabelError, LaneNumber, MAX_LANES, MachineTime, NANOS, SuperblockError,
};
#[cfg(feature = "breakable")]
pub use larder_log::rule;
pub use larder_log::sync::locks_taken;
pub use large::LargeValue;
pub use options::{Options, WhenFull};
pub use outcome::{CommitPoint, CommitState, Outcome, Refusal};
pub use recovery::{Progress, Recovered};
pub use stats::{Stats, Totals};
pub use verbs::*;
