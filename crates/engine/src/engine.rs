//! The engine: everything that is shared by the sessions and the cleaner.

use crate::durability::{Committer, Durable};
use crate::ghost::Ghost;
use crate::index::Index;
use crate::key::Key;
use crate::large::LargeValue;
use crate::readers::Readers;
use crate::recovery::{Progress, Recovered, Recovery, StoreError};
use crate::stats::{Counters, Stats, Totals};
use crate::wins::Wins;
use crate::{Options, Session, UnixSeconds, WhenFull};
use larder_disk::ReadQueue;
use larder_log::cover::DeadMap;
use larder_log::{Address, Budget, Config, Epochs, Log, MAX_SEGMENT_SIZE, SegmentNumber, State};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::Thread;

/// The least memory that an engine works with, in bytes.
pub const MIN_MEMORY: u64 = 8 << 20;
/// The smallest largest item, in bytes.
pub const MIN_ITEM_SIZE: u64 = 1024;
/// The greatest largest item, in bytes.
pub const MAX_ITEM_SIZE: u64 = 1 << 30;
/// `set_memory_limit` may raise the limit to this many times what the engine was opened with.
const GROWTH: u64 = 4;
/// Frames that an engine with a store needs at least: those it appends to, the cleaner's reserve, and
/// some that can be read.
const MIN_FRAMES: usize = 8;
/// Frames that an index leaves room for.
const FRAMES_BESIDE_INDEX: usize = MIN_FRAMES + MIN_FRAMES / 2;
/// Frames that memory is divided into, about: the more, the finer the eviction.
const FRAMES: u64 = 128;

/// Why an engine could not be opened, or its memory not be changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The memory cannot hold the smallest engine.
    MemoryTooSmall {
        /// The least that would do, in bytes.
        minimum: u64,
    },
    /// A running engine cannot have that much.
    MemoryTooLarge {
        /// The most that it can have, in bytes.
        maximum: u64,
    },
    /// The largest item is out of range for this memory.
    MaxItemSize {
        /// The least, in bytes.
        minimum: u64,
        /// The most, in bytes.
        maximum: u64,
    },
    /// The operating system gave no memory, or no thread.
    Map(std::io::Error),
    /// The store cannot be used.
    Store(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::MemoryTooSmall { minimum } => {
                write!(f, "memory is too small: give at least {minimum} bytes")
            }
            OpenError::MemoryTooLarge { maximum } => {
                write!(f, "memory can be raised to at most {maximum} bytes without a restart")
            }
            OpenError::MaxItemSize { minimum, maximum } => write!(
                f,
                "the largest item must be between {minimum} and {maximum} bytes (half of memory, \
                 at most 1 GiB)"
            ),
            OpenError::Map(error) => {
                write!(f, "the operating system gave no memory ({error}): ask for less")
            }
            OpenError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// One engine, shared by all threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) options: Options,
    pub(crate) budget: Arc<Budget>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) ghost: Ghost,
    pub(crate) wins: Wins,
    /// The latest time that any session ticked with.
    pub(crate) now: AtomicU32,
    /// When a delayed flush_all is due; 0 for none.
    pub(crate) flush_at: AtomicU32,
    /// Nothing can be reclaimed: writes that need space are refused until something dies.
    pub(crate) full: AtomicBool,
    /// No memory can be freed, not even for what is to be read.
    pub(crate) frames_full: AtomicBool,
    /// Items have been evicted: the ghost queue is worth a look.
    pub(crate) evicts: AtomicBool,
    /// With a store: what is shared about durability.
    pub(crate) durable: Option<Durable>,
    pub(crate) committer: Mutex<Committer>,
    /// Dead maps that the committer is to write.
    pub(crate) dead_maps: Mutex<Vec<DeadMap>>,
    pub(crate) readers: Arc<Readers>,
    recovered: Option<Recovered>,
    /// Segments that were in memory before the last stop and have not been read back yet, the newest
    /// last.
    pub(crate) cold: Mutex<Vec<SegmentNumber>>,
    /// Large values that were read from the store, and when: they stay in memory until who wanted them
    /// had time to use them.
    pub(crate) just_read: Mutex<HashMap<SegmentNumber, UnixSeconds>>,
    /// Held by the cleaner during a turn.
    pub(crate) cleaning: Mutex<()>,
    counters: Mutex<Ledger>,
    waiting: Mutex<Vec<Waker>>,
    cleaner: Mutex<Option<Thread>>,
}

/// The counters of all sessions.
#[derive(Debug, Default)]
struct Ledger {
    sessions: Vec<Arc<Counters>>,
    /// What ended sessions counted.
    ended: Totals,
    /// What was counted before the last reset.
    reset: Totals,
}

