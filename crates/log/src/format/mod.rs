//! The meaning of a store's bytes: `docs/file-format.md` in code.
//!
//! The functions of this module convert bytes to values and back. None of them reads or writes a
//! device. Bytes from a device may be damaged in any way. Even then, no function panics, reads out
//! of bounds, or allocates memory for lengths that these bytes claim. A structure of a segment is
//! trusted only if its checksum shows that this store wrote it for this segment and generation.

pub mod accepted;
mod bytes;
pub mod checksum;
pub mod clock;
pub mod content;
pub mod geometry;
pub mod index_image;
pub mod jumbo;
pub mod lanes;
pub mod meta;
pub mod scan;
pub mod segment;
pub mod summary;
pub mod superblock;
pub mod tail;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod tier;

pub use accepted::Accepted;
pub use checksum::{
    Identity, SegmentSeed, ValueHasher, key_hash, record_checksum, record_is_intact, seal_record,
    value_hash,
};
pub use clock::{MachineTime, NANOS};
pub use content::Content;
pub use geometry::Geometry;
pub use lanes::{LaneNumber, Lanes, MAX_LANES, Motion, PARTITIONS, partition};
pub use meta::{Meta, Use};
pub use scan::{Damage, Ending, Expect, Extent, Scanned};
pub use segment::{DurableEnd, Header, NoSegment, Trailer};
pub use summary::{KeyHash, Summary};
pub use superblock::{Release, Superblock, SuperblockError};
pub use tail::{Tail, header_under_tails};
pub use tier::{Label, LabelError};

/// Bytes of a device block: tails, metas and superblocks are whole blocks.
pub const BLOCK: usize = 4096;

/// Number of streams in a store.
pub const STREAMS: usize = 2;

// The bytes of a record on a device are the same as in RAM, so the host must be little-endian, as
// the format is. A store can be larger than 4 GiB, so `usize` must have 64 bits.
const _: () = assert!(cfg!(target_endian = "little") && size_of::<usize>() == 8);
