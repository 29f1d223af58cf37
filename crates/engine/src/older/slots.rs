//! The lists of older slots. Each segment that older slots lead to has one list.

use crate::UnixSeconds;
use crate::key::Key;
use crate::lock::lock;
use crate::record_map::RecordMap;
use larder_log::address::GRANULE;
use larder_log::recover::index_image::unusable;
use larder_log::{Address, Budget, Log, SegmentNumber};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The number of locks that the lists are spread over.
const SHARDS: usize = 64;
/// An entry has this many bits of the hash of the key that was set.
const HASH_BITS: u32 = 44;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
/// Approximate memory of an older slot, in bytes: its slot in the index and its entry.
pub(super) const BYTES: u64 = 20;
/// The list of a segment's older slots tells the log how many bytes of that segment are probably
/// dead, whenever this number has changed by more than 1/`TOLD_SHARE` of the segment size.
const TOLD_SHARE: usize = 64;
/// The largest number of unsorted entries of a list that a look-up searches one by one.
const MOST_UNSORTED: usize = 32;
/// Approximate memory of an entry of [`OlderSlots::found_dead`], in bytes.
const FOUND_BYTES: u64 = 48;
/// Memory of a list in addition to its entries, in bytes.
const LIST_BYTES: usize = 96;

/// The entry of an older slot: the offset of its record in units of 8 bytes (bits 44 and up), then
/// 44 bits of the hash of the key whose set superseded the record.
pub(super) type OlderEntry = u64;

pub(super) fn entry(address: Address, key: &Key<'_>) -> OlderEntry {
    ((address.offset() / GRANULE) as u64) << HASH_BITS | key.beyond_position()
}

pub(super) fn offset(entry: OlderEntry) -> usize {
    (entry >> HASH_BITS) as usize * GRANULE
}

/// A lane's older slots, by the segment that they lead to.
#[derive(Debug)]
pub(crate) struct OlderSlots {
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) count: AtomicUsize,
    pub(super) most: AtomicUsize,
    /// The number of closed segments: see [`OlderSlots::close`].
    pub(super) closed: AtomicUsize,
    pub(super) budget: Arc<Budget>,
    /// Records that were found dead in sync mode: their size in bytes, and the commit that was open
    /// then. An entry stays until that commit is durable, because an undo needs the size.
    pub(super) found_dead: Mutex<HashMap<Address, (u32, u64)>>,
}

#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) entries: Vec<OlderEntry>,
    /// The number of removed entries at the front. Walks resolve and remove entries in order.
    pub(super) gone: usize,
    /// The entries before this index are sorted. A later look-up sorts the other entries.
    pub(super) sorted: usize,
    /// The estimated size of the old records together, in bytes: see [`Log::likely_size`].
    pub(super) record_bytes: u32,
    /// The value of `record_bytes` when it was last reported to the log.
    pub(super) told: u32,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.gone
    }

    pub(super) fn footprint(&self) -> u64 {
        (LIST_BYTES + self.entries.capacity() * size_of::<OlderEntry>()) as u64
    }

    pub(super) fn push(&mut self, entry: OlderEntry) {
        if self.entries.len() == self.entries.capacity() {
            self.forget_gone();
            self.entries.reserve_exact(self.entries.len() / 4 + 4);
        }
        self.entries.push(entry);
    }

    pub(super) fn forget_gone(&mut self) {
        self.entries.drain(..self.gone);
        self.sorted -= self.gone;
        self.gone = 0;
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.record_bytes -= self.record_bytes / self.len() as u32;
        if at > self.gone {
            self.entries.remove(at);
            self.sorted -= usize::from(at < self.sorted);
            return;
        }
        self.gone += 1;
        self.sorted = self.sorted.max(self.gone);
        if self.gone * 2 > self.entries.len() {
            self.forget_gone();
        }
    }

    pub(super) fn sort(&mut self) {
        if self.sorted < self.entries.len() {
            self.entries[self.gone..].sort_unstable();
            self.sorted = self.entries.len();
        }
    }

    /// Returns the index of the entry of the record at `address`.
    pub(super) fn find(&mut self, address: Address) -> Option<usize> {
        if self.entries.len() - self.sorted > MOST_UNSORTED {
            self.sort();
        }
        let sorted = &self.entries[self.gone..self.sorted];
        let found = sorted.binary_search_by_key(&address.offset(), |&entry| offset(entry));
        found.ok().map(|at| self.gone + at).or_else(|| {
            let mut others = self.entries[self.sorted..].iter();
            let at = others.position(|&entry| offset(entry) == address.offset())?;
            Some(self.sorted + at)
        })
    }

    /// Returns the class of the list's length, by which segments are sorted. The lengths in a class
    /// differ by at most an eighth.
    pub(super) fn length_class(&self) -> u32 {
        let shift = self.len().max(1).ilog2().saturating_sub(3);
        (shift << 3) + (self.len() >> shift) as u32
    }
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) lists: RecordMap<SegmentNumber, List>,
    /// Segments with lists, sorted by the length of their lists, the longest list last: see
    /// [`List::length_class`].
    pub(super) by_length: BTreeSet<(u32, SegmentNumber)>,
    /// Segments with older slots that cannot be resolved, because their records are unreadable.
    /// These segments are not in `by_length`.
    pub(super) skipped: HashSet<SegmentNumber>,
    /// Segments of this shard that are closed: see [`OlderSlots::close`].
    pub(super) closed: HashSet<SegmentNumber>,
}

