//! The engine: its lanes, and which keys belong to which of them.

pub(crate) mod drains;
mod grow;
pub(crate) mod growths;
pub(crate) mod lanes;
mod open;
pub(crate) mod partitions;
pub(crate) mod session;

use crate::cleaner::Cleaner;
use crate::durability::StoreOptions;
use crate::engine::drains::Drain;
use crate::engine::drains::DrainError;
use crate::engine::drains::Drains;
use crate::engine::drains::LaneState;
use crate::engine::growths::Growths;
use crate::engine::partitions::Partitions;
use crate::error::OpenError;
use crate::key::Key;
use crate::lane::Lane;
use crate::lane::memory::GROWTH;
use crate::lock::lock;
use crate::mover::state::Mover;
use crate::recovery::Recovered;
use crate::{Durability, Health, Options, Outcome, Stats, UnixSeconds};
use larder_log::format::{Lanes, PARTITIONS};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::task::Waker;
use std::thread::Thread;

/// One engine, shared by all threads.
#[derive(Debug)]
pub struct Engine {
    options: Options,
    /// In the order of their numbers.
    pub(crate) lanes: Box<[Arc<Lane>]>,
    pub(crate) partitions: Partitions,
    /// What all lanes may have together, in bytes.
    memory: AtomicU64,
    /// What the superblocks of all lanes say about lanes.
    pub(crate) table: Mutex<Lanes>,
    /// Held while the table is changed on the devices: who only looks at it does not wait for them.
    pub(crate) table_writer: Mutex<()>,
    /// Locked while it takes a step, which may wait for a device, and by whoever must not see one half done.
    pub(crate) mover: Mutex<Mover>,
    pub(crate) mover_thread: OnceLock<Thread>,
    /// Who waits for the mover's step to end.
    step_waiting: Mutex<Vec<Waker>>,
    /// What the mover is asked to do with devices, and what it could not.
    pub(crate) drains: Mutex<Drains>,
    pub(crate) growths: Mutex<Growths>,
    recovered: Option<Recovered>,
}

impl Engine {
    /// The greatest Unix second at which the store is known to have been open, this start included; 0 without
    /// a store. A clock behind it would show again what had expired.
    pub fn remembered_time(&self) -> UnixSeconds {
        let times = self.lanes.iter().map(|lane| lane.remembered.load(Ordering::Relaxed));
        times.max().unwrap_or(0)
    }

    /// What recovery found, if there is a store.
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// What the engine was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A snapshot of what the engine holds and has counted.
    pub fn stats(&self) -> Stats {
        Stats::sum(&self.lane_stats())
    }

    /// All that was counted since the start, resets left out of account: cheap, for whoever asks often.
    pub fn totals(&self) -> crate::Totals {
        let mut totals = crate::Totals::default();
        self.lanes.iter().for_each(|lane| totals.add(&lane.totals()));
        totals
    }

    /// The parts of [`Engine::stats`], in the order of [`Engine::lanes`].
    pub fn lane_stats(&self) -> Vec<Stats> {
        self.lanes.iter().map(|lane| lane.stats()).collect()
    }

    /// Sets the counters to zero (`stats reset`); gauges stay.
    pub fn reset_stats(&self) {
        self.lanes.iter().for_each(|lane| lane.reset_stats());
    }

