//! Reading jumbos back. Each jumbo is one item that takes one or more whole places.

use super::Found;
use crate::address::SegmentNumber;
use crate::append::JUMBO_FOOTROOM;
use crate::format::jumbo::{Jumbo, RECORD_AT, image_bytes};
use crate::format::segment::{HEADER_BYTES, Header, JumboSize, TRAILER_BYTES};
use crate::format::{BLOCK, Trailer, ValueHasher};
use crate::log::DurableLog;
use crate::memory::mapping::{Mapping, PAGE};
use crate::segment::{Restored, State};
use crate::store::Store;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use larder_disk::ReadBuffer;
use std::{io, ptr};

/// The result of loading a jumbo.
#[derive(Clone, Copy, Debug)]
pub enum LoadedJumbo {
    /// The jumbo is in memory and part of the log. It ends with this trailer.
    Loaded(Trailer),
    /// The jumbo is damaged, or its commit did not complete.
    Damaged,
    /// There is no memory for the jumbo.
    NoMemory,
}

/// What a reader learns from a jumbo on the device besides its value. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct JumboFacts {
    /// The trailer that ends the jumbo.
    pub trailer: Trailer,
    record_bytes: usize,
    value_bytes: usize,
    expiry: u32,
}

impl JumboFacts {
    fn of(jumbo: &Jumbo<'_>, trailer: Trailer) -> Self {
        let Jumbo { record_bytes, value_bytes, fields, .. } = *jumbo;
        JumboFacts { trailer, record_bytes, value_bytes, expiry: fields.expiry }
    }
}

/// A jumbo in memory that is not part of the log yet. Its mapping is charged to the budget.
struct ReadJumbo {
    mapping: Mapping,
    facts: JumboFacts,
}

/// Returns the approximate size of a jumbo's mapping, in bytes, for a record of `record` bytes.
pub fn jumbo_footprint(record: usize) -> usize {
    image_bytes(record) + JUMBO_FOOTROOM + PAGE
}

