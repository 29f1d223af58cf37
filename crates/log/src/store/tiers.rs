//! The places of a lane's two devices: which segment lies on which, and how many are free.

use crate::address::SegmentNumber;
use crate::append::{Claim, Stream};
use crate::log::{DurableLog, Log};
use crate::store::{Store, Tier};
use crate::sync::lock;

/// The smallest number of free, unreserved places that must be left for writers while
/// [`DurableLog::prepare_place`] prepares one place.
const READY_PLACES: usize = 8;

impl Log {
    /// Returns true if the store has a lower device.
    pub fn has_lower(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.fast_segments() != 0)
    }

    /// Returns the tier that a segment lies on.
    #[inline]
    pub fn tier(&self, number: SegmentNumber) -> Tier {
        let fast = self.store.as_ref().map_or(0, Store::fast_segments);
        if fast != 0 && number > fast { Tier::Lower } else { Tier::Fast }
    }

    /// Returns the number of places on a tier.
    pub fn places(&self, tier: Tier) -> usize {
        let Some(store) = &self.store else { return 0 };
        let fast = match store.fast_segments() {
            0 => store.segment_count(),
            fast => fast as usize,
        };
        match tier {
            Tier::Fast => fast,
            Tier::Lower => store.segment_count() - fast,
        }
    }

    /// Returns the number of free places on a tier, including reserved ones.
    pub fn free_places(&self, tier: Tier) -> usize {
        lock(&self.free_places).len_on(tier)
    }

    /// Returns the number of segments on a tier that are in quarantine and will soon be free: all
    /// except those that were [given up](Log::expect_no_place).
    pub fn coming_places(&self, tier: Tier) -> usize {
        lock(&self.quarantine).coming_on(tier)
    }
}

impl DurableLog<'_> {
    /// Prepares the device for writes to the place that the next segment of new writes takes, if
    /// that place may never have been written.
    pub fn prepare_place(self) {
        let number = {
            let mut free = lock(&self.free_places);
            // Takes a place only if enough others are left. So no writer is refused a place while
            // this one is being prepared.
            let spare = free.len() > self.spared(Claim::Write) + READY_PLACES;
            spare.then(|| free.take_blank(Tier::of(Stream::Hot))).flatten()
        };
        if let Some(number) = number {
            self.store.prepare(number);
            lock(&self.free_places).put(number);
        }
    }
}
