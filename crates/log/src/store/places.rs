//! Free places for segments, on the fast device and on the lower one, if the store has one.

use crate::address::SegmentNumber;
use crate::append::Stream;

/// The device that a place lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tier {
    /// The fast device, or the only one.
    Fast = 0,
    /// The lower device.
    Lower = 1,
}

impl Tier {
    /// Returns the tier where a new segment of a stream should lie. New writes are soon read or
    /// overwritten; survivors last longer.
    pub(crate) fn of(stream: Stream) -> Tier {
        match stream {
            Stream::Hot => Tier::Fast,
            Stream::Survivors => Tier::Lower,
        }
    }

    fn other(self) -> Tier {
        match self {
            Tier::Fast => Tier::Lower,
            Tier::Lower => Tier::Fast,
        }
    }
}

/// A place that is free.
#[derive(Clone, Copy, Debug)]
struct Free {
    number: SegmentNumber,
    /// True if the place was free when the log was opened, or was added by growth, and has not been
    /// used since. Such a place may never have been written.
    blank: bool,
}

/// The free numbers of each tier. The number freed last is taken first.
#[derive(Debug)]
pub(crate) struct Places {
    free: [Vec<Free>; 2],
    /// The last number on the fast device.
    last_fast: SegmentNumber,
}

impl Places {
    /// Creates a list without free places. The first `fast` numbers lie on the fast device. If
    /// `fast` is 0, all numbers lie on it.
    pub(crate) fn new(fast: u32) -> Self {
        let last_fast = if fast == 0 { SegmentNumber::MAX } else { fast };
        Places { free: Default::default(), last_fast }
    }

    fn tier(&self, number: SegmentNumber) -> Tier {
        if number <= self.last_fast { Tier::Fast } else { Tier::Lower }
    }

    pub(crate) fn len(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }

    pub(crate) fn len_on(&self, tier: Tier) -> usize {
        self.free[tier as usize].len()
    }

    /// Takes a place on `tier`, or on the other tier if that one has none.
    pub(crate) fn take(&mut self, tier: Tier) -> Option<SegmentNumber> {
        let [wanted, other] = [tier, tier.other()];
        let free = self.free[wanted as usize].pop().or_else(|| self.free[other as usize].pop());
        free.map(|free| free.number)
    }

    /// Takes the next place on `tier`, if it is blank.
    pub(crate) fn take_blank(&mut self, tier: Tier) -> Option<SegmentNumber> {
        self.free[tier as usize].pop_if(|free| free.blank).map(|free| free.number)
    }

    /// Gives a place back.
    pub(crate) fn put(&mut self, number: SegmentNumber) {
        self.free[self.tier(number) as usize].push(Free { number, blank: false });
    }

    /// Adds places that were free when the log was opened, or that growth added. The last one is
    /// taken first.
    pub(crate) fn found_free(&mut self, numbers: impl IntoIterator<Item = SegmentNumber>) {
        for number in numbers {
            self.free[self.tier(number) as usize].push(Free { number, blank: true });
        }
    }

    /// Returns all free places. The stream `Hot` takes them in the reverse of this order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SegmentNumber> {
        self.free.iter().rev().flatten().map(|free| free.number)
    }
}

impl Extend<SegmentNumber> for Places {
    fn extend<T: IntoIterator<Item = SegmentNumber>>(&mut self, numbers: T) {
        numbers.into_iter().for_each(|number| self.put(number));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_tier_takes_places_from_the_other() {
        let mut places = Places::new(2);
        places.extend([4, 3, 2, 1]);
        assert_eq!(
            (places.len(), places.len_on(Tier::Fast), places.len_on(Tier::Lower)),
            (4, 2, 2)
        );
        let taken: Vec<_> = (0..5).map(|_| places.take(Tier::of(Stream::Hot))).collect();
        assert_eq!(taken, [Some(1), Some(2), Some(3), Some(4), None]);
        places.extend([1, 2, 3, 4]);
        let taken: Vec<_> = (0..5).map(|_| places.take(Tier::of(Stream::Survivors))).collect();
        assert_eq!(taken, [Some(4), Some(3), Some(2), Some(1), None]);
    }

    #[test]
    fn a_place_is_blank_until_it_was_used() {
        let mut places = Places::new(2);
        places.found_free([4, 3, 2, 1]);
        assert_eq!(places.take_blank(Tier::Fast), Some(1));
        places.put(1);
        assert_eq!(places.take_blank(Tier::Fast), None);
        assert_eq!(places.take(Tier::Fast), Some(1));
        assert_eq!(places.take_blank(Tier::Fast), Some(2));
        assert_eq!(places.take_blank(Tier::Fast), None, "those on the other device are others'");
        assert_eq!(places.take_blank(Tier::Lower), Some(3));
    }

    #[test]
    fn without_a_lower_device_the_tier_makes_no_difference() {
        let mut places = Places::new(0);
        places.extend([3, 1]);
        assert_eq!(places.len_on(Tier::Lower), 0);
        assert_eq!(places.take(Tier::Lower), Some(1));
        places.put(2);
        assert_eq!(places.iter().collect::<Vec<_>>(), [3, 2]);
        assert_eq!((places.take(Tier::Fast), places.take(Tier::Lower)), (Some(2), Some(3)));
    }
}
