//! The segment table's entries.

use crate::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::ops::Range;

/// What a segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Unused; its number may be taken.
    Free = 0,
    /// Being appended to.
    Open = 1,
    /// Complete.
    Sealed = 2,
    /// The cleaner is taking its records out of the index.
    Cleaning = 3,
    /// Out of the index; its frame waits for the quiescent period.
    Quarantine = 4,
}

/// The tail's flag: no more appends.
const CLOSED: u32 = 1 << 31;

/// Nobody has noted how large its records are.
const UNKNOWN: u32 = u32::MAX;

/// A segment that was read from a store.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) frame: *mut u8,
    pub(crate) filled: u32,
    pub(crate) stream: u8,
    pub(crate) generation: u32,
    pub(crate) born: u32,
    /// A jumbo's value length and mapping length, in bytes.
    pub(crate) jumbo: Option<(usize, usize)>,
}

/// One segment. Everything is atomic because any worker may look; who may write what stands at each
/// field.
#[derive(Debug)]
#[repr(align(64))]
pub struct Segment {
    /// The RAM copy; null without one. Written by whoever opens or frees the segment.
    frame: AtomicPtr<u8>,
    /// Bytes reserved so far, with `CLOSED` on top. Moved by appenders.
    tail: AtomicU32,
    /// In the upper half how often the number has been used, so that an old handle is recognised; in the lower
    /// half bytes of records that were superseded or removed in this use, as far as threads have told. It wraps
    /// below 0 while records count as alive again that a thread has not told to be dead.
    use_and_dead: AtomicU64,
    state: AtomicU8,
    /// The stream it was written by.
    stream: AtomicU8,
    /// Whether some record in it never expires.
    immortal: AtomicU8,
    /// Whether it holds the end of some key's history (a tombstone, an expired or evicted item):
    /// what may hide an older version without being hidden itself.
    ends: AtomicU8,
    /// The least and the greatest expiry of its records; 0 while none has one.
    min_expiry: AtomicU32,
    max_expiry: AtomicU32,
    /// Unix seconds at which it was opened.
    born: AtomicU32,
    /// Bytes from its start that the commit in flight, or an earlier one, covers. Written by the
    /// committer; not used without a store.
    closed: AtomicU32,
    /// Bytes from its start that are durable. Written by the committer.
    durable: AtomicU32,
    /// Bytes from its start that records may fill.
    capacity: AtomicU32,
    /// A jumbo's value length in bytes, 1 GiB at most; 0 for a normal segment.
    jumbo_value: AtomicU32,
    /// A jumbo's mapping length in bytes; not 0, but of no meaning, while it has none.
    jumbo_mapping: AtomicU32,
    /// What is worth reading of a record here, bytes; 0 before one was read.
    record_size: AtomicU32,
    /// Bytes of its largest record, where that is noted; [`UNKNOWN`] if it was read from a store.
    largest: AtomicU32,
}

impl Default for Segment {
    fn default() -> Self {
        Segment {
            frame: AtomicPtr::new(std::ptr::null_mut()),
            tail: AtomicU32::new(CLOSED),
            use_and_dead: AtomicU64::new(0),
            state: AtomicU8::new(State::Free as u8),
            stream: AtomicU8::new(0),
            immortal: AtomicU8::new(0),
            ends: AtomicU8::new(0),
            min_expiry: AtomicU32::new(0),
            max_expiry: AtomicU32::new(0),
            born: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            durable: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            jumbo_value: AtomicU32::new(0),
            jumbo_mapping: AtomicU32::new(0),
            record_size: AtomicU32::new(0),
            largest: AtomicU32::new(0),
        }
    }
}

impl Segment {
    /// Opens the segment on `frame`: from `room.start` to `room.end` it may be filled.
    pub(crate) fn open(&self, frame: *mut u8, room: Range<usize>, stream: u8, now: u32) {
        debug_assert_eq!(self.state(), State::Free);
        self.stream.store(stream, Ordering::Relaxed);
        self.immortal.store(0, Ordering::Relaxed);
        self.ends.store(0, Ordering::Relaxed);
        self.closed.store(0, Ordering::Relaxed);
        self.durable.store(0, Ordering::Relaxed);
        self.min_expiry.store(0, Ordering::Relaxed);
        self.max_expiry.store(0, Ordering::Relaxed);
        self.born.store(now, Ordering::Relaxed);
        self.jumbo_value.store(0, Ordering::Relaxed);
        self.jumbo_mapping.store(0, Ordering::Relaxed);
        self.record_size.store(0, Ordering::Relaxed);
        self.largest.store(0, Ordering::Relaxed);
        self.begin_use();
        self.frame.store(frame, Ordering::Release);
        self.set_state(State::Open);
        self.capacity.store(room.end as u32, Ordering::Relaxed);
        self.tail.store(room.start as u32, Ordering::Release);
    }

