//! Which parts of the log are in memory: dropping frames of durable segments, and reading records
//! and segments back. Everything read back is checked before it is trusted.

pub(crate) mod copies;
mod partial;
pub(crate) mod segment_image;

pub use copies::{Copies, Kept, Queue};
pub use partial::PartialRecords;
pub use segment_image::{Image, Loaded};

use crate::address::{Address, SegmentNumber};
use crate::append::Sealed;
use crate::format::jumbo::RECORD_AT;
use crate::format::segment::HEADER_BYTES;
use crate::format::{self, BLOCK, Expect, Extent, Scanned, scan};
use crate::log::{DurableLog, Log};
use crate::memory::mapping::Mapping;
use crate::record::{Head, Kind, Layout, Record, change_value, write_filler};
use crate::rule::Rule;
use crate::segment::State;
use crate::sync::lock;
use larder_disk::ReadBuffer;
use segment_image::Dropped;
use std::io;
use std::sync::atomic::Ordering;

/// The smallest read of a record, in bytes: one sector. Every record's head fits into it.
const LEAST_READ: usize = 512;

/// The largest number of images of loaded segments that are kept for reuse.
const SPARE_IMAGES: usize = 2;

/// Overwrites the damaged parts of a segment's image with fillers, so that a walk over its records
/// skips them.
pub(crate) fn fill_gaps(bytes: &mut [u8], expect: &Expect) {
    let mut good = Vec::new();
    let scanned = scan::segment(bytes, expect, |offset, record| {
        good.push((offset as usize, record.size()));
    });
    let end = scanned.map_or(0, |scanned| scanned.end as usize);
    let mut from = 0;
    for (offset, size) in good.into_iter().chain([(end, 0)]) {
        if offset > from {
            let gap = &mut bytes[from..offset];
            // SAFETY: the gap is as long as the filler and exclusively borrowed.
            unsafe { write_filler(gap.as_mut_ptr(), gap.len()) };
        }
        from = offset + size;
    }
}

impl Log {
    /// Completes a record with its checksum, which depends on the number and generation of the
    /// record's segment. Does nothing without a store. `value_hash` is the
    /// [`Store::value_hash`](crate::Store::value_hash) of the record's value.
    ///
    /// # Safety
    /// `memory` must hold a whole record with this layout, whose place is or will be `address`. No
    /// other thread may read its checksum yet.
    #[inline]
    pub unsafe fn seal_record(
        &self,
        address: Address,
        memory: *mut u8,
        layout: &Layout,
        value_hash: u64,
    ) {
        let Some(store) = &self.store else { return };
        let number = address.segment();
        let seed = store.segment_seed(number, self.segment(number).generation());
        // SAFETY: by the caller's promise.
        unsafe { format::seal_record(memory, Kind::Item, layout, Some(value_hash), seed) };
    }

    /// Returns true if nothing in a sealed segment waits for a commit; always true without a store.
    pub fn is_settled(&self, number: SegmentNumber) -> bool {
        let segment = self.segment(number);
        let Some(store) = &self.store else { return true };
        let durable = segment.is_durable(segment.filled()) || Rule::DropWhenDurable.is_broken();
        store.entry(number).sealed.load(Ordering::Acquire) && durable
    }

    /// Returns true if a closed commit covers the record at `address`.
    pub fn is_closed(&self, address: Address) -> bool {
        self.segment(address.segment()).closed() > address.offset() as u32
    }

