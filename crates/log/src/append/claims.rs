//! Which free places each kind of operation may take, so that a full store still deletes, updates
//! and cleans.

use crate::address::SegmentNumber;
use crate::append::stream::{Claim, Stream};
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::{DurableLog, Log};
use crate::store::Tier;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// Number of places that only the cleaner may take: one per stream that it appends to.
const CLEANER_SEGMENTS: usize = 2;
/// In a store that evicts nothing, each reserve is 1/`RESERVE_SHARE` of the places. Places that
/// cleaning would free count as part of the reserves: see [`Log::set_reclaimable`]. Deletes, and
/// updates that do not make items larger, make at least as many bytes dead as they append. So when
/// they have filled a reserve of this size, some segment holds enough dead bytes to be worth
/// cleaning.
const RESERVE_SHARE: usize = 64;
/// Number of reserves in a store that evicts nothing: for deletes, for updates, and for updates
/// that make items larger.
const RESERVES: usize = 3;

/// Returns how many places each claim leaves to more urgent claims, in a store of `places` places.
fn spared(places: usize, keeps_all: bool, reclaimable: usize) -> [usize; Claim::ALL.len()] {
    let of_each = places.div_ceil(RESERVE_SHARE).saturating_sub(reclaimable / RESERVES);
    // If items are evicted, a reserve of one place is enough, because eviction soon frees more.
    let reserve = if keeps_all { of_each.max(1) } else { 1 };
    let more = if keeps_all { reserve } else { 0 };
    let delete = CLEANER_SEGMENTS;
    let update = delete + reserve;
    [update + 2 * more, update + more, update, delete, 0]
}

impl Log {
    /// Takes a free number for a segment of a stream. Returns `None` if there is none, or if the
    /// free numbers are reserved for more urgent claims. Also returns the least urgent claim that
    /// may append to the segment.
    pub(super) fn take_number(
        &self,
        stream: Stream,
        claim: Claim,
    ) -> Option<(SegmentNumber, Claim)> {
        let mut free = lock(&self.free_places);
        if free.len() <= self.spared(claim) {
            return None;
        }
        let number = free.take(Tier::of(stream))?;
        let admitted = |&least: &Claim| free.len() >= self.spared(least);
        Some((number, Claim::ALL.into_iter().find(admitted).unwrap_or(claim)))
    }

    /// Returns `Some` if the claim may append to `open`, which the caller has read as the stream's
    /// open segment. Returns `None` if `open` is reserved for more urgent claims.
    #[inline]
    pub(crate) fn admit(&self, stream: Stream, open: SegmentNumber, claim: Claim) -> Option<()> {
        // `roll` stores the claim before the segment, and this thread reads them in the opposite
        // order. So the claim read here is that of `open` or of a later segment.
        if self.streams[stream as usize].claim.load(Ordering::Relaxed) > claim as u8 {
            self.admit_late(stream, open, claim)?;
        }
        Some(())
    }

    /// Admits a claim to segment `open`, which was opened for more urgent claims, if enough places
    /// have become free since then. Otherwise returns `None`.
    #[cold]
    fn admit_late(&self, stream: Stream, open: SegmentNumber, claim: Claim) -> Option<()> {
        let stream = &self.streams[stream as usize];
        let _rolling = lock(&stream.roll);
        if stream.segment.load(Ordering::Acquire) != open {
            return Some(());
        }
        if lock(&self.free_places).len() < self.spared(claim) {
            return None;
        }
        let least = stream.claim.load(Ordering::Relaxed).min(claim as u8);
        stream.claim.store(least, Ordering::Relaxed);
        Some(())
    }

    /// Returns the number of places that a claim leaves to more urgent ones; 0 without a store.
    pub fn spared(&self, claim: Claim) -> usize {
        let Some(store) = &self.store else { return 0 };
        let reclaimable = self.reclaimable.load(Ordering::Relaxed);
        spared(store.segment_count(), self.keeps_all, reclaimable)[claim as usize]
    }

    /// Sets the number of places that cleaning could gain from dead bytes. The reserves count these
    /// places as free, so a store may hold more dead bytes before it refuses writes. The more of a
    /// segment is dead, the fewer bytes the cleaner moves per place that it gains. The cleaner must
    /// set a new number before a place that it emptied becomes free. Otherwise that place would
    /// count twice.
    pub fn set_reclaimable(&self, places: usize) {
        self.reclaimable.store(places, Ordering::Relaxed);
    }

    /// Returns the largest number of bytes that a new segment of either stream keeps free for its
    /// summary.
    pub(crate) fn most_summary_room(&self) -> u64 {
        self.summary_room(Stream::Hot).max(self.summary_room(Stream::Survivors)).into()
    }

    /// Returns true if claims permanently leave places to more urgent ones, because the store
    /// evicts nothing.
    pub fn keeps_reserves(&self) -> bool {
        self.store.is_some() && self.keeps_all
    }

    /// Returns the number of places that a claim could take; `usize::MAX` without a store.
    pub fn available_places(&self, claim: Claim) -> usize {
        match self.store {
            Some(_) => lock(&self.free_places).len().saturating_sub(self.spared(claim)),
            None => usize::MAX,
        }
    }
}

impl DurableLog<'_> {
    /// Returns the least number of bytes that emptying a sealed segment gains. Assumes the worst
    /// packing of the live records: a record that does not fit leaves less than its own length
    /// unused. Also assumes that all ends are moved, as tombstones. `summary_room` is the space
    /// that a new segment keeps free for its summary, in bytes.
    pub(crate) fn gain(self, number: SegmentNumber, live: u32, summary_room: u64) -> u64 {
        let size = self.segment_size as u64;
        let usable = size - HEADER_BYTES as u64 - TRAILER_BYTES as u64;
        let usable = usable.saturating_sub(summary_room);
        let largest = self.segment(number).largest().map_or(size / 2, u64::from);
        let filled_at_least = usable.saturating_sub(largest).max(1);
        let moving = u64::from(live) + self.end_bytes(number) + largest;
        size.saturating_sub((moving * size).div_ceil(filled_at_least))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reclaimable_places_count_as_part_of_the_reserves() {
        assert_eq!(spared(768, true, 0), [38, 26, 14, 2, 0]);
        assert_eq!(spared(768, true, 18), [20, 14, 8, 2, 0]);
        assert_eq!(spared(768, true, 1000), [5, 4, 3, 2, 0], "each reserve keeps one place");
        assert_eq!(spared(768, false, 0), [3, 3, 3, 2, 0]);
        for reclaimable in 0..1000 {
            let [write, ..] = spared(768, true, reclaimable);
            assert!(write + reclaimable >= 38, "{reclaimable} stand in for more places");
        }
    }
}
