//! A lane: a log with its index, device, committer and cleaner, for a share of the keys. [`Lane`]
//! contains everything that the lane's sessions share.

#[cfg(all(test, loom))]
pub(crate) mod model;
pub(crate) mod session;

mod counters;
mod log;
pub(crate) mod memory;
mod open;
pub(crate) mod options;
mod space;
mod state;

use crate::lane::log::LaneLog;
use crate::lane::options::{LaneOptions, LaneStore};
use state::{Ledger, Waiting};

use crate::cleaner::ghost::Ghost;
use crate::durability::{Changes, Durable};
use crate::index::Index;
use crate::older::OlderSlots;
use crate::reads::Readers;
use crate::recovery::Recovered;
use crate::verbs::recache::RecacheWinners;
use crate::{UnixSeconds, WhenFull};
use larder_log::format::{LaneNumber, Lanes, PARTITIONS};
use larder_log::record::MAX_SEQ;
use larder_log::store::{SEQ_LEASE, seq_lease};
use larder_log::{Address, Budget, DurableLog, Epochs, SegmentNumber};
use std::io;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

/// One lane: a log with its index, shared by all threads.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) options: LaneOptions,
    pub(crate) budget: Arc<Budget>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) log: LaneLog,
    pub(crate) index: Index,
    pub(crate) older: OlderSlots,
    pub(crate) ghost: Ghost,
    pub(crate) recache_winners: RecacheWinners,
    /// The latest time that any session ticked with, in Unix seconds.
    pub(crate) now: AtomicU32,
    /// The Unix second at which a delayed flush_all is due; 0 for none.
    pub(crate) flush_at: AtomicU32,
    /// The commit that makes the last flush's fence durable; 0 if there was no flush, 1 if the
    /// flush needs no commit.
    pub(crate) fence: AtomicU64,
    /// If the number of a call's [claim](larder_log::Claim) is less than this, the cleaner can
    /// reclaim nothing for the call until a record dies. The call may then be refused.
    full: AtomicU8,
    /// The number of turns that the cleaner has begun.
    pub(crate) turns: AtomicU64,
    /// The number of the last turn of the cleaner that found nothing to reclaim.
    pub(crate) found_nothing: AtomicU64,
    /// True if the cleaner cannot free any frame, not even for a large value that a call must read.
    pub(crate) frames_full: AtomicBool,
    /// True if the cleaner must clean the segments with kept ends, because partitions wait to move
    /// to this lane.
    pub(crate) ends_must_go: AtomicBool,
    /// True once items were evicted from probation. Before that the ghost queue is empty, so writes
    /// need not search it.
    pub(crate) evicts: AtomicBool,
    pub(crate) readers: Arc<Readers>,
    recovered: Option<Recovered>,
    /// True if an unreadable record in this lane may be a stray, so that the lane cannot delete all
    /// its strays.
    unreadable_strays: AtomicBool,
    /// Items that recovery found in partitions that the lane does not own.
    pub(crate) strays: Mutex<Vec<Address>>,
    /// Segments that the cleaner has yet to read into memory after the start, the newest last.
    pub(crate) cold: Mutex<Vec<SegmentNumber>>,
    /// A lock that the cleaner holds during a turn.
    pub(crate) cleaning: Mutex<()>,
    counters: Mutex<Ledger>,
    waiting: Mutex<Waiting>,
    cleaner: Mutex<Option<Thread>>,
}

impl Lane {
    /// Returns what recovery found, if there is a store.
    pub(crate) fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// Returns the lane's number in the table of lanes.
    pub(crate) fn number(&self) -> LaneNumber {
        let position = LaneNumber(self.options.position);
        self.store().map_or(position, |store| store.lanes.here)
    }

    /// Returns the name of the lane's device; empty without a store.
    pub(crate) fn name(&self) -> &str {
        self.store().map_or("", |store| &store.device.name)
    }

    /// Returns true if the lane owned the key of this hash when it was opened.
    pub(crate) fn owns(&self, hash: u64) -> bool {
        self.store().is_none_or(|store| {
            store.lanes.owners[larder_log::format::partition(hash)] == store.lanes.here
        })
    }

    /// Returns the time of the clock that measures commits, in microseconds; 0 without a store.
    pub(crate) fn clock_us(&self) -> u64 {
        self.log.durability().map_or(0, Durable::now_us)
    }

    /// Returns the Unix second at which a delayed flush is due; 0 for none.
    pub(crate) fn flush_time(&self) -> UnixSeconds {
        self.flush_at.load(Ordering::Relaxed)
    }

    /// Returns the name of the lane's lower device, if it has one.
    pub(crate) fn lower_name(&self) -> Option<&str> {
        let lower = self.store()?.device.lower.as_ref()?;
        Some(&lower.name)
    }

    /// Returns the table of lanes as this lane's superblock has it.
    fn own_table(&self, table: &Lanes) -> Lanes {
        Lanes { here: self.number(), ..*table }
    }

