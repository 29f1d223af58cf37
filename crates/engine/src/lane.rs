//! A lane: a log with its index, its device, its committer and its cleaner, for a share of the keys;
//! everything that its sessions have in common.

#[cfg(all(test, loom))]
pub(crate) mod model;
pub(crate) mod session;

use crate::durability::{Committer, Durable};
use crate::ghost::Ghost;
use crate::index::Index;
use crate::index::slot::Slot;
use crate::lane::session::LaneSession;
use crate::large::LargeValue;
use crate::older::OlderSlots;
use crate::readers::Readers;
use crate::recovery::StoreError;
use crate::recovery::{Progress, Recovered, Recovery};
use crate::stats::{Counters, Stats, Totals};
use crate::wins::Wins;
use crate::{OpenError, Options, StoreDevice, StoreOptions, UnixSeconds, WhenFull};
use larder_disk::ReadQueue;
use larder_log::DeadMap;
use larder_log::format::{Lanes, PARTITIONS, Superblock};
use larder_log::record::MAX_SEQ;
use larder_log::store::{SEQ_LEASE, seq_lease};
use larder_log::{
    Address, Budget, Buffers, Claim, Config, Epochs, Held, Log, MAX_SEGMENT_SIZE, SegmentNumber,
    Tier,
};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::Thread;

/// The least memory that a lane works with, in bytes.
pub const MIN_MEMORY: u64 = 8 << 20;
/// The smallest largest item, in bytes.
pub const MIN_ITEM_SIZE: u64 = 1024;
/// The greatest largest item, in bytes.
pub const MAX_ITEM_SIZE: u64 = 1 << 30;
/// `set_memory_limit` may raise the limit to this many times what the engine was opened with.
pub(crate) const GROWTH: u64 = 4;
/// Frames that an engine with a store needs at least: those it appends to, the cleaner's reserve, and
/// some that can be read.
const MIN_FRAMES: usize = 8;
/// Frames that an index leaves room for.
const FRAMES_BESIDE_INDEX: usize = MIN_FRAMES + MIN_FRAMES / 2;
/// Frames that memory is divided into, about: the more, the finer the eviction, and the less of it is kept free
/// or half full. With a store segments are written as they are, and larger ones take fewer writes.
const FRAMES: u64 = 256;
const FRAMES_WITH_STORE: u64 = 128;

/// What a lane is opened with.
#[derive(Clone, Debug)]
pub(crate) struct LaneOptions {
    /// Its place among the engine's lanes.
    pub(crate) position: u8,
    /// Its share of the engine's memory, in bytes.
    pub(crate) memory: u64,
    /// The memory of all lanes, in bytes: all have as many stripes, and each uses those of its keys.
    pub(crate) memory_of_all: u64,
    /// What the engine was opened with, with the most memory that the lane may have.
    pub(crate) engine: Options,
    /// The seed of the key hash, the same in all lanes.
    pub(crate) hash_seed: u64,
    pub(crate) store: Option<LaneStore>,
}

/// The device of a lane, and what it is used for.
#[derive(Clone, Debug)]
pub(crate) struct LaneStore {
    pub(crate) device: StoreDevice,
    /// What all lanes have in common.
    pub(crate) common: StoreOptions,
    /// The superblock on it, if it has a store already.
    pub(crate) found: Option<Superblock>,
    /// Bytes of a segment, if there is no store yet.
    pub(crate) segment_size: usize,
    /// What its superblock is to say, and which partitions it has owned so far.
    pub(crate) lanes: Lanes,
    /// Its log is read although there is an index image: what the image does not show counts.
    pub(crate) read_all: bool,
    /// Threads that a start reads it in.
    pub(crate) threads: usize,
}

