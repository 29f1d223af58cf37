//! The log: fixed-size segments of records in RAM frames.
//!
//! This crate knows records, segments, streams and addresses; it does not know what a key means. A
//! record is appended to the open segment of a stream and never changes afterwards. Readers
//! therefore need no lock: they follow an address into a frame and copy the bytes out. A frame is
//! reused only after the quiescent period of [`epoch`], so never under a reader.

pub mod address;
pub mod appender;
pub mod budget;
mod chunks;
pub mod commit;
mod copies;
pub mod cover;
pub mod deaths;
pub mod epoch;
mod failed;
mod failure;
pub mod format;
mod frames;
mod grow;
pub mod index_image;
pub mod log;
pub mod memory;
#[cfg(test)]
mod model;
mod pins;
mod places;
pub mod prefetch;
mod quarantine;
mod reclaim;
pub mod record;
pub mod recover;
mod residency;
pub mod rule;
mod run;
pub mod segment;
pub mod store;
mod summarize;
pub mod sync;
mod table;
mod tally;
mod usage;

pub use address::{Address, MAX_SEGMENT_SIZE, SegmentNumber};
pub use appender::Appender;
pub use budget::{Budget, Buffers};
pub use copies::{Kept, Queue};
pub use epoch::{Appending, Epochs, Participant};
pub use grow::GrowError;
pub use log::{Appended, Claim, Config, Log, Reservation, Sealed, Stream};
pub use memory::{Mapping, Region};
pub use pins::Pin;
pub use places::Tier;
pub use record::{Fields, Head, Kind, Layout, Record};
pub use residency::{Image, Loaded};
pub use rule::Rule;
pub use run::Run;
pub use segment::{Segment, State};
pub use store::{CommitState, Store};
pub use usage::{Among, Candidate, Held, UsageTable};