impl Shard {
    pub(super) fn change(
        &mut self,
        log: &Log,
        budget: &Budget,
        number: SegmentNumber,
        change: impl FnOnce(&mut List),
    ) {
        let list = self.lists.entry(number).or_default();
        let (from, was_empty) = (list.length_class(), list.len() == 0);
        let bytes = if was_empty { 0 } else { list.footprint() };
        change(list);
        let (to, is_empty) = (list.length_class(), list.len() == 0);
        let (bytes_after, dead) =
            if is_empty { (0, 0) } else { (list.footprint(), list.record_bytes) };
        if is_empty || dead.abs_diff(list.told) as usize > log.segment_size() / TOLD_SHARE {
            list.told = dead;
            log.assume_dead(number, dead);
        }
        match bytes_after.checked_sub(bytes) {
            Some(more) => budget.charge(more),
            None => budget.release(bytes - bytes_after),
        }
        if is_empty {
            self.lists.remove(&number);
            self.skipped.remove(&number);
        }
        if from != to && !self.skipped.contains(&number) {
            self.by_length.remove(&(from, number));
            if !is_empty {
                self.by_length.insert((to, number));
            }
        }
    }
}

impl OlderSlots {
    pub(crate) fn new(budget: &Arc<Budget>) -> OlderSlots {
        OlderSlots {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            budget: Arc::clone(budget),
            found_dead: Mutex::default(),
        }
    }

    pub(super) fn shard(&self, number: SegmentNumber) -> &Mutex<Shard> {
        &self.shards[number as usize % SHARDS]
    }