impl DurableLog<'_> {
    /// Reads a jumbo and makes it part of the log. Returns [`LoadedJumbo::NoMemory`] if less than
    /// an eighth of the memory limit would then be unused.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load_jumbo(self, found: &Found) -> io::Result<LoadedJumbo> {
        let fits = |bytes| self.budget.used() + bytes <= self.budget.limit() / 8 * 7;
        let read = match self.read_jumbo(found, fits)? {
            Ok(read) => read,
            Err(why) => return Ok(why),
        };
        let (base, bytes) = read.mapping.into_raw();
        self.enter_jumbo(found, &read.facts, (base.wrapping_add(RECORD_AT), bytes));
        Ok(LoadedJumbo::Loaded(read.facts.trailer))
    }

    /// Makes a jumbo part of the log but leaves it on the device. Returns false if the jumbo is
    /// damaged.
    ///
    /// # Errors
    /// Those of the device.
    pub fn enter_absent_jumbo(self, found: &Found) -> io::Result<bool> {
        let facts = self.check_jumbo(found)?;
        if let Some(facts) = &facts {
            self.enter_jumbo(found, facts, (ptr::null_mut(), PAGE));
        }
        Ok(facts.is_some())
    }

    /// Reads a jumbo of the log back into memory, unless another thread has done so. Calls
    /// `release` just before it charges the memory to the budget. A caller that has already charged
    /// the budget for this jumbo undoes that charge in `release`. Returns true if this call put the
    /// jumbo into memory.
    ///
    /// # Errors
    /// Those of the device, or an error if the jumbo on the device is damaged.
    pub fn load_absent_jumbo(
        self,
        number: SegmentNumber,
        generation: u32,
        release: impl FnOnce(),
    ) -> io::Result<bool> {
        let segment = self.segment(number);
        let found = self.find_jumbo(number, generation);
        let fits = |_| {
            release();
            true
        };
        if segment.generation() == generation && !segment.frame().is_null() {
            // Another thread has loaded the jumbo.
            return Ok(false);
        }
        let read = self.read_jumbo(&found, fits)?;
        let read = read.map_err(|why| match why {
            LoadedJumbo::NoMemory => io::Error::from(io::ErrorKind::OutOfMemory),
            _ => io::ErrorKind::InvalidData.into(),
        })?;
        let _loading = lock(&self.jumbo_frames);
        let wanted = segment.generation() == generation
            && segment.state() == State::Sealed
            && segment.frame().is_null();
        let bytes = read.mapping.len();
        if wanted {
            let (base, bytes) = read.mapping.into_raw();
            segment.set_jumbo_frame(base.wrapping_add(RECORD_AT), bytes);
            self.note_changed(number);
        } else {
            self.budget.release(bytes as u64);
        }
        Ok(wanted)
    }

    /// Returns the [`Found`] that a survey would return for a jumbo of the log.
    fn find_jumbo(self, number: SegmentNumber, generation: u32) -> Found {
        let segment = self.segment(number);
        Found::without_meta(Header {
            segment: number,
            generation,
            stream: segment.stream(),
            opened: self.store.entry(number).opened.load(Ordering::Relaxed),
            born: segment.born(),
            jumbo: Some(JumboSize {
                value: segment.jumbo_value() as u64,
                parts: self.store.parts(number).len() as u32 + 1,
            }),
        })
    }

    /// Reads the first block of a jumbo of the log. The head of the jumbo's record begins at
    /// [`RECORD_AT`] in the block. Also reads the trailer and checks that it covers the header and
    /// the head.
    ///
    /// # Errors
    /// Returns errors of the device, or `InvalidData` if the jumbo is damaged.
    pub fn read_jumbo_head(self, number: SegmentNumber) -> io::Result<ReadBuffer> {
        let segment = self.segment(number);
        let found = self.find_jumbo(number, segment.generation());
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let first = read_first(self.store, &found)?.ok_or_else(damaged)?;
        let jumbo = open(self.store, &found, &first)
            .filter(|jumbo| jumbo.record_bytes == segment.filled() as usize)
            .ok_or_else(damaged)?;
        self.read_trailer(number, &jumbo)?.ok_or_else(damaged)?;
        Ok(first)
    }

    /// Reads the trailer of the jumbo whose first place is `number`. Returns `None` if the trailer
    /// cannot be read, or does not cover the jumbo's header and the head of its record.
    fn read_trailer(self, number: SegmentNumber, jumbo: &Jumbo<'_>) -> io::Result<Option<Trailer>> {
        let mut trailer = [0; TRAILER_BYTES];
        let size = self.segment_size();
        let (mut at, mut read) = (jumbo.trailer_at, 0);
        // The trailer may begin in one place of the jumbo and end in the next.
        while read < TRAILER_BYTES {
            let len = (size - at % size).min(TRAILER_BYTES - read);
            let Some(place) = self.store.places(number).nth(at / size) else { return Ok(None) };
            let offset = self.store.geometry.segment(place) + (at % size) as u64;
            if !self.store.read(offset, &mut trailer[read..read + len])? {
                return Ok(None);
            }
            (at, read) = (at + len, read + len);
        }
        Ok(jumbo.trailer(&trailer))
    }

    /// Reads and checks a jumbo. `fits` receives the size of the jumbo's mapping in bytes. If it
    /// returns false, the jumbo is not read. If this function returns the jumbo, it has charged the
    /// mapping to the budget.
    fn read_jumbo(
        self,
        found: &Found,
        fits: impl FnOnce(u64) -> bool,
    ) -> io::Result<Result<ReadJumbo, LoadedJumbo>> {
        let size = self.segment_size();
        let first = read_first(self.store, found)?;
        let Some(jumbo) = first.as_ref().and_then(|first| open(self.store, found, first)) else {
            return Ok(Err(LoadedJumbo::Damaged));
        };
        let image_bytes = jumbo.trailer_at + TRAILER_BYTES;
        let Ok(mapping) = Mapping::new(jumbo_footprint(jumbo.record_bytes)) else {
            return Ok(Err(LoadedJumbo::NoMemory));
        };
        if !fits(mapping.len() as u64) {
            return Ok(Err(LoadedJumbo::NoMemory));
        }
        self.budget.charge(mapping.len() as u64);
        // SAFETY: the mapping is this function's own and longer than the image.
        let image = unsafe { std::slice::from_raw_parts_mut(mapping.base(), image_bytes) };
        for (piece, place) in image.chunks_mut(size).zip(self.store.places(found.number)) {
            match self.store.read(self.store.geometry.segment(place), piece) {
                Ok(true) => {}
                unread => {
                    self.budget.release(mapping.len() as u64);
                    return unread.map(|_| Err(LoadedJumbo::Damaged));
                }
            }
        }
        let value = &image[jumbo.value_at..jumbo.value_at + jumbo.value_bytes];
        let trailer = jumbo.trailer(&image[jumbo.trailer_at..]);
        let whole = jumbo.has_value(self.store.value_hash(value, &[]));
        let (true, Some(trailer)) = (whole, trailer) else {
            self.budget.release(mapping.len() as u64);
            return Ok(Err(LoadedJumbo::Damaged));
        };
        let facts = JumboFacts::of(&jumbo, trailer);
        Ok(Ok(ReadJumbo { mapping, facts }))
    }

    /// Makes a jumbo part of the log. `memory` is the address of its record in memory, which is
    /// null if the jumbo stays on the device, and the length of its mapping in bytes.
    fn enter_jumbo(self, found: &Found, facts: &JumboFacts, memory: (*mut u8, usize)) {
        let segment = self.segment(found.number);
        segment.restore(Restored {
            frame: memory.0,
            filled: facts.record_bytes as u32,
            stream: found.header.stream,
            generation: found.header.generation,
            born: found.header.born,
            jumbo: Some((facts.value_bytes, memory.1)),
        });
        segment.note_expiry(facts.expiry);
        self.enter(found, facts.trailer.commit);
    }

    /// Checks a jumbo on the device. Returns its facts, or `None` if the jumbo is damaged. Reads
    /// one place of the jumbo at a time, so it needs memory for a normal segment only.
    ///
    /// # Errors
    /// Those of the device.
    pub fn check_jumbo(self, found: &Found) -> io::Result<Option<JumboFacts>> {
        let size = self.segment_size();
        let first = read_first(self.store, found)?;
        let Some(jumbo) = first.as_ref().and_then(|first| open(self.store, found, first)) else {
            return Ok(None);
        };
        let mut hasher = ValueHasher::new(self.store.identity.checksum_seed);
        let mut trailer = Vec::with_capacity(TRAILER_BYTES);
        let image_bytes = jumbo.trailer_at + TRAILER_BYTES;
        let mut piece = vec![0; size];
        for (from, place) in (0..image_bytes).step_by(size).zip(self.store.places(found.number)) {
            let piece = &mut piece[..size.min(image_bytes - from)];
            if !self.store.read(self.store.geometry.segment(place), piece)? {
                return Ok(None);
            }
            let within = |range: std::ops::Range<usize>| {
                let at = |end: usize| end.saturating_sub(from).min(piece.len());
                &piece[at(range.start)..at(range.end)]
            };
            hasher.update(within(jumbo.value_at..jumbo.value_at + jumbo.value_bytes));
            trailer.extend_from_slice(within(jumbo.trailer_at..image_bytes));
        }
        let whole = jumbo.has_value(hasher.finish());
        let trailer = jumbo.trailer(&trailer).filter(|_| whole);
        Ok(trailer.map(|trailer| JumboFacts::of(&jumbo, trailer)))
    }

    /// Returns a jumbo's key and seq without reading its value. Returns `None` if the jumbo is
    /// damaged, as far as its header, the head of its record and its trailer show.
    ///
    /// # Errors
    /// Those of the device.
    pub fn look_at_jumbo(self, found: &Found) -> io::Result<Option<(Vec<u8>, u64)>> {
        let first = read_first(self.store, found)?;
        let Some(jumbo) = first.as_ref().and_then(|first| open(self.store, found, first)) else {
            return Ok(None);
        };
        let trailer = self.read_trailer(found.number, &jumbo)?;
        Ok(trailer.map(|_| (jumbo.key.to_vec(), jumbo.fields.seq)))
    }

    /// Makes a dead jumbo part of the log, so that the cleaner frees its places. `ends` is true if
    /// the jumbo is an end: no newer version hides it.
    pub fn enter_dead(self, found: &Found, ends: bool) {
        let segment = self.segment(found.number);
        self.forget_mapping(found.number);
        segment.restore(Restored {
            frame: std::ptr::null_mut(),
            filled: HEADER_BYTES as u32,
            stream: found.header.stream,
            generation: found.header.generation,
            born: found.header.born,
            jumbo: found.header.jumbo.map(|jumbo| (jumbo.value as usize, 0)),
        });
        if ends {
            segment.note_end();
        }
        self.enter(found, found.opened);
    }

    fn forget_mapping(self, number: SegmentNumber) {
        let segment = self.segment(number);
        let bytes = segment.jumbo_mapping();
        let frame = segment.take_frame();
        if bytes != 0 && !frame.is_null() {
            // SAFETY: recovery has not shown the jumbo to any other thread.
            unsafe { self.give_back(frame, bytes) };
        }
    }
}

/// Reads the first block of a jumbo, which holds its header and the head of its record. Returns
/// `None` if the block cannot be read.
fn read_first(store: &Store, found: &Found) -> io::Result<Option<ReadBuffer>> {
    let place = store.geometry.segment(found.number);
    let mut first = ReadBuffer::new(place, BLOCK, size_of::<u64>());
    Ok(store.read(place, first.bytes_mut())?.then_some(first))
}

/// Parses the jumbo that begins with this block. Returns `None` if the jumbo is damaged or of
/// another generation than `found`.
fn open<'a>(store: &Store, found: &Found, first: &'a [u8]) -> Option<Jumbo<'a>> {
    Jumbo::open(first, &store.identity, found.number, store.geometry.segment_size())
        .ok()
        .filter(|jumbo| jumbo.header.generation == found.header.generation)
}
