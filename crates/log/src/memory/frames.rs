//! The frames: equal pieces of one reserved region. A frame is charged to the budget from the
//! moment it is taken or prepared until it is returned to the operating system.

use crate::memory::mapping::HUGE_PAGE;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{Budget, Region};
use std::io;

#[derive(Debug)]
pub(crate) struct Frames {
    region: Region,
    size: usize,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// Unused frames that still have memory. They are charged to the budget.
    ready: Vec<u32>,
    /// Frames that were returned to the operating system.
    absent: Vec<u32>,
    /// Frames from this number on were never taken or prepared.
    fresh: u32,
    /// Number of frames in use.
    used: u32,
}

/// Number of frames that only the cleaner may take, so that it always has room for the records that
/// it moves.
pub const CLEANER_RESERVE: usize = 2;

impl Frames {
    pub(crate) fn reserve(bytes: u64, size: usize) -> io::Result<Self> {
        let count = (bytes as usize).div_ceil(size).max(8);
        let region = Region::reserve(count * size, size.max(HUGE_PAGE))?;
        region.advise_huge();
        Ok(Frames { region, size, pool: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    /// Returns the largest number of frames there may ever be.
    pub(crate) fn count(&self) -> u32 {
        (self.region.len() / self.size) as u32
    }

    /// Takes a frame: a ready one, or a new one if the budget has room. The last available frames
    /// are reserved for the cleaner. The cleaner may even exceed the budget, because moving records
    /// frees more memory than it takes.
    pub(crate) fn take(&self, budget: &Budget, for_cleaner: bool) -> Option<*mut u8> {
        if !budget.grants() {
            return None;
        }
        let mut pool = self.lock();
        if !for_cleaner && self.in_reach(&pool, budget.room_for_frames()) <= CLEANER_RESERVE {
            return None;
        }
        let frame = match pool.ready.pop() {
            Some(frame) => frame,
            None => {
                if pool.absent.is_empty() && pool.fresh == self.count() {
                    return None;
                }
                if for_cleaner {
                    budget.charge(self.size as u64);
                } else if !budget.try_charge_frames(self.size as u64) {
                    return None;
                }
                pool.absent.pop().unwrap_or_else(|| {
                    pool.fresh += 1;
                    pool.fresh - 1
                })
            }
        };
        pool.used += 1;
        Some(self.region.at(frame as usize * self.size))
    }

    /// If no frame is ready, gives memory to one and makes it ready, so that the next
    /// [`Frames::take`] need not wait for the kernel. Does nothing if the budget has no room.
    pub(crate) fn prepare(&self, budget: &Budget) {
        let frame = {
            let mut pool = self.lock();
            let fresh = pool.fresh < self.count();
            if !pool.ready.is_empty() || !fresh && pool.absent.is_empty() {
                return;
            }
            if budget.excess() > 0 {
                // `shrink` would return the frame at once.
                return;
            }
            if !budget.try_charge_frames(self.size as u64) {
                return;
            }
            pool.used += 1;
            pool.absent.pop().unwrap_or_else(|| {
                pool.fresh += 1;
                pool.fresh - 1
            })
        };
        self.region.populate(frame as usize * self.size, self.size);
        let mut pool = self.lock();
        pool.used -= 1;
        pool.ready.push(frame);
    }

    /// Returns the number of unused frames that have memory.
    pub(crate) fn ready(&self) -> usize {
        self.lock().ready.len()
    }

    /// Returns the number of frames that could be taken without reclaiming: ready ones, and those
    /// that fit into `room` bytes.
    fn in_reach(&self, pool: &Pool, room: u64) -> usize {
        let untaken = (self.count() - pool.fresh) as usize + pool.absent.len();
        pool.ready.len() + untaken.min((room / self.size as u64) as usize)
    }

    /// Puts an unused frame back: it becomes ready for reuse, or is returned to the operating
    /// system if the budget is exceeded.
    ///
    /// # Safety
    /// No thread may use the frame any more.
    pub(crate) unsafe fn put(&self, frame: *mut u8, budget: &Budget) {
        let offset = frame as usize - self.region.at(0) as usize;
        let mut pool = self.lock();
        pool.used -= 1;
        if budget.excess() > 0 {
            // SAFETY: by the caller's promise the frame is unused.
            unsafe { self.region.discard(offset, self.size) };
            budget.release(self.size as u64);
            pool.absent.push((offset / self.size) as u32);
        } else {
            pool.ready.push((offset / self.size) as u32);
        }
    }

    /// Returns ready frames to the operating system while the budget is exceeded. Leaves the
    /// cleaner's reserve ready, unless the budget keeps bytes that only frames may take. The
    /// cleaner can then get frames from these bytes.
    pub(crate) fn shrink(&self, budget: &Budget) {
        let mut pool = self.lock();
        let least = if budget.kept_for_frames() > 0 { 0 } else { CLEANER_RESERVE };
        while budget.excess() > 0 && pool.ready.len() > least {
            let Some(frame) = pool.ready.pop() else { break };
            // SAFETY: ready frames are unused, and the lock is held.
            unsafe { self.region.discard(frame as usize * self.size, self.size) };
            budget.release(self.size as u64);
            pool.absent.push(frame);
        }
    }

    /// Returns the number of frames that writers could take without reclaiming.
    pub(crate) fn available(&self, budget: &Budget) -> usize {
        self.in_reach(&self.lock(), budget.room()).saturating_sub(CLEANER_RESERVE)
    }

    /// Returns true if a writer could take a frame now. The writer must leave the cleaner's
    /// reserve, and the memory that another thread [waits for](Budget::want). Without a store and
    /// without eviction, the writer may take the memory that another thread waits for.
    pub(crate) fn has_one_for_writers(&self, budget: &Budget) -> bool {
        self.in_reach(&self.lock(), budget.room_for_frames()) > CLEANER_RESERVE
    }

    /// Returns the total size in bytes of the frames that are in use or ready.
    pub(crate) fn resident(&self) -> u64 {
        let pool = self.lock();
        (pool.used as u64 + pool.ready.len() as u64) * self.size as u64
    }
}