    /// Returns true if the record at `address` may be changed in place. `record` must lie in the
    /// segment's frame. With a store, no closed commit may cover the record, and it must not have
    /// been written early. Without a store, a record in any segment may be changed, unless the log
    /// evicts items. Then only records in the open segment may be changed: a record that is changed
    /// again and again moves to newer segments, so it is not evicted with an old one.
    ///
    /// With a store, the thread must [show](crate::Participant::appending_seen) that it appends.
    /// Then a commit that is closed after this call waits for the thread.
    #[inline]
    pub fn is_changeable(&self, address: Address, record: &Record<'_>) -> bool {
        let segment = self.segment(address.segment());
        let in_frame = segment.frame().wrapping_add(address.offset()).cast_const();
        let open = match &self.store {
            Some(store) => {
                let early = store.entry(address.segment()).early.load(Ordering::Acquire);
                segment.closed().max(early) as usize <= address.offset()
                    || Rule::CoveredIsFixed.is_broken()
            }
            None => self.keeps_all || segment.takes_records(),
        };
        open && in_frame == record.pointer()
    }

    /// Changes the version and the value of a record in place. `value` is the new value in two
    /// pieces, and `value_hash` is as for [`Log::seal_record`].
    ///
    /// # Safety
    /// `record` must be the record at `address`, and its kind must satisfy
    /// [`Kind::changes_in_place`]. `value` must be as long as the record's value. The calling
    /// thread must hold the lock of the key's index stripe. The thread must have found the record
    /// [changeable](Log::is_changeable) while it showed that it appends, and must still show that
    /// it appends.
    #[inline]
    pub unsafe fn change_in_place(
        &self,
        address: Address,
        record: &Record<'_>,
        seq: u64,
        value: (&[u8], &[u8]),
        value_hash: u64,
    ) {
        let (memory, layout) = (record.pointer().cast_mut(), record.layout());
        // SAFETY: by the caller's promise. With a store no commit covers the record, so its frame
        // stays, and a commit waits until the change is complete. Without a store, a segment is
        // reused only after the quiescent period. No thread reads the changing bytes without the
        // stripe's lock.
        unsafe {
            change_value(memory, &layout, seq, value);
            self.seal_record(address, memory, &layout, value_hash);
        }
    }

    /// Returns true if a sealed segment will not change any more: its appenders have finished, and
    /// it [is settled](Log::is_settled). `settled` is the result of [`Log::settled`].
    pub fn is_final(&self, sealed: Sealed, settled: u64) -> bool {
        sealed.sealed <= settled && self.is_settled(sealed.segment)
    }

    /// Returns true if the record's segment has a frame.
    #[inline]
    pub fn is_resident(&self, address: Address) -> bool {
        !self.segment(address.segment()).frame().is_null()
    }

    /// Returns the number of frames that were dropped and wait for their quiescent period.
    pub fn dropped_frames(&self) -> usize {
        let frames = |dropped: &Dropped| self.frames_of(dropped.jumbo);
        lock(&self.dropped).iter().map(frames).sum::<usize>() + self.copies.retired_frames()
    }

    /// Returns the memory that a segment takes, as a number of frames. `jumbo` is the length of the
    /// segment's mapping in bytes if it is a jumbo, and 0 otherwise.
    pub(crate) fn frames_of(&self, jumbo: usize) -> usize {
        jumbo.div_ceil(self.segment_size()).max(1)
    }

    /// Frees the dropped frames that no thread can be reading any more.
    pub(crate) fn reap_frames(&self) {
        self.copies.reap();
        let mut dropped = lock(&self.dropped);
        while let Some(&Dropped { epoch, frame, jumbo }) = dropped.front() {
            if !self.epochs.passed(epoch) {
                return;
            }
            dropped.pop_front();
            // SAFETY: the frame was taken out of its segment before `epoch`, which has passed.
            unsafe { self.give_back(frame as *mut u8, jumbo) };
        }
    }

    /// Frees a frame, or a jumbo's mapping of `jumbo` bytes. Pinned values in it stay readable.
    ///
    /// # Safety
    /// The frame must have been a segment's, and no thread may read it any more.
    pub(crate) unsafe fn give_back(&self, frame: *mut u8, jumbo: usize) {
        if jumbo == 0 {
            self.pins.unpin_frame(frame);
            // SAFETY: by the caller's promise.
            return unsafe { self.frames.put(frame, &self.budget) };
        }
        // SAFETY: by the caller's promise; the closure is called at most once.
        let mapping = || unsafe { Mapping::of_jumbo(frame, jumbo) };
        if !self.pins.take_mapping(frame, jumbo, mapping) {
            // SAFETY: as above.
            drop(unsafe { Mapping::of_jumbo(frame, jumbo) });
        }
        self.budget.release(jumbo as u64);
    }