/// One lane: a log with its index, shared by all threads.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) options: LaneOptions,
    pub(crate) budget: Arc<Budget>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) older: OlderSlots,
    pub(crate) ghost: Ghost,
    pub(crate) wins: Wins,
    /// The latest time that any session ticked with.
    pub(crate) now: AtomicU32,
    /// The Unix second that the store remembers, or will with its next commit.
    pub(crate) remembered: AtomicU32,
    /// When a delayed flush_all is due; 0 for none.
    pub(crate) flush_at: AtomicU32,
    /// The commit that the fence of the last flush is durable with; 0 if there was none.
    pub(crate) fence: AtomicU64,
    /// Nothing can be reclaimed: [claims](Claim) below this number are refused until something dies.
    full: AtomicU8,
    /// How many turns the cleaner has begun, and the last one that ended with nothing to reclaim.
    pub(crate) turns: AtomicU64,
    pub(crate) found_nothing: AtomicU64,
    /// No memory can be freed, not even for what is to be read.
    pub(crate) frames_full: AtomicBool,
    /// Keys are to come here, and wait for the segments that keep ends to be cleaned.
    pub(crate) ends_must_go: AtomicBool,
    /// Items have been evicted: the ghost queue is worth a look.
    pub(crate) evicts: AtomicBool,
    /// With a store: what is shared about durability.
    pub(crate) durable: Option<Durable>,
    /// Held for as long as a commit takes.
    pub(crate) committing: Mutex<()>,
    /// Not held during a sync.
    pub(crate) committer: Mutex<Committer>,
    /// Dead maps that the committer is to write.
    pub(crate) dead_maps: Mutex<Vec<DeadMap>>,
    pub(crate) readers: Arc<Readers>,
    recovered: Option<Recovered>,
    /// Items that recovery found of partitions that the lane does not own.
    pub(crate) strays: Mutex<Vec<Address>>,
    /// Segments that were in memory before the last stop and have not been read back yet, the newest
    /// last.
    pub(crate) cold: Mutex<Vec<SegmentNumber>>,
    /// Large values that were read from the store, and when: they stay in memory until who wanted them
    /// had time to use them.
    pub(crate) just_read: Mutex<HashMap<SegmentNumber, UnixSeconds>>,
    /// Held by the cleaner during a turn.
    pub(crate) cleaning: Mutex<()>,
    counters: Mutex<Ledger>,
    waiting: Mutex<Waiting>,
    cleaner: Mutex<Option<Thread>>,
}

/// Who waits for space.
#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Waker>,
    /// The most urgent claim among them.
    claim: Option<Claim>,
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

