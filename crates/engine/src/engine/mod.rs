//! The engine: its lanes, and which keys belong to which lane.

pub(crate) mod drains;
mod grow;
pub(crate) mod grow_requests;
pub(crate) mod lanes;
mod open;
pub(crate) mod partitions;
pub(crate) mod session;

use crate::cleaner::Cleaner;
use crate::durability::{Durable, StoreHistograms};
use crate::engine::drains::{DrainError, DrainRequest, Drains, LaneState};
use crate::engine::grow_requests::Growths;
use crate::engine::partitions::Partitions;
use crate::error::OpenError;
use crate::key::Key;
use crate::lane::memory::GROWTH;
use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use crate::mover::state::Mover;
use crate::recovery::Recovered;
use crate::{Health, Outcome, Stats};
use larder_log::format::{LaneNumber, Lanes, PARTITIONS};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::task::Waker;
use std::thread::Thread;

/// One engine, shared by all threads.
#[derive(Debug)]
pub struct Engine {
    /// The memory that the engine was opened with, in bytes.
    opened_memory: u64,
    max_item_size: u64,
    /// The lanes, sorted by lane number.
    pub(crate) lanes: Box<[Arc<Lane>]>,
    pub(crate) partitions: Partitions,
    /// The memory limit of all lanes together, in bytes.
    memory: AtomicU64,
    /// Locked while the memory is divided among the lanes. Without this lock, a division of an
    /// earlier memory limit could end after that of the present limit and replace its shares.
    sharing: Mutex<()>,
    /// The table of lanes, as in the superblock of every lane.
    pub(crate) table: Mutex<Lanes>,
    /// Locked while the table is written to the devices. Separate from `table`, so that readers of
    /// the table do not wait for a device.
    pub(crate) table_writer: Mutex<()>,
    /// Locked while the mover takes a step, which may wait for a device, and by callers that must
    /// not see a half-done step.
    pub(crate) mover: Mutex<Mover>,
    pub(crate) mover_thread: OnceLock<Thread>,
    /// Sessions waiting for the mover's step to end.
    step_waiting: Mutex<Vec<Waker>>,
    /// Requests to the mover to drain devices or to cancel drains, and requests that failed.
    pub(crate) drains: Mutex<Drains>,
    pub(crate) growths: Mutex<Growths>,
    recovered: Option<Recovered>,
}

impl Engine {
    /// Returns the time of the store when the machine's clocks showed
    /// [`StoreOptions::opened`](crate::StoreOptions), in nanoseconds since the Unix epoch; `None`
    /// without a store. Sessions must continue from this time: with an earlier one, expired items
    /// would reappear.
    pub fn opened_at(&self) -> Option<u64> {
        self.lanes.first()?.store().map(|store| store.opened_at)
    }

    /// Returns what recovery found, if there is a store.
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// Returns true if the engine has a store and evicts nothing. An acknowledged item then stays
    /// until a newer version exists.
    pub fn keeps_all(&self) -> bool {
        self.lanes.iter().any(|lane| lane.log.keeps_reserves())
    }

    /// Returns a snapshot of the engine's contents and counters.
    pub fn stats(&self) -> Stats {
        Stats::sum(&self.lane_stats())
    }

    /// Returns the counters since the start, unaffected by resets. Cheap enough to call often.
    pub fn totals(&self) -> crate::Totals {
        let mut totals = crate::Totals::default();
        self.lanes.iter().for_each(|lane| totals.add(&lane.totals()));
        totals
    }

    /// Returns the parts of [`Engine::stats`], in the order of [`Engine::lanes`].
    pub fn lane_stats(&self) -> Vec<Stats> {
        self.lanes.iter().map(|lane| lane.stats()).collect()
    }

    /// Returns each lane's histograms of the times of device calls and of the sizes of commits, in
    /// the order of [`Engine::lanes`]; nothing without a store.
    pub fn store_histograms(&self) -> Vec<StoreHistograms> {
        let stores = self.lanes.iter().filter_map(|lane| lane.log.durability());
        stores.map(Durable::histograms).collect()
    }

