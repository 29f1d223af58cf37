//! A device in memory that deliberately does everything that a real device may do. A seed decides
//! what happens.
//!
//! It keeps the promises of [`Device`] and nothing beyond them. [`crash`](SimDevice::crash) loses,
//! tears or reorders un-synced writes. Calls fail when the plan says so, and a failed write or sync
//! leaves any of the states that a real one can leave. The same calls and seeds give the same
//! bytes.

mod cache;
mod image;
mod plan;
#[cfg(test)]
mod tests;

pub use plan::{Counts, Failure, Fault, Operation, Stopped};

use crate::device::check_range;
use crate::{Device, Random};
use cache::Cache;
use image::Image;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A simulated device. Use it as `Arc<SimDevice>`: the store uses one clone as `Arc<dyn Device>`.
/// With the other clone, the test plans faults and copies the device as it is after a crash.
pub struct SimDevice {
    /// Read without a lock, but changed only under the lock of `state`.
    size: AtomicU64,
    state: Mutex<State>,
    /// Notified when a call begins to wait because of [`SimDevice::hold`], and when waiting calls
    /// are released.
    changed: Condvar,
}

struct State {
    cache: Cache,
    random: Random,
    counts: Counts,
    failed_reads: u64,
    failed_changes: u64,
    faults: Vec<Fault>,
    /// Ranges that can no longer be read, even after writing there.
    bad: Vec<Range<u64>>,
    /// The machine stops during the write or sync with this number; see [`Counts::changes`].
    stop_at: Option<u64>,
    stopped: bool,
    held: Option<Operation>,
    /// The number of calls that wait for [`SimDevice::release`].
    waiting: u32,
    /// The number of releases. A held call continues when this number changes, even if the next
    /// `hold` comes before the call wakes up.
    releases: u64,
}

/// The decision on a call.
enum Verdict {
    Proceed,
    /// Leave any state that a failed call may leave, and return this error.
    Fail(io::Error),
    /// Leave any state that a call may leave when the machine stops during it, and return
    /// [`Stopped`].
    Stop,
}

impl SimDevice {
    /// Creates a device of zeros. `size` is rounded up to a multiple of 4096 bytes. A page that was
    /// never written costs 16 bytes of memory. `seed` decides what failed calls leave behind.
    pub fn new(size: u64, seed: u64) -> SimDevice {
        SimDevice::with(Cache::new(Image::new(size)), Random::new(seed))
    }

    /// Creates a device that holds `bytes`, durable, and zeros up to the next multiple of 4096.
    pub fn from_bytes(bytes: &[u8], seed: u64) -> SimDevice {
        let mut image = Image::new(bytes.len() as u64);
        image.write(0, bytes);
        SimDevice::with(Cache::new(image), Random::new(seed))
    }

    /// Sets the bad ranges. A copy of a device has the bad ranges of the original, because both
    /// stand for the same medium.
    fn with_bad(self, bad: Vec<Range<u64>>) -> SimDevice {
        self.state().bad = bad;
        self
    }

