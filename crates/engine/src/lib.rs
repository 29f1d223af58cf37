//! Larder embedded: an index over the one log, with memcached's verbs. No sockets, no clock of its
//! own, no randomness: time comes in with [`Session::tick`], the hash seed with [`Options`].
//!
//! A thread that uses the engine opens a [`Session`] and calls [`Session::tick`] once per turn of
//! its loop. Between two ticks every [`Item`] that the session returned stays readable; memory is
//! reused only after every session has ticked.

mod expiry;
mod item;
mod options;
mod outcome;
mod session;
mod stats;
mod verbs;

pub use expiry::{Expiry, UnixSeconds};
pub use item::{Item, ItemHandle};
pub use options::{Options, WhenFull};
pub use outcome::{CommitPoint, Outcome};
pub use session::{Engine, Key, LargeValue, OpenError, ScanCursor, Session};
pub use stats::{Stats, Totals};
pub use verbs::*;
