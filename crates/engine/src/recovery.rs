//! Recovery: from what lies on the device back to an index in which every key leads to its newest
//! version.
//!
//! The greatest seq of a key wins, wherever it lies. Segments are read newest first, by several
//! threads, into frames while there is memory; what does not fit stays on the device. Tombstones
//! take part like items and leave the index at the end.

mod open;
mod report;

pub use open::is_store;
pub(crate) use open::{Recovery, open_store};
pub use report::{Progress, Recovered, StoreError};

use crate::WhenFull;
use crate::durability::{Durability, StoreOptions};
use crate::engine::Engine;
use crate::index::slot::Slot;
use crate::key::Key;
use larder_log::format::{DurableEnd, Ending, Extent, Scanned};
use larder_log::record::Kind;
use larder_log::recover::{Found, LoadedJumbo, Survey};
use larder_log::store::SEQ_LEASE;
use larder_log::{Address, Record, Rule, SegmentNumber, Store, format};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Threads that read and index segments.
const THREADS: usize = 4;
/// Of the frames that memory has room for, one in so many is left to the index and to the writers.
const FRAMES_LEFT: usize = 4;

/// What the threads of a recovery share.
struct Shared<'a> {
    survey: &'a Survey,
    next: AtomicUsize,
    /// What is in the index only to hide older versions until the end.
    hiding: Mutex<Vec<Address>>,
    fence: u64,
    /// Jumbos that were not read.
    waiting: Mutex<Vec<SegmentNumber>>,
    /// The index had no memory to grow.
    full: AtomicBool,
}

impl Engine {
    /// Rebuilds the index from the store.
    pub(crate) fn recover(
        &self,
        recovery: Recovery,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Recovered, StoreError> {
        let Recovery { mut report, began } = recovery;
        let (Some(store), Some(options)) = (self.log.store(), &self.options.store) else {
            return Ok(report);
        };
        let survey = self.log.survey()?;
        let shared = Shared {
            survey: &survey,
            next: AtomicUsize::new(0),
            hiding: Mutex::default(),
            fence: store.superblock().fence,
            waiting: Mutex::default(),
            full: AtomicBool::new(false),
        };
        // The index takes what it needs; frames are given back for it later.
        self.index.begin_rebuild();
        let mut scans = self.read_all(&shared, progress)?;
        self.read_damaged(&shared, &mut scans)?;
        self.read_waiting(&shared, &mut scans)?;
        if shared.full.load(Ordering::Relaxed) {
            return Err(StoreError::IndexTooLarge);
        }
        let seen = proof(&scans);
        // A header that is not right is one that was being written, unless its commit was durable.
        let durable = |commit: &Option<u64>| commit.is_some_and(|commit| commit < seen);
        let damaged = survey.damaged.iter().filter(|(_, newest)| durable(newest)).count();
        report.damaged_segments = damaged as u32;
        let (mut loaded, mut useless) = (Vec::new(), Vec::new());
        let (mut newest, mut seq_limit) = (0, store.superblock().seq_limit);
        for (found, scan) in survey.segments.iter().zip(&scans) {
            let Some(scan) = scan else {
                // A jumbo whose commit did not complete looks the same as a damaged one.
                let torn = found.header.jumbo.is_some() && found.opened + 1 >= seen;
                report.damaged_segments += u32::from(!torn);
                useless.push(found.number);
                continue;
            };
            newest = newest.max(scan.last_commit);
            seq_limit = seq_limit.max(scan.seq_limit);
            report.damaged_records += u64::from(scan.gaps);
            report.dropped_bytes += u64::from(scan.dropped);
            loaded.push((found, scan.sealed));
        }
        report.segments = loaded.len() as u32;
        let lost = report.damaged_records + u64::from(report.damaged_segments);
        if lost > 0 && self.options.when_full == WhenFull::Refuse && !options.accept_damage {
            return Err(StoreError::Damaged { records: lost });
        }
        // Segments of commits that failed may have been opened after the last good one.
        let newest = survey.segments.iter().map(|found| found.opened).fold(newest, u64::max);
        self.log.finish_recovery(&survey, &loaded, &useless, newest)?;
        for address in shared.hiding.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.bury_recovered(address)?;
        }
        self.index.end_rebuild(self.options.when_full == WhenFull::Refuse);
        self.begin_life(store, options, seq_limit)?;
        report.items = self.index.items();
        report.took = (options.clock.0)().saturating_sub(began);
        Ok(report)
    }

