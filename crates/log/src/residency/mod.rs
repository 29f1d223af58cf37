//! What of the log is in memory: frames that go because their segment is durable, and records and
//! segments that are read back. Everything that is read back is checked before it is believed.

pub(crate) mod copies;
pub(crate) mod image;
mod run;

pub use copies::{Copies, Kept, Queue};
pub use image::{Image, Loaded};
pub use run::Run;

use crate::address::{Address, SegmentNumber};
use crate::append::Sealed;
use crate::format::jumbo::RECORD_AT;
use crate::format::segment::HEADER_BYTES;
use crate::format::{self, BLOCK, Expect, Extent, Scanned, scan};
use crate::log::Log;
use crate::memory::mapping::Mapping;
use crate::record::{Head, Kind, Layout, Record, write_filler};
use crate::rule::Rule;
use crate::segment::State;
use crate::sync::lock;
use image::Dropped;
use larder_disk::ReadBuffer;
use std::io;
use std::sync::atomic::Ordering;

/// The fewest bytes worth reading: a sector, and more than any record's header.
const LEAST_READ: usize = 512;

/// Memory of segments that were loaded is kept for the next ones, this many at most.
const SPARE_IMAGES: usize = 2;

/// Makes what is damaged in a segment's image fillers, so that whoever walks its records steps over
/// it.
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
            // SAFETY: the gap is as long as the filler, and this thread's own.
            unsafe { write_filler(gap.as_mut_ptr(), gap.len()) };
        }
        from = offset + size;
    }
}

impl Log {
    /// Completes a record for a store, with the checksum over its place. Without a store there is
    /// nothing to do. `value_hash` is [`Store::value_hash`](crate::Store::value_hash) of its value.
    ///
    /// # Safety
    /// `memory` must be the whole record of that layout, this thread's own, not yet published; its
    /// future place is `address`.
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

    /// Whether a sealed segment has nothing that waits for a commit; always without a store.
    pub fn is_settled(&self, number: SegmentNumber) -> bool {
        let segment = self.segment(number);
        let Some(store) = &self.store else { return true };
        let durable = segment.is_durable(segment.filled()) || Rule::DropWhenDurable.is_broken();
        store.entry(number).sealed.load(Ordering::Acquire) && durable
    }

    /// Whether the commit in flight, or an earlier one, covers what lies at `address`.
    pub fn is_closed(&self, address: Address) -> bool {
        self.segment(address.segment()).closed() > address.offset() as u32
    }

    /// Whether a sealed segment stays as it is: its last appenders were done by `settled`, which is
    /// [`Log::settled`], and it [is settled](Log::is_settled) itself.
    pub fn is_final(&self, sealed: Sealed, settled: u64) -> bool {
        sealed.sealed <= settled && self.is_settled(sealed.segment)
    }

