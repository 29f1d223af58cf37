//! The entries of the segment table.

use crate::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::ops::Range;

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Unused: its number may be given to a new segment.
    Free = 0,
    /// Records are being appended.
    Open = 1,
    /// Complete; takes no more records.
    Sealed = 2,
    /// The cleaner is taking the segment's records out of the index.
    Cleaning = 3,
    /// The segment's records are out of the index. The segment waits until neither a reader nor a
    /// recovery after a crash can need its bytes.
    Quarantine = 4,
}

/// Flag in `tail`: no more appends.
const CLOSED: u32 = 1 << 31;

/// Value of `largest` while the sizes of the segment's records are unknown.
const UNKNOWN: u32 = u32::MAX;

/// A sealed segment found on a store: the arguments of [`Segment::restore`].
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

/// The table entry of one segment. Every field is atomic because any worker may read it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Segment {
    /// The frame; null if there is none. Written by threads that open or free the segment, drop its
    /// frame or load it.
    frame: AtomicPtr<u8>,
    /// Bytes reserved so far, and the flag `CLOSED`. Advanced by appenders.
    tail: AtomicU32,
    /// Upper half: the generation, which counts how often the segment's number has been used. Lower
    /// half: the dead bytes of this generation, as far as threads have reported them. If one thread
    /// [revives](Segment::revive) a record before another has reported it dead, the lower half may
    /// become negative (in two's complement).
    use_and_dead: AtomicU64,
    state: AtomicU8,
    /// Number of the segment's stream.
    stream: AtomicU8,
    /// 1 if some record in the segment never expires.
    immortal: AtomicU8,
    /// 1 if the segment holds an end: a record that may hide an older version without being hidden
    /// itself (a tombstone, an expired or evicted item).
    ends: AtomicU8,
    /// The least and the greatest expiry of the segment's records, in Unix seconds; 0 while none
    /// expires.
    min_expiry: AtomicU32,
    max_expiry: AtomicU32,
    /// Unix seconds at which the segment was opened.
    born: AtomicU32,
    /// Bytes from the segment's start that closed commits cover. Written by the committer; unused
    /// without a store.
    closed: AtomicU32,
    /// Bytes from the segment's start that are durable. Written by the committer.
    durable: AtomicU32,
    /// Offset at which the space for records ends, in bytes.
    capacity: AtomicU32,
    /// A jumbo's value length in bytes, at most 1 GiB; 0 for a normal segment.
    jumbo_value: AtomicU32,
    /// A jumbo's mapping length in bytes. It is 0 for a normal segment, and for a dead jumbo that
    /// recovery did not load. While any other jumbo has no mapping, the number stays above 0, so
    /// that [`Segment::is_jumbo`] is true.
    jumbo_mapping: AtomicU32,
    /// Estimate of the bytes to read for a record of unknown size; 0 before any record was read.
    record_size: AtomicU32,
    /// Bytes of the largest record, noted only in a log that evicts nothing; [`UNKNOWN`] if the
    /// segment was read from a store.
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
    /// Opens the segment on `frame`. Records may fill it from `room.start` to `room.end`.
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
        self.begin_generation();
        self.frame.store(frame, Ordering::Release);
        self.set_state(State::Open);
        self.capacity.store(room.end as u32, Ordering::Relaxed);
        self.tail.store(room.start as u32, Ordering::Release);
    }

    /// Begins a new generation. [`Segment::open`] does this, too. The places of a jumbo after its
    /// first are not opened, so this call is their only preparation.
    pub(crate) fn begin_generation(&self) {
        self.set_generation(self.generation().wrapping_add(1));
    }

    /// Sets the generation and clears the dead bytes.
    pub(crate) fn set_generation(&self, generation: u32) {
        self.set_use(generation, 0);
    }

    fn set_use(&self, generation: u32, dead: u32) {
        let word = u64::from(generation) << u32::BITS | u64::from(dead);
        self.use_and_dead.store(word, Ordering::Relaxed);
    }

    /// Makes this the entry of a sealed segment that was found on a store. All its bytes up to
    /// `filled` count as dead at first. The recovery then [revives](Segment::revive) the newest
    /// version of each key.
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

    /// Sets `end`, the offset behind the last record of a segment that was read from a store.
    /// Counts all bytes before `end` as dead, except those that were [revived](Segment::revive)
    /// since [`Segment::restore`].
    pub(crate) fn set_end(&self, end: u32) {
        self.kill(end as usize);
        self.closed.store(end, Ordering::Release);
        self.durable.store(end, Ordering::Release);
        self.tail.store(end | CLOSED, Ordering::Release);
    }

    /// Restores facts about a segment that was read from a store: its `expiries`, which are results
    /// of [`Segment::expiries`], and the number of its dead bytes.
    pub(crate) fn restore_history(&self, expiries: (u32, u32, bool), dead: u32) {
        let (min_expiry, max_expiry, immortal) = expiries;
        self.min_expiry.store(min_expiry, Ordering::Relaxed);
        self.max_expiry.store(max_expiry, Ordering::Relaxed);
        self.immortal.store(immortal.into(), Ordering::Relaxed);
        self.set_use(self.generation(), dead);
    }

    /// Sets the frame of a sealed segment that has none. The frame holds the segment's bytes.
    pub(crate) fn set_frame(&self, frame: *mut u8) {
        self.frame.store(frame, Ordering::Release);
    }

    /// Sets the mapping of a jumbo that has none: `bytes` long, with the record at `frame`.
    pub(crate) fn set_jumbo_frame(&self, frame: *mut u8, bytes: usize) {
        self.jumbo_mapping.store(bytes as u32, Ordering::Relaxed);
        self.frame.store(frame, Ordering::Release);
    }

    /// Turns the open segment into a sealed jumbo of one record of `size` bytes.
    pub(crate) fn make_jumbo(&self, size: usize, value: usize, mapping: usize) {
        self.jumbo_value.store(value as u32, Ordering::Relaxed);
        self.jumbo_mapping.store(mapping as u32, Ordering::Relaxed);
        self.tail.store(size as u32 | CLOSED, Ordering::Release);
        self.set_state(State::Sealed);
    }

    /// Reserves `bytes` and returns their offset. Returns `None` if the segment is closed, or if it
    /// would then have fewer than `more` free bytes.
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

    /// Reserves `bytes` directly behind `end`. Returns false if the segment is closed, has no room,
    /// or has other reservations behind `end`.
    pub(crate) fn extend(&self, end: u32, bytes: u32) -> bool {
        end + bytes <= self.capacity.load(Ordering::Relaxed)
            && self
                .tail
                .compare_exchange(end, end + bytes, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns true while the segment accepts records.
    #[inline]
    pub(crate) fn takes_records(&self) -> bool {
        self.tail.load(Ordering::Acquire) & CLOSED == 0
    }

    /// Closes the segment, if it is still open, and reserves `bytes` at its end. The segment must
    /// have room for `bytes`. Returns their offset. Only one thread at a time may call this
    /// function.
    pub(crate) fn seal_with(&self, bytes: u32) -> u32 {
        let before = self.tail.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED;
        self.tail.store((before + bytes) | CLOSED, Ordering::Release);
        before
    }

    /// Ends the segment at `end`. All records behind `end` must be dead. Afterwards their bytes
    /// count neither as filled nor as dead.
    pub(crate) fn cut(&self, end: u32) {
        let before = self.tail.swap(end | CLOSED, Ordering::AcqRel) & !CLOSED;
        self.revive(before.saturating_sub(end) as usize);
        self.closed.store(end, Ordering::Release);
    }

    /// Closes the segment to appends. Appenders that have reserved space finish before their next
    /// quiescent point.
    pub(crate) fn close(&self) {
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Returns how many bytes to read for a record of unknown size. One read of that size nearly
    /// always contains the record. Returns 0 if no record of the segment was read yet.
    pub(crate) fn record_size(&self) -> usize {
        self.record_size.load(Ordering::Relaxed) as usize
    }

    /// Notes that a record of `size` bytes was read. The estimate rises to `size` at once and sinks
    /// slowly.
    pub(crate) fn note_record_size(&self, size: usize) {
        let (guess, size) = (self.record_size.load(Ordering::Relaxed), size as u32);
        let next = if size >= guess { size } else { guess - (guess - size) / 16 };
        if next != guess {
            self.record_size.store(next, Ordering::Relaxed);
        }
    }

    /// Takes the frame and marks the segment free.
    pub(crate) fn free(&self) -> *mut u8 {
        let frame = self.frame.swap(std::ptr::null_mut(), Ordering::AcqRel);
        self.set_state(State::Free);
        frame
    }

    /// Takes the frame. The segment stays readable from the store.
    pub(crate) fn take_frame(&self) -> *mut u8 {
        self.frame.swap(std::ptr::null_mut(), Ordering::AcqRel)
    }

    /// Returns the frame; null if there is none.
    #[inline]
    pub fn frame(&self) -> *mut u8 {
        self.frame.load(Ordering::Acquire)
    }

    /// Returns the total size of all records in the segment in bytes, dead ones included.
    #[inline]
    pub fn filled(&self) -> u32 {
        self.tail.load(Ordering::Acquire) & !CLOSED
    }

    /// Notes the size of a reserved record, in bytes. Called only in a log that evicts nothing.
    #[inline]
    pub(crate) fn note_record(&self, bytes: u32) {
        if bytes > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the size of the segment's largest record in bytes; `None` if the segment was read
    /// from a store. Valid only in a log that evicts nothing, because other logs do not note the
    /// sizes.
    pub(crate) fn largest(&self) -> Option<u32> {
        Some(self.largest.load(Ordering::Relaxed)).filter(|&bytes| bytes != UNKNOWN)
    }

    /// Returns the number of dead bytes, as far as threads have reported them.
    /// [`Log::dead`](crate::Log::dead) says how exact the number is.
    pub(crate) fn dead(&self) -> u32 {
        let dead = self.use_and_dead.load(Ordering::Acquire) as u32;
        if dead as i32 >= 0 { dead } else { 0 }
    }

    /// Counts `bytes` as dead: a record was superseded or removed. A thread that reads the new
    /// count also sees the change of the index that made the record dead.
    pub fn kill(&self, bytes: usize) {
        self.add_dead(bytes as u32, None);
    }

    /// Like [`Segment::kill`], but only while the segment is in `generation`. Returns false
    /// otherwise.
    pub(crate) fn kill_in(&self, generation: u32, bytes: u32) -> bool {
        self.add_dead(bytes, Some(generation))
    }

    /// No longer counts `bytes` as dead. For example, an undo makes a superseded record current
    /// again.
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

    /// Returns the number of the segment's stream.
    pub fn stream(&self) -> u8 {
        self.stream.load(Ordering::Relaxed)
    }

    /// Notes the expiry of a record that was written; 0 means never.
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

    /// Returns the least and the greatest expiry of the segment's records (0 if none expires), and
    /// true if some record never expires.
    pub(crate) fn expiries(&self) -> (u32, u32, bool) {
        let max = self.max_expiry.load(Ordering::Relaxed);
        (self.min_expiry(), max, self.immortal.load(Ordering::Relaxed) != 0)
    }

    /// Returns the earliest expiry of the segment's records; 0 if none expires.
    pub fn min_expiry(&self) -> u32 {
        self.min_expiry.load(Ordering::Relaxed)
    }

    /// Sets the earliest expiry of the records that are left after the expired ones were removed.
    pub fn set_min_expiry(&self, expiry: u32) {
        self.min_expiry.store(expiry, Ordering::Relaxed);
    }

    /// Notes that the segment holds an end, such as a tombstone: see [`Segment::has_ends`].
    pub fn note_end(&self) {
        if self.ends.load(Ordering::Relaxed) == 0 {
            self.ends.store(1, Ordering::Relaxed);
        }
    }

    /// Returns true if the segment holds an end: a record that hides older versions of its key and
    /// is not hidden by a newer one.
    pub fn has_ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the first `end` bytes are durable.
    #[inline]
    pub fn is_durable(&self, end: u32) -> bool {
        self.durable.load(Ordering::Acquire) >= end
    }

    /// Returns the number of bytes from the segment's start that are durable.
    pub fn durable(&self) -> u32 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the number of bytes from the segment's start that closed commits cover.
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

    /// Returns true if every record in the segment has expired at `now`.
    pub fn expired_whole(&self, now: u32) -> bool {
        let max = self.max_expiry.load(Ordering::Relaxed);
        max != 0 && max <= now && self.immortal.load(Ordering::Relaxed) == 0
    }

    /// Returns the Unix second at which the segment was opened.
    pub fn born(&self) -> u32 {
        self.born.load(Ordering::Relaxed)
    }

    /// Returns the generation: how often this number has been used.
    pub fn generation(&self) -> u32 {
        (self.use_and_dead.load(Ordering::Relaxed) >> u32::BITS) as u32
    }

    /// Returns a jumbo's value length in bytes; 0 for a normal segment.
    #[inline]
    pub fn jumbo_value(&self) -> usize {
        self.jumbo_value.load(Ordering::Relaxed) as usize
    }

    /// Returns true for a jumbo that recovery found dead and did not load.
    pub fn is_dead_jumbo(&self) -> bool {
        self.jumbo_value() != 0 && !self.is_jumbo()
    }

    /// Returns true for a jumbo, mapped or not, except a dead one that recovery did not load.
    pub fn is_jumbo(&self) -> bool {
        self.jumbo_mapping() != 0
    }

    /// Returns a jumbo's mapping length in bytes; 0 for a normal segment, and for a dead jumbo that
    /// recovery did not load.
    pub fn jumbo_mapping(&self) -> usize {
        self.jumbo_mapping.load(Ordering::Relaxed) as usize
    }

    /// Returns true unless the segment is free. An emptied segment counts as in use until neither a
    /// reader nor a recovery after a crash can need it.
    pub fn is_in_use(&self) -> bool {
        self.state() != State::Free
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Free,
            1 => State::Open,
            2 => State::Sealed,
            3 => State::Cleaning,
            _ => State::Quarantine,
        }
    }

    /// Sets the state.
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
    fn a_closed_segment_refuses_reservations() {
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
