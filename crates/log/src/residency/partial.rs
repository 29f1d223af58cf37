//! Iterates over the records in a part of a segment that was read from a device. Used to examine
//! all records without the whole segment in memory at once.

use crate::address::{Address, SegmentNumber};
use crate::append::Appended;
use crate::format::segment::HEADER_BYTES;
use crate::format::{self, SegmentSeed};
use crate::log::DurableLog;
use crate::record::{self, Head, Record};

/// Iterates over the records in some bytes of a segment, in order, and checks each. Ends before a
/// record that these bytes do not contain completely, and before damage.
#[derive(Debug)]
pub struct PartialRecords<'a> {
    bytes: &'a [u8],
    segment: SegmentNumber,
    seed: SegmentSeed,
    /// Offset of the bytes in the segment.
    start: usize,
    /// Offset of the next record in the segment.
    pub next: usize,
    /// True if the iteration ended because of damage.
    pub damaged: bool,
}

impl PartialRecords<'_> {
    /// Offset of the first record of a segment.
    pub const BEGIN: usize = HEADER_BYTES;
}

impl DurableLog<'_> {
    /// Returns the records from offset `next` on in `bytes`, which were read from offset `start` of
    /// this generation of a segment. A record must begin at both offsets.
    pub fn partial_records<'a>(
        self,
        (segment, generation): (SegmentNumber, u32),
        bytes: &'a [u8],
        start: usize,
        next: usize,
    ) -> PartialRecords<'a> {
        let seed = self.store.segment_seed(segment, generation);
        let filled = self.segment(segment).filled() as usize;
        let bytes = &bytes[..bytes.len().min(filled.saturating_sub(start))];
        PartialRecords { bytes, segment, seed, start, next, damaged: false }
    }
}

impl<'a> Iterator for PartialRecords<'a> {
    type Item = Appended<'a>;

    fn next(&mut self) -> Option<Appended<'a>> {
        let rest = self.bytes.get(self.next - self.start..)?;
        let Some(record) = Record::parse(rest, None) else {
            // The bytes may end inside this record. If they may be too short for the record's head,
            // the record counts as cut off, not as damaged.
            let cut = rest.len() < record::HEADER + record::MAX_KEY + 16;
            self.damaged = !cut && Head::parse(rest, None).is_none();
            return None;
        };
        // Fillers are checked, too: a wrong length would hide the records behind them.
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

    /// Returns the bytes of an item, of a filler like those that a repeated commit leaves, and of
    /// another item.
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

    fn records(bytes: &[u8]) -> PartialRecords<'_> {
        let seed = SegmentSeed::new(1, 2, 3);
        PartialRecords { bytes, segment: 2, seed, start: 0, next: 0, damaged: false }
    }

    #[test]
    fn a_damaged_filler_ends_the_run() {
        let mut bytes = bytes();
        let mut whole = records(&bytes);
        let kinds: Vec<_> = whole.by_ref().map(|(_, record)| record.kind()).collect();
        assert_eq!(kinds, [Kind::Item, Kind::Filler, Kind::Item]);
        assert!(!whole.damaged && whole.next == bytes.len());

        let filler = (bytes.len() - FILLER) / 2;
        // The changed length makes the filler reach the end of the second item. The iteration must
        // end before the filler and report damage.
        bytes[filler + 7] = (bytes.len() - filler - HEADER) as u8;
        let mut damaged = records(&bytes);
        assert_eq!(damaged.by_ref().count(), 1);
        assert!(damaged.damaged && damaged.next == filler);
    }
}