    /// Sets the counters to zero (`stats reset`). Gauges keep their values.
    pub fn reset_stats(&self) {
        self.lanes.iter().for_each(|lane| lane.reset_stats());
    }

    /// Changes the memory limit to `bytes` while the engine is in use (`cache_memlimit`). If more
    /// memory is in use, the cleaners free it in the background.
    ///
    /// # Errors
    /// If the limit is too small for the lanes or for the largest item, or more than four times the
    /// memory that the engine was opened with.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        let maximum = self.opened_memory * GROWTH;
        if bytes > maximum {
            return Err(OpenError::MemoryTooLarge { maximum });
        }
        self.memory_shares(bytes)?;
        self.memory.store(bytes, Ordering::Relaxed);
        self.share_memory()
    }

    /// Divides the memory among the lanes: the minimum for each, and the rest in proportion to the
    /// partitions that they own.
    pub(crate) fn share_memory(&self) -> Result<(), OpenError> {
        let _sharing = lock(&self.sharing);
        let shares = self.memory_shares(self.memory.load(Ordering::Relaxed))?;
        for (lane, share) in self.lanes.iter().zip(shares) {
            lane.set_memory(share);
        }
        Ok(())
    }

    /// Returns each lane's share of `bytes` of memory, in bytes.
    fn memory_shares(&self, bytes: u64) -> Result<Vec<u64>, OpenError> {
        let table = *lock(&self.table);
        let needs = |lane: &Arc<Lane>| (lane.min_memory(), table.owned(lane.number()));
        let needs: Vec<_> = self.lanes.iter().map(needs).collect();
        memory_shares(bytes, self.max_item_size, &needs)
    }

    /// Returns the memory limit, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Charges bytes that a connection keeps between turns.
    pub fn charge_buffers(&self, bytes: usize) {
        self.lanes[0].budget.charge_buffers(bytes as u64);
        self.make_room();
    }

    /// Releases bytes charged by [`Engine::charge_buffers`].
    pub fn release_buffers(&self, bytes: usize) {
        self.lanes[0].budget.release_buffers(bytes as u64);
    }

    /// Returns the bytes that connections keep between turns, and their limit.
    pub fn buffers_held(&self) -> (u64, u64) {
        let budget = &self.lanes[0].budget;
        (budget.buffers_held(), budget.buffers_limit())
    }

    /// Returns the limit, in bytes, for all arriving values together. See
    /// [`Engine::charge_arriving`].
    pub fn arriving_limit(&self) -> u64 {
        self.lanes[0].budget.arriving_limit()
    }

    /// Returns the bytes charged against the memory limit. [`Engine::stats`] has the same number,
    /// but takes longer, because it also examines the store.
    pub fn memory_used(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.budget.used()).sum()
    }

    /// Charges a part of a value that has arrived in its connection's buffer.
    pub fn charge_arriving(&self, bytes: usize) {
        self.lanes[0].budget.charge_arriving(bytes as u64);
        self.make_room();
    }

    /// Releases bytes charged by [`Engine::charge_arriving`].
    pub fn release_arriving(&self, bytes: usize) {
        self.lanes[0].budget.release_arriving(bytes as u64);
    }

    /// Wakes the cleaners of all lanes that exceed their budget.
    fn make_room(&self) {
        let over = |lane: &&Arc<Lane>| lane.budget.excess() > 0;
        self.lanes.iter().filter(over).for_each(|lane| lane.kick_cleaner());
    }

    /// Returns the length, in bytes, of the largest value for a key of this length. With client
    /// flags and an expiry, an item with such a value has exactly the largest size.
    pub fn max_value_len(&self, key_len: usize) -> usize {
        self.lanes[0].max_value_len(key_len)
    }

    /// Returns the length, in bytes, above which a value gets separate memory, which is filled
    /// while its bytes arrive. See [`Session::large_value`](crate::Session::large_value).
    pub fn large_value_threshold(&self) -> usize {
        let thresholds = self.lanes.iter().map(|lane| lane.large_value_threshold());
        thresholds.min().unwrap_or(usize::MAX)
    }

    /// Returns the store's health; good without a store.
    pub fn health(&self) -> Health {
        let failing = |lane: &Arc<Lane>| match lane.health() {
            Health::Failing { reason } if self.lanes.len() > 1 => {
                Some(Health::Failing { reason: format!("{}: {reason}", lane.name()) })
            }
            Health::Failing { reason } => Some(Health::Failing { reason }),
            Health::Good => None,
        };
        let mut used = self.lanes.iter().filter(|lane| self.is_used(lane));
        used.find_map(failing).unwrap_or(Health::Good)
    }

    /// Returns the state of each lane, with or without a store.
    pub fn lanes(&self) -> Vec<LaneState> {
        let table = *lock(&self.table);
        let state = |lane: &Arc<Lane>| {
            let number = lane.number();
            LaneState {
                number,
                name: lane.name().to_owned(),
                partitions: table.owned(number),
                draining: table.is_draining(number),
                drained: !is_used(&table, lane),
                health: lane.health(),
                capacity: lane.capacity(),
                items: lane.index.items(),
                lower: lane.lower_name().map(str::to_owned),
            }
        };
        self.lanes.iter().map(state).collect()
    }

    /// Starts to empty the device of this name. Its keys move to the other devices while clients
    /// are served. Once it is [drained](LaneState::drained), the store no longer needs it.
    ///
    /// # Errors
    /// See [`DrainError`].
    pub fn drain(&self, name: &str) -> Result<(), DrainError> {
        self.set_draining(name, true)
    }

    /// Cancels [`Engine::drain`], so that the device gets its share of the keys again. A device
    /// that is already drained must be added anew.
    ///
    /// # Errors
    /// See [`DrainError`].
    pub fn keep(&self, name: &str) -> Result<(), DrainError> {
        self.set_draining(name, false)
    }

    fn set_draining(&self, name: &str, draining: bool) -> Result<(), DrainError> {
        // Makes the mover wait, because the mover removes emptied lanes from the table.
        let still = lock(&self.mover);
        if let Some(number) = self.change_of_draining(name, draining)? {
            let change = |table: &mut Lanes| {
                table.draining &= !number.bit();
                table.draining |= u32::from(draining) << number.0;
            };
            self.change_table(change).map_err(DrainError::Device)?;
        }
        drop(still);
        self.kick_mover();
        Ok(())
    }

    /// Returns the number of the lane whose draining state must change; `None` if the table already
    /// has the wanted state.
    fn change_of_draining(
        &self,
        name: &str,
        draining: bool,
    ) -> Result<Option<LaneNumber>, DrainError> {
        let table = *lock(&self.table);
        let used = self.lanes.iter().filter(|lane| is_used(&table, lane));
        let mut used = used.filter(|lane| lane.has_store());
        let Some(lane) = used.clone().find(|lane| lane.name() == name) else {
            let names = used.map(|lane| lane.name().to_owned()).collect();
            return Err(DrainError::Unknown { names });
        };
        let number = lane.number();
        if draining && !used.any(|l| l.number() != number && !table.is_draining(l.number())) {
            return Err(DrainError::Last);
        }
        Ok((table.is_draining(number) != draining).then_some(number))
    }

    /// Asks the mover's thread to call [`Engine::drain`] or [`Engine::keep`]. Returns `NeedsSpace`
    /// until the mover has changed the table of lanes or has failed to. A new request cancels an
    /// opposite request for the same device. If the opposite request has already begun, the new one
    /// follows it instead.
    pub(crate) fn request_drain(
        &self,
        name: &str,
        draining: bool,
        waker: &Waker,
    ) -> Outcome<Result<(), DrainError>> {
        let mut drains = lock(&self.drains);
        let now_us = self.lanes[0].clock_us();
        if let Some(error) = drains.failure(name, draining, waker, now_us) {
            return Outcome::Ready(Err(error));
        }
        let change = match self.change_of_draining(name, draining) {
            Err(error) => return Outcome::Ready(Err(error)),
            Ok(change) => change,
        };
        let follows = drains.is_begun(name, !draining);
        let waits = change.is_some() || follows;
        if waits && drains.is_awaited(name, draining, waker) {
            return Outcome::NeedsSpace;
        }
        let cancelled = drains.cancel(name, !draining);
        if !waits {
            drop(drains);
            cancelled.iter().for_each(DrainRequest::wake);
            return Outcome::Ready(Ok(()));
        }
        drains.ask(name, draining, waker, cancelled);
        drop(drains);
        self.kick_mover();
        Outcome::NeedsSpace
    }

    /// Carries out the requests of [`Engine::request_drain`].
    pub(crate) fn serve_drains(&self) {
        loop {
            let Some((name, draining)) = lock(&self.drains).begin() else { return };
            let done = self.set_draining(&name, draining);
            lock(&self.drains).end(done, self.lanes[0].clock_us());
        }
    }

    /// Closes the store cleanly: makes everything durable, so that the next start need not look for
    /// lost data. No session may write any more. Each session must sleep or be dropped, because an
    /// awake session may hold counts of dead bytes that it has not reported.
    ///
    /// # Errors
    /// If a device did not accept everything. All other devices are closed cleanly.
    pub fn close(&self) -> io::Result<()> {
        // Ends the mover's work. The next start continues a motion that is under way.
        lock(&self.mover).end(&self.partitions);
        let stores = self.lanes.iter().filter_map(|lane| lane.durable());
        stores.map(DurableLane::close).fold(Ok(()), io::Result::and)
    }

    /// Holds the mover still: while the returned guard lives, nothing moves between lanes and no
    /// other session flushes. So a flush does not miss an item that is moving between two lanes.
    /// Returns `None` while another thread has locked the mover, for a step, a flush or a drain. In
    /// this case, wakes `waker` when the caller may try again.
    pub(crate) fn pause_mover(&self, waker: &Waker) -> Option<MoverPause<'_>> {
        let still = || match self.mover.try_lock() {
            Ok(mover) => Some(MoverPause { engine: self, mover: Some(mover) }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(MoverPause { engine: self, mover: Some(poisoned.into_inner()) })
            }
            Err(TryLockError::WouldBlock) => None,
        };
        still().or_else(|| {
            lock(&self.step_waiting).push(waker.clone());
            // The step may have ended before the waker was added, so the lock is tried once more.
            still()
        })
    }

    /// Wakes the sessions that wait until they can pause the mover; see [`Self::pause_mover`].
    pub(crate) fn step_ended(&self) {
        let waiting = std::mem::take(&mut *lock(&self.step_waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns true if the lane is a member of the store, not a drained one, or has no store.
    pub(crate) fn is_used(&self, lane: &Lane) -> bool {
        is_used(&lock(&self.table), lane)
    }
}

/// Returns the position of the lane with this number.
pub(crate) fn position_of(lanes: &[Arc<Lane>], number: LaneNumber) -> Option<usize> {
    lanes.iter().position(|lane| lane.number() == number)
}

fn is_used(table: &Lanes, lane: &Lane) -> bool {
    !lane.has_store() || table.is_member(lane.number())
}

/// Holds the mover still until dropped.
pub(crate) struct MoverPause<'a> {
    engine: &'a Engine,
    mover: Option<MutexGuard<'a, Mover>>,
}

impl Drop for MoverPause<'_> {
    fn drop(&mut self) {
        drop(self.mover.take());
        self.engine.step_ended();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The mover's thread holds no strong reference to the engine while it waits. Once woken,
        // the thread finds that the engine is gone, and ends.
        self.kick_mover();
    }
}