    /// The number becomes a further part of a jumbo: a use without a segment.
    pub(crate) fn begin_part(&self) {
        self.begin_use();
    }

    fn begin_use(&self) {
        self.set_generation(self.generation().wrapping_add(1));
    }

    /// Goes on from this use of the number, with nothing dead.
    pub(crate) fn set_generation(&self, generation: u32) {
        self.set_use(generation, 0);
    }

    fn set_use(&self, generation: u32, dead: u32) {
        let word = u64::from(generation) << u32::BITS | u64::from(dead);
        self.use_and_dead.store(word, Ordering::Relaxed);
    }

    /// Makes the entry that of a sealed segment which was read from a store; nothing in it is alive
    /// yet.
    pub(crate) fn restore(&self, restored: Restored) {
        let (value, mapping) = restored.jumbo.unwrap_or((0, 0));
        self.stream.store(restored.stream, Ordering::Relaxed);
        self.born.store(restored.born, Ordering::Relaxed);
        self.set_generation(restored.generation);
        self.jumbo_value.store(value as u32, Ordering::Relaxed);
        self.jumbo_mapping.store(mapping as u32, Ordering::Relaxed);
        self.largest.store(UNKNOWN, Ordering::Relaxed);
        self.set_end(restored.filled);
        self.frame.store(restored.frame, Ordering::Release);
        self.set_state(State::Sealed);
    }

    /// The records of a segment that was read end here. What was revived meanwhile is alive, the rest
    /// is dead.
    pub(crate) fn set_end(&self, end: u32) {
        self.kill(end as usize);
        self.closed.store(end, Ordering::Release);
        self.durable.store(end, Ordering::Release);
        self.tail.store(end | CLOSED, Ordering::Release);
    }

    /// The rest of what a segment that was read from a store is known to hold: its expiries as
    /// [`Segment::expiries`] gave them, and its dead bytes.
    pub(crate) fn restore_history(&self, expiries: (u32, u32, bool), dead: u32) {
        let (min_expiry, max_expiry, immortal) = expiries;
        self.min_expiry.store(min_expiry, Ordering::Relaxed);
        self.max_expiry.store(max_expiry, Ordering::Relaxed);
        self.immortal.store(immortal.into(), Ordering::Relaxed);
        self.set_use(self.generation(), dead);
    }

    /// Gives a sealed segment that has none a RAM copy of its bytes.
    pub(crate) fn set_frame(&self, frame: *mut u8) {
        self.frame.store(frame, Ordering::Release);
    }

    /// Gives a jumbo that has none its mapping of `bytes`, in which the record begins at `frame`.
    pub(crate) fn set_jumbo_frame(&self, frame: *mut u8, bytes: usize) {
        self.jumbo_mapping.store(bytes as u32, Ordering::Relaxed);
        self.frame.store(frame, Ordering::Release);
    }

    /// Makes the open segment a sealed jumbo of one record of `size` bytes.
    pub(crate) fn make_jumbo(&self, size: usize, value: usize, mapping: usize) {
        self.jumbo_value.store(value as u32, Ordering::Relaxed);
        self.jumbo_mapping.store(mapping as u32, Ordering::Relaxed);
        self.tail.store(size as u32 | CLOSED, Ordering::Release);
        self.set_state(State::Sealed);
    }