impl Lane {
    /// Starts the threads of a lane, which end when its last handle is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        crate::cleaner::spawn(self)?;
        if self.durable.is_some() {
            crate::durability::spawn(self)?;
            crate::durability::spawn_early(self)?;
            crate::readers::spawn(self)?;
        }
        Ok(())
    }

    /// Requests for memory so far, where one is to be refused.
    pub(crate) fn memory_requests(&self) -> u64 {
        self.budget.requests()
    }

    /// Opens a lane without threads, whose budget is one of those that share `buffers`; the request for
    /// memory of the number `refuse` is refused. `progress` hears how far the recovery of a store has come.
    pub(crate) fn open(
        options: LaneOptions,
        buffers: &Arc<Buffers>,
        refuse: u64,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Lane>, OpenError> {
        let budget = || {
            let budget = Budget::sharing(options.memory, buffers);
            budget.refuse(refuse);
            let keeps_all = options.engine.when_full == WhenFull::Refuse && options.store.is_none();
            Arc::new(if keeps_all { budget.keeping_all() } else { budget })
        };
        let (mut lane, recovery) = Self::construct(options.clone(), budget())?;
        let Some(recovery) = recovery else { return Ok(Arc::new(lane)) };
        let reads_all = options.store.as_ref().is_some_and(|store| store.read_all);
        if !reads_all && lane.has_image() {
            if let Some(recovered) = lane.load_image(&recovery)? {
                lane.recovered = Some(recovered);
                return Ok(Arc::new(lane));
            }
            // Half of the image may have been believed already.
            drop(lane);
            lane = Self::construct(options.clone(), budget())?.0;
        }
        lane.recovered = Some(lane.recover(recovery, progress)?);
        Ok(Arc::new(lane))
    }

    /// An empty lane, and what the recovery of its store begins with.
    fn construct(
        options: LaneOptions,
        budget: Arc<Budget>,
    ) -> Result<(Lane, Option<Recovery>), OpenError> {
        let memory = options.memory;
        let epochs = Arc::new(Epochs::default());
        let mut segment_size = segment_size(memory, FRAMES);
        let opened = match &options.store {
            None => None,
            Some(store) => {
                let opened = crate::recovery::open_store(store, options.hash_seed)?;
                segment_size = opened.store.segment_size();
                Some(opened)
            }
        };
        // Memory that other lanes have now may be this one's later.
        let most = options.engine.memory * GROWTH;
        let keeps_all = options.engine.when_full == WhenFull::Refuse;
        let config = Config { segment_size, max_frame_bytes: most, keeps_all };
        let (store, recovery) = opened.map(|opened| (opened.store, opened.recovery)).unzip();
        let log = Log::new(config, store, Arc::clone(&budget), Arc::clone(&epochs));
        let index = Index::new(options.memory_of_all, most, keeps_all, &budget, &epochs);
        let index = index.map_err(OpenError::Map)?;
        let ghost = Ghost::new(memory);
        budget.charge(ghost.bytes());
        let lane = Lane {
            log: log.map_err(OpenError::Map)?,
            index,
            older: OlderSlots::new(&budget),
            ghost,
            wins: Wins::default(),
            now: AtomicU32::new(0),
            remembered: AtomicU32::new(0),
            flush_at: AtomicU32::new(0),
            fence: AtomicU64::new(0),
            full: AtomicU8::new(0),
            turns: AtomicU64::new(0),
            found_nothing: AtomicU64::new(0),
            frames_full: AtomicBool::new(false),
            ends_must_go: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
            durable: options.store.as_ref().map(|store| Durable::new(&store.common)),
            committing: Mutex::default(),
            committer: Mutex::default(),
            dead_maps: Mutex::default(),
            readers: Arc::default(),
            recovered: None,
            strays: Mutex::default(),
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
        lane.limit_index();
        Ok((lane, recovery))
    }

    /// What recovery found, if there is a store.
    pub(crate) fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// See [`Engine::session`](crate::Engine::session).
    pub(crate) fn session(self: &Arc<Self>, waker: Waker) -> LaneSession {
        let counters = self.new_counters();
        LaneSession::new(Arc::clone(self), counters, waker)
    }

    /// A way for a session to read the store by itself; `event` is an eventfd that each read which
    /// ends makes readable.
    ///
    /// # Errors
    /// There is no store, or no such way here: the engine's readers do it.
    pub(crate) fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let store = self.log.store().ok_or(io::ErrorKind::Unsupported)?;
        store.device().read_queue(event)
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

    /// All that was ever counted, without a look at what is held.
    pub(crate) fn totals(&self) -> Totals {
        lock(&self.counters).sum()
    }

    /// A snapshot of what the engine holds and has counted.
    pub(crate) fn stats(&self) -> Stats {
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
            older_slots: self.older.count() as u64,
            frame_bytes: self.log.frame_bytes(),
            copies: self.log.copies() as u64,
            copy_bytes: self.log.copy_frames().iter().sum::<usize>() as u64
                * self.log.segment_size() as u64,
            buffer_bytes: self.budget.buffers(),
            segment_size: self.log.segment_size() as u64,
            device_written_bytes: self.log.store().map_or(0, |store| store.written()),
            map_written_bytes: self.log.store().map_or(0, |store| store.map_bytes_written()),
            freed_bytes: self.log.store().map_or(0, |store| store.freed_bytes()),
            segment_read_bytes: self.log.store().map_or(0, |store| store.segment_bytes_read()),
            unsynced_bytes: self.log.unsynced_bytes(),
            bad_places: self.log.store().map_or(0, |store| store.bad_places()) as u64,
            ..Stats::default()
        };
        (stats.fast_bytes, stats.fast_used) = self.tier_bytes(Tier::Fast);
        (stats.lower_bytes, stats.lower_used) = self.tier_bytes(Tier::Lower);
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
        let held = self.held();
        stats.segments = held.segments;
        stats.item_bytes = held.live;
        stats.flash_item_bytes = held.absent_live;
        stats.jumbos = held.jumbos;
        stats.frame_bytes += held.jumbo_bytes;
        stats
    }

    /// Sums over all segments that hold records, as far as threads have told what they made dead.
    fn held(&self) -> Held {
        // For the next time.
        self.log.want_counts();
        let mut held = self.log.usage().held();
        for number in self.log.unsealed() {
            held.segments += 1;
            held.live += u64::from(self.log.live(number));
        }
        held
    }

    /// Bytes of the places of a tier, and of those that are not free.
    pub(crate) fn tier_bytes(&self, tier: Tier) -> (u64, u64) {
        let (places, free) = (self.log.places(tier), self.log.free_places(tier));
        let bytes = |places: usize| places as u64 * self.log.segment_size() as u64;
        (bytes(places), bytes(places.saturating_sub(free)))
    }

    /// Look-ups that found an item, of all sessions since the start.
    pub(crate) fn get_hits(&self) -> u64 {
        lock(&self.counters).sum().get_hits
    }

    /// Sets the counters to zero (`stats reset`); gauges stay.
    pub(crate) fn reset_stats(&self) {
        let mut ledger = lock(&self.counters);
        ledger.reset = ledger.sum();
    }

    /// Its number in the table of lanes.
    pub(crate) fn number(&self) -> usize {
        let position = self.options.position.into();
        self.options.store.as_ref().map_or(position, |store| store.lanes.here.into())
    }

    /// What its device is called.
    pub(crate) fn name(&self) -> &str {
        self.options.store.as_ref().map_or("", |store| &store.device.name)
    }

    /// Whether the key of this hash belongs to it, as far as was known when it was opened.
    pub(crate) fn owns(&self, hash: u64) -> bool {
        self.options.store.as_ref().is_none_or(|store| {
            store.lanes.owners[larder_log::format::partition(hash)] == store.lanes.here
        })
    }

    /// The time, in microseconds of the clock that measures its commits; 0 without a store.
    pub(crate) fn clock_us(&self) -> u64 {
        self.durable.as_ref().map_or(0, Durable::now_us)
    }

    /// When a delayed flush is due; 0 for none.
    pub(crate) fn flush_time(&self) -> UnixSeconds {
        self.flush_at.load(Ordering::Relaxed)
    }

    /// What its lower device is called, if it has one.
    pub(crate) fn lower_name(&self) -> Option<&str> {
        let lower = self.options.store.as_ref()?.device.lower.as_ref()?;
        Some(&lower.name)
    }

    /// The table of lanes as its own superblock has it.
    fn own_table(&self, table: &Lanes) -> Lanes {
        Lanes { here: self.number() as u8, ..*table }
    }

    /// Makes the table of lanes durable in its superblock.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn keep_table(&self, table: &Lanes) -> io::Result<()> {
        let Some(store) = self.log.store() else { return Ok(()) };
        let lanes = self.own_table(table);
        store.change_superblock_now(|superblock| superblock.lanes = lanes)
    }

    /// As [`Lane::keep_table`], or when its device works again.
    pub(crate) fn keep_table_sometime(&self, table: &Lanes) {
        let kept = self.keep_table(table).is_ok();
        if let Some(store) = self.log.store().filter(|_| !kept) {
            let lanes = self.own_table(table);
            store.change_superblock(|superblock| superblock.lanes = lanes);
        }
    }

    /// The size of its devices, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.options.store.as_ref().map_or(0, |store| store.device.capacity())
    }

    /// The stripes of the index that hold these partitions; others may be there, too.
    pub(crate) fn stripes(&self, partitions: Range<usize>) -> Range<usize> {
        let stripes = self.index.stripe_count();
        partitions.start * stripes / PARTITIONS..(partitions.end * stripes).div_ceil(PARTITIONS)
    }

    /// The partitions that a stripe of the index holds keys of.
    pub(crate) fn partitions_in(&self, stripe: usize) -> Range<usize> {
        let stripes = self.index.stripe_count();
        stripe * PARTITIONS / stripes..((stripe + 1) * PARTITIONS).div_ceil(stripes)
    }

    /// Every later version in these stripes has a number above `seq`, which may come from another lane.
    ///
    /// # Errors
    /// Those of the device: no number above the durable limit is ever used.
    pub(crate) fn raise_versions(&self, stripes: Range<usize>, seq: u64) -> io::Result<()> {
        if let Some(store) = self.log.store()
            && store.superblock().seq_limit < (seq + SEQ_LEASE / 2).min(MAX_SEQ)
        {
            store.change_superblock_now(|superblock| {
                superblock.seq_limit = superblock.seq_limit.max(seq_lease(seq));
            })?;
            self.mark_lease();
        }
        self.index.raise_seq_in(stripes, seq);
        Ok(())
    }

    /// Gives the lane another share of the memory, in bytes. What is over it is evicted in the
    /// background.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.budget.set_limit(bytes);
        self.log.forget_spare();
        self.limit_index();
        self.set_full(None);
        self.kick_cleaner();
    }

    /// Limits what the index may take by the memory that there is.
    pub(crate) fn limit_index(&self) {
        if self.options.store.is_some() {
            self.index.set_limit(index_limit(self.budget.limit(), self.log.segment_size()));
        }
    }

    /// Checks that the index has room for `items` items.
    ///
    /// # Errors
    /// It needs more.
    pub(crate) fn check_index(&self, items: usize) -> Result<(), StoreError> {
        let minimum = memory_for_index(items, self.log.segment_size());
        // A lane that owns no keys always gets the least memory.
        let owns = |store: &LaneStore| store.lanes.owned(usize::from(store.lanes.here)) > 0;
        let may_have_more = self.options.store.as_ref().is_some_and(owns);
        match minimum > self.options.memory && may_have_more {
            true => Err(StoreError::IndexTooLarge { minimum }),
            false => Ok(()),
        }
    }

    /// Whether tables of `items` items, with room to grow, stay within the limit of the index.
    pub(crate) fn has_room_for_index(&self, items: usize) -> bool {
        Index::has_room(items, index_limit(self.options.memory, self.log.segment_size()))
    }

    /// The least memory that it works with, in bytes.
    pub(crate) fn min_memory(&self) -> u64 {
        min_memory(self.options.store.is_some(), self.log.segment_size())
    }

    /// The largest value of an item with this key length, in bytes: with it, client flags and an
    /// expiry the item has the largest size.
    pub(crate) fn max_value_len(&self, key_len: usize) -> usize {
        let head = larder_log::record::HEADER + 8 + key_len;
        (self.options.engine.max_item_size as usize).saturating_sub(head)
    }

    /// Values longer than this are filled in place: see
    /// [`Session::large_value`](crate::Session::large_value).
    pub(crate) fn large_value_threshold(&self) -> usize {
        self.log.largest_record() - larder_log::record::MAX_KEY - 64
    }

    /// A call was answered `NeedsSpace`: the cleaner must work, and `waker` hear of it.
    pub(crate) fn wait_for_space(&self, waker: &Waker, claim: Claim) {
        let mut waiting = lock(&self.waiting);
        waiting.wakers.push(waker.clone());
        waiting.claim = waiting.claim.max(Some(claim));
        drop(waiting);
        self.kick_cleaner();
    }

    /// Lets those who wait try again.
    pub(crate) fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.wakers.into_iter().for_each(Waker::wake);
    }

    /// The most urgent claim that somebody waits with.
    pub(crate) fn waiting(&self) -> Option<Claim> {
        lock(&self.waiting).claim
    }

    /// Whether a claim that finds no space is refused, because nothing can be reclaimed.
    pub(crate) fn is_full(&self, claim: Claim) -> bool {
        self.full.load(Ordering::Relaxed) > claim as u8
    }

    /// Nothing can be reclaimed for claims up to this one.
    pub(crate) fn set_full(&self, most_urgent: Option<Claim>) {
        let below = most_urgent.map_or(0, |claim| claim as u8 + 1);
        self.full.store(below, Ordering::Relaxed);
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

    /// Whether keys may come here now: what stays half evicted until its segment is cleaned could come back with
    /// them. If there is something, the cleaner is asked to clean it.
    pub(crate) fn receives(&self) -> bool {
        let receives = !self.log.keeps_ends();
        if !receives {
            self.ends_must_go.store(true, Ordering::Relaxed);
            self.kick_cleaner();
        }
        receives
    }

    /// A record of `bytes` in `segment` is dead.
    pub(crate) fn kill(&self, segment: u32, bytes: usize) {
        self.log.segment(segment).kill(bytes);
        self.log.note_death(segment);
        self.killed(segment);
    }

    /// What the store was opened with, if there is one.
    pub(crate) fn store_options(&self) -> Option<&StoreOptions> {
        self.options.store.as_ref().map(|store| &store.common)
    }

    /// Whether what cannot be read is an error for its readers, and not as good as evicted.
    pub(crate) fn may_lose_nothing(&self) -> bool {
        let accepts = self.options.store.as_ref().is_some_and(|store| store.common.accept_damage);
        self.options.engine.when_full == WhenFull::Refuse && !accepts
    }

    /// Something in `segment` is dead that was not.
    #[inline]
    pub(crate) fn killed(&self, segment: u32) {
        if self.is_full(Claim::Write) || self.log.segment(segment).is_jumbo() {
            self.set_full(None);
            self.kick_cleaner();
        }
    }

    /// A thread has told its counts of dead bytes, so there may be room again.
    pub(crate) fn told_dead(&self) {
        if self.is_full(Claim::Write) {
            self.set_full(None);
            self.kick_cleaner();
        }
    }

    /// The memory for a large value, all of it charged, if the budget has it.
    pub(crate) fn map_large(&self, len: usize) -> Option<LargeValue> {
        LargeValue::map(len, &self.budget)?.charged()
    }

    /// Raises the engine's clock; the answer is whether a new second has begun.
    pub(crate) fn advance_clock(&self, now: UnixSeconds) -> bool {
        self.now.fetch_max(now, Ordering::Relaxed) < now
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The threads hold no handle while they wait: they look, find none, and end.
        self.kick_cleaner();
        if let Some(durable) = &self.durable {
            durable.want_commit();
        }
        self.readers.end();
    }
}

