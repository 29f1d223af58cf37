//! The records of a part of a segment that was read from a device, for whoever looks at all of them and
//! need not have the whole segment in memory at once.

use crate::address::{Address, SegmentNumber};
use crate::format::segment::HEADER_BYTES;
use crate::format::{self, SegmentSeed};
use crate::log::{Appended, Log};
use crate::record::{Head, Kind, Record};

/// The records that lie in some bytes of a segment, in order, each checked. It ends before a record that
/// does not end inside of the bytes, and before what is damaged.
#[derive(Debug)]
pub struct Run<'a> {
    bytes: &'a [u8],
    segment: SegmentNumber,
    seed: SegmentSeed,
    /// Where in the segment the bytes begin.
    start: usize,
    /// Where in the segment the next record begins.
    next: usize,
    damaged: bool,
}

impl Run<'_> {
    /// Where the first record of a segment begins.
    pub const BEGIN: usize = HEADER_BYTES;

    /// Where in the segment the next record begins.
    pub fn next_offset(&self) -> usize {
        self.next
    }

    /// Whether it has ended because of what it cannot read.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }
}

impl Log {
    /// The records from the offset `next` on in `bytes`, which were read from the offset `start` of this use
    /// of a segment. Both are offsets at which records begin.
    pub fn run<'a>(
        &self,
        (segment, generation): (SegmentNumber, u32),
        bytes: &'a [u8],
        start: usize,
        next: usize,
    ) -> Option<Run<'a>> {
        let seed = self.store()?.segment_seed(segment, generation);
        let filled = self.segment(segment).filled() as usize;
        let bytes = &bytes[..bytes.len().min(filled.saturating_sub(start))];
        Some(Run { bytes, segment, seed, start, next, damaged: false })
    }
}

impl<'a> Iterator for Run<'a> {
    type Item = Appended<'a>;

    fn next(&mut self) -> Option<Appended<'a>> {
        loop {
            let rest = self.bytes.get(self.next - self.start..)?;
            // What is too short for a head may be cut off.
            let cut = rest.len() < crate::record::HEADER + crate::record::MAX_KEY + 16;
            let Some(head) = Head::parse(rest, None) else {
                self.damaged = !cut;
                return None;
            };
            let at = self.next;
            if head.kind == Kind::Filler {
                // Nobody vouches for its length but what follows.
                self.next += head.layout.size();
                continue;
            }
            let record = Record::parse(rest, None)?;
            if !format::record_is_intact(&record, self.seed) {
                self.damaged = true;
                return None;
            }
            self.next += record.size();
            return Some((Address::new(self.segment, at), record));
        }
    }
}