    /// Reads every segment, with several threads.
    fn read_all(
        &self,
        shared: &Shared<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Option<Scan>>, StoreError> {
        let segments = &shared.survey.segments;
        let of = segments.len();
        // Values that must be in memory come before frames that need not.
        let mut order: Vec<usize> = (0..of).collect();
        order.sort_by_key(|&at| segments[at].header.jumbo.is_none());
        let results: Mutex<Vec<Option<Scan>>> = Mutex::new(vec![None; of]);
        let failed: Mutex<Option<StoreError>> = Mutex::new(None);
        let workers = THREADS.min(thread::available_parallelism().map_or(1, Into::into));
        let jumbos = order.iter().take_while(|&&at| segments[at].header.jumbo.is_some()).count();
        for &at in &order[..jumbos] {
            lock(&results)[at] = self.read_one(shared, &segments[at], Extent::Unknown)?;
        }
        shared.next.store(jumbos, Ordering::Relaxed);
        let work = |report: &mut dyn FnMut(usize)| {
            let mut participant = self.epochs.join();
            loop {
                let at = shared.next.fetch_add(1, Ordering::Relaxed);
                let Some(&place) = order.get(at) else { return };
                participant.tick();
                match self.read_one(shared, &segments[place], Extent::Unknown) {
                    Ok(scan) => lock(&results)[place] = scan,
                    Err(error) => {
                        *lock(&failed) = Some(error);
                        shared.next.store(of, Ordering::Relaxed);
                    }
                }
                participant.sleep();
                self.index.reap();
                report(at + 1);
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|| work(&mut |_| {}));
            }
            work(&mut |done| {
                progress(Progress::Reading { segments: done as u32, of: of as u32 });
            });
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Reads those segments again of which others show that more was durable than was found.
    fn read_damaged(
        &self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
    ) -> Result<(), StoreError> {
        let newest = scans.iter().flatten().max_by_key(|scan| scan.last_commit).copied();
        let Some(newest) = newest else { return Ok(()) };
        let seen = proof(scans);
        let mut participant = self.epochs.join();
        // Per stream: when the last segment before this one was opened, and when the last one that
        // was surely opened later was (one commit may open several).
        let mut opened = [(u64::MAX, u64::MAX); format::STREAMS];
        for (found, scan) in shared.survey.segments.iter().zip(scans.iter_mut()) {
            let Some(scan) = scan else { continue };
            if found.header.jumbo.is_some() {
                continue;
            }
            let stream = usize::from(found.header.stream);
            let (last, later) = &mut opened[stream];
            if found.opened < *last {
                (*last, *later) = (found.opened, *last);
            }
            // A later segment of its stream began before the newest commit: this one was sealed.
            let was_sealed = *later < seen;
            if scan.sealed {
                continue;
            }
            let DurableEnd { segment, offset } = newest.durable[stream];
            let stated = segment == found.number && found.opened < newest.last_commit;
            let extent = match (was_sealed, stated) {
                (true, _) => Extent::Sealed,
                (_, true) if offset > scan.end => Extent::AtLeast(offset),
                _ => continue,
            };
            participant.tick();
            let again = self.read_one(shared, found, extent)?;
            participant.sleep();
            *scan = again.unwrap_or(*scan);
        }
        Ok(())
    }

    /// Reads one segment and puts its records into the index. `None`: nothing of it can be used.
    fn read_one(
        &self,
        shared: &Shared<'_>,
        found: &Found,
        extent: Extent,
    ) -> Result<Option<Scan>, StoreError> {
        if found.header.jumbo.is_some() {
            return self.read_jumbo(shared, found, false);
        }
        let roomy = self.log.available_frames() * FRAMES_LEFT
            > self.options.memory as usize / self.log.segment_size();
        let loaded = self.log.load(shared.survey, found, roomy, extent, |batch| {
            let counts = |(_, record): &&(u32, Record<'_>)| record.seq() >= shared.fence;
            let keys = batch.iter().filter(counts).map(|&(offset, record)| {
                let key = Key::new(record.key(), self.options.hash_seed);
                // SAFETY: the thread is awake.
                unsafe { self.index.prefetch(&key) };
                (offset as usize, record, key)
            });
            for (offset, record, key) in keys.collect::<Vec<_>>() {
                let shown =
                    record.kind() == Kind::Item && !format::meta::is_marked(&found.dead, offset);
                self.admit(shared, Address::new(found.number, offset), record, &key, shown);
            }
        })?;
        Ok(Some(Scan::of(&loaded.scanned)))
    }

    /// Reads a value with a segment of its own. If there is no memory for it, or it only hides older
    /// versions, it waits for the end of the recovery: then it may turn out to be superseded.
    fn read_jumbo(
        &self,
        shared: &Shared<'_>,
        found: &Found,
        must: bool,
    ) -> Result<Option<Scan>, StoreError> {
        if format::meta::is_marked(&found.dead, format::jumbo::RECORD_AT) {
            lock(&shared.waiting).push(found.number);
            return Ok(None);
        }
        let trailer = match self.log.load_jumbo(found, must)? {
            LoadedJumbo::Loaded(trailer) => trailer,
            LoadedJumbo::NoMemory => {
                lock(&shared.waiting).push(found.number);
                return Ok(None);
            }
            LoadedJumbo::Damaged => return Ok(None),
        };
        let address = Address::new(found.number, 0);
        // SAFETY: the jumbo was just loaded, and nobody frees anything during recovery.
        if let Some(record) = unsafe { self.log.record(address) }
            && record.seq() >= shared.fence
        {
            let key = Key::new(record.key(), self.options.hash_seed);
            self.admit(shared, address, record, &key, true);
        }
        if self.log.segment(found.number).live() == 0 {
            self.log.enter_dead(found, false);
        }
        Ok(Some(Scan {
            end: 0,
            last_commit: trailer.commit,
            proof: trailer.proof(),
            seq_limit: trailer.seq_limit,
            durable: trailer.durable,
            sealed: true,
            gaps: 0,
            dropped: 0,
        }))
    }

    /// Decides about the values that were not read: for which there was no memory, or that only hide
    /// older versions.
    fn read_waiting(
        &self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
    ) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut *lock(&shared.waiting));
        // The newest version of each key that hides the others without being in the index.
        let mut hiding: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut participant = self.epochs.join();
        for (found, scan) in shared.survey.segments.iter().zip(scans) {
            if !waiting.contains(&found.number) {
                continue;
            }
            let Some((bytes, seq)) = self.log.look_at_jumbo(found)? else { continue };
            participant.tick();
            let key = Key::new(&bytes, self.options.hash_seed);
            let hidden = hiding.get(&bytes).is_some_and(|&newer| newer >= seq);
            let superseded = hidden || seq < shared.fence || {
                let guard = self.index.lock(&key);
                let newer = guard.find(&key, |slot| self.same_key(slot.address(), &bytes));
                newer.is_some_and(|(_, _, (newer, _))| newer >= seq)
            };
            let marked = format::meta::is_marked(&found.dead, format::jumbo::RECORD_AT);
            // In evict mode a value that does not fit is as good as evicted.
            let fits = self.budget.used() < self.budget.limit();
            let evicted = !marked && !fits && self.options.when_full == WhenFull::Evict;
            if superseded || marked || evicted {
                if !superseded {
                    self.hide(&key);
                    hiding.insert(bytes.clone(), seq);
                }
                if evicted && !superseded {
                    // Until the next start, for it is not known when that is durable.
                    self.log.begin_evicting();
                }
                self.log.enter_dead(found, !superseded);
                *scan = Some(Scan::dead(found));
            } else {
                *scan = self.read_jumbo(shared, found, true)?;
            }
            participant.sleep();
        }
        Ok(())
    }

    /// Takes the version of the key that is in the index out of it: a newer one hides it that is not
    /// there.
    fn hide(&self, key: &Key<'_>) {
        let guard = self.index.lock(key);
        let older = guard.find(key, |slot| self.same_key(slot.address(), key.bytes()));
        if let Some((place, slot, (_, size))) = older {
            guard.remove(place, is_shown(slot));
            self.log.segment(slot.address().segment()).kill(size);
        }
    }

    /// Puts a record into the index unless a newer version of its key is there. One that is not to be
    /// `shown` only hides older versions until the end of the recovery.
    fn admit(
        &self,
        shared: &Shared<'_>,
        address: Address,
        record: Record<'_>,
        key: &Key<'_>,
        shown: bool,
    ) {
        let segment = self.log.segment(address.segment());
        let guard = self.index.lock(key);
        let existing = guard.find(key, |slot| {
            if slot.address() == address {
                return Some((record.seq(), record.size()));
            }
            self.same_key(slot.address(), record.key())
        });
        let counts_before = |slot: Slot, seq: u64| match Rule::SeqDecides.is_broken() {
            // The cleaner's copy of what is marked has its seq.
            false if seq == record.seq() => is_shown(slot) || !shown,
            false => seq > record.seq(),
            true => slot.address().bits() > address.bits(),
        };
        match existing {
            Some((_, slot, _)) if slot.address() == address => segment.revive(record.size()),
            Some((_, slot, (seq, _))) if counts_before(slot, seq) => return,
            Some((place, old, (_, size))) => {
                let items = i32::from(shown) - i32::from(is_shown(old));
                guard.replace(place, new_slot(key, address, shown), items);
                self.log.segment(old.address().segment()).kill(size);
                segment.revive(record.size());
            }
            None => {
                let place = guard.vacate(key, |at| self.position(at));
                let Some(place) = place else {
                    shared.full.store(true, Ordering::Relaxed);
                    return;
                };
                guard.fill(place, new_slot(key, address, shown), i32::from(shown));
                segment.revive(record.size());
            }
        }
        segment.note_expiry(record.expiry());
        if !shown {
            lock(&shared.hiding).push(address);
        }
    }

    /// Seq and size of the record at `address`, if it is that key's.
    fn same_key(&self, address: Address, key: &[u8]) -> Option<(u64, usize)> {
        let look =
            |record: Record<'_>| (record.key() == key).then(|| (record.seq(), record.size()));
        // SAFETY: nobody frees anything during recovery.
        match unsafe { self.log.record(address) } {
            Some(record) => look(record),
            None => {
                let image = self.log.read_record(address);
                let image = image.ok()?;
                // SAFETY: the image is one whole record.
                look(unsafe { Record::at(image.as_ptr().cast(), || 0) })
            }
        }
    }

    /// A record that only hides older versions has done its part in the recovery.
    fn bury_recovered(&self, address: Address) -> Result<(), StoreError> {
        // SAFETY: nobody frees anything during recovery.
        if let Some(record) = unsafe { self.log.record(address) } {
            self.bury(address, record.key(), record.size());
            return Ok(());
        }
        let image = self.log.read_record(address)?;
        // SAFETY: the image is one whole record.
        let record = unsafe { Record::at(image.as_ptr().cast(), || 0) };
        self.bury(address, record.key(), record.size());
        Ok(())
    }

    /// Says in the store that it is in use, and goes on with versions above all that were used.
    pub(crate) fn begin_life(
        &self,
        store: &Store,
        options: &StoreOptions,
        seq_limit: u64,
    ) -> Result<(), StoreError> {
        let superblock = store.superblock();
        self.index.raise_seq(seq_limit.max(superblock.fence));
        self.flush_at.store(superblock.pending_flush, Ordering::Relaxed);
        store.change_superblock_now(|superblock| {
            superblock.clean = false;
            superblock.volatile = options.durability == Durability::None;
            superblock.seq_limit = seq_limit.max(superblock.fence) + SEQ_LEASE;
            superblock.image_segment = 0;
        })?;
        self.mark_lease();
        Ok(())
    }
}

/// The slot of a record. During recovery the frequency tells what only hides older versions.
fn new_slot(key: &Key<'_>, address: Address, shown: bool) -> Slot {
    Slot::new(key.tag(), u8::from(!shown), address)
}

/// Whether a recovered slot leads to an item.
fn is_shown(slot: Slot) -> bool {
    slot.frequency() == 0
}

/// What matters of a scan.
#[derive(Clone, Copy, Debug)]
struct Scan {
    end: u32,
    last_commit: u64,
    proof: u64,
    seq_limit: u64,
    durable: [DurableEnd; format::STREAMS],
    sealed: bool,
    gaps: u32,
    dropped: u32,
}

impl Scan {
    /// Of a jumbo that was not read.
    fn dead(found: &Found) -> Self {
        Scan {
            end: 0,
            last_commit: found.opened,
            proof: 0,
            seq_limit: 0,
            durable: Default::default(),
            sealed: true,
            gaps: 0,
            dropped: 0,
        }
    }

    fn of(scanned: &Scanned) -> Self {
        Scan {
            end: scanned.end,
            last_commit: scanned.last_commit,
            proof: scanned.proof,
            seq_limit: scanned.seq_limit,
            durable: scanned.durable,
            sealed: scanned.ending == Ending::Sealed,
            gaps: scanned.damage.gaps,
            dropped: match scanned.ending {
                Ending::Torn { dropped } => dropped,
                Ending::Sealed | Ending::Open => 0,
            },
        }
    }
}

/// The greatest commit whose being there proves that everything of those before it was durable.
fn proof(scans: &[Option<Scan>]) -> u64 {
    scans.iter().flatten().map(|scan| scan.proof).max().unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