/// For engines without threads, and for simulations.
impl Engine {
    /// Makes everything durable that was written before this call. Returns false if a device fails.
    pub fn commit(&self) -> bool {
        self.lanes.iter().fold(true, |all, lane| lane.commit() & all)
    }

    /// As [`Engine::commit`], for one lane.
    pub fn commit_lane(&self, lane: usize) -> bool {
        self.lanes[lane].commit()
    }

    /// In async mode: writes the records appended to a lane before this call, so that they survive
    /// the end of the process. Returns false if the next commit must write them instead.
    pub fn write_early(&self, lane: usize) -> bool {
        self.lanes[lane].durable().and_then(DurableLane::write_early).is_some()
    }

    /// Returns the number of dead maps that the cleaner has made and no commit has included yet.
    pub fn staged_maps(&self) -> usize {
        let stores = self.lanes.iter().filter_map(|lane| lane.log.durability());
        stores.map(|durability| lock(&durability.dead_maps).len()).sum()
    }

    /// Returns the position of the lane that owns a key; `None` while the key is moving.
    pub fn lane_of(&self, key: &[u8]) -> Option<usize> {
        let key = Key::new(key, self.lanes[0].options.hash_seed);
        let at = self.partitions.lane_of(&key);
        (at < self.lanes.len()).then_some(at)
    }