    fn with(cache: Cache, random: Random) -> SimDevice {
        let state = State {
            random,
            counts: Counts::default(),
            failed_reads: 0,
            failed_changes: 0,
            faults: Vec::new(),
            bad: Vec::new(),
            stop_at: None,
            stopped: false,
            held: None,
            waiting: 0,
            releases: 0,
            cache,
        };
        let size = AtomicU64::new(state.cache.size());
        SimDevice { size, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the device as the machine finds it when it restarts after a power loss now. The new
    /// device has all writes that completed syncs covered. For each other write, `seed` decides
    /// whether it is kept, lost or torn; a later write may be kept and an earlier one lost. Of a
    /// torn write, `seed` decides each sector separately. A growth without a sync may be lost too.
    /// The new device has the same bad ranges, but no planned faults. Its counts begin at 0, and
    /// all its content is durable. This device is unchanged, so a test can try many seeds on one
    /// state.
    pub fn crash(&self, seed: u64) -> SimDevice {
        let mut random = Random::new(seed);
        let state = self.state();
        let image = state.cache.crash(&mut random);
        SimDevice::with(Cache::new(image), random).with_bad(state.bad.clone())
    }

    /// Returns the device as a new process finds it after `kill -9` now. Every write is there that
    /// no failed sync has dropped. Un-synced writes **stay un-synced**: a later
    /// [`crash`](SimDevice::crash) of the new device may lose them. The new device has no planned
    /// faults and its counts begin at 0. This device is unchanged.
    pub fn image(&self) -> SimDevice {
        let state = self.state();
        SimDevice::with(state.cache.clone().reopened(), state.random.clone())
            .with_bad(state.bad.clone())
    }

    /// Returns a copy of this device, lengthened with zeros to `size` bytes in whole pages: what a
    /// new process finds if the file was enlarged between two starts.
    ///
    /// # Panics
    /// If `size` is smaller than this device.
    pub fn grown(&self, size: u64) -> SimDevice {
        assert!(size >= self.size(), "a device does not shrink from {} to {size}", self.size());
        let state = self.state();
        let mut cache = state.cache.clone();
        cache.grow(size);
        SimDevice::with(cache, state.random.clone()).with_bad(state.bad.clone())
    }

    /// Adds a fault; several can be planned.
    pub fn plan(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Removes all planned faults: the device works again. The effects of earlier faults remain.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// Makes a range bad: every later read that touches it fails with `EIO`, even after writing
    /// there. The copies made by [`crash`](SimDevice::crash), [`image`](SimDevice::image) and
    /// [`grown`](SimDevice::grown) have the bad range, too.
    pub fn spoil(&self, range: Range<u64>) {
        self.state().bad.push(range);
    }

    /// Stops the machine during the write or sync with the number `change`. The device counts its
    /// writes and syncs together ([`Counts::changes`]), and the first one has the number 1. That
    /// call and all later ones, including reads, fail with [`Stopped`]. If the call is a write, it
    /// may have written any part of its bytes, which are not synced. If it is a sync, it covers no
    /// writes.
    pub fn stop_at(&self, change: u64) {
        self.state().stop_at = Some(change);
    }

    /// Stops the machine now.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        self.let_go(&mut state);
    }

    /// Returns true if the machine has stopped.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Makes calls of this kind wait at their beginning until [`release`](SimDevice::release), as
    /// on a slow device. A held sync covers what had been written when it was called. Only one kind
    /// is held at a time. A stopped machine holds no calls.
    pub fn hold(&self, operation: Operation) {
        self.state().held = Some(operation);
    }

    /// Releases held calls.
    pub fn release(&self) {
        self.let_go(&mut self.state());
    }

    /// Waits until a call is held. Returns false if no call is held within `limit`.
    pub fn wait_until_held(&self, limit: Duration) -> bool {
        let state = self.state();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, limit, |state| state.waiting == 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting > 0
    }

    /// Returns the number of calls so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Returns the number of reads that failed because of a fault or a bad range.
    pub fn failed_reads(&self) -> u64 {
        self.state().failed_reads
    }

    /// Returns the number of writes and syncs that failed because of a fault, without `grow` and
    /// `shrink`.
    pub fn failed_changes(&self) -> u64 {
        self.state().failed_changes
    }

    /// Returns the number of sectors (512 bytes) whose content a power loss may take.
    pub fn unsynced_sectors(&self) -> usize {
        self.state().cache.unsynced_sectors()
    }

    /// Reads bytes. This read cannot fail, does not wait for [`release`](SimDevice::release), and
    /// is not in [`counts`](SimDevice::counts).
    ///
    /// # Panics
    /// If the range does not lie inside the device.
    pub fn peek(&self, offset: u64, buffer: &mut [u8]) {
        assert!(offset + buffer.len() as u64 <= self.size(), "outside of the device");
        self.state().cache.read(offset, buffer);
    }

    /// Inverts bit `bit % 8` of the byte at `offset` on the medium. Un-synced content is not on the
    /// medium yet: it does not change, and it overwrites the damage when it is synced.
    ///
    /// # Panics
    /// If `offset` does not lie inside the device.
    pub fn flip_bit(&self, offset: u64, bit: u32) {
        assert!(offset < self.size(), "outside of the device");
        self.state().cache.flip(offset, bit);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If calls of this kind are held, waits until they are released.
    fn enter<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        operation: Operation,
    ) -> MutexGuard<'a, State> {
        if state.held != Some(operation) || state.stopped {
            return state;
        }
        state.waiting += 1;
        self.changed.notify_all();
        let entered = state.releases;
        self.changed
            .wait_while(state, |state| state.releases == entered)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn let_go(&self, state: &mut State) {
        state.held = None;
        state.waiting = 0;
        state.releases += 1;
        self.changed.notify_all();
    }
}

impl State {
    /// Counts a call and decides on it. Returns an error if the machine had already stopped.
    fn judge(&mut self, operation: Operation) -> io::Result<Verdict> {
        if self.stopped {
            return Err(Stopped::error());
        }
        let call = self.counts.count(operation);
        let is_change = operation != Operation::Read;
        if is_change && self.stop_at.is_some_and(|change| self.counts.changes() >= change) {
            self.stopped = true;
            return Ok(Verdict::Stop);
        }
        let fault = self.faults.iter().find(|fault| fault.hits(operation, call));
        Ok(fault.map_or(Verdict::Proceed, |fault| Verdict::Fail(fault.failure.error())))
    }
}

impl Device for SimDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len())?;
        let mut guard = self.enter(self.state(), Operation::Read);
        let state = &mut *guard;
        let end = offset + buffer.len() as u64;
        let bad =
            !buffer.is_empty() && state.bad.iter().any(|bad| bad.start < end && offset < bad.end);
        match state.judge(Operation::Read)? {
            Verdict::Proceed if bad => {
                state.failed_reads += 1;
                buffer.fill_with(|| state.random.bits() as u8);
                Err(Failure::Io.error())
            }
            Verdict::Proceed => {
                state.cache.read(offset, buffer);
                Ok(())
            }
            Verdict::Fail(error) => {
                state.failed_reads += 1;
                buffer.fill_with(|| state.random.bits() as u8);
                Err(error)
            }
            Verdict::Stop => Err(Stopped::error()),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_range(self.size(), offset, bytes.len())?;
        let mut guard = self.enter(self.state(), Operation::Write);
        let state = &mut *guard;
        match state.judge(Operation::Write)? {
            Verdict::Proceed => {
                state.cache.write(offset, bytes);
                Ok(())
            }
            Verdict::Fail(error) => {
                state.failed_changes += 1;
                state.cache.write_part(offset, bytes, &mut state.random);
                Err(error)
            }
            Verdict::Stop => {
                state.cache.write_part(offset, bytes, &mut state.random);
                self.let_go(state);
                Err(Stopped::error())
            }
        }
    }