    /// Makes the table of lanes durable in the lane's superblock.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn keep_table(&self, table: &Lanes) -> io::Result<()> {
        let Some(store) = self.log.store() else { return Ok(()) };
        let lanes = self.own_table(table);
        store.change_superblock_now(|superblock| superblock.lanes = lanes)
    }

    /// As [`Lane::keep_table`]. If the device fails, the next commit that succeeds writes the
    /// table.
    pub(crate) fn keep_table_sometime(&self, table: &Lanes) {
        let kept = self.keep_table(table).is_ok();
        if let Some(store) = self.log.store().filter(|_| !kept) {
            let lanes = self.own_table(table);
            store.change_superblock(|superblock| superblock.lanes = lanes);
        }
    }

    /// Returns the size of the lane's devices, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.store().map_or(0, |store| store.device.capacity())
    }

    /// Returns the stripes of the index that hold these partitions. The stripes may hold other
    /// partitions, too.
    pub(crate) fn stripes(&self, partitions: Range<usize>) -> Range<usize> {
        let stripes = self.index.stripe_count();
        partitions.start * stripes / PARTITIONS..(partitions.end * stripes).div_ceil(PARTITIONS)
    }

    /// Returns the partitions whose keys a stripe of the index holds.
    pub(crate) fn partitions_in(&self, stripe: usize) -> Range<usize> {
        let stripes = self.index.stripe_count();
        stripe * PARTITIONS / stripes..((stripe + 1) * PARTITIONS).div_ceil(stripes)
    }

    /// Makes every later version in these stripes greater than `seq`, which may come from another
    /// lane.
    ///
    /// # Errors
    /// The device fails to write a superblock with a larger lease. The lane must not use versions
    /// above its present lease.
    pub(crate) fn raise_versions(&self, stripes: Range<usize>, seq: u64) -> io::Result<()> {
        if let Some(durable) = self.durable()
            && durable.log.store.superblock().seq_limit < (seq + SEQ_LEASE / 2).min(MAX_SEQ)
        {
            durable.log.store.change_superblock_now(|superblock| {
                superblock.seq_limit = superblock.seq_limit.max(seq_lease(seq));
            })?;
            durable.mark_lease();
        }
        self.index.raise_seq_in(stripes, seq);
        Ok(())
    }

    /// Returns true if partitions may move to this lane now. While a segment has kept ends, a crash
    /// may bring back older versions of the keys that would move. Then this function returns false
    /// and asks the cleaner to clean that segment.
    pub(crate) fn receives(&self) -> bool {
        let receives = !self.log.keeps_ends();
        if !receives {
            self.ends_must_go.store(true, Ordering::Relaxed);
            self.kick_cleaner();
        }
        receives
    }

    /// Notes that the lane keeps an unreadable record that may be a stray.
    pub(crate) fn note_unreadable_strays(&self) {
        self.unreadable_strays.store(true, Ordering::Relaxed);
    }

    /// Returns true if an unreadable record may be a stray.
    pub(crate) fn has_unreadable_strays(&self) -> bool {
        self.unreadable_strays.load(Ordering::Relaxed)
    }

    /// Returns true if the lane has a store.
    #[inline]
    pub(crate) fn has_store(&self) -> bool {
        self.log.durability().is_some()
    }

    /// Returns the lane as one that has a store, if it has one.
    #[inline]
    pub(crate) fn durable(&self) -> Option<DurableLane<'_>> {
        let (log, state) = self.log.durable().zip(self.log.durability())?;
        Some(DurableLane { lane: self, log, state })
    }

    /// Returns true in sync mode: answers must not depend on changes that are not durable.
    pub(crate) fn is_sync(&self) -> bool {
        self.log.durability().is_some_and(Durable::is_sync)
    }

    /// Creates a list for the changes of a new session or cleaner, in sync mode.
    pub(crate) fn new_changes(&self) -> Option<Arc<Changes>> {
        self.log.durability().filter(|it| it.is_sync()).map(Durable::new_changes)
    }

    /// Requests a commit, if there is a store.
    #[inline]
    pub(crate) fn want_commit(&self) {
        self.log.durability().into_iter().for_each(Durable::want_commit);
    }

    /// Returns the lane's device and its options, if there is a store.
    pub(crate) fn store(&self) -> Option<&LaneStore> {
        self.log.durability().map(|durability| &durability.store)
    }

    /// Returns true if reading an unreadable record is an error. Otherwise the record counts as
    /// evicted.
    pub(crate) fn may_lose_nothing(&self) -> bool {
        let accepts = self.store().is_some_and(|store| store.common.accept_damage);
        self.options.when_full == WhenFull::Refuse && !accepts
    }

    /// Advances the lane's clock. Returns true if a new second has begun.
    pub(crate) fn advance_clock(&self, now: UnixSeconds) -> bool {
        self.now.fetch_max(now, Ordering::Relaxed) < now
    }
}

/// A lane that has a store: see [`Lane::durable`]. Functions that need a store are methods of this
/// type or take it as an argument, so they need not check whether there is a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableLane<'a> {
    lane: &'a Lane,
    pub(crate) log: DurableLog<'a>,
    /// The state that the lane's threads share to make writes durable.
    pub(crate) state: &'a Durable,
}

impl Deref for DurableLane<'_> {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        self.lane
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // While the lane's threads wait, they hold only weak references to the lane. These calls
        // wake them. They then find that the lane is gone, and end.
        self.kick_cleaner();
        self.want_commit();
        self.readers.end();
    }
}
