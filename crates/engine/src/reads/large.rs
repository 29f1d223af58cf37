//! Large values that calls had to read into memory. Their frames stay, as far as memory allows,
//! until the calls have used them.

use crate::UnixSeconds;
use crate::lock::lock;
use crate::record_map::RecordMap;
use larder_log::{RecordId, SegmentNumber};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of times that a value is read into memory before a call uses it. At this
/// limit, the next call that needs the value is refused. Without the limit, two calls could evict
/// each other's values without end. A call that needs a value and also room for a new one might
/// wait for ever.
const MOST_READS: u32 = 16;

/// Number of seconds for which a value without requests stays in the table, counted from its last
/// read into memory. Such a value exists only if the call that needed it was abandoned during a
/// read of the value's head.
const ABANDONED_AFTER: UnixSeconds = 60;

/// The values that calls of any session need.
#[derive(Debug, Default)]
pub(crate) struct LargeReads {
    values: Mutex<RecordMap<RecordId, Needed>>,
    /// The number of reads of values into memory, plus the number of first uses after such reads.
    changes: AtomicU64,
}

/// The requests for one large value, and its reads into memory.
#[derive(Clone, Copy, Debug, Default)]
struct Needed {
    /// The number of requests that were not released. A call that waits for the value's head has
    /// released its request, so the number may be 0 although a call still needs the value.
    requests: u32,
    /// The number of times that the value was read into memory since a call last used it.
    reads: u32,
    /// The Unix second of the last read.
    read: UnixSeconds,
}

impl LargeReads {
    /// Notes that a call needs a value.
    pub(super) fn request(&self, id: RecordId) {
        lock(&self.values).entry(id).or_default().requests += 1;
    }

    /// Takes back a request. `used` is true if the call no longer needs the value.
    pub(super) fn release(&self, id: RecordId, used: bool) {
        let mut values = lock(&self.values);
        let Some(needed) = values.get_mut(&id) else { return };
        needed.requests = needed.requests.saturating_sub(1);
        if !used {
            return;
        }
        if std::mem::take(&mut needed.reads) > 0 {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        if needed.requests == 0 {
            values.remove(&id);
        }
    }

    /// Notes that a value was read into memory.
    pub(super) fn arrived(&self, id: RecordId, now: UnixSeconds) {
        if let Some(needed) = lock(&self.values).get_mut(&id) {
            needed.reads += 1;
            needed.read = now;
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a number that grows with each read of a value and with its first use afterwards.
    /// While the number stays the same, no call has got further.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns true if the value was read [`MOST_READS`] times in vain, so that the call that needs
    /// it must be refused. In this case, also sets the count of reads to 0, so that later calls may
    /// try again.
    pub(super) fn refuses(&self, id: RecordId) -> bool {
        let mut values = lock(&self.values);
        let Some(needed) = values.get_mut(&id).filter(|needed| needed.reads >= MOST_READS) else {
            return false;
        };
        needed.reads = 0;
        if needed.requests == 0 {
            values.remove(&id);
        }
        true
    }

    /// Forgets abandoned values. Returns the segments of unused values that were read in the
    /// current or the previous second. If their frames were dropped, calls would read them again.
    pub(crate) fn unused(&self, now: UnixSeconds) -> HashSet<SegmentNumber> {
        let mut values = lock(&self.values);
        values.retain(|_, needed| {
            needed.requests > 0 || now.saturating_sub(needed.read) <= ABANDONED_AFTER
        });
        let unused = values
            .iter()
            .filter(|(_, needed)| needed.reads > 0 && now.saturating_sub(needed.read) <= 1);
        unused.map(|(id, _)| id.address.segment()).collect()
    }

    /// Returns the unused values, those read least often first, in the order in which they may lose
    /// their frames. A value that was read more often has lost its frame more often, so it comes
    /// later.
    pub(crate) fn least_read(&self) -> Vec<RecordId> {
        let values = lock(&self.values);
        let unused = values.iter().filter(|(_, needed)| needed.reads > 0);
        let mut unused: Vec<_> = unused.map(|(&id, needed)| (needed.reads, id)).collect();
        unused.sort_by_key(|&(reads, id)| (reads, id.address.bits()));
        unused.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_log::Address;

    fn id(segment: SegmentNumber) -> RecordId {
        RecordId { address: Address::new(segment, 0), generation: 1 }
    }

    #[test]
    fn a_value_is_kept_until_all_calls_have_used_it() {
        let values = LargeReads::default();
        values.request(id(7));
        values.request(id(7));
        assert!(values.unused(100).is_empty(), "not read yet");
        values.arrived(id(7), 100);
        assert!(values.unused(101).contains(&7));
        assert!(values.unused(102).is_empty(), "the call takes too long");
        values.release(id(7), false);
        assert!(values.unused(100).contains(&7));
        assert_eq!(values.changes(), 1);
        values.release(id(7), true);
        assert_eq!(values.changes(), 2);
        assert!(values.unused(100).is_empty());
        values.arrived(id(7), 100);
        assert!(values.unused(100).is_empty(), "no call needs it");
    }

    #[test]
    fn a_value_read_in_vain_becomes_hopeless_and_a_used_one_does_not() {
        let values = LargeReads::default();
        values.request(id(7));
        for _ in 0..MOST_READS {
            assert!(!values.refuses(id(7)));
            // The call still needs the value, and reads its head first.
            values.arrived(id(7), 100);
            values.release(id(7), false);
            values.request(id(7));
        }
        // A use by another call sets the count of reads to 0.
        let read_again = |times| (0..times).for_each(|_| values.arrived(id(7), 100));
        values.request(id(7));
        values.release(id(7), true);
        read_again(MOST_READS - 1);
        assert!(!values.refuses(id(7)));
        read_again(1);
        assert!(values.refuses(id(7)));
        assert!(!values.refuses(id(7)), "one call is refused");
        // The call is abandoned while it reads the value's head, so no request is left. The next
        // call is still refused.
        read_again(MOST_READS);
        values.release(id(7), false);
        assert!(values.refuses(id(7)) && !values.refuses(id(7)));
        values.arrived(id(7), 100);
        assert!(values.least_read().is_empty(), "no call needs the value");
    }

    #[test]
    fn a_value_that_its_call_gave_up_is_forgotten() {
        let values = LargeReads::default();
        values.request(id(7));
        values.arrived(id(7), 100);
        values.release(id(7), false);
        assert!(values.unused(100).contains(&7));
        values.unused(100 + ABANDONED_AFTER);
        assert_eq!(values.least_read(), [id(7)]);
        values.unused(101 + ABANDONED_AFTER);
        assert!(values.least_read().is_empty());
    }

    #[test]
    fn the_value_that_was_read_least_often_goes_first() {
        let values = LargeReads::default();
        for segment in [3, 5, 8] {
            values.request(id(segment));
            (0..segment).for_each(|_| values.arrived(id(segment), 100));
        }
        assert_eq!(values.least_read(), [id(3), id(5), id(8)]);
        values.release(id(3), true);
        assert_eq!(values.least_read(), [id(5), id(8)]);
    }
}