    /// Reads a sealed segment that has no frame. Reads a jumbo without its value. Returns `None` if
    /// the segment has a frame.
    ///
    /// # Errors
    /// Those of the device, or an error if the bytes on the device are not those of the segment.
    pub fn load_if_absent(&self, number: SegmentNumber) -> io::Result<Option<Loaded>> {
        let segment = self.segment(number);
        if !segment.frame().is_null() {
            return Ok(None);
        }
        let log = self.durable().expect("without a store, every segment has a frame");
        if segment.is_jumbo() {
            let head = match log.read_jumbo_head(number) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Ok(Some(Loaded { image: Image::new(0), damaged: true }));
                }
                head => head?,
            };
            let record = &head[RECORD_AT..];
            let mut image = Image::new(record.len());
            image.0.bytes_mut().copy_from_slice(record);
            return Ok(Some(Loaded { image, damaged: false }));
        }
        let mut image = self.take_image();
        let damaged = log.read_segment(number, image.0.bytes_mut())?;
        Ok(Some(Loaded { image, damaged }))
    }

    /// Returns how many bytes to read at a record: `size`, or an estimate from other records of its
    /// segment.
    pub fn read_length(&self, address: Address, size: Option<usize>) -> usize {
        let guess = || match self.segment(address.segment()).record_size() {
            0 => BLOCK,
            known => known.max(LEAST_READ),
        };
        size.unwrap_or_else(guess).min(self.segment_size() - address.offset())
    }

    /// Keeps the memory of a loaded segment for the next load.
    pub fn reuse(&self, loaded: Loaded) {
        self.keep_image(loaded.image);
    }

    /// Returns memory for a segment's bytes, with arbitrary contents.
    pub(crate) fn take_image(&self) -> Image {
        let spare = lock(&self.spare_images).pop();
        if spare.is_some() {
            self.budget.release(self.segment_size() as u64);
        }
        spare.unwrap_or_else(|| Image::new(self.segment_size()))
    }

    pub(crate) fn keep_image(&self, image: Image) {
        let mut spare = lock(&self.spare_images);
        if image.0.len() == self.segment_size() && spare.len() < SPARE_IMAGES {
            // This charge may exceed the budget. When memory is full, the budget never has room for
            // an image, but cleaning needs the images most at that time.
            self.budget.charge(self.segment_size() as u64);
            spare.push(image);
        }
    }

    /// Returns the address under which callers request a jumbo's head, without its value.
    pub fn jumbo_head(number: SegmentNumber) -> Address {
        Address::new(number, RECORD_AT)
    }

    /// Estimates the size of a superseded record in a segment, in bytes. `newer` is the size of the
    /// record that superseded it.
    pub fn likely_size(&self, number: SegmentNumber, newer: usize) -> usize {
        const SHARE: usize = 64;
        match self.segment(number).record_size() {
            0 => newer.min(self.segment_size() / SHARE),
            known => newer.min(known),
        }
    }
}

