//! Records whose segments have no frame: their copies, reads from the device, and the heads of
//! large values.

use super::{LaneSession, same_bytes};
use crate::cleaner::READY_FRAMES;
use crate::index::slot::Slot;
use crate::key::Key;
use crate::reads::{Charge, LaneReads};
use crate::stats::bump;
use crate::{Outcome, Refusal};
use larder_log::memory::mapping::pages;
use larder_log::recover::jumbo_footprint;
use larder_log::sync::atomic::Ordering;
use larder_log::{Address, Claim, Kept, Log, Queue, Record, RecordId};
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;

impl LaneSession {
    /// See [`Session::read_through`](crate::Session::read_through).
    pub(crate) fn read_through(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.fetched.read_through(self.lane.read_queue(event)?);
        Ok(())
    }

    /// See [`Session::take_reads`](crate::Session::take_reads).
    #[inline]
    pub(crate) fn take_reads(&self) -> Option<LaneReads> {
        self.fetched.take()
    }

    /// Returns true if some of these records have not arrived.
    pub(crate) fn awaits(&self, reads: &mut LaneReads) -> bool {
        self.fetched.awaits(reads)
    }

    /// Releases records that a call no longer needs. If the call was repeated and must wait again,
    /// `next` has the records that it now waits for.
    pub(crate) fn release(&self, reads: LaneReads, next: Option<&LaneReads>) {
        self.fetched.release(reads, next);
    }

    /// Keeps the old version of a large value in memory, if possible. A call that makes a new
    /// version of `len` bytes from it has found no space and will be repeated. Returns false if
    /// memory can never hold both versions.
    pub(crate) fn keep_for_rewrite(&self, old: Address, len: usize) -> bool {
        let lane = &self.lane;
        if !lane.has_store() {
            return true;
        }
        self.fetched.need_large(lane.log.record_id(old));
        let old_bytes = jumbo_footprint(lane.log.segment(old.segment()).filled() as usize);
        let versions = (pages(old_bytes) + pages(jumbo_footprint(len))) as u64;
        let frames = (READY_FRAMES * lane.log.segment_size()) as u64;
        let others = lane.budget.kept_for_frames() + lane.index.bytes() + frames;
        versions + others <= lane.budget.limit()
    }

    /// Counts a read of a record whose segment has no frame. If the record has a copy, counts the
    /// read in the copy. If not, makes a copy, provided that the record was read often enough.
    /// Returns false if the record has no copy and was not read often enough to get one.
    #[cold]
    pub(super) fn count_read_of_absent(&self, slot: Slot, record: &Record<'_>) -> bool {
        let (log, address) = (&self.lane.log, slot.address());
        let id = log.record_id(address);
        let fetched = self.fetched.get(id).is_some();
        // SAFETY: a session is awake while its calls are made.
        let counted = !fetched && unsafe { log.copies().count_read(id) };
        if counted {
            return true;
        }
        // SAFETY: a session is awake while its calls are made.
        let worth = unsafe { log.copies().admits(address, slot.frequency() > 0) };
        if worth && log.copies().keep(id, record, Queue::Small, READY_FRAMES) == Kept::NeedsFrame {
            self.lane.kick_cleaner();
        }
        worth
    }

    /// As [`LaneSession::matching`]. But if the record has a large value that is not in memory,
    /// only the record's head (header, fields and key) is returned. So the caller must not read the
    /// value.
    ///
    /// # Safety
    /// The slot was read since the last tick.
    #[inline]
    pub(crate) unsafe fn matching_head(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        let segment = self.lane.log.segment(slot.address().segment());
        if !segment.is_jumbo() || !segment.frame().is_null() {
            // SAFETY: the caller promises that the slot was read since the last tick.
            return unsafe { self.matching(key, slot) };
        }
        self.absent_head(key, slot)
    }

    /// Returns the head of a large value that is not in memory, if it belongs to this key. Notes
    /// the head as missing if it was not fetched.
    #[cold]
    fn absent_head(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        let number = slot.address().segment();
        let head = self.lane.log.record_id(Log::jumbo_head(number));
        let len = self.lane.log.segment(number).jumbo_value();
        let record = self.fetched.get_head(head, len);
        if record.is_none() {
            self.missing.set(head.address.bits());
        }
        record.filter(|record| same_bytes(record.key(), key.bytes()))
    }

