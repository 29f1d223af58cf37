//! A device in memory that does on purpose, from a seed, whatever a real one may do.
//!
//! It keeps what [`Device`] promises and nothing beyond: un-synced writes are lost, torn or
//! reordered by [`crash`](SimDevice::crash), calls fail when the plan says so, and a write or sync
//! that failed leaves behind any of the states that a real one can leave. The same calls and seeds
//! give the same bytes.

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

/// A simulated device. Use it as `Arc<SimDevice>`: one end drives the store as `Arc<dyn Device>`,
/// the other plans faults and takes images.
pub struct SimDevice {
    /// Changed under the lock of `state`.
    size: AtomicU64,
    state: Mutex<State>,
    /// Notified when calls are held, and when they are let go.
    changed: Condvar,
}

struct State {
    cache: Cache,
    random: Random,
    counts: Counts,
    failed_reads: u64,
    failed_changes: u64,
    faults: Vec<Fault>,
    /// What cannot be read any more, whatever is written there.
    bad: Vec<Range<u64>>,
    /// The number of the change at which the machine stops.
    stop_at: Option<u64>,
    stopped: bool,
    held: Option<Operation>,
    /// Calls that have been held since `hold`.
    waiting: u32,
    /// How often calls were let go: one that waits goes when this changes, so that it also goes when
    /// the next `hold` comes before it wakes up.
    releases: u64,
}

/// What a call must do.
enum Verdict {
    Proceed,
    /// Leave behind what a failed call may, and answer this.
    Fail(io::Error),
    /// Leave behind what a call may in the middle of which the machine stops, and answer
    /// [`Stopped`].
    Stop,
}

impl SimDevice {
    /// A device of zeros. `size` is rounded up to 4096 bytes; pages that were never written cost
    /// 8 bytes. `seed` decides what failed calls leave behind.
    pub fn new(size: u64, seed: u64) -> SimDevice {
        SimDevice::with(Cache::new(Image::new(size)), Random::new(seed))
    }

    /// A device that holds `bytes`, durable, and zeros up to the next multiple of 4096.
    pub fn from_bytes(bytes: &[u8], seed: u64) -> SimDevice {
        let mut image = Image::new(bytes.len() as u64);
        image.write(0, bytes);
        SimDevice::with(Cache::new(image), Random::new(seed))
    }

    /// The same medium: what is bad stays so.
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

    /// The device as a new machine finds it after a power loss now: what completed syncs covered is
    /// there; of every other write each sector is kept, lost or torn as `seed` says, in any order.
    /// The new device has no faults, its counts begin at 0, and all its content is durable. This
    /// one is not changed: many seeds may be tried on one state.
    pub fn crash(&self, seed: u64) -> SimDevice {
        let mut random = Random::new(seed);
        let state = self.state();
        let image = state.cache.crash(&mut random);
        SimDevice::with(Cache::new(image), random).with_bad(state.bad.clone())
    }

    /// The device as a new process finds it after `kill -9` now: every write is there, and what was
    /// un-synced **still is**, so that a later [`crash`](SimDevice::crash) of the new device may take
    /// it. No faults, counts from 0; this one is not changed.
    pub fn image(&self) -> SimDevice {
        let state = self.state();
        SimDevice::with(state.cache.clone().reopened(), state.random.clone())
            .with_bad(state.bad.clone())
    }

    /// A device of `size` bytes that begins with this one's content, as [`image`](SimDevice::image)
    /// has it: what a file is after it has grown.
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

    /// Adds a fault; several may be planned.
    pub fn plan(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Takes back all planned faults: the device works again. What they have done stays done.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// Spoils a range: from now on every read that touches it fails with `EIO`, on every device that this
    /// one becomes, whatever is written there.
    pub fn spoil(&self, range: Range<u64>) {
        self.state().bad.push(range);
    }

    /// Stops the machine in the middle of the `change`-th call of `write_at` or `sync`, counted
    /// together from 1 since the device was made ([`Counts::changes`]): that call and all calls
    /// behind it, reads too, fail with [`Stopped`]. A write is stopped with any part written,
    /// un-synced; a sync has covered nothing.
    pub fn stop_at(&self, change: u64) {
        self.state().stop_at = Some(change);
    }

    /// Stops the machine now.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        self.let_go(&mut state);
    }

    /// Whether the machine has stopped.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Makes calls of this kind wait where they begin until [`release`](SimDevice::release), as on a
    /// device that has become slow. A sync that was held covers what had been written when it was
    /// called. Only one kind is held at a time, and a machine that has stopped holds none.
    pub fn hold(&self, operation: Operation) {
        self.state().held = Some(operation);
    }

    /// Lets held calls go.
    pub fn release(&self) {
        self.let_go(&mut self.state());
    }

    /// Waits until a call is being held; `false` if none was within `limit`.
    pub fn wait_until_held(&self, limit: Duration) -> bool {
        let state = self.state();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, limit, |state| state.waiting == 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting > 0
    }

    /// How many calls there have been.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// How many reads have failed, of a fault or of a bad range.
    pub fn failed_reads(&self) -> u64 {
        self.state().failed_reads
    }

    /// How many writes and syncs have failed of a fault.
    pub fn failed_changes(&self) -> u64 {
        self.state().failed_changes
    }

    /// How many sectors (512 bytes) have content that a power loss may take.
    pub fn unsynced_sectors(&self) -> usize {
        self.state().cache.unsynced_sectors()
    }

    /// Reads without being counted, held or failed.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn peek(&self, offset: u64, buffer: &mut [u8]) {
        assert!(offset + buffer.len() as u64 <= self.size(), "outside of the device");
        self.state().cache.read(offset, buffer);
    }

    /// Inverts bit `bit % 8` of the byte at `offset` where it lies at rest. Content that has not
    /// been synced is not at rest: it stays as it is and will replace the damage.
    ///
    /// # Panics
    /// If `offset` does not lie inside.
    pub fn flip_bit(&self, offset: u64, bit: u32) {
        assert!(offset < self.size(), "outside of the device");
        self.state().cache.flip(offset, bit);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while calls of this kind are held.
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
    /// Counts a call and decides on it. `Err` when the machine had stopped before.
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
        // Whoever prepares a device would wait for its release, and may be who is to release it.
        if self.state().held == Some(Operation::Write) {
            return Ok(0);
        }
        self.write_at(offset, &vec![0; length]).map(|()| length)
    }

    /// Counts as a write. One that fails has not grown; in one that is stopped the device may have.
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

    /// Counts as a write. One that fails, or in which the machine stops, has changed nothing.
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
