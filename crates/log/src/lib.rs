//! The log: segments of records, in RAM frames and, with a store, on a device.
//!
//! This crate knows records, segments, streams and addresses; it does not know what a key means. A
//! record is appended to the open segment of a stream. Afterwards it does not change, unless the
//! engine changes a counter or a rate limiter in place. Readers of all other records need no lock:
//! they follow an address into a frame and copy the bytes out. A frame is reused only after a
//! quiescent period (see [`memory::epoch`]), when no reader can still hold a pointer into it.
//!
//! ```
//! use larder_log::*;
//! use larder_log::record::write_head;
//! use std::sync::Arc;
//!
//! let config = Config { segment_size: 64 << 10, max_frame_bytes: 1 << 20, keeps_all: false };
//! let (budget, epochs) = (Arc::new(Budget::new(8 << 20)), Arc::new(Epochs::default()));
//! let log = Log::new(config, None, budget, Arc::clone(&epochs))?;
//! let mut thread = epochs.join();
//! thread.tick(); // until the thread's next tick, no record that it reads is freed
//!
//! let fields = Fields::default();
//! let layout = Layout::of(&fields, 3, 5);
//! let now = 1_700_000_000;
//! let space = log.reserve(Stream::Hot, layout.size(), now, Claim::Write).expect("an empty log");
//! // SAFETY: the reserved memory is this thread's own, and as long as the record.
//! unsafe {
//!     write_head(space.memory, &layout, &fields, b"fig");
//!     space.memory.add(layout.value_offset()).copy_from_nonoverlapping(b"sweet".as_ptr(), 5);
//! }
//! // SAFETY: the thread is awake, and the record is complete.
//! let record = unsafe { log.record(space.address) }.expect("its segment is in memory");
//! assert_eq!((record.key(), record.value()), (&b"fig"[..], &b"sweet"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```

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
pub use log::{Config, DurableLog, Log};
pub use memory::{
    Appending, Budget, Buffers, CLEANER_RESERVE, Epochs, Mapping, Participant, Pin, Region,
    prefetch,
};
pub use reclaim::{Among, Candidate, QuarantineCounts, SegmentTotals, UsageTable};
pub use record::{Fields, Head, Kind, Layout, Record};
pub use residency::{Copies, Image, Kept, Loaded, PartialRecords, Queue};
pub use rule::Rule;
pub use segment::{Segment, State};
pub use store::{CommitMarks, CommitState, GrowError, Store, Tier};
