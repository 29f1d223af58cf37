//! What a start looks at of places: metas, headers, and the ends of segments, where summaries are.
//!
//! The metas of a group of places lie one behind the other, with the end of the segment before them and the header of the
//! first one behind them, and are read at once. The end of each further segment is read with the header of the next one.
//! What cannot be read so is read piece by piece, so a block that cannot be read takes nothing else with it.

use crate::address::SegmentNumber;
use crate::format::{BLOCK, Meta};
use crate::store::Store;
use larder_disk::ReadBuffer;
use std::io;
use std::ops::RangeInclusive;

/// The most bytes that are read for the metas of a group. Of longer ones too much would be read that nobody looks at:
/// beginnings of metas are needed, and the dead maps of a few.
const MOST: usize = 1 << 20;

/// The metas of a group, and the blocks in front of them and behind them.
struct Metas {
    numbers: RangeInclusive<SegmentNumber>,
    /// Where the bytes begin on the device.
    from: u64,
    /// `None`: they take too much to be read together.
    bytes: Option<ReadBuffer>,
    /// Whether they were. If not, each is read when it is wanted.
    are_read: bool,
}

/// What is seen of a place.
pub(super) struct Seen {
    pub(super) number: SegmentNumber,
    pub(super) metas: Copies,
    /// The first block; zero if it cannot be read.
    pub(super) first: [u8; BLOCK],
    pub(super) is_readable: bool,
    /// The last block, if it was read with others.
    pub(super) last: Option<[u8; BLOCK]>,
}

/// Places of which one after the other is looked at, from the last one on.
pub(super) struct Places<'a> {
    store: &'a Store,
    metas: Option<Metas>,
    /// The last block of the place in front of those that were looked at.
    end: Option<(SegmentNumber, [u8; BLOCK])>,
}

/// Both copies of a meta.
pub(super) struct Copies {
    /// Their bytes: as many as they say that they have.
    pub(super) bytes: [Vec<u8>; 2],
    /// Of those that cannot be read, the greatest version that they may have.
    pub(super) unread: Option<u64>,
}

impl Metas {
    /// Reads those of the group that `number` belongs to, in the memory of those `before`.
    fn read(store: &Store, number: SegmentNumber, before: Option<Metas>) -> Self {
        let numbers = store.geometry.meta_run(number);
        let from = store.geometry.meta(*numbers.start(), 0) - BLOCK as u64;
        let first = store.geometry.segment(*numbers.start());
        let len = (first - from) as usize + BLOCK;
        // The memory fits: those of each group begin at a multiple of a block, and have the same length.
        let memory = before.and_then(|before| before.bytes);
        let new = || (len <= MOST).then(|| ReadBuffer::new(from, len, BLOCK));
        let mut bytes = memory.or_else(new);
        // What is wrong is found out when they are read one by one.
        let read = |bytes: &mut ReadBuffer| store.device.read_at(from, bytes.bytes_mut()).is_ok();
        let are_read = bytes.as_mut().is_some_and(read);
        Metas { numbers, from, bytes, are_read }
    }

    /// What was read of a range of the device.
    fn known(&self, at: u64, len: usize) -> Option<&[u8]> {
        let at = at.checked_sub(self.from)? as usize;
        self.bytes.as_ref().filter(|_| self.are_read)?.get(at..at + len)
    }

    /// As [`Store::read`].
    fn read_at(&self, store: &Store, at: u64, bytes: &mut [u8]) -> io::Result<bool> {
        match self.known(at, bytes.len()) {
            Some(known) => bytes.copy_from_slice(known),
            None => return store.read(at, bytes),
        }
        Ok(true)
    }

    /// The copies of the meta of a segment of the group.
    fn copies(&self, store: &Store, number: SegmentNumber) -> io::Result<Copies> {
        let mut copies = Copies { bytes: [vec![0; BLOCK], vec![0; BLOCK]], unread: None };
        for (which, copy) in copies.bytes.iter_mut().enumerate() {
            let at = store.geometry.meta(number, which);
            if !self.read_at(store, at, copy)? {
                copies.unread = Some(u64::MAX);
            } else if Meta::has_map(copy) {
                let version = Meta::version(copy);
                copy.resize(store.geometry.meta_bytes(), 0);
                if !self.read_at(store, at, copy)? {
                    copies.unread = copies.unread.max(Some(version));
                }
            }
        }
        Ok(copies)
    }
}