    /// Returns how often background work has examined a segment, for example to decide whether to
    /// write or free it. A benchmark measures with this number how the work grows with the size of
    /// the store.
    pub fn segments_looked_at(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.log.segments_looked_at()).sum()
    }

    /// Returns how often cleaners asked the operating system to turn a part of the index into a
    /// huge page. Making a huge page takes about a millisecond, or a few milliseconds where a
    /// hypervisor has to find the memory. The cleaner holds no lock meanwhile.
    pub fn joined_pages(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.index.joins()).sum()
    }

    /// Returns the open commit of a lane, which covers changes made now; 0 without a store.
    pub fn open_commit(&self, lane: usize) -> u64 {
        self.lanes[lane].open_commit()
    }

    /// Returns the number of memory requests of the lane that has made the most. The other lanes do
    /// not matter, because [`Engine::open_refusing_memory`] counts the requests of each lane
    /// separately.
    pub fn memory_requests(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.memory_requests()).max().unwrap_or(0)
    }

    /// Runs one turn of every lane's cleaner. Returns true if any of them wants another turn soon.
    pub fn clean(&self, state: &mut ManualCleaner) -> bool {
        state.0.resize_with(self.lanes.len(), || None);
        let turn = |any, (lane, cleaner): (&Arc<Lane>, _)| lane.clean(cleaner) || any;
        self.lanes.iter().zip(&mut state.0).fold(false, turn)
    }

    /// Serves the reads that sessions wait for. Returns true if any session waited.
    pub fn serve_reads(&self) -> bool {
        self.lanes.iter().fold(false, |any, lane| lane.serve_reads() | any)
    }
}

/// The state of every lane's cleaner between calls of [`Engine::clean`].
#[derive(Debug, Default)]
pub struct ManualCleaner(Vec<Option<Cleaner>>);

/// Divides `memory` among `lanes`, each given as (minimum in bytes, partitions owned).
fn memory_shares(
    memory: u64,
    max_item_size: u64,
    lanes: &[(u64, usize)],
) -> Result<Vec<u64>, OpenError> {
    let least = |&(least, _): &(u64, usize)| least.max(max_item_size * 2);
    let minimum: u64 = lanes.iter().map(least).sum();
    let Some(rest) = memory.checked_sub(minimum) else {
        return Err(OpenError::MemoryTooSmall { minimum });
    };
    let part = |owned| (u128::from(rest) * owned as u128 / PARTITIONS as u128) as u64;
    let mut shares: Vec<u64> = lanes.iter().map(|lane| least(lane) + part(lane.1)).collect();
    let owned: usize = lanes.iter().map(|lane| lane.1).sum();
    let shared: u64 = shares.iter().sum();
    if owned == PARTITIONS
        && let Some(last) = shares.last_mut()
    {
        // The last lane gets the rounding remainder.
        *last += memory - shared;
    }
    Ok(shares)
}