impl DurableLog<'_> {
    /// Drops the frame of a sealed, durable segment, which stays in the store. Returns false if the
    /// frame must stay.
    pub fn drop_frame(self, number: SegmentNumber) -> bool {
        let segment = self.segment(number);
        if segment.state() != State::Sealed || !self.is_settled(number) {
            return false;
        }
        if self.store.entry(number).cutting.load(Ordering::Acquire) {
            return false;
        }
        let (jumbo, frame) = {
            let _loading = lock(&self.jumbo_frames);
            (segment.jumbo_mapping(), segment.take_frame())
        };
        if frame.is_null() {
            return false;
        }
        self.note_changed(number);
        let epoch = self.epochs.advance();
        lock(&self.dropped).push_back(Dropped { epoch, frame: frame as usize, jumbo });
        true
    }

    /// Reads all of a sealed segment into `bytes` and checks it. Overwrites damaged parts with
    /// fillers, in `bytes` only. Returns true if there were damaged parts.
    pub(crate) fn read_segment(self, number: SegmentNumber, bytes: &mut [u8]) -> io::Result<bool> {
        let segment = self.segment(number);
        self.store.read_blocks(self.store.geometry.segment(number), bytes)?;
        self.store.work.segment_reads.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let expect = Expect {
            identity: self.store.identity,
            segment: number,
            generation: Some(segment.generation()),
            extent: Extent::Exactly(segment.filled()),
        };
        let scanned = scan::segment(bytes, &expect, |_, _| {});
        let whole = |scanned: &Scanned| {
            scanned.generation == segment.generation() && scanned.end == segment.filled()
        };
        let Some(scanned) = scanned.ok().filter(whole) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a segment is damaged"));
        };
        let damaged = scanned.damage.gaps > 0;
        if damaged {
            fill_gaps(bytes, &expect);
        }
        Ok(damaged)
    }

    /// Reads one record from the device. Its segment must be a normal one.
    ///
    /// # Errors
    /// Those of the device, or an error if the bytes at `address` are not an intact record.
    pub fn read_record(self, address: Address) -> io::Result<ReadBuffer> {
        self.read_records(address, None)
    }

    /// Like [`DurableLog::read_record`], but returns at least `size` bytes, if given, or those up
    /// to the segment's end. The bytes behind the record are not checked.
    ///
    /// # Errors
    /// As for [`DurableLog::read_record`].
    pub fn read_records(self, address: Address, mut size: Option<usize>) -> io::Result<ReadBuffer> {
        loop {
            let (offset, len) = self.record_range(address, size);
            let mut buffer = ReadBuffer::new(offset, len, size_of::<u64>());
            let read = self.store.device.read_at(offset, buffer.bytes_mut());
            if read.is_err() && size.is_none() && len > LEAST_READ {
                // The unreadable part may lie behind the record.
                size = Some(LEAST_READ);
                continue;
            }
            read?;
            match self.check_record(address, &buffer)? {
                None => return Ok(buffer),
                larger => size = larger,
            }
        }
    }

    /// Returns a record's offset on the device, and the number of bytes to read there: see
    /// [`Log::read_length`].
    pub fn record_range(self, address: Address, size: Option<usize>) -> (u64, usize) {
        let place = self.store.geometry.segment(address.segment()) + address.offset() as u64;
        (place, self.read_length(address, size))
    }

    /// Checks the bytes read from a record's [range](DurableLog::record_range). Returns `None` if
    /// they begin with the whole record. If the record is longer than `bytes`, returns the number
    /// of bytes that the next read must request.
    ///
    /// # Errors
    /// `bytes` do not begin with an intact record.
    pub fn check_record(self, address: Address, bytes: &[u8]) -> io::Result<Option<usize>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a record is damaged");
        let number = address.segment();
        let segment = self.segment(number);
        let head = Head::parse(bytes, None).ok_or_else(damaged)?;
        let size = head.layout.size();
        if size > self.segment_size() - address.offset() {
            return Err(damaged());
        }
        if size > bytes.len() {
            return Ok(Some(size));
        }
        let seed = self.store.segment_seed(number, segment.generation());
        let record = Record::parse(&bytes[..size], None).ok_or_else(damaged)?;
        if !format::record_is_intact(&record, seed) {
            return Err(damaged());
        }
        segment.note_record_size(size);
        Ok(None)
    }
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(size_of::<u64>()));

#[cfg(all(test, loom))]
mod loom_tests;
