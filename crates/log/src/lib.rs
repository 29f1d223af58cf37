//! The log: fixed-size segments of records in RAM frames.
//!
//! This crate knows records, segments, streams and addresses; it does not know what a key means. A
//! record is appended to the open segment of a stream and never changes afterwards. Readers
//! therefore need no lock: they follow an address into a frame and copy the bytes out. A frame is
//! reused only after the quiescent period of [`memory::epoch`], so never under a reader.

pub mod address;
pub mod append;
pub mod commit;
pub mod format;
pub mod log;
pub mod memory;
#[cfg(test)]
mod model;
mod reclaim;
pub mod record;
pub mod recover;
mod residency;
pub mod rule;
pub mod segment;
pub mod store;
pub mod sync;

pub use address::{Address, MAX_SEGMENT_SIZE, RecordId, SegmentNumber};
pub use append::{Appended, Appender, Claim, Reservation, Sealed, Stream};
pub use commit::{BegunMap, Closed, Committer, DeadMap, MapState, Written};
pub use log::{Config, Log};
pub use memory::{Appending, Budget, Buffers, Epochs, Mapping, Participant, Pin, Region, prefetch};
pub use reclaim::{Among, Candidate, Held, UsageTable};
pub use record::{Fields, Head, Kind, Layout, Record};
pub use residency::{Copies, Image, Kept, Loaded, PartialRecords, Queue};
pub use rule::Rule;
pub use segment::{Segment, State};
pub use store::{CommitMarks, CommitState, GrowError, Store, Tier};
