//! The places of a lane's two devices: which segment lies on which, and how many are free.

use crate::address::SegmentNumber;
use crate::append::{Claim, Stream};
use crate::log::Log;
use crate::store::{Store, Tier};
use crate::sync::lock;

/// Places that must be left for writers while one is prepared.
const READY_PLACES: usize = 8;

impl Log {
    /// Whether the store has a lower device.
    pub fn has_lower(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.fast_segments() != 0)
    }

    /// What a segment lies on.
    #[inline]
    pub fn tier(&self, number: SegmentNumber) -> Tier {
        let fast = self.store.as_ref().map_or(0, Store::fast_segments);
        if fast != 0 && number > fast { Tier::Lower } else { Tier::Fast }
    }

    /// Places of a tier.
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

    /// Has the device prepared for what will be written to the place that the next segment of new writes
    /// takes, if perhaps nothing ever was.
    pub fn prepare_place(&self) {
        let Some(store) = &self.store else { return };
        let number = {
            let mut numbers = lock(&self.numbers);
            // Nobody is to be refused a place because this one is taken for a moment.
            let spare = numbers.len() > self.spared(Claim::Write) + READY_PLACES;
            spare.then(|| numbers.take_blank(Tier::of(Stream::Hot))).flatten()
        };
        if let Some(number) = number {
            store.prepare(number);
            lock(&self.numbers).put(number);
        }
    }

    /// Places of a tier that are free, reserved ones included.
    pub fn free_places(&self, tier: Tier) -> usize {
        lock(&self.numbers).len_on(tier)
    }

    /// Places of a tier that will be free when that their segments were emptied is durable.
    pub fn coming_places(&self, tier: Tier) -> usize {
        lock(&self.quarantine).coming_on(tier)
    }
}