    /// Changes the memory limit while running (`cache_memlimit`), in bytes. What is over it is
    /// evicted in the background.
    ///
    /// # Errors
    /// If the limit is too small for the largest item, or more than four times what the engine was
    /// opened with.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        let maximum = self.options.memory * GROWTH;
        if bytes > maximum {
            return Err(OpenError::MemoryTooLarge { maximum });
        }
        self.memory_shares(bytes)?;
        // A motion that ends meanwhile divides the same.
        self.memory.store(bytes, Ordering::Relaxed);
        self.share_memory()
    }

    /// Divides the memory among the lanes by the keys that belong to them.
    pub(crate) fn share_memory(&self) -> Result<(), OpenError> {
        let shares = self.memory_shares(self.memory.load(Ordering::Relaxed))?;
        for (lane, share) in self.lanes.iter().zip(shares) {
            lane.set_memory(share);
        }
        Ok(())
    }

    /// What each lane would have of so much memory, in bytes.
    fn memory_shares(&self, bytes: u64) -> Result<Vec<u64>, OpenError> {
        let table = *lock(&self.table);
        let needs = |lane: &Arc<Lane>| (lane.min_memory(), table.owned(lane.number()));
        let needs: Vec<_> = self.lanes.iter().map(needs).collect();
        memory_shares(bytes, self.options.max_item_size, &needs)
    }

    /// The memory limit, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Charges bytes that a connection keeps between turns.
    pub fn charge_buffers(&self, bytes: usize) {
        self.lanes[0].budget.charge_buffers(bytes as u64);
        self.make_room();
    }

    /// Gives back what [`Engine::charge_buffers`] charged.
    pub fn release_buffers(&self, bytes: usize) {
        self.lanes[0].budget.release_buffers(bytes as u64);
    }

    /// Bytes that connections keep between turns, and how many they may.
    pub fn buffers_held(&self) -> (u64, u64) {
        let budget = &self.lanes[0].budget;
        (budget.buffers_held(), budget.buffers_limit())
    }

    /// Bytes that values may take while they arrive.
    pub fn arriving_limit(&self) -> u64 {
        self.lanes[0].budget.arriving_limit()
    }

    /// Bytes that are charged against the memory limit: what [`Engine::stats`] tells, without a look at the store.
    pub fn memory_used(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.budget.used()).sum()
    }

    /// Charges a part of a value that has arrived in a buffer of its connection.
    pub fn charge_arriving(&self, bytes: usize) {
        self.lanes[0].budget.charge_arriving(bytes as u64);
        self.make_room();
    }

    /// Gives back what [`Engine::charge_arriving`] charged.
    pub fn release_arriving(&self, bytes: usize) {
        self.lanes[0].budget.release_arriving(bytes as u64);
    }

    /// Has the cleaners free what is over the limits.
    fn make_room(&self) {
        let over = |lane: &&Arc<Lane>| lane.budget.excess() > 0;
        self.lanes.iter().filter(over).for_each(|lane| lane.kick_cleaner());
    }

    /// The largest value of an item with this key length, in bytes: with it, client flags and an
    /// expiry the item has the largest size.
    pub fn max_value_len(&self, key_len: usize) -> usize {
        self.lanes[0].max_value_len(key_len)
    }

    /// Values longer than this are filled in place: see
    /// [`Session::large_value`](crate::Session::large_value).
    pub fn large_value_threshold(&self) -> usize {
        let thresholds = self.lanes.iter().map(|lane| lane.large_value_threshold());
        thresholds.min().unwrap_or(usize::MAX)
    }

    /// How the store is; without one, good.
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

    /// How each lane is; one without a store.
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

    /// Begins to empty the device of this name: its keys move to the others while clients are served.
    /// When it is [drained](LaneState::drained) the store does not need it any more.
    ///
    /// # Errors
    /// See [`DrainError`].
    pub fn drain(&self, name: &str) -> Result<(), DrainError> {
        self.set_draining(name, true)
    }

    /// Takes [`Engine::drain`] back: the device gets its share of the keys again. One that is drained
    /// already has to be added anew.
    ///
    /// # Errors
    /// See [`DrainError`].
    pub fn keep(&self, name: &str) -> Result<(), DrainError> {
        self.set_draining(name, false)
    }

    fn set_draining(&self, name: &str, draining: bool) -> Result<(), DrainError> {
        // The mover lets emptied lanes go.
        let still = lock(&self.mover);
        if let Some(number) = self.change_of_draining(name, draining)? {
            let change = |table: &mut Lanes| {
                table.draining &= !(1 << number);
                table.draining |= u32::from(draining) << number;
            };
            self.change_table(change).map_err(DrainError::Device)?;
        }
        drop(still);
        self.kick_mover();
        Ok(())
    }

    /// The number of the lane whose table has to be changed for that; `None` if it says so already.
    fn change_of_draining(&self, name: &str, draining: bool) -> Result<Option<usize>, DrainError> {
        let table = *lock(&self.table);
        let used = self.lanes.iter().filter(|lane| is_used(&table, lane));
        let mut used = used.filter(|lane| lane.durable.is_some());
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

    /// As [`Engine::drain`] and [`Engine::keep`], done by the mover's thread: `NeedsSpace` until it has
    /// tried.
    pub(crate) fn request_drain(
        &self,
        name: &str,
        draining: bool,
        waker: &Waker,
    ) -> Outcome<Result<(), DrainError>> {
        let mut drains = lock(&self.drains);
        if let Some(at) = drains.failed.iter().position(|(failed, _)| failed.is(name, draining)) {
            return Outcome::Ready(Err(drains.failed.swap_remove(at).1));
        }
        match self.change_of_draining(name, draining) {
            Err(error) => return Outcome::Ready(Err(error)),
            Ok(None) => return Outcome::Ready(Ok(())),
            Ok(Some(_)) => {}
        }
        if !drains.asked.iter().any(|asked| asked.is(name, draining)) {
            drains.asked.push(Drain { name: name.to_owned(), draining });
        }
        drains.waiting.push(waker.clone());
        drop(drains);
        self.kick_mover();
        Outcome::NeedsSpace
    }

    /// Does what [`Engine::request_drain`] was asked for.
    pub(crate) fn serve_drains(&self) {
        let asked = std::mem::take(&mut lock(&self.drains).asked);
        if asked.is_empty() {
            return;
        }
        for drain in asked {
            let done = self.set_draining(&drain.name, drain.draining);
            let mut drains = lock(&self.drains);
            drains.failed.retain(|(failed, _)| !failed.is(&drain.name, drain.draining));
            drains.failed.extend(done.err().map(|error| (drain, error)));
        }
        let waiting = std::mem::take(&mut lock(&self.drains).waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ends the use of the store properly: everything is durable, and the next start need not look
    /// for what was lost. No session may write any more, and each sleeps or is dropped: one that is awake may keep
    /// counts of dead bytes to itself.
    ///
    /// # Errors
    /// If some device did not take everything; the others have.
    pub fn close(&self) -> io::Result<()> {
        // A start goes on with what is on its way.
        lock(&self.mover).end(&self.partitions);
        self.lanes.iter().map(|lane| lane.close()).fold(Ok(()), io::Result::and)
    }

    /// Nothing moves between lanes, and nobody else flushes, while the answer lives. What is half moved is
    /// in no lane that a flush leaves out. `None` while the mover takes a step; `waker` hears of its end.
    pub(crate) fn hold_still(&self, waker: &Waker) -> Option<Still<'_>> {
        let still = || match self.mover.try_lock() {
            Ok(mover) => Some(Still { engine: self, mover: Some(mover) }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(Still { engine: self, mover: Some(poisoned.into_inner()) })
            }
            Err(TryLockError::WouldBlock) => None,
        };
        still().or_else(|| {
            lock(&self.step_waiting).push(waker.clone());
            // The step may have ended before that.
            still()
        })
    }

    /// The mover can be held still again.
    pub(crate) fn step_ended(&self) {
        let waiting = std::mem::take(&mut *lock(&self.step_waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the lane is a part of the store, and not one that was drained.
    pub(crate) fn is_used(&self, lane: &Lane) -> bool {
        is_used(&lock(&self.table), lane)
    }
}

/// The position of the lane with this number.
pub(crate) fn position_of(lanes: &[Arc<Lane>], number: usize) -> Option<usize> {
    lanes.iter().position(|lane| lane.number() == number)
}

fn is_used(table: &Lanes, lane: &Lane) -> bool {
    lane.durable.is_none() || table.is_member(lane.number())
}

/// The mover held still.
pub(crate) struct Still<'a> {
    engine: &'a Engine,
    mover: Option<MutexGuard<'a, Mover>>,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        drop(self.mover.take());
        self.engine.step_ended();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The thread holds no handle while it waits: it looks, finds none, and ends.
        self.kick_mover();
    }
}

/// For engines without threads, and simulations of what may happen.
impl Engine {
    /// Makes everything durable that was written before this call, as far as the devices let it;
    /// false if one does not.
    pub fn commit(&self) -> bool {
        self.lanes.iter().fold(true, |all, lane| lane.commit() & all)
    }

    /// As [`Engine::commit`], of one lane.
    pub fn commit_lane(&self, lane: usize) -> bool {
        self.lanes[lane].commit()
    }

    /// In async mode: writes what a lane was given before this call, so that the end of the process does not take
    /// it back; false if it is left to the next commit.
    pub fn write_early(&self, lane: usize) -> bool {
        self.lanes[lane].write_early().is_some()
    }

    /// Dead maps that the cleaner has made and no commit has taken up.
    pub fn staged_maps(&self) -> usize {
        self.lanes.iter().map(|lane| lock(&lane.dead_maps).len()).sum()
    }

    /// The position of the lane that a key belongs to; `None` while it is on its way.
    pub fn lane_of(&self, key: &[u8]) -> Option<usize> {
        let key = Key::new(key, self.lanes[0].options.hash_seed);
        let at = self.partitions.lane_of(&key);
        (at < self.lanes.len()).then_some(at)
    }

    /// How many segments were looked at, each time counted, to find out what to write, free or tell.
    pub fn segments_looked_at(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.log.segments_looked_at()).sum()
    }

    /// How often cleaners have had the system make a huge page of a part of the index. Each time takes about a
    /// millisecond, or some where a host has to find the memory, in which they hold no lock.
    pub fn joined_pages(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.index.joins()).sum()
    }

    /// The commit that changes in a lane are counted to now; 0 without a store.
    pub fn open_commit(&self, lane: usize) -> u64 {
        self.lanes[lane].open_commit()
    }

    /// Requests for memory so far of the lane with the most, where each refuses one.
    pub fn memory_requests(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.memory_requests()).max().unwrap_or(0)
    }

    /// Runs one turn of every lane's cleaner. Returns true if one wants another turn soon.
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

/// The state of [`Engine::clean`].
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
        // The remainder that rounding left.
        *last += memory - shared;
    }
    Ok(shares)
}

/// Whether a lane's durability promises anything.
pub(crate) fn promises(options: &StoreOptions) -> bool {
    options.durability != Durability::None
}
