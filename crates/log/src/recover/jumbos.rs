//! Reading jumbos back: each is one item with a segment of its own, or several.

use super::Found;
use crate::address::SegmentNumber;
use crate::format::jumbo::{Jumbo, RECORD_AT};
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::format::{BLOCK, Trailer, ValueHasher};
use crate::log::{JUMBO_FOOTROOM, Log};
use crate::memory::{Mapping, PAGE};
use crate::segment::Restored;
use crate::store::Store;
use std::io;

/// What became of a jumbo.
#[derive(Clone, Copy, Debug)]
pub enum LoadedJumbo {
    /// It is part of the log.
    Loaded(Trailer),
    /// It is damaged, or its commit did not complete.
    Damaged,
    /// There is no memory for it.
    NoMemory,
}

impl Log {
    /// Reads a jumbo and makes it part of the log. `must`: even if that takes memory from frames,
    /// which are given back later.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load_jumbo(&self, found: &Found, must: bool) -> io::Result<LoadedJumbo> {
        let store = self.durable_log();
        let size = self.segment_size();
        let first = read_first(store, found)?;
        let Some(jumbo) = open(store, found, &first) else { return Ok(LoadedJumbo::Damaged) };
        let image_bytes = jumbo.trailer_at + TRAILER_BYTES;
        let Ok(mapping) = Mapping::new(image_bytes + JUMBO_FOOTROOM + PAGE) else {
            return Ok(LoadedJumbo::NoMemory);
        };
        let over = self.budget.used() + mapping.len() as u64 > self.budget.limit() / 8 * 7;
        if over && !must {
            return Ok(LoadedJumbo::NoMemory);
        }
        self.budget.charge(mapping.len() as u64);
        // SAFETY: the mapping is this function's own and longer than the image.
        let image = unsafe { std::slice::from_raw_parts_mut(mapping.base(), image_bytes) };
        for (piece, place) in image.chunks_mut(size).zip(store.places(found.number)) {
            if let Err(error) = store.device.read_at(store.geometry.segment(place), piece) {
                self.budget.release(mapping.len() as u64);
                return Err(error);
            }
        }
        let value = &image[jumbo.value_at..jumbo.value_at + jumbo.value_bytes];
        let trailer = jumbo.trailer(&image[jumbo.trailer_at..]);
        let whole = jumbo.has_value(store.value_hash(value, &[]));
        let (true, Some(trailer)) = (whole, trailer) else {
            self.budget.release(mapping.len() as u64);
            return Ok(LoadedJumbo::Damaged);
        };
        let record_bytes = jumbo.record_bytes as u32;
        let (value_bytes, expiry) = (jumbo.value_bytes, jumbo.fields.expiry);
        let (base, bytes) = mapping.into_raw();
        self.segment(found.number).restore(Restored {
            frame: base.wrapping_add(RECORD_AT),
            filled: record_bytes,
            stream: found.header.stream,
            generation: found.header.generation,
            born: found.header.born,
            jumbo: Some((value_bytes, bytes)),
        });
        self.segment(found.number).note_expiry(expiry);
        self.enter(store, found, trailer.commit);
        Ok(LoadedJumbo::Loaded(trailer))
    }

    /// The trailer of a jumbo, if all of it is as it was written. Takes the memory of one piece.
    ///
    /// # Errors
    /// Those of the device.
    pub fn check_jumbo(&self, found: &Found) -> io::Result<Option<Trailer>> {
        let store = self.durable_log();
        let size = self.segment_size();
        let first = read_first(store, found)?;
        let Some(jumbo) = open(store, found, &first) else { return Ok(None) };
        let mut hasher = ValueHasher::new(store.identity.checksum_seed);
        let mut trailer = Vec::with_capacity(TRAILER_BYTES);
        let image_bytes = jumbo.trailer_at + TRAILER_BYTES;
        let mut piece = vec![0; size];
        for (from, place) in (0..image_bytes).step_by(size).zip(store.places(found.number)) {
            let piece = &mut piece[..size.min(image_bytes - from)];
            store.device.read_at(store.geometry.segment(place), piece)?;
            let within = |range: std::ops::Range<usize>| {
                let at = |end: usize| end.saturating_sub(from).min(piece.len());
                &piece[at(range.start)..at(range.end)]
            };
            hasher.update(within(jumbo.value_at..jumbo.value_at + jumbo.value_bytes));
            trailer.extend_from_slice(within(jumbo.trailer_at..image_bytes));
        }
        let whole = jumbo.has_value(hasher.finish());
        Ok(jumbo.trailer(&trailer).filter(|_| whole))
    }

    /// Key and seq of a jumbo, without its value; `None` if it is damaged.
    ///
    /// # Errors
    /// Those of the device.
    pub fn look_at_jumbo(&self, found: &Found) -> io::Result<Option<(Vec<u8>, u64)>> {
        let store = self.durable_log();
        let first = read_first(store, found)?;
        Ok(open(store, found, &first).map(|jumbo| (jumbo.key.to_vec(), jumbo.fields.seq)))
    }

    /// Makes a jumbo that nobody needs part of the log, so that its places are freed like others.
    /// `ends`: nothing newer hides it.
    pub fn enter_dead(&self, found: &Found, ends: bool) {
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
        self.enter(self.durable_log(), found, found.opened);
    }

    fn forget_mapping(&self, number: SegmentNumber) {
        let segment = self.segment(number);
        let bytes = segment.jumbo_mapping();
        if bytes != 0 {
            let frame = segment.take_frame();
            // SAFETY: recovery has not shown the jumbo to anybody else.
            unsafe { crate::log::unmap_jumbo(frame, bytes) };
            self.budget.release(bytes as u64);
        }
    }
}

/// The first block of a jumbo's place, which holds its header and the head of its record.
fn read_first(store: &Store, found: &Found) -> io::Result<[u8; BLOCK]> {
    let mut first = [0; BLOCK];
    store.device.read_at(store.geometry.segment(found.number), &mut first)?;
    Ok(first)
}

/// The jumbo that begins with this block; `None` if it is damaged.
fn open<'a>(store: &Store, found: &Found, first: &'a [u8; BLOCK]) -> Option<Jumbo<'a>> {
    Jumbo::open(first, &store.identity, found.number, store.geometry.segment_size()).ok()
}