    /// Gives the frame of a sealed, durable segment back; the segment stays in the store. False if
    /// it cannot go.
    pub fn drop_frame(&self, number: SegmentNumber) -> bool {
        let segment = self.segment(number);
        if segment.state() != State::Sealed || !self.is_settled(number) {
            return false;
        }
        if self.durable_log().entry(number).cutting.load(Ordering::Acquire) {
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

    /// Whether the record's segment has a frame.
    #[inline]
    pub fn is_resident(&self, address: Address) -> bool {
        !self.segment(address.segment()).frame().is_null()
    }

    /// Frames that were dropped and wait for their quiescent period.
    pub fn dropped_frames(&self) -> usize {
        let frames = |dropped: &Dropped| self.frames_of(dropped.jumbo);
        lock(&self.dropped).iter().map(frames).sum::<usize>() + self.copies.retired_frames()
    }

    /// The memory of a segment in frames. `jumbo`: the bytes of a jumbo's mapping, otherwise 0.
    pub(crate) fn frames_of(&self, jumbo: usize) -> usize {
        jumbo.div_ceil(self.segment_size()).max(1)
    }

    /// Gives back the frames that nobody can be reading any more.
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

    /// Gives back a frame, or a jumbo's mapping of `jumbo` bytes; what is pinned there stays readable.
    ///
    /// # Safety
    /// It was a segment's, and nobody reads it any more.
    pub(crate) unsafe fn give_back(&self, frame: *mut u8, jumbo: usize) {
        if jumbo == 0 {
            self.pins.unpin_frame(frame);
            // SAFETY: by the caller's promise.
            return unsafe { self.frames.put(frame, &self.budget) };
        }
        // SAFETY: by the caller's promise; it is called once at most.
        let mapping = || unsafe { Mapping::of_jumbo(frame, jumbo) };
        if !self.pins.take_mapping(frame, jumbo, mapping) {
            // SAFETY: as above.
            drop(unsafe { Mapping::of_jumbo(frame, jumbo) });
        }
        self.budget.release(jumbo as u64);
    }

    /// Reads a sealed segment that has no frame; of a jumbo all but the value.
    ///
    /// # Errors
    /// Those of the device, or that the segment is not what it was.
    pub fn load_if_absent(&self, number: SegmentNumber) -> io::Result<Option<Loaded>> {
        let segment = self.segment(number);
        if !segment.frame().is_null() {
            return Ok(None);
        }
        if segment.is_jumbo() {
            let head = match self.read_jumbo_head(number) {
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
        let damaged = self.read_segment(number, image.0.bytes_mut())?;
        Ok(Some(Loaded { image, damaged }))
    }

    /// Nobody looks at what was loaded any more: its memory serves the next one.
    pub fn reuse(&self, loaded: Loaded) {
        self.keep_image(loaded.image);
    }

    /// Memory for a segment's bytes, whatever they are.
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
            // Whether or not there is room: once memory is full there never is, and cleaning needs them most then.
            self.budget.charge(self.segment_size() as u64);
            spare.push(image);
        }
    }

    /// Reads all of a sealed segment and checks it; what is damaged inside of it becomes fillers. The
    /// answer is whether anything was.
    pub(crate) fn read_segment(&self, number: SegmentNumber, bytes: &mut [u8]) -> io::Result<bool> {
        let store = self.durable_log();
        let segment = self.segment(number);
        store.read_blocks(store.geometry.segment(number), bytes)?;
        store.work.segment_reads.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let expect = Expect {
            identity: store.identity,
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

    /// The address by which the head of a jumbo is asked for, without its value.
    pub fn jumbo_head(number: SegmentNumber) -> Address {
        Address::new(number, RECORD_AT)
    }

    /// Reads one record that has no frame, of a normal segment.
    ///
    /// # Errors
    /// Those of the device, or that what is there is not the record.
    pub fn read_record(&self, address: Address) -> io::Result<ReadBuffer> {
        self.read_records(address, None)
    }

    /// As [`Log::read_record`], with what lies behind it up to `size` bytes, which is not checked.
    ///
    /// # Errors
    /// As for [`Log::read_record`].
    pub fn read_records(
        &self,
        address: Address,
        mut size: Option<usize>,
    ) -> io::Result<ReadBuffer> {
        loop {
            let (offset, len) = self.record_range(address, size);
            let mut buffer = ReadBuffer::new(offset, len, size_of::<u64>());
            let read = self.durable_log().device.read_at(offset, buffer.bytes_mut());
            if read.is_err() && size.is_none() && len > LEAST_READ {
                // What cannot be read may lie behind the record.
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

    /// How many bytes a record of a segment takes, if one that superseded it takes so many.
    pub fn likely_size(&self, number: SegmentNumber, newer: usize) -> usize {
        const SHARE: usize = 64;
        match self.segment(number).record_size() {
            0 => newer.min(self.segment_size() / SHARE),
            known => newer.min(known),
        }
    }

    /// Where on the device a record lies, and how many bytes of it to read: `size`, or what records
    /// of its segment were found to have.
    pub fn record_range(&self, address: Address, size: Option<usize>) -> (u64, usize) {
        let geometry = &self.durable_log().geometry;
        let place = geometry.segment(address.segment()) + address.offset() as u64;
        let room = self.segment_size() - address.offset();
        let guess = || match self.segment(address.segment()).record_size() {
            0 => BLOCK,
            known => known.max(LEAST_READ),
        };
        (place, size.unwrap_or_else(guess).min(room))
    }

    /// Looks at what was read from a record's [range](Log::record_range): `None` if it begins with
    /// the whole record, else the size that has to be read.
    ///
    /// # Errors
    /// What is there is not the record.
    pub fn check_record(&self, address: Address, bytes: &[u8]) -> io::Result<Option<usize>> {
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
        let seed = self.durable_log().segment_seed(number, segment.generation());
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