    fn prepare(&self, offset: u64, length: usize) -> io::Result<usize> {
        // Does not wait while writes are held: the calling thread may be the one that releases
        // them.
        if self.state().held == Some(Operation::Write) {
            return Ok(0);
        }
        self.write_at(offset, &vec![0; length]).map(|()| length)
    }

    /// This call counts as a write. If it fails because of a fault, the device has not grown. If
    /// the machine stops during the call, the device may have grown.
    fn grow(&self, size: u64) -> io::Result<()> {
        let mut guard = self.enter(self.state(), Operation::Write);
        let state = &mut *guard;
        if size < state.cache.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let verdict = state.judge(Operation::Write)?;
        if matches!(verdict, Verdict::Proceed)
            || matches!(verdict, Verdict::Stop) && state.random.chance(50)
        {
            state.cache.lengthen(size);
            self.size.store(state.cache.size(), Ordering::Release);
        }
        match verdict {
            Verdict::Proceed => Ok(()),
            Verdict::Fail(error) => Err(error),
            Verdict::Stop => {
                self.let_go(state);
                Err(Stopped::error())
            }
        }
    }

    /// This call counts as a write. If it fails or the machine stops during it, nothing has
    /// changed.
    fn shrink(&self, size: u64) -> io::Result<()> {
        let mut guard = self.enter(self.state(), Operation::Write);
        let state = &mut *guard;
        if size > state.cache.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match state.judge(Operation::Write)? {
            Verdict::Proceed => {
                state.cache.shorten(size);
                self.size.store(state.cache.size(), Ordering::Release);
                Ok(())
            }
            Verdict::Fail(error) => Err(error),
            Verdict::Stop => {
                self.let_go(state);
                Err(Stopped::error())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let entered = self.state();
        let covered = entered.cache.next_write();
        let mut guard = self.enter(entered, Operation::Sync);
        let state = &mut *guard;
        match state.judge(Operation::Sync)? {
            Verdict::Proceed => {
                state.cache.sync(covered);
                Ok(())
            }
            Verdict::Fail(error) => {
                state.failed_changes += 1;
                state.cache.fail_sync(covered, &mut state.random);
                state.cache.drop_clean();
                Err(error)
            }
            Verdict::Stop => {
                self.let_go(state);
                Err(Stopped::error())
            }
        }
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("SimDevice")
            .field("cache", &state.cache)
            .field("counts", &state.counts)
            .field("faults", &state.faults)
            .field("stopped", &state.stopped)
            .finish_non_exhaustive()
    }
}
