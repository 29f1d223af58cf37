//! A start reads the adjacent metas of a group of segments with one read, unless they are too long:
//! see [`MAX_GROUP_BYTES`]. If that read fails, the start reads each copy separately, so that one
//! bad block does not hide the other copies.

use crate::address::SegmentNumber;
use crate::format::{BLOCK, Meta};
use crate::store::Store;
use larder_disk::ReadBuffer;
use std::io;
use std::ops::RangeInclusive;

/// The largest read of a whole group of metas, in bytes. If a group has more bytes, its metas are
/// read one by one: a start needs only the first block of each meta and few dead maps, so most of a
/// larger read would be unused. The metas of a group of 16 segments of 256 KiB are read with 132
/// KiB.
const MAX_GROUP_BYTES: usize = 256 << 10;

/// Reader of the metas of a group. It also reads the first block of the group's first segment,
/// because this block lies directly behind the metas.
pub(super) struct Metas<'a> {
    store: &'a Store,
    numbers: RangeInclusive<SegmentNumber>,
    /// The bytes that one read returned; `None` if each meta is read when it is needed.
    bytes: Option<ReadBuffer>,
}

/// Both copies of a meta.
pub(super) struct MetaCopies {
    /// The bytes of each copy: one block, or the whole meta if it has a dead map.
    pub(super) bytes: [Vec<u8>; 2],
    /// Upper bound for the meta version of an unreadable copy; `None` if both copies are readable.
    pub(super) unread: Option<u64>,
}

impl<'a> Metas<'a> {
    /// Reads the metas of the group that `number` belongs to.
    pub(super) fn read(store: &'a Store, number: SegmentNumber) -> Self {
        let numbers = store.geometry.meta_run(number);
        let from = store.geometry.meta(*numbers.start(), 0);
        let first = store.geometry.segment(*numbers.start());
        let len = (first - from) as usize + BLOCK;
        let bytes = (len <= MAX_GROUP_BYTES).then(|| {
            let mut buffer = ReadBuffer::new(from, len, BLOCK);
            // If this read fails, each meta is read alone, and those reads report errors.
            store.device.read_at(from, buffer.bytes_mut()).is_ok().then_some(buffer)
        });
        Metas { store, numbers, bytes: bytes.flatten() }
    }

    /// Returns the numbers of the group.
    pub(super) fn numbers(&self) -> RangeInclusive<SegmentNumber> {
        self.numbers.clone()
    }

    /// Returns the bytes of a range of the device, if they were read.
    fn known(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = self.store.geometry.meta(*self.numbers.start(), 0);
        let at = at.checked_sub(from)? as usize;
        self.bytes.as_ref()?.get(at..at + len)
    }

    /// Like [`Store::read`], but uses the bytes already read.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<bool> {
        match self.known(at, bytes.len()) {
            Some(known) => bytes.copy_from_slice(known),
            None => return self.store.read(at, bytes),
        }
        Ok(true)
    }

    /// Returns both copies of the meta of a segment of the group.
    ///
    /// # Errors
    /// The device does not answer.
    pub(super) fn copies(&self, number: SegmentNumber) -> io::Result<MetaCopies> {
        let mut copies = MetaCopies { bytes: [vec![0; BLOCK], vec![0; BLOCK]], unread: None };
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

    /// Reads the first block of a segment of the group. Returns false if it cannot be read.
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
