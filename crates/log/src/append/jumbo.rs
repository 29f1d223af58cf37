//! Large values: a record that is longer than half a segment is received into a mapping. The
//! mapping then becomes a segment, so the value is not copied.

use crate::address::{Address, SegmentNumber};
use crate::append::stream::{Claim, Sealed, Stream};
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::Log;
use crate::memory::mapping::{Mapping, PAGE};
use crate::reclaim::usage::End;
use crate::store::Tier;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// Bytes that a mapping for [`Log::adopt_jumbo`] must leave in front of the record, for the segment
/// header that precedes it on a device.
pub const JUMBO_HEADROOM: usize = HEADER_BYTES;
/// Bytes that a mapping for [`Log::adopt_jumbo`] must leave behind the record, for the commit
/// trailer.
pub const JUMBO_FOOTROOM: usize = TRAILER_BYTES;

/// The segment numbers that a jumbo has claimed: its own and, with a store, one for each place
/// after its first.
#[derive(Debug)]
pub struct JumboClaim {
    number: SegmentNumber,
    parts: Vec<SegmentNumber>,
    size: usize,
}

impl Log {
    /// Gives a filled mapping the claimed segment number. The mapping must already be charged to
    /// the budget. It holds one record of the claimed size, which begins at `start` in the first
    /// page. `seal` completes the record once its address is known.
    pub fn adopt_jumbo(
        &self,
        claimed: JumboClaim,
        mapping: Mapping,
        start: usize,
        value: usize,
        now: u32,
        seal: impl FnOnce(Address),
    ) -> Address {
        let JumboClaim { number, parts, size } = claimed;
        let (base, bytes) = mapping.into_raw();
        let segment = self.segment(number);
        debug_assert!(start < PAGE);
        let at = base.wrapping_add(start);
        segment.open(at, 0..0, Stream::Hot as u8, now);
        segment.make_jumbo(size, value, bytes);
        seal(Address::new(number, 0));
        if let Some(store) = &self.store {
            // SAFETY: there is room for the header in front of the record, see `JUMBO_HEADROOM`.
            unsafe {
                let header = at.wrapping_sub(HEADER_BYTES);
                store.begin_segment(number, segment, Stream::Hot, header, Some(parts));
            }
            self.note_closed(number);
        }
        let sealed = self.epochs.advance();
        self.enqueue(Stream::Hot, Sealed { segment: number, sealed }, End::Back);
        Address::new(number, 0)
    }

    /// Returns the number of places in the store that a jumbo waits for.
    pub fn wanted_places(&self) -> usize {
        self.wanted_places.load(Ordering::Relaxed) as usize
    }

    /// Clears the number of wanted places, because a jumbo no longer waits. Other jumbos that still
    /// wait set it again when they next try to claim places.
    pub fn unwant_places(&self) {
        self.wanted_places.store(0, Ordering::Relaxed);
    }

    /// Claims the segment numbers that [`Log::adopt_jumbo`] needs for a record of `size` bytes.
    /// Returns `None` if places must be freed first.
    pub fn claim_jumbo(&self, size: usize, claim: Claim) -> Option<JumboClaim> {
        let Some(store) = &self.store else {
            let (number, _) = self.take_number(Stream::Hot, claim)?;
            return Some(JumboClaim { number, parts: Vec::new(), size });
        };
        let parts = store.jumbo_places(size);
        let mut free = lock(&self.free_places);
        if free.len() < parts + self.spared(claim) {
            self.wanted_places.store(parts as u32, Ordering::Relaxed);
            return None;
        }
        self.unwant_places();
        let mut take = || free.take(Tier::of(Stream::Hot));
        let number = take()?;
        let parts: Vec<_> = (1..parts).filter_map(|_| take()).collect();
        parts.iter().for_each(|&part| self.segment(part).begin_generation());
        Some(JumboClaim { number, parts, size })
    }
}