    /// Returns a record of a normal segment that has no frame: the fetched record or its copy.
    /// Returns `None` while a read of it is under way, without looking for a copy. The table of
    /// copies is large, and one look-up there costs as much as many look-ups in the session's own
    /// tables.
    pub(crate) fn absent(&self, id: RecordId) -> Option<Record<'_>> {
        let fetched = self.fetched.get(id);
        if fetched.is_some() || self.fetched.expects(id) {
            return fetched;
        }
        // SAFETY: a session is awake while its calls are made, and `tick` ends the borrow of the
        // record.
        unsafe { self.lane.log.copies().get(id) }
    }

    /// As [`LaneSession::absent`], for a slot of any segment without a frame. Notes the record as
    /// missing if it must be read.
    #[cold]
    pub(super) fn absent_record(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        let address = slot.address();
        let segment = self.lane.log.segment(address.segment());
        if segment.is_jumbo() {
            // The head is read first and its key compared, because a slot of another key may have
            // the same tag, and reading a large value in vain is expensive.
            self.absent_head(key, slot)?;
            self.missing.set(address.bits());
            return None;
        }
        let record = self.absent(self.lane.log.record_id(address));
        if record.is_none() {
            self.missing.set(address.bits());
        }
        record
    }

    /// Returns true if the look-up that just found nothing skipped a record that is not in memory.
    #[inline]
    pub(crate) fn must_read(&self) -> bool {
        self.missing.get() != 0
    }

    /// Starts to read a record that a later call of this turn needs. Reads no large value, because
    /// the key is not compared yet.
    #[cold]
    pub(super) fn fetch_ahead(&self, address: Address) {
        if self.lane.log.segment(address.segment()).is_jumbo() {
            return;
        }
        let id = self.lane.log.record_id(address);
        if self.fetched.get(id).is_some() || self.absent(id).is_none() {
            self.want(id);
        }
    }

    /// Requests a read of a record of a normal segment, or of the head of a large value. Returns
    /// true if the record has to be read and was not yet requested. Returns false without a store,
    /// because all records are then in memory.
    pub(crate) fn request(&self, id: RecordId) -> bool {
        self.lane.log.durable().is_some_and(|log| self.fetched.want(log, id))
    }

    /// As [`LaneSession::request`], and counts the read.
    fn want(&self, id: RecordId) {
        if self.request(id) {
            bump(&self.counters.flash_reads, 1);
        }
    }

    /// Requests a read of a record, and returns the outcome of the call that needs the record. That
    /// call must be repeated.
    pub(super) fn fetch<T>(&self, id: RecordId) -> Outcome<T> {
        let segment = self.lane.log.segment(id.address.segment());
        if !segment.is_jumbo() || id.address.offset() > 0 {
            self.want(id);
            return Outcome::NeedsRead;
        }
        let bytes = pages(jumbo_footprint(segment.filled() as usize)) as u64;
        if self.fetched.refuses(id) {
            self.depends.set(0);
            return Outcome::Refused(Refusal::OutOfMemory);
        }
        // Notes that the call needs the value, even if there is no memory for the value yet.
        self.fetched.need_large(id);
        let charge = || {
            let charge = Charge::wanted(&self.lane.budget, bytes)?;
            bump(&self.counters.flash_reads, 1);
            Some(charge)
        };
        if self.fetched.want_large(id, charge) {
            return Outcome::NeedsRead;
        }
        self.depends.set(0);
        if self.is_hopeless(self.lane.frames_full.load(Ordering::Relaxed)) {
            self.lane.budget.unwant();
            self.lane.kick_cleaner();
            return Outcome::Refused(Refusal::OutOfMemory);
        }
        self.lane.wait_for_space(&self.waker, Claim::Write);
        Outcome::NeedsSpace
    }

    /// Requests a read of the missing record. The call must be repeated once the waker was woken.
    /// An unreadable record is an error if the lane
    /// [may lose nothing](crate::lane::Lane::may_lose_nothing). Otherwise it counts as evicted.
    #[inline(always)]
    pub(crate) fn needs_read<T>(&self, key: &Key<'_>) -> Outcome<T> {
        self.read_missing(key).for_any()
    }

    #[cold]
    fn read_missing(&self, key: &Key<'_>) -> Outcome<Infallible> {
        let address = Address::from_bits(self.missing.take());
        self.depends.set(0);
        let id = self.lane.log.record_id(address);
        if !self.fetched.is_unreadable(id) {
            return self.fetch(id);
        }
        if self.lane.may_lose_nothing() {
            return Outcome::Refused(Refusal::StoreFailed);
        }
        let jumbo = self.lane.log.segment(address.segment()).is_jumbo();
        let address = if jumbo { Address::new(address.segment(), 0) } else { address };
        let guard = self.lane.index.lock(key);
        let found = guard.find(key, |slot| (slot.address() == address).then_some(()));
        if let Some((place, slot, ())) = found {
            self.lane.forget_older(slot);
            // The record may be readable after a restart. So it counts as a kept end until its
            // segment is cleaned. Until then, a delete of the key writes a tombstone.
            self.lane.keep_ends(address.segment(), vec![address.offset() as u32]);
            guard.remove(place, !slot.is_older());
            self.lane.log.note_death(address.segment());
            bump(&self.counters.unreadable, 1);
        }
        self.waker.wake_by_ref();
        Outcome::NeedsRead
    }
}