/// With a store the index may take all of the memory but for the frames that an engine cannot do
/// without, and for what is kept for connections; beyond that items are evicted or refused, however much
/// room there is on the device.
fn index_limit(memory: u64, segment_size: usize) -> u64 {
    Budget::most_lasting(memory).saturating_sub((FRAMES_BESIDE_INDEX * segment_size) as u64)
}

/// The least memory that an index of `items` items works with, in bytes. A server whose index has reached its
/// limit has that much, so it can always start again.
fn memory_for_index(items: usize, segment_size: usize) -> u64 {
    const STEP: u64 = 1 << 20;
    let tables = (items * size_of::<Slot>()) as u64;
    let mut memory = tables.next_multiple_of(STEP);
    while index_limit(memory, segment_size) < tables {
        memory += STEP;
    }
    memory
}

/// The least memory, in bytes, that a lane with segments of this size works with.
pub(crate) fn min_memory(with_store: bool, segment_size: usize) -> u64 {
    let frames = if with_store { (segment_size * MIN_FRAMES) as u64 * 2 } else { 0 };
    frames.max(MIN_MEMORY)
}

/// Bytes of a segment of a new store, for a lane with this memory.
pub(crate) fn segment_size_with_store(memory: u64) -> usize {
    segment_size(memory, FRAMES_WITH_STORE)
}

fn segment_size(memory: u64, frames: u64) -> usize {
    let target = (memory / frames).max(1);
    (1usize << target.ilog2()).clamp(64 << 10, MAX_SEGMENT_SIZE / 4)
}
