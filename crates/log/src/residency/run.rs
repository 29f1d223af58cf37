//! The records of a part of a segment that was read from a device, for whoever looks at all of them and
//! need not have the whole segment in memory at once.

use crate::address::{Address, SegmentNumber};
use crate::append::Appended;
use crate::format::segment::HEADER_BYTES;
use crate::format::{self, SegmentSeed};
use crate::log::Log;
use crate::record::{self, Head, Record};

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
        let rest = self.bytes.get(self.next - self.start..)?;
        let Some(record) = Record::parse(rest, None) else {
            // The rest of it may be cut off, and what is too short for a head too.
            let cut = rest.len() < record::HEADER + record::MAX_KEY + 16;
            self.damaged = !cut && Head::parse(rest, None).is_none();
            return None;
        };
        // Of a filler, too: with a wrong length it would hide what lies behind it.
        if !format::record_is_intact(&record, self.seed) {
            self.damaged = true;
            return None;
        }
        let address = Address::new(self.segment, self.next);
        self.next += record.size();
        Some((address, record))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::{Fields, HEADER, Kind, Layout, write_filler, write_head};

    const FILLER: usize = 48;

    /// An item, a filler as a commit that is repeated leaves one, and an item.
    fn bytes() -> Vec<u8> {
        let seed = SegmentSeed::new(1, 2, 3);
        let mut words = larder_disk::ReadBuffer::new(0, 256, 8);
        let bytes = words.bytes_mut();
        let fields = Fields::default();
        let item = Layout::of(&fields, 3, 6);
        let filler = Layout { header: HEADER, key: 0, value: FILLER - HEADER };
        // SAFETY: there is room for all three.
        unsafe {
            let mut at = bytes.as_mut_ptr();
            write_head(at, &item, &fields, b"one");
            format::seal_record(at, Kind::Item, &item, None, seed);
            at = at.add(item.size());
            write_filler(at, FILLER);
            format::seal_record(at, Kind::Filler, &filler, None, seed);
            at = at.add(FILLER);
            write_head(at, &item, &fields, b"two");
            format::seal_record(at, Kind::Item, &item, None, seed);
        }
        bytes[..2 * item.size() + FILLER].to_vec()
    }

    fn run(bytes: &[u8]) -> Run<'_> {
        let seed = SegmentSeed::new(1, 2, 3);
        Run { bytes, segment: 2, seed, start: 0, next: 0, damaged: false }
    }

    #[test]
    fn a_filler_is_believed_only_when_it_is_intact() {
        let mut bytes = bytes();
        let mut whole = run(&bytes);
        let kinds: Vec<_> = whole.by_ref().map(|(_, record)| record.kind()).collect();
        assert_eq!(kinds, [Kind::Item, Kind::Filler, Kind::Item]);
        assert!(!whole.is_damaged() && whole.next_offset() == bytes.len());

        let filler = (bytes.len() - FILLER) / 2;
        // The length is as far as the end of the second item then.
        bytes[filler + 7] = (bytes.len() - filler - HEADER) as u8;
        let mut damaged = run(&bytes);
        assert_eq!(damaged.by_ref().count(), 1);
        assert!(damaged.is_damaged() && damaged.next_offset() == filler);
    }
}