impl<'a> Places<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Places { store, metas: None, end: None }
    }

    /// Looks at a place.
    ///
    /// # Errors
    /// The device does not answer.
    pub(super) fn look(&mut self, number: SegmentNumber) -> io::Result<Seen> {
        let store = self.store;
        let metas = match self.metas.take() {
            Some(metas) if metas.numbers.contains(&number) => metas,
            before => Metas::read(store, number, before),
        };
        let copies = metas.copies(store, number)?;
        let last = self.end.take().filter(|&(of, _)| of == number).map(|(_, block)| block);
        let at = store.geometry.segment(number);
        let mut first = [0; BLOCK];
        let mut end = None;
        let mut is_readable = true;
        let is_first = *metas.numbers.start() == number;
        let mut both = [0; 2 * BLOCK];
        if is_first && let Some(known) = metas.known(at, BLOCK) {
            first.copy_from_slice(known);
            end = metas.known(metas.from, BLOCK).and_then(|block| block.try_into().ok());
        } else if !is_first && store.device.read_at(at - BLOCK as u64, &mut both).is_ok() {
            first.copy_from_slice(&both[BLOCK..]);
            end = both.first_chunk().copied();
        } else {
            is_readable = store.read(at, &mut first)?;
        }
        self.end = end.map(|block| (number - 1, block));
        self.metas = Some(metas);
        Ok(Seen { number, metas: copies, first, is_readable, last })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{Geometry, Superblock};
    use larder_disk::{Device, SimDevice};
    use std::ops::Range;
    use std::sync::Arc;

    const SEGMENT: u32 = 64 << 10;
    const COUNT: u32 = 40;

    fn first_of(number: u32) -> [u8; BLOCK] {
        [number as u8; BLOCK]
    }

    fn last_of(number: u32) -> [u8; BLOCK] {
        [0x80 | number as u8; BLOCK]
    }

    /// Without a dead map.
    fn meta_of(number: u32, which: usize) -> [u8; BLOCK] {
        [(number as u8) << 2 | (which as u8) << 1; BLOCK]
    }

    /// What is seen of all places, the last one first, and how many reads that took, when `bad` cannot be read.
    fn seen(bad: Range<u64>) -> (Vec<Seen>, u64) {
        let geometry = Geometry::new(SEGMENT, COUNT).unwrap();
        let device = Arc::new(SimDevice::new(geometry.total_bytes(), 1));
        for number in 1..=COUNT {
            let place = geometry.segment(number);
            let end = place + u64::from(SEGMENT) - BLOCK as u64;
            device.write_at(place, &first_of(number)).unwrap();
            device.write_at(end, &last_of(number)).unwrap();
            for which in 0..2 {
                device.write_at(geometry.meta(number, which), &meta_of(number, which)).unwrap();
            }
        }
        device.spoil(bad);
        let superblock = Superblock::new(1, 2, 3, geometry, 4);
        let store = Store::new(Arc::<SimDevice>::clone(&device), superblock);
        let mut places = Places::new(&store);
        let seen = (1..=COUNT).rev().map(|number| places.look(number).unwrap()).collect();
        (seen, device.counts().reads)
    }

    #[test]
    fn places_are_seen_as_they_are_with_a_read_each() {
        let (seen, reads) = seen(0..0);
        for place in &seen {
            let number = place.number;
            assert!(place.is_readable && place.metas.unread.is_none());
            assert_eq!(place.first, first_of(number), "place {number}");
            // There is nothing behind the last one that it could be read with.
            let last = (number < COUNT).then(|| last_of(number));
            assert_eq!(place.last, last, "place {number}");
            let metas = place.metas.bytes.each_ref().map(|copy| &copy[..]);
            assert_eq!(metas, [&meta_of(number, 0)[..], &meta_of(number, 1)], "place {number}");
        }
        assert_eq!((seen.len() as u64, reads), (COUNT.into(), COUNT.into()));
    }

    #[test]
    fn a_block_that_cannot_be_read_takes_nothing_else_with_it() {
        let geometry = Geometry::new(SEGMENT, COUNT).unwrap();
        let block = |at: u64| at..at + BLOCK as u64;
        let end = |number| geometry.segment(number) + u64::from(SEGMENT) - BLOCK as u64;
        for number in [1, 2, 16, 17, 18, 33, 40] {
            let (first, _) = seen(block(geometry.segment(number)));
            let (last, _) = seen(block(end(number)));
            let (meta, _) = seen(block(geometry.meta(number, 1)));
            for (first, (last, meta)) in first.iter().zip(last.iter().zip(&meta)) {
                let (this, is_bad) = (first.number, first.number == number);
                assert_eq!(first.is_readable, !is_bad);
                assert_eq!(first.first, if is_bad { [0; BLOCK] } else { first_of(this) });
                // What is not seen now is read later, if it can be.
                assert!(last.last.is_none_or(|block| block == last_of(this) && !is_bad));
                assert_eq!((last.first, last.is_readable), (first_of(this), true));
                assert_eq!(meta.metas.unread, is_bad.then_some(u64::MAX));
                assert_eq!(meta.metas.bytes[0], meta_of(this, 0));
                assert_eq!((meta.first, meta.is_readable), (first_of(this), true));
            }
        }
    }
}