    /// Returns the number of older slots.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if older slots may be added.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// Adds an older slot: remembers the key that is set over a record of about `bytes` bytes in a
    /// segment.
    pub(super) fn insert(&self, log: &Log, number: SegmentNumber, entry: OlderEntry, bytes: u32) {
        let mut shard = lock(self.shard(number));
        shard.change(log, &self.budget, number, |list| {
            list.push(entry);
            list.record_bytes = list.record_bytes.saturating_add(bytes);
        });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if this key was set over the record at `address`, false if another key was, and
    /// `None` if no key was.
    pub(crate) fn is_set_over(&self, address: Address, key: &Key<'_>) -> Option<bool> {
        let mut shard = lock(self.shard(address.segment()));
        let list = shard.lists.get_mut(&address.segment())?;
        let at = list.find(address)?;
        Some(list.entries[at] & HASH_MASK == key.beyond_position())
    }

    /// Forgets an older slot that is resolved or no longer in the index.
    pub(crate) fn forget(&self, log: &Log, address: Address) {
        let mut shard = lock(self.shard(address.segment()));
        let list = shard.lists.get_mut(&address.segment());
        if let Some(at) = list.and_then(|list| list.find(address)) {
            shard.change(log, &self.budget, address.segment(), |list| list.remove(at));
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all older slots, once the index is empty.
    pub(crate) fn clear(&self, log: &Log) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (number, list) in std::mem::take(&mut shard.lists) {
                self.count.fetch_sub(list.len(), Ordering::Relaxed);
                self.budget.release(list.footprint());
                log.assume_dead(number, 0);
            }
            shard.by_length.clear();
            shard.skipped.clear();
        }
    }

    /// Returns true if older slots lead into the segment.
    pub(crate) fn lead_into(&self, number: SegmentNumber) -> bool {
        // A set inserts its entry under the lock before it notes that the old record is dead. So a
        // caller that has seen the death finds the entry. Without the lock, the caller could miss
        // the entry.
        lock(self.shard(number)).lists.contains_key(&number)
    }

    /// Returns the addresses of the segment's older slots, in order.
    pub(super) fn in_segment(&self, number: SegmentNumber) -> Vec<Address> {
        let mut shard = lock(self.shard(number));
        let Some(list) = shard.lists.get_mut(&number) else { return Vec::new() };
        list.sort();
        let entries = list.entries[list.gone..].iter();
        entries.map(|&entry| Address::new(number, offset(entry))).collect()
    }

    /// Returns a segment with about the longest list. Ignores [skipped](OlderSlots::skip) segments.
    pub(super) fn longest(&self) -> Option<SegmentNumber> {
        let longest = |shard: &Mutex<Shard>| lock(shard).by_length.last().copied();
        self.shards.iter().filter_map(longest).max().map(|(_, number)| number)
    }

    /// Excludes a segment from [`OlderSlots::longest`], because some of its older slots cannot be
    /// resolved.
    pub(super) fn skip(&self, number: SegmentNumber) {
        let Shard { lists, by_length, skipped, .. } = &mut *lock(self.shard(number));
        if let Some(list) = lists.get(&number) {
            by_length.remove(&(list.length_class(), number));
            skipped.insert(number);
        }
    }

    /// Returns the number of segments that are skipped.
    pub(crate) fn skipped(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).skipped.len()).sum()
    }

    /// Returns true if the segment is skipped.
    pub(crate) fn is_skipped(&self, number: SegmentNumber) -> bool {
        lock(self.shard(number)).skipped.contains(&number)
    }

    /// Readmits all segments that were skipped, and returns them.
    pub(super) fn retry(&self) -> Vec<SegmentNumber> {
        let mut tried = Vec::new();
        for shard in &self.shards {
            let Shard { lists, by_length, skipped, .. } = &mut *lock(shard);
            for number in skipped.drain() {
                by_length.extend(lists.get(&number).map(|list| (list.length_class(), number)));
                tried.push(number);
            }
        }
        tried
    }

    /// Closes a segment, which waits for a dead map. No further older slot that leads to it may be
    /// added until [`OlderSlots::open_all`] is called.
    pub(super) fn close(&self, number: SegmentNumber) {
        if lock(self.shard(number)).closed.insert(number) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reopens all closed segments.
    pub(crate) fn open_all(&self) {
        if self.closed.swap(0, Ordering::Relaxed) > 0 {
            self.shards.iter().for_each(|shard| lock(shard).closed.clear());
        }
    }

    /// Returns true if older slots that lead to the segment may be added.
    pub(crate) fn is_open(&self, number: SegmentNumber) -> bool {
        self.closed.load(Ordering::Relaxed) == 0
            || !lock(self.shard(number)).closed.contains(&number)
    }

    /// Notes that a record of `bytes` bytes was found dead while `commit` was open. This commit may
    /// still fail, and an undo then needs the size.
    pub(super) fn note_found_dead(&self, address: Address, bytes: usize, commit: u64) {
        let mut found = lock(&self.found_dead);
        if found.insert(address, (bytes as u32, commit)).is_none() {
            self.budget.charge(FOUND_BYTES);
        }
    }

    /// Returns the size in bytes of a record that was found dead. Returns `None` once the commit
    /// that was open when it was found is durable.
    pub(crate) fn size_of_dead(&self, address: Address) -> Option<u32> {
        lock(&self.found_dead).get(&address).map(|&(bytes, _)| bytes)
    }

    /// Drops the notes of records that were found dead while `commit` or an earlier commit was
    /// open. `commit` is durable.
    pub(crate) fn settle(&self, commit: u64) {
        let mut found = lock(&self.found_dead);
        let before = found.len();
        found.retain(|_, (_, found_in)| *found_in > commit);
        self.budget.release((before - found.len()) as u64 * FOUND_BYTES);
    }

    /// Writes all older slots to an index image.
    pub(crate) fn save(&self, image: &mut impl Write) -> io::Result<()> {
        let shards: Vec<_> = self.shards.iter().map(lock).collect();
        let lists = || shards.iter().flat_map(|shard| &shard.lists);
        image.write_all(&(lists().count() as u32).to_le_bytes())?;
        for (number, list) in lists() {
            let entries = &list.entries[list.gone..];
            image.write_all(&number.to_le_bytes())?;
            image.write_all(&list.record_bytes.to_le_bytes())?;
            image.write_all(&(entries.len() as u32).to_le_bytes())?;
            entries.iter().try_for_each(|entry| image.write_all(&entry.to_le_bytes()))?;
        }
        Ok(())
    }

    /// Reads the older slots that [`OlderSlots::save`] wrote.
    pub(crate) fn restore(&self, log: &Log, image: &mut impl Read) -> io::Result<()> {
        let mut word = [0; 4];
        let mut read_u32 = |image: &mut dyn Read| {
            image.read_exact(&mut word)?;
            io::Result::Ok(u32::from_le_bytes(word))
        };
        for _ in 0..read_u32(image)? {
            let (number, bytes, count) = (read_u32(image)?, read_u32(image)?, read_u32(image)?);
            if !log.numbers().contains(&number) || count == 0 {
                return Err(unusable("older slots lead nowhere"));
            }
            for _ in 0..count {
                let mut entry = [0; 8];
                image.read_exact(&mut entry)?;
                self.insert(log, number, OlderEntry::from_le_bytes(entry), bytes / count);
            }
        }
        Ok(())
    }
}

/// The cleaner's state of its work on older slots.
#[derive(Debug, Default)]
pub(crate) struct OlderSlotWork {
    /// Segments whose older slots are to be resolved.
    pub(super) waiting: BTreeSet<SegmentNumber>,
    /// True if a dead map waits until the older slots of one of the segments in `waiting` are
    /// resolved.
    pub(super) is_awaited: bool,
    /// The time when the limit of older slots was last computed, and the turns since.
    pub(super) limited: (UnixSeconds, u32),
}

impl OlderSlotWork {
    /// Notes that a dead map of the segment waits until the cleaner has resolved the segment's
    /// older slots. Closes the segment, so that no further older slots delay the map.
    pub(crate) fn want(&mut self, older: &OlderSlots, number: SegmentNumber) {
        older.close(number);
        self.waiting.insert(number);
        self.is_awaited = true;
    }
}