    /// Reserves `bytes` if the segment is open and has room for them and `more`; the answer is their
    /// offset.
    #[inline]
    pub(crate) fn reserve(&self, bytes: u32, more: u32) -> Option<u32> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            if tail & CLOSED != 0 || tail + bytes + more > capacity {
                return None;
            }
            match self.tail.compare_exchange_weak(
                tail,
                tail + bytes,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(tail),
                Err(seen) => tail = seen,
            }
        }
    }

    /// Reserves `bytes` if the segment is open, has room for them, and ends at `end`.
    pub(crate) fn extend(&self, end: u32, bytes: u32) -> bool {
        end + bytes <= self.capacity.load(Ordering::Relaxed)
            && self
                .tail
                .compare_exchange(end, end + bytes, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether records may still be put into it.
    #[inline]
    pub(crate) fn takes_records(&self) -> bool {
        self.tail.load(Ordering::Acquire) & CLOSED == 0
    }

    /// Closes the segment, if it is not closed yet, and reserves `bytes` more at its end, for which
    /// there must be room; the answer is their offset. One thread does this.
    pub(crate) fn seal_with(&self, bytes: u32) -> u32 {
        let before = self.tail.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED;
        self.tail.store((before + bytes) | CLOSED, Ordering::Release);
        before
    }

    /// Ends the segment at `end`; what lies behind is dead and forgotten.
    pub(crate) fn cut(&self, end: u32) {
        let before = self.tail.swap(end | CLOSED, Ordering::AcqRel) & !CLOSED;
        self.revive(before.saturating_sub(end) as usize);
        self.closed.store(end, Ordering::Release);
    }

    /// No more appends. Those that have reserved finish before their next quiescent point.
    pub(crate) fn close(&self) {
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// How many bytes to read of a record whose size is not known, so that one read is nearly always
    /// enough; 0 if no record of the segment was read yet.
    pub(crate) fn record_size(&self) -> usize {
        self.record_size.load(Ordering::Relaxed) as usize
    }

    /// A record of `size` bytes was read: the guess rises to it at once and sinks slowly.
    pub(crate) fn note_record_size(&self, size: usize) {
        let (guess, size) = (self.record_size.load(Ordering::Relaxed), size as u32);
        let next = if size >= guess { size } else { guess - (guess - size) / 16 };
        if next != guess {
            self.record_size.store(next, Ordering::Relaxed);
        }
    }

    /// Takes the frame out of the table; the number is free afterwards.
    pub(crate) fn free(&self) -> *mut u8 {
        let frame = self.frame.swap(std::ptr::null_mut(), Ordering::AcqRel);
        self.set_state(State::Free);
        frame
    }

    /// Takes the RAM copy away; what has it goes on from the store.
    pub(crate) fn take_frame(&self) -> *mut u8 {
        self.frame.swap(std::ptr::null_mut(), Ordering::AcqRel)
    }

    /// The RAM copy; null without one.
    #[inline]
    pub fn frame(&self) -> *mut u8 {
        self.frame.load(Ordering::Acquire)
    }

    /// Bytes of records in the segment, dead ones included.
    #[inline]
    pub fn filled(&self) -> u32 {
        self.tail.load(Ordering::Acquire) & !CLOSED
    }

    /// Notes the size of a reserved record, in bytes.
    #[inline]
    pub(crate) fn note_record(&self, bytes: u32) {
        if bytes > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes of its largest record, if that was noted.
    pub(crate) fn largest(&self) -> Option<u32> {
        Some(self.largest.load(Ordering::Relaxed)).filter(|&bytes| bytes != UNKNOWN)
    }

    /// Bytes of its records that are dead: see [`Log::dead`](crate::Log::dead).
    pub(crate) fn dead(&self) -> u32 {
        let dead = self.use_and_dead.load(Ordering::Acquire) as u32;
        if dead as i32 >= 0 { dead } else { 0 }
    }

    /// A record of `bytes` was superseded or removed. Whoever reads the count sees that in the index.
    pub fn kill(&self, bytes: usize) {
        self.add_dead(bytes as u32, None);
    }

    /// As [`Segment::kill`], unless this use of the segment is over; false if it is.
    pub(crate) fn kill_in(&self, generation: u32, bytes: u32) -> bool {
        self.add_dead(bytes, Some(generation))
    }

    /// A record of `bytes` that was superseded is current again.
    pub fn revive(&self, bytes: usize) {
        self.add_dead(0u32.wrapping_sub(bytes as u32), None);
    }

    fn add_dead(&self, more: u32, in_use: Option<u32>) -> bool {
        let add = |word: u64| {
            let (generation, dead) = ((word >> u32::BITS) as u32, word as u32);
            let dead = dead.wrapping_add(more);
            let wanted = in_use.is_none_or(|wanted| wanted == generation);
            wanted.then_some(u64::from(generation) << u32::BITS | u64::from(dead))
        };
        self.use_and_dead.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    /// The stream it was written by.
    pub fn stream(&self) -> u8 {
        self.stream.load(Ordering::Relaxed)
    }

    /// A record with this expiry (0: never) was written.
    #[inline]
    pub fn note_expiry(&self, expiry: u32) {
        if expiry == 0 {
            if self.immortal.load(Ordering::Relaxed) == 0 {
                self.immortal.store(1, Ordering::Relaxed);
            }
            return;
        }
        if self.max_expiry.load(Ordering::Relaxed) < expiry {
            self.max_expiry.fetch_max(expiry, Ordering::Relaxed);
        }
        let earlier = |min: u32| (min == 0 || expiry < min).then_some(expiry);
        if earlier(self.min_expiry.load(Ordering::Relaxed)).is_some() {
            let _ = self.min_expiry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
        }
    }

    /// The least and the greatest expiry of its records (0: none has one), and whether some record
    /// never expires.
    pub(crate) fn expiries(&self) -> (u32, u32, bool) {
        let max = self.max_expiry.load(Ordering::Relaxed);
        (self.min_expiry(), max, self.immortal.load(Ordering::Relaxed) != 0)
    }

    /// The earliest expiry of its records; 0 if none expires.
    pub fn min_expiry(&self) -> u32 {
        self.min_expiry.load(Ordering::Relaxed)
    }

    /// After a sweep: the earliest expiry of the records that are left.
    pub fn set_min_expiry(&self, expiry: u32) {
        self.min_expiry.store(expiry, Ordering::Relaxed);
    }

    /// A record in it ended a key's history.
    pub fn note_end(&self) {
        if self.ends.load(Ordering::Relaxed) == 0 {
            self.ends.store(1, Ordering::Relaxed);
        }
    }

    /// Whether a record in it has ended a key's history.
    pub fn has_ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed) != 0
    }

    /// Whether the first `end` bytes are durable.
    #[inline]
    pub fn is_durable(&self, end: u32) -> bool {
        self.durable.load(Ordering::Acquire) >= end
    }

    /// Bytes from its start that are durable.
    pub fn durable(&self) -> u32 {
        self.durable.load(Ordering::Acquire)
    }

    /// Bytes from its start that the commit in flight, or an earlier one, covers.
    #[inline]
    pub fn closed(&self) -> u32 {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self, end: u32) {
        self.closed.store(end, Ordering::Release);
    }

    pub(crate) fn set_durable(&self, end: u32) {
        self.durable.store(end, Ordering::Release);
    }

    /// Whether every record in it has expired at `now`.
    pub fn expired_whole(&self, now: u32) -> bool {
        let max = self.max_expiry.load(Ordering::Relaxed);
        max != 0 && max <= now && self.immortal.load(Ordering::Relaxed) == 0
    }

    /// Unix seconds at which it was opened.
    pub fn born(&self) -> u32 {
        self.born.load(Ordering::Relaxed)
    }

    /// Counts the uses of this number.
    pub fn generation(&self) -> u32 {
        (self.use_and_dead.load(Ordering::Relaxed) >> u32::BITS) as u32
    }

    /// A jumbo's value length; 0 for a normal segment.
    #[inline]
    pub fn jumbo_value(&self) -> usize {
        self.jumbo_value.load(Ordering::Relaxed) as usize
    }

    /// Whether the segment is one item that recovery found to be dead and did not load.
    pub fn is_dead_jumbo(&self) -> bool {
        self.jumbo_value() != 0 && !self.is_jumbo()
    }

    /// Whether the segment is one item with a mapping of its own, or without frame.
    pub fn is_jumbo(&self) -> bool {
        self.jumbo_mapping() != 0
    }

    /// A jumbo's mapping length in bytes; 0 for a normal segment.
    pub fn jumbo_mapping(&self) -> usize {
        self.jumbo_mapping.load(Ordering::Relaxed) as usize
    }

    /// Whether it holds records, or held some that a crash could still bring back.
    pub fn is_in_use(&self) -> bool {
        self.state() != State::Free
    }

    /// What the segment is doing.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Free,
            1 => State::Open,
            2 => State::Sealed,
            3 => State::Cleaning,
            _ => State::Quarantine,
        }
    }

    /// Changes what the segment is doing.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Segment>() == 64);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_segment_takes_no_more() {
        let segment = Segment::default();
        assert_eq!(segment.reserve(8, 0), None);
        segment.open(std::ptr::dangling_mut(), 0..64, 0, 5);
        assert_eq!(segment.reserve(40, 0), Some(0));
        assert_eq!(segment.reserve(32, 0), None);
        assert_eq!(segment.reserve(16, 16), None);
        assert_eq!(segment.reserve(24, 0), Some(40));
        segment.close();
        assert_eq!(segment.reserve(0, 0), None);
        assert_eq!(segment.filled(), 64);
    }

    #[test]
    fn a_segment_expires_whole_only_if_nothing_in_it_is_immortal() {
        let segment = Segment::default();
        segment.open(std::ptr::dangling_mut(), 0..64, 0, 5);
        segment.note_expiry(10);
        segment.note_expiry(20);
        assert!(!segment.expired_whole(19));
        assert!(segment.expired_whole(20));
        assert_eq!(segment.min_expiry(), 10);
        segment.note_expiry(0);
        assert!(!segment.expired_whole(20));
    }
}