impl Ledger {
    fn sum(&self) -> Totals {
        let mut totals = self.ended.clone();
        self.sessions.iter().for_each(|counters| counters.add_to(&mut totals));
        totals
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Opens an engine and starts its cleaner thread, which ends when the last handle is dropped.
    ///
    /// # Errors
    /// If the options do not fit each other, or there is no memory.
    pub fn open(options: Options) -> Result<Arc<Engine>, OpenError> {
        Self::open_with_progress(options, &mut |_| {})
    }

    /// As [`Engine::open`]; `progress` hears how far the recovery of a store has come.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with_progress(
        options: Options,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Engine>, OpenError> {
        let engine = Self::build(options, 0, progress)?;
        crate::cleaner::spawn(&engine).map_err(OpenError::Map)?;
        if engine.durable.is_some() {
            crate::durability::spawn(&engine).map_err(OpenError::Map)?;
            crate::readers::spawn(&engine).map_err(OpenError::Map)?;
        }
        Ok(engine)
    }

    /// Opens an engine without threads, whose owner calls [`Engine::clean`], [`Engine::commit`] and
    /// [`Engine::serve_reads`] itself: for simulations that decide what happens when.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_without_threads(options: Options) -> Result<Arc<Engine>, OpenError> {
        Self::build(options, 0, &mut |_| {})
    }

