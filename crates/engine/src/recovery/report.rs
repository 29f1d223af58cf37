//! Reports of a recovery: its progress and its findings.

use std::time::Duration;

/// Progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Segments are being read.
    Reading {
        /// Segments read so far. Segments read twice count twice.
        segments: u64,
        /// Segments to be read, as far as is known. All segments are read several times if memory
        /// has no room to decide all keys in one pass.
        of: u64,
    },
}

/// The findings of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The number of items, expired ones included.
    pub items: u64,
    /// The number of segments that hold records.
    pub segments: u32,
    /// True if the store was new.
    pub created: bool,
    /// True if the previous server stopped cleanly.
    pub clean: bool,
    /// True if the start used the index image of the last stop, so it did not read the log.
    pub from_image: bool,
    /// True if the store was in use without durability when its server died, so its contents were
    /// discarded.
    pub discarded: bool,
    /// Bytes of commits that were incomplete when the server died. In sync mode, no write of such a
    /// commit was acknowledged, unless its client had asked for a weaker durability.
    pub dropped_bytes: u64,
    /// Runs of damaged bytes that no earlier start accepted. A run may have held any number of
    /// records, or none.
    pub damaged_records: u64,
    /// Runs of damaged bytes that an earlier start reported and accepted.
    pub accepted_records: u64,
    /// True if the store has no room to remember some of the damage, so the next start that reads
    /// the log will find it again.
    pub unremembered: bool,
    /// Segments that could not be read at all.
    pub damaged_segments: u32,
    /// Duration of the recovery.
    pub took: Duration,
}

impl Recovered {
    /// Combines the findings of this lane and another one.
    pub(crate) fn and(self, other: &Recovered) -> Recovered {
        Recovered {
            items: self.items + other.items,
            segments: self.segments + other.segments,
            created: self.created && other.created,
            clean: self.clean && other.clean,
            from_image: self.from_image && other.from_image,
            discarded: self.discarded || other.discarded,
            dropped_bytes: self.dropped_bytes + other.dropped_bytes,
            damaged_records: self.damaged_records + other.damaged_records,
            accepted_records: self.accepted_records + other.accepted_records,
            unremembered: self.unremembered || other.unremembered,
            damaged_segments: self.damaged_segments + other.damaged_segments,
            took: self.took.max(other.took),
        }
    }
}
