//! The metas that a start looks at: those of a group of segments lie one behind the other, and are read at once.
//!
//! What cannot be read so is read copy by copy, so a block that cannot be read takes nothing else with it.

use crate::address::SegmentNumber;
use crate::format::{BLOCK, Meta};
use crate::store::Store;
use larder_disk::ReadBuffer;
use std::io;
use std::ops::RangeInclusive;

/// The most bytes that are read for the metas of a group, 16 of segments of 256 KiB. Of longer ones too much would be read that nobody looks at:
/// beginnings of metas are needed, and the dead maps of a few.
const MOST: usize = 256 << 10;

/// The metas of a group, and the first block of its first segment, which lies behind them.
pub(super) struct Metas<'a> {
    store: &'a Store,
    numbers: RangeInclusive<SegmentNumber>,
    /// `None`: each is read when it is wanted.
    bytes: Option<ReadBuffer>,
}

/// Both copies of a meta.
pub(super) struct Copies {
    /// Their bytes: as many as they say that they have.
    pub(super) bytes: [Vec<u8>; 2],
    /// Of those that cannot be read, the greatest version that they may have.
    pub(super) unread: Option<u64>,
}

impl<'a> Metas<'a> {
    /// Reads those of the group that `number` belongs to.
    pub(super) fn read(store: &'a Store, number: SegmentNumber) -> Self {
        let numbers = store.geometry.meta_run(number);
        let from = store.geometry.meta(*numbers.start(), 0);
        let first = store.geometry.segment(*numbers.start());
        let len = (first - from) as usize + BLOCK;
        let bytes = (len <= MOST).then(|| {
            let mut buffer = ReadBuffer::new(from, len, BLOCK);
            // What is wrong is found out when they are read one by one.
            store.device.read_at(from, buffer.bytes_mut()).is_ok().then_some(buffer)
        });
        Metas { store, numbers, bytes: bytes.flatten() }
    }

    /// The numbers of the group.
    pub(super) fn numbers(&self) -> RangeInclusive<SegmentNumber> {
        self.numbers.clone()
    }

    /// What was read of a range of the device.
    fn known(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = self.store.geometry.meta(*self.numbers.start(), 0);
        let at = at.checked_sub(from)? as usize;
        self.bytes.as_ref()?.get(at..at + len)
    }

    /// As [`Store::read`].
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<bool> {
        match self.known(at, bytes.len()) {
            Some(known) => bytes.copy_from_slice(known),
            None => return self.store.read(at, bytes),
        }
        Ok(true)
    }

    /// The copies of the meta of a segment of the group.
    ///
    /// # Errors
    /// The device does not answer.
    pub(super) fn copies(&self, number: SegmentNumber) -> io::Result<Copies> {
        let mut copies = Copies { bytes: [vec![0; BLOCK], vec![0; BLOCK]], unread: None };
        for (which, copy) in copies.bytes.iter_mut().enumerate() {
            let at = self.store.geometry.meta(number, which);
            if !self.read_at(at, copy)? {
                copies.unread = Some(u64::MAX);
            } else if Meta::has_map(copy) {
                let version = Meta::version(copy);
                copy.resize(self.store.geometry.meta_bytes(), 0);
                if !self.read_at(at, copy)? {
                    copies.unread = copies.unread.max(Some(version));
                }
            }
        }
        Ok(copies)
    }

    /// Reads the first block of a segment of the group; false if it cannot be read.
    ///
    /// # Errors
    /// The device does not answer.
    pub(super) fn first_block(
        &self,
        number: SegmentNumber,
        block: &mut [u8; BLOCK],
    ) -> io::Result<bool> {
        self.read_at(self.store.geometry.segment(number), block)
    }
}