    /// As [`Engine::open_without_threads`]; the `nth` request for memory that may be refused is, if
    /// it is not 0: for simulations of what happens then.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_refusing_memory(options: Options, nth: u64) -> Result<Arc<Engine>, OpenError> {
        Self::build(options, nth, &mut |_| {})
    }

    /// Requests for memory so far, where one is to be refused.
    pub fn memory_requests(&self) -> u64 {
        self.budget.requests()
    }

    fn build(
        options: Options,
        refuse: u64,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Engine>, OpenError> {
        let (mut engine, recovery) = Self::construct(options.clone(), refuse)?;
        let Some(recovery) = recovery else { return Ok(Arc::new(engine)) };
        if engine.has_image() {
            if let Some(recovered) = engine.load_image(&recovery)? {
                engine.recovered = Some(recovered);
                return Ok(Arc::new(engine));
            }
            // Half of the image may have been believed already.
            engine = Self::construct(options, refuse)?.0;
        }
        engine.recovered = Some(engine.recover(recovery, progress)?);
        Ok(Arc::new(engine))
    }

    /// An empty engine, and what the recovery of its store begins with.
    fn construct(
        mut options: Options,
        refuse: u64,
    ) -> Result<(Engine, Option<Recovery>), OpenError> {
        let memory = options.memory;
        if memory < MIN_MEMORY {
            return Err(OpenError::MemoryTooSmall { minimum: MIN_MEMORY });
        }
        let maximum = MAX_ITEM_SIZE.min(memory / 2);
        if !(MIN_ITEM_SIZE..=maximum).contains(&options.max_item_size) {
            return Err(OpenError::MaxItemSize { minimum: MIN_ITEM_SIZE, maximum });
        }
        let budget = Arc::new(Budget::new(memory));
        budget.refuse(refuse);
        let epochs = Arc::new(Epochs::default());
        let mut segment_size = segment_size(memory);
        let opened = match &options.store {
            None => None,
            Some(store) => {
                let opened = crate::recovery::open_store(store, segment_size, options.hash_seed)?;
                segment_size = opened.store.segment_size();
                options.hash_seed = opened.store.superblock().hash_seed;
                let minimum = (segment_size * MIN_FRAMES) as u64 * 2;
                if memory < minimum {
                    return Err(OpenError::MemoryTooSmall { minimum });
                }
                Some(opened)
            }
        };
        let config = Config { segment_size, max_frame_bytes: memory * GROWTH };
        let (store, recovery) = opened.map(|opened| (opened.store, opened.recovery)).unzip();
        let log = Log::new(config, store, Arc::clone(&budget), Arc::clone(&epochs));
        let strict = options.when_full == WhenFull::Refuse;
        let index = Index::new(memory, memory * GROWTH, strict, &budget, &epochs);
        let index = index.map_err(OpenError::Map)?;
        if store_evicts(&options) {
            index.set_limit(index_limit(memory, segment_size));
        }
        let ghost = Ghost::new(memory);
        budget.charge(ghost.bytes());
        let engine = Engine {
            log: log.map_err(OpenError::Map)?,
            index,
            ghost,
            wins: Wins::default(),
            now: AtomicU32::new(0),
            flush_at: AtomicU32::new(0),
            full: AtomicBool::new(false),
            frames_full: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
            durable: options.store.as_ref().map(Durable::new),
            committer: Mutex::default(),
            dead_maps: Mutex::default(),
            readers: Arc::default(),
            recovered: None,
            cold: Mutex::default(),
            just_read: Mutex::default(),
            cleaning: Mutex::default(),
            counters: Mutex::default(),
            waiting: Mutex::default(),
            cleaner: Mutex::default(),
            options,
            budget,
            epochs,
        };
        Ok((engine, recovery))
    }

    /// What recovery found, if there is a store.
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// A session for the calling thread. `waker` is woken (from any thread) when a call that
    /// answered [`NeedsSpace`](crate::Outcome::NeedsSpace) may be repeated.
    pub fn session(self: &Arc<Self>, waker: Waker) -> Session {
        let counters = self.new_counters();
        Session::new(Arc::clone(self), counters, waker)
    }

    /// A way for a session to read the store by itself; `event` is an eventfd that each read which
    /// ends makes readable.
    ///
    /// # Errors
    /// There is no store, or no such way here: the engine's readers do it.
    pub(crate) fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let store = self.options.store.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        store.device.read_queue(event)
    }

    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        lock(&self.counters).sessions.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn end_counters(&self, counters: &Arc<Counters>) {
        let mut ledger = lock(&self.counters);
        counters.add_to(&mut ledger.ended);
        ledger.sessions.retain(|other| !Arc::ptr_eq(other, counters));
    }

    /// A snapshot of what the engine holds and has counted.
    pub fn stats(&self) -> Stats {
        let totals = {
            let ledger = lock(&self.counters);
            ledger.sum().since(&ledger.reset)
        };
        let mut stats = Stats {
            totals,
            items: self.index.items(),
            memory_limit: self.budget.limit(),
            memory_used: self.budget.used(),
            index_bytes: self.index.bytes(),
            index_slots: self.index.slots(),
            frame_bytes: self.log.frame_bytes(),
            copies: self.log.copies() as u64,
            copy_bytes: self.log.copy_frames().iter().sum::<usize>() as u64
                * self.log.segment_size() as u64,
            buffer_bytes: self.budget.buffers(),
            segment_size: self.log.segment_size() as u64,
            unsynced_bytes: self.log.unsynced_bytes(),
            ..Stats::default()
        };
        if let Some(durable) = &self.durable {
            (stats.commits, stats.commit_us_p50, stats.commit_us_p99) = durable.commit_times();
            if stats.unsynced_bytes > 0 {
                stats.unsynced_ms = durable.unsynced_age().as_millis() as u64;
            }
        }
        if let Some(recovered) = &self.recovered {
            stats.recovered_items = recovered.items;
            stats.recovery_ms = recovered.took.as_millis() as u64;
        }
        for number in self.log.numbers() {
            let segment = self.log.segment(number);
            if matches!(segment.state(), State::Free | State::Quarantine) {
                continue;
            }
            stats.segments += 1;
            let live = u64::from(self.log.live(number));
            stats.item_bytes += live;
            if segment.frame().is_null() {
                stats.flash_item_bytes += live;
            }
            if segment.is_jumbo() {
                stats.jumbos += 1;
                if !segment.frame().is_null() {
                    stats.frame_bytes += segment.jumbo_mapping() as u64;
                }
            }
        }
        stats
    }

    /// Look-ups that found an item, of all sessions since the start.
    pub(crate) fn get_hits(&self) -> u64 {
        lock(&self.counters).sum().get_hits
    }

    /// Sets the counters to zero (`stats reset`); gauges stay.
    pub fn reset_stats(&self) {
        let mut ledger = lock(&self.counters);
        ledger.reset = ledger.sum();
    }

    /// What the engine was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Changes the memory limit while running (`cache_memlimit`), in bytes. What is over it is
    /// evicted in the background.
    ///
    /// # Errors
    /// If the limit is too small for the largest item, or more than four times what the engine was
    /// opened with.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        let minimum = MIN_MEMORY.max(self.options.max_item_size * 2);
        if bytes < minimum {
            return Err(OpenError::MemoryTooSmall { minimum });
        }
        let maximum = self.options.memory * GROWTH;
        if bytes > maximum {
            return Err(OpenError::MemoryTooLarge { maximum });
        }
        self.budget.set_limit(bytes);
        if store_evicts(&self.options) {
            self.index.set_limit(index_limit(bytes, self.log.segment_size()));
        }
        self.full.store(false, Ordering::Relaxed);
        self.kick_cleaner();
        Ok(())
    }

    /// Charges connection buffers against the memory limit; false when they may not grow further.
    pub fn charge_buffers(&self, bytes: usize) -> bool {
        self.charged(self.budget.charge_buffers(bytes as u64))
    }

    /// As [`Engine::charge_buffers`] for the value of a request while it arrives: such buffers leave
    /// a part of the share to short requests and replies.
    pub fn charge_body(&self, bytes: usize) -> bool {
        self.charged(self.budget.charge_body(bytes as u64))
    }

    fn charged(&self, charged: bool) -> bool {
        if charged && self.budget.excess() > 0 {
            self.kick_cleaner();
        }
        charged
    }

    /// Gives back what [`Engine::charge_buffers`] or [`Engine::charge_body`] charged.
    pub fn release_buffers(&self, bytes: usize) {
        self.budget.release_buffers(bytes as u64);
    }

    /// The largest value of an item with this key length, in bytes: with it, client flags and an
    /// expiry the item has the largest size.
    pub fn max_value_len(&self, key_len: usize) -> usize {
        let head = larder_log::record::HEADER + 8 + key_len;
        (self.options.max_item_size as usize).saturating_sub(head)
    }

    /// Values longer than this are filled in place: see
    /// [`Session::large_value`](crate::Session::large_value).
    pub fn large_value_threshold(&self) -> usize {
        self.log.largest_record() - larder_log::record::MAX_KEY - 64
    }

    /// A call was answered `NeedsSpace`: the cleaner must work, and `waker` hear of it.
    pub(crate) fn wait_for_space(&self, waker: &Waker) {
        lock(&self.waiting).push(waker.clone());
        self.kick_cleaner();
    }

    /// Lets those who wait try again; false if nobody waited.
    pub(crate) fn wake_waiting(&self) -> bool {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        let any = !waiting.is_empty();
        waiting.into_iter().for_each(Waker::wake);
        any
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// The position of the key of a record.
    pub(crate) fn position(&self, address: Address) -> u32 {
        // SAFETY: called for addresses in slots under the stripe's lock.
        let record = unsafe { self.log.record(address) };
        if let Some(record) = record {
            return Key::new(record.key(), self.options.hash_seed).position();
        }
        // The key of a record that is only in the store has to be read. An unreadable one may go
        // anywhere: nobody will find it again, as nobody could have read it.
        let position = |key: &[u8]| Key::new(key, self.options.hash_seed).position();
        self.log.read_key(address, position).unwrap_or(0)
    }

    pub(crate) fn set_cleaner(&self, thread: Thread) {
        *lock(&self.cleaner) = Some(thread);
    }

    /// Has the cleaner look whether there is something to do.
    pub(crate) fn kick_cleaner(&self) {
        if let Some(thread) = &*lock(&self.cleaner) {
            thread.unpark();
        }
    }

    /// A record of `bytes` in `segment` is dead.
    pub(crate) fn kill(&self, segment: u32, bytes: usize) {
        self.log.segment(segment).kill(bytes);
        self.killed(segment);
    }

    /// Whether what cannot be read is an error for its readers, and not as good as evicted.
    pub(crate) fn may_lose_nothing(&self) -> bool {
        let accepts = self.options.store.as_ref().is_some_and(|store| store.accept_damage);
        self.options.when_full == WhenFull::Refuse && !accepts
    }

    /// Something in `segment` is dead that was not.
    #[inline]
    pub(crate) fn killed(&self, segment: u32) {
        if self.full.load(Ordering::Relaxed) || self.log.segment(segment).is_jumbo() {
            self.full.store(false, Ordering::Relaxed);
            self.kick_cleaner();
        }
    }

    /// The memory for a large value, if the budget has it.
    pub(crate) fn map_large(&self, len: usize) -> Option<LargeValue> {
        let bytes = LargeValue::footprint(len);
        if !self.budget.try_charge_wanted(bytes) {
            self.budget.want(bytes);
            return None;
        }
        LargeValue::map(len, &self.budget)
    }

    /// Raises the engine's clock; the answer is whether a new second has begun.
    pub(crate) fn advance_clock(&self, now: UnixSeconds) -> bool {
        self.now.fetch_max(now, Ordering::Relaxed) < now
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The threads hold no handle while they wait: they look, find none, and end.
        self.kick_cleaner();
        if let Some(durable) = &self.durable {
            durable.want_commit();
        }
        self.readers.end();
    }
}

/// Whether items of a store go when there are too many.
fn store_evicts(options: &Options) -> bool {
    options.store.is_some() && options.when_full == WhenFull::Evict
}

/// With a store the index may take all of the memory but for the frames that an engine cannot do
/// without; beyond that items are evicted, however much room there is on the device.
fn index_limit(memory: u64, segment_size: usize) -> u64 {
    memory.saturating_sub((FRAMES_BESIDE_INDEX * segment_size) as u64)
}

fn segment_size(memory: u64) -> usize {
    let target = (memory / FRAMES).max(1);
    (1usize << target.ilog2()).clamp(64 << 10, MAX_SEGMENT_SIZE / 4)
}
